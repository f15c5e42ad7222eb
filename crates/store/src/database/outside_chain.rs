//! Rows of the audit log that are not in the chain: quarantined ones, and what somebody wrote or took out.

use super::audit_log::{Authenticity, EVIDENCE_COLUMNS, places};
use super::sql::{Arg, Row};
use super::{Backend, Database, Result, position_args};

/// Whether an entry of PostgreSQL is in the chain.
pub(super) const HAS_PLACE: &str = "EXISTS (SELECT 1 FROM audit_chain WHERE audit_chain.entry_id = audit.entry_id \
                         AND audit_chain.at = audit.at AND number > 0)";
/// Places whose entries were removed that are counted at most.
const MAX_QUARANTINED_PLACES: u32 = 100_000;
/// Rows outside of the chain that are read at once.
const SEARCHED_AT_ONCE: u32 = 1_000;

impl Database {
    /// How many rows of the audit log are quarantined.
    pub async fn quarantined_entries(&self) -> Result<u64> {
        let sql = "SELECT count(*)::bigint FROM audit WHERE quarantined_at IS NOT NULL";
        let Backend::Postgres(_) = self.backend else { return self.fetch_number(sql, &[]).await };
        // Somebody may have marked entries that are in the chain.
        let quarantined = self.fetch_number(&format!("{sql} AND NOT {HAS_PLACE}"), &[]).await?;
        // Places in the chain whose entries were removed.
        let removed = places("number <= 0", MAX_QUARANTINED_PLACES);
        let sql = format!("SELECT count(*)::bigint FROM {removed} WHERE body IS NULL");
        Ok(quarantined + self.fetch_number(&sql, &[]).await?)
    }

    /// The id of an authentic entry that is neither in the chain nor on its way there: somebody took it out. Rows that are not
    /// authentic are queued unless they are quarantined, so that the sequencer quarantines and reports them.
    pub async fn entry_without_place(&self) -> Result<Option<String>> {
        let Backend::Postgres(_) = self.backend else { return self.quarantined_entry_without_place().await };
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE quarantined_at IS NULL AND NOT {HAS_PLACE} \
             AND NOT EXISTS (SELECT 1 FROM audit_queue WHERE audit_queue.entry_id = audit.entry_id \
             AND audit_queue.at = audit.at) LIMIT {SEARCHED_AT_ONCE}"
        );
        loop {
            let rows = self.scan(&sql, &[]).await?;
            if let Some(found) = self.first_authentic(&rows) {
                return Ok(Some(found));
            }
            if rows.is_empty() {
                return self.quarantined_entry_without_place().await;
            }
            let keys = rows.iter().map(Row::pair::<String, i64>).collect::<Result<Vec<_>>>()?;
            let (ids, times): (Vec<_>, Vec<_>) =
                keys.into_iter().map(|(id, at)| (id, at.to_string())).unzip();
            let sql = "INSERT INTO audit_queue (entry_id, at) SELECT entry_id, to_timestamp(at::float8 / 1000000) FROM \
                       unnest(string_to_array($1, ' ')::uuid[], string_to_array($2, ' ')::bigint[]) AS given (entry_id, at)";
            self.execute_statement(sql, &[ids.join(" ").into(), times.join(" ").into()]).await?;
        }
    }

    /// Somebody marked it: an authentic entry is never quarantined.
    async fn quarantined_entry_without_place(&self) -> Result<Option<String>> {
        let is_sqlite = matches!(self.backend, Backend::Sqlite(_));
        let (after, order, mut position) = if is_sqlite {
            // Numbers of the chain are positive. Ids may be texts that cannot be arguments.
            ("number < $1".to_owned(), "number DESC", vec![1_u64.into()])
        } else {
            let after = format!("NOT {HAS_PLACE} AND (at, entry_id) > ($1, $2)");
            (after, "at, entry_id", position_args(None).to_vec())
        };
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM audit WHERE quarantined_at IS NOT NULL AND {after} \
             ORDER BY {order} LIMIT {SEARCHED_AT_ONCE}"
        );
        loop {
            let rows = self.scan(&sql, &position).await?;
            let Some(last) = rows.last() else { return Ok(None) };
            if let Some(found) = self.first_authentic(&rows) {
                return Ok(Some(found));
            }
            position = if is_sqlite {
                vec![Arg::Int(last.get(7)?)]
            } else {
                vec![Arg::Time(last.get(1)?), Arg::Uuid(last.get(0)?)]
            };
        }
    }

    /// The id of the first authentic entry among rows of [`EVIDENCE_COLUMNS`].
    fn first_authentic(&self, rows: &[Row]) -> Option<String> {
        rows.iter().find_map(|row| match Authenticity::of(row, &self.keys) {
            Authenticity::Authentic(body) => Some(body.entry_id),
            Authenticity::UnknownKey(_) | Authenticity::Forged(_) => None,
        })
    }

    /// The number of the first place after the number `after`, if somebody removed its entry. On SQLite they are one row.
    pub async fn removed_entry(&self, after: u64) -> Result<Option<u64>> {
        let Backend::Postgres(_) = self.backend else { return Ok(None) };
        let next = places("number > $1 ORDER BY number", 1);
        let sql = format!("SELECT number FROM {next} WHERE body IS NULL");
        self.fetch_first(&sql, &[after.into()], |row| row.get(0)).await
    }
}
