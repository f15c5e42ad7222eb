//! Archives over HTTP and the command line, embedded and with two servers: old tasks are archived, visible data and
//! statistics stay the same, administrators can restore archives, and a kill during archiving loses nothing.

use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::deployment::text_field;
use ade_testkit::folder_snapshot::snapshot;
use ade_testkit::wait::until;
use ade_testkit::{AdminClient, Cli, Deployment, TestUser};
use serde_json::{Value, json};
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const DAY_MICROS: u64 = 86_400_000_000;

struct Fixture {
    house: Deployment,
    office: AdminClient,
    ann: TestUser,
    rob: TestUser,
    eve: TestUser,
    shell: Cli,
}

impl Fixture {
    async fn new(house: Deployment) -> Self {
        let office = house.admin().await;
        let ann = office.create_user("ann", &[AUTHOR]).await;
        let rob = office.create_user("rob", &[REVIEWER]).await;
        let eve = office.create_user("eve", &[ADMIN]).await;
        let shell = Cli::new(ADE, house.server(), &eve);
        Self { house, office, ann, rob, eve, shell }
    }

    /// Creates a task that Rob rejects.
    async fn rejected_task(&self) -> String {
        let id = self.ann.create_submitted(json!({ "tags": ["old"] })).await;
        let request = self.office.approval_id(&id, "rob").await;
        let _ = self.rob.decide(&request, "reject").await.expect_status(200);
        id
    }

    /// Executes SQL in the database, bypassing the servers.
    async fn execute_sql(&self, sqlite: String, postgres: String) {
        if let Some(server) = &self.house.postgres {
            server.psql("ade", &postgres).expect("executed");
            return;
        }
        let file = self.house.server().data().join("ade.sqlite3");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let options = options.busy_timeout(Duration::from_secs(5));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sqlite)).execute(&mut connection).await.expect("executed");
        connection.close().await.expect("closed");
    }

    /// Makes all finished tasks older by so many days.
    async fn age_tasks(&self, days: u64) {
        let micros = days * DAY_MICROS;
        let sql = |by: &str| {
            format!(
                "UPDATE tasks SET closed_at = closed_at - {by}, keep_until = keep_until - {by} \
                 WHERE closed_at IS NOT NULL"
            )
        };
        self.execute_sql(sql(&micros.to_string()), sql(&format!("interval '{days} days'"))).await;
    }

    /// Makes the archive job due, and releases it if a server holds it.
    async fn make_job_due(&self) {
        let sql = |epoch: &str| {
            format!(
                "UPDATE jobs SET due_at = {epoch}, lease_until = NULL, holder = NULL WHERE name = 'archive'"
            )
        };
        self.execute_sql(sql("0"), sql("'epoch'")).await;
    }

    async fn list_archives(&self) -> Vec<Value> {
        let page = self.eve.get("/archives").await.expect_status(200);
        page["items"].as_array().expect("items").clone()
    }

    /// Runs the archive job and waits until there are `count` archives.
    async fn run_archive_job(&self, count: usize) -> Vec<Value> {
        self.make_job_due().await;
        let observe = || async {
            let all = self.list_archives().await;
            if all.len() == count { Ok(all) } else { Err(json!(all).to_string()) }
        };
        until("the tasks are archived", TIMEOUT, observe).await.expect("in time")
    }
}

/// The part of a task that does not depend on where its approval requests are stored.
fn without_archive_id(task: &Value) -> Value {
    let mut task = task.clone();
    task.as_object_mut().expect("an object").remove("requests_archive").expect("present");
    task
}

async fn check_archive_and_restore(fixture: &Fixture) {
    let id = fixture.rejected_task().await;
    let recent = fixture.rejected_task().await;
    let path = format!("/tasks/{id}");
    let before = fixture.rob.get(&path).await.expect_status(200);
    let reviewer_stats = fixture.rob.get("/stats/users/me").await.expect_status(200);
    let overview = fixture.eve.get("/stats/overview").await.expect_status(200);
    let task_stats = fixture.rob.get(&format!("{path}/stats")).await.expect_status(200);
    fixture.age_tasks(31).await;
    let sql =
        |days: &str| format!("UPDATE tasks SET closed_at = closed_at + {days} WHERE task_id = '{recent}'");
    fixture.execute_sql(sql(&(999 * DAY_MICROS).to_string()), sql("interval '999 days'")).await;
    let requests = fixture.run_archive_job(1).await.remove(0);
    assert_eq!((text_field(&requests, "kind"), &requests["items"]), ("approvals".to_owned(), &json!(1)));
    // Reviewers still see the task, also in lists, and statistics are unchanged.
    let seen = fixture.rob.get(&path).await.expect_status(200);
    assert_eq!(without_archive_id(&seen), without_archive_id(&before));
    assert_eq!(seen["requests_archive"], requests["archive_id"]);
    assert_eq!(fixture.office.approvals(&id).await, Vec::<Value>::new());
    let listed = fixture.rob.get("/tasks?tag=old").await.expect_status(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(fixture.rob.get(&format!("{path}/stats")).await.expect_status(200), task_stats);
    assert_eq!(
        fixture.rob.get("/stats/users/me").await.expect_status(200)["approvals"],
        reviewer_stats["approvals"]
    );
    let page = fixture.shell.run_ok(&["task", "show", &id]).await;
    let archive_id = text_field(&requests, "archive_id");
    assert!(page.contains(&archive_id), "{page}");
    fixture.age_tasks(60).await;
    let all = fixture.run_archive_job(2).await;
    assert_eq!(text_field(&all[0], "kind"), "tasks");
    let _ = fixture.rob.get(&path).await.expect_problem(404, "TASK_NOT_FOUND");
    let now = fixture.eve.get("/stats/overview").await.expect_status(200);
    assert_eq!((&now["tasks"], &now["tasks_archived"]), (&overview["tasks"], &json!(1)));
    check_restore(fixture, &id, &all, &before).await;
    // A restored task is not archived again within a month.
    fixture.age_tasks(29).await;
    fixture.make_job_due().await;
    let observe = || async {
        let jobs = fixture.eve.get("/jobs").await.expect_status(200);
        let archive =
            jobs["items"].as_array().into_iter().flatten().find(|job| job["name"] == "archive").cloned();
        let job = archive.expect("listed");
        if job["status"] == "ok" && text_field(&job, "due_at") > text_field(&job, "ended_at") {
            Ok(())
        } else {
            Err(job.to_string())
        }
    };
    until("the job ran", TIMEOUT, observe).await.expect("in time");
    assert!(fixture.rob.get(&path).await.status == 200 && fixture.list_archives().await.len() == 2);
}

/// Restores through the command line, in either order of the archives.
async fn check_restore(fixture: &Fixture, id: &str, all: &[Value], before: &Value) {
    let table = fixture.shell.run_ok(&["archive", "ls"]).await;
    let (tasks, requests) = (text_field(&all[0], "archive_id"), text_field(&all[1], "archive_id"));
    assert!(table.contains(&tasks) && table.contains(&requests), "{table}");
    let early = fixture.shell.run(&["archive", "restore", &requests]).await;
    assert_eq!((early.exit_code, early.stdout.trim()), (Some(0), "restored 0 of 1 tasks"));
    assert!(early.stderr.contains("skipped 1, whose tasks are archived"), "{}", early.stderr);
    let back = fixture.shell.json(&["archive", "restore", &tasks]).await;
    assert_eq!(
        (&back["restored"], &back["outdated"], &back["still_archived"]),
        (&json!(1), &json!(0), &json!(0))
    );
    let path = format!("/tasks/{id}");
    assert_eq!(
        without_archive_id(&fixture.rob.get(&path).await.expect_status(200)),
        without_archive_id(before)
    );
    assert_eq!(
        fixture.shell.run_ok(&["archive", "restore", &requests]).await.trim(),
        "restored 1 of 1 tasks"
    );
    assert_eq!(fixture.rob.get(&path).await.expect_status(200), *before, "exactly as before");
    assert_eq!(fixture.office.approvals(id).await.len(), 1);
    assert_eq!(fixture.eve.get("/stats/overview").await.expect_status(200)["tasks_archived"], 0);
    // A retry with the same idempotency key returns the stored response.
    let key = [("idempotency-key", "once")];
    let restore = format!("/archives/{tasks}/restore");
    let first = fixture.eve.request_with_headers("POST", &restore, &key, "{}").await;
    let again = fixture.eve.request_with_headers("POST", &restore, &key, "{}").await;
    assert_eq!(
        (first.expect_status(200), again.header("idempotency-replayed")),
        (again.expect_status(200), "true")
    );
    let observe = || async {
        let entries = fixture.office.audit_entries("").await;
        match entries.iter().filter(|entry| text_field(entry, "action") == "archive.restore").count() {
            4 => Ok(()),
            other => Err(other.to_string()),
        }
    };
    until("each restore has one audit entry", TIMEOUT, observe).await.expect("in time");
}

async fn check_permissions(fixture: &Fixture) {
    let _ = fixture.rejected_task().await;
    fixture.age_tasks(31).await;
    let archive = text_field(&fixture.run_archive_job(1).await[0], "archive_id");
    let restore = format!("/archives/{archive}/restore");
    let auditor = fixture.office.create_user("aud", &[AUDITOR]).await;
    assert_eq!(auditor.get("/archives").await.expect_status(200)["items"].as_array().map(Vec::len), Some(1));
    for person in [&fixture.ann, &fixture.rob] {
        let _ = person.get("/archives").await.expect_problem(403, "FORBIDDEN");
    }
    for person in [&fixture.ann, &fixture.rob, &auditor] {
        let _ = person.post(&restore, &json!({})).await.expect_problem(403, "FORBIDDEN");
    }
    let read_only = fixture.office.issue_token("eve", &[Scope::Read]).await;
    let _ = read_only.post(&restore, &json!({})).await.expect_problem(403, "SCOPE_MISSING");
    for unknown in ["nothing", "00000000-0000-7000-8000-000000000000"] {
        let response = fixture.eve.post(&format!("/archives/{unknown}/restore"), &json!({})).await;
        let _ = response.expect_problem(404, "ARCHIVE_NOT_FOUND");
    }
    assert_eq!(fixture.eve.post(&restore, &json!({})).await.expect_status(200)["restored"], 1);
}

/// An archive is restored only as it was written, and what is restored is history.
async fn check_forged_archives(fixture: &Fixture) {
    let id = fixture.rejected_task().await;
    fixture.age_tasks(100).await;
    let all = fixture.run_archive_job(1).await;
    let (archive, key) = (text_field(&all[0], "archive_id"), text_field(&all[0], "key"));
    let (restore, file) = (format!("/archives/{archive}/restore"), fixture.house.server().blobs().join(key));
    let packed = std::fs::read(&file).expect("written");
    let assert_refused = async |why: &str| {
        let refused = fixture.eve.post(&restore, &json!({})).await.expect_problem(409, "FORGED_ARCHIVE");
        assert!(text_field(&refused, "detail").contains(why), "{refused}");
        let _ = fixture.ann.get(&format!("/tasks/{id}")).await.expect_problem(404, "TASK_NOT_FOUND");
    };
    // Another content, also if the description names its hash.
    std::fs::write(&file, b"forged").expect("written");
    assert_refused("its content was changed").await;
    let digest = ade_domain::task::Digest::of_bytes(b"forged");
    let set = |digest: &str| format!("UPDATE archives SET body = json_set(body, '$.digest', '{digest}')");
    fixture.execute_sql(set(&digest.to_string()), String::new()).await;
    assert_refused("its description was changed").await;
    std::fs::write(&file, packed).expect("written");
    fixture.execute_sql(set(&text_field(&all[0], "digest")), String::new()).await;
    // Without its audit entry.
    let hide = |action: &str| {
        let drop = "DROP TRIGGER IF EXISTS audit_no_update;";
        format!("{drop} UPDATE audit SET action = '{action}' WHERE body LIKE '%archive.create%'")
    };
    fixture.execute_sql(hide("other"), String::new()).await;
    assert_refused("its audit entry is missing").await;
    fixture.execute_sql(hide("archive.create"), String::new()).await;
    assert_eq!(fixture.eve.post(&restore, &json!({})).await.expect_status(200)["restored"], 1);
    // No command, whatever the state says.
    let task = fixture.ann.get(&format!("/tasks/{id}")).await.expect_status(200);
    assert_eq!(task["allowed"], json!([]), "{task}");
    let resubmit = format!("/tasks/{id}/resubmit");
    let _ = fixture.ann.post(&resubmit, &json!({})).await.expect_problem(409, "RESTORED_TASK");
    let sql = format!(
        "UPDATE tasks SET body = json_set(body, '$.state', 'DRAFT'), state = 'DRAFT' WHERE task_id = '{id}'"
    );
    fixture.execute_sql(sql, String::new()).await;
    let commands = [("POST", "/submit"), ("POST", "/cancel"), ("POST", "/comments"), ("DELETE", "")];
    for (method, command) in commands {
        let (path, body) = (format!("/tasks/{id}{command}"), json!({ "text": "hello" }));
        let body = if command == "/comments" { body } else { json!({}) };
        let refused = fixture.ann.request(method, &path, &body.to_string()).await;
        let _ = refused.expect_problem(409, "RESTORED_TASK");
    }
}

#[tokio::test]
async fn archives_and_restores_with_two_servers() {
    check_archive_and_restore(&Fixture::new(Deployment::distributed(ADE, 2)).await).await;
}

#[tokio::test]
async fn only_administrators_restore_archives() {
    check_permissions(&Fixture::new(Deployment::embedded(ADE)).await).await;
}

#[tokio::test]
async fn forged_archives_are_refused_and_restored_tasks_are_history() {
    check_forged_archives(&Fixture::new(Deployment::embedded(ADE)).await).await;
}

/// The kill comes as soon as a copy is on disk: before or after the rows are removed from the database.
#[tokio::test]
async fn kill_during_archiving_loses_nothing() {
    let fixture = Fixture::new(Deployment::embedded(ADE)).await;
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(fixture.rejected_task().await);
    }
    for (days, kind) in [(31, "approvals"), (60, "tasks")] {
        fixture.age_tasks(days).await;
        fixture.make_job_due().await;
        let folder = fixture.house.server().blobs();
        let copies = || -> Vec<PathBuf> {
            let all = snapshot(&folder);
            let found = all.keys().filter(|name| name.starts_with(&format!("archive/{kind}/")));
            found.filter(|name| name.ends_with(".gz")).map(PathBuf::from).collect()
        };
        let observe = || async { if copies().is_empty() { Err("nothing".to_owned()) } else { Ok(()) } };
        until("a copy is on disk", TIMEOUT, observe).await.expect("in time");
        fixture.house.server().kill_and_restart().expect("restarted");
        // Either all tasks were archived before the kill, or all are now.
        let of_kind = |all: &[Value]| -> Vec<Value> {
            all.iter().filter(|archive| text_field(archive, "kind") == kind).cloned().collect()
        };
        fixture.make_job_due().await;
        let observe = || async {
            let all = of_kind(&fixture.list_archives().await);
            let items: u64 = all.iter().filter_map(|archive| archive["items"].as_u64()).sum();
            if items >= 30 { Ok(all) } else { Err(json!(all).to_string()) }
        };
        let all = until("all tasks are archived", TIMEOUT, observe).await.expect("in time");
        assert_eq!(all.len(), 1, "archived once: {all:?}");
    }
    let mut all = fixture.list_archives().await;
    all.sort_by_key(|archive| std::cmp::Reverse(text_field(archive, "kind")));
    for archive in all {
        let restore = format!("/archives/{}/restore", text_field(&archive, "archive_id"));
        assert_eq!(fixture.eve.post(&restore, &json!({})).await.expect_status(200)["restored"], 30);
    }
    for id in ids {
        assert_eq!(fixture.rob.get(&format!("/tasks/{id}")).await.expect_status(200)["state"], "REJECTED");
        assert_eq!(fixture.office.approvals(&id).await.len(), 1);
    }
}
