//! Outages while a task is being applied: a worker is killed during rollback, a server is killed or suspended, Redis loses
//! its data, the database is unreachable.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use ade_domain::people::ADMIN;
use ade_testkit::deployment::{task, text_field};
use ade_testkit::folder_snapshot::{snapshot, write_file};
use ade_testkit::server::ServerBuilder;
use ade_testkit::wait::until;
use ade_testkit::{
    AdeServer, AdminClient, ApiClient, Deployment, Postgres, PostgresProxy, Redis, TestUser, WorkerProcess,
    wait_for_exit,
};
use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Appends a line to the run log, then blocks until the pipe is written to.
const HANG: &str = "echo ran >> \"$1\"; exec cat -- \"$0\"";
/// The same, but logs its process id and ignores SIGTERM. It runs below timeout(1), which creates a process group.
const STUBBORN: &str = "trap \"\" TERM; echo $$ >> \"$1\"; cat -- \"$0\"";

/// A root folder with one file, and commands that block until their pipe is written to.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().expect("a folder") };
        write_file(&fixture.root().join("web.conf"), "listen 80\n", 0o640);
        mknodat(CWD, fixture.pipe(), FileType::Fifo, 0o600.into(), 0).expect("created");
        fixture
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// Created by the rollback of the command.
    fn rollback_marker(&self) -> PathBuf {
        self.folder.path().join("undone")
    }

    fn run_log(&self) -> PathBuf {
        self.folder.path().join("runs.log")
    }

    fn config(&self, lease_seconds: u32) -> String {
        let (root, blobs) = (self.root(), self.folder.path().join("blobs"));
        let (pipe, run_log) = (self.pipe(), self.run_log());
        format!(
            "[server]\nblobs = {blobs:?}\n[worker]\nlease_seconds = {lease_seconds}\n\
             [executors.files.roots.site]\npath = {root:?}\n\
             [executors.command.templates.hang]\n\
             argv = [\"sh\", \"-c\", '{HANG}', {pipe:?}, {run_log:?}]\n\
             [executors.command.templates.undoable]\n\
             argv = [\"sh\", \"-c\", '{HANG}', {pipe:?}, {run_log:?}]\n\
             rollback_argv = [\"touch\", {:?}]\n\
             [executors.command.templates.stubborn]\n\
             argv = [\"timeout\", \"1000\", \"sh\", \"-c\", '{STUBBORN}', {pipe:?}, {run_log:?}]\n",
            self.rollback_marker(),
        )
    }

    /// A change of the file, optionally verified by the blocking command.
    fn change_task(&self, strategy: &str, is_verified: bool) -> Value {
        let files = json!([{ "path": "web.conf", "content": "listen 8080\n" }]);
        let mut parameters = json!({ "root": "site", "files": files });
        if is_verified {
            parameters["verify"] = json!({ "template": "hang" });
        }
        json!({ "executor": "files", "parameters": parameters, "rollback_strategy": strategy })
    }

    fn content(&self) -> String {
        fs::read_to_string(self.root().join("web.conf")).expect("there")
    }

    fn run_count(&self) -> usize {
        fs::read_to_string(self.run_log()).unwrap_or_default().lines().count()
    }

    async fn wait_for_runs(&self, count: usize) {
        let observe = || async {
            let runs = self.run_count();
            if runs == count { Ok(()) } else { Err(format!("the command ran {runs} times")) }
        };
        until("the command runs", TIMEOUT, observe).await.expect("in time");
    }

    /// The process id of the last command that ignores SIGTERM.
    fn stubborn_pid(&self) -> i32 {
        let log = fs::read_to_string(self.run_log()).expect("the command ran");
        log.lines().last().and_then(|line| line.parse().ok()).expect("a number")
    }

    /// Unblocks the command, which prints `output` and exits.
    fn finish_command(&self, output: &str) {
        let mut pipe = OpenOptions::new().write(true).open(self.pipe()).expect("the command reads from it");
        pipe.write_all(output.as_bytes()).expect("written");
    }

    /// Blocks changes, but not reads, until the returned file is dropped.
    fn lock_root(&self) -> File {
        let guard = File::open(self.root()).expect("a folder");
        guard.lock_shared().expect("locked");
        guard
    }
}

fn is_finished(task: &Value) -> bool {
    matches!(text_field(task, "state").as_str(), "COMPLETED" | "FAILED")
}

/// A task changes the file and fails, an administrator requests a rollback, and the worker is killed before it happens.
/// The caller restarts it.
async fn kill_during_rollback(
    fixture: &Fixture,
    ade: &AdeServer,
    office: &AdminClient,
    pat: &TestUser,
    ada: &TestUser,
) -> String {
    let runs = fixture.run_count();
    let id = pat.create_submitted(fixture.change_task("manual", true)).await;
    fixture.wait_for_runs(runs + 1).await;
    ade.kill().expect("killed");
    ade.start_again().expect("starts");
    let failed = office.wait_for_task("the task is recovered", &id, is_finished).await;
    assert_eq!(failed["execution"]["code"], "OUTCOME_UNKNOWN", "{failed}");
    assert_eq!(fixture.content(), "listen 8080\n", "unchanged until a rollback is requested");
    let root_guard = fixture.lock_root();
    let _ =
        ada.post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "undo it" })).await.expect_status(202);
    let is_rolling_back = |task: &Value| task["execution"]["phase"] == "ROLLING_BACK";
    office.wait_for_task("the rollback starts", &id, is_rolling_back).await;
    ade.kill().expect("killed");
    drop(root_guard);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_survives_killed_worker() {
    let fixture = Fixture::new();
    let before = snapshot(&fixture.root());
    let house = Deployment::with_worker(ADE, &fixture.config(2));
    let office = house.admin().await;
    let (pat, ada) = (office.create_approved_author("pat").await, office.create_user("ada", &[ADMIN]).await);
    let has_ended = |task: &Value| task["execution"]["phase"] == "ENDED";
    let id = kill_during_rollback(&fixture, house.server(), &office, &pat, &ada).await;
    house.server().start_again().expect("starts");
    let task = office.wait_for_task("the task is rolled back", &id, has_ended).await;
    assert_eq!((&task["state"], &task["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(snapshot(&fixture.root()), before);

    // The rollback data is corrupt: the rollback fails for good and is not retried forever.
    let id = kill_during_rollback(&fixture, house.server(), &office, &pat, &ada).await;
    let rollback_data = fixture.folder.path().join("blobs/rollback_data").join(&id);
    for rollback_data in fs::read_dir(rollback_data).expect("rollback_data").flatten() {
        fs::write(rollback_data.path(), "corrupt").expect("written");
    }
    house.server().start_again().expect("starts");
    let over = office.wait_for_task("the task fails", &id, has_ended).await;
    assert_eq!((&over["state"], &over["execution"]["rolled_back"]), (&json!("FAILED"), &json!(false)));
    assert!(text_field(&over["execution"], "error").contains("the rollback failed"), "{over}");
    let observe = || async {
        let entries = office.audit_entries(&format!("task={id}")).await;
        let count =
            |action: &str| entries.iter().filter(|entry| text_field(entry, "action") == action).count();
        let (recovered, failed) = (count("task.recover"), count("task.rollback_failed"));
        if failed == 1 { Ok(recovered) } else { Err(format!("{failed} {entries:?}")) }
    };
    let recovered = until("the audit entries are written", TIMEOUT, observe).await.expect("in time");
    assert_eq!(recovered, 2, "one recovery per kill");
}

/// Servers on one Redis and one PostgreSQL; a proxy can cut them off from the database.
struct ServersBehindProxy {
    servers: Vec<AdeServer>,
    redis: Redis,
    database_proxy: PostgresProxy,
    _postgres: Postgres,
}

impl ServersBehindProxy {
    /// One server per item of `slots`, the number of tasks it applies concurrently.
    async fn start(config: &str, slots: &[&str]) -> Self {
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database_proxy = PostgresProxy::start(&postgres.create_database("ade").expect("created")).await;
        let server = |slots: &&str| {
            let setup = ServerBuilder::new(ADE).env("ADE_WORKER_SLOTS", slots).config(config);
            let setup = setup.arg("--redis").arg(&redis.url());
            setup.arg("--postgres").arg(database_proxy.url()).start().expect("starts")
        };
        Self { servers: slots.iter().map(server).collect(), redis, database_proxy, _postgres: postgres }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_recovers_tasks_of_killed_server() {
    let fixture = Fixture::new();
    let (config, before) = (fixture.config(2), snapshot(&fixture.root()));
    // The first server applies tasks, the second one serves the API.
    let deployment = ServersBehindProxy::start(&config, &["4", "0"]).await;
    let office = AdminClient { api: ApiClient::connect(&deployment.servers[1]).await };
    let pat = office.create_approved_author("pat").await;
    let root_guard = fixture.lock_root();
    let id = pat.create_submitted(fixture.change_task("automatic", false)).await;
    let is_prepared = |task: &Value| task["execution"]["phase"] == "PREPARED";
    let victim = office.wait_for_task("the task is prepared", &id, is_prepared).await;
    deployment.servers[0].kill().expect("killed");
    let worker = WorkerProcess::start(ADE, &config, &deployment.redis.url(), deployment.database_proxy.url())
        .expect("starts");
    drop(root_guard);
    let done = office.wait_for_task("another worker applies it", &id, is_finished).await;
    assert_eq!(text_field(&done, "state"), "COMPLETED", "{done}");
    assert_ne!(text_field(&done["execution"], "agent_id"), text_field(&victim["execution"], "agent_id"));
    assert_eq!(fixture.content(), "listen 8080\n");
    assert_eq!(snapshot(&fixture.root()).len(), before.len(), "no temporary files are left");

    // The same after the files are changed and before the outcome is recorded.
    deployment.servers[0].start_again().expect("starts");
    worker.kill().expect("killed");
    write_file(&fixture.root().join("web.conf"), "listen 80\n", 0o640);
    let runs = fixture.run_count();
    let id = pat.create_submitted(fixture.change_task("automatic", true)).await;
    fixture.wait_for_runs(runs + 1).await;
    deployment.servers[0].kill().expect("killed");
    worker.start_again().expect("starts");
    let task = office.wait_for_task("the task is rolled back", &id, is_finished).await;
    assert_eq!((&task["state"], &task["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(snapshot(&fixture.root()), before);
    no_rollback_without_locks(&fixture, &deployment, &office, &pat).await;
    idle_processes_shut_down_at_once(&worker, &deployment.servers[1]);
}

/// Redis loses all data while a command runs: the command is killed, and no rollback starts without the locks.
async fn no_rollback_without_locks(
    fixture: &Fixture,
    deployment: &ServersBehindProxy,
    office: &AdminClient,
    pat: &TestUser,
) {
    let runs = fixture.run_count();
    let id = pat
        .create_submitted(json!({ "executor": "command", "parameters": { "template": "undoable" } }))
        .await;
    fixture.wait_for_runs(runs + 1).await;
    deployment.redis.query::<()>(&["FLUSHALL"]).expect("flushed");
    let over = office.wait_for_task("the task fails", &id, is_finished).await;
    let execution = &over["execution"];
    assert_eq!(
        (&execution["code"], &execution["rolled_back"]),
        (&json!("LOCKS_LOST"), &json!(false)),
        "{over}"
    );
    // The error is reported by the worker that recovers the task.
    assert!(text_field(execution, "error").contains("the rollback failed: the lease of"), "{over}");
    assert!(!fixture.rollback_marker().exists(), "{over}");
    // An administrator can still request the rollback once locks are available.
    let ada = office.create_user("ada", &[ADMIN]).await;
    let seen = ada.get(&format!("/tasks/{id}")).await.expect_status(200);
    assert!(seen["allowed"].as_array().is_some_and(|all| all.iter().any(|one| one == "roll_back")), "{seen}");
    let _ =
        ada.post(&format!("/tasks/{id}/rollback"), &json!({ "reason": "undo it" })).await.expect_status(202);
    let is_rolled_back = |task: &Value| task["execution"]["rolled_back"] == json!(true);
    office.wait_for_task("the rollback completes", &id, is_rolled_back).await;
    assert!(fixture.rollback_marker().exists());
}

/// A command is stopped with its worker, even if the worker cannot do so itself, and before another worker takes over.
#[tokio::test(flavor = "multi_thread")]
async fn command_is_stopped_with_suspended_or_killed_worker() {
    let fixture = Fixture::new();
    let config = fixture.config(4);
    // The first server and a separate worker apply tasks, one at a time; the second server serves the API.
    let deployment = ServersBehindProxy::start(&config, &["1", "0"]).await;
    let office = AdminClient { api: ApiClient::connect(&deployment.servers[1]).await };
    let pat = office.create_approved_author("pat").await;
    let signal = |signal: Signal| deployment.servers[0].process().signal(signal).expect("sent");
    for (runs, kind) in [(1, Signal::STOP), (2, Signal::KILL)] {
        let task = json!({ "executor": "command", "parameters": { "template": "stubborn" } });
        let id = pat.create_submitted(task).await;
        fixture.wait_for_runs(runs).await;
        let command = fixture.stubborn_pid();
        assert!(!wait_for_exit(command, Some(Duration::ZERO)).expect("observed"), "the command runs");
        signal(kind);
        let other =
            WorkerProcess::start(ADE, &config, &deployment.redis.url(), deployment.database_proxy.url())
                .expect("starts");
        let task = office.wait_for_task("the task is recovered", &id, is_finished).await;
        assert!(
            wait_for_exit(command, Some(Duration::ZERO)).expect("observed"),
            "stopped before recovery: {kind:?}"
        );
        assert_eq!(task["execution"]["code"], "OUTCOME_UNKNOWN", "{task}");
        other.stop().expect("stops");
        if kind == Signal::STOP {
            signal(Signal::CONT);
        }
    }
}

/// No task is being applied, so shutdown does not wait.
fn idle_processes_shut_down_at_once(worker: &WorkerProcess, server: &AdeServer) {
    worker.stop().expect("stops");
    server.stop().expect("stops");
    for process in [worker.process(), server.process()] {
        assert_eq!(process.log_lines_with("still running"), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_completes_after_database_outage() {
    let fixture = Fixture::new();
    let deployment = ServersBehindProxy::start(&fixture.config(30), &["4"]).await;
    let office = AdminClient { api: ApiClient::connect(&deployment.servers[0]).await };
    let pat = office.create_approved_author("pat").await;
    let id =
        pat.create_submitted(json!({ "executor": "command", "parameters": { "template": "hang" } })).await;
    fixture.wait_for_runs(1).await;
    let task_count = async || {
        let all = office.api.get("/tasks?limit=100").await.expect_status(200);
        all["items"].as_array().expect("a list").len()
    };
    let tasks = task_count().await;
    deployment.database_proxy.disconnect();
    // Requests during the outage are rejected and have no effect.
    for (path, body) in
        [("/tasks", task(json!({}))), (&*format!("/tasks/{id}/stop"), json!({ "reason": "no" }))]
    {
        let response = office.api.post(path, &body).await;
        assert_eq!(response.status, 503, "{path}: {}", response.text());
        assert!(!response.header("retry-after").is_empty(), "{path}");
    }
    // The command exits while the outcome cannot be stored.
    fixture.finish_command("done\n");
    deployment.servers[0]
        .process()
        .wait_for_log_lines("cannot store the end of a task", 1, TIMEOUT)
        .expect("retries");
    deployment.database_proxy.reconnect();
    let done = office.wait_for_task("the outcome is stored", &id, is_finished).await;
    let execution = &done["execution"];
    assert_eq!(
        (text_field(&done, "state").as_str(), &execution["attempt"]),
        ("COMPLETED", &json!(1)),
        "{done}"
    );
    assert_eq!((execution["output"].as_str(), &execution["stop"]), (Some("done\n"), &Value::Null));
    assert_eq!(
        (fixture.run_count(), task_count().await),
        (1, tasks),
        "applied once, and no other task created"
    );
}
