//! Where approvals are measured: a server with a data folder, or with a schema on PostgreSQL and with Redis. Tasks are loaded
//! directly into the database while the server is stopped.

use std::path::Path;
use std::time::Duration;

use ade_domain::keys::InvalidSecret;
use ade_domain::{Clock, Keys, Moment};
use ade_store::SystemClock;
use indicatif::ProgressBar;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::bulk_load::{BulkLoader, BulkRows, SQLITE_FILE};
use super::history::{HistoryGenerator, before};
use super::organisation;
use crate::cpu::CpuMeter;
use crate::database::{BaselineTable, BenchDatabase};
use crate::error::{BenchError, ErrorKind};
use crate::server::{BenchRedis, FOLDER_PREFIX, SECRET, ServerProgram, ServerUnderTest};

const BATCH_SIZE: usize = 2_000;
/// Batches that may be generated ahead of writing.
const MAX_QUEUED_BATCHES: usize = 2;
const DAY_MS: u64 = 86_400_000;
/// Disk space of a task with everything that belongs to it, rounded up.
const BYTES_PER_TASK: u64 = 16_000;
/// Effectively no rate limit: a few users send all requests.
pub(crate) const REQUESTS_PER_MINUTE: &str = "10000000";
/// No checkpoints after the first one.
pub(crate) const CHECKPOINT_SECONDS: &str = "86400";
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Redis and PostgreSQL of the distributed mode. Both were empty at the start.
#[derive(Debug, Clone)]
pub(crate) struct Distributed {
    pub(crate) redis: BenchRedis,
    pub(crate) postgres: BenchDatabase,
}

/// A server with loaded tasks.
#[derive(Debug)]
pub(super) struct Environment {
    // Dropped first: stops before its folder is removed.
    pub(super) server: ServerUnderTest,
    pub(super) baseline_table: BaselineTable,
    pub(super) tasks: usize,
    pub(super) load_seconds: f64,
    /// From starting the server with these tasks until it serves.
    pub(super) start_seconds: f64,
    pub(super) middle_task: String,
    /// The end of the generated history.
    pub(super) now: Moment,
    folder: TempDir,
    schema: Option<Schema>,
}

/// A schema on PostgreSQL.
#[derive(Debug, Clone)]
struct Schema {
    distributed: Distributed,
    number: usize,
    url: String,
}

impl Environment {
    /// Starts a server, creates the users and policies, loads the tasks, and starts the server again.
    pub(super) async fn create(
        program: &ServerProgram,
        parent: &Path,
        distributed: Option<&Distributed>,
        number: usize,
        tasks: usize,
        connections: u32,
        bar: &ProgressBar,
    ) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(parent)?;
        let schema = match distributed {
            Some(distributed) => {
                let url = distributed.postgres.create_schema(number).await?;
                Some(Schema { distributed: distributed.clone(), number, url })
            }
            None => None,
        };
        let first = start(program, folder.path(), schema.as_ref())?;
        organisation::create(&mut first.target.connect().await?).await?;
        drop(first);
        let loader = match &schema {
            Some(schema) => BulkLoader::open_postgres(&schema.url).await,
            None => BulkLoader::open_sqlite(&folder.path().join("data")).await,
        };
        let (began, now) = (Instant::now(), SystemClock::start().now());
        let middle_task = load(loader?, tasks, now, bar).await?;
        let load_seconds = began.elapsed().as_secs_f64();
        let baseline_table = match &schema {
            Some(schema) => BaselineTable::open_postgres(&schema.url, connections).await,
            None => BaselineTable::open_sqlite(folder.path()),
        };
        let baseline_table = baseline_table?;
        let before = checkpoint_bytes(folder.path());
        let began = Instant::now();
        let server = start(program, folder.path(), schema.as_ref())?;
        let start_seconds = began.elapsed().as_secs_f64();
        wait_for_checkpoint(folder.path(), before).await?;
        Ok(Self {
            server,
            baseline_table,
            tasks,
            load_seconds,
            start_seconds,
            middle_task,
            now,
            folder,
            schema,
        })
    }

    /// Size of the SQLite database; None with PostgreSQL.
    pub(super) fn database_bytes(&self) -> Option<u64> {
        let file = self.folder.path().join("data").join(SQLITE_FILE);
        self.schema.is_none().then(|| std::fs::metadata(file).map(|meta| meta.len()).ok())?
    }

    pub(super) fn cpu_meter(&self) -> CpuMeter {
        let postmaster = self.schema.as_ref().and_then(|schema| schema.distributed.postgres.postmaster);
        CpuMeter { postmaster, ..self.server.cpu_meter() }
    }

    /// The baseline uses neither the server nor Redis.
    pub(super) fn baseline_meter(&self) -> CpuMeter {
        CpuMeter { server: None, redis: None, ..self.cpu_meter() }
    }

    /// Stops the server and removes all its data.
    pub(super) async fn remove(self) -> Result<(), BenchError> {
        let Self { server, baseline_table, folder, schema, .. } = self;
        drop(server);
        baseline_table.close().await;
        folder.close()?;
        if let Some(schema) = schema {
            schema.distributed.postgres.drop_schema(schema.number).await?;
        }
        Ok(())
    }
}

impl Distributed {
    pub(crate) async fn open(redis: &str, postgres: &str) -> Result<Self, BenchError> {
        let place = BenchDatabase::open_if_empty(postgres).await?.ok_or_else(|| {
            BenchError::new(ErrorKind::Input, "the database of --postgres is not empty, and benchmarks delete its content")
                .hint("create a separate database; to remove leftovers of a killed run: DROP SCHEMA ade_bench_0, ade_bench_1 CASCADE")
        })?;
        Ok(Self { redis: BenchRedis::open(redis).await?, postgres: place })
    }

    /// Removes the first `schemas` schemas and flushes Redis.
    pub(crate) async fn clear(&self, schemas: usize) -> Result<(), BenchError> {
        for number in 0..schemas {
            self.postgres.drop_schema(number).await?;
        }
        self.redis.clear().await
    }
}

fn checkpoint_bytes(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("data/audit-checkpoints.ndjson")).map(|meta| meta.len()).unwrap_or_default()
}

/// After its start a server verifies the whole audit log for the first checkpoint. Waits until that load is over.
async fn wait_for_checkpoint(folder: &Path, before: u64) -> Result<(), BenchError> {
    let began = Instant::now();
    while checkpoint_bytes(folder) <= before {
        if began.elapsed() > CHECKPOINT_TIMEOUT {
            return Err(BenchError::new(
                ErrorKind::Unavailable,
                format!("the server wrote no audit checkpoint within {CHECKPOINT_TIMEOUT:?}"),
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Fails early instead of filling the disk.
pub(super) fn check_disk_space(folder: &Path, tasks: u64) -> Result<(), BenchError> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        BenchError::new(ErrorKind::Input, format!("cannot use {}: {error}", folder.display()))
    })?;
    let (free, needed) = (disk.f_bavail * disk.f_frsize, tasks * BYTES_PER_TASK);
    if free > needed {
        return Ok(());
    }
    let gib = |bytes: u64| bytes.div_ceil(1 << 30);
    let message = format!(
        "{} has {} GiB of free space, but the tasks need {} GiB",
        folder.display(),
        gib(free),
        gib(needed)
    );
    Err(BenchError::new(ErrorKind::Input, message)
        .hint("choose a folder on another disk with --data, or fewer tasks with --tasks"))
}

fn start(
    program: &ServerProgram,
    folder: &Path,
    schema: Option<&Schema>,
) -> Result<ServerUnderTest, BenchError> {
    let mut settings = vec![
        ("ADE_LIMIT_REQUESTS_PER_MINUTE", REQUESTS_PER_MINUTE),
        ("ADE_AUDIT_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS),
    ];
    settings.extend(schema.map(|schema| ("ADE_SERVER_POSTGRES", schema.url.as_str())));
    program.start_in(folder, schema.map(|schema| &schema.distributed.redis), &settings)
}

/// Generates on one thread and writes on another. Returns the id of the middle task.
async fn load(
    mut loader: BulkLoader,
    tasks: usize,
    now: Moment,
    bar: &ProgressBar,
) -> Result<String, BenchError> {
    let mut history = HistoryGenerator::new(tasks, now)?;
    for days in (0..).map(|number| number * 28).take_while(|days| days * DAY_MS <= super::history::HISTORY_MS)
    {
        loader.create_audit_partition(before(now, days * DAY_MS)).await?;
    }
    loader.create_audit_partition(history.start()).await?;
    let invalid = |error: InvalidSecret| BenchError::new(ErrorKind::Unavailable, error.to_string());
    let mut chain = loader.chain(Keys::derive(SECRET, "").map_err(invalid)?).await?;
    let (sender, mut batches) = mpsc::channel::<(BulkRows, u64)>(MAX_QUEUED_BATCHES);
    let generator = tokio::task::spawn_blocking(move || {
        while let Some(batch) = history.next_batch(BATCH_SIZE)? {
            let rows = chain.rows(&batch.tasks, batch.entries, &batch.events)?;
            if sender.blocking_send((rows, batch.tasks.len() as u64)).is_err() {
                break;
            }
        }
        Ok::<_, BenchError>(history.middle_task.unwrap_or_default())
    });
    bar.set_length(tasks as u64);
    while let Some((rows, count)) = batches.recv().await {
        loader.write(&rows).await?;
        bar.inc(count);
    }
    let middle_task = generator.await??;
    loader.finish().await?;
    // Writeback of much new data would distort the results.
    tokio::time::sleep(Duration::from_secs(u64::from(tasks > 100_000) * 10)).await;
    Ok(middle_task)
}
