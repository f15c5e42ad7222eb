//! Deadlocks over HTTP: the youngest gives way and learns why, the others go on, and who tries again gets through.

use std::sync::Arc;
use std::time::Duration;

use ade_client::wire::{AcquireRequest, CycleEdge, Grant, LockAsk, Mode, Problem};
use ade_client::{Acquired, Client, Error, LockGuard, LockRequest};
use ade_testkit::Ade;
use ade_testkit::wait::until;
use serde_json::Value;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(60);

fn server() -> (Ade, Client) {
    let ade = Ade::start_with(env!("CARGO_BIN_EXE_ade"), "[log]\nformat = \"json\"\n").expect("starts");
    let client = ade.client().expect("a client");
    (ade, client)
}

fn lock(n: usize) -> String {
    format!("resource:x:{n}")
}

fn agent(n: usize) -> String {
    format!("agent-{n}")
}

async fn acquire(client: &Client, agent: &str, lock: &str, mode: Mode, wait: f64) -> Result<Grant, Error> {
    let request = AcquireRequest {
        locks: vec![LockAsk { lock: lock.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        wait_seconds: Some(wait),
        ttl_seconds: Some(300.0),
        ..AcquireRequest::default()
    };
    match client.acquire(&request).await? {
        Acquired::Granted(grants) => Ok(grants.grants.into_iter().next().expect("a grant")),
        Acquired::Ticket(ticket) => panic!("{ticket:?} was not asked for"),
    }
}

async fn take(client: &Client, agent: &str, lock: &str, mode: Mode) -> Grant {
    acquire(client, agent, lock, mode, 0.0).await.expect("free")
}

/// Waits for a lock in a task of its own.
fn wait_for(client: &Client, agent: &str, lock: &str, mode: Mode) -> JoinHandle<Result<Grant, Error>> {
    let (client, agent, lock) = (client.clone(), agent.to_owned(), lock.to_owned());
    tokio::spawn(async move { acquire(&client, &agent, &lock, mode, 60.0).await })
}

async fn queued(client: &Client, lock: &str, agents: &[&str]) {
    let look = || async {
        let now = client.lock(lock).await.map_err(|error| error.to_string())?;
        let found: Vec<String> = now.queue.iter().map(|waiter| waiter.agent_id.clone()).collect();
        if found == agents { Ok(()) } else { Err(format!("{found:?}")) }
    };
    until(&format!("{agents:?} wait for {lock}"), LONG, look).await.expect("they do");
}

async fn holders(client: &Client, lock: &str) -> Vec<String> {
    client.lock(lock).await.expect("shown").holders.into_iter().map(|holder| holder.agent_id).collect()
}

/// The cycle that a victim was told, beginning with a given agent.
fn cycle_from(problem: &Problem, start: &str) -> Vec<(String, String)> {
    assert_eq!((problem.status, problem.code.as_str()), (423, "DEADLOCK_DETECTED"), "{problem:?}");
    let edges: Vec<CycleEdge> = problem.fact("cycle").expect("a cycle");
    let mut cycle: Vec<_> = edges.into_iter().map(|edge| (edge.agent_id, edge.waits_for)).collect();
    let at = cycle.iter().position(|(agent, _)| agent == start).expect("it is part of the cycle");
    cycle.rotate_left(at);
    cycle
}

fn problem(answer: Result<Grant, Error>) -> Problem {
    match answer {
        Err(Error::Problem(problem)) => *problem,
        other => panic!("{other:?} is not a problem"),
    }
}

/// The lines of the structured log that tell of a deadlock: for the audit log, and for the victim's inbox.
fn told(ade: &Ade, victim: &str, freed: &str) {
    ade.process().wait_for_lines("DEADLOCK_DETECTED", 1, LONG).expect("told");
    let line = |text: &str| {
        let lines = ade.process().lines_with(text);
        assert_eq!(lines.len(), 1, "once: {lines:?}");
        serde_json::from_str::<Value>(&lines[0]).expect("JSON")
    };
    let audit = line("lock.deadlock");
    assert_eq!(
        (&audit["kind"], &audit["victim"], &audit["freed"]),
        (&"audit".into(), &victim.into(), &freed.into())
    );
    let inbox = line(r#""notice":"DEADLOCK_DETECTED""#);
    assert_eq!((&inbox["kind"], &inbox["agent"]), (&"inbox".into(), &victim.into()));
    assert!(
        audit["cycle"].as_str().is_some_and(|text| text.contains(victim)) && inbox["cycle"] == audit["cycle"]
    );
}

/// A ring of `n`: each holds one lock and waits for the next one's; `closer` is the last to wait.
async fn ring(n: usize, closer: usize) {
    let (ade, client) = server();
    for at in 0..n {
        take(&client, &agent(at), &lock(at), Mode::Exclusive).await;
    }
    let youngest = n - 1;
    let mut waits: Vec<Option<JoinHandle<_>>> = (0..n).map(|_| None).collect();
    for at in (0..n).filter(|at| *at != closer).chain([closer]) {
        let next = (at + 1) % n;
        waits[at] = Some(wait_for(&client, &agent(at), &lock(next), Mode::Exclusive));
        if at != closer {
            queued(&client, &lock(next), &[&agent(at)]).await;
        }
    }
    let victim = waits[youngest].take().expect("it waits").await.expect("runs");
    let cycle = cycle_from(&problem(victim), &agent(0));
    let expected: Vec<_> = (0..n).map(|at| (agent(at), lock((at + 1) % n))).collect();
    assert_eq!(cycle, expected, "in order");
    // Its lock goes to who waited for it; the others still hold and wait, and are granted one after the other.
    for at in (0..youngest).rev() {
        let grant = waits[at].take().expect("it waits").await.expect("runs").expect("granted");
        assert_eq!(grant.lock, lock(at + 1));
        assert_eq!(holders(&client, &lock(at + 1)).await, [agent(at)]);
        client.break_lock(&lock(at), "done").await.expect("broken");
    }
    told(&ade, &agent(youngest), &lock(youngest));
    assert!(client.graph().await.expect("shown").waits.is_empty());
}

#[tokio::test]
async fn two_that_wait_for_each_other() {
    ring(2, 1).await;
    ring(2, 0).await;
}

#[tokio::test]
async fn three_in_a_ring_whoever_closes_it() {
    for closer in 0..3 {
        ring(3, closer).await;
    }
}

#[tokio::test]
async fn ten_in_a_ring() {
    ring(10, 4).await;
}

#[tokio::test]
async fn two_sharers_that_both_want_more() {
    let (ade, client) = server();
    let old = take(&client, "old", &lock(0), Mode::Shared).await;
    take(&client, "young", &lock(0), Mode::Shared).await;
    let patient = wait_for(&client, "old", &lock(0), Mode::Exclusive);
    queued(&client, &lock(0), &["old"]).await;
    let answer = problem(wait_for(&client, "young", &lock(0), Mode::Exclusive).await.expect("runs"));
    assert_eq!(cycle_from(&answer, "old"), [("old".to_owned(), lock(0)), ("young".to_owned(), lock(0))]);
    let grant = patient.await.expect("runs").expect("granted");
    assert!(grant.mode == Mode::Exclusive && grant.fencing_token > old.fencing_token);
    assert_eq!(holders(&client, &lock(0)).await, ["old"], "what the victim shared is released");
    told(&ade, "young", &lock(0));
}

#[tokio::test]
async fn sharers_and_writers_in_one_ring() {
    let (ade, client) = server();
    // Two share a lock; each way through a sharer can close the ring.
    take(&client, "writer", &lock(1), Mode::Exclusive).await;
    take(&client, "other", &lock(0), Mode::Shared).await;
    take(&client, "reader", &lock(0), Mode::Shared).await;
    let writer = wait_for(&client, "writer", &lock(0), Mode::Exclusive);
    queued(&client, &lock(0), &["writer"]).await;
    let answer = problem(wait_for(&client, "reader", &lock(1), Mode::Shared).await.expect("runs"));
    assert_eq!(
        cycle_from(&answer, "reader"),
        [("reader".to_owned(), lock(1)), ("writer".to_owned(), lock(0))]
    );
    assert_eq!(holders(&client, &lock(0)).await, ["other"]);
    client.break_lock(&lock(0), "the other sharer is done").await.expect("broken");
    assert_eq!(writer.await.expect("runs").expect("granted").lock, lock(0));
    told(&ade, "reader", &lock(0));
}

#[tokio::test]
async fn waiting_behind_a_waiter_closes_a_ring_too() {
    let (_ade, client) = server();
    // The late sharer could hold together with the first, but must not pass the writer.
    take(&client, "writer", &lock(1), Mode::Exclusive).await;
    take(&client, "first", &lock(0), Mode::Shared).await;
    take(&client, "late", &lock(2), Mode::Exclusive).await;
    let writer = wait_for(&client, "writer", &lock(0), Mode::Exclusive);
    queued(&client, &lock(0), &["writer"]).await;
    let late = wait_for(&client, "late", &lock(0), Mode::Shared);
    queued(&client, &lock(0), &["writer", "late"]).await;
    let first = wait_for(&client, "first", &lock(2), Mode::Exclusive);
    let answer = problem(late.await.expect("runs"));
    assert_eq!(cycle_from(&answer, "late"), [("late".to_owned(), lock(0)), ("first".to_owned(), lock(2))]);
    assert_eq!(first.await.expect("runs").expect("granted").lock, lock(2));
    client.break_lock(&lock(0), "done").await.expect("broken");
    writer.await.expect("runs").expect("granted");
}

#[tokio::test]
async fn switched_off_nobody_is_aborted() {
    let config = "[feature]\ndeadlock_detection = false\n";
    let ade = Ade::start_with(env!("CARGO_BIN_EXE_ade"), config).expect("starts");
    let client = ade.client().expect("a client");
    take(&client, "a", &lock(0), Mode::Exclusive).await;
    take(&client, "b", &lock(1), Mode::Exclusive).await;
    let patient = wait_for(&client, "a", &lock(1), Mode::Exclusive);
    queued(&client, &lock(1), &["a"]).await;
    let answer = problem(acquire(&client, "b", &lock(0), Mode::Exclusive, 1.0).await);
    assert_eq!(answer.code, "LOCK_HELD");
    client.break_lock(&lock(1), "by hand").await.expect("broken");
    patient.await.expect("runs").expect("granted");
}

/// Takes two locks one after the other, as programs should not, until it had both. The first time, all do so together.
async fn both(client: &Client, n: usize, mode: Mode, together: &Barrier) {
    let request = |lock: String, mode: Mode| LockRequest {
        locks: vec![(lock, mode)],
        agent_id: Some(agent(n)),
        holder_id: Some(agent(n)),
        ttl: Duration::from_secs(10),
        wait: LONG,
        ..LockRequest::new(Vec::<String>::new())
    };
    let mut waited = false;
    loop {
        let one = LockGuard::acquire(client, &request(lock(n), Mode::Exclusive)).await.expect("in the end");
        if !waited {
            together.wait().await;
            waited = true;
        }
        let two = LockGuard::acquire(client, &request(lock((n + 1) % 10), mode)).await.expect("in the end");
        // Who fell to a deadlock lost its first lock while it waited for the second.
        let (kept, had) = (one.release().await.is_ok(), two.release().await.is_ok());
        if kept && had {
            return;
        }
    }
}

#[tokio::test]
async fn with_guards_everybody_finishes_in_the_end() {
    let (ade, client) = server();
    let together = Arc::new(Barrier::new(10));
    let ten: Vec<_> = (0..10)
        .map(|n| {
            let (client, together) = (client.clone(), Arc::clone(&together));
            let mode = if n % 3 == 0 { Mode::Shared } else { Mode::Exclusive };
            tokio::spawn(async move { both(&client, n, mode, &together).await })
        })
        .collect();
    for one in ten {
        tokio::time::timeout(LONG, one).await.expect("in time").expect("it finished");
    }
    for n in 0..10 {
        assert!(holders(&client, &lock(n)).await.is_empty());
    }
    assert!(!ade.process().lines_with("lock.deadlock").is_empty(), "there was a ring");
    assert!(ade.process().lines_with(r#""level":"ERROR""#).is_empty());
}
