//! A full disk under the database of an embedded server: writes are refused, reads go on, and everything that was acknowledged is there
//! afterwards. For the journal of locks, see `locks::server_lifecycle`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ade_domain::people::AUTHOR;
use ade_testkit::Deployment;
use ade_testkit::deployment::{task, text_field};
use ade_testkit::wait::until;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Far more than fits into the files that exist.
const MAX_TASKS: usize = 500;

fn largest_file(folder: &Path) -> u64 {
    let sizes = fs::read_dir(folder).expect("readable").filter_map(|entry| entry.ok()?.metadata().ok());
    sizes.filter(fs::Metadata::is_file).map(|file| file.len()).max().expect("a database")
}

/// A file size limit simulates a full disk.
#[tokio::test(flavor = "multi_thread")]
async fn database_on_a_full_disk_refuses_writes_and_loses_nothing() {
    let house = Deployment::embedded(ADE);
    let office = house.admin().await;
    let pat = office.create_user("pat", &[AUTHOR]).await;
    office.set_config("ratelimit:token", json!(0)).await;
    let mut acknowledged = vec![pat.create_draft(json!({})).await];
    let pid = Pid::from_raw(house.server().process().pid()).expect("it runs");
    let limit = |to: Option<u64>| {
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: to, maximum: None }).expect("limited");
    };
    limit(Some(largest_file(&house.server().data())));
    let body = task(json!({ "description": "x".repeat(2_000) }));
    let mut refused = None;
    while refused.is_none() && acknowledged.len() < MAX_TASKS {
        let created = pat.post("/tasks", &body).await;
        match created.status {
            201 => acknowledged.push(text_field(&created.json(), "task_id")),
            _ => refused = Some(created),
        }
    }
    let refused = refused.expect("the disk is full");
    let _ = refused.expect_problem(503, "UNAVAILABLE");
    assert!(!refused.header("retry-after").is_empty());
    let _ = pat.get(&format!("/tasks/{}", acknowledged[0])).await.expect_status(200);
    limit(None);
    let create = || async {
        let created = pat.post("/tasks", &body).await;
        if created.status == 201 { Ok(text_field(&created.json(), "task_id")) } else { Err(created.text()) }
    };
    acknowledged.push(until("writes are accepted again", TIMEOUT, create).await.expect("in time"));
    house.server().kill_and_restart().expect("restarts");
    for id in &acknowledged {
        let _ = pat.get(&format!("/tasks/{id}")).await.expect_status(200);
    }
    assert_eq!(office.api.verify_audit().await["status"], "valid");
}
