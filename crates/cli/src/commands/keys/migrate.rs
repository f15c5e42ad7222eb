//! `ade keys migrate`: brings the keys of a former schema to the present one.

use ade_domain::text::counted;
use ade_keytool::audit::Progress;
use ade_keytool::migrate::{MigrateOptions, MigrationReport, StatusMap, migrate};
use ade_keytool::text::count;
use owo_colors::OwoColorize;

use super::scan_args::{ScanArgs, progress_bar};
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, Result};
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Tone};

/// The catalog of ADE, which has former patterns.
const DEFAULT_CATALOG: &str = "ade";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    scan: ScanArgs,
    /// Make the changes. Without this, they are only shown
    #[arg(long)]
    apply: bool,
    /// Names of further numbers of approval states, or other names than PENDING, APPROVED, REJECTED, DELEGATED for 0 to 3
    #[arg(long, value_name = "N=NAME,…")]
    status_map: Option<String>,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(args: &Args, catalog: Option<&str>) -> Result {
    let catalog = super::select_one(catalog.unwrap_or(DEFAULT_CATALOG))?;
    let mut statuses = StatusMap::default();
    if let Some(text) = &args.status_map {
        statuses
            .extend(text)
            .map_err(|reason| Failure::invalid(format!("invalid --status-map: {reason}")))?;
    }
    let options = MigrateOptions { apply: args.apply, pace: args.scan.pace(), statuses };
    block_on_all_cores(async {
        let bar = progress_bar(if args.apply { "migrating" } else { "planning" });
        let progress = |Progress { keys, .. }| bar.set_position(keys);
        let report = migrate(&args.scan.url, &catalog, &options, &progress).await;
        bar.finish_and_clear();
        let report = report?;
        args.format.print(&report, page)?;
        match report.problem_count {
            0 => Ok(()),
            problems => Err(Failure::negative(format!(
                "{} left as {} because of problems",
                counted(problems, "key or field was", "keys or fields were"),
                if problems == 1 { "it is" } else { "they are" }
            ))),
        }
    })
}

fn page(report: &MigrationReport) -> Page {
    let mut page = Page::default();
    for step in &report.steps {
        page.line(format_args!("{}  {}  {}", step.step.bold(), step.entry, count(step.count)));
        for example in &step.examples {
            page.line(format_args!("  {}", output::safe(example)));
        }
        let more = step.count.saturating_sub(step.examples.len() as u64);
        if more > 0 {
            page.line(format_args!("  and {} more", count(more)));
        }
    }
    for problem in &report.problems {
        let (key, reason) = (output::safe(&problem.key), output::safe(&problem.reason));
        page.line(format_args!("{}  {key}: {reason}", Tone::Bad.paint("problem")));
    }
    let changes: u64 = report.steps.iter().map(|step| step.count).sum();
    page.line(match (changes, report.applied) {
        (0, _) => format!("nothing to migrate among {} keys", count(report.keys_seen)),
        (changes, true) => format!("made {}", counted(changes, "change", "changes")),
        (changes, false) => {
            format!("would make {}; add --apply to make them", counted(changes, "change", "changes"))
        }
    });
    page
}
