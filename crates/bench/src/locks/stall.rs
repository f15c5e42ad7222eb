//! The longest pause of a server with many locks: while they are acquired, renewed, journaled and listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grants, HeldLocksRequest, LockSpec, LockToken};
use indicatif::ProgressBar;
use serde_json::{Map, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::Sizes;
use super::hold::{LOCKS_PER_AGENT, acquire_all};
use crate::cpu::ONE_THREAD;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{Connection, Target, to_json};
use crate::report::{Figure, Row};
use crate::samples::{Latencies, Samples};
use crate::server::ServerUnderTest;

/// The longest lease, so that nothing expires before it is renewed.
const TTL_SECONDS: f64 = 300.0;
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
const AIM_MS: f64 = 20.0;
const PAGES: [(&str, &str); 4] = [
    ("list page", "/api/v1/locks"),
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

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let locks = if server.redis.is_some() { sizes.locks } else { sizes.stall_locks };
    let agents = locks.div_ceil(LOCKS_PER_AGENT);
    bar.set_length(2 * agents as u64 + 1);
    let mut connection = server.target.connect().await?;
    let (probe, idle) =
        (Probe::start(&server.target, true).await?, Probe::start(&server.target, false).await?);
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
    // Further snapshots of the journal, sweeps and maintenance.
    sleep(Duration::from_secs_f64(sizes.seconds)).await;
    let (of_lock, of_http) = (probe.stop().await?, idle.stop().await?);
    let mut figures = vec![
        Figure::below("longest acquire and release", of_lock.max_ms, "ms", AIM_MS)
            .relative_to(of_http.max_ms, "longest GET /healthz meanwhile"),
    ];
    let mut details = Map::new();
    for (name, path) in PAGES {
        let mut samples = Samples::default();
        for _ in 0..PAGE_REQUESTS {
            let start = Instant::now();
            connection.get(path).await?.expect(200)?;
            samples.add(start.elapsed());
        }
        let latencies = samples.latencies();
        figures.push(Figure::below(name, latencies.p50_ms, "ms", AIM_MS));
        details.insert(name.replace([' ', ','], "_"), json!(latencies));
    }
    bar.inc(1);
    details.extend([
        ("locks".to_owned(), json!(locks)),
        ("acquire_and_release".to_owned(), json!(of_lock)),
        ("healthz".to_owned(), json!(of_http)),
    ]);
    Ok(Row {
        row: "stall",
        what: format!(
            "{locks} locks are acquired and renewed by {agents} agents: the longest of the requests that take and \
             give back one more lock every 5 ms meanwhile, and pages afterwards (median of {PAGE_REQUESTS})"
        ),
        figures,
        cpu: vec![cpu.per("lock, acquired and renewed", agents * LOCKS_PER_AGENT, ONE_THREAD)],
        details: details.into(),
    })
}
