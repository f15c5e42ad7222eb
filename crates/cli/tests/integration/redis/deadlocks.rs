//! Deadlocks across slots and servers: every cycle is detected, by the request that closes it or by the periodic search,
//! and agents that lock in one order are never aborted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::redis::servers::{
    RedisBackend, ServerGroup, TIMEOUT, acquire, heartbeat, held_locks, release, request, setup, take,
    wait_for, wait_until_queued,
};
use ade_client::wire::{
    AcquireRequest, CycleEdge, FeatureRequest, Grant, HeldLocksRequest, LockMode, Ticket, TicketStatus,
};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::wait::{eventually, until};
use ade_testkit::{SeededRng, effort};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Every cycle has agents of its own, because a victim counts as older for a while.
fn agent(cycle: usize, n: usize) -> String {
    format!("agent-{cycle}-{n}")
}

/// Locks of different types, so they are in different slots.
fn lock(cycle: usize, n: usize) -> String {
    if n.is_multiple_of(2) {
        format!("resource:cycle-{cycle}:{n}")
    } else {
        format!("task:cycle-{cycle}-{n}")
    }
}

/// The cycle in the victim's error, rotated to begin with `start`.
fn cycle_from(error: &Error, start: &str) -> Vec<(String, String)> {
    let Error::Problem(problem) = error else { panic!("{error} is not a problem") };
    assert_eq!((problem.status, problem.code.as_str()), (423, "DEADLOCK_DETECTED"), "{problem:?}");
    let edges: Vec<CycleEdge> = problem.extension("cycle").expect("a cycle");
    let mut cycle: Vec<_> = edges.into_iter().map(|edge| (edge.agent_id, edge.waits_for)).collect();
    let index = cycle.iter().position(|(agent, _)| agent == start).expect("part of the cycle");
    cycle.rotate_left(index);
    cycle
}

fn expected_cycle(cycle: usize, n: usize) -> Vec<(String, String)> {
    (0..n).map(|i| (agent(cycle, i), lock(cycle, (i + 1) % n))).collect()
}

/// A cycle of `n` agents at different servers: each holds one lock and waits for the next one. `closer` is the last to
/// wait.
async fn check_cycle(group: &ServerGroup, cycle: usize, n: usize, closer: usize) {
    let mut grants: Vec<Grant> = Vec::new();
    for i in 0..n {
        grants.push(take(group.client(i), &agent(cycle, i), &lock(cycle, i), LockMode::Exclusive).await);
    }
    let youngest = n - 1;
    let mut waits: Vec<Option<JoinHandle<_>>> = (0..n).map(|_| None).collect();
    for i in (0..n).filter(|i| *i != closer).chain([closer]) {
        let next = lock(cycle, (i + 1) % n);
        waits[i] = Some(wait_for(group.client(i + 1), &agent(cycle, i), &next, LockMode::Exclusive));
        if i != closer {
            wait_until_queued(group.client(i), &next, &[&agent(cycle, i)]).await;
        }
    }
    let closed = Instant::now();
    let victim = waits[youngest].take().expect("waiting");
    let result = tokio::time::timeout(TIMEOUT, victim).await.expect("in time").expect("runs");
    let error = result.expect_err("aborted");
    println!("a cycle of {n} was resolved after {:?}", closed.elapsed());
    assert_eq!(cycle_from(&error, &agent(cycle, 0)), expected_cycle(cycle, n), "in waiting order");
    // The victim's wait ends first, then its locks one by one, because they are in different slots.
    let freed = async {
        loop {
            if let Err(lost) = heartbeat(group.client(0), &agent(cycle, youngest), &grants[youngest]).await {
                break lost;
            }
        }
    };
    let lost = tokio::time::timeout(TIMEOUT, freed).await.expect("the victim loses its lock");
    assert_eq!(lost.code(), Some("LOCK_LOST"));
    // The others still hold and wait, and are granted one by one.
    for i in (0..youngest).rev() {
        let waiting = waits[i].take().expect("waiting");
        let grant =
            tokio::time::timeout(TIMEOUT, waiting).await.expect("in time").expect("runs").expect("granted");
        assert_eq!(grant.lock, lock(cycle, i + 1));
        release(group.client(i + 2), &agent(cycle, i), &grants[i]).await;
        release(group.client(i + 1), &agent(cycle, i), &grant).await;
    }
    for client in &group.clients {
        assert!(client.wait_graph().await.expect("shown").waits.is_empty());
    }
    let observe = || match group.lines_with("lock.deadlock").len() {
        lines if lines == cycle + 1 => Ok(()),
        lines => Err(format!("{lines} lines")),
    };
    eventually("each cycle is logged once, by one server", TIMEOUT, observe).expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detects_cycles_across_slots_and_servers() {
    let group = ServerGroup::start(RedisBackend::cluster(), 3, "[log]\nformat = \"json\"\n");
    for (number, (n, closer)) in [(2, 1), (3, 0), (10, 4)].into_iter().enumerate() {
        check_cycle(&group, number, n, closer).await;
    }
}

const LOCKS: usize = 8;
const AGENTS: usize = 24;

fn ordered_lock(n: usize) -> String {
    format!("resource:ordered:{n}")
}

/// Counts what happened, to prove that the workload was not trivial.
#[derive(Debug, Default)]
struct WorkloadCounts {
    granted: AtomicU64,
    rejected: AtomicU64,
    lost: AtomicU64,
    disconnected: AtomicU64,
    broken: AtomicU64,
}

/// An agent that always locks in one order, and sometimes gives up, disconnects, or breaks locks of others.
async fn run_ordered_agent(
    clients: Vec<Client>,
    number: usize,
    rounds: u64,
    counts: Arc<WorkloadCounts>,
) -> Result<(), Error> {
    let mut rng = SeededRng::new(effort::seed(), number as u64);
    let mut pick = move |below: usize| rng.below(below as u64) as usize;
    let agent = format!("agent-{number}");
    for round in 0..rounds {
        // Each round has its own holder, so that it is not affected by grants that earlier rounds left behind.
        let holder_id = Some(format!("round {round}"));
        let mut grants: Vec<Grant> = Vec::new();
        for n in 0..LOCKS {
            if pick(3) > 0 {
                continue;
            }
            let client = &clients[pick(clients.len())];
            let mode = if pick(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let wait = [0.0, 0.05, 0.3, 5.0][pick(4)];
            let request = AcquireRequest {
                holder_id: holder_id.clone(),
                ttl_seconds: Some(10.0),
                ..request(&agent, &ordered_lock(n), mode, wait)
            };
            let acquiring = acquire(client, &request);
            let client_timeout = if pick(8) == 0 { Duration::from_millis(pick(200) as u64) } else { TIMEOUT };
            match tokio::time::timeout(client_timeout, acquiring).await {
                Ok(Ok(grant)) => {
                    counts.granted.fetch_add(1, Ordering::SeqCst);
                    grants.push(grant);
                }
                Ok(Err(error)) if error.code() == Some("LOCK_HELD") => {
                    counts.rejected.fetch_add(1, Ordering::SeqCst);
                }
                // Broken after the grant and before the response.
                Ok(Err(error)) if error.code() == Some("LOCK_LOST") => {
                    counts.lost.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    // It may still be queued or hold the lock: taking another lock could violate the order.
                    counts.disconnected.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
        }
        if pick(20) == 0 {
            clients[pick(clients.len())].break_lock(&ordered_lock(pick(LOCKS)), "random").await?;
            counts.broken.fetch_add(1, Ordering::SeqCst);
        }
        for grant in grants {
            let client = &clients[pick(clients.len())];
            let (agent_id, holder_id) = (Some(agent.clone()), holder_id.clone());
            match client
                .release_locks(&HeldLocksRequest { agent_id, holder_id, locks: held_locks(&grant) })
                .await
            {
                Err(error) if error.code() != Some("LOCK_LOST") => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_aborts_agents_that_lock_in_order() {
    let group = ServerGroup::start(RedisBackend::cluster(), 3, "[log]\nformat = \"json\"\n");
    let (rounds, counts) = (effort::rounds(6, 100), Arc::new(WorkloadCounts::default()));
    let agents: Vec<_> = (0..AGENTS)
        .map(|number| {
            tokio::spawn(run_ordered_agent(group.clients.clone(), number, rounds, Arc::clone(&counts)))
        })
        .collect();
    for agent in agents {
        agent.await.expect("runs").expect("nothing but LOCK_HELD and LOCK_LOST");
    }
    println!("{rounds} rounds of random locking: {counts:?}");
    assert!(
        counts.granted.load(Ordering::SeqCst) > 100 && counts.rejected.load(Ordering::SeqCst) > 10,
        "{counts:?}"
    );
    assert!(group.lines_with("lock.deadlock").is_empty(), "{:?}", group.lines_with("lock.deadlock"));
    assert!(
        group.lines_with(r#""level":"ERROR""#).is_empty(),
        "{:?}",
        group.lines_with(r#""level":"ERROR""#)
    );
}

async fn queue(client: &Client, agent: &str, lock: &str) -> Ticket {
    let request = AcquireRequest { queue: true, ..request(agent, lock, LockMode::Exclusive, 200.0) };
    match client.acquire_locks(&request).await.expect("queued") {
        AcquireOutcome::Queued(ticket) => ticket,
        AcquireOutcome::Granted(grants) => panic!("{grants:?}"),
    }
}

/// The keys with which the periodic search marks visited agents, with their TTL in milliseconds.
fn search_markers(redis: &RedisBackend) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    for node in redis.primaries() {
        let mut connection = node.connect().expect("connects");
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("ade:lock:deadlock:check:*").query(&mut connection).expect("answers");
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).expect("answers");
            if ttl != -2 {
                found.push((key, ttl));
            }
        }
    }
    found
}

/// A cycle of tickets that was closed at a server without deadlock detection, which is then killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn periodic_search_resolves_cycle_of_killed_server() {
    let redis = RedisBackend::cluster();
    let without_detection = setup(&redis, "");
    let with_detection = setup(&redis, "[log]\nformat = \"json\"\n");
    let group = ServerGroup::start_each(redis, vec![without_detection, with_detection]);
    let (killed_server, searching_server) = (group.client(0), group.client(1));
    let off = FeatureRequest { enabled: false };
    killed_server.set_feature("deadlock_detection", None, &off).await.expect("disabled");
    let n = 3;
    let mut grants = Vec::new();
    for i in 0..n {
        grants.push(take(killed_server, &agent(0, i), &lock(0, i), LockMode::Exclusive).await);
    }
    // Each agent also waits for another lock, with another holder: the marker of an agent must cover all its waits.
    take(killed_server, "bystander", "resource:aside:0", LockMode::Exclusive).await;
    let mut tickets = Vec::new();
    for i in 0..n {
        let aside = AcquireRequest {
            queue: true,
            holder_id: Some("aside".to_owned()),
            ..request(&agent(0, i), "resource:aside:0", LockMode::Exclusive, 200.0)
        };
        killed_server.acquire_locks(&aside).await.expect("queued");
        tickets.push(queue(killed_server, &agent(0, i), &lock(0, (i + 1) % n)).await);
    }
    group.servers[0].kill().expect("killed");
    let killed = Instant::now();
    let observe = || async {
        // All agents send heartbeats and poll their tickets.
        for (i, grant) in grants.iter().enumerate().take(n - 1) {
            heartbeat(searching_server, &agent(0, i), grant).await.map_err(|error| error.to_string())?;
        }
        let _ = heartbeat(searching_server, &agent(0, n - 1), &grants[n - 1]).await;
        for (key, ttl) in search_markers(&group.redis) {
            assert!((0..=30_000).contains(&ttl), "{key} has a TTL of {ttl} ms");
        }
        match searching_server.ticket(&tickets[n - 1].ticket).await {
            Ok(ticket) => Err(format!("{ticket:?}")),
            Err(error) => Ok(error),
        }
    };
    let error = until("the periodic search resolves the cycle", Duration::from_secs(50), observe)
        .await
        .expect("in time");
    let took = killed.elapsed();
    println!("the cycle left by a killed server was resolved after {took:?}");
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert_eq!(cycle_from(&error, &agent(0, 0)), expected_cycle(0, n), "in waiting order");
    assert!(!search_markers(&group.redis).is_empty(), "the search leaves its markers");
    let next = searching_server.ticket(&tickets[n - 2].ticket).await.expect("granted next");
    assert_eq!(next.status, TicketStatus::Ready);
    group.servers[1].process().wait_for_log_lines("lock.deadlock", 1, TIMEOUT).expect("logged");
    assert_eq!(group.lines_with("lock.deadlock").len(), 1, "logged once");
}
