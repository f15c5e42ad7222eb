//! What can come between an approval and its effect, from outside: a world that moved on, approvals that grew old, commands that
//! fail half-way, hang, never begin or never stop talking, and paths that would lead out of the root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::folder::{everything, write};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person, Shell};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use serde_json::{Value, json};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const LOCK: &str = "resource:service:web";
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// What a record keeps of what a run says, and a blob.
const KEPT: usize = 65_536;
const MOST: u64 = 64 * 1_048_576;

/// One root, and commands that go wrong in their ways.
struct Site {
    around: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { around: tempfile::tempdir().expect("a folder") };
        write(&site.at("web.conf"), "listen 80\n", 0o640);
        let fifo = site.around.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("made");
        site
    }

    fn root(&self) -> PathBuf {
        self.around.path().join("root")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn config(&self) -> String {
        format!(
            r#"
[worker]
lease_seconds = 15

[executors.files]
roots = ["{}"]

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

    /// A change of the one file there is.
    fn change(&self, content: &str) -> Value {
        let parameters =
            json!({ "root": self.root(), "files": [{ "path": "web.conf", "content": content }] });
        let resources = json!([{ "type": "service", "id": "web" }]);
        json!({ "executor": "files", "parameters": parameters, "resources": resources })
    }

    fn half(&self, strategy: &str) -> Value {
        let mut task = command("half", &json!({ "file": self.at("web.conf") }));
        task["rollback_strategy"] = json!(strategy);
        task
    }

    fn hang(&self, timeout_seconds: u32) -> Value {
        let mut task = command("hang", &json!({ "fifo": self.around.path().join("fifo") }));
        task["timeout_seconds"] = json!(timeout_seconds);
        task
    }

    /// Whether nobody reads from the pipe, or waits for somebody who writes.
    fn is_left_alone(&self) -> bool {
        let pipe = self.around.path().join("fifo");
        open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).err() == Some(Errno::NXIO)
    }
}

fn command(template: &str, arguments: &Value) -> Value {
    json!({ "executor": "command", "parameters": { "template": template, "arguments": arguments } })
}

struct Stage {
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
}

impl Stage {
    async fn of(house: &House) -> Self {
        let office = house.office().await;
        Self {
            pat: office.person("pat", &[AUTHOR]).await,
            rex: office.person("rex", &[REVIEWER]).await,
            ada: office.person("ada", &[ADMIN]).await,
            office,
        }
    }

    async fn approve(&self, id: &str) {
        let request = self.office.request(id, "rex").await;
        let _ = self.rex.answers(&request, "approve").await.expect(200);
    }

    async fn approved(&self, task: Value) -> String {
        let id = self.pat.submitted(task).await;
        self.approve(&id).await;
        id
    }

    async fn state(&self, id: &str, state: &str) -> Value {
        self.office.wait_for(state, id, |task| task["state"] == state).await
    }

    async fn fails(&self, task: Value) -> Value {
        let id = self.approved(task).await;
        self.state(&id, "FAILED").await
    }

    /// Holds the lock of the service, so that nothing is carried out that needs it.
    async fn hold(&self) -> u64 {
        let body = json!({ "agent_id": "other", "locks": [{ "lock": LOCK }], "ttl_seconds": 300 });
        let granted = self.office.admin.post("/locks/acquire", &body).await.expect(200);
        granted["grants"][0]["fencing_token"].as_u64().expect("a token")
    }

    async fn let_go(&self, token: u64) {
        let body = json!({ "agent_id": "other", "locks": [{ "lock": LOCK, "fencing_token": token }] });
        let _ = self.office.admin.post("/locks/release", &body).await.expect(200);
    }

    async fn statuses(&self, id: &str) -> Vec<String> {
        self.office.requests(id).await.iter().map(|one| text(one, "status")).collect()
    }

    /// Everything of this kind that was recorded about a task; entries get their numbers a moment later.
    async fn recorded(&self, id: &str, action: &str) -> Vec<Value> {
        let look = || async {
            let all = self.office.audit(&format!("task={id}")).await;
            let found: Vec<Value> = all.into_iter().filter(|one| text(one, "action") == action).collect();
            if found.is_empty() { Err("nothing yet".to_owned()) } else { Ok(found) }
        };
        until(action, LONG, look).await.expect("recorded")
    }

    async fn says(&self, id: &str, what: &str) {
        let look = || async {
            let said = self.pat.get(&format!("/tasks/{id}/logs")).await.text();
            if said.contains(what) { Ok(()) } else { Err(said) }
        };
        until(what, LONG, look).await.expect("said");
    }
}

async fn stage() -> (Site, House, Stage) {
    let site = Site::new();
    let house = House::working(ADE, &site.config());
    let stage = Stage::of(&house).await;
    (site, house, stage)
}

#[tokio::test]
async fn what_moved_on_since_the_approval_is_looked_at_again() {
    let (site, house, stage) = stage().await;
    let token = stage.hold().await;
    let id = stage.approved(site.change("listen 8080\n")).await;
    write(&site.at("web.conf"), "listen 81\n", 0o640);
    stage.let_go(token).await;
    let back = stage.state(&id, "REVIEWING").await;
    assert_eq!(fs::read_to_string(site.at("web.conf")).expect("there"), "listen 81\n");
    assert!(text(&back["preview"]["changes"][0], "diff").contains("-listen 81\n"), "{back}");
    assert_eq!(stage.statuses(&id).await, ["INVALIDATED", "PENDING"]);
    let stale = stage.recorded(&id, "task.go_stale").await;
    assert!(text(&stale[0], "reason").starts_with("STALE_PREVIEW"), "{stale:?}");
    assert_eq!(back["reopened"]["why"], stale[0]["reason"]);
    let page = Shell::of(ADE, house.ade(), &stage.pat).says(&["task", "show", &id]).await;
    assert!(page.contains("ago: STALE_PREVIEW: the preview no longer matches what was approved\n"), "{page}");
    assert!(page.contains("Allowed actions\n  modify, cancel, comment"), "what its author may: {page}");
    // Whoever has seen what would be done now approves that.
    stage.approve(&id).await;
    let done = stage.state(&id, "COMPLETED").await;
    assert_eq!(done["execution"]["retry_count"], 0);
    assert_eq!(fs::read_to_string(site.at("web.conf")).expect("there"), "listen 8080\n");
}

#[tokio::test]
async fn what_needs_nobody_is_looked_at_once_it_moved_on() {
    let (site, _house, stage) = stage().await;
    stage.office.policy(json!({ "name": "auto", "auto_approve_if": { "author_has_role": [AUTHOR] } })).await;
    let token = stage.hold().await;
    let id = stage.pat.submitted(site.change("listen 8080\n")).await;
    assert_eq!(text(&stage.office.task(&id).await, "state"), "APPROVED");
    write(&site.at("web.conf"), "listen 81\n", 0o640);
    stage.let_go(token).await;
    stage.state(&id, "REVIEWING").await;
    assert_eq!(stage.statuses(&id).await, ["PENDING"]);
    stage.approve(&id).await;
    stage.state(&id, "COMPLETED").await;
}

#[tokio::test]
async fn an_approval_that_grew_old_is_not_used() {
    let (site, _house, stage) = stage().await;
    let before = everything(&site.root());
    let token = stage.hold().await;
    stage.office.set("approval:validity", json!(1)).await;
    let id = stage.approved(site.change("listen 8080\n")).await;
    let back = stage.state(&id, "REVIEWING").await;
    assert_eq!(back["execution"], Value::Null, "nothing was begun");
    assert!(text(&back["reopened"], "why").starts_with("EXPIRED: "), "{back}");
    assert_eq!(stage.statuses(&id).await, ["INVALIDATED", "PENDING"]);
    stage.let_go(token).await;
    assert_eq!(everything(&site.root()), before);
    stage.office.set("approval:validity", json!(3_600)).await;
    stage.approve(&id).await;
    stage.state(&id, "COMPLETED").await;
}

#[tokio::test]
async fn what_is_left_half_way_is_undone_as_its_author_wanted() {
    let (site, _house, stage) = stage().await;
    let before = everything(&site.root());
    let why = json!({ "reason": "put it back" });
    let undo = |id: &str| format!("/tasks/{id}/rollback");

    let failed = stage.fails(site.half("automatic")).await;
    assert_eq!(failed["execution"]["rolled_back"], true, "{failed}");
    assert_eq!(everything(&site.root()), before);
    let refused = stage.ada.post(&undo(&text(&failed, "task_id")), &why).await;
    let _ = refused.problem(409, "NOTHING_TO_ROLL_BACK");

    let failed = stage.fails(site.half("manual")).await;
    let id = text(&failed, "task_id");
    assert_eq!(failed["execution"]["rolled_back"], Value::Null, "{failed}");
    assert!(text(&failed["execution"], "error").contains("no more"), "{failed}");
    let half = everything(&site.root());
    assert_ne!(half, before, "it stays until somebody wants it undone");
    let refused = stage.pat.post(&undo(&id), &why).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert_eq!(everything(&site.root()), half);
    let _ = stage.ada.post(&undo(&id), &why).await.expect(202);
    let undone = |task: &Value| task["execution"]["rolled_back"] == true;
    let task = stage.office.wait_for("it is undone", &id, undone).await;
    assert_eq!((&task["state"], &task["execution"]["phase"]), (&json!("FAILED"), &json!("ENDED")));
    assert_eq!(everything(&site.root()), before);
    let _ = stage.ada.post(&undo(&id), &why).await.problem(409, "NOTHING_TO_ROLL_BACK");
    assert_eq!(stage.recorded(&id, "task.rolled_back").await.len(), 1);

    let failed = stage.fails(site.half("none")).await;
    let _ = stage.ada.post(&undo(&text(&failed, "task_id")), &why).await.problem(409, "NOTHING_TO_ROLL_BACK");
    assert_eq!(failed["execution"]["rolled_back"], Value::Null);
    assert_eq!(everything(&site.root()), half, "nobody wanted it undone");
}

#[tokio::test]
async fn what_hangs_is_stopped() {
    let site = Site::new();
    // Long before the next sign of life, which comes three times in a lease.
    let house = House::working(ADE, &site.config().replace("lease_seconds = 15", "lease_seconds = 300"));
    let stage = Stage::of(&house).await;
    let id = stage.approved(site.hang(3_600)).await;
    stage.says(&id, "running").await;
    let _ = stage.ada.post(&format!("/tasks/{id}/stop"), &json!({ "reason": "enough" })).await.expect(202);
    let execution = &stage.state(&id, "FAILED").await["execution"];
    assert_eq!((&execution["result"], &execution["code"]), (&json!("cancelled"), &json!("STOPPED")));
    assert_eq!(execution["retry_count"], 0);
    assert!(text(execution, "error").starts_with("OUTCOME_UNKNOWN: "), "{execution}");
    assert!(site.is_left_alone(), "nothing of the command is left");
}

#[tokio::test]
async fn what_hangs_ends_when_its_time_is_over() {
    let (site, _house, stage) = stage().await;
    let execution = &stage.fails(site.hang(1)).await["execution"];
    assert_eq!((&execution["result"], &execution["code"]), (&json!("timeout"), &json!("TIMED_OUT")));
    assert!(site.is_left_alone(), "nothing of the command is left");
}

#[tokio::test]
async fn what_fails_before_it_begins_is_tried_again_three_times() {
    let (_site, _house, stage) = stage().await;
    let failed = stage.fails(command("nowhere", &json!({}))).await;
    let (id, execution) = (text(&failed, "task_id"), &failed["execution"]);
    assert_eq!((&execution["retry_count"], &execution["attempt"]), (&json!(3), &json!(4)));
    assert_eq!(execution["rolled_back"], Value::Null);
    let _ = stage.recorded(&id, "task.fail").await;
    assert_eq!(stage.recorded(&id, "task.retry").await.len(), 3);
}

#[tokio::test]
async fn nothing_leads_out_of_the_root() {
    let (site, _house, stage) = stage().await;
    let outside = site.around.path().join("outside");
    write(&outside.join("secret"), "untouched", 0o600);
    symlink(&outside, site.at("link")).expect("made");
    symlink(outside.join("secret"), site.at("file-link")).expect("made");
    let file = |path: &str| json!({ "path": path, "content": "x" });
    let with = |parameters: Value| json!({ "type": "t", "description": "d", "executor": "files", "parameters": parameters });
    for path in ["../outside/secret", "/etc/passwd", "a/../../outside/secret", ".ade/x", "a//b", ""] {
        let task = with(json!({ "root": site.root(), "files": [file("fine"), file(path)] }));
        let refused = stage.pat.post("/tasks", &task).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["/parameters/files/1/path".to_owned()]));
    }
    for (parameters, pointer) in [
        (json!({ "root": outside, "files": [file("x")] }), "/parameters"),
        (json!({ "root": site.root().join("."), "files": [file("x")] }), "/parameters"),
        (
            json!({ "root": site.root(), "files": [file("x")], "verify": { "template": "sh" } }),
            "/parameters/verify/template",
        ),
        (
            json!({ "root": site.root(), "files": [file("x")], "verify": { "template": "hang", "arguments": { "fifo": [] } } }),
            "/parameters/verify/arguments/fifo",
        ),
    ] {
        let refused = stage.pat.post("/tasks", &with(parameters)).await;
        assert_eq!(
            (refused.status, refused.pointers()),
            (422, vec![pointer.to_owned()]),
            "{}",
            refused.text()
        );
    }
    let files = [file("link/secret"), file("file-link"), file("link/new")];
    let id = stage.pat.submitted(with(json!({ "root": site.root(), "files": files }))).await;
    let task = stage.office.task(&id).await;
    assert_eq!(
        (&task["preview"]["changes"], task["preview"]["errors"].as_array().map(Vec::len)),
        (&json!([]), Some(3))
    );
    let before = everything(site.around.path());
    stage.approve(&id).await;
    let failed = stage.state(&id, "FAILED").await;
    assert_eq!(failed["execution"]["rolled_back"], Value::Null, "nothing was ever changed: {failed}");
    assert_eq!(everything(site.around.path()), before);
}

#[tokio::test]
async fn what_never_stops_talking_is_cut() {
    let (_site, house, stage) = stage().await;
    let mut task = command("endless", &json!({}));
    task["timeout_seconds"] = json!(3);
    let execution = &stage.fails(task).await["execution"];
    assert_eq!(execution["result"], "timeout");
    assert_eq!(text(execution, "output").len(), KEPT);
    assert!(text(execution, "output").starts_with("again and again\nagain and again\n"));
    let blob = house.ade().data().join("blobs").join(text(execution, "output_key"));
    let long = fs::metadata(&blob).expect("kept").len();
    assert!(long > KEPT as u64 && long <= MOST, "{long}");
}

/// Bytes that are no text, and NUL, which PostgreSQL does not keep in texts: the task ends all the same.
#[tokio::test]
async fn what_is_no_text_is_kept_as_text() {
    let (site, _house, stage) = stage().await;
    what_is_said_is_text(&stage).await;
    let house = House::distributed(ADE, 1);
    let _worker = house.worker(ADE, &site.config());
    what_is_said_is_text(&Stage::of(&house).await).await;
}

async fn what_is_said_is_text(stage: &Stage) {
    let id = stage.approved(command("odd", &json!({}))).await;
    let done = stage.state(&id, "COMPLETED").await;
    assert_eq!(done["execution"]["output"], "a\u{fffd}b\u{fffd}c\n");
    stage.says(&id, "a\u{fffd}b\u{fffd}c").await;
}
