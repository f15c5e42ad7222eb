//! Workers: approved tasks are applied exactly as approved, once, and under their locks; tasks of lost workers are recovered.
//!
//! A worker changes nothing before the database allows it: first its attempt is committed, then the rollback data is stored, and
//! then it begins. A worker that has lost its lease or its locks stops.

mod agent_claims;
mod agent_work;
mod apply;
mod claim;
mod evidence;
mod lease;
mod recovery;
mod rollback;

pub use agent_claims::ClaimFilter;
pub use agent_work::{AgentReport, AgentWorkService, HeartbeatReply};

use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::audit::{Principal, ServiceActor, Trigger};
use ade_domain::task::{AttemptStart, HeldLock, PublishedBindings};
use ade_executors::{Executors, Secrets};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::retry::FailureLog;
use crate::{Context, Error, LockService, TaskService};

/// How often workers look for tasks without a wake-up.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const RECOVERY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a worker says among the agents that it is there. Its claims have leases of their own.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(10);
/// Tasks that are claimed at once.
const MAX_CLAIMS: usize = 32;
/// How long running tasks may take once the worker stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub struct Worker {
    pub context: Context,
    pub tasks: TaskService,
    pub locks: LockService,
    pub executors: Executors,
    /// What these executors work on, by full name.
    pub bindings: Arc<PublishedBindings>,
    /// Secrets to redact.
    pub secrets: Secrets,
    /// Must be unique: no other worker ever has the same name.
    pub name: String,
    /// Tasks that run at the same time.
    pub slots: usize,
    /// How long the worker counts as alive without a heartbeat.
    pub lease_ms: u64,
}

/// A running worker.
#[derive(Debug)]
pub struct WorkerHandle {
    loops: JoinSet<()>,
    stop: watch::Sender<bool>,
    /// This worker among the agents, if it is one.
    presence: Option<(Context, String)>,
}

impl WorkerHandle {
    /// Claims nothing new and waits for running tasks. Those that take too long are left to the recovery of another worker.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = async { while self.loops.join_next().await.is_some() {} };
        let is_idle = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_ok();
        if !is_idle {
            tracing::warn!("some tasks are still running; another worker will recover them");
        }
        self.loops.shutdown().await;
        if let Some((context, name)) = self.presence.filter(|_| is_idle)
            && let Err(error) = remove_presence(&context, &name).await
        {
            tracing::warn!(%error, "this worker stays among the agents until it has been silent for a day");
        }
    }
}

/// Removes a worker from the agents, unless somebody registered an agent with its name.
async fn remove_presence(context: &Context, name: &str) -> Result<(), Error> {
    if context.database.agent(name).await?.is_none() {
        context.coordination.remove_agent(name.to_owned()).await?;
    }
    Ok(())
}

impl Worker {
    /// Starts to apply tasks, and to recover those of lost workers.
    #[must_use]
    pub fn start(self) -> WorkerHandle {
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        let (tasks, mut stopping) = (self.tasks.clone(), stopped.clone());
        loops.spawn(async move {
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = tasks.subscriptions().relay() => {}
            }
        });
        let presence = Some((self.context.clone(), self.name.clone()));
        loops.spawn(self.clone().process_tasks(stopped.clone()));
        loops.spawn(self.clone().show_presence(stopped.clone()));
        loops.spawn(self.recover_lost(stopped));
        WorkerHandle { loops, stop, presence }
    }

    /// Applies nothing, and recovers only tasks that need no rollback. A server without worker slots runs it, so that tasks of lost
    /// agents do not wait forever.
    #[must_use]
    pub fn start_recovery_only(self) -> WorkerHandle {
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        let recovery = Self { executors: Executors::default(), ..self };
        loops.spawn(recovery.recover_lost(stopped));
        WorkerHandle { loops, stop, presence: None }
    }

    fn now(&self) -> Moment {
        self.context.now()
    }

    fn attempt_start(&self, grants: Vec<HeldLock>) -> AttemptStart {
        AttemptStart { worker: self.name.clone(), grants, lease_until: self.lease_until() }
    }

    /// This worker with an attempt, for audit entries.
    fn principal(&self, attempt: u64) -> Principal {
        let (service, instance) = ("worker".to_owned(), self.name.clone());
        ServiceActor { service, instance, trigger: Trigger::Attempt(attempt) }.into()
    }

    fn lease_until(&self) -> Moment {
        self.now().plus_ms(self.lease_ms)
    }

    /// Keeps this worker alive among the agents, once its locks have made it one.
    async fn show_presence(self, mut stopped: watch::Receiver<bool>) {
        let mut failures = FailureLog::default();
        loop {
            tokio::select! {
                () = tokio::time::sleep(PRESENCE_INTERVAL) => {}
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            let heard = async {
                let coordination = &self.context.coordination;
                match coordination.agent(self.name.clone()).await? {
                    Some(_) => coordination.record_heartbeat(self.name.clone()).await,
                    None => Ok(false),
                }
            };
            let _ = failures.check(heard.await, "cannot show this worker among the agents");
        }
    }

    async fn process_tasks(self, mut stopped: watch::Receiver<bool>) {
        let work_queues: Vec<String> = self.executors.work_queues().map(str::to_owned).collect();
        let slots = Arc::new(Semaphore::new(self.slots));
        let mut running = JoinSet::new();
        let mut failures = FailureLog::default();
        let mut work = self.tasks.subscriptions().work();
        loop {
            // Work that becomes ready after this is notified.
            work.mark_unchanged();
            while running.try_join_next().is_some() {}
            // If the worker stops while all slots are busy, a slot that becomes free is not used.
            let slot = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                slot = Arc::clone(&slots).acquire_owned() => slot,
            };
            let Ok(slot) = slot else { break };
            let claimed = self.claim(&work_queues, slot, &slots).await;
            let claimed = failures.check(claimed, "cannot look for work").unwrap_or_default();
            let is_idle = claimed.is_empty();
            for (task_id, permit) in claimed {
                let worker = self.clone();
                running.spawn(async move {
                    worker.process_claimed(&task_id).await;
                    drop(permit);
                });
            }
            if is_idle {
                tokio::select! {
                    _ = tokio::time::timeout(POLL_INTERVAL, work.changed()) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            }
        }
        // Running tasks go on until the shutdown timeout.
        while running.join_next().await.is_some() {}
    }

    /// Failures of the task itself are stored with it; anything else is retried.
    async fn process_claimed(&self, task_id: &str) {
        let done = tokio::select! {
            biased;
            done = self.process(task_id) => done,
            never = self.renew_claim(task_id) => match never {},
        };
        if let Err(error) = done {
            if crate::tasks::is_superseded(&error) || matches!(error, Error::Conflict | Error::NotFound(_)) {
                tracing::debug!(task_id, %error, "another process changed the task first");
            } else {
                tracing::warn!(task_id, %error, "cannot apply a task now; retrying");
            }
            self.postpone(task_id).await;
        }
    }
}
