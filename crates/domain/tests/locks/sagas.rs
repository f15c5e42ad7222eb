//! Requests for several locks, interleaved at random with crashes of whoever runs them: all or nothing, and nobody waits
//! for ever.

use crate::world::{World, holder};
use ade_domain::lock::saga::{Failure, Next, Saga};
use ade_domain::lock::{Draft, LockLimits, LockRequest, Mode};
use ade_testkit::{Dice, effort};

const NAMES: [&str; 5] = ["p", "q", "r", "s", "t"];

fn request(dice: &mut Dice, who: &str, id: &str) -> LockRequest {
    let names: Vec<String> =
        NAMES.iter().filter(|_| dice.below(2) == 0).map(|n| format!("resource:test:{n}")).collect();
    let mut locks: Vec<(&str, Option<Mode>)> = names
        .iter()
        .map(|name| (name.as_str(), Some(if dice.below(3) == 0 { Mode::Shared } else { Mode::Exclusive })))
        .collect();
    if locks.is_empty() {
        locks.push(("task:1", None));
    }
    let (queue, wait) = (dice.below(2) == 0, dice.below(20) as f64);
    let draft = Draft { locks, queue, wait_seconds: Some(wait), request_id: Some(id), ..Draft::default() };
    LockRequest::new(holder(who), &draft, &LockLimits::default(), 0).expect("valid")
}

/// How a saga stands after running until it must wait, or crashing on the way (`None`).
fn run(
    world: &mut World,
    saga: &mut Saga,
    dice: &mut Dice,
    deadline_ms: u64,
    elapsed_ms: u64,
) -> Option<Next> {
    saga.poll();
    loop {
        if dice.below(40) == 0 {
            return None;
        }
        match saga.next(deadline_ms.saturating_sub(elapsed_ms)) {
            Next::Step(lock, command) => saga.answer(world.send(&lock, &command).outcome),
            Next::Ready => saga.begin_leases(),
            Next::Wait { .. } if elapsed_ms >= deadline_ms => saga.time_out(),
            other => return Some(other),
        }
    }
}

fn holds_all(world: &World, request: &LockRequest) {
    for ask in &request.asks {
        let hold = world.table.lock(&ask.lock).and_then(|lock| lock.hold_of(&request.holder));
        assert!(hold.is_some_and(|hold| hold.mode >= ask.mode && hold.claimed), "{}", ask.lock);
    }
}

/// Nothing is left of a failed request, but leases that a crashed run of it had begun: those end by time.
fn holds_nothing(world: &World, request: &LockRequest, crashed: bool) {
    for ask in &request.asks {
        let hold = world.table.lock(&ask.lock).and_then(|lock| lock.hold_of(&request.holder));
        assert!(hold.is_none_or(|hold| crashed && hold.claimed), "{}", ask.lock);
    }
}

#[test]
fn all_or_nothing_however_they_interleave() {
    let (rounds, seed) = (effort::rounds(300, 10_000), effort::seed());
    let (mut granted, mut failed, mut crashed) = (0_u64, 0_u64, 0_u64);
    for round in 0..rounds {
        let mut dice = Dice::new(seed, round);
        let mut world = World::new(LockLimits::default());
        let mut open: Vec<(LockRequest, Saga, u64)> = Vec::new();
        let mut crashes: Vec<String> = Vec::new();
        for n in 0..6 {
            let who = format!("h{n}");
            let request = request(&mut dice, &who, "1");
            let wait_ms = dice.below(20_000);
            open.push((request.clone(), Saga::new(request, "server".into()), wait_ms));
        }
        let mut elapsed_ms = 0;
        while !open.is_empty() {
            let at = dice.below(open.len() as u64) as usize;
            let (request, saga, wait_ms) = &mut open[at];
            match run(&mut world, saga, &mut dice, *wait_ms, elapsed_ms) {
                // Whoever ran it is gone; another starts again from the request.
                None => {
                    crashed += 1;
                    crashes.push(request.holder.to_string());
                    *saga = Saga::new(request.clone(), "other".into());
                }
                Some(Next::Granted(grants)) => {
                    assert_eq!(grants.len(), request.asks.len());
                    holds_all(&world, request);
                    granted += 1;
                    let (request, _, wait_ms) = open.swap_remove(at);
                    // A delayed repetition, before and after some of the locks are released, takes nothing away.
                    for (released, ask) in request.asks.iter().enumerate() {
                        let mut late = Saga::new(request.clone(), "late".into());
                        drop(run(&mut world, &mut late, &mut dice, wait_ms, elapsed_ms));
                        for ask in request.asks.iter().skip(released) {
                            let lock = world.table.lock(&ask.lock);
                            assert!(
                                lock.is_some_and(|lock| lock.hold_of(&request.holder).is_some()),
                                "{}",
                                ask.lock
                            );
                        }
                        let name = ask.lock.as_str().trim_start_matches("resource:test:");
                        if name != "task:1" {
                            world.release(name, request.holder.agent_id());
                        }
                    }
                }
                Some(Next::Failed(why)) => {
                    holds_nothing(&world, request, crashes.contains(&request.holder.to_string()));
                    assert_eq!(world.table.waited_for_by(&request.holder).count(), 0);
                    assert_ne!(why, Failure::Cancelled);
                    failed += 1;
                    open.swap_remove(at);
                }
                Some(Next::Wait { .. }) => {
                    for (lock, command) in saga.keep(&LockLimits::default()) {
                        world.send(&lock, &command);
                    }
                    let ms = dice.below(2_000);
                    world.pass(ms);
                    elapsed_ms += ms;
                    world.sweep();
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
    println!(
        "{rounds} runs from seed {seed}: {granted} granted, {failed} given back, {crashed} crashes on the way"
    );
    assert!(granted > rounds && failed > 0 && crashed > 0);
}
