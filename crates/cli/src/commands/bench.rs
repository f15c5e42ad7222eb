//! `ade bench`: runs a measurement of `ade_bench` and shows its report.

use std::iter::repeat;

use ade_bench::{
    BenchError, ComparedFigure, Difference, ErrorKind, Figure, Outcome, Ratio, Report, Row, Spread, Verdict,
};
use comfy_table::ContentArrangement;

use crate::connect::block_on;
use crate::failure::{Failure, FailureKind, Result};
use crate::output::{self, Table, Tone};

/// Columns of the widest table.
const MAX_WIDTH: u16 = 100;

pub(crate) fn run(args: ade_bench::Args) -> Result {
    let is_json = args.is_json();
    match block_on(async { Ok(ade_bench::run(args).await?) })? {
        Outcome::Measured(report) if is_json => output::json(&report),
        Outcome::Measured(report) => print(&report),
        Outcome::Compared(figures) if is_json => output::json(&figures),
        Outcome::Compared(figures) => print_comparison(&figures),
        Outcome::Drawn(svg) => output::raw(&svg),
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
    let figures = named(&report.rows, |row| &row.figures);
    let table = output::table(&figures)
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
    output::line(format_args!("{}\n", fit(&table)))?;
    let costs = named(&report.rows, |row| &row.cpu);
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{} µs", number(us)));
    let table = output::table(&costs)
        .column("ROW", |(row, _)| *row)
        .column("CPU TIME PER", |(_, cost)| &cost.operation)
        .column("SERVER", |(_, cost)| us(cost.server_us))
        .column("REDIS", |(_, cost)| us(cost.redis_us))
        .column("POSTGRESQL", |(_, cost)| us(cost.postgresql_us))
        .column("CLIENT", |(_, cost)| us(Some(cost.client_us)))
        .column("THREADS", |(_, cost)| cost.client_threads);
    output::line(format_args!("{}\n", fit(&table)))?;
    let machine = report.machine.summary();
    let rows = report.rows.iter().map(|row| (row.row, row.what.as_str()));
    let explanations: Vec<(&str, &str)> = rows.chain([("machine", machine.as_str())]).collect();
    let table = output::table(&explanations)
        .column("ROW", |(name, _)| *name)
        .column("WHAT IS MEASURED", |(_, text)| *text);
    output::line(fit(&table))?;
    if report.quick {
        output::note("a quick run shows that everything works; it is too small to judge by");
    } else if cfg!(debug_assertions) {
        output::note("this is a debug build; a release build is several times faster");
    }
    Ok(())
}

/// Wraps long cells, also without a terminal.
fn fit<T>(table: &Table<'_, T>) -> comfy_table::Table {
    let mut arranged = table.arranged();
    let width = arranged.width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH));
    arranged.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    arranged
}

/// Items of each row, with the name of the row beside the first.
fn named<'a, T>(rows: &'a [Row], items: fn(&'a Row) -> &'a [T]) -> Vec<(&'static str, &'a T)> {
    rows.iter().flat_map(|row| [row.row].into_iter().chain(repeat("")).zip(items(row))).collect()
}

fn print_comparison(figures: &[ComparedFigure]) -> Result {
    let median = |spread: &Option<Spread>| spread.map_or_else(|| "-".to_owned(), |it| number(it.median));
    // Half of the range of the runs, in percent of the median; of the build that differs more.
    let noise = |figure: &ComparedFigure| {
        let spreads = [figure.old, figure.new].into_iter().flatten();
        let percents = spreads.map(|it| 50.0 * (it.most - it.least) / it.median);
        percents.filter(|percent| percent.is_finite()).reduce(f64::max)
    };
    let mut last = "";
    let rows = figures.iter().map(|figure| {
        let row = if last == figure.row { "" } else { figure.row.as_str() };
        last = &figure.row;
        (row, figure)
    });
    let rows: Vec<(&str, &ComparedFigure)> = rows.collect();
    let table = output::table(&rows)
        .column("ROW", |(row, _)| *row)
        .column("FIGURE", |(_, it)| format!("{} {}", it.name, it.unit).trim_end().to_owned())
        .column("ON", |(_, figure)| figure.deployment.clone())
        .column("OLD", |(_, figure)| median(&figure.old))
        .column("NEW", |(_, figure)| median(&figure.new))
        .column("RATIO", |(_, it)| it.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} ×")))
        .column("SPREAD", |(_, it)| noise(it).map_or_else(String::new, |percent| format!("± {percent:.0} %")))
        .column("VERDICT", |(_, figure)| match figure.difference {
            Difference::Better => Tone::Good.cell("better"),
            Difference::Worse => Tone::Bad.cell("worse"),
            Difference::Different => Tone::Plain.cell("different"),
            Difference::WithinNoise => Tone::Plain.cell("within noise"),
            Difference::TooFewRuns => Tone::Plain.cell("too few runs"),
            Difference::OnlyOld => Tone::Plain.cell("only old"),
            Difference::OnlyNew => Tone::Plain.cell("only new"),
        });
    output::line(fit(&table))
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
