//! What was answered survives: closing, kill -9 at any moment, snapshots in between; and time goes on meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::disk::{clock, copy, cut_last_segment, has_snapshot, open, wait_until_closed};
use ade_domain::lock::{
    Acquire, Answer, Draft, End, Holder, LockCommand, LockLimits, LockName, LockRequest, Mode, Outcome,
    RequestKey, Standing, Token, Wait,
};
use ade_store::coordination::{AgentUpdate, AgentView, Filter, LockView, Ticket, WaitView};
use ade_store::embedded::{OpenError, Options};
use ade_store::{Agents, Capacity, EmbeddedCoordination, FolderError, Locks, Requests};
use ade_testkit::{Dice, ManualClock, effort};

const LOCKS: [&str; 5] = ["task:1", "task:a:{}%ü", "resource:db:p", "resource:db:q", "resource:file:x:y"];
const HOLDERS: [&str; 5] = ["ann", "ben", "cem", "dee", "ü🔒"];

fn lock(name: &str) -> LockName {
    name.parse().expect("valid")
}

fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("valid")
}

/// Snapshots come often, deadlines and leases end within a run.
fn options() -> Options {
    let rules =
        LockLimits { max_queue: 3, crowded_after: 3, server_silence_ms: 3_600_000, ..LockLimits::default() };
    Options { rules, snapshot_after_bytes: 4_096, max_named_agents: 10_000 }
}

fn wish(who: &str, request: &str, mode: Mode) -> Acquire {
    Acquire {
        request: RequestKey::of(&holder(who), request),
        holder: holder(who),
        remember: true,
        mode,
        ttl_ms: 8_000,
        claimed: true,
        wait: Some(Wait { ms: 10_000, served_by: None }),
        purpose: "\"why\" ü".into(),
        priority: 1,
    }
}

/// Everything that the port shows.
#[derive(Debug, PartialEq)]
struct Shot {
    list: Vec<LockView>,
    waits: Vec<WaitView>,
    looks: Vec<LockView>,
    agents: Vec<AgentView>,
    tickets: Vec<Option<Ticket>>,
}

async fn shot(backend: &EmbeddedCoordination, requests: u64) -> Shot {
    let list = backend.list(Filter::default(), None, usize::MAX).await.expect("answers");
    let waits = backend.waits(usize::MAX).await.expect("answers");
    let mut agents = backend.agents(None, usize::MAX).await.expect("answers");
    for agent in &mut agents {
        // When an agent was heard of is partly known in memory alone, and who waits counts as heard of after a restart.
        agent.last_heartbeat = ade_domain::Moment::default();
        agent.status = ade_domain::agent::Status::Active;
        // What found no room asks again.
        agent.queued_tasks = 0;
    }
    let (mut looks, mut tickets) = (Vec::new(), Vec::new());
    for name in LOCKS {
        looks.push(backend.look(lock(name)).await.expect("answers"));
    }
    for request in 0..requests {
        for who in HOLDERS {
            let key = RequestKey::of(&holder(who), &request.to_string());
            tickets.push(backend.recall(key).await.expect("answers"));
        }
    }
    Shot { list, waits, looks, agents, tickets }
}

/// One random thing that a client may do.
#[derive(Debug, Clone)]
enum Act {
    Lock(LockName, LockCommand),
    Remember(RequestKey, u128, Option<Ticket>, u64),
    Forget(RequestKey),
    Put(String, AgentUpdate, bool),
    Remove(String),
    Heard(String),
    Claim(String, String, u64),
    Unclaim(String, String),
    /// Time passes.
    Pass(u64),
    /// Time passes, and what is due happens.
    Sweep(u64),
}

/// What came of it.
#[derive(Debug, PartialEq)]
enum Result {
    Lock(Vec<Answer>),
    Told(String),
}

async fn act(backend: &EmbeddedCoordination, act: Act) -> Result {
    match act {
        Act::Lock(name, command) => {
            return Result::Lock(backend.commands(vec![(name, command)]).await.expect("answers"));
        }
        Act::Remember(key, digest, ticket, ms) => {
            let until = backend.now().plus_ms(ms);
            Result::Told(format!("{:?}", backend.remember(key, digest, ticket, until).await))
        }
        Act::Forget(key) => Result::Told(format!("{:?}", backend.forget(key).await)),
        Act::Put(id, update, create) => {
            let put = backend.put(id, update, create).await.expect("answers");
            Result::Told(format!("{:?}", put.map(|view| (view.profile, view.max_tasks, view.status))))
        }
        Act::Remove(id) => Result::Told(format!("{:?}", backend.remove(id).await)),
        Act::Heard(id) => Result::Told(format!("{:?}", backend.heard(id).await)),
        Act::Claim(id, task, ms) => {
            Result::Told(format!("{:?}", backend.claim(id, task, backend.now().plus_ms(ms)).await))
        }
        Act::Unclaim(id, task) => Result::Told(format!("{:?}", backend.unclaim(id, task).await)),
        Act::Sweep(_) => Result::Told(format!("{:?}", backend.sweep().await)),
        Act::Pass(_) => Result::Told(String::new()),
    }
}

fn any_act(dice: &mut Dice, request: u64, tokens: &BTreeMap<(Holder, LockName), Token>) -> Act {
    let who = HOLDERS[dice.below(5) as usize];
    let name = lock(LOCKS[dice.below(5) as usize]);
    let key =
        |dice: &mut Dice| RequestKey::of(&holder(who), &request.saturating_sub(dice.below(12)).to_string());
    let token = tokens.get(&(holder(who), name.clone())).copied().unwrap_or_default();
    match dice.below(24) {
        0..=8 => {
            let mode = if dice.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
            let served_by = (dice.below(2) == 0).then(|| "server".into());
            let wait = (dice.below(5) > 0).then(|| Wait { ms: 2_000 + dice.below(20_000), served_by });
            // Some are repetitions of requests that wait, hold or are over.
            let (request, claimed) = (key(dice), dice.below(4) > 0);
            Act::Lock(name, LockCommand::Acquire(Acquire { request, wait, claimed, ..wish(who, "", mode) }))
        }
        9 => Act::Lock(name, LockCommand::Claim { holder: holder(who), request: key(dice), ttl_ms: 9_000 }),
        10 => Act::Lock(name, LockCommand::Keep { holder: holder(who), request: key(dice), ms: 9_000 }),
        11 => Act::Lock(name, LockCommand::Extend { holder: holder(who), token, ms: 12_000 }),
        12 | 13 => Act::Lock(name, LockCommand::Release { holder: holder(who), token }),
        14 => Act::Lock(name, LockCommand::Downgrade { holder: holder(who), token }),
        15 => {
            let why = if dice.below(2) == 0 { End::Cancelled } else { End::TimedOut };
            Act::Lock(
                name,
                LockCommand::Cancel { holder: holder(who), request: key(dice), why, begun: false },
            )
        }
        16 if dice.below(4) == 0 => Act::Lock(name, LockCommand::Break),
        16 | 17 => {
            let draft = Draft { locks: vec![(LOCKS[2], None), (LOCKS[1], None)], ..Draft::default() };
            let request = LockRequest::new(holder(who), &draft, &LockLimits::default(), 7).expect("valid");
            let deadline = ade_domain::Moment::from_micros(dice.below(1 << 50));
            let ticket = (dice.below(2) == 0).then_some(Ticket { request, deadline });
            Act::Remember(key(dice), u128::from(dice.below(2)), ticket, 1 + dice.below(20_000))
        }
        18 => Act::Forget(key(dice)),
        19 => {
            let update =
                AgentUpdate { max_tasks: Some(3), draining: Some(dice.below(2) == 0), profile: None };
            Act::Put(who.to_owned(), update, dice.below(2) == 0)
        }
        20 if dice.below(4) == 0 => Act::Remove(who.to_owned()),
        20 | 21 => Act::Heard(who.to_owned()),
        // At least a second: housekeeping is due then, however long the backend has been open.
        22 => Act::Sweep(1_000 + dice.below(2_000)),
        _ => Act::Pass(dice.below(3_000)),
    }
}

/// One random thing about the tasks of an agent. Locks know nothing of them, so these acts have dice of their own.
fn any_claim(dice: &mut Dice) -> Act {
    let (who, task) = (HOLDERS[dice.below(5) as usize].to_owned(), dice.below(5).to_string());
    if dice.below(4) == 0 { Act::Unclaim(who, task) } else { Act::Claim(who, task, dice.below(10_000)) }
}

/// Notes tokens of grants, and that they grow.
#[derive(Default)]
struct Tokens {
    held: BTreeMap<(Holder, LockName), Token>,
    last: BTreeMap<LockName, Token>,
}

impl Tokens {
    async fn note(&mut self, backend: &EmbeddedCoordination) {
        for name in LOCKS {
            let name = lock(name);
            let mut highest = self.last.get(&name).copied().unwrap_or_default();
            for held in backend.look(name.clone()).await.expect("answers").holders {
                let token = held.grant.token;
                let known = self.held.insert((held.holder.clone(), name.clone()), token);
                // An upgrade that was not claimed falls back to the grant before it.
                let old = known == Some(token) || held.grant.mode == Mode::Shared;
                assert!(old || Some(&token) > self.last.get(&name), "{name}: {token} after {known:?}");
                highest = highest.max(token);
            }
            self.last.insert(name, highest);
        }
    }
}

#[tokio::test]
async fn a_backend_that_is_closed_and_opened_answers_like_one_that_never_was() {
    let (rounds, seed) = (effort::rounds(12, 400), effort::seed());
    let mut snapshots = 0;
    for round in 0..rounds {
        let (mut dice, mut dice_of_claims) = (Dice::new(seed, round), Dice::new(seed ^ 2, round));
        let (folder, other, clock) = (crate::disk::folder(), crate::disk::folder(), clock());
        let never_closed = open(other.path(), Options { snapshot_after_bytes: 1 << 30, ..options() }, &clock);
        let never_closed = never_closed.expect("opened");
        let (mut tokens, mut request) = (Tokens::default(), 0);
        for batch in 0..8 {
            let backend = open(folder.path(), options(), &clock).expect("opened");
            let at = format!("seed {seed}, round {round}, batch {batch}");
            let expected = shot(&never_closed, request).await;
            assert_eq!(shot(&backend, request).await, expected, "{at}: after it was opened");
            for who in HOLDERS {
                for one in [&backend, &never_closed] {
                    one.heard(who.to_owned()).await.expect("answers");
                }
            }
            for _ in 0..50 {
                request += 1;
                let doing = any_act(&mut dice, request, &tokens.held);
                if let Act::Pass(ms) | Act::Sweep(ms) = doing {
                    clock.advance(Duration::from_millis(ms));
                }
                let expected = act(&never_closed, doing.clone()).await;
                assert_eq!(act(&backend, doing.clone()).await, expected, "{at}: {doing:?}");
                tokens.note(&backend).await;
                tokens.note(&never_closed).await;
                let claim = any_claim(&mut dice_of_claims);
                let expected = act(&never_closed, claim.clone()).await;
                assert_eq!(act(&backend, claim.clone()).await, expected, "{at}: {claim:?}");
            }
            assert_eq!(shot(&backend, request).await, shot(&never_closed, request).await, "{at}");
            drop(backend);
            wait_until_closed(folder.path());
        }
        snapshots += u64::from(has_snapshot(folder.path()));
    }
    assert_eq!(snapshots, rounds, "the runs must be long enough for snapshots");
}

#[tokio::test]
async fn a_folder_copied_at_any_moment_opens_to_what_was_answered() {
    let (rounds, seed) = (effort::rounds(4, 200), effort::seed());
    for round in 0..rounds {
        let mut dice = Dice::new(seed ^ 1, round);
        let (folder, clock) = (crate::disk::folder(), clock());
        let backend = open(folder.path(), options(), &clock).expect("opened");
        let mut tokens = Tokens::default();
        for request in 0..200 {
            let doing = any_act(&mut dice, request, &tokens.held);
            if let Act::Pass(ms) | Act::Sweep(ms) = doing {
                clock.advance(Duration::from_millis(ms));
            }
            act(&backend, doing.clone()).await;
            tokens.note(&backend).await;
            if dice.below(8) > 0 {
                continue;
            }
            let at = format!("seed {seed}, round {round}, request {request}: {doing:?}");
            let copied = copy(folder.path());
            let survivor =
                open(copied.path(), options(), &clock).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(shot(&survivor, request).await, shot(&backend, request).await, "{at}");
            // Cut in the middle of a write: nobody was answered, so any part of it may be there, but never nonsense.
            let copied = copy(folder.path());
            cut_last_segment(copied.path(), &mut dice);
            let survivor =
                open(copied.path(), options(), &clock).unwrap_or_else(|error| panic!("{at}: {error}"));
            survivor.sweep().await.expect("answers");
            for view in survivor.list(Filter::default(), None, usize::MAX).await.expect("answers") {
                let alone = view.holders.len() == 1;
                assert!(alone || view.holders.iter().all(|held| held.grant.mode == Mode::Shared), "{view:?}");
                assert!(!view.holders.is_empty(), "{at}: whoever can hold does hold: {view:?}");
            }
        }
    }
}

async fn grant(backend: &EmbeddedCoordination, name: &str, wish: Acquire) -> ade_domain::lock::Grant {
    let answers = backend.commands(vec![(lock(name), LockCommand::Acquire(wish))]).await.expect("answers");
    match &answers[0].outcome {
        Outcome::Standing(Standing::Held(grant)) => grant.clone(),
        other => panic!("not granted: {other:?}"),
    }
}

fn reopen(
    backend: EmbeddedCoordination,
    folder: &std::path::Path,
    clock: &ManualClock,
) -> EmbeddedCoordination {
    drop(backend);
    wait_until_closed(folder);
    open(folder, options(), clock).expect("opened")
}

#[tokio::test]
async fn time_that_passes_while_it_is_closed_counts_against_leases() {
    let (folder, clock) = (crate::disk::folder(), clock());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    let first = grant(&backend, "resource:db:p", wish("ann", "1", Mode::Exclusive)).await;
    grant(&backend, "resource:db:q", Acquire { ttl_ms: 60_000, ..wish("ann", "2", Mode::Exclusive) }).await;
    let waits = Acquire {
        wait: Some(Wait { ms: 60_000, served_by: Some("server".into()) }),
        ..wish("ben", "1", Mode::Exclusive)
    };
    backend.commands(vec![(lock("resource:db:p"), LockCommand::Acquire(waits))]).await.expect("answers");
    drop(backend);
    clock.advance(Duration::from_secs(8));
    wait_until_closed(folder.path());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    backend.sweep().await.expect("answers");
    let view = backend.look(lock("resource:db:p")).await.expect("answers");
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].holder, holder("ben"), "its server had a moment to come back");
    assert!(view.holders[0].grant.token > first.token);
    let other = backend.look(lock("resource:db:q")).await.expect("answers");
    assert_eq!(other.holders.len(), 1, "this lease is not over");
    // Nor does a clock that was set back make a token smaller or a lease longer.
    let expires_at = other.holders[0].grant.expires_at;
    clock.set(ade_domain::Moment::from_micros(1_000_000).timestamp());
    let backend = reopen(backend, folder.path(), &clock);
    let release = LockCommand::Release { holder: holder("ben"), token: view.holders[0].grant.token };
    backend.commands(vec![(lock("resource:db:p"), release)]).await.expect("answers");
    let next = grant(&backend, "resource:db:p", wish("cem", "1", Mode::Exclusive)).await;
    assert!(next.token > view.holders[0].grant.token);
    let other = backend.look(lock("resource:db:q")).await.expect("answers");
    assert_eq!(other.holders[0].grant.expires_at, expires_at);
}

#[tokio::test]
async fn an_open_circuit_survives_a_snapshot() {
    let (folder, clock) = (crate::disk::folder(), clock());
    let mut backend = open(folder.path(), options(), &clock).expect("opened");
    let crowd = |who: &str| (lock("resource:db:p"), LockCommand::Acquire(wish(who, "1", Mode::Exclusive)));
    let names = ["holder", "w1", "w2", "w3", "x1", "x2", "x3"];
    backend.commands(names.iter().map(|who| crowd(who)).collect()).await.expect("answers");
    for n in 0..200 {
        grant(&backend, &format!("task:{n}"), wish("ann", "1", Mode::Exclusive)).await;
    }
    for _ in 0..2 {
        let answers = backend.commands(vec![crowd("late")]).await.expect("answers");
        let told = format!("{:?}", answers[0].outcome);
        assert!(told.contains("Contention"), "{told}");
        backend = reopen(backend, folder.path(), &clock);
    }
    assert!(has_snapshot(folder.path()));
}

#[tokio::test]
async fn a_deadlock_that_nobody_was_told_of_is_told_by_the_next_sweep_once() {
    let (folder, clock) = (crate::disk::folder(), clock());
    let mut backend = open(folder.path(), options(), &clock).expect("opened");
    let (p, q) = ("resource:db:p", "resource:db:q");
    let long = |who: &str, request: &str, mode| Acquire { ttl_ms: 60_000, ..wish(who, request, mode) };
    let wait = |who: &str, request: &str| Acquire {
        wait: Some(Wait { ms: 60_000, served_by: None }),
        ..wish(who, request, Mode::Exclusive)
    };
    grant(&backend, q, long("ann", "1", Mode::Exclusive)).await;
    grant(&backend, p, wish("ann", "2", Mode::Shared)).await;
    grant(&backend, p, long("ben", "1", Mode::Shared)).await;
    for (name, wish) in [(p, wait("cem", "1")), (p, wait("ann", "3")), (q, wait("cem", "2"))] {
        backend.commands(vec![(lock(name), LockCommand::Acquire(wish))]).await.expect("answers");
    }
    // Ann does not upgrade any more, and stands behind cem, who waits for her; whoever looks at the lock ends that.
    clock.advance(Duration::from_secs(8));
    backend.look(lock(p)).await.expect("answers");
    backend = reopen(backend, folder.path(), &clock);
    for n in 0..200 {
        grant(&backend, &format!("task:{n}"), wish("dee", "1", Mode::Exclusive)).await;
    }
    backend = reopen(backend, folder.path(), &clock);
    assert!(has_snapshot(folder.path()));
    let told = backend.sweep().await.expect("answers");
    let victims: Vec<&Holder> = told.iter().map(|ended| &ended.victim).collect();
    assert_eq!(victims, [&holder("cem")]);
    assert_eq!(backend.sweep().await.expect("answers"), []);
    backend = reopen(backend, folder.path(), &clock);
    assert_eq!(backend.sweep().await.expect("answers"), []);
}

#[tokio::test]
async fn a_folder_is_used_by_one_at_a_time() {
    let (folder, clock) = (crate::disk::folder(), clock());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    let clone = backend.clone();
    drop(backend);
    let refused = open(folder.path(), options(), &clock).expect_err("in use");
    assert!(
        matches!(&refused, OpenError::Folder(FolderError::InUse(path)) if path == folder.path()),
        "{refused}"
    );
    grant(&clone, "task:1", wish("ann", "1", Mode::Exclusive)).await;
    let clone = reopen(clone, folder.path(), &clock);
    assert_eq!(clone.look(lock("task:1")).await.expect("answers").holders.len(), 1);
}
