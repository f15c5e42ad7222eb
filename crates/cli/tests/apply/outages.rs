//! What is under way when somebody or something is gone: whoever changes back, the server that works, the record itself.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::{ADMIN, AUTHOR};
use ade_testkit::ade::Setup;
use ade_testkit::folder::{everything, write};
use ade_testkit::people::{task, text};
use ade_testkit::wait::until;
use ade_testkit::{Ade, Api, House, Office, Person, Postgres, Proxy, Redis, Worker, wait_for_exit};
use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Writes a line, and ends with what it reads.
const HANG: &str = "echo ran >> \"$1\"; exec cat -- \"$0\"";
/// The same, says its number, and does not want to end; below timeout(1), which takes a group of its own.
const STUBBORN: &str = "trap \"\" TERM; echo $$ >> \"$1\"; cat -- \"$0\"";

/// A root with one file, and a command that ends when somebody writes into its pipe.
struct Site {
    around: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { around: tempfile::tempdir().expect("a folder") };
        write(&site.root().join("web.conf"), "listen 80\n", 0o640);
        mknodat(CWD, site.pipe(), FileType::Fifo, 0o600.into(), 0).expect("made");
        site
    }

    fn root(&self) -> PathBuf {
        self.around.path().join("root")
    }

    fn pipe(&self) -> PathBuf {
        self.around.path().join("pipe")
    }

    /// What is there once the command was undone.
    fn undone(&self) -> PathBuf {
        self.around.path().join("undone")
    }

    fn ledger(&self) -> PathBuf {
        self.around.path().join("ledger")
    }

    fn config(&self, lease_seconds: u32) -> String {
        let (root, blobs) = (self.root(), self.around.path().join("blobs"));
        let (pipe, ledger) = (self.pipe(), self.ledger());
        format!(
            "[server]\nblobs = {blobs:?}\n[worker]\nlease_seconds = {lease_seconds}\n\
             [executors.files]\nroots = [{root:?}]\n\
             [executors.command.templates.hang]\n\
             argv = [\"sh\", \"-c\", '{HANG}', {pipe:?}, {ledger:?}]\n\
             [executors.command.templates.undoable]\n\
             argv = [\"sh\", \"-c\", '{HANG}', {pipe:?}, {ledger:?}]\n\
             rollback_argv = [\"touch\", {:?}]\n\
             [executors.command.templates.stubborn]\n\
             argv = [\"timeout\", \"1000\", \"sh\", \"-c\", '{STUBBORN}', {pipe:?}, {ledger:?}]\n",
            self.undone(),
        )
    }

    /// A change of the file that is verified by the command that hangs.
    fn change(&self, strategy: &str, verified: bool) -> Value {
        let files = json!([{ "path": "web.conf", "content": "listen 8080\n" }]);
        let mut parameters = json!({ "root": self.root(), "files": files });
        if verified {
            parameters["verify"] = json!({ "template": "hang" });
        }
        json!({ "executor": "files", "parameters": parameters, "rollback_strategy": strategy })
    }

    fn content(&self) -> String {
        fs::read_to_string(self.root().join("web.conf")).expect("there")
    }

    /// How often the command ran.
    fn ran(&self) -> usize {
        fs::read_to_string(self.ledger()).unwrap_or_default().lines().count()
    }

    async fn runs(&self, times: usize) {
        let look = || async {
            let ran = self.ran();
            if ran == times { Ok(()) } else { Err(format!("it ran {ran} times")) }
        };
        until("the command runs", LONG, look).await.expect("it does");
    }

    /// The command that came last and does not want to end.
    fn stubborn(&self) -> i32 {
        let ledger = fs::read_to_string(self.ledger()).expect("it ran");
        ledger.lines().last().and_then(|line| line.parse().ok()).expect("a number")
    }

    /// The command that hangs says this, and ends.
    fn end(&self, words: &str) {
        let mut pipe = OpenOptions::new().write(true).open(self.pipe()).expect("it reads");
        pipe.write_all(words.as_bytes()).expect("it listens");
    }

    /// Looks are allowed, changes are not, until it is dropped.
    fn hold_root(&self) -> File {
        let held = File::open(self.root()).expect("a folder");
        held.lock_shared().expect("locked");
        held
    }
}

async fn approving(office: &Office) -> Person {
    // Nobody is asked: what is submitted is approved.
    office.policy(json!({ "name": "auto", "auto_approve_if": { "risk_below": 101 } })).await;
    office.person("pat", &[AUTHOR]).await
}

fn is_over(task: &Value) -> bool {
    matches!(text(task, "state").as_str(), "COMPLETED" | "FAILED")
}

/// A task that has changed the file and failed, which an administrator wants undone; its worker is killed before it could, and
/// started again by whoever called.
async fn killed_while_it_changes_back(
    site: &Site,
    ade: &Ade,
    office: &Office,
    pat: &Person,
    ada: &Person,
) -> String {
    let ran = site.ran();
    let id = pat.submitted(site.change("manual", true)).await;
    site.runs(ran + 1).await;
    ade.kill().expect("killed");
    ade.start_again().expect("starts");
    let failed = office.wait_for("it is settled", &id, is_over).await;
    assert_eq!(failed["execution"]["code"], "OUTCOME_UNKNOWN", "{failed}");
    assert_eq!(site.content(), "listen 8080\n", "left as it is, until somebody wants it undone");
    let held = site.hold_root();
    let _ = ada.post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "undo it" })).await.expect(202);
    let undoing = |task: &Value| task["execution"]["phase"] == "ROLLING_BACK";
    office.wait_for("somebody changes it back", &id, undoing).await;
    ade.kill().expect("killed");
    drop(held);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_changes_back_may_be_killed() {
    let site = Site::new();
    let before = everything(&site.root());
    let house = House::working(ADE, &site.config(2));
    let office = house.office().await;
    let (pat, ada) = (approving(&office).await, office.person("ada", &[ADMIN]).await);
    let ended = |task: &Value| task["execution"]["phase"] == "ENDED";
    let id = killed_while_it_changes_back(&site, house.ade(), &office, &pat, &ada).await;
    house.ade().start_again().expect("starts");
    let over = office.wait_for("it is changed back", &id, ended).await;
    assert_eq!((&over["state"], &over["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(everything(&site.root()), before);

    // What is needed for that cannot be read any more: that is the end, and is not tried for ever.
    let id = killed_while_it_changes_back(&site, house.ade(), &office, &pat, &ada).await;
    let stashes = site.around.path().join("blobs/stash").join(&id);
    for stash in fs::read_dir(stashes).expect("kept").flatten() {
        fs::write(stash.path(), "no stash").expect("written");
    }
    house.ade().start_again().expect("starts");
    let over = office.wait_for("it is given up", &id, ended).await;
    assert_eq!((&over["state"], &over["execution"]["rolled_back"]), (&json!("FAILED"), &json!(false)));
    assert!(text(&over["execution"], "error").contains("the rollback failed"), "{over}");
    let told = || async {
        let all = office.audit(&format!("task={id}")).await;
        let count = |action: &str| all.iter().filter(|one| text(one, "action") == action).count();
        let (taken, failed) = (count("task.recover"), count("task.rollback_failed"));
        if failed == 1 { Ok(taken) } else { Err(format!("{failed} {all:?}")) }
    };
    let taken = until("it is told", LONG, told).await.expect("it is");
    assert_eq!(taken, 2, "taken over once for each that was killed");
}

/// Servers, what they stand on, and a way to cut them off from their record.
struct Town {
    servers: Vec<Ade>,
    redis: Redis,
    line: Proxy,
    _postgres: Postgres,
}

impl Town {
    async fn found(config: &str, slots: &[&str]) -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let line = Proxy::start(&postgres.create_database("ade").expect("made")).await;
        let server = |slots: &&str| {
            let setup = Setup::new(ADE).variable("ADE_WORKER_SLOTS", slots).config(config);
            let setup = setup.argument("--redis").argument(&redis.url());
            setup.argument("--postgres").argument(line.url()).start().expect("starts")
        };
        Self { servers: slots.iter().map(server).collect(), redis, line, _postgres: postgres }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_killed_while_its_worker_is_at_a_task() {
    let site = Site::new();
    let (config, before) = (site.config(2), everything(&site.root()));
    // One works, the other is the door.
    let town = Town::found(&config, &["4", "0"]).await;
    let office = Office { admin: Api::of(&town.servers[1]).await };
    let pat = approving(&office).await;
    let held = site.hold_root();
    let id = pat.submitted(site.change("automatic", false)).await;
    let prepared = |task: &Value| task["execution"]["phase"] == "PREPARED";
    let victim = office.wait_for("it has begun", &id, prepared).await;
    town.servers[0].kill().expect("killed");
    let worker = Worker::start(ADE, &config, &town.redis.url(), town.line.url()).expect("starts");
    drop(held);
    let done = office.wait_for("somebody else does it", &id, is_over).await;
    assert_eq!(text(&done, "state"), "COMPLETED", "{done}");
    assert_ne!(text(&done["execution"], "agent_id"), text(&victim["execution"], "agent_id"));
    assert_eq!(site.content(), "listen 8080\n");
    assert_eq!(everything(&site.root()).len(), before.len(), "nothing is left over");

    // Once more, when what it will change is in place and nobody has said so.
    town.servers[0].start_again().expect("starts");
    worker.kill().expect("killed");
    write(&site.root().join("web.conf"), "listen 80\n", 0o640);
    let ran = site.ran();
    let id = pat.submitted(site.change("automatic", true)).await;
    site.runs(ran + 1).await;
    town.servers[0].kill().expect("killed");
    worker.start_again().expect("starts");
    let over = office.wait_for("it is changed back", &id, is_over).await;
    assert_eq!((&over["state"], &over["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(everything(&site.root()), before);
    who_lost_its_locks_begins_no_rollback(&site, &town, &office, &pat).await;
    whoever_is_told_to_end_does_so_at_once(&worker, &town.servers[1]);
}

/// Redis loses everything while a command runs: it is killed, and undoing it is not begun under locks that are not held.
async fn who_lost_its_locks_begins_no_rollback(site: &Site, town: &Town, office: &Office, pat: &Person) {
    let ran = site.ran();
    let id = pat.submitted(json!({ "executor": "command", "parameters": { "template": "undoable" } })).await;
    site.runs(ran + 1).await;
    town.redis.tell::<()>(&["FLUSHALL"]).expect("flushed");
    let over = office.wait_for("it is given up", &id, is_over).await;
    let execution = &over["execution"];
    assert_eq!(
        (&execution["code"], &execution["rolled_back"]),
        (&json!("LOCKS_LOST"), &json!(false)),
        "{over}"
    );
    // Whoever had lost them said nothing about it: whoever took over does.
    assert!(text(execution, "error").contains("the rollback failed: the lease of"), "{over}");
    assert!(!site.undone().exists(), "{over}");
    // That is not the end of it: there are locks again.
    let ada = office.person("ada", &[ADMIN]).await;
    let seen = ada.get(&format!("/tasks/{id}")).await.expect(200);
    assert!(seen["allowed"].as_array().is_some_and(|all| all.iter().any(|one| one == "roll_back")), "{seen}");
    let _ = ada.post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "undo it" })).await.expect(202);
    let undone = |task: &Value| task["execution"]["rolled_back"] == json!(true);
    office.wait_for("it is undone", &id, undone).await;
    assert!(site.undone().exists());
}

/// A command ends with whoever carries it out, also if that cannot end it, and before anybody else may be at the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_with_its_worker_whatever_becomes_of_that() {
    let site = Site::new();
    let config = site.config(4);
    // Two work, one at a time; the other is the door.
    let town = Town::found(&config, &["1", "0"]).await;
    let office = Office { admin: Api::of(&town.servers[1]).await };
    let pat = approving(&office).await;
    let works = |how: Signal| town.servers[0].process().signal(how).expect("sent");
    for (times, how) in [(1, Signal::STOP), (2, Signal::KILL)] {
        let task = json!({ "executor": "command", "parameters": { "template": "stubborn" } });
        let id = pat.submitted(task).await;
        site.runs(times).await;
        let command = site.stubborn();
        assert!(!wait_for_exit(command, Some(Duration::ZERO)).expect("looked"), "it runs");
        works(how);
        let other = Worker::start(ADE, &config, &town.redis.url(), town.line.url()).expect("starts");
        let over = office.wait_for("it is settled", &id, is_over).await;
        assert!(wait_for_exit(command, Some(Duration::ZERO)).expect("looked"), "gone before that: {how:?}");
        assert_eq!(over["execution"]["code"], "OUTCOME_UNKNOWN", "{over}");
        other.stop().expect("ends");
        if how == Signal::STOP {
            works(Signal::CONT);
        }
    }
}

/// Nothing is under way: nobody needs to be waited for.
fn whoever_is_told_to_end_does_so_at_once(worker: &Worker, server: &Ade) {
    worker.stop().expect("ends");
    server.stop().expect("ends");
    for process in [worker.process(), server.process()] {
        assert_eq!(process.lines_with("still running"), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_is_away_while_a_task_is_under_way() {
    let site = Site::new();
    let town = Town::found(&site.config(30), &["4"]).await;
    let office = Office { admin: Api::of(&town.servers[0]).await };
    let pat = approving(&office).await;
    let id = pat.submitted(json!({ "executor": "command", "parameters": { "template": "hang" } })).await;
    site.runs(1).await;
    let count = async || {
        let all = office.admin.get("/tasks?limit=100").await.expect(200);
        all["items"].as_array().expect("a list").len()
    };
    let tasks = count().await;
    town.line.go_away();
    // Whatever is asked meanwhile is not acknowledged, and did not happen.
    for (path, body) in
        [("/tasks", task(json!({}))), (&*format!("/tasks/{id}/stop"), json!({ "reason": "no" }))]
    {
        let answer = office.admin.post(path, &body).await;
        assert_eq!(answer.status, 503, "{path}: {}", answer.text());
        assert!(!answer.header("retry-after").is_empty(), "{path}");
    }
    // It ends while nobody can write that down.
    site.end("done\n");
    town.servers[0].process().wait_for_lines("cannot record the end of a task", 1, LONG).expect("it tries");
    town.line.come_back();
    let done = office.wait_for("it is written down", &id, is_over).await;
    let execution = &done["execution"];
    assert_eq!((text(&done, "state").as_str(), &execution["attempt"]), ("COMPLETED", &json!(1)), "{done}");
    assert_eq!((execution["output"].as_str(), &execution["stop"]), (Some("done\n"), &Value::Null));
    assert_eq!((site.ran(), count().await), (1, tasks), "once, and nothing besides");
}
