//! `ade keys audit`: compares the keys of a live Redis with the catalogs.

use std::path::PathBuf;

use ade_catalog::Catalog;
use ade_keytool::audit::{
    self, AuditError, AuditOptions, Baseline, ClassReport, OrphanReport, Progress, Report, RuleCount,
    Violation,
};
use ade_keytool::server::{Role, ServerError};
use ade_keytool::text::{count, size};
use clap::ValueEnum;
use owo_colors::OwoColorize;
use rustix::process::Signal;

use super::scan_args::{ScanArgs, progress_bar};
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, FailureKind, Result};
use crate::output::page::Page;
use crate::output::time::now;
use crate::output::{self, Tone};
use crate::signals::Signals;

/// Examples of each violation that text shows.
const SHOWN_EXAMPLES: usize = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    scan: ScanArgs,
    /// Read replicas instead of primaries
    #[arg(long)]
    replicas: bool,
    /// Save here how far the audit is; with the same file, it continues where it was interrupted
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Report classes whose number of keys differs much from this file
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the numbers of keys to this file, for a later --baseline
    #[arg(long, value_name = "FILE")]
    write_baseline: Option<PathBuf>,
    /// Difference from the baseline that counts as a violation
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "baseline")]
    drift: u32,
    /// Of a class with more than 1,000 strings, read the memory of one in N
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,
    /// Read no values: envelopes and secrets are not checked
    #[arg(long)]
    no_values: bool,
    /// Examples for each rule and class in JSON and HTML
    #[arg(long, value_name = "N", default_value_t = 20)]
    examples: usize,
    /// How to print the report; html is one file with charts
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
    Html,
}

pub(super) fn run(args: &Args, catalogs: &[Catalog]) -> Result {
    let options = AuditOptions {
        role: if args.replicas { Role::Replica } else { Role::Primary },
        pace: args.scan.pace(),
        sample: args.sample,
        reads_values: !args.no_values,
        max_examples: args.examples,
        state: args.state.clone(),
        baseline: args.baseline.as_deref().map(Baseline::read).transpose()?,
        drift_percent: args.drift,
        ..AuditOptions::default()
    };
    block_on_all_cores(async {
        let report = observe(args, catalogs, &options).await?;
        if let Some(file) = &args.write_baseline {
            report.baseline().write(file)?;
        }
        match args.format {
            Format::Text => output::line(page(&report))?,
            Format::Json => output::json(&report)?,
            Format::Html => output::raw(&audit::html(&report))?,
        }
        match report.violation_count() {
            0 => Ok(()),
            1 => Err(Failure::negative("1 violation")),
            found => Err(Failure::negative(format!("{} violations", count(found)))),
        }
    })
}

/// Audits with a progress bar, until the end or a signal.
async fn observe(args: &Args, catalogs: &[Catalog], options: &AuditOptions) -> Result<Report> {
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM])?;
    let bar = progress_bar("auditing");
    let progress = |Progress { keys, expected }| {
        if let Some(expected) = expected {
            bar.set_length(expected.max(keys));
        }
        bar.set_position(keys);
    };
    let audit = audit::audit(&args.scan.url, catalogs, options, now(), &progress);
    let result = tokio::select! {
        result = audit => result.map_err(Failure::from),
        _ = signals.next() => Err(interrupted(args)),
    };
    bar.finish_and_clear();
    result
}

fn interrupted(args: &Args) -> Failure {
    let failure = Failure::new(FailureKind::Unavailable, "interrupted before all keys were read");
    failure.hint(match &args.state {
        Some(_) => "the same command continues",
        None => "with --state FILE, the same command would continue",
    })
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Server(error) => error.into(),
            AuditError::ForeignState { .. } | AuditError::Baseline { .. } => Self::invalid(error.to_string()),
            AuditError::State { .. } => Self::unavailable(error.to_string()),
        }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let kind = match error {
            ServerError::InvalidUrl { .. } => FailureKind::InvalidInput,
            _ => FailureKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

fn page(report: &Report) -> Page {
    let mut page = Page::default();
    let rows: Vec<&ClassReport> = report.classes.iter().collect();
    let table = output::table(&rows)
        .column("CLASS", |row| &row.class)
        .column("TYPE", |row| row.type_name)
        .column("KEYS", |row| count(row.keys))
        .column("MEMORY", |row| memory(row.memory.estimated_bytes))
        .column("TTL RULE", |row| &row.ttl_rule)
        .column("TIME LEFT", |row| time_left(row));
    page.table(&table);
    if report.orphans.keys > 0 {
        let OrphanReport { keys, memory: estimate, prefixes, .. } = &report.orphans;
        page.line(format_args!("\n{} orphans, {}", count(*keys), memory(estimate.estimated_bytes)));
        let prefixes =
            prefixes.iter().map(|(prefix, keys)| format!("{:>10}  {}", count(*keys), output::safe(prefix)));
        page.block("by prefix", prefixes);
    }
    for row in &report.counts {
        violations(&mut page, report, row);
    }
    page.heading("Coverage");
    let coverage = &report.coverage;
    for node in &coverage.nodes {
        let of = node.keys_expected.map_or_else(|| "an unknown number".to_owned(), count);
        let role = format!("{:?}", node.role).to_lowercase();
        page.line(format_args!(
            "  {role} {}: read {} keys; it had {of} at the start",
            node.address,
            count(node.keys_seen)
        ));
    }
    for line in coverage.lines() {
        page.line(format_args!("  {}", output::safe(&line)));
    }
    let classes = report.classes.len();
    page.line(format_args!("  {classes} of {} classes have keys", classes + report.unused_classes));
    if report.counts.is_empty() {
        page.line(format_args!("\n{}", Tone::Good.paint("no violations")));
    }
    page
}

fn violations(page: &mut Page, report: &Report, row: &RuleCount) {
    let (rule, class) = (Tone::Bad.paint(row.rule.name()), output::safe(&row.class));
    page.line(format_args!("\n{rule}  {class}  {}", count(row.count).bold()));
    let of_row = |it: &&Violation| it.rule == row.rule && it.class == row.class;
    for Violation { key, message, .. } in report.violations.iter().filter(of_row).take(SHOWN_EXAMPLES) {
        let key = key.as_deref().map_or_else(String::new, |key| format!("{}  ", output::safe(key)));
        page.line(format_args!("  {key}{}", output::safe(message).dimmed()));
    }
    let more = row.count.saturating_sub(SHOWN_EXAMPLES as u64);
    if more > 0 {
        page.line(format_args!("  {}", format!("and {} more", count(more)).dimmed()));
    }
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("~{}", size(bytes)))
}

/// The two most frequent bars of the histogram.
fn time_left(row: &ClassReport) -> String {
    let mut bars: Vec<_> = row.ttl.iter().filter(|bar| bar.keys > 0).collect();
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.keys));
    let percent = |keys: u64| (u128::from(keys) * 200 + 1) / (2 * u128::from(row.keys.max(1)));
    let shown = bars.iter().take(2).map(|bar| format!("{} {} %", bar.left, percent(bar.keys)));
    shown.collect::<Vec<_>>().join(", ")
}
