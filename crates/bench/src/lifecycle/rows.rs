//! The row of the report: figures compared with the baseline, and the counts of the verification.

use serde_json::json;

use super::Sizes;
use super::baseline::{self, TRANSACTIONS};
use super::client::Workload;
use super::rounds::LifecycleResults;
use super::verify::Verified;
use crate::approvals::{Distributed, format_number};
use crate::cpu::Part;
use crate::report::{Figure, Row};

/// The aims of tasks that change nothing: lifecycles per minute, these relative to the baseline, and CPU time in microseconds.
const EMBEDDED: Aims = Aims { per_minute: 40_000.0, ratio: Some(1.2), cpu: &[(Part::Server, 2_000.0)] };
const DISTRIBUTED: Aims = Aims {
    per_minute: 20_000.0,
    ratio: None,
    cpu: &[(Part::Server, 2_600.0), (Part::PostgreSql, 2_600.0), (Part::Redis, 400.0)],
};

struct Aims {
    per_minute: f64,
    ratio: Option<f64>,
    cpu: &'static [(Part, f64)],
}

pub(super) fn row(
    workload: Workload,
    results: &LifecycleResults,
    verified: &Verified,
    sizes: &Sizes,
    distributed: Option<&Distributed>,
) -> Row {
    let (name, per_minute, reference) = ("lifecycles", results.per_minute, baseline::NAME);
    let aims = match (workload, distributed) {
        (Workload::Noop, None) => Some(EMBEDDED),
        (Workload::Noop, Some(_)) => Some(DISTRIBUTED),
        (Workload::Files, _) => None,
    };
    let rate = match &aims {
        Some(aims) => Figure::at_least(name, per_minute, "/min", aims.per_minute),
        None => Figure::plain(name, per_minute, "/min"),
    };
    let (create, approve, baseline) = (&results.from_create, &results.from_approve, &results.baseline);
    let mut figures = vec![
        rate.relative_to(results.baseline_per_minute, reference),
        Figure::plain("create → COMPLETED, p50", create.p50_ms, "ms").relative_to(baseline.p50_ms, reference),
        Figure::plain("create → COMPLETED, p99", create.p99_ms, "ms").relative_to(baseline.p99_ms, reference),
        Figure::plain("approve → COMPLETED, p50", approve.p50_ms, "ms"),
        Figure::plain("approve → COMPLETED, p99", approve.p99_ms, "ms"),
    ];
    if let Some(aims) = aims {
        let ratio = results.per_minute / results.baseline_per_minute;
        figures.extend(aims.ratio.map(|aim| Figure::at_least("lifecycles per baseline", ratio, "×", aim)));
        figures.extend(aims.cpu.iter().filter_map(|(part, aim)| results.cpu.figure_below(*part, *aim)));
    }
    let database = distributed.map_or_else(
        || "SQLite, synchronous FULL".to_owned(),
        |distributed| format!("PostgreSQL ({}) and Redis", distributed.postgres.settings),
    );
    let Verified { tasks, retried, files } = *verified;
    let files_text = if workload == Workload::Files { ", each file as requested" } else { "" };
    let count = format_number(tasks);
    Row {
        row: workload.name(),
        what: format!(
            "create → submit → approve → apply ({}) → complete over HTTP: {} clients with {} tasks in flight each, {} slots; \
             {count} tasks created, {count} completed, each exactly once{files_text}; {database}",
            workload.name(),
            sizes.clients,
            sizes.window,
            sizes.slots,
        ),
        figures,
        cpu: vec![results.cpu.clone(), results.baseline_cpu.clone()],
        details: json!({
            "database": database,
            "clients": sizes.clients,
            "window": sizes.window,
            "slots": sizes.slots,
            "transactions": TRANSACTIONS,
            "from_create": results.from_create,
            "from_approve": results.from_approve,
            "baseline_per_minute": results.baseline_per_minute,
            "baseline": results.baseline,
            "created": tasks,
            "completed_once": tasks,
            "retried": retried,
            "files": files,
        }),
    }
}
