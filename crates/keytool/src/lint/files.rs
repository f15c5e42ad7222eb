//! Finds and reads source files, several at a time. A file that cannot be checked is an error of its own; the others are checked.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ignore::WalkBuilder;

use super::{Linter, MAX_FILE_BYTES, Report, is_test_file, languages};

const MAX_THREADS: usize = 8;
/// Folders of the version control system, which are never sources.
const NEVER: &[&str] = &[".git", ".hg", ".svn"];

/// A file that could not be checked.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct FileError {
    pub path: PathBuf,
    pub kind: FileErrorKind,
}

/// Why a file could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum FileErrorKind {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("is larger than {} MiB: exclude it in .gitignore", MAX_FILE_BYTES / (1024 * 1024))]
    TooLarge,
    #[error("is not UTF-8 text: convert it, or exclude it in .gitignore")]
    NotText,
    #[error("is no source file that this command reads: use {}", languages::EXTENSIONS)]
    UnknownLanguage,
    #[error("is too complex to parse: exclude it in .gitignore")]
    TooComplex,
}

impl FileError {
    pub(super) fn new(path: &Path, kind: FileErrorKind) -> Self {
        Self { path: path.to_owned(), kind }
    }
}

/// A file to check.
struct Candidate {
    path: PathBuf,
    /// Whether the caller named it, not only a folder that contains it.
    is_named: bool,
    is_test: bool,
}

pub(super) fn check(linter: &Linter<'_>, paths: &[PathBuf]) -> Report {
    let (candidates, errors) = find(paths);
    let report = Mutex::new(Report { errors, ..Report::default() });
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Report::default();
        while let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
            match check_file(linter, candidate) {
                Ok(Some(findings)) => {
                    own.files += 1;
                    own.findings.extend(findings);
                }
                Ok(None) => {}
                Err(error) => own.errors.push(error),
            }
        }
        let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.files += own.files;
        report.findings.append(&mut own.findings);
        report.errors.append(&mut own.errors);
    };
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS);
    thread::scope(|scope| {
        for _ in 0..threads.min(candidates.len()) {
            scope.spawn(work);
        }
    });
    let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.findings.sort();
    report.errors.sort_by(|one, other| one.path.cmp(&other.path));
    report
}

/// The files to check, each once.
fn find(paths: &[PathBuf]) -> (Vec<Candidate>, Vec<FileError>) {
    let (mut candidates, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        if !path.is_dir() {
            candidates.push(Candidate { path: path.clone(), is_named: true, is_test: is_test_file(path) });
            continue;
        }
        let mut walk = WalkBuilder::new(path);
        walk.hidden(false).require_git(false);
        walk.filter_entry(|entry| !NEVER.iter().any(|never| entry.file_name() == *never));
        for entry in walk.build() {
            match entry {
                Ok(entry) => {
                    let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                    if is_file && languages::may_be_source(entry.path()) {
                        // Folders above the named one do not make it test code.
                        let below = path.parent().and_then(|above| entry.path().strip_prefix(above).ok());
                        let is_test = is_test_file(below.unwrap_or(entry.path()));
                        candidates.push(Candidate { path: entry.into_path(), is_named: false, is_test });
                    }
                }
                Err(error) => errors.push(unreadable(path, error)),
            }
        }
    }
    candidates.sort_by(|one, other| one.path.cmp(&other.path));
    candidates.dedup_by(|next, last| {
        last.is_named |= next.is_named && next.path == last.path;
        next.path == last.path
    });
    (candidates, errors)
}

fn unreadable(folder: &Path, error: ignore::Error) -> FileError {
    let mut path = folder.to_owned();
    let mut inner = &error;
    while let ignore::Error::WithPath { err, .. }
    | ignore::Error::WithDepth { err, .. }
    | ignore::Error::WithLineNumber { err, .. } = inner
    {
        if let ignore::Error::WithPath { path: own, .. } = inner {
            path.clone_from(own);
        }
        inner = err;
    }
    let text = inner.to_string();
    let cause = error.into_io_error().unwrap_or_else(|| io::Error::other(text));
    FileError { path, kind: FileErrorKind::Unreadable(cause) }
}

/// The findings of a file; `None` if it is no source after all.
fn check_file(linter: &Linter<'_>, candidate: &Candidate) -> Result<Option<Vec<super::Finding>>, FileError> {
    let Candidate { path, is_named, is_test } = candidate;
    let fault = |kind| FileError::new(path, kind);
    let file = File::open(path).map_err(|error| fault(FileErrorKind::Unreadable(error)))?;
    let has_extension = path.extension().is_some();
    if !is_named && !has_extension && !starts_as_script(&file) {
        return Ok(None);
    }
    let file = File::open(path).map_err(|error| fault(FileErrorKind::Unreadable(error)))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(FileErrorKind::Unreadable(error)))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(fault(FileErrorKind::TooLarge));
    }
    let is_binary = bytes.contains(&0);
    let source = String::from_utf8(bytes).ok().filter(|_| !is_binary);
    let source = source.ok_or_else(|| fault(FileErrorKind::NotText))?;
    match linter.check_file(path, *is_test, &source) {
        Err(FileError { kind: FileErrorKind::UnknownLanguage, .. }) if !is_named => Ok(None),
        result => result.map(Some),
    }
}

/// Whether a file begins with `#!`. One that cannot be read is no script.
fn starts_as_script(mut file: &File) -> bool {
    let mut start = [0; 2];
    file.read_exact(&mut start).is_ok() && start == *b"#!"
}
