//! `ade keys lint`: Redis keys in source code, checked against the catalogs.

use std::path::PathBuf;

use ade_catalog::Catalog;
use ade_keytool::lint::{FileError, FileErrorKind, Linter, Report, Rule, sarif};
use clap::ValueEnum;
use owo_colors::OwoColorize;
use serde_json::json;

use crate::failure::{Failure, FailureKind, Result};
use crate::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, or folders with source files; what .gitignore excludes in them is skipped
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How to print the findings
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Skip a rule, such as inline-key where no builders exist; can be repeated
    #[arg(long, value_name = "RULE", value_parser = rule)]
    skip: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// One line for each finding
    Text,
    /// An object with findings, errors and the number of files
    Json,
    /// SARIF 2.1.0, for code hosts
    Sarif,
}

fn rule(name: &str) -> Result<Rule, String> {
    Rule::named(name).ok_or_else(|| format!("the rules are {}", Rule::names()))
}

pub(super) fn run(catalogs: &[Catalog], args: &Args) -> Result {
    let report = Linter::new(catalogs, today()).without(&args.skip).check_paths(&args.paths);
    match args.format {
        Format::Text => print_text(&report)?,
        Format::Json => output::json(&json!({
            "findings": report.findings,
            "errors": report.errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "files": report.files,
        }))?,
        Format::Sarif => output::json(&sarif::log(&report, env!("CARGO_PKG_VERSION")))?,
    }
    match (report.errors.as_slice(), report.findings.len()) {
        ([], 0) => Ok(()),
        ([], findings) => {
            let (findings, files) = (counted(findings, "finding"), counted(report.files, "file"));
            Err(Failure::negative(format!("{findings} in {files}")))
        }
        ([only], _) => Err(Failure::new(kind_of(only), only.to_string())),
        (errors @ [first, ..], _) => {
            for error in errors {
                output::warning(&error.to_string());
            }
            Err(Failure::new(kind_of(first), format!("{} files could not be checked", errors.len())))
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a command reads the clock once and passes the date on")]
fn today() -> jiff::civil::Date {
    jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date()
}

fn print_text(report: &Report) -> Result {
    for finding in &report.findings {
        let place = format!("{}:{}:", finding.path, finding.line);
        output::line(format_args!(
            "{} {} {}: {}",
            place.bold(),
            finding.rule.yellow(),
            finding.key,
            finding.message
        ))?;
    }
    if report.findings.is_empty() && report.errors.is_empty() {
        output::line(format_args!("no findings in {}", counted(report.files, "file")))?;
    }
    Ok(())
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn kind_of(error: &FileError) -> FailureKind {
    match error.kind {
        FileErrorKind::Unreadable(_) => FailureKind::Unavailable,
        FileErrorKind::TooLarge
        | FileErrorKind::NotText
        | FileErrorKind::UnknownLanguage
        | FileErrorKind::TooComplex => FailureKind::InvalidInput,
    }
}
