//! One of the processes that increment the counters: this same test binary, run again with an order in its environment.
//!
//! It does what a client does that has no heart: takes the lock through either server, reads, sometimes dawdles until its
//! lease is over, writes, releases. It works until its standard input closes, hence not longer than its test lives. It
//! notes every grant and every write that was accepted; an answer that no fault explains ends it with a panic.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ade_client::wire::{AcquireRequest, Grant, HeldLock, HoldRequest, LockAsk};
use ade_client::{Acquired, Backoff, Client, Error};
use ade_testkit::Dice;
use ade_testkit::ade::TOKEN;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::counter::{Accepted, Counter, appended, numbers};

const ORDER: &str = "ADE_FAULTS_ORDER";
const LEASE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);
/// One of so many increments takes longer than its lease.
const DAWDLES: u64 = 30;

/// What one worker is told.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) seed: u64,
    pub(crate) lock: String,
    pub(crate) folder: PathBuf,
    pub(crate) servers: Vec<String>,
}

/// A grant as a worker saw it: asked for and answered at moments of the machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    pub(crate) token: u64,
}

/// What a worker noted.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) grants: Vec<Granted>,
    pub(crate) fenced: Vec<Accepted>,
    pub(crate) refused: u64,
    pub(crate) unfenced: u64,
}

/// A worker that runs.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    order: Order,
}

impl Order {
    /// The order of this process, if it is a worker.
    #[expect(clippy::disallowed_methods, reason = "this is how a process learns that it is a worker")]
    pub(crate) fn given() -> Option<Self> {
        let text = std::env::var(ORDER).ok()?;
        let mut words = text.split('\n').map(str::to_owned);
        let mut next = || words.next().expect("a whole order");
        let mut number = || next().parse().expect("a number");
        let (number, seed) = (number(), number());
        Some(Self { number, seed, lock: next(), folder: next().into(), servers: words.collect() })
    }

    /// Starts a worker: `entry` is the name of the test that is its entry.
    pub(crate) fn start(self, entry: &str) -> Worker {
        let Self { number, seed, lock, folder, servers } = &self;
        let servers = servers.join("\n");
        let order = format!("{number}\n{seed}\n{lock}\n{}\n{servers}", folder.display());
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command.args(["--exact", entry, "--nocapture", "--test-threads", "1"]).env(ORDER, order);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("runs");
        Worker { child, order: self }
    }

    /// The name under which a worker acts.
    pub(crate) fn agent(number: u64) -> String {
        format!("worker-{number}")
    }

    fn notes(&self) -> PathBuf {
        self.folder.join(Self::agent(self.number))
    }
}

impl Worker {
    /// Whether it works still.
    pub(crate) fn works(&mut self) -> bool {
        self.child.try_wait().expect("observed").is_none()
    }

    /// Tells it to end, but does not wait.
    pub(crate) fn dismiss(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How it ended and what it noted.
    pub(crate) fn end(mut self) -> (ExitStatus, Notes) {
        self.dismiss();
        let status = self.child.wait().expect("waited for");
        (status, Notes::read(&self.order.notes()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Notes {
    fn read(path: &Path) -> Self {
        let mut notes = Self::default();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let (what, rest) = line.split_once(' ').expect("two words");
            match (what, &*numbers(rest)) {
                ("granted", &[asked, answered, token]) => {
                    notes.grants.push(Granted { asked, answered, token });
                }
                ("fenced", &[worker, token, value]) => notes.fenced.push(Accepted { worker, token, value }),
                ("refused", &[_]) => notes.refused += 1,
                ("unfenced", &[_, _]) => notes.unfenced += 1,
                _ => panic!("{line:?}"),
            }
        }
        notes
    }
}

/// Works until standard input closes.
pub(crate) fn work(order: Order) {
    let (stop, stopped) = watch::channel(false);
    std::thread::spawn(move || {
        // Nothing is ever said there; an error means the same as its end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.send_replace(true);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(Working::new(order).run(stopped));
}

struct Working {
    order: Order,
    clients: Vec<Client>,
    counter: Counter,
    notes: File,
    dice: Dice,
}

impl Working {
    fn new(order: Order) -> Self {
        let clients = order.servers.iter().map(|url| Client::new(url, TOKEN).expect("usable")).collect();
        let (counter, notes) = (Counter::new(order.folder.clone()), appended(order.notes()));
        Self { clients, counter, notes, dice: Dice::new(order.seed, order.number), order }
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        for number in 0_u64.. {
            let holder = format!("{}-{number}", Order::agent(self.order.number));
            let granted = tokio::select! {
                // Who goes while it waits hangs up: the server gives back what may have been granted meanwhile.
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
            locks: vec![LockAsk { lock: self.order.lock.clone(), mode: None }],
            agent_id: Some(Order::agent(self.order.number)),
            holder_id: Some(holder.to_owned()),
            ttl_seconds: Some(LEASE.as_secs_f64()),
            wait_seconds: Some(WAIT.as_secs_f64()),
            request_id: Some(format!("of-{holder}")),
            ..AcquireRequest::default()
        };
        let asked = now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            let client = self.dice.pick(&self.clients).expect("some");
            let error = match client.acquire(&request).await {
                Ok(Acquired::Granted(granted)) => {
                    let grant = granted.grants.into_iter().next().expect("one lock");
                    let token = grant.fencing_token;
                    writeln!(self.notes, "granted {asked} {} {token}", now()).expect("written");
                    return Some(grant);
                }
                Ok(Acquired::Ticket(ticket)) => panic!("{ticket:?} was not asked for"),
                Err(error) => error,
            };
            if !is_open(&error) {
                let over = ["LOCK_HELD", "LOCK_LOST", "CANCELLED", "SUPERSEDED"];
                assert!(error.code().is_some_and(|code| over.contains(&code)), "{error:?}");
                return None;
            }
            sleep(backoff.pause(error.retry_after_seconds().map(Duration::from_secs))).await;
        }
    }

    async fn increment(&mut self, token: u64) {
        let (fenced, unfenced) = (self.counter.read(token), self.counter.read_unfenced());
        let pause = if self.dice.below(DAWDLES) == 0 {
            LEASE + Duration::from_millis(100 + self.dice.below(400))
        } else {
            Duration::from_micros(self.dice.below(5_000))
        };
        sleep(pause).await;
        let worker = self.order.number;
        let accepted = fenced.map(|value| Accepted { worker, token, value: value + 1 });
        if let Some(accepted) = accepted.filter(|accepted| self.counter.write(*accepted)) {
            writeln!(self.notes, "fenced {worker} {token} {}", accepted.value).expect("written");
        } else {
            writeln!(self.notes, "refused {token}").expect("written");
        }
        self.counter.write_unfenced(unfenced + 1);
        writeln!(self.notes, "unfenced {token} {}", unfenced + 1).expect("written");
    }

    async fn release(&mut self, holder: String, grant: &Grant) {
        let request = HoldRequest {
            agent_id: Some(Order::agent(self.order.number)),
            holder_id: Some(holder),
            locks: vec![HeldLock { lock: grant.lock.clone(), fencing_token: grant.fencing_token }],
        };
        let client = self.dice.pick(&self.clients).expect("some");
        // What does not get through is released by its lease.
        if let Err(error) = client.release(&request).await {
            assert!(is_open(&error) || error.code() == Some("LOCK_LOST"), "{error:?}");
        }
    }
}

/// Whether the request may still stand, and is repeated as it was.
fn is_open(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. }) || matches!(error.code(), Some("UNAVAILABLE" | "STOPPING"))
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).expect("positive") * 1_000_000_000
        + u64::try_from(now.tv_nsec).expect("positive")
}
