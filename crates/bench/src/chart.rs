//! `ade bench chart`: the comparison with other lock services as a picture. One panel per figure, one bar per service.
//!
//! The picture is plain SVG without scripts and fonts of its own. It has a background, and colours for light and for dark displays.
//! The same file always gives the same picture.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Deserialize;

use crate::approvals::group_thousands;
use crate::error::{BenchError, ErrorKind};

const OWN: &str = "ade";
/// Services with a queue of waiters or with fencing tokens. Clients of all others poll.
const QUEUED: [&str; 3] = ["python-redis-lock", "postgresql", "etcd"];

// All lengths are in pixels.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const COLUMN_GAP: f64 = 32.0;
const HEADER: f64 = 92.0;
const PANEL_HEADER: f64 = 50.0;
const PANEL_GAP: f64 = 22.0;
const LINE: f64 = 21.0;
const BAR: f64 = 13.0;
/// Space for the names before the bars, and for the values after them.
const NAMES: f64 = 124.0;
const VALUES: f64 = 76.0;
const COLUMN: f64 = (WIDTH - 2.0 * MARGIN - COLUMN_GAP) / 2.0;
const MAX_BAR: f64 = COLUMN - NAMES - VALUES;
/// A value that is not zero stays visible.
const MIN_BAR: f64 = 1.0;

/// Characters that fit into the space for the names.
const MAX_NAME: usize = 18;
/// Characters that fit into a line across the picture.
const MAX_LINE: usize = 140;

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-size:12px;fill:#1f2328}\
.page{fill:#ffffff;stroke:#d1d9e0}.h1{font-size:18px;font-weight:600}.h2{font-size:13px;font-weight:600}\
.note{fill:#59636e;font-size:11px}.own{fill:#0969da}.queued{fill:#afb8c1}.polling{fill:#dfe4e9;stroke:#9aa4ae}\
.axis{stroke:#d1d9e0}.strong{font-weight:600}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117;stroke:#3d444d}.note{fill:#9198a1}\
.own{fill:#4493f8}.queued{fill:#6e7781}.polling{fill:#21262d;stroke:#656c76}.axis{stroke:#3d444d}}";

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The comparison with peers: the file of `peers --json`
    file: PathBuf,
}

/// What is read of a comparison with peers.
#[derive(Debug, Deserialize)]
struct Comparison {
    machine: Machine,
    seconds: f64,
    rounds: usize,
    threads: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Machine {
    cpu: String,
    cores: usize,
}

#[derive(Debug, Deserialize)]
struct Row {
    row: String,
    peers: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
struct Peer {
    peer: String,
    figures: Vec<Figure>,
}

#[derive(Debug, Deserialize)]
struct Figure {
    name: String,
    /// None if it is infinite.
    value: Option<f64>,
    unit: String,
}

/// A panel shows one figure of one row.
struct Panel {
    row: &'static str,
    figure: &'static str,
    title: &'static str,
    note: &'static str,
}

const PANELS: [Panel; 6] = [
    Panel {
        row: "pairs",
        figure: "pairs",
        title: "Acquire + release per second",
        note: "50 clients, each with its own locks; more is better",
    },
    Panel {
        row: "pairs",
        figure: "server",
        title: "CPU time of the server per acquire + release",
        note: "less is better",
    },
    Panel {
        row: "contended",
        figure: "grants",
        title: "Grants of one contended lock per second",
        note: "50 clients; more is better",
    },
    Panel {
        row: "contended",
        figure: "server",
        title: "CPU time of the server per contended grant",
        note: "less is better",
    },
    Panel {
        row: "handover, 10 waiters",
        figure: "p99",
        title: "Release until the next of 10 waiters holds, p99",
        note: "less is better",
    },
    Panel {
        row: "handover, 1000 waiters",
        figure: "p99",
        title: "Release until the next of 1,000 waiters holds, p99",
        note: "less is better",
    },
];

struct Bar<'a> {
    name: &'a str,
    /// None if it was not measured.
    value: Option<f64>,
    unit: &'a str,
}

/// Reads the comparison and draws it.
pub(super) fn run(args: &Args) -> Result<String, BenchError> {
    let input = |reason: String| {
        let message = format!("cannot read {}: {reason}", args.file.display());
        BenchError::new(ErrorKind::Input, message).hint("write it with peers --json FILE")
    };
    let text = fs::read_to_string(&args.file).map_err(|error| input(error.to_string()))?;
    let comparison: Comparison = serde_json::from_str(&text).map_err(|error| input(error.to_string()))?;
    let panels = panels(&comparison);
    if panels.is_empty() {
        return Err(input("it has no row that can be drawn".to_owned()));
    }
    Ok(draw(&comparison, &panels))
}

fn panels(comparison: &Comparison) -> Vec<(&'static Panel, Vec<Bar<'_>>)> {
    let bars = |panel: &Panel| {
        let row = comparison.rows.iter().find(|row| row.row == panel.row)?;
        Some(row.peers.iter().map(|peer| bar(peer, panel.figure)).collect())
    };
    PANELS.iter().filter_map(|panel| Some((panel, bars(panel)?))).collect()
}

fn bar<'a>(peer: &'a Peer, figure: &str) -> Bar<'a> {
    let figure = peer.figures.iter().find(|found| found.name == figure);
    let value = figure.and_then(|figure| figure.value).filter(|value| value.is_finite() && *value >= 0.0);
    Bar { name: &peer.peer, value, unit: figure.map_or("", |figure| figure.unit.as_str()) }
}

fn draw(comparison: &Comparison, panels: &[(&Panel, Vec<Bar<'_>>)]) -> String {
    let mut body = String::new();
    let mut y = HEADER;
    for pair in panels.chunks(2) {
        let mut height: f64 = 0.0;
        for ((panel, bars), x) in pair.iter().zip([MARGIN, MARGIN + COLUMN + COLUMN_GAP]) {
            draw_panel(&mut body, panel, bars, x, y);
            height = height.max(PANEL_HEADER + LINE * bars.iter().map(|_| 1.0).sum::<f64>());
        }
        y += height + PANEL_GAP;
    }
    let Comparison { machine, seconds, rounds, threads, .. } = comparison;
    let title = "Locks of ADE on Redis, compared with other lock services";
    let note = format!(
        "Medians of {rounds} rounds of {seconds} s, all in one run on {} cores ({}), which servers and clients share; client threads: \
         {threads}",
        machine.cores, machine.cpu
    );
    let mut svg = String::new();
    let height = y;
    line(
        &mut svg,
        format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">"#
        ),
    );
    line(&mut svg, format_args!("<title>{title}</title>\n<style>{STYLE}</style>"));
    let (inner_width, inner_height) = (WIDTH - 1.0, height - 1.0);
    line(
        &mut svg,
        format_args!(
            r#"<rect class="page" x="0.5" y="0.5" width="{inner_width}" height="{inner_height}" rx="8"/>"#
        ),
    );
    text(&mut svg, MARGIN, 34.0, "h1", title);
    text(&mut svg, MARGIN, 54.0, "note", &shorten(&note, MAX_LINE));
    let mut x = MARGIN;
    for (class, name, width) in [
        ("own", "ADE: fair queue, fencing tokens", 240.0),
        ("queued", "others with a queue or fencing tokens", 280.0),
        ("polling", "neither: clients poll, and nobody is next", 0.0),
    ] {
        line(
            &mut svg,
            format_args!(r#"<rect class="{class}" x="{x}" y="66" width="12" height="12" rx="2"/>"#),
        );
        text(&mut svg, x + 18.0, 76.0, "", name);
        x += width;
    }
    svg + &body + "</svg>\n"
}

fn draw_panel(svg: &mut String, panel: &Panel, bars: &[Bar<'_>], x: f64, y: f64) {
    text(svg, x, y + 20.0, "h2", panel.title);
    text(svg, x, y + 37.0, "note", panel.note);
    let most = bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max);
    let (from, mut top) = (x + NAMES, y + PANEL_HEADER);
    for Bar { name, value, unit } in bars {
        let is_own = *name == OWN;
        let strong = if is_own { "strong" } else { "" };
        let label = if is_own { "ADE" } else { name };
        let base = top + BAR - 2.5;
        text(svg, x, base, strong, &shorten(label, MAX_NAME));
        match value {
            Some(value) => {
                let width = bar_width(*value, most);
                let class = match name {
                    _ if is_own => "own",
                    name if QUEUED.contains(name) => "queued",
                    _ => "polling",
                };
                line(
                    svg,
                    format_args!(
                        r#"<rect class="{class}" x="{from}" y="{top:.1}" width="{width:.1}" height="{BAR}"/>"#
                    ),
                );
                let shown = format!("{}{}", number(*value), unit_suffix(unit));
                text(svg, from + width + 6.0, base, strong, &shown);
            }
            None => text(svg, from + 6.0, base, "note", "not measured"),
        }
        top += LINE;
    }
    let bottom = top - LINE + BAR + 3.0;
    let start = y + PANEL_HEADER - 3.0;
    line(
        svg,
        format_args!(r#"<line class="axis" x1="{from}" y1="{start:.1}" x2="{from}" y2="{bottom:.1}"/>"#),
    );
}

/// In proportion to the value.
fn bar_width(value: f64, most: f64) -> f64 {
    if value <= 0.0 || most <= 0.0 { 0.0 } else { (MAX_BAR * value / most).max(MIN_BAR) }
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let class = if class.is_empty() { String::new() } else { format!(r#" class="{class}""#) };
    let content = escape(content);
    line(svg, format_args!(r#"<text x="{x:.1}" y="{y:.1}"{class}>{content}</text>"#));
}

fn line(svg: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "{content}");
}

/// Rates follow the number directly, other units after a space.
fn unit_suffix(unit: &str) -> String {
    if unit.is_empty() || unit.starts_with('/') { unit.to_owned() } else { format!(" {unit}") }
}

/// Three significant digits, with commas between thousands.
fn number(value: f64) -> String {
    match value {
        size if size >= 100.0 => group_thousands(&format!("{size:.0}")),
        size if size >= 10.0 => format!("{size:.1}"),
        size => format!("{size:.2}"),
    }
}

fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// Characters that mean something in XML, and those that it does not allow.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn comparison(peers: &[(&str, Option<f64>)]) -> Comparison {
        let peer = |(name, value): &(&str, Option<f64>)| {
            let figure = json!({ "name": "pairs", "value": value, "unit": "/s" });
            json!({ "peer": name, "figures": if value.is_some() { vec![figure] } else { vec![] } })
        };
        let peers: Vec<_> = peers.iter().map(peer).collect();
        let report = json!({
            "machine": { "cpu": "<CPU> & \"Co\"", "cores": 2 }, "seconds": 5.0, "rounds": 3, "threads": 2,
            "rows": [{ "row": "pairs", "peers": peers }],
        });
        serde_json::from_value(report).expect("valid")
    }

    fn drawn(peers: &[(&str, Option<f64>)]) -> String {
        let comparison = comparison(peers);
        draw(&comparison, &panels(&comparison))
    }

    /// The widths of the bars, without the legend and the background.
    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(r#"height="13""#));
        let width = |line: &str| line.split_once(r#"width=""#)?.1.split_once('"')?.0.parse().ok();
        bars.map(|line| width(line).expect("a width")).collect()
    }

    #[test]
    fn bars_are_proportional_to_values() {
        let svg = drawn(&[("bare-own", Some(200.0)), (OWN, Some(50.0)), ("zero", Some(0.0)), ("gone", None)]);
        assert_eq!(widths(&svg), [MAX_BAR, MAX_BAR / 4.0, 0.0]);
        assert!(
            svg.contains(">200/s<") && svg.contains(">50.0/s<") && svg.contains(">not measured<"),
            "{svg}"
        );
    }

    #[test]
    fn names_cannot_add_elements() {
        let svg = drawn(&[("<script>alert(1)", Some(1.0)), ("a&b\u{1}'", Some(1.0))]);
        assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;alert(1)"), "{svg}");
        assert!(
            svg.contains("a&amp;b\u{fffd}&apos;") && svg.contains("(&lt;CPU&gt; &amp; &quot;Co&quot;)"),
            "{svg}"
        );
    }

    #[test]
    fn same_input_gives_same_picture() {
        let peers = [("bare-shared", Some(165_506.2)), (OWN, Some(24_109.0))];
        let svg = drawn(&peers);
        assert_eq!(svg, drawn(&peers));
        assert!(
            svg.contains(">165,506/s<") && svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{svg}"
        );
    }

    #[test]
    fn long_texts_are_shortened() {
        assert_eq!(shorten("python-redis-lock", MAX_NAME), "python-redis-lock");
        assert_eq!(shorten("a-very-long-name-of-a-peer", 10), "a-very-lo…");
    }
}
