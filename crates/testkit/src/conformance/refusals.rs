//! Refusals: lock held, queue full, circuit breaker open, wait timed out. A refused request can be retried.

#![expect(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{AcquireStatus, Acquisition, LockMode, LockRefusal, WaitOptions};

use super::BackendFactory;
use super::fixture::{Fixture, end_range, expect_notification, with_limits};

use LockMode::{Exclusive, Shared};

scenarios!(
    refusal_without_wait_lists_holders,
    refused_request_can_be_retried,
    full_queue_refuses,
    many_refusals_open_circuit_breaker,
    spread_out_refusals_keep_circuit_closed,
    waiter_times_out_at_any_position,
);

async fn refusal_without_wait_lists_holders(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let request = Acquisition { purpose: "migration".into(), ..fixture.request("ann", "1", Exclusive) };
    let grant = fixture.expect_grant("p", request).await;
    fixture.expect_queued("p", fixture.request("cem", "1", Shared)).await;
    for mode in [Shared, Exclusive] {
        let LockRefusal::Held { holders, queue_length } =
            fixture.expect_refused("p", fixture.no_wait("ben", "1", mode)).await
        else {
            panic!("not refused as held")
        };
        assert_eq!((holders.len(), queue_length), (1, 1));
        assert_eq!((&holders[0].holder, &*holders[0].purpose), (&fixture.holder("ann"), "migration"));
        assert_eq!(holders[0].grant, grant);
    }
    assert_eq!(fixture.queue("p").await, ["cem"], "a request without wait takes no position");
}

async fn refused_request_can_be_retried(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_refused("p", fixture.no_wait("ben", "1", Exclusive)).await;
    fixture.release("p", "ann").await;
    fixture.expect_grant("p", fixture.no_wait("ben", "1", Exclusive)).await;
}

async fn full_queue_refuses(factory: BackendFactory) {
    let fixture = Fixture::with_settings(&factory, with_limits(|limits| limits.max_queue = 2)).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    for name in ["w1", "w2"] {
        fixture.expect_queued("p", fixture.request(name, "1", Exclusive)).await;
    }
    let refused = fixture.expect_refused("p", fixture.request("w3", "1", Shared)).await;
    assert_eq!(refused, LockRefusal::QueueFull { queue_length: 2 });
    assert_eq!(
        fixture.expect_queued("p", fixture.request("w2", "1", Exclusive)).await,
        2,
        "a waiter may repeat its request"
    );
    fixture.release("p", "ann").await;
    assert_eq!(fixture.expect_queued("p", fixture.request("w3", "1", Shared)).await, 2, "may be retried");
}

async fn many_refusals_open_circuit_breaker(factory: BackendFactory) {
    let settings = with_limits(|limits| {
        (limits.max_queue, limits.breaker_threshold, limits.breaker_open_ms) = (1, 3, 2_000);
        limits.breaker_window_ms = 60_000;
    });
    let fixture = Fixture::with_settings(&factory, settings).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "1", Exclusive)).await;
    let mut before = fixture.now();
    for n in 0..3 {
        before = fixture.now();
        let refused = fixture.expect_refused("p", fixture.request(&format!("x{n}"), "1", Exclusive)).await;
        assert_eq!(refused, LockRefusal::QueueFull { queue_length: 1 }, "{n}");
    }
    let opened_at = before..=fixture.now();
    fixture.release("p", "ann").await;
    for request in [fixture.request("y", "1", Exclusive), fixture.no_wait("y", "1", Shared)] {
        match fixture.expect_refused("p", request).await {
            LockRefusal::CircuitOpen { retry_at } => {
                assert!(end_range(opened_at.clone(), 2_000).contains(&retry_at));
            }
            other => panic!("the circuit is not open: {other:?}"),
        }
    }
    fixture.expect_grant("p", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_grant("q", fixture.request("y", "1", Exclusive)).await;
    fixture.advance(2_100).await;
    assert_eq!(
        fixture.expect_queued("p", fixture.request("y", "1", Exclusive)).await,
        1,
        "the circuit is closed again"
    );
}

async fn spread_out_refusals_keep_circuit_closed(factory: BackendFactory) {
    let settings = with_limits(|limits| {
        (limits.max_queue, limits.breaker_threshold, limits.breaker_window_ms) = (0, 2, 200);
    });
    let fixture = Fixture::with_settings(&factory, settings).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    for n in 0..3 {
        let refused = fixture.expect_refused("p", fixture.request(&format!("x{n}"), "1", Exclusive)).await;
        assert_eq!(refused, LockRefusal::QueueFull { queue_length: 0 }, "{n}");
        fixture.advance(250).await;
    }
}

async fn waiter_times_out_at_any_position(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("long", "1", Exclusive)).await;
    let wait = Some(WaitOptions { timeout_ms: 300, served_by: Some("server".into()) });
    let short = Acquisition { wait, ..fixture.request("short", "1", Exclusive) };
    let before = fixture.now();
    match fixture.acquire("p", short.clone()).await {
        AcquireStatus::Waiting { position: 2, deadline } => {
            assert!(end_range(before..=fixture.now(), 300).contains(&deadline));
        }
        other => panic!("{other:?}"),
    }
    fixture.expect_queued("p", fixture.request("last", "1", Exclusive)).await;
    let subscription = fixture.backend.subscribe(short.request);
    fixture.advance(400).await;
    fixture.sweep().await;
    expect_notification(&subscription).await;
    assert_eq!(fixture.queue("p").await, ["long", "last"]);
    assert_eq!(fixture.expect_queued("p", short).await, 3, "may be retried");
}
