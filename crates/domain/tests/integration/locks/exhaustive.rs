//! Exhaustive breadth-first search over all command sequences of three holders at two locks. After every command the
//! invariants hold, the oracle finds no deadlock, and replaying the journal gives the same table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::locks::fixture::{
    LockFixture, assert_invariants, holder, is_in_cycle, lock, restore_from_snapshot, ticket,
};
use ade_domain::Moment;
use ade_domain::lock::{
    Acquisition, EndReason, LockCommand, LockLimits, LockMode, LockTable, RequestKey, TableChange,
};
use ade_testkit::effort;

const HOLDERS: [&str; 3] = ["ann", "ben", "cem"];
const LOCKS: [&str; 2] = ["p", "q"];

/// Identifies equivalent states: absolute times and tokens are left out, and ages appear by their order only.
fn fingerprint(table: &LockTable) -> String {
    let holds = || table.locks_after(None).flat_map(|(_, lock)| lock.holds());
    let ages: BTreeSet<_> = holds().map(|hold| hold.acquired_at).collect();
    let mut text = String::new();
    for (name, lock) in table.locks_after(None) {
        let _ = write!(text, "|{name}");
        for hold in lock.holds() {
            let age = ages.iter().position(|age| *age == hold.acquired_at).unwrap_or_default();
            let is_unclaimed_upgrade = hold.upgraded_from.is_some();
            let _ =
                write!(text, " {}{:?}{age}{}{is_unclaimed_upgrade}", hold.holder, hold.mode, hold.claimed);
        }
        for waiter in lock.waiters() {
            let _ = write!(text, " <{}{:?}{}", waiter.holder, waiter.mode, waiter.is_upgrade);
        }
    }
    for change in table.clone().begin_snapshot() {
        if let TableChange::VictimAge { holder, oldest_grant, .. } = change {
            let _ = write!(text, " {holder}@{}", ages.iter().filter(|age| **age <= oldest_grant).count());
        }
    }
    text
}

/// Every command that may change this state.
fn commands(locks: &LockFixture, nonce: u128) -> Vec<(&'static str, LockCommand)> {
    let mut commands = Vec::new();
    for name in LOCKS {
        let state = locks.table.lock(&lock(name));
        for agent in HOLDERS {
            let holder = holder(agent);
            for mode in [LockMode::Shared, LockMode::Exclusive] {
                for claimed in [true, false] {
                    let request = RequestKey::from_nonce(nonce);
                    let acquisition =
                        Acquisition { request, claimed, leave_tombstone: false, ..ticket(agent, "", mode) };
                    commands.push((name, LockCommand::Acquire(acquisition)));
                }
            }
            let cancel = |request, reason| LockCommand::Cancel {
                holder: holder.clone(),
                request,
                reason,
                include_claimed: false,
            };
            if let Some(hold) = state.and_then(|lock| lock.hold_of(&holder)) {
                let (token, request) = (hold.token, hold.requests[0]);
                commands.push((name, LockCommand::Release { holder: holder.clone(), token, server: None }));
                commands.push((name, LockCommand::Downgrade { holder: holder.clone(), token }));
                commands.push((name, LockCommand::Claim { holder: holder.clone(), request, ttl_ms: 1_000 }));
                commands.push((name, cancel(request, EndReason::Refused)));
            }
            if let Some(waiter) = state.and_then(|lock| lock.waiter_of(&holder)) {
                commands.push((name, cancel(waiter.request, EndReason::TimedOut)));
            }
        }
        commands.push((name, LockCommand::Break));
    }
    commands
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the long search is bounded by time")]
fn invariants_hold_for_all_sequences_of_three_holders_at_two_locks() {
    let (started, time_limit) = (Instant::now(), Duration::from_secs(effort::rounds(0, 60)));
    let min_depth = 3;
    // Nothing expires during the search: leases are long and every command takes a microsecond.
    let limits =
        LockLimits { ticket_claim_ms: 3_600_000, long_poll_claim_ms: 3_600_000, ..LockLimits::default() };
    let mut seen = BTreeSet::from([String::new()]);
    let mut level = vec![LockFixture::new(limits.clone())];
    let (mut executed, mut depth) = (0_u128, 0);
    'search: while !level.is_empty() && (depth < min_depth || started.elapsed() < time_limit) {
        let mut next_level = Vec::new();
        for locks in level {
            if depth >= min_depth && started.elapsed() >= time_limit {
                println!("time limit reached at depth {}", depth + 1);
                break 'search;
            }
            for (name, command) in commands(&locks, executed) {
                let mut locks = locks.clone();
                locks.now = Moment::from_micros(locks.now.micros() + 1);
                locks.execute(&lock(name), &command);
                executed += 1;
                for agent in HOLDERS {
                    assert!(!is_in_cycle(&locks.table, &holder(agent)), "{agent} after {command:?}");
                }
                let state = fingerprint(&locks.table);
                if seen.insert(state.clone()) {
                    let mut replayed = LockTable::new(limits.clone());
                    locks.journal.iter().for_each(|change| replayed.apply(change));
                    assert_invariants(&replayed);
                    assert_eq!(fingerprint(&replayed), state, "after replaying the journal");
                    let restored = restore_from_snapshot(&locks.table);
                    assert_eq!(fingerprint(&restored), state, "after restoring a snapshot");
                    next_level.push(locks);
                }
            }
        }
        depth += 1;
        println!("depth {depth}: {} states, {executed} commands, {:?}", seen.len(), started.elapsed());
        level = next_level;
    }
}
