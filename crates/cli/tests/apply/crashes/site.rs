//! A site on which tasks are carried out: one server that does it all, or two servers and two workers on one Redis and one
//! PostgreSQL. A folder of its own holds the root of the files, the ledger of the commands and the blobs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{AcquireRequest, HeldLock, HoldRequest, LockAsk};
use ade_testkit::ade::Setup;
use ade_testkit::guard::Guarded;
use ade_testkit::people::text;
use ade_testkit::wait::{eventually, until};
use ade_testkit::{Ade, Api, Office, Person, Postgres, Redis, Worker};
use rustix::process::Signal;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_ade");
/// Short, and still long enough that nobody loses it because the machine is busy.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// Far beyond what anything here takes, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The agent that asks for work.
pub(crate) const BOT: &str = "bot";

/// Where tasks are carried out.
pub(crate) struct Site {
    // Dropped in this order: first who works, then who is asked, then what they stand on.
    pub(crate) workers: Vec<Worker>,
    pub(crate) servers: Vec<Ade>,
    pub(crate) redis: Option<Redis>,
    _postgres: Option<Postgres>,
    pub(crate) office: Office,
    pub(crate) author: Person,
    pub(crate) bot: Person,
    /// The root of the files.
    pub(crate) root: PathBuf,
    /// One line for each command that ran.
    pub(crate) ledger: PathBuf,
    _folder: tempfile::TempDir,
}

/// A lock that somebody else holds.
pub(crate) struct Blocked {
    client: Client,
    release: HoldRequest,
}

impl Blocked {
    pub(crate) async fn release(self) {
        // What Redis has forgotten cannot be given back.
        let _ = self.client.release(&self.release).await;
    }
}

impl Site {
    pub(crate) async fn embedded() -> Self {
        let (folder, config) = furnished();
        let server = Setup::new(BINARY).config(&config).start().expect("starts");
        Self::open(folder, Vec::new(), vec![server], None, None).await
    }

    pub(crate) async fn distributed() -> Self {
        let (folder, config) = furnished();
        let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
        let database = postgres.create_database("ade").expect("made");
        let server = || {
            let setup = Setup::new(BINARY).variable("ADE_WORKER_SLOTS", "0").config(&shared(&folder, ""));
            let setup = setup.argument("--redis").argument(&redis.url());
            setup.argument("--postgres").argument(&database).start().expect("starts")
        };
        let worker = || Worker::start(BINARY, &config, &redis.url(), &database).expect("starts");
        let (servers, workers) = (vec![server(), server()], vec![worker(), worker()]);
        Self::open(folder, workers, servers, Some(redis), Some(postgres)).await
    }

    async fn open(
        folder: tempfile::TempDir,
        workers: Vec<Worker>,
        servers: Vec<Ade>,
        redis: Option<Redis>,
        postgres: Option<Postgres>,
    ) -> Self {
        let office = Office { admin: Api::of(servers.first().expect("one at least")).await };
        // Nobody is asked: what is submitted is approved.
        let conditions = json!({ "risk_below": 101 });
        office.policy(json!({ "name": "auto", "auto_approve_if": conditions })).await;
        let author = office.person("pat", &["author"]).await;
        let bot = office.agent(BOT, &author).await;
        let (root, ledger) = (folder.path().join("root"), folder.path().join("ledger"));
        Self {
            workers,
            servers,
            redis,
            _postgres: postgres,
            office,
            author,
            bot,
            root,
            ledger,
            _folder: folder,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.servers.first().expect("one at least").client().expect("usable")
    }

    /// Everybody who carries tasks out.
    pub(crate) fn hands(&self) -> Vec<&Guarded> {
        if self.redis.is_some() {
            self.workers.iter().map(Worker::process).collect()
        } else {
            self.servers.iter().map(Ade::process).collect()
        }
    }

    /// The process of whoever is called so; embedded, there is only one.
    pub(crate) fn hand(&self, name: &str) -> &Guarded {
        let worker = self.workers.iter().find(|worker| worker.name() == name).map(Worker::process);
        worker.or_else(|| self.hands().first().copied()).expect("somebody works")
    }

    /// Stops whoever is called so, and waits until nothing of it runs any more: a signal that was sent has not arrived yet.
    pub(crate) fn stop(&self, name: &str) {
        let process = self.hand(name);
        process.signal(Signal::STOP).expect("stopped");
        let threads = PathBuf::from(format!("/proc/{}/task", process.pid()));
        let stopped = || {
            for thread in std::fs::read_dir(&threads).map_err(|error| error.to_string())?.flatten() {
                let about = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                // The state comes after the name, which is in brackets.
                let state = about.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                if state != Some('T') {
                    return Err(about);
                }
            }
            Ok(())
        };
        eventually("every thread is stopped", PATIENCE, stopped).expect("stopped");
    }

    /// Starts whoever was killed.
    pub(crate) fn start_again(&self) {
        for worker in self.workers.iter().filter(|worker| worker.process().pid() == 0) {
            worker.start_again().expect("starts");
        }
        for server in self.servers.iter().filter(|server| server.process().pid() == 0) {
            server.start_again().expect("starts");
        }
    }

    /// Proposes something that is approved at once. A preview that is made elsewhere may have to be waited for.
    pub(crate) async fn submit(&self, task: Value) -> String {
        let id = self.author.draft(task).await;
        let look = || async {
            let answer = self.author.post(&format!("/tasks/{id}/submit"), &json!({})).await;
            if answer.status == 202 { Ok(()) } else { Err(answer.text()) }
        };
        until("it is submitted", PATIENCE, look).await.unwrap_or_else(|error| self.fail(&error.to_string()));
        id
    }

    /// How a task is carried out, once it is so.
    pub(crate) async fn execution(&self, what: &str, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let look = || async {
            let task = self.office.task(id).await;
            let execution = task.get("execution").cloned().unwrap_or_default();
            if holds(&execution) { Ok(execution) } else { Err(task.to_string()) }
        };
        until(what, PATIENCE, look).await.unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    /// Somebody else takes a lock.
    pub(crate) async fn block(&self, lock: &str) -> Blocked {
        let agent_id = Some("somebody-else".to_owned());
        let request = AcquireRequest {
            locks: vec![LockAsk { lock: lock.to_owned(), mode: None }],
            agent_id: agent_id.clone(),
            ttl_seconds: Some(120.0),
            wait_seconds: Some(10.0),
            ..AcquireRequest::default()
        };
        let client = self.client();
        let granted = client.acquire(&request).await.expect("free");
        let ade_client::Acquired::Granted(granted) = granted else { panic!("{granted:?}") };
        let of = |grant: &ade_client::wire::Grant| HeldLock {
            lock: grant.lock.clone(),
            fencing_token: grant.fencing_token,
        };
        let locks = granted.grants.iter().map(of).collect();
        Blocked { client, release: HoldRequest { agent_id, holder_id: None, locks } }
    }

    /// The first worker that waits for a lock as an attempt at a task.
    pub(crate) async fn waiter(&self, lock: &str, task: &str) -> String {
        let client = self.client();
        let look = || async {
            let seen = client.lock(lock).await.map_err(|error| error.to_string())?;
            let waits = seen.queue.iter().find(|waiter| waiter.holder_id.starts_with(task));
            waits.map(|waiter| waiter.agent_id.clone()).ok_or_else(|| format!("{seen:?}"))
        };
        until("a worker waits", PATIENCE, look).await.unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    /// Who holds a lock.
    pub(crate) async fn holders(&self, lock: &str) -> Result<Vec<String>, String> {
        let seen = self.client().lock(lock).await.map_err(|error| error.to_string())?;
        Ok(seen.holders.into_iter().map(|holder| holder.holder_id).collect())
    }

    /// Looks are allowed, changes are not, until it is dropped: whoever changes files needs the folder for itself.
    pub(crate) fn hold_root(&self) -> File {
        let held = File::open(&self.root).expect("a folder");
        held.lock_shared().expect("locked");
        held
    }

    /// The note that an attempt leaves when what it will change is kept.
    pub(crate) fn note(&self, task: &str, attempt: u64) -> PathBuf {
        self.root.join(".ade").join(format!("{task}-{attempt}"))
    }

    /// The end of a test, with what everybody said.
    pub(crate) fn fail(&self, why: &str) -> ! {
        let last = |process: &Guarded| {
            let lines = process.lines_with("");
            let old = lines.len().saturating_sub(60);
            lines.into_iter().skip(old).collect::<Vec<_>>().join("\n")
        };
        let everybody = self.workers.iter().map(Worker::process).chain(self.servers.iter().map(Ade::process));
        let said: Vec<String> = everybody.map(last).collect();
        panic!("{why}\n{}", said.join("\n--- another process:\n"))
    }
}

fn furnished() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("root")).expect("made");
    std::fs::write(folder.path().join("ledger"), "").expect("made");
    let (root, ledger) = (folder.path().join("root"), folder.path().join("ledger"));
    // One line first, then the rest of what a command does: whoever is killed meanwhile leaves the line.
    let executors = format!(
        "[executors.files]\nroots = [{root:?}]\n\
         [executors.command.templates.ledger]\n\
         argv = [\"sh\", \"-c\", 'echo \"$1\" >> \"$0\"; sleep 0.4', {ledger:?}, \"{{line}}\"]\n"
    );
    let config = shared(&folder, &executors);
    (folder, config)
}

fn shared(folder: &tempfile::TempDir, executors: &str) -> String {
    let blobs = folder.path().join("blobs");
    let lease = LEASE.as_secs();
    format!("[server]\nblobs = {blobs:?}\n[worker]\nlease_seconds = {lease}\n{executors}")
}

/// Every file below a folder, and every empty folder.
pub(crate) fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().collect();
    for entry in entries {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found
}

/// The attempt of an execution.
pub(crate) fn attempt(execution: &Value) -> u64 {
    execution.get("attempt").and_then(Value::as_u64).unwrap_or_default()
}

/// How far an execution has come.
pub(crate) fn phase(execution: &Value) -> String {
    text(execution, "phase")
}
