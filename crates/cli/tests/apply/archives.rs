//! Archives over HTTP and from the command line, embedded and with two servers: what ended long ago leaves, people see and count
//! the same as before, it comes back when an administrator wants it, and a server that is killed meanwhile loses nothing.

use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::permission::Scope;
use ade_testkit::folder::everything;
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person, Shell};
use serde_json::{Value, json};
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const DAY_MICROS: u64 = 86_400_000_000;

struct Stage {
    house: House,
    office: Office,
    ann: Person,
    rob: Person,
    eve: Person,
    shell: Shell,
}

impl Stage {
    async fn of(house: House) -> Self {
        let office = house.office().await;
        let ann = office.person("ann", &[AUTHOR]).await;
        let rob = office.person("rob", &[REVIEWER]).await;
        let eve = office.person("eve", &[ADMIN]).await;
        let shell = Shell::of(ADE, house.ade(), &eve);
        Self { house, office, ann, rob, eve, shell }
    }

    /// A task that Rob rejected.
    async fn rejected(&self) -> String {
        let id = self.ann.submitted(json!({ "tags": ["old"] })).await;
        let request = self.office.request(&id, "rob").await;
        let _ = self.rob.answers(&request, "reject").await.expect(200);
        id
    }

    /// Past the servers.
    async fn sql(&self, sqlite: String, postgres: String) {
        if let Some(server) = &self.house.postgres {
            server.psql("ade", &postgres).expect("its owner");
            return;
        }
        let file = self.house.ade().data().join("ade.sqlite3");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let options = options.busy_timeout(Duration::from_secs(5));
        let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sqlite)).execute(&mut link).await.expect("its owner");
        link.close().await.expect("closed");
    }

    /// So many days pass for everything that ended.
    async fn pass(&self, days: u64) {
        let micros = days * DAY_MICROS;
        let of = |by: &str| {
            format!(
                "UPDATE tasks SET closed_at = closed_at - {by}, keep_until = keep_until - {by} \
                 WHERE closed_at IS NOT NULL"
            )
        };
        self.sql(of(&micros.to_string()), of(&format!("interval '{days} days'"))).await;
    }

    /// The job that archives is due, whoever had it before.
    async fn due(&self) {
        let of = |first: &str| {
            format!(
                "UPDATE jobs SET due_at = {first}, lease_until = NULL, holder = NULL WHERE name = 'archive'"
            )
        };
        self.sql(of("0"), of("'epoch'")).await;
    }

    async fn archives(&self) -> Vec<Value> {
        let page = self.eve.get("/archives").await.expect(200);
        page["items"].as_array().expect("items").clone()
    }

    /// Everything that is old enough is archived: the archives that there are then.
    async fn archived(&self, many: usize) -> Vec<Value> {
        self.due().await;
        let look = || async {
            let all = self.archives().await;
            if all.len() == many { Ok(all) } else { Err(json!(all).to_string()) }
        };
        until("it is archived", LONG, look).await.expect("it is")
    }
}

/// What is told about a task that must not depend on where its requests are.
fn lasting(task: &Value) -> Value {
    let mut task = task.clone();
    task.as_object_mut().expect("an object").remove("requests_archive").expect("said");
    task
}

async fn leaves_and_comes_back(stage: &Stage) {
    let id = stage.rejected().await;
    let young = stage.rejected().await;
    let path = format!("/tasks/{id}");
    let before = stage.rob.get(&path).await.expect(200);
    let of_rob = stage.rob.get("/stats/users/me").await.expect(200);
    let overview = stage.eve.get("/stats/overview").await.expect(200);
    let numbers = stage.rob.get(&format!("{path}/stats")).await.expect(200);
    stage.pass(31).await;
    let of =
        |days: &str| format!("UPDATE tasks SET closed_at = closed_at + {days} WHERE task_id = '{young}'");
    stage.sql(of(&(999 * DAY_MICROS).to_string()), of("interval '999 days'")).await;
    let requests = stage.archived(1).await.remove(0);
    assert_eq!((text(&requests, "kind"), &requests["items"]), ("approvals".to_owned(), &json!(1)));
    // Whoever was asked sees what it saw, in lists as well, and is counted as before.
    let seen = stage.rob.get(&path).await.expect(200);
    assert_eq!(lasting(&seen), lasting(&before));
    assert_eq!(seen["requests_archive"], requests["archive_id"]);
    assert_eq!(stage.office.requests(&id).await, Vec::<Value>::new());
    let listed = stage.rob.get("/tasks?tag=old").await.expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(stage.rob.get(&format!("{path}/stats")).await.expect(200), numbers);
    assert_eq!(stage.rob.get("/stats/users/me").await.expect(200)["approvals"], of_rob["approvals"]);
    let page = stage.shell.says(&["task", "show", &id]).await;
    let archive_id = text(&requests, "archive_id");
    assert!(page.contains(&archive_id), "{page}");
    stage.pass(60).await;
    let all = stage.archived(2).await;
    assert_eq!(text(&all[0], "kind"), "tasks");
    let _ = stage.rob.get(&path).await.problem(404, "TASK_NOT_FOUND");
    let now = stage.eve.get("/stats/overview").await.expect(200);
    assert_eq!((&now["tasks"], &now["tasks_archived"]), (&overview["tasks"], &json!(1)));
    comes_back(stage, &id, &all, &before).await;
    // Not within the hour, nor the month.
    stage.pass(29).await;
    stage.due().await;
    let ran = || async {
        let jobs = stage.eve.get("/jobs").await.expect(200);
        let archive =
            jobs["items"].as_array().into_iter().flatten().find(|job| job["name"] == "archive").cloned();
        let job = archive.expect("listed");
        if job["status"] == "ok" && text(&job, "due_at") > text(&job, "ended_at") {
            Ok(())
        } else {
            Err(job.to_string())
        }
    };
    until("the job ran", LONG, ran).await.expect("it did");
    assert!(stage.rob.get(&path).await.status == 200 && stage.archives().await.len() == 2);
}

/// By the command line, whichever archive comes first.
async fn comes_back(stage: &Stage, id: &str, all: &[Value], before: &Value) {
    let table = stage.shell.says(&["archive", "ls"]).await;
    let (tasks, requests) = (text(&all[0], "archive_id"), text(&all[1], "archive_id"));
    assert!(table.contains(&tasks) && table.contains(&requests), "{table}");
    let early = stage.shell.run(&["archive", "restore", &requests]).await;
    assert_eq!((early.code, early.out.trim()), (Some(0), "restored 0 of 1 tasks"));
    assert!(early.err.contains("skipped 1, whose tasks are archived"), "{}", early.err);
    let back = stage.shell.json(&["archive", "restore", &tasks]).await;
    assert_eq!((&back["restored"], &back["outdated"], &back["away"]), (&json!(1), &json!(0), &json!(0)));
    let path = format!("/tasks/{id}");
    assert_eq!(lasting(&stage.rob.get(&path).await.expect(200)), lasting(before));
    assert_eq!(stage.shell.says(&["archive", "restore", &requests]).await.trim(), "restored 1 of 1 tasks");
    assert_eq!(stage.rob.get(&path).await.expect(200), *before, "as it was");
    assert_eq!(stage.office.requests(id).await.len(), 1);
    assert_eq!(stage.eve.get("/stats/overview").await.expect(200)["tasks_archived"], 0);
    // Repeated, it is answered the same.
    let key = [("idempotency-key", "once")];
    let restore = format!("/archives/{tasks}/restore");
    let first = stage.eve.call_with("POST", &restore, &key, "{}").await;
    let again = stage.eve.call_with("POST", &restore, &key, "{}").await;
    assert_eq!((first.expect(200), again.header("idempotency-replayed")), (again.expect(200), "true"));
    let told = || async {
        let told = stage.office.audit("").await;
        match told.iter().filter(|entry| text(entry, "action") == "archive.restore").count() {
            4 => Ok(()),
            other => Err(other.to_string()),
        }
    };
    until("each is told once", LONG, told).await.expect("it is");
}

async fn only_administrators_bring_back(stage: &Stage) {
    let _ = stage.rejected().await;
    stage.pass(31).await;
    let archive = text(&stage.archived(1).await[0], "archive_id");
    let restore = format!("/archives/{archive}/restore");
    let auditor = stage.office.person("aud", &[AUDITOR]).await;
    assert_eq!(auditor.get("/archives").await.expect(200)["items"].as_array().map(Vec::len), Some(1));
    for who in [&stage.ann, &stage.rob] {
        let _ = who.get("/archives").await.problem(403, "FORBIDDEN");
    }
    for who in [&stage.ann, &stage.rob, &auditor] {
        let _ = who.post(&restore, &json!({})).await.problem(403, "FORBIDDEN");
    }
    let reads = stage.office.with_scopes("eve", &[Scope::Read]).await;
    let _ = reads.post(&restore, &json!({})).await.problem(403, "SCOPE_MISSING");
    for unknown in ["nothing", "00000000-0000-7000-8000-000000000000"] {
        let none = stage.eve.post(&format!("/archives/{unknown}/restore"), &json!({})).await;
        let _ = none.problem(404, "ARCHIVE_NOT_FOUND");
    }
    assert_eq!(stage.eve.post(&restore, &json!({})).await.expect(200)["restored"], 1);
}

#[tokio::test]
async fn embedded() {
    leaves_and_comes_back(&Stage::of(House::embedded(ADE)).await).await;
}

#[tokio::test]
async fn with_two_servers() {
    leaves_and_comes_back(&Stage::of(House::distributed(ADE, 2)).await).await;
}

#[tokio::test]
async fn who_may() {
    only_administrators_bring_back(&Stage::of(House::embedded(ADE)).await).await;
}

/// As soon as a copy is on the disk, and so perhaps before anything has left the record, perhaps afterwards.
#[tokio::test]
async fn a_server_that_is_killed_while_it_archives_loses_nothing() {
    let stage = Stage::of(House::embedded(ADE)).await;
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(stage.rejected().await);
    }
    for (days, kind) in [(31, "approvals"), (60, "tasks")] {
        stage.pass(days).await;
        stage.due().await;
        let folder = stage.house.ade().blobs();
        let copies = || -> Vec<PathBuf> {
            let all = everything(&folder);
            let found = all.keys().filter(|name| name.starts_with(&format!("archive/{kind}/")));
            found.filter(|name| name.ends_with(".gz")).map(PathBuf::from).collect()
        };
        let look = || async { if copies().is_empty() { Err("nothing".to_owned()) } else { Ok(()) } };
        until("a copy is made", LONG, look).await.expect("it is");
        stage.house.ade().kill_and_restart().expect("starts again");
        // All left, or none: and then all do so now.
        let of_kind = |all: &[Value]| -> Vec<Value> {
            all.iter().filter(|one| text(one, "kind") == kind).cloned().collect()
        };
        stage.due().await;
        let look = || async {
            let all = of_kind(&stage.archives().await);
            let many: u64 = all.iter().filter_map(|one| one["items"].as_u64()).sum();
            if many >= 30 { Ok(all) } else { Err(json!(all).to_string()) }
        };
        let all = until("all left", LONG, look).await.expect("they did");
        assert_eq!(all.len(), 1, "once: {all:?}");
    }
    let mut all = stage.archives().await;
    all.sort_by_key(|one| std::cmp::Reverse(text(one, "kind")));
    for archive in all {
        let restore = format!("/archives/{}/restore", text(&archive, "archive_id"));
        assert_eq!(stage.eve.post(&restore, &json!({})).await.expect(200)["restored"], 30);
    }
    for id in ids {
        assert_eq!(stage.rob.get(&format!("/tasks/{id}")).await.expect(200)["state"], "REJECTED");
        assert_eq!(stage.office.requests(&id).await.len(), 1);
    }
}
