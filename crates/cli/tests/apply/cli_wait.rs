//! `--wait` and `logs -f` on the command line: they survive server restarts, the exit code gives the outcome of the task,
//! and a draft that cannot be submitted is not lost.

use std::path::PathBuf;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person, Shell};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const SILENCE: &str = "the server is unavailable, retrying";

struct Fixture {
    folder: tempfile::TempDir,
    house: House,
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, 0o600.into(), 0).expect("created");
        // The command fails, and its rollback blocks until the pipe is written to.
        let config = "[executors.command.templates.half]\nargv = [\"sh\", \"-c\", \"echo no more; exit 7\"]\n\
                      rollback_argv = [\"sh\", \"-c\", 'echo going back; cat -- \"$1\"', \"sh\", \"{pipe}\"]\n";
        let house = House::working(ADE, config);
        let office = house.office().await;
        let (pat, rex) = (office.person("pat", &[AUTHOR]).await, office.person("rex", &[REVIEWER]).await);
        let ada = office.person("ada", &[ADMIN]).await;
        Self { folder, house, office, pat, rex, ada }
    }

    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    fn shell(&self) -> Shell {
        Shell::of(ADE, self.house.ade(), &self.pat)
    }

    /// Writes the task into a file.
    fn task_file(&self, task: &Value) -> String {
        let path = self.folder.path().join("task.json");
        std::fs::write(&path, ade_testkit::people::task(task.clone()).to_string()).expect("written");
        path.display().to_string()
    }

    /// Waits for a pending approval request and returns its id and the id of its task.
    async fn pending_approval(&self) -> (String, String) {
        let observe = || async {
            let found = self.rex.get("/approvals?reviewer=me&status=PENDING").await.expect(200);
            let found = found["items"].as_array().and_then(|all| all.first().cloned());
            found
                .map(|request| (text(&request, "approval_id"), text(&request, "task_id")))
                .ok_or("no request".to_owned())
        };
        let timeout = std::time::Duration::from_secs(60);
        ade_testkit::wait::until("rex has a pending request", timeout, observe).await.expect("in time")
    }
}

#[tokio::test]
async fn wait_survives_restarts_and_exits_with_outcome() {
    let fixture = Fixture::new().await;
    let file = fixture.task_file(&json!({}));
    for (decision, code, state) in [("approve", 0, "COMPLETED"), ("reject", 3, "REJECTED")] {
        let mut waiting = fixture.shell().begin(&["task", "propose", "-f", &file, "--wait"]);
        let (request, id) = fixture.pending_approval().await;
        waiting.tells("REVIEWING").await;
        fixture.house.ade().kill().expect("killed");
        waiting.tells(SILENCE).await;
        fixture.house.ade().start_again().expect("starts");
        waiting.tells("the server is available again").await;
        let _ = fixture.rex.answers(&request, decision).await.expect(200);
        let ended = waiting.ends().await;
        assert_eq!(ended.code, Some(code), "{} {}", ended.out, ended.err);
        assert!(ended.out.contains(&format!("{id} is {state}")), "{}", ended.out);
        assert_eq!(ended.err.matches(SILENCE).count(), 1, "told once: {}", ended.err);
    }
}

#[tokio::test]
async fn follow_shows_rollback_output() {
    let fixture = Fixture::new().await;
    let parameters = json!({ "template": "half", "arguments": { "pipe": fixture.pipe() } });
    let task = json!({ "executor": "command", "parameters": parameters, "rollback_strategy": "manual" });
    let id = fixture.pat.submitted(task).await;
    let (request, _) = fixture.pending_approval().await;
    let _ = fixture.rex.answers(&request, "approve").await.expect(200);
    fixture.office.wait_for("the task fails", &id, |task| task["state"] == "FAILED").await;
    let said = fixture.shell().says(&["task", "logs", "-f", &id]).await;
    assert!(said.contains("no more") && !said.contains("going back"), "it has ended: {said}");
    let _ = fixture
        .ada
        .post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "put it back" }))
        .await
        .expect(202);
    let following = fixture.shell().begin(&["task", "logs", "-f", &id]);
    let is_rolling_back = |task: &Value| task["execution"]["phase"] == "ROLLING_BACK";
    fixture.office.wait_for("the rollback starts", &id, is_rolling_back).await;
    std::fs::write(fixture.pipe(), "all is well again\n").expect("the rollback reads from it");
    let ended = following.ends().await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for line in ["going back", "all is well again"] {
        assert!(ended.out.contains(line), "{line} is missing in {}", ended.out);
    }
}

#[tokio::test]
async fn failed_submit_names_remaining_draft() {
    let fixture = Fixture::new().await;
    fixture.office.policy(json!({ "name": "many", "min_approvers": 5 })).await;
    let file = fixture.task_file(&json!({}));
    for command in [["propose", "--wait"], ["create", "--submit"]] {
        let [verb, flag] = command;
        let said = fixture.shell().run(&["task", verb, flag, "-f", &file]).await;
        assert_ne!(said.code, Some(0), "{}", said.out);
        let drafts = fixture.pat.get("/tasks?state=DRAFT").await.expect(200);
        let id = text(&drafts["items"][0], "task_id");
        for words in [format!("ade task submit {id}"), format!("ade task rm {id}")] {
            assert!(said.err.contains(&words), "{words} is missing in {}", said.err);
        }
        let said = fixture.shell().says(&["task", "rm", &id]).await;
        assert!(said.contains("is deleted"), "{said}");
    }
}

#[tokio::test]
async fn wait_prints_once_what_approved_task_waits_for() {
    let fixture = Fixture::new().await;
    let lock = "resource:service:web";
    let held = json!({ "agent_id": "other", "locks": [{ "lock": lock }], "ttl_seconds": 300 });
    let held = fixture.office.admin.post("/locks/acquire", &held).await.expect(200);
    let mut waiting = Vec::new();
    let preview = json!({ "errors": ["the database is away"] });
    let locked = json!({ "resources": [{ "type": "service", "id": "web" }] });
    for task in [locked, json!({ "executor": "agent", "preview": preview })] {
        let file = fixture.task_file(&task);
        let command = fixture.shell().begin(&["task", "propose", "-f", &file, "--wait"]);
        let (request, id) = fixture.pending_approval().await;
        let _ = fixture.rex.answers(&request, "approve").await.expect(200);
        waiting.push((command, id));
    }
    let (mut for_agent, id) = waiting.pop().expect("the second");
    let (mut for_lock, _) = waiting.pop().expect("the first");
    let told = format!("APPROVED: waiting for the lock {lock}, held by other");
    for_lock.tells(&told).await;
    for_agent.tells("warning: the preview failed").await;
    for_agent.tells("warning: the database is away").await;
    for_agent.tells("APPROVED: waiting for an agent with the capability note").await;
    let page = fixture.shell().says(&["task", "show", &id]).await;
    assert!(page.contains("claimed by       no worker yet"), "{page}");
    let token = &held["grants"][0]["fencing_token"];
    let back = json!({ "agent_id": "other", "locks": [{ "lock": lock, "fencing_token": token }] });
    let _ = fixture.office.admin.post("/locks/release", &back).await.expect(200);
    let ended = for_lock.ends().await;
    assert_eq!((ended.code, ended.err.matches(&told).count()), (Some(0), 1), "{}", ended.err);
    let _ = fixture.pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect(200);
    assert_eq!(for_agent.ends().await.code, Some(1));
}
