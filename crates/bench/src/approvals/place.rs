//! Where approvals are measured: a data folder, or a schema on PostgreSQL and a Redis beside it. Filled past the server, which
//! is not running meanwhile, and measured through it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_domain::{Clock, Moment};
use ade_store::database::{Bare, Loader, Place, Rows};
use ade_store::{DatabaseError, SystemClock};
use indicatif::ProgressBar;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::history::{History, before};
use super::people;
use crate::error::{BenchError, ErrorKind};
use crate::subject::{FOLDER, OnARedis, Subject};

/// Tasks that are written at once.
const AT_ONCE: usize = 2_000;
/// Pieces that may wait for being written.
const AHEAD: usize = 2;
const DAY_MS: u64 = 86_400_000;
/// What a task takes in a file with everything that belongs to it, rounded up.
const BYTES_PER_TASK: u64 = 16_000;
/// Every request of a measurement counts against the same few people.
pub(crate) const REQUESTS_PER_MINUTE: &str = "10000000";
/// No checkpoint but the first, which is waited for.
pub(crate) const CHECKPOINT_SECONDS: &str = "86400";
const LONGEST_WALK: Duration = Duration::from_secs(3_600);

/// Both databases of the distributed mode, which were empty when we came.
#[derive(Debug, Clone)]
pub(crate) struct Distributed {
    pub(crate) redis: OnARedis,
    pub(crate) postgres: Place,
}

/// What is measured, filled with so many tasks.
#[derive(Debug)]
pub(super) struct Filled {
    // Ends before its folder goes.
    pub(super) subject: Subject,
    pub(super) bare: Bare,
    pub(super) tasks: usize,
    pub(super) load_seconds: f64,
    pub(super) middle_task: String,
    /// The moment that the load was made for.
    pub(super) now: Moment,
    folder: TempDir,
    on: Option<On>,
}

/// A schema of its own.
#[derive(Debug, Clone)]
struct On {
    distributed: Distributed,
    number: usize,
    url: String,
}

impl Filled {
    /// Starts a server on nothing, makes the organisation, fills the database, and starts the server again.
    pub(super) async fn make(
        parent: &Path,
        on: Option<&Distributed>,
        number: usize,
        tasks: usize,
        connections: u32,
        bar: &ProgressBar,
    ) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix(FOLDER).tempdir_in(parent)?;
        let on = match on {
            Some(distributed) => {
                let url = distributed.postgres.make(number).await.map_err(away)?;
                Some(On { distributed: distributed.clone(), number, url })
            }
            None => None,
        };
        let first = start(folder.path(), on.as_ref())?;
        people::make(&mut first.target.link().await?).await?;
        drop(first);
        let loader = match &on {
            Some(on) => Loader::on_postgres(&on.url).await,
            None => Loader::in_folder(&folder.path().join("data")).await,
        };
        let (began, now) = (Instant::now(), SystemClock::start().now());
        let middle_task = fill(loader.map_err(away)?, tasks, now, bar).await?;
        let load_seconds = began.elapsed().as_secs_f64();
        let bare = match &on {
            Some(on) => Bare::on_postgres(&on.url, connections).await,
            None => Bare::in_folder(folder.path()).await,
        };
        let bare = bare.map_err(away)?;
        let before = checkpoints(folder.path());
        let subject = start(folder.path(), on.as_ref())?;
        checked(folder.path(), before).await?;
        Ok(Self { subject, bare, tasks, load_seconds, middle_task, now, folder, on })
    }

    /// Bytes of the record, where it is a file.
    pub(super) fn bytes(&self) -> Option<u64> {
        let file: PathBuf = self.folder.path().join("data/ade.sqlite3");
        self.on.is_none().then(|| std::fs::metadata(file).map(|meta| meta.len()).ok())?
    }

    /// Ends the server and removes everything.
    pub(super) async fn clear(self) -> Result<(), BenchError> {
        let Self { subject, bare, folder, on, .. } = self;
        drop(subject);
        bare.close().await;
        folder.close()?;
        match on {
            Some(on) => on.distributed.postgres.remove(on.number).await.map_err(away),
            None => Ok(()),
        }
    }
}

impl Distributed {
    pub(crate) async fn open(redis: &str, postgres: &str) -> Result<Self, BenchError> {
        let place = Place::find(postgres).await.map_err(away)?.ok_or_else(|| {
            BenchError::new(ErrorKind::Input, "the database of --postgres is not empty; measurements fill it and empty it")
                .hint("make one for this alone; what a killed run left behind goes with DROP SCHEMA ade_bench_0, ade_bench_1 CASCADE")
        })?;
        Ok(Self { redis: OnARedis::open(redis).await?, postgres: place })
    }

    /// Removes what was made in both, of which there are so many at most.
    pub(crate) async fn clear(&self, most: usize) -> Result<(), BenchError> {
        for number in 0..most {
            self.postgres.remove(number).await.map_err(away)?;
        }
        self.redis.clear().await
    }
}

/// Bytes of checkpoints that a server has written.
fn checkpoints(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("data/audit-checkpoints.ndjson")).map(|meta| meta.len()).unwrap_or_default()
}

/// A server that starts walks along the whole log for its first checkpoint. That is not what is measured.
async fn checked(folder: &Path, before: u64) -> Result<(), BenchError> {
    let began = Instant::now();
    while checkpoints(folder) <= before {
        if began.elapsed() > LONGEST_WALK {
            return Err(BenchError::new(
                ErrorKind::Unavailable,
                "the server does not come to an end with the audit log",
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A disk that is full disturbs more than the measurement.
pub(super) fn has_room(folder: &Path, tasks: u64) -> Result<(), BenchError> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        BenchError::new(ErrorKind::Input, format!("cannot use {}: {error}", folder.display()))
    })?;
    let (free, needed) = (disk.f_bavail * disk.f_frsize, tasks * BYTES_PER_TASK);
    if free > needed {
        return Ok(());
    }
    let gib = |bytes: u64| bytes.div_ceil(1 << 30);
    let message = format!(
        "{} has {} GiB of room, and so many tasks need {} GiB",
        folder.display(),
        gib(free),
        gib(needed)
    );
    Err(BenchError::new(ErrorKind::Input, message)
        .hint("name a folder on another disk with --data, or fewer --tasks"))
}

fn start(folder: &Path, on: Option<&On>) -> Result<Subject, BenchError> {
    let mut settings = vec![
        ("ADE_LIMIT_REQUESTS_PER_MINUTE", REQUESTS_PER_MINUTE),
        ("ADE_AUDIT_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS),
    ];
    settings.extend(on.map(|on| ("ADE_SERVER_POSTGRES", on.url.as_str())));
    Subject::start_in(folder, on.map(|on| &on.distributed.redis), &settings)
}

/// Imagines on one thread and writes on another; the task in the middle.
async fn fill(
    mut loader: Loader,
    tasks: usize,
    now: Moment,
    bar: &ProgressBar,
) -> Result<String, BenchError> {
    let mut history = History::new(tasks, now)?;
    for days in (0..).map(|number| number * 28).take_while(|days| days * DAY_MS <= super::history::LONG_MS) {
        loader.prepare_month(before(now, days * DAY_MS)).await.map_err(away)?;
    }
    loader.prepare_month(history.begin()).await.map_err(away)?;
    let mut chain = loader.chain().await.map_err(away)?;
    let (ready, mut pieces) = mpsc::channel::<(Rows, u64)>(AHEAD);
    let imagining = tokio::task::spawn_blocking(move || {
        while let Some(piece) = history.next(AT_ONCE)? {
            let rows = chain.rows(&piece.tasks, piece.entries, &piece.events).map_err(away)?;
            if ready.blocking_send((rows, piece.tasks.len() as u64)).is_err() {
                break;
            }
        }
        Ok::<_, BenchError>(history.middle.unwrap_or_default())
    });
    bar.set_length(tasks as u64);
    while let Some((rows, many)) = pieces.recv().await {
        loader.write(&rows).await.map_err(away)?;
        bar.inc(many);
    }
    let middle = imagining.await.map_err(|error| BenchError::from(std::io::Error::other(error)))??;
    loader.finish().await.map_err(away)?;
    // What was just written is written to disk by now, or disturbs what is measured.
    tokio::time::sleep(Duration::from_secs(u64::from(tasks > 100_000) * 10)).await;
    Ok(middle)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn away(error: DatabaseError) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}
