//! The guard of our client against a real server: it keeps its locks, learns of every loss before anybody else may hold,
//! and waits through a restart without losing its place.

use std::time::Duration;

use ade_client::wire::{AgentRequest, Lock, LockHolder, Mode};
use ade_client::{Client, LockGuard, LockRequest, Lost};
use ade_testkit::Ade;
use ade_testkit::wait::until;
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const DB: &str = "resource:database:prod";
const LONG: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(2);

fn server() -> (Ade, Client) {
    let ade = Ade::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let client = ade.client().expect("a client");
    (ade, client)
}

fn request(agent: &str, ttl: Duration) -> LockRequest {
    LockRequest { agent_id: Some(agent.to_owned()), ttl, wait: LONG, ..LockRequest::new([DB]) }
}

async fn guard(client: &Client, agent: &str, ttl: Duration) -> LockGuard {
    LockGuard::acquire(client, &request(agent, ttl)).await.expect("granted")
}

/// Acquires in a task of its own.
fn waiter(client: &Client, agent: &str) -> JoinHandle<LockGuard> {
    let (client, request) = (client.clone(), request(agent, Duration::from_secs(20)));
    tokio::spawn(async move { LockGuard::acquire(&client, &request).await.expect("granted in the end") })
}

/// Looks at the lock until it is as wanted.
async fn when(client: &Client, what: &str, wanted: impl Fn(&Lock) -> bool) -> Lock {
    let look = || async {
        let now = client.lock(DB).await.map_err(|error| error.to_string())?;
        if wanted(&now) { Ok(now) } else { Err(format!("{now:?}")) }
    };
    until(what, LONG, look).await.expect("in time")
}

fn beats(lock: &Lock) -> u64 {
    lock.holders.first().map_or(0, |holder: &LockHolder| holder.heartbeat_count)
}

async fn lost(guard: &LockGuard) -> Lost {
    timeout(LONG, guard.lost()).await.expect("it learns of it")
}

#[tokio::test]
async fn it_heartbeats_beyond_its_lease() {
    let (_ade, client) = server();
    let ttl = Duration::from_secs(1);
    let guard = guard(&client, "a", ttl).await;
    let (began, first) = (Instant::now(), guard.grants()[0].clone());
    // More beats than fit into one lease.
    let now = when(&client, "it beat nine times", |now| beats(now) >= 9).await;
    assert!(began.elapsed() > ttl, "beyond its first lease");
    assert_eq!(now.holders[0].fencing_token, first.fencing_token, "the same grant");
    assert_eq!(now.holders[0].holder_id, guard.holder_id());
    assert!(now.holders[0].expires_at > first.expires_at && guard.is_trusted());
    guard.release().await.expect("it held until now");
    assert!(client.lock(DB).await.expect("shown").holders.is_empty());
}

#[tokio::test]
async fn it_learns_that_its_lock_was_broken() {
    let (_ade, client) = server();
    let guard = guard(&client, "a", TTL).await;
    client.break_lock(DB, "test").await.expect("broken");
    let broken = Instant::now();
    assert_eq!(lost(&guard).await, Lost::Taken);
    assert!(broken.elapsed() < TTL, "long before its lease would have ended");
    assert!(!guard.is_trusted());
    let other = self::guard(&client, "b", TTL).await;
    let error = guard.release().await.expect_err("it is not held any more");
    assert_eq!(error.code(), Some("LOCK_LOST"));
    assert_eq!(client.lock(DB).await.expect("shown").holders.len(), 1, "the other one keeps it");
    other.release().await.expect("held");
}

#[tokio::test]
async fn it_stops_trusting_before_the_lease_ends_when_the_server_stands_still() {
    let (ade, client) = server();
    let guard = guard(&client, "a", TTL).await;
    when(&client, "it beat", |now| beats(now) >= 1).await;
    let stopped = Instant::now();
    ade.process().signal(Signal::STOP).expect("stopped");
    assert_eq!(lost(&guard).await, Lost::Unreachable);
    assert!(
        stopped.elapsed() < TTL,
        "the last lease began before the server stopped: {:?}",
        stopped.elapsed()
    );
    assert!(!guard.is_trusted());
    ade.process().signal(Signal::CONT).expect("goes on");
}

#[tokio::test]
async fn it_stops_trusting_before_the_lease_ends_when_the_server_is_killed() {
    let (ade, client) = server();
    let guard = guard(&client, "a", TTL).await;
    let killed = Instant::now();
    ade.kill().expect("killed");
    assert!(guard.is_trusted(), "the lease still runs");
    assert_eq!(lost(&guard).await, Lost::Unreachable);
    assert!(killed.elapsed() < TTL, "{:?}", killed.elapsed());
    guard.release().await.expect_err("nobody is there");
}

#[tokio::test]
async fn it_holds_through_a_restart() {
    let (ade, client) = server();
    let guard = guard(&client, "a", Duration::from_secs(20)).await;
    let first = guard.grants()[0].clone();
    let before = beats(&client.lock(DB).await.expect("shown"));
    ade.kill_and_restart().expect("starts again");
    let now = when(&client, "it beat again", |now| beats(now) > before).await;
    assert_eq!(now.holders[0].fencing_token, first.fencing_token);
    assert!(guard.is_trusted());
    guard.release().await.expect("it held all the time");
}

/// Two wait while the server goes away and comes back; then they are granted in their old order.
async fn wait_through(restart: impl FnOnce(&Ade)) {
    let (ade, client) = server();
    let first = guard(&client, "a", Duration::from_secs(60)).await;
    let mut waiters = Vec::new();
    for (n, agent) in ["b", "c"].into_iter().enumerate() {
        waiters.push(waiter(&client, agent));
        when(&client, "it waits", |now| now.queue_length == n as u64 + 1).await;
    }
    let before = client.lock(DB).await.expect("shown").queue;
    let clock = AgentRequest { agent_id: Some("clock".to_owned()), ..AgentRequest::default() };
    let gone = client.register(&clock).await.expect("registered").last_heartbeat;
    restart(&ade);
    let back = when(&client, "the server is back, and both wait", |now| now.queue_length == 2).await;
    assert_eq!(back.queue, before, "they kept their places");
    // Both have asked again, so that this server serves them.
    for agent in ["b", "c"] {
        let look = || async {
            let page = client.agents(&[]).await.map_err(|error| error.to_string())?;
            let heard = page
                .items
                .into_iter()
                .find(|known| known.agent_id == agent)
                .map(|known| known.last_heartbeat);
            if heard > Some(gone) { Ok(()) } else { Err(format!("{agent}: {heard:?}")) }
        };
        until("it asked again", LONG, look).await.expect("in time");
    }
    first.release().await.expect("it held all the time");
    let mut tokens = Vec::new();
    for (agent, waiter) in ["b", "c"].into_iter().zip(waiters) {
        let guard = timeout(LONG, waiter).await.expect("in time").expect("granted");
        assert_eq!(client.lock(DB).await.expect("shown").holders[0].agent_id, agent);
        tokens.push(guard.grants()[0].fencing_token);
        guard.release().await.expect("held");
    }
    assert!(tokens[0] < tokens[1]);
}

#[tokio::test]
async fn it_waits_through_a_crash_and_keeps_its_place() {
    wait_through(|ade| ade.kill_and_restart().expect("starts again")).await;
}

#[tokio::test]
async fn it_waits_through_an_orderly_restart_and_keeps_its_place() {
    wait_through(|ade| {
        ade.stop().expect("stopped");
        ade.start_again().expect("starts again");
    })
    .await;
}

#[tokio::test]
async fn a_guard_that_is_dropped_gives_its_locks_up() {
    let (_ade, client) = server();
    let one = guard(&client, "a", Duration::from_secs(300)).await;
    let next = waiter(&client, "b");
    when(&client, "the next one waits", |now| now.queue_length == 1).await;
    drop(one);
    let next = timeout(LONG, next).await.expect("long before the lease ends").expect("granted");
    drop(next);
    when(&client, "it is free", |now| now.holders.is_empty()).await;
}

#[tokio::test]
async fn guards_of_one_agent_exclude_each_other_and_sharers_do_not() {
    let (_ade, client) = server();
    let shared = LockRequest { locks: vec![(DB.to_owned(), Mode::Shared)], ..request("a", TTL) };
    let (one, two) = (
        LockGuard::acquire(&client, &shared).await.expect("shared"),
        LockGuard::acquire(&client, &shared).await.expect("shared"),
    );
    assert_ne!(one.holder_id(), two.holder_id());
    let hurried = LockRequest { wait: Duration::ZERO, ..request("a", TTL) };
    let error = LockGuard::acquire(&client, &hurried).await.expect_err("it is shared");
    assert_eq!(error.code(), Some("LOCK_HELD"));
    one.release().await.expect("held");
    two.release().await.expect("held");
    let error = LockGuard::acquire(&client, &LockRequest::new(["nonsense"])).await.expect_err("no lock");
    assert_eq!(error.code(), Some("INVALID_REQUEST"), "what never can be is not tried again");
}
