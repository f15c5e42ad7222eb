//! Deadlocks: a cycle is resolved by the request that closes it; the youngest holder is aborted, the others go on.

#![expect(clippy::panic, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{AcquireStatus, Acquisition, Deadlock, EndReason, LockMode};

use super::BackendFactory;
use super::fixture::{Fixture, expect_notification, with_limits};

use LockMode::{Exclusive, Shared};

scenarios!(
    resolves_cycle_of_two,
    resolves_cycle_of_three,
    resolves_cycle_of_ten,
    resolves_cycles_with_shared_locks,
    aborts_youngest_even_if_older_closes_cycle,
    frees_all_locks_of_victim,
    two_upgrades_deadlock,
    waiting_behind_a_waiter_is_an_edge,
    ignores_priority_when_choosing_victim,
    victim_keeps_its_age,
    victim_age_expires,
    detection_can_be_disabled,
    waiting_without_cycle_is_no_deadlock,
);

/// Each party holds one lock and waits for the next; the last one closes the cycle and is the youngest.
async fn resolve_cycle(fixture: &Fixture, parties: usize, first: LockMode, second: LockMode) {
    let kind = format!("{}-{}-{parties}", first.as_str(), second.as_str());
    let name = |n: usize| format!("{kind}-{:02}", n % parties);
    for n in 0..parties {
        fixture.expect_grant(&name(n), fixture.request(&name(n), "hold", first)).await;
        fixture.advance(2).await;
    }
    for n in 0..parties - 1 {
        fixture.expect_queued(&name(n + 1), fixture.request(&name(n), "wait", second)).await;
    }
    let last = name(parties - 1);
    let (status, deadlocks) =
        fixture.acquire_with_deadlocks(&name(parties), fixture.request(&last, "wait", second)).await;
    let [Deadlock { cycle, victim, freed_locks: freed }] = &deadlocks[..] else {
        panic!("not one cycle: {deadlocks:?}")
    };
    assert_eq!(status, AcquireStatus::Ended(EndReason::Deadlock(cycle.clone())));
    assert_eq!((victim, &freed[..]), (&fixture.holder(&last), &[fixture.lock(&last)][..]));
    let order: Vec<String> = cycle.iter().map(|edge| fixture.short_name(&edge.holder)).collect();
    let expected: Vec<String> = (0..parties).map(|n| name(parties - 1 + n)).collect();
    assert_eq!(order, expected, "in order, from the holder that closed the cycle");
    for (at, edge) in cycle.iter().enumerate() {
        assert_eq!(edge.waits_for, fixture.lock(&name(parties + at)));
        assert_eq!(edge.request, fixture.key(&order[at], "wait"));
    }
    assert_eq!(fixture.holders(&last).await, [name(parties - 2)], "its lock passed to the waiter");
    assert!(fixture.queue(&name(parties)).await.is_empty());
    let again = fixture.expect_deadlock(&name(parties), fixture.request(&last, "wait", second)).await;
    assert_eq!(&again, cycle, "a repeated request gets the same cycle");
}

async fn resolves_cycle_of_two(factory: BackendFactory) {
    resolve_cycle(&Fixture::new(&factory).await, 2, Exclusive, Exclusive).await;
}

async fn resolves_cycle_of_three(factory: BackendFactory) {
    resolve_cycle(&Fixture::new(&factory).await, 3, Exclusive, Exclusive).await;
}

async fn resolves_cycle_of_ten(factory: BackendFactory) {
    resolve_cycle(&Fixture::new(&factory).await, 10, Exclusive, Exclusive).await;
}

async fn resolves_cycles_with_shared_locks(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    for parties in [2, 3] {
        resolve_cycle(&fixture, parties, Exclusive, Shared).await;
        resolve_cycle(&fixture, parties, Shared, Exclusive).await;
    }
}

/// Ann holds `p`; ben, who is younger, holds `q`.
async fn two_holders(fixture: &Fixture) {
    fixture.expect_grant("p", fixture.request("ann", "hold", Exclusive)).await;
    fixture.advance(2).await;
    fixture.expect_grant("q", fixture.request("ben", "hold", Exclusive)).await;
}

async fn aborts_youngest_even_if_older_closes_cycle(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    two_holders(&fixture).await;
    fixture.expect_queued("p", fixture.request("ben", "wait", Exclusive)).await;
    let subscription = fixture.backend.subscribe(fixture.key("ben", "wait"));
    let (status, deadlocks) =
        fixture.acquire_with_deadlocks("q", fixture.request("ann", "wait", Exclusive)).await;
    assert!(matches!(status, AcquireStatus::Held(_)), "ben is aborted: {status:?}");
    assert_eq!(deadlocks.len(), 1);
    assert_eq!(deadlocks[0].victim, fixture.holder("ben"));
    expect_notification(&subscription).await;
    let cycle = fixture.expect_deadlock("p", fixture.request("ben", "wait", Exclusive)).await;
    assert_eq!(cycle, deadlocks[0].cycle);
    assert!(matches!(
        fixture.expect_ended("q", fixture.request("ben", "hold", Exclusive)).await,
        EndReason::Deadlock(_)
    ));
    assert_eq!(
        (fixture.holders("p").await, fixture.holders("q").await),
        (vec!["ann".into()], vec!["ann".into()])
    );
}

async fn frees_all_locks_of_victim(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    two_holders(&fixture).await;
    fixture.expect_grant("r", fixture.request("ben", "more", Exclusive)).await;
    fixture.expect_queued("r", fixture.request("cem", "1", Exclusive)).await;
    fixture.expect_queued("q", fixture.request("ann", "wait", Exclusive)).await;
    let (_, deadlocks) = fixture.acquire_with_deadlocks("p", fixture.request("ben", "wait", Exclusive)).await;
    let mut freed = deadlocks[0].freed_locks.clone();
    freed.sort();
    assert_eq!(freed, [fixture.lock("q"), fixture.lock("r")]);
    assert_eq!(
        (fixture.holders("q").await, fixture.holders("r").await),
        (vec!["ann".into()], vec!["cem".into()])
    );
}

async fn two_upgrades_deadlock(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let old = fixture.expect_grant("p", fixture.request("old", "1", Shared)).await;
    fixture.advance(2).await;
    fixture.expect_grant("p", fixture.request("young", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("old", "2", Exclusive)).await;
    let cycle = fixture.expect_deadlock("p", fixture.request("young", "2", Exclusive)).await;
    assert_eq!(cycle.len(), 2);
    let view = fixture.view("p").await;
    assert_eq!((view.mode, view.holders.len()), (Some(Exclusive), 1));
    assert_eq!(view.holders[0].holder, fixture.holder("old"));
    assert!(view.holders[0].grant.token > old.token);
}

async fn waiting_behind_a_waiter_is_an_edge(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("zed", "hold", Exclusive)).await;
    fixture.expect_grant("q", fixture.request("cem", "hold", Exclusive)).await;
    fixture.advance(2).await;
    fixture.expect_grant("r", fixture.request("ben", "hold", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "first", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cem", "behind", Exclusive)).await;
    // Ben waits for cem's lock, and cem queues behind ben for `p`, no matter who holds it.
    let (status, deadlocks) =
        fixture.acquire_with_deadlocks("q", fixture.request("ben", "second", Exclusive)).await;
    assert_eq!(deadlocks.len(), 1, "{status:?}");
    let order: Vec<String> = deadlocks[0].cycle.iter().map(|edge| fixture.short_name(&edge.holder)).collect();
    assert_eq!((order, &deadlocks[0].victim), (vec!["ben".into(), "cem".into()], &fixture.holder("ben")));
    assert_eq!(fixture.queue("p").await, ["cem"], "all waits of the victim end");
    fixture.expect_deadlock("p", fixture.request("ben", "first", Exclusive)).await;
    assert!(fixture.holders("r").await.is_empty());
}

async fn ignores_priority_when_choosing_victim(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    two_holders(&fixture).await;
    fixture
        .expect_queued("q", Acquisition { priority: -5, ..fixture.request("ann", "wait", Exclusive) })
        .await;
    fixture
        .expect_deadlock("p", Acquisition { priority: 100, ..fixture.request("ben", "wait", Exclusive) })
        .await;
}

/// Ben is aborted for ann. After some time ben meets cem, who acquired before ben came back. Returns the second victim.
async fn second_victim(fixture: &Fixture, after_ms: u64) -> (AcquireStatus, String) {
    two_holders(fixture).await;
    fixture.expect_queued("q", fixture.request("ann", "wait", Exclusive)).await;
    fixture.expect_deadlock("p", fixture.request("ben", "wait", Exclusive)).await;
    fixture.advance(after_ms).await;
    fixture.expect_grant("r", fixture.request("cem", "hold", Exclusive)).await;
    fixture.advance(2).await;
    fixture.expect_grant("s", fixture.request("ben", "again", Exclusive)).await;
    fixture.expect_queued("s", fixture.request("cem", "wait", Exclusive)).await;
    let (status, deadlocks) =
        fixture.acquire_with_deadlocks("r", fixture.request("ben", "again", Exclusive)).await;
    assert_eq!(deadlocks.len(), 1, "{status:?}");
    (status, fixture.short_name(&deadlocks[0].victim))
}

async fn victim_keeps_its_age(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let (status, victim) = second_victim(&fixture, 2).await;
    assert!(matches!(status, AcquireStatus::Held(_)), "{status:?}");
    assert_eq!(victim, "cem", "ben keeps the age of its first try");
}

async fn victim_age_expires(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.idempotency_ttl_ms = 300)).await;
    assert_eq!(second_victim(&fixture, 400).await.1, "ben");
}

async fn detection_can_be_disabled(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.deadlock_detection = false)).await;
    two_holders(&fixture).await;
    fixture.expect_queued("q", fixture.request("ann", "wait", Exclusive)).await;
    let (status, deadlocks) =
        fixture.acquire_with_deadlocks("p", fixture.request("ben", "wait", Exclusive)).await;
    assert!(matches!(status, AcquireStatus::Waiting { position: 1, .. }), "{status:?}");
    assert_eq!(deadlocks, []);
    assert_eq!(fixture.sweep().await, []);
    assert_eq!(
        (fixture.queue("p").await, fixture.queue("q").await),
        (vec!["ben".into()], vec!["ann".into()])
    );
}

async fn waiting_without_cycle_is_no_deadlock(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    two_holders(&fixture).await;
    for (name, who) in [("p", "cem"), ("p", "dee"), ("q", "eva")] {
        let (status, deadlocks) =
            fixture.acquire_with_deadlocks(name, fixture.request(who, "1", Shared)).await;
        assert!(matches!(status, AcquireStatus::Waiting { .. }), "{status:?}");
        assert_eq!(deadlocks, []);
    }
    let (_, deadlocks) = fixture.acquire_with_deadlocks("p", fixture.request("ben", "wait", Exclusive)).await;
    assert_eq!(deadlocks, []);
    assert!(fixture.sweep().await.is_empty());
    assert_eq!(fixture.queue("p").await, ["cem", "dee", "ben"]);
}
