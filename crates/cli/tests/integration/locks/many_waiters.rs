//! A long queue of shared and exclusive waiters for one lock, some of which disconnect: all others are granted in exactly
//! the listed order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grant, HeldLocksRequest, LockMode, LockSpec, LockToken};
use ade_client::{AcquireOutcome, Client};
use ade_testkit::effort;
use ade_testkit::server::ServerBuilder;
use ade_testkit::wait::until;
use tokio::task::JoinHandle;

const LOCK: &str = "resource:queue:crowded";
/// Waiters that arrive concurrently. The next batch starts once these are queued.
const BATCH: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(60);
const EXCLUSIVE_WEIGHT: i64 = 1_000;

/// Weight of the current holders: 1 for a shared one, `EXCLUSIVE_WEIGHT` for an exclusive one.
type HeldWeight = Arc<AtomicI64>;

fn mode(n: usize) -> LockMode {
    // Runs of shared waiters of different lengths between exclusive ones.
    if n.is_multiple_of(7) || n.is_multiple_of(5) { LockMode::Exclusive } else { LockMode::Shared }
}

fn holder(n: usize) -> String {
    format!("waiter {n}")
}

fn request(agent: &str, holder: &str, mode: LockMode, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockSpec { lock: LOCK.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        holder_id: Some(holder.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(wait.as_secs_f64()),
        ..AcquireRequest::default()
    }
}

async fn acquire(client: &Client, request: &AcquireRequest) -> Grant {
    match client.acquire_locks(request).await.expect("granted") {
        AcquireOutcome::Granted(grants) => grants.grants.into_iter().next().expect("a grant"),
        AcquireOutcome::Queued(ticket) => panic!("unexpected ticket {ticket:?}"),
    }
}

async fn release(client: &Client, agent: &str, holder: &str, grant: &Grant) {
    let locks = vec![LockToken { lock: LOCK.to_owned(), fencing_token: grant.fencing_token }];
    let request =
        HeldLocksRequest { agent_id: Some(agent.to_owned()), holder_id: Some(holder.to_owned()), locks };
    client.release_locks(&request).await.expect("released");
}

/// Waits for the lock, checks that no conflicting holder exists, and releases it at once.
async fn acquire_and_release(client: Client, n: usize, held_weight: HeldWeight) -> (String, u64) {
    let (agent, holder, mode) = (format!("agent {}", n % 5), holder(n), mode(n));
    let grant = acquire(&client, &request(&agent, &holder, mode, TIMEOUT * 2)).await;
    let (weight, max_others) =
        if mode == LockMode::Exclusive { (EXCLUSIVE_WEIGHT, 0) } else { (1, EXCLUSIVE_WEIGHT - 1) };
    let others = held_weight.fetch_add(weight, Ordering::SeqCst);
    assert!(others <= max_others, "{holder} was granted beside holders of weight {others}");
    held_weight.fetch_sub(weight, Ordering::SeqCst);
    release(&client, &agent, &holder, &grant).await;
    (holder, grant.fencing_token)
}

async fn wait_for_queue_length(client: &Client, length: usize, timeout: Duration) {
    let observe = || async {
        let page = client.locks(&[]).await.map_err(|error| error.to_string())?;
        match page.items.first().map(|lock| lock.queue_length) {
            Some(found) if found == length as u64 => Ok(()),
            found => Err(format!("{found:?}")),
        }
    };
    until(&format!("queue length {length}"), timeout, observe).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_many_waiters_in_fifo_order() {
    let size = effort::rounds(300, 1_000) as usize;
    // Every waiting request is an open socket: the server must raise a low soft limit of open files by itself.
    let setup =
        ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).config("[lock]\nmax_queue = 2000\n").open_files(256);
    let ade = setup.start().expect("starts");
    let client = ade.client().expect("a client");
    let first = acquire(&client, &request("first", "first", LockMode::Exclusive, Duration::ZERO)).await;
    let held_weight = HeldWeight::default();
    let mut waiters: Vec<JoinHandle<(String, u64)>> = Vec::new();
    for n in 0..size {
        waiters.push(tokio::spawn(acquire_and_release(client.clone(), n, Arc::clone(&held_weight))));
        if (n + 1).is_multiple_of(BATCH) {
            wait_for_queue_length(&client, n + 1, TIMEOUT).await;
        }
    }
    let shown = client.lock(LOCK).await.expect("shown");
    let listed: Vec<String> = shown.queue.iter().map(|waiter| waiter.holder_id.clone()).collect();
    assert_eq!(listed.len(), size, "the whole queue is listed");
    assert!(shown.queue.iter().enumerate().all(|(index, waiter)| waiter.position == index as u64 + 1));
    assert!(shown.queue.is_sorted_by(|a, b| a.requested_at <= b.requested_at));
    for (batch, found) in listed.chunks(BATCH).enumerate() {
        let found: BTreeSet<&String> = found.iter().collect();
        let expected: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(holder).collect();
        assert_eq!(found, expected.iter().collect(), "earlier batches are queued first");
    }

    // Some disconnect: a block in the middle, the first, the last, and every fiftieth.
    let disconnected: BTreeSet<String> = listed
        .iter()
        .enumerate()
        .filter(|(index, _)| index.abs_diff(size / 2) < 20 || index.is_multiple_of(50) || *index == size - 1)
        .map(|(_, holder)| holder.clone())
        .collect();
    let mut remaining = Vec::new();
    for (n, waiter) in waiters.into_iter().enumerate() {
        if disconnected.contains(&holder(n)) {
            waiter.abort();
        } else {
            remaining.push(waiter);
        }
    }
    wait_for_queue_length(&client, size - disconnected.len(), TIMEOUT).await;

    release(&client, "first", "first", &first).await;
    let mut grants = Vec::new();
    for waiter in remaining {
        grants.push(waiter.await.expect("granted without a conflicting holder"));
    }
    grants.sort_by_key(|(_, token)| *token);
    let order: Vec<&String> = grants.iter().map(|(holder, _)| holder).collect();
    let expected: Vec<&String> = listed.iter().filter(|holder| !disconnected.contains(*holder)).collect();
    assert_eq!(order, expected, "tokens follow the order of the queue");
    assert!(
        grants.is_sorted_by(|a, b| a.1 < b.1) && grants.iter().all(|(_, token)| *token > first.fencing_token)
    );
    let after = client.lock(LOCK).await.expect("shown");
    assert_eq!((after.mode, after.queue_length, after.holders.len()), (None, 0, 0), "the lock is free");
}
