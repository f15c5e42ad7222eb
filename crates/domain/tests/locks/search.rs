//! Every sequence of commands of three holders at two locks, level by level, each state once. The invariants are checked
//! after every command, the absence of deadlock by the oracle, and that the journal alone gives the same table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::world::{World, check, copy, holder, is_in_cycle, lock, wish};
use ade_domain::lock::{Acquire, End, LockCommand, LockLimits, Mode, RequestKey, Table};
use ade_testkit::effort;

const HOLDERS: [&str; 3] = ["ann", "ben", "cem"];
const LOCKS: [&str; 2] = ["p", "q"];

/// A state without what makes every run differ: times and tokens appear by their order only.
fn essence(table: &Table) -> String {
    let holds = || table.locks_after(None).flat_map(|(_, lock)| lock.holds());
    let ages: BTreeSet<_> = holds().map(|hold| hold.acquired_at).collect();
    let mut text = String::new();
    for (name, lock) in table.locks_after(None) {
        let _ = write!(text, "|{name}");
        for hold in lock.holds() {
            let age = ages.iter().position(|age| *age == hold.acquired_at).unwrap_or_default();
            let before = hold.before.is_some();
            let _ = write!(text, " {}{:?}{age}{}{before}", hold.holder, hold.mode, hold.claimed);
        }
        for waiter in lock.waiters() {
            let _ = write!(text, " <{}{:?}{}", waiter.holder, waiter.mode, waiter.upgrade);
        }
    }
    for entry in table.entries() {
        if let ade_domain::lock::Entry::Aged { holder, since, .. } = entry {
            let _ = write!(text, " {holder}@{}", ages.iter().filter(|age| **age <= since).count());
        }
    }
    text
}

/// Every command that may do something in this state.
fn commands(world: &World, step: u128) -> Vec<(&'static str, LockCommand)> {
    let mut commands = Vec::new();
    for name in LOCKS {
        let state = world.table.lock(&lock(name));
        for who in HOLDERS {
            let holder = holder(who);
            for mode in [Mode::Shared, Mode::Exclusive] {
                for claimed in [true, false] {
                    let request = RequestKey::once(step);
                    let wish = Acquire { request, claimed, remember: false, ..wish(who, "", mode) };
                    commands.push((name, LockCommand::Acquire(wish)));
                }
            }
            if let Some(hold) = state.and_then(|lock| lock.hold_of(&holder)) {
                let (token, request) = (hold.token, hold.requests[0]);
                commands.push((name, LockCommand::Release { holder: holder.clone(), token }));
                commands.push((name, LockCommand::Downgrade { holder: holder.clone(), token }));
                commands.push((name, LockCommand::Claim { holder: holder.clone(), request, ttl_ms: 1_000 }));
                commands.push((
                    name,
                    LockCommand::Cancel { holder: holder.clone(), request, why: End::Refused, begun: false },
                ));
            }
            if let Some(wait) = state.and_then(|lock| lock.wait_of(&holder)) {
                commands.push((
                    name,
                    LockCommand::Cancel { holder, request: wait.request, why: End::TimedOut, begun: false },
                ));
            }
        }
        commands.push((name, LockCommand::Break));
    }
    commands
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the long search is bounded by time")]
fn every_sequence_of_three_holders_at_two_locks() {
    let (began, limit) = (Instant::now(), Duration::from_secs(effort::rounds(0, 60)));
    let usual_depth = 4;
    // Nothing expires within a search: leases are long and every step takes a microsecond.
    let rules =
        LockLimits { ticket_claim_ms: 3_600_000, served_claim_ms: 3_600_000, ..LockLimits::default() };
    let mut seen = BTreeSet::from([String::new()]);
    let mut level = vec![World::new(rules.clone())];
    let (mut steps, mut depth) = (0_u128, 0);
    'search: while !level.is_empty() && (depth < usual_depth || began.elapsed() < limit) {
        let mut next = Vec::new();
        for world in level {
            if depth >= usual_depth && began.elapsed() >= limit {
                println!("stopped by time in depth {}", depth + 1);
                break 'search;
            }
            for (name, command) in commands(&world, steps) {
                let mut world = world.clone();
                world.now = ade_domain::Moment::from_micros(world.now.micros() + 1);
                world.send(&lock(name), &command);
                steps += 1;
                for who in HOLDERS {
                    assert!(!is_in_cycle(&world.table, &holder(who)), "{who} after {command:?}");
                }
                if seen.insert(essence(&world.table)) {
                    let mut again = Table::new(rules.clone());
                    world.entries.iter().for_each(|entry| again.apply(entry));
                    check(&again);
                    assert_eq!(essence(&again), essence(&world.table), "the journal gives the same table");
                    assert_eq!(essence(&copy(&world.table)), essence(&world.table), "so does its summary");
                    next.push(world);
                }
            }
        }
        depth += 1;
        println!("depth {depth}: {} states, {steps} commands, {:?}", seen.len(), began.elapsed());
        level = next;
    }
}
