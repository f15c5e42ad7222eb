//! The report as one HTML file that needs nothing else: charts are SVG, colours follow the reader's scheme.
//!
//! Invariant: every text from outside is escaped, and there is no script.

use std::fmt::Write as _;

use super::report::{ClassReport, Report, TtlCount};
use crate::text::{count, size};

/// Classes in a chart.
const MAX_BARS: usize = 30;
const BAR_HEIGHT: usize = 22;
const LABEL_WIDTH: usize = 260;
const CHART_WIDTH: usize = 960;

const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1c2128; --dim: #59636e; --line: #d1d9e0; --back: #ffffff; --card: #f6f8fa;
  --bar: #2f6fd0; --bar-2: #1a7f64; --never: #b35900; --bad: #c0322b; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #9aa4af; --line: #3a424c; --back: #11161d; --card: #1a212a;
  --bar: #6ea8fe; --bar-2: #4cc2a0; --never: #f0a35e; --bad: #ff8a80; --good: #56d364; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 2rem 1.25rem 4rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; }
p.dim, .dim { color: var(--dim); } .bad { color: var(--bad); } .good { color: var(--good); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .75rem 1rem; }
.tile b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--dim); } details ul { margin: .25rem 0; padding-left: 1.1rem; }
td.rule { white-space: nowrap; } .wide code { white-space: nowrap; } .wide > svg { min-width: 620px; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg text.dim { fill: var(--dim); } .bar { fill: var(--bar); } .bar-2 { fill: var(--bar-2); } .never { fill: var(--never); }
";

/// Writes the report as HTML.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut page = String::new();
    let catalogs = escape(&report.catalogs.join(", "));
    let kind = format!("{:?}", report.deployment).to_lowercase();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Keyspace audit</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Keyspace audit</h1>\n<p class=\"dim\">{kind}, {} {}, catalogs {catalogs}, finished {}</p>\n",
        report.coverage.nodes.len(),
        if report.coverage.nodes.len() == 1 { "server" } else { "servers" },
        report.finished_at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    );
    tiles(&mut page, report);
    violations(&mut page, report);
    let mut by_keys: Vec<&ClassReport> = report.classes.iter().collect();
    by_keys.sort_by_key(|class| std::cmp::Reverse(class.keys));
    let bars: Vec<(String, u64, String)> =
        by_keys.iter().map(|class| (class.class.clone(), class.keys, count(class.keys))).collect();
    chart(&mut page, "Keys by class", "bar", bars, report.orphans.keys, count);
    let mut by_memory = by_keys.clone();
    by_memory.sort_by_key(|class| std::cmp::Reverse(class.memory.estimated_bytes));
    let bars = by_memory.iter().filter_map(|class| {
        let bytes = class.memory.estimated_bytes?;
        Some((class.class.clone(), bytes, format!("~{}", size(bytes))))
    });
    let orphans = report.orphans.memory.estimated_bytes.unwrap_or(0);
    chart(&mut page, "Memory by class", "bar-2", bars.collect(), orphans, |bytes| {
        format!("~{}", size(bytes))
    });
    ttl_chart(&mut page, report);
    classes(&mut page, report);
    coverage(&mut page, report);
    page.push_str("</body>\n</html>\n");
    page
}

fn tiles(page: &mut String, report: &Report) {
    let coverage = &report.coverage;
    let of = coverage
        .keys_expected
        .map_or_else(String::new, |keys| format!("of {} (DBSIZE at the start)", count(keys)));
    let memory = report.classes.iter().filter_map(|class| class.memory.estimated_bytes).sum::<u64>();
    let memory = memory.saturating_add(report.orphans.memory.estimated_bytes.unwrap_or(0));
    let found = report.violation_count();
    let tone = if found == 0 { "good" } else { "bad" };
    let _ = write!(
        page,
        "<div class=\"tiles\">\n<div class=\"tile\"><b>{}</b>keys read <span class=\"dim\">{of}</span></div>\n\
         <div class=\"tile\"><b class=\"{tone}\">{}</b>violations</div>\n\
         <div class=\"tile\"><b>{}</b>classes in use <span class=\"dim\">{} unused</span></div>\n\
         <div class=\"tile\"><b>{}</b>memory <span class=\"dim\">estimated</span></div>\n</div>\n",
        count(coverage.keys_seen),
        count(found),
        report.classes.len(),
        report.unused_classes,
        size(memory),
    );
}

fn violations(page: &mut String, report: &Report) {
    page.push_str("<h2>Violations</h2>\n");
    if report.counts.is_empty() {
        page.push_str("<p class=\"good\">None.</p>\n");
        return;
    }
    page.push_str(
        "<table>\n<tr><th>Rule</th><th>Class</th><th class=\"number\">Keys</th><th>Examples</th></tr>\n",
    );
    for row in &report.counts {
        let examples = report.violations.iter().filter(|it| it.rule == row.rule && it.class == row.class);
        let items: String = examples
            .map(|it| {
                let key =
                    it.key.as_ref().map_or_else(String::new, |key| format!("<code>{}</code> ", escape(key)));
                format!("<li>{key}{}</li>", escape(&it.message))
            })
            .collect();
        let label =
            if row.count == row.shown as u64 { "all".to_owned() } else { format!("first {}", row.shown) };
        let _ = writeln!(
            page,
            "<tr><td class=\"bad rule\">{}</td><td>{}</td><td class=\"number\">{}</td><td><details><summary>{label}</summary><ul>{items}</ul></details></td></tr>",
            row.rule.name(),
            escape(&row.class),
            count(row.count),
        );
    }
    page.push_str("</table>\n");
}

/// Horizontal bars, the longest first; the orphans come last, in another colour.
fn chart(
    page: &mut String,
    title: &str,
    class: &str,
    mut bars: Vec<(String, u64, String)>,
    orphans: u64,
    shown: impl Fn(u64) -> String,
) {
    let hidden = bars.len().saturating_sub(MAX_BARS);
    bars.truncate(MAX_BARS);
    if orphans > 0 {
        bars.push(("(orphans)".to_owned(), orphans, shown(orphans)));
    }
    let max = bars.iter().map(|(_, value, _)| *value).max().unwrap_or(0).max(1);
    let height = bars.len() * BAR_HEIGHT;
    let _ = write!(
        page,
        "<h2>{title}</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 {CHART_WIDTH} {height}\" width=\"{CHART_WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n"
    );
    for (position, (label, value, text)) in bars.iter().enumerate() {
        let (top, width) = (position * BAR_HEIGHT, scaled(*value, max, CHART_WIDTH - LABEL_WIDTH - 110));
        let fill = if label == "(orphans)" { "never" } else { class };
        let _ = writeln!(
            page,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect class=\"{fill}\" x=\"{LABEL_WIDTH}\" y=\"{}\" width=\"{width}\" height=\"{}\" rx=\"2\"/><text class=\"dim\" x=\"{}\" y=\"{}\">{}</text>",
            LABEL_WIDTH - 10,
            top + 15,
            escape(label),
            top + 4,
            BAR_HEIGHT - 8,
            LABEL_WIDTH + width + 8,
            top + 15,
            escape(text),
        );
    }
    page.push_str("</svg></div>\n");
    if hidden > 0 {
        let _ = writeln!(page, "<p class=\"dim\">{hidden} smaller classes are in the table below.</p>");
    }
}

fn scaled(value: u64, max: u64, width: usize) -> usize {
    let pixels = u128::from(value) * width as u128 / u128::from(max.max(1));
    usize::try_from(pixels).unwrap_or(width).max(usize::from(value > 0))
}

/// Columns: how many keys have how much time left.
fn ttl_chart(page: &mut String, report: &Report) {
    const HEIGHT: usize = 220;
    const COLUMN: usize = 84;
    let all = report.classes.iter().map(|class| &class.ttl).chain([&report.orphans.ttl]);
    let mut sums: Vec<(&str, u64)> = report.orphans.ttl.iter().map(|bar| (bar.left, 0)).collect();
    for ttl in all {
        for (sum, bar) in sums.iter_mut().zip(ttl) {
            sum.1 += bar.keys;
        }
    }
    let max = sums.iter().map(|(_, keys)| *keys).max().unwrap_or(0);
    let width = COLUMN * sums.len();
    let _ = write!(
        page,
        "<h2>Time left until expiry</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"Time left until expiry\">\n"
    );
    for (position, (label, keys)) in sums.iter().enumerate() {
        let (left, height) = (position * COLUMN, scaled(*keys, max, HEIGHT - 60));
        let (top, middle) = (HEIGHT - 30 - height, left + COLUMN / 2);
        let fill = if position == 0 { "never" } else { "bar" };
        let _ = writeln!(
            page,
            "<rect class=\"{fill}\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{height}\" rx=\"2\"/><text class=\"dim\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            left + 8,
            COLUMN - 16,
            top - 6,
            count(*keys),
            HEIGHT - 10,
        );
    }
    page.push_str("</svg></div>\n");
}

/// A small histogram for a row of the table.
fn sparkline(ttl: &[TtlCount]) -> String {
    let max = ttl.iter().map(|bar| bar.keys).max().unwrap_or(0);
    let mut svg =
        format!("<svg width=\"{}\" height=\"18\" role=\"img\" aria-label=\"{}\">", ttl.len() * 9, words(ttl));
    for (position, bar) in ttl.iter().enumerate() {
        let height = scaled(bar.keys, max, 16);
        let fill = if position == 0 { "never" } else { "bar" };
        let _ = write!(
            svg,
            "<rect class=\"{fill}\" x=\"{}\" y=\"{}\" width=\"7\" height=\"{height}\"/>",
            position * 9,
            17 - height
        );
    }
    svg + "</svg>"
}

fn words(ttl: &[TtlCount]) -> String {
    let bars = ttl.iter().filter(|bar| bar.keys > 0).map(|bar| format!("{}: {}", bar.left, count(bar.keys)));
    bars.collect::<Vec<_>>().join(", ")
}

fn classes(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>Classes</h2>\n<div class=\"wide\"><table>\n<tr><th>Class</th><th>Pattern</th><th>Type</th><th class=\"number\">Keys</th>\
         <th class=\"number\">Memory</th><th>TTL rule</th><th>Time left</th></tr>\n",
    );
    for class in &report.classes {
        let memory = class
            .memory
            .estimated_bytes
            .map_or_else(|| "unknown".to_owned(), |bytes| format!("~{}", size(bytes)));
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td><code>{}</code></td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{memory}</td><td>{}</td><td>{}</td></tr>",
            escape(&class.class),
            escape(&class.pattern),
            class.type_name,
            count(class.keys),
            escape(&class.ttl_rule),
            sparkline(&class.ttl),
        );
    }
    page.push_str("</table></div>\n");
    if !report.orphans.prefixes.is_empty() {
        page.push_str(
            "<h2>Orphans by prefix</h2>\n<table>\n<tr><th>Prefix</th><th class=\"number\">Keys</th></tr>\n",
        );
        for (prefix, keys) in &report.orphans.prefixes {
            let _ = writeln!(
                page,
                "<tr><td><code>{}</code></td><td class=\"number\">{}</td></tr>",
                escape(prefix),
                count(*keys)
            );
        }
        page.push_str("</table>\n");
    }
}

fn coverage(page: &mut String, report: &Report) {
    let coverage = &report.coverage;
    page.push_str("<h2>Coverage</h2>\n<table>\n<tr><th>Server</th><th>Role</th><th class=\"number\">Keys read</th><th class=\"number\">DBSIZE at the start</th></tr>\n");
    for node in &coverage.nodes {
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code></td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escape(&node.address),
            format!("{:?}", node.role).to_lowercase(),
            count(node.keys_seen),
            node.keys_expected.map_or_else(|| "unknown".to_owned(), count),
        );
    }
    page.push_str("</table>\n<ul>\n");
    for line in coverage.lines() {
        let _ = writeln!(page, "<li>{}</li>", escape(&line));
    }
    page.push_str("</ul>\n");
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
