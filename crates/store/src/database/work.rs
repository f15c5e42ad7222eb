//! What workers do, as rows: which tasks have work, who is at them, who is not heard of any more, and what is said meanwhile.
//!
//! A claim only keeps workers from trying the same at the same time; that nothing is done twice is up to attempts and leases,
//! which every commit of a task is guarded by.

use std::cmp::Reverse;

use ade_domain::Moment;
use ade_domain::task::Task;
use ade_domain::task::{Phase, PreviewStatus, State};
use serde::{Deserialize, Serialize};

use super::commit::{KeyedResponse, keep_answer};
use super::sql::{Arg, Link, ROW_BY_ROW, SKIP_LOCKED};
use super::{Database, DatabaseError, StoredTask, Work};

/// Bytes of what is said about one task that the record keeps for those who follow; all of it is a blob.
const MOST_LOGGED: u64 = 1_048_576;
/// The id before all others.
pub(super) const BEFORE_ALL: &str = "00000000-0000-0000-0000-000000000000";
/// Where the order of what is forced begins.
const FORCED: u64 = 1_000;
const UNDO: u64 = 2_000;
const PREVIEW: u64 = 3_000;

/// What a task needs a worker for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Somebody wants to see what it would change.
    Preview,
    /// It is approved.
    Apply,
    /// Somebody wants it undone.
    RollBack,
}

impl WorkKind {
    /// What it needs a worker for now, if for anything.
    #[must_use]
    pub fn of(task: &StoredTask) -> Option<Self> {
        let review = &task.task;
        let wants_undo = |review: &Task| {
            review
                .execution
                .as_ref()
                .is_some_and(|execution| execution.undo.is_some() && execution.phase == Phase::Ended)
        };
        match review.state {
            State::Approved => Some(Self::Apply),
            State::Failed if wants_undo(review) => Some(Self::RollBack),
            State::Draft | State::Reviewing if task.preview.status == PreviewStatus::Pending => {
                Some(Self::Preview)
            }
            _ => None,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Preview => "preview",
            Self::Apply => "apply",
            Self::RollBack => "roll_back",
        }
    }

    /// The highest is first.
    pub(super) fn rank(self, review: &Task) -> u64 {
        match self {
            Self::Preview => PREVIEW,
            Self::RollBack => UNDO,
            Self::Apply if review.forced => FORCED + u64::from(review.config.priority),
            Self::Apply => review.config.priority.into(),
        }
    }

    /// Among equals the oldest is first, and nothing is done before.
    #[must_use]
    pub fn ready_at(self, review: &Task) -> Moment {
        let since = review.since.get(&review.state).copied();
        let since = since.unwrap_or_else(|| Moment::from_micros(0));
        review.apply_after.filter(|_| self == Self::Apply).map_or(since, |after| after.max(since))
    }
}

/// Something that was said while a task was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its place; the first is 1.
    pub number: u64,
    /// By which attempt.
    pub attempt: u64,
    /// When.
    pub at: Moment,
    /// What.
    pub text: String,
}

/// Whether a lease was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// It was.
    Yes,
    /// It was, and somebody wants the run to end.
    Stop,
    /// Another attempt took its place, or it is over.
    No,
}

/// What changes the rows of work.
#[derive(Debug, Clone)]
pub(super) enum Doing {
    Claim { places: Vec<String>, types: Vec<String>, by: String, now: Moment, until: Moment, most: u32 },
    PutOff { task_id: String, by: String, until: Moment },
    Renew { task_id: String, attempt: u64, until: Moment },
    Log { task_id: String, attempt: u64, at: Moment, text: String, answer: Option<KeyedResponse> },
}

impl Doing {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        match self {
            Self::Claim { places, types, by, now, until, most } => {
                claim(link, (places, types), by, *now, *until, *most).await
            }
            Self::PutOff { task_id, by, until } => {
                let args = [task_id.as_str().into(), by.as_str().into(), (*until).into()];
                let sql = "UPDATE tasks SET claimed_until = moment($3) \
                           WHERE task_id = $1::uuid AND claimed_by = $2";
                link.run(sql, &args).await
            }
            Self::Renew { task_id, attempt, until } => renew(link, task_id, *attempt, *until).await,
            Self::Log { task_id, attempt, at, text, answer } => {
                log(link, task_id, *attempt, *at, text, answer.as_ref()).await
            }
        }
    }
}

/// Tasks that have work and are claimed by nobody, the first first. `then` is how their rows are treated.
async fn ready(
    link: &mut Link<'_>,
    (places, types): (&[String], &[String]),
    now: Moment,
    most: u32,
    then: &str,
) -> Result<Vec<String>, DatabaseError> {
    let of_type = match types.len() {
        0 => String::new(),
        many => {
            let args: Vec<String> = (3..many + 3).map(|number| format!("${number}")).collect();
            format!(" AND type IN ({})", args.join(", "))
        }
    };
    let mut found = Vec::new();
    // One place after the other: each has an order of its own in the index.
    for place in places {
        let sql = format!(
            "SELECT task_id::text, work_priority, micros(ready_at) FROM tasks \
             WHERE work_kind IS NOT NULL AND work_queue = $1 AND ready_at <= moment($2){of_type} \
             AND (claimed_until IS NULL OR claimed_until <= moment($2)) \
             ORDER BY work_priority DESC, ready_at, task_id LIMIT {most}{then}"
        );
        let mut args = vec![Arg::from(place.as_str()), now.into()];
        args.extend(types.iter().map(|one| Arg::from(one.as_str())));
        for row in link.rows(&sql, &args).await? {
            found.push((Reverse(row.number(1)?), row.moment(2)?, row.text(0)?.to_owned()));
        }
    }
    found.sort();
    Ok(found.into_iter().take(most as usize).map(|(.., task_id)| task_id).collect())
}

async fn claim(
    link: &mut Link<'_>,
    of: (&[String], &[String]),
    by: &str,
    now: Moment,
    until: Moment,
    most: u32,
) -> Result<u64, DatabaseError> {
    let mut claimed = 0;
    for task_id in ready(link, of, now, most, SKIP_LOCKED).await? {
        let args = [task_id.into(), by.into(), until.into()];
        let sql = "UPDATE tasks SET claimed_by = $2, claimed_until = moment($3) WHERE task_id = $1::uuid";
        claimed += link.run(sql, &args).await?;
    }
    Ok(claimed)
}

async fn renew(
    link: &mut Link<'_>,
    task_id: &str,
    attempt: u64,
    until: Moment,
) -> Result<u64, DatabaseError> {
    let args = [task_id.into(), attempt.into(), until.into()];
    let sql = "UPDATE tasks SET lease_until = CASE WHEN lease_until > moment($3) THEN lease_until \
               ELSE moment($3) END \
               WHERE task_id = $1::uuid AND attempt = $2 AND lease_until IS NOT NULL";
    if link.run(sql, &args).await? == 0 {
        return Ok(0);
    }
    let sql = "SELECT body->'execution'->>'stop' FROM tasks WHERE task_id = $1::uuid";
    let rows = link.rows(sql, &[task_id.into()]).await?;
    let stops = rows.first().map(|row| row.maybe_text(0)).transpose()?.flatten().is_some();
    Ok(if stops { 2 } else { 1 })
}

async fn log(
    link: &mut Link<'_>,
    task_id: &str,
    attempt: u64,
    at: Moment,
    text: &str,
    answer: Option<&KeyedResponse>,
) -> Result<u64, DatabaseError> {
    // Of two who speak at once, one waits here for the number that the other takes.
    let present = format!(
        "SELECT 1::bigint FROM tasks WHERE task_id = $1::uuid AND attempt = $2 AND lease_until IS NOT NULL{ROW_BY_ROW}"
    );
    if link.rows(&present, &[task_id.into(), attempt.into()]).await?.is_empty() {
        return Ok(0);
    }
    let kept = answer.map(keep_answer).transpose()?;
    link.run_each(kept.as_slice()).await?;
    let so_far = "SELECT coalesce(max(number), 0)::bigint, coalesce(sum(length(text)), 0)::bigint FROM task_logs \
                  WHERE task_id = $1::uuid";
    let rows = link.rows(so_far, &[task_id.into()]).await?;
    let (last, long) =
        rows.first().map_or(Ok::<_, DatabaseError>((0, 0)), |row| Ok((row.number(0)?, row.number(1)?)))?;
    if long >= MOST_LOGGED {
        return Ok(2);
    }
    let full = long + text.len() as u64 >= MOST_LOGGED;
    let text =
        if full { format!("{text}\n(more was said, and is not kept here)\n") } else { text.to_owned() };
    let args: [Arg; 5] = [task_id.into(), (last + 1).into(), attempt.into(), at.into(), text.into()];
    let sql = "INSERT INTO task_logs (task_id, number, attempt, at, text) VALUES ($1::uuid, $2, $3, moment($4), $5)";
    link.run(sql, &args).await.map(|_| 1)
}

impl Database {
    /// Claims tasks of some types, or of any if none is named, that have work in some places until `until`: the highest rank first, the oldest first among equals. Which.
    pub async fn claim(
        &self,
        places: &[String],
        types: &[String],
        by: &str,
        now: Moment,
        until: Moment,
        most: u32,
    ) -> Result<Vec<String>, DatabaseError> {
        let (places, types, by) = (places.to_vec(), types.to_vec(), by.to_owned());
        let claimed =
            self.work(Work::Do(Doing::Claim { places, types, by: by.clone(), now, until, most })).await?;
        if claimed == 0 {
            return Ok(Vec::new());
        }
        let sql = "SELECT task_id::text FROM tasks WHERE claimed_by = $1 AND claimed_until = moment($2) \
                   ORDER BY work_priority DESC, ready_at, task_id";
        self.read(async |link| {
            let rows = link.rows(sql, &[by.into(), until.into()]).await?;
            rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
        })
        .await
    }

    /// The task that a claim would have now; it is not claimed by this.
    pub async fn first_ready(
        &self,
        places: &[String],
        types: &[String],
        now: Moment,
    ) -> Result<Option<String>, DatabaseError> {
        self.read(async |link| Ok(ready(link, (places, types), now, 1, "").await?.into_iter().next())).await
    }

    /// Whoever claimed a task tries it again not before `until`, and neither does anybody else; whether it has it still.
    pub async fn put_off(&self, task_id: &str, by: &str, until: Moment) -> Result<bool, DatabaseError> {
        let (task_id, by) = (task_id.to_owned(), by.to_owned());
        Ok(self.work(Work::Do(Doing::PutOff { task_id, by, until })).await? > 0)
    }

    /// Whoever carries a task out is alive until `until`.
    pub async fn renew(&self, task_id: &str, attempt: u64, until: Moment) -> Result<Renewed, DatabaseError> {
        let task_id = task_id.to_owned();
        let renewed = self.work(Work::Do(Doing::Renew { task_id, attempt, until })).await?;
        Ok(match renewed {
            0 => Renewed::No,
            1 => Renewed::Yes,
            _ => Renewed::Stop,
        })
    }

    /// Whether somebody wants an attempt to end that is the present one.
    pub async fn is_stopped(&self, task_id: &str, attempt: u64) -> Result<bool, DatabaseError> {
        let sql = "SELECT 1::bigint FROM tasks WHERE task_id = $1::uuid AND attempt = $2 \
                   AND body->'execution'->>'stop' IS NOT NULL";
        let args = [task_id.into(), attempt.into()];
        self.read(async |link| Ok(!link.rows(sql, &args).await?.is_empty())).await
    }

    /// Until when whoever carries a task out counts as alive; nothing if nobody does.
    pub async fn lease_of(&self, task_id: &str) -> Result<Option<Moment>, DatabaseError> {
        let sql = "SELECT micros(lease_until) FROM tasks WHERE task_id = $1::uuid";
        self.read(async |link| {
            let rows = link.rows(sql, &[task_id.into()]).await?;
            rows.first().map_or(Ok(None), |row| row.maybe_moment(0))
        })
        .await
    }

    /// Keeps what an attempt says, for whoever follows, and what whoever said so is answered; whether it is the present one.
    pub async fn say(
        &self,
        task_id: &str,
        attempt: u64,
        at: Moment,
        text: &str,
        answer: Option<KeyedResponse>,
    ) -> Result<bool, DatabaseError> {
        let (task_id, text) = (task_id.to_owned(), text.to_owned());
        Ok(self.work(Work::Do(Doing::Log { task_id, attempt, at, text, answer })).await? > 0)
    }

    /// What was said while a task was carried out, from the first line after `after`.
    pub async fn said(&self, task_id: &str, after: u64, limit: u32) -> Result<Vec<LogLine>, DatabaseError> {
        let sql = format!(
            "SELECT number, attempt, micros(at), text FROM task_logs WHERE task_id = $1::uuid AND number > $2 \
             ORDER BY number LIMIT {limit}"
        );
        let args = [task_id.into(), after.into()];
        self.read(async |link| {
            let rows = link.rows(&sql, &args).await?;
            rows.iter()
                .map(|row| {
                    let (number, attempt, at) = (row.number(0)?, row.number(1)?, row.moment(2)?);
                    Ok(LogLine { number, attempt, at, text: row.text(3)?.to_owned() })
                })
                .collect()
        })
        .await
    }

    /// Tasks whose worker was not heard of until its lease ended, the longest silent first; from `after` on, if a page came before.
    /// Each with the end of its lease.
    pub async fn silent(
        &self,
        now: Moment,
        after: Option<&(Moment, String)>,
        limit: u32,
    ) -> Result<Vec<(Moment, String)>, DatabaseError> {
        let sql = format!(
            "SELECT micros(lease_until), task_id::text FROM tasks WHERE lease_until <= moment($1) \
             AND (lease_until > moment($2) OR (lease_until = moment($2) AND task_id > $3::uuid)) \
             ORDER BY lease_until, task_id LIMIT {limit}"
        );
        let first = (Moment::from_micros(0), BEFORE_ALL.to_owned());
        let (from, id) = after.unwrap_or(&first);
        self.read(async |link| {
            let rows = link.rows(&sql, &[now.into(), (*from).into(), id.as_str().into()]).await?;
            rows.iter().map(|row| Ok((row.moment(0)?, row.text(1)?.to_owned()))).collect()
        })
        .await
    }

    /// How many tasks have work, by place; the places with most first.
    pub async fn waiting_work(&self, limit: u32) -> Result<Vec<(String, u64)>, DatabaseError> {
        let sql = format!(
            "SELECT work_queue, count(*)::bigint AS many FROM tasks WHERE work_kind IS NOT NULL GROUP BY work_queue \
             ORDER BY many DESC, work_queue LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[]).await?;
            rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.number(1)?))).collect()
        })
        .await
    }
}
