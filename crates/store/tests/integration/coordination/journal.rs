//! Durability of the embedded backend: every reply survives a restart, a kill -9 at any moment, and snapshots in
//! between, and leases expire while the backend is closed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::coordination::folder_fixture::{
    self, clock, copy, has_snapshot, open, truncate_last_segment, wait_until_closed,
};
use ade_domain::lock::{
    AcquireStatus, Acquisition, EndReason, FencingToken, Holder, LockCommand, LockLimits, LockMode, LockName,
    LockOutcome, LockRefusal, LockReply, LockRequest, LockRequestDraft, RequestKey, UnreportedLease,
    WaitOptions,
};
use ade_store::coordination::{AgentUpdate, AgentView, LockFilter, LockView, Ticket, WaitView};
use ade_store::embedded::{EmbeddedOpenError, EmbeddedOptions};
use ade_store::{Agents, Capacity, EmbeddedCoordination, FolderError, LockRequests, Locks};
use ade_testkit::{ManualClock, SeededRng, effort};

const LOCKS: [&str; 5] = ["task:1", "task:a:{}%ü", "resource:db:p", "resource:db:q", "resource:file:x:y"];
const HOLDERS: [&str; 5] = ["ann", "ben", "cem", "dee", "ü🔒"];

fn lock(name: &str) -> LockName {
    name.parse().expect("valid")
}

fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("valid")
}

/// Snapshots are frequent, and deadlines and leases expire within a run.
fn options() -> EmbeddedOptions {
    let rules = LockLimits {
        max_queue: 3,
        breaker_threshold: 3,
        server_timeout_ms: 3_600_000,
        ..LockLimits::default()
    };
    EmbeddedOptions { limits: rules, snapshot_after_bytes: 4_096, max_auto_registered_agents: 10_000 }
}

fn acquire(agent: &str, request: &str, mode: LockMode) -> Acquisition {
    Acquisition {
        request: RequestKey::derive(&holder(agent), request),
        holder: holder(agent),
        leave_tombstone: true,
        mode,
        ttl_ms: 8_000,
        claimed: true,
        wait: Some(WaitOptions { timeout_ms: 10_000, served_by: None }),
        purpose: "\"why\" ü".into(),
        priority: 1,
    }
}

/// Everything that the port exposes.
#[derive(Debug, PartialEq)]
struct PortState {
    list: Vec<LockView>,
    waits: Vec<WaitView>,
    views: Vec<LockView>,
    agents: Vec<AgentView>,
    tickets: Vec<Option<Ticket>>,
}

async fn port_state(backend: &EmbeddedCoordination, requests: u64) -> PortState {
    let list = backend.list_locks(LockFilter::default(), None, usize::MAX).await.expect("reply");
    let waits = backend.waits(usize::MAX).await.expect("reply");
    let mut agents = backend.agents(None, usize::MAX).await.expect("reply");
    for agent in &mut agents {
        // Heartbeats are partly only in memory, and a restart counts as a heartbeat of waiting agents.
        agent.last_heartbeat = ade_domain::Moment::default();
        agent.status = ade_domain::agent::AgentStatus::Active;
        // Queued tasks are not persistent: their agents claim again.
        agent.queued_tasks = 0;
    }
    let (mut views, mut tickets) = (Vec::new(), Vec::new());
    for name in LOCKS {
        views.push(backend.lock_view(lock(name)).await.expect("reply"));
    }
    for request in 0..requests {
        for agent in HOLDERS {
            let key = RequestKey::derive(&holder(agent), &request.to_string());
            tickets.push(backend.ticket(key).await.expect("reply"));
        }
    }
    PortState { list, waits, views, agents, tickets }
}

#[derive(Debug, Clone)]
enum Operation {
    Lock(LockName, LockCommand),
    Remember(RequestKey, u128, Option<Ticket>, u64),
    Forget(RequestKey),
    Put(String, AgentUpdate, bool),
    Remove(String),
    Heard(String),
    Claim(String, String, u64),
    Unclaim(String, String),
    Pass(u64),
    /// Lets time pass and sweeps.
    Sweep(u64),
}

#[derive(Debug, PartialEq)]
enum Reply {
    Lock(Vec<LockReply>),
    Other(String),
}

async fn apply(backend: &EmbeddedCoordination, operation: Operation) -> Reply {
    match operation {
        Operation::Lock(name, command) => {
            return Reply::Lock(backend.execute_commands(vec![(name, command)]).await.expect("reply"));
        }
        Operation::Remember(key, digest, ticket, ms) => {
            let until = backend.now().plus_ms(ms);
            Reply::Other(format!("{:?}", backend.register_request(key, digest, ticket, until).await))
        }
        Operation::Forget(key) => Reply::Other(format!("{:?}", backend.forget_request(key).await)),
        Operation::Put(id, update, create) => {
            let put = backend.put_agent(id, update, create).await.expect("reply");
            Reply::Other(format!("{:?}", put.map(|view| (view.profile, view.max_tasks, view.status))))
        }
        Operation::Remove(id) => Reply::Other(format!("{:?}", backend.remove_agent(id).await)),
        Operation::Heard(id) => Reply::Other(format!("{:?}", backend.record_heartbeat(id).await)),
        Operation::Claim(id, task, ms) => {
            Reply::Other(format!("{:?}", backend.claim_capacity(id, task, backend.now().plus_ms(ms)).await))
        }
        Operation::Unclaim(id, task) => {
            Reply::Other(format!("{:?}", backend.release_capacity(id, task).await))
        }
        Operation::Sweep(_) => Reply::Other(format!("{:?}", backend.sweep().await)),
        Operation::Pass(_) => Reply::Other(String::new()),
    }
}

fn random_operation(
    rng: &mut SeededRng,
    request: u64,
    tokens: &BTreeMap<(Holder, LockName), FencingToken>,
) -> Operation {
    let agent = HOLDERS[rng.below(5) as usize];
    let name = lock(LOCKS[rng.below(5) as usize]);
    let key = |rng: &mut SeededRng| {
        RequestKey::derive(&holder(agent), &request.saturating_sub(rng.below(12)).to_string())
    };
    let token = tokens.get(&(holder(agent), name.clone())).copied().unwrap_or_default();
    match rng.below(24) {
        0..=8 => {
            let mode = if rng.below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let served_by = (rng.below(2) == 0).then(|| "server".into());
            let wait =
                (rng.below(5) > 0).then(|| WaitOptions { timeout_ms: 2_000 + rng.below(20_000), served_by });
            // Some repeat requests that wait, hold or have ended.
            let (request, claimed) = (key(rng), rng.below(4) > 0);
            Operation::Lock(
                name,
                LockCommand::Acquire(Acquisition { request, wait, claimed, ..acquire(agent, "", mode) }),
            )
        }
        9 => Operation::Lock(
            name,
            LockCommand::Claim { holder: holder(agent), request: key(rng), ttl_ms: 9_000 },
        ),
        10 => Operation::Lock(
            name,
            LockCommand::ExtendUnclaimed { holder: holder(agent), request: key(rng), ttl_ms: 9_000 },
        ),
        11 => Operation::Lock(name, LockCommand::Extend { holder: holder(agent), token, ttl_ms: 12_000 }),
        12 | 13 => {
            let server = (rng.below(2) == 0).then(|| "server".into());
            Operation::Lock(name, LockCommand::Release { holder: holder(agent), token, server })
        }
        14 if rng.below(2) == 0 => {
            let lease = match rng.below(2) {
                0 => UnreportedLease::WithToken(token),
                _ => UnreportedLease::StartedBy("server".into(), key(rng)),
            };
            Operation::Lock(name, LockCommand::ReturnUnreported { holder: holder(agent), lease })
        }
        14 => Operation::Lock(name, LockCommand::Downgrade { holder: holder(agent), token }),
        15 => {
            let why = if rng.below(2) == 0 { EndReason::Cancelled } else { EndReason::TimedOut };
            Operation::Lock(
                name,
                LockCommand::Cancel {
                    holder: holder(agent),
                    request: key(rng),
                    reason: why,
                    include_claimed: false,
                },
            )
        }
        16 if rng.below(4) == 0 => Operation::Lock(name, LockCommand::Break),
        16 | 17 => {
            let draft = LockRequestDraft {
                locks: vec![(LOCKS[2], None), (LOCKS[1], None)],
                ..LockRequestDraft::default()
            };
            let request = LockRequest::new(holder(agent), &draft, &LockLimits::default(), 7).expect("valid");
            let deadline = ade_domain::Moment::from_micros(rng.below(1 << 50));
            let ticket = (rng.below(2) == 0).then_some(Ticket { request, deadline });
            Operation::Remember(key(rng), u128::from(rng.below(2)), ticket, 1 + rng.below(20_000))
        }
        18 => Operation::Forget(key(rng)),
        19 => {
            let update = AgentUpdate { max_tasks: Some(3), draining: Some(rng.below(2) == 0), profile: None };
            Operation::Put(agent.to_owned(), update, rng.below(2) == 0)
        }
        20 if rng.below(4) == 0 => Operation::Remove(agent.to_owned()),
        20 | 21 => Operation::Heard(agent.to_owned()),
        // At least a second, so that housekeeping is due however long the backend has been open.
        22 => Operation::Sweep(1_000 + rng.below(2_000)),
        _ => Operation::Pass(rng.below(3_000)),
    }
}

/// Claims are independent of locks and have random numbers of their own.
fn random_claim(rng: &mut SeededRng) -> Operation {
    let (agent, task) = (HOLDERS[rng.below(5) as usize].to_owned(), rng.below(5).to_string());
    if rng.below(4) == 0 {
        Operation::Unclaim(agent, task)
    } else {
        Operation::Claim(agent, task, rng.below(10_000))
    }
}

/// Records the fencing tokens of grants and checks that they increase.
#[derive(Default)]
struct TokenLog {
    held: BTreeMap<(Holder, LockName), FencingToken>,
    last: BTreeMap<LockName, FencingToken>,
}

impl TokenLog {
    async fn record(&mut self, backend: &EmbeddedCoordination) {
        for name in LOCKS {
            let name = lock(name);
            let mut highest = self.last.get(&name).copied().unwrap_or_default();
            for held in backend.lock_view(name.clone()).await.expect("reply").holders {
                let token = held.grant.token;
                let known = self.held.insert((held.holder.clone(), name.clone()), token);
                // An unclaimed upgrade falls back to the previous grant.
                let is_known = known == Some(token) || held.grant.mode == LockMode::Shared;
                assert!(is_known || Some(&token) > self.last.get(&name), "{name}: {token} after {known:?}");
                highest = highest.max(token);
            }
            self.last.insert(name, highest);
        }
    }
}

#[tokio::test]
async fn reopened_backend_replies_like_one_that_stayed_open() {
    let mut snapshots = Vec::new();
    for (seed, round) in effort::seeded_rounds(effort::rounds(6, 200)) {
        let (mut rng, mut claim_dice) = (SeededRng::new(seed, round), SeededRng::new(seed ^ 2, round));
        let (folder, reference_folder, clock) = (folder_fixture::folder(), folder_fixture::folder(), clock());
        let reference = open(
            reference_folder.path(),
            EmbeddedOptions { snapshot_after_bytes: 1 << 30, ..options() },
            &clock,
        );
        let reference = reference.expect("opened");
        let (mut tokens, mut request) = (TokenLog::default(), 0);
        for batch in 0..8 {
            let backend = open(folder.path(), options(), &clock).expect("opened");
            let context = format!("seed {seed}, round {round}, batch {batch}");
            let expected = port_state(&reference, request).await;
            assert_eq!(port_state(&backend, request).await, expected, "{context}: after reopening");
            for agent in HOLDERS {
                for each in [&backend, &reference] {
                    each.record_heartbeat(agent.to_owned()).await.expect("reply");
                }
            }
            for _ in 0..50 {
                request += 1;
                let operation = random_operation(&mut rng, request, &tokens.held);
                if let Operation::Pass(ms) | Operation::Sweep(ms) = operation {
                    clock.advance(Duration::from_millis(ms));
                }
                let expected = apply(&reference, operation.clone()).await;
                assert_eq!(apply(&backend, operation.clone()).await, expected, "{context}: {operation:?}");
                tokens.record(&backend).await;
                tokens.record(&reference).await;
                let claim = random_claim(&mut claim_dice);
                let expected = apply(&reference, claim.clone()).await;
                assert_eq!(apply(&backend, claim.clone()).await, expected, "{context}: {claim:?}");
            }
            assert_eq!(
                port_state(&backend, request).await,
                port_state(&reference, request).await,
                "{context}"
            );
            // Leases that nobody took are known to the process only, and end with its next sweep.
            for each in [&backend, &reference] {
                each.sweep().await.expect("reply");
            }
            drop(backend);
            wait_until_closed(folder.path());
        }
        snapshots.push(has_snapshot(folder.path()));
    }
    assert!(snapshots.into_iter().all(|is_written| is_written), "the runs must be long enough for snapshots");
}

#[tokio::test]
async fn folder_copied_at_any_moment_contains_all_replies() {
    for (seed, round) in effort::seeded_rounds(effort::rounds(2, 100)) {
        let mut rng = SeededRng::new(seed ^ 1, round);
        let (folder, clock) = (folder_fixture::folder(), clock());
        let backend = open(folder.path(), options(), &clock).expect("opened");
        let mut tokens = TokenLog::default();
        for request in 0..200 {
            let operation = random_operation(&mut rng, request, &tokens.held);
            if let Operation::Pass(ms) | Operation::Sweep(ms) = operation {
                clock.advance(Duration::from_millis(ms));
            }
            apply(&backend, operation.clone()).await;
            tokens.record(&backend).await;
            if rng.below(8) > 0 {
                continue;
            }
            let context = format!("seed {seed}, round {round}, request {request}: {operation:?}");
            let copied = copy(folder.path());
            let recovered =
                open(copied.path(), options(), &clock).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(
                port_state(&recovered, request).await,
                port_state(&backend, request).await,
                "{context}"
            );
            // An incomplete write: nobody got a reply, so any prefix of it may be stored, but the state must be
            // consistent.
            let copied = copy(folder.path());
            truncate_last_segment(copied.path(), &mut rng);
            let recovered =
                open(copied.path(), options(), &clock).unwrap_or_else(|error| panic!("{context}: {error}"));
            recovered.sweep().await.expect("reply");
            for view in recovered.list_locks(LockFilter::default(), None, usize::MAX).await.expect("reply") {
                let is_single = view.holders.len() == 1;
                assert!(
                    is_single || view.holders.iter().all(|held| held.grant.mode == LockMode::Shared),
                    "{view:?}"
                );
                assert!(!view.holders.is_empty(), "{context}: no waiter without a holder: {view:?}");
            }
        }
    }
}

async fn grant(backend: &EmbeddedCoordination, name: &str, acquire: Acquisition) -> ade_domain::lock::Grant {
    let replies =
        backend.execute_commands(vec![(lock(name), LockCommand::Acquire(acquire))]).await.expect("reply");
    match &replies[0].outcome {
        LockOutcome::Status(AcquireStatus::Held(grant)) => grant.clone(),
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
async fn leases_expire_while_the_backend_is_closed() {
    let (folder, clock) = (folder_fixture::folder(), clock());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    let first = grant(&backend, "resource:db:p", acquire("ann", "1", LockMode::Exclusive)).await;
    grant(
        &backend,
        "resource:db:q",
        Acquisition { ttl_ms: 60_000, ..acquire("ann", "2", LockMode::Exclusive) },
    )
    .await;
    let waiting = Acquisition {
        wait: Some(WaitOptions { timeout_ms: 60_000, served_by: Some("server".into()) }),
        ..acquire("ben", "1", LockMode::Exclusive)
    };
    backend
        .execute_commands(vec![(lock("resource:db:p"), LockCommand::Acquire(waiting))])
        .await
        .expect("reply");
    drop(backend);
    clock.advance(Duration::from_secs(8));
    wait_until_closed(folder.path());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    backend.sweep().await.expect("reply");
    let view = backend.lock_view(lock("resource:db:p")).await.expect("reply");
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].holder, holder("ben"), "its server has time to reconnect");
    assert!(view.holders[0].grant.token > first.token);
    let other = backend.lock_view(lock("resource:db:q")).await.expect("reply");
    assert_eq!(other.holders.len(), 1, "this lease has not expired");
    // A clock that was set back must not decrease a token or extend a lease.
    let expires_at = other.holders[0].grant.expires_at;
    clock.set(ade_domain::Moment::from_micros(1_000_000).timestamp());
    let backend = reopen(backend, folder.path(), &clock);
    let release =
        LockCommand::Release { holder: holder("ben"), token: view.holders[0].grant.token, server: None };
    backend.execute_commands(vec![(lock("resource:db:p"), release)]).await.expect("reply");
    let next = grant(&backend, "resource:db:p", acquire("cem", "1", LockMode::Exclusive)).await;
    assert!(next.token > view.holders[0].grant.token);
    let other = backend.lock_view(lock("resource:db:q")).await.expect("reply");
    assert_eq!(other.holders[0].grant.expires_at, expires_at);
}

#[tokio::test]
async fn open_circuit_breaker_survives_a_snapshot() {
    let (folder, clock) = (folder_fixture::folder(), clock());
    let mut backend = open(folder.path(), options(), &clock).expect("opened");
    let command =
        |agent: &str| (lock("resource:db:p"), LockCommand::Acquire(acquire(agent, "1", LockMode::Exclusive)));
    let names = ["holder", "w1", "w2", "w3", "x1", "x2", "x3"];
    backend.execute_commands(names.iter().map(|agent| command(agent)).collect()).await.expect("reply");
    for n in 0..200 {
        grant(&backend, &format!("task:{n}"), acquire("ann", "1", LockMode::Exclusive)).await;
    }
    for _ in 0..2 {
        let replies = backend.execute_commands(vec![command("late")]).await.expect("reply");
        let outcome = &replies[0].outcome;
        assert!(
            matches!(outcome, LockOutcome::Status(AcquireStatus::Refused(LockRefusal::CircuitOpen { .. }))),
            "{outcome:?}"
        );
        backend = reopen(backend, folder.path(), &clock);
    }
    assert!(has_snapshot(folder.path()));
}

#[tokio::test]
async fn next_sweep_reports_an_unreported_deadlock_once() {
    let (folder, clock) = (folder_fixture::folder(), clock());
    let mut backend = open(folder.path(), options(), &clock).expect("opened");
    let (p, q) = ("resource:db:p", "resource:db:q");
    let long_lease =
        |agent: &str, request: &str, mode| Acquisition { ttl_ms: 60_000, ..acquire(agent, request, mode) };
    let waiting = |agent: &str, request: &str| Acquisition {
        wait: Some(WaitOptions { timeout_ms: 60_000, served_by: None }),
        ..acquire(agent, request, LockMode::Exclusive)
    };
    grant(&backend, q, long_lease("ann", "1", LockMode::Exclusive)).await;
    grant(&backend, p, acquire("ann", "2", LockMode::Shared)).await;
    grant(&backend, p, long_lease("ben", "1", LockMode::Shared)).await;
    for (name, acquire) in [(p, waiting("cem", "1")), (p, waiting("ann", "3")), (q, waiting("cem", "2"))] {
        backend.execute_commands(vec![(lock(name), LockCommand::Acquire(acquire))]).await.expect("reply");
    }
    // Ann's shared lease expires, so her upgrade becomes a wait behind cem, who waits for her: a deadlock, which
    // reading the lock resolves.
    clock.advance(Duration::from_secs(8));
    backend.lock_view(lock(p)).await.expect("reply");
    backend = reopen(backend, folder.path(), &clock);
    for n in 0..200 {
        grant(&backend, &format!("task:{n}"), acquire("dee", "1", LockMode::Exclusive)).await;
    }
    backend = reopen(backend, folder.path(), &clock);
    assert!(has_snapshot(folder.path()));
    let reported = backend.sweep().await.expect("reply");
    let victims: Vec<&Holder> = reported.iter().map(|deadlock| &deadlock.victim).collect();
    assert_eq!(victims, [&holder("cem")]);
    assert_eq!(backend.sweep().await.expect("reply"), []);
    backend = reopen(backend, folder.path(), &clock);
    assert_eq!(backend.sweep().await.expect("reply"), []);
}

#[tokio::test]
async fn rejects_a_folder_that_is_in_use() {
    let (folder, clock) = (folder_fixture::folder(), clock());
    let backend = open(folder.path(), options(), &clock).expect("opened");
    let clone = backend.clone();
    drop(backend);
    let refused = open(folder.path(), options(), &clock).expect_err("in use");
    assert!(
        matches!(&refused, EmbeddedOpenError::Folder(FolderError::InUse(path)) if path == folder.path()),
        "{refused}"
    );
    grant(&clone, "task:1", acquire("ann", "1", LockMode::Exclusive)).await;
    let clone = reopen(clone, folder.path(), &clock);
    assert_eq!(clone.lock_view(lock("task:1")).await.expect("reply").holders.len(), 1);
}
