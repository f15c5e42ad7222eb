//! `--wait` and `logs -f` on the command line: they survive server restarts, the exit code gives the outcome of the task,
//! and a draft that cannot be submitted is not lost.

use std::path::PathBuf;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Cli, Deployment, TestUser};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const SILENCE: &str = "the server is unavailable, retrying";

struct Fixture {
    folder: tempfile::TempDir,
    house: Deployment,
    office: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, 0o600.into(), 0).expect("created");
        // The command fails, and its rollback blocks until the pipe is written to.
        let config = "[executors.command.templates.half]\nargv = [\"sh\", \"-c\", \"echo no more; exit 7\"]\n\
                      rollback_argv = [\"sh\", \"-c\", 'echo going back; cat -- \"$1\"', \"sh\", \"{pipe}\"]\n";
        let house = Deployment::with_worker(ADE, config);
        let office = house.admin().await;
        let (pat, rex) =
            (office.create_user("pat", &[AUTHOR]).await, office.create_user("rex", &[REVIEWER]).await);
        let ada = office.create_user("ada", &[ADMIN]).await;
        Self { folder, house, office, pat, rex, ada }
    }

    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    fn shell(&self) -> Cli {
        Cli::new(ADE, self.house.server(), &self.pat)
    }

    /// Writes the task into a file.
    fn task_file(&self, task: &Value) -> String {
        let path = self.folder.path().join("task.json");
        std::fs::write(&path, ade_testkit::deployment::task(task.clone()).to_string()).expect("written");
        path.display().to_string()
    }

    /// Waits for a pending approval request and returns its id and the id of its task.
    async fn pending_approval(&self) -> (String, String) {
        let observe = || async {
            let found = self.rex.get("/approvals?reviewer=me&status=PENDING").await.expect_status(200);
            let found = found["items"].as_array().and_then(|all| all.first().cloned());
            found
                .map(|request| (text_field(&request, "approval_id"), text_field(&request, "task_id")))
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
        let mut waiting = fixture.shell().spawn(&["task", "propose", "-f", &file, "--wait"]);
        let (request, id) = fixture.pending_approval().await;
        waiting.wait_for_stderr("REVIEWING").await;
        fixture.house.server().kill().expect("killed");
        waiting.wait_for_stderr(SILENCE).await;
        fixture.house.server().start_again().expect("starts");
        waiting.wait_for_stderr("the server is available again").await;
        let _ = fixture.rex.decide(&request, decision).await.expect_status(200);
        let ended = waiting.wait().await;
        assert_eq!(ended.exit_code, Some(code), "{} {}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains(&format!("{id} is {state}")), "{}", ended.stdout);
        assert_eq!(ended.stderr.matches(SILENCE).count(), 1, "told once: {}", ended.stderr);
    }
}

#[tokio::test]
async fn follow_shows_rollback_output() {
    let fixture = Fixture::new().await;
    let parameters = json!({ "template": "half", "arguments": { "pipe": fixture.pipe() } });
    let task = json!({ "executor": "command", "parameters": parameters, "rollback_strategy": "manual" });
    let id = fixture.pat.create_submitted(task).await;
    let (request, _) = fixture.pending_approval().await;
    let _ = fixture.rex.decide(&request, "approve").await.expect_status(200);
    fixture.office.wait_for_task("the task fails", &id, |task| task["state"] == "FAILED").await;
    let said = fixture.shell().run_ok(&["task", "logs", "-f", &id]).await;
    assert!(said.contains("no more") && !said.contains("going back"), "it has ended: {said}");
    let _ = fixture
        .ada
        .post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "put it back" }))
        .await
        .expect_status(202);
    let following = fixture.shell().spawn(&["task", "logs", "-f", &id]);
    let is_rolling_back = |task: &Value| task["execution"]["phase"] == "ROLLING_BACK";
    fixture.office.wait_for_task("the rollback starts", &id, is_rolling_back).await;
    std::fs::write(fixture.pipe(), "all is well again\n").expect("the rollback reads from it");
    let ended = following.wait().await;
    assert_eq!(ended.exit_code, Some(0), "{}", ended.stderr);
    for line in ["going back", "all is well again"] {
        assert!(ended.stdout.contains(line), "{line} is missing in {}", ended.stdout);
    }
}

#[tokio::test]
async fn failed_submit_names_remaining_draft() {
    let fixture = Fixture::new().await;
    fixture.office.create_policy(json!({ "name": "many", "min_approvers": 5 })).await;
    let file = fixture.task_file(&json!({}));
    for command in [["propose", "--wait"], ["create", "--submit"]] {
        let [verb, flag] = command;
        let said = fixture.shell().run(&["task", verb, flag, "-f", &file]).await;
        assert_ne!(said.exit_code, Some(0), "{}", said.stdout);
        let drafts = fixture.pat.get("/tasks?state=DRAFT").await.expect_status(200);
        let id = text_field(&drafts["items"][0], "task_id");
        for words in [format!("ade task submit {id}"), format!("ade task rm {id}")] {
            assert!(said.stderr.contains(&words), "{words} is missing in {}", said.stderr);
        }
        let said = fixture.shell().run_ok(&["task", "rm", &id]).await;
        assert!(said.contains("is deleted"), "{said}");
    }
}

#[tokio::test]
async fn wait_prints_once_what_approved_task_waits_for() {
    let fixture = Fixture::new().await;
    let lock = "resource:service:web";
    let held = json!({ "agent_id": "other", "locks": [{ "lock": lock }], "ttl_seconds": 300 });
    let held = fixture.office.api.post("/locks/acquire", &held).await.expect_status(200);
    let mut waiting = Vec::new();
    let preview = json!({ "errors": ["the database is down"] });
    let locked = json!({ "resources": [{ "type": "service", "id": "web" }] });
    for task in [locked, json!({ "executor": "agent", "preview": preview })] {
        let file = fixture.task_file(&task);
        let command = fixture.shell().spawn(&["task", "propose", "-f", &file, "--wait"]);
        let (request, id) = fixture.pending_approval().await;
        let _ = fixture.rex.decide(&request, "approve").await.expect_status(200);
        waiting.push((command, id));
    }
    let (mut for_agent, id) = waiting.pop().expect("the second");
    let (mut for_lock, _) = waiting.pop().expect("the first");
    let told = format!("APPROVED: waiting for the lock {lock}, held by other");
    for_lock.wait_for_stderr(&told).await;
    for_agent.wait_for_stderr("warning: the preview failed").await;
    for_agent.wait_for_stderr("warning: the database is down").await;
    for_agent.wait_for_stderr("APPROVED: waiting for an agent with the capability note").await;
    let page = fixture.shell().run_ok(&["task", "show", &id]).await;
    assert!(page.contains("claimed by       no worker yet"), "{page}");
    let token = &held["grants"][0]["fencing_token"];
    let back = json!({ "agent_id": "other", "locks": [{ "lock": lock, "fencing_token": token }] });
    let _ = fixture.office.api.post("/locks/release", &back).await.expect_status(200);
    let ended = for_lock.wait().await;
    assert_eq!((ended.exit_code, ended.stderr.matches(&told).count()), (Some(0), 1), "{}", ended.stderr);
    let _ = fixture.pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect_status(200);
    assert_eq!(for_agent.wait().await.exit_code, Some(1));
}
