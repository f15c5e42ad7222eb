//! What was measured as rows: each figure with the most tasks beside the same with the fewest.

use serde_json::{Value, json};

use super::lists::Listed;
use super::writes::{Beside, Done};
use super::{Measured, Sizes};
use crate::report::{Figure, Row};
use crate::samples::Latencies;

/// What a list may cost with many tasks, compared with few.
const MOST_TIMES: f64 = 2.0;
const APPROVE_P99_MS: f64 = 10.0;

/// For people.
pub(crate) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(super) fn of(all: &[Measured], sizes: &Sizes, settings: Option<&str>) -> Vec<Row> {
    let (Some(few), Some(many)) = (all.first(), all.last()) else { return Vec::new() };
    let database = settings.map_or_else(
        || "SQLite, synchronous FULL".to_owned(),
        |settings| format!("PostgreSQL ({settings}) and Redis"),
    );
    vec![
        lists(few, many, all.len() > 1, &database),
        writes("create", "create over HTTP", few, many, all, sizes, |one| &one.written.create),
        writes(
            "submit",
            "submit over HTTP, with risk, assignment and two requests",
            few,
            many,
            all,
            sizes,
            |one| &one.written.submit,
        ),
        approve(all, sizes),
    ]
}

/// Two digits are enough for an aim that was measured itself.
fn aim(ms: f64) -> f64 {
    (ms * MOST_TIMES * 100.0).round() / 100.0
}

fn lists(few: &Measured, many: &Measured, compared: bool, database: &str) -> Row {
    let mut figures = Vec::new();
    for one in &many.lists {
        let same = |base: &&Listed| base.name == one.name && base.page == one.page;
        let base = few.lists.iter().find(same).filter(|_| compared);
        let mut figure = |quantile: &str, of: fn(&Latencies) -> f64| {
            let (ms, before) = (of(&one.latencies), base.map(|base| of(&base.latencies)));
            let name = format!("{}, {} page, {quantile}", one.name, one.page);
            let figure = before.map(|before| {
                let to = format!("{} tasks", number(few.tasks));
                Figure::aim(&name, ms, "ms", aim(before)).against(before, to)
            });
            figures.push(figure.unwrap_or_else(|| Figure::plain(name, ms, "ms")));
        };
        figure("p50", |latencies| latencies.p50_ms);
        figure("p99", |latencies| latencies.p99_ms);
    }
    let details = |one: &Measured| {
        let lists: Vec<Value> = one
            .lists
            .iter()
            .map(|list| json!({ "list": list.name, "page": list.page, "items": list.items, "latencies": list.latencies }))
            .collect();
        json!({ "tasks": one.tasks, "load_seconds": one.load_seconds, "bytes": one.bytes, "lists": lists })
    };
    Row {
        row: "lists",
        what: format!(
            "lists and searches with {} tasks stored, beside {}; loaded within {:.0} s; {database}",
            number(many.tasks),
            number(few.tasks),
            many.load_seconds,
        ),
        figures,
        details: json!({ "database": database, "few": details(few), "many": details(many) }),
    }
}

fn done(done: &Done) -> Value {
    json!({ "per_second": done.per_second, "latencies": done.latencies })
}

fn writes(
    row: &'static str,
    what: &str,
    few: &Measured,
    many: &Measured,
    all: &[Measured],
    sizes: &Sizes,
    of: fn(&Measured) -> &Beside,
) -> Row {
    let mut figures = Vec::new();
    let to = "one row, one transaction";
    for one in all {
        let (Beside { own, bare }, tasks) = (of(one), number(one.tasks));
        let figure = |name: &str, value, unit, base| {
            Figure::plain(format!("{name}, {tasks} tasks"), value, unit).against(base, to)
        };
        figures.push(figure("rate", own.per_second, "/s", bare.per_second));
        figures.push(figure("p50", own.latencies.p50_ms, "ms", bare.latencies.p50_ms));
        figures.push(figure("p99", own.latencies.p99_ms, "ms", bare.latencies.p99_ms));
    }
    let details = |one: &Measured| {
        let Beside { own, bare } = of(one);
        json!({ "tasks": one.tasks, "own": done(own), "bare": done(bare) })
    };
    Row {
        row,
        what: format!(
            "{what}: {} clients at once, beside as many with one transaction of one row each, without HTTP",
            sizes.connections
        ),
        figures,
        details: json!({ "clients": sizes.connections, "few": details(few), "many": details(many) }),
    }
}

fn approve(all: &[Measured], sizes: &Sizes) -> Row {
    let mut figures = Vec::new();
    for one in all {
        let (approve, tasks) = (&one.written.approve, number(one.tasks));
        figures.push(Figure::plain(format!("p50, {tasks} tasks"), approve.latencies.p50_ms, "ms"));
        figures.push(Figure::aim(
            format!("p99, {tasks} tasks"),
            approve.latencies.p99_ms,
            "ms",
            APPROVE_P99_MS,
        ));
        let achieved = Figure::plain(format!("achieved, {tasks} tasks"), approve.per_second, "/s");
        figures.push(achieved.against(f64::from(sizes.rate), "offered"));
    }
    let details: Vec<Value> =
        all.iter().map(|one| json!({ "tasks": one.tasks, "approve": done(&one.written.approve) })).collect();
    Row {
        row: "approve",
        what: format!(
            "approve over HTTP: {}/s offered over {} connections; latency from the scheduled start; each decides its task",
            sizes.rate, sizes.connections
        ),
        figures,
        details: json!({ "offered_per_second": sizes.rate, "measured": details }),
    }
}
