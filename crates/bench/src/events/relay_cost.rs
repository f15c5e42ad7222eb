//! What projections and streams cost whole lifecycles: two servers with new data, one of which writes them, in turns.

use std::path::Path;

use indicatif::ProgressBar;
use serde_json::json;

use super::Args;
use crate::approvals::Distributed;
use crate::cpu::CpuCost;
use crate::error::BenchError;
use crate::lifecycle::{Environment, LifecycleResults, Workload, measure_rounds};
use crate::report::{Figure, Row};

/// How often each of the two servers is measured.
pub(super) const TURNS: u32 = 4;

pub(super) async fn row(
    args: &Args,
    parent: &Path,
    distributed: &Distributed,
    bar: &ProgressBar,
) -> Result<Row, BenchError> {
    let (with, without) = (args.sizes(true), args.sizes(false));
    let create = |number, sizes| {
        Environment::create(&args.program, parent, Some(distributed), number, Workload::Noop, sizes)
    };
    let on = create(1, &with).await?;
    let off = create(2, &without).await?;
    let (mut measured_on, mut measured_off) = (Vec::new(), Vec::new());
    for _ in 0..if args.quick { 1 } else { TURNS } {
        measured_on.push(measure_rounds(&on, Workload::Noop, &with, bar).await?.0);
        measured_off.push(measure_rounds(&off, Workload::Noop, &without, bar).await?.0);
    }
    on.remove().await?;
    off.remove().await?;
    let (rate_on, rate_off) = (median_rate(&measured_on), median_rate(&measured_off));
    let cpu = |results: &[LifecycleResults], what: &str| {
        let last = results.last().map(|results| results.cpu.clone());
        last.map(|cpu| CpuCost { operation: format!("lifecycle {what}"), ..cpu })
    };
    let costs = [cpu(&measured_on, "with relay"), cpu(&measured_off, "without")];
    Ok(Row {
        row: "relay",
        what: format!("lifecycles with projections and streams, and without, {TURNS} turns each; medians"),
        figures: vec![
            Figure::plain("lifecycles with relay", rate_on, "/min").relative_to(rate_off, "without"),
            Figure::plain("lifecycles without", rate_off, "/min"),
        ],
        cpu: costs.into_iter().flatten().collect(),
        details: json!({ "with": rates(&measured_on), "without": rates(&measured_off) }),
    })
}

fn rates(results: &[LifecycleResults]) -> Vec<f64> {
    let mut rates: Vec<f64> = results.iter().map(|results| results.per_minute).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

fn median_rate(results: &[LifecycleResults]) -> f64 {
    let rates = rates(results);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
