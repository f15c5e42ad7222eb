//! Model-based test: random commands to one lock give the same outcome, the same events and the same state in the
//! scripts as in the state machine of the `domain` crate, and consistent indexes.
//!
//! Each command runs in the model at the time that Redis reports. The timeouts are a few milliseconds long, so that
//! leases, waits, claims, server heartbeats and tombstones expire between any two commands.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::lock::{
    Acquisition, EndReason, FencingToken, Holder, Lock, LockChange, LockCommand, LockLimits, LockMode,
    LockName, RequestKey, UnreportedLease, WaitEdge, WaitOptions,
};
use ade_testkit::effort::{rounds, seeded_rounds};
use ade_testkit::{Redis, RedisCluster, SeededRng};

use crate::coordination::LockEventKind;
use crate::redis::command::{CommandReply, ReportedChange};
use crate::redis::keys::LockKeys;
use crate::redis::query::NO_ARGS;
use crate::redis::{Inner, RedisCoordination, RedisOptions, encoding};

const AGENTS: [&str; 9] = ["ann", "ben", "cid", "d\u{0}\"e", "eve", "fay", "gus", "hal", "ida"];
/// Commands per lock.
const COMMANDS_PER_LOCK: usize = 60;

/// Many holders and waiters but small batches: expiry takes several commands.
fn wide_limits() -> LockLimits {
    LockLimits {
        max_queue: 20,
        max_holders: 30,
        batch_size: 2,
        max_tombstones: 1_000,
        breaker_threshold: 100,
        ..narrow_limits()
    }
}

fn narrow_limits() -> LockLimits {
    LockLimits {
        max_queue: 4,
        max_holders: 3,
        ticket_claim_ms: 8,
        long_poll_claim_ms: 5,
        server_timeout_ms: 10,
        idempotency_ttl_ms: 40,
        max_tombstones: 6,
        breaker_threshold: 3,
        breaker_window_ms: 20,
        breaker_open_ms: 10,
        batch_size: 4,
        deadlock_detection: false,
        ..LockLimits::default()
    }
}

/// One lock in Redis and its model.
struct LockUnderTest<'a> {
    inner: &'a Inner,
    name: LockName,
    model: Lock,
    tokens: Vec<FencingToken>,
    requests: u64,
    /// Leases that started with a promotion.
    unreported: usize,
}

impl LockUnderTest<'_> {
    fn random_holder(&self, rng: &mut SeededRng) -> Holder {
        let agents = if self.inner.limits().max_holders <= 3 { 4 } else { 9 };
        match AGENTS[rng.below(agents) as usize] {
            "ann" if one_in(rng, 2) => Holder::new("ann", Some("a:{2}/ü")),
            agent => Holder::new(agent, None),
        }
        .expect("valid")
    }

    /// Mostly one that the lock knows.
    fn random_request(&mut self, holder: &Holder, rng: &mut SeededRng) -> RequestKey {
        self.requests += u64::from(one_in(rng, 3));
        RequestKey::derive(holder, &(self.requests.saturating_sub(rng.below(3))).to_string())
    }

    fn random_token(&self, rng: &mut SeededRng) -> FencingToken {
        let index = rng.below(self.tokens.len().max(1) as u64) as usize;
        match self.model.holds().get(rng.below(3) as usize) {
            Some(hold) if !one_in(rng, 6) => hold.token,
            _ => self.tokens.get(index).copied().unwrap_or_default(),
        }
    }

    /// Mostly a holder with its own token, and most likely one that got its lease from a release.
    fn random_hold(&self, rng: &mut SeededRng) -> Option<(Holder, FencingToken)> {
        let unreported = self.model.holds().iter().find(|hold| hold.unreported_by.is_some());
        let any = self.model.holds().get(rng.below(3) as usize);
        let hold = unreported.or(any).filter(|_| !one_in(rng, 4))?;
        Some((hold.holder.clone(), hold.token))
    }

    fn random_command(&mut self, rng: &mut SeededRng) -> LockCommand {
        // A step takes some milliseconds: some leases must end meanwhile, and others be released.
        let ms = [1, 15, 1_000, 1_000][rng.below(4) as usize];
        // Current holders are more interesting than others.
        let holders: Vec<Holder> = self.model.holds().iter().map(|hold| hold.holder.clone()).collect();
        let holder = match holders.get(rng.below(4) as usize) {
            Some(holder) => holder.clone(),
            None => self.random_holder(rng),
        };
        let request = self.random_request(&holder, rng);
        let server: Arc<str> = ["server-1", "server-2"][rng.below(2) as usize].into();
        let token = self.random_token(rng);
        // A release that promotes a waiter of the server that sends it starts the lease of the waiter.
        let first_waiter = self.model.waiters().next();
        let releasing_server = match first_waiter.and_then(|waiter| waiter.served_by.clone()) {
            Some(waiter_server) if !one_in(rng, 4) => Some(waiter_server),
            _ => (!one_in(rng, 3)).then(|| Arc::clone(&server)),
        };
        let is_release = first_waiter.is_some() && one_in(rng, 3);
        match if is_release { 14 } else { rng.below(24) } {
            0..=8 => {
                let holder = self.random_holder(rng);
                let wait = (!one_in(rng, 4)).then(|| WaitOptions {
                    timeout_ms: [2, 500, 2_500, 2_500][rng.below(4) as usize],
                    served_by: (!one_in(rng, 5)).then_some(server),
                });
                LockCommand::Acquire(Acquisition {
                    request: self.random_request(&holder, rng),
                    holder,
                    leave_tombstone: one_in(rng, 2),
                    mode: if one_in(rng, 2) { LockMode::Shared } else { LockMode::Exclusive },
                    ttl_ms: ms,
                    claimed: !one_in(rng, 4),
                    wait,
                    purpose: ["", "a purpose", "ünï \"{}\" \n1 2 3"][rng.below(3) as usize].into(),
                    priority: rng.below(5) as i32 - 2,
                })
            }
            9 | 10 => LockCommand::Claim { holder, request, ttl_ms: ms },
            11 => LockCommand::ExtendUnclaimed { holder, request, ttl_ms: ms },
            12 | 13 => LockCommand::Extend { holder, token, ttl_ms: ms },
            14 | 15 => {
                let (holder, token) = self.random_hold(rng).unwrap_or((holder, token));
                LockCommand::Release { holder, token, server: releasing_server }
            }
            16 if one_in(rng, 2) => {
                let (holder, token) = self.random_hold(rng).unwrap_or((holder, token));
                let hold = self.model.hold_of(&holder).filter(|_| !one_in(rng, 4));
                let request = hold.map_or(request, |hold| hold.requests[0]);
                let lease = match rng.below(2) {
                    0 => UnreportedLease::WithToken(token),
                    _ => UnreportedLease::StartedBy(server, request),
                };
                LockCommand::ReturnUnreported { holder, lease }
            }
            16 => LockCommand::Downgrade { holder, token },
            17 => LockCommand::Verify { token },
            18 => LockCommand::Query { holder, request },
            19 => {
                let why =
                    [EndReason::Cancelled, EndReason::Refused, EndReason::TimedOut, EndReason::AgentOffline]
                        [rng.below(4) as usize]
                        .clone();
                LockCommand::Cancel { holder, request, reason: why, include_claimed: one_in(rng, 2) }
            }
            20 => LockCommand::Disconnect { holder, request, server, include_claimed: one_in(rng, 2) },
            21 if one_in(rng, 3) => LockCommand::Break,
            21 => {
                let edge = WaitEdge { holder: holder.clone(), waits_for: self.name.clone(), request };
                LockCommand::Abort {
                    holder,
                    expected_request: one_in(rng, 2).then_some(request),
                    cycle: Arc::new(vec![edge]),
                }
            }
            22 => LockCommand::ServerHeartbeat { server },
            _ => [LockCommand::Tick, LockCommand::Sweep][rng.below(2) as usize].clone(),
        }
    }

    async fn run_random_command(&mut self, rng: &mut SeededRng) -> String {
        let command = self.random_command(rng);
        let reply = self.inner.apply(&self.name, &command).await.expect("reply");
        let context = self.compare_reply(&command, &reply);
        self.compare_state(&context).await;
        self.check_indexes(&context).await;
        context
    }

    /// Executes the command in the model, at the time of its reply.
    fn compare_reply(&mut self, command: &LockCommand, reply: &CommandReply) -> String {
        let step = self.model.execute(command, reply.now, self.inner.limits());
        let context = format!("{} {} {command:?}", self.name, reply.now);
        let is_unreported = |change: &&LockChange| matches!(change, LockChange::Promoted(hold) if hold.unreported_by.is_some());
        self.unreported += step.changes.iter().filter(is_unreported).count();
        assert_eq!(reply.outcome, step.outcome, "{context}");
        let expected: Vec<LockEventKind> =
            step.changes.iter().filter_map(LockEventKind::from_change).collect();
        let events: Vec<LockEventKind> = reply.changes.iter().filter_map(ReportedChange::event).collect();
        assert_eq!(sorted(&events), sorted(&expected), "{context}");
        self.tokens.extend(
            self.model
                .holds()
                .iter()
                .map(|hold| hold.token)
                .filter(|token| !self.tokens.contains(token))
                .collect::<Vec<_>>(),
        );
        context
    }

    async fn compare_state(&self, context: &str) {
        let stored = self.read_state().await;
        // What expired during the read may be gone; Redis expires keys by the millisecond.
        self.inner.sync_clock().await.expect("reply");
        let read_at = self.inner.clock.now().plus_ms(1);
        let is_current = |change: &LockChange| !matches!(change, LockChange::TombstoneAdded { expires_at, .. } if *expires_at <= read_at);
        let stored: Vec<LockChange> = stored.into_iter().filter(is_current).collect();
        let expected: Vec<LockChange> = self.model.snapshot().filter(is_current).collect();
        assert_eq!(sorted(&stored), sorted(&expected), "read at {read_at}, {context}");
        self.check_registry(context).await;
    }

    /// The whole state of the lock in Redis, as changes that produce it from an empty lock.
    async fn read_state(&self) -> Vec<LockChange> {
        let snapshot = self.inner.read_lock(&self.name, usize::MAX).await.expect("reply");
        let keys = self.inner.lock_keys(&self.name).expect("built");
        let [.., fence, ended] = &keys.script_keys;
        let mut changes: Vec<LockChange> = snapshot.changes().collect();
        let (mut token, mut score) = (last_token(self.inner).await, Default::default());
        for (name, value) in self.fields(fence).await {
            let numbers: Vec<u64> = value.split(' ').filter_map(|number| number.parse().ok()).collect();
            let moment = |index: usize| ade_domain::Moment::from_micros(numbers[index]);
            match name.as_str() {
                "token" => token = FencingToken::from_number(numbers[0]),
                "score" => {
                    score = ade_domain::lock::QueueScore::from_millis(value.parse().expect("a number"));
                }
                "crowd" => changes.push(LockChange::RefusalCounted(ade_domain::lock::CircuitBreaker {
                    window_start: moment(0),
                    refusals: numbers[1] as u32,
                    open_until: moment(2),
                })),
                "kept" => {}
                heartbeat => {
                    let server = heartbeat.strip_prefix("m:").expect("a server heartbeat").into();
                    changes.push(LockChange::ServerHeartbeat { server, at: moment(0) });
                }
            }
        }
        changes.push(LockChange::CountersAdvanced(token, score));
        for (name, value) in self.fields(ended).await {
            if let Ok(request) = name.parse::<RequestKey>() {
                let (until, why) = value.split_once(' ').expect("a time and an end");
                let (until, why) = (
                    encoding::parse_moment(until).expect("a time"),
                    encoding::parse_end(why).expect("an end"),
                );
                changes.push(LockChange::TombstoneAdded { request, reason: why, expires_at: until });
            }
        }
        changes
    }

    async fn fields(&self, key: &ade_keyspace::RedisKey) -> Vec<(String, String)> {
        self.inner.query("HGETALL", key, NO_ARGS).await.expect("reply")
    }

    /// An agent index has the lock if the agent holds it or waits for it.
    async fn check_indexes(&self, context: &str) {
        let (lock, keys) = (&self.model, self.inner.lock_keys(&self.name).expect("built"));
        for agent in AGENTS {
            let agent_keys = self.inner.agent_keys(agent).expect("built");
            let is_holding = lock.holds().iter().any(|hold| hold.holder.agent_id() == agent);
            let is_waiting = lock.waiters().any(|waiter| waiter.holder.agent_id() == agent);
            assert_eq!(
                self.is_member(&agent_keys.held_locks, &keys).await,
                is_holding,
                "{agent} holds, {context}"
            );
            assert_eq!(
                self.is_member(&agent_keys.awaited_locks, &keys).await,
                is_waiting,
                "{agent} waits, {context}"
            );
        }
    }

    async fn check_registry(&self, context: &str) {
        let (lock, keys) = (&self.model, self.inner.lock_keys(&self.name).expect("built"));
        let registry = &self.inner.keys.registry;
        let score: Option<f64> =
            self.inner.query("ZSCORE", registry, keys.lock().as_str()).await.expect("reply");
        let is_registered = score.is_some();
        let is_used = lock.mode().is_some() || lock.queue_length() > 0;
        assert!(
            is_registered == is_used || (self.inner.is_cluster() && is_registered),
            "registry, {context}"
        );
    }

    async fn is_member(&self, index: &ade_keyspace::RedisKey, keys: &LockKeys) -> bool {
        self.inner.query("SISMEMBER", index, keys.lock().as_str()).await.expect("reply")
    }
}

/// Outside a cluster all locks share the last token.
async fn last_token(inner: &Inner) -> FencingToken {
    let stored: Option<u64> = inner.query("GET", &inner.keys.token, NO_ARGS).await.expect("reply");
    assert!(!inner.is_cluster() || stored.is_none(), "a cluster has a token for each lock");
    FencingToken::from_number(stored.unwrap_or_default())
}

/// The model of a lock that was not used before.
async fn new_model(inner: &Inner) -> Lock {
    let mut model = Lock::default();
    let counters = LockChange::CountersAdvanced(last_token(inner).await, Default::default());
    model.apply(&counters, inner.limits());
    model
}

fn one_in(rng: &mut SeededRng, sides: u64) -> bool {
    rng.below(sides) == 0
}

fn sorted<T: std::fmt::Debug>(items: &[T]) -> BTreeSet<String> {
    items.iter().map(|item| format!("{item:?}")).collect()
}

pub(super) async fn open(url: &str, limits: LockLimits) -> RedisCoordination {
    let options = RedisOptions { limits, max_clock_skew: Duration::ZERO, ..RedisOptions::default() };
    RedisCoordination::open(&url.parse().expect("valid URL"), options).await.expect("connected")
}

async fn compare_with_model(url: &str, limits: LockLimits, locks: u64) {
    let backend = open(url, limits).await;
    let (mut commands, mut unreported) = (0, 0);
    for (seed, number) in seeded_rounds(locks) {
        let mut rng = SeededRng::new(seed, number);
        let kind = if number % 4 == 0 { "task" } else { "resource:type" };
        let mut lock = LockUnderTest {
            inner: &backend.inner,
            name: format!("{kind}:{seed}-{number}{{%}}{}", backend.inner.limits().batch_size)
                .parse()
                .expect("valid"),
            model: new_model(&backend.inner).await,
            tokens: Vec::new(),
            requests: 0,
            unreported: 0,
        };
        let mut history = Vec::new();
        for _ in 0..COMMANDS_PER_LOCK {
            let before = history.join("\n");
            let step = std::panic::AssertUnwindSafe(lock.run_random_command(&mut rng));
            match futures_util::FutureExt::catch_unwind(step).await {
                Ok(command) => history.push(command),
                Err(panic) => {
                    eprintln!("lock {number} of seed {seed}, after\n{before}");
                    std::panic::resume_unwind(panic);
                }
            }
            commands += 1;
        }
        unreported += lock.unreported;
    }
    assert!(unreported > 0, "no promotion started a lease");
    println!(
        "{commands} commands on {url}, {unreported} leases by promotion: the scripts agree with the model"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_match_the_model() {
    let server = Redis::start().expect("server starts");
    compare_with_model(&server.url(), narrow_limits(), rounds(25, 2_500)).await;
    compare_with_model(&server.url(), wide_limits(), rounds(10, 1_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_match_the_model_on_a_cluster() {
    let cluster = RedisCluster::start().expect("server starts");
    compare_with_model(&cluster.url(), narrow_limits(), rounds(15, 1_000)).await;
}

/// Steps of several locks that go together: each gets what it would get alone, and tokens grow in the order of the steps.
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_one_call_match_the_model() {
    let server = Redis::start().expect("server starts");
    let backend = open(&server.url(), narrow_limits()).await;
    let inner = &*backend.inner;
    for (seed, number) in seeded_rounds(rounds(10, 1_000)) {
        let mut rng = SeededRng::new(seed, number);
        let mut locks = Vec::new();
        for kind in ["task", "resource:type", "resource:type", "resource:other"] {
            let name = format!("{kind}:{seed}-{number}-{}", locks.len()).parse().expect("valid");
            let model = new_model(inner).await;
            locks.push(LockUnderTest { inner, name, model, tokens: Vec::new(), requests: 0, unreported: 0 });
        }
        for _ in 0..COMMANDS_PER_LOCK {
            // Twice for each lock, so that Redis expires no key of a lock that nobody looks at.
            let mut steps: Vec<(usize, LockCommand)> = Vec::new();
            for number in 0..8 {
                let index = number * 3 % locks.len();
                steps.push((index, locks[index].random_command(&mut rng)));
            }
            let applied = steps.iter().map(|(index, command)| inner.apply(&locks[*index].name, command));
            let replies = futures_util::future::join_all(applied).await;
            for ((index, command), reply) in steps.iter().zip(replies) {
                let last = locks.iter().map(|lock| lock.model.last_token()).max().unwrap_or_default();
                let lock = &mut locks[*index];
                lock.model.apply(&LockChange::CountersAdvanced(last, Default::default()), inner.limits());
                lock.compare_reply(command, &reply.expect("reply"));
            }
            let last = locks.iter().map(|lock| lock.model.last_token()).max().unwrap_or_default();
            for lock in &mut locks {
                lock.model.apply(&LockChange::CountersAdvanced(last, Default::default()), inner.limits());
                lock.compare_state(&format!("{} after {steps:?}", lock.name)).await;
            }
        }
    }
}
