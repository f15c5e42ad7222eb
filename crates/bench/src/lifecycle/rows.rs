//! The row of the report: figures compared with the baseline, and the counts of the verification.

use serde_json::json;

use super::Sizes;
use super::baseline::TRANSACTIONS;
use super::client::Workload;
use super::rounds::LifecycleResults;
use super::verify::Verified;
use crate::approvals::{Distributed, format_number};
use crate::report::{Figure, Row};

const MIN_PER_MINUTE_EMBEDDED: f64 = 60_000.0;
const MIN_PER_MINUTE_DISTRIBUTED: f64 = 20_000.0;

pub(super) fn row(
    workload: Workload,
    results: &LifecycleResults,
    verified: &Verified,
    sizes: &Sizes,
    distributed: Option<&Distributed>,
) -> Row {
    let reference = "five rows, five transactions";
    let (name, per_minute) = ("lifecycles", results.per_minute);
    let rate = match (workload, distributed) {
        (Workload::Noop, None) => Figure::at_least(name, per_minute, "/min", MIN_PER_MINUTE_EMBEDDED),
        (Workload::Noop, Some(_)) => Figure::at_least(name, per_minute, "/min", MIN_PER_MINUTE_DISTRIBUTED),
        (Workload::Files, _) => Figure::plain(name, per_minute, "/min"),
    };
    let (create, approve, baseline) = (&results.from_create, &results.from_approve, &results.baseline);
    let mut figures = vec![
        rate.relative_to(results.baseline_per_minute, reference),
        Figure::plain("create → COMPLETED, p50", create.p50_ms, "ms").relative_to(baseline.p50_ms, reference),
        Figure::plain("create → COMPLETED, p99", create.p99_ms, "ms").relative_to(baseline.p99_ms, reference),
        Figure::plain("approve → COMPLETED, p50", approve.p50_ms, "ms"),
        Figure::plain("approve → COMPLETED, p99", approve.p99_ms, "ms"),
        Figure::plain("server per lifecycle", results.server_us, "µs"),
    ];
    if distributed.is_some() {
        figures.push(Figure::plain("Redis per lifecycle", results.redis_us, "µs"));
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
