//! Liveness of servers and agents that wait, notifications of requests, and the event stream.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::agent::{AgentStatus, OFFLINE_AFTER_MS};
use ade_domain::lock::{
    Acquisition, EndReason, LockCommand, LockMode, LockOutcome, UnreportedLease, WaitOptions,
};
use ade_store::coordination::LockEventKind;

use super::BackendFactory;
use super::fixture::{Fixture, expect_notification, in_time, with_limits};

use LockMode::{Exclusive, Shared};

scenarios!(
    skips_waiters_of_lost_server,
    another_server_adopts_repeated_request,
    long_poll_becomes_ticket,
    drops_tickets_of_offline_agent_but_not_long_polls,
    notifies_subscribers_of_a_grant,
    delivers_the_lease_that_a_release_starts,
    gives_back_a_lease_that_nobody_took,
    gives_back_a_lease_that_several_subscribers_left,
    gives_back_a_lease_by_its_request,
    late_listener_gets_earlier_notification,
    publishes_lock_events_in_order,
);

async fn skips_waiters_of_lost_server(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.server_timeout_ms = 2_000)).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.served_by("lost", "dead", "1")).await;
    fixture.expect_queued("p", fixture.served_by("alive", "live", "1")).await;
    let subscription = fixture.backend.subscribe(fixture.key("dead", "1"));
    // In small steps: a backend that was idle for long assumes that it was suspended itself and ends no waits.
    for _ in 0..3 {
        fixture.advance(700).await;
        fixture.server_heartbeat("p", "alive").await;
    }
    fixture.sweep().await;
    assert_eq!(fixture.queue("p").await, ["live"], "removed at any position");
    expect_notification(&subscription).await;
    fixture.release("p", "ann").await;
    assert_eq!(fixture.holders("p").await, ["live"]);
    assert_eq!(
        fixture.expect_queued("p", fixture.served_by("lost", "dead", "1")).await,
        1,
        "the request may be repeated"
    );
}

async fn another_server_adopts_repeated_request(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.server_timeout_ms = 2_000)).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.served_by("old", "ben", "1")).await;
    fixture.expect_queued("p", fixture.served_by("new", "cem", "1")).await;
    assert_eq!(fixture.expect_queued("p", fixture.served_by("new", "ben", "1")).await, 1, "same position");
    assert_eq!(fixture.view("p").await.queue[0].served_by.as_deref(), Some("new"));
    fixture.advance(2_100).await;
    fixture.server_heartbeat("p", "new").await;
    fixture.release("p", "ann").await;
    assert_eq!(fixture.holders("p").await, ["ben"]);
}

async fn long_poll_becomes_ticket(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.server_timeout_ms = 300)).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.served_by("server", "ben", "1")).await;
    assert_eq!(fixture.expect_queued("p", fixture.ticket("ben", "1", Exclusive)).await, 1);
    assert_eq!(fixture.view("p").await.queue[0].served_by, None);
    fixture.advance(400).await;
    fixture.release("p", "ann").await;
    assert_eq!(fixture.holders("p").await, ["ben"], "a ticket needs no server");
}

async fn drops_tickets_of_offline_agent_but_not_long_polls(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.server_timeout_ms = 300_000)).await;
    let names = ["ann", "silent", "open", "online"];
    for name in names {
        fixture.heartbeat(name).await;
    }
    let long = |request: Acquisition| {
        let wait = request.wait.clone().map(|wait| WaitOptions { timeout_ms: 300_000, ..wait });
        Acquisition { ttl_ms: 300_000, wait, ..request }
    };
    fixture.expect_grant("p", long(fixture.request("ann", "1", Exclusive))).await;
    fixture.expect_queued("p", long(fixture.ticket("silent", "1", Exclusive))).await;
    fixture.expect_queued("p", long(fixture.request("open", "1", Exclusive))).await;
    fixture.expect_queued("p", long(fixture.ticket("online", "1", Exclusive))).await;
    fixture.sweep().await;
    assert_eq!(fixture.queue("p").await, ["silent", "open", "online"], "all are online");
    let subscription = fixture.backend.subscribe(fixture.key("silent", "1"));
    fixture.advance(OFFLINE_AFTER_MS - 1_000).await;
    fixture.heartbeat("online").await;
    fixture.advance(2_000).await;
    fixture.sweep().await;
    expect_notification(&subscription).await;
    assert_eq!(fixture.queue("p").await, ["open", "online"]);
    assert_eq!(
        fixture.expect_ended("p", fixture.ticket("silent", "1", Exclusive)).await,
        EndReason::AgentOffline
    );
    assert_eq!(fixture.holders("p").await, ["ann"], "holds end with their leases only");
    for (name, status) in [("silent", AgentStatus::Offline), ("online", AgentStatus::Active)] {
        let view = fixture.backend.agent(fixture.agent(name)).await.expect("a reply").expect("known");
        assert_eq!(view.status, status, "{name}");
    }
    fixture.heartbeat("silent").await;
    let back = fixture.backend.agent(fixture.agent("silent")).await.expect("a reply").expect("known");
    assert_eq!(back.status, AgentStatus::Active, "online again");
    fixture.remove_agents(&names).await;
}

async fn notifies_subscribers_of_a_grant(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let (first, second) = (
        fixture.backend.subscribe(fixture.key("ben", "1")),
        fixture.backend.subscribe(fixture.key("ben", "1")),
    );
    let waiting = tokio::spawn(async move { expect_notification(&first).await });
    fixture.release("p", "ann").await;
    in_time(waiting).await.expect("notified");
    expect_notification(&second).await;
    fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await;
}

async fn delivers_the_lease_that_a_release_starts(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "ann").await;
    let grant = in_time(subscription.changed()).await.expect("the notification brings the grant");
    assert!(grant.claimed);
    assert_eq!(fixture.token_of("p", "ben").await, Some(grant.token));
    drop(subscription);
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["ben"], "the subscriber took it");
    let repeated = fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await;
    assert_eq!(repeated.token, grant.token);
}

async fn gives_back_a_lease_that_nobody_took(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.heartbeat("dan").await;
    fixture.expect_queued("p", fixture.ticket("dan", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "ann").await;
    assert_eq!(fixture.holders("p").await, ["ben"]);
    drop(subscription);
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["cem"], "the caller of the first has left");
    fixture.release_by(Some("server"), "p", "cem").await;
    assert_eq!(fixture.holders("p").await, ["dan"]);
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["dan"], "a ticket is claimed by its caller");
}

async fn gives_back_a_lease_that_several_subscribers_left(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    let subscribe = || fixture.backend.subscribe(fixture.key("ben", "1"));
    let (first, second) = (subscribe(), subscribe());
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "ann").await;
    assert_eq!(in_time(first.changed()).await, None, "each of several asks for it");
    drop(first);
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["ben"], "the second may ask for it");
    drop(second);
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["cem"]);

    let (first, second) = (subscribe(), subscribe());
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "cem").await;
    let asked = fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await;
    drop((first, second));
    fixture.sweep().await;
    assert_eq!(fixture.token_of("p", "ben").await, Some(asked.token), "its caller has it");
}

/// As a server does that never gets the reply to its release.
async fn gives_back_a_lease_by_its_request(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let give_back = async |server: &str, agent: &str| {
        let lease = UnreportedLease::StartedBy(server.into(), fixture.key(agent, "1"));
        fixture.send("p", LockCommand::ReturnUnreported { holder: fixture.holder(agent), lease }).await
    };
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "ann").await;
    assert_eq!(give_back("other", "ben").await, LockOutcome::NotFound, "did not start it");
    assert_eq!(give_back("server", "cem").await, LockOutcome::NotFound, "still waits");
    assert_eq!(give_back("server", "ben").await, LockOutcome::Done);
    assert_eq!(fixture.holders("p").await, ["cem"]);
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.release_by(Some("server"), "p", "cem").await;
    fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await;
    assert_eq!(give_back("server", "ben").await, LockOutcome::NotFound, "its caller asked for it");
    assert_eq!(fixture.holders("p").await, ["ben"]);
}

async fn late_listener_gets_earlier_notification(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Shared)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    fixture.send("p", LockCommand::Break).await;
    assert_eq!(fixture.holders("p").await, ["ben"]);
    expect_notification(&subscription).await;
}

async fn publishes_lock_events_in_order(factory: BackendFactory) {
    let fixture = Fixture::with_settings(&factory, with_limits(|limits| limits.max_queue = 2)).await;
    let mut events = fixture.backend.subscribe_events();
    let before = fixture.now();
    let ann = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await.token;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.expect_refused("p", fixture.request("dee", "1", Exclusive)).await;
    fixture.cancel("p", "cem", "1", EndReason::Cancelled).await;
    fixture.release("p", "ann").await;
    let ben = fixture.token_of("p", "ben").await.expect("promoted");
    fixture.send("p", LockCommand::Break).await;
    let expected = [
        LockEventKind::Acquired(fixture.holder("ann"), ann),
        LockEventKind::Queued(fixture.holder("ben")),
        LockEventKind::Queued(fixture.holder("cem")),
        LockEventKind::QueueFull,
        LockEventKind::WaitEnded(fixture.holder("cem"), "cancelled"),
        LockEventKind::Released(fixture.holder("ann"), ann, "released"),
        LockEventKind::Promoted(fixture.holder("ben"), ben),
        LockEventKind::Released(fixture.holder("ben"), ben, "broken"),
    ];
    for kind in expected {
        let lock_event = loop {
            let lock_event = in_time(events.recv()).await.expect("not lagging");
            if lock_event.lock == fixture.lock("p") {
                break lock_event;
            }
        };
        assert_eq!(lock_event.kind, kind);
        assert!((before..=fixture.now()).contains(&lock_event.at), "{lock_event:?}");
    }
}
