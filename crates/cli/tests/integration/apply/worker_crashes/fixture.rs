//! Fixture for crash tests: one embedded server, or two servers and two workers on one Redis and one PostgreSQL. A temporary
//! folder holds the root of the files, the run log of the commands and the blobs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{AcquireRequest, HeldLocksRequest, LockSpec, LockToken};
use ade_testkit::deployment::text_field;
use ade_testkit::guard::GuardedProcess;
use ade_testkit::server::ServerBuilder;
use ade_testkit::wait::{eventually, until};
use ade_testkit::{AdeServer, AdminClient, ApiClient, Postgres, Redis, TestUser, WorkerProcess};
use rustix::process::Signal;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_ade");
/// Short, but long enough that a busy machine does not lose it.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// Generous: only a hang reaches it, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// The agent that claims tasks.
pub(crate) const AGENT: &str = "bot";

pub(crate) struct Fixture {
    // Field order is drop order: workers, servers, their stores.
    pub(crate) workers: Vec<WorkerProcess>,
    pub(crate) servers: Vec<AdeServer>,
    pub(crate) redis: Option<Redis>,
    _postgres: Option<Postgres>,
    pub(crate) office: AdminClient,
    pub(crate) author: TestUser,
    pub(crate) agent: TestUser,
    /// The root of the files executor.
    pub(crate) root: PathBuf,
    /// Every command appends a line when it runs.
    pub(crate) run_log: PathBuf,
    _folder: tempfile::TempDir,
}

/// A lock held by another agent.
pub(crate) struct BlockingLock {
    client: Client,
    release: HeldLocksRequest,
}

impl BlockingLock {
    pub(crate) async fn release(self) {
        // Fails if Redis has lost the lock.
        let _ = self.client.release_locks(&self.release).await;
    }
}

impl Fixture {
    pub(crate) async fn embedded() -> Self {
        let (folder, config) = create_folder();
        let server = ServerBuilder::new(BINARY).config(&config).start().expect("starts");
        Self::open(folder, Vec::new(), vec![server], None, None).await
    }

    pub(crate) async fn distributed() -> Self {
        let (folder, config) = create_folder();
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database = postgres.create_database("ade").expect("created");
        let server = || {
            let setup =
                ServerBuilder::new(BINARY).env("ADE_WORKER_SLOTS", "0").config(&base_config(&folder, ""));
            let setup = setup.arg("--redis").arg(&redis.url());
            setup.arg("--postgres").arg(&database).start().expect("starts")
        };
        let worker = || WorkerProcess::start(BINARY, &config, &redis.url(), &database).expect("starts");
        let (servers, workers) = (vec![server(), server()], vec![worker(), worker()]);
        Self::open(folder, workers, servers, Some(redis), Some(postgres)).await
    }

    async fn open(
        folder: tempfile::TempDir,
        workers: Vec<WorkerProcess>,
        servers: Vec<AdeServer>,
        redis: Option<Redis>,
        postgres: Option<Postgres>,
    ) -> Self {
        let office =
            AdminClient::without_hold(ApiClient::connect(servers.first().expect("a server")).await).await;
        let author = office.create_approved_author("pat").await;
        let agent = office.create_agent(AGENT, &author).await;
        let (root, run_log) = (folder.path().join("root"), folder.path().join("runs.log"));
        Self {
            workers,
            servers,
            redis,
            _postgres: postgres,
            office,
            author,
            agent,
            root,
            run_log,
            _folder: folder,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.servers.first().expect("a server").client().expect("usable")
    }

    /// All processes that apply tasks.
    pub(crate) fn worker_processes(&self) -> Vec<&GuardedProcess> {
        if self.redis.is_some() {
            self.workers.iter().map(WorkerProcess::process).collect()
        } else {
            self.servers.iter().map(AdeServer::process).collect()
        }
    }

    /// The process with this worker name; an embedded fixture has only one process.
    pub(crate) fn worker_process(&self, name: &str) -> &GuardedProcess {
        let worker = self.workers.iter().find(|worker| worker.name() == name).map(WorkerProcess::process);
        worker.or_else(|| self.worker_processes().first().copied()).expect("a worker process")
    }

    /// Suspends a worker process and waits until all its threads are stopped, because SIGSTOP takes effect with a delay.
    pub(crate) fn suspend(&self, name: &str) {
        let process = self.worker_process(name);
        process.signal(Signal::STOP).expect("stopped");
        let threads = PathBuf::from(format!("/proc/{}/task", process.pid()));
        let observe = || {
            for thread in std::fs::read_dir(&threads).map_err(|error| error.to_string())?.flatten() {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                // The state follows the name, which is in parentheses.
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                if state != Some('T') {
                    return Err(stat);
                }
            }
            Ok(())
        };
        eventually("every thread is stopped", TIMEOUT, observe).expect("in time");
    }

    /// Restarts the processes that were killed.
    pub(crate) fn restart_killed(&self) {
        for worker in self.workers.iter().filter(|worker| worker.process().pid() == 0) {
            worker.start_again().expect("starts");
        }
        for server in self.servers.iter().filter(|server| server.process().pid() == 0) {
            server.start_again().expect("starts");
        }
    }

    /// Creates a task that is approved at once. Retries the submission until a worker has made the preview.
    pub(crate) async fn submit(&self, task: Value) -> String {
        let id = self.author.create_draft(task).await;
        let observe = || async {
            let response = self.author.post(&format!("/tasks/{id}/submit"), &json!({})).await;
            if response.status == 202 { Ok(()) } else { Err(response.text()) }
        };
        until("the task is submitted", TIMEOUT, observe)
            .await
            .unwrap_or_else(|error| self.fail(&error.to_string()));
        self.author.approve_submitted(&id).await;
        id
    }

    /// Waits until the execution of a task satisfies `matches`.
    pub(crate) async fn wait_for_execution(
        &self,
        what: &str,
        id: &str,
        matches: impl Fn(&Value) -> bool,
    ) -> Value {
        let observe = || async {
            let task = self.office.task_request(id).await;
            let execution = task.get("execution").cloned().unwrap_or_default();
            if matches(&execution) { Ok(execution) } else { Err(task.to_string()) }
        };
        until(what, TIMEOUT, observe).await.unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    /// Acquires a lock as another agent.
    pub(crate) async fn block_lock(&self, lock: &str) -> BlockingLock {
        let agent_id = Some("other-agent".to_owned());
        let request = AcquireRequest {
            locks: vec![LockSpec { lock: lock.to_owned(), mode: None }],
            agent_id: agent_id.clone(),
            ttl_seconds: Some(120.0),
            wait_seconds: Some(10.0),
            ..AcquireRequest::default()
        };
        let client = self.client();
        let granted = client.acquire_locks(&request).await.expect("free");
        let ade_client::AcquireOutcome::Granted(granted) = granted else { panic!("{granted:?}") };
        let held_lock = |grant: &ade_client::wire::Grant| LockToken {
            lock: grant.lock.clone(),
            fencing_token: grant.fencing_token,
        };
        let locks = granted.grants.iter().map(held_lock).collect();
        BlockingLock { client, release: HeldLocksRequest { agent_id, holder_id: None, locks } }
    }

    /// The first worker that waits for a lock to apply a task.
    pub(crate) async fn waiting_worker(&self, lock: &str, task: &str) -> String {
        let client = self.client();
        let observe = || async {
            let seen = client.lock(lock).await.map_err(|error| error.to_string())?;
            let waits = seen.queue.iter().find(|waiter| waiter.holder_id.starts_with(task));
            waits.map(|waiter| waiter.agent_id.clone()).ok_or_else(|| format!("{seen:?}"))
        };
        until("a worker waits", TIMEOUT, observe).await.unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    pub(crate) async fn holders(&self, lock: &str) -> Result<Vec<String>, String> {
        let seen = self.client().lock(lock).await.map_err(|error| error.to_string())?;
        Ok(seen.holders.into_iter().map(|holder| holder.holder_id).collect())
    }

    /// Blocks changes, but not reads, until the returned file is dropped: a worker locks the root exclusively for changes.
    pub(crate) fn lock_root(&self) -> File {
        let guard = File::open(&self.root).expect("a folder");
        guard.lock_shared().expect("locked");
        guard
    }

    /// The file that an attempt creates once the originals are stashed.
    pub(crate) fn rollback_note(&self, task: &str, attempt: u64) -> PathBuf {
        self.root.join(".ade").join(format!("{task}-{attempt}"))
    }

    /// Panics with the last log lines of all processes.
    pub(crate) fn fail(&self, why: &str) -> ! {
        let last = |process: &GuardedProcess| {
            let lines = process.log_lines_with("");
            let skipped = lines.len().saturating_sub(60);
            lines.into_iter().skip(skipped).collect::<Vec<_>>().join("\n")
        };
        let processes = self
            .workers
            .iter()
            .map(WorkerProcess::process)
            .chain(self.servers.iter().map(AdeServer::process));
        let logs: Vec<String> = processes.map(last).collect();
        panic!("{why}\n{}", logs.join("\n--- other process:\n"))
    }
}

/// Returns the temporary folder and the configuration of its workers.
fn create_folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("root")).expect("created");
    std::fs::write(folder.path().join("runs.log"), "").expect("created");
    let (root, run_log) = (folder.path().join("root"), folder.path().join("runs.log"));
    // No lock of the root: the executor must fence it by itself. The line is written first: a command killed during the sleep
    // leaves it.
    let executors = format!(
        "[executors.files.roots.site]\npath = {root:?}\nlock = \"none\"\n\
         [executors.command.templates.append]\n\
         argv = [\"sh\", \"-c\", 'echo \"$1\" >> \"$0\"; sleep 0.4', {run_log:?}, \"{{line}}\"]\n"
    );
    let config = base_config(&folder, &executors);
    (folder, config)
}

fn base_config(folder: &tempfile::TempDir, executors: &str) -> String {
    let blobs = folder.path().join("blobs");
    let lease = LEASE.as_secs();
    format!("[server]\nblobs = {blobs:?}\n[worker]\nlease_seconds = {lease}\n{executors}")
}

/// All files and folders below a folder.
pub(crate) fn list_tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(list_tree(&path));
        }
        found.push(path);
    }
    found
}

pub(crate) fn attempt(execution: &Value) -> u64 {
    execution.get("attempt").and_then(Value::as_u64).unwrap_or_default()
}

pub(crate) fn phase(execution: &Value) -> String {
    text_field(execution, "phase")
}
