//! Work that repeats, by several processes with one record, and by one with everything in itself: each step happens once, whoever
//! dies or stops in the middle of a job is replaced in time, and a job that fails rests longer each time, for everybody to see.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{Ade, Api, House, Office, Person, Redis, Shell};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use uuid::Uuid;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const JOB: &str = "approval_timeout";
/// Requests that are due at the same moment.
const MANY: usize = 1_000;
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// How soon somebody else is at a job whose process was killed: its lease is ten seconds long.
const REPLACED_WITHIN: Duration = Duration::from_secs(20);

/// Past the servers into their record, as whoever runs it could.
async fn past(house: &House, postgres: &str, sqlite: &str) {
    if let Some(server) = &house.postgres {
        let mut link = sqlx::PgConnection::connect(&server.url("ade")).await.expect("connects");
        sqlx::raw_sql(sqlx::AssertSqlSafe(postgres.to_owned())).execute(&mut link).await.expect("done");
        link.close().await.expect("closed");
        return;
    }
    let file = house.ade().data().join("ade.sqlite3");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(LONG);
    let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sqlite.to_owned())).execute(&mut link).await.expect("done");
    link.close().await.expect("closed");
}

async fn jobs(door: &Api) -> Vec<Value> {
    door.get("/jobs").await.expect(200)["items"].as_array().expect("items").clone()
}

/// A job, once it is as it should be.
async fn job(door: &Api, name: &str, within: Duration, holds: impl Fn(&Value) -> bool) -> Value {
    let look = || async {
        let all = jobs(door).await;
        let found = all.into_iter().find(|job| job["name"] == name).expect("a job");
        if holds(&found) { Ok(found) } else { Err(found.to_string()) }
    };
    until(name, within, look).await.expect("becomes so")
}

async fn pending(door: &Api) -> u64 {
    door.get("/stats/overview").await.expect(200)["pending"].as_u64().expect("a number")
}

/// The server that does jobs under this name.
fn called<'a>(house: &'a House, name: &str) -> &'a Ade {
    let says = |server: &&Ade| !server.process().lines_with(name).is_empty();
    house.servers.iter().find(says).expect("one of them")
}

fn others<'a>(house: &'a House, but: &Ade) -> Vec<&'a Ade> {
    house.servers.iter().filter(|server| server.url() != but.url() && server.process().pid() != 0).collect()
}

/// Somebody who proposes, and somebody who answers nothing, whose manager is asked then.
async fn staffed(house: &House) -> (Office, Person, Person) {
    let office = house.office().await;
    let author = office.person("pat", &[AUTHOR]).await;
    office.person("mia", &[]).await;
    let rex = office.made(json!({ "user_id": "rex", "roles": [REVIEWER], "manager_id": "mia" })).await;
    (office, author, rex)
}

/// One task that somebody is asked about, and copies of it until there are so many.
async fn proposed(house: &House, office: &Office, author: &Person, many: usize) {
    let mut task = author.submitted(json!({})).await;
    let mut request = office.request(&task, "rex").await;
    let mut script = format!(
        "CREATE TEMP TABLE a_task AS SELECT * FROM tasks WHERE task_id = '{task}';
         CREATE TEMP TABLE a_request AS SELECT * FROM approvals WHERE approval_id = '{request}';"
    );
    for _ in 1..many {
        let [next_task, next_request] = [Uuid::now_v7(), Uuid::now_v7()].map(|id| id.to_string());
        let body = format!(
            "replace(replace(body::text, '{task}', '{next_task}'), '{request}', '{next_request}')::jsonb"
        );
        script += &format!(
            "UPDATE a_task SET task_id = '{next_task}', body = {body};
             INSERT INTO tasks SELECT * FROM a_task;
             UPDATE a_request SET approval_id = '{next_request}', task_id = '{next_task}', body = {body};
             INSERT INTO approvals SELECT * FROM a_request;"
        );
        (task, request) = (next_task, next_request);
    }
    let sqlite = script.replace("::text", "").replace("::jsonb", "");
    past(house, &format!("BEGIN; {script} COMMIT"), &format!("BEGIN IMMEDIATE; {sqlite} COMMIT")).await;
}

/// All requests are due now, and their people had two days.
async fn all_due(house: &House) {
    let now = "(extract(epoch FROM now()) * 1000000)::bigint";
    let postgres = format!(
        "UPDATE approvals SET due_at = now(), body = body || \
         jsonb_build_object('due_at', {now}, 'created_at', {now} - 172800000000)"
    );
    let now = "unixepoch() * 1000000";
    let sqlite = format!(
        "UPDATE approvals SET due_at = {now}, \
         body = json_set(body, '$.due_at', {now}, '$.created_at', {now} - 172800000000)"
    );
    past(house, &postgres, &sqlite).await;
}

/// Everybody who did not answer has a manager who is asked, once.
async fn each_was_escalated_once(office: &Office, many: usize) {
    let look = || async {
        let told = office.audit("action=approval.escalate").await;
        if told.len() >= many { Ok(told) } else { Err(format!("{} are told", told.len())) }
    };
    let told = until("all of it has its number", LONG, look).await.expect("it has");
    let requests: BTreeSet<String> = told.iter().map(|entry| text(entry, "object_id")).collect();
    assert_eq!((told.len(), requests.len()), (many, many), "each of them once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_are_escalated_once_each_embedded() {
    let house = House::embedded(ADE);
    let (office, author, _) = staffed(&house).await;
    proposed(&house, &office, &author, MANY).await;
    all_due(&house).await;
    all_are_asked(&office.admin).await;
    each_was_escalated_once(&office, MANY).await;
}

async fn all_are_asked(door: &Api) {
    let look = || async {
        match pending(door).await {
            many if many == 2 * MANY as u64 => Ok(()),
            many => Err(format!("{many} wait")),
        }
    };
    until("all of them are escalated", 2 * LONG, look).await.expect("they are");
}

/// Whoever is at it when some are done is killed: the others do the rest, and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_are_escalated_once_each_by_three_of_whom_one_dies() {
    let house = House::distributed(ADE, 3);
    let (office, author, _) = staffed(&house).await;
    proposed(&house, &office, &author, MANY).await;
    all_due(&house).await;
    let some_are_done = || async {
        match pending(&office.admin).await {
            many if many > MANY as u64 + 50 => Ok(()),
            many => Err(format!("{many} wait")),
        }
    };
    until("some are escalated", LONG, some_are_done).await.expect("they are");
    let at_it = job(&office.admin, JOB, LONG, |job| job["running_by"].is_string()).await;
    let dies = called(&house, &text(&at_it, "running_by"));
    dies.kill().expect("killed");
    let office = Office { admin: Api::of(others(&house, dies)[0]).await };
    all_are_asked(&office.admin).await;
    each_was_escalated_once(&office, MANY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dies_or_stops_in_the_middle_of_a_job_is_replaced_in_time() {
    let house = House::distributed(ADE, 3);
    let (office, author, _) = staffed(&house).await;
    author.submitted(json!({})).await;
    let postgres = house.postgres.as_ref().expect("one");
    // Nobody reads requests: whoever does the job waits in the middle of it.
    let mut blocking = sqlx::PgConnection::connect(&postgres.url("ade")).await.expect("connects");
    let mut held = blocking.begin().await.expect("begins");
    held.execute("LOCK TABLE approvals IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let first = job(&office.admin, JOB, LONG, |job| job["running_by"].is_string()).await;
    let first = called(&house, &text(&first, "running_by"));
    first.kill().expect("killed");
    let rest = others(&house, first);
    let door = Api::of(rest[0]).await;
    let by_other = |not: &Ade| {
        let gone = not.process().lines_with("background jobs started").join("\n");
        move |job: &Value| job["running_by"].as_str().is_some_and(|by| !gone.contains(by))
    };
    let second = job(&door, JOB, REPLACED_WITHIN, by_other(first)).await;
    let name = text(&second, "running_by");
    let redis = house.redis.as_ref().expect("one");
    let marked = || async {
        let by: Option<String> = redis.tell(&["GET", "ade:job:lock:approval_timeout"]).expect("answers");
        if by.as_deref() == Some(&name) { Ok(()) } else { Err(format!("{by:?}")) }
    };
    until("it is marked in Redis", LONG, marked).await.expect("it is");
    let second = called(&house, &name);
    second.stop().expect("ends by itself when it is asked to");
    // Not when its lease ends, but with it: the third may even have begun.
    let holder =
        postgres.psql("ade", "SELECT holder FROM jobs WHERE name = 'approval_timeout'").expect("read");
    assert_ne!(holder, name, "it was given back");
    let third = others(&house, second)[0];
    let door = Api::of(third).await;
    job(&door, JOB, LONG, by_other(second)).await;
    held.rollback().await.expect("unlocked");
    let done = job(&door, JOB, LONG, |job| job["status"] == "ok").await;
    assert_eq!(called(&house, &text(&done, "by")).url(), third.url(), "{done}");
}

/// Whatever is called through Redis is done, now or later; what is due stands there until it is over; and all of it is done
/// as well when Redis has lost it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_through_redis_make_it_sooner_and_nothing_depends_on_them() {
    let house = House::distributed(ADE, 2);
    let (office, author, rex) = staffed(&house).await;
    let redis = house.redis.as_ref().expect("one");
    let archived = |runs: u64| move |job: &Value| job["runs"].as_u64() == Some(runs);
    let runs = job(&office.admin, "archive", LONG, |job| job["runs"].as_u64() > Some(0)).await;
    let runs = runs["runs"].as_u64().expect("a number");
    let call = r#"{"type":"archive","target":"all"}"#;
    let _: i64 = redis.tell(&["LPUSH", "ade:job:queue:archive", call]).expect("called");
    job(&office.admin, "archive", LONG, archived(runs + 1)).await;
    let (now, _): (u64, u64) = redis.tell(&["TIME"]).expect("answers");
    let soon = (now + 2).to_string();
    let _: i64 = redis.tell(&["ZADD", "ade:job:scheduled", &soon, call]).expect("scheduled");
    job(&office.admin, "archive", LONG, archived(runs + 2)).await;

    let id = author.submitted(json!({ "executor": "agent", "parameters": { "agent": "bot" } })).await;
    let request = office.request(&id, "rex").await;
    let due = text(&office.requests(&id).await[0], "due_at");
    stands(redis, JOB, &id, Some(&due)).await;
    let _ = rex.answers(&request, "approve").await.expect(200);
    stands(redis, JOB, &id, Some("")).await;
    let bot = office.agent("bot", &author).await;
    let claim = bot.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await.expect(200);
    stands(redis, "task_timeout", &id, Some(&text(&claim, "lease_until"))).await;
    stands(redis, JOB, &id, None).await;
    let body = json!({ "attempt": claim["attempt"], "result": "success" });
    let _ = bot.post(&format!("/tasks/{id}/complete"), &body).await.expect(200);
    stands(redis, "task_timeout", &id, None).await;

    author.submitted(json!({})).await;
    let _: String = redis.tell(&["FLUSHALL"]).expect("lost");
    all_due(&house).await;
    each_was_escalated_once(&office, 1).await;
}

/// A call for later stands in Redis at this moment (nothing: at any), or does not.
async fn stands(redis: &Redis, queue: &str, id: &str, at: Option<&str>) {
    let member = format!(r#"{{"type":"{queue}","target":"{id}"}}"#);
    let look = || async {
        let score: Option<f64> = redis.tell(&["ZSCORE", "ade:job:scheduled", &member]).expect("answers");
        let is = match (score, at) {
            (None, None) | (Some(_), Some("")) => true,
            (Some(score), Some(at)) => {
                let at: Timestamp = at.parse().expect("a time");
                (score - at.as_duration().as_secs_f64()).abs() < 0.01
            }
            _ => false,
        };
        if is { Ok(()) } else { Err(format!("{member}: {score:?}, not {at:?}")) }
    };
    until("it stands there as it should", LONG, look).await.expect("it does");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_rests_longer_each_time_and_everybody_sees_it_embedded() {
    a_failing_job_is_seen(&House::embedded(ADE)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_rests_longer_each_time_and_everybody_sees_it_distributed() {
    a_failing_job_is_seen(&House::distributed(ADE, 3)).await;
}

async fn a_failing_job_is_seen(house: &House) {
    const DAILY: &str = "daily_stats";
    let office = house.office().await;
    let ada = office.person("ada", &[ADMIN]).await;
    let last = house.servers.last().expect("one at least");
    let (door, shell) = (Api::of(last).await, Shell::of(ADE, last, &ada));
    job(&door, DAILY, LONG, |job| job["status"] == "ok" && job["runs"] == 1).await;
    let mislaid = "ALTER TABLE days RENAME TO mislaid";
    past(house, mislaid, mislaid).await;
    let again = async || {
        let due = |epoch: &str| format!("UPDATE jobs SET due_at = {epoch} WHERE name = '{DAILY}'");
        past(house, &due("to_timestamp(0)"), &due("0")).await;
    };
    for (failures, rests) in [(1, 120), (2, 240)] {
        again().await;
        let failed = job(&door, DAILY, LONG, |job| job["failures"] == failures).await;
        assert_eq!(failed["status"], "failing", "{failed}");
        assert!(text(&failed, "error").contains("days"), "{failed}");
        let moment = |field: &str| text(&failed, field).parse::<Timestamp>().expect("a time").as_second();
        assert!((moment("due_at") - moment("ended_at") - rests).abs() <= 1, "{failed}");
        let listed = shell.says(&["jobs"]).await;
        assert!(listed.contains("failing"), "{listed}");
        assert!(listed.contains(&format!("{DAILY} failed {failures} times in a row: ")), "{listed}");
        let metrics = door.send("GET", "/metrics", &[], "").await.text();
        let line = format!("ade_job_failures{{job=\"{DAILY}\"}} {failures}");
        assert!(metrics.lines().any(|one| one == line), "{line} is missing in {metrics}");
    }
    let found = "ALTER TABLE mislaid RENAME TO days";
    past(house, found, found).await;
    again().await;
    let well = job(&door, DAILY, LONG, |job| job["status"] == "ok").await;
    assert_eq!((&well["failures"], &well["error"]), (&json!(0), &Value::Null), "{well}");
    let overview = door.get("/stats/overview").await.expect(200);
    let days = overview["days"].as_array().expect("days");
    let yesterday =
        json!({ "completed": 0, "failed": 0, "rejected": 0, "cancelled": 0, "day": days[0]["day"] });
    assert_eq!(days, &[yesterday], "counted once, before it failed");
}
