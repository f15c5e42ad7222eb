//! Three servers on one Redis: all of them see the same locks, waiters are granted in queue order whichever server they
//! use, and a killed server delays other waiters only briefly.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::redis::servers::{
    RedisBackend, ServerGroup, TIMEOUT, acquire, heartbeat, hold_request, release, request, take, wait_for,
    wait_until_queued,
};
use ade_client::wire::{AcquireRequest, Grant, HeldLocksRequest, LockMode, TicketStatus, VerifyTokenRequest};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::effort;
use ade_testkit::wait::until;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LOCK: &str = "resource:queue:crowded";
/// Waiters that arrive concurrently. The next batch starts once these are queued.
const BATCH: usize = 100;
/// How long a server may be silent before its waiters are removed.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Allowance for the next check of the lock, a slow response and a busy machine.
const MARGIN: Duration = Duration::from_millis(1_500);
/// The same while a thousand open requests, three servers and other tests share two cores.
const LOADED_MARGIN: Duration = Duration::from_secs(6);

fn mode(n: usize) -> LockMode {
    // Runs of shared waiters of different lengths between exclusive ones.
    if n.is_multiple_of(7) || n.is_multiple_of(5) { LockMode::Exclusive } else { LockMode::Shared }
}

fn agent(n: usize) -> String {
    format!("agent-{n}")
}

fn holder(n: usize) -> String {
    format!("waiter {n}")
}

/// Lets the test pause one chosen holder while it holds the lock.
#[derive(Debug, Default)]
struct PausePoint {
    holder: OnceLock<String>,
    reached: Notify,
    resume: Notify,
}

/// Acquires the lock, pauses if it is the chosen holder, and releases it. `None` if its server was killed.
async fn acquire_and_release(client: Client, n: usize, pause: Arc<PausePoint>) -> Option<(String, Grant)> {
    // Several holders belong to the same agent.
    let (agent, holder) = (agent(n % BATCH), holder(n));
    let request = AcquireRequest { holder_id: Some(holder.clone()), ..request(&agent, LOCK, mode(n), 300.0) };
    let grant = match acquire(&client, &request).await {
        Ok(grant) => grant,
        Err(Error::Unreachable { .. }) if n % 3 == 2 => return None,
        Err(error) => panic!("{holder}: {error}"),
    };
    if pause.holder.get() == Some(&holder) {
        pause.reached.notify_one();
        pause.resume.notified().await;
    }
    let held = HeldLocksRequest { holder_id: Some(holder.clone()), ..hold_request(&agent, &grant) };
    match client.release_locks(&held).await {
        // The release may succeed although the server is killed before it responds.
        Ok(_) | Err(Error::Unreachable { .. }) if n % 3 == 2 => {}
        released => drop(released.expect("released")),
    }
    Some((holder, grant))
}

/// Uses the list of locks, which is cheaper than a response with the whole queue.
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

/// Many waiters at three servers; one server is killed when half of them have been granted.
async fn check_many_waiters(redis: RedisBackend, size: usize) {
    let group = ServerGroup::start(redis, 3, "[lock]\nmax_queue = 2000\n");
    let first = take(group.client(0), "first", LOCK, LockMode::Exclusive).await;
    let pause = Arc::new(PausePoint::default());
    let mut waiters: Vec<JoinHandle<_>> = Vec::new();
    let started = Instant::now();
    for n in 0..size {
        waiters.push(tokio::spawn(acquire_and_release(group.client(n).clone(), n, Arc::clone(&pause))));
        if (n + 1).is_multiple_of(BATCH) {
            wait_for_queue_length(group.client(n), n + 1, TIMEOUT).await;
        }
    }
    println!("{size} waiters queued after {:?}", started.elapsed());
    let seen = |number: usize| group.client(number).lock(LOCK);
    let (shown, other) = (seen(0).await.expect("shown"), seen(1).await.expect("shown"));
    let listed: Vec<String> = shown.queue.iter().map(|waiter| waiter.holder_id.clone()).collect();
    assert_eq!(listed.len(), size, "the whole queue is listed");
    assert_eq!(shown, other, "every server shows the same queue");
    assert!(shown.queue.iter().enumerate().all(|(index, waiter)| waiter.position == index as u64 + 1));
    for (batch, found) in listed.chunks(BATCH).enumerate() {
        let found: BTreeSet<&String> = found.iter().collect();
        let expected: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(holder).collect();
        assert_eq!(found, expected.iter().collect(), "earlier batches are queued first");
    }

    // Pause an exclusive holder in the middle: all earlier waiters are done by then, and nobody else holds the lock.
    let uses_third_server = |who: &String| (0..size).find(|n| holder(*n) == *who).is_some_and(|n| n % 3 == 2);
    let is_exclusive =
        |index: usize| shown.queue.get(index).is_some_and(|waiter| waiter.mode == LockMode::Exclusive);
    let (middle, who) = listed
        .iter()
        .enumerate()
        .skip(size / 2)
        .find(|(index, who)| is_exclusive(*index) && !uses_third_server(who))
        .expect("an exclusive waiter");
    pause.holder.set(who.clone()).expect("once");
    let started = Instant::now();
    release(group.client(1), "first", &first).await;
    tokio::time::timeout(TIMEOUT, pause.reached.notified()).await.expect("granted");
    println!("{middle} were granted within {:?}", started.elapsed());

    let removed: BTreeSet<&String> =
        listed.iter().skip(middle).filter(|who| uses_third_server(who)).collect();
    let killed = Instant::now();
    group.servers.get(2).expect("a third").kill().expect("killed");
    wait_for_queue_length(group.client(0), size - middle - 1 - removed.len(), TIMEOUT).await;
    let removal = killed.elapsed();
    println!("{} waiters of a killed server were removed within {removal:?}", removed.len());
    assert!(removal < SERVER_TIMEOUT + LOADED_MARGIN, "{removal:?}");

    let started = Instant::now();
    pause.resume.notify_one();
    let mut grants = Vec::new();
    for waiter in waiters {
        grants.extend(tokio::time::timeout(TIMEOUT, waiter).await.expect("in time").expect("runs"));
    }
    println!("the other {} were granted within {:?}", size - middle - 1 - removed.len(), started.elapsed());
    grants.sort_by_key(|(_, grant)| grant.fencing_token);
    let order: Vec<&String> = grants.iter().map(|(holder, _)| holder).collect();
    let expected: Vec<&String> = listed.iter().filter(|who| !removed.contains(who)).collect();
    let misordered: Vec<_> =
        order.iter().zip(&expected).filter(|(actual, expected)| actual != expected).collect();
    assert!(misordered.is_empty(), "tokens do not follow the order of the queue: {misordered:?}");
    assert_eq!(order.len(), expected.len(), "every waiter is granted");
    assert!(grants.iter().all(|(_, grant)| grant.fencing_token > first.fencing_token));
    let after = group.client(1).lock(LOCK).await.expect("shown");
    assert_eq!((after.mode, after.queue_length, after.holders.len()), (None, 0, 0), "the lock is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_waiters_in_order_and_skips_killed_server() {
    check_many_waiters(RedisBackend::standalone(), effort::rounds(200, 1_000) as usize).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_waiters_in_order_on_cluster_and_skips_killed_server() {
    check_many_waiters(RedisBackend::cluster(), effort::rounds(100, 1_000) as usize).await;
}

/// The server is killed just before its waiters would be granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_waiters_of_killed_server_delay_others_only_once() {
    let group = ServerGroup::start(RedisBackend::standalone(), 3, "");
    let lock = "task:next";
    let first = take(group.client(0), "first", lock, LockMode::Exclusive).await;
    let mut waiting = Vec::new();
    let mut names = Vec::new();
    for n in 0..8 {
        // Four waiters at the third server, then four at the others.
        let server = if n < 4 { 2 } else { n % 2 };
        waiting.push((agent(n), wait_for(group.client(server), &agent(n), lock, LockMode::Exclusive)));
        names.push(agent(n));
        wait_until_queued(group.client(0), lock, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let killed = Instant::now();
    group.servers.get(2).expect("a third").kill().expect("killed");
    release(group.client(0), "first", &first).await;
    let mut before = first.fencing_token;
    for (n, (agent, waiter)) in waiting.into_iter().enumerate() {
        let result = tokio::time::timeout(TIMEOUT, waiter).await.expect("in time").expect("runs");
        if n < 4 {
            result.expect_err("its server was killed");
            continue;
        }
        let grant = result.expect("granted");
        if n == 4 {
            let delay = killed.elapsed();
            println!("first waiter behind a killed server granted after {delay:?}");
            assert!(delay < SERVER_TIMEOUT + MARGIN, "{delay:?}");
        }
        assert!(grant.fencing_token > before, "in queue order");
        before = grant.fencing_token;
        release(group.client(n % 2), &agent, &grant).await;
    }
}

/// An exclusive waiter of a killed server is queued between shared holders and shared waiters, and more shared requests
/// keep arriving.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_waiter_of_killed_server_does_not_block_shared_ones() {
    let group = ServerGroup::start(RedisBackend::standalone(), 3, "");
    let lock = "resource:shared:busy";
    let first = take(group.client(0), "first", lock, LockMode::Shared).await;
    let writer = wait_for(group.client(2), "writer", lock, LockMode::Exclusive);
    wait_until_queued(group.client(0), lock, &["writer"]).await;
    let reader = wait_for(group.client(1), "reader", lock, LockMode::Shared);
    wait_until_queued(group.client(0), lock, &["writer", "reader"]).await;
    let killed = Instant::now();
    group.servers.get(2).expect("a third").kill().expect("killed");
    let mut arrivals = 0;
    while !reader.is_finished() && killed.elapsed() < TIMEOUT / 2 {
        // They wait only briefly, so that another one always follows.
        let late = agent(arrivals);
        if let Ok(grant) = acquire(group.client(0), &request(&late, lock, LockMode::Shared, 0.3)).await {
            release(group.client(0), &late, &grant).await;
        }
        arrivals += 1;
    }
    let delay = killed.elapsed();
    println!(
        "shared waiter behind an exclusive one of a killed server granted after {delay:?}, {arrivals} arrived meanwhile"
    );
    assert!(delay < SERVER_TIMEOUT + MARGIN, "{delay:?}");
    let grant = reader.await.expect("runs").expect("granted");
    writer.await.expect("runs").expect_err("its server was killed");
    release(group.client(0), "reader", &grant).await;
    release(group.client(1), "first", &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_see_same_lock() {
    let group = ServerGroup::start(RedisBackend::standalone(), 3, "");
    let (client_a, client_b, client_c) = (group.client(0), group.client(1), group.client(2));
    let lock = "resource:database:prod";
    let grant = take(client_a, "ann", lock, LockMode::Exclusive).await;
    for client in &group.clients {
        let seen = client.lock(lock).await.expect("shown");
        let holder = seen.holders.first().expect("held");
        assert_eq!((holder.agent_id.as_str(), holder.fencing_token), ("ann", grant.fencing_token));
        let list = client.locks(&[]).await.expect("listed");
        assert_eq!(list.items.len(), 1);
        let refused = acquire(client, &request("ben", lock, LockMode::Shared, 0.0)).await.expect_err("held");
        assert_eq!(refused.code(), Some("LOCK_HELD"));
        assert!(client.agents(&[]).await.expect("listed").items.iter().any(|agent| agent.agent_id == "ann"));
        assert!(
            heartbeat(client, "ann", &grant).await.expect("renewed").results.iter().all(|result| result.ok)
        );
    }
    let seen = client_b.lock(lock).await.expect("shown");
    assert_eq!(
        seen.holders.first().map(|holder| holder.heartbeat_count),
        Some(3),
        "one heartbeat through each server"
    );
    let token = VerifyTokenRequest { lock: lock.to_owned(), fencing_token: grant.fencing_token };
    assert!(client_c.verify_token(&token).await.expect("verified").valid);

    // Broken through one server while another one has the waiter.
    let ben = wait_for(client_b, "ben", lock, LockMode::Shared);
    wait_until_queued(client_c, lock, &["ben"]).await;
    assert_eq!(client_c.break_lock(lock, "to see").await.expect("broken").holders.len(), 1);
    let shared = ben.await.expect("runs").expect("granted");
    assert!(shared.fencing_token > grant.fencing_token);
    assert_eq!(heartbeat(client_a, "ann", &grant).await.expect_err("lost").code(), Some("LOCK_LOST"));
    assert_eq!(client_b.verify_token(&token).await.expect_err("lost").code(), Some("LOCK_LOST"));

    // Upgraded through one server, downgraded through another, released through the third.
    let upgraded = take(client_a, "ben", lock, LockMode::Exclusive).await;
    assert!(upgraded.fencing_token > shared.fencing_token);
    let down = client_b.downgrade_locks(&hold_request("ben", &upgraded)).await.expect("downgraded");
    assert_eq!(down.results.first().and_then(|result| result.mode), Some(LockMode::Shared));
    release(client_c, "ben", &upgraded).await;
    for client in &group.clients {
        assert!(client.lock(lock).await.expect("shown").holders.is_empty());
        assert!(client.locks(&[]).await.expect("listed").items.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticket_is_polled_and_claimed_through_other_servers() {
    let group = ServerGroup::start(RedisBackend::standalone(), 3, "");
    let (client_a, client_b, client_c) = (group.client(0), group.client(1), group.client(2));
    let lock = "task:ticket";
    let grant = take(client_a, "ann", lock, LockMode::Exclusive).await;
    let queue =
        |agent: &str| AcquireRequest { queue: true, ..request(agent, lock, LockMode::Exclusive, 60.0) };
    let mut tickets = Vec::new();
    for (client, agent) in [(client_a, "ben"), (client_b, "cem"), (client_c, "dee")] {
        match client.acquire_locks(&queue(agent)).await.expect("queued") {
            AcquireOutcome::Queued(ticket) => tickets.push(ticket),
            AcquireOutcome::Granted(grants) => panic!("{grants:?}"),
        }
    }
    let [ben, cem, dee] = tickets.as_slice() else { panic!("three tickets") };
    for (client, ticket, position) in [(client_b, ben, 1), (client_c, cem, 2), (client_a, dee, 3)] {
        let seen = client.ticket(&ticket.ticket).await.expect("known");
        assert_eq!((seen.status, seen.position), (TicketStatus::Waiting, Some(position)));
    }
    client_b.cancel_ticket(&dee.ticket).await.expect("cancelled through another server");
    // A ticket survives the server that created it.
    group.servers.first().expect("a first").kill().expect("killed");
    release(client_b, "ann", &grant).await;
    let mut before = grant.fencing_token;
    for (poller, claimer, agent, ticket) in
        [(client_b, client_c, "ben", ben), (client_c, client_b, "cem", cem)]
    {
        let seen = poller.ticket(&ticket.ticket).await.expect("known");
        assert_eq!(seen.status, TicketStatus::Ready);
        let claimed = claimer.claim_ticket(&ticket.ticket).await.expect("claimed");
        assert_eq!(poller.ticket(&ticket.ticket).await.expect("known").status, TicketStatus::Granted);
        let grant = claimed.grants.first().expect("a grant").clone();
        assert!(grant.fencing_token > before);
        before = grant.fencing_token;
        release(poller, agent, &grant).await;
    }
    assert!(
        client_c.lock(lock).await.expect("shown").queue.is_empty(),
        "the cancelled ticket left the queue"
    );
}
