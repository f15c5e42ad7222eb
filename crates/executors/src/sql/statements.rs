//! Parses the statements of a task. Each must be a single statement and must not begin or end a transaction, because all of them
//! together run in one transaction that the executor controls.

use ade_domain::task::ChangeKind;
use serde_json::Value;

use super::connection::Dialect;
use crate::parameters::Violations;
use crate::{Parameters, Result, Validated};

const MAX_STATEMENTS: usize = 100;
const MAX_STATEMENT_BYTES: usize = 65_536;
const MAX_SUMMARY_CHARS: usize = 160;
/// The table with the attempt markers.
pub(super) const MARKER_TABLE: &str = "ade_applied";

const TRANSACTION_CONTROL: [&str; 8] =
    ["ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"];
/// Pragmas that only affect the transaction. Others affect the whole process or the format of the file.
const ALLOWED_PRAGMAS: [&str; 4] =
    ["APPLICATION_ID", "DEFER_FOREIGN_KEYS", "FOREIGN_KEY_CHECK", "USER_VERSION"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statements {
    pub(super) forward: Vec<String>,
    pub(super) rollback: Vec<String>,
}

impl Statements {
    pub(super) fn parse(parameters: &Parameters, dialect: Dialect, connection: &str) -> Validated<Self> {
        let known = ["connection", "statements", "rollback_statements", "worker"];
        let mut violations = Violations::of_fields(parameters, &known);
        if parameters.get("connection").and_then(Value::as_str) != Some(connection) {
            violations.report("connection", format!("must be {connection:?}"));
        }
        let mut parse_list = |field: &str, min_len: usize| {
            let list = match parameters.get(field) {
                None if min_len == 0 => return Vec::new(),
                Some(Value::Array(list)) if (min_len..=MAX_STATEMENTS).contains(&list.len()) => list,
                _ => {
                    let detail = format!("must be a list of {min_len} to {MAX_STATEMENTS} statements");
                    violations.report(field, detail);
                    return Vec::new();
                }
            };
            let mut statements = Vec::with_capacity(list.len());
            for (index, statement) in list.iter().enumerate() {
                let sql = statement.as_str().ok_or_else(|| "must be text".to_owned());
                match sql.and_then(|sql| check(sql, dialect).map(|()| sql.to_owned())) {
                    Ok(sql) => statements.push(sql),
                    Err(detail) => violations.report(format!("{field}.{index}"), detail),
                }
            }
            statements
        };
        let (forward, rollback) = (parse_list("statements", 1), parse_list("rollback_statements", 0));
        violations.finish(Self { forward, rollback })
    }
}

/// Checks whether a task may contain a statement.
fn check(sql: &str, dialect: Dialect) -> Result<(), String> {
    let (first, rest) = next_word(sql, dialect);
    let is_prepare = || first == "PREPARE" && next_word(rest, dialect).0 == "TRANSACTION";
    Err(match first.as_str() {
        _ if sql.len() > MAX_STATEMENT_BYTES => format!("must have at most {MAX_STATEMENT_BYTES} bytes"),
        _ if sql.contains('\0') => "must not contain NUL".to_owned(),
        "" if rest.is_empty() => "must be a statement".to_owned(),
        first if TRANSACTION_CONTROL.contains(&first) || is_prepare() => {
            format!("must not begin or end a transaction ({first}): all statements run in one transaction")
        }
        "COPY" => "must not be COPY, because files and streams are not transactional; use INSERT".to_owned(),
        _ if sql.to_ascii_lowercase().contains(MARKER_TABLE) => {
            format!("must not use {MARKER_TABLE}, the table of the attempt markers")
        }
        // The server rejects several statements in one.
        _ if dialect == Dialect::Postgres => return Ok(()),
        "ATTACH" | "DETACH" | "VACUUM" => {
            format!("must not be {first}: only the configured database may be changed, in a transaction")
        }
        "PRAGMA" if !is_allowed_pragma(rest) => {
            let allowed = ALLOWED_PRAGMAS.join(", ").to_ascii_lowercase();
            format!("must not use a PRAGMA besides {allowed}: others outlast the transaction")
        }
        _ => return check_single(sql).map_err(str::to_owned),
    })
}

fn is_allowed_pragma(sql: &str) -> bool {
    let (mut name, rest) = next_word(sql, Dialect::Sqlite);
    if let Some(rest) = skip_blanks(rest, Dialect::Sqlite).strip_prefix('.') {
        name = next_word(rest, Dialect::Sqlite).0;
    }
    ALLOWED_PRAGMAS.contains(&name.as_str())
}

/// Skips whitespace, comments and empty statements.
fn skip_blanks(mut sql: &str, dialect: Dialect) -> &str {
    loop {
        // SQLite treats a byte order mark as whitespace.
        let is_blank = |c: char| c.is_ascii_whitespace() || matches!(c, ';' | '\u{b}' | '\u{feff}');
        sql = sql.trim_start_matches(is_blank);
        match after_comment(sql, dialect) {
            Some(rest) => sql = rest,
            None => return sql,
        }
    }
}

/// Returns the rest after a comment, if `sql` begins with one. Comments must end exactly where the database ends them; otherwise
/// executed text could be taken for a comment.
fn after_comment(sql: &str, dialect: Dialect) -> Option<&str> {
    if let Some(comment) = sql.strip_prefix("--") {
        let end = comment.find(|c| c == '\n' || (c == '\r' && dialect == Dialect::Postgres));
        return comment.get(end.map_or(comment.len(), |end| end + 1)..);
    }
    let mut comment = sql.strip_prefix("/*")?;
    let mut depth = 1_u32;
    while depth > 0 {
        let Some(end) = comment.find("*/") else { return Some("") };
        // Only PostgreSQL nests comments.
        let nested = comment.find("/*").filter(|nested| *nested < end && dialect == Dialect::Postgres);
        depth = if nested.is_some() { depth + 1 } else { depth - 1 };
        comment = comment.get(nested.unwrap_or(end) + 2..).unwrap_or_default();
    }
    Some(comment)
}

/// Returns the next word in upper case, and the rest.
fn next_word(sql: &str, dialect: Dialect) -> (String, &str) {
    let sql = skip_blanks(sql, dialect);
    let (word, rest) = sql.split_at(sql.find(|c| !is_word_char(c)).unwrap_or(sql.len()));
    (word.to_ascii_uppercase(), rest)
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || (!c.is_ascii() && c != '\u{feff}')
}

/// Checks that nothing follows the first statement, as SQLite parses it.
fn check_single(sql: &str) -> Result<(), &'static str> {
    const SQLITE: Dialect = Dialect::Sqlite;
    let check_empty = |rest: &str| {
        let is_empty = skip_blanks(rest, SQLITE).is_empty();
        is_empty.then_some(()).ok_or("must be a single statement: write each as its own list element")
    };
    let (first, rest) = next_word(sql, SQLITE);
    let (mut second, mut body) = next_word(rest, SQLITE);
    if matches!(second.as_str(), "TEMP" | "TEMPORARY") {
        (second, body) = next_word(body, SQLITE);
    }
    // A trigger contains statements. It ends with the END that follows a semicolon; others end expressions.
    let is_trigger = first == "CREATE" && second == "TRIGGER";
    let mut left = if is_trigger { body } else { skip_blanks(sql, SQLITE) };
    while let Some(c) = left.chars().next() {
        let rest = left.get(c.len_utf8()..).unwrap_or_default();
        left = match c {
            ';' if !is_trigger => return check_empty(rest),
            ';' => match next_word(rest, SQLITE) {
                (end, rest) if end == "END" => return check_empty(rest),
                _ => rest,
            },
            '\'' | '"' | '`' => after_quote(rest, c),
            '[' => after_quote(rest, ']'),
            // The names of parameters may contain quotes.
            '$' | ':' | '@' | '#' => {
                return Err("must not contain parameters, such as :name or $name: write the values");
            }
            _ if is_word_char(c) => left.trim_start_matches(is_word_char),
            _ => after_comment(left, SQLITE).unwrap_or(rest),
        };
    }
    Ok(())
}

/// A doubled quote ends one text and begins the next, which has the same effect.
fn after_quote(text: &str, quote: char) -> &str {
    text.split_once(quote).map_or("", |(_, rest)| rest)
}

/// Whether a statement certainly changes nothing, unless it calls a function that does.
pub(super) fn is_query(sql: &str, dialect: Dialect) -> bool {
    matches!(next_word(sql, dialect).0.as_str(), "SELECT" | "VALUES")
}

/// Whether PostgreSQL can plan a statement without executing it.
pub(super) fn is_explainable(sql: &str) -> bool {
    let (first, _) = next_word(sql, Dialect::Postgres);
    ["SELECT", "VALUES", "TABLE", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"].contains(&first.as_str())
}

pub(super) fn change_kind(sql: &str, dialect: Dialect) -> ChangeKind {
    match next_word(sql, dialect).0.as_str() {
        "DELETE" | "DROP" | "TRUNCATE" => ChangeKind::Delete,
        "CREATE" | "INSERT" => ChangeKind::Create,
        _ => ChangeKind::Update,
    }
}

/// What a statement does to each row that the database counts for it; none if that is not certain.
pub(super) fn row_change_kind(sql: &str, dialect: Dialect) -> Option<ChangeKind> {
    let (first, rest) = next_word(sql, dialect);
    let (second, rest) = next_word(rest, dialect);
    // It also deletes rows, which SQLite does not count.
    if second == "OR" && next_word(rest, dialect).0 == "REPLACE" {
        return None;
    }
    match first.as_str() {
        "INSERT" => Some(ChangeKind::Create),
        "UPDATE" => Some(ChangeKind::Update),
        "DELETE" => Some(ChangeKind::Delete),
        // A query of SQLite has no effects. On PostgreSQL it can call functions with effects that are not counted.
        "SELECT" | "VALUES" if dialect == Dialect::Sqlite => Some(ChangeKind::Update),
        _ => None,
    }
}

/// Shortens a statement to one line.
pub(super) fn summary(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_SUMMARY_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dialect: Dialect, sql: &str) -> Result<(), String> {
        super::check(sql, dialect)
    }

    #[test]
    fn rejects_disguised_transaction_control() {
        for sql in [
            "COMMIT",
            "  commit and chain",
            "-- harmless\nRollback",
            "/* a */ /* b */;;END;",
            "BEGIN",
            "start transaction",
            "SAVEPOINT a",
            "release a",
            "ABORT",
            "prepare /* x */ transaction 'a'",
        ] {
            for dialect in [Dialect::Postgres, Dialect::Sqlite] {
                assert!(check(dialect, sql).is_err(), "{sql} on {dialect:?}");
            }
        }
        // Comments differ between the databases.
        assert!(check(Dialect::Postgres, "/* /* */ SELECT */ COMMIT").is_err());
        assert!(check(Dialect::Postgres, "/* /* */ COMMIT */ SELECT 1").is_ok());
        assert!(check(Dialect::Sqlite, "/* /* */ COMMIT").is_err());
        assert!(check(Dialect::Postgres, "-- a\rCOMMIT").is_err());
        assert!(check(Dialect::Sqlite, "\u{feff}COMMIT").is_err());
    }

    #[test]
    fn allows_similar_looking_statements() {
        for sql in [
            "UPDATE t SET a = 'COMMIT; BEGIN' -- COMMIT",
            "WITH committed AS (SELECT 1) SELECT * FROM committed;",
            "UPDATE beginnings SET \"end;\" = 1 ; -- the end",
            "INSERT INTO t VALUES ('it''s; so')",
        ] {
            for dialect in [Dialect::Postgres, Dialect::Sqlite] {
                assert_eq!(check(dialect, sql), Ok(()), "{sql}");
            }
        }
        assert!(check(Dialect::Postgres, "PREPARE a AS SELECT 1").is_ok());
        assert!(check(Dialect::Sqlite, "PRAGMA main.user_version = 3").is_ok());
    }

    #[test]
    fn rejects_multiple_statements_on_sqlite() {
        let trigger = "CREATE TEMP TRIGGER a AFTER INSERT ON t BEGIN \
                       SELECT CASE WHEN 1 THEN 2 END; UPDATE t SET a = ';'; END";
        assert_eq!(check(Dialect::Sqlite, trigger), Ok(()));
        for sql in [
            "SELECT 1; SELECT 2",
            "SELECT 1;/* */COMMIT",
            "SELECT ';' ; COMMIT",
            "SELECT [a']; COMMIT; --']",
            "SELECT `a'`; COMMIT; --'",
            // A carriage return does not end a comment, and a parameter may contain a quote.
            "SELECT 1 --\r'\n; COMMIT; --'",
            "SELECT $a('); COMMIT; --'",
            "SELECT :a",
            &format!("{trigger}; COMMIT"),
            "ATTACH '/etc/other' AS other",
            "VACUUM INTO '/tmp/copy'",
            "PRAGMA hard_heap_limit = 1",
            "PRAGMA \"hard_heap_limit\" = 1",
            "PRAGMA main . journal_mode = off",
        ] {
            assert!(check(Dialect::Sqlite, sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn summarizes_and_classifies_statements() {
        assert_eq!(summary("UPDATE t\n   SET a = 1"), "UPDATE t SET a = 1");
        assert_eq!(summary(&"ä".repeat(500)).chars().count(), MAX_SUMMARY_CHARS + 1);
        assert_eq!(change_kind("/* x */ delete FROM t", Dialect::Postgres), ChangeKind::Delete);
        assert_eq!(change_kind("create table t(a)", Dialect::Sqlite), ChangeKind::Create);
        assert!(is_explainable("-- x\nwith a as (select 1) delete from t") && is_explainable("MERGE INTO t"));
        for sql in [
            "CREATE TABLE t (a INT)",
            "ANALYZE DELETE FROM t",
            "(ANALYZE) DELETE FROM t",
            "DO $$ $$",
            "CALL p()",
        ] {
            assert!(!is_explainable(sql), "{sql}");
        }
        assert!(
            is_query("/* x */ select 1", Dialect::Sqlite)
                && !is_query("WITH a AS (SELECT 1) DELETE FROM t", Dialect::Sqlite)
        );
        assert_eq!(change_kind("WITH a AS (SELECT 1) DELETE FROM t", Dialect::Sqlite), ChangeKind::Update);
    }
}
