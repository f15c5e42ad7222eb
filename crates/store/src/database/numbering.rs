//! Numbering: the sequencer assigns numbers to audit entries and events in the order of their commits, and chains the entries.
//!
//! The holder of the lease assigns the numbers. The row of the lease is locked meanwhile, so that processes take turns even if
//! several of them act as the holder. Numbers have no gaps, and a numbered entry never changes. A row that no process with the secret
//! wrote is quarantined: it is kept and marked, never chained, and never holds up the others. But a process that lacks the secret of
//! the last numbered row does nothing: the row may be genuine.

use ade_domain::audit::{ChainHead, append};
use ade_domain::task::Digest;
use ade_domain::{Keys, Moment};

use super::audit_log::{Authenticity, EVIDENCE_COLUMNS};
use super::batch::{Statement, values};
use super::sql::{Arg, Row, SqlConnection};
use super::{DatabaseError, Operation, Result};

const SEQUENCER_LEASE: &str = "sequencer";
const UNKNOWN_KEY: &str = "its MAC names a key that does not exist";
/// Rows before one with an unknown key that may show that it does not belong to this installation.
const MAX_ROWS_BEFORE: u32 = 100;

/// What one round of numbering did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbering {
    /// How many entries and events got a number.
    pub numbered: u64,
    pub quarantined: Vec<QuarantinedEntry>,
}

/// A row of the audit log that no process with the secret wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantinedEntry {
    /// As the row says.
    pub entry_id: String,
    /// As the row says.
    pub action: String,
    pub reason: &'static str,
}

/// Assigns numbers to audit entries and events, if the lease is free or already held.
pub(super) struct AssignNumbers {
    pub(super) holder: String,
    pub(super) now: Moment,
    pub(super) lease_ms: u64,
    /// Of entries, and of events.
    pub(super) limit: u32,
    pub(super) keys: Keys,
}

impl Operation for AssignNumbers {
    type Output = Numbering;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Numbering> {
        let until = self.now.plus_ms(self.lease_ms);
        let lease = [
            SEQUENCER_LEASE.into(),
            self.holder.as_str().into(),
            until.into(),
            self.now.into(),
            self.keys.id().into(),
        ];
        // A process with an outdated secret cannot verify what the others write, and leaves the numbering to them.
        let sql = "INSERT INTO leases (name, holder, expires_at) SELECT $1, $2, $3 \
                   WHERE NOT EXISTS (SELECT 1 FROM secret_key WHERE key_id <> $5) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                   WHERE leases.holder = excluded.holder OR leases.expires_at <= $4";
        if connection.execute(sql, &lease).await? == 0 {
            return Ok(Numbering::default());
        }
        let (mut numbering, mut expected) = (Numbering::default(), 0);
        let mut statements = self.number_audit(connection, &mut numbering.quarantined, &mut expected).await?;
        statements.extend(self.number_events(connection, &mut expected).await?);
        let updated = connection.execute_each(&statements).await?;
        if updated != expected {
            let reason = format!("only {updated} of {expected} audit entries and events could be numbered");
            return Err(DatabaseError::Corrupt(reason));
        }
        numbering.numbered = updated;
        Ok(numbering)
    }
}

impl AssignNumbers {
    /// The statements that number entries. Quarantines what is not authentic.
    async fn number_audit(
        &self,
        connection: &mut SqlConnection<'_>,
        quarantined: &mut Vec<QuarantinedEntry>,
        expected: &mut u64,
    ) -> Result<Vec<Statement>> {
        let limit = self.limit;
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE number IS NULL AND quarantined_at IS NULL \
             ORDER BY insert_seq LIMIT {limit}"
        );
        let rows = connection.query(&sql, &[]).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let Some(mut head) = self.authentic_head(connection, quarantined).await? else {
            return Ok(Vec::new());
        };
        let mut numbered = Vec::new();
        for row in &rows {
            let body = match Authenticity::of(row, &self.keys) {
                Authenticity::Authentic(body) => *body,
                Authenticity::UnknownKey(_) => {
                    quarantined.push(self.quarantine(connection, row, UNKNOWN_KEY).await?);
                    continue;
                }
                Authenticity::Forged(reason) => {
                    quarantined.push(self.quarantine(connection, row, reason).await?);
                    continue;
                }
            };
            let (entry_id, at) = (body.entry_id.clone(), body.at);
            let entry = append(head, body).map_err(|error| DatabaseError::Corrupt(error.to_string()))?;
            head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
            numbered.push(vec![
                Arg::Uuid(Some(entry_id)),
                at.into(),
                entry.number.into(),
                entry.previous_hash.to_string().into(),
                entry.entry_hash.to_string().into(),
            ]);
        }
        *expected += numbered.len() as u64;
        // The time selects the partition.
        Ok(values(
            "WITH given (entry_id, at, number, previous_hash, entry_hash) AS (",
            &numbered,
            ") UPDATE audit SET number = given.number, previous_hash = given.previous_hash, entry_hash = given.entry_hash \
             FROM given WHERE audit.entry_id = given.entry_id AND audit.at = given.at",
        ))
    }

    /// The end of the chain. Rows behind it that somebody inserted with a number, or edited, are quarantined; none if there are more
    /// of them than one round may quarantine.
    async fn authentic_head(
        &self,
        connection: &mut SqlConnection<'_>,
        quarantined: &mut Vec<QuarantinedEntry>,
    ) -> Result<Option<ChainHead>> {
        for _ in 0..self.limit {
            let Some(HeadRow { head, evidence }) = head(connection).await? else {
                return Ok(Some(ChainHead::origin()));
            };
            let reason = match Authenticity::of(&evidence, &self.keys) {
                Authenticity::Authentic(_) => return Ok(Some(head)),
                Authenticity::UnknownKey(_)
                    if follows_authentic_rows(connection, head.number, &self.keys).await? =>
                {
                    UNKNOWN_KEY
                }
                Authenticity::UnknownKey(key_id) => return Err(unknown_secret(head.number, &key_id)),
                Authenticity::Forged(reason) => reason,
            };
            quarantined.push(self.quarantine(connection, &evidence, reason).await?);
        }
        Ok(None)
    }

    /// Marks a row that is not authentic, so that it is kept and never numbered.
    async fn quarantine(
        &self,
        connection: &mut SqlConnection<'_>,
        row: &Row,
        reason: &'static str,
    ) -> Result<QuarantinedEntry> {
        let entry_id: String = row.get(0)?;
        let (at, insert_seq) = (Arg::Int(row.get(1)?), Arg::Int(row.get(7)?));
        let mut args = vec![self.now.into(), insert_seq];
        let mut sql = "UPDATE audit SET quarantined_at = $1, number = NULL WHERE insert_seq = $2".to_owned();
        // The primary key of each database: ids of SQLite may contain what no argument can, and PostgreSQL accepts any insert_seq.
        if let SqlConnection::Postgres(_) = connection {
            sql.push_str(" AND micros(at) = $3 AND entry_id = $4");
            args.extend([at, Arg::Uuid(Some(entry_id.clone()))]);
        }
        let updated = connection.execute(&sql, &args).await?;
        if updated != 1 {
            let reason =
                format!("{updated} rows instead of one were quarantined as audit entry {entry_id:?}");
            return Err(DatabaseError::Corrupt(reason));
        }
        let action = row.get::<Option<String>>(5)?.unwrap_or_default();
        Ok(QuarantinedEntry { entry_id, action, reason })
    }

    /// The statements that number events.
    async fn number_events(
        &self,
        connection: &mut SqlConnection<'_>,
        expected: &mut u64,
    ) -> Result<Vec<Statement>> {
        let limit = self.limit;
        let sql = format!(
            "SELECT event_id::text FROM events WHERE number IS NULL ORDER BY insert_seq LIMIT {limit}"
        );
        let rows = connection.query(&sql, &[]).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let last =
            connection.query_number("SELECT coalesce(max(number), 0)::bigint FROM events", &[]).await?;
        let numbered =
            (last + 1..).zip(&rows).map(|(number, row)| Ok(vec![Arg::Uuid(row.get(0)?), number.into()]));
        *expected += rows.len() as u64;
        Ok(values(
            "WITH given (event_id, number) AS (",
            &numbered.collect::<Result<Vec<_>>>()?,
            ") UPDATE events SET number = given.number FROM given WHERE events.event_id = given.event_id",
        ))
    }
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
    let sql = format!(
        "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE number < $1 ORDER BY number DESC LIMIT {MAX_ROWS_BEFORE}"
    );
    let rows = connection.query(&sql, &[number.into()]).await?;
    Ok(rows.iter().any(|row| matches!(Authenticity::of(row, keys), Authenticity::Authentic(_))))
}

/// The row with the highest number.
pub(super) struct HeadRow {
    pub(super) head: ChainHead,
    pub(super) evidence: Row,
}

pub(super) async fn head(connection: &mut SqlConnection<'_>) -> Result<Option<HeadRow>> {
    let sql = format!(
        "SELECT {EVIDENCE_COLUMNS}, number, entry_hash FROM audit WHERE number IS NOT NULL \
         ORDER BY number DESC LIMIT 1"
    );
    let Some(evidence) = connection.query_first(&sql, &[]).await? else { return Ok(None) };
    let (number, hash) = (evidence.get(8)?, evidence.get::<Option<String>>(9)?.unwrap_or_default());
    // Whatever an edited row says: the chain goes on, and verification finds the row.
    let entry_hash = hash.parse().unwrap_or_else(|_| Digest::of_bytes(hash.as_bytes()));
    Ok(Some(HeadRow { head: ChainHead { number, entry_hash }, evidence }))
}
