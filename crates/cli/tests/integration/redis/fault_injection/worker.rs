//! A worker that increments the counters.
//!
//! It takes the lock through either server without heartbeats, reads, sometimes delays until its lease has expired,
//! writes, and releases. It records every grant and every write, and panics on a response that no injected fault explains.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grant, HeldLocksRequest, LockSpec, LockToken};
use ade_client::{AcquireOutcome, Backoff, Client, Error};
use ade_testkit::SeededRng;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::counter::{Accepted, Counter};

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
    pub(crate) clients: Vec<Client>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedGrant {
    pub(crate) requested_at: Instant,
    pub(crate) granted_at: Instant,
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
    running: JoinHandle<()>,
    stop: watch::Sender<bool>,
    log: Arc<Mutex<WorkerLog>>,
}

impl WorkerConfig {
    /// Starts a worker that runs until it is stopped.
    pub(crate) fn start(self) -> Worker {
        let (stop, stopped) = watch::channel(false);
        let log = Arc::new(Mutex::new(WorkerLog::default()));
        let incrementer = Incrementer {
            counter: Counter::new(self.folder.clone()),
            log: Arc::clone(&log),
            rng: SeededRng::new(self.seed, self.number),
            config: self,
        };
        Worker { running: tokio::spawn(incrementer.run(stopped)), stop, log }
    }

    /// The agent id of a worker.
    pub(crate) fn agent(number: u64) -> String {
        format!("worker-{number}")
    }
}

impl Worker {
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_finished()
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, WorkerLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops before the next increment and waits for the end of the present one.
    pub(crate) async fn stop(&mut self) {
        self.stop.send_replace(true);
        (&mut self.running).await.expect("no unexpected response");
    }
}

struct Incrementer {
    config: WorkerConfig,
    counter: Counter,
    log: Arc<Mutex<WorkerLog>>,
    rng: SeededRng,
}

impl Incrementer {
    fn record(&self, change: impl FnOnce(&mut WorkerLog)) {
        change(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner));
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
        let requested_at = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            let client = self.rng.pick(&self.config.clients).expect("some");
            let error = match client.acquire_locks(&request).await {
                Ok(AcquireOutcome::Granted(granted)) => {
                    let grant = granted.grants.into_iter().next().expect("one lock");
                    let token = grant.fencing_token;
                    let granted_at = Instant::now();
                    self.record(|log| log.grants.push(RecordedGrant { requested_at, granted_at, token }));
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
            self.record(|log| log.fenced.push(accepted));
        } else {
            self.record(|log| log.rejected += 1);
        }
        self.counter.write_unfenced(unfenced + 1);
        self.record(|log| log.unfenced += 1);
    }

    async fn release(&mut self, holder: String, grant: &Grant) {
        let request = HeldLocksRequest {
            agent_id: Some(WorkerConfig::agent(self.config.number)),
            holder_id: Some(holder),
            locks: vec![LockToken { lock: grant.lock.clone(), fencing_token: grant.fencing_token }],
        };
        let client = self.rng.pick(&self.config.clients).expect("some");
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
