//! Acquire over HTTP at an offered rate, and beside it the same load without a lock.

use indicatif::ProgressBar;
use serde_json::json;

use super::Sizes;
use crate::error::BenchError;
use crate::open_loop::{Job, Outcome, offer};
use crate::report::{Figure, Row};
use crate::subject::Subject;

/// Both loads take turns, so that a noisy neighbour disturbs both alike.
const ROUNDS: u32 = 4;

pub(super) async fn measure(subject: &Subject, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let Sizes { rate, connections, seconds, .. } = *sizes;
    let mut links = subject.target.links(connections).await?;
    bar.set_length(u64::from(2 * ROUNDS));
    let part = seconds / f64::from(ROUNDS);
    // Warm connections, allocator and branch predictors: the first seconds of a process are not its life.
    offer(&mut links, Job::Lock, rate, part.min(1.0)).await?;
    let (mut lock, mut health) = (Outcome::default(), Outcome::default());
    for _ in 0..ROUNDS {
        for (job, all) in [(Job::Lock, &mut lock), (Job::Health, &mut health)] {
            let outcome = offer(&mut links, job, rate, part).await?;
            all.samples.append(outcome.samples);
            all.took += outcome.took;
            bar.inc(1);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let per_second = |outcome: &Outcome| outcome.samples.len() as f64 / outcome.took.as_secs_f64();
    let (achieved, health_achieved) = (per_second(&lock), per_second(&health));
    let (lock, health) = (lock.samples.latencies(), health.samples.latencies());
    let bare = "GET /healthz";
    Ok(Row {
        row: "acquire",
        what: format!(
            "acquire over HTTP: {rate}/s offered over {connections} connections, each followed by its release \
             ({} requests/s in all); latency from the scheduled start",
            2 * rate
        ),
        figures: vec![
            Figure::aim("p50", lock.p50_ms, "ms", 1.0).against(health.p50_ms, bare),
            Figure::aim("p99", lock.p99_ms, "ms", 5.0).against(health.p99_ms, bare),
            Figure::plain("p99.9", lock.p99_9_ms, "ms").against(health.p99_9_ms, bare),
            Figure::plain("max", lock.max_ms, "ms").against(health.max_ms, bare),
            Figure::plain("achieved", achieved, "/s").against(f64::from(rate), "offered"),
        ],
        details: json!({
            "offered_per_second": rate,
            "connections": connections,
            "acquire": lock,
            "healthz": health,
            "healthz_achieved_per_second": health_achieved,
        }),
    })
}
