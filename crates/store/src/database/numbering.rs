//! Numbering: audit entries get numbers in the order of their commits, and are chained. An event has the number of its entry.
//!
//! On SQLite the one writer does so when it inserts them, and [`AssignNumbers`] only looks for rows of others. On PostgreSQL entries are
//! inserted with a row of `audit_queue` and numbered afterwards: a process appends their places to `audit_chain` and removes them from
//! the queue. It locks the table of the registered secret meanwhile, so that processes take turns and nobody replaces the secret.
//!
//! Numbers have no gaps, and a numbered entry never changes. A row that no process with the secret wrote is quarantined: it is kept and
//! marked, never chained, and never holds up the others. But a process that lacks the secret of the last numbered row chains nothing
//! to it: the row may be genuine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ade_domain::audit::ChainHead;
use ade_domain::task::Digest;
use ade_domain::{Keys, Moment};

use super::audit_log::{Authenticity, EVIDENCE_COLUMNS, UNKNOWN_KEY, places, with_entries};
use super::batch::TableRow;
use super::secret_key::check_secret;
use super::sql::{Arg, Row, SqlConnection};
use super::{DatabaseError, Operation, Result};

/// Why an authentic entry loses its place: somebody else gave it that place.
const WITHOUT_PREDECESSOR: &str = "no entry has the number before it";
const MISPLACED: &str = "its hashes are not those of its place";
/// Rows before one with an unknown key that may show that it does not belong to this installation.
const MAX_ROWS_BEFORE: u32 = 100;

/// What one round of numbering did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbering {
    /// How many entries got a number.
    pub numbered: u64,
    /// Whether the queue may have more than the limit.
    pub has_more: bool,
    pub quarantined: Vec<QuarantinedEntry>,
}

/// A row of the audit log that no process with the secret wrote, or that somebody tried to keep out of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinedEntry {
    /// As the row says.
    pub entry_id: String,
    /// As the row says.
    pub action: String,
    pub reason: &'static str,
}

impl QuarantinedEntry {
    /// Reads the columns of [`EVIDENCE_COLUMNS`].
    fn of(row: &Row, reason: &'static str) -> Self {
        let text = |at| row.get::<Option<String>>(at).ok().flatten().unwrap_or_default();
        Self { entry_id: text(0), action: text(5), reason }
    }
}

/// What the writer of SQLite knows about the end of the log.
#[derive(Debug, Clone, Default)]
pub(super) struct LogEnd {
    /// The head, and the version of the file that it belongs to. The version changes with every commit of another connection.
    known: Option<(u64, ChainHead)>,
    /// Not reported yet.
    quarantined: Vec<QuarantinedEntry>,
}

/// Assigns numbers to audit entries.
pub(super) struct AssignNumbers {
    pub(super) now: Moment,
    pub(super) limit: u32,
    pub(super) keys: Keys,
    /// The number of the last entry of PostgreSQL that this process has seen or put at the end of the chain; 0 before the first one.
    pub(super) last_seen: Arc<AtomicU64>,
    pub(super) secret_version: Arc<AtomicU64>,
}

impl Operation for AssignNumbers {
    type Output = Numbering;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Numbering> {
        if connection.log_end().is_some() {
            log_head(connection, self.now, &self.keys).await?;
        }
        if let Some(end) = connection.log_end() {
            let quarantined = std::mem::take(&mut end.quarantined);
            return Ok(Numbering { quarantined, ..Numbering::default() });
        }
        // Conflicts with itself and with writers, not with readers. Nobody who may only read can take it.
        connection.execute("LOCK TABLE secret_key IN SHARE ROW EXCLUSIVE MODE", &[]).await?;
        check_secret(connection, &self.keys, &self.secret_version).await?;
        let mut numbering = Numbering::default();
        self.quarantine_unqueued(connection, &mut numbering.quarantined).await?;
        self.number_queued(connection, &mut numbering).await?;
        Ok(numbering)
    }
}

impl AssignNumbers {
    /// Quarantines rows that no commit inserted.
    async fn quarantine_unqueued(
        &self,
        connection: &mut SqlConnection<'_>,
        quarantined: &mut Vec<QuarantinedEntry>,
    ) -> Result<()> {
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE queued = 0 AND quarantined_at IS NULL \
             ORDER BY insert_seq LIMIT {}",
            self.limit
        );
        for row in connection.query(&sql, &[]).await? {
            let reason = Authenticity::of(&row, &self.keys).objection().unwrap_or("no commit inserted it");
            quarantined.push(quarantine(connection, &row, reason, self.now).await?);
        }
        Ok(())
    }

    /// Takes entries from the queue and numbers them. Quarantines what is not authentic. An entry that has a place in the chain, and a
    /// quarantined row that is not authentic, only leave the queue: somebody queued them again.
    async fn number_queued(
        &self,
        connection: &mut SqlConnection<'_>,
        Numbering { numbered, has_more, quarantined }: &mut Numbering,
    ) -> Result<()> {
        let last_seen = self.last_seen.load(Ordering::Relaxed);
        // First: a place that somebody invented must not look like that of a queued entry.
        let Some(mut head) =
            authentic_head(connection, last_seen, self.limit, self.now, &self.keys, quarantined).await?
        else {
            return Ok(());
        };
        self.last_seen.store(head.number, Ordering::Relaxed);
        let queued =
            with_entries(&format!("SELECT * FROM audit_queue ORDER BY position LIMIT {}", self.limit));
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS}, position, CASE WHEN EXISTS (SELECT 1 FROM audit_chain \
             WHERE audit_chain.entry_id = key.entry_id AND audit_chain.at = key.at AND number > 0) THEN 1 ELSE 0 END::bigint, \
             micros(quarantined_at) FROM {queued} ORDER BY position"
        );
        let rows = connection.query(&sql, &[]).await?;
        *has_more = rows.len() as u64 >= u64::from(self.limit);
        if rows.is_empty() {
            return Ok(());
        }
        let (mut dequeued, mut seen) = (ChainedRows::default(), BTreeSet::new());
        for row in &rows {
            let (entry_id, at) = row.pair::<String, i64>()?;
            let is_settled = row.get(9)? || !seen.insert((entry_id.clone(), at));
            let is_quarantined = row.get::<Option<i64>>(10)?.is_some();
            let mut place = ["-"; 3].map(str::to_owned);
            match Authenticity::of(row, &self.keys).objection() {
                _ if is_settled => {}
                Some(_) if is_quarantined => {}
                Some(reason) => quarantined.push(quarantine(connection, row, reason, self.now).await?),
                None => {
                    if is_quarantined {
                        let reason = "somebody marked it as quarantined; it has its number all the same";
                        quarantined.push(QuarantinedEntry::of(row, reason));
                    }
                    let previous = head;
                    head = previous.after_canonical(&row.get::<String>(2)?);
                    let (previous_hash, entry_hash) = (previous.entry_hash, head.entry_hash);
                    place = [head.number.to_string(), previous_hash.to_string(), entry_hash.to_string()];
                    *numbered += 1;
                }
            }
            let [number, previous_hash, entry_hash] = &place;
            let (position, at) = (row.get::<i64>(8)?.to_string(), at.to_string());
            dequeued.push([&position, &entry_id, &at, number, previous_hash, entry_hash]);
        }
        connection.execute(APPEND_TO_CHAIN, &dequeued.0.map(Arg::from)).await?;
        // If this is not committed, the next round corrects it.
        self.last_seen.store(head.number, Ordering::Relaxed);
        Ok(())
    }
}

/// Removes rows from the queue, and appends those with a number to the chain. Somebody may have queued other rows at the same position.
const APPEND_TO_CHAIN: &str = "WITH given AS (SELECT * FROM unnest(string_to_array($1, ' ')::bigint[], \
     string_to_array($2, ' ')::uuid[], string_to_array($3, ' ')::bigint[], string_to_array($4, ' ', '-')::bigint[], \
     string_to_array($5, ' ', '-'), string_to_array($6, ' ', '-')) \
     AS given (position, entry_id, at, number, previous_hash, entry_hash)), \
     dequeued AS (DELETE FROM audit_queue USING given \
     WHERE audit_queue.position = given.position AND audit_queue.entry_id = given.entry_id \
     AND micros(audit_queue.at) = given.at) \
     INSERT INTO audit_chain (number, at, entry_id, previous_hash, entry_hash) \
     SELECT number, to_timestamp(at::float8 / 1000000), entry_id, previous_hash, entry_hash FROM given \
     WHERE number IS NOT NULL";

/// The arguments of [`APPEND_TO_CHAIN`]: for each column its values, separated by spaces; `-` is NULL.
#[derive(Default)]
struct ChainedRows([String; 6]);

impl ChainedRows {
    fn push(&mut self, row: [&str; 6]) {
        for (column, value) in self.0.iter_mut().zip(row) {
            if !column.is_empty() {
                column.push(' ');
            }
            column.push_str(value);
        }
    }
}

/// Appends an authentic entry to the chain, by its text. Returns the columns that say where it is.
fn append(head: &mut ChainHead, text: &str) -> [(&'static str, Arg); 3] {
    let previous = std::mem::replace(head, head.after_canonical(text));
    [
        ("number", head.number.into()),
        ("previous_hash", previous.entry_hash.to_string().into()),
        ("entry_hash", head.entry_hash.to_string().into()),
    ]
}

/// Numbers and chains entries that the writer of SQLite is about to insert.
pub(super) async fn chain(
    connection: &mut SqlConnection<'_>,
    entries: &[TableRow],
    now: Moment,
    keys: &Keys,
) -> Result<Vec<TableRow>> {
    let mut head = log_head(connection, now, keys).await?;
    let mut rows = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut row = entry.clone();
        row.columns.extend(append(&mut head, entry.text("body")));
        rows.push(row);
    }
    if let Some((_, known)) = connection.log_end().and_then(|end| end.known.as_mut()) {
        *known = head;
    }
    Ok(rows)
}

/// The end of the chain on SQLite. Whatever somebody else has inserted since it was last read is quarantined, unless it is authentic.
async fn log_head(connection: &mut SqlConnection<'_>, now: Moment, keys: &Keys) -> Result<ChainHead> {
    let version = connection.query_number("PRAGMA data_version", &[]).await?;
    let known = connection.log_end().and_then(|end| end.known);
    if let Some((_, head)) = known.filter(|(known, _)| *known == version) {
        return Ok(head);
    }
    let mut quarantined = Vec::new();
    // Numbers of the chain are positive, and those of quarantined rows are not.
    let sql = format!("SELECT {EVIDENCE_COLUMNS} FROM audit WHERE number <= 0 AND quarantined_at IS NULL");
    for row in connection.query(&sql, &[]).await? {
        quarantined.push(quarantine(connection, &row, "it is outside of the chain", now).await?);
    }
    // Whatever follows a row that this process has seen at the end of its chain was not written with an older secret.
    let authentic = known.map_or(0, |(_, head)| head.number);
    let head = authentic_head(connection, authentic, u32::MAX, now, keys, &mut quarantined).await?;
    let head = head.unwrap_or_else(ChainHead::origin);
    if let Some(end) = connection.log_end() {
        end.known = Some((version, head));
        end.quarantined.append(&mut quarantined);
    }
    Ok(head)
}

/// The end of the chain. Rows behind it that somebody inserted with a number, or edited, are quarantined; none if there are more
/// of them than `limit`. Rows up to the number `authentic` are known to be of this installation.
async fn authentic_head(
    connection: &mut SqlConnection<'_>,
    authentic: u64,
    limit: u32,
    now: Moment,
    keys: &Keys,
    quarantined: &mut Vec<QuarantinedEntry>,
) -> Result<Option<ChainHead>> {
    for _ in 0..limit {
        let Some(HeadRow { head, misplaced, evidence }) = head(connection).await? else {
            return Ok(Some(ChainHead::origin()));
        };
        let reason = match Authenticity::of(&evidence, keys) {
            Authenticity::Authentic(_) => match misplaced {
                None => return Ok(Some(head)),
                Some(reason) => reason,
            },
            Authenticity::UnknownKey(key_id) => {
                // On PostgreSQL it was checked, and cannot have been replaced since.
                check_secret(connection, keys, &AtomicU64::default()).await?;
                let follows = authentic > 0 && head.number > authentic;
                if !follows && !follows_authentic_rows(connection, head.number, keys).await? {
                    return Err(unknown_secret(head.number, &key_id));
                }
                UNKNOWN_KEY
            }
            Authenticity::Forged(reason) => reason,
        };
        quarantined.push(quarantine(connection, &evidence, reason, now).await?);
    }
    Ok(None)
}

/// Marks a row that is not authentic, so that it is kept and never in the chain. On PostgreSQL an authentic entry only loses the
/// place that somebody gave it, and is queued again: it may have left the queue.
async fn quarantine(
    connection: &mut SqlConnection<'_>,
    row: &Row,
    reason: &'static str,
    now: Moment,
) -> Result<QuarantinedEntry> {
    if let SqlConnection::Postgres(_) = connection {
        let key = [Arg::Uuid(row.get(0)?), Arg::Int(row.get(1)?)];
        // The number becomes any negative one that nobody can have taken on purpose.
        let sql = "UPDATE audit_chain SET number = -1 - (random() * 4e18)::bigint \
                   WHERE entry_id = $1 AND micros(at) = $2 AND number > 0";
        connection.execute(sql, &key).await?;
        if row.get::<Option<String>>(2)?.is_none() {
            return Ok(QuarantinedEntry::of(row, "it was removed"));
        }
        if [WITHOUT_PREDECESSOR, MISPLACED].contains(&reason) {
            let sql =
                "INSERT INTO audit_queue (entry_id, at) VALUES ($1, to_timestamp($2::float8 / 1000000))";
            connection.execute(sql, &key).await?;
        } else {
            let sql = "UPDATE audit SET quarantined_at = $3 \
                       WHERE entry_id = $1 AND at = to_timestamp($2::float8 / 1000000) AND quarantined_at IS NULL";
            let [id, at] = key;
            connection.execute(sql, &[id, at, now.into()]).await?;
        }
    } else {
        // Any negative number that nobody can have taken on purpose.
        let sql = "UPDATE audit SET quarantined_at = $1, number = -1 - abs(random() >> 1) WHERE number = $2";
        let updated = connection.execute(sql, &[now.into(), Arg::Int(row.get(7)?)]).await?;
        if updated != 1 {
            let reason = format!("{updated} rows instead of one were quarantined");
            return Err(DatabaseError::Corrupt(reason));
        }
    }
    Ok(QuarantinedEntry::of(row, reason))
}

/// A numbered row with an unknown key is never quarantined: if a previous secret was dropped too early, that would undo the whole log.
fn unknown_secret(number: u64, key_id: &str) -> DatabaseError {
    DatabaseError::Corrupt(format!(
        "audit entry {number} was written with a secret that this process does not have (key id {key_id}): add that secret to \
         ADE_SECRET_PREVIOUS, or to the file secret.previous, and restart. If the secret was never replaced, somebody wrote this row \
         into the database: remove it"
    ))
}

/// Whether a row with an unknown key follows rows of this installation: then somebody wrote it. Otherwise the log was written with a
/// secret that is missing.
pub(super) async fn follows_authentic_rows(
    connection: &mut SqlConnection<'_>,
    number: u64,
    keys: &Keys,
) -> Result<bool> {
    let before = numbered(connection, "number < $1 AND number > 0 ORDER BY number DESC", MAX_ROWS_BEFORE);
    let sql = format!("SELECT {EVIDENCE_COLUMNS} FROM {before}");
    let rows = connection.query(&sql, &[number.into()]).await?;
    Ok(rows.iter().any(|row| matches!(Authenticity::of(row, keys), Authenticity::Authentic(_))))
}

/// The row with the highest number.
pub(super) struct HeadRow {
    pub(super) head: ChainHead,
    /// Why it is not the place of its entry, even if that is authentic. On SQLite entry and place are one row, and only verification
    /// compares the hashes.
    misplaced: Option<&'static str>,
    pub(super) evidence: Row,
}

impl HeadRow {
    /// Whether ade has put an entry in this place, as far as this row shows.
    pub(super) fn is_authentic(&self, keys: &Keys) -> bool {
        self.misplaced.is_none()
            && matches!(Authenticity::of(&self.evidence, keys), Authenticity::Authentic(_))
    }
}

/// At most `limit` rows of the chain, with their entries.
fn numbered(connection: &SqlConnection<'_>, condition: &str, limit: u32) -> String {
    match connection {
        SqlConnection::Sqlite(_) => format!("audit WHERE {condition} LIMIT {limit}"),
        SqlConnection::Postgres(_) => places(condition, limit),
    }
}

pub(super) async fn head(connection: &mut SqlConnection<'_>) -> Result<Option<HeadRow>> {
    let last = numbered(connection, "number > 0 ORDER BY number DESC", 1);
    let (chain, row, has_places) = match connection {
        SqlConnection::Sqlite(_) => ("audit", "audit", false),
        SqlConnection::Postgres(_) => ("audit_chain", "key", true),
    };
    let sql = format!(
        "SELECT {EVIDENCE_COLUMNS}, number, entry_hash, previous_hash, (SELECT coalesce(previous.entry_hash, '') \
         FROM {chain} AS previous WHERE previous.number = {row}.number - 1) FROM {last}"
    );
    let Some(evidence) = connection.query_first(&sql, &[]).await? else { return Ok(None) };
    // Whatever an edited row says: the chain goes on, and verification finds the row.
    let text = |at| evidence.get::<Option<String>>(at).unwrap_or_else(|_| Some(String::new()));
    let hash = |at| text(at).map(|hash| hash.parse().unwrap_or_else(|_| Digest::of_bytes(hash.as_bytes())));
    let number = evidence.get(8)?;
    let head = ChainHead { number, entry_hash: hash(9).unwrap_or_else(|| Digest::of_bytes(b"")) };
    let previous = match number {
        1 => Some(ChainHead::origin()),
        _ => hash(11).map(|entry_hash| ChainHead { number: number - 1, entry_hash }),
    };
    let misplaced = match (previous, text(2)) {
        (None, _) => Some(WITHOUT_PREDECESSOR),
        (Some(previous), Some(body)) if has_places => {
            let is_chained = hash(10) == Some(previous.entry_hash) && previous.after_canonical(&body) == head;
            Some(MISPLACED).filter(|_| !is_chained)
        }
        _ => None,
    };
    Ok(Some(HeadRow { head, misplaced, evidence }))
}
