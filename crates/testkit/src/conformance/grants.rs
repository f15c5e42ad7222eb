//! Grants and leases: tokens, heartbeats, claims, expiry, breaks, wrong tokens.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail like tests"
)]

use ade_domain::lock::{
    AcquireStatus, Acquisition, EndReason, FencingToken, Holder, LockCommand, LockMode, LockOutcome,
    RequestKey,
};

use super::BackendFactory;
use super::fixture::{Fixture, end_range, expect_notification, expect_updated, with_limits};

use LockMode::{Exclusive, Shared};

scenarios!(
    grants_free_lock_with_token_and_lease,
    tokens_increase_with_every_grant,
    reacquiring_returns_same_grant,
    one_release_frees_reacquired_lock,
    holder_ids_of_one_agent_exclude_each_other,
    queues_for_task_locks,
    executes_batch_in_order,
    heartbeat_never_shortens_lease,
    rejects_wrong_tokens,
    verifies_token_until_lease_expires,
    sweep_expires_lease_and_promotes_next,
    unclaimed_ticket_passes_to_next_waiter,
    unclaimed_long_poll_passes_to_next_waiter,
    claim_starts_lease_once,
    extends_unclaimed_grant,
    expired_lock_goes_to_queue_not_newcomer,
    break_frees_all_holders_and_promotes_queue,
    requests_for_many_locks_stop_where_they_wait,
);

async fn grants_free_lock_with_token_and_lease(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let before = fixture.now();
    let request =
        Acquisition { ttl_ms: 7_000, purpose: "migration".into(), ..fixture.request("ann", "1", Exclusive) };
    let grant = fixture.expect_grant("p", request).await;
    let during = before..=fixture.now();
    assert!(during.contains(&grant.acquired_at), "{grant:?} is not of {during:?}");
    assert!(end_range(during, 7_000).contains(&grant.expires_at), "{grant:?}");
    assert!(grant.token.number() >= before.micros() && grant.token.number() < FencingToken::LIMIT);
    assert!(grant.claimed && grant.mode == Exclusive);
    let view = fixture.view("p").await;
    assert_eq!((view.mode, view.queue_length, view.holders.len()), (Some(Exclusive), 0, 1));
    let held = &view.holders[0];
    assert_eq!((&held.grant, &*held.purpose, held.heartbeat_count), (&grant, "migration", 0));
}

async fn tokens_increase_with_every_grant(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let mut last = FencingToken::default();
    for n in 0..20 {
        let who = ["ann", "ben"][n % 2];
        let mode = if n % 3 == 0 { Shared } else { Exclusive };
        let grant = fixture.expect_grant("p", fixture.request(who, &n.to_string(), mode)).await;
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        fixture.release("p", who).await;
    }
    fixture.expect_grant("p", fixture.request("ann", "last", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "last", Exclusive)).await;
    fixture.release("p", "ann").await;
    assert!(fixture.token_of("p", "ben").await > Some(last), "also by promotion");
}

async fn reacquiring_returns_same_grant(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let first = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.advance(2).await;
    for (request_id, mode, ttl_ms) in [("2", Exclusive, 60_000), ("3", Shared, 90_000), ("4", Exclusive, 1)] {
        let before = fixture.view("p").await.holders[0].grant.expires_at;
        let again = fixture
            .expect_grant("p", Acquisition { ttl_ms, ..fixture.request("ann", request_id, mode) })
            .await;
        assert_eq!((again.token, again.mode, again.acquired_at), (first.token, Exclusive, first.acquired_at));
        assert!(again.expires_at >= before, "never shortened");
        assert!(again.expires_at >= fixture.now().plus_ms(ttl_ms.min(50_000)), "as long as requested");
    }
    assert_eq!(fixture.holders("p").await, ["ann"]);
}

async fn one_release_frees_reacquired_lock(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    for request_id in ["1", "2", "3"] {
        fixture.expect_grant("p", fixture.request("ann", request_id, Exclusive)).await;
    }
    fixture.release("p", "ann").await;
    assert!(fixture.holders("p").await.is_empty());
    for request_id in ["1", "2", "3"] {
        let late = fixture.expect_ended("p", fixture.request("ann", request_id, Exclusive)).await;
        assert_eq!(late, EndReason::Released, "all its requests have ended");
    }
}

async fn holder_ids_of_one_agent_exclude_each_other(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let attempt = |id: &str| {
        let Ok(holder) = Holder::new(&fixture.agent("ann"), Some(id)) else { panic!("valid") };
        Acquisition {
            request: RequestKey::derive(&holder, "1"),
            holder,
            ..fixture.request("ann", "1", Exclusive)
        }
    };
    fixture.expect_grant("p", attempt("one")).await;
    assert_eq!(fixture.expect_queued("p", attempt("two")).await, 1);
}

async fn queues_for_task_locks(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let Ok(task) = format!("task:{}", fixture.namespace).parse() else { panic!("valid") };
    for (who, waits) in [("ann", false), ("ben", true)] {
        let reply = fixture.command(&task, LockCommand::Acquire(fixture.request(who, "1", Exclusive))).await;
        let waiting = matches!(reply.outcome, LockOutcome::Status(AcquireStatus::Waiting { .. }));
        assert_eq!(waiting, waits, "{reply:?}");
    }
}

async fn executes_batch_in_order(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let acquire = |name: &str, who: &str| {
        (fixture.lock(name), LockCommand::Acquire(fixture.request(who, "1", Exclusive)))
    };
    let commands: Vec<_> = (0..250)
        .flat_map(|n| {
            let name = format!("p{n}");
            [acquire(&name, "ann"), acquire(&name, "ben"), (fixture.lock(&name), LockCommand::Break)]
        })
        .collect();
    let Ok(replies) = fixture.backend.execute_commands(commands).await else { panic!("no replies") };
    assert_eq!(replies.len(), 750);
    for (n, replies) in replies.chunks(3).enumerate() {
        assert!(
            matches!(&replies[0].outcome, LockOutcome::Status(AcquireStatus::Held(_))),
            "{n}: {replies:?}"
        );
        assert!(
            matches!(&replies[1].outcome, LockOutcome::Status(AcquireStatus::Waiting { position: 1, .. })),
            "{n}"
        );
        assert!(matches!(&replies[2].outcome, LockOutcome::Broken(held) if held.len() == 1), "{n}");
    }
}

async fn heartbeat_never_shortens_lease(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let grant = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    let same = expect_updated(fixture.extend("p", "ann", grant.token, 1).await);
    assert_eq!(same, grant, "not shortened");
    let before = fixture.now();
    let longer = expect_updated(fixture.extend("p", "ann", grant.token, 90_000).await);
    assert!(end_range(before..=fixture.now(), 90_000).contains(&longer.expires_at), "{longer:?}");
    assert_eq!(longer.token, grant.token);
    let view = fixture.view("p").await;
    assert_eq!((view.holders[0].heartbeat_count, view.holders[0].grant.expires_at), (2, longer.expires_at));
    // An extended lease outlives its first expiry.
    let short = fixture
        .expect_grant("q", Acquisition { ttl_ms: 2_000, ..fixture.request("ann", "2", Exclusive) })
        .await;
    expect_updated(fixture.extend("q", "ann", short.token, 60_000).await);
    fixture.advance(2_100).await;
    fixture.sweep().await;
    assert_eq!(fixture.holders("q").await, ["ann"]);
}

async fn rejects_wrong_tokens(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let grant = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let before = fixture.view("p").await;
    for number in [0, grant.token.number() - 1, grant.token.number() + 1, FencingToken::LIMIT - 1, u64::MAX] {
        let token = FencingToken::from_number(number);
        for who in ["ann", "ben", "cem"] {
            let holder = fixture.holder(who);
            for command in [
                LockCommand::Extend { holder: holder.clone(), token, ttl_ms: 90_000 },
                LockCommand::Release { holder: holder.clone(), token, server: None },
                LockCommand::Downgrade { holder, token },
                LockCommand::Verify { token },
            ] {
                assert_eq!(fixture.send("p", command.clone()).await, LockOutcome::NotFound, "{command:?}");
            }
        }
    }
    let token = grant.token;
    let release = LockCommand::Release { holder: fixture.holder("ben"), token, server: None };
    assert_eq!(fixture.send("p", release).await, LockOutcome::NotFound, "token of another holder");
    assert_eq!(fixture.claim("p", "ann", "unknown", 90_000).await, LockOutcome::NotFound, "another request");
    assert_eq!(fixture.claim("p", "ben", "1", 90_000).await, LockOutcome::NotFound, "a waiting request");
    let keep = LockCommand::ExtendUnclaimed {
        holder: fixture.holder("ben"),
        request: fixture.key("ben", "1"),
        ttl_ms: 90_000,
    };
    assert_eq!(fixture.send("p", keep).await, LockOutcome::NotFound);
    assert_eq!(fixture.view("p").await, before);
    // The same for an unknown lock.
    for command in [
        LockCommand::Verify { token },
        LockCommand::Release { holder: fixture.holder("ann"), token, server: None },
    ] {
        assert_eq!(fixture.send("unknown", command).await, LockOutcome::NotFound);
    }
}

async fn verifies_token_until_lease_expires(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let grant = fixture
        .expect_grant("p", Acquisition { ttl_ms: 2_000, ..fixture.request("ann", "1", Exclusive) })
        .await;
    let verify = LockCommand::Verify { token: grant.token };
    match fixture.send("p", verify.clone()).await {
        LockOutcome::Valid(by) => assert_eq!((by.holder, by.grant), (fixture.holder("ann"), grant)),
        other => panic!("{other:?}"),
    }
    fixture.advance(2_100).await;
    assert_eq!(fixture.send("p", verify).await, LockOutcome::NotFound, "also before a sweep");
}

async fn sweep_expires_lease_and_promotes_next(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let first = fixture
        .expect_grant("p", Acquisition { ttl_ms: 300, ..fixture.request("ann", "1", Exclusive) })
        .await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    fixture.advance(400).await;
    fixture.sweep().await;
    expect_notification(&subscription).await;
    let view = fixture.view("p").await;
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].holder, fixture.holder("ben"));
    assert!(view.holders[0].grant.token > first.token);
    assert_eq!(fixture.extend("p", "ann", first.token, 1_000).await, LockOutcome::NotFound);
    assert_eq!(fixture.expect_ended("p", fixture.request("ann", "1", Exclusive)).await, EndReason::Expired);
}

/// A waiter is granted but does not claim: the grant passes to the next waiter.
async fn expect_passed_on(fixture: &Fixture, first: Acquisition) {
    fixture.heartbeat("ben").await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", first.clone()).await;
    fixture.expect_queued("p", fixture.request("next", "1", Exclusive)).await;
    fixture.release("p", "ann").await;
    let view = fixture.view("p").await;
    assert_eq!(
        (fixture.short_name(&view.holders[0].holder), view.holders[0].grant.claimed),
        ("ben".into(), false)
    );
    fixture.advance(2_100).await;
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["next"]);
    assert_eq!(fixture.claim("p", "ben", "1", 1_000).await, LockOutcome::NotFound);
    assert_eq!(fixture.expect_ended("p", first).await, EndReason::Unclaimed);
    fixture.remove_agents(&["ben"]).await;
}

async fn unclaimed_ticket_passes_to_next_waiter(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.ticket_claim_ms = 2_000)).await;
    expect_passed_on(&fixture, fixture.ticket("ben", "1", Exclusive)).await;
}

async fn unclaimed_long_poll_passes_to_next_waiter(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.long_poll_claim_ms = 2_000)).await;
    expect_passed_on(&fixture, fixture.request("ben", "1", Exclusive)).await;
}

async fn claim_starts_lease_once(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.release("p", "ann").await;
    let before = fixture.now();
    let grant = expect_updated(fixture.claim("p", "ben", "1", 90_000).await);
    assert!(end_range(before..=fixture.now(), 90_000).contains(&grant.expires_at), "{grant:?}");
    assert!(grant.claimed);
    fixture.advance(2).await;
    assert_eq!(expect_updated(fixture.claim("p", "ben", "1", 90_000).await), grant, "the lease already runs");
    assert_eq!(
        fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await,
        grant,
        "nor does a repeated request restart it"
    );
}

async fn extends_unclaimed_grant(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.long_poll_claim_ms = 2_000)).await;
    let request = Acquisition { claimed: false, ..fixture.request("ann", "1", Exclusive) };
    let before = fixture.now();
    let grant = fixture.expect_grant("p", request.clone()).await;
    assert!(!grant.claimed);
    assert!(
        end_range(before..=fixture.now(), 2_000).contains(&grant.expires_at),
        "the claim window: {grant:?}"
    );
    let keep = |ms| LockCommand::ExtendUnclaimed {
        holder: fixture.holder("ann"),
        request: request.request,
        ttl_ms: ms,
    };
    assert_eq!(expect_updated(fixture.send("p", keep(1)).await), grant, "never shortened");
    let longer = expect_updated(fixture.send("p", keep(60_000)).await);
    assert!(longer.expires_at > grant.expires_at && !longer.claimed);
    fixture.advance(2_100).await;
    fixture.sweep().await;
    assert_eq!(fixture.holders("p").await, ["ann"]);
    let claimed = expect_updated(fixture.claim("p", "ann", "1", 90_000).await);
    assert!(claimed.claimed && claimed.token == grant.token);
}

async fn expired_lock_goes_to_queue_not_newcomer(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", Acquisition { ttl_ms: 300, ..fixture.request("ann", "1", Exclusive) }).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.advance(400).await;
    assert_eq!(fixture.expect_queued("p", fixture.request("new", "1", Exclusive)).await, 1, "ben was first");
    assert_eq!(fixture.holders("p").await, ["ben"]);
}

async fn break_frees_all_holders_and_promotes_queue(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let mut tokens = vec![];
    for who in ["s1", "s2"] {
        tokens.push(fixture.expect_grant("p", fixture.request(who, "1", Shared)).await.token);
    }
    fixture.expect_queued("p", fixture.request("w", "1", Exclusive)).await;
    let LockOutcome::Broken(held) = fixture.send("p", LockCommand::Break).await else { panic!("broken") };
    let mut broken: Vec<FencingToken> = held.iter().map(|held| held.grant.token).collect();
    broken.sort();
    assert_eq!(broken, tokens);
    assert_eq!(fixture.holders("p").await, ["w"]);
    assert_eq!(fixture.expect_ended("p", fixture.request("s1", "1", Shared)).await, EndReason::Broken);
    assert_eq!(fixture.extend("p", "s2", tokens[1], 1_000).await, LockOutcome::NotFound);
    assert_eq!(fixture.send("nobody", LockCommand::Break).await, LockOutcome::Broken(vec![]));
}

async fn requests_for_many_locks_stop_where_they_wait(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let names: Vec<String> = (0..70).map(|number| format!("many-{number:02}")).collect();
    let acquire = |name: &String| {
        let acquisition = Acquisition { claimed: false, ..fixture.request("ben", "1", Exclusive) };
        (fixture.lock(name), LockCommand::Acquire(acquisition))
    };
    let run = async |commands: Vec<_>| {
        let replies = fixture.backend.execute_while_successful(commands).await.expect("replies");
        replies.into_iter().map(|reply| reply.outcome).collect::<Vec<LockOutcome>>()
    };
    for (taken, release) in [(50, true), (5, true), (0, false)] {
        fixture.expect_grant(&names[taken], fixture.request("ann", &taken.to_string(), Exclusive)).await;
        let outcomes = run(names.iter().map(acquire).collect()).await;
        assert_eq!(outcomes.len(), taken + 1, "nothing behind the lock that it waits for");
        assert!(outcomes.iter().take(taken).all(LockOutcome::is_success));
        assert!(matches!(outcomes[taken], LockOutcome::Status(AcquireStatus::Waiting { position: 1, .. })));
        assert_eq!(fixture.holders(&names[taken + 1]).await, Vec::<String>::new());
        if release {
            let cancel = |name: &String| {
                let (holder, request) = (fixture.holder("ben"), fixture.key("ben", "1"));
                let reason = EndReason::Refused;
                (fixture.lock(name), LockCommand::Cancel { holder, request, reason, include_claimed: false })
            };
            assert_eq!(
                run(names.iter().map(cancel).collect()).await.len(),
                names.len(),
                "all are given back"
            );
        }
        fixture.release(&names[taken], "ann").await;
    }
    let outcomes = run(names.iter().map(acquire).collect()).await;
    assert_eq!(outcomes.len(), names.len());
    assert!(outcomes.iter().all(LockOutcome::is_success));
}
