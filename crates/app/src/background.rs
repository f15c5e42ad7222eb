//! Background services of a server: the sequencer of audit log and events, audit checkpoints, and jobs. Any number of
//! processes may run them, and each step happens once.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Jobs;
use crate::audit::{AuditLogError, Checkpoint, Signer};
use crate::events::run_sequencer;

/// How long jobs may take to release their leases when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of the checkpoint file in the data folder.
const CHECKPOINT_FILE: &str = "audit-checkpoints.ndjson";
/// Name of the signing key file in the data folder.
const CHECKPOINT_KEY_FILE: &str = "audit-checkpoint-key";

#[derive(Debug, Clone)]
pub struct BackgroundServices {
    /// Also provides the context and the name of this process.
    pub jobs: Jobs,
    /// The data folder. Checkpoints and their key lie there, outside the database.
    pub data_dir: PathBuf,
    pub checkpoint_interval: Duration,
}

/// Running background services.
#[derive(Debug)]
pub struct BackgroundHandle {
    jobs: JoinSet<()>,
    loops: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl BackgroundHandle {
    /// Stops all services. Work in progress is committed completely or not at all; leases of running jobs are released.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.jobs.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("jobs do not stop in time; aborting them");
        }
        self.jobs.shutdown().await;
        self.loops.shutdown().await;
    }
}

impl BackgroundServices {
    pub fn start(self) -> Result<BackgroundHandle, AuditLogError> {
        let signer = Signer::open(&self.data_dir.join(CHECKPOINT_KEY_FILE))?;
        let (mut jobs, mut loops) = (JoinSet::new(), JoinSet::new());
        let (stop, stopped) = watch::channel(false);
        self.jobs.clone().start(&mut jobs, &stopped);
        loops.spawn(run_sequencer(self.jobs.context.clone(), self.jobs.name.clone()));
        loops.spawn(self.write_checkpoints(signer));
        Ok(BackgroundHandle { jobs, loops, stop })
    }

    async fn write_checkpoints(self, signer: Signer) {
        let mut tick = interval(self.checkpoint_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Each checkpoint continues the previous one, even after a restart.
        let mut last: Option<Checkpoint> = match self.last_checkpoint() {
            Ok(last) => last,
            Err(error) => {
                tracing::error!(%error, "cannot read the last audit checkpoint; no checkpoints will be written");
                return;
            }
        };
        loop {
            tick.tick().await;
            if let Err(error) = self.write_checkpoint(&signer, &mut last).await {
                tracing::error!(%error, "cannot write an audit checkpoint");
            }
        }
    }

    fn last_checkpoint(&self) -> Result<Option<Checkpoint>, AuditLogError> {
        let text = match std::fs::read_to_string(self.data_dir.join(CHECKPOINT_FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) else { return Ok(None) };
        let last: Checkpoint = serde_json::from_str(line).map_err(std::io::Error::other)?;
        if last.is_signed() { Ok(Some(last)) } else { Err(AuditLogError::InvalidSignature) }
    }

    /// Appends a checkpoint if the log has grown since the last one.
    async fn write_checkpoint(
        &self,
        signer: &Signer,
        last: &mut Option<Checkpoint>,
    ) -> Result<(), AuditLogError> {
        let context = &self.jobs.context;
        let head = context.database.audit_head().await?;
        if head.number == 0 || last.as_ref().is_some_and(|last| last.head == head) {
            return Ok(());
        }
        let checkpoint = signer.checkpoint(&context.database, last.as_ref(), context.now()).await?;
        let line = serde_json::to_string(&checkpoint).map_err(std::io::Error::other)?;
        let mut file =
            OpenOptions::new().create(true).append(true).open(self.data_dir.join(CHECKPOINT_FILE))?;
        writeln!(file, "{line}")?;
        file.sync_all()?;
        *last = Some(checkpoint);
        Ok(())
    }
}
