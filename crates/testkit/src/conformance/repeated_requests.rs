//! Repeated requests at a lock: the same reply while they live, and never a new grant once they have ended.

use ade_domain::lock::{Acquisition, EndReason, LockCommand, LockMode, RequestKey};

use super::BackendFactory;
use super::fixture::{Fixture, expect_notification, with_limits};

use LockMode::{Exclusive, Shared};

scenarios!(
    repeated_request_keeps_grant_or_position,
    cancelled_request_stays_ended,
    cancel_before_request_wins,
    cancel_releases_grant,
    cancel_of_joined_request_keeps_grant,
    released_request_stays_ended,
    ended_request_is_forgotten_after_ttl,
    newer_request_supersedes_older_wait,
    request_without_id_leaves_no_tombstone,
);

async fn repeated_request_keeps_grant_or_position(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let grant = fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let waiting = fixture.acquire("p", fixture.request("cem", "1", Exclusive)).await;
    fixture.advance(2).await;
    assert_eq!(fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await, grant);
    assert_eq!(fixture.acquire("p", fixture.request("cem", "1", Exclusive)).await, waiting);
    assert_eq!(fixture.queue("p").await, ["ben", "cem"]);
}

async fn cancelled_request_stays_ended(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    fixture.cancel("p", "ben", "1", EndReason::Cancelled).await;
    expect_notification(&subscription).await;
    assert_eq!(fixture.queue("p").await, ["cem"]);
    assert_eq!(fixture.expect_ended("p", fixture.request("ben", "1", Exclusive)).await, EndReason::Cancelled);
    assert_eq!(
        fixture.expect_queued("p", fixture.request("ben", "2", Exclusive)).await,
        2,
        "another request may wait"
    );
}

async fn cancel_before_request_wins(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.cancel("p", "ben", "1", EndReason::Cancelled).await;
    assert_eq!(fixture.expect_ended("p", fixture.request("ben", "1", Exclusive)).await, EndReason::Cancelled);
    // Refusals and timeouts leave no tombstone, so that the request may be retried.
    for (request_id, reason) in [("2", EndReason::Refused), ("3", EndReason::TimedOut)] {
        fixture.cancel("p", "ben", request_id, reason).await;
        fixture.expect_grant("p", fixture.request("ben", request_id, Exclusive)).await;
    }
}

async fn cancel_releases_grant(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.cancel("p", "ann", "1", EndReason::Cancelled).await;
    assert_eq!(fixture.holders("p").await, ["ben"]);
    assert_eq!(fixture.expect_ended("p", fixture.request("ann", "1", Exclusive)).await, EndReason::Cancelled);
}

async fn cancel_of_joined_request_keeps_grant(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_grant("p", fixture.request("ann", "2", Exclusive)).await;
    fixture.cancel("p", "ann", "2", EndReason::Cancelled).await;
    assert_eq!(fixture.holders("p").await, ["ann"], "the grant belongs to the first request");
    assert_eq!(fixture.expect_ended("p", fixture.request("ann", "2", Exclusive)).await, EndReason::Cancelled);
}

async fn released_request_stays_ended(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.release("p", "ann").await;
    assert_eq!(fixture.expect_ended("p", fixture.request("ann", "1", Exclusive)).await, EndReason::Released);
    fixture.expect_grant("q", fixture.request("ann", "1", Exclusive)).await;
    assert!(fixture.holders("p").await.is_empty());
}

async fn ended_request_is_forgotten_after_ttl(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.idempotency_ttl_ms = 2_000)).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.release("p", "ann").await;
    assert_eq!(fixture.expect_ended("p", fixture.request("ann", "1", Exclusive)).await, EndReason::Released);
    fixture.advance(2_100).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
}

async fn newer_request_supersedes_older_wait(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "1"));
    assert_eq!(
        fixture.expect_queued("p", fixture.request("ben", "2", Exclusive)).await,
        1,
        "the same mode keeps the position"
    );
    expect_notification(&subscription).await;
    assert_eq!(
        fixture.expect_ended("p", fixture.request("ben", "1", Exclusive)).await,
        EndReason::Superseded
    );
    assert_eq!(
        fixture.expect_queued("p", fixture.request("ben", "3", Shared)).await,
        2,
        "another mode queues again"
    );
    assert_eq!(
        fixture.expect_ended("p", fixture.request("ben", "2", Exclusive)).await,
        EndReason::Superseded
    );
    fixture.expect_refused("p", fixture.no_wait("ben", "4", Shared)).await;
    assert_eq!(fixture.queue("p").await, ["cem", "ben"], "a request without wait takes no position");
}

async fn request_without_id_leaves_no_tombstone(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let key = RequestKey::from_nonce(u128::MAX - 7);
    let request =
        Acquisition { request: key, leave_tombstone: false, ..fixture.request("ann", "", Exclusive) };
    let token = fixture.expect_grant("p", request.clone()).await.token;
    fixture.send("p", LockCommand::Release { holder: request.holder.clone(), token, server: None }).await;
    fixture.expect_grant("p", request).await;
}
