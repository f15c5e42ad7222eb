//! One folder of blobs for all who share a record: whoever has another one does not start and says what to do; and what is missing
//! in it for a while is not taken for gone.

use std::process::{Command, Output};
use std::time::Duration;

use ade_testkit::House;
use ade_testkit::folder::{everything, write};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use serde_json::json;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn whoever_has_another_folder_does_not_start_and_says_what_to_do() {
    let house = House::distributed(ADE, 1);
    let (redis, postgres) = (house.redis.as_ref().expect("one"), house.postgres.as_ref().expect("one"));
    let around = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str], blobs: Option<&str>| -> Output {
        let mut command = Command::new(ADE);
        command.args(arguments).args(["--redis", &redis.url(), "--postgres", &postgres.url("ade")]);
        command.env_clear().env("NO_COLOR", "1").current_dir(around.path());
        command.envs(blobs.map(|folder| ("ADE_SERVER_BLOBS", folder))).output().expect("runs")
    };
    let first = house.ade().blobs().canonicalize().expect("there");
    let first = first.to_string_lossy();
    let wrong = around.path().join("wrong");
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
    // Exactly what it says.
    let worker = house.worker(ADE, "[executors.files]\nroots = [\"/nowhere/to/be/found\"]\n");
    let told = worker.process().wait_for_lines("files:/nowhere/to/be/found (which does not exist)", 1, LONG);
    told.expect("a root that is not there is told, and keeps nothing from starting");
    drop(worker);
    // The first one itself comes back, and so does its folder from elsewhere.
    house.ade().kill_and_restart().expect("starts again");
}

/// A worker is killed when all files are in place; whoever comes next does not see at once what would undo it.
#[tokio::test]
async fn what_is_not_there_yet_is_waited_for() {
    let around = tempfile::tempdir().expect("a folder");
    let root = around.path().join("root");
    write(&root.join("one"), "one before\n", 0o644);
    write(&root.join("two"), "two before\n", 0o644);
    let before = everything(&root);
    let pipe = around.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).expect("made");
    let config = format!(
        "[worker]\nlease_seconds = 2\n[executors.files]\nroots = [{root:?}]\n\
         [executors.command.templates.hang]\nargv = [\"cat\", \"--\", \"{{pipe}}\"]\n"
    );
    let house = House::working(ADE, &config);
    let office = house.office().await;
    office.policy(json!({ "name": "auto", "auto_approve_if": { "risk_below": 101 } })).await;
    let author = office.person("ann", &["author"]).await;
    let files = json!([{ "path": "one", "content": "one after\n" }, { "path": "two", "delete": true }]);
    let verify = json!({ "template": "hang", "arguments": { "pipe": pipe } });
    let parameters = json!({ "root": root, "files": files, "verify": verify });
    let id = author.submitted(json!({ "executor": "files", "parameters": parameters })).await;
    // What verifies reads from the pipe until nobody holds the other end.
    let look = || async {
        open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).map_err(|error| error.to_string())
    };
    let held = until("it is verified", LONG, look).await.expect("it is");
    assert!(!root.join("two").exists(), "all is in place");
    house.ade().kill().expect("killed");
    drop(held);
    let (stash, away) = (house.ade().blobs().join("stash"), around.path().join("stash"));
    std::fs::rename(&stash, &away).expect("moved");
    let mark = house.ade().process().mark();
    house.ade().start_again().expect("starts");
    let told = "rollback data of a lost worker is not available yet";
    house.ade().process().wait_for_line_after(mark, told, LONG).expect("told");
    assert_eq!(text(&office.task(&id).await, "state"), "APPLYING", "nobody gives it up");
    std::fs::rename(&away, &stash).expect("moved back");
    let failed = office.wait_for("it is settled", &id, |task| task["state"] == "FAILED").await;
    let execution = &failed["execution"];
    assert_eq!(
        (&execution["code"], &execution["rolled_back"]),
        (&json!("WORKER_LOST"), &json!(true)),
        "{failed}"
    );
    assert_eq!(everything(&root), before);
    assert_eq!(house.ade().process().lines_with(told).len(), 1, "once");
}
