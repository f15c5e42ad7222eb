//! kill -9 at any moment under load, and a start on the same folder: whoever was answered still has what was answered.

use crate::load::{Agent, LOCKS, Notes, Unanswered, Update, held, now};
use crate::server::{PATIENCE, Server, folder};
use ade_client::wire::{AcquireRequest, HeldLock, HoldRequest, LockAsk, Mode, TicketStatus, VerifyRequest};
use ade_client::{Acquired, Client, Error};
use ade_testkit::wait::until;
use ade_testkit::{Dice, effort};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const AGENTS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_still_so() {
    let (_folder, data) = folder();
    let notes = Notes::new();
    let mut server = Server::start(&data);
    let mut begun: Vec<Vec<Update>> = vec![Vec::new(); usize::try_from(AGENTS).expect("few")];
    let (rounds, seed) = (effort::rounds(4, 20), effort::seed());
    let mut restarts = Vec::new();
    let (mut alive, mut waiting, mut happened) = (0, 0, 0);
    for round in 0..rounds {
        let mut dice = Dice::new(seed, round);
        let mut agents = JoinSet::new();
        let enough = *notes.answers.borrow() + 50 + dice.below(400);
        for number in 0..AGENTS {
            let begun = std::mem::take(&mut begun[usize::try_from(number).expect("few")]);
            let agent = Agent {
                client: server.client(),
                notes: notes.clone(),
                dice: Dice::new(dice.any(), number),
                name: format!("agent-{round}-{number}"),
                begun,
            };
            agents.spawn(async move { (number, agent.work().await) });
        }
        let mut answers = notes.answers.subscribe();
        let reached = timeout(PATIENCE, answers.wait_for(|answers| *answers >= enough)).await;
        reached.expect("agents get on").expect("the sender lives");
        server.kill();
        let mut unanswered = Vec::new();
        while let Some(ended) = agents.join_next().await {
            let (number, (request, updates)) = ended.expect("no contradiction so far");
            begun[usize::try_from(number).expect("few")] = updates;
            unanswered.push(request);
        }
        let started = Instant::now();
        server = Server::start(&data);
        restarts.push(started.elapsed());
        let client = server.client();
        let (grants, waiters) = compare(&client, &notes).await;
        alive += grants;
        waiting += waiters;
        happened += repeat(&client, &notes, unanswered).await;
        give_up_half(&client, &notes, &mut dice).await;
    }
    let history = notes.history();
    history.check();
    let exclusive = history.grants.values().filter(|held| held.mode == Mode::Exclusive).count();
    let updates: u64 = history.counters.values().map(|counter| counter.accepted).sum();
    let refused: u64 = history.counters.values().map(|counter| counter.refused).sum();
    eprintln!(
        "{rounds} kills (seed {seed}): {} answers, {} grants ({exclusive} exclusive), {updates} updates, \
         {refused} refused; after restarts {alive} grants and {waiting} waiters were still there, and {happened} grants \
         had not been answered; restarts took at most {:?}",
        *notes.answers.borrow(),
        history.grants.len(),
        restarts.iter().max(),
    );
    assert!(exclusive > 10 && updates > 10 && alive > 5 && waiting > 5, "there was something to be lost");
}

/// Right after a restart: grants, queues and tickets are as they were answered. How many grants and waiters there were.
async fn compare(client: &Client, notes: &Notes) -> (usize, usize) {
    let (mut grants, mut waiters) = (0, 0);
    for name in LOCKS {
        let lock = client.lock(name).await.expect("answers");
        let now = now();
        notes.history().check_queue(&lock, now);
        let alive: Vec<_> = {
            let history = notes.history();
            let of_lock = history.grants.iter().filter(|((lock, _), _)| lock == name);
            of_lock.filter(|(_, held)| held.lives(now)).map(|((_, t), h)| (*t, h.clone())).collect()
        };
        waiters += lock.queue.len();
        grants += alive.len();
        for (token, held) in alive {
            let by = lock.holders.iter().find(|by| by.fencing_token == token);
            let by = by.unwrap_or_else(|| panic!("{name} {token} {held:?} was lost: {lock:?}"));
            assert_eq!(by.holder_id, held.holder);
            let verify = VerifyRequest { lock: name.to_owned(), fencing_token: token };
            match client.verify(&verify).await {
                Ok(seen) => assert_eq!(seen.holder.holder_id, held.holder),
                Err(error) => assert!(!held.lives(crate::load::now()), "{held:?} {error}"),
            }
        }
    }
    let tickets = notes.history().tickets.clone();
    for (holder, before) in tickets {
        let seen = client.ticket(&before.ticket).await;
        let over = |until: Option<ade_client::wire::Time>| until.is_some_and(|until| until.0 <= now());
        match seen {
            Ok(ticket) if ticket.status == TicketStatus::Ready => {
                let claimed = client.claim(&before.ticket).await.expect("ready");
                notes.history().granted(&holder, &claimed.grants);
                notes.history().tickets.remove(&holder);
            }
            Ok(ticket) if ticket.status == TicketStatus::Granted => {
                // Its claim was not answered.
                notes.history().granted(&holder, &ticket.grants);
                notes.history().tickets.remove(&holder);
            }
            Ok(ticket) => {
                assert_eq!(before.status, TicketStatus::Waiting, "{before:?} fell back to {ticket:?}");
                assert!(ticket.position <= before.position, "{before:?} fell back to {ticket:?}");
                notes.history().tickets.insert(holder, ticket);
            }
            Err(error) => {
                // Only time ends it: its own, or that of a claim which nobody saw.
                assert!(over(before.deadline) || error.code() == Some("LOCK_LOST"), "{before:?} {error}");
                notes.history().tickets.remove(&holder);
                notes.history().left.insert(holder);
            }
        }
    }
    (grants, waiters)
}

/// Whoever was not answered asks again, all at the same time, and learns how the request stands. How many had been granted.
async fn repeat(client: &Client, notes: &Notes, unanswered: Vec<Unanswered>) -> usize {
    let mut repeating = JoinSet::new();
    for request in unanswered {
        let (client, notes) = (client.clone(), notes.clone());
        repeating.spawn(async move {
            match request {
                Unanswered::Acquire(request) => return repeat_acquire(&client, &notes, request).await,
                // Either it was released then, or it is now, or its lease ran out.
                Unanswered::Release(request) => match client.release(&request).await {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.code(), Some("LOCK_LOST"), "{error}"),
                },
                Unanswered::Other => {}
            }
            false
        });
    }
    let mut happened = 0;
    while let Some(ended) = repeating.join_next().await {
        happened += usize::from(ended.expect("no contradiction so far"));
    }
    happened
}

async fn repeat_acquire(client: &Client, notes: &Notes, request: AcquireRequest) -> bool {
    let holder = request.holder_id.clone().expect("named");
    let (mut tokens, mut until) = (Vec::new(), Vec::new());
    for ask in &request.locks {
        let lock = client.lock(&ask.lock).await.expect("answers");
        let own = lock.holders.iter().find(|by| by.holder_id == holder);
        tokens.extend(own.map(|by| (ask.lock.clone(), by.fencing_token)));
        until.extend(own.map(|by| by.expires_at.0));
    }
    let had_all = tokens.len() == request.locks.len();
    match client.acquire(&request).await {
        Ok(Acquired::Granted(grants)) => {
            for grant in &grants.grants {
                let token = tokens.iter().find(|(lock, _)| *lock == grant.lock);
                assert!(token.is_none_or(|(_, t)| *t == grant.fencing_token), "{tokens:?} {grants:?}");
            }
            notes.history().granted(&holder, &grants.grants);
        }
        Ok(Acquired::Ticket(ticket)) => {
            notes.history().tickets.insert(holder, ticket);
        }
        Err(error) => {
            assert!(
                matches!(error.code(), Some("LOCK_HELD" | "LOCK_LOST" | "CANCELLED")),
                "{request:?} {error}"
            );
            assert!(!had_all || until.iter().any(|until| *until <= now()), "{request:?} {tokens:?} {error}");
            notes.history().left.insert(holder);
        }
    }
    had_all
}

/// The tokens that were answered before the kill are good for a release after it.
async fn give_up_half(client: &Client, notes: &Notes, dice: &mut Dice) {
    let alive: Vec<_> = {
        let history = notes.history();
        let alive = history.grants.iter().filter(|(_, held)| held.lives(now()));
        alive.map(|((lock, token), held)| (lock.clone(), *token, held.clone())).collect()
    };
    for (lock, fencing_token, held) in alive {
        if dice.below(2) == 0 {
            continue;
        }
        notes.history().releasing(&lock, fencing_token, now());
        let agent_id = held.holder.rsplit_once('-').map(|(agent, _)| agent.to_owned());
        let locks = vec![HeldLock { lock, fencing_token }];
        let request = HoldRequest { agent_id, holder_id: Some(held.holder.clone()), locks };
        if let Err(error) = client.release(&request).await {
            assert!(held.expires_at <= now(), "{held:?} {error}");
        }
    }
}

fn ask(who: &str, mode: Mode) -> AcquireRequest {
    AcquireRequest {
        locks: vec![LockAsk { lock: "resource:db:p".to_owned(), mode: Some(mode) }],
        agent_id: Some(who.to_owned()),
        ttl_seconds: Some(300.0),
        wait_seconds: Some(300.0),
        request_id: Some(format!("of-{who}")),
        ..AcquireRequest::default()
    }
}

/// Somebody whose answer got lost with the server asks again with the same id.
#[tokio::test]
async fn a_repetition_after_a_kill_finds_its_request() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let client = server.client();
    let several = AcquireRequest {
        locks: ["task:1", "resource:db:q"].map(|lock| LockAsk { lock: lock.to_owned(), mode: None }).to_vec(),
        ..ask("ann", Mode::Exclusive)
    };
    let waiting = AcquireRequest {
        queue: true,
        agent_id: Some("ben".to_owned()),
        purpose: Some("waits".to_owned()),
        ..several.clone()
    };
    let released = ask("cem", Mode::Exclusive);
    let taken = client.acquire(&several).await.expect("free");
    let queued = client.acquire(&waiting).await.expect("queued");
    let Acquired::Granted(gone) = client.acquire(&released).await.expect("free") else { panic!("free") };
    let release = HoldRequest {
        agent_id: Some("cem".to_owned()),
        holder_id: None,
        locks: gone.grants.iter().map(held).collect(),
    };
    client.release(&release).await.expect("held");
    server.kill();
    let server = Server::start(&data);
    let client = server.client();
    assert_eq!(client.acquire(&several).await.expect("held"), taken);
    let Acquired::Ticket(again) = client.acquire(&waiting).await.expect("queued") else { panic!("queued") };
    let Acquired::Ticket(queued) = queued else { panic!("queued") };
    assert_eq!((again.ticket, again.position), (queued.ticket, Some(1)), "and not twice in the queue");
    assert_eq!(client.lock("task:1").await.expect("answers").queue.len(), 1);
    let over = client.acquire(&released).await.expect_err("it does not come back");
    assert_eq!(over.code(), Some("LOCK_LOST"), "{over}");
    assert_eq!(client.release(&release).await.expect_err("once").code(), Some("LOCK_LOST"));
    let other = AcquireRequest { purpose: Some("another".to_owned()), ..several };
    let reused = client.acquire(&other).await.expect_err("the id is taken");
    assert_eq!(reused.code(), Some("REQUEST_ID_REUSED"), "{reused}");
    let Acquired::Granted(next) = client.acquire(&ask("dee", Mode::Exclusive)).await.expect("free") else {
        panic!("free")
    };
    assert!(next.grants[0].fencing_token > gone.grants[0].fencing_token, "also when nobody held it");
}

/// Waiters keep their places whether they have tickets or open answers; those come back with the same request.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_the_same_after_a_kill() {
    let (_folder, data) = folder();
    let mut server = Server::start(&data);
    let waiters = [
        ("ben", Mode::Exclusive, false),
        ("cem", Mode::Shared, true),
        ("dee", Mode::Shared, false),
        ("eve", Mode::Exclusive, true),
        ("fay", Mode::Exclusive, false),
    ];
    let client = server.client();
    let Acquired::Granted(first) = client.acquire(&ask("ann", Mode::Exclusive)).await.expect("free") else {
        panic!("not granted")
    };
    let mut open = JoinSet::new();
    let mut tickets = Vec::new();
    for (at, (who, mode, ticket)) in waiters.into_iter().enumerate() {
        let request = AcquireRequest { queue: ticket, ..ask(who, mode) };
        if let (true, Acquired::Ticket(ticket)) = (ticket, spawn(&client, &request, &mut open, ticket).await)
        {
            tickets.push((who, ticket.ticket));
        }
        wait_for_queue(&client, at + 1).await;
    }
    let before = client.lock("resource:db:p").await.expect("answers");
    for _ in 0..2 {
        server.kill();
        while let Some(ended) = open.join_next().await {
            assert!(matches!(ended.expect("ran"), (_, Err(Error::Unreachable { .. }))));
        }
        server = Server::start(&data);
        let client = server.client();
        assert_eq!(client.lock("resource:db:p").await.expect("answers"), before, "right after the start");
        for (who, mode, _) in waiters.iter().filter(|(.., ticket)| !ticket) {
            spawn(&client, &ask(who, *mode), &mut open, false).await;
        }
    }
    // Who had an open answer is back by now, or comes back within the 3 s that a restart leaves for it.
    let client = server.client();
    let mut order = Vec::new();
    let mut grants = first.grants;
    let mut holders = vec!["ann".to_owned()];
    while order.len() < waiters.len() {
        for (holder, grant) in holders.drain(..).zip(grants.drain(..)) {
            let request = HoldRequest { agent_id: Some(holder), holder_id: None, locks: vec![held(&grant)] };
            client.release(&request).await.expect("held");
        }
        let now_held = client.lock("resource:db:p").await.expect("answers").holders;
        for by in &now_held {
            let granted = match tickets.iter().find(|(who, _)| *who == by.agent_id) {
                Some((_, ticket)) => client.claim(ticket).await.expect("ready").grants,
                None => {
                    let ended = timeout(PATIENCE, open.join_next()).await.expect("granted in time");
                    let (who, granted) = ended.expect("somebody waits").expect("ran");
                    assert_eq!(who, by.agent_id);
                    match granted.expect("granted") {
                        Acquired::Granted(grants) => grants.grants,
                        Acquired::Ticket(_) => panic!("not asked for"),
                    }
                }
            };
            assert!(granted[0].fencing_token > before.holders[0].fencing_token);
            order.push(by.agent_id.clone());
            holders.push(by.agent_id.clone());
            grants.extend(granted);
        }
    }
    assert_eq!(order, ["ben", "cem", "dee", "eve", "fay"]);
}

type Ended = (String, Result<Acquired, Error>);

/// Asks, and waits for the answer only if it comes at once.
async fn spawn(
    client: &Client,
    request: &AcquireRequest,
    open: &mut JoinSet<Ended>,
    at_once: bool,
) -> Acquired {
    if at_once {
        return client.acquire(request).await.expect("queued");
    }
    let (client, request) = (client.clone(), request.clone());
    let who = request.agent_id.clone().unwrap_or_default();
    open.spawn(async move { (who, client.acquire(&request).await) });
    Acquired::Granted(ade_client::wire::Grants { grants: Vec::new() })
}

async fn wait_for_queue(client: &Client, length: usize) {
    let look = || async {
        let waiting = client.lock("resource:db:p").await.expect("answers").queue.len();
        if waiting < length { Err(format!("{waiting} of {length}")) } else { Ok(()) }
    };
    until("everybody waits", PATIENCE, look).await.expect("in time");
}
