//! The lock guard of the client against a real server: it renews its leases, detects every loss before another holder can be
//! granted, and keeps its place in the queue through a restart.

use std::time::Duration;

use ade_client::wire::{AgentRequest, Lock, LockHolder, LockMode};
use ade_client::{Client, LockGuard, LockRequest, LostReason};
use ade_testkit::AdeServer;
use ade_testkit::wait::until;
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const DB: &str = "resource:database:prod";
const TIMEOUT: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(2);

fn server() -> (AdeServer, Client) {
    let ade = AdeServer::start(env!("CARGO_BIN_EXE_ade")).expect("starts");
    let client = ade.client().expect("a client");
    (ade, client)
}

fn request(agent: &str, ttl: Duration) -> LockRequest {
    LockRequest { agent_id: Some(agent.to_owned()), ttl, wait: TIMEOUT, ..LockRequest::new([DB]) }
}

async fn guard(client: &Client, agent: &str, ttl: Duration) -> LockGuard {
    LockGuard::acquire(client, &request(agent, ttl)).await.expect("granted")
}

/// Acquires in the background.
fn waiter(client: &Client, agent: &str) -> JoinHandle<LockGuard> {
    let (client, request) = (client.clone(), request(agent, Duration::from_secs(20)));
    tokio::spawn(async move { LockGuard::acquire(&client, &request).await.expect("granted") })
}

/// Polls the lock until the condition holds.
async fn wait_for_lock(client: &Client, what: &str, condition: impl Fn(&Lock) -> bool) -> Lock {
    let check = || async {
        let now = client.lock(DB).await.map_err(|error| error.to_string())?;
        if condition(&now) { Ok(now) } else { Err(format!("{now:?}")) }
    };
    until(what, TIMEOUT, check).await.expect("in time")
}

fn heartbeats(lock: &Lock) -> u64 {
    lock.holders.first().map_or(0, |holder: &LockHolder| holder.heartbeat_count)
}

async fn lost(guard: &LockGuard) -> LostReason {
    timeout(TIMEOUT, guard.lost()).await.expect("the loss is detected")
}

#[tokio::test]
async fn renews_lease_with_heartbeats() {
    let (_ade, client) = server();
    let ttl = Duration::from_secs(1);
    let guard = guard(&client, "a", ttl).await;
    let (started, first) = (Instant::now(), guard.grants()[0].clone());
    // More heartbeats than fit into one lease.
    let now = wait_for_lock(&client, "nine heartbeats", |now| heartbeats(now) >= 9).await;
    assert!(started.elapsed() > ttl, "the first lease has passed");
    assert_eq!(now.holders[0].fencing_token, first.fencing_token, "the same grant");
    assert_eq!(now.holders[0].holder_id, guard.holder_id());
    assert!(now.holders[0].expires_at > first.expires_at && guard.is_valid());
    guard.release().await.expect("still held");
    assert!(client.lock(DB).await.expect("shown").holders.is_empty());
}

#[tokio::test]
async fn detects_broken_lock() {
    let (_ade, client) = server();
    let guard = guard(&client, "a", TTL).await;
    client.break_lock(DB, "test").await.expect("broken");
    let broken = Instant::now();
    assert_eq!(lost(&guard).await, LostReason::ReportedByServer);
    assert!(broken.elapsed() < TTL, "detected before the lease would have ended");
    assert!(!guard.is_valid());
    let other = self::guard(&client, "b", TTL).await;
    let error = guard.release().await.expect_err("not held any more");
    assert_eq!(error.code(), Some("LOCK_LOST"));
    assert_eq!(client.lock(DB).await.expect("shown").holders.len(), 1, "the new holder keeps the lock");
    other.release().await.expect("held");
}

#[tokio::test]
async fn loses_trust_before_lease_ends_when_server_hangs() {
    let (ade, client) = server();
    // The guard gives up a tenth of the lease early: long enough for a busy machine to notice in time.
    let ttl = 3 * TTL;
    let guard = guard(&client, "a", ttl).await;
    wait_for_lock(&client, "a heartbeat", |now| heartbeats(now) >= 1).await;
    let stopped = Instant::now();
    ade.process().signal(Signal::STOP).expect("stopped");
    assert_eq!(lost(&guard).await, LostReason::Unreachable);
    assert!(stopped.elapsed() < ttl, "detected before the last lease ended: {:?}", stopped.elapsed());
    assert!(!guard.is_valid());
    ade.process().signal(Signal::CONT).expect("continued");
}

#[tokio::test]
async fn loses_trust_before_lease_ends_when_server_is_killed() {
    let (ade, client) = server();
    let guard = guard(&client, "a", TTL).await;
    let killed = Instant::now();
    ade.kill().expect("killed");
    assert!(guard.is_valid(), "the lease still runs");
    assert_eq!(lost(&guard).await, LostReason::Unreachable);
    assert!(killed.elapsed() < TTL, "{:?}", killed.elapsed());
    guard.release().await.expect_err("the server is down");
}

#[tokio::test]
async fn holds_lock_through_restart() {
    let (ade, client) = server();
    let guard = guard(&client, "a", Duration::from_secs(20)).await;
    let first = guard.grants()[0].clone();
    let before = heartbeats(&client.lock(DB).await.expect("shown"));
    ade.kill_and_restart().expect("starts again");
    let now = wait_for_lock(&client, "a heartbeat after the restart", |now| heartbeats(now) > before).await;
    assert_eq!(now.holders[0].fencing_token, first.fencing_token);
    assert!(guard.is_valid());
    guard.release().await.expect("still held");
}

/// Two guards wait while the server restarts. Afterwards they are granted in the original order.
async fn check_waiting_through(restart: impl FnOnce(&AdeServer)) {
    let (ade, client) = server();
    let first = guard(&client, "a", Duration::from_secs(60)).await;
    let mut waiters = Vec::new();
    for (n, agent) in ["b", "c"].into_iter().enumerate() {
        waiters.push(waiter(&client, agent));
        wait_for_lock(&client, "the waiter in the queue", |now| now.queue_length == n as u64 + 1).await;
    }
    let before = client.lock(DB).await.expect("shown").queue;
    let clock = AgentRequest { agent_id: Some("clock".to_owned()), ..AgentRequest::default() };
    let before_restart = client.register_agent(&clock).await.expect("registered").last_heartbeat;
    restart(&ade);
    let after = wait_for_lock(&client, "both waiters after the restart", |now| now.queue_length == 2).await;
    assert_eq!(after.queue, before, "the waiters keep their places");
    // Both have sent their requests again to the restarted server.
    for agent in ["b", "c"] {
        let check = || async {
            let page = client.agents(&[]).await.map_err(|error| error.to_string())?;
            let last_heartbeat = page
                .items
                .into_iter()
                .find(|known| known.agent_id == agent)
                .map(|known| known.last_heartbeat);
            if last_heartbeat > Some(before_restart) {
                Ok(())
            } else {
                Err(format!("{agent}: {last_heartbeat:?}"))
            }
        };
        until("the repeated request to arrive", TIMEOUT, check).await.expect("in time");
    }
    first.release().await.expect("still held");
    let mut tokens = Vec::new();
    for (agent, waiter) in ["b", "c"].into_iter().zip(waiters) {
        let guard = timeout(TIMEOUT, waiter).await.expect("in time").expect("granted");
        assert_eq!(client.lock(DB).await.expect("shown").holders[0].agent_id, agent);
        tokens.push(guard.grants()[0].fencing_token);
        guard.release().await.expect("held");
    }
    assert!(tokens[0] < tokens[1]);
}

#[tokio::test]
async fn keeps_place_in_queue_through_crash() {
    check_waiting_through(|ade| ade.kill_and_restart().expect("starts again")).await;
}

#[tokio::test]
async fn keeps_place_in_queue_through_graceful_restart() {
    check_waiting_through(|ade| {
        ade.stop().expect("stopped");
        ade.start_again().expect("starts again");
    })
    .await;
}

#[tokio::test]
async fn dropped_guard_releases_locks() {
    let (_ade, client) = server();
    let first = guard(&client, "a", Duration::from_secs(300)).await;
    let next = waiter(&client, "b");
    wait_for_lock(&client, "the second guard in the queue", |now| now.queue_length == 1).await;
    drop(first);
    let next = timeout(TIMEOUT, next).await.expect("before the lease ends").expect("granted");
    drop(next);
    wait_for_lock(&client, "the lock to be free", |now| now.holders.is_empty()).await;
}

#[tokio::test]
async fn guards_of_one_agent_exclude_each_other_unless_shared() {
    let (_ade, client) = server();
    let shared = LockRequest { locks: vec![(DB.to_owned(), LockMode::Shared)], ..request("a", TTL) };
    let (first, second) = (
        LockGuard::acquire(&client, &shared).await.expect("shared"),
        LockGuard::acquire(&client, &shared).await.expect("shared"),
    );
    assert_ne!(first.holder_id(), second.holder_id());
    let no_wait = LockRequest { wait: Duration::ZERO, ..request("a", TTL) };
    let error = LockGuard::acquire(&client, &no_wait).await.expect_err("the lock is shared");
    assert_eq!(error.code(), Some("LOCK_HELD"));
    first.release().await.expect("held");
    second.release().await.expect("held");
    let error =
        LockGuard::acquire(&client, &LockRequest::new(["nonsense"])).await.expect_err("an invalid name");
    assert_eq!(error.code(), Some("INVALID_REQUEST"), "an invalid request is not retried");
}
