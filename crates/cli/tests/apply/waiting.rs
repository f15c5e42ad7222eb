//! Waiting at the command line for what people decide in days: restarts of the server do not end it, its exit code says how the task
//! ended, and a draft that nobody could decide about is not lost.

use std::path::PathBuf;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::people::text;
use ade_testkit::{House, Office, Person, Shell};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const SILENCE: &str = "the server is unavailable, retrying";

struct Stage {
    around: tempfile::TempDir,
    house: House,
    office: Office,
    pat: Person,
    rex: Person,
    ada: Person,
}

impl Stage {
    async fn new() -> Self {
        let around = tempfile::tempdir().expect("a folder");
        mknodat(CWD, around.path().join("pipe"), FileType::Fifo, 0o600.into(), 0).expect("made");
        // Fails, and takes its time to be changed back: until somebody writes into the pipe.
        let config = "[executors.command.templates.half]\nargv = [\"sh\", \"-c\", \"echo no more; exit 7\"]\n\
                      rollback_argv = [\"sh\", \"-c\", 'echo going back; cat -- \"$1\"', \"sh\", \"{pipe}\"]\n";
        let house = House::working(ADE, config);
        let office = house.office().await;
        let (pat, rex) = (office.person("pat", &[AUTHOR]).await, office.person("rex", &[REVIEWER]).await);
        let ada = office.person("ada", &[ADMIN]).await;
        Self { around, house, office, pat, rex, ada }
    }

    fn pipe(&self) -> PathBuf {
        self.around.path().join("pipe")
    }

    fn shell(&self) -> Shell {
        Shell::of(ADE, self.house.ade(), &self.pat)
    }

    /// What is proposed, in a file.
    fn proposal(&self, task: &Value) -> String {
        let path = self.around.path().join("task.json");
        std::fs::write(&path, ade_testkit::people::task(task.clone()).to_string()).expect("written");
        path.display().to_string()
    }

    /// The request about the one task that waits.
    async fn asked(&self) -> (String, String) {
        let look = || async {
            let found = self.rex.get("/approvals?reviewer=me&status=PENDING").await.expect(200);
            let found = found["items"].as_array().and_then(|all| all.first().cloned());
            found.map(|one| (text(&one, "approval_id"), text(&one, "task_id"))).ok_or("nothing".to_owned())
        };
        let long = std::time::Duration::from_secs(60);
        ade_testkit::wait::until("rex is asked", long, look).await.expect("asked")
    }
}

#[tokio::test]
async fn who_waits_outlasts_restarts_and_is_told_how_it_ended() {
    let stage = Stage::new().await;
    let proposal = stage.proposal(&json!({}));
    for (how, code, state) in [("approve", 0, "COMPLETED"), ("reject", 3, "REJECTED")] {
        let mut waiting = stage.shell().begin(&["task", "propose", "-f", &proposal, "--wait"]);
        let (request, id) = stage.asked().await;
        waiting.tells("REVIEWING").await;
        stage.house.ade().kill().expect("killed");
        waiting.tells(SILENCE).await;
        stage.house.ade().start_again().expect("starts");
        waiting.tells("the server is available again").await;
        let _ = stage.rex.answers(&request, how).await.expect(200);
        let ended = waiting.ends().await;
        assert_eq!(ended.code, Some(code), "{} {}", ended.out, ended.err);
        assert!(ended.out.contains(&format!("{id} is {state}")), "{}", ended.out);
        assert_eq!(ended.err.matches(SILENCE).count(), 1, "told once: {}", ended.err);
    }
}

#[tokio::test]
async fn who_follows_sees_also_what_is_changed_back() {
    let stage = Stage::new().await;
    let parameters = json!({ "template": "half", "arguments": { "pipe": stage.pipe() } });
    let task = json!({ "executor": "command", "parameters": parameters, "rollback_strategy": "manual" });
    let id = stage.pat.submitted(task).await;
    let (request, _) = stage.asked().await;
    let _ = stage.rex.answers(&request, "approve").await.expect(200);
    stage.office.wait_for("it fails", &id, |task| task["state"] == "FAILED").await;
    let said = stage.shell().says(&["task", "logs", "-f", &id]).await;
    assert!(said.contains("no more") && !said.contains("going back"), "it has ended: {said}");
    let _ = stage
        .ada
        .post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "put it back" }))
        .await
        .expect(202);
    let following = stage.shell().begin(&["task", "logs", "-f", &id]);
    let undoing = |task: &Value| task["execution"]["phase"] == "ROLLING_BACK";
    stage.office.wait_for("it is changed back", &id, undoing).await;
    std::fs::write(stage.pipe(), "all is well again\n").expect("it reads");
    let ended = following.ends().await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for line in ["going back", "all is well again"] {
        assert!(ended.out.contains(line), "{line} is missing in {}", ended.out);
    }
}

#[tokio::test]
async fn a_draft_that_nobody_can_decide_about_is_named() {
    let stage = Stage::new().await;
    stage.office.policy(json!({ "name": "many", "min_approvers": 5 })).await;
    let proposal = stage.proposal(&json!({}));
    for command in [["propose", "--wait"], ["create", "--submit"]] {
        let [verb, flag] = command;
        let said = stage.shell().run(&["task", verb, flag, "-f", &proposal]).await;
        assert_ne!(said.code, Some(0), "{}", said.out);
        let drafts = stage.pat.get("/tasks?state=DRAFT").await.expect(200);
        let id = text(&drafts["items"][0], "task_id");
        for words in [format!("ade task submit {id}"), format!("ade task rm {id}")] {
            assert!(said.err.contains(&words), "{words} is missing in {}", said.err);
        }
        let said = stage.shell().says(&["task", "rm", &id]).await;
        assert!(said.contains("is deleted"), "{said}");
    }
}

#[tokio::test]
async fn who_waits_is_told_once_what_an_approved_task_waits_for() {
    let stage = Stage::new().await;
    let lock = "resource:service:web";
    let held = json!({ "agent_id": "other", "locks": [{ "lock": lock }], "ttl_seconds": 300 });
    let held = stage.office.admin.post("/locks/acquire", &held).await.expect(200);
    let mut waiting = Vec::new();
    let wrong = json!({ "errors": ["the database is away"] });
    let locked = json!({ "resources": [{ "type": "service", "id": "web" }] });
    for task in [locked, json!({ "executor": "agent", "preview": wrong })] {
        let proposal = stage.proposal(&task);
        let begun = stage.shell().begin(&["task", "propose", "-f", &proposal, "--wait"]);
        let (request, id) = stage.asked().await;
        let _ = stage.rex.answers(&request, "approve").await.expect(200);
        waiting.push((begun, id));
    }
    let (mut for_agent, id) = waiting.pop().expect("the second");
    let (mut for_lock, _) = waiting.pop().expect("the first");
    let told = format!("APPROVED: waiting for the lock {lock}, held by other");
    for_lock.tells(&told).await;
    for_agent.tells("warning: the preview failed").await;
    for_agent.tells("warning: the database is away").await;
    for_agent.tells("APPROVED: waiting for an agent with the capability note").await;
    let page = stage.shell().says(&["task", "show", &id]).await;
    assert!(page.contains("claimed by       no worker yet"), "{page}");
    let token = &held["grants"][0]["fencing_token"];
    let back = json!({ "agent_id": "other", "locks": [{ "lock": lock, "fencing_token": token }] });
    let _ = stage.office.admin.post("/locks/release", &back).await.expect(200);
    let ended = for_lock.ends().await;
    assert_eq!((ended.code, ended.err.matches(&told).count()), (Some(0), 1), "{}", ended.err);
    let _ = stage.pat.post(&format!("/tasks/{id}/cancel"), &json!({})).await.expect(200);
    assert_eq!(for_agent.ends().await.code, Some(1));
}
