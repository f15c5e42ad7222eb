//! The rows of the report: figures with the most tasks are compared with the fewest.

use serde_json::{Value, json};

use super::lists::ListLatencies;
use super::pages::PageLatencies;
use super::writes::{BASELINE, Comparison, Throughput};
use super::{Measured, Sizes};
use crate::report::{Figure, Row};
use crate::samples::Latencies;

/// A list with many tasks may be slower than with few tasks by this factor.
const MAX_SLOWDOWN: f64 = 2.0;
const MAX_APPROVE_P99_MS: f64 = 10.0;
const MAX_START_SECONDS: f64 = 2.0;
const MAX_PAGE_MS: f64 = 100.0;
const MAX_PAGE_KIB: f64 = 150.0;

/// Formats a number with commas between thousands.
pub(crate) fn format_number(number: usize) -> String {
    group_thousands(&number.to_string())
}

/// Puts commas between thousands.
pub(crate) fn group_thousands(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn all_rows(all: &[Measured], sizes: &Sizes, settings: Option<&str>) -> Vec<Row> {
    let (Some(few), Some(many)) = (all.first(), all.last()) else { return Vec::new() };
    let database = settings.map_or_else(
        || "SQLite, synchronous FULL".to_owned(),
        |settings| format!("PostgreSQL ({settings}) and Redis"),
    );
    vec![
        lists(all, few, many, &database),
        pages(many),
        writes("create", "create over HTTP", few, many, all, sizes, |measured| &measured.writes.create),
        writes(
            "submit",
            "submit over HTTP, with risk, assignment and two requests",
            few,
            many,
            all,
            sizes,
            |measured| &measured.writes.submit,
        ),
        approve(all, sizes),
        start(all),
    ]
}

/// The aim of a list relative to its latency with few tasks, rounded to two digits.
fn aim(ms: f64) -> f64 {
    (ms * MAX_SLOWDOWN * 100.0).round() / 100.0
}

fn start(all: &[Measured]) -> Row {
    let figure = |measured: &Measured| {
        let name = format!("start, {} tasks", format_number(measured.tasks));
        Figure::below(name, measured.start_seconds, "s", MAX_START_SECONDS)
    };
    let details = |measured: &Measured| json!({ "tasks": measured.tasks, "seconds": measured.start_seconds });
    Row {
        row: "start",
        what: "from starting the process until it serves requests".to_owned(),
        figures: all.iter().map(figure).collect(),
        cpu: Vec::new(),
        details: json!({ "measured": all.iter().map(details).collect::<Vec<Value>>() }),
    }
}

fn lists(all: &[Measured], few: &Measured, many: &Measured, database: &str) -> Row {
    let is_compared = all.len() > 1;
    let mut figures = Vec::new();
    for list in &many.lists.lists {
        let is_same = |base: &&ListLatencies| base.name == list.name && base.page == list.page;
        let base = few.lists.lists.iter().find(is_same).filter(|_| is_compared);
        let mut figure = |quantile: &str, of: fn(&Latencies) -> f64| {
            let (ms, base_ms) = (of(&list.latencies), base.map(|base| of(&base.latencies)));
            let name = format!("{}, {} page, {quantile}", list.name, list.page);
            let figure = base_ms.map(|base_ms| {
                let reference = format!("{} tasks", format_number(few.tasks));
                Figure::below(&name, ms, "ms", aim(base_ms)).relative_to(base_ms, reference)
            });
            figures.push(figure.unwrap_or_else(|| Figure::plain(name, ms, "ms")));
        };
        figure("p50", |latencies| latencies.p50_ms);
        figure("p99", |latencies| latencies.p99_ms);
    }
    let details = |measured: &Measured| {
        let lists: Vec<Value> = measured
            .lists
            .lists
            .iter()
            .map(|list| json!({ "list": list.name, "page": list.page, "items": list.items, "latencies": list.latencies }))
            .collect();
        json!({
            "tasks": measured.tasks,
            "load_seconds": measured.load_seconds,
            "bytes": measured.bytes,
            "lists": lists,
        })
    };
    Row {
        row: "lists",
        what: format!(
            "lists and searches with {} stored tasks, compared with {}; loaded within {:.0} s; {database}",
            format_number(many.tasks),
            format_number(few.tasks),
            many.load_seconds,
        ),
        figures,
        cpu: all.iter().map(|measured| measured.lists.cpu.clone()).collect(),
        details: json!({ "database": database, "few": details(few), "many": details(many) }),
    }
}

fn pages(many: &Measured) -> Row {
    #[expect(clippy::cast_precision_loss, reason = "a page is small")]
    let kib = |bytes: usize| bytes as f64 / 1024.0;
    let figures = many.pages.pages.iter().flat_map(|page| {
        let PageLatencies { path, bytes, latencies } = page;
        [
            Figure::below(format!("{path}, p99"), latencies.p99_ms, "ms", MAX_PAGE_MS),
            Figure::below(format!("{path}, size"), kib(*bytes), "KiB", MAX_PAGE_KIB),
        ]
    });
    let details =
        |page: &PageLatencies| json!({ "path": page.path, "bytes": page.bytes, "latencies": page.latencies });
    Row {
        row: "pages",
        what: format!(
            "pages of the dashboard with {} stored tasks, one at a time",
            format_number(many.tasks)
        ),
        figures: figures.collect(),
        cpu: vec![many.pages.cpu.clone()],
        details: json!({ "pages": many.pages.pages.iter().map(details).collect::<Vec<Value>>() }),
    }
}

fn throughput_json(throughput: &Throughput) -> Value {
    json!({ "per_second": throughput.per_second, "latencies": throughput.latencies })
}

fn writes(
    row: &'static str,
    what: &str,
    few: &Measured,
    many: &Measured,
    all: &[Measured],
    sizes: &Sizes,
    select: fn(&Measured) -> &Comparison,
) -> Row {
    let mut figures = Vec::new();
    let reference = BASELINE;
    for measured in all {
        let (Comparison { own, baseline, .. }, tasks) = (select(measured), format_number(measured.tasks));
        let figure = |name: &str, value, unit, base| {
            Figure::plain(format!("{name}, {tasks} tasks"), value, unit).relative_to(base, reference)
        };
        figures.push(figure("rate", own.per_second, "/s", baseline.per_second));
        figures.push(figure("p50", own.latencies.p50_ms, "ms", baseline.latencies.p50_ms));
        figures.push(figure("p99", own.latencies.p99_ms, "ms", baseline.latencies.p99_ms));
    }
    let details = |measured: &Measured| {
        let Comparison { own, baseline, .. } = select(measured);
        json!({ "tasks": measured.tasks, "own": throughput_json(own), "baseline": throughput_json(baseline) })
    };
    Row {
        row,
        what: format!(
            "{what}: {} clients in parallel, compared with as many with one transaction of one row each, without HTTP",
            sizes.connections
        ),
        figures,
        cpu: all.iter().flat_map(|measured| select(measured).cpu.clone()).collect(),
        details: json!({ "clients": sizes.connections, "few": details(few), "many": details(many) }),
    }
}

fn approve(all: &[Measured], sizes: &Sizes) -> Row {
    let mut figures = Vec::new();
    for measured in all {
        let (approve, tasks) = (&measured.writes.approve, format_number(measured.tasks));
        figures.push(Figure::plain(format!("p50, {tasks} tasks"), approve.latencies.p50_ms, "ms"));
        figures.push(Figure::below(
            format!("p99, {tasks} tasks"),
            approve.latencies.p99_ms,
            "ms",
            MAX_APPROVE_P99_MS,
        ));
        let achieved = Figure::plain(format!("achieved, {tasks} tasks"), approve.per_second, "/s");
        figures.push(achieved.relative_to(f64::from(sizes.rate), "offered"));
    }
    let details: Vec<Value> =
        all
        .iter()
        .map(|measured| json!({ "tasks": measured.tasks, "approve": throughput_json(&measured.writes.approve) }))
        .collect();
    Row {
        row: "approve",
        what: format!(
            "approve over HTTP: {}/s offered over {} connections; latency from the scheduled start; each decides its task",
            sizes.rate, sizes.connections
        ),
        figures,
        cpu: all.iter().map(|measured| measured.writes.approve_cpu.clone()).collect(),
        details: json!({ "offered_per_second": sizes.rate, "measured": details }),
    }
}
