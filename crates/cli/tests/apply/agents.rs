//! Agents that ask for work: how long they may be at it, what counts of what they say, what is hidden in it, and that none is in
//! the way of another.

use std::path::Path;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR};
use ade_testkit::folder::everything;
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person};
use serde_json::{Value, json};
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const LEASE: Duration = Duration::from_secs(2);
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// How long it may take after lease and locks have ended until it is settled.
const SETTLED_WITHIN: Duration = Duration::from_secs(5);
const SECRET: &str = "hunter2-hunter2";
/// More than the record keeps of an output.
const MUCH: usize = 100_000;

fn config() -> String {
    format!(
        "[executors.http]\nhosts = [\"example.com\"]\n\
         [executors.http.secrets.deploy]\nhost = \"example.com\"\nvalue = \"Bearer {SECRET}\"\n"
    )
}

struct Stage {
    office: Office,
    pat: Person,
    ada: Person,
    bot: Person,
}

impl Stage {
    async fn of(house: &House) -> Self {
        let office = house.office().await;
        // Nobody is asked: what is submitted is approved.
        office.policy(json!({ "name": "auto", "auto_approve_if": { "risk_below": 101 } })).await;
        let pat = office.person("pat", &[AUTHOR]).await;
        let bot = office.agent("bot", &pat).await;
        Self { ada: office.person("ada", &[ADMIN]).await, bot, pat, office }
    }

    /// An agent that can do something, and does so much at once.
    async fn able(&self, name: &str, max_tasks: u32) -> Person {
        let body = json!({ "agent_id": name, "capabilities": ["paint"], "max_tasks": max_tasks });
        let _ = self.pat.post("/agents", &body).await.expect(201);
        let made = self.pat.post(&format!("/agents/{name}/tokens"), &json!({ "name": "test" })).await;
        self.office.holder(name, &made.expect(201))
    }

    async fn approved(&self, more: Value) -> String {
        let mut task = json!({ "executor": "agent", "parameters": { "agent": "bot" } });
        task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        self.pat.submitted(task).await
    }

    async fn paint(&self) -> String {
        self.approved(json!({ "parameters": { "capability": "paint" } })).await
    }

    /// A task that the agent carries out.
    async fn begun(&self, more: Value) -> String {
        let id = self.approved(more).await;
        let claim = self.bot.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect(200);
        assert_eq!((text(&claim["task"], "task_id"), &claim["attempt"]), (id.clone(), &json!(1)));
        id
    }

    /// Says that it is alive until it is told that it may not be any more; how it ended.
    async fn lives_until(&self, id: &str, code: &str) -> Value {
        let beat = || async {
            let answer = self.bot.post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 })).await;
            if answer.status == 409 { Ok(answer.code()) } else { Err(answer.text()) }
        };
        let refused = until("its time is over", LONG, beat).await.expect("it ends");
        // Whoever asks a moment later finds its locks gone, or somebody who has taken over.
        assert!([code, "LOCK_LOST", "NOT_PRESENT"].contains(&refused.as_str()), "{refused}");
        let late = tokio::time::Instant::now();
        let over = self.office.wait_for("it is told", id, |task| task["state"] == "FAILED").await;
        assert!(late.elapsed() < LEASE + SETTLED_WITHIN, "{:?}", late.elapsed());
        assert!(text(&over["execution"], "error").starts_with("OUTCOME_UNKNOWN: "), "{over}");
        over["execution"].clone()
    }

    async fn ends(&self, id: &str, body: Value) -> ade_testkit::api::Answer {
        self.bot.post(&format!("/tasks/{id}/complete"), &body).await
    }
}

/// Whatever an agent was told to be kept whole.
fn outputs(house: &House) -> Vec<(String, Option<Vec<u8>>)> {
    let all = everything(&house.ade().data().join("blobs"));
    let kept = all.into_iter().filter(|(name, (_, content))| name.contains("output") && content.is_some());
    kept.map(|(name, (_, content))| (name, content)).collect()
}

#[tokio::test]
async fn however_alive_an_agent_is_its_time_ends() {
    let lease = LEASE.as_secs();
    let house = House::embedded_with(ADE, &format!("[worker]\nlease_seconds = {lease}\n"));
    let stage = Stage::of(&house).await;
    // An agent that says that it is alive for ever, and one that does not want to hear that it is to end.
    let (late, stopped) = (
        stage.begun(json!({ "timeout_seconds": 3 })).await,
        stage.begun(json!({ "timeout_seconds": 600 })).await,
    );
    let _ = stage.ada.post(&format!("/tasks/{stopped}/stop"), &json!({ "reason": "no" })).await.expect(202);
    let (late, stopped) =
        tokio::join!(stage.lives_until(&late, "TIMED_OUT"), stage.lives_until(&stopped, "STOPPED"));
    assert_eq!((&late["result"], &late["code"]), (&json!("timeout"), &json!("TIMED_OUT")));
    assert_eq!((&stopped["result"], &stopped["code"]), (&json!("cancelled"), &json!("STOPPED")));
}

#[tokio::test]
async fn embedded() {
    let house = House::embedded_with(ADE, &config());
    let stage = Stage::of(&house).await;
    only_the_present_attempt_leaves_something(&house, &stage).await;
    a_report_may_be_repeated_however_it_was_taken(&stage).await;
    who_lost_its_locks_has_not_done_it(&stage).await;
    what_is_said_once_is_kept_once_and_without_secrets(&stage).await;
    nobody_is_given_what_was_not_approved(&stage, &house.ade().data()).await;
    who_has_no_room_is_in_nobodys_way(&stage).await;
}

async fn only_the_present_attempt_leaves_something(house: &House, stage: &Stage) {
    let id = stage.begun(json!({})).await;
    let body = |attempt: u64, sign: &str| json!({ "attempt": attempt, "result": "success", "output": sign.repeat(MUCH) });
    let _ = stage.ends(&id, body(7, "x")).await.problem(409, "NOT_PRESENT");
    assert_eq!(outputs(house), [], "who does not count leaves nothing");
    let done = stage.ends(&id, body(1, "y")).await.expect(200);
    let kept = outputs(house);
    assert_eq!(kept.len(), 1);
    assert!(kept[0].0.ends_with(&text(&done["execution"], "output_key")), "{kept:.80?}");
    assert_eq!(kept[0].1.as_ref().map(Vec::len), Some(MUCH));
    // Late, again, and with something else: what was kept stays.
    assert_eq!(stage.ends(&id, body(1, "z")).await.expect(200), done);
    let failed = json!({ "attempt": 1, "result": "failure", "output": "z".repeat(MUCH) });
    let _ = stage.ends(&id, failed).await.problem(409, "NOT_PRESENT");
    assert_eq!(outputs(house), kept);
}

async fn a_report_may_be_repeated_however_it_was_taken(stage: &Stage) {
    let id = stage.begun(json!({})).await;
    let _ = stage.ada.post(&format!("/tasks/{id}/stop"), &json!({ "reason": "no" })).await.expect(202);
    let report = json!({ "attempt": 1, "result": "failure", "error": "it was stopped" });
    let ended = stage.ends(&id, report.clone()).await.expect(200);
    assert_eq!(ended["execution"]["result"], "cancelled");
    assert_eq!(stage.ends(&id, report).await.expect(200), ended, "the same report, the same answer");
    let _ = stage.ends(&id, json!({ "attempt": 1, "result": "success" })).await.problem(409, "NOT_PRESENT");
}

async fn who_lost_its_locks_has_not_done_it(stage: &Stage) {
    let id = stage.begun(json!({})).await;
    let broken = stage.office.admin.delete(&format!("/locks/task:{id}?reason=try")).await;
    assert_eq!(broken.status, 200, "{}", broken.text());
    let beat = stage.bot.post(&format!("/tasks/{id}/heartbeat"), &json!({ "attempt": 1 })).await;
    let _ = beat.problem(409, "LOCK_LOST");
    let report = json!({ "attempt": 1, "result": "success", "output": "all of it" });
    let ended = stage.ends(&id, report.clone()).await.expect(200);
    assert_eq!((&ended["state"], &ended["execution"]["code"]), (&json!("FAILED"), &json!("LOCKS_LOST")));
    assert_eq!(ended["execution"]["output"], "all of it");
    assert_eq!(stage.ends(&id, report).await.expect(200), ended, "the same report, the same answer");
}

async fn what_is_said_once_is_kept_once_and_without_secrets(stage: &Stage) {
    let said = format!("the token is {SECRET}, keep it");
    let preview =
        json!({ "changes": [{ "kind": "update", "what": said, "diff": said }], "warnings": [said] });
    let id = stage.begun(json!({ "preview": preview })).await;
    let path = format!("/tasks/{id}/logs");
    let body = json!({ "attempt": 1, "text": said });
    let log = async |key: &str, body: &Value| {
        let headers = [("idempotency-key", key)];
        stage.bot.call_with("POST", &path, &headers, &body.to_string()).await
    };
    for repeated in [false, true] {
        let answer = log("one", &body).await;
        assert_eq!((answer.status, answer.body.len()), (204, 0), "{}", answer.text());
        assert_eq!(answer.header("idempotency-replayed") == "true", repeated);
    }
    let other = json!({ "attempt": 1, "text": "another" });
    let _ = log("one", &other).await.problem(422, "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(log("two", &body).await.status, 204);
    let report = json!({ "attempt": 1, "result": "failure", "output": said, "error": said });
    let ended = stage.ends(&id, report).await.expect(200);
    let told = stage.pat.get(&path).await.expect(200);
    let hidden = "the token is ***, keep it";
    let lines: Vec<String> =
        told["items"].as_array().expect("a list").iter().map(|one| text(one, "text")).collect();
    assert_eq!(lines, [hidden, hidden]);
    assert_eq!(
        (&ended["execution"]["output"], &ended["execution"]["error"]),
        (&json!(hidden), &json!(hidden))
    );
    let task = stage.office.task(&id).await;
    assert_eq!(task["preview"]["changes"][0]["what"], hidden, "{task}");
    assert!(!task.to_string().contains(SECRET), "{task}");
}

/// Somebody changes what was approved past the service.
async fn nobody_is_given_what_was_not_approved(stage: &Stage, data: &Path) {
    let id = stage.approved(json!({ "parameters": { "agent": "bot", "table": "orders" } })).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(data.join("ade.sqlite3"))
        .busy_timeout(Duration::from_secs(5));
    let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    let sql = "UPDATE tasks SET body = replace(body, '\"orders\"', '\"users\"') WHERE task_id = $1";
    let changed = sqlx::query(sql).bind(&id).execute(&mut link).await.expect("its owner");
    assert_eq!(changed.rows_affected(), 1);
    link.close().await.expect("closed");
    let none = stage.bot.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
    let over = stage.office.task(&id).await;
    let (state, code) = (&over["state"], &over["execution"]["code"]);
    assert_eq!((state, code), (&json!("FAILED"), &json!("DIGEST_MISMATCH")), "{over}");
    let told = || async {
        let told = stage.office.audit(&format!("task={id}")).await;
        if told.iter().any(|entry| entry["action"] == "task.fail") {
            Ok(())
        } else {
            Err(format!("{told:?}"))
        }
    };
    until("it is in the audit log", LONG, told).await.expect("it is");
}

async fn who_has_no_room_is_in_nobodys_way(stage: &Stage) {
    let (full, free) = (stage.able("full", 1).await, stage.able("free", 20).await);
    let first = stage.paint().await;
    let claim = full.post("/tasks/claim", &json!({ "wait_seconds": 10.0 })).await.expect(200);
    assert_eq!(text(&claim["task"], "task_id"), first);
    let drained = stage.able("drained", 5).await;
    let _ = stage.pat.call("POST", "/agents/drained/drain", "").await.expect(200);
    // Both wait for work that they cannot take, and hear of each that comes.
    let wait = json!({ "wait_seconds": 60.0 });
    let waits = async { tokio::join!(full.post("/tasks/claim", &wait), drained.post("/tasks/claim", &wait)) };
    let takes = async {
        for _ in 0..6 {
            let id = stage.paint().await;
            let claim = free.post("/tasks/claim", &json!({})).await.expect(200);
            assert_eq!(text(&claim["task"], "task_id"), id, "nobody hid it");
        }
    };
    tokio::select! {
        answers = waits => panic!("{answers:?}"),
        () = takes => {}
    }
}

/// Redis loses everything: who takes one task at a time, or none, does so still.
#[tokio::test]
async fn distributed() {
    let house = House::distributed(ADE, 1);
    let stage = Stage::of(&house).await;
    let (single, drained) = (stage.able("single", 1).await, stage.able("drained", 5).await);
    let _ = stage.pat.call("POST", "/agents/drained/drain", "").await.expect(200);
    let ids = [stage.paint().await, stage.paint().await];
    house.redis.as_ref().expect("one").tell::<()>(&["FLUSHALL"]).expect("flushed");
    // Whoever is heard of is known again, by its name alone.
    for agent in [&single, &drained] {
        let body = json!({ "locks": [{ "lock": format!("resource:any:{}", agent.id) }] });
        let _ = agent.post("/locks/acquire", &body).await.expect(200);
    }
    let none = drained.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
    let known = stage.pat.get("/agents/drained").await.expect(200);
    assert_eq!((&known["status"], &known["max_tasks"]), (&json!("draining"), &json!(5)));
    let claim = single.post("/tasks/claim", &json!({})).await.expect(200);
    assert!(ids.contains(&text(&claim["task"], "task_id")));
    let none = single.post("/tasks/claim", &json!({})).await;
    assert_eq!(none.status, 204, "{}", none.text());
}
