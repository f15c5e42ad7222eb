//! Snapshots in slices, and the locks that nobody uses any more.

use ade_domain::lock::{
    Acquisition, Holder, Lock, LockCommand, LockKind, LockLimits, LockMode, LockName, LockTable, RequestKey,
};
use ade_testkit::{SeededRng, effort};

use crate::locks::deadlocks::execute_random;
use crate::locks::fixture::{LockFixture, START, assert_invariants, lock, restore_from_snapshot, ticket};

fn locks_of(table: &LockTable) -> Vec<(&LockName, &Lock)> {
    table.locks_after(None).collect()
}

#[test]
fn sliced_snapshot_is_the_table_at_its_beginning() {
    for (seed, round) in effort::seeded_rounds(effort::rounds(300, 30_000)) {
        let mut rng = SeededRng::new(seed, round);
        let mut locks = LockFixture::new(LockLimits::default());
        let mut request_id = 0;
        let mut run = |locks: &mut LockFixture, rng: &mut SeededRng, commands: u64| {
            for _ in 0..commands {
                request_id += 1;
                execute_random(locks, rng, request_id);
                if rng.below(4) == 0 {
                    locks.advance(rng.below(400_000));
                    locks.sweep();
                    locks.table.drop_idle_locks(locks.now, 1);
                }
            }
        };
        run(&mut locks, &mut rng, 30);
        let expected = restore_from_snapshot(&locks.table);
        let mut changes = locks.table.begin_snapshot();
        loop {
            let commands = rng.below(6);
            run(&mut locks, &mut rng, commands);
            let limit = 1 + usize::try_from(rng.below(3)).expect("small");
            let Some(slice) = locks.table.next_slice(limit) else { break };
            changes.extend(slice);
        }
        let mut restored = LockTable::new(LockLimits::default());
        changes.iter().for_each(|change| restored.apply(change));
        assert_eq!(locks_of(&restored), locks_of(&expected), "round {round}");
        assert_invariants(&restored);
    }
}

#[test]
fn slices_are_short_although_locks_have_many_waiters() {
    let mut locks = LockFixture::new(LockLimits::default());
    for name in ["p", "q", "r"] {
        locks.grant(name, ticket("ann", name, LockMode::Exclusive));
        for number in 0..8 {
            locks.enqueue(name, ticket(&format!("waiter-{number}"), name, LockMode::Exclusive));
        }
    }
    assert!(locks.table.begin_snapshot().is_empty());
    let mut slices = Vec::new();
    while let Some(slice) = locks.table.next_slice(4) {
        slices.push(slice.len());
    }
    // The counters of a lock, its holder and its waiters.
    assert_eq!(slices, [10, 10, 10]);
}

#[test]
fn idle_locks_are_dropped_when_their_tombstones_expire() {
    let mut locks = LockFixture::new(LockLimits::default());
    for (name, agent) in [("p", "ann"), ("q", "ben")] {
        locks.grant(name, ticket(agent, "1", LockMode::Exclusive));
    }
    locks.release("p", "ann");
    let names = |locks: &LockFixture| -> Vec<LockName> {
        locks.table.locks_after(None).map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(locks.table.drop_idle_locks(locks.now, 10), 0, "its tombstone counts");
    locks.advance(LockLimits::default().idempotency_ttl_ms);
    assert_eq!(locks.table.drop_idle_locks(locks.now, 10), 1);
    assert_eq!(names(&locks), [lock("q")], "held, although its lease has expired");
    locks.sweep();
    locks.advance(LockLimits::default().idempotency_ttl_ms);
    // A replayed journal knows the same.
    let mut replayed = LockTable::new(LockLimits::default());
    locks.journal.iter().for_each(|change| replayed.apply(change));
    assert_eq!(replayed.drop_idle_locks(locks.now, 10), 2);
    assert_eq!(locks.table.drop_idle_locks(locks.now, 10), 1);
    assert_eq!(names(&locks), []);
}

#[test]
fn locks_with_a_prefix_are_a_part_of_all() {
    let mut table = LockTable::new(LockLimits::default());
    let names = ["task:a", "task:b", "resource:db:a", "resource:db:b", "resource:dbx:a", "resource:queue:a"];
    for name in names {
        let acquire = LockCommand::Acquire(ticket("ann", name, LockMode::Exclusive));
        table.execute(&name.parse().expect("valid"), &acquire, START);
    }
    for kind in [LockKind::Task, LockKind::Resource] {
        for prefix in ["", "resource:db:", "resource:d", "resource:none:", "resource:queue:", "task:b"] {
            for after in names.map(Some).into_iter().chain([None]) {
                let after: Option<LockName> = after.map(|name| name.parse().expect("valid"));
                let found = table.locks_with_prefix(kind, prefix, after.as_ref());
                let found: Vec<&LockName> = found.map(|(name, _)| name).collect();
                let all = table.locks_after(after.as_ref()).map(|(name, _)| name);
                let expected: Vec<&LockName> =
                    all.filter(|name| name.kind() == kind && name.as_str().starts_with(prefix)).collect();
                assert_eq!(found, expected, "{kind:?} {prefix} after {after:?}");
            }
        }
    }
}

#[test]
fn locks_of_an_agent_are_a_part_of_all() {
    let mut table = LockTable::new(LockLimits::default());
    let names = ["task:a", "task:b", "resource:db:a", "resource:db:b", "resource:dbx:a", "resource:queue:a"];
    let mut acquire = |name: &str, holder: &Holder| {
        let request = RequestKey::derive(holder, name);
        let acquire =
            Acquisition { holder: holder.clone(), request, ..ticket("ann", name, LockMode::Exclusive) };
        table.execute(&name.parse().expect("valid"), &LockCommand::Acquire(acquire), START);
    };
    // Ann has most locks through several holders, and waits for one of ben.
    for (number, name) in names.iter().enumerate() {
        let agent = if *name == "resource:db:b" { "ben" } else { "ann" };
        acquire(name, &Holder::new(agent, Some(&format!("attempt-{}", number % 3))).expect("valid"));
    }
    acquire("task:b", &Holder::new("ben", None).expect("valid"));
    acquire("task:b", &Holder::new("ann2", None).expect("valid"));
    acquire("resource:db:b", &Holder::new("ann", None).expect("valid"));
    let is_used_by = |agent: &str, lock: &Lock| {
        let mut holders = lock.holds().iter().map(|hold| &hold.holder);
        let mut waiters = lock.waiters().map(|waiter| &waiter.holder);
        holders.any(|holder| holder.agent_id() == agent) || waiters.any(|holder| holder.agent_id() == agent)
    };
    for (agent, kind, prefix) in [
        ("ann", None, ""),
        ("ann", Some(LockKind::Task), ""),
        ("ann", Some(LockKind::Resource), "resource:db:"),
        ("ben", None, ""),
        ("ann2", None, ""),
        ("an", None, ""),
    ] {
        for after in names.map(Some).into_iter().chain([None]) {
            let after: Option<LockName> = after.map(|name| name.parse().expect("valid"));
            for limit in 0..=names.len() {
                let found = table.locks_of_agent(agent, kind, prefix, after.as_ref(), limit);
                let found: Vec<&LockName> = found.map(|(name, _)| name).collect();
                let all = table.locks_after(after.as_ref()).filter(|(_, lock)| is_used_by(agent, lock));
                let is_wanted = |name: &&LockName| {
                    kind.is_none_or(|kind| name.kind() == kind) && name.as_str().starts_with(prefix)
                };
                let expected: Vec<&LockName> =
                    all.map(|(name, _)| name).filter(is_wanted).take(limit).collect();
                assert_eq!(found, expected, "{agent} {kind:?} {prefix} after {after:?}");
            }
        }
    }
}
