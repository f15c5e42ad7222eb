//! Acquire over HTTP at an offered rate, compared with the same load without a lock.

use indicatif::ProgressBar;
use serde_json::json;

use super::Sizes;
use crate::cpu::{CpuTimes, ONE_THREAD};
use crate::error::BenchError;
use crate::open_loop::{LoadResult, Operation, offer};
use crate::report::{Figure, Row};
use crate::server::ServerUnderTest;

/// Both loads alternate, so that noise affects both alike.
const ROUNDS: u32 = 4;

pub(super) async fn measure(
    server: &ServerUnderTest,
    sizes: &Sizes,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let Sizes { rate, connections, seconds, .. } = *sizes;
    let mut pool = server.target.connect_many(connections).await?;
    bar.set_length(u64::from(2 * ROUNDS));
    let round_seconds = seconds / f64::from(ROUNDS);
    // Warm-up of connections, allocator and caches.
    offer(&mut pool, Operation::Lock, rate, round_seconds.min(1.0)).await?;
    let (mut lock, mut health) = (LoadResult::default(), LoadResult::default());
    let (mut lock_cpu, mut health_cpu) = (CpuTimes::default(), CpuTimes::default());
    let meter = server.cpu_meter();
    for _ in 0..ROUNDS {
        for (operation, total, cpu) in
            [(Operation::Lock, &mut lock, &mut lock_cpu), (Operation::Health, &mut health, &mut health_cpu)]
        {
            let before = meter.read().await?;
            let result = offer(&mut pool, operation, rate, round_seconds).await?;
            *cpu += meter.read().await?.since(&before);
            total.samples.append(result.samples);
            total.elapsed += result.elapsed;
            bar.inc(1);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let per_second = |result: &LoadResult| result.samples.len() as f64 / result.elapsed.as_secs_f64();
    let (achieved, health_achieved) = (per_second(&lock), per_second(&health));
    let (lock, health) = (lock.samples.latencies(), health.samples.latencies());
    let baseline = "GET /healthz";
    let cpu = vec![
        lock_cpu.per("acquire + release", lock.count, ONE_THREAD),
        health_cpu.per("two GET /healthz", health.count, ONE_THREAD),
    ];
    Ok(Row {
        row: "acquire",
        what: format!(
            "acquire over HTTP: {rate}/s offered over {connections} connections, each followed by its release \
             ({} requests/s in all); latency from the scheduled start",
            2 * rate
        ),
        figures: vec![
            Figure::below("p50", lock.p50_ms, "ms", 1.0).relative_to(health.p50_ms, baseline),
            Figure::below("p99", lock.p99_ms, "ms", 5.0).relative_to(health.p99_ms, baseline),
            Figure::plain("p99.9", lock.p99_9_ms, "ms").relative_to(health.p99_9_ms, baseline),
            Figure::plain("max", lock.max_ms, "ms").relative_to(health.max_ms, baseline),
            Figure::plain("achieved", achieved, "/s").relative_to(f64::from(rate), "offered"),
        ],
        cpu,
        details: json!({
            "offered_per_second": rate,
            "connections": connections,
            "acquire": lock,
            "healthz": health,
            "healthz_achieved_per_second": health_achieved,
        }),
    })
}
