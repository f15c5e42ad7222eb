//! The linter: Redis keys in source code, checked against key catalogs.
//!
//! A front-end for each language reads texts and calls of Redis clients from the syntax tree; the rules are the same for all.
//! Invariants: no input makes it panic or recurse without bound; it reads files and never writes; today is given, not read.

mod allow;
mod calls;
mod commands;
mod files;
mod languages;
mod model;
mod overlap;
mod rules;
pub mod sarif;
mod syntax;
mod vocabulary;
mod walk;

use std::path::{Path, PathBuf};

use ade_catalog::Catalog;
use jiff::civil::Date;
use serde::Serialize;
use strum::{Display, EnumIter, IntoEnumIterator, IntoStaticStr};

pub use files::{FileError, FileErrorKind};
use model::Source;
use vocabulary::Vocabulary;

/// Largest source file that is read.
pub const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;

/// What the linter checks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Display, EnumIter, IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    UnknownKey,
    InlineKey,
    TtlLost,
    CrossSlot,
    ExpiredAllow,
}

/// A place in the source that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub rule: Rule,
    /// The key as written, with expressions in braces.
    pub key: String,
    pub message: String,
}

/// What was found in some paths.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order of path and line.
    pub findings: Vec<Finding>,
    /// Files that could not be checked.
    pub errors: Vec<FileError>,
    /// Number of files that were checked.
    pub files: usize,
}

/// Checks source code against catalogs.
pub struct Linter<'c> {
    vocabulary: Vocabulary<'c>,
    today: Date,
    skipped: Vec<Rule>,
}

impl Rule {
    /// The rule with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::iter().find(|rule| rule.as_str() == name)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The names of all rules.
    #[must_use]
    pub fn names() -> String {
        Self::iter().map(Self::as_str).collect::<Vec<_>>().join(", ")
    }

    /// What the rule demands, in a sentence.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::UnknownKey => "Every key is an entry of a catalog.",
            Self::InlineKey => "Keys of a catalog are built by builders, not by hand.",
            Self::TtlLost => "A SET of a key with a TTL sets or keeps its TTL in the same call.",
            Self::CrossSlot => "Keys that are used together are in one slot of a cluster.",
            Self::ExpiredAllow => "Exceptions have a rule, a date that is not past, and a reason.",
        }
    }
}

impl<'c> Linter<'c> {
    /// A linter for catalogs. Exceptions that end before `today` are findings.
    #[must_use]
    pub fn new(catalogs: &'c [Catalog], today: Date) -> Self {
        Self { vocabulary: Vocabulary::new(catalogs), today, skipped: Vec::new() }
    }

    /// Leaves out some rules.
    #[must_use]
    pub fn without(mut self, rules: &[Rule]) -> Self {
        self.skipped = rules.to_vec();
        self
    }

    /// Checks files, and the source files in folders that `.gitignore` does not exclude.
    #[must_use]
    pub fn check_paths(&self, paths: &[PathBuf]) -> Report {
        files::check(self, paths)
    }

    /// Checks the text of a file. Its path selects the language, and tells whether it is test code.
    pub fn check_source(&self, path: &Path, source: &str) -> Result<Vec<Finding>, FileError> {
        self.check_file(path, is_test_file(path), source)
    }

    fn check_file(&self, path: &Path, is_test: bool, source: &str) -> Result<Vec<Finding>, FileError> {
        let first_line = source.lines().next().unwrap_or_default();
        let front_end = languages::of(path, first_line)
            .ok_or_else(|| FileError::new(path, FileErrorKind::UnknownLanguage))?;
        if !self.may_have_findings(source) {
            return Ok(Vec::new());
        }
        let too_complex = |_| FileError::new(path, FileErrorKind::TooComplex);
        let mut read = walk::read(front_end, source).map_err(too_complex)?;
        add_scripts(&mut read).map_err(too_complex)?;
        let shown = path.to_string_lossy();
        let shown = shown.strip_prefix("./").unwrap_or(&shown);
        let mut findings = rules::check(&self.vocabulary, &read, shown, is_test);
        let (allows, expired) = allow::read(&read.comments, shown, self.today);
        findings.retain(|finding| {
            !allows.iter().any(|allow| allow.rule == finding.rule && allow.line == finding.line)
        });
        findings.extend(expired);
        findings.retain(|finding| !self.skipped.contains(&finding.rule));
        findings.sort();
        findings.dedup();
        Ok(findings)
    }

    /// Whether a file is worth parsing. Most files have nothing to do with Redis.
    fn may_have_findings(&self, source: &str) -> bool {
        let names_redis = || source.lines().any(|line| syntax::names_redis(&line.to_ascii_lowercase()));
        let has_beginning = |beginning: &str| {
            let name = beginning.trim_end_matches([':', '.', '/', '|']);
            let quoted = |quote: char| source.contains(&format!("{quote}{name}{quote}"));
            source.contains(beginning) || quoted('"') || quoted('\'')
        };
        source.contains("ade-lint") || names_redis() || self.vocabulary.beginnings().any(has_beginning)
    }
}

/// Adds what scripts and command lines within texts contain.
fn add_scripts(source: &mut Source) -> Result<(), walk::Unparsable> {
    let scripts: Vec<_> = source
        .mentions
        .iter()
        .filter_map(|mention| Some((calls::embedded_language(&mention.text)?, mention.text.clone())))
        .collect();
    for (name, script) in scripts {
        let Some(front_end) = languages::of(Path::new(name), "") else { continue };
        let inner = walk::read(front_end, &script.as_source())?;
        // The script begins behind the quote.
        let (bytes, lines) = (script.position + 1, script.line - 1);
        let moved = |mut text: model::TextExpr| {
            text.position += bytes;
            text.line += lines;
            text
        };
        source.mentions.extend(
            inner.mentions.into_iter().map(|mention| model::Mention { text: moved(mention.text), ..mention }),
        );
        source.calls.extend(inner.calls.into_iter().map(|call| {
            let texts = call.args.into_iter().map(|arg| match arg {
                model::Arg::Text(text) => model::Arg::Text(moved(text)),
                other => other,
            });
            model::Call {
                args: texts.collect(),
                position: call.position + bytes,
                line: call.line + lines,
                group: call.group.map(|group| group + bytes),
                command: call.command,
            }
        }));
    }
    Ok(())
}

/// Whether a file has tests, by the conventions of the languages. Such code may name keys.
fn is_test_file(path: &Path) -> bool {
    let is_test_folder = |name: &str| {
        matches!(name, "test" | "tests" | "__tests__" | "spec" | "testdata" | "fixtures" | "benches" | "e2e")
    };
    let folders = path.parent().into_iter().flat_map(Path::components);
    let mut folders = folders.map(|component| component.as_os_str().to_string_lossy());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split_once('.').map_or(&*name, |(stem, _)| stem);
    folders.any(|folder| is_test_folder(&folder))
        || matches!(stem, "test" | "tests" | "conftest")
        || stem.starts_with("test_")
        || stem.ends_with("_test")
        || stem.ends_with("_tests")
        || name.contains(".test.")
        || name.contains(".spec.")
        || name.ends_with(".bats")
}
