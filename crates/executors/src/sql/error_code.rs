//! What people learn about an error of a database: its code, what the code means, and where in the statement it occurred. The
//! message of the database is left to the log of the operator, because it may quote rows that its reader must not see.

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgErrorPosition};

use crate::Failure;

/// SQLSTATE classes and single codes with their meaning. A code comes before its class.
const SQLSTATES: [(&str, &str); 41] = [
    ("08", "connection failed"),
    ("0A", "not supported"),
    ("21", "more rows than expected"),
    ("22001", "text too long for its column"),
    ("22003", "number out of range"),
    ("22007", "invalid date or time"),
    ("22012", "division by zero"),
    ("22P02", "invalid text for the type"),
    ("22", "invalid value"),
    ("23502", "NULL in a column that forbids it"),
    ("23503", "foreign key violated"),
    ("23505", "unique constraint violated"),
    ("23514", "check constraint violated"),
    ("23", "constraint violated"),
    ("25006", "not allowed in a read-only transaction"),
    ("25", "invalid transaction state"),
    ("28", "the database refused the role or its password"),
    ("2B", "other objects depend on it"),
    ("3D000", "the database does not exist"),
    ("3F000", "the schema does not exist"),
    ("40", "rolled back because of a conflict"),
    ("42501", "insufficient privilege"),
    ("42601", "syntax error"),
    ("42701", "the column exists already"),
    ("42702", "ambiguous column"),
    ("42703", "the column does not exist"),
    ("42704", "the object does not exist"),
    ("42710", "the object exists already"),
    ("42723", "the function exists already"),
    ("42804", "type mismatch"),
    ("42883", "the function or operator does not exist"),
    ("42P01", "the table does not exist"),
    ("42P07", "the table exists already"),
    ("42", "syntax error, or access not allowed"),
    ("53", "insufficient resources of the database"),
    ("54", "a limit of the database was exceeded"),
    ("55P03", "a lock was not available in time"),
    ("57014", "cancelled, or the statement timeout was exceeded"),
    ("57", "the database was stopped"),
    ("P0001", "raised by a function or trigger"),
    ("XX", "internal error of the database"),
];

/// Result codes of SQLite with their meaning.
const SQLITE_CODES: [(u32, &str); 24] = [
    (1, "syntax error, or a table, column or function does not exist"),
    (3, "access denied"),
    (4, "aborted"),
    (5, "the database is locked"),
    (6, "a table is locked"),
    (7, "it needs more memory than it may use"),
    (8, "the database is read-only"),
    (9, "interrupted"),
    (10, "I/O error, or it wrote more than it may"),
    (11, "the database file is corrupt"),
    (13, "the disk is full, or it wrote more than it may"),
    (14, "the database file cannot be opened"),
    (17, "the schema has changed"),
    (18, "text or blob too large"),
    (19, "constraint violated"),
    (20, "type mismatch"),
    (23, "not allowed"),
    (25, "parameter out of range"),
    (26, "the file is not a database"),
    (275, "check constraint violated"),
    (787, "foreign key violated"),
    (1_299, "NULL in a column that forbids it"),
    (1_555, "primary key violated"),
    (2_067, "unique constraint violated"),
];

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => describe(error.as_ref(), 0),
            error => Self::retryable(error.to_string()),
        }
    }
}

/// The failure for an error in a statement that was sent with `prefix_chars` characters before it.
pub(super) fn statement_failure(error: sqlx::Error, prefix_chars: usize) -> Failure {
    match error {
        sqlx::Error::Database(error) => describe(error.as_ref(), prefix_chars),
        error => error.into(),
    }
}

fn describe(error: &dyn DatabaseError, prefix_chars: usize) -> Failure {
    let code = error.code().unwrap_or_default();
    let (message, is_retryable) = match error.try_downcast_ref::<PgDatabaseError>() {
        Some(error) => {
            let place = match error.position() {
                Some(PgErrorPosition::Original(position)) if position > prefix_chars => {
                    format!(", at character {}", position - prefix_chars)
                }
                _ => String::new(),
            };
            // Connection failures, idle timeout, serialization conflicts, insufficient resources, lock timeout, shutdown.
            let is_transient =
                ["08", "25P03", "40", "53", "55P03", "57P"].iter().any(|class| code.starts_with(class));
            (format!("SQLSTATE {code}{}{place}", sqlstate_meaning(&code)), is_transient)
        }
        None => {
            let number: u32 = code.parse().unwrap_or_default();
            // SQLITE_BUSY and SQLITE_LOCKED.
            (format!("SQLite error {number}{}", sqlite_meaning(number)), matches!(number & 0xff, 5 | 6))
        }
    };
    tracing::info!(%code, error = error.message(), "the database refused a statement of a task");
    Failure { is_retryable, ..Failure::permanent(message) }
}

fn sqlstate_meaning(code: &str) -> String {
    let meaning = SQLSTATES.iter().find(|(known, _)| code.starts_with(known));
    meaning.map_or_else(String::new, |(_, meaning)| format!(" ({meaning})"))
}

/// The meaning of an extended result code, or else of its primary one.
fn sqlite_meaning(code: u32) -> String {
    let find = |code: u32| SQLITE_CODES.iter().find(|(known, _)| *known == code);
    find(code).or_else(|| find(code & 0xff)).map_or_else(String::new, |(_, meaning)| format!(" ({meaning})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_codes_and_falls_back_to_their_class() {
        assert_eq!(sqlstate_meaning("42P01"), " (the table does not exist)");
        assert_eq!(sqlstate_meaning("42P99"), " (syntax error, or access not allowed)");
        assert_eq!(sqlstate_meaning("99999"), "");
        assert_eq!(sqlite_meaning(2_067), " (unique constraint violated)");
        assert_eq!(sqlite_meaning(19 | (99 << 8)), " (constraint violated)");
        assert_eq!(sqlite_meaning(101), "");
    }

    /// A class before one of its codes would hide it.
    #[test]
    fn codes_come_before_their_class() {
        for (index, (code, _)) in SQLSTATES.iter().enumerate() {
            let first = SQLSTATES.iter().position(|(known, _)| code.starts_with(known));
            assert_eq!(first, Some(index), "{code}");
        }
    }
}
