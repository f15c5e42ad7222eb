//! `ade bench`: runs a measurement of `ade_bench` and shows its report.

use ade_bench::{BenchError, ErrorKind, Figure, Ratio, Report, Verdict};
use comfy_table::{Cell, Color};
use owo_colors::OwoColorize;

use crate::connect::block_on;
use crate::failure::{Failure, FailureKind};
use crate::output;

pub(crate) fn run(args: ade_bench::Args) -> Result<(), Failure> {
    let is_json = args.is_json();
    let report = block_on(async { Ok(ade_bench::run(args).await?) })?;
    if is_json { output::json(&report) } else { print(&report) }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let kind = match error.kind {
            ErrorKind::Input => FailureKind::InvalidInput,
            ErrorKind::Unavailable => FailureKind::Unavailable,
        };
        let failure = Self::new(kind, error.message);
        match error.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn print(report: &Report) -> Result<(), Failure> {
    let mut table = output::table(&["ROW", "FIGURE", "MEASURED", "AIM", "VERDICT", "RATIO"]);
    for row in &report.rows {
        for (at, figure) in row.figures.iter().enumerate() {
            let name = if at == 0 { row.row } else { "" };
            let [measured, aim, verdict, ratio] = cells(figure);
            table.add_row([Cell::new(name), Cell::new(&figure.name), measured, aim, verdict, ratio]);
        }
    }
    output::line(&table.to_string())?;
    output::line("")?;
    for row in &report.rows {
        output::line(&format!("  {:<10} {}", row.row.bold(), row.what))?;
    }
    output::line(&format!("  {:<10} {}", "machine".bold(), report.machine.summary()))?;
    if report.quick {
        output::note("a quick run shows that everything works; it is too small to judge by");
    } else if cfg!(debug_assertions) {
        output::note("this is a debug build; a release build is several times faster");
    }
    Ok(())
}

fn cells(figure: &Figure) -> [Cell; 4] {
    let aim = match (figure.aim_below, figure.aim_at_least) {
        (Some(below), _) => format!("< {below} {}", figure.unit),
        (None, Some(least)) => format!("≥ {} {}", number(least), figure.unit),
        (None, None) => String::new(),
    };
    let verdict = match figure.verdict {
        Verdict::Met => Cell::new("met").fg(Color::Green),
        Verdict::Missed => Cell::new("missed").fg(Color::Red),
        Verdict::NotJudged => Cell::new(""),
    };
    let ratio = figure.ratio.as_ref().map(|Ratio { value, to }| format!("{value:.2} × {to}"));
    let measured = format!("{} {}", number(figure.value), figure.unit);
    [Cell::new(measured.trim_end()), Cell::new(aim.trim_end()), verdict, Cell::new(ratio.unwrap_or_default())]
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
