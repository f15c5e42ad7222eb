//! `ade keys lint`: what it prints in each format, and its exit codes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const PLANTED: &str = "import redis\nr = redis.Redis()\nr.set('ade:session:x', 1)\n";

/// A folder with one file.
fn folder(name: &str, content: &[u8]) -> TempDir {
    let folder = TempDir::new().expect("created");
    fs::write(folder.path().join(name), content).expect("written");
    folder
}

fn lint(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    command.args(["keys", "lint"]).args(arguments).current_dir(folder).output().expect("runs")
}

/// Exit code, standard output and standard error.
fn run(folder: &TempDir, arguments: &[&str]) -> (i32, String, String) {
    let output = lint(folder.path(), arguments);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("not killed"), text(output.stdout), text(output.stderr))
}

#[test]
fn findings_are_printed_as_lines_and_exit_with_1() {
    let folder = folder("a.py", PLANTED.as_bytes());
    let (code, stdout, stderr) = run(&folder, &["."]);
    assert_eq!(code, 1, "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(
        lines[0].starts_with("a.py:3: inline-key ade:session:x: session.session is built by hand"),
        "{stdout}"
    );
    assert!(lines[1].starts_with("a.py:3: ttl-lost ade:session:x: SET removes the TTL"), "{stdout}");
    assert_eq!(stderr, "error: 2 findings in 1 file\n");
    let (code, stdout, _) = run(&folder, &["a.py", "--skip", "inline-key", "--skip", "ttl-lost"]);
    assert_eq!((code, stdout.as_str()), (0, "no findings in 1 file\n"));
}

#[test]
fn json_and_sarif_name_path_line_rule_and_message() {
    let folder = folder("a.py", PLANTED.as_bytes());
    let (code, stdout, _) = run(&folder, &["a.py", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(code, 1);
    let finding = &report["findings"][1];
    assert_eq!(
        (&finding["path"], &finding["line"], &finding["rule"], &finding["key"]),
        (&"a.py".into(), &3.into(), &"ttl-lost".into(), &"ade:session:x".into())
    );
    assert!(finding["message"].is_string());
    let (code, stdout, _) = run(&folder, &["a.py", "--format", "sarif"]);
    let log: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &log["version"]), (1, &"2.1.0".into()));
    assert_eq!(log["runs"][0]["results"][0]["ruleId"], "inline-key");
}

#[test]
fn another_catalog_governs_other_keys() {
    let folder = folder(
        "a.sh",
        b"#!/bin/sh\nredis-cli GET \"shop:cart:$1:items\"\nredis-cli GET \"shop:crt:$1:items\"\n",
    );
    let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/../catalog/tests/fixtures/shop.toml");
    let (code, stdout, _) = run(&folder, &["--catalog", shop, "--skip", "inline-key", "."]);
    assert_eq!((code, stdout.lines().count()), (1, 1), "{stdout}");
    assert!(stdout.starts_with("a.sh:3: unknown-key shop:crt:{1}:items: no entry of shop"), "{stdout}");
}

#[test]
fn files_that_cannot_be_checked_are_errors_of_one_sentence() {
    for (name, content, arguments, code, message) in [
        ("a.py", b"a = 1\0".as_slice(), ["."], 2, "error: ./a.py: is not UTF-8 text"),
        ("notes.txt", b"text", ["notes.txt"], 2, "error: notes.txt: is no source file"),
        ("a.py", b"a = 1", ["missing"], 5, "error: missing: cannot be read: No such file"),
    ] {
        let folder = folder(name, content);
        let (actual, stdout, stderr) = run(&folder, &arguments);
        assert_eq!((actual, stdout.as_str()), (code, ""), "{stderr}");
        assert!(stderr.starts_with(message) && stderr.lines().count() == 1, "{stderr}");
    }
    let folder = folder("a.py", PLANTED.as_bytes());
    fs::write(folder.path().join("b.py"), b"\xff").expect("written");
    let (code, stdout, stderr) = run(&folder, &["."]);
    assert_eq!((code, stdout.lines().count()), (2, 2), "the others are checked: {stderr}");
    let (code, _, stderr) = run(&folder, &[".", "--skip", "no-rule"]);
    assert!(code == 2 && stderr.contains("the rules are unknown-key, inline-key"), "{stderr}");
}
