//! SIGKILL at random moments under load, then a restart on the same folder: every acknowledged change survives.

use crate::locks::server::{Server, TIMEOUT, data_folder};
use crate::locks::workload::{Agent, LOCKS, PendingUpdate, Recorder, Unanswered, held_lock, now};
use ade_client::wire::{
    AcquireRequest, HeldLocksRequest, LockMode, LockSpec, LockToken, TicketStatus, VerifyTokenRequest,
};
use ade_client::{AcquireOutcome, Client, Error};
use ade_testkit::wait::until;
use ade_testkit::{SeededRng, effort};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const AGENTS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_state_survives_kill_under_load() {
    let (_folder, data) = data_folder();
    let recorder = Recorder::new();
    let mut server = Server::start(&data);
    let mut pending_updates: Vec<Vec<PendingUpdate>> =
        vec![Vec::new(); usize::try_from(AGENTS).expect("few")];
    let (rounds, seed) = (effort::rounds(4, 20), effort::seed());
    let mut restarts = Vec::new();
    let (mut grants_alive, mut still_waiting, mut granted_unacknowledged) = (0, 0, 0);
    for round in 0..rounds {
        let mut rng = SeededRng::new(seed, round);
        let mut agents = JoinSet::new();
        let kill_at = *recorder.response_count.borrow() + 50 + rng.below(400);
        for number in 0..AGENTS {
            let index = usize::try_from(number).expect("few");
            let agent = Agent {
                client: server.client(),
                recorder: recorder.clone(),
                rng: SeededRng::new(rng.any(), number),
                name: format!("agent-{round}-{number}"),
                pending_updates: std::mem::take(&mut pending_updates[index]),
            };
            agents.spawn(async move { (index, agent.run().await) });
        }
        let mut responses = recorder.response_count.subscribe();
        let reached = timeout(TIMEOUT, responses.wait_for(|count| *count >= kill_at)).await;
        reached.expect("agents make progress").expect("the sender lives");
        server.kill();
        let mut unanswered = Vec::new();
        while let Some(ended) = agents.join_next().await {
            let (index, (request, updates)) = ended.expect("responses are consistent");
            pending_updates[index] = updates;
            unanswered.push(request);
        }
        let started = Instant::now();
        server = Server::start(&data);
        restarts.push(started.elapsed());
        let client = server.client();
        let (grants, waiters) = check_state(&client, &recorder).await;
        grants_alive += grants;
        still_waiting += waiters;
        granted_unacknowledged += retry_all(&client, &recorder, unanswered).await;
        release_half(&client, &recorder, &mut rng).await;
    }
    let history = recorder.history();
    history.check_all();
    let exclusive = history.grants.values().filter(|held| held.mode == LockMode::Exclusive).count();
    let updates: u64 = history.counters.values().map(|counter| counter.accepted).sum();
    let rejected: u64 = history.counters.values().map(|counter| counter.rejected).sum();
    eprintln!(
        "{rounds} kills (seed {seed}): {} responses, {} grants ({exclusive} exclusive), {updates} counter updates, \
         {rejected} rejected by fencing; after restarts {grants_alive} grants were alive, {still_waiting} waiters were \
         queued, and {granted_unacknowledged} grants had not been acknowledged; restarts took at most {:?}",
        *recorder.response_count.borrow(),
        history.grants.len(),
        restarts.iter().max(),
    );
    assert!(
        exclusive > 10 && updates > 10 && grants_alive > 5 && still_waiting > 5,
        "the workload was too small to prove anything"
    );
}

/// Checks grants, queues and tickets against the history right after a restart. Returns the number of live grants and
/// of waiters.
async fn check_state(client: &Client, recorder: &Recorder) -> (usize, usize) {
    let (mut grants, mut waiters) = (0, 0);
    for name in LOCKS {
        let lock = client.lock(name).await.expect("answers");
        let now = now();
        recorder.history().check_queue(&lock, now);
        let alive: Vec<_> = {
            let history = recorder.history();
            let of_lock = history.grants.iter().filter(|((lock, _), _)| lock == name);
            of_lock.filter(|(_, held)| held.is_alive(now)).map(|((_, t), h)| (*t, h.clone())).collect()
        };
        waiters += lock.queue.len();
        grants += alive.len();
        for (token, held) in alive {
            let holder = lock.holders.iter().find(|holder| holder.fencing_token == token);
            let holder = holder.unwrap_or_else(|| panic!("{name} {token} {held:?} was lost: {lock:?}"));
            assert_eq!(holder.holder_id, held.holder);
            let verify = VerifyTokenRequest { lock: name.to_owned(), fencing_token: token };
            match client.verify_token(&verify).await {
                Ok(seen) => assert_eq!(seen.holder.holder_id, held.holder),
                Err(error) => assert!(!held.is_alive(crate::locks::workload::now()), "{held:?} {error}"),
            }
        }
    }
    let tickets = recorder.history().tickets.clone();
    for (holder, before) in tickets {
        let seen = client.ticket(&before.ticket).await;
        let is_past = |until: Option<ade_client::wire::Time>| until.is_some_and(|until| until.0 <= now());
        match seen {
            Ok(ticket) if ticket.status == TicketStatus::Ready => {
                let claimed = client.claim_ticket(&before.ticket).await.expect("ready");
                recorder.history().record_grants(&holder, &claimed.grants);
                recorder.history().tickets.remove(&holder);
            }
            Ok(ticket) if ticket.status == TicketStatus::Granted => {
                // The claim succeeded but its response was lost.
                recorder.history().record_grants(&holder, &ticket.grants);
                recorder.history().tickets.remove(&holder);
            }
            Ok(ticket) => {
                assert_eq!(before.status, TicketStatus::Waiting, "{before:?} regressed to {ticket:?}");
                assert!(ticket.position <= before.position, "{before:?} regressed to {ticket:?}");
                recorder.history().tickets.insert(holder, ticket);
            }
            Err(error) => {
                // A ticket ends only by its deadline, or by the expiry of a grant whose claim got no response.
                assert!(is_past(before.deadline) || error.code() == Some("LOCK_LOST"), "{before:?} {error}");
                recorder.history().tickets.remove(&holder);
                recorder.history().left.insert(holder);
            }
        }
    }
    (grants, waiters)
}

/// Retries all requests that got no response, concurrently. Returns how many of them had been granted before the kill.
async fn retry_all(client: &Client, recorder: &Recorder, unanswered: Vec<Unanswered>) -> usize {
    let mut retries = JoinSet::new();
    for request in unanswered {
        let (client, recorder) = (client.clone(), recorder.clone());
        retries.spawn(async move {
            match request {
                Unanswered::Acquire(request) => return retry_acquire(&client, &recorder, request).await,
                // It was released before the kill, or is released now, or its lease expired.
                Unanswered::Release(request) => match client.release_locks(&request).await {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.code(), Some("LOCK_LOST"), "{error}"),
                },
                Unanswered::Other => {}
            }
            false
        });
    }
    let mut granted = 0;
    while let Some(ended) = retries.join_next().await {
        granted += usize::from(ended.expect("responses are consistent"));
    }
    granted
}

async fn retry_acquire(client: &Client, recorder: &Recorder, request: AcquireRequest) -> bool {
    let holder = request.holder_id.clone().expect("named");
    let (mut tokens, mut expiries) = (Vec::new(), Vec::new());
    for ask in &request.locks {
        let lock = client.lock(&ask.lock).await.expect("answers");
        let own = lock.holders.iter().find(|by| by.holder_id == holder);
        tokens.extend(own.map(|own| (ask.lock.clone(), own.fencing_token)));
        expiries.extend(own.map(|own| own.expires_at.0));
    }
    let held_all = tokens.len() == request.locks.len();
    match client.acquire_locks(&request).await {
        Ok(AcquireOutcome::Granted(grants)) => {
            for grant in &grants.grants {
                let token = tokens.iter().find(|(lock, _)| *lock == grant.lock);
                assert!(token.is_none_or(|(_, t)| *t == grant.fencing_token), "{tokens:?} {grants:?}");
            }
            recorder.history().record_grants(&holder, &grants.grants);
        }
        Ok(AcquireOutcome::Queued(ticket)) => {
            recorder.history().tickets.insert(holder, ticket);
        }
        Err(error) => {
            assert!(
                matches!(error.code(), Some("LOCK_HELD" | "LOCK_LOST" | "CANCELLED")),
                "{request:?} {error}"
            );
            assert!(
                !held_all || expiries.iter().any(|expiry| *expiry <= now()),
                "{request:?} {tokens:?} {error}"
            );
            recorder.history().left.insert(holder);
        }
    }
    held_all
}

/// Tokens acknowledged before the kill are still valid for a release after it.
async fn release_half(client: &Client, recorder: &Recorder, rng: &mut SeededRng) {
    let alive: Vec<_> = {
        let history = recorder.history();
        let alive = history.grants.iter().filter(|(_, held)| held.is_alive(now()));
        alive.map(|((lock, token), held)| (lock.clone(), *token, held.clone())).collect()
    };
    for (lock, fencing_token, held) in alive {
        if rng.below(2) == 0 {
            continue;
        }
        recorder.history().record_release(&lock, fencing_token, now());
        let agent_id = held.holder.rsplit_once('-').map(|(agent, _)| agent.to_owned());
        let locks = vec![LockToken { lock, fencing_token }];
        let request = HeldLocksRequest { agent_id, holder_id: Some(held.holder.clone()), locks };
        if let Err(error) = client.release_locks(&request).await {
            assert!(held.expires_at <= now(), "{held:?} {error}");
        }
    }
}

fn request(agent: &str, mode: LockMode) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockSpec { lock: "resource:db:p".to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(300.0),
        request_id: Some(format!("of-{agent}")),
        ..AcquireRequest::default()
    }
}

/// A client whose response was lost retries with the same request id.
#[tokio::test]
async fn retry_after_kill_returns_same_grant_or_ticket() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let client = server.client();
    let several = AcquireRequest {
        locks: ["task:1", "resource:db:q"]
            .map(|lock| LockSpec { lock: lock.to_owned(), mode: None })
            .to_vec(),
        ..request("ann", LockMode::Exclusive)
    };
    let waiting = AcquireRequest {
        queue: true,
        agent_id: Some("ben".to_owned()),
        purpose: Some("waits".to_owned()),
        ..several.clone()
    };
    let released = request("cem", LockMode::Exclusive);
    let granted = client.acquire_locks(&several).await.expect("free");
    let queued = client.acquire_locks(&waiting).await.expect("queued");
    let AcquireOutcome::Granted(ended) = client.acquire_locks(&released).await.expect("free") else {
        panic!("free")
    };
    let release = HeldLocksRequest {
        agent_id: Some("cem".to_owned()),
        holder_id: None,
        locks: ended.grants.iter().map(held_lock).collect(),
    };
    client.release_locks(&release).await.expect("held");
    server.kill();
    let server = Server::start(&data);
    let client = server.client();
    assert_eq!(client.acquire_locks(&several).await.expect("held"), granted);
    let AcquireOutcome::Queued(again) = client.acquire_locks(&waiting).await.expect("queued") else {
        panic!("queued")
    };
    let AcquireOutcome::Queued(queued) = queued else { panic!("queued") };
    assert_eq!((again.ticket, again.position), (queued.ticket, Some(1)), "queued once, with the same ticket");
    assert_eq!(client.lock("task:1").await.expect("answers").queue.len(), 1);
    let lost = client.acquire_locks(&released).await.expect_err("a released grant is not revived");
    assert_eq!(lost.code(), Some("LOCK_LOST"), "{lost}");
    assert_eq!(client.release_locks(&release).await.expect_err("released already").code(), Some("LOCK_LOST"));
    let other = AcquireRequest { purpose: Some("another".to_owned()), ..several };
    let reused = client.acquire_locks(&other).await.expect_err("the id is taken");
    assert_eq!(reused.code(), Some("REQUEST_ID_REUSED"), "{reused}");
    let AcquireOutcome::Granted(next) =
        client.acquire_locks(&request("dee", LockMode::Exclusive)).await.expect("free")
    else {
        panic!("free")
    };
    assert!(
        next.grants[0].fencing_token > ended.grants[0].fencing_token,
        "tokens increase although the lock was free at the kill"
    );
}

/// Waiters with tickets and waiters with open requests both keep their positions; the latter reconnect with the same
/// request.
#[tokio::test(flavor = "multi_thread")]
async fn queue_order_survives_kill() {
    let (_folder, data) = data_folder();
    let mut server = Server::start(&data);
    let waiters = [
        ("ben", LockMode::Exclusive, false),
        ("cem", LockMode::Shared, true),
        ("dee", LockMode::Shared, false),
        ("eve", LockMode::Exclusive, true),
        ("fay", LockMode::Exclusive, false),
    ];
    let client = server.client();
    let AcquireOutcome::Granted(first) =
        client.acquire_locks(&request("ann", LockMode::Exclusive)).await.expect("free")
    else {
        panic!("not granted")
    };
    let mut open_requests = JoinSet::new();
    let mut tickets = Vec::new();
    for (index, (who, mode, ticket)) in waiters.into_iter().enumerate() {
        let request = AcquireRequest { queue: ticket, ..request(who, mode) };
        if let (true, AcquireOutcome::Queued(ticket)) =
            (ticket, send(&client, &request, &mut open_requests, ticket).await)
        {
            tickets.push((who, ticket.ticket));
        }
        wait_for_queue(&client, index + 1).await;
    }
    let before = client.lock("resource:db:p").await.expect("answers");
    for _ in 0..2 {
        server.kill();
        while let Some(ended) = open_requests.join_next().await {
            assert!(matches!(ended.expect("ran"), (_, Err(Error::Unreachable { .. }))));
        }
        server = Server::start(&data);
        let client = server.client();
        assert_eq!(client.lock("resource:db:p").await.expect("answers"), before, "right after the start");
        for (who, mode, _) in waiters.iter().filter(|(.., ticket)| !ticket) {
            send(&client, &request(who, *mode), &mut open_requests, false).await;
        }
    }
    // Open requests have reconnected by now, or do so within the 3 s that a restart grants them.
    let client = server.client();
    let mut order = Vec::new();
    let mut grants = first.grants;
    let mut holders = vec!["ann".to_owned()];
    while order.len() < waiters.len() {
        for (agent, grant) in holders.drain(..).zip(grants.drain(..)) {
            let request =
                HeldLocksRequest { agent_id: Some(agent), holder_id: None, locks: vec![held_lock(&grant)] };
            client.release_locks(&request).await.expect("held");
        }
        let now_held = client.lock("resource:db:p").await.expect("answers").holders;
        for holder in &now_held {
            let granted = match tickets.iter().find(|(who, _)| *who == holder.agent_id) {
                Some((_, ticket)) => client.claim_ticket(ticket).await.expect("ready").grants,
                None => {
                    let ended = timeout(TIMEOUT, open_requests.join_next()).await.expect("granted in time");
                    let (who, granted) = ended.expect("a request is open").expect("ran");
                    assert_eq!(who, holder.agent_id);
                    match granted.expect("granted") {
                        AcquireOutcome::Granted(grants) => grants.grants,
                        AcquireOutcome::Queued(_) => panic!("unexpected ticket"),
                    }
                }
            };
            assert!(granted[0].fencing_token > before.holders[0].fencing_token);
            order.push(holder.agent_id.clone());
            holders.push(holder.agent_id.clone());
            grants.extend(granted);
        }
    }
    assert_eq!(order, ["ben", "cem", "dee", "eve", "fay"]);
}

type Completed = (String, Result<AcquireOutcome, Error>);

/// Sends the request: with `at_once` it returns the ticket, otherwise the request keeps waiting in a task of its own.
async fn send(
    client: &Client,
    request: &AcquireRequest,
    open_requests: &mut JoinSet<Completed>,
    at_once: bool,
) -> AcquireOutcome {
    if at_once {
        return client.acquire_locks(request).await.expect("queued");
    }
    let (client, request) = (client.clone(), request.clone());
    let who = request.agent_id.clone().unwrap_or_default();
    open_requests.spawn(async move { (who, client.acquire_locks(&request).await) });
    AcquireOutcome::Granted(ade_client::wire::Grants { grants: Vec::new() })
}

async fn wait_for_queue(client: &Client, length: usize) {
    let observe = || async {
        let waiting = client.lock("resource:db:p").await.expect("answers").queue.len();
        if waiting < length { Err(format!("{waiting} of {length}")) } else { Ok(()) }
    };
    until("all waiters are queued", TIMEOUT, observe).await.expect("in time");
}
