//! Three servers on one Redis are one: a lock is the same through each of them, a thousand waiters are granted in the
//! order of the queue whichever server they wait at, and a server that is killed delays nobody for long.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::fleet::{Fleet, LONG, Store, acquire, ask, heartbeat, hold, queued, release, take, wait_for};
use ade_client::wire::{AcquireRequest, Grant, HoldRequest, Mode, TicketStatus, VerifyRequest};
use ade_client::{Acquired, Client, Error};
use ade_testkit::wait::until;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const LOCK: &str = "resource:queue:crowded";
/// So many come at the same time; the next ones come when these stand in the queue.
const WAVE: usize = 100;
/// How long a server may be silent before its waiters are skipped.
const SILENCE: Duration = Duration::from_secs(3);
/// What the next look at a lock, a slow answer and a busy machine may take on top.
const MARGIN: Duration = Duration::from_millis(1_500);
/// The same while a thousand open requests, three servers and the other tests share two cores.
const CROWDED_MARGIN: Duration = Duration::from_secs(6);

fn mode(n: usize) -> Mode {
    // Runs of sharers of different lengths between the writers.
    if n.is_multiple_of(7) || n.is_multiple_of(5) { Mode::Exclusive } else { Mode::Shared }
}

fn agent(n: usize) -> String {
    format!("agent-{n}")
}

fn holder(n: usize) -> String {
    format!("waiter {n}")
}

/// One of the crowd keeps its lock until it is told to go on.
#[derive(Debug, Default)]
struct Stop {
    who: OnceLock<String>,
    arrived: Notify,
    go_on: Notify,
}

/// Waits, stops if it is the one to stop, and gives the lock back; nothing, if its server was killed.
async fn wait_and_leave(client: Client, n: usize, stop: Arc<Stop>) -> Option<(String, Grant)> {
    // Every tenth of them is another task of the same agent.
    let (agent, holder) = (agent(n % WAVE), holder(n));
    let request = AcquireRequest { holder_id: Some(holder.clone()), ..ask(&agent, LOCK, mode(n), 300.0) };
    let grant = match acquire(&client, &request).await {
        Ok(grant) => grant,
        Err(Error::Unreachable { .. }) if n % 3 == 2 => return None,
        Err(error) => panic!("{holder} is told: {error}"),
    };
    if stop.who.get() == Some(&holder) {
        stop.arrived.notify_one();
        stop.go_on.notified().await;
    }
    let held = HoldRequest { holder_id: Some(holder.clone()), ..hold(&agent, &grant) };
    match client.release(&held).await {
        // What was released is so also if its server was killed before it could say that.
        Ok(_) | Err(Error::Unreachable { .. }) if n % 3 == 2 => {}
        released => drop(released.expect("released")),
    }
    Some((holder, grant))
}

/// Asks the list, which shows few waiters of each lock: the whole queue is long.
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

/// A crowd waits at three servers. In the middle of it, one of them is killed.
async fn crowd(store: Store, size: usize) {
    let fleet = Fleet::start(store, 3, "[lock]\nmax_queue = 2000\n");
    let first = take(fleet.any(0), "first", LOCK, Mode::Exclusive).await;
    let stop = Arc::new(Stop::default());
    let mut waiters: Vec<JoinHandle<_>> = Vec::new();
    let began = Instant::now();
    for n in 0..size {
        waiters.push(tokio::spawn(wait_and_leave(fleet.any(n).clone(), n, Arc::clone(&stop))));
        if (n + 1).is_multiple_of(WAVE) {
            queue_of(fleet.any(n), n + 1, LONG).await;
        }
    }
    println!("{size} wait after {:?}", began.elapsed());
    let seen = |number: usize| fleet.any(number).lock(LOCK);
    let (shown, also) = (seen(0).await.expect("shown"), seen(1).await.expect("shown"));
    let listed: Vec<String> = shown.queue.iter().map(|waiter| waiter.holder_id.clone()).collect();
    assert_eq!(listed.len(), size, "the whole queue is shown");
    assert_eq!(shown, also, "and the same through every server");
    assert!(shown.queue.iter().enumerate().all(|(at, waiter)| waiter.position == at as u64 + 1));
    for (wave, came) in listed.chunks(WAVE).enumerate() {
        let came: BTreeSet<&String> = came.iter().collect();
        let expected: Vec<String> = (wave * WAVE..(wave + 1) * WAVE).map(holder).collect();
        assert_eq!(came, expected.iter().collect(), "who came earlier stands earlier");
    }

    // A writer in the middle stops; everybody before it is gone by then, and nobody beside it.
    let at_third = |who: &String| (0..size).find(|n| holder(*n) == *who).is_some_and(|n| n % 3 == 2);
    let is_writer = |at: usize| shown.queue.get(at).is_some_and(|waiter| waiter.mode == Mode::Exclusive);
    let (middle, who) = listed
        .iter()
        .enumerate()
        .skip(size / 2)
        .find(|(at, who)| is_writer(*at) && !at_third(who))
        .expect("a writer");
    stop.who.set(who.clone()).expect("once");
    let began = Instant::now();
    release(fleet.any(1), "first", &first).await;
    tokio::time::timeout(LONG, stop.arrived.notified()).await.expect("its turn comes");
    println!("{middle} were granted within {:?}", began.elapsed());

    let doomed: BTreeSet<&String> = listed.iter().skip(middle).filter(|who| at_third(who)).collect();
    let killed = Instant::now();
    fleet.servers.get(2).expect("a third").kill().expect("killed");
    queue_of(fleet.any(0), size - middle - 1 - doomed.len(), LONG).await;
    let skipped = killed.elapsed();
    println!("{} waiters of a killed server left the queue within {skipped:?}", doomed.len());
    assert!(skipped < SILENCE + CROWDED_MARGIN, "{skipped:?}");

    let began = Instant::now();
    stop.go_on.notify_one();
    let mut grants = Vec::new();
    for waiter in waiters {
        grants.extend(tokio::time::timeout(LONG, waiter).await.expect("in time").expect("runs"));
    }
    println!("the other {} were granted within {:?}", size - middle - 1 - doomed.len(), began.elapsed());
    grants.sort_by_key(|(_, grant)| grant.fencing_token);
    let order: Vec<&String> = grants.iter().map(|(holder, _)| holder).collect();
    let expected: Vec<&String> = listed.iter().filter(|who| !doomed.contains(who)).collect();
    let out_of_place: Vec<_> = order.iter().zip(&expected).filter(|(is, should)| is != should).collect();
    assert!(out_of_place.is_empty(), "by tokens, not in the order of the queue: {out_of_place:?}");
    assert_eq!(order.len(), expected.len(), "none is forgotten");
    assert!(grants.iter().all(|(_, grant)| grant.fencing_token > first.fencing_token));
    let after = fleet.any(1).lock(LOCK).await.expect("shown");
    assert_eq!((after.mode, after.queue_length, after.holders.len()), (None, 0, 0), "nobody is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_at_three_servers_are_granted_in_order_and_a_killed_server_is_skipped() {
    crowd(Store::alone(), 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_a_cluster() {
    crowd(Store::cluster(), 200).await;
}

/// Waiters of a server that is killed at the moment when their turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_when_its_waiters_are_next_delays_the_others_once() {
    let fleet = Fleet::start(Store::alone(), 3, "");
    let lock = "task:next";
    let first = take(fleet.any(0), "first", lock, Mode::Exclusive).await;
    let mut waiting = Vec::new();
    let mut names = Vec::new();
    for n in 0..8 {
        // Four of the third server, then four of the others.
        let at = if n < 4 { 2 } else { n % 2 };
        waiting.push((agent(n), wait_for(fleet.any(at), &agent(n), lock, Mode::Exclusive)));
        names.push(agent(n));
        queued(fleet.any(0), lock, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let killed = Instant::now();
    fleet.servers.get(2).expect("a third").kill().expect("killed");
    release(fleet.any(0), "first", &first).await;
    let mut before = first.fencing_token;
    for (n, (agent, waiter)) in waiting.into_iter().enumerate() {
        let answer = tokio::time::timeout(LONG, waiter).await.expect("in time").expect("runs");
        if n < 4 {
            answer.expect_err("its server is gone");
            continue;
        }
        let grant = answer.expect("granted");
        if n == 4 {
            let passed = killed.elapsed();
            println!("the first behind a killed server was granted after {passed:?}");
            assert!(passed < SILENCE + MARGIN, "{passed:?}");
        }
        assert!(grant.fencing_token > before, "in order");
        before = grant.fencing_token;
        release(fleet.any(n % 2), &agent, &grant).await;
    }
}

/// A writer whose server is killed stands between those who share and those who want to, and more of them keep coming.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_a_killed_server_does_not_block_sharers_while_others_keep_coming() {
    let fleet = Fleet::start(Store::alone(), 3, "");
    let lock = "resource:shared:busy";
    let first = take(fleet.any(0), "first", lock, Mode::Shared).await;
    let writer = wait_for(fleet.any(2), "writer", lock, Mode::Exclusive);
    queued(fleet.any(0), lock, &["writer"]).await;
    let patient = wait_for(fleet.any(1), "patient", lock, Mode::Shared);
    queued(fleet.any(0), lock, &["writer", "patient"]).await;
    let killed = Instant::now();
    fleet.servers.get(2).expect("a third").kill().expect("killed");
    let mut came = 0;
    while !patient.is_finished() && killed.elapsed() < LONG / 2 {
        // They do not wait for long, so that there is always a next one.
        let late = agent(came);
        if let Ok(grant) = acquire(fleet.any(0), &ask(&late, lock, Mode::Shared, 0.3)).await {
            release(fleet.any(0), &late, &grant).await;
        }
        came += 1;
    }
    let passed = killed.elapsed();
    println!(
        "a sharer behind a writer of a killed server was granted after {passed:?}, {came} came meanwhile"
    );
    assert!(passed < SILENCE + MARGIN, "{passed:?}");
    let grant = patient.await.expect("runs").expect("granted");
    writer.await.expect("runs").expect_err("its server is gone");
    release(fleet.any(0), "patient", &grant).await;
    release(fleet.any(1), "first", &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_the_same_through_every_server() {
    let fleet = Fleet::start(Store::alone(), 3, "");
    let (one, two, three) = (fleet.any(0), fleet.any(1), fleet.any(2));
    let lock = "resource:database:prod";
    let grant = take(one, "ann", lock, Mode::Exclusive).await;
    for client in &fleet.clients {
        let seen = client.lock(lock).await.expect("shown");
        let holder = seen.holders.first().expect("held");
        assert_eq!((holder.agent_id.as_str(), holder.fencing_token), ("ann", grant.fencing_token));
        let list = client.locks(&[]).await.expect("listed");
        assert_eq!(list.items.len(), 1);
        let refused = acquire(client, &ask("ben", lock, Mode::Shared, 0.0)).await.expect_err("held");
        assert_eq!(refused.code(), Some("LOCK_HELD"));
        assert!(client.agents(&[]).await.expect("listed").items.iter().any(|agent| agent.agent_id == "ann"));
        assert!(heartbeat(client, "ann", &grant).await.expect("kept").results.iter().all(|one| one.ok));
    }
    let seen = two.lock(lock).await.expect("shown");
    assert_eq!(seen.holders.first().map(|holder| holder.heartbeat_count), Some(3), "heard by each of them");
    let token = VerifyRequest { lock: lock.to_owned(), fencing_token: grant.fencing_token };
    assert!(three.verify(&token).await.expect("verified").valid);

    // Broken through one, waited for through another.
    let ben = wait_for(two, "ben", lock, Mode::Shared);
    queued(three, lock, &["ben"]).await;
    assert_eq!(three.break_lock(lock, "to see").await.expect("broken").holders.len(), 1);
    let shared = ben.await.expect("runs").expect("granted");
    assert!(shared.fencing_token > grant.fencing_token);
    assert_eq!(heartbeat(one, "ann", &grant).await.expect_err("lost").code(), Some("LOCK_LOST"));
    assert_eq!(two.verify(&token).await.expect_err("lost").code(), Some("LOCK_LOST"));

    // Upgraded through one server, downgraded through the next, released through the third.
    let upgraded = take(one, "ben", lock, Mode::Exclusive).await;
    assert!(upgraded.fencing_token > shared.fencing_token);
    let down = two.downgrade(&hold("ben", &upgraded)).await.expect("downgraded");
    assert_eq!(down.results.first().and_then(|result| result.mode), Some(Mode::Shared));
    release(three, "ben", &upgraded).await;
    for client in &fleet.clients {
        assert!(client.lock(lock).await.expect("shown").holders.is_empty());
        assert!(client.locks(&[]).await.expect("listed").items.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_of_one_server_is_polled_and_claimed_through_another() {
    let fleet = Fleet::start(Store::alone(), 3, "");
    let (one, two, three) = (fleet.any(0), fleet.any(1), fleet.any(2));
    let lock = "task:ticket";
    let grant = take(one, "ann", lock, Mode::Exclusive).await;
    let queue = |agent: &str| AcquireRequest { queue: true, ..ask(agent, lock, Mode::Exclusive, 60.0) };
    let mut tickets = Vec::new();
    for (client, agent) in [(one, "ben"), (two, "cem"), (three, "dee")] {
        match client.acquire(&queue(agent)).await.expect("queued") {
            Acquired::Ticket(ticket) => tickets.push(ticket),
            Acquired::Granted(grants) => panic!("{grants:?}"),
        }
    }
    let [ben, cem, dee] = tickets.as_slice() else { panic!("three tickets") };
    for (client, ticket, position) in [(two, ben, 1), (three, cem, 2), (one, dee, 3)] {
        let seen = client.ticket(&ticket.ticket).await.expect("known");
        assert_eq!((seen.status, seen.position), (TicketStatus::Waiting, Some(position)));
    }
    two.cancel(&dee.ticket).await.expect("cancelled through a server that never saw it");
    // The server that made the ticket is gone; the ticket is not.
    fleet.servers.first().expect("a first").kill().expect("killed");
    release(two, "ann", &grant).await;
    let mut before = grant.fencing_token;
    for (poller, claimer, agent, ticket) in [(two, three, "ben", ben), (three, two, "cem", cem)] {
        let seen = poller.ticket(&ticket.ticket).await.expect("known");
        assert_eq!(seen.status, TicketStatus::Ready);
        let claimed = claimer.claim(&ticket.ticket).await.expect("claimed");
        assert_eq!(poller.ticket(&ticket.ticket).await.expect("known").status, TicketStatus::Granted);
        let grant = claimed.grants.first().expect("a grant").clone();
        assert!(grant.fencing_token > before);
        before = grant.fencing_token;
        release(poller, agent, &grant).await;
    }
    assert!(three.lock(lock).await.expect("shown").queue.is_empty(), "who cancelled is gone");
}
