//! Eight workers increment a counter under a lock through two servers while their Redis is stopped, emptied, restarted
//! and failed over: with fencing no update is lost, tokens increase, and service recovers by itself.

mod counter;
mod deployment;
mod worker;

use std::time::{Duration, Instant};

use ade_client::wire::Lock;
use ade_testkit::wait::eventually;
use ade_testkit::{AdeServer, SeededRng, effort, server};
use counter::Counter;
use deployment::Deployment;
use worker::{RecordedGrant, Worker, WorkerConfig};

const WORKERS: u64 = 8;
/// Maximum time from the end of a fault to the next accepted update.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_on_standalone_redis() {
    FaultCampaign::start("standalone", Deployment::standalone()).run(effort::rounds(1, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_behind_sentinel() {
    FaultCampaign::start("sentinel", Deployment::sentinel()).run(effort::rounds(1, 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_on_cluster() {
    FaultCampaign::start("cluster", Deployment::cluster("cluster")).run(effort::rounds(1, 20)).await;
}

struct FaultCampaign {
    name: &'static str,
    lock: String,
    // Field order is drop order: workers, servers, Redis.
    workers: Vec<Worker>,
    servers: Vec<AdeServer>,
    redis: Deployment,
    counter: Counter,
    _folder: tempfile::TempDir,
    rng: SeededRng,
}

impl FaultCampaign {
    fn start(name: &'static str, redis: Deployment) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let server = || {
            let setup =
                server::ServerBuilder::new(env!("CARGO_BIN_EXE_ade")).arg("--redis").arg(&redis.url());
            setup.start().expect("starts")
        };
        let servers = vec![server(), server()];
        let lock = format!("task:{name}");
        let seed = effort::seed();
        let worker = |number| {
            let config = WorkerConfig {
                number,
                seed,
                lock: lock.clone(),
                folder: folder.path().to_owned(),
                clients: servers.iter().map(|server| server.client().expect("usable")).collect(),
            };
            config.start()
        };
        let workers = (0..WORKERS).map(worker).collect();
        let (counter, rng) = (Counter::new(folder.path().to_owned()), SeededRng::new(seed, WORKERS));
        Self { name, lock, workers, servers, redis, counter, _folder: folder, rng }
    }

    async fn run(mut self, rounds: u64) {
        let mut slowest = (Duration::ZERO, String::new());
        let (mut faults, mut failovers) = (0, 0);
        for _ in 0..rounds {
            let mut pending = self.redis.faults();
            while !pending.is_empty() {
                let index = usize::try_from(self.rng.below(pending.len() as u64)).expect("few");
                let fault = pending.swap_remove(index);
                let updates = 4 + self.rng.below(8);
                self.expect_updates(updates, TIMEOUT, "before a fault");
                let primary = self.redis.primary().port();
                self.redis.inject(fault).await.expect("injected");
                let took = self.expect_updates(1, RECOVERY_TIMEOUT, &format!("after {fault:?}"));
                slowest = slowest.max((took, format!("{fault:?}")));
                faults += 1;
                failovers += u64::from(self.redis.primary().port() != primary);
                self.check_workers();
            }
        }
        self.expect_updates(20, TIMEOUT, "at the end");
        self.expect_overlaps();
        let lock = self.servers[0].client().expect("usable").lock(&self.lock).await.expect("answers");
        check_holder(&lock);
        let (took, fault) = slowest;
        let summary =
            format!("{faults} faults, {failovers} failovers, slowest recovery {took:.1?} after {fault}");
        self.finish(&summary).await;
    }

    /// Waits until `more` further updates are accepted and returns how long it took.
    #[expect(clippy::disallowed_methods, reason = "recovery time is measured")]
    fn expect_updates(&mut self, more: u64, timeout: Duration, when: &str) -> Duration {
        let started = Instant::now();
        let target = self.counter.values().0 + more;
        let result = eventually("the counter increases", timeout, || {
            let value = self.counter.values().0;
            if value >= target { Ok(()) } else { Err(format!("{value} of {target}")) }
        });
        result.unwrap_or_else(|error| panic!("{} {when}: {error}\n{}", self.name, self.logs()));
        started.elapsed()
    }

    /// Waits until holders have overlapped: otherwise fencing had nothing to prevent.
    fn expect_overlaps(&self) {
        let result = eventually("holders overlap", TIMEOUT, || {
            let rejected: u64 = self.workers.iter().map(|worker| worker.log().rejected).sum();
            let written: u64 = self.workers.iter().map(|worker| worker.log().unfenced).sum();
            // A worker writes before it records that, so the difference is at least as large in the end.
            let lost = written.saturating_sub(self.counter.values().1);
            if rejected > 0 && lost > 0 { Ok(()) } else { Err(format!("{rejected} rejected, {lost} lost")) }
        });
        result.unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    fn check_workers(&self) {
        assert!(self.workers.iter().all(Worker::is_running), "a worker got an unexpected response");
    }

    fn check_servers(&self) {
        for server in &self.servers {
            let panics = server.process().log_lines_with("panicked");
            assert!(panics.is_empty(), "{panics:?}\n{}", self.logs());
        }
    }

    fn logs(&self) -> String {
        let log = |server: &AdeServer| {
            let lines = server.process().log_lines_with("");
            let last = lines.len().saturating_sub(60);
            lines.into_iter().skip(last).collect::<Vec<_>>().join("\n")
        };
        self.servers.iter().map(log).collect::<Vec<_>>().join("\n--- other server:\n")
    }

    async fn finish(mut self, faults: &str) {
        for worker in &mut self.workers {
            worker.stop().await;
        }
        let client = self.servers[0].client().expect("usable");
        let free = ade_testkit::wait::until("the lock is free", TIMEOUT, || async {
            let lock = client.lock(&self.lock).await.map_err(|error| error.to_string())?;
            if lock.holders.is_empty() && lock.queue_length == 0 { Ok(()) } else { Err(format!("{lock:?}")) }
        });
        free.await.expect("no holders and waiters are left");
        for server in &self.servers {
            let ready = reqwest::get(format!("{}/readyz", server.url())).await.expect("answers");
            assert_eq!(ready.status(), 200, "{}", self.logs());
        }
        self.check_servers();
        let summary = check_counters(&self.counter, &self.workers);
        eprintln!("{}: {faults} (seed {}): {summary}", self.name, effort::seed());
    }
}

/// The lock has at most one holder, and it is a worker.
fn check_holder(lock: &Lock) {
    assert!(lock.holders.len() <= 1, "{lock:?}");
    for holder in &lock.holders {
        assert!((0..WORKERS).any(|number| WorkerConfig::agent(number) == holder.agent_id), "{lock:?}");
    }
}

/// No fenced update is lost and tokens increase. Returns a summary.
fn check_counters(counter: &Counter, workers: &[Worker]) -> String {
    let logs: Vec<_> = workers.iter().map(Worker::log).collect();
    let (fenced, unfenced) = counter.values();
    let accepted = counter.accepted();
    let mut recorded: Vec<_> = logs.iter().flat_map(|log| &log.fenced).copied().collect();
    recorded.sort_by_key(|accepted| accepted.value);
    assert_eq!(fenced, recorded.len() as u64, "a fenced update was lost");
    assert_eq!(recorded, accepted, "workers and counter disagree");
    for (before, after) in accepted.iter().zip(accepted.iter().skip(1)) {
        assert!(after.token > before.token, "tokens of accepted updates increase: {before:?} {after:?}");
        assert_eq!(after.value, before.value + 1, "{before:?} {after:?}");
    }
    let mut grants: Vec<RecordedGrant> = logs.iter().flat_map(|log| &log.grants).copied().collect();
    check_tokens_increase(&mut grants);
    let written: u64 = logs.iter().map(|log| log.unfenced).sum();
    let rejected: u64 = logs.iter().map(|log| log.rejected).sum();
    let lost = written - unfenced;
    format!(
        "{} grants, {fenced} updates accepted with fencing and none lost, {rejected} rejected; \
         without fencing {lost} of {written} updates were lost",
        grants.len()
    )
}

/// A request sent after another one was granted gets a greater token, and no token is granted twice.
fn check_tokens_increase(grants: &mut [RecordedGrant]) {
    let mut by_response = grants.to_vec();
    by_response.sort_by_key(|grant| grant.granted_at);
    grants.sort_by_key(|grant| grant.requested_at);
    let mut before = by_response.iter().peekable();
    let mut greatest: Option<RecordedGrant> = None;
    for grant in grants.iter() {
        while let Some(earlier) = before.next_if(|earlier| earlier.granted_at < grant.requested_at) {
            greatest = greatest.into_iter().chain([*earlier]).max_by_key(|grant| grant.token);
        }
        assert!(greatest.is_none_or(|earlier| earlier.token < grant.token), "{greatest:?} {grant:?}");
    }
    let mut tokens: Vec<u64> = grants.iter().map(|grant| grant.token).collect();
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] != pair[1]), "a token was granted twice");
}
