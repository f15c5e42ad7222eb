//! Deadlocks across slots and servers: every ring is found, by whoever closes it or by the periodic search; those who
//! lock in one order are never accused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::fleet::{Fleet, LONG, Store, acquire, ask, heartbeat, queued, release, setup, take, wait_for};
use ade_client::wire::{AcquireRequest, CycleEdge, Grant, HoldRequest, Mode, Ticket, TicketStatus};
use ade_client::{Acquired, Client, Error};
use ade_testkit::wait::{eventually, until};
use ade_testkit::{Dice, effort};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Every ring has agents of its own: who gave way counts as older for a while.
fn agent(ring: usize, n: usize) -> String {
    format!("agent-{ring}-{n}")
}

/// Locks of different types, hence in different slots.
fn lock(ring: usize, n: usize) -> String {
    if n.is_multiple_of(2) { format!("resource:ring-{ring}:{n}") } else { format!("task:ring-{ring}-{n}") }
}

/// The cycle that a victim was told, beginning with a given agent.
fn cycle_from(told: &Error, start: &str) -> Vec<(String, String)> {
    let Error::Problem(problem) = told else { panic!("{told} is not a problem") };
    assert_eq!((problem.status, problem.code.as_str()), (423, "DEADLOCK_DETECTED"), "{problem:?}");
    let edges: Vec<CycleEdge> = problem.fact("cycle").expect("a cycle");
    let mut cycle: Vec<_> = edges.into_iter().map(|edge| (edge.agent_id, edge.waits_for)).collect();
    let at = cycle.iter().position(|(agent, _)| agent == start).expect("it is part of the cycle");
    cycle.rotate_left(at);
    cycle
}

fn expected_cycle(ring: usize, n: usize) -> Vec<(String, String)> {
    (0..n).map(|at| (agent(ring, at), lock(ring, (at + 1) % n))).collect()
}

/// A ring of `n`: each holds one lock and waits for the next one's, each through another server; `closer` is the last.
async fn ring(fleet: &Fleet, ring: usize, n: usize, closer: usize) {
    let mut grants: Vec<Grant> = Vec::new();
    for at in 0..n {
        grants.push(take(fleet.any(at), &agent(ring, at), &lock(ring, at), Mode::Exclusive).await);
    }
    let youngest = n - 1;
    let mut waits: Vec<Option<JoinHandle<_>>> = (0..n).map(|_| None).collect();
    for at in (0..n).filter(|at| *at != closer).chain([closer]) {
        let next = lock(ring, (at + 1) % n);
        waits[at] = Some(wait_for(fleet.any(at + 1), &agent(ring, at), &next, Mode::Exclusive));
        if at != closer {
            queued(fleet.any(at), &next, &[&agent(ring, at)]).await;
        }
    }
    let closed = Instant::now();
    let victim = waits[youngest].take().expect("it waits");
    let told =
        tokio::time::timeout(LONG, victim).await.expect("in time").expect("runs").expect_err("it gives way");
    println!("a ring of {n} ended after {:?}", closed.elapsed());
    assert_eq!(cycle_from(&told, &agent(ring, 0)), expected_cycle(ring, n), "in order");
    // Its wait ends first, then its locks, one after the other: they lie in different slots.
    let freed = async {
        loop {
            if let Err(lost) = heartbeat(fleet.any(0), &agent(ring, youngest), &grants[youngest]).await {
                break lost;
            }
        }
    };
    let lost = tokio::time::timeout(LONG, freed).await.expect("its lock is freed");
    assert_eq!(lost.code(), Some("LOCK_LOST"));
    // The others still hold and wait, and are granted one after the other.
    for at in (0..youngest).rev() {
        let waiting = waits[at].take().expect("it waits");
        let grant =
            tokio::time::timeout(LONG, waiting).await.expect("in time").expect("runs").expect("granted");
        assert_eq!(grant.lock, lock(ring, at + 1));
        release(fleet.any(at + 2), &agent(ring, at), &grants[at]).await;
        release(fleet.any(at + 1), &agent(ring, at), &grant).await;
    }
    for client in &fleet.clients {
        assert!(client.graph().await.expect("shown").waits.is_empty());
    }
    let told = || match fleet.lines_with("lock.deadlock").len() {
        lines if lines == ring + 1 => Ok(()),
        lines => Err(format!("{lines} lines")),
    };
    eventually("each is told once, by one server", LONG, told).expect("told");
}

async fn rings(store: Store) {
    let fleet = Fleet::start(store, 3, "[log]\nformat = \"json\"\n");
    for (number, (n, closer)) in [(2, 1), (2, 0), (3, 0), (3, 1), (3, 2), (10, 4)].into_iter().enumerate() {
        ring(&fleet, number, n, closer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_across_servers_are_found() {
    rings(Store::alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_across_slots_and_servers_are_found() {
    rings(Store::cluster()).await;
}

const LOCKS: usize = 8;
const AGENTS: usize = 24;

fn ordered(n: usize) -> String {
    format!("resource:ordered:{n}")
}

/// What the churn did: a churn in which nothing happens proves nothing.
#[derive(Debug, Default)]
struct Tally {
    granted: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    hung_up: AtomicU64,
    broken: AtomicU64,
}

/// An agent that always locks in one order, and sometimes gives up, is cut off, or breaks what others hold.
async fn churn(
    clients: Vec<Client>,
    who: usize,
    over: Arc<AtomicBool>,
    tally: Arc<Tally>,
) -> Result<(), Error> {
    let mut dice = Dice::new(effort::seed(), who as u64);
    let mut pick = move |below: usize| dice.below(below as u64) as usize;
    let agent_id = Some(format!("agent-{who}"));
    for round in 0.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        // A holder of its own for each round: what an earlier one left behind is none of its business.
        let holder_id = Some(format!("round {round}"));
        let mut holding: Vec<Grant> = Vec::new();
        for n in 0..LOCKS {
            if pick(3) > 0 {
                continue;
            }
            let client = &clients[pick(clients.len())];
            let mode = if pick(2) == 0 { Mode::Shared } else { Mode::Exclusive };
            let wait = [0.0, 0.05, 0.3, 5.0][pick(4)];
            let request = AcquireRequest {
                holder_id: holder_id.clone(),
                ttl_seconds: Some(10.0),
                ..ask(&format!("agent-{who}"), &ordered(n), mode, wait)
            };
            let asked = acquire(client, &request);
            let patience = if pick(8) == 0 { Duration::from_millis(pick(200) as u64) } else { LONG };
            match tokio::time::timeout(patience, asked).await {
                Ok(Ok(grant)) => {
                    tally.granted.fetch_add(1, Ordering::SeqCst);
                    holding.push(grant);
                }
                Ok(Err(error)) if error.code() == Some("LOCK_HELD") => {
                    tally.refused.fetch_add(1, Ordering::SeqCst);
                }
                // Broken after its turn came and before it was answered.
                Ok(Err(error)) if error.code() == Some("LOCK_LOST") => {
                    tally.lost.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    // It may still wait there, or hold the lock, without knowing: a further lock would break the order.
                    tally.hung_up.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
        }
        if pick(20) == 0 {
            clients[pick(clients.len())].break_lock(&ordered(pick(LOCKS)), "churn").await?;
            tally.broken.fetch_add(1, Ordering::SeqCst);
        }
        for grant in holding {
            let client = &clients[pick(clients.len())];
            let (agent_id, holder_id) = (agent_id.clone(), holder_id.clone());
            match client
                .release(&HoldRequest { agent_id, holder_id, locks: crate::fleet::held(&grant) })
                .await
            {
                Err(error) if error.code() != Some("LOCK_LOST") => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn nobody_is_accused(store: Store) {
    let fleet = Fleet::start(store, 3, "[log]\nformat = \"json\"\n");
    let (over, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
    let agents: Vec<_> = (0..AGENTS)
        .map(|who| tokio::spawn(churn(fleet.clients.clone(), who, Arc::clone(&over), Arc::clone(&tally))))
        .collect();
    let churning = Duration::from_secs(effort::rounds(10, 60));
    let all = async {
        for one in agents {
            one.await.expect("runs").expect("nothing but LOCK_HELD and LOCK_LOST");
        }
    };
    tokio::pin!(all);
    if tokio::time::timeout(churning, &mut all).await.is_err() {
        over.store(true, Ordering::SeqCst);
        tokio::time::timeout(LONG, all).await.expect("they come to an end");
    }
    println!("{churning:?} of churn: {tally:?}");
    assert!(
        tally.granted.load(Ordering::SeqCst) > 100 && tally.refused.load(Ordering::SeqCst) > 10,
        "{tally:?}"
    );
    assert!(fleet.lines_with("lock.deadlock").is_empty(), "{:?}", fleet.lines_with("lock.deadlock"));
    assert!(
        fleet.lines_with(r#""level":"ERROR""#).is_empty(),
        "{:?}",
        fleet.lines_with(r#""level":"ERROR""#)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_lock_in_one_order_are_never_accused() {
    nobody_is_accused(Store::alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_are_they_on_a_cluster() {
    nobody_is_accused(Store::cluster()).await;
}

async fn queue(client: &Client, agent: &str, lock: &str) -> Ticket {
    let request = AcquireRequest { queue: true, ..ask(agent, lock, Mode::Exclusive, 200.0) };
    match client.acquire(&request).await.expect("queued") {
        Acquired::Ticket(ticket) => ticket,
        Acquired::Granted(grants) => panic!("{grants:?}"),
    }
}

/// The stamps that are there, with the time they have left.
fn stamps(store: &Store) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    for redis in store.primaries() {
        let mut link = redis.connect().expect("connects");
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("ade:lock:deadlock:check:*").query(&mut link).expect("answers");
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut link).expect("answers");
            if ttl != -2 {
                found.push((key, ttl));
            }
        }
    }
    found
}

/// A ring of tickets that was closed by a server which could not search any more.
async fn left_over(store: Store) {
    let blind = setup(&store, "").variable("ADE_FEATURE_DEADLOCK_DETECTION", "false");
    let sighted = setup(&store, "[log]\nformat = \"json\"\n");
    let fleet = Fleet::of(store, vec![blind, sighted]);
    let (blind, sighted) = (fleet.any(0), fleet.any(1));
    let n = 3;
    let mut grants = Vec::new();
    for at in 0..n {
        grants.push(take(blind, &agent(0, at), &lock(0, at), Mode::Exclusive).await);
    }
    // The agents wait for something else too, each as its own holder: the stamp of an agent must cover all its waits.
    take(blind, "bystander", "resource:aside:0", Mode::Exclusive).await;
    let mut tickets = Vec::new();
    for at in 0..n {
        let aside = AcquireRequest {
            queue: true,
            holder_id: Some("aside".to_owned()),
            ..ask(&agent(0, at), "resource:aside:0", Mode::Exclusive, 200.0)
        };
        blind.acquire(&aside).await.expect("queued");
        tickets.push(queue(blind, &agent(0, at), &lock(0, (at + 1) % n)).await);
    }
    fleet.servers[0].kill().expect("killed");
    let killed = Instant::now();
    let look = || async {
        // Each of them is alive, and asks for its ticket as agents do.
        for (at, grant) in grants.iter().enumerate().take(n - 1) {
            heartbeat(sighted, &agent(0, at), grant).await.map_err(|error| error.to_string())?;
        }
        let _ = heartbeat(sighted, &agent(0, n - 1), &grants[n - 1]).await;
        for (key, ttl) in stamps(&fleet.store) {
            assert!((0..=30_000).contains(&ttl), "{key} lives for {ttl} ms");
        }
        match sighted.ticket(&tickets[n - 1].ticket).await {
            Ok(ticket) => Err(format!("{ticket:?}")),
            Err(told) => Ok(told),
        }
    };
    let told =
        until("the periodic search ends the ring", Duration::from_secs(50), look).await.expect("in time");
    let took = killed.elapsed();
    println!("the ring that a killed server left was ended after {took:?}");
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert_eq!(cycle_from(&told, &agent(0, 0)), expected_cycle(0, n), "in order");
    assert!(!stamps(&fleet.store).is_empty(), "the search leaves its stamps");
    let next = sighted.ticket(&tickets[n - 2].ticket).await.expect("it goes on");
    assert_eq!(next.status, TicketStatus::Ready);
    fleet.servers[1].process().wait_for_lines("lock.deadlock", 1, LONG).expect("told");
    assert_eq!(fleet.lines_with("lock.deadlock").len(), 1, "once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_periodic_search_ends_what_a_killed_server_left() {
    left_over(Store::alone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_periodic_search_ends_what_a_killed_server_left_on_a_cluster() {
    left_over(Store::cluster()).await;
}
