//! Somebody who can write to the database, but does not have the secret, gets nothing applied: edited tasks and approval requests fail
//! with a code, inserted audit rows are quarantined, and a truncated log degrades the server. Everything else goes on.

use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser, WorkerProcess};
use serde_json::{Value, json};
use sqlx::Connection;
use tempfile::TempDir;

use crate::tasks::model::invariants::check_actor;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const CHECKPOINT_EVERY_SECOND: &str = "[audit]\ncheckpoint_seconds = 1\n";
const LOCK: &str = "resource:service:web";

struct Fixture {
    // Dropped first: stops before its database and Redis.
    _worker: Option<WorkerProcess>,
    house: Deployment,
    /// The root of tasks that change files.
    root: TempDir,
    office: AdminClient,
    ann: TestUser,
    rob: TestUser,
    sue: TestUser,
    eve: TestUser,
}

impl Fixture {
    /// `start` gets the configuration of the executors.
    async fn new(start: impl FnOnce(&str) -> Deployment) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let executors = format!("[executors.files.roots.site]\npath = {:?}\n", root.path());
        let house = start(&executors);
        let worker = house.postgres.is_some().then(|| house.start_worker(ADE, &executors));
        let office = house.admin().await;
        let two = json!({ "name": "two", "reviewers": ["rob", "sue"], "min_approvers": 2 });
        let mut site = two.clone();
        (site["name"], site["targets"]) = (json!("site"), json!(["files:site/*"]));
        for policy in [two, site] {
            office.create_policy(policy).await;
        }
        let ann = office.create_user("ann", &[AUTHOR]).await;
        let rob = office.create_user("rob", &[REVIEWER]).await;
        let sue = office.create_user("sue", &[REVIEWER]).await;
        let eve = office.create_user("eve", &[ADMIN]).await;
        Self { house, root, _worker: worker, office, ann, rob, sue, eve }
    }

    /// Executes SQL in the database as its owner, bypassing the servers and the triggers.
    async fn execute_sql(&self, sqlite: &str, postgres: &str) {
        if let Some(server) = &self.house.postgres {
            let _ = server
                .psql(
                    "ade",
                    &format!(
                        "ALTER TABLE audit DISABLE TRIGGER USER; ALTER TABLE audit_chain DISABLE TRIGGER USER; {postgres}"
                    ),
                )
                .expect("executed");
            return;
        }
        let drop = "DROP TRIGGER IF EXISTS audit_no_update; DROP TRIGGER IF EXISTS audit_no_delete;";
        let file = self.house.server().data().join("ade.sqlite3");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let options = options.busy_timeout(Duration::from_secs(5));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
        let sql = sqlx::AssertSqlSafe(format!("{drop} {sqlite}"));
        sqlx::raw_sql(sql).execute(&mut connection).await.expect("executed");
        connection.close().await.expect("closed");
    }

    /// Sets a value in the stored document of a table, by its path, and further columns.
    async fn edit(&self, table: &str, condition: &str, path: &[&str], value: &Value, columns: &str) {
        let sqlite = format!(
            "UPDATE {table} SET body = json_set(body, '$.{}', json('{value}')){columns} WHERE {condition}",
            path.join(".")
        );
        let postgres = format!(
            "UPDATE {table} SET body = jsonb_set(body::jsonb, '{{{}}}', '{value}'::jsonb)::text{columns} WHERE {condition}",
            path.join(",")
        );
        self.execute_sql(&sqlite, &postgres).await;
    }

    /// Marks a task as approved, and offers it to workers.
    async fn force_approved(&self, id: &str) {
        let zero = if self.house.postgres.is_some() { "'epoch'" } else { "0" };
        let columns = format!(
            ", state = 'APPROVED', work_kind = 'apply', work_queue = 'files:site', work_priority = 50, ready_at = {zero}"
        );
        self.edit("tasks", &format!("task_id = '{id}'"), &["state"], &json!("APPROVED"), &columns).await;
    }

    async fn submit(&self) -> String {
        self.ann.create_submitted(json!({ "ticket_ref": "OPS-7" })).await
    }

    async fn submit_change(&self) -> String {
        self.ann.create_submitted(change()).await
    }

    /// The file that tasks write.
    fn written(&self) -> Option<String> {
        std::fs::read_to_string(self.root.path().join("web.conf")).ok()
    }

    async fn approve(&self, id: &str, reviewer: &TestUser) {
        let request = self.office.approval_id(id, &reviewer.id).await;
        let _ = reviewer.decide(&request, "approve").await.expect_status(200);
    }

    async fn wait_for(&self, id: &str, state: &str) -> Value {
        let is_final = |task: &Value| ["COMPLETED", "FAILED"].contains(&text_field(task, "state").as_str());
        let task = self.office.wait_for_task("the end of a task", id, is_final).await;
        assert_eq!(text_field(&task, "state"), state, "{task}");
        self.eve.get(&format!("/tasks/{id}/execution")).await.expect_status(200)
    }

    async fn assert_refused(&self, id: &str, code: &str) {
        let execution = self.wait_for(id, "FAILED").await;
        assert_eq!(text_field(&execution, "code"), code, "{execution}");
        assert!(text_field(&execution, "error").contains("Find out who changed the database"), "{execution}");
    }

    async fn metric(&self, name: &str) -> u64 {
        let url = format!("{}/metrics", self.house.server().url());
        let text = reqwest_text(&url).await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
    }
}

/// A task that writes a file.
fn change() -> Value {
    json!({
        "ticket_ref": "OPS-7",
        "executor": "files",
        "parameters": { "root": "site", "files": [{ "path": "web.conf", "content": "listen 80\n" }] },
        "resources": [{ "type": "service", "id": "web" }],
    })
}

fn requirements(task: &Value) -> &[Value] {
    task["requirements"].as_array().expect("a list")
}

async fn reqwest_text(url: &str) -> String {
    reqwest::get(url).await.expect("answered").text().await.expect("text")
}

async fn check_edited_rows(fixture: &Fixture) {
    let genuine = fixture.submit_change().await;
    // Approved by nobody: a draft, and a task in review.
    let draft = fixture.ann.create_draft(change()).await;
    // The preview of a remote worker would otherwise reopen the task when it arrives.
    let has_preview = |task: &Value| task["preview"]["status"] == "ready";
    fixture.office.wait_for_task("the preview", &draft, has_preview).await;
    fixture.force_approved(&draft).await;
    fixture.assert_refused(&draft, "UNPROVEN_APPROVAL").await;
    let reviewing = fixture.submit_change().await;
    fixture.force_approved(&reviewing).await;
    fixture.assert_refused(&reviewing, "UNPROVEN_APPROVAL").await;

    // A vote that was never given, next to a genuine one.
    let forged_vote = fixture.submit_change().await;
    let request = fixture.office.approval_id(&forged_vote, "sue").await;
    let condition = format!("approval_id = '{request}'");
    for (path, value) in [("status", "APPROVED"), ("reviewed_by", "sue"), ("response_action", "approve")] {
        fixture.edit("approvals", &condition, &[path], &json!(value), ", status = 'APPROVED'").await;
    }
    fixture.approve(&forged_vote, &fixture.rob).await;
    fixture.assert_refused(&forged_vote, "UNPROVEN_APPROVAL").await;

    // Fewer approvals than were required when reviewers were asked.
    let weakened = fixture.submit_change().await;
    let condition = format!("task_id = '{weakened}'");
    let requirements = fixture.requirements(&weakened).await;
    fixture.edit("tasks", &condition, &["requirements"], &requirements, "").await;
    fixture.approve(&weakened, &fixture.rob).await;
    fixture.assert_refused(&weakened, "UNPROVEN_APPROVAL").await;

    // Another config, before the last vote: with the approved digest, and with a consistent one.
    for is_consistent in [false, true] {
        let id = fixture.submit_change().await;
        fixture.approve(&id, &fixture.rob).await;
        let condition = format!("task_id = '{id}'");
        fixture.edit("tasks", &condition, &["config", "priority"], &json!(99), "").await;
        if is_consistent {
            let mut other = change();
            other["priority"] = json!(99);
            let other = fixture.ann.create_draft(other).await;
            let digest = json!(text_field(&fixture.office.task_request(&other).await, "digest"));
            fixture.edit("tasks", &condition, &["digest"], &digest, "").await;
            fixture.edit("approvals", &condition, &["digest"], &digest, "").await;
        }
        if is_consistent {
            fixture.approve(&id, &fixture.sue).await;
            fixture.assert_refused(&id, "UNPROVEN_APPROVAL").await;
        } else {
            let request = fixture.office.approval_id(&id, "sue").await;
            let _ = fixture.sue.decide(&request, "approve").await.expect_problem(409, "EDITED_TASK");
        }
    }

    assert_eq!(fixture.written(), None);

    // Another task goes on.
    fixture.approve(&genuine, &fixture.rob).await;
    fixture.approve(&genuine, &fixture.sue).await;
    fixture.wait_for(&genuine, "COMPLETED").await;
    assert_eq!(fixture.written(), Some("listen 80\n".to_owned()));
    if fixture.house.postgres.is_none() {
        assert_eq!(fixture.metric("ade_unproven_approvals_total").await, 5);
    }
    let failed = fixture.office.audit_entries(&format!("task={reviewing}&action=task.fail")).await;
    assert_eq!(failed[0]["who"]["trigger"], "attempt 1", "{failed:?}");
}

impl Fixture {
    /// The requirements of a task as stored, with one approver less.
    async fn requirements(&self, id: &str) -> Value {
        let task = self.office.task_request(id).await;
        let names: Vec<String> = requirements(&task).iter().map(|one| text_field(one, "policy")).collect();
        let weakened = names.iter().map(|policy| {
            json!({
                "policy": policy, "min_approvers": 1, "required_roles": [], "reject_threshold": 1, "escalation_role": null,
                "reviewers": { "rob": [], "sue": [] }, "admitted": {}, "overridden": null,
            })
        });
        assert_eq!(names.len(), 2, "{task}");
        weakened.collect()
    }
}

/// The author changes an approved task, and the change is refused after its preview: the task is applied as approved.
async fn check_refused_change(fixture: &Fixture) {
    let api = &fixture.office.api;
    fixture
        .office
        .create_policy(json!({ "name": "strict", "task_types": ["strict"], "required_roles": ["dba"] }))
        .await;
    let lock = json!({ "agent_id": "other", "locks": [{ "lock": LOCK }], "ttl_seconds": 300 });
    let held = api.post("/locks/acquire", &lock).await.expect_status(200);
    let id = fixture.submit_change().await;
    fixture.approve(&id, &fixture.rob).await;
    fixture.approve(&id, &fixture.sue).await;
    let change = json!({ "type": "strict" });
    let _ = fixture.ann.patch(&format!("/tasks/{id}"), &change).await.expect_problem(422, "NO_QUORUM");
    let page = fixture.ann.get(&format!("/tasks/{id}/audit?limit=200")).await.expect_status(200);
    let last = page["items"].as_array().and_then(|entries| entries.last()).expect("entries");
    assert_eq!(last["action"], "task.preview", "{page}");
    let lock = json!({ "lock": LOCK, "fencing_token": held["grants"][0]["fencing_token"] });
    let release = json!({ "agent_id": "other", "locks": [lock] });
    let _ = api.post("/locks/release", &release).await.expect_status(200);
    fixture.wait_for(&id, "COMPLETED").await;
}

async fn check_inserted_rows(fixture: &Fixture) {
    let task = fixture.submit().await;
    let copy = "INSERT INTO audit (entry_id, at, actor, action, task_id, body, mac) \
                SELECT '01990000-0000-7000-8000-000000000001', at, actor, action, task_id, body, mac FROM audit \
                LIMIT 1;";
    fixture.execute_sql(copy, copy).await;
    let reported = || async {
        let entries = fixture.office.audit_entries("action=audit.quarantine").await;
        entries.into_iter().next().ok_or("not reported".to_owned())
    };
    let entry = until("the row is quarantined", TIMEOUT, reported).await.expect("in time");
    check_actor(&entry);
    assert_eq!(entry["object_id"], "01990000-0000-7000-8000-000000000001", "{entry}");
    // What is genuine is numbered as before.
    let _ = fixture.ann.post(&format!("/tasks/{task}/cancel"), &json!({})).await.expect_status(200);
    let numbered = || async {
        let entries = fixture.office.audit_entries(&format!("task={task}&action=task.cancel")).await;
        entries.into_iter().next().ok_or("not numbered".to_owned())
    };
    until("the cancellation is numbered", TIMEOUT, numbered).await.expect("in time");
    let verdict = fixture.eve.verify_audit().await;
    assert_eq!((&verdict["status"], &verdict["quarantined"]), (&json!("valid"), &json!(1)), "{verdict}");
    assert_eq!(fixture.metric("ade_audit_quarantined").await, 1);
    for entry in fixture.office.audit_entries("").await {
        check_actor(&entry);
    }
}

async fn check_truncated_log(fixture: &Fixture) {
    let ready = |status: &'static str| async move {
        let text = reqwest_text(&format!("{}/readyz", fixture.house.server().url())).await;
        if text.contains(status) { Ok(text) } else { Err(text) }
    };
    until("the server is ready", TIMEOUT, || ready("\"ready\"")).await.expect("in time");
    let on_sqlite = "DELETE FROM audit WHERE number > 2; DELETE FROM audit_checkpoints;";
    let on_postgres = "DELETE FROM audit WHERE entry_id NOT IN (SELECT entry_id FROM audit_chain WHERE number <= 2); \
                       DELETE FROM audit_chain WHERE number > 2; DELETE FROM audit_checkpoints;";
    fixture.execute_sql(on_sqlite, on_postgres).await;
    let said = until("the server is degraded", TIMEOUT, || ready("\"degraded\"")).await.expect("in time");
    assert!(said.contains("audit log"), "{said}");
    let verdict = fixture.eve.get("/audit/verify").await.expect_status(200);
    assert_eq!((&verdict["status"], &verdict["valid"]), (&json!("invalid"), &json!(false)), "{verdict}");
    assert_eq!(fixture.metric("ade_audit_mismatch").await, 1);
    let reported = || async {
        let entries = fixture.office.audit_entries("action=audit.mismatch").await;
        entries.into_iter().next().ok_or("not reported".to_owned())
    };
    check_actor(&until("the mismatch is on record", TIMEOUT, reported).await.expect("in time"));
}

async fn check_own_actions(fixture: &Fixture) {
    let task = fixture.submit().await;
    for number in 0..5 {
        let text = format!("comment {number}");
        let _ = fixture
            .ann
            .post(&format!("/tasks/{task}/comments"), &json!({ "text": text }))
            .await
            .expect_status(201);
        let page = fixture.ann.get(&format!("/tasks/{task}/audit?limit=200")).await.expect_status(200);
        let entries = page["items"].as_array().expect("items");
        let comments: Vec<&Value> =
            entries.iter().filter(|entry| entry["action"] == "task.comment").collect();
        assert_eq!(comments.len(), number + 1, "one's own action is there at once: {page}");
        let is_unnumbered = |entry: &&Value| entry["number"].is_null();
        assert!(
            entries.iter().skip_while(|entry| !is_unnumbered(entry)).all(|entry| is_unnumbered(&entry)),
            "{page}"
        );
        assert!(
            entries.iter().all(|entry| entry["number"].is_null() == entry["entry_hash"].is_null()),
            "{page}"
        );
        let ids: std::collections::BTreeSet<&str> =
            entries.iter().filter_map(|entry| entry["entry_id"].as_str()).collect();
        assert_eq!(ids.len(), entries.len(), "no entry twice: {page}");
    }
    // The ticket of the task is on record with every entry about it.
    let page = fixture.ann.get(&format!("/tasks/{task}/audit?limit=200")).await.expect_status(200);
    assert!(
        page["items"].as_array().expect("items").iter().all(|entry| entry["ticket"] == "OPS-7"),
        "{page}"
    );
}

/// An agent's claim and report, and a broken lock.
async fn check_who(fixture: &Fixture) {
    let bot = fixture.office.create_agent("bot", &fixture.ann).await;
    let task =
        fixture.ann.create_submitted(json!({ "executor": "agent", "parameters": { "agent": "bot" } })).await;
    fixture.approve(&task, &fixture.rob).await;
    fixture.approve(&task, &fixture.sue).await;
    let _ = bot.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect_status(200);
    let report = json!({ "attempt": 1, "result": "success" });
    let _ = bot.post(&format!("/tasks/{task}/complete"), &report).await.expect_status(200);
    let page = fixture.eve.get(&format!("/tasks/{task}/audit?limit=200")).await.expect_status(200);
    for action in ["task.begin_apply", "task.started", "task.complete"] {
        let entry = page["items"].as_array().into_iter().flatten().find(|entry| entry["action"] == action);
        let who = &entry.expect(action)["who"];
        assert_eq!((&who["agent_id"], &who["user_id"]), (&json!("bot"), &json!("ann")), "{action}: {who}");
        assert!(who["token_id"].is_string() && who["trigger"].is_null(), "{action}: {who}");
    }
    let approved =
        page["items"].as_array().into_iter().flatten().find(|entry| entry["action"] == "task.approve");
    let trigger = text_field(&approved.expect("approved")["who"], "trigger");
    assert!(trigger.starts_with("decision "), "the last vote is the trigger: {trigger}");
    let lock = json!({ "locks": [{ "lock": "resource:db:x" }], "agent_id": "bot", "holder_id": "h1", "purpose": "paint" });
    let _ = bot.post("/locks/acquire", &lock).await.expect_status(200);
    let broken = fixture.eve.delete("/locks/resource%3Adb%3Ax?reason=stuck").await.expect_status(200);
    let listed = || async {
        let entries = fixture.office.audit_entries("action=lock.break").await;
        entries.into_iter().next().ok_or("not numbered".to_owned())
    };
    let entry = until("the break is numbered", TIMEOUT, listed).await.expect("in time");
    let lost_by = &entry["details"]["lost_by"][0];
    assert_eq!(
        (&lost_by["agent_id"], &lost_by["holder_id"], &lost_by["purpose"]),
        (&json!("bot"), &json!("h1"), &json!("paint")),
        "{entry}, {broken}"
    );
}

async fn check_everything(start: impl FnOnce(&str) -> Deployment) {
    let fixture = Fixture::new(start).await;
    check_own_actions(&fixture).await;
    check_who(&fixture).await;
    check_edited_rows(&fixture).await;
    check_refused_change(&fixture).await;
    check_inserted_rows(&fixture).await;
    check_truncated_log(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_unproven_is_applied_embedded() {
    check_everything(|executors| {
        Deployment::with_worker(ADE, &format!("{CHECKPOINT_EVERY_SECOND}{executors}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_unproven_is_applied_distributed() {
    check_everything(|_| Deployment::distributed_with_config(ADE, 1, CHECKPOINT_EVERY_SECOND)).await;
}
