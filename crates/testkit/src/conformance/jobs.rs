//! Wake-ups of workers, immediate and scheduled, and job locks.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;
use std::time::Duration;

use ade_store::coordination::{MovedWakeUps, ReceivedWakeUp, WakeAt, WakeUp};

use super::BackendFactory;
use super::fixture::{Fixture, in_time};

scenarios!(
    delivers_stored_wake_ups_in_order,
    wakes_waiting_worker,
    wakes_one_of_two_workers,
    prefers_queues_in_given_order,
    wait_times_out,
    cancelled_waiters_do_not_block_others,
    supports_many_waiting_workers,
    full_queue_drops_oldest_wake_ups,
    delivers_scheduled_wake_up_when_due,
    delivers_scheduled_wake_up_once,
    rescheduling_replaces_due_time,
    grants_job_lock_to_one_holder,
    job_lock_expires,
    rejects_unknown_queues_and_empty_names,
);

/// Longer than any scenario takes.
const LONG_WAIT: Duration = Duration::from_secs(60);
const NO_WAIT: Duration = Duration::ZERO;

fn job(queue: &str, about: &str) -> ReceivedWakeUp {
    ReceivedWakeUp { queue: queue.to_owned(), subject: about.to_owned() }
}

fn wake_up(queue: &str, about: &str, when: WakeAt) -> WakeUp {
    WakeUp { queue: queue.to_owned(), subject: about.to_owned(), when }
}

async fn submit(fixture: &Fixture, wake_ups: Vec<WakeUp>) {
    assert_eq!(fixture.backend.send_wake_ups(wake_ups).await, Ok(0), "nothing dropped");
}

async fn wake_now(fixture: &Fixture, queue: &str, about: &str) {
    submit(fixture, vec![wake_up(queue, about, WakeAt::Now)]).await;
}

async fn wait_for_job(fixture: &Fixture, queues: &[&str], timeout: Duration) -> Option<ReceivedWakeUp> {
    let queues = queues.iter().map(|queue| (*queue).to_owned()).collect();
    in_time(fixture.backend.receive_wake_up(queues, timeout)).await.expect("a reply")
}

async fn schedule(fixture: &Fixture, in_ms: u64, queue: &str, about: &str) {
    let at = fixture.now().plus_ms(in_ms);
    submit(fixture, vec![wake_up(queue, about, WakeAt::At(at))]).await;
}

async fn move_due(fixture: &Fixture) -> MovedWakeUps {
    fixture.backend.move_due_wake_ups().await.expect("a reply")
}

async fn moved_count(fixture: &Fixture) -> usize {
    move_due(fixture).await.count
}

async fn lock(fixture: &Fixture, name: &str, holder: &str, ttl_ms: u64) -> bool {
    fixture.backend.lock_job(fixture.agent(name), holder.to_owned(), ttl_ms).await.expect("a reply")
}

async fn unlock(fixture: &Fixture, name: &str, holder: &str) -> bool {
    fixture.backend.unlock_job(fixture.agent(name), holder.to_owned()).await.expect("a reply")
}

/// Scenarios share a server and its queues, so they start by draining them.
async fn drained_fixture(factory: &BackendFactory) -> Fixture {
    let fixture = Fixture::new(factory).await;
    while wait_for_job(&fixture, &["apply", "preview", "archive"], NO_WAIT).await.is_some() {}
    fixture
}

async fn delivers_stored_wake_ups_in_order(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    let special = "\"{a}\\ ü🔒\n:%";
    wake_now(&fixture, "apply", "one").await;
    wake_now(&fixture, "apply", special).await;
    wake_now(&fixture, "preview", "").await;
    assert_eq!(
        wait_for_job(&fixture, &["apply"], LONG_WAIT).await,
        Some(job("apply", "one")),
        "oldest first"
    );
    assert_eq!(wait_for_job(&fixture, &["apply"], NO_WAIT).await, Some(job("apply", special)), "unchanged");
    assert_eq!(wait_for_job(&fixture, &["apply"], NO_WAIT).await, None, "delivered once");
    assert_eq!(wait_for_job(&fixture, &["preview"], LONG_WAIT).await, Some(job("preview", "")));
}

async fn wakes_waiting_worker(factory: BackendFactory) {
    let fixture = Arc::new(drained_fixture(&factory).await);
    for about in ["one", "two"] {
        let waiting = {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move { wait_for_job(&fixture, &["preview", "apply"], LONG_WAIT).await })
        };
        // The result is the same whether it waits already or not.
        tokio::task::yield_now().await;
        wake_now(&fixture, "apply", about).await;
        assert_eq!(in_time(waiting).await.expect("no panic"), Some(job("apply", about)));
    }
}

async fn wakes_one_of_two_workers(factory: BackendFactory) {
    let fixture = Arc::new(drained_fixture(&factory).await);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let fixture = Arc::clone(&fixture);
        waiting.spawn(async move { wait_for_job(&fixture, &["apply"], LONG_WAIT).await });
    }
    wake_now(&fixture, "apply", "one").await;
    let first = in_time(waiting.join_next()).await.expect("one worker").expect("no panic");
    assert_eq!(first, Some(job("apply", "one")));
    assert!(waiting.try_join_next().is_none(), "the other keeps waiting");
    wake_now(&fixture, "apply", "two").await;
    let second = in_time(waiting.join_next()).await.expect("the other worker").expect("no panic");
    assert_eq!(second, Some(job("apply", "two")));
}

async fn prefers_queues_in_given_order(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    for queue in ["archive", "preview", "apply"] {
        wake_now(&fixture, queue, "one").await;
    }
    let queues = ["apply", "archive", "preview"];
    for queue in queues {
        assert_eq!(wait_for_job(&fixture, &queues, LONG_WAIT).await, Some(job(queue, "one")));
    }
    assert_eq!(wait_for_job(&fixture, &queues, NO_WAIT).await, None);
}

async fn wait_times_out(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    for timeout in [NO_WAIT, Duration::from_micros(1), Duration::from_millis(30)] {
        let began = tokio::time::Instant::now();
        assert_eq!(wait_for_job(&fixture, &["apply", "preview"], timeout).await, None);
        assert!(began.elapsed() >= timeout, "{:?}", began.elapsed());
    }
}

async fn cancelled_waiters_do_not_block_others(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    for _ in 0..80 {
        let waiting = fixture.backend.receive_wake_up(vec!["apply".to_owned()], LONG_WAIT);
        let cancelled = tokio::time::timeout(Duration::from_millis(2), waiting).await;
        assert!(cancelled.is_err(), "no wake-up");
    }
    // A cancelled waiter may still consume a wake-up until the store notices, but not all of them.
    let mut attempts = 0;
    loop {
        wake_now(&fixture, "apply", "one").await;
        attempts += 1;
        if let Some(found) = wait_for_job(&fixture, &["apply"], Duration::from_millis(200)).await {
            assert_eq!(found, job("apply", "one"));
            break;
        }
        assert!(attempts < 100, "all wake-ups are lost");
    }
}

async fn supports_many_waiting_workers(factory: BackendFactory) {
    const WAITERS: usize = 100;
    let fixture = Arc::new(drained_fixture(&factory).await);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let fixture = Arc::clone(&fixture);
        waiting.spawn(async move { wait_for_job(&fixture, &["apply"], LONG_WAIT).await });
    }
    for number in 0..WAITERS {
        wake_now(&fixture, "apply", &number.to_string()).await;
    }
    let mut delivered = Vec::new();
    while let Some(job) = in_time(waiting.join_next()).await {
        let job = job.expect("no panic").expect("a wake-up for each");
        delivered.push(job.subject.parse::<usize>().expect("a number"));
    }
    delivered.sort_unstable();
    assert!(delivered.into_iter().eq(0..WAITERS), "each wake-up goes to one worker");
}

async fn full_queue_drops_oldest_wake_ups(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    for number in 0..1_003 {
        wake_now(&fixture, "archive", &number.to_string()).await;
    }
    for number in 3..1_003 {
        assert_eq!(
            wait_for_job(&fixture, &["archive"], NO_WAIT).await,
            Some(job("archive", &number.to_string()))
        );
    }
    assert_eq!(wait_for_job(&fixture, &["archive"], NO_WAIT).await, None);
}

async fn delivers_scheduled_wake_up_when_due(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    let passed = fixture.now();
    // Stores may round moments to milliseconds.
    fixture.advance(2).await;
    submit(&fixture, vec![wake_up("preview", "now", WakeAt::At(passed))]).await;
    schedule(&fixture, 60_000, "apply", "much later").await;
    schedule(&fixture, 600, "apply", "later").await;
    assert_eq!(
        wait_for_job(&fixture, &["apply", "preview"], LONG_WAIT).await,
        Some(job("preview", "now")),
        "immediately"
    );
    let next_in = move_due(&fixture).await.next_in.expect("one scheduled");
    // With a remote clock, both the clock and the due time are rounded to milliseconds.
    assert!(next_in <= Duration::from_millis(602), "{next_in:?}");
    if fixture.has_manual_clock() {
        assert_eq!(next_in, Duration::from_millis(600));
        fixture.advance(599).await;
        assert_eq!(moved_count(&fixture).await, 0, "last moment before it is due");
        fixture.advance(1).await;
    } else {
        fixture.advance(602).await;
    }
    let moved = move_due(&fixture).await;
    assert_eq!(moved.count, 1);
    let next_in = moved.next_in.expect("one scheduled");
    assert!(Duration::from_secs(30) < next_in && next_in < Duration::from_secs(60), "{next_in:?}");
    assert_eq!(wait_for_job(&fixture, &["apply", "preview"], LONG_WAIT).await, Some(job("apply", "later")));
    assert_eq!(moved_count(&fixture).await, 0);
    assert_eq!(wait_for_job(&fixture, &["apply", "preview"], NO_WAIT).await, None);
    submit(&fixture, vec![wake_up("apply", "much later", WakeAt::Never)]).await;
    assert_eq!(move_due(&fixture).await, MovedWakeUps::default(), "cancelled");
}

async fn delivers_scheduled_wake_up_once(factory: BackendFactory) {
    const WAKE_UPS: usize = 50;
    let fixture = Arc::new(drained_fixture(&factory).await);
    let at = fixture.now().plus_ms(300);
    let later = |number: usize| wake_up("apply", &number.to_string(), WakeAt::At(at));
    submit(&fixture, (0..WAKE_UPS).chain(0..WAKE_UPS).map(later).collect()).await;
    fixture.advance(302).await;
    let mut moving = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let fixture = Arc::clone(&fixture);
        moving.spawn(async move { moved_count(&fixture).await });
    }
    let mut moved = 0;
    while let Some(some) = moving.join_next().await {
        moved += some.expect("no panic");
    }
    assert_eq!(moved, WAKE_UPS);
    let mut delivered = Vec::new();
    while let Some(job) = wait_for_job(&fixture, &["apply"], NO_WAIT).await {
        delivered.push(job.subject.parse::<usize>().expect("a number"));
    }
    delivered.sort_unstable();
    assert!(delivered.into_iter().eq(0..WAKE_UPS), "each once");
}

async fn rescheduling_replaces_due_time(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    schedule(&fixture, 300, "apply", "postponed").await;
    schedule(&fixture, 60_000, "apply", "postponed").await;
    schedule(&fixture, 300, "apply", "cancelled").await;
    submit(&fixture, vec![wake_up("apply", "cancelled", WakeAt::Never)]).await;
    schedule(&fixture, 60_000, "apply", "brought forward").await;
    schedule(&fixture, 300, "apply", "brought forward").await;
    schedule(&fixture, 300, "apply", "made immediate").await;
    wake_now(&fixture, "apply", "made immediate").await;
    schedule(&fixture, 60_000, "preview", "brought forward").await;
    fixture.advance(302).await;
    assert_eq!(moved_count(&fixture).await, 1);
    assert_eq!(wait_for_job(&fixture, &["apply"], LONG_WAIT).await, Some(job("apply", "made immediate")));
    assert_eq!(wait_for_job(&fixture, &["apply"], LONG_WAIT).await, Some(job("apply", "brought forward")));
    assert_eq!(wait_for_job(&fixture, &["apply", "preview"], NO_WAIT).await, None);
    let rest = ["postponed", "brought forward"];
    let rest = ["apply", "preview"].into_iter().zip(rest);
    submit(&fixture, rest.map(|(queue, about)| wake_up(queue, about, WakeAt::Never)).collect()).await;
    assert_eq!(move_due(&fixture).await, MovedWakeUps::default());
}

async fn grants_job_lock_to_one_holder(factory: BackendFactory) {
    let fixture = Arc::new(drained_fixture(&factory).await);
    assert!(!unlock(&fixture, "job", "ann").await, "not locked");
    let mut locking = tokio::task::JoinSet::new();
    for number in 0..8 {
        let fixture = Arc::clone(&fixture);
        locking.spawn(async move { (number, lock(&fixture, "job", &number.to_string(), 60_000).await) });
    }
    let mut holders = Vec::new();
    while let Some(locked) = locking.join_next().await {
        let (number, locked) = locked.expect("no panic");
        holders.extend(locked.then_some(number));
    }
    assert_eq!(holders.len(), 1, "{holders:?}");
    let holder = holders.first().expect("one").to_string();
    assert!(lock(&fixture, "job", &holder, 60_000).await, "the holder may renew");
    assert!(!lock(&fixture, "job", "other", 60_000).await);
    assert!(lock(&fixture, "other job", "other", 60_000).await);
    assert!(!unlock(&fixture, "job", "other").await, "only the holder may unlock");
    assert!(!lock(&fixture, "job", "other", 60_000).await);
    assert!(unlock(&fixture, "job", &holder).await);
    assert!(lock(&fixture, "job", "other", 60_000).await);
}

async fn job_lock_expires(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    assert!(lock(&fixture, "short", "ann", 300).await);
    assert!(lock(&fixture, "renewed", "ann", 300).await);
    assert!(lock(&fixture, "renewed", "ann", 60_000).await);
    fixture.advance(400).await;
    assert!(!unlock(&fixture, "short", "ann").await, "expired");
    assert!(lock(&fixture, "short", "ben", 60_000).await);
    assert!(!lock(&fixture, "short", "ann", 60_000).await);
    assert!(!lock(&fixture, "renewed", "ben", 60_000).await);
}

async fn rejects_unknown_queues_and_empty_names(factory: BackendFactory) {
    let fixture = drained_fixture(&factory).await;
    let known = || "apply".to_owned();
    let other = || "unknown".to_owned();
    for when in [WakeAt::Now, WakeAt::At(fixture.now()), WakeAt::Never] {
        assert!(fixture.backend.send_wake_ups(vec![wake_up("unknown", "", when)]).await.is_err(), "{when:?}");
    }
    assert!(fixture.backend.receive_wake_up(vec![known(), other()], LONG_WAIT).await.is_err());
    assert!(fixture.backend.receive_wake_up(Vec::new(), LONG_WAIT).await.is_err());
    assert!(fixture.backend.lock_job(String::new(), known(), 1_000).await.is_err(), "empty job name");
    assert!(fixture.backend.unlock_job(String::new(), known()).await.is_err());
    assert!(fixture.backend.lock_job(fixture.agent("job"), known(), 0).await.is_err(), "no TTL");
}
