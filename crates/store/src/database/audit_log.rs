//! The audit log and the events: committed without numbers, together with what they report, and numbered and chained later by a
//! sequencer.
//!
//! The holder of the lease assigns the numbers. The row of the lease is locked meanwhile, so that processes take turns even if
//! several of them act as the holder. Numbers have no gaps, and a numbered entry never changes.

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, AuditEntry, ChainError, ChainHead, append};
use ade_domain::event::Event;

use super::batch::{Statement, values};
use super::sql::{Arg, Row, Select, SqlConnection, uuid};
use super::{Backend, Database, DatabaseError, Operation, Result};

const SEQUENCER_LEASE: &str = "sequencer";
/// The columns besides the body are copies of its fields, for searches.
const SELECT_ENTRIES: &str =
    "SELECT number, previous_hash, entry_hash, body, micros(at), actor, action, task_id::text FROM audit";

/// A numbered row of the audit log, which may have been tampered with.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    pub number: u64,
    entry: Result<AuditEntry, ChainError>,
}

impl AuditRow {
    /// Reads the columns of [`SELECT_ENTRIES`], and checks that they match the body. Does not check the hashes.
    fn read(row: &Row) -> Result<Self> {
        let number = row.get(0)?;
        let hash =
            |at| Ok::<_, DatabaseError>(row.get::<Option<String>>(at)?.and_then(|hash| hash.parse().ok()));
        let (previous_hash, entry_hash) = (hash(1)?, hash(2)?);
        let (at, actor, action, task_id) = (row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?);
        let matches = |body: &AuditBody| {
            let body_actor = body.who.user_id.as_ref().map(ToString::to_string);
            (body.at, body_actor, &body.action, &body.task_id) == (at, actor, &action, &task_id)
        };
        let entry = match (row.json(3), previous_hash, entry_hash) {
            (Err(_), ..) => Err("its body is not a valid audit entry"),
            (Ok(body), ..) if !matches(&body) => Err("its indexed columns differ from its body"),
            (Ok(body), Some(previous_hash), Some(entry_hash)) => {
                Ok(AuditEntry { number, previous_hash, entry_hash, body })
            }
            _ => Err("its hash is not a valid hash"),
        };
        let broken = |why| ChainError { number, reason: format!("was changed: {why}") };
        Ok(Self { number, entry: entry.map_err(broken) })
    }

    pub fn entry(&self) -> Result<AuditEntry, ChainError> {
        self.entry.clone()
    }
}

#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    pub task: Option<String>,
    pub actor: Option<String>,
    pub action: Option<String>,
    /// Inclusive.
    pub from: Option<Moment>,
    /// Exclusive.
    pub to: Option<Moment>,
}

/// Assigns numbers to audit entries and events, if the lease is free or already held.
struct AssignNumbers {
    holder: String,
    now: Moment,
    lease_ms: u64,
    /// Of entries, and of events.
    limit: u32,
}

impl Operation for AssignNumbers {
    /// How many entries and events got a number.
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64> {
        let until = self.now.plus_ms(self.lease_ms);
        let lease = [SEQUENCER_LEASE.into(), self.holder.as_str().into(), until.into(), self.now.into()];
        let sql = "INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, $3) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                   WHERE leases.holder = excluded.holder OR leases.expires_at <= $4";
        if connection.execute(sql, &lease).await? == 0 {
            return Ok(0);
        }
        let audit = ("audit entries", self.number_audit(connection).await?);
        let events = ("events", self.number_events(connection).await?);
        let mut numbered = 0;
        for (what, (expected, statements)) in [audit, events] {
            let updated = connection.execute_each(&statements).await?;
            if updated != expected as u64 {
                let reason = format!("only {updated} of {expected} {what} could be numbered");
                return Err(DatabaseError::Corrupt(reason));
            }
            numbered += updated;
        }
        Ok(numbered)
    }
}

impl AssignNumbers {
    /// The first rows without a number; `select` lists their columns and the table.
    async fn unnumbered(&self, connection: &mut SqlConnection<'_>, select: &str) -> Result<Vec<Row>> {
        let limit = self.limit;
        let sql = format!("SELECT {select} WHERE number IS NULL ORDER BY insert_seq LIMIT {limit}");
        connection.query(&sql, &[]).await
    }

    /// How many entries are to be numbered, and the statements that do it.
    async fn number_audit(&self, connection: &mut SqlConnection<'_>) -> Result<(usize, Vec<Statement>)> {
        let rows = self.unnumbered(connection, "entry_id::text, body, micros(at) FROM audit").await?;
        if rows.is_empty() {
            return Ok((0, Vec::new()));
        }
        let (mut head, mut numbered) = (head(connection).await?, Vec::with_capacity(rows.len()));
        for row in &rows {
            let entry =
                append(head, row.json(1)?).map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
            head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
            numbered.push(vec![
                Arg::Uuid(row.get(0)?),
                Arg::Time(row.get(2)?),
                entry.number.into(),
                entry.previous_hash.to_string().into(),
                entry.entry_hash.to_string().into(),
            ]);
        }
        // The time selects the partition.
        let statements = values(
            "WITH given (entry_id, at, number, previous_hash, entry_hash) AS (",
            &numbered,
            ") UPDATE audit SET number = given.number, previous_hash = given.previous_hash, entry_hash = given.entry_hash \
             FROM given WHERE audit.entry_id = given.entry_id AND audit.at = given.at",
        );
        Ok((rows.len(), statements))
    }

    /// The same for events.
    async fn number_events(&self, connection: &mut SqlConnection<'_>) -> Result<(usize, Vec<Statement>)> {
        let rows = self.unnumbered(connection, "event_id::text FROM events").await?;
        if rows.is_empty() {
            return Ok((0, Vec::new()));
        }
        let last =
            connection.query_number("SELECT coalesce(max(number), 0)::bigint FROM events", &[]).await?;
        let numbered =
            (last + 1..).zip(&rows).map(|(number, row)| Ok(vec![Arg::Uuid(row.get(0)?), number.into()]));
        let statements = values(
            "WITH given (event_id, number) AS (",
            &numbered.collect::<Result<Vec<_>>>()?,
            ") UPDATE events SET number = given.number FROM given WHERE events.event_id = given.event_id",
        );
        Ok((rows.len(), statements))
    }
}

async fn head(connection: &mut SqlConnection<'_>) -> Result<ChainHead> {
    let sql = "SELECT number, entry_hash FROM audit WHERE number IS NOT NULL ORDER BY number DESC LIMIT 1";
    let Some(row) = connection.query_first(sql, &[]).await? else { return Ok(ChainHead::origin()) };
    let (number, hash) = row.pair::<u64, String>()?;
    let invalid = |_| DatabaseError::Corrupt(format!("audit entry {number} has an invalid hash: {hash}"));
    Ok(ChainHead { number, entry_hash: hash.parse().map_err(invalid)? })
}

impl Database {
    /// Assigns numbers to at most `limit` audit entries and `limit` events, unless another process holds the lease. Returns how many
    /// were numbered.
    pub async fn assign_numbers(&self, holder: &str, now: Moment, lease_ms: u64, limit: u32) -> Result<u64> {
        self.execute(AssignNumbers { holder: holder.to_owned(), now, lease_ms, limit }).await
    }

    /// Whether an audit entry or event has no number yet.
    pub async fn has_unnumbered(&self) -> Result<bool> {
        let sql = "SELECT 1::bigint WHERE EXISTS (SELECT 1 FROM audit WHERE number IS NULL) \
                   OR EXISTS (SELECT 1 FROM events WHERE number IS NULL)";
        Ok(self.fetch_number(sql, &[]).await? > 0)
    }

    /// Creates the partitions of the audit log for the month of `now` and the next two. Returns how many of them are still missing.
    /// Entries of a month without a partition are kept in a common one: call it daily. Does nothing on SQLite.
    pub async fn create_audit_partitions(&self, now: Moment) -> Result<u64> {
        let Backend::Postgres(_) = self.backend else { return Ok(0) };
        self.fetch_number("SELECT audit_create_partitions($1)", &[now.into()]).await
    }

    /// Number and hash of the last entry.
    pub async fn audit_head(&self) -> Result<ChainHead> {
        self.read(async |connection| head(connection).await).await
    }

    /// Audit entries after the number `after`: in the order of their numbers, or in the order of time if the filter has an actor, an
    /// action or a time. The two orders are nearly the same; in the latter, every such filter has an index that begins where the
    /// page does.
    pub async fn audit_rows(&self, filter: &AuditFilter, after: u64, limit: u32) -> Result<Vec<AuditRow>> {
        let AuditFilter { task, actor, action, from, to } = filter;
        let has_index_by_time = actor.is_some() || action.is_some() || from.is_some() || to.is_some();
        let by_time = has_index_by_time && task.is_none();
        let mut from = *from;
        let mut select = Select::new(SELECT_ENTRIES);
        if !by_time {
            select.and("number > ?", [after.into()]);
        } else {
            if after > 0 {
                let sql = "SELECT micros(at) FROM audit WHERE number = $1";
                let at = self.fetch_first(sql, &[after.into()], |row| row.get(0)).await?;
                let Some(at) = at else { return Ok(Vec::new()) };
                from = from.max(Some(at));
                select.and("(at > ? OR number > ?)", [at.into(), after.into()]);
            }
            select.and("number IS NOT NULL", []);
        }
        select.and_if("task_id = ?", task.as_deref().map(uuid));
        select.and_if("actor = ?", actor.as_deref());
        select.and_if("action = ?", action.as_deref());
        select.and_if("at >= ?", from);
        select.and_if("at < ?", *to);
        select.sql.push_str(if by_time { " ORDER BY at, number" } else { " ORDER BY number" });
        self.fetch_page(&select.sql, &select.args, limit, AuditRow::read).await
    }

    /// Events after the number `after`, with their numbers.
    pub async fn events(&self, after: u64, limit: u32) -> Result<Vec<(u64, Event)>> {
        let sql = "SELECT number, body::text FROM events WHERE number > $1 ORDER BY number";
        self.fetch_page(sql, &[after.into()], limit, |row| Ok((row.get(0)?, row.json(1)?))).await
    }
}
