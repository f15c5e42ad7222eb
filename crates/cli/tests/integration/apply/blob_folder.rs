//! All processes that share a database must share one blob folder: a process with another one refuses to start, and a
//! temporarily missing blob is waited for.

use std::process::{Command, Output};
use std::time::Duration;

use ade_testkit::Deployment;
use ade_testkit::deployment::text_field;
use ade_testkit::folder_snapshot::{snapshot, write_file};
use ade_testkit::server::SECRET;
use ade_testkit::wait::until;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::json;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn process_with_other_blob_folder_refuses_to_start() {
    let house = Deployment::distributed(ADE, 1);
    let (redis, postgres) =
        (house.redis.as_ref().expect("Redis"), house.postgres.as_ref().expect("PostgreSQL"));
    let folder = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str], blobs: Option<&str>| -> Output {
        let mut command = Command::new(ADE);
        command.args(arguments).args(["--redis", &redis.url(), "--postgres", &postgres.url("ade")]);
        command.env_clear().env("NO_COLOR", "1").env("ADE_SECRET", SECRET).current_dir(folder.path());
        command.envs(blobs.map(|path| ("ADE_SERVER_BLOBS", path))).output().expect("runs")
    };
    let first = house.server().blobs().canonicalize().expect("there");
    let first = first.to_string_lossy();
    let wrong = folder.path().join("wrong");
    for arguments in
        [["serve", "--listen", "127.0.0.1:0", "--data", "two"].as_slice(), &["worker", "--data", "three"]]
    {
        for blobs in [None, Some(wrong.to_str().expect("text"))] {
            let Output { status, stderr, .. } = run(arguments, blobs);
            let said = String::from_utf8_lossy(&stderr).into_owned();
            assert_eq!(status.code(), Some(5), "{said}");
            assert!(said.contains("use a different blob folder"), "{said}");
            assert!(said.contains(&format!("ADE_SERVER_BLOBS={first}")), "{said}");
        }
    }
    // With the shared folder a worker starts.
    let worker = house.start_worker(ADE, "[executors.files.roots.lost]\npath = \"/nowhere/to/be/found\"\n");
    let logged =
        worker.process().wait_for_log_lines("files:lost (/nowhere/to/be/found does not exist)", 1, TIMEOUT);
    logged.expect("a missing root is logged and does not prevent the start");
    drop(worker);
    // The first server restarts with its own folder.
    house.server().kill_and_restart().expect("restarted");
}

/// A worker is killed after it changed all files, and the rollback data for the rollback is missing for a while.
#[tokio::test]
async fn recovery_waits_for_rollback_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    write_file(&root.join("one"), "one before\n", 0o644);
    write_file(&root.join("two"), "two before\n", 0o644);
    let before = snapshot(&root);
    let pipe = folder.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).expect("created");
    let config = format!(
        "[worker]\nlease_seconds = 2\n[executors.files.roots.site]\npath = {root:?}\n\
         [executors.command.templates.hang]\nargv = [\"cat\", \"--\", \"{{pipe}}\"]\n"
    );
    let house = Deployment::with_worker(ADE, &config);
    let office = house.admin().await;
    let author = office.create_approved_author("ann").await;
    let files = json!([{ "path": "one", "content": "one after\n" }, { "path": "two", "delete": true }]);
    let verify = json!({ "template": "hang", "arguments": { "pipe": pipe } });
    let parameters = json!({ "root": "site", "files": files, "verify": verify });
    let id = author.create_submitted(json!({ "executor": "files", "parameters": parameters })).await;
    // The verify command reads from the pipe until it is closed.
    let observe = || async {
        open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).map_err(|error| error.to_string())
    };
    let writer = until("the verify command runs", TIMEOUT, observe).await.expect("in time");
    assert!(!root.join("two").exists(), "all files are changed");
    house.server().kill().expect("killed");
    drop(writer);
    let (rollback_data, moved) =
        (house.server().blobs().join("rollback_data"), folder.path().join("rollback_data"));
    std::fs::rename(&rollback_data, &moved).expect("moved");
    let mark = house.server().process().log_position();
    house.server().start_again().expect("starts");
    let message = "rollback data of a lost worker is not available yet";
    house.server().process().wait_for_log_line_after(mark, message, TIMEOUT).expect("logged");
    assert_eq!(text_field(&office.task_request(&id).await, "state"), "APPLYING", "the task is not failed");
    std::fs::rename(&moved, &rollback_data).expect("moved back");
    let failed = office.wait_for_task("the task is rolled back", &id, |task| task["state"] == "FAILED").await;
    let execution = &failed["execution"];
    assert_eq!(
        (&execution["code"], &execution["rolled_back"]),
        (&json!("WORKER_LOST"), &json!(true)),
        "{failed}"
    );
    assert_eq!(snapshot(&root), before);
    assert_eq!(house.server().process().log_lines_with(message).len(), 1, "logged once");
}
