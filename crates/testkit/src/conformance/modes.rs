//! Lock modes and queue order: FIFO, shared holders, upgrades and downgrades.

#![expect(clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{Acquisition, EndReason, LockCommand, LockMode, LockOutcome};

use super::BackendFactory;
use super::fixture::{Fixture, expect_updated};

use LockMode::{Exclusive, Shared};

scenarios!(
    grants_in_fifo_order,
    shared_holders_coexist,
    shared_request_does_not_overtake_waiting_writer,
    grants_leading_shared_waiters_together,
    grants_many_shared_waiters,
    only_shared_holder_upgrades_immediately,
    upgrade_waits_at_head_of_queue,
    unclaimed_upgrade_falls_back_to_shared,
    refused_upgrade_keeps_shared_hold,
    upgrade_without_hold_loses_precedence,
    downgrade_grants_leading_shared_waiters,
);

async fn grants_in_fifo_order(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    let names = ["zoe", "ben", "yan", "cem", "xia"];
    for (at, name) in names.iter().enumerate() {
        let priority = [0, 9, -9, 5, 1][at];
        let request =
            Acquisition { priority, purpose: (*name).into(), ..fixture.request(name, "1", Exclusive) };
        assert_eq!(fixture.expect_queued("p", request).await, at + 1, "name and priority do not matter");
    }
    let view = fixture.view("p").await;
    let scores: Vec<f64> = view.queue.iter().map(|waiter| waiter.score.as_millis()).collect();
    assert!(scores.windows(2).all(|two| two[0] < two[1]), "not strictly increasing: {scores:?}");
    assert_eq!((view.queue[1].priority, &*view.queue[1].purpose), (9, "ben"), "stored and shown");
    let mut before = "ann";
    for (at, name) in names.iter().enumerate() {
        fixture.release("p", before).await;
        assert_eq!(fixture.holders("p").await, [*name]);
        assert_eq!(fixture.queue("p").await, names[at + 1..]);
        before = name;
    }
}

async fn shared_holders_coexist(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let mut tokens = Vec::new();
    for who in ["a", "b", "c"] {
        tokens.push(fixture.expect_grant("p", fixture.request(who, "1", Shared)).await.token);
    }
    assert!(tokens.windows(2).all(|two| two[0] < two[1]), "not strictly increasing: {tokens:?}");
    let view = fixture.view("p").await;
    assert_eq!((view.mode, view.holders.len()), (Some(Shared), 3));
    assert_eq!(fixture.expect_queued("p", fixture.request("w", "1", Exclusive)).await, 1);
}

async fn shared_request_does_not_overtake_waiting_writer(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("s0", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("w", "1", Exclusive)).await;
    assert_eq!(fixture.expect_queued("p", fixture.request("s1", "1", Shared)).await, 2);
    fixture.expect_refused("p", fixture.no_wait("s2", "1", Shared)).await;
    // Once the writer has left, nothing blocks the shared request.
    fixture.cancel("p", "w", "1", EndReason::Cancelled).await;
    assert_eq!(fixture.holders("p").await, ["s0", "s1"]);
}

async fn grants_leading_shared_waiters_together(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("w0", "1", Exclusive)).await;
    for name in ["s1", "s2", "s3"] {
        fixture.expect_queued("p", fixture.request(name, "1", Shared)).await;
    }
    fixture.expect_queued("p", fixture.request("w1", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("s4", "1", Shared)).await;
    fixture.release("p", "w0").await;
    assert_eq!(fixture.holders("p").await, ["s1", "s2", "s3"]);
    assert_eq!(fixture.queue("p").await, ["w1", "s4"]);
    for name in ["s1", "s2"] {
        fixture.release("p", name).await;
        assert_eq!(fixture.queue("p").await, ["w1", "s4"]);
    }
    fixture.release("p", "s3").await;
    assert_eq!(fixture.holders("p").await, ["w1"]);
    fixture.release("p", "w1").await;
    assert_eq!(fixture.holders("p").await, ["s4"]);
}

async fn grants_many_shared_waiters(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("writer", "1", Exclusive)).await;
    for n in 0..300 {
        fixture.expect_queued("p", fixture.request(&format!("s{n:03}"), "1", Shared)).await;
    }
    fixture.release("p", "writer").await;
    // Work per command is bounded; sweeps do the rest, and more sweeps do no harm.
    fixture.sweep().await;
    fixture.sweep().await;
    let view = fixture.view("p").await;
    assert_eq!((view.holders.len(), view.queue_length), (300, 0));
}

async fn only_shared_holder_upgrades_immediately(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let shared = fixture.expect_grant("p", fixture.request("ann", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let exclusive = fixture.expect_grant("p", fixture.no_wait("ann", "2", Exclusive)).await;
    assert_eq!(exclusive.mode, Exclusive);
    assert!(exclusive.token > shared.token, "an upgrade is a new grant");
    assert_eq!(
        fixture.extend("p", "ann", shared.token, 1_000).await,
        LockOutcome::NotFound,
        "the old token is invalid"
    );
    expect_updated(fixture.extend("p", "ann", exclusive.token, 1_000).await);
    assert_eq!(fixture.queue("p").await, ["ben"]);
}

async fn upgrade_waits_at_head_of_queue(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let shared = fixture.expect_grant("p", fixture.request("ann", "1", Shared)).await;
    fixture.expect_grant("p", fixture.request("ben", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    assert_eq!(fixture.expect_queued("p", fixture.request("ann", "2", Exclusive)).await, 1);
    assert_eq!(fixture.queue("p").await, ["ann", "cem"]);
    assert_eq!(fixture.holders("p").await, ["ann", "ben"], "it holds what it held");
    fixture.release("p", "ben").await;
    let grant = expect_updated(fixture.claim("p", "ann", "2", 60_000).await);
    assert!(grant.mode == Exclusive && grant.token > shared.token, "{grant:?}");
    assert_eq!(fixture.queue("p").await, ["cem"]);
    fixture.release("p", "ann").await;
    assert_eq!(fixture.holders("p").await, ["cem"]);
}

async fn unclaimed_upgrade_falls_back_to_shared(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    for why in [EndReason::Refused, EndReason::Cancelled] {
        let name = why.as_str();
        let shared = fixture.expect_grant(name, fixture.request("ann", "1", Shared)).await;
        let request = Acquisition { claimed: false, ..fixture.request("ann", name, Exclusive) };
        let exclusive = fixture.expect_grant(name, request).await;
        assert!(!exclusive.claimed && exclusive.mode == Exclusive);
        fixture.cancel(name, "ann", name, why).await;
        let back = expect_updated(fixture.extend(name, "ann", shared.token, 1).await);
        assert_eq!((back.mode, back.token), (Shared, shared.token), "the shared hold it came from");
        fixture.expect_grant(name, fixture.request("ben", "1", Shared)).await;
    }
}

async fn refused_upgrade_keeps_shared_hold(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let shared = fixture.expect_grant("p", fixture.request("ann", "1", Shared)).await;
    fixture.expect_grant("p", fixture.request("ben", "1", Shared)).await;
    fixture.expect_refused("p", fixture.no_wait("ann", "2", Exclusive)).await;
    let same = expect_updated(fixture.extend("p", "ann", shared.token, 1).await);
    assert_eq!(same, shared);
}

async fn upgrade_without_hold_loses_precedence(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Shared)).await;
    fixture.expect_grant("p", fixture.request("ben", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.advance(2).await;
    fixture.expect_queued("p", fixture.request("ann", "2", Exclusive)).await;
    assert_eq!(fixture.queue("p").await, ["ann", "cem"]);
    fixture.release("p", "ann").await;
    assert_eq!(fixture.queue("p").await, ["cem", "ann"], "by the time of its request");
}

async fn downgrade_grants_leading_shared_waiters(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let grant = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    for (name, mode) in [("s1", Shared), ("s2", Shared), ("w", Exclusive), ("s3", Shared)] {
        fixture.expect_queued("p", fixture.request(name, "1", mode)).await;
    }
    let downgrade = LockCommand::Downgrade { holder: fixture.holder("ann"), token: grant.token };
    for _ in 0..2 {
        let shared = expect_updated(fixture.send("p", downgrade.clone()).await);
        assert_eq!((shared.mode, shared.token), (Shared, grant.token), "same grant, also if repeated");
        assert_eq!(fixture.holders("p").await, ["ann", "s1", "s2"]);
        assert_eq!(fixture.queue("p").await, ["w", "s3"]);
    }
}
