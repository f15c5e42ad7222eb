//! Output of the `ade lock` commands: tables, JSON, errors with hints, and no control characters from stored data.

use std::process::Output;

use crate::locks::server::{Server, data_folder};
use ade_client::wire::{AcquireRequest, LockMode, LockSpec};
use serde_json::Value;

const CONTROL_CHARACTERS: &str = "why\u{1b}[2J\u{7}\r\nnot";

fn run(server: &Server, arguments: &[&str]) -> Output {
    server.ade(&[&["lock"], arguments].concat()).output().expect("runs")
}

fn text(server: &Server, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(output.status.success(), "{arguments:?} {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    text
}

fn json(server: &Server, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&text(server, &arguments)).expect("JSON")
}

fn expect_error(server: &Server, arguments: &[&str]) -> (i32, String) {
    let output = run(server, arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    (output.status.code().expect("not killed"), String::from_utf8(output.stderr).expect("text"))
}

fn acquire_arguments<'a>(lock: &'a str, agent: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["acquire", lock, "--agent", agent], options].concat()
}

fn enqueue(server: &Server, lock: &str, agent: &str, mode: LockMode, purpose: &str) {
    let request = AcquireRequest {
        locks: vec![LockSpec { lock: lock.to_owned(), mode: Some(mode) }],
        agent_id: Some(agent.to_owned()),
        wait_seconds: Some(60.0),
        queue: true,
        purpose: Some(purpose.to_owned()),
        ..AcquireRequest::default()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(server.client().acquire_locks(&request)).expect("queued");
}

#[test]
fn shows_held_lock_and_releases_it_by_token() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    assert_eq!(text(&server, &["ls"]), "no locks found\n");
    assert_eq!(json(&server, &["ls"]), serde_json::json!([]));
    assert_eq!(text(&server, &["graph"]), "no waiters found\n");
    let taken = json(
        &server,
        &acquire_arguments("resource:db:prod", "ann", &["--purpose", CONTROL_CHARACTERS, "--ttl", "60"]),
    );
    let token = taken[0]["fencing_token"].as_u64().expect("a token");
    let again = text(&server, &acquire_arguments("resource:db:prod", "ann", &[]));
    assert!(again.starts_with(" LOCK") && again.contains(&token.to_string()), "the same grant: {again}");
    enqueue(&server, "resource:db:prod", "ben", LockMode::Exclusive, CONTROL_CHARACTERS);
    enqueue(&server, "resource:db:prod", "cem", LockMode::Shared, "reads");

    let list = text(&server, &["ls"]);
    let row = list.lines().last().expect("a row");
    for cell in ["resource:db:prod", "exclusive", "ann", "2", "why\\u{1b}[2J\\u{7}\\r\\nnot"] {
        assert!(row.contains(cell), "{cell}: {list}");
    }
    assert_eq!(text(&server, &["ls", "--agent", "nobody"]), "no locks found\n");
    assert_eq!(json(&server, &["ls", "--type", "db", "--kind", "resource"])[0]["queue_length"], 2);
    assert_eq!(json(&server, &["ls", "--kind", "task"]), serde_json::json!([]));

    let shown = text(&server, &["show", "resource:db:prod"]);
    assert!(shown.starts_with("resource:db:prod exclusive\n"), "{shown}");
    let (ben, cem) = (shown.find(" ben ").expect("waits"), shown.find(" cem ").expect("waits"));
    assert!(ben < cem && shown.contains("HEARTBEATS") && shown.contains("TIMES OUT IN"), "{shown}");
    let shown = json(&server, &["show", "resource:db:prod"]);
    assert_eq!(shown["holders"][0]["fencing_token"].as_u64(), Some(token));
    assert_eq!(shown["holders"][0]["purpose"], CONTROL_CHARACTERS, "JSON has it unchanged");
    assert_eq!(shown["queue"][1]["agent_id"], "cem");

    let graph = text(&server, &["graph"]);
    assert!(graph.contains("ben ──exclusive──▶ resource:db:prod\n       held by ann\n"), "{graph}");
    assert!(graph.contains("cem ──shared──▶ resource:db:prod\n"), "{graph}");
    assert_eq!(json(&server, &["graph"])["waits"].as_array().map(Vec::len), Some(2));

    let (code, error) = expect_error(&server, &acquire_arguments("resource:db:prod", "dee", &[]));
    assert_eq!(code, 1);
    assert!(
        error.contains("is held by ann") && error.contains("hint: wait for the lock with --wait"),
        "{error}"
    );
    let wrong = (token - 1).to_string();
    let release = |token| ["release", "resource:db:prod", "--agent", "ann", "--fencing-token", token];
    let (code, error) = expect_error(&server, &release(&wrong));
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("LOCK_LOST"), "{error}");
    assert_eq!(text(&server, &release(&token.to_string())), "");
    assert_eq!(json(&server, &["show", "resource:db:prod"])["holders"][0]["agent_id"], "ben");
}

#[test]
fn break_needs_reason_and_names_previous_holder() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let output = run(&server, &["break", "task:1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(text(&server, &["break", "task:1", "--reason", "tidy"]), "task:1 had no holder\n");
    text(&server, &acquire_arguments("task:1", "ann", &["--purpose", CONTROL_CHARACTERS]));
    let said = text(&server, &["break", "task:1", "--reason", "tidy"]);
    assert_eq!(said, "task:1 was taken from ann (why\\u{1b}[2J\\u{7}\\r\\nnot)\n");
    text(&server, &acquire_arguments("task:1", "ben", &[]));
    let broken = json(&server, &["break", "task:1", "--reason", "tidy"]);
    assert_eq!(broken["holders"][0]["agent_id"], "ben");
}

#[test]
fn watch_prints_changes() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let mut watch = server.run(&["lock", "watch", "--every", "0.1"]);
    watch.out.wait_for("no locks found");
    text(&server, &acquire_arguments("task:1", "ann", &["--purpose", CONTROL_CHARACTERS]));
    let row = watch.out.wait_for("task:1");
    assert!(row.contains("ann") && !row.chars().any(char::is_control), "{row:?}");
}

#[test]
fn usage_errors_have_exit_codes_and_hints() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    for wrong in ["nonsense", "resource:db", "task:"] {
        let (code, error) = expect_error(&server, &acquire_arguments(wrong, "ann", &[]));
        assert_eq!(code, 2, "{error}");
        assert!(error.starts_with("error: "), "{error}");
    }
    let (code, error) = expect_error(&server, &acquire_arguments("task:1", "ann", &["--ttl", "301"]));
    assert_eq!(code, 2, "{error}");
    let output = server.ade(&["lock", "ls"]).env("ADE_TOKEN", "wrong").output().expect("runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: "), "{output:?}");
    let nowhere = server.ade(&["lock", "ls", "--server", "http://127.0.0.1:1"]).output().expect("runs");
    assert_eq!(nowhere.status.code(), Some(5), "{nowhere:?}");
    assert!(
        String::from_utf8_lossy(&nowhere.stderr).contains("start a server with ade serve"),
        "{nowhere:?}"
    );
}
