//! The worker of a process, and a process that runs only a worker.

use std::future::Future;
use std::sync::Arc;

use ade_app::bindings::BindingPublisher;
use ade_app::tasks::PreviewConfig;
use ade_app::{
    Alerts, Context, EventTail, LockEventTarget, LockMaintenance, LockService, LogEventSink, TaskService,
    Worker, WorkerHandle, forward_lock_events, run_sequencer,
};
use ade_config::Config;
use ade_store::{DataFolder, SystemClock};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::error::StartError;
use super::executors::AllowedExecutors;
use super::storage::{open_blobs, open_coordination, open_database, open_keys, open_projections};

/// Previews are computed in this process, and by other workers if there can be any.
pub(super) fn previews(config: &Config, allowed: &AllowedExecutors) -> PreviewConfig {
    PreviewConfig {
        executors: allowed.executors.clone(),
        secrets: allowed.secrets.clone(),
        has_remote_workers: config.postgres.is_some(),
        per_minute: Some(config.previews_per_minute),
    }
}

pub(super) fn new_worker_name() -> String {
    format!("worker-{}", Uuid::new_v4().simple())
}

/// Publishes what this process can work on.
pub(super) async fn publish(
    config: &Config,
    context: &Context,
    process: &str,
    allowed: &AllowedExecutors,
) -> Result<BindingPublisher, StartError> {
    let publisher = BindingPublisher {
        context: context.clone(),
        process: process.to_owned(),
        bindings: allowed.bindings.clone(),
    };
    publisher.start(config.postgres.is_none()).await.map_err(StartError::Bindings)
}

pub(super) fn new_worker(
    config: &Config,
    allowed: AllowedExecutors,
    context: Context,
    tasks: TaskService,
    locks: LockService,
    name: String,
) -> Worker {
    Worker {
        context,
        tasks,
        locks,
        executors: allowed.executors,
        bindings: Arc::new(allowed.bindings),
        secrets: allowed.secrets,
        name,
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
    bindings: BindingPublisher,
    loops: JoinSet<()>,
    _folder: Option<DataFolder>,
}

impl WorkerProcess {
    /// Connects to Redis and PostgreSQL, and starts the worker.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        if config.postgres.is_none() || config.redis.is_none() {
            return Err(StartError::WorkerNeedsSharedStores);
        }
        let keys = open_keys(config)?;
        let allowed = AllowedExecutors::from_config(config, &keys)?;
        let (coordination, folder) = open_coordination(config).await?;
        let database = open_database(config, &keys).await?;
        let blobs = open_blobs(config, &database).await?;
        let name = new_worker_name();
        let context = Context {
            database,
            coordination,
            blobs,
            clock: Arc::new(SystemClock::start()),
            instance: name.as_str().into(),
            alerts: Alerts::default(),
            tail: EventTail::default(),
            // A worker makes no such changes.
            dual_control: false,
        };
        let locks = LockService::new(context.coordination.clone(), Arc::new(LogEventSink));
        let locks = locks.with_stored_requests(&context.database, &context.clock, &context.instance);
        locks.reload_limits(&context.database).await?;
        locks.admit_requests().await?;
        let mut lock_maintenance = LockMaintenance::start(&locks);
        lock_maintenance.follow_settings(&locks, &context.database);
        let tasks = TaskService::new(context.clone(), previews(config, &allowed));
        let work_queues = allowed.executors.work_queues().map(str::to_owned).collect();
        let bindings = publish(config, &context, &name, &allowed).await?;
        let worker = new_worker(config, allowed, context.clone(), tasks, locks, name.clone());
        let mut loops = JoinSet::from_iter([run_sequencer(context.clone())]);
        if let Some(stream) = open_projections(config).await? {
            loops.spawn(forward_lock_events(context, LockEventTarget::Stream(stream)));
        }
        loops.spawn(bindings.clone().keep_published());
        let worker = worker.start();
        Ok(Self { worker, lock_maintenance, name, work_queues, bindings, loops, _folder: folder })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The work queues for which it has an executor, such as `files:app`.
    #[must_use]
    pub fn work_queues(&self) -> &[String] {
        &self.work_queues
    }

    /// Works until `shutdown` completes. Then claims no more tasks, and ends those that are running.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        tracing::info!("shutting down");
        self.worker.stop().await;
        // They would publish again what is withdrawn.
        self.loops.shutdown().await;
        self.bindings.withdraw().await;
        self.lock_maintenance.stop().await;
    }
}
