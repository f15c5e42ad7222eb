//! What the record needs without anybody asking: numbers, checkpoints, jobs. One loop each, until stopped; any number of
//! processes may run them, and each step happens once.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Clock;
use ade_store::Database;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::ledger::{Checkpoint, LedgerError, Signer};
use crate::{Error, Jobs, TaskService};

/// How soon what was written has its number.
const NUMBER_EVERY: Duration = Duration::from_millis(50);
/// How long jobs may take to give back what they were at.
const FAREWELL: Duration = Duration::from_secs(5);
/// The file of checkpoints in the data folder.
pub const CHECKPOINTS: &str = "audit-checkpoints.ndjson";
/// The file of the key that signs them.
pub const KEY: &str = "audit-checkpoint-key";

/// What the loops work with.
#[derive(Clone)]
pub struct BackgroundServices {
    /// The record.
    pub record: Database,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// Reviews.
    pub reviews: TaskService,
    /// Work that repeats.
    pub jobs: Jobs,
    /// Who this process is among others.
    pub name: String,
    /// The data folder: checkpoints and their key lie there, outside the database.
    pub data: PathBuf,
    /// How often a checkpoint is written.
    pub checkpoint_every: Duration,
}

impl std::fmt::Debug for BackgroundServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Duties").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The loops, while they run.
#[derive(Debug)]
pub struct Running {
    jobs: JoinSet<()>,
    loops: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Running {
    /// Stops them. What is under way is committed or not, but never half; jobs that were are given back to others.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.jobs.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, ended).await.is_err() {
            tracing::warn!("jobs take too long to end");
        }
        self.jobs.shutdown().await;
        self.loops.shutdown().await;
    }
}

impl BackgroundServices {
    /// Starts the loops.
    pub fn start(self) -> Result<Running, LedgerError> {
        let signer = Signer::open(&self.data.join(KEY))?;
        let (mut jobs, mut loops) = (JoinSet::new(), JoinSet::new());
        let (number, every) = (self.clone(), self.checkpoint_every);
        let (stop, stopped) = watch::channel(false);
        self.jobs.clone().start(&mut jobs, &stopped);
        loops.spawn(repeat("number what was written", NUMBER_EVERY, move || {
            let duties = number.clone();
            async move { duties.number().await }
        }));
        loops.spawn(self.checkpoints(signer, every));
        Ok(Running { jobs, loops, stop })
    }

    /// Numbers everything that has none.
    async fn number(&self) -> Result<(), Error> {
        while self.record.has_unnumbered().await? {
            if self.reviews.number(&self.name).await? == 0 {
                // Another process does it.
                return Ok(());
            }
        }
        Ok(())
    }

    async fn checkpoints(self, signer: Signer, every: Duration) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What was signed before binds what is signed now, also after a restart.
        let mut last: Option<Checkpoint> = match self.last_checkpoint() {
            Ok(last) => last,
            Err(error) => {
                tracing::error!(%error, "no checkpoint of the audit log is written: the last one cannot be read");
                return;
            }
        };
        loop {
            tick.tick().await;
            if let Err(error) = self.checkpoint(&signer, &mut last).await {
                tracing::error!(%error, "no checkpoint of the audit log was written");
            }
        }
    }

    fn last_checkpoint(&self) -> Result<Option<Checkpoint>, LedgerError> {
        let text = match std::fs::read_to_string(self.data.join(CHECKPOINTS)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) else { return Ok(None) };
        let last: Checkpoint = serde_json::from_str(line).map_err(std::io::Error::other)?;
        if last.is_signed() { Ok(Some(last)) } else { Err(LedgerError::Forged) }
    }

    /// A checkpoint, if anything was recorded since the last one.
    async fn checkpoint(&self, signer: &Signer, last: &mut Option<Checkpoint>) -> Result<(), LedgerError> {
        let head = self.record.audit_head().await?;
        if head.number == 0 || last.as_ref().is_some_and(|last| last.head == head) {
            return Ok(());
        }
        let checkpoint = signer.checkpoint(&self.record, last.as_ref(), self.clock.now()).await?;
        let line = serde_json::to_string(&checkpoint).map_err(std::io::Error::other)?;
        let mut file = OpenOptions::new().create(true).append(true).open(self.data.join(CHECKPOINTS))?;
        writeln!(file, "{line}")?;
        file.sync_all()?;
        *last = Some(checkpoint);
        Ok(())
    }
}

/// Does something again and again. That it fails is said once, and so is that it works again.
async fn repeat<F, W>(what: &'static str, every: Duration, mut work: W)
where
    W: FnMut() -> F + Send,
    F: Future<Output = Result<(), Error>> + Send,
{
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut fails = false;
    loop {
        tick.tick().await;
        match work().await {
            Ok(()) if fails => {
                tracing::info!("can {what} again");
                fails = false;
            }
            Ok(()) => {}
            Err(error) => {
                if !fails {
                    tracing::error!(%error, "cannot {what}; trying again");
                }
                fails = true;
            }
        }
    }
}
