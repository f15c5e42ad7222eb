//! Background jobs, embedded and with several servers on one database: each step happens once, a server that is killed or
//! stopped during a job is replaced in time, and a failing job backs off visibly.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, AdminClient, ApiClient, Cli, Deployment, Redis, TestUser};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use uuid::Uuid;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const JOB: &str = "approval_timeout";
/// Approval requests that are due at the same moment: several batches of the job.
const REQUESTS: usize = 300;
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Until another server runs the job of a killed one; the lease of a job is ten seconds.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// Executes SQL in the database of the servers, bypassing them.
async fn execute_sql(house: &Deployment, postgres: &str, sqlite: &str) {
    if let Some(server) = &house.postgres {
        let mut connection = sqlx::PgConnection::connect(&server.url("ade")).await.expect("connects");
        sqlx::raw_sql(sqlx::AssertSqlSafe(postgres.to_owned())).execute(&mut connection).await.expect("done");
        connection.close().await.expect("closed");
        return;
    }
    let file = house.server().data().join("ade.sqlite3");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(TIMEOUT);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sqlite.to_owned())).execute(&mut connection).await.expect("done");
    connection.close().await.expect("closed");
}

async fn list_jobs(api: &ApiClient) -> Vec<Value> {
    api.get("/jobs").await.expect_status(200)["items"].as_array().expect("items").clone()
}

/// Waits until a job satisfies `matches`.
async fn wait_for_job(
    api: &ApiClient,
    name: &str,
    timeout: Duration,
    matches: impl Fn(&Value) -> bool,
) -> Value {
    let observe = || async {
        let all = list_jobs(api).await;
        let found = all.into_iter().find(|job| job["name"] == name).expect("a job");
        if matches(&found) { Ok(found) } else { Err(found.to_string()) }
    };
    until(name, timeout, observe).await.expect("in time")
}

async fn pending_requests(api: &ApiClient) -> u64 {
    api.get("/stats/overview").await.expect_status(200)["pending"].as_u64().expect("a number")
}

/// The server that runs jobs under this name.
fn server_named<'a>(house: &'a Deployment, name: &str) -> &'a AdeServer {
    let logs_name = |server: &&AdeServer| !server.process().log_lines_with(name).is_empty();
    house.servers.iter().find(logs_name).expect("one of the servers")
}

fn other_running_servers<'a>(house: &'a Deployment, except: &AdeServer) -> Vec<&'a AdeServer> {
    house
        .servers
        .iter()
        .filter(|server| server.url() != except.url() && server.process().pid() != 0)
        .collect()
}

/// An author, and a reviewer who never decides, whose requests are escalated to a manager.
async fn create_people(house: &Deployment) -> (AdminClient, TestUser, TestUser) {
    let office = house.admin().await;
    let author = office.create_user("pat", &[AUTHOR]).await;
    office.create_user("mia", &[ADMIN]).await;
    let rex =
        office.create_user_from(json!({ "user_id": "rex", "roles": [REVIEWER], "manager_id": "mia" })).await;
    (office, author, rex)
}

/// Submits one task and copies it in the database until there are `count` tasks with one approval request each.
async fn create_requests(house: &Deployment, office: &AdminClient, author: &TestUser, count: usize) {
    let mut task = author.create_submitted(json!({})).await;
    let mut request = office.approval_id(&task, "rex").await;
    let mut script = format!(
        "CREATE TEMP TABLE template_task AS SELECT * FROM tasks WHERE task_id = '{task}';
         CREATE TEMP TABLE template_request AS SELECT * FROM approvals WHERE approval_id = '{request}';"
    );
    for _ in 1..count {
        let [next_task, next_request] = [Uuid::now_v7(), Uuid::now_v7()].map(|id| id.to_string());
        let body = format!("replace(replace(body, '{task}', '{next_task}'), '{request}', '{next_request}')");
        script += &format!(
            "UPDATE template_task SET task_id = '{next_task}', body = {body};
             INSERT INTO tasks SELECT * FROM template_task;
             UPDATE template_request SET approval_id = '{next_request}', task_id = '{next_task}', body = {body};
             INSERT INTO approvals SELECT * FROM template_request;"
        );
        (task, request) = (next_task, next_request);
    }
    execute_sql(house, &format!("BEGIN; {script} COMMIT"), &format!("BEGIN IMMEDIATE; {script} COMMIT"))
        .await;
}

/// Makes all approval requests due now, created two days ago.
async fn make_requests_due(house: &Deployment) {
    let now = "(extract(epoch FROM now()) * 1000000)::bigint";
    let postgres = format!(
        "UPDATE approvals SET due_at = now(), body = (body::jsonb || \
         jsonb_build_object('due_at', {now}, 'created_at', {now} - 172800000000))::text"
    );
    let now = "unixepoch() * 1000000";
    let sqlite = format!(
        "UPDATE approvals SET due_at = {now}, \
         body = json_set(body, '$.due_at', {now}, '$.created_at', {now} - 172800000000)"
    );
    execute_sql(house, &postgres, &sqlite).await;
}

/// Every request is escalated to the manager exactly once.
async fn check_each_escalated_once(office: &AdminClient, count: usize) {
    let observe = || async {
        let entries = office.audit_entries("action=approval.escalate").await;
        if entries.len() >= count { Ok(entries) } else { Err(format!("{} audit entries", entries.len())) }
    };
    let entries = until("all audit entries are numbered", TIMEOUT, observe).await.expect("in time");
    let requests: BTreeSet<String> = entries.iter().map(|entry| text_field(entry, "object_id")).collect();
    assert_eq!((entries.len(), requests.len()), (count, count), "each request once");
    for entry in &entries {
        assert!(text_field(entry, "reason").contains("did not decide in time"), "{entry}");
        assert_eq!(entry["who"]["trigger"], "job approval_timeout", "{entry}");
    }
}

async fn wait_until_all_escalated(api: &ApiClient) {
    let observe = || async {
        match pending_requests(api).await {
            count if count == 2 * REQUESTS as u64 => Ok(()),
            count => Err(format!("{count} pending")),
        }
    };
    until("all requests are escalated", 2 * TIMEOUT, observe).await.expect("in time");
}

/// The server that runs the job is killed half-way; the others do the rest, and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn escalates_each_request_once_when_server_is_killed() {
    let house = Deployment::distributed(ADE, 3);
    let (office, author, _) = create_people(&house).await;
    create_requests(&house, &office, &author, REQUESTS).await;
    make_requests_due(&house).await;
    let observe = || async {
        match pending_requests(&office.api).await {
            count if count > REQUESTS as u64 + 50 => Ok(()),
            count => Err(format!("{count} pending")),
        }
    };
    until("some requests are escalated", TIMEOUT, observe).await.expect("in time");
    let running = wait_for_job(&office.api, JOB, TIMEOUT, |job| job["running_by"].is_string()).await;
    let killed = server_named(&house, &text_field(&running, "running_by"));
    killed.kill().expect("killed");
    let office = AdminClient { api: ApiClient::connect(other_running_servers(&house, killed)[0]).await };
    wait_until_all_escalated(&office.api).await;
    check_each_escalated_once(&office, REQUESTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_or_stopped_server_is_replaced_during_job() {
    let house = Deployment::distributed(ADE, 3);
    let (office, author, _) = create_people(&house).await;
    author.create_submitted(json!({})).await;
    let postgres = house.postgres.as_ref().expect("PostgreSQL");
    // The table is locked, so the job blocks half-way.
    let mut blocking = sqlx::PgConnection::connect(&postgres.url("ade")).await.expect("connects");
    let mut held = blocking.begin().await.expect("begins");
    held.execute("LOCK TABLE approvals IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let first = wait_for_job(&office.api, JOB, TIMEOUT, |job| job["running_by"].is_string()).await;
    let first = server_named(&house, &text_field(&first, "running_by"));
    first.kill().expect("killed");
    let rest = other_running_servers(&house, first);
    let api = ApiClient::connect(rest[0]).await;
    let runs_elsewhere = |server: &AdeServer| {
        let log = server.process().log_lines_with("background jobs started").join("\n");
        move |job: &Value| job["running_by"].as_str().is_some_and(|by| !log.contains(by))
    };
    let second = wait_for_job(&api, JOB, TAKEOVER_TIMEOUT, runs_elsewhere(first)).await;
    let name = text_field(&second, "running_by");
    let redis = house.redis.as_ref().expect("Redis");
    let observe = || async {
        let by: Option<String> = redis.query(&["GET", "ade:job:lock:approval_timeout"]).expect("answers");
        if by.as_deref() == Some(&name) { Ok(()) } else { Err(format!("{by:?}")) }
    };
    until("the job lock is in Redis", TIMEOUT, observe).await.expect("in time");
    let second = server_named(&house, &name);
    second.stop().expect("shuts down gracefully");
    // The job is released on shutdown, not when its lease expires; the third server may have started it already.
    let holder =
        postgres.psql("ade", "SELECT holder FROM jobs WHERE name = 'approval_timeout'").expect("read");
    assert_ne!(holder, name, "the job was released");
    let third = other_running_servers(&house, second)[0];
    let api = ApiClient::connect(third).await;
    wait_for_job(&api, JOB, TIMEOUT, runs_elsewhere(second)).await;
    held.rollback().await.expect("unlocked");
    let done = wait_for_job(&api, JOB, TIMEOUT, |job| job["status"] == "ok").await;
    assert_eq!(server_named(&house, &text_field(&done, "by")).url(), third.url(), "{done}");
}

/// Wake-ups in Redis start jobs now or later, due work has a scheduled wake-up until it is done, and everything still
/// happens when Redis loses its data.
#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_in_redis_start_jobs_but_are_not_required() {
    let house = Deployment::distributed(ADE, 2);
    let (office, author, rex) = create_people(&house).await;
    let redis = house.redis.as_ref().expect("Redis");
    let has_run = |runs: u64| move |job: &Value| job["runs"].as_u64() == Some(runs);
    let runs = wait_for_job(&office.api, "archive", TIMEOUT, |job| job["runs"].as_u64() > Some(0)).await;
    let runs = runs["runs"].as_u64().expect("a number");
    let wake_up = r#"{"type":"archive","target":"all"}"#;
    let _: i64 = redis.query(&["LPUSH", "ade:job:queue:archive", wake_up]).expect("queued");
    wait_for_job(&office.api, "archive", TIMEOUT, has_run(runs + 1)).await;
    let (now, _): (u64, u64) = redis.query(&["TIME"]).expect("answers");
    let soon = (now + 2).to_string();
    let _: i64 = redis.query(&["ZADD", "ade:job:scheduled", &soon, wake_up]).expect("scheduled");
    wait_for_job(&office.api, "archive", TIMEOUT, has_run(runs + 2)).await;

    let id = author.create_submitted(json!({ "executor": "agent", "parameters": { "agent": "bot" } })).await;
    let request = office.approval_id(&id, "rex").await;
    let due = text_field(&office.approvals(&id).await[0], "due_at");
    check_wake_up(redis, JOB, &id, Some(&due)).await;
    let _ = rex.decide(&request, "approve").await.expect_status(200);
    check_wake_up(redis, JOB, &id, Some("")).await;
    let bot = office.create_agent("bot", &author).await;
    let claim = bot.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await.expect_status(200);
    check_wake_up(redis, "task_timeout", &id, Some(&text_field(&claim, "lease_until"))).await;
    check_wake_up(redis, JOB, &id, None).await;
    let body = json!({ "attempt": claim["attempt"], "result": "success" });
    let _ = bot.post(&format!("/tasks/{id}/complete"), &body).await.expect_status(200);
    check_wake_up(redis, "task_timeout", &id, None).await;

    author.create_submitted(json!({})).await;
    let _: String = redis.query(&["FLUSHALL"]).expect("lost");
    make_requests_due(&house).await;
    check_each_escalated_once(&office, 1).await;
}

/// Waits until the wake-up is scheduled in Redis for this time (empty: any time), or is absent (`None`).
async fn check_wake_up(redis: &Redis, queue: &str, id: &str, at: Option<&str>) {
    let member = format!(r#"{{"type":"{queue}","target":"{id}"}}"#);
    let observe = || async {
        let score: Option<f64> = redis.query(&["ZSCORE", "ade:job:scheduled", &member]).expect("answers");
        let matches = match (score, at) {
            (None, None) | (Some(_), Some("")) => true,
            (Some(score), Some(at)) => {
                let at: Timestamp = at.parse().expect("a time");
                (score - at.as_duration().as_secs_f64()).abs() < 0.01
            }
            _ => false,
        };
        if matches { Ok(()) } else { Err(format!("{member}: {score:?}, not {at:?}")) }
    };
    until("the wake-up is scheduled as expected", TIMEOUT, observe).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_job_backs_off_and_is_reported() {
    const DAILY: &str = "daily_stats";
    let house = &Deployment::embedded(ADE);
    let office = house.admin().await;
    let ada = office.create_user("ada", &[ADMIN]).await;
    let last = house.servers.last().expect("a server");
    let (api, shell) = (ApiClient::connect(last).await, Cli::new(ADE, last, &ada));
    wait_for_job(&api, DAILY, TIMEOUT, |job| job["status"] == "ok" && job["runs"] == 1).await;
    let break_job = "ALTER TABLE daily_stats RENAME TO renamed";
    execute_sql(house, break_job, break_job).await;
    let make_due = async || {
        let due = |epoch: &str| format!("UPDATE jobs SET due_at = {epoch} WHERE name = '{DAILY}'");
        execute_sql(house, &due("to_timestamp(0)"), &due("0")).await;
    };
    for (failures, backoff_seconds) in [(1, 120), (2, 240)] {
        make_due().await;
        let failed = wait_for_job(&api, DAILY, TIMEOUT, |job| job["failures"] == failures).await;
        assert_eq!(failed["status"], "failing", "{failed}");
        assert!(text_field(&failed, "error").contains("daily_stats"), "{failed}");
        let moment =
            |field: &str| text_field(&failed, field).parse::<Timestamp>().expect("a time").as_second();
        assert!((moment("due_at") - moment("ended_at") - backoff_seconds).abs() <= 1, "{failed}");
        let listed = shell.run_ok(&["jobs"]).await;
        assert!(listed.contains("failing"), "{listed}");
        let times = if failures == 1 { "1 time".to_owned() } else { format!("{failures} times") };
        assert!(listed.contains(&format!("{DAILY} failed {times} in a row: ")), "{listed}");
        let metrics = api.send_raw("GET", "/metrics", &[], "").await.text();
        let line = format!("ade_job_failures{{job=\"{DAILY}\"}} {failures}");
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in {metrics}");
    }
    let repair_job = "ALTER TABLE renamed RENAME TO daily_stats";
    execute_sql(house, repair_job, repair_job).await;
    make_due().await;
    let recovered = wait_for_job(&api, DAILY, TIMEOUT, |job| job["status"] == "ok").await;
    assert_eq!((&recovered["failures"], &recovered["error"]), (&json!(0), &Value::Null), "{recovered}");
    let overview = api.get("/stats/overview").await.expect_status(200);
    let days = overview["days"].as_array().expect("days");
    let yesterday = json!({
        "completed": 0, "failed": 0, "rejected": 0, "cancelled": 0, "day": days[0]["day"],
        "reviewed": 0, "approved": 0, "median_decision_seconds": null, "backlog": null,
    });
    assert_eq!(days, &[yesterday], "the day is counted once, by the first run");
}
