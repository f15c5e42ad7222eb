//! What leaves the record when it is old, and comes back when somebody wants it: requests of tasks that ended, and whole tasks.
//!
//! Whoever archives keeps a copy first and deletes afterwards, only what is still as it was copied. What comes back does not
//! replace what is there. Audit entries and events never leave.

mod back;
mod out;

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::task::ArchivedApprovals;
use serde::{Deserialize, Serialize};

use super::sql::{Arg, Link, Row, json};
use super::work::{BEFORE_ALL, LogLine};
use super::{Comment, Database, DatabaseError, StoredTask, Work};

pub use out::Leaving;

/// Tasks that are asked for at once.
const AT_ONCE: usize = 200;

/// What an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveKind {
    /// Requests of tasks that ended.
    Approvals,
    /// Whole tasks, with what was said about them.
    Tasks,
}

impl ArchiveKind {
    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Approvals => "approvals",
            Self::Tasks => "tasks",
        }
    }
}

/// An archive: a blob, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archive {
    /// What it is known by.
    pub archive_id: String,
    /// What it holds.
    pub kind: ArchiveKind,
    /// Where.
    pub key: String,
    /// How many tasks left for it. It may have lines of others, which had changed when they were to leave.
    pub items: u64,
    /// Bytes of the blob.
    pub bytes: u64,
    /// When it was made.
    pub created_at: Moment,
    /// When the oldest task in it ended.
    pub from: Moment,
    /// When the youngest did.
    pub to: Moment,
    /// When it was last brought back.
    #[serde(default)]
    pub restored_at: Option<Moment>,
}

/// A line of an archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Archived {
    /// The task; only its requests count in an archive of requests.
    pub task: StoredTask,
    /// Who was asked.
    pub approvals: Vec<Approval>,
    /// What was said about it.
    #[serde(default)]
    pub comments: Vec<Comment>,
    /// What was said while it was carried out.
    #[serde(default)]
    pub logs: Vec<LogLine>,
    /// What it is found by, in an archive of tasks.
    #[serde(default)]
    pub marks: Vec<(String, String)>,
    /// Whether its requests are in another archive.
    #[serde(default)]
    pub approvals_archived: bool,
    /// What is remembered of them then.
    #[serde(default)]
    pub remembered: Option<ArchivedApprovals>,
}

/// What did not come back from an archive, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// Tasks that were taken out once more: another archive has what they are now.
    pub outdated: u64,
    /// Tasks that are archived themselves: their requests come back once they are here.
    pub away: u64,
}

/// Where a list of what is to be archived goes on: when the last one ended, and which it was.
type Place = (Moment, String);

/// What changes the record.
#[derive(Debug, Clone)]
pub(super) enum Archiving {
    /// Takes out what was copied, and says where the copy is.
    Out { archive: Archive, items: Vec<Leaving> },
    /// Brings back what is not there.
    Back { archive: Archive, items: Vec<Archived>, stays_until: Moment },
    /// Counts a day.
    Day { day: String, from: Moment, to: Moment },
}

impl Archiving {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        match self {
            Self::Out { archive, items } => out::take_out(link, archive, items).await,
            Self::Back { archive, items, stays_until } => {
                back::bring_back(link, archive, items, *stays_until).await
            }
            Self::Day { day, from, to } => count_day(link, day, *from, *to).await,
        }
    }
}

async fn put(link: &mut Link<'_>, archive: &Archive) -> Result<(), DatabaseError> {
    let args = [archive.archive_id.as_str().into(), json(archive)?];
    let sql = "INSERT INTO archives (archive_id, body) VALUES ($1::uuid, $2::jsonb) \
               ON CONFLICT (archive_id) DO UPDATE SET body = excluded.body";
    link.run(sql, &args).await.map(drop)
}

async fn count_day(link: &mut Link<'_>, day: &str, from: Moment, to: Moment) -> Result<u64, DatabaseError> {
    let span = [from.into(), to.into()];
    let mut counted = serde_json::Map::new();
    for (name, sql) in [
        (
            "completed",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'COMPLETED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "failed",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'FAILED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "rejected",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'REJECTED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
        (
            "cancelled",
            "SELECT count(*)::bigint FROM tasks WHERE state = 'CANCELLED' AND closed_at >= moment($1) AND closed_at < moment($2)",
        ),
    ] {
        let rows = link.rows(sql, &span).await?;
        let many = rows.first().map_or(Ok(0), |row| row.number(0))?;
        counted.insert(name.to_owned(), many.into());
    }
    let sql = "INSERT INTO daily_stats (day, body) VALUES ($1, $2::jsonb) ON CONFLICT DO NOTHING";
    link.run(sql, &[day.into(), json(&counted)?]).await
}

impl Database {
    /// Tasks that ended before `before` and whose requests, or they themselves, are to be archived now: the oldest first, from the
    /// first one behind `after`. Not those that somebody is at or is to undo, and not what was brought back and stays.
    pub async fn to_be_archived(
        &self,
        kind: ArchiveKind,
        before: Moment,
        now: Moment,
        after: Option<&Place>,
        limit: u32,
    ) -> Result<Vec<Place>, DatabaseError> {
        let more = match kind {
            ArchiveKind::Tasks => "",
            ArchiveKind::Approvals => " AND approvals_archived = 0",
        };
        // Where the walk begins is said twice: an index knows where to begin by the first.
        let sql = format!(
            "SELECT micros(closed_at), task_id::text FROM tasks WHERE closed_at < moment($1){more} \
             AND lease_until IS NULL AND work_kind IS NULL AND (keep_until IS NULL OR keep_until <= moment($2)) \
             AND closed_at >= moment($3) AND (closed_at > moment($3) OR task_id > $4::uuid) \
             ORDER BY closed_at, task_id LIMIT {limit}"
        );
        let first = (Moment::from_micros(0), BEFORE_ALL.to_owned());
        let (from, id) = after.unwrap_or(&first);
        let args = [before.into(), now.into(), (*from).into(), id.as_str().into()];
        self.read(async |link| {
            let rows = link.rows(&sql, &args).await?;
            rows.iter().map(|row| Ok((row.moment(0)?, row.text(1)?.to_owned()))).collect()
        })
        .await
    }

    /// A task as it goes into an archive, if it is there.
    pub async fn archived(
        &self,
        kind: ArchiveKind,
        task_id: &str,
    ) -> Result<Option<Archived>, DatabaseError> {
        // First, because whoever takes it out checks it: requests that leave or come back meanwhile are noticed.
        let (approvals_archived, marks) = self.marked(task_id).await?;
        let Some(mut task) = self.task(task_id).await? else { return Ok(None) };
        let approvals = std::mem::take(&mut task.approvals);
        let remembered = task.remembered.clone();
        let (mut comments, mut logs) = (Vec::new(), Vec::new());
        if kind == ArchiveKind::Tasks {
            comments = self.comments(task_id).await?;
            logs = self.said(task_id, 0, u32::MAX).await?;
        }
        Ok(Some(Archived { task, approvals, comments, logs, marks, approvals_archived, remembered }))
    }

    /// Whether the requests of a task are archived, and what it is found by.
    async fn marked(&self, task_id: &str) -> Result<(bool, Vec<(String, String)>), DatabaseError> {
        let args = [task_id.into()];
        self.read(async |link| {
            let sql = "SELECT approvals_archived FROM tasks WHERE task_id = $1::uuid";
            let rows = link.rows(sql, &args).await?;
            let archived = rows.first().map_or(Ok(0), |row| row.number(0))? > 0;
            let sql = "SELECT kind, label FROM task_labels WHERE task_id = $1::uuid ORDER BY kind, label";
            let rows = link.rows(sql, &args).await?;
            let mark = |row: &Row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()));
            Ok((archived, rows.iter().map(mark).collect::<Result<_, DatabaseError>>()?))
        })
        .await
    }

    /// Takes out what was copied into a blob that was [announced](Self::announce_blob), as far as it is still as it was copied;
    /// how many. If none is, there is no such archive.
    pub async fn take_out(&self, archive: Archive, items: Vec<Leaving>) -> Result<u64, DatabaseError> {
        self.work(Work::Archive(Archiving::Out { archive, items })).await
    }

    /// Brings back what is not there, to stay until a moment; how many tasks that concerned.
    pub async fn bring_back(
        &self,
        archive: Archive,
        items: Vec<Archived>,
        stays_until: Moment,
    ) -> Result<u64, DatabaseError> {
        self.work(Work::Archive(Archiving::Back { archive, items, stays_until })).await
    }

    /// Why some tasks that are in an archive do not come back from it.
    pub async fn left_out(&self, archive: &Archive, task_ids: &[String]) -> Result<LeftOut, DatabaseError> {
        let (condition, newest) = match archive.kind {
            ArchiveKind::Tasks => ("archive_id <> $1::uuid", Some(archive.archive_id.as_str())),
            ArchiveKind::Approvals => ("is_archived = 1", None),
        };
        let mut left = LeftOut::default();
        for some in task_ids.chunks(AT_ONCE) {
            let mut args: Vec<Arg> = newest.map(|archive_id| archive_id.into()).into_iter().collect();
            let first = args.len() + 1;
            args.extend(some.iter().map(|id| Arg::from(id.as_str())));
            let places: Vec<String> = (first..=args.len()).map(|number| format!("${number}::uuid")).collect();
            let sql = format!(
                "SELECT count(*)::bigint FROM archived_tasks WHERE {condition} AND task_id IN ({})",
                places.join(", ")
            );
            let many = self
                .read(async |link| link.rows(&sql, &args).await?.first().map_or(Ok(0), |row| row.number(0)))
                .await?;
            match archive.kind {
                ArchiveKind::Tasks => left.outdated += many,
                ArchiveKind::Approvals => left.away += many,
            }
        }
        Ok(left)
    }

    /// Counts what happened on a day, once; whether nobody had.
    pub async fn count_day(&self, day: &str, from: Moment, to: Moment) -> Result<bool, DatabaseError> {
        let day = day.to_owned();
        Ok(self.work(Work::Archive(Archiving::Day { day, from, to })).await? > 0)
    }

    /// Archives, the newest first; from the first one before `before`.
    pub async fn archives(&self, before: Option<&str>, limit: u32) -> Result<Vec<Archive>, DatabaseError> {
        let (sql, args): (String, Vec<Arg>) = match before {
            None => (
                format!("SELECT body::text FROM archives ORDER BY archive_id DESC LIMIT {limit}"),
                Vec::new(),
            ),
            Some(before) => (
                format!(
                    "SELECT body::text FROM archives WHERE archive_id < $1::uuid ORDER BY archive_id DESC LIMIT {limit}"
                ),
                vec![before.into()],
            ),
        };
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(|row| row.json(0)).collect()).await
    }

    /// One archive.
    pub async fn archive(&self, archive_id: &str) -> Result<Option<Archive>, DatabaseError> {
        self.read(async |link| {
            let sql = "SELECT body::text FROM archives WHERE archive_id = $1::uuid";
            link.rows(sql, &[archive_id.into()]).await?.first().map(|row| row.json(0)).transpose()
        })
        .await
    }
}
