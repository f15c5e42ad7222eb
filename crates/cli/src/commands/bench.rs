//! `ade bench`: runs a measurement of `ade_bench` and shows its report.

use ade_bench::{
    BenchError, ComparedFigure, Difference, ErrorKind, Figure, Outcome, Ratio, Report, Spread, Verdict,
};
use owo_colors::OwoColorize;

use crate::connect::block_on;
use crate::failure::{Failure, FailureKind, Result};
use crate::output::{self, Tone};

pub(crate) fn run(args: ade_bench::Args) -> Result {
    let is_json = args.is_json();
    match block_on(async { Ok(ade_bench::run(args).await?) })? {
        Outcome::Measured(report) if is_json => output::json(&report),
        Outcome::Measured(report) => print(&report),
        Outcome::Compared(figures) if is_json => output::json(&figures),
        Outcome::Compared(figures) => print_comparison(&figures),
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let kind = match error.kind {
            ErrorKind::Input => FailureKind::InvalidInput,
            ErrorKind::Unavailable => FailureKind::Unavailable,
        };
        Self::new(kind, error.message).hints(error.hint)
    }
}

fn print(report: &Report) -> Result {
    let rows = report.rows.iter().flat_map(|row| {
        let names = [row.row].into_iter().chain(std::iter::repeat(""));
        names.zip(&row.figures)
    });
    let rows: Vec<(&str, &Figure)> = rows.collect();
    let table = output::table(&rows)
        .column("ROW", |(row, _)| *row)
        .column("FIGURE", |(_, figure)| &figure.name)
        .column("MEASURED", |(_, it)| format!("{} {}", number(it.value), it.unit).trim_end().to_owned())
        .column("AIM", |(_, figure)| aim(figure).trim_end().to_owned())
        .column("VERDICT", |(_, figure)| match figure.verdict {
            Verdict::Met => Tone::Good.cell("met"),
            Verdict::Missed => Tone::Bad.cell("missed"),
            Verdict::NotJudged => Tone::Plain.cell(""),
        })
        .column("RATIO", |(_, figure)| {
            let ratio = figure.ratio.as_ref().map(|Ratio { value, to }| format!("{value:.2} × {to}"));
            ratio.unwrap_or_default()
        });
    output::line(format_args!("{table}\n"))?;
    for row in &report.rows {
        output::line(format_args!("  {:<10} {}", row.row.bold(), row.what))?;
    }
    output::line(format_args!("  {:<10} {}", "machine".bold(), report.machine.summary()))?;
    if report.quick {
        output::note("a quick run shows that everything works; it is too small to judge by");
    } else if cfg!(debug_assertions) {
        output::note("this is a debug build; a release build is several times faster");
    }
    Ok(())
}

fn print_comparison(figures: &[ComparedFigure]) -> Result {
    let spread = |spread: &Spread, unit: &str| {
        let Spread { least, median, most, .. } = spread;
        let text = format!("{} {unit}", number(*median));
        format!("{} ({} to {})", text.trim_end(), number(*least), number(*most))
    };
    let table = output::table(figures)
        .column("ROW", |figure| figure.row.clone())
        .column("FIGURE", |figure| figure.name.clone())
        .column("OLD", |figure| spread(&figure.old, &figure.unit))
        .column("NEW", |figure| spread(&figure.new, &figure.unit))
        .column("RATIO", |figure| format!("{:.2} ×", figure.ratio))
        .column("VERDICT", |figure| match figure.difference {
            Difference::Better => Tone::Good.cell("better"),
            Difference::Worse => Tone::Bad.cell("worse"),
            Difference::Different => Tone::Plain.cell("different"),
            Difference::WithinNoise => Tone::Plain.cell("within noise"),
            Difference::TooFewRuns => Tone::Plain.cell("too few runs"),
        });
    output::line(table)
}

fn aim(figure: &Figure) -> String {
    match (figure.aim_below, figure.aim_at_least) {
        (Some(below), _) => format!("< {below} {}", figure.unit),
        (None, Some(least)) => format!("≥ {} {}", number(least), figure.unit),
        (None, None) => String::new(),
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
