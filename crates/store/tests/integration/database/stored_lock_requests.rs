//! Lock requests that are stored while Redis is unavailable: once each, in order, until they have ended.

use ade_domain::lock::{FencingToken, Holder, LockLimits, LockRequest, LockRequestDraft};
use ade_store::database::{
    StoredLockCommand, StoredLockOutcome, StoredLockRequest, StoredRefusal, StoredRequestCounts,
};

use crate::database::fixture::{TestDatabase, at, on_both_databases};

on_both_databases!(
    keeps_requests_in_order_until_they_end,
    keeps_every_outcome,
    leases_the_execution_to_one_process,
    deletes_only_requests_that_ended_long_ago
);

fn holder(agent: &str) -> Holder {
    Holder::new(agent, None).expect("valid")
}

fn acquire(agent: &str, arrived: u64) -> StoredLockRequest {
    let draft = LockRequestDraft {
        locks: vec![("resource:db:é\"1", None)],
        queue: true,
        request_id: Some(agent),
        ..LockRequestDraft::default()
    };
    let request = LockRequest::new(holder(agent), &draft, &LockLimits::default(), 0).expect("valid");
    StoredLockRequest {
        key: request.key.to_string(),
        command: StoredLockCommand::Acquire(request),
        arrived_at: at(arrived),
        deadline: Some(at(arrived + 60)),
        attempts: 0,
        outcome: None,
    }
}

fn release(agent: &str, arrived: u64) -> StoredLockRequest {
    let held = vec![("task:1".parse().expect("valid"), FencingToken::from_number(7))];
    StoredLockRequest {
        key: format!("release-{agent}"),
        command: StoredLockCommand::Release { holder: holder(agent), held },
        deadline: None,
        ..acquire(agent, arrived)
    }
}

async fn keeps_requests_in_order_until_they_end(fixture: TestDatabase) {
    let database = &fixture.database;
    let (late, early, released) = (acquire("late", 5), acquire("early", 3), release("ann", 9));
    for request in [&late, &early, &released] {
        assert!(database.store_lock_request(request).await.expect("stored"));
        assert!(!database.store_lock_request(request).await.expect("known"));
    }
    let pending = database.pending_lock_requests(10).await.expect("read").requests;
    assert_eq!(pending, [released.clone(), early.clone(), late.clone()], "releases first, then by arrival");
    assert_eq!(database.count_pending_of_agent("late").await.expect("counted"), (3, 1));
    database.count_lock_request_attempts(std::slice::from_ref(&late.key)).await.expect("counted");
    let counts = database.count_stored_lock_requests().await.expect("counted");
    assert_eq!(counts, StoredRequestCounts { pending: 3, untried: 2 });
    let end = async |request: &StoredLockRequest, outcome| {
        database.end_lock_request(&request.key, &outcome, at(20)).await.expect("available")
    };
    assert!(end(&early, StoredLockOutcome::Cancelled).await);
    assert!(!end(&early, StoredLockOutcome::Executed).await, "the first end counts");
    let known = database.stored_lock_request(&early.key).await.expect("read").expect("known");
    assert_eq!(known.outcome, Some(StoredLockOutcome::Cancelled));
    assert!(!database.store_lock_request_again(&late).await.expect("pending"));
    let again = StoredLockRequest { arrived_at: at(30), deadline: Some(at(90)), ..early.clone() };
    assert!(database.store_lock_request_again(&again).await.expect("stored"));
    assert_eq!(database.stored_lock_request(&early.key).await.expect("read"), Some(again));
}

async fn keeps_every_outcome(fixture: TestDatabase) {
    let lock = || "resource:db:é\"1".parse().expect("valid");
    let outcomes = [
        StoredLockOutcome::Executed,
        StoredLockOutcome::TimedOut,
        StoredLockOutcome::Cancelled,
        StoredLockOutcome::Unreadable,
        StoredLockOutcome::Refused(StoredRefusal::QueueFull { lock: lock(), queue_length: 3 }),
        StoredLockOutcome::Refused(StoredRefusal::CircuitOpen { lock: lock(), retry_at: at(30) }),
    ];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let request = acquire(&number.to_string(), 1);
        fixture.database.store_lock_request(&request).await.expect("stored");
        assert!(fixture.database.end_lock_request(&request.key, &outcome, at(20)).await.expect("ended"));
        let known = fixture.database.stored_lock_request(&request.key).await.expect("read").expect("known");
        assert_eq!(known.outcome, Some(outcome));
    }
}

async fn leases_the_execution_to_one_process(fixture: TestDatabase) {
    let lease = async |holder, now, until| {
        fixture.database.lease_lock_requests(holder, at(now), at(until)).await.expect("available")
    };
    assert!(lease("a", 0, 10).await);
    assert!(!lease("b", 5, 15).await);
    assert!(lease("a", 5, 12).await, "the holder keeps it");
    assert!(lease("b", 12, 20).await, "after it has expired");
    fixture.database.release_lock_requests("a").await.expect("nothing to do");
    assert!(!lease("a", 13, 20).await);
    fixture.database.release_lock_requests("b").await.expect("released");
    assert!(lease("a", 13, 20).await);
}

async fn deletes_only_requests_that_ended_long_ago(fixture: TestDatabase) {
    let database = &fixture.database;
    let (ended, pending) = (acquire("ended", 1), acquire("pending", 2));
    for request in [&ended, &pending] {
        database.store_lock_request(request).await.expect("stored");
    }
    database.end_lock_request(&ended.key, &StoredLockOutcome::TimedOut, at(10)).await.expect("ended");
    assert_eq!(database.delete_ended_lock_requests(at(10)).await.expect("deleted"), 0);
    assert_eq!(database.delete_ended_lock_requests(at(11)).await.expect("deleted"), 1);
    assert_eq!(database.stored_lock_request(&ended.key).await.expect("read"), None);
    assert_eq!(database.pending_lock_requests(10).await.expect("read").requests, [pending]);
}
