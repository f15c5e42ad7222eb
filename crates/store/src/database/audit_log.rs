//! The audit log and the events: committed together with what they report, and numbered and chained (`numbering.rs`).
//!
//! An entry is authentic if a process with the secret wrote it: its body has a valid MAC, and its columns are copies of its body. Rows
//! that somebody else inserted or changed prove nothing.

use std::sync::atomic::Ordering;

use ade_domain::audit::{AuditBody, AuditEntry, ChainError, ChainHead};
use ade_domain::event::Event;
use ade_domain::keys::{KeyPurpose, MacCheck};
use ade_domain::task::ACTIONS_WITHOUT_TRANSITION;
use ade_domain::{Keys, Moment};

use super::numbering::{AssignNumbers, Numbering, head};
use super::outside_chain::HAS_PLACE;
use super::sql::{Row, Select, uuid};
use super::{Backend, Database, DatabaseError, Result};

/// The columns besides the body are copies of its fields, for searches.
const SELECT_ENTRIES: &str = "SELECT number, previous_hash, entry_hash, body, micros(at), actor, action, task_id::text, \
                              entry_id::text, mac FROM";
/// The columns that tell whether an entry is authentic.
pub(super) const EVIDENCE_COLUMNS: &str =
    "entry_id::text, micros(at), body, mac, actor, action, task_id::text, insert_seq";
/// More entries than a task can have, besides those of [`ACTIONS_WITHOUT_TRANSITION`].
const MAX_TASK_ENTRIES: u32 = 20_000;
const MAX_KEY_ID_LEN: usize = 32;
pub(super) const UNKNOWN_KEY: &str = "its MAC names a key that does not exist";

/// Whether a row was written by a process with the secret.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Authenticity {
    Authentic(Box<AuditBody>),
    /// Its MAC names a key that this process does not have, with this id.
    UnknownKey(String),
    /// Why it is not authentic.
    Forged(&'static str),
}

impl Authenticity {
    /// Reads the columns of [`EVIDENCE_COLUMNS`].
    pub(super) fn of(row: &Row, keys: &Keys) -> Self {
        let text = |at: usize| row.get::<Option<String>>(at).ok().flatten();
        let (Some(body), Some(mac)) = (text(2), text(3)) else { return Self::Forged("it has no MAC") };
        match keys.verify(KeyPurpose::AuditEntry, body.as_bytes(), &mac) {
            MacCheck::Valid => {}
            MacCheck::Invalid => return Self::Forged("its MAC is not valid"),
            MacCheck::UnknownKey => return Self::UnknownKey(key_id(&mac)),
        }
        let Ok(body) = serde_json::from_str::<AuditBody>(&body) else {
            return Self::Forged("its body is not an audit entry");
        };
        let columns = Columns { entry_id: text(0), actor: text(4), action: text(5), task_id: text(6) };
        // A copy of an authentic body in another row is not authentic.
        if row.get(1).ok() != Some(body.at) || columns != Columns::of(&body) {
            return Self::Forged("its columns differ from its body");
        }
        Self::Authentic(Box::new(body))
    }

    /// Why the row is quarantined, if it is not authentic.
    pub(super) fn objection(&self) -> Option<&'static str> {
        match self {
            Self::Authentic(_) => None,
            Self::UnknownKey(_) => Some(UNKNOWN_KEY),
            Self::Forged(reason) => Some(reason),
        }
    }
}

/// The id of the key that a MAC names. In a forged row, it may be any text.
fn key_id(mac: &str) -> String {
    mac.chars().take_while(char::is_ascii_alphanumeric).take(MAX_KEY_ID_LEN).collect()
}

/// The columns that are copies of fields of the body.
#[derive(PartialEq)]
struct Columns {
    entry_id: Option<String>,
    actor: Option<String>,
    action: Option<String>,
    task_id: Option<String>,
}

impl Columns {
    fn of(body: &AuditBody) -> Self {
        Self {
            entry_id: Some(body.entry_id.clone()),
            actor: body.who.user_id().map(ToString::to_string),
            action: Some(body.action.clone()),
            task_id: body.task_id.clone(),
        }
    }
}

/// The entry that a row `key` of PostgreSQL refers to by `at` and `entry_id`. Lateral, with a limit: the planner cannot join the whole
/// log for one page.
const ENTRY_OF_KEY: &str = "LATERAL (SELECT insert_seq, actor, action, task_id, mac, body, quarantined_at FROM audit \
                            WHERE audit.at = key.at AND audit.entry_id = key.entry_id LIMIT 1) AS entry";

/// Rows of PostgreSQL with the entries that they refer to, whose columns are null if somebody removed the entry.
pub(super) fn with_entries(keys: &str) -> String {
    format!("({keys}) AS key LEFT JOIN {ENTRY_OF_KEY} ON TRUE")
}

/// At most `limit` places in the chain of PostgreSQL, with their entries.
pub(super) fn places(condition: &str, limit: u32) -> String {
    with_entries(&format!("SELECT * FROM audit_chain WHERE {condition} LIMIT {limit}"))
}

/// A numbered row of the audit log, which may have been tampered with.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    pub number: u64,
    entry: Result<AuditEntry, ChainError>,
    text: String,
    mac: String,
}

impl AuditRow {
    /// Reads the columns of [`SELECT_ENTRIES`], and checks that they match the body. Does not check the hashes.
    fn read(row: &Row) -> Result<Self> {
        let number = row.get(0)?;
        let text = row.get(3)?;
        let hash =
            |at| Ok::<_, DatabaseError>(row.get::<Option<String>>(at)?.and_then(|hash| hash.parse().ok()));
        let (previous_hash, entry_hash) = (hash(1)?, hash(2)?);
        // SQLite stores any number.
        let at = row.get::<Moment>(4).ok();
        let columns =
            Columns { actor: row.get(5)?, action: row.get(6)?, task_id: row.get(7)?, entry_id: row.get(8)? };
        let matches = |body: &AuditBody| Some(body.at) == at && Columns::of(body) == columns;
        let entry = match (row.json(3), previous_hash, entry_hash) {
            (Err(_), ..) => Err("its body is not a valid audit entry"),
            (Ok(body), ..) if !matches(&body) => Err("its indexed columns differ from its body"),
            (Ok(body), Some(previous_hash), Some(entry_hash)) => {
                Ok(AuditEntry { number, previous_hash, entry_hash, body })
            }
            _ => Err("its hash is not a valid hash"),
        };
        let broken = |why| ChainError { number, reason: format!("was changed: {why}") };
        let mac = row.get::<Option<String>>(9)?.unwrap_or_default();
        Ok(Self { number, entry: entry.map_err(broken), text, mac })
    }

    pub fn entry(&self) -> Result<AuditEntry, ChainError> {
        self.entry.clone()
    }

    /// The entry, if a process with the secret wrote it.
    pub fn authentic_entry(&self, keys: &Keys) -> Result<AuditEntry, ChainError> {
        let broken = |reason: &str| Err(ChainError { number: self.number, reason: reason.to_owned() });
        match keys.verify(KeyPurpose::AuditEntry, self.text.as_bytes(), &self.mac) {
            MacCheck::Valid => self.entry(),
            // An edited body is reported as such.
            MacCheck::Invalid => {
                self.entry().and_then(|_| broken("was not written by ade: its MAC is not valid"))
            }
            MacCheck::UnknownKey => broken(
                "was written with a secret that this server does not have, or forged: add that secret to the previous ones",
            ),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    pub task: Option<String>,
    pub actor: Option<String>,
    pub action: Option<String>,
    /// Id of an object of entries that are about no task, such as a user or a lock.
    pub object: Option<String>,
    /// Inclusive.
    pub from: Option<Moment>,
    /// Exclusive.
    pub to: Option<Moment>,
    /// The last entries first.
    pub newest_first: bool,
}

impl Database {
    /// Assigns numbers to at most `limit` audit entries. Entries that are not authentic are quarantined instead. On SQLite nothing is
    /// left to number, but rows of others are found.
    pub async fn number_entries(&self, now: Moment, limit: u32) -> Result<Numbering> {
        let Self { keys, last_seen, secret_version, .. } = self.clone();
        let numbering = self.execute(AssignNumbers { now, limit, keys, last_seen, secret_version }).await?;
        if numbering.numbered > 0 {
            self.numbered.send_replace(());
        }
        Ok(numbering)
    }

    /// The authentic audit entries of the transitions of a task, numbered or not, in the order of its revisions. Whether an entry counts depends on
    /// its MAC alone: neither a mark nor a place in the log, which somebody with access to the database can change, takes it away.
    pub async fn task_entries(&self, task_id: &str) -> Result<Vec<AuditBody>> {
        let ignored = ACTIONS_WITHOUT_TRANSITION.join("', '");
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit \
             WHERE task_id = $1 AND action NOT IN ('{ignored}') ORDER BY insert_seq DESC LIMIT {MAX_TASK_ENTRIES}"
        );
        let rows = self.read(async |connection| connection.query(&sql, &[uuid(task_id)]).await).await?;
        let authentic = rows.iter().rev().filter_map(|row| match Authenticity::of(row, &self.keys) {
            Authenticity::Authentic(body) => Some(*body),
            Authenticity::UnknownKey(_) | Authenticity::Forged(_) => None,
        });
        let mut entries: Vec<AuditBody> = authentic.collect();
        entries.sort_by_key(|body| body.revision);
        Ok(entries)
    }

    /// The authentic audit entries about a task that have no number yet, in order.
    pub async fn unnumbered_task_entries(&self, task_id: &str, limit: u32) -> Result<Vec<AuditBody>> {
        // On SQLite every entry has one.
        let Backend::Postgres(_) = self.backend else { return Ok(Vec::new()) };
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE task_id = $1 AND quarantined_at IS NULL AND NOT {HAS_PLACE} \
             ORDER BY insert_seq LIMIT {limit}"
        );
        let rows = self.read(async |connection| connection.query(&sql, &[uuid(task_id)]).await).await?;
        let authentic = rows.iter().filter_map(|row| match Authenticity::of(row, &self.keys) {
            Authenticity::Authentic(body) => Some(*body),
            Authenticity::UnknownKey(_) | Authenticity::Forged(_) => None,
        });
        Ok(authentic.collect())
    }

    /// The authentic entry with this action, object and time.
    pub async fn authentic_entry(
        &self,
        action: &str,
        object_id: &str,
        at: Moment,
    ) -> Result<Option<AuditBody>> {
        let sql = format!("SELECT {EVIDENCE_COLUMNS} FROM audit WHERE action = $1 AND at = $2");
        let args = [action.into(), at.into()];
        let rows = self.read(async |connection| connection.query(&sql, &args).await).await?;
        let found = rows.iter().find_map(|row| match Authenticity::of(row, &self.keys) {
            Authenticity::Authentic(body) if body.object_id == object_id => Some(*body),
            _ => None,
        });
        Ok(found)
    }

    /// Whether an audit entry has no number yet, or a row that somebody inserted is not quarantined yet.
    pub async fn has_unnumbered(&self) -> Result<bool> {
        let sql = match self.backend {
            Backend::Sqlite(_) => "SELECT 1 WHERE EXISTS (SELECT 1 FROM audit WHERE number IS NULL)",
            Backend::Postgres(_) => {
                "SELECT 1::bigint WHERE EXISTS (SELECT 1 FROM audit_queue) \
                 OR EXISTS (SELECT 1 FROM audit WHERE queued = 0 AND quarantined_at IS NULL)"
            }
        };
        Ok(self.fetch_number(sql, &[]).await? > 0)
    }

    /// Whether [`number_entries`](Self::number_entries) may find something: asked before a poll, and not after a commit.
    pub async fn needs_numbering(&self) -> Result<bool> {
        match self.backend {
            // Rows of others have numbers too; whether there are any is known to the writer alone.
            Backend::Sqlite(_) => Ok(true),
            Backend::Postgres(_) => Ok(self.has_unnumbered().await? || self.has_forged_head().await?),
        }
    }

    /// Whether the last place of the chain is not one that ade has appended.
    async fn has_forged_head(&self) -> Result<bool> {
        let Some(row) = self.read(async |connection| head(connection).await).await? else { return Ok(false) };
        let is_authentic = row.is_authentic(&self.keys);
        if is_authentic {
            self.last_seen.store(row.head.number, Ordering::Relaxed);
        }
        Ok(!is_authentic)
    }

    /// Creates the partitions of the audit log for the month of `now` and the next two. Returns how many of them are still missing.
    /// Entries of a month without a partition are kept in a common one: call it daily. Does nothing on SQLite.
    pub async fn create_audit_partitions(&self, now: Moment) -> Result<u64> {
        let Backend::Postgres(_) = self.backend else { return Ok(0) };
        self.fetch_number("SELECT audit_create_partitions($1)", &[now.into()]).await
    }

    /// Number and hash of the last entry.
    pub async fn audit_head(&self) -> Result<ChainHead> {
        self.read(async |connection| {
            Ok(head(connection).await?.map_or_else(ChainHead::origin, |row| row.head))
        })
        .await
    }

    /// Audit entries behind the number `after`, or from the start of the list if it is 0: in the order of their numbers, or in the order
    /// of time if the filter has an actor, an action, an object or a time. The two orders are nearly the same; in the latter, every such filter has
    /// an index that begins where the page does. Removed entries are left out.
    pub async fn audit_rows(&self, filter: &AuditFilter, after: u64, limit: u32) -> Result<Vec<AuditRow>> {
        let AuditFilter { task, actor, action, object, newest_first, .. } = filter;
        let (mut from, mut to) = (filter.from, filter.to);
        let has_text = [actor, action, object].iter().any(|filter| filter.is_some());
        let has_index_by_time = has_text || from.is_some() || to.is_some();
        let by_time = has_index_by_time && task.is_none();
        let is_postgres = matches!(self.backend, Backend::Postgres(_));
        let source = match (is_postgres, by_time || task.is_some()) {
            (false, _) => "audit".to_owned(),
            (true, true) => "audit_log".to_owned(),
            // A list by number begins at the chain.
            (true, false) => format!("audit_chain AS key CROSS JOIN {ENTRY_OF_KEY}"),
        };
        let mut select = Select::new(&format!("{SELECT_ENTRIES} {source}"));
        select.and("number > 0", []);
        let (behind, direction) = if *newest_first { ("<", " DESC") } else { (">", "") };
        if after > 0 && by_time {
            let chain = if is_postgres { "audit_chain" } else { "audit" };
            let sql = format!("SELECT micros(at) FROM {chain} WHERE number = $1");
            let at: Option<Moment> = self.fetch_first(&sql, &[after.into()], |row| row.get(0)).await?;
            let Some(at) = at else { return Ok(Vec::new()) };
            // One bound of each kind, so that the index begins where the page does.
            if *newest_first {
                let until = Moment::from_micros(at.micros() + 1);
                to = Some(to.map_or(until, |to| to.min(until)));
            } else {
                from = from.max(Some(at));
            }
            select.and(&format!("(at {behind} ? OR number {behind} ?)"), [at.into(), after.into()]);
        } else if after > 0 {
            select.and(&format!("number {behind} ?"), [after.into()]);
        }
        // A row that somebody inserted into SQLite has a number until it is quarantined.
        select.and("entry_hash IS NOT NULL", []);
        select.and_if("task_id = ?", task.as_deref().map(uuid));
        select.and_if("actor = ?", actor.as_deref());
        select.and_if("action = ?", action.as_deref());
        select.and_if("object_id = ?", object.as_deref());
        select.and_if("at >= ?", from);
        select.and_if("at < ?", to);
        let order =
            if by_time { format!("at{direction}, number{direction}") } else { format!("number{direction}") };
        select.sql.push_str(&format!(" ORDER BY {order}"));
        self.fetch_page(&select.sql, &select.args, limit, AuditRow::read).await
    }

    /// Events after the number `after`, with their numbers, which are those of their audit entries.
    pub async fn events(&self, after: u64, limit: u32) -> Result<Vec<(u64, Event)>> {
        let log = match self.backend {
            Backend::Sqlite(_) => "audit AS log JOIN events ON events.event_id = log.entry_id",
            // Lateral, with a limit, as in [`ENTRY_OF_KEY`].
            Backend::Postgres(_) => {
                "audit_chain AS log CROSS JOIN LATERAL \
                 (SELECT body FROM events WHERE event_id = log.entry_id LIMIT 1) AS events"
            }
        };
        let sql = format!(
            "SELECT log.number, events.body FROM {log} WHERE log.number > $1 AND log.entry_hash IS NOT NULL ORDER BY log.number"
        );
        self.fetch_page(&sql, &[after.into()], limit, |row| Ok((row.get(0)?, row.json(1)?))).await
    }
}
