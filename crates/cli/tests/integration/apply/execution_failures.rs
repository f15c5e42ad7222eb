//! Failures between approval and effect: stale previews, expired approvals, commands that fail half-way, hang, cannot start
//! or print endlessly, and paths that would escape the root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::folder_snapshot::{snapshot, write_file};
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Cli, Deployment, TestUser};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use serde_json::{Value, json};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const LOCK: &str = "resource:service:web";
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum output stored in the database, and in a blob.
const MAX_STORED_OUTPUT: usize = 65_536;
const MAX_OUTPUT_BLOB: u64 = 64 * 1_048_576;

/// A root folder with one file, and command templates that fail in different ways.
struct Workspace {
    folder: TempDir,
}

impl Workspace {
    fn new() -> Self {
        let workspace = Self { folder: tempfile::tempdir().expect("a folder") };
        write_file(&workspace.path("web.conf"), "listen 80\n", 0o640);
        let fifo = workspace.folder.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("created");
        workspace
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn config(&self) -> String {
        format!(
            r#"
[worker]
lease_seconds = 15

[executors.files.roots.site]
path = "{}"

[executors.command.templates.half]
argv = ["sh", "-c", 'cp -p -- "$1" "$1.before" && echo half > "$1"; echo "no more" >&2; exit 7', "sh", "{{file}}"]
rollback_argv = ["mv", "--", "{{file}}.before", "{{file}}"]

[executors.command.templates.hang]
argv = ["sh", "-c", 'echo running; exec cat -- "$1"', "sh", "{{fifo}}"]

[executors.command.templates.nowhere]
argv = ["/nowhere/to/be/found"]

[executors.command.templates.endless]
argv = ["yes", "again and again"]

[executors.command.templates.odd]
argv = ["printf", 'a\000b\377c\n']
"#,
            self.root().display()
        )
    }

    /// A task that changes the file.
    fn change_task(&self, content: &str) -> Value {
        let parameters = json!({ "root": "site", "files": [{ "path": "web.conf", "content": content }] });
        let resources = json!([{ "type": "service", "id": "web" }]);
        json!({ "executor": "files", "parameters": parameters, "resources": resources })
    }

    fn half_failing_task(&self, strategy: &str) -> Value {
        let mut task = command_task("half", &json!({ "file": self.path("web.conf") }));
        task["rollback_strategy"] = json!(strategy);
        task
    }

    fn hanging_task(&self, timeout_seconds: u32) -> Value {
        let mut task = command_task("hang", &json!({ "fifo": self.folder.path().join("fifo") }));
        task["timeout_seconds"] = json!(timeout_seconds);
        task
    }

    /// Whether no process has the pipe open for reading.
    fn has_no_readers(&self) -> bool {
        let pipe = self.folder.path().join("fifo");
        open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).err() == Some(Errno::NXIO)
    }
}

fn command_task(template: &str, arguments: &Value) -> Value {
    json!({ "executor": "command", "parameters": { "template": template, "arguments": arguments } })
}

struct Fixture {
    office: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
}

impl Fixture {
    async fn new(house: &Deployment) -> Self {
        let office = house.admin().await;
        Self {
            pat: office.create_user("pat", &[AUTHOR]).await,
            rex: office.create_user("rex", &[REVIEWER]).await,
            ada: office.create_user("ada", &[ADMIN]).await,
            office,
        }
    }

    async fn approve(&self, id: &str) {
        let request = self.office.approval_id(id, "rex").await;
        let _ = self.rex.decide(&request, "approve").await.expect_status(200);
    }

    async fn approved_task(&self, task: Value) -> String {
        let id = self.pat.create_submitted(task).await;
        self.approve(&id).await;
        id
    }

    async fn wait_for_state(&self, id: &str, state: &str) -> Value {
        self.office.wait_for_task(state, id, |task| task["state"] == state).await
    }

    async fn failed_task(&self, task: Value) -> Value {
        let id = self.approved_task(task).await;
        self.wait_for_state(&id, "FAILED").await
    }

    /// Acquires the lock of the service, so that tasks that need it are not applied.
    async fn acquire_lock(&self) -> u64 {
        let body = json!({ "agent_id": "other", "locks": [{ "lock": LOCK }], "ttl_seconds": 300 });
        let granted = self.office.api.post("/locks/acquire", &body).await.expect_status(200);
        granted["grants"][0]["fencing_token"].as_u64().expect("a token")
    }

    async fn release_lock(&self, token: u64) {
        let body = json!({ "agent_id": "other", "locks": [{ "lock": LOCK, "fencing_token": token }] });
        let _ = self.office.api.post("/locks/release", &body).await.expect_status(200);
    }

    async fn request_statuses(&self, id: &str) -> Vec<String> {
        self.office.approvals(id).await.iter().map(|request| text_field(request, "status")).collect()
    }

    /// The audit entries of a task with this action. Entries appear with a short delay.
    async fn audit_entries(&self, id: &str, action: &str) -> Vec<Value> {
        let observe = || async {
            let all = self.office.audit_entries(&format!("task={id}")).await;
            let found: Vec<Value> =
                all.into_iter().filter(|entry| text_field(entry, "action") == action).collect();
            if found.is_empty() { Err("no entry".to_owned()) } else { Ok(found) }
        };
        until(action, TIMEOUT, observe).await.expect("in time")
    }

    async fn wait_for_log(&self, id: &str, expected: &str) {
        let observe = || async {
            let logs = self.pat.get(&format!("/tasks/{id}/logs")).await.text();
            if logs.contains(expected) { Ok(()) } else { Err(logs) }
        };
        until(expected, TIMEOUT, observe).await.expect("in time");
    }
}

async fn set_up() -> (Workspace, Deployment, Fixture) {
    let workspace = Workspace::new();
    let house = Deployment::with_worker(ADE, &workspace.config());
    let fixture = Fixture::new(&house).await;
    (workspace, house, fixture)
}

#[tokio::test]
async fn stale_preview_reopens_review() {
    let (workspace, house, fixture) = set_up().await;
    let token = fixture.acquire_lock().await;
    let id = fixture.approved_task(workspace.change_task("listen 8080\n")).await;
    write_file(&workspace.path("web.conf"), "listen 81\n", 0o640);
    fixture.release_lock(token).await;
    let back = fixture.wait_for_state(&id, "REVIEWING").await;
    assert_eq!(fs::read_to_string(workspace.path("web.conf")).expect("there"), "listen 81\n");
    assert!(text_field(&back["preview"]["changes"][0], "diff").contains("-listen 81\n"), "{back}");
    assert_eq!(fixture.request_statuses(&id).await, ["INVALIDATED", "PENDING"]);
    let stale = fixture.audit_entries(&id, "task.go_stale").await;
    assert!(text_field(&stale[0], "reason").starts_with("STALE_PREVIEW"), "{stale:?}");
    assert_eq!(back["reopened"]["reason"], stale[0]["reason"]);
    let page = Cli::new(ADE, house.server(), &fixture.pat).run_ok(&["task", "show", &id]).await;
    assert!(page.contains("ago: STALE_PREVIEW: the preview no longer matches what was approved\n"), "{page}");
    assert!(page.contains("Allowed actions\n  modify, cancel, comment"), "what its author may: {page}");
    // The reviewer approves the new preview.
    fixture.approve(&id).await;
    let done = fixture.wait_for_state(&id, "COMPLETED").await;
    assert_eq!(done["execution"]["retry_count"], 0);
    assert_eq!(fs::read_to_string(workspace.path("web.conf")).expect("there"), "listen 8080\n");
}

#[tokio::test]
async fn stale_preview_of_auto_approved_task_needs_review() {
    let (workspace, _house, fixture) = set_up().await;
    fixture
        .office
        .create_policy(json!({
            "name": "auto", "targets": ["files:site/*"], "resource_patterns": ["service:*"],
            "auto_approve_if": { "author_has_role": [AUTHOR] },
        }))
        .await;
    let token = fixture.acquire_lock().await;
    let id = fixture.pat.create_submitted(workspace.change_task("listen 8080\n")).await;
    assert_eq!(text_field(&fixture.office.task_request(&id).await, "state"), "APPROVED");
    write_file(&workspace.path("web.conf"), "listen 81\n", 0o640);
    fixture.release_lock(token).await;
    fixture.wait_for_state(&id, "REVIEWING").await;
    assert_eq!(fixture.request_statuses(&id).await, ["PENDING"]);
    fixture.approve(&id).await;
    fixture.wait_for_state(&id, "COMPLETED").await;
}

#[tokio::test]
async fn expired_approval_is_not_applied() {
    let (workspace, _house, fixture) = set_up().await;
    let before = snapshot(&workspace.root());
    let token = fixture.acquire_lock().await;
    fixture.office.set_config("approval:validity", json!(1)).await;
    let id = fixture.approved_task(workspace.change_task("listen 8080\n")).await;
    let back = fixture.wait_for_state(&id, "REVIEWING").await;
    assert_eq!(back["execution"], Value::Null, "nothing was applied");
    assert!(text_field(&back["reopened"], "reason").starts_with("EXPIRED: "), "{back}");
    assert_eq!(fixture.request_statuses(&id).await, ["INVALIDATED", "PENDING"]);
    fixture.release_lock(token).await;
    assert_eq!(snapshot(&workspace.root()), before);
    fixture.office.set_config("approval:validity", json!(3_600)).await;
    fixture.approve(&id).await;
    fixture.wait_for_state(&id, "COMPLETED").await;
}

#[tokio::test]
async fn partial_change_is_rolled_back_by_strategy() {
    let (workspace, _house, fixture) = set_up().await;
    let before = snapshot(&workspace.root());
    let reason = json!({ "reason": "put it back" });
    let rollback_path = |id: &str| format!("/tasks/{id}/rollback");

    let failed = fixture.failed_task(workspace.half_failing_task("automatic")).await;
    assert_eq!(failed["execution"]["rolled_back"], true, "{failed}");
    assert_eq!(snapshot(&workspace.root()), before);
    let rejected = fixture.ada.post(&rollback_path(&text_field(&failed, "task_id")), &reason).await;
    let _ = rejected.expect_problem(409, "NOTHING_TO_ROLL_BACK");

    let failed = fixture.failed_task(workspace.half_failing_task("manual")).await;
    let id = text_field(&failed, "task_id");
    assert_eq!(failed["execution"]["rolled_back"], Value::Null, "{failed}");
    assert!(text_field(&failed["execution"], "error").contains("no more"), "{failed}");
    let half = snapshot(&workspace.root());
    assert_ne!(half, before, "unchanged until a rollback is requested");
    let rejected = fixture.pat.post(&rollback_path(&id), &reason).await;
    assert_eq!(rejected.status, 403, "{}", rejected.text());
    assert_eq!(snapshot(&workspace.root()), half);
    let _ = fixture.ada.post(&rollback_path(&id), &reason).await.expect_status(202);
    let is_rolled_back = |task: &Value| task["execution"]["rolled_back"] == true;
    let task = fixture.office.wait_for_task("the rollback completes", &id, is_rolled_back).await;
    assert_eq!((&task["state"], &task["execution"]["phase"]), (&json!("FAILED"), &json!("ENDED")));
    assert_eq!(snapshot(&workspace.root()), before);
    let _ = fixture.ada.post(&rollback_path(&id), &reason).await.expect_problem(409, "NOTHING_TO_ROLL_BACK");
    assert_eq!(fixture.audit_entries(&id, "task.rolled_back").await.len(), 1);

    let failed = fixture.failed_task(workspace.half_failing_task("none")).await;
    let _ = fixture
        .ada
        .post(&rollback_path(&text_field(&failed, "task_id")), &reason)
        .await
        .expect_problem(409, "NOTHING_TO_ROLL_BACK");
    assert_eq!(failed["execution"]["rolled_back"], Value::Null);
    assert_eq!(snapshot(&workspace.root()), half, "no rollback was requested");
}

#[tokio::test]
async fn stop_request_kills_hanging_command() {
    let workspace = Workspace::new();
    // The stop must not wait for the next heartbeat, which comes three times per lease.
    let house = Deployment::with_worker(
        ADE,
        &workspace.config().replace("lease_seconds = 15", "lease_seconds = 300"),
    );
    let fixture = Fixture::new(&house).await;
    let id = fixture.approved_task(workspace.hanging_task(3_600)).await;
    fixture.wait_for_log(&id, "running").await;
    let _ = fixture
        .ada
        .post(&format!("/tasks/{id}/stop"), &json!({ "reason": "enough" }))
        .await
        .expect_status(202);
    let execution = &fixture.wait_for_state(&id, "FAILED").await["execution"];
    assert_eq!((&execution["result"], &execution["code"]), (&json!("cancelled"), &json!("STOPPED")));
    assert_eq!(execution["retry_count"], 0);
    assert!(text_field(execution, "error").starts_with("OUTCOME_UNKNOWN: "), "{execution}");
    assert!(workspace.has_no_readers(), "the command has exited");
}

#[tokio::test]
async fn hanging_command_times_out() {
    let (workspace, _house, fixture) = set_up().await;
    let execution = &fixture.failed_task(workspace.hanging_task(1)).await["execution"];
    assert_eq!((&execution["result"], &execution["code"]), (&json!("timeout"), &json!("TIMED_OUT")));
    assert!(workspace.has_no_readers(), "the command has exited");
}

#[tokio::test]
async fn command_that_cannot_start_is_retried_three_times() {
    let (_workspace, _house, fixture) = set_up().await;
    let failed = fixture.failed_task(command_task("nowhere", &json!({}))).await;
    let (id, execution) = (text_field(&failed, "task_id"), &failed["execution"]);
    assert_eq!((&execution["retry_count"], &execution["attempt"]), (&json!(3), &json!(4)));
    assert_eq!(execution["rolled_back"], Value::Null);
    let _ = fixture.audit_entries(&id, "task.fail").await;
    assert_eq!(fixture.audit_entries(&id, "task.retry").await.len(), 3);
}

#[tokio::test]
async fn paths_cannot_escape_root() {
    let (workspace, _house, fixture) = set_up().await;
    let outside = workspace.folder.path().join("outside");
    write_file(&outside.join("secret"), "untouched", 0o600);
    symlink(&outside, workspace.path("link")).expect("created");
    symlink(outside.join("secret"), workspace.path("file-link")).expect("created");
    let file = |path: &str| json!({ "path": path, "content": "x" });
    let files_task = |parameters: Value| json!({ "type": "t", "description": "d", "executor": "files", "parameters": parameters });
    for path in ["../outside/secret", "/etc/passwd", "a/../../outside/secret", ".ade/x", "a//b", ""] {
        let task = files_task(json!({ "root": "site", "files": [file("fine"), file(path)] }));
        let rejected = fixture.pat.post("/tasks", &task).await;
        assert_eq!(
            (rejected.status, rejected.error_pointers()),
            (422, vec!["/parameters/files/1/path".to_owned()])
        );
    }
    for (parameters, pointer) in [
        (json!({ "root": outside, "files": [file("x")] }), "/parameters/root"),
        (json!({ "root": "Site", "files": [file("x")] }), "/parameters/root"),
        (
            json!({ "root": "site", "files": [file("x")], "verify": { "template": "sh" } }),
            "/parameters/verify/template",
        ),
        (
            json!({ "root": "site", "files": [file("x")], "verify": { "template": "hang", "arguments": { "fifo": [] } } }),
            "/parameters/verify/arguments/fifo",
        ),
    ] {
        let rejected = fixture.pat.post("/tasks", &files_task(parameters)).await;
        assert_eq!(
            (rejected.status, rejected.error_pointers()),
            (422, vec![pointer.to_owned()]),
            "{}",
            rejected.text()
        );
    }
    let files = [file("link/secret"), file("file-link"), file("link/new")];
    let id = fixture.pat.create_submitted(files_task(json!({ "root": "site", "files": files }))).await;
    let task = fixture.office.task_request(&id).await;
    assert_eq!(
        (&task["preview"]["changes"], task["preview"]["errors"].as_array().map(Vec::len)),
        (&json!([]), Some(3))
    );
    let before = snapshot(workspace.folder.path());
    fixture.approve(&id).await;
    let failed = fixture.wait_for_state(&id, "FAILED").await;
    assert_eq!(failed["execution"]["rolled_back"], Value::Null, "nothing was changed: {failed}");
    assert_eq!(snapshot(workspace.folder.path()), before);
}

#[tokio::test]
async fn endless_output_is_truncated() {
    let (_workspace, house, fixture) = set_up().await;
    let mut task = command_task("endless", &json!({}));
    task["timeout_seconds"] = json!(3);
    let execution = &fixture.failed_task(task).await["execution"];
    assert_eq!(execution["result"], "timeout");
    assert_eq!(text_field(execution, "output").len(), MAX_STORED_OUTPUT);
    assert!(text_field(execution, "output").starts_with("again and again\nagain and again\n"));
    let blob = house.server().data().join("blobs").join(text_field(execution, "output_key"));
    let length = fs::metadata(&blob).expect("stored").len();
    assert!(length > MAX_STORED_OUTPUT as u64 && length <= MAX_OUTPUT_BLOB, "{length}");
}

/// Invalid UTF-8, and NUL, which PostgreSQL cannot store in text: the task completes anyway.
#[tokio::test]
async fn binary_output_is_stored_as_text() {
    let (workspace, _house, fixture) = set_up().await;
    check_binary_output(&fixture).await;
    let house = Deployment::distributed(ADE, 1);
    let _worker = house.start_worker(ADE, &workspace.config());
    check_binary_output(&Fixture::new(&house).await).await;
}

async fn check_binary_output(fixture: &Fixture) {
    let id = fixture.approved_task(command_task("odd", &json!({}))).await;
    let done = fixture.wait_for_state(&id, "COMPLETED").await;
    assert_eq!(done["execution"]["output"], "a\u{fffd}b\u{fffd}c\n");
    fixture.wait_for_log(&id, "a\u{fffd}b\u{fffd}c").await;
}
