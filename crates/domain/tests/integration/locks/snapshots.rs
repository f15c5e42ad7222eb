//! Snapshots in slices, and the locks that nobody uses any more.

use ade_domain::lock::{Lock, LockCommand, LockKind, LockLimits, LockMode, LockName, LockTable};
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
