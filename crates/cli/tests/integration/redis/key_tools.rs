//! The commands of `ade keys` that read a live Redis, run as a user runs them; and on the keys that a full run of ADE leaves.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use ade_catalog::{Catalog, Entry};
use ade_testkit::{Redis, effort};
use serde_json::Value;

use crate::redis::key_inspector::catalog;

const BINARY: &str = env!("CARGO_BIN_EXE_ade");
/// Bytes of memory that an audit may use for its data, however many keys there are.
const MAX_DATA_KIB: u64 = 200 * 1024;

fn ade(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("keys").args(arguments).env_remove("ADE_KEYS_URL").output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Exit code and message of a command.
fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stderr))
}

/// A pattern without the names of its identifiers, and its type.
fn shape(entry: &Entry) -> String {
    format!("{} {}", entry.plain.fill(|_| "*"), entry.type_name())
}

/// Checks the tools on a Redis that ADE has filled: nothing breaks a rule, and most patterns are learned without the catalog.
pub(crate) fn check_filled(url: &str, is_cluster: bool) {
    let audited = ade(&["audit", url, "--catalog", "ade", "--flat-out", "--format", "json", "--sample", "1"]);
    assert_eq!(outcome(&audited), (Some(0), String::new()), "{}", text(&audited.stdout));
    let report: Value = serde_json::from_slice(&audited.stdout).expect("JSON");
    let classes = report["classes"].as_array().expect("a list").iter();
    let classes: Vec<&str> = classes.map(|class| class["class"].as_str().expect("a name")).collect();
    assert!(classes.len() > 25, "{classes:?}");
    let folder = tempfile::tempdir().expect("created");
    let file = folder.path().join("learned.toml").to_string_lossy().into_owned();
    let learned = ade(&["learn", url, "--flat-out", "--output", &file]);
    assert_eq!(learned.status.code(), Some(0), "{}", text(&learned.stderr));
    let toml = std::fs::read_to_string(&file).expect("written");
    let learned = Catalog::parse(&file, &toml).expect("valid");
    let listed = ade(&["list", "--catalog", &file]);
    assert_eq!(listed.status.code(), Some(0));
    if is_cluster {
        return;
    }
    let found: BTreeSet<String> = learned.entries.iter().map(shape).collect();
    let present = catalog().entries.iter().filter(|entry| classes.contains(&entry.name.as_str()));
    let (same, other): (Vec<String>, Vec<String>) =
        present.map(shape).partition(|shape| found.contains(shape));
    let percent = same.len() * 100 / (same.len() + other.len());
    println!("learned {percent} % of {} patterns; not {other:?}", same.len() + other.len());
    assert!(percent >= 80, "only {percent} %: not {other:#?}\nbut {found:#?}");
}

/// Valid keys of ADE, as commands of redis-cli --pipe.
fn fill(redis: &Redis, keys: u64) {
    let mut connection = redis.connect().expect("connects");
    let mut pipeline = redis::pipe();
    for id in 0..keys {
        let task = format!("ade:task:0192f6c0-5a7e-7cc0-8c7b-{id:012}");
        let command = match id % 3 {
            0 => redis::cmd("SET")
                .arg(format!("{task}:state"))
                .arg("APPROVED")
                .arg("EX")
                .arg(90 * 86_400)
                .to_owned(),
            1 => redis::cmd("SET")
                .arg(format!("{task}:data"))
                .arg(r#"{"task_id":"x"}"#)
                .arg("EX")
                .arg(86_400)
                .to_owned(),
            _ => redis::cmd("ZADD").arg(format!("ade:approval:queue:user:u{id}")).arg(1).arg("x").to_owned(),
        };
        pipeline.add_command(command).ignore();
        if id % 5000 == 4999 || id + 1 == keys {
            pipeline.query::<()>(&mut connection).expect("written");
            pipeline.clear();
        }
    }
}

/// With fewer keys in short runs.
#[test]
fn audit_of_many_keys_needs_little_memory() {
    let redis = Redis::start().expect("starts");
    let keys = effort::rounds(20_000, 1_000_000);
    fill(&redis, keys);
    let script = format!("ulimit -d {MAX_DATA_KIB}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &script,
        "sh",
        BINARY,
        "keys",
        "audit",
        &redis.url(),
        "--flat-out",
        "--format",
        "json",
    ]);
    let output = command.output().expect("runs");
    assert_eq!(outcome(&output), (Some(0), String::new()));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["coverage"]["keys_seen"], keys);
}

#[test]
fn audit_reports_in_three_formats_and_exits_with_one() {
    let redis = Redis::start().expect("starts");
    fill(&redis, 30);
    let _: String = redis.query(&["SET", "user:1:password", "hunter2"]).expect("written");
    let folder = tempfile::tempdir().expect("created");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (state, baseline) = (path("state.json"), path("baseline.json"));
    let url = redis.url();
    for (format, expected) in
        [("text", "suspected-secret"), ("json", "\"keys_seen\": 31"), ("html", "<!doctype html>")]
    {
        let output =
            ade(&["audit", &url, "--format", format, "--state", &state, "--write-baseline", &baseline]);
        assert_eq!(outcome(&output), (Some(1), "error: 2 violations\n".to_owned()));
        let shown = text(&output.stdout);
        assert!(shown.contains(expected) && !shown.contains("hunter2"), "{shown}");
    }
    let _: i64 = redis.query(&["DEL", "user:1:password"]).expect("deleted");
    let clean = ade(&["audit", &url]);
    assert_eq!(outcome(&clean), (Some(0), String::new()));
    assert!(text(&clean.stdout).contains("no violations"));
    fill(&redis, 90);
    let drifted = ade(&["audit", &url, "--baseline", &baseline]);
    assert_eq!(drifted.status.code(), Some(1));
    assert!(text(&drifted.stdout).contains("cardinality-drift"), "{}", text(&drifted.stdout));
}

#[test]
fn unavailable_servers_and_invalid_catalogs_are_one_sentence() {
    let redis = Redis::start().expect("starts");
    let url = redis.url();
    let folder = tempfile::tempdir().expect("created");
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "[catalog]\nname = 1").expect("written");
    let file = file.to_string_lossy().into_owned();
    redis.kill().expect("killed");
    for (arguments, code, part) in [
        (["audit", url.as_str()].as_slice(), 5, "cannot connect to"),
        (&["learn", &url], 5, "cannot connect to"),
        (&["migrate", &url], 5, "cannot connect to"),
        (&["audit", "nowhere"], 2, "invalid Redis URL"),
        (&["audit", &url, "--catalog", &file], 2, "bad.toml:2:8"),
        (&["migrate", &url, "--status-map", "x"], 2, "invalid --status-map"),
        (&["generate", "--language", "python"], 2, "choose one catalog"),
    ] {
        let output = ade(arguments);
        let (actual, message) = outcome(&output);
        assert_eq!(actual, Some(code), "{arguments:?}: {message}");
        assert!(
            message.contains(part) && message.lines().count() <= 2 && output.stdout.is_empty(),
            "{message}"
        );
    }
}

#[test]
fn migration_is_shown_first_and_made_when_asked() {
    let redis = Redis::start().expect("starts");
    for words in [["HSET", "lock:task:7", "purpose", "x"], ["HSET", "ade:approval:request:a", "status", "4"]]
    {
        let _: i64 = redis.query(&words).expect("written");
    }
    let plan = ade(&["migrate", &redis.url()]);
    assert_eq!(plan.status.code(), Some(1), "4 has no name");
    let shown = text(&plan.stdout);
    assert!(shown.contains("lock:task:7 → ade:lock:task:7") && shown.contains("--apply"), "{shown}");
    assert!(redis.query::<bool>(&["EXISTS", "lock:task:7"]).expect("a reply"));
    let made = ade(&["migrate", &redis.url(), "--apply", "--status-map", "4=CANCELLED", "--json"]);
    assert_eq!(outcome(&made), (Some(0), String::new()));
    let report: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    assert_eq!((&report["applied"], report["steps"].as_array().map(Vec::len)), (&Value::Bool(true), Some(2)));
    let status: String = redis.query(&["HGET", "ade:approval:request:a", "status"]).expect("a reply");
    assert_eq!(status, "CANCELLED");
    assert!(redis.query::<bool>(&["EXISTS", "ade:lock:task:7"]).expect("a reply"));
}

#[test]
fn differences_fail_and_builders_are_written() {
    let same = ade(&["diff", "ade", "ade"]);
    assert_eq!(outcome(&same), (Some(0), String::new()));
    let different = ade(&["diff", "mesh", "ade", "--json"]);
    assert_eq!(different.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&different.stdout).expect("JSON");
    let differences = report["differences"].as_array().expect("a list");
    assert!(differences.iter().any(|it| it["change"] == "added" && it["name"] == "task.state"));
    assert!(differences.iter().any(|it| it["change"] == "removed" && it["breaking"] == true));
    for (language, part) in [
        ("rust", "pub mod lock {"),
        ("python", "class lock:"),
        ("typescript", "export const lock = {"),
        ("javascript", "export const lock = {"),
        ("go", "func BuildLockTask("),
        ("vectors", "\"entry\": \"lock.task\""),
    ] {
        let output = ade(&["generate", "--catalog", "ade", "--language", language]);
        assert!(output.status.success() && text(&output.stdout).contains(part), "{language}");
    }
}
