//! The state machine of one lock: grants, queueing, refusals, upgrades, expiry, retries and lost servers.

use crate::locks::fixture::{LockFixture, holder, lock, restore_from_snapshot, ticket};
use ade_domain::lock::{
    AcquireStatus, Acquisition, EndReason, FencingToken, Holder, LockCommand, LockLimits, LockMode,
    LockOutcome, LockRefusal, RequestKey, UnreportedLease, WaitOptions,
};

use LockMode::{Exclusive, Shared};

fn fixture() -> LockFixture {
    LockFixture::new(LockLimits::default())
}

/// A request that a server holds open for up to one minute.
fn open_request(agent: &str, request_id: &str, mode: LockMode, server: &str) -> Acquisition {
    let wait = Some(WaitOptions { timeout_ms: 60_000, served_by: Some(server.into()) });
    Acquisition { wait, ..ticket(agent, request_id, mode) }
}

fn no_wait(agent: &str, request_id: &str, mode: LockMode) -> Acquisition {
    Acquisition { wait: None, ..ticket(agent, request_id, mode) }
}

fn end_reason(status: AcquireStatus) -> EndReason {
    match status {
        AcquireStatus::Ended(reason) => reason,
        other => panic!("not ended: {other:?}"),
    }
}

fn cancel(agent: &str, request_id: &str, reason: EndReason) -> LockCommand {
    let holder = holder(agent);
    LockCommand::Cancel {
        request: RequestKey::derive(&holder, request_id),
        holder,
        reason,
        include_claimed: false,
    }
}

#[test]
fn grants_free_lock_with_growing_token_and_lease() {
    let mut locks = fixture();
    let grant = locks.grant("p", ticket("ann", "1", Exclusive));
    assert_eq!(grant.token.number(), locks.now.micros());
    assert_eq!(grant.acquired_at, locks.now);
    assert_eq!(grant.expires_at, locks.now.plus_ms(30_000));
    locks.release("p", "ann");
    let next = locks.grant("p", ticket("ben", "1", Exclusive));
    assert!(next.token > grant.token, "even within the same microsecond");
}

#[test]
fn reacquiring_returns_same_grant_and_one_release_frees_it() {
    let mut locks = fixture();
    let first = locks.grant("p", ticket("ann", "1", Exclusive));
    locks.advance(1_000);
    for (request_id, mode) in [("2", Exclusive), ("3", Shared)] {
        let joined = locks.grant("p", ticket("ann", request_id, mode));
        assert_eq!((joined.token, joined.mode), (first.token, Exclusive));
        assert_eq!(joined.expires_at, locks.now.plus_ms(30_000), "extended to the requested lease");
    }
    assert_eq!(locks.release("p", "ann"), LockOutcome::Done);
    assert!(locks.holders("p").is_empty());
    for request_id in ["1", "2", "3"] {
        let reason = end_reason(locks.acquire("p", ticket("ann", request_id, Exclusive)));
        assert_eq!(reason, EndReason::Released, "request {request_id} is not revived");
    }
}

#[test]
fn refusal_without_wait_lists_holders() {
    let mut locks = fixture();
    locks.grant("p", Acquisition { purpose: "migration".into(), ..ticket("ann", "1", Exclusive) });
    locks.enqueue("p", ticket("cem", "1", Shared));
    match locks.acquire("p", no_wait("ben", "1", Shared)) {
        AcquireStatus::Refused(LockRefusal::Held { holders, queue_length: 1 }) => {
            assert_eq!(holders.len(), 1);
            assert_eq!((holders[0].holder.agent_id(), &*holders[0].purpose), ("ann", "migration"));
        }
        other => panic!("{other:?}"),
    }
    locks.release("p", "ann");
    locks.release("p", "cem");
    locks.grant("p", no_wait("ben", "1", Shared));
}

#[test]
fn shared_waiters_do_not_overtake_exclusive_and_are_granted_together() {
    let mut locks = fixture();
    locks.grant("p", ticket("s0", "1", Shared));
    locks.grant("p", ticket("s1", "1", Shared));
    assert_eq!(locks.enqueue("p", ticket("w1", "1", Exclusive)), 1);
    for (index, name) in ["s2", "s3", "s4"].iter().enumerate() {
        assert_eq!(locks.enqueue("p", ticket(name, "1", Shared)), index + 2);
    }
    locks.enqueue("p", ticket("w2", "1", Exclusive));
    locks.enqueue("p", ticket("s5", "1", Shared));
    locks.release("p", "s0");
    assert_eq!(locks.holders("p"), ["s1"]);
    locks.release("p", "s1");
    assert_eq!(locks.holders("p"), ["w1"]);
    locks.release("p", "w1");
    assert_eq!(locks.holders("p"), ["s2", "s3", "s4"]);
    assert_eq!(locks.queue("p"), ["w2", "s5"]);
}

#[test]
fn grants_many_shared_waiters_in_bounded_batches() {
    let mut locks = fixture();
    locks.grant("p", ticket("writer", "1", Exclusive));
    for n in 0..300 {
        locks.enqueue("p", ticket(&format!("s{n:03}"), "1", Shared));
    }
    // Not through the fixture: its invariants do not hold between two batches.
    let token = locks.table.lock(&lock("p")).expect("held").last_token();
    let release = LockCommand::Release { holder: holder("writer"), token, server: None };
    let mut batches = 0;
    locks.table.execute(&lock("p"), &release, locks.now);
    let mut budget = 1;
    while let Some(name) = locks.table.next_due_lock(locks.now, &mut budget) {
        locks.table.changes.clear();
        locks.table.execute(&name, &LockCommand::Tick, locks.now);
        let changes = &locks.table.changes;
        assert!(
            changes.len() <= 3 * LockLimits::default().batch_size,
            "{} changes in one batch",
            changes.len()
        );
        batches += 1;
    }
    assert_eq!(locks.holders("p").len(), 300);
    assert!(batches > 0);
}

#[test]
fn upgrade_goes_first_and_gets_new_token() {
    let mut locks = fixture();
    let shared = locks.grant("p", ticket("ann", "1", Shared));
    locks.grant("p", ticket("ben", "1", Shared));
    locks.enqueue("p", ticket("cem", "1", Exclusive));
    assert_eq!(locks.enqueue("p", ticket("ann", "2", Exclusive)), 1, "ahead of regular waiters");
    locks.release("p", "ben");
    assert_eq!(locks.holders("p"), ["ann"]);
    let hold = locks.table.lock(&lock("p")).expect("held").holds()[0].clone();
    assert_eq!(hold.mode, Exclusive);
    assert!(hold.token > shared.token);
    // The only holder upgrades at once, even if others wait.
    let mut locks = fixture();
    let shared = locks.grant("p", ticket("ann", "1", Shared));
    locks.enqueue("p", ticket("ben", "1", Exclusive));
    let exclusive = locks.grant("p", ticket("ann", "2", Exclusive));
    assert!(exclusive.token > shared.token);
    let command = LockCommand::Extend { holder: holder("ann"), token: shared.token, ttl_ms: 1 };
    assert_eq!(
        locks.execute(&lock("p"), &command).outcome,
        LockOutcome::NotFound,
        "the shared token is no longer valid"
    );
}

#[test]
fn cancelled_unclaimed_upgrade_falls_back_to_shared_hold() {
    let mut locks = fixture();
    let shared = locks.grant("p", ticket("ann", "1", Shared));
    let exclusive = locks.grant("p", Acquisition { claimed: false, ..ticket("ann", "2", Exclusive) });
    assert!(!exclusive.claimed);
    locks.execute(&lock("p"), &cancel("ann", "2", EndReason::Refused));
    let command = LockCommand::Extend { holder: holder("ann"), token: shared.token, ttl_ms: 1 };
    assert!(
        matches!(locks.execute(&lock("p"), &command).outcome, LockOutcome::Updated(grant) if grant.mode == Shared)
    );
}

#[test]
fn wait_survives_expiry_of_downgraded_upgrade() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Shared));
    let exclusive = locks.grant("p", Acquisition { claimed: false, ..ticket("ann", "2", Exclusive) });
    locks.execute(&lock("p"), &LockCommand::Downgrade { holder: holder("ann"), token: exclusive.token });
    locks.grant("p", ticket("ben", "1", Shared));
    locks.enqueue("p", ticket("ann", "3", Exclusive));
    locks.advance(10_000);
    locks.sweep();
    assert_eq!((locks.holders("p"), locks.queue("p")), (vec!["ben".to_owned()], vec!["ann".to_owned()]));
}

#[test]
fn upgrade_that_lost_its_shared_hold_becomes_regular_waiter() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Shared));
    locks.grant("p", ticket("ben", "1", Shared));
    locks.enqueue("p", ticket("cem", "1", Exclusive));
    locks.advance(1);
    locks.enqueue("p", ticket("ann", "2", Exclusive));
    assert_eq!(locks.queue("p"), ["ann", "cem"]);
    locks.release("p", "ann");
    assert_eq!(locks.queue("p"), ["cem", "ann"]);
}

#[test]
fn downgrade_grants_leading_shared_waiters() {
    let mut locks = fixture();
    let grant = locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("s1", "1", Shared));
    locks.enqueue("p", ticket("s2", "1", Shared));
    locks.enqueue("p", ticket("w", "1", Exclusive));
    let command = LockCommand::Downgrade { holder: holder("ann"), token: grant.token };
    let outcome = locks.execute(&lock("p"), &command).outcome;
    assert!(
        matches!(outcome, LockOutcome::Updated(updated) if updated.token == grant.token && updated.mode == Shared)
    );
    assert_eq!(locks.holders("p"), ["ann", "s1", "s2"]);
    assert_eq!(locks.queue("p"), ["w"]);
}

#[test]
fn heartbeat_extends_lease_and_never_shortens_it() {
    let mut locks = fixture();
    let grant = locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("ben", "1", Exclusive));
    let extend = |ttl_ms| LockCommand::Extend { holder: holder("ann"), token: grant.token, ttl_ms };
    locks.advance(20_000);
    for (ttl_ms, remaining_ms) in [(30_000, 30_000), (1, 30_000), (60_000, 60_000)] {
        match locks.execute(&lock("p"), &extend(ttl_ms)).outcome {
            LockOutcome::Updated(updated) => assert_eq!(updated.expires_at, locks.now.plus_ms(remaining_ms)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(locks.table.lock(&lock("p")).expect("held").holds()[0].heartbeat_count, 3);
    locks.enqueue("p", ticket("cem", "1", Exclusive));
    locks.advance(59_999);
    locks.sweep();
    assert_eq!(locks.holders("p"), ["ann"]);
    locks.advance(1);
    locks.sweep();
    assert!(locks.holders("p").is_empty(), "the waits of ben and cem timed out");
    assert_eq!(locks.execute(&lock("p"), &extend(1)).outcome, LockOutcome::NotFound);
    assert_eq!(end_reason(locks.acquire("p", ticket("ann", "1", Exclusive))), EndReason::Expired);
}

#[test]
fn expiry_promotes_next_waiter_and_claim_is_idempotent() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", Acquisition { ttl_ms: 5_000, ..open_request("ben", "1", Exclusive, "server") });
    for _ in 0..30 {
        locks.advance(1_000);
        locks.execute(&lock("p"), &LockCommand::ServerHeartbeat { server: "server".into() });
    }
    assert_eq!(locks.holders("p"), ["ben"]);
    // For an open request, the server claims within a short window.
    let request = RequestKey::derive(&holder("ben"), "1");
    let claim = LockCommand::Claim { holder: holder("ben"), request, ttl_ms: 5_000 };
    let LockOutcome::Updated(grant) = locks.execute(&lock("p"), &claim).outcome else {
        panic!("not claimed")
    };
    assert_eq!(grant.expires_at, locks.now.plus_ms(5_000));
    locks.advance(1_000);
    let LockOutcome::Updated(repeated) = locks.execute(&lock("p"), &claim).outcome else {
        panic!("not claimed")
    };
    assert_eq!(repeated, grant, "a repeated claim does not restart the lease");
}

#[test]
fn unclaimed_grant_passes_to_next_waiter() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("first", "1", Exclusive));
    locks.enqueue("p", ticket("next", "1", Exclusive));
    locks.release("p", "ann");
    locks.advance(9_999);
    locks.sweep();
    assert_eq!(locks.holders("p"), ["first"]);
    locks.advance(1);
    locks.sweep();
    assert_eq!(locks.holders("p"), ["next"]);
    assert_eq!(end_reason(locks.acquire("p", ticket("first", "1", Exclusive))), EndReason::Unclaimed);
}

#[test]
fn skips_waiters_of_lost_server() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", open_request("dead", "1", Exclusive, "lost"));
    locks.enqueue("p", open_request("live", "1", Exclusive, "alive"));
    for _ in 0..3 {
        locks.advance(1_000);
        locks.execute(&lock("p"), &LockCommand::ServerHeartbeat { server: "alive".into() });
    }
    locks.release("p", "ann");
    assert_eq!(locks.holders("p"), ["live"]);
    // A lost server leaves no tombstone, so the request can queue again.
    assert_eq!(locks.enqueue("p", open_request("dead", "1", Exclusive, "lost")), 1);
}

#[test]
fn retry_on_another_server_keeps_queue_position() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", open_request("ben", "1", Exclusive, "old"));
    locks.enqueue("p", open_request("cem", "1", Exclusive, "new"));
    locks.advance(2_900);
    assert_eq!(locks.enqueue("p", open_request("ben", "1", Exclusive, "new")), 1);
    locks.advance(2_900);
    locks.release("p", "ann");
    assert_eq!(locks.holders("p"), ["ben"]);
}

#[test]
fn newer_request_of_same_holder_supersedes_older_wait() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("ben", "1", Exclusive));
    locks.enqueue("p", ticket("cem", "1", Exclusive));
    assert_eq!(locks.enqueue("p", ticket("ben", "2", Exclusive)), 1, "the same mode keeps the position");
    assert_eq!(end_reason(locks.acquire("p", ticket("ben", "1", Exclusive))), EndReason::Superseded);
    assert_eq!(
        locks.enqueue("p", ticket("ben", "3", Shared)),
        2,
        "another mode goes to the end of the queue"
    );
    assert!(matches!(locks.acquire("p", no_wait("ben", "4", Shared)), AcquireStatus::Refused(_)));
    assert_eq!(locks.queue("p"), ["cem", "ben"], "a request without wait supersedes nothing");
}

#[test]
fn full_queue_refuses_and_opens_circuit_breaker() {
    let mut locks = LockFixture::new(LockLimits { max_queue: 3, ..LockLimits::default() });
    locks.grant("p", ticket("ann", "1", Exclusive));
    for n in 0..3 {
        locks.enqueue("p", ticket(&format!("w{n}"), "1", Exclusive));
    }
    for n in 0..100 {
        let status = locks.acquire("p", ticket(&format!("x{n}"), "1", Exclusive));
        assert_eq!(status, AcquireStatus::Refused(LockRefusal::QueueFull { queue_length: 3 }), "{n}");
    }
    let retry_at = locks.now.plus_ms(5_000);
    locks.release("p", "ann");
    let status = locks.acquire("p", ticket("y", "1", Exclusive));
    assert_eq!(
        status,
        AcquireStatus::Refused(LockRefusal::CircuitOpen { retry_at }),
        "although the queue has space again"
    );
    assert_eq!(locks.enqueue("p", ticket("w2", "1", Exclusive)), 2, "existing waiters are not refused");
    locks.advance(5_000);
    assert_eq!(locks.enqueue("p", ticket("y", "1", Exclusive)), 3);
    // 99 refusals per window do not open the circuit.
    for _ in 0..2 {
        for n in 0..99 {
            locks.acquire("p", ticket(&format!("z{n}"), "2", Exclusive));
        }
        locks.advance(10_000);
    }
    assert!(!matches!(
        locks.acquire("p", no_wait("q", "1", Shared)),
        AcquireStatus::Refused(LockRefusal::CircuitOpen { .. })
    ));
}

/// Ann's release, sent by a server.
fn release_by(locks: &mut LockFixture, agent: &str, server: &str) {
    let token =
        locks.table.lock(&lock("p")).and_then(|lock| lock.hold_of(&holder(agent))).map(|hold| hold.token);
    let release = LockCommand::Release {
        holder: holder(agent),
        token: token.unwrap_or_default(),
        server: Some(server.into()),
    };
    assert_eq!(locks.execute(&lock("p"), &release).outcome, LockOutcome::Done);
}

fn return_unreported(locks: &mut LockFixture, agent: &str) -> LockOutcome {
    let token =
        locks.table.lock(&lock("p")).and_then(|lock| lock.hold_of(&holder(agent))).map(|hold| hold.token);
    let lease = UnreportedLease::WithToken(token.unwrap_or_default());
    locks.execute(&lock("p"), &LockCommand::ReturnUnreported { holder: holder(agent), lease }).outcome
}

/// Gives back what a release by the server started for the agent's request, without knowing whether it did.
fn return_started_by(locks: &mut LockFixture, server: &str, agent: &str, request_id: &str) -> LockOutcome {
    let holder = holder(agent);
    let lease = UnreportedLease::StartedBy(server.into(), RequestKey::derive(&holder, request_id));
    locks.execute(&lock("p"), &LockCommand::ReturnUnreported { holder, lease }).outcome
}

#[test]
fn the_server_that_releases_starts_the_lease_of_its_own_waiter() {
    for (server, lease_ms) in [("same", 30_000), ("other", 3_000)] {
        let mut locks = fixture();
        locks.grant("p", open_request("ann", "1", Exclusive, "same"));
        locks.enqueue("p", open_request("ben", "1", Exclusive, server));
        release_by(&mut locks, "ann", "same");
        let hold = locks.table.lock(&lock("p")).and_then(|lock| lock.hold_of(&holder("ben"))).cloned();
        let hold = hold.expect("granted");
        let unreported_by = (server == "same").then(|| "same".into());
        assert_eq!((hold.claimed, hold.unreported_by), (server == "same", unreported_by), "{server}");
        assert_eq!(hold.expires_at, locks.now.plus_ms(lease_ms), "{server}");
    }
}

#[test]
fn promotions_that_a_reply_cannot_answer_wait_for_their_claim() {
    let open = open_request("ben", "1", Exclusive, "same");
    let with_more_locks = Acquisition { claimed: false, ..open.clone() };
    for waiter in [ticket("ben", "1", Exclusive), with_more_locks] {
        let mut locks = fixture();
        locks.grant("p", open_request("ann", "1", Exclusive, "same"));
        locks.enqueue("p", waiter);
        release_by(&mut locks, "ann", "same");
        assert!(locks.table.lock(&lock("p")).expect("used").holds().iter().all(|hold| !hold.claimed));
    }
    // The caller of an upgrade still knows the token of its shared hold.
    let mut locks = fixture();
    locks.grant("p", open_request("ann", "1", Shared, "same"));
    let shared = locks.grant("p", open_request("ben", "0", Shared, "same"));
    locks.enqueue("p", open);
    release_by(&mut locks, "ann", "same");
    let extend = LockCommand::Extend { holder: holder("ben"), token: shared.token, ttl_ms: 30_000 };
    assert!(matches!(locks.execute(&lock("p"), &extend).outcome, LockOutcome::Updated(_)));
}

#[test]
fn a_lease_that_no_caller_got_is_given_back_until_its_request_is_repeated() {
    let mut locks = fixture();
    locks.grant("p", open_request("ann", "1", Exclusive, "same"));
    locks.enqueue("p", open_request("ben", "1", Exclusive, "same"));
    locks.enqueue("p", open_request("cem", "1", Exclusive, "same"));
    release_by(&mut locks, "ann", "same");
    assert_eq!(return_unreported(&mut locks, "cem"), LockOutcome::NotFound, "does not hold it");
    assert_eq!(return_unreported(&mut locks, "ben"), LockOutcome::Done);
    assert_eq!(locks.holders("p"), ["cem"]);
    locks.execute(&lock("p"), &LockCommand::Break);

    locks.grant("p", open_request("ann", "2", Exclusive, "same"));
    locks.enqueue("p", open_request("ben", "2", Exclusive, "same"));
    release_by(&mut locks, "ann", "same");
    locks.advance(1_000);
    let grant = locks.grant("p", open_request("ben", "2", Exclusive, "other"));
    assert_eq!(grant.expires_at, locks.now.plus_ms(30_000), "the other server reports it now");
    assert_eq!(return_unreported(&mut locks, "ben"), LockOutcome::NotFound);
    assert_eq!(locks.holders("p"), ["ben"]);
}

#[test]
fn a_server_gives_back_only_what_its_own_release_started() {
    let mut locks = fixture();
    locks.grant("p", open_request("ann", "1", Exclusive, "same"));
    assert_eq!(return_started_by(&mut locks, "same", "ann", "1"), LockOutcome::NotFound, "it asked itself");
    locks.enqueue("p", open_request("ben", "1", Exclusive, "same"));
    locks.enqueue("p", open_request("cem", "1", Exclusive, "same"));
    assert_eq!(return_started_by(&mut locks, "same", "ben", "1"), LockOutcome::NotFound, "it still waits");
    assert_eq!(locks.queue("p"), ["ben", "cem"]);
    release_by(&mut locks, "ann", "same");
    assert_eq!(return_started_by(&mut locks, "other", "ben", "1"), LockOutcome::NotFound);
    assert_eq!(return_started_by(&mut locks, "same", "ben", "2"), LockOutcome::NotFound);
    assert_eq!(locks.holders("p"), ["ben"]);
    assert_eq!(return_started_by(&mut locks, "same", "ben", "1"), LockOutcome::Done);
    assert_eq!(locks.holders("p"), ["cem"], "promoted by another command, so that it must be claimed");
    assert_eq!(return_started_by(&mut locks, "same", "cem", "1"), LockOutcome::NotFound);
}

#[test]
fn the_server_that_releases_is_alive() {
    let mut locks = fixture();
    locks.grant("p", Acquisition { ttl_ms: 60_000, ..open_request("ann", "1", Exclusive, "same") });
    locks.enqueue("p", open_request("ben", "1", Exclusive, "same"));
    locks.advance(10_000);
    release_by(&mut locks, "ann", "same");
    assert_eq!(locks.holders("p"), ["ben"], "without a heartbeat for ten seconds");
}

#[test]
fn waits_time_out_at_any_queue_position() {
    let mut locks = fixture();
    locks.grant("p", Acquisition { ttl_ms: 300_000, ..ticket("ann", "1", Exclusive) });
    locks.enqueue("p", ticket("long", "1", Exclusive));
    locks.enqueue(
        "p",
        Acquisition {
            wait: Some(WaitOptions { timeout_ms: 5, served_by: None }),
            ..ticket("short", "1", Exclusive)
        },
    );
    locks.enqueue("p", ticket("last", "1", Exclusive));
    locks.advance(5);
    locks.sweep();
    assert_eq!(locks.queue("p"), ["long", "last"]);
    assert_eq!(locks.enqueue("p", ticket("short", "1", Exclusive)), 3, "a timeout leaves no tombstone");
}

#[test]
fn cancelled_and_released_requests_are_not_revived() {
    let mut locks = fixture();
    locks.execute(&lock("p"), &cancel("ben", "1", EndReason::Cancelled));
    assert_eq!(
        end_reason(locks.acquire("p", ticket("ben", "1", Exclusive))),
        EndReason::Cancelled,
        "the cancel arrived before the acquire"
    );
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("ben", "2", Exclusive));
    locks.execute(&lock("p"), &cancel("ben", "2", EndReason::Cancelled));
    assert!(locks.queue("p").is_empty());
    assert_eq!(end_reason(locks.acquire("p", ticket("ben", "2", Exclusive))), EndReason::Cancelled);
    locks.release("p", "ann");
    assert_eq!(end_reason(locks.acquire("p", ticket("ann", "1", Exclusive))), EndReason::Released);
    locks.advance(600_000);
    locks.grant("p", ticket("ann", "1", Exclusive));
}

#[test]
fn wrong_tokens_change_nothing() {
    let mut locks = fixture();
    let grant = locks.grant("p", ticket("ann", "1", Exclusive));
    for token in [
        FencingToken::default(),
        FencingToken::from_number(grant.token.number() + 1),
        FencingToken::from_number(u64::MAX),
    ] {
        for agent in ["ann", "ben"] {
            for command in [
                LockCommand::Extend { holder: holder(agent), token, ttl_ms: 1 },
                LockCommand::Release { holder: holder(agent), token, server: None },
                LockCommand::Downgrade { holder: holder(agent), token },
                LockCommand::Verify { token },
            ] {
                assert_eq!(locks.execute(&lock("p"), &command).outcome, LockOutcome::NotFound, "{command:?}");
                assert_eq!(locks.last_changes, [], "{command:?}");
            }
        }
    }
    let release = LockCommand::Release { holder: holder("ben"), token: grant.token, server: None };
    assert_eq!(
        locks.execute(&lock("p"), &release).outcome,
        LockOutcome::NotFound,
        "the token of another holder"
    );
    let verify = LockCommand::Verify { token: grant.token };
    assert!(
        matches!(locks.execute(&lock("p"), &verify).outcome, LockOutcome::Valid(hold) if hold.holder == holder("ann"))
    );
}

#[test]
fn break_removes_all_holders_and_promotes_queue() {
    let mut locks = fixture();
    locks.grant("p", ticket("s1", "1", Shared));
    locks.grant("p", ticket("s2", "1", Shared));
    locks.enqueue("p", ticket("w", "1", Exclusive));
    let LockOutcome::Broken(holds) = locks.execute(&lock("p"), &LockCommand::Break).outcome else {
        panic!("not broken")
    };
    assert_eq!(holds.len(), 2);
    assert_eq!(locks.holders("p"), ["w"]);
    assert_eq!(end_reason(locks.acquire("p", ticket("s1", "1", Shared))), EndReason::Broken);
}

#[test]
fn late_failure_does_not_end_claimed_lease() {
    for reason in [EndReason::Refused, EndReason::TimedOut, EndReason::Disconnected] {
        let mut locks = fixture();
        locks.grant("p", ticket("ann", "1", Exclusive));
        locks.execute(&lock("p"), &cancel("ann", "1", reason.clone()));
        assert_eq!(locks.holders("p"), ["ann"], "{reason:?}");
    }
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.execute(&lock("p"), &cancel("ann", "1", EndReason::Cancelled));
    assert!(locks.holders("p").is_empty(), "its holder can end it");
}

#[test]
fn cancelling_one_request_keeps_grant_for_others() {
    for claimed in [true, false] {
        let mut locks = fixture();
        locks.grant("p", Acquisition { claimed: false, ..ticket("eva", "a", Exclusive) });
        locks.grant("p", Acquisition { claimed, ..ticket("eva", "b", Exclusive) });
        locks.execute(&lock("p"), &cancel("eva", "a", EndReason::TimedOut));
        assert_eq!(locks.holders("p"), ["eva"], "claimed: {claimed}");
        locks.grant("p", ticket("eva", "b", Exclusive));
    }
}

#[test]
fn requests_per_grant_are_bounded_and_not_revived() {
    let mut locks = fixture();
    for n in 0..40 {
        locks.grant("p", ticket("ann", &n.to_string(), Exclusive));
    }
    locks.release("p", "ann");
    for n in 0..40 {
        end_reason(locks.acquire("p", ticket("ann", &n.to_string(), Exclusive)));
    }
}

#[test]
fn failed_upgrade_keeps_shared_hold_and_token() {
    for reason in [EndReason::Refused, EndReason::TimedOut, EndReason::Disconnected, EndReason::Cancelled] {
        let mut locks = fixture();
        let shared = locks.grant("p", ticket("dan", "1", Shared));
        locks.grant("p", Acquisition { claimed: false, ..ticket("dan", "2", Exclusive) });
        let extend = LockCommand::Extend { holder: holder("dan"), token: shared.token, ttl_ms: 60_000 };
        let outcome = locks.execute(&lock("p"), &extend).outcome;
        assert!(
            matches!(outcome, LockOutcome::Updated(grant) if grant.token == shared.token),
            "heartbeats with the shared token still work"
        );
        let verify = LockCommand::Verify { token: shared.token };
        assert!(matches!(locks.execute(&lock("p"), &verify).outcome, LockOutcome::Valid(_)));
        locks.execute(&lock("p"), &cancel("dan", "2", reason.clone()));
        locks.advance(59_000);
        locks.sweep();
        assert_eq!(locks.holders("p"), ["dan"], "{reason:?}");
        let outcome = locks.execute(&lock("p"), &extend).outcome;
        assert!(matches!(outcome, LockOutcome::Updated(grant) if grant.mode == Shared), "{reason:?}");
    }
}

#[test]
fn sweep_removes_abandoned_waiter_that_blocks_others() {
    let mut locks = fixture();
    locks.grant("p", Acquisition { ttl_ms: 300_000, ..ticket("s1", "1", Shared) });
    locks.enqueue("p", open_request("ghost", "1", Exclusive, "lost"));
    locks.enqueue("p", ticket("s2", "1", Shared));
    locks.advance(3_000);
    locks.sweep();
    assert_eq!(locks.holders("p"), ["s1", "s2"]);
    assert!(locks.queue("p").is_empty());
}

#[test]
fn failed_request_keeps_lease_that_another_request_shares() {
    let mut locks = fixture();
    locks.grant("p", Acquisition { claimed: false, ..ticket("eva", "m", Exclusive) });
    locks.grant("p", ticket("eva", "s", Exclusive));
    let holder = holder("eva");
    let request = RequestKey::derive(&holder, "m");
    locks.execute(
        &lock("p"),
        &LockCommand::Cancel { holder, request, reason: EndReason::Refused, include_claimed: true },
    );
    assert_eq!(locks.holders("p"), ["eva"], "the lease was reported to request s");
}

#[test]
fn refused_requests_detach_from_grant() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "r0", Exclusive));
    for n in 0..40 {
        let request_id = format!("refused-{n}");
        locks.grant("p", Acquisition { claimed: false, ..ticket("ann", &request_id, Exclusive) });
        locks.execute(&lock("p"), &cancel("ann", &request_id, EndReason::Refused));
    }
    locks.grant("p", ticket("ann", "r0", Exclusive));
    locks.release("p", "ann");
    assert_eq!(end_reason(locks.acquire("p", ticket("ann", "r0", Exclusive))), EndReason::Released);
    locks.grant("p", ticket("ann", "refused-1", Exclusive));
}

#[test]
fn requests_of_hold_below_upgrade_are_known_and_not_revived() {
    let mut locks = fixture();
    let shared = locks.grant("p", ticket("dan", "r0", Shared));
    locks.grant("p", Acquisition { claimed: false, ..ticket("dan", "up", Exclusive) });
    assert_eq!(locks.grant("p", ticket("dan", "r0", Shared)).token, shared.token);
    let query =
        LockCommand::Query { holder: holder("dan"), request: RequestKey::derive(&holder("dan"), "r0") };
    let outcome = locks.execute(&lock("p"), &query).outcome;
    assert!(
        matches!(outcome, LockOutcome::Status(AcquireStatus::Held(grant)) if grant.token == shared.token)
    );
    let release = LockCommand::Release { holder: holder("dan"), token: shared.token, server: None };
    assert_eq!(locks.execute(&lock("p"), &release).outcome, LockOutcome::Done);
    for request_id in ["r0", "up"] {
        assert_eq!(end_reason(locks.acquire("p", ticket("dan", request_id, Shared))), EndReason::Released);
    }
}

#[test]
fn shared_holders_are_bounded() {
    let mut locks = LockFixture::new(LockLimits { max_holders: 2, ..LockLimits::default() });
    locks.grant("p", ticket("s1", "1", Shared));
    locks.grant("p", ticket("s2", "1", Shared));
    locks.enqueue("p", ticket("s3", "1", Shared));
    locks.release("p", "s1");
    assert_eq!(locks.holders("p"), ["s2", "s3"]);
}

#[test]
fn two_holders_of_one_agent_exclude_each_other() {
    let mut locks = fixture();
    let acquire_as = |holder_id: &str| {
        let holder = Holder::new("agent", Some(holder_id)).expect("valid");
        Acquisition { request: RequestKey::derive(&holder, "1"), holder, ..ticket("agent", "1", Exclusive) }
    };
    locks.grant("p", acquire_as("one"));
    assert_eq!(locks.enqueue("p", acquire_as("two")), 1);
}

#[test]
fn expired_lock_goes_to_first_waiter_not_to_new_request() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.enqueue("p", ticket("ben", "1", Exclusive));
    locks.advance(30_000);
    assert_eq!(locks.enqueue("p", ticket("new", "1", Exclusive)), 1, "ben was promoted first");
    assert_eq!(locks.holders("p"), ["ben"]);
}

#[test]
fn retry_claims_promoted_open_request_but_not_ticket() {
    let mut locks = fixture();
    locks.grant("p", ticket("ann", "1", Exclusive));
    locks.acquire("p", open_request("ben", "1", Exclusive, "here"));
    locks.acquire("p", ticket("cem", "1", Exclusive));
    locks.release("p", "ann");
    locks.advance(1_000);
    let grant = locks.grant("p", open_request("ben", "1", Exclusive, "here"));
    assert!(grant.claimed, "the retry claims the lease");
    assert_eq!(grant.expires_at, locks.now.plus_ms(30_000));
    locks.release("p", "ben");
    assert!(!locks.grant("p", ticket("cem", "1", Exclusive)).claimed, "a ticket needs a claim command");
}

#[test]
fn disconnect_ends_only_unreported_lease() {
    for (include_claimed, holders) in [(false, vec!["ann"]), (true, vec![])] {
        let mut locks = fixture();
        locks.grant("p", open_request("ann", "1", Exclusive, "here"));
        let request = RequestKey::derive(&holder("ann"), "1");
        let server = "here".into();
        locks.execute(
            &lock("p"),
            &LockCommand::Disconnect { holder: holder("ann"), request, server, include_claimed },
        );
        assert_eq!(locks.holders("p"), holders, "include_claimed: {include_claimed}");
    }
}

#[test]
fn due_order_does_not_depend_on_history() {
    let mut locks = LockFixture::new(LockLimits::default());
    let grant = locks.grant("p", Acquisition { ttl_ms: 10_000, ..ticket("ann", "1", Exclusive) });
    locks.grant("q", Acquisition { ttl_ms: 20_000, ..ticket("ben", "1", Exclusive) });
    let extend = LockCommand::Extend { holder: holder("ann"), token: grant.token, ttl_ms: 30_000 };
    locks.execute(&lock("p"), &extend);
    let restored = restore_from_snapshot(&locks.table);
    for mut table in [locks.table, restored] {
        let mut budget = 2;
        assert_eq!(table.next_due_lock(locks.now.plus_ms(15_000), &mut budget), None);
        assert!(budget > 0, "nothing is due");
        for name in ["q", "p"] {
            let due = table.next_due_lock(locks.now.plus_ms(40_000), &mut budget);
            assert_eq!(due, Some(lock(name)));
            table.execute_one(&lock(name), &LockCommand::Sweep, locks.now.plus_ms(40_000));
        }
    }
}
