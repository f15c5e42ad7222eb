//! Deadlocks over HTTP: the youngest agent is aborted and receives the cycle, the others proceed, and a retry succeeds.

use std::sync::Arc;
use std::time::Duration;

use ade_client::wire::{AcquireRequest, CycleEdge, Grant, LockMode, LockSpec, Problem};
use ade_client::{AcquireOutcome, Client, Error, LockGuard, LockRequest};
use ade_testkit::AdeServer;
use ade_testkit::wait::until;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(60);

fn server() -> (AdeServer, Client) {
    let ade = AdeServer::start_with(env!("CARGO_BIN_EXE_ade"), "[log]\nformat = \"json\"\n").expect("starts");
    let client = ade.client().expect("a client");
    (ade, client)
}

fn lock(n: usize) -> String {
    format!("resource:x:{n}")
}

fn agent(n: usize) -> String {
    format!("agent-{n}")
}

async fn acquire(
    client: &Client,
    agent: &str,
    lock: &str,
    mode: LockMode,
    wait: f64,
) -> Result<Grant, Error> {
    let request = AcquireRequest {
        locks: vec![LockSpec { lock: lock.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        wait_seconds: Some(wait),
        ttl_seconds: Some(300.0),
        ..AcquireRequest::default()
    };
    match client.acquire_locks(&request).await? {
        AcquireOutcome::Granted(grants) => Ok(grants.grants.into_iter().next().expect("a grant")),
        AcquireOutcome::Queued(ticket) => panic!("unexpected ticket {ticket:?}"),
    }
}

async fn take(client: &Client, agent: &str, lock: &str, mode: LockMode) -> Grant {
    acquire(client, agent, lock, mode, 0.0).await.expect("free")
}

/// Waits for a lock in a task of its own.
fn wait_for(client: &Client, agent: &str, lock: &str, mode: LockMode) -> JoinHandle<Result<Grant, Error>> {
    let (client, agent, lock) = (client.clone(), agent.to_owned(), lock.to_owned());
    tokio::spawn(async move { acquire(&client, &agent, &lock, mode, 60.0).await })
}

async fn wait_until_queued(client: &Client, lock: &str, agents: &[&str]) {
    let observe = || async {
        let now = client.lock(lock).await.map_err(|error| error.to_string())?;
        let found: Vec<String> = now.queue.iter().map(|waiter| waiter.agent_id.clone()).collect();
        if found == agents { Ok(()) } else { Err(format!("{found:?}")) }
    };
    until(&format!("{agents:?} wait for {lock}"), TIMEOUT, observe).await.expect("in time");
}

async fn holders(client: &Client, lock: &str) -> Vec<String> {
    client.lock(lock).await.expect("shown").holders.into_iter().map(|holder| holder.agent_id).collect()
}

/// The cycle in the victim's response, rotated to begin with `start`.
fn cycle_from(problem: &Problem, start: &str) -> Vec<(String, String)> {
    assert_eq!((problem.status, problem.code.as_str()), (423, "DEADLOCK_DETECTED"), "{problem:?}");
    let edges: Vec<CycleEdge> = problem.extension("cycle").expect("a cycle");
    let mut cycle: Vec<_> = edges.into_iter().map(|edge| (edge.agent_id, edge.waits_for)).collect();
    let index = cycle.iter().position(|(agent, _)| agent == start).expect("part of the cycle");
    cycle.rotate_left(index);
    cycle
}

fn expect_problem(response: Result<Grant, Error>) -> Problem {
    match response {
        Err(Error::Problem(problem)) => *problem,
        other => panic!("{other:?} is not a problem"),
    }
}

/// Checks the structured log lines of a deadlock: one for the audit log, one for the victim's inbox.
fn check_deadlock_log(ade: &AdeServer, victim: &str, freed: &str) {
    ade.process().wait_for_log_lines("DEADLOCK_DETECTED", 1, TIMEOUT).expect("logged");
    let line = |text: &str| {
        let lines = ade.process().log_lines_with(text);
        assert_eq!(lines.len(), 1, "logged once: {lines:?}");
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

/// Three agents: each holds one lock and waits for the next one. Cycles of other sizes and kinds are tested in the domain and
/// on every backend.
#[tokio::test]
async fn aborts_youngest_and_reports_the_cycle() {
    let (n, closer) = (3, 0);
    let (ade, client) = server();
    for i in 0..n {
        take(&client, &agent(i), &lock(i), LockMode::Exclusive).await;
    }
    let youngest = n - 1;
    let mut waits: Vec<Option<JoinHandle<_>>> = (0..n).map(|_| None).collect();
    for i in (0..n).filter(|i| *i != closer).chain([closer]) {
        let next = (i + 1) % n;
        waits[i] = Some(wait_for(&client, &agent(i), &lock(next), LockMode::Exclusive));
        if i != closer {
            wait_until_queued(&client, &lock(next), &[&agent(i)]).await;
        }
    }
    let victim = waits[youngest].take().expect("waiting").await.expect("runs");
    let cycle = cycle_from(&expect_problem(victim), &agent(0));
    let expected: Vec<_> = (0..n).map(|i| (agent(i), lock((i + 1) % n))).collect();
    assert_eq!(cycle, expected, "in waiting order");
    // The victim's lock goes to its waiter. The others still hold and wait, and are granted one by one.
    for i in (0..youngest).rev() {
        let grant = waits[i].take().expect("waiting").await.expect("runs").expect("granted");
        assert_eq!(grant.lock, lock(i + 1));
        assert_eq!(holders(&client, &lock(i + 1)).await, [agent(i)]);
        client.break_lock(&lock(i), "done").await.expect("broken");
    }
    check_deadlock_log(&ade, &agent(youngest), &lock(youngest));
    assert!(client.wait_graph().await.expect("shown").waits.is_empty());
}

#[tokio::test]
async fn aborts_nobody_when_detection_is_disabled() {
    let (ade, client) = server();
    let api = ade_testkit::ApiClient::connect(&ade).await;
    let off = json!({ "enabled": false });
    let _ = api.put("/features/deadlock_detection", &off).await.expect_status(200);
    take(&client, "a", &lock(0), LockMode::Exclusive).await;
    take(&client, "b", &lock(1), LockMode::Exclusive).await;
    let waiting = wait_for(&client, "a", &lock(1), LockMode::Exclusive);
    wait_until_queued(&client, &lock(1), &["a"]).await;
    let problem = expect_problem(acquire(&client, "b", &lock(0), LockMode::Exclusive, 1.0).await);
    assert_eq!(problem.code, "LOCK_HELD");
    client.break_lock(&lock(1), "by hand").await.expect("broken");
    waiting.await.expect("runs").expect("granted");
}

/// Takes two locks one after the other until it has held both. All agents hold their first lock before any takes its
/// second one, so there is a cycle.
async fn acquire_both(client: &Client, n: usize, mode: LockMode, barrier: &Barrier) {
    let request = |lock: String, mode: LockMode| LockRequest {
        locks: vec![(lock, mode)],
        agent_id: Some(agent(n)),
        holder_id: Some(agent(n)),
        ttl: Duration::from_secs(10),
        wait: TIMEOUT,
        ..LockRequest::new(Vec::<String>::new())
    };
    let mut waited = false;
    loop {
        let first = LockGuard::acquire(client, &request(lock(n), LockMode::Exclusive))
            .await
            .expect("granted eventually");
        if !waited {
            barrier.wait().await;
            waited = true;
        }
        let second =
            LockGuard::acquire(client, &request(lock((n + 1) % 10), mode)).await.expect("granted eventually");
        // The victim of a deadlock lost its first lock while it waited for the second.
        let (held_first, held_second) = (first.release().await.is_ok(), second.release().await.is_ok());
        if held_first && held_second {
            return;
        }
    }
}

#[tokio::test]
async fn all_agents_finish_when_guards_retry() {
    let (ade, client) = server();
    let barrier = Arc::new(Barrier::new(10));
    let agents: Vec<_> = (0..10)
        .map(|n| {
            let (client, barrier) = (client.clone(), Arc::clone(&barrier));
            let mode = if n % 3 == 0 { LockMode::Shared } else { LockMode::Exclusive };
            tokio::spawn(async move { acquire_both(&client, n, mode, &barrier).await })
        })
        .collect();
    for agent in agents {
        tokio::time::timeout(TIMEOUT, agent).await.expect("in time").expect("finished");
    }
    for n in 0..10 {
        assert!(holders(&client, &lock(n)).await.is_empty());
    }
    assert!(!ade.process().log_lines_with("lock.deadlock").is_empty(), "there was a deadlock");
    assert!(ade.process().log_lines_with(r#""level":"ERROR""#).is_empty());
}
