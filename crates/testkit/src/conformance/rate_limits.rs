//! Rate limits per caller and endpoint, in a sliding window of one minute.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use ade_store::coordination::{Counting, RateCount};

use super::BackendFactory;
use super::fixture::{Fixture, end_range, with_limits};

scenarios!(
    limits_requests_per_minute,
    slides_over_the_end_of_a_minute,
    counts_callers_and_endpoints_separately,
    limit_can_change_within_a_window,
    limits_concurrent_requests,
    limits_requests_that_are_counted_in_blocks,
    rejects_unknown_endpoint_and_empty_caller,
);

const MINUTE_MS: u64 = 60_000;

async fn count(fixture: &Fixture, endpoint: &str, caller: &str, limit: u32) -> RateCount {
    fixture
        .backend
        .count_request(endpoint.to_owned(), fixture.agent(caller), limit, Counting::InBlocks)
        .await
        .expect("a reply")
}

async fn limits_requests_per_minute(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let before = fixture.now();
    let first = count(&fixture, "tasks:create", "ann", 3).await;
    let window_start = before..=fixture.now();
    // A store may round to milliseconds.
    let range = end_range(window_start, MINUTE_MS - 1);
    assert!((*range.start()..=range.end().plus_ms(2)).contains(&first.reset_at), "{first:?}");
    assert_eq!((first.allowed, first.limit, first.remaining), (true, 3, 2));
    fixture.advance(2).await;
    for remaining in [1, 0] {
        let counted = count(&fixture, "tasks:create", "ann", 3).await;
        assert_eq!(counted, RateCount { remaining, ..first }, "the first request starts the window");
    }
    let last_at = fixture.now();
    for _ in 0..2 {
        let refused = count(&fixture, "tasks:create", "ann", 3).await;
        assert_eq!((refused.allowed, refused.limit, refused.remaining), (false, 3, 0));
        // Without further requests, a minute after the last one that was counted.
        let range = first.reset_at..=last_at.plus_ms(MINUTE_MS + 2);
        assert!(range.contains(&refused.reset_at), "{refused:?} not in {range:?}");
    }
    if fixture.has_manual_clock() {
        fixture.advance(MINUTE_MS - 1).await;
        assert!(!count(&fixture, "tasks:create", "ann", 3).await.allowed, "last moment of the window");
        fixture.advance(1).await;
        let next = count(&fixture, "tasks:create", "ann", 3).await;
        assert_eq!((next.allowed, next.remaining), (true, 2));
    }
}

async fn slides_over_the_end_of_a_minute(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    if !fixture.has_manual_clock() {
        return;
    }
    let allowed = async || {
        let mut passed = 0;
        while count(&fixture, "tasks:create", "ann", 60).await.allowed {
            passed += 1;
        }
        passed
    };
    assert!(count(&fixture, "tasks:create", "ann", 60).await.allowed);
    fixture.advance(MINUTE_MS - 1_000).await;
    assert_eq!(allowed().await, 59);
    fixture.advance(1_000).await;
    assert_eq!(allowed().await, 0, "a new minute forgets nothing of the previous one at its start");
    fixture.advance(15_000).await;
    let refused = count(&fixture, "tasks:create", "ann", 15).await;
    assert_eq!((refused.allowed, refused.reset_at.ms_since(fixture.now())), (false, 31_000), "{refused:?}");
    assert_eq!(allowed().await, 15);
}

async fn counts_callers_and_endpoints_separately(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert!(count(&fixture, "tasks:create", "ann", 1).await.allowed);
    assert!(!count(&fixture, "tasks:create", "ann", 1).await.allowed);
    for (endpoint, caller) in [
        ("tasks:create", "ben"),
        ("approvals:respond", "ann"),
        ("sessions:create", "ann"),
        ("sessions:create", "2001:db8::1"),
        ("sessions:create", "ü {x}%"),
    ] {
        let counted = count(&fixture, endpoint, caller, 1).await;
        assert_eq!((counted.allowed, counted.remaining), (true, 0), "{endpoint} {caller}");
        assert!(!count(&fixture, endpoint, caller, 1).await.allowed, "{endpoint} {caller}");
    }
}

async fn limit_can_change_within_a_window(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    for remaining in [4, 3, 2] {
        assert_eq!(count(&fixture, "tasks:create", "ann", 5).await.remaining, remaining);
    }
    let fewer = count(&fixture, "tasks:create", "ann", 2).await;
    assert_eq!((fewer.allowed, fewer.remaining), (false, 0));
    let more = count(&fixture, "tasks:create", "ann", 4).await;
    assert_eq!((more.allowed, more.remaining), (true, 0), "refused requests do not count");
    let none = count(&fixture, "tasks:create", "ben", 0).await;
    assert_eq!((none.allowed, none.remaining), (false, 0));
    assert!(none.reset_at > fixture.now() && none.reset_at <= fixture.now().plus_ms(MINUTE_MS), "{none:?}");
    assert!(count(&fixture, "tasks:create", "ben", 1).await.allowed);
}

async fn limits_concurrent_requests(factory: BackendFactory) {
    let fixture = std::sync::Arc::new(Fixture::new(&factory).await);
    let requests: Vec<_> = (0..40)
        .map(|_| {
            let fixture = std::sync::Arc::clone(&fixture);
            tokio::spawn(async move { count(&fixture, "approvals:respond", "ann", 25).await.allowed })
        })
        .collect();
    let mut passed = 0;
    for request in requests {
        passed += usize::from(request.await.expect("no panic"));
    }
    assert_eq!(passed, 25);
}

async fn limits_requests_that_are_counted_in_blocks(factory: BackendFactory) {
    // A block of 4 requests, or of 3 locks.
    let settings = with_limits(|limits| limits.acquisitions_per_minute = 150);
    let fixture = std::sync::Arc::new(Fixture::with_settings(&factory, settings).await);
    let requests: Vec<_> = (0..230)
        .map(|number| {
            let fixture = std::sync::Arc::clone(&fixture);
            let counting = if number % 10 == 0 { Counting::Exact } else { Counting::InBlocks };
            let caller = fixture.agent("ann");
            tokio::spawn(async move {
                let count = fixture.backend.count_request("tasks:read".to_owned(), caller, 200, counting);
                count.await.expect("a reply").allowed
            })
        })
        .collect();
    let mut passed = 0;
    for request in requests {
        passed += usize::from(request.await.expect("no panic"));
    }
    // Of a block that is the last one, something may be left for the requests that are not exact.
    while count(&fixture, "tasks:read", "ann", 200).await.allowed {
        passed += 1;
    }
    assert_eq!(passed, 200);
    let mut locks = 0;
    for weight in [1, 2, 1, 4, 2].into_iter().cycle() {
        if fixture.backend.admit_acquisition(fixture.agent("ann"), weight).await.expect("a reply").is_err() {
            break;
        }
        locks += weight;
    }
    assert!((143..=150).contains(&locks), "{locks}");
}

async fn rejects_unknown_endpoint_and_empty_caller(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert!(
        fixture
            .backend
            .count_request("tasks:unknown".to_owned(), "ann".to_owned(), 9, Counting::Exact)
            .await
            .is_err()
    );
    assert!(
        fixture
            .backend
            .count_request("tasks:create".to_owned(), String::new(), 9, Counting::Exact)
            .await
            .is_err()
    );
}
