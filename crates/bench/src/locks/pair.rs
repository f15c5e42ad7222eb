//! Acquire and release on Redis, compared with a bare lock (`SET NX PX` and compare-and-delete) through the same client.

use std::time::Duration;

use ade_domain::lock::{
    AcquireStatus, Acquisition, Holder, LockCommand, LockMode, LockName, LockOutcome, RequestKey, WaitOptions,
};
use ade_store::Locks;
use ade_store::redis::{RedisCoordination, RedisOptions};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::{CLIENT_THREADS, Sizes};
use crate::cpu::{CpuMeter, CpuTimes, Part};
use crate::error::{BenchError, ErrorKind};
use crate::redis_baseline::RedisBaseline;
use crate::report::{Figure, Row};
use crate::samples::Samples;
use crate::server::BenchRedis;

/// Both alternate, so that noise affects both alike.
const ROUNDS: u32 = 4;
const MAX_REDIS_US: f64 = 20.0;
const MAX_CLIENT_US: f64 = 15.0;

#[derive(Debug, Clone)]
enum Backend {
    Ade(RedisCoordination),
    Baseline(RedisBaseline),
}

#[derive(Debug, Default)]
struct Totals {
    samples: Samples,
    elapsed: Duration,
    cpu: CpuTimes,
}

impl Totals {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn per_second(&self) -> f64 {
        self.samples.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Runs on the client threads.
pub(super) async fn measure(redis: &BenchRedis, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let clients = sizes.connections;
    let ade = Backend::Ade(RedisCoordination::open(&redis.url, RedisOptions::default()).await?);
    let bare_lock = Backend::Baseline(RedisBaseline::open(&redis.url).await?);
    let meter = CpuMeter { redis: Some(redis.baseline.clone()), ..CpuMeter::default() };
    bar.set_length(u64::from(2 * ROUNDS));
    let round = Duration::from_secs_f64(sizes.seconds / f64::from(ROUNDS));
    for backend in [&ade, &bare_lock] {
        run(backend, clients, round.min(Duration::from_secs(1))).await?;
    }
    let (mut own, mut baseline) = (Totals::default(), Totals::default());
    for _ in 0..ROUNDS {
        for (backend, total) in [(&ade, &mut own), (&bare_lock, &mut baseline)] {
            let before = meter.read().await?;
            let (samples, elapsed) = run(backend, clients, round).await?;
            total.cpu += meter.read().await?.since(&before);
            total.samples.append(samples);
            total.elapsed += elapsed;
            bar.inc(1);
        }
    }
    let (rate, baseline_rate) = (own.per_second(), baseline.per_second());
    let reference = "bare lock";
    let own_cpu = own.cpu.per("pair", own.samples.len(), CLIENT_THREADS);
    let baseline_cpu = baseline.cpu.per(reference, baseline.samples.len(), CLIENT_THREADS);
    let (own, baseline) = (own.samples.latencies(), baseline.samples.latencies());
    let mut figures = vec![
        Figure::at_least("pairs", rate, "/s", 0.5 * baseline_rate).relative_to(baseline_rate, reference),
        Figure::plain("p50", own.p50_ms, "ms").relative_to(baseline.p50_ms, reference),
        Figure::plain("p99", own.p99_ms, "ms").relative_to(baseline.p99_ms, reference),
    ];
    figures.extend(own_cpu.figure_below(Part::Redis, MAX_REDIS_US));
    figures.extend(own_cpu.figure_below(Part::Client, MAX_CLIENT_US));
    Ok(Row {
        row: "pair",
        what: format!(
            "acquire + release on Redis: {clients} clients on {CLIENT_THREADS} threads, each with its own locks, over one connection; compared with \
             SET NX PX and a compare-and-delete script over the same kind of connection"
        ),
        figures,
        cpu: vec![own_cpu, baseline_cpu],
        details: json!({
            "clients": clients,
            "pairs_per_second": rate,
            "baseline_pairs_per_second": baseline_rate,
            "pair": own,
            "baseline": baseline,
        }),
    })
}

async fn run(
    backend: &Backend,
    clients: usize,
    duration: Duration,
) -> Result<(Samples, Duration), BenchError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let backend = backend.clone();
        tasks.spawn(async move {
            let mut samples = Samples::default();
            for number in 0_u64.. {
                let began = Instant::now();
                if began - start >= duration {
                    break;
                }
                run_pair(&backend, client, number % 100).await?;
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        all.append(done??);
    }
    Ok((all, start.elapsed()))
}

async fn run_pair(backend: &Backend, client: usize, number: u64) -> Result<(), BenchError> {
    let failed = |action: &str| {
        BenchError::new(ErrorKind::Unavailable, format!("cannot {action} a lock that nobody else uses"))
    };
    let ade = match backend {
        Backend::Baseline(lock) => {
            let done = lock
                .acquire_and_release(
                    &format!("bench-{client}-{number}"),
                    &Uuid::new_v4().simple().to_string(),
                )
                .await;
            return if done? { Ok(()) } else { Err(failed("acquire")) };
        }
        Backend::Ade(ade) => ade,
    };
    let invalid = |_| failed("name");
    let lock: LockName = format!("resource:bench-pair:{client}-{number}").parse().map_err(invalid)?;
    let holder = Holder::new(&format!("bench-{client}"), None).map_err(invalid)?;
    let acquisition = exclusive(holder.clone(), None);
    let LockOutcome::Status(AcquireStatus::Held(grant)) =
        execute(ade, &lock, LockCommand::Acquire(acquisition)).await?
    else {
        return Err(failed("acquire"));
    };
    match execute(ade, &lock, LockCommand::Release { holder, token: grant.token, server: None }).await? {
        LockOutcome::Done => Ok(()),
        _ => Err(failed("release")),
    }
}

/// A request for an exclusive lock with a key of its own.
pub(super) fn exclusive(holder: Holder, wait: Option<WaitOptions>) -> Acquisition {
    Acquisition {
        holder,
        request: RequestKey::from_nonce(Uuid::new_v4().as_u128()),
        leave_tombstone: false,
        mode: LockMode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait,
        purpose: "".into(),
        priority: 0,
    }
}

pub(super) async fn execute(
    ade: &RedisCoordination,
    lock: &LockName,
    command: LockCommand,
) -> Result<LockOutcome, BenchError> {
    let replies = ade.execute_commands(vec![(lock.clone(), command)]).await?;
    let reply = replies.into_iter().next();
    reply
        .map(|reply| reply.outcome)
        .ok_or_else(|| BenchError::new(ErrorKind::Unavailable, "no reply to a command"))
}
