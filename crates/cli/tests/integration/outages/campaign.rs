//! Two servers and two workers on one Redis Cluster and one PostgreSQL behave as one: under load, Redis and PostgreSQL are stopped and
//! killed, and each process is killed in turn. Everything recovers within seconds, no lock is held twice, no task is applied twice or
//! lost, and nothing that was acknowledged is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::server::{BOOTSTRAP_TOKEN, ServerBuilder};
use ade_testkit::wait::until;
use ade_testkit::{
    AdeServer, AdminClient, ApiClient, Postgres, PostgresProxy, RedisCluster, SeededRng, WorkerProcess,
    effort,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::load::{Acknowledged, Callers, Load, TicketEnd};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// From the end of a fault until everything is served again.
const RECOVERY: Duration = Duration::from_secs(5);
/// Short leases, so that the tasks of killed workers are recovered soon.
const LEASE_SECONDS: u64 = 2;
const AGENTS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    StopRedis,
    KillRedis,
    FreezePostgres,
    DisconnectPostgres,
    KillServer(usize),
    KillWorker(usize),
}

const FAULTS: [Fault; 8] = [
    Fault::StopRedis,
    Fault::KillRedis,
    Fault::FreezePostgres,
    Fault::DisconnectPostgres,
    Fault::KillServer(0),
    Fault::KillServer(1),
    Fault::KillWorker(0),
    Fault::KillWorker(1),
];

/// Outages that last longer in some rounds of a soak.
const OUTAGES: [Fault; 4] =
    [Fault::StopRedis, Fault::FreezePostgres, Fault::KillRedis, Fault::DisconnectPostgres];
const LONG_OUTAGE: Duration = Duration::from_secs(30);

/// How long a recovery took.
#[derive(Debug, Clone, Copy, Default)]
struct Recovery {
    /// Until all servers said that they were ready.
    ready: Duration,
    /// Until agents had got and released locks, on average one each.
    locks: Duration,
    /// Until a task was applied.
    tasks: Duration,
}

impl Recovery {
    fn max(self, other: Self) -> Self {
        Self {
            ready: self.ready.max(other.ready),
            locks: self.locks.max(other.locks),
            tasks: self.tasks.max(other.tasks),
        }
    }
}

/// Field order is drop order.
struct Campaign {
    workers: Vec<WorkerProcess>,
    servers: Vec<AdeServer>,
    api: ApiClient,
    redis: RedisCluster,
    proxy: PostgresProxy,
    postgres: Postgres,
    folder: TempDir,
}

impl Campaign {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let redis = RedisCluster::start().expect("starts");
        let postgres = Postgres::start().expect("starts");
        let proxy = PostgresProxy::start(&postgres.create_database("ade").expect("created")).await;
        let (blobs, log) = (folder.path().join("blobs"), run_log(&folder));
        let config = format!(
            "[server]\nblobs = {blobs:?}\n[worker]\nlease_seconds = {LEASE_SECONDS}\n\
             [executors.command.templates.count]\n\
             argv = [\"sh\", \"-c\", 'echo \"$1\" >> \"$0\"', {log:?}, \"{{number}}\"]\n"
        );
        let setup = ServerBuilder::new(ADE).env("ADE_WORKER_SLOTS", "0").config(&config);
        let setup = setup.arg("--redis").arg(&redis.url()).arg("--postgres").arg(proxy.url());
        let servers = vec![setup.clone().start().expect("starts"), setup.start().expect("starts")];
        let worker = || WorkerProcess::start(ADE, &config, &redis.url(), proxy.url()).expect("starts");
        let workers = vec![worker(), worker()];
        let api = ApiClient::connect(&servers[0]).await;
        Self { workers, servers, api, redis, proxy, postgres, folder }
    }

    async fn start_load(&self) -> Load {
        let office = AdminClient { api: self.api.clone() };
        office.set_config("ratelimit:token", json!(0)).await;
        let callers = Callers {
            urls: self.servers.iter().map(AdeServer::url).collect(),
            bootstrap: BOOTSTRAP_TOKEN.to_owned(),
            author: office.create_user("pat", &[AUTHOR]).await.token,
            reviewer: office.create_user("rev", &[REVIEWER]).await.token,
        };
        Load::start(&callers, AGENTS)
    }

    fn signal_redis(&self, signal: Signal) {
        self.redis.processes().for_each(|process| process.signal(signal).expect("sent"));
    }

    /// Makes something fail for a while, and returns when it was back. `on_loss` runs when Redis has lost its data.
    async fn inject(&self, fault: Fault, duration: Duration, on_loss: impl FnOnce()) -> Instant {
        match fault {
            Fault::StopRedis => {
                self.signal_redis(Signal::STOP);
                self.wait_for_metric("ade_lock_outage 1", duration).await;
                self.signal_redis(Signal::CONT);
                self.redis.wait_until_ok().expect("serves");
            }
            Fault::KillRedis => {
                self.redis.nodes.iter().for_each(|node| node.kill().expect("killed"));
                on_loss();
                self.wait_for_metric("ade_lock_outage 1", duration).await;
                self.redis.nodes.iter().for_each(|node| node.start_again().expect("starts"));
                self.redis.wait_until_ok().expect("serves");
            }
            Fault::FreezePostgres => {
                self.proxy.freeze();
                self.wait_for_metric("ade_database_up 0", duration).await;
                self.proxy.thaw();
            }
            Fault::DisconnectPostgres => {
                self.proxy.disconnect();
                self.wait_for_metric("ade_database_up 0", duration).await;
                self.proxy.reconnect();
            }
            Fault::KillServer(number) => self.servers[number].kill_and_restart().expect("restarts"),
            Fault::KillWorker(number) => {
                self.workers[number].kill().expect("killed");
                self.workers[number].start_again().expect("starts");
            }
        }
        Instant::now()
    }

    /// Waits until all servers show a metric, and some time has passed since.
    async fn wait_for_metric(&self, line: &str, at_least: Duration) {
        let started = Instant::now();
        for server in &self.servers {
            let observe = || async {
                let metrics = get(&format!("{}/metrics", server.url())).await;
                let is_over = started.elapsed() >= at_least;
                if is_over && metrics.contains(line) { Ok(()) } else { Err(metrics) }
            };
            until(&format!("{line} at {}", server.url()), TIMEOUT, observe).await.expect("in time");
        }
    }

    /// Waits until all servers are ready, locks are granted and tasks are applied again. Returns how long that took.
    async fn wait_for_recovery(&self, load: &Load, fault: Fault, since: Instant) -> Recovery {
        let cycles = || load.acknowledged.lock_cycles.load(Ordering::SeqCst);
        let (before, runs) = (cycles(), self.runs().len());
        for server in &self.servers {
            let observe = || async {
                let ready = get(&format!("{}/readyz?strict=true", server.url())).await;
                if ready.contains("\"ready\"") { Ok(()) } else { Err(ready) }
            };
            until(&format!("{fault:?}: a server is ready"), TIMEOUT, observe).await.expect("in time");
        }
        let ready = since.elapsed();
        let observe = || async {
            let cycles = cycles();
            if cycles > before + AGENTS { Ok(()) } else { Err(format!("{cycles} cycles after {before}")) }
        };
        until(&format!("{fault:?}: locks go on"), TIMEOUT, observe).await.expect("in time");
        let locks = since.elapsed();
        let observe = || async {
            let now = self.runs().len();
            if now > runs { Ok(()) } else { Err(format!("{now} runs")) }
        };
        until(&format!("{fault:?}: tasks go on"), TIMEOUT, observe).await.expect("in time");
        load.check_running();
        Recovery { ready, locks, tasks: since.elapsed() }
    }

    /// The numbers of the tasks that were applied, once for each time.
    fn runs(&self) -> Vec<String> {
        let log = fs::read_to_string(run_log(&self.folder)).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// `in_lost_redis` are the tickets that were open when all of Redis was killed, which keeps nothing here: a stored request
    /// may have been moved to one of its nodes while others were already gone.
    async fn check(&self, acknowledged: &Acknowledged, in_lost_redis: &BTreeSet<String>) {
        let contradictions = acknowledged.locks.contradictions();
        assert!(contradictions.is_empty(), "{contradictions:#?}");
        let stored = acknowledged.stored.lock().expect("not poisoned").clone();
        for (ticket, end) in &stored {
            let may_be_lost = in_lost_redis.contains(ticket);
            assert!(end.is_some_and(|end| may_be_lost || end != TicketEnd::Lost), "{ticket}: {end:?}");
        }
        assert!(!stored.is_empty(), "no request was stored: the faults were too short");
        self.check_tasks(acknowledged).await;
        let verdict = self.api.verify_audit().await;
        assert_eq!(verdict["status"], "valid", "{verdict}");
        let gaps = "SELECT max(number) - count(*) FROM audit_chain WHERE number > 0";
        let missing = "SELECT count(*) FROM events WHERE NOT EXISTS (SELECT 1 FROM audit_chain \
                       WHERE audit_chain.entry_id = events.event_id AND number > 0)";
        for sql in [gaps, missing] {
            assert_eq!(self.postgres.psql("ade", sql).expect("answers"), "0", "{sql}");
        }
        for process in
            self.servers.iter().map(AdeServer::process).chain(self.workers.iter().map(WorkerProcess::process))
        {
            let panics = process.log_lines_with("panicked");
            assert!(panics.is_empty(), "{panics:?}");
        }
    }

    /// Every acknowledged step is in the record, and every approved task was applied once.
    async fn check_tasks(&self, acknowledged: &Acknowledged) {
        let tasks = acknowledged.tasks.lock().expect("not poisoned").clone();
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        let is_over = |task: &Value| matches!(text_field(task, "state").as_str(), "COMPLETED" | "FAILED");
        let office = AdminClient { api: self.api.clone() };
        let mut completed = Vec::new();
        for (id, step) in &tasks {
            let shown = match *step {
                "approved" => office.wait_for_task("an approved task is applied", id, is_over).await,
                _ => office.task_request(id).await,
            };
            let state = text_field(&shown, "state");
            assert!(*step == "created" || state != "DRAFT", "{step}: {shown}");
            let number = text_field(&shown["config"]["parameters"]["arguments"], "number");
            match state.as_str() {
                "COMPLETED" => completed.push(number),
                // A killed worker cannot say whether its command ran.
                "FAILED" => assert_eq!(shown["execution"]["code"], "OUTCOME_UNKNOWN", "{shown}"),
                _ => {}
            }
        }
        self.runs().into_iter().for_each(|number| *runs.entry(number).or_default() += 1);
        let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "applied twice: {twice:?}");
        for number in &completed {
            assert_eq!(runs.get(number), Some(&1), "task {number} is completed but was not applied");
        }
    }
}

fn run_log(folder: &TempDir) -> PathBuf {
    folder.path().join("runs.log")
}

/// The text of a page; empty if the server does not answer.
async fn get(url: &str) -> String {
    let Ok(response) = reqwest::get(url).await else { return String::new() };
    response.text().await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_behave_as_one_under_faults() {
    let campaign = Campaign::start().await;
    let load = campaign.start_load().await;
    let mut rng = SeededRng::new(effort::seed(), 1_000);
    let (mut slowest, mut in_lost_redis) = (Recovery::default(), BTreeSet::new());
    for (_, long) in (0..effort::rounds(1, 20)).zip(OUTAGES.into_iter().cycle()) {
        let mut pending = FAULTS.to_vec();
        while !pending.is_empty() {
            let at = usize::try_from(rng.below(pending.len() as u64)).expect("few");
            let fault = pending.swap_remove(at);
            let is_long = effort::is_soak() && long == fault;
            let duration = if is_long { LONG_OUTAGE } else { Duration::ZERO };
            let on_loss = || in_lost_redis.extend(load.acknowledged.open_tickets());
            let since = campaign.inject(fault, duration, on_loss).await;
            let took = campaign.wait_for_recovery(&load, fault, since).await;
            eprintln!("{fault:?} for at least {duration:?}: {took:.1?}");
            slowest = slowest.max(took);
        }
    }
    let acknowledged = load.stop().await;
    campaign.check(&acknowledged, &in_lost_redis).await;
    eprintln!(
        "{} grants, {} stored acquires, {} stored releases, {} tasks; slowest recovery {slowest:.1?}",
        acknowledged.locks.len(),
        acknowledged.stored.lock().expect("not poisoned").len(),
        acknowledged.stored_releases.load(Ordering::SeqCst),
        acknowledged.tasks.lock().expect("not poisoned").len(),
    );
    assert!(slowest.ready <= RECOVERY, "slowest recovery {slowest:?}");
    // Beside other tests, the load itself is too slow to say this.
    let served = slowest.locks.max(slowest.tasks);
    assert!(!effort::is_soak() || served <= RECOVERY, "slowest recovery {slowest:?}");
}
