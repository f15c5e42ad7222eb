//! Tasks applied by external agents: timeouts, which reports count, redaction of secrets, and capacity limits that do not
//! block other agents.

use std::path::Path;
use std::time::Duration;

use ade_domain::people::ADMIN;
use ade_testkit::deployment::text_field;
use ade_testkit::folder_snapshot::snapshot;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Deployment, TestUser};
use serde_json::{Value, json};
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const LEASE: Duration = Duration::from_secs(2);
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time from the expiry of lease and locks to the end of recovery.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
const SECRET: &str = "hunter2-hunter2";
/// More than the database stores of an output.
const LONG_OUTPUT: usize = 100_000;

fn config() -> String {
    format!(
        "[executors.http.hosts.example]\nhost = \"example.com\"\n\
         [executors.http.secrets.deploy]\nhost = \"example.com\"\nvalue = \"Bearer {SECRET}\"\n"
    )
}

struct Fixture {
    office: AdminClient,
    pat: TestUser,
    ada: TestUser,
    bot: TestUser,
}

impl Fixture {
    async fn new(house: &Deployment) -> Self {
        let office = house.admin().await;
        let pat = office.create_approved_author("pat").await;
        let bot = office.create_agent("bot", &pat).await;
        Self { ada: office.create_user("ada", &[ADMIN]).await, bot, pat, office }
    }

    /// Registers an agent with the capability `paint`.
    async fn painter(&self, name: &str, max_tasks: u32) -> TestUser {
        let body = json!({ "agent_id": name, "capabilities": ["paint"], "max_tasks": max_tasks });
        let _ = self.pat.post("/agents", &body).await.expect_status(201);
        let made = self.pat.post(&format!("/agents/{name}/tokens"), &json!({ "name": "test" })).await;
        self.office.user_with_token(name, &made.expect_status(201))
    }

    async fn approved_task(&self, more: Value) -> String {
        let mut task = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
        task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        self.pat.create_submitted(task).await
    }

    async fn paint_task(&self) -> String {
        self.approved_task(json!({ "parameters": { "capability": "paint" } })).await
    }

    /// A task that the agent has claimed.
    async fn claimed_task(&self, more: Value) -> String {
        let id = self.approved_task(more).await;
        let claim = self.bot.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect_status(200);
        assert_eq!((text_field(&claim["task"], "task_id"), &claim["attempt"]), (id.clone(), &json!(1)));
        id
    }

    /// Sends heartbeats until one is rejected, and returns the final execution.
    async fn heartbeat_until(&self, id: &str, code: &str) -> Value {
        let observe = || async {
            let response = self.bot.post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 })).await;
            if response.status == 409 { Ok(response.code()) } else { Err(response.text()) }
        };
        let rejected = until("the heartbeat is rejected", TIMEOUT, observe).await.expect("in time");
        // A moment later the locks are released, or recovery has taken over.
        assert!([code, "LOCK_LOST", "NOT_PRESENT"].contains(&rejected.as_str()), "{rejected}");
        let rejected_at = tokio::time::Instant::now();
        let over = self.office.wait_for_task("the task fails", id, |task| task["state"] == "FAILED").await;
        assert!(rejected_at.elapsed() < LEASE + RECOVERY_TIMEOUT, "{:?}", rejected_at.elapsed());
        assert!(text_field(&over["execution"], "error").starts_with("OUTCOME_UNKNOWN: "), "{over}");
        over["execution"].clone()
    }

    async fn report(&self, id: &str, body: Value) -> ade_testkit::api::ApiResponse {
        self.bot.post(&format!("/tasks/{id}/complete"), &body).await
    }
}

/// The stored output blobs.
fn output_blobs(house: &Deployment) -> Vec<(String, Option<Vec<u8>>)> {
    let all = snapshot(&house.server().data().join("blobs"));
    let outputs = all.into_iter().filter(|(name, (_, content))| name.contains("output") && content.is_some());
    outputs.map(|(name, (_, content))| (name, content)).collect()
}

#[tokio::test]
async fn timeout_and_stop_end_task_despite_heartbeats() {
    let lease = LEASE.as_secs();
    let house = Deployment::embedded_with_config(ADE, &format!("[worker]\nlease_seconds = {lease}\n"));
    let fixture = Fixture::new(&house).await;
    // One task exceeds its timeout, the other ignores a stop request; both agents keep sending heartbeats.
    let (late, stopped) = (
        fixture.claimed_task(json!({ "timeout_seconds": 3 })).await,
        fixture.claimed_task(json!({ "timeout_seconds": 600 })).await,
    );
    let _ = fixture
        .ada
        .post(&format!("/tasks/{stopped}/stop"), &json!({ "reason": "no" }))
        .await
        .expect_status(202);
    let (late, stopped) = tokio::join!(
        fixture.heartbeat_until(&late, "TIMED_OUT"),
        fixture.heartbeat_until(&stopped, "STOPPED")
    );
    assert_eq!((&late["result"], &late["code"]), (&json!("timeout"), &json!("TIMED_OUT")));
    assert_eq!((&stopped["result"], &stopped["code"]), (&json!("cancelled"), &json!("STOPPED")));
}

#[tokio::test]
async fn agent_reports_and_claims_embedded() {
    let house = Deployment::embedded_with_config(ADE, &config());
    let fixture = Fixture::new(&house).await;
    only_current_attempt_stores_output(&house, &fixture).await;
    report_is_idempotent(&fixture).await;
    report_fails_after_locks_are_lost(&fixture).await;
    logs_are_stored_once_and_secrets_redacted(&fixture).await;
    page_shows_the_last_lines_and_the_newest_entries(&fixture).await;
    tampered_task_is_not_handed_out(&fixture, &house.server().data()).await;
    full_agents_do_not_block_others(&fixture).await;
}

async fn only_current_attempt_stores_output(house: &Deployment, fixture: &Fixture) {
    let id = fixture.claimed_task(json!({})).await;
    let body = |attempt: u64, letter: &str| json!({ "attempt": attempt, "result": "success", "output": letter.repeat(LONG_OUTPUT) });
    let _ = fixture.report(&id, body(7, "x")).await.expect_problem(409, "NOT_PRESENT");
    assert_eq!(output_blobs(house), [], "a wrong attempt stores nothing");
    let done = fixture.report(&id, body(1, "y")).await.expect_status(200);
    let stored = output_blobs(house);
    assert_eq!(stored.len(), 1);
    assert!(stored[0].0.ends_with(&text_field(&done["execution"], "output_key")), "{stored:.80?}");
    assert_eq!(stored[0].1.as_ref().map(Vec::len), Some(LONG_OUTPUT));
    // Late, repeated and different reports do not change the stored output.
    assert_eq!(fixture.report(&id, body(1, "z")).await.expect_status(200), done);
    let failed = json!({ "attempt": 1, "result": "failure", "output": "z".repeat(LONG_OUTPUT) });
    let _ = fixture.report(&id, failed).await.expect_problem(409, "NOT_PRESENT");
    assert_eq!(output_blobs(house), stored);
}

async fn report_is_idempotent(fixture: &Fixture) {
    let id = fixture.claimed_task(json!({})).await;
    let _ =
        fixture.ada.post(&format!("/tasks/{id}/stop"), &json!({ "reason": "no" })).await.expect_status(202);
    let report = json!({ "attempt": 1, "result": "failure", "error": "it was stopped" });
    let ended = fixture.report(&id, report.clone()).await.expect_status(200);
    assert_eq!(ended["execution"]["result"], "cancelled");
    assert_eq!(
        fixture.report(&id, report).await.expect_status(200),
        ended,
        "the same report gets the same response"
    );
    let _ = fixture
        .report(&id, json!({ "attempt": 1, "result": "success" }))
        .await
        .expect_problem(409, "NOT_PRESENT");
}

async fn report_fails_after_locks_are_lost(fixture: &Fixture) {
    let id = fixture.claimed_task(json!({})).await;
    let broken = fixture.office.api.delete(&format!("/locks/task:{id}?reason=try")).await;
    assert_eq!(broken.status, 200, "{}", broken.text());
    let heartbeat = fixture.bot.post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 })).await;
    let _ = heartbeat.expect_problem(409, "LOCK_LOST");
    let report = json!({ "attempt": 1, "result": "success", "output": "all of it" });
    let ended = fixture.report(&id, report.clone()).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["execution"]["code"]), (&json!("FAILED"), &json!("LOCKS_LOST")));
    assert_eq!(ended["execution"]["output"], "all of it");
    assert_eq!(
        fixture.report(&id, report).await.expect_status(200),
        ended,
        "the same report gets the same response"
    );
}

async fn logs_are_stored_once_and_secrets_redacted(fixture: &Fixture) {
    let message = format!("the token is {SECRET}, keep it");
    let preview =
        json!({ "changes": [{ "kind": "update", "what": message, "diff": message }], "warnings": [message] });
    let id = fixture.claimed_task(json!({ "preview": preview })).await;
    let path = format!("/tasks/{id}/logs");
    let body = json!({ "attempt": 1, "text": message });
    let log = async |key: &str, body: &Value| {
        let headers = [("idempotency-key", key)];
        fixture.bot.request_with_headers("POST", &path, &headers, &body.to_string()).await
    };
    for is_retry in [false, true] {
        let response = log("one", &body).await;
        assert_eq!((response.status, response.body.len()), (204, 0), "{}", response.text());
        assert_eq!(response.header("idempotency-replayed") == "true", is_retry);
    }
    let other = json!({ "attempt": 1, "text": "another" });
    let _ = log("one", &other).await.expect_problem(422, "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(log("two", &body).await.status, 204);
    let report = json!({ "attempt": 1, "result": "failure", "output": message, "error": message });
    let ended = fixture.report(&id, report).await.expect_status(200);
    let logs = fixture.pat.get(&path).await.expect_status(200);
    let redacted = "the token is ***, keep it";
    let lines: Vec<String> =
        logs["items"].as_array().expect("a list").iter().map(|line| text_field(line, "text")).collect();
    assert_eq!(lines, [redacted, redacted]);
    assert_eq!(
        (&ended["execution"]["output"], &ended["execution"]["error"]),
        (&json!(redacted), &json!(redacted))
    );
    let task = fixture.office.task_request(&id).await;
    assert_eq!(task["preview"]["changes"][0]["what"], redacted, "{task}");
    assert!(!task.to_string().contains(SECRET), "{task}");
}

/// However much happened, the page of a task shows the end of it.
async fn page_shows_the_last_lines_and_the_newest_entries(fixture: &Fixture) {
    const MANY: usize = 205;
    let draft = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
    let id = fixture.pat.create_draft(draft).await;
    for number in 1..=MANY {
        let comment = json!({ "text": format!("comment {number}") });
        let _ = fixture.pat.post(&format!("/tasks/{id}/comments"), &comment).await.expect_status(201);
    }
    let _ = fixture.pat.post(&format!("/tasks/{id}/submit"), &json!({})).await.expect_status(202);
    fixture.pat.approve_submitted(&id).await;
    let claim = json!({ "task_id": id, "wait_seconds": 10.0 });
    let _ = fixture.bot.post("/tasks/claim", &claim).await.expect_status(200);
    let path = format!("/tasks/{id}/logs");
    for number in 1..=MANY {
        let body = json!({ "attempt": 1, "text": format!("line {number}.") });
        assert_eq!(fixture.bot.post(&path, &body).await.status, 204);
    }
    let report = json!({ "attempt": 1, "result": "success" });
    let _ = fixture.report(&id, report).await.expect_status(200);
    let tail = fixture.pat.get(&format!("{path}?tail=2")).await.expect_status(200);
    let lines: Vec<String> =
        tail["items"].as_array().expect("a list").iter().map(|line| text_field(line, "text")).collect();
    assert_eq!(
        (lines, &tail["next_cursor"]),
        (vec!["line 204.".to_owned(), "line 205.".to_owned()], &Value::Null)
    );
    for wrong in ["tail=0", "tail=1001", "tail=1&after=3", "tail=1&limit=3"] {
        let _ = fixture.pat.get(&format!("{path}?{wrong}")).await.expect_problem(422, "INVALID_REQUEST");
    }
    let newest = format!("/audit?task={id}&order=newest&limit=1");
    let newest = fixture.pat.get(&newest).await.expect_status(200);
    let authorization = format!("Bearer {}", fixture.pat.token);
    let headers = [("authorization", authorization.as_str())];
    let page = fixture.pat.send_raw("GET", &format!("/tasks/{id}"), &headers, "").await.text();
    assert!(page.contains("line 205.") && !page.contains("line 5."), "{page}");
    assert!(page.contains(&text_field(&newest["items"][0], "entry_id")), "{page}");
}

/// The approved task is changed directly in the database.
async fn tampered_task_is_not_handed_out(fixture: &Fixture, data: &Path) {
    let id = fixture.approved_task(json!({ "parameters": { "agent": "bot", "table": "orders" } })).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(data.join("ade.sqlite3"))
        .busy_timeout(Duration::from_secs(5));
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    let sql = "UPDATE tasks SET body = replace(body, '\"orders\"', '\"users\"') WHERE task_id = $1";
    let changed = sqlx::query(sql).bind(&id).execute(&mut connection).await.expect("executed");
    assert_eq!(changed.rows_affected(), 1);
    connection.close().await.expect("closed");
    let none = fixture.bot.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
    let task = fixture.office.task_request(&id).await;
    let (state, code) = (&task["state"], &task["execution"]["code"]);
    assert_eq!((state, code), (&json!("FAILED"), &json!("DIGEST_MISMATCH")), "{task}");
    let observe = || async {
        let entries = fixture.office.audit_entries(&format!("task={id}")).await;
        if entries.iter().any(|entry| entry["action"] == "task.fail") {
            Ok(())
        } else {
            Err(format!("{entries:?}"))
        }
    };
    until("the failure is in the audit log", TIMEOUT, observe).await.expect("in time");
}

async fn full_agents_do_not_block_others(fixture: &Fixture) {
    let (full, free) = (fixture.painter("full", 1).await, fixture.painter("free", 20).await);
    let first = fixture.paint_task().await;
    let claim = full.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect_status(200);
    assert_eq!(text_field(&claim["task"], "task_id"), first);
    let drained = fixture.painter("drained", 5).await;
    let _ = fixture.pat.request("POST", "/agents/drained/drain", "").await.expect_status(200);
    // Both agents wait for tasks that they cannot take, and are woken by each new one.
    let wait = json!({ "wait_seconds": 60.0 });
    let blocked_claims =
        async { tokio::join!(full.post("/tasks/claim", &wait), drained.post("/tasks/claim", &wait)) };
    let claims = async {
        for _ in 0..6 {
            let id = fixture.paint_task().await;
            let claim = free.post("/tasks/claim", &json!({})).await.expect_status(200);
            assert_eq!(text_field(&claim["task"], "task_id"), id, "the task is available to the free agent");
        }
    };
    tokio::select! {
        responses = blocked_claims => panic!("{responses:?}"),
        () = claims => {}
    }
}

/// Agent limits and draining survive the loss of all data in Redis.
#[tokio::test]
async fn agent_limits_survive_redis_flush() {
    let house = Deployment::distributed(ADE, 1);
    let fixture = Fixture::new(&house).await;
    let (single, drained) = (fixture.painter("single", 1).await, fixture.painter("drained", 5).await);
    let _ = fixture.pat.request("POST", "/agents/drained/drain", "").await.expect_status(200);
    let ids = [fixture.paint_task().await, fixture.paint_task().await];
    house.redis.as_ref().expect("Redis").query::<()>(&["FLUSHALL"]).expect("flushed");
    // Any request of an agent registers it again by its id.
    for agent in [&single, &drained] {
        let body = json!({ "locks": [{ "lock": format!("resource:any:{}", agent.id) }] });
        let _ = agent.post("/locks/acquire", &body).await.expect_status(200);
    }
    let none = drained.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
    let known = fixture.pat.get("/agents/drained").await.expect_status(200);
    assert_eq!((&known["status"], &known["max_tasks"]), (&json!("draining"), &json!(5)));
    let claim = single.post("/tasks/claim", &json!({})).await.expect_status(200);
    assert!(ids.contains(&text_field(&claim["task"], "task_id")));
    let none = single.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
}
