//! Property test of requests for several locks, interleaved at random with crashes: each request gets all its locks or none,
//! and none waits forever.

use crate::locks::fixture::{LockFixture, holder};
use ade_domain::lock::saga::{AcquireFailure, AcquireSaga, SagaAction};
use ade_domain::lock::{LockLimits, LockMode, LockRequest, LockRequestDraft};
use ade_testkit::{SeededRng, effort};

const LOCKS: [&str; 5] = ["p", "q", "r", "s", "t"];

fn random_request(rng: &mut SeededRng, agent: &str, request_id: &str) -> LockRequest {
    let names: Vec<String> =
        LOCKS.iter().filter(|_| rng.below(2) == 0).map(|name| format!("resource:test:{name}")).collect();
    let mut locks: Vec<(&str, Option<LockMode>)> = names
        .iter()
        .map(|name| {
            (name.as_str(), Some(if rng.below(3) == 0 { LockMode::Shared } else { LockMode::Exclusive }))
        })
        .collect();
    if locks.is_empty() {
        locks.push(("task:1", None));
    }
    let (queue, wait_seconds) = (rng.below(2) == 0, Some(rng.below(20) as f64));
    let draft = LockRequestDraft {
        locks,
        queue,
        wait_seconds,
        request_id: Some(request_id),
        ..LockRequestDraft::default()
    };
    LockRequest::new(holder(agent), &draft, &LockLimits::default(), 0).expect("valid")
}

/// Runs a saga until it waits or ends. Returns `None` if it crashes.
fn run(
    locks: &mut LockFixture,
    saga: &mut AcquireSaga,
    rng: &mut SeededRng,
    deadline_ms: u64,
    elapsed_ms: u64,
) -> Option<SagaAction> {
    saga.poll();
    loop {
        if rng.below(40) == 0 {
            return None;
        }
        match saga.next_action(deadline_ms.saturating_sub(elapsed_ms)) {
            SagaAction::Execute(commands) => {
                for (lock, command) in commands {
                    let outcome = locks.execute(&lock, &command).outcome;
                    let is_success = outcome.is_success();
                    saga.handle_outcome(outcome);
                    if !is_success {
                        break;
                    }
                }
            }
            SagaAction::Ready => saga.claim_all(),
            SagaAction::Wait { .. } if elapsed_ms >= deadline_ms => saga.time_out(),
            other => return Some(other),
        }
    }
}

fn assert_holds_all(locks: &LockFixture, request: &LockRequest) {
    for requested in &request.locks {
        let hold = locks.table.lock(&requested.lock).and_then(|lock| lock.hold_of(&request.holder));
        assert!(hold.is_some_and(|hold| hold.mode >= requested.mode && hold.claimed), "{}", requested.lock);
    }
}

/// A failed request leaves nothing behind, except leases that a crashed run of it had started: those expire.
fn assert_holds_nothing(locks: &LockFixture, request: &LockRequest, has_crashed: bool) {
    for requested in &request.locks {
        let hold = locks.table.lock(&requested.lock).and_then(|lock| lock.hold_of(&request.holder));
        assert!(hold.is_none_or(|hold| has_crashed && hold.claimed), "{}", requested.lock);
    }
}

#[test]
fn requests_get_all_locks_or_none() {
    let rounds = effort::rounds(150, 10_000);
    let (mut granted, mut failed, mut crashed) = (0_u64, 0_u64, 0_u64);
    for (seed, round) in effort::seeded_rounds(rounds) {
        let mut rng = SeededRng::new(seed, round);
        let mut locks = LockFixture::new(LockLimits::default());
        let mut open: Vec<(LockRequest, AcquireSaga, u64)> = Vec::new();
        let mut crashed_holders: Vec<String> = Vec::new();
        for n in 0..6 {
            let request = random_request(&mut rng, &format!("h{n}"), "1");
            let wait_ms = rng.below(20_000);
            open.push((request.clone(), AcquireSaga::new(request, "first".into()), wait_ms));
        }
        let mut elapsed_ms = 0;
        while !open.is_empty() {
            let index = rng.below(open.len() as u64) as usize;
            let (request, saga, wait_ms) = &mut open[index];
            match run(&mut locks, saga, &mut rng, *wait_ms, elapsed_ms) {
                // Another server starts again from the request.
                None => {
                    crashed += 1;
                    crashed_holders.push(request.holder.to_string());
                    *saga = AcquireSaga::new(request.clone(), "second".into());
                }
                Some(SagaAction::Granted(grants)) => {
                    assert_eq!(grants.len(), request.locks.len());
                    assert_holds_all(&locks, request);
                    granted += 1;
                    let (request, _, wait_ms) = open.swap_remove(index);
                    // A late retry must not take locks away, whether or not some of them were released meanwhile.
                    for (released, requested) in request.locks.iter().enumerate() {
                        let mut late_retry = AcquireSaga::new(request.clone(), "third".into());
                        drop(run(&mut locks, &mut late_retry, &mut rng, wait_ms, elapsed_ms));
                        for remaining in request.locks.iter().skip(released) {
                            let lock = locks.table.lock(&remaining.lock);
                            assert!(
                                lock.is_some_and(|lock| lock.hold_of(&request.holder).is_some()),
                                "{}",
                                remaining.lock
                            );
                        }
                        let name = requested.lock.as_str().trim_start_matches("resource:test:");
                        if name != "task:1" {
                            locks.release(name, request.holder.agent_id());
                        }
                    }
                }
                Some(SagaAction::Failed(failure)) => {
                    let has_crashed = crashed_holders.contains(&request.holder.to_string());
                    assert_holds_nothing(&locks, request, has_crashed);
                    assert_eq!(locks.table.locks_awaited_by(&request.holder).count(), 0);
                    assert_ne!(failure, AcquireFailure::Cancelled);
                    failed += 1;
                    open.swap_remove(index);
                }
                Some(SagaAction::Wait { .. }) => {
                    for (lock, command) in saga.keep_alive_commands(&LockLimits::default()) {
                        locks.execute(&lock, &command);
                    }
                    let ms = rng.below(2_000);
                    locks.advance(ms);
                    elapsed_ms += ms;
                    locks.sweep();
                }
                Some(other) => panic!("{other:?}"),
            }
        }
    }
    println!("{granted} granted, {failed} failed, {crashed} crashed");
    assert!(granted > rounds && failed > 0 && crashed > 0);
}
