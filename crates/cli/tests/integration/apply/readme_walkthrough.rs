//! From proposal to effect with the command line: two files change after approval, with audit entries and logs; a change
//! that fails verification is rolled back byte for byte. Embedded, and with a separate worker on Redis and PostgreSQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::folder_snapshot::{snapshot, write_file};
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Cli, Deployment, TestUser};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Audit actions of a task that completes.
const COMPLETED_ACTIONS: [&str; 9] = [
    "task.create",
    "task.submit",
    "task.assign",
    "approval.request",
    "approval.approve",
    "task.approve",
    "task.begin_apply",
    "task.started",
    "task.complete",
];

/// A root folder with two files, and the executor configuration for it.
struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Self {
        let workspace = Self { folder: tempfile::tempdir().expect("a folder") };
        write_file(&workspace.path("web.conf"), "user www\nlisten 80\n", 0o640);
        write_file(&workspace.path("motd"), "welcome\n", 0o644);
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
[executors.files.roots.site]
path = "{}"

[executors.command.templates.check]
argv = ["sh", "-c", 'echo checking; if grep -q broken "$1"; then echo "a line is broken" >&2; exit 4; fi', "sh", "{{file}}"]
"#,
            self.root().display()
        )
    }

    /// Writes a task into a file.
    fn task_file(&self, name: &str, files: &str) -> String {
        let path = self.folder.path().join(name);
        let file = self.path("web.conf");
        let file = file.display();
        let yaml = format!(
            "type: configuration
description: Listen somewhere else
executor: files
resources: [{{ type: service, id: web }}]
parameters:
  root: site
  files:
{files}
  verify: {{ template: check, arguments: {{ file: {file} }} }}
"
        );
        std::fs::write(&path, yaml).expect("written");
        path.display().to_string()
    }
}

struct Fixture {
    office: AdminClient,
    author: TestUser,
    pat: Cli,
    rex: Cli,
}

impl Fixture {
    async fn new(house: &Deployment) -> Self {
        let office = house.admin().await;
        let author = office.create_user("pat", &[AUTHOR]).await;
        let reviewer = office.create_user("rex", &[REVIEWER]).await;
        let shell = |person: &TestUser| Cli::new(ADE, house.server(), person);
        Self { pat: shell(&author), rex: shell(&reviewer), author, office }
    }

    /// Waits for a pending approval request and returns its id and the id of its task.
    async fn pending_approval(&self) -> (String, String) {
        let observe = || async {
            let pending = self.rex.json(&["approval", "ls"]).await;
            match pending.as_array().map(Vec::as_slice) {
                Some([request]) => Ok((text_field(request, "approval_id"), text_field(request, "task_id"))),
                other => Err(format!("{other:?}")),
            }
        };
        until("the reviewer has a pending request", TIMEOUT, observe).await.expect("in time")
    }

    /// The audit actions of a task in order. Entries are numbered with a short delay.
    async fn audit_actions(&self, task: &str, last: &str) -> Vec<String> {
        let observe = || async {
            let mut entries = self.pat.json(&["task", "audit", task]).await;
            let all = entries.as_array_mut().expect("a list");
            all.sort_by_key(|entry| entry["number"].as_u64());
            let actions: Vec<String> = all.iter().map(|entry| text_field(entry, "action")).collect();
            if actions.iter().any(|action| action == last) { Ok(actions) } else { Err(actions.join(", ")) }
        };
        let actions = until("all audit entries are numbered", TIMEOUT, observe).await.expect("in time");
        assert!(actions.iter().any(|action| action == "task.preview"), "previews are audited: {actions:?}");
        // How many there are depends on who makes them: a separate worker adds an entry of its own.
        actions.into_iter().filter(|action| !action.starts_with("task.preview")).collect()
    }
}

async fn run_walkthrough(fixture: &Fixture, workspace: &Workspace) {
    approved_change_is_applied(fixture, workspace).await;
    failed_verification_is_rolled_back(fixture, workspace).await;
}

async fn approved_change_is_applied(fixture: &Fixture, workspace: &Workspace) {
    let before = snapshot(&workspace.root());
    let task_file = workspace.task_file(
        "first.yaml",
        "  - { path: web.conf, content: \"user www\\nlisten 8080\\n\" }\n  - { path: new/hello, content: \"hello\\n\", mode: \"0600\" }",
    );
    let waiting = fixture.pat.spawn(&["task", "propose", "-f", &task_file, "--wait"]);
    let (request, task) = fixture.pending_approval().await;
    let page = fixture.rex.run_ok(&["task", "show", &task]).await;
    for line in ["-listen 80", "+listen 8080", "+hello", "command:check"] {
        assert!(page.contains(line), "{line} is missing in {page}");
    }
    assert_eq!(snapshot(&workspace.root()), before, "a proposal changes nothing");
    fixture.rex.run_ok(&["approval", "approve", &request, "--reason", "looks right"]).await;
    let ended = waiting.wait().await;
    assert_eq!(ended.exit_code, Some(0), "{} {}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains(&format!("{task} is COMPLETED")), "{}", ended.stdout);
    let mut after = before;
    after.insert("web.conf".to_owned(), (0o100_640, Some(b"user www\nlisten 8080\n".to_vec())));
    after.insert("new".to_owned(), (0o40_755, None));
    after.insert("new/hello".to_owned(), (0o100_600, Some(b"hello\n".to_vec())));
    assert_eq!(snapshot(&workspace.root()), after, "exactly what was approved");
    assert!(fixture.pat.run_ok(&["task", "logs", &task]).await.contains("checking"));
    assert_eq!(fixture.audit_actions(&task, "task.complete").await, COMPLETED_ACTIONS);
    let shown = fixture.pat.json(&["task", "show", &task]).await["task"].clone();
    let execution = &shown["execution"];
    assert_eq!((&execution["result"], &execution["rolled_back"]), (&json!("success"), &Value::Null));
    assert_eq!(execution["output"], "checking\n");
}

async fn failed_verification_is_rolled_back(fixture: &Fixture, workspace: &Workspace) {
    let before = snapshot(&workspace.root());
    let task_file = workspace.task_file(
        "second.yaml",
        "  - { path: web.conf, content: \"broken\\n\", mode: \"0777\" }\n  - { path: motd, delete: true }\n  - { path: deep/er/new, content: x }",
    );
    let waiting = fixture.pat.spawn(&["task", "propose", "-f", &task_file, "--wait"]);
    let (request, task) = fixture.pending_approval().await;
    fixture.rex.run_ok(&["approval", "approve", &request]).await;
    let ended = waiting.wait().await;
    assert_eq!(ended.exit_code, Some(4), "{} {}", ended.stdout, ended.stderr);
    for words in ["is FAILED", "exit status: 4", "a line is broken", "everything was rolled back"] {
        assert!(ended.stderr.contains(words), "{words} is missing in {}", ended.stderr);
    }
    // Same content, permissions and names, and no temporary files of the worker.
    assert_eq!(snapshot(&workspace.root()), before);
    let shown = fixture.pat.json(&["task", "show", &task]).await["task"].clone();
    assert_eq!((&shown["state"], &shown["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(shown["execution"]["retry_count"], 0);
    let page = fixture.pat.run_ok(&["task", "show", &task]).await;
    assert!(page.contains("all changes are undone"), "{page}");
    let actions = fixture.audit_actions(&task, "task.fail").await;
    assert_eq!(actions[..8], COMPLETED_ACTIONS[..8]);
    assert_eq!(actions[8..], ["task.fail"]);
    // The locks of the attempt are released.
    let lock = fixture.office.api.get("/locks/resource:service:web").await.expect_status(200);
    assert_eq!(lock["holders"], json!([]), "the lock is free");
}

#[tokio::test]
async fn walkthrough_embedded() {
    let workspace = Workspace::new();
    let house = Deployment::with_worker(ADE, &workspace.config());
    run_walkthrough(&Fixture::new(&house).await, &workspace).await;
}

/// Only the worker has access to the root, so it makes the preview.
#[tokio::test]
async fn walkthrough_with_separate_worker() {
    let workspace = Workspace::new();
    let house = Deployment::distributed(ADE, 1);
    let fixture = Fixture::new(&house).await;
    // What a worker has published stays known after it has stopped.
    house.start_worker(ADE, &workspace.config()).stop().expect("shuts down gracefully");
    let parameters = json!({ "root": "site", "files": [{ "path": "motd", "content": "hi\n" }] });
    let draft = fixture.author.create_draft(json!({ "executor": "files", "parameters": parameters })).await;
    assert_eq!(fixture.office.task_request(&draft).await["preview"]["status"], "pending");
    let worker = house.start_worker(ADE, &workspace.config());
    let is_ready = |task: &Value| task["preview"]["status"] == "ready";
    let task = fixture.office.wait_for_task("a worker makes the preview", &draft, is_ready).await;
    assert_eq!(task["preview"]["changes"][0]["what"], "motd");
    assert!(text_field(&task["preview"]["changes"][0], "diff").contains("+hi"));
    run_walkthrough(&fixture, &workspace).await;
    // Its locks have made it an agent, until it stops.
    let presence = format!("/agents/{}", worker.name());
    assert_eq!(fixture.office.api.get(&presence).await.expect_status(200)["status"], "active");
    worker.stop().expect("shuts down gracefully");
    assert_eq!(fixture.office.api.get(&presence).await.status, 404);
    assert_eq!(unfinished_outputs(&house.server().blobs()), 0, "temporary files are removed");
}

/// The worker is killed after it changed all files and before verification ends: recovery rolls everything back.
#[tokio::test]
async fn rolls_back_when_worker_is_killed_during_verification() {
    let workspace = Workspace::new();
    let before = snapshot(&workspace.root());
    let pipe = workspace.folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).expect("created");
    let hang = "[executors.command.templates.hang]\nargv = [\"sh\", \"-c\", 'echo running; exec cat -- \"$1\"', \"sh\", \"{pipe}\"]\n";
    let config = format!("[worker]\nlease_seconds = 10\n{}\n{hang}", workspace.config());
    let house = Deployment::distributed(ADE, 1);
    let fixture = Fixture::new(&house).await;
    let worker = house.start_worker(ADE, &config);
    let files =
        json!([{ "path": "web.conf", "content": "listen 8080\n" }, { "path": "motd", "delete": true }]);
    let verify = json!({ "template": "hang", "arguments": { "pipe": pipe } });
    let parameters = json!({ "root": "site", "files": files, "verify": verify });
    let id = fixture.author.create_submitted(json!({ "executor": "files", "parameters": parameters })).await;
    let (request, _) = fixture.pending_approval().await;
    fixture.rex.run_ok(&["approval", "approve", &request]).await;
    let observe = || async {
        let logs = fixture.pat.run_ok(&["task", "logs", &id]).await;
        if logs.contains("running") { Ok(()) } else { Err(logs) }
    };
    until("the verify command runs", TIMEOUT, observe).await.expect("in time");
    worker.kill().expect("killed");
    assert!(!workspace.path("motd").exists(), "all files are changed");
    worker.start_again().expect("starts");
    let failed =
        fixture.office.wait_for_task("the task is rolled back", &id, |task| task["state"] == "FAILED").await;
    let execution = &failed["execution"];
    assert_eq!((&execution["code"], &execution["rolled_back"]), (&json!("WORKER_LOST"), &json!(true)));
    assert_eq!(snapshot(&workspace.root()), before);
}

/// Temporary files of outputs that were not finished.
fn unfinished_outputs(blobs: &Path) -> usize {
    snapshot(blobs).keys().filter(|name| name.contains("output-")).count()
}
