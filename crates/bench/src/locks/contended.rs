//! One lock on Redis that many clients want all the time: each acquires it, releases it at once and queues again.

use std::time::Duration;

use ade_domain::lock::{
    AcquireStatus, FencingToken, Holder, LockCommand, LockName, LockOutcome, SharedStr, WaitOptions,
};
use ade_store::Locks;
use ade_store::redis::{RedisCoordination, RedisOptions};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::pair::{exclusive, execute};
use super::{CLIENT_THREADS, Sizes};
use crate::cpu::{CpuMeter, Part};
use crate::error::{BenchError, ErrorKind};
use crate::report::{Figure, Row};
use crate::server::BenchRedis;

const WARM_UP: Duration = Duration::from_secs(1);
const SWEEP_INTERVAL: Duration = Duration::from_millis(200);
/// How often a waiter asks if it gets no notification, as a server does.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MIN_GRANTS_PER_SECOND: f64 = 7_000.0;
const MAX_REDIS_US: f64 = 110.0;
const MAX_UNFAIRNESS: f64 = 1.05;

/// Runs on the client threads.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
pub(super) async fn measure(redis: &BenchRedis, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let clients = sizes.connections;
    let ade = RedisCoordination::open(&redis.url, RedisOptions::default()).await?;
    // As in a server. Dropping it stops the sweeps.
    let mut sweeps = JoinSet::new();
    let sweeping = ade.clone();
    sweeps.spawn(async move {
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            interval.tick().await;
            // A failure shows in the figures of the clients.
            let _ = sweeping.sweep().await;
        }
    });
    bar.set_length(2);
    run(&ade, clients, WARM_UP.min(Duration::from_secs_f64(sizes.seconds))).await?;
    bar.inc(1);
    let meter = CpuMeter { redis: Some(redis.baseline.clone()), ..CpuMeter::default() };
    let (before, started) = (meter.read().await?, Instant::now());
    let grants = run(&ade, clients, Duration::from_secs_f64(sizes.seconds)).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = meter.read().await?.since(&before);
    bar.inc(1);
    let total = grants.iter().sum::<u64>();
    let cpu = cpu.per("grant", usize::try_from(total).unwrap_or(usize::MAX), CLIENT_THREADS);
    let (most, least) = (grants.iter().max().copied(), grants.iter().min().copied());
    let (most, least) = (most.unwrap_or_default() as f64, least.unwrap_or_default() as f64);
    let rate = total as f64 / elapsed;
    let mut figures = vec![Figure::at_least("grants", rate, "/s", MIN_GRANTS_PER_SECOND)];
    figures.extend(cpu.figure_below(Part::Redis, MAX_REDIS_US));
    // First come, first served: nobody gets much more than others.
    figures.push(Figure::below("most / least", most / least.max(1.0), "", MAX_UNFAIRNESS));
    Ok(Row {
        row: "contended",
        what: format!(
            "one lock on Redis: {clients} clients on {CLIENT_THREADS} threads that acquire it, release it at once and queue again, \
             over one connection"
        ),
        figures,
        cpu: vec![cpu],
        details: json!({
            "clients": clients,
            "grants_per_second": rate,
            "most_grants": most,
            "least_grants": least,
        }),
    })
}

/// Returns how many grants each client got.
async fn run(ade: &RedisCoordination, clients: usize, duration: Duration) -> Result<Vec<u64>, BenchError> {
    let ends_at = Instant::now() + duration;
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let ade = ade.clone();
        tasks.spawn(async move {
            let mut grants = 0;
            while Instant::now() < ends_at {
                acquire_and_release(&ade, client).await?;
                grants += 1;
            }
            Ok::<_, BenchError>(grants)
        });
    }
    let mut all = Vec::with_capacity(clients);
    while let Some(done) = tasks.join_next().await {
        all.push(done??);
    }
    Ok(all)
}

fn failed(action: &str) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot {action} the contended lock"))
}

async fn acquire_and_release(ade: &RedisCoordination, client: usize) -> Result<(), BenchError> {
    let lock: LockName = "resource:bench-contended:one".parse().map_err(|_| failed("name"))?;
    let holder = Holder::new(&format!("bench-{client}"), None).map_err(|_| failed("name a holder of"))?;
    let server: SharedStr = "bench".into();
    let wait = WaitOptions { timeout_ms: 60_000, served_by: Some(server.clone()) };
    let acquisition = exclusive(holder.clone(), Some(wait));
    let subscription = ade.subscribe(acquisition.request);
    let acquire = LockCommand::Acquire(acquisition);
    let token: FencingToken = loop {
        match execute(ade, &lock, acquire.clone()).await? {
            LockOutcome::Status(AcquireStatus::Held(grant)) => break grant.token,
            LockOutcome::Status(AcquireStatus::Waiting { .. }) => {}
            _ => return Err(failed("acquire")),
        }
        if let Ok(Some(grant)) = timeout(POLL_INTERVAL, subscription.changed()).await {
            break grant.token;
        }
    };
    match execute(ade, &lock, LockCommand::Release { holder, token, server: Some(server) }).await? {
        LockOutcome::Done => Ok(()),
        _ => Err(failed("release")),
    }
}
