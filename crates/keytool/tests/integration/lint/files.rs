//! Which files are read, and what happens with those that cannot be.

use std::fs;
use std::path::{Path, PathBuf};

use ade_keytool::lint::{FileErrorKind, MAX_FILE_BYTES, Report};
use tempfile::TempDir;

use super::linter;

const PLANTED: &str = "a = 'ade:nope'\n";

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = TempDir::new().expect("created");
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, content).expect("written");
    }
    folder
}

fn paths(report: &Report, folder: &TempDir) -> Vec<String> {
    let relative = |path: &str| {
        let path = Path::new(path).strip_prefix(folder.path()).expect("below the folder");
        path.to_string_lossy().into_owned()
    };
    report.findings.iter().map(|finding| relative(&finding.path)).collect()
}

#[test]
fn reads_sources_that_git_does_not_ignore() {
    let planted = PLANTED.as_bytes();
    let folder = folder(&[
        (".gitignore", b"/out\n*.gen.py\n"),
        ("a.py", planted),
        ("b.gen.py", planted),
        ("out/c.py", planted),
        ("deep/d.py", planted),
        ("deep/.hidden/e.py", planted),
        (".git/f.py", planted),
        ("deep/.gitignore", b"g.py\n"),
        ("deep/g.py", planted),
        ("notes.txt", planted),
        ("picture.png", b"\x89PNG\0"),
        ("script", b"#!/usr/bin/env python3\na = 'ade:nope'\n"),
        ("binary", b"\x7fELF\0\0"),
    ]);
    let report = linter().check_paths(&[folder.path().to_owned()]);
    assert_eq!(paths(&report, &folder), ["a.py", "deep/.hidden/e.py", "deep/d.py", "script"]);
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // A file that is named is read, also if git ignores it, and only once.
    let named = [folder.path().join("out/c.py"), folder.path().join("a.py"), folder.path().to_owned()];
    let report = linter().check_paths(&named);
    assert_eq!(paths(&report, &folder), ["a.py", "deep/.hidden/e.py", "deep/d.py", "out/c.py", "script"]);
}

#[test]
fn files_that_cannot_be_read_are_errors_and_the_others_are_checked() {
    let large = vec![b'#'; usize::try_from(MAX_FILE_BYTES).expect("small") + 1];
    let folder = folder(&[
        ("a.py", PLANTED.as_bytes()),
        ("binary.py", b"a = 'ade:nope'\0"),
        ("latin.py", b"a = '\xe9'"),
        ("large.py", &large),
    ]);
    let report = linter().check_paths(&[folder.path().to_owned()]);
    assert_eq!(paths(&report, &folder), ["a.py"]);
    let kinds: Vec<&FileErrorKind> = report.errors.iter().map(|error| &error.kind).collect();
    assert!(
        matches!(kinds.as_slice(), [FileErrorKind::NotText, FileErrorKind::TooLarge, FileErrorKind::NotText]),
        "{kinds:?}"
    );
    for error in &report.errors {
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}

#[test]
fn missing_paths_and_other_files_are_errors() {
    let folder = folder(&[("notes.txt", b"text")]);
    let missing = linter().check_paths(&[PathBuf::from("/missing/a.py"), folder.path().join("notes.txt")]);
    let texts: Vec<String> = missing.errors.iter().map(ToString::to_string).collect();
    assert!(
        texts.iter().any(|text| text.starts_with("/missing/a.py: cannot be read: No such file")),
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| text.contains("notes.txt: is no source file")), "{texts:?}");
    assert_eq!(missing.files, 0);
}
