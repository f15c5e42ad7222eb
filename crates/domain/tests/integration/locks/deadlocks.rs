//! Deadlock detection and resolution. A property test compares random runs with a brute-force oracle.

use crate::locks::fixture::{
    LockFixture, assert_invariants, assert_real_cycle, deadlock_cycle, holder, is_in_cycle, lock,
    restore_from_snapshot, ticket,
};
use ade_domain::lock::{Acquisition, EndReason, LockCommand, LockLimits, LockMode, graph};
use ade_testkit::{SeededRng, effort};

const HOLDERS: [&str; 6] = ["ann", "ben", "cem", "dee", "eva", "fay"];
const LOCKS: [&str; 4] = ["p", "q", "r", "s"];

/// Executes one random command. Returns the agent of an acquire, which may have closed a cycle.
pub(crate) fn execute_random(
    locks: &mut LockFixture,
    rng: &mut SeededRng,
    request_id: u64,
) -> Option<&'static str> {
    let agent = HOLDERS[rng.below(6) as usize];
    let name = LOCKS[rng.below(4) as usize];
    let holder = holder(agent);
    match rng.below(10) {
        0..=5 => {
            let mode = if rng.below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            locks.acquire(name, ticket(agent, &request_id.to_string(), mode));
            return Some(agent);
        }
        6 => drop(locks.release(name, agent)),
        7 => {
            let hold = locks.table.lock(&lock(name)).and_then(|lock| lock.hold_of(&holder));
            let token = hold.map(|hold| hold.token).unwrap_or_default();
            locks.execute(&lock(name), &LockCommand::Downgrade { holder, token });
        }
        8 => {
            let waiter = locks.table.lock(&lock(name)).and_then(|lock| lock.waiter_of(&holder));
            if let Some(request) = waiter.map(|waiter| waiter.request) {
                let cancel = LockCommand::Cancel {
                    holder,
                    request,
                    reason: EndReason::Cancelled,
                    include_claimed: false,
                };
                locks.execute(&lock(name), &cancel);
            }
        }
        _ => {
            locks.advance(rng.below(15_000));
            locks.sweep();
        }
    }
    None
}

#[test]
fn finds_every_cycle_and_only_real_ones() {
    let rounds = effort::rounds(500, 100_000);
    let (mut found, mut resolved) = (0_u64, 0_u64);
    for (seed, round) in effort::seeded_rounds(rounds) {
        // Without detection, so that the search runs before any cycle is resolved.
        let mut rng = SeededRng::new(seed, round);
        let mut locks = LockFixture::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
        for request_id in 0..40 {
            let Some(agent) = execute_random(&mut locks, &mut rng, request_id) else { continue };
            let start = holder(agent);
            let cycle = graph::find_cycle_through(&locks.table, &start);
            assert_eq!(
                cycle.is_some(),
                is_in_cycle(&locks.table, &start),
                "round {round}, request {request_id}"
            );
            let Some(cycle) = cycle else { continue };
            let candidates = graph::find_cycle_candidates(&locks.table, [&start]);
            assert!(
                candidates.iter().any(|holder| cycle.iter().any(|edge| edge.holder == **holder)),
                "round {round}, request {request_id}: no candidate in {cycle:?}"
            );
            assert_eq!(cycle.first().map(|edge| &edge.holder), Some(&start), "begins with the start");
            assert_real_cycle(&locks.table, &cycle);
            found += 1;
        }
        let restored = restore_from_snapshot(&locks.table);
        for agent in HOLDERS {
            let cycle = |table| graph::find_cycle_through(table, &holder(agent));
            assert_eq!(cycle(&restored), cycle(&locks.table), "round {round}: {agent}");
        }
        // The same commands with detection: no cycle is left after any of them.
        let mut rng = SeededRng::new(seed, round);
        let mut locks = LockFixture::new(LockLimits::default());
        for request_id in 0..40 {
            let before = locks.table.clone();
            execute_random(&mut locks, &mut rng, request_id);
            for agent in HOLDERS {
                assert!(
                    !is_in_cycle(&locks.table, &holder(agent)),
                    "round {round}, request {request_id}: {agent}"
                );
            }
            resolved += u64::from(before.all_waits().count() > locks.table.all_waits().count());
            assert_invariants(&locks.table);
        }
    }
    println!("{found} real cycles found; {resolved} commands reduced the number of waits");
    assert!(found > rounds / 2, "too few deadlocks for a meaningful test: {found}");
}

/// Each holder has one lock and waits for the lock of the next one.
fn assert_cycle_is_resolved(holders: usize, held_mode: LockMode, requested_mode: LockMode) {
    let mut locks = LockFixture::new(LockLimits::default());
    let name = |n: usize| format!("h{:02}", n % holders);
    for n in 0..holders {
        locks.grant(&name(n), ticket(&name(n), "hold", held_mode));
        locks.advance(1);
    }
    for n in 0..holders - 1 {
        locks.enqueue(&name(n + 1), ticket(&name(n), "wait", requested_mode));
    }
    // The last holder closes the cycle and is the youngest.
    let last = name(holders - 1);
    let status = locks.acquire(&name(holders), ticket(&last, "wait", requested_mode));
    let cycle = deadlock_cycle(&status).expect("it is the victim").clone();
    let order: Vec<String> = cycle.iter().map(|edge| edge.holder.to_string()).collect();
    let expected: Vec<String> = (0..holders).map(|n| name(holders - 1 + n)).collect();
    assert_eq!(order, expected, "the cycle in order");
    assert_eq!(locks.holders(&last), [name(holders - 2)], "its lock went to the waiter");
    assert_eq!(locks.table.locks_awaited_by(&holder(&last)).count(), 0);
    let retried = locks.acquire(&name(holders), ticket(&last, "wait", requested_mode));
    assert_eq!(deadlock_cycle(&retried), Some(&cycle), "a retry gets the same result");
}

#[test]
fn resolves_cycles_of_two_three_and_ten_holders() {
    for holders in [2, 3, 10] {
        assert_cycle_is_resolved(holders, LockMode::Exclusive, LockMode::Exclusive);
        assert_cycle_is_resolved(holders, LockMode::Exclusive, LockMode::Shared);
        assert_cycle_is_resolved(holders, LockMode::Shared, LockMode::Exclusive);
    }
}

#[test]
fn two_upgrades_deadlock_and_the_older_holder_wins() {
    let mut locks = LockFixture::new(LockLimits::default());
    let old = locks.grant("p", ticket("old", "1", LockMode::Shared));
    locks.advance(1);
    locks.grant("p", ticket("young", "1", LockMode::Shared));
    locks.enqueue("p", ticket("old", "2", LockMode::Exclusive));
    let status = locks.acquire("p", ticket("young", "2", LockMode::Exclusive));
    assert_eq!(deadlock_cycle(&status).expect("it is the victim").len(), 2);
    let hold =
        locks.table.lock(&lock("p")).and_then(|lock| lock.hold_of(&holder("old"))).expect("upgraded").clone();
    assert_eq!(hold.mode, LockMode::Exclusive);
    assert!(hold.token > old.token, "an upgrade is a new grant");
    assert_eq!(locks.holders("p"), ["old"]);
}

#[test]
fn victim_keeps_its_age_and_does_not_starve() {
    let mut locks = LockFixture::new(LockLimits::default());
    for round in 0..2 {
        let request_id = |n: u64| format!("{round}-{n}");
        if round == 0 {
            locks.grant("p", ticket("ann", &request_id(0), LockMode::Exclusive));
            locks.advance(1);
            locks.grant("q", ticket("ben", &request_id(0), LockMode::Exclusive));
        } else {
            // Ben retries: its kept age makes it older than every other holder.
            locks.grant("q", ticket("ben", &request_id(0), LockMode::Exclusive));
            locks.grant("p", ticket("cem", &request_id(0), LockMode::Exclusive));
        }
        locks.advance(1);
        let other = if round == 0 { "ann" } else { "cem" };
        locks.enqueue("q", ticket(other, &request_id(1), LockMode::Exclusive));
        let status = locks.acquire("p", ticket("ben", &request_id(1), LockMode::Exclusive));
        if round == 0 {
            assert!(deadlock_cycle(&status).is_some(), "ben is the victim");
            locks.release("p", "ann");
            locks.release("q", "ann");
        } else {
            assert!(deadlock_cycle(&status).is_none(), "ben is the oldest");
            assert_eq!(locks.holders("p"), ["ben"]);
            locks.release("p", "ben");
            locks.release("q", "ben");
        }
    }
}

#[test]
fn detection_can_be_disabled() {
    let mut locks = LockFixture::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
    locks.grant("p", ticket("ann", "1", LockMode::Exclusive));
    locks.grant("q", ticket("ben", "1", LockMode::Exclusive));
    locks.enqueue("q", ticket("ann", "2", LockMode::Exclusive));
    assert_eq!(locks.enqueue("p", ticket("ben", "2", LockMode::Exclusive)), 1);
    assert!(is_in_cycle(&locks.table, &holder("ann")));
}

#[test]
fn found_cycle_does_not_depend_on_order_of_arrival() {
    let mut locks = LockFixture::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
    for (name, agent) in [("p", "ann"), ("q", "ann"), ("r", "ben")] {
        locks.grant(name, ticket(agent, "1", LockMode::Exclusive));
    }
    locks.enqueue("q", ticket("ben", "2", LockMode::Exclusive));
    locks.enqueue("p", ticket("ben", "2", LockMode::Exclusive));
    locks.enqueue("r", ticket("ann", "2", LockMode::Exclusive));
    for table in [&locks.table, &restore_from_snapshot(&locks.table)] {
        let cycle = graph::find_cycle_through(table, &holder("ann")).expect("cycle");
        let waits: Vec<_> = cycle.iter().map(|edge| edge.waits_for.clone()).collect();
        assert_eq!(waits, [lock("r"), lock("p")]);
    }
}

#[test]
fn resolves_cycle_that_another_resolution_closes() {
    let mut locks = LockFixture::new(LockLimits::default());
    let long_lease = |agent: &str, request_id: &str| Acquisition {
        ttl_ms: 300_000,
        ..ticket(agent, request_id, LockMode::Exclusive)
    };
    for (name, agent) in [("a", "old"), ("m", "ann"), ("b", "young")] {
        locks.grant(name, long_lease(agent, "1"));
        locks.advance(1);
    }
    locks.grant("l", Acquisition { mode: LockMode::Shared, ..long_lease("young", "2") });
    // Ann's lease expires first. Then she waits behind cem, who waits for her other lock.
    locks.grant("l", Acquisition { ttl_ms: 1_000, ..ticket("ann", "2", LockMode::Shared) });
    locks.enqueue("l", ticket("cem", "1", LockMode::Exclusive));
    locks.enqueue("l", ticket("ann", "3", LockMode::Exclusive));
    locks.enqueue("m", ticket("cem", "2", LockMode::Exclusive));
    locks.enqueue("a", ticket("young", "3", LockMode::Exclusive));
    locks.advance(1_000);
    // No command has touched lock l since the expiry. Aborting the youngest holder touches it and closes the second cycle.
    let reply = locks.execute(&lock("b"), &LockCommand::Acquire(ticket("old", "2", LockMode::Exclusive)));
    let victims: Vec<String> = reply.deadlocks.iter().map(|deadlock| deadlock.victim.to_string()).collect();
    assert_eq!(victims, ["young", "cem"]);
    assert_eq!(locks.holders("l"), ["ann"]);
    for agent in ["old", "ann", "cem", "young"] {
        assert!(!is_in_cycle(&locks.table, &holder(agent)), "{agent}");
    }
}

#[test]
fn detects_cycle_of_sharers_at_the_holder_limit() {
    let mut locks = LockFixture::new(LockLimits { max_holders: 1, ..LockLimits::default() });
    locks.grant("p", ticket("first", "1", LockMode::Shared));
    locks.grant("q", ticket("ben", "1", LockMode::Exclusive));
    locks.enqueue("p", ticket("ann", "1", LockMode::Shared));
    locks.enqueue("p", ticket("ben", "2", LockMode::Shared));
    // Ann and ben do not block each other while both wait for the first holder.
    locks.enqueue("q", ticket("ann", "2", LockMode::Exclusive));
    let token = locks.table.lock(&lock("p")).map(|lock| lock.holds()[0].token).expect("held");
    let release = LockCommand::Release { holder: holder("first"), token, server: None };
    locks.advance(1);
    let victims: Vec<String> = locks
        .execute(&lock("p"), &release)
        .deadlocks
        .iter()
        .map(|deadlock| deadlock.victim.to_string())
        .collect();
    assert_eq!(victims, ["ann"], "it has the youngest grant");
    assert_eq!((locks.holders("p"), locks.queue("q")), (vec!["ben".to_owned()], vec![]));
}
