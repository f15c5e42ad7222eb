//! The audit log and the events: written unnumbered with what they tell of, numbered and chained afterwards by one sequencer.
//!
//! Whoever holds the lease numbers; the row of the lease is locked while it does, so that two who believe they hold it still
//! come one after the other. Numbers have no gaps, and what has one never changes.

use ade_domain::Moment;
use ade_domain::audit::{Broken, Entry, Head, append};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::sql::{Arg, Conditions, Link, Row};
use super::together::{Statement, values};
use super::{Database, DatabaseError};

/// The lease of whoever numbers.
const SEQUENCER: &str = "sequencer";

/// Something that others hear of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What it is known by.
    pub event_id: String,
    /// As `task:approved`.
    pub kind: String,
    /// When.
    pub at: Moment,
    /// About which task, if about one.
    pub task_id: Option<String>,
    /// Who should be told by name.
    pub tell: Vec<String>,
    /// What happened.
    pub data: Value,
}

/// Who numbers, and how much at once.
#[derive(Debug, Clone)]
pub(super) struct Numbering {
    pub(super) holder: String,
    pub(super) now: Moment,
    pub(super) lease_ms: u64,
    pub(super) most: u32,
}

/// A row of the audit log as it stands there: what of it is not as it was written is found by whoever reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// Its place.
    pub number: u64,
    previous_hash: String,
    entry_hash: String,
    body: String,
    // Copies of what the body says, to search by.
    at: Moment,
    actor: Option<String>,
    action: String,
    task_id: Option<String>,
}

impl Numbered {
    fn read(row: &Row) -> Result<Self, DatabaseError> {
        let maybe = |at| row.maybe_text(at).map(|text| text.map(str::to_owned));
        Ok(Self {
            number: row.number(0)?,
            previous_hash: maybe(1)?.unwrap_or_default(),
            entry_hash: maybe(2)?.unwrap_or_default(),
            body: row.text(3)?.to_owned(),
            at: row.moment(4)?,
            actor: maybe(5)?,
            action: row.text(6)?.to_owned(),
            task_id: maybe(7)?,
        })
    }

    /// The entry that stands here.
    pub fn entry(&self) -> Result<Entry, Broken> {
        let broken = |why: &str| Broken { number: self.number, why: why.to_owned() };
        let unreadable = |_| broken("was changed: it cannot be read any more");
        let body: ade_domain::audit::AuditBody = serde_json::from_str(&self.body).map_err(unreadable)?;
        let says_the_same = body.at == self.at
            && body.action == self.action
            && body.task_id == self.task_id
            && body.who.user_id.as_ref().map(ToString::to_string) == self.actor;
        if !says_the_same {
            return Err(broken("was changed: what it is searched by is not what it says"));
        }
        let hash = |text: &str| text.parse().map_err(|_| broken("was changed: its hash cannot be read"));
        let (previous_hash, entry_hash) = (hash(&self.previous_hash)?, hash(&self.entry_hash)?);
        Ok(Entry { number: self.number, previous_hash, entry_hash, body })
    }
}

/// Which entries.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// About this task.
    pub task: Option<String>,
    /// By this person.
    pub actor: Option<String>,
    /// Of this kind.
    pub action: Option<String>,
    /// Not before.
    pub from: Option<Moment>,
    /// Before.
    pub to: Option<Moment>,
}

impl Numbering {
    /// Gives numbers to what has none; how many.
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        let until = self.now.plus_ms(self.lease_ms);
        let lease = [SEQUENCER.into(), self.holder.as_str().into(), until.into(), self.now.into()];
        let sql = "INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, moment($3)) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                   WHERE leases.holder = excluded.holder OR leases.expires_at <= moment($4)";
        if link.run(sql, &lease).await? == 0 {
            return Ok(0);
        }
        Ok(self.number_audit(link).await? + self.number_events(link).await?)
    }

    async fn number_audit(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        let sql = format!(
            "SELECT entry_id::text, body, micros(at) FROM audit WHERE number IS NULL ORDER BY insert_seq LIMIT {}",
            self.most
        );
        let rows = link.rows(&sql, &[]).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let (mut head, mut numbered) = (head(link).await?, Vec::with_capacity(rows.len()));
        for row in &rows {
            let entry =
                append(head, row.json(1)?).map_err(|error| DatabaseError::Foreign(error.to_string()))?;
            head = Head { number: entry.number, entry_hash: entry.entry_hash };
            numbered.push(vec![
                row.text(0)?.into(),
                row.moment(2)?.into(),
                entry.number.into(),
                entry.previous_hash.to_string().into(),
                entry.entry_hash.to_string().into(),
            ]);
        }
        // Its moment says in which part of the log an entry is.
        let all = values(
            "WITH given (entry_id, at, number, previous_hash, entry_hash) AS (",
            "(?::uuid, moment(?), ?::bigint, ?, ?)",
            ") UPDATE audit SET number = given.number, previous_hash = given.previous_hash, entry_hash = given.entry_hash \
             FROM given WHERE audit.entry_id = given.entry_id AND audit.at = given.at",
            &numbered,
        );
        number_all(link, &all, rows.len(), "an entry of the audit log").await
    }

    async fn number_events(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        let sql = format!(
            "SELECT event_id::text FROM events WHERE number IS NULL ORDER BY insert_seq LIMIT {}",
            self.most
        );
        let rows = link.rows(&sql, &[]).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let last = last_event(link).await?;
        let numbered =
            (last + 1..).zip(&rows).map(|(number, row)| Ok(vec![row.text(0)?.into(), number.into()]));
        let all = values(
            "WITH given (event_id, number) AS (",
            "(?::uuid, ?::bigint)",
            ") UPDATE events SET number = given.number FROM given WHERE events.event_id = given.event_id",
            &numbered.collect::<Result<Vec<Vec<Arg>>, DatabaseError>>()?,
        );
        number_all(link, &all, rows.len(), "an event").await
    }
}

/// Gives numbers to so many rows, each of which must be there.
async fn number_all(
    link: &mut Link<'_>,
    all: &[Statement],
    many: usize,
    what: &str,
) -> Result<u64, DatabaseError> {
    let (mut met, many) = (0, many as u64);
    for statement in all {
        met += link.run(&statement.sql, &statement.args).await?;
    }
    if met == many {
        Ok(many)
    } else {
        Err(DatabaseError::Foreign(format!("{what}, which cannot be numbered")))
    }
}

pub(super) async fn last_event(link: &mut Link<'_>) -> Result<u64, DatabaseError> {
    let last = link.rows("SELECT coalesce(max(number), 0)::bigint FROM events", &[]).await?;
    last.first().map_or(Ok(0), |row| row.number(0))
}

pub(super) async fn head(link: &mut Link<'_>) -> Result<Head, DatabaseError> {
    let sql = "SELECT number, entry_hash FROM audit WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1";
    let rows = link.rows(sql, &[]).await?;
    let Some(row) = rows.first() else { return Ok(Head::origin()) };
    let entry_hash =
        row.text(1)?.parse().map_err(|_| DatabaseError::Foreign("a hash of the audit log".to_owned()))?;
    Ok(Head { number: row.number(0)?, entry_hash })
}

impl Database {
    /// Gives numbers to audit entries and events that have none, unless somebody else does; how many.
    pub async fn number(
        &self,
        holder: &str,
        now: Moment,
        lease_ms: u64,
        most: u32,
    ) -> Result<u64, DatabaseError> {
        self.work(super::Work::Number(Numbering { holder: holder.to_owned(), now, lease_ms, most })).await
    }

    /// Whether something waits for its number.
    pub async fn has_unnumbered(&self) -> Result<bool, DatabaseError> {
        let sql = "SELECT 1::bigint WHERE EXISTS (SELECT 1 FROM audit WHERE number IS NULL) \
                   OR EXISTS (SELECT 1 FROM events WHERE number IS NULL)";
        self.read(async |link| Ok(!link.rows(sql, &[]).await?.is_empty())).await
    }

    /// Makes the parts of the audit log for the month of `now` and the two that follow; how many of them are still missing.
    /// Entries of such months are kept as well, but together: call it daily. Does nothing where the log has no parts.
    pub async fn prepare_months(&self, now: Moment) -> Result<u64, DatabaseError> {
        let super::Backend::Postgres(_) = self.backend else { return Ok(0) };
        self.read(async |link| {
            let rows = link.rows("SELECT audit_create_partitions(moment($1))", &[now.into()]).await?;
            rows.first().map_or(Ok(0), |row| row.number(0))
        })
        .await
    }

    /// Where the audit log ends.
    pub async fn audit_head(&self) -> Result<Head, DatabaseError> {
        self.read(async |link| head(link).await).await
    }

    /// Entries of the audit log, from the first one after a number: in the order of their numbers, or, if they are searched
    /// by who, what or when, in the order of time. Both are nearly the same; by the latter every such search has an index
    /// that begins where its page does.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<Numbered>, DatabaseError> {
        let AuditFilter { task, actor, action, from, to } = filter;
        let searched = actor.is_some() || action.is_some() || from.is_some() || to.is_some();
        let by_time = searched && task.is_none();
        self.read(async |link| {
            let mut wanted = Conditions::new(
                "SELECT number, previous_hash, entry_hash, body, micros(at), actor, action, task_id::text FROM audit",
            );
            let mut from = *from;
            if !by_time {
                wanted.and("number > ?", [after.into()]);
            } else if after == 0 {
                wanted.and("number IS NOT NULL", []);
            } else {
                let rows = link.rows("SELECT micros(at) FROM audit WHERE number = $1", &[after.into()]).await?;
                let Some(at) = rows.first().map(|row| row.moment(0)).transpose()? else {
                    return Ok(Vec::new());
                };
                from = from.max(Some(at));
                wanted.and("(at > moment(?) OR number > ?)", [at.into(), after.into()]);
                wanted.and("number IS NOT NULL", []);
            }
            let texts = [("task_id = ?::uuid", task), ("actor = ?", actor), ("action = ?", action)];
            for (condition, value) in texts {
                if let Some(value) = value {
                    wanted.and(condition, [value.as_str().into()]);
                }
            }
            for (condition, value) in [("at >= moment(?)", from), ("at < moment(?)", *to)] {
                if let Some(value) = value {
                    wanted.and(condition, [value.into()]);
                }
            }
            let order = if by_time { "at, number" } else { "number" };
            wanted.sql.push_str(&format!(" ORDER BY {order} LIMIT {limit}"));
            link.rows(&wanted.sql, &wanted.args).await?.iter().map(Numbered::read).collect()
        })
        .await
    }

    /// Events in order, from the first one after a number.
    pub async fn events(&self, after: u64, limit: u32) -> Result<Vec<(u64, Event)>, DatabaseError> {
        let sql =
            format!("SELECT number, body::text FROM events WHERE number > $1 ORDER BY number LIMIT {limit}");
        self.read(async |link| {
            let rows = link.rows(&sql, &[after.into()]).await?;
            rows.iter().map(|row| Ok((row.number(0)?, row.json(1)?))).collect()
        })
        .await
    }
}
