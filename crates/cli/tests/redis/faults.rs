//! A counter under a lock, incremented by eight processes through two servers, while the Redis beneath them is stopped,
//! emptied, restarted and failed over: with fencing no update is lost, tokens grow, and work goes on by itself.

mod counter;
mod deployment;
mod worker;

use std::time::{Duration, Instant};

use ade_client::wire::Lock;
use ade_testkit::wait::eventually;
use ade_testkit::{Ade, Dice, ade, effort};
use counter::Counter;
use deployment::Deployment;
use worker::{Granted, Notes, Order, Worker, work};

const WORKERS: u64 = 8;
/// After a fault is over, an update must be accepted within this time.
const RECOVERY: Duration = Duration::from_secs(15);
/// Far beyond what anything else takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Not a test of its own: the entry of the workers, which the other tests start.
#[test]
fn entry_of_workers() {
    if let Some(order) = Order::given() {
        work(order);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_a_standalone_redis() {
    Drill::begin("standalone", Deployment::standalone()).run(effort::rounds(2, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_behind_sentinel() {
    Drill::begin("sentinel", Deployment::sentinel()).run(effort::rounds(1, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_on_a_cluster() {
    Drill::begin("cluster", Deployment::cluster("cluster")).run(effort::rounds(1, 20)).await;
}

struct Drill {
    name: &'static str,
    lock: String,
    // Dropped in this order: first who asks, then who is asked.
    workers: Vec<Worker>,
    servers: Vec<Ade>,
    redis: Deployment,
    counter: Counter,
    _folder: tempfile::TempDir,
    dice: Dice,
}

impl Drill {
    fn begin(name: &'static str, redis: Deployment) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let server = || {
            let setup = ade::Setup::new(env!("CARGO_BIN_EXE_ade")).argument("--redis").argument(&redis.url());
            setup.start().expect("starts")
        };
        let servers = vec![server(), server()];
        let lock = format!("task:{name}");
        let seed = effort::seed();
        let worker = |number| {
            let order = Order {
                number,
                seed,
                lock: lock.clone(),
                folder: folder.path().to_owned(),
                servers: servers.iter().map(Ade::url).collect(),
            };
            order.start("faults::entry_of_workers")
        };
        let workers = (0..WORKERS).map(worker).collect();
        let (counter, dice) = (Counter::new(folder.path().to_owned()), Dice::new(seed, WORKERS));
        Self { name, lock, workers, servers, redis, counter, _folder: folder, dice }
    }

    async fn run(mut self, rounds: u64) {
        let mut slowest = (Duration::ZERO, String::new());
        let (mut happened, mut changes) = (0, 0);
        for _ in 0..rounds {
            let mut left = self.redis.faults();
            while !left.is_empty() {
                let at = usize::try_from(self.dice.below(left.len() as u64)).expect("few");
                let fault = left.swap_remove(at);
                let calm = 4 + self.dice.below(8);
                self.expect_updates(calm, PATIENCE, "before a fault");
                let primary = self.redis.primary().port();
                self.redis.suffer(fault).await.expect("it happens");
                let took = self.expect_updates(1, RECOVERY, &format!("after {fault:?}"));
                slowest = slowest.max((took, format!("{fault:?}")));
                happened += 1;
                changes += u64::from(self.redis.primary().port() != primary);
                self.expect_life();
            }
        }
        self.expect_updates(20, PATIENCE, "at the end");
        let held = self.servers[0].client().expect("usable").lock(&self.lock).await.expect("answers");
        expect_live_holder(&held);
        let (took, fault) = slowest;
        let what = format!(
            "{happened} faults, {changes} changes of primary, slowest recovery {took:.1?} after {fault}"
        );
        self.finish(&what).await;
    }

    /// Waits until so many updates more were accepted; how long it took.
    #[expect(clippy::disallowed_methods, reason = "the time until the system gets on is what is measured")]
    fn expect_updates(&mut self, more: u64, within: Duration, when: &str) -> Duration {
        let started = Instant::now();
        let wanted = self.counter.values().0 + more;
        let seen = eventually("the counter moves", within, || {
            let value = self.counter.values().0;
            if value >= wanted { Ok(()) } else { Err(format!("{value}, not {wanted}")) }
        });
        seen.unwrap_or_else(|error| panic!("{} {when}: {error}\n{}", self.name, self.logs()));
        started.elapsed()
    }

    /// Nobody has panicked.
    fn expect_life(&mut self) {
        for server in &self.servers {
            let panics = server.process().lines_with("panicked");
            assert!(panics.is_empty(), "{panics:?}\n{}", self.logs());
        }
        let all_work = self.workers.iter_mut().all(Worker::works);
        assert!(all_work, "a worker ended");
    }

    fn logs(&self) -> String {
        let log = |server: &Ade| {
            let lines = server.process().lines_with("");
            let last = lines.len().saturating_sub(60);
            lines.into_iter().skip(last).collect::<Vec<_>>().join("\n")
        };
        self.servers.iter().map(log).collect::<Vec<_>>().join("\n--- the other server:\n")
    }

    async fn finish(mut self, what: &str) {
        self.workers.iter_mut().for_each(Worker::dismiss);
        let mut notes = Vec::new();
        for worker in self.workers.drain(..) {
            let (status, noted) = worker.end();
            assert!(status.success(), "{status}");
            notes.push(noted);
        }
        let client = self.servers[0].client().expect("usable");
        let free = ade_testkit::wait::until("the lock is free", PATIENCE, || async {
            let lock = client.lock(&self.lock).await.map_err(|error| error.to_string())?;
            if lock.holders.is_empty() && lock.queue_length == 0 { Ok(()) } else { Err(format!("{lock:?}")) }
        });
        free.await.expect("everybody is gone");
        for server in &self.servers {
            let ready = reqwest::get(format!("{}/readyz", server.url())).await.expect("answers");
            assert_eq!(ready.status(), 200, "{}", self.logs());
        }
        self.expect_life();
        let summary = check(&self.counter, &notes);
        eprintln!("{}: {what} (seed {}): {summary}", self.name, effort::seed());
    }
}

/// Only one, who is a worker; all of them live.
fn expect_live_holder(lock: &Lock) {
    assert!(lock.holders.len() <= 1, "{lock:?}");
    for holder in &lock.holders {
        assert!((0..WORKERS).any(|number| Order::agent(number) == holder.agent_id), "{lock:?}");
    }
}

/// No update was lost, and tokens grew; what there was to be lost.
fn check(counter: &Counter, notes: &[Notes]) -> String {
    let (fenced, unfenced) = counter.values();
    let accepted = counter.accepted();
    let mut of_workers: Vec<_> = notes.iter().flat_map(|notes| &notes.fenced).copied().collect();
    of_workers.sort_by_key(|accepted| accepted.value);
    assert_eq!(fenced, of_workers.len() as u64, "an update was lost although tokens were checked");
    assert_eq!(of_workers, accepted, "what workers know and what the counter knows");
    for (before, after) in accepted.iter().zip(accepted.iter().skip(1)) {
        assert!(after.token > before.token, "tokens of accepted updates grow: {before:?} {after:?}");
        assert_eq!(after.value, before.value + 1, "{before:?} {after:?}");
    }
    let mut grants: Vec<Granted> = notes.iter().flat_map(|notes| &notes.grants).copied().collect();
    expect_growth(&mut grants);
    let written: u64 = notes.iter().map(|notes| notes.unfenced).sum();
    let refused: u64 = notes.iter().map(|notes| notes.refused).sum();
    let lost = written - unfenced;
    assert!(
        fenced > 50 && refused > 0 && lost > 0,
        "there was something to be lost: {fenced} {refused} {lost}"
    );
    format!(
        "{} grants, {fenced} updates accepted with fencing and none lost, {refused} refused; \
         without fencing: {lost} of {written} updates would have been lost",
        grants.len()
    )
}

/// Whoever asked after somebody had been answered has a greater token.
fn expect_growth(grants: &mut [Granted]) {
    let mut answered = grants.to_vec();
    answered.sort_by_key(|grant| grant.answered);
    grants.sort_by_key(|grant| grant.asked);
    let mut before = answered.iter().peekable();
    let mut greatest: Option<Granted> = None;
    for grant in grants.iter() {
        while let Some(earlier) = before.next_if(|earlier| earlier.answered < grant.asked) {
            greatest = greatest.into_iter().chain([*earlier]).max_by_key(|grant| grant.token);
        }
        assert!(greatest.is_none_or(|earlier| earlier.token < grant.token), "{greatest:?} {grant:?}");
    }
    let mut tokens: Vec<u64> = grants.iter().map(|grant| grant.token).collect();
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] != pair[1]), "a token was given twice");
}
