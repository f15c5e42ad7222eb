//! The scripts against the machine: random commands to one lock, each at the moment at which Redis carried it out, give
//! the same outcome, the same events, the same state to the last field, and indexes that fit it.
//!
//! Time is Redis' own. The windows of the rules are milliseconds wide, so that leases, waits, claims, marks and memories
//! end between any two commands.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::lock::{
    Acquire, Change, Edge, End, Holder, Lock, LockCommand, LockLimits, LockName, Mode, RequestKey, Token,
    Wait,
};
use ade_testkit::effort::{rounds, seed};
use ade_testkit::{Dice, Redis, RedisCluster, RedisSentinel};
use redis::Value;

use super::step::{list, plain, text};
use super::{Inner, Options, RedisCoordination, encoding};
use crate::coordination::LockEventKind;

const AGENTS: [&str; 9] = ["ann", "ben", "cid", "d\u{0}\"e", "eve", "fay", "gus", "hal", "ida"];
/// Commands to one lock before the next one is tried.
const STEPS: usize = 60;

/// Many at once, few in a batch: what is due takes several steps.
fn wide() -> LockLimits {
    LockLimits {
        max_queue: 20,
        max_holders: 30,
        batch: 2,
        max_repeats: 1_000,
        crowded_after: 100,
        ..narrow()
    }
}

fn narrow() -> LockLimits {
    LockLimits {
        max_queue: 4,
        max_holders: 3,
        ticket_claim_ms: 8,
        served_claim_ms: 5,
        server_silence_ms: 10,
        repeat_ms: 40,
        max_repeats: 6,
        crowded_after: 3,
        crowded_within_ms: 20,
        crowded_for_ms: 10,
        batch: 4,
        deadlock_detection: false,
        ..LockLimits::default()
    }
}

/// One lock, and what happened to it.
struct Trial<'a> {
    inner: &'a Inner,
    name: LockName,
    machine: Lock,
    tokens: Vec<Token>,
    requests: u64,
}

impl Trial<'_> {
    fn holder(&self, dice: &mut Dice) -> Holder {
        let few = self.inner.rules().max_holders <= 3;
        match AGENTS[dice.below(if few { 4 } else { 9 }) as usize] {
            "ann" if one_in(dice, 2) => Holder::new("ann", Some("a:{2}/ü")),
            agent => Holder::new(agent, None),
        }
        .expect("valid")
    }

    /// Mostly one that the lock knows.
    fn request(&mut self, holder: &Holder, dice: &mut Dice) -> RequestKey {
        self.requests += u64::from(one_in(dice, 3));
        RequestKey::of(holder, &(self.requests.saturating_sub(dice.below(3))).to_string())
    }

    fn token(&self, dice: &mut Dice) -> Token {
        let known = dice.below(self.tokens.len().max(1) as u64) as usize;
        match self.machine.holds().get(dice.below(3) as usize) {
            Some(hold) if !one_in(dice, 6) => hold.token,
            _ => self.tokens.get(known).copied().unwrap_or_default(),
        }
    }

    fn command(&mut self, dice: &mut Dice) -> LockCommand {
        let ms = [1, 4, 15, 1_000][dice.below(4) as usize];
        // Whoever is at the lock already is the more interesting one.
        let known: Vec<Holder> = self.machine.holds().iter().map(|hold| hold.holder.clone()).collect();
        let holder = match known.get(dice.below(4) as usize) {
            Some(holder) => holder.clone(),
            None => self.holder(dice),
        };
        let request = self.request(&holder, dice);
        let server: Arc<str> = ["one", "two"][dice.below(2) as usize].into();
        let token = self.token(dice);
        match dice.below(24) {
            0..=8 => {
                let holder = self.holder(dice);
                let wait = (!one_in(dice, 4)).then(|| Wait {
                    ms: [2, 10, 500, 2_500][dice.below(4) as usize],
                    served_by: (!one_in(dice, 3)).then_some(server),
                });
                LockCommand::Acquire(Acquire {
                    request: self.request(&holder, dice),
                    holder,
                    remember: one_in(dice, 2),
                    mode: if one_in(dice, 2) { Mode::Shared } else { Mode::Exclusive },
                    ttl_ms: ms,
                    claimed: one_in(dice, 2),
                    wait,
                    purpose: ["", "a purpose", "ünï \"{}\" \n1 2 3"][dice.below(3) as usize].into(),
                    priority: dice.below(5) as i32 - 2,
                })
            }
            9 | 10 => LockCommand::Claim { holder, request, ttl_ms: ms },
            11 => LockCommand::Keep { holder, request, ms },
            12 | 13 => LockCommand::Extend { holder, token, ms },
            14 | 15 => LockCommand::Release { holder, token },
            16 => LockCommand::Downgrade { holder, token },
            17 => LockCommand::Verify { token },
            18 => LockCommand::Inquire { holder, request },
            19 => {
                let why = [End::Cancelled, End::Refused, End::TimedOut, End::AgentOffline]
                    [dice.below(4) as usize]
                    .clone();
                LockCommand::Cancel { holder, request, why, begun: one_in(dice, 2) }
            }
            20 => LockCommand::HangUp { holder, request, server, begun: one_in(dice, 2) },
            21 if one_in(dice, 3) => LockCommand::Break,
            21 => {
                let edge = Edge { holder: holder.clone(), waits_for: self.name.clone(), request };
                LockCommand::Abort {
                    holder,
                    waits_by: one_in(dice, 2).then_some(request),
                    cycle: Arc::new(vec![edge]),
                }
            }
            22 => LockCommand::Mark { server },
            _ => [LockCommand::Tick, LockCommand::Sweep][dice.below(2) as usize].clone(),
        }
    }

    async fn step(&mut self, dice: &mut Dice) -> String {
        let command = self.command(dice);
        let rules = self.inner.rules().clone();
        let said = self.inner.step(&self.name, &command).await.expect("answers");
        let step = self.machine.step(&command, said.now, &rules);
        let what = format!("{} {command:?}", said.now);
        assert_eq!(said.outcome, step.outcome, "{what}");
        let happened: Vec<LockEventKind> = step.changes.iter().filter_map(LockEventKind::of).collect();
        let told: Vec<LockEventKind> = said.changed.iter().filter_map(super::step::Changed::event).collect();
        assert_eq!(sorted(&told), sorted(&happened), "{what}");
        self.tokens.extend(
            self.machine
                .holds()
                .iter()
                .map(|hold| hold.token)
                .filter(|token| !self.tokens.contains(token))
                .collect::<Vec<_>>(),
        );
        let of_redis = self.read().await;
        // What ended while we were reading may be gone; Redis ends keys by the millisecond.
        self.inner.ask_time().await.expect("answers");
        let lately = self.inner.clock.now().plus_ms(1);
        let kept = |change: &Change| !matches!(change, Change::Gone { until, .. } if *until <= lately);
        let of_redis: Vec<Change> = of_redis.into_iter().filter(kept).collect();
        let of_machine: Vec<Change> = self.machine.changes().filter(kept).collect();
        assert_eq!(sorted(&of_redis), sorted(&of_machine), "{what}");
        self.check_indexes(&what).await;
        what
    }

    /// Everything that Redis keeps of the lock, as the changes that make it.
    async fn read(&self) -> Vec<Change> {
        let seen = self.inner.see(&self.name, usize::MAX).await.expect("answers");
        let keys = self.inner.lock_keys(&self.name).expect("built");
        let [.., fence, ended] = &keys.own;
        let mut changes: Vec<Change> = seen.changes().collect();
        let (mut token, mut score) = (Token::default(), Default::default());
        for [name, value] in self.fields(fence).await {
            let numbers: Vec<u64> = value.split(' ').filter_map(|number| number.parse().ok()).collect();
            let moment = |at: usize| ade_domain::Moment::from_micros(numbers[at]);
            match name.as_str() {
                "token" => token = Token::shown(numbers[0]),
                "score" => score = ade_domain::lock::Score::from_millis(value.parse().expect("a number")),
                "crowd" => changes.push(Change::Crowded {
                    since: moment(0),
                    count: numbers[1] as u32,
                    until: moment(2),
                }),
                "name" => assert_eq!(value, self.name.as_str()),
                "kept" => {}
                mark => {
                    let server = mark.strip_prefix("m:").expect("a mark").into();
                    changes.push(Change::Marked { server, at: moment(0) });
                }
            }
        }
        changes.push(Change::Fenced(token, score));
        for [name, value] in self.fields(ended).await {
            if let Ok(request) = name.parse::<RequestKey>() {
                let (until, why) = value.split_once(' ').expect("a time and an end");
                let (until, why) =
                    (encoding::moment(until).expect("a time"), encoding::end(why).expect("an end"));
                changes.push(Change::Gone { request, why, until });
            }
        }
        changes
    }

    async fn fields(&self, key: &ade_keyspace::RedisKey) -> Vec<[String; 2]> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(key.as_str());
        let value = plain(self.inner.link.ask(key, ask).await.expect("answers"));
        let (pairs, _) = list(&value).expect("a list").as_chunks::<2>();
        pairs
            .iter()
            .map(|[a, b]| [text(a).expect("text").to_owned(), text(b).expect("text").to_owned()])
            .collect()
    }

    /// An index names the lock if its agent holds it or waits for it; the registry if anybody does.
    async fn check_indexes(&self, what: &str) {
        let (lock, keys) = (&self.machine, self.inner.lock_keys(&self.name).expect("built"));
        for agent in AGENTS {
            let of_agent = self.inner.agent_keys(agent).expect("built");
            let holds = lock.holds().iter().any(|hold| hold.holder.agent_id() == agent);
            let waits = lock.waiters().any(|waiter| waiter.holder.agent_id() == agent);
            assert_eq!(self.is_in(&of_agent.by_agent, &keys).await, holds, "{agent} holds, {what}");
            assert_eq!(self.is_in(&of_agent.waitfor, &keys).await, waits, "{agent} waits, {what}");
        }
        let mut score = redis::cmd("ZSCORE");
        score.arg(self.inner.keys.registry.as_str()).arg(keys.lock().as_str());
        let listed =
            self.inner.link.ask(&self.inner.keys.registry, score).await.expect("answers") != Value::Nil;
        let used = lock.mode().is_some() || lock.queue_length() > 0;
        assert!(listed == used || (self.inner.in_cluster() && listed), "registry, {what}");
    }

    async fn is_in(&self, index: &ade_keyspace::RedisKey, keys: &super::LockKeys) -> bool {
        let mut ask = redis::cmd("SISMEMBER");
        ask.arg(index.as_str()).arg(keys.lock().as_str());
        let answer = self.inner.link.ask(index, ask).await.expect("answers");
        answer == Value::Int(1) || answer == Value::Boolean(true)
    }
}

fn one_in(dice: &mut Dice, many: u64) -> bool {
    dice.below(many) == 0
}

fn sorted<T: std::fmt::Debug>(all: &[T]) -> BTreeSet<String> {
    all.iter().map(|one| format!("{one:?}")).collect()
}

async fn compare(url: &str, rules: LockLimits, locks: u64) {
    let options = Options { rules, max_clock_skew: Duration::ZERO, ..Options::default() };
    let backend = RedisCoordination::open(&url.parse().expect("a URL"), options).await.expect("connects");
    let seed = seed();
    let mut outcomes = 0;
    for number in 0..locks {
        let mut dice = Dice::new(seed, number);
        let kind = if number % 4 == 0 { "task" } else { "resource:type" };
        let mut trial = Trial {
            inner: &backend.inner,
            name: format!("{kind}:{number}{{%}}{}", backend.inner.rules().batch).parse().expect("valid"),
            machine: Lock::default(),
            tokens: Vec::new(),
            requests: 0,
        };
        let mut told = Vec::new();
        for _ in 0..STEPS {
            let before = told.join("\n");
            let step = std::panic::AssertUnwindSafe(trial.step(&mut dice));
            match futures_util::FutureExt::catch_unwind(step).await {
                Ok(what) => told.push(what),
                Err(panic) => {
                    eprintln!("lock {number} of seed {seed}, after\n{before}");
                    std::panic::resume_unwind(panic);
                }
            }
            outcomes += 1;
        }
    }
    println!("{outcomes} commands on {url}: the scripts and the machine agree");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_are_the_machine() {
    let server = Redis::start().expect("starts");
    compare(&server.url(), narrow(), rounds(50, 5_000)).await;
    compare(&server.url(), wide(), rounds(20, 2_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_are_the_machine_on_a_cluster() {
    let cluster = RedisCluster::start().expect("starts");
    compare(&cluster.url(), narrow(), rounds(30, 2_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_are_the_machine_behind_sentinel() {
    let sentinel = RedisSentinel::start().expect("starts");
    compare(&sentinel.url(), narrow(), rounds(10, 500)).await;
}
