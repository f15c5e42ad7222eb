//! The longest pause of a server with many locks: while they are acquired, renewed and journaled, while they are read, and
//! after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grants, HeldLocksRequest, LockSpec, LockToken};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::Sizes;
use super::hold::{LOCKS_PER_AGENT, acquire_all};
use crate::cpu::{CpuTimes, ONE_THREAD};
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{Connection, Target, to_json};
use crate::report::{Figure, Row};
use crate::samples::{Latencies, Samples};
use crate::server::{ServerChoice, ServerUnderTest};

/// The longest lease, so that nothing expires before it is renewed.
const TTL_SECONDS: f64 = 300.0;
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
const AIM_MS: f64 = 20.0;
const PAGES: [(&str, &str); 6] = [
    ("list page", "/api/v1/locks"),
    ("list page, by type", "/api/v1/locks?resource_type=bench-held"),
    ("list page, by agent", "/api/v1/locks?agent=bench-1"),
    ("list page, none matches", "/api/v1/locks?resource_type=none"),
    ("graph", "/api/v1/locks/graph"),
    ("metrics", "/metrics"),
];
const PAGE_REQUESTS: usize = 20;

/// Sends one kind of request again and again, and keeps the latencies.
struct Probe {
    is_stopping: Arc<AtomicBool>,
    task: JoinHandle<Result<Samples, BenchError>>,
}

impl Probe {
    /// A request that takes a lock and gives it back, or one that only passes through HTTP.
    async fn start(target: &Target, takes_lock: bool) -> Result<Self, BenchError> {
        let (mut connection, is_stopping) = (target.connect().await?, Arc::new(AtomicBool::default()));
        let stop = is_stopping.clone();
        let task = tokio::spawn(async move {
            let mut samples = Samples::default();
            let mut pace = interval(PROBE_INTERVAL);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stop.load(Ordering::Relaxed) {
                pace.tick().await;
                let start = Instant::now();
                if takes_lock {
                    acquire_and_release(&mut connection).await?;
                } else {
                    connection.get("/healthz").await?.expect(200)?;
                }
                samples.add(start.elapsed());
            }
            Ok(samples)
        });
        Ok(Self { is_stopping, task })
    }

    async fn stop(self) -> Result<Latencies, BenchError> {
        self.is_stopping.store(true, Ordering::Relaxed);
        let failed = |error| BenchError::new(ErrorKind::Unavailable, format!("a probe stopped: {error}"));
        Ok(self.task.await.map_err(failed)??.latencies())
    }
}

async fn acquire_and_release(connection: &mut Connection) -> Result<(), BenchError> {
    let agent_id = Some("bench-probe".to_owned());
    let locks = vec![LockSpec { lock: "resource:bench-probe:1".to_owned(), mode: None }];
    let request = AcquireRequest { locks, agent_id: agent_id.clone(), ..AcquireRequest::default() };
    let response = connection.post("/api/v1/locks/acquire", to_json(&request)?).await?.expect(200)?;
    let granted: Grants = response.json()?;
    let held = granted.grants.into_iter();
    let locks =
        held.map(|grant| LockToken { lock: grant.lock, fencing_token: grant.fencing_token }).collect();
    let request = HeldLocksRequest { agent_id, holder_id: None, locks };
    connection.post("/api/v1/locks/release", to_json(&request)?).await?.expect(200)?;
    Ok(())
}

/// What the probes saw meanwhile.
struct Observed {
    pair: Latencies,
    http: Latencies,
}

impl Observed {
    /// Runs the probes for as long as the work takes.
    async fn during<T>(
        target: &Target,
        work: impl Future<Output = Result<T, BenchError>>,
    ) -> Result<(T, Self), BenchError> {
        let (pair, http) = (Probe::start(target, true).await?, Probe::start(target, false).await?);
        let done = work.await?;
        Ok((done, Self { pair: pair.stop().await?, http: http.stop().await? }))
    }

    fn add_to(&self, row: &mut Row, name: &str) {
        let longest =
            Figure::below(format!("longest acquire and release, {name}"), self.pair.max_ms, "ms", AIM_MS);
        row.figures.push(longest.relative_to(self.http.max_ms, "longest GET /healthz meanwhile"));
        let observed = json!({ "acquire_and_release": self.pair, "healthz": self.http });
        if let Some(details) = row.details.as_object_mut() {
            details.insert(name.replace(' ', "_"), observed);
        }
    }
}

pub(super) async fn measure(
    choice: &ServerChoice,
    server: ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let locks = if server.redis.is_some() { sizes.locks } else { sizes.stall_locks };
    let agents = locks.div_ceil(LOCKS_PER_AGENT);
    bar.set_length(2 * agents as u64 + 2);
    let mut row = Row {
        row: "stall",
        what: format!(
            "{locks} locks are acquired and renewed by {agents} agents, then pages are read, then the server is killed and started \
             again: the longest of the requests that take and give back one more lock every 5 ms meanwhile, and pages (median of \
             {PAGE_REQUESTS}), 1 client thread"
        ),
        figures: Vec::new(),
        cpu: Vec::new(),
        details: json!({ "locks": locks }),
    };
    let pause = Duration::from_secs_f64(sizes.seconds);
    let work = load(&server, agents, pause, bar);
    let (cpu, loading) = Observed::during(&server.target, work).await?;
    row.cpu.push(cpu.per("lock, acquired and renewed", agents * LOCKS_PER_AGENT, ONE_THREAD));
    loading.add_to(&mut row, "loading");
    let (pages, reading) = Observed::during(&server.target, read_pages(&server.target)).await?;
    reading.add_to(&mut row, "reading");
    for ((name, _), latencies) in PAGES.into_iter().zip(pages) {
        row.figures.push(Figure::below(name, latencies.p50_ms, "ms", AIM_MS));
        if let Some(details) = row.details.as_object_mut() {
            details.insert(name.replace([' ', ','], "_"), json!(latencies));
        }
    }
    bar.inc(1);
    let start = Instant::now();
    if let Some(server) = choice.restart(server)? {
        row.figures.push(Figure::plain("restart", start.elapsed().as_secs_f64(), "s"));
        let (usage, restarted) = Observed::during(&server.target, async {
            sleep(pause).await;
            server.memory().await
        })
        .await?;
        restarted.add_to(&mut row, "restarted");
        if let (Some(usage), Some(details)) = (usage, row.details.as_object_mut()) {
            details.insert("resident_bytes_restarted".to_owned(), json!(usage.resident_bytes));
        }
    }
    bar.inc(1);
    Ok(row)
}

/// Acquires and renews all locks, and waits for snapshots of the journal, sweeps and maintenance.
async fn load(
    server: &ServerUnderTest,
    agents: usize,
    pause: Duration,
    bar: &ProgressBar,
) -> Result<CpuTimes, BenchError> {
    let mut connection = server.target.connect().await?;
    let meter = server.cpu_meter();
    let before = meter.read().await?;
    let mut heartbeats = Vec::with_capacity(agents);
    for agent in 0..agents {
        heartbeats.push(acquire_all(&mut connection, agent, Some(TTL_SECONDS)).await?);
        bar.inc(1);
    }
    for body in heartbeats {
        connection.post("/api/v1/locks/heartbeat", body).await?.expect(200)?;
        bar.inc(1);
    }
    let cpu = meter.read().await?.since(&before);
    sleep(pause).await;
    Ok(cpu)
}

async fn read_pages(target: &Target) -> Result<Vec<Latencies>, BenchError> {
    let mut connection = target.connect().await?;
    let mut latencies = Vec::with_capacity(PAGES.len());
    for (_, path) in PAGES {
        let mut samples = Samples::default();
        for _ in 0..PAGE_REQUESTS {
            let start = Instant::now();
            connection.get(path).await?.expect(200)?;
            samples.add(start.elapsed());
        }
        latencies.push(samples.latencies());
    }
    Ok(latencies)
}
