//! The worker of a process, and a process that runs only a worker.

use std::future::Future;
use std::sync::Arc;

use ade_app::tasks::PreviewConfig;
use ade_app::{
    Context, LockMaintenance, LockService, LogEventSink, TaskService, Worker, WorkerHandle, run_sequencer,
};
use ade_config::Config;
use ade_store::{DataFolder, SystemClock};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::error::StartError;
use super::executors::AllowedExecutors;
use super::storage::{open_blobs, open_coordination, open_database};

/// Previews are computed in this process, and by other workers if there can be any.
pub(super) fn previews(config: &Config, allowed: &AllowedExecutors) -> PreviewConfig {
    PreviewConfig {
        executors: allowed.executors.clone(),
        secrets: allowed.secrets.clone(),
        has_remote_workers: config.postgres.is_some(),
    }
}

pub(super) fn new_worker(
    config: &Config,
    allowed: AllowedExecutors,
    context: Context,
    tasks: TaskService,
    locks: LockService,
) -> Worker {
    Worker {
        context,
        tasks,
        locks,
        executors: allowed.executors,
        secrets: allowed.secrets,
        name: format!("worker-{}", Uuid::new_v4().simple()),
        slots: config.worker_slots,
        lease_ms: config.worker_lease_ms,
    }
}

/// A process that applies approved tasks and has no HTTP API.
#[derive(Debug)]
pub struct WorkerProcess {
    worker: WorkerHandle,
    lock_maintenance: LockMaintenance,
    name: String,
    work_queues: Vec<String>,
    _sequencer: JoinSet<()>,
    _folder: Option<DataFolder>,
}

impl WorkerProcess {
    /// Connects to Redis and PostgreSQL, and starts the worker.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        if config.postgres.is_none() || config.redis.is_none() {
            return Err(StartError::WorkerNeedsSharedStores);
        }
        let allowed = AllowedExecutors::from_config(config)?;
        let (coordination, folder) = open_coordination(config).await?;
        let database = open_database(config).await?;
        let blobs = open_blobs(config, &database).await?;
        let context = Context { database, coordination, blobs, clock: Arc::new(SystemClock::start()) };
        let locks = LockService::new(context.coordination.clone(), Arc::new(LogEventSink));
        let lock_maintenance = LockMaintenance::start(&locks);
        let tasks = TaskService::new(context.clone(), previews(config, &allowed));
        let work_queues = allowed.executors.work_queues().map(str::to_owned).collect();
        let worker = new_worker(config, allowed, context.clone(), tasks, locks);
        let name = worker.name.clone();
        let sequencer = JoinSet::from_iter([run_sequencer(context, name.clone())]);
        let worker = worker.start();
        Ok(Self { worker, lock_maintenance, name, work_queues, _sequencer: sequencer, _folder: folder })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The work queues for which it has an executor, such as `files:/srv/app`.
    #[must_use]
    pub fn work_queues(&self) -> &[String] {
        &self.work_queues
    }

    /// Works until `shutdown` completes. Then claims no more tasks, and ends those that are running.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        tracing::info!("shutting down");
        self.worker.stop().await;
        self.lock_maintenance.stop().await;
    }
}
