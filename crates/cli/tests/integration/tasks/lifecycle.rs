//! The task lifecycle over HTTP: every transition of the table, and a refusal with the state and the allowed
//! commands for everything else. An agent applies the tasks.

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{TRANSITIONS, TaskCommand, TaskState, next_state};
use ade_testkit::api::ApiResponse;
use ade_testkit::deployment::text_field;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};
use uuid::Uuid;

/// States in which a task can be observed; the others are passed within one transaction.
const OBSERVABLE: [TaskState; 8] = [
    TaskState::Draft,
    TaskState::Reviewing,
    TaskState::Approved,
    TaskState::Applying,
    TaskState::Completed,
    TaskState::Failed,
    TaskState::Rejected,
    TaskState::Cancelled,
];

/// Commands that a user sends.
const USER_COMMANDS: [TaskCommand; 14] = [
    TaskCommand::Modify,
    TaskCommand::Delete,
    TaskCommand::Submit,
    TaskCommand::Approve,
    TaskCommand::Reject,
    TaskCommand::Revoke,
    TaskCommand::Override,
    TaskCommand::ConfirmOverride,
    TaskCommand::ForceApply,
    TaskCommand::Cancel,
    TaskCommand::Archive,
    TaskCommand::Resubmit,
    TaskCommand::Comment,
    TaskCommand::Stop,
];

/// Transitions that follow from a submission, an executor or a timeout.
const AUTOMATIC: [TaskCommand; 3] = [TaskCommand::Assign, TaskCommand::GoStale, TaskCommand::Expire];

/// Commands of the agent that applies a task. They have their own refusals.
const AGENT_COMMANDS: [TaskCommand; 3] = [TaskCommand::BeginApply, TaskCommand::Complete, TaskCommand::Fail];

/// Commands that need a worker with the files executor; the apply tests cover them.
const WORKER_COMMANDS: [TaskCommand; 2] = [TaskCommand::Retry, TaskCommand::RollBack];

/// The agent that applies tasks here.
const BOT: &str = "bot";

struct Fixture {
    org: AdminClient,
    pat: TestUser,
    rex: TestUser,
    ada: TestUser,
    abe: TestUser,
    bot: TestUser,
}

impl Fixture {
    async fn new(deployment: &Deployment) -> Self {
        let org = deployment.admin().await;
        // Tasks that touch nothing but documents are approved automatically.
        let conditions = json!({ "risk_below": 101 });
        org.create_policy(
            json!({ "name": "auto", "resource_patterns": ["docs:*"], "auto_approve_if": conditions }),
        )
        .await;
        let pat = org.create_user("pat", &[AUTHOR]).await;
        let bot = org.create_agent(BOT, &pat).await;
        // Many tasks stay in APPLYING.
        let _ =
            org.api.patch(&format!("/agents/{BOT}"), &json!({ "max_tasks": 1000 })).await.expect_status(200);
        Self {
            bot,
            pat,
            rex: org.create_user("rex", &[REVIEWER]).await,
            ada: org.create_user("ada", &[ADMIN]).await,
            abe: org.create_user("abe", &[ADMIN]).await,
            org,
        }
    }

    async fn task_in(&self, state: TaskState) -> String {
        // A unique type, so that the agent can claim exactly this task.
        let fields = json!({ "type": Uuid::new_v4().to_string(), "executor": "agent", "parameters": { "agent": BOT } });
        if state == TaskState::Draft {
            return self.pat.create_draft(fields).await;
        }
        let id = self.pat.create_submitted(fields).await;
        match state {
            TaskState::Reviewing => {}
            TaskState::Approved => drop(self.send(TaskCommand::Approve, &id).await.expect_status(200)),
            TaskState::Rejected => drop(self.send(TaskCommand::Reject, &id).await.expect_status(200)),
            TaskState::Cancelled => drop(self.send(TaskCommand::Cancel, &id).await.expect_status(200)),
            TaskState::Applying => {
                let _ = self.send(TaskCommand::Approve, &id).await.expect_status(200);
                let _ = self.send(TaskCommand::BeginApply, &id).await.expect_status(200);
            }
            TaskState::Completed | TaskState::Failed => {
                let _ = self.send(TaskCommand::Approve, &id).await.expect_status(200);
                let _ = self.send(TaskCommand::BeginApply, &id).await.expect_status(200);
                let command =
                    if state == TaskState::Failed { TaskCommand::Fail } else { TaskCommand::Complete };
                let _ = self.send(command, &id).await.expect_status(200);
            }
            other => panic!("{other} is not observable"),
        }
        assert_eq!(self.state(&id).await, state.as_str());
        id
    }

    async fn state(&self, id: &str) -> String {
        text_field(&self.org.task_request(id).await, "state")
    }

    /// A user who may send the command.
    async fn permitted_user(&self, command: TaskCommand, id: &str) -> &TestUser {
        match command {
            TaskCommand::Approve | TaskCommand::Reject => &self.rex,
            TaskCommand::Revoke => self.rex_or_ada(id).await,
            TaskCommand::Override | TaskCommand::ForceApply | TaskCommand::Stop | TaskCommand::RollBack => {
                &self.ada
            }
            TaskCommand::ConfirmOverride => &self.abe,
            TaskCommand::BeginApply | TaskCommand::Complete | TaskCommand::Fail => &self.bot,
            _ => &self.pat,
        }
    }

    /// Sends the command as a user who may send it.
    async fn send(&self, command: TaskCommand, id: &str) -> ApiResponse {
        let reason = json!({ "reason": "because" });
        let path = |action: &str| format!("/tasks/{id}/{action}");
        let caller = self.permitted_user(command, id).await;
        match command {
            TaskCommand::Modify => {
                caller.patch(&format!("/tasks/{id}"), &json!({ "description": "other" })).await
            }
            TaskCommand::Delete => caller.delete(&format!("/tasks/{id}")).await,
            TaskCommand::Submit => caller.post(&path("submit"), &json!({})).await,
            TaskCommand::Approve => caller.decide(&self.org.approval_id(id, "rex").await, "approve").await,
            TaskCommand::Reject => caller.decide(&self.org.approval_id(id, "rex").await, "reject").await,
            TaskCommand::Revoke => caller.post(&path("revoke"), &reason).await,
            TaskCommand::Override => {
                let body = json!({ "reason": "because", "incident_ticket": "INC-1" });
                caller.post(&path("override"), &body).await
            }
            TaskCommand::ConfirmOverride => caller.confirm_override(id).await,
            TaskCommand::ForceApply => caller.post(&path("force-apply"), &reason).await,
            TaskCommand::Cancel => caller.post(&path("cancel"), &reason).await,
            TaskCommand::Archive => caller.request("POST", &path("archive"), "").await,
            TaskCommand::Resubmit => caller.post(&path("resubmit"), &json!({})).await,
            TaskCommand::Comment => caller.post(&path("comments"), &json!({ "text": "look" })).await,
            TaskCommand::Stop => caller.post(&path("stop"), &reason).await,
            TaskCommand::RollBack => caller.post(&path("rollback"), &reason).await,
            TaskCommand::BeginApply => {
                let task_type = text_field(&self.org.task_request(id).await["config"], "type");
                caller.post("/tasks/claim", &json!({ "types": [task_type] })).await
            }
            TaskCommand::Complete | TaskCommand::Fail => {
                let result = if command == TaskCommand::Fail { "failure" } else { "success" };
                let body = json!({ "attempt": 1, "result": result, "output": "done", "error": "failed" });
                caller.post(&path("complete"), &body).await
            }
            other => panic!("{other} is not sent by a user"),
        }
    }

    /// The reviewer who approved can revoke, else an administrator.
    async fn rex_or_ada(&self, id: &str) -> &TestUser {
        let approved =
            self.org.approvals(id).await.iter().any(|item| text_field(item, "status") == "APPROVED");
        if approved { &self.rex } else { &self.ada }
    }
}

#[tokio::test]
async fn every_command_works_in_exactly_its_states() {
    let deployment = &Deployment::embedded(env!("CARGO_BIN_EXE_ade"));
    let fixture = Fixture::new(deployment).await;
    for state in OBSERVABLE {
        for command in USER_COMMANDS {
            let is_late_decision = matches!(command, TaskCommand::Approve | TaskCommand::Reject)
                && state != TaskState::Reviewing;
            if is_late_decision && state == TaskState::Draft {
                // A draft has no approval request.
                continue;
            }
            let id = fixture.task_in(state).await;
            if (state, command) == (TaskState::Reviewing, TaskCommand::ConfirmOverride) {
                let _ = fixture.send(command, &id).await.expect_problem(409, "NO_OVERRIDE");
                let _ = fixture.send(TaskCommand::Override, &id).await.expect_status(200);
            }
            let before = fixture.org.task_request(&id).await;
            let seen = fixture
                .permitted_user(command, &id)
                .await
                .get(&format!("/tasks/{id}"))
                .await
                .expect_status(200);
            let is_listed = seen["allowed"]
                .as_array()
                .is_some_and(|all| all.iter().any(|item| *item == command.to_string()));
            assert_eq!(is_listed, next_state(state, command).is_ok(), "{command} in {state}: {seen}");
            let response = fixture.send(command, &id).await;
            match next_state(state, command) {
                Ok(_) if matches!(command, TaskCommand::Delete | TaskCommand::Archive) => {
                    assert_eq!(response.status, 204);
                    let _ = fixture
                        .org
                        .api
                        .get(&format!("/tasks/{id}"))
                        .await
                        .expect_problem(404, "TASK_NOT_FOUND");
                }
                Ok(to) => {
                    assert!(response.status < 300, "{command} in {state}: {}", response.text());
                    // A submission passes through SUBMITTED.
                    let to = if command == TaskCommand::Submit { TaskState::Reviewing } else { to };
                    let now = fixture.org.task_request(&id).await;
                    assert_eq!(now["state"], to.as_str(), "{command} in {state}");
                    assert!(now["metadata"]["since"].get(to.as_str()).is_some(), "{now}");
                }
                Err(_) if is_late_decision => {
                    let refused = response.expect_problem(409, "ALREADY_DECIDED");
                    assert_eq!(refused["state"], state.as_str());
                    assert_eq!(fixture.org.task_request(&id).await, before);
                }
                Err(_) => {
                    let refused = response.expect_problem(409, "INVALID_TRANSITION");
                    assert_eq!(refused["state"], state.as_str(), "{command} in {state}");
                    // Not all that the state allows, but what this caller may do.
                    assert_eq!(refused["allowed"], seen["allowed"], "{command} in {state}");
                    assert_eq!(fixture.org.task_request(&id).await, before);
                }
            }
        }
    }
    agent_commands_need_present_attempt(&fixture).await;
    submission_leads_to_review_or_approval(&fixture).await;
    audits_each_transition(&fixture).await;
    requested_changes_block_approval(&fixture).await;
    approval_expires(&fixture).await;
}

/// An agent can report only on a task that it is applying, and only as the present attempt.
async fn agent_commands_need_present_attempt(fixture: &Fixture) {
    for state in OBSERVABLE.into_iter().filter(|state| *state != TaskState::Applying) {
        let id = fixture.task_in(state).await;
        let before = fixture.org.task_request(&id).await;
        if state != TaskState::Approved {
            let nothing = fixture.send(TaskCommand::BeginApply, &id).await;
            assert_eq!(nothing.status, 204, "no task to claim in {state}: {}", nothing.text());
        }
        // Repeating the report that ended the attempt gives the same response; other reports are refused.
        let ends = [(TaskCommand::Complete, TaskState::Completed), (TaskCommand::Fail, TaskState::Failed)];
        for (command, same) in ends {
            let response = fixture.send(command, &id).await;
            if same == state {
                assert_eq!(
                    response.expect_status(200),
                    fixture.bot.get(&format!("/tasks/{id}")).await.expect_status(200)
                );
            } else {
                let _ = response.expect_problem(409, "NOT_PRESENT");
            }
        }
        let body = json!({ "attempt": 1, "text": "still there" });
        let _ = fixture
            .bot
            .post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 }))
            .await
            .expect_problem(409, "NOT_PRESENT");
        let _ =
            fixture.bot.post(&format!("/tasks/{id}/logs"), &body).await.expect_problem(409, "NOT_PRESENT");
        let rolled = fixture.send(TaskCommand::RollBack, &id).await;
        let code = if state == TaskState::Failed { "NOTHING_TO_ROLL_BACK" } else { "INVALID_TRANSITION" };
        let _ = rolled.expect_problem(409, code);
        assert_eq!(fixture.org.task_request(&id).await, before, "a refusal changes nothing");
    }
    agent_applies_task(fixture).await;
    stop_request_reaches_agent(fixture).await;
}

async fn agent_applies_task(fixture: &Fixture) {
    let id = fixture.task_in(TaskState::Approved).await;
    let claim = fixture.send(TaskCommand::BeginApply, &id).await.expect_status(200);
    assert_eq!((&claim["attempt"], &claim["task"]["task_id"]), (&json!(1), &json!(id)));
    let grants = claim["grants"].as_array().expect("a list");
    assert!(grants.iter().any(|item| item["lock"] == format!("task:{id}") && item["fencing_token"].is_u64()));
    let (attempt, path) = (json!({ "attempt": 1 }), |action: &str| format!("/tasks/{id}/{action}"));
    let heartbeat = fixture.bot.post(&path("heartbeat"), &attempt).await.expect_status(200);
    assert_eq!(heartbeat["stop"], false);
    for line in ["one", "two"] {
        let logged = fixture.bot.post(&path("logs"), &json!({ "attempt": 1, "text": line })).await;
        assert_eq!(logged.status, 204, "{}", logged.text());
    }
    let lines = fixture.pat.get(&path("logs?after=1")).await.expect_status(200);
    assert_eq!((&lines["items"][0]["text"], &lines["items"][1]), (&json!("two"), &Value::Null));
    // Other attempts and other users are refused.
    let _ = fixture
        .pat
        .post(&path("heartbeat"), &json!({ "attempt": 2 }))
        .await
        .expect_problem(409, "NOT_PRESENT");
    let _ = fixture
        .rex
        .post(&path("complete"), &json!({ "attempt": 1, "result": "success" }))
        .await
        .expect_problem(403, "FORBIDDEN");
    let done = fixture.send(TaskCommand::Complete, &id).await.expect_status(200);
    assert_eq!((&done["state"], &done["execution"]["result"]), (&json!("COMPLETED"), &json!("success")));
    assert_eq!(fixture.pat.get(&path("execution")).await.expect_status(200), done["execution"]);
    let lock = fixture.org.api.get(&format!("/locks/task:{id}")).await.expect_status(200);
    assert_eq!(lock["holders"], json!([]), "the locks are released");
}

async fn stop_request_reaches_agent(fixture: &Fixture) {
    let id = fixture.task_in(TaskState::Applying).await;
    let refused = fixture.pat.post(&format!("/tasks/{id}/stop"), &json!({ "reason": "mine" })).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let _ = fixture
        .ada
        .post(&format!("/tasks/{id}/stop"), &json!({}))
        .await
        .expect_problem(422, "REASON_REQUIRED");
    let stopping = fixture.send(TaskCommand::Stop, &id).await.expect_status(202);
    assert_eq!(stopping["execution"]["stop"]["by"], "ada");
    let heartbeat = fixture
        .bot
        .post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 }))
        .await
        .expect_status(200);
    assert_eq!(heartbeat["stop"], true);
    let body = json!({ "attempt": 1, "result": "cancelled" });
    let ended = fixture.bot.post(&format!("/tasks/{id}/complete"), &body).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["execution"]["result"]), (&json!("FAILED"), &json!("cancelled")));
}

/// Both transitions out of SUBMITTED.
async fn submission_leads_to_review_or_approval(fixture: &Fixture) {
    for (kind, to) in [("note", TaskState::Reviewing), ("docs", TaskState::Approved)] {
        let resources = json!([{ "type": kind, "id": "wiki" }]);
        let id = fixture.pat.create_submitted(json!({ "resources": resources })).await;
        let task = fixture.org.task_request(&id).await;
        assert_eq!(task["state"], to.as_str());
        assert!(task["metadata"]["since"].get("SUBMITTED").is_some());
        assert_eq!(task["auto_approved"].is_string(), to == TaskState::Approved);
    }
}

/// The audit log has one entry for each transition, with `from` and `to`.
async fn audits_each_transition(fixture: &Fixture) {
    let id = fixture.task_in(TaskState::Approved).await;
    let _ = fixture.send(TaskCommand::Modify, &id).await.expect_status(200);
    let statuses = |all: Vec<Value>| all.iter().map(|item| text_field(item, "status")).collect::<Vec<_>>();
    assert_eq!(statuses(fixture.org.approvals(&id).await), ["INVALIDATED", "PENDING"]);
    let _ = fixture.send(TaskCommand::Override, &id).await.expect_status(200);
    let confirmed = fixture.send(TaskCommand::ConfirmOverride, &id).await.expect_status(200);
    assert_eq!(confirmed["requirements"][0]["status"], "OVERRIDDEN");
    assert_eq!(statuses(fixture.org.approvals(&id).await), ["INVALIDATED", "CLOSED"]);
    let _ = fixture.send(TaskCommand::ForceApply, &id).await.expect_status(200);
    let revoked = fixture
        .ada
        .post(&format!("/tasks/{id}/revoke"), &json!({ "reason": "because" }))
        .await
        .expect_status(200);
    assert_eq!((&revoked["state"], &revoked["forced"]), (&json!("REJECTED"), &json!(false)));
    let copy = fixture.send(TaskCommand::Resubmit, &id).await.expect_status(201);
    assert_eq!((&copy["state"], &copy["predecessor"]), (&json!("DRAFT"), &json!(id)));
    let expected = [
        "task.create  DRAFT",
        "task.submit DRAFT SUBMITTED",
        "task.assign SUBMITTED REVIEWING",
        "approval.request REVIEWING REVIEWING",
        "approval.approve REVIEWING REVIEWING",
        "task.approve REVIEWING APPROVED",
        "task.modify APPROVED REVIEWING",
        "approval.request REVIEWING REVIEWING",
        "task.override REVIEWING REVIEWING",
        "task.confirm_override REVIEWING APPROVED",
        "approval.resolve APPROVED APPROVED",
        "task.force_apply APPROVED APPROVED",
        "task.revoke APPROVED REJECTED",
        "task.resubmit REJECTED REJECTED",
    ];
    // Entries are numbered asynchronously.
    let check = || async {
        let all = fixture.org.audit_entries(&format!("task={id}")).await;
        let found: Vec<String> = all
            .iter()
            .map(|item| ["action", "from", "to"].map(|field| text_field(item, field)).join(" "))
            .collect();
        if found.len() >= expected.len() { Ok(found) } else { Err(found.join(", ")) }
    };
    let long = std::time::Duration::from_secs(60);
    let found =
        ade_testkit::wait::until("all audit entries to be numbered", long, check).await.expect("in time");
    assert_eq!(found, expected);
    let verdict = fixture.org.api.verify_audit().await;
    assert_eq!(verdict["valid"], true);
}

/// A request for changes blocks the approval until the author changes the task.
async fn requested_changes_block_approval(fixture: &Fixture) {
    let policy = fixture
        .org
        .create_policy(json!({ "name": "two", "task_types": ["two"], "reviewers": ["rex", "ada"] }))
        .await;
    let id = fixture.pat.create_submitted(json!({ "type": "two" })).await;
    let (rex, ada) = (fixture.org.approval_id(&id, "rex").await, fixture.org.approval_id(&id, "ada").await);
    let requested = fixture.rex.decide(&rex, "request-changes").await.expect_status(200);
    assert_eq!(
        (&requested["status"], &requested["task_state"]),
        (&json!("CHANGES_REQUESTED"), &json!("REVIEWING"))
    );
    let _ = fixture.ada.decide(&ada, "approve").await.expect_status(200);
    assert_eq!(fixture.state(&id).await, "REVIEWING", "changes are requested");
    for decision in ["reject", "request-changes"] {
        let refused =
            fixture.rex.post(&format!("/approvals/{rex}/{decision}"), &json!({ "reason": " " })).await;
        let _ = refused.expect_problem(422, "REASON_REQUIRED");
    }
    let _ = fixture.send(TaskCommand::Modify, &id).await.expect_status(200);
    let _ = fixture.ada.decide(&ada, "approve").await.expect_problem(409, "APPROVAL_CLOSED");
    let again = fixture.org.approval_id(&id, "ada").await;
    let _ = fixture.ada.decide(&again, "approve").await.expect_status(200);
    assert_eq!(fixture.state(&id).await, "APPROVED");
    assert_eq!(
        fixture.org.api.delete(&format!("/policies/{}", text_field(&policy, "policy_id"))).await.status,
        204
    );
}

/// An unused approval expires and reviewers are asked again.
async fn approval_expires(fixture: &Fixture) {
    fixture.org.set_config("approval:validity", json!(1)).await;
    let id = fixture.task_in(TaskState::Approved).await;
    let ended =
        fixture.org.wait_for_task("the approval to expire", &id, |task| task["state"] == "REVIEWING").await;
    assert_eq!(ended["requirements"][0]["needed"], 1);
    let requests = fixture.org.approvals(&id).await;
    let statuses: Vec<String> = requests.iter().map(|item| text_field(item, "status")).collect();
    assert_eq!(statuses, ["INVALIDATED", "PENDING"]);
    let old = text_field(requests.first().expect("the expired request"), "approval_id");
    let _ = fixture.rex.decide(&old, "approve").await.expect_problem(409, "APPROVAL_CLOSED");
    fixture.org.set_config("approval:validity", json!(3_600)).await;
    let _ = fixture.send(TaskCommand::Approve, &id).await.expect_status(200);
    assert_eq!(fixture.state(&id).await, "APPROVED");
}

#[test]
fn every_transition_of_table_has_a_test() {
    for (from, command, to) in TRANSITIONS {
        let is_user_command = OBSERVABLE.contains(from) && USER_COMMANDS.contains(command);
        let is_automatic = *from == TaskState::Submitted || AUTOMATIC.contains(command);
        let is_applying = AGENT_COMMANDS.contains(command) || WORKER_COMMANDS.contains(command);
        assert!(is_user_command || is_automatic || is_applying, "{from} {command} {to}");
    }
}
