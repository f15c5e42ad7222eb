//! Background services of a server: the sequencer of audit log and events, the tail and the feed of the events, the relay to Redis,
//! audit checkpoints, jobs, and the dispatcher of webhooks. Any number of processes may run them, and each step happens once.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Jobs;
use crate::alerts::LogCheck;
use crate::audit::{AuditLogError, Checkpoint, CheckpointFile, Signer, report_check};
use crate::events::{EventFeed, Relay, run_sequencer};
use crate::webhooks::WebhookDispatcher;

/// How long jobs may take to release their leases when the server stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Shared checkpoints among which the last one of this installation is searched.
const SHARED_CHECKPOINTS: u32 = 100;
/// How often a server without any checkpoint tries to write the first one.
const FIRST_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct BackgroundServices {
    /// Also provides the context and the name of this process.
    pub jobs: Jobs,
    pub feed: EventFeed,
    pub webhooks: WebhookDispatcher,
    /// Where this server keeps checkpoints outside of the database.
    pub checkpoint_file: CheckpointFile,
    pub checkpoint_interval: Duration,
    /// In distributed mode.
    pub relay: Option<Relay>,
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
        let signer = Signer::new(self.jobs.context.database.keys())?;
        let (mut jobs, mut loops) = (JoinSet::new(), JoinSet::new());
        let (stop, stopped) = watch::channel(false);
        self.jobs.clone().start(&mut jobs, &stopped);
        if let Some(relay) = self.relay.clone() {
            jobs.spawn(relay.run(stopped.clone()));
        }
        jobs.spawn(self.webhooks.clone().run(stopped.clone()));
        let context = &self.jobs.context;
        loops.spawn(run_sequencer(context.clone()));
        loops.spawn(context.tail.clone().run(context.database.clone(), context.coordination.clone()));
        loops.spawn(self.feed.clone().run());
        loops.spawn(self.write_checkpoints(signer));
        Ok(BackgroundHandle { jobs, loops, stop })
    }

    async fn write_checkpoints(self, signer: Signer) {
        loop {
            let written = self.write_checkpoint(&signer).await;
            let is_first = matches!(written, Ok(None));
            match &written {
                Ok(_) | Err(AuditLogError::Broken(_) | AuditLogError::InvalidSignature) => {
                    let result = written.as_ref().map(|_| ());
                    report_check(&self.jobs.context, LogCheck::SinceCheckpoint, result).await;
                }
                Err(error) => tracing::error!(%error, "cannot write an audit checkpoint"),
            }
            sleep(if is_first { FIRST_CHECKPOINT_INTERVAL } else { self.checkpoint_interval }).await;
        }
    }

    /// Signs the head of the log, unless the last checkpoint did: the last one of any server, also after a restart. Returns the last
    /// checkpoint; none while the log is empty.
    async fn write_checkpoint(&self, signer: &Signer) -> Result<Option<Checkpoint>, AuditLogError> {
        let context = &self.jobs.context;
        let local = self.checkpoint_file.last(signer)?;
        let shared = context.database.checkpoints(SHARED_CHECKPOINTS).await?;
        let shared = signer.trusted(&shared)?.into_iter().next();
        // The log must contain both: somebody who can write to the database can remove the shared ones.
        let last = local.iter().chain(&shared).max_by_key(|checkpoint| checkpoint.head.number).cloned();
        let head = context.database.audit_head().await?;
        if head.number == 0 && last.is_none() {
            return Ok(None);
        }
        let checkpoint = match last {
            Some(last) if last.head == head => last,
            last => signer.checkpoint(&context.database, last.as_ref(), context.now()).await?,
        };
        if shared.as_ref() != Some(&checkpoint) {
            let text = serde_json::to_string(&checkpoint).map_err(std::io::Error::other)?;
            context.database.put_checkpoint(checkpoint.head.number, &text).await?;
        }
        if local.is_none_or(|local| local.head != checkpoint.head) {
            self.checkpoint_file.append(&checkpoint)?;
        }
        Ok(Some(checkpoint))
    }
}
