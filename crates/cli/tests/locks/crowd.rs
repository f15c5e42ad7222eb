//! A thousand wait for one lock, sharers and writers mixed, some hang up in the middle: everybody else is granted, in
//! exactly the order in which they were listed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grant, HeldLock, HoldRequest, LockAsk, Mode};
use ade_client::{Acquired, Client};
use ade_testkit::Ade;
use ade_testkit::ade::Setup;
use ade_testkit::wait::until;
use tokio::task::JoinHandle;

const LOCK: &str = "resource:queue:crowded";
const CROWD: usize = 1_000;
/// So many come at the same time; the next ones come when these stand in the queue.
const WAVE: usize = 100;
const LONG: Duration = Duration::from_secs(60);

/// Readers and writers inside: a writer counts as a thousand.
type Inside = Arc<AtomicI64>;

fn mode(n: usize) -> Mode {
    // Runs of sharers of different lengths between the writers.
    if n.is_multiple_of(7) || n.is_multiple_of(5) { Mode::Exclusive } else { Mode::Shared }
}

fn holder(n: usize) -> String {
    format!("waiter {n}")
}

fn request(agent: &str, holder: &str, mode: Mode, wait: Duration) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockAsk { lock: LOCK.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        holder_id: Some(holder.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(wait.as_secs_f64()),
        ..AcquireRequest::default()
    }
}

async fn granted(client: &Client, request: &AcquireRequest) -> Grant {
    match client.acquire(request).await.expect("granted") {
        Acquired::Granted(grants) => grants.grants.into_iter().next().expect("a grant"),
        Acquired::Ticket(ticket) => panic!("{ticket:?} was not asked for"),
    }
}

async fn release(client: &Client, agent: &str, holder: &str, grant: &Grant) {
    let locks = vec![HeldLock { lock: LOCK.to_owned(), fencing_token: grant.fencing_token }];
    let request = HoldRequest { agent_id: Some(agent.to_owned()), holder_id: Some(holder.to_owned()), locks };
    client.release(&request).await.expect("released");
}

/// One of the crowd: waits, looks whether it is alone if it must be, and gives the lock back at once.
async fn wait_and_leave(client: Client, n: usize, inside: Inside) -> (String, u64) {
    let (agent, holder, mode) = (format!("agent {}", n % 5), holder(n), mode(n));
    let grant = granted(&client, &request(&agent, &holder, mode, LONG * 2)).await;
    let (weight, room) = if mode == Mode::Exclusive { (1_000, 0) } else { (1, 999) };
    let before = inside.fetch_add(weight, Ordering::SeqCst);
    assert!(before <= room, "{holder} came in beside {before}");
    inside.fetch_sub(weight, Ordering::SeqCst);
    release(&client, &agent, &holder, &grant).await;
    (holder, grant.fencing_token)
}

async fn queue_of(client: &Client, length: usize, within: Duration) {
    let look = || async {
        let page = client.locks(&[]).await.map_err(|error| error.to_string())?;
        match page.items.first().map(|lock| lock.queue_length) {
            Some(found) if found == length as u64 => Ok(()),
            found => Err(format!("{found:?}")),
        }
    };
    until(&format!("{length} wait"), within, look).await.expect("they do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_are_granted_in_the_order_in_which_they_came() {
    // Every open answer is an open file: the limit that shells give is not enough.
    let setup = Setup::new(env!("CARGO_BIN_EXE_ade")).config("[lock]\nmax_queue = 2000\n").open_files(256);
    let ade = setup.start().expect("starts");
    let client = ade.client().expect("a client");
    let first = granted(&client, &request("first", "first", Mode::Exclusive, Duration::ZERO)).await;
    let inside = Inside::default();
    let mut crowd: Vec<JoinHandle<(String, u64)>> = Vec::new();
    for n in 0..CROWD {
        crowd.push(tokio::spawn(wait_and_leave(client.clone(), n, Arc::clone(&inside))));
        if (n + 1).is_multiple_of(WAVE) {
            queue_of(&client, n + 1, LONG).await;
        }
    }
    let shown = client.lock(LOCK).await.expect("shown");
    let listed: Vec<String> = shown.queue.iter().map(|waiter| waiter.holder_id.clone()).collect();
    assert_eq!(listed.len(), CROWD, "the whole queue is shown");
    assert!(shown.queue.iter().enumerate().all(|(at, waiter)| waiter.position == at as u64 + 1));
    assert!(shown.queue.is_sorted_by(|a, b| a.requested_at <= b.requested_at));
    for (wave, came) in listed.chunks(WAVE).enumerate() {
        let came: BTreeSet<&String> = came.iter().collect();
        let expected: Vec<String> = (wave * WAVE..(wave + 1) * WAVE).map(holder).collect();
        assert_eq!(came, expected.iter().collect(), "who came earlier stands earlier");
    }

    // Some hang up: a block in the middle, the first, the last, and every fiftieth.
    let gone: BTreeSet<String> = listed
        .iter()
        .enumerate()
        .filter(|(at, _)| (480..520).contains(at) || at.is_multiple_of(50) || *at == CROWD - 1)
        .map(|(_, holder)| holder.clone())
        .collect();
    let mut rest = Vec::new();
    for (n, waiter) in crowd.into_iter().enumerate() {
        if gone.contains(&holder(n)) {
            waiter.abort();
        } else {
            rest.push(waiter);
        }
    }
    queue_of(&client, CROWD - gone.len(), Duration::from_secs(1)).await;

    release(&client, "first", "first", &first).await;
    let mut grants = Vec::new();
    for waiter in rest {
        grants.push(waiter.await.expect("it was granted, and alone if it had to be"));
    }
    grants.sort_by_key(|(_, token)| *token);
    let order: Vec<&String> = grants.iter().map(|(holder, _)| holder).collect();
    let expected: Vec<&String> = listed.iter().filter(|holder| !gone.contains(*holder)).collect();
    assert_eq!(order, expected, "by their tokens, in the order of the list");
    assert!(
        grants.is_sorted_by(|a, b| a.1 < b.1) && grants.iter().all(|(_, token)| *token > first.fencing_token)
    );
    let after = client.lock(LOCK).await.expect("shown");
    assert_eq!((after.mode, after.queue_length, after.holders.len()), (None, 0, 0), "nobody is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_sharers_does_not_starve_a_writer() {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let client = ade.client().expect("a client");
    let first = granted(&client, &request("r", "r0", Mode::Shared, Duration::ZERO)).await;
    let writer = tokio::spawn({
        let client = client.clone();
        async move { granted(&client, &request("w", "w", Mode::Exclusive, LONG)).await }
    });
    queue_of(&client, 1, LONG).await;
    // Sharers keep coming, while one always holds; none of them passes the writer.
    let late: Vec<_> = (1..50)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                granted(&client, &request("r", &format!("r{n}"), Mode::Shared, LONG)).await
            })
        })
        .collect();
    queue_of(&client, 50, LONG).await;
    release(&client, "r", "r0", &first).await;
    let writing = writer.await.expect("runs");
    assert!(late.iter().all(|sharer| !sharer.is_finished()));
    release(&client, "w", "w", &writing).await;
    for sharer in late {
        let grant = sharer.await.expect("runs");
        assert!(grant.fencing_token > writing.fencing_token);
    }
    assert_eq!(client.lock(LOCK).await.expect("shown").holders.len(), 49, "all of them together");
}
