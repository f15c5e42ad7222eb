//! A worker process that increments the counters: this test binary, run again with a configuration in its environment.
//!
//! It takes the lock through either server without heartbeats, reads, sometimes delays until its lease has expired,
//! writes, and releases. It runs until its standard input closes, so it never outlives its test. It logs every grant and
//! every write, and panics on a response that no injected fault explains.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grant, HeldLocksRequest, LockSpec, LockToken};
use ade_client::{AcquireOutcome, Backoff, Client, Error};
use ade_testkit::SeededRng;
use ade_testkit::server::BOOTSTRAP_TOKEN;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::counter::{Accepted, Counter, numbers, open_log};

const CONFIG_VARIABLE: &str = "ADE_TEST_WORKER_CONFIG";
const LEASE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
/// On average one of this many increments outlives its lease.
const SLOW_INCREMENT_RATIO: u64 = 30;

#[derive(Debug, Clone)]
pub(crate) struct WorkerConfig {
    pub(crate) number: u64,
    pub(crate) seed: u64,
    pub(crate) lock: String,
    pub(crate) folder: PathBuf,
    pub(crate) servers: Vec<String>,
}

/// Times are nanoseconds of the machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedGrant {
    pub(crate) requested_at: u64,
    pub(crate) granted_at: u64,
    pub(crate) token: u64,
}

#[derive(Debug, Default)]
pub(crate) struct WorkerLog {
    pub(crate) grants: Vec<RecordedGrant>,
    pub(crate) fenced: Vec<Accepted>,
    pub(crate) rejected: u64,
    pub(crate) unfenced: u64,
}

#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    config: WorkerConfig,
}

impl WorkerConfig {
    /// The configuration of this process, if it is a worker.
    #[expect(clippy::disallowed_methods, reason = "the environment says that this process is a worker")]
    pub(crate) fn from_environment() -> Option<Self> {
        let text = std::env::var(CONFIG_VARIABLE).ok()?;
        let mut lines = text.split('\n').map(str::to_owned);
        let mut next = || lines.next().expect("a complete configuration");
        let mut number = || next().parse().expect("a number");
        let (number, seed) = (number(), number());
        Some(Self { number, seed, lock: next(), folder: next().into(), servers: lines.collect() })
    }

    /// `entry_point` is the name of the test that runs the worker.
    pub(crate) fn start(self, entry_point: &str) -> Worker {
        let Self { number, seed, lock, folder, servers } = &self;
        let servers = servers.join("\n");
        let config = format!("{number}\n{seed}\n{lock}\n{}\n{servers}", folder.display());
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command
            .args(["--exact", entry_point, "--nocapture", "--test-threads", "1"])
            .env(CONFIG_VARIABLE, config);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("runs");
        Worker { child, config: self }
    }

    /// The agent id of a worker.
    pub(crate) fn agent(number: u64) -> String {
        format!("worker-{number}")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join(Self::agent(self.number))
    }
}

impl Worker {
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("observed").is_none()
    }

    /// Closes its standard input without waiting for the exit.
    pub(crate) fn request_stop(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn wait(mut self) -> (ExitStatus, WorkerLog) {
        self.request_stop();
        let status = self.child.wait().expect("reaped");
        (status, WorkerLog::read(&self.config.log_path()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl WorkerLog {
    fn read(path: &Path) -> Self {
        let mut log = Self::default();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let (kind, rest) = line.split_once(' ').expect("two words");
            match (kind, &*numbers(rest)) {
                ("granted", &[requested_at, granted_at, token]) => {
                    log.grants.push(RecordedGrant { requested_at, granted_at, token });
                }
                ("fenced", &[worker, token, value]) => log.fenced.push(Accepted { worker, token, value }),
                ("rejected", &[_]) => log.rejected += 1,
                ("unfenced", &[_, _]) => log.unfenced += 1,
                _ => panic!("{line:?}"),
            }
        }
        log
    }
}

/// Runs until standard input closes.
pub(crate) fn run_worker(config: WorkerConfig) {
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        // Nothing is written to it; an error means the same as end of file.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.send_replace(true);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(Incrementer::new(config).run(stopped));
}

struct Incrementer {
    config: WorkerConfig,
    clients: Vec<Client>,
    counter: Counter,
    log: File,
    rng: SeededRng,
}

impl Incrementer {
    fn new(config: WorkerConfig) -> Self {
        let clients = config
            .servers
            .iter()
            .map(|url| Client::new(url, BOOTSTRAP_TOKEN).expect("a valid URL"))
            .collect();
        let (counter, log) = (Counter::new(config.folder.clone()), open_log(config.log_path()));
        Self { clients, counter, log, rng: SeededRng::new(config.seed, config.number), config }
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        for number in 0_u64.. {
            let holder = format!("{}-{number}", WorkerConfig::agent(self.config.number));
            let granted = tokio::select! {
                // Stopping while waiting closes the connection; the server releases a lock granted meanwhile.
                _ = stopped.wait_for(|stopped| *stopped) => return,
                granted = self.acquire(&holder) => granted,
            };
            if let Some(grant) = granted {
                self.increment(grant.fencing_token).await;
                self.release(holder, &grant).await;
            }
        }
    }

    async fn acquire(&mut self, holder: &str) -> Option<Grant> {
        let request = AcquireRequest {
            locks: vec![LockSpec { lock: self.config.lock.clone(), mode: None }],
            agent_id: Some(WorkerConfig::agent(self.config.number)),
            holder_id: Some(holder.to_owned()),
            ttl_seconds: Some(LEASE.as_secs_f64()),
            wait_seconds: Some(WAIT.as_secs_f64()),
            request_id: Some(format!("of-{holder}")),
            ..AcquireRequest::default()
        };
        let requested_at = now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            let client = self.rng.pick(&self.clients).expect("some");
            let error = match client.acquire_locks(&request).await {
                Ok(AcquireOutcome::Granted(granted)) => {
                    let grant = granted.grants.into_iter().next().expect("one lock");
                    let token = grant.fencing_token;
                    writeln!(self.log, "granted {requested_at} {} {token}", now()).expect("written");
                    return Some(grant);
                }
                Ok(AcquireOutcome::Queued(ticket)) => panic!("unexpected ticket {ticket:?}"),
                Err(error) => error,
            };
            if !is_retryable(&error) {
                let expected = ["LOCK_HELD", "LOCK_LOST", "CANCELLED", "SUPERSEDED"];
                assert!(error.code().is_some_and(|code| expected.contains(&code)), "{error:?}");
                return None;
            }
            sleep(backoff.next_delay(error.retry_after_seconds().map(Duration::from_secs))).await;
        }
    }

    async fn increment(&mut self, token: u64) {
        let (fenced, unfenced) = (self.counter.read(token), self.counter.read_unfenced());
        let pause = if self.rng.below(SLOW_INCREMENT_RATIO) == 0 {
            LEASE + Duration::from_millis(100 + self.rng.below(400))
        } else {
            Duration::from_micros(self.rng.below(5_000))
        };
        sleep(pause).await;
        let worker = self.config.number;
        let accepted = fenced.map(|value| Accepted { worker, token, value: value + 1 });
        if let Some(accepted) = accepted.filter(|accepted| self.counter.write(*accepted)) {
            writeln!(self.log, "fenced {worker} {token} {}", accepted.value).expect("written");
        } else {
            writeln!(self.log, "rejected {token}").expect("written");
        }
        self.counter.write_unfenced(unfenced + 1);
        writeln!(self.log, "unfenced {token} {}", unfenced + 1).expect("written");
    }

    async fn release(&mut self, holder: String, grant: &Grant) {
        let request = HeldLocksRequest {
            agent_id: Some(WorkerConfig::agent(self.config.number)),
            holder_id: Some(holder),
            locks: vec![LockToken { lock: grant.lock.clone(), fencing_token: grant.fencing_token }],
        };
        let client = self.rng.pick(&self.clients).expect("some");
        // If the release fails, the lease expires.
        if let Err(error) = client.release_locks(&request).await {
            assert!(is_retryable(&error) || error.code() == Some("LOCK_LOST"), "{error:?}");
        }
    }
}

/// Whether the request may still be queued or granted, so that the same request is repeated.
fn is_retryable(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. }) || matches!(error.code(), Some("UNAVAILABLE" | "STOPPING"))
}

/// Nanoseconds of the monotonic clock, which all processes of the machine share.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).expect("positive") * 1_000_000_000
        + u64::try_from(now.tv_nsec).expect("positive")
}
