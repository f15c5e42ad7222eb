//! Deadlocks against a brute-force oracle: random runs of holders, modes, upgrades, several waits at once, expiry and
//! time; none is missed and none is invented.

use crate::world::{World, check, check_cycle, copy, holder, is_in_cycle, lock, wish};
use ade_domain::lock::{Acquire, LockCommand, LockLimits, Mode, graph};
use ade_testkit::{Dice, effort};

const HOLDERS: [&str; 6] = ["ann", "ben", "cem", "dee", "eva", "fay"];
const LOCKS: [&str; 4] = ["p", "q", "r", "s"];

/// One random command. Detection is off, so that the search can be asked before anybody gives way.
fn act(world: &mut World, dice: &mut Dice, request: u64) -> Option<&'static str> {
    let who = HOLDERS[dice.below(6) as usize];
    let name = LOCKS[dice.below(4) as usize];
    match dice.below(10) {
        0..=5 => {
            let mode = if dice.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
            world.acquire(name, wish(who, &request.to_string(), mode));
            return Some(who);
        }
        6 => drop(world.release(name, who)),
        7 => {
            let token = world
                .table
                .lock(&lock(name))
                .and_then(|lock| lock.hold_of(&holder(who)))
                .map(|hold| hold.token);
            let command = LockCommand::Downgrade { holder: holder(who), token: token.unwrap_or_default() };
            world.send(&lock(name), &command);
        }
        8 => {
            let request =
                world.table.lock(&lock(name)).and_then(|lock| lock.wait_of(&holder(who))).map(|w| w.request);
            if let Some(request) = request {
                let why = ade_domain::lock::End::Cancelled;
                world.send(
                    &lock(name),
                    &LockCommand::Cancel { holder: holder(who), request, why, begun: false },
                );
            }
        }
        _ => {
            world.pass(dice.below(15_000));
            world.sweep();
        }
    }
    None
}

#[test]
fn no_cycle_is_missed_and_none_invented() {
    let (rounds, seed) = (effort::rounds(1_000, 100_000), effort::seed());
    let (mut found, mut ended) = (0_u64, 0_u64);
    for round in 0..rounds {
        let mut dice = Dice::new(seed, round);
        let mut world = World::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
        for request in 0..40 {
            let Some(who) = act(&mut world, &mut dice, request) else { continue };
            let start = holder(who);
            let cycle = graph::cycle_through(&world.table, &start);
            assert_eq!(
                cycle.is_some(),
                is_in_cycle(&world.table, &start),
                "round {round}, request {request}"
            );
            let Some(cycle) = cycle else { continue };
            let suspects = graph::suspects(&world.table, [&start]);
            assert!(
                suspects.iter().any(|holder| cycle.iter().any(|edge| edge.holder == **holder)),
                "round {round}, request {request}: none of {cycle:?} is suspected"
            );
            assert_eq!(cycle.first().map(|edge| &edge.holder), Some(&start), "it begins with whoever asked");
            check_cycle(&world.table, &cycle);
            found += 1;
        }
        let again = copy(&world.table);
        for who in HOLDERS {
            let through = |table| graph::cycle_through(table, &holder(who));
            assert_eq!(through(&again), through(&world.table), "round {round}: {who}");
        }
        // The same with detection on: whatever happens, nobody waits for itself afterwards.
        let mut dice = Dice::new(seed, round);
        let mut world = World::new(LockLimits::default());
        for request in 0..40 {
            let before = world.table.clone();
            act(&mut world, &mut dice, request);
            for name in HOLDERS {
                assert!(
                    !is_in_cycle(&world.table, &holder(name)),
                    "round {round}, request {request}: {name}"
                );
            }
            ended += u64::from(before.all_waiting().count() > world.table.all_waiting().count());
            check(&world.table);
        }
    }
    println!(
        "{rounds} runs from seed {seed}: {found} cycles found, all real; {ended} steps with fewer waits"
    );
    assert!(found > rounds / 4, "the runs must contain deadlocks to mean something: {found}");
}

/// A ring of holders, each of which holds one lock and waits for the next one's.
fn ring(parties: usize, first: Mode, second: Mode) {
    let mut world = World::new(LockLimits::default());
    let name = |n: usize| format!("h{:02}", n % parties);
    for n in 0..parties {
        world.grant(&name(n), wish(&name(n), "hold", first));
        world.pass(1);
    }
    for n in 0..parties - 1 {
        world.position(&name(n + 1), wish(&name(n), "wait", second));
    }
    // The last one closes the ring and is the youngest.
    let last = name(parties - 1);
    let standing = world.acquire(&name(parties), wish(&last, "wait", second));
    let cycle = crate::world::deadlock(&standing).expect("it gives way").clone();
    let order: Vec<String> = cycle.iter().map(|edge| edge.holder.to_string()).collect();
    let expected: Vec<String> = (0..parties).map(|n| name(parties - 1 + n)).collect();
    assert_eq!(order, expected, "the cycle in order");
    assert_eq!(world.holders(&last), [name(parties - 2)], "its lock went on to who waited for it");
    assert_eq!(world.table.waited_for_by(&holder(&last)).count(), 0);
    // A repetition of the aborted request is told the same, and nothing comes back.
    let again = world.acquire(&name(parties), wish(&last, "wait", second));
    assert_eq!(crate::world::deadlock(&again), Some(&cycle));
}

#[test]
fn rings_of_two_three_and_ten() {
    for parties in [2, 3, 10] {
        ring(parties, Mode::Exclusive, Mode::Exclusive);
        ring(parties, Mode::Exclusive, Mode::Shared);
        ring(parties, Mode::Shared, Mode::Exclusive);
    }
}

#[test]
fn two_upgraders_are_a_deadlock_and_the_older_one_wins() {
    let mut world = World::new(LockLimits::default());
    let old = world.grant("p", wish("old", "1", Mode::Shared));
    world.pass(1);
    world.grant("p", wish("young", "1", Mode::Shared));
    world.position("p", wish("old", "2", Mode::Exclusive));
    let standing = world.acquire("p", wish("young", "2", Mode::Exclusive));
    assert_eq!(crate::world::deadlock(&standing).expect("it gives way").len(), 2);
    let hold =
        world.table.lock(&lock("p")).and_then(|lock| lock.hold_of(&holder("old"))).expect("upgraded").clone();
    assert_eq!(hold.mode, Mode::Exclusive);
    assert!(hold.token > old.token, "an upgrade is a new grant");
    assert_eq!(world.holders("p"), ["old"]);
}

#[test]
fn the_victim_keeps_its_age_and_does_not_starve() {
    let mut world = World::new(LockLimits::default());
    for round in 0..2 {
        let request = |n: u64| format!("{round}-{n}");
        if round == 0 {
            world.grant("p", wish("ann", &request(0), Mode::Exclusive));
            world.pass(1);
            world.grant("q", wish("ben", &request(0), Mode::Exclusive));
        } else {
            // Ben comes back first this time, but other holders are younger than it ever since.
            world.grant("q", wish("ben", &request(0), Mode::Exclusive));
            world.grant("p", wish("cem", &request(0), Mode::Exclusive));
        }
        world.pass(1);
        let other = if round == 0 { "ann" } else { "cem" };
        world.position("q", wish(other, &request(1), Mode::Exclusive));
        let standing = world.acquire("p", wish("ben", &request(1), Mode::Exclusive));
        if round == 0 {
            assert!(crate::world::deadlock(&standing).is_some(), "ben is the youngest");
            world.release("p", "ann");
            world.release("q", "ann");
        } else {
            assert!(crate::world::deadlock(&standing).is_none(), "ben is the oldest now");
            assert_eq!(world.holders("p"), ["ben"]);
            world.release("p", "ben");
            world.release("q", "ben");
        }
    }
}

#[test]
fn detection_can_be_switched_off() {
    let mut world = World::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
    world.grant("p", wish("ann", "1", Mode::Exclusive));
    world.grant("q", wish("ben", "1", Mode::Exclusive));
    world.position("q", wish("ann", "2", Mode::Exclusive));
    assert_eq!(world.position("p", wish("ben", "2", Mode::Exclusive)), 1);
    assert!(is_in_cycle(&world.table, &holder("ann")));
}

#[test]
fn which_of_two_cycles_is_found_does_not_depend_on_who_queued_where_first() {
    let mut world = World::new(LockLimits { deadlock_detection: false, ..LockLimits::default() });
    for (name, who) in [("p", "ann"), ("q", "ann"), ("r", "ben")] {
        world.grant(name, wish(who, "1", Mode::Exclusive));
    }
    world.position("q", wish("ben", "2", Mode::Exclusive));
    world.position("p", wish("ben", "2", Mode::Exclusive));
    world.position("r", wish("ann", "2", Mode::Exclusive));
    for table in [&world.table, &copy(&world.table)] {
        let cycle = graph::cycle_through(table, &holder("ann")).expect("a cycle");
        let waits: Vec<_> = cycle.iter().map(|edge| edge.waits_for.clone()).collect();
        assert_eq!(waits, [lock("r"), lock("p")]);
    }
}

#[test]
fn a_cycle_that_is_closed_by_ending_another_ends_too() {
    let mut world = World::new(LockLimits::default());
    let long = |who: &str, request: &str, mode| Acquire { ttl_ms: 300_000, ..wish(who, request, mode) };
    for (name, who) in [("a", "old"), ("m", "ann"), ("b", "young")] {
        world.grant(name, long(who, "1", Mode::Exclusive));
        world.pass(1);
    }
    world.grant("l", long("young", "2", Mode::Shared));
    // Ann's lease ends first. Then she waits behind cem, who waits for what else she holds.
    world.grant("l", Acquire { ttl_ms: 1_000, ..wish("ann", "2", Mode::Shared) });
    world.position("l", wish("cem", "1", Mode::Exclusive));
    world.position("l", wish("ann", "3", Mode::Exclusive));
    world.position("m", wish("cem", "2", Mode::Exclusive));
    world.position("a", wish("young", "3", Mode::Exclusive));
    world.pass(1_000);
    // Nobody has looked at that lock since; the youngest is taken off it, as it gives way elsewhere.
    let answer = world.send(&lock("b"), &LockCommand::Acquire(wish("old", "2", Mode::Exclusive)));
    let victims: Vec<String> = answer.deadlocks.iter().map(|ended| ended.victim.to_string()).collect();
    assert_eq!(victims, ["young", "cem"]);
    assert_eq!(world.holders("l"), ["ann"]);
    for who in ["old", "ann", "cem", "young"] {
        assert!(!is_in_cycle(&world.table, &holder(who)), "{who}");
    }
}

#[test]
fn a_cycle_of_sharers_is_closed_by_who_takes_the_last_place() {
    let mut world = World::new(LockLimits { max_holders: 1, ..LockLimits::default() });
    world.grant("p", wish("first", "1", Mode::Shared));
    world.grant("q", wish("ben", "1", Mode::Exclusive));
    world.position("p", wish("ann", "1", Mode::Shared));
    world.position("p", wish("ben", "2", Mode::Shared));
    // Neither waits for the other, as long as both wait for the first.
    world.position("q", wish("ann", "2", Mode::Exclusive));
    let token = world.table.lock(&lock("p")).map(|lock| lock.holds()[0].token).expect("held");
    let release = LockCommand::Release { holder: holder("first"), token };
    world.pass(1);
    let victims: Vec<String> =
        world.send(&lock("p"), &release).deadlocks.iter().map(|ended| ended.victim.to_string()).collect();
    assert_eq!(victims, ["ann"], "whose only grant is the youngest");
    assert_eq!((world.holders("p"), world.queue("q")), (vec!["ben".to_owned()], vec![]));
}
