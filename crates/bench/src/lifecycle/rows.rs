//! What was measured as a row, beside the bare minimum, with what was looked at afterwards.

use serde_json::json;

use super::Sizes;
use super::check::Checked;
use super::client::Deed;
use super::least::TRANSACTIONS;
use super::slice::Done;
use crate::approvals::{Distributed, number};
use crate::report::{Figure, Row};

const PER_MINUTE_EMBEDDED: f64 = 60_000.0;
const PER_MINUTE_DISTRIBUTED: f64 = 20_000.0;

pub(super) fn of(deed: Deed, done: &Done, checked: &Checked, sizes: &Sizes, on: Option<&Distributed>) -> Row {
    let to = "five rows, five transactions";
    let name = "lifecycles";
    let rate = match (deed, on) {
        (Deed::Noop, None) => Figure::at_least(name, done.per_minute, "/min", PER_MINUTE_EMBEDDED),
        (Deed::Noop, Some(_)) => Figure::at_least(name, done.per_minute, "/min", PER_MINUTE_DISTRIBUTED),
        (Deed::Files, _) => Figure::plain(name, done.per_minute, "/min"),
    };
    let (create, approve, bare) = (&done.from_create, &done.from_approve, &done.bare);
    let mut figures = vec![
        rate.against(done.bare_per_minute, to),
        Figure::plain("create → COMPLETED, p50", create.p50_ms, "ms").against(bare.p50_ms, to),
        Figure::plain("create → COMPLETED, p99", create.p99_ms, "ms").against(bare.p99_ms, to),
        Figure::plain("approve → COMPLETED, p50", approve.p50_ms, "ms"),
        Figure::plain("approve → COMPLETED, p99", approve.p99_ms, "ms"),
        Figure::plain("server by lifecycle", done.server_us, "µs"),
    ];
    if on.is_some() {
        figures.push(Figure::plain("Redis by lifecycle", done.redis_us, "µs"));
    }
    let database = on.map_or_else(
        || "SQLite, synchronous FULL".to_owned(),
        |on| format!("PostgreSQL ({}) and Redis", on.postgres.settings),
    );
    let Checked { tasks, tried_again, files } = *checked;
    let wrote = if deed == Deed::Files { ", each file as it was wanted" } else { "" };
    let many = number(tasks);
    Row {
        row: deed.name(),
        what: format!(
            "create → submit → approve → apply ({}) → complete over HTTP: {} clients with {} tasks under way each, {} slots; \
             {many} tasks created, {many} completed, each exactly once{wrote}; {database}",
            deed.name(),
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
            "from_create": done.from_create,
            "from_approve": done.from_approve,
            "bare_per_minute": done.bare_per_minute,
            "bare": done.bare,
            "created": tasks,
            "completed_once": tasks,
            "tried_again": tried_again,
            "files": files,
        }),
    }
}
