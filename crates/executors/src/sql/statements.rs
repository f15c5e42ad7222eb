//! The statements of a task, read from its parameters. Each is one statement, and none begins or ends a transaction: all of them
//! together are one, which is ours to end.

use ade_domain::Invalid;
use ade_domain::task::ChangeKind;
use serde_json::Value;

use super::link::Dialect;
use crate::Parameters;

/// Statements of one list.
const MOST: usize = 100;
/// Bytes of one statement.
const LONGEST: usize = 65_536;
/// Characters of a statement where people only need to recognize it.
const SHOWN: usize = 160;
/// The table with the marks of attempts.
pub(super) const MARKS: &str = "ade_applied";

const ENDS_TRANSACTIONS: [&str; 8] =
    ["ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"];
/// Pragmas that keep to the transaction. Others reach the whole process, or the way the file is written.
const PRAGMAS: [&str; 4] = ["APPLICATION_ID", "DEFER_FOREIGN_KEYS", "FOREIGN_KEY_CHECK", "USER_VERSION"];

/// What is done, and how it is undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statements {
    pub(super) forward: Vec<String>,
    pub(super) back: Vec<String>,
}

impl Statements {
    /// Everything about the parameters that cannot be.
    pub(super) fn read(
        parameters: &Parameters,
        dialect: Dialect,
        connection: &str,
    ) -> Result<Self, Vec<Invalid>> {
        let mut faults = Vec::new();
        let known = ["connection", "statements", "rollback_statements", "worker"];
        for field in parameters.keys().filter(|field| !known.contains(&field.as_str())) {
            let pointer = format!("/{}", field.replace('~', "~0").replace('/', "~1"));
            faults.push(Invalid::at(pointer, format!("is not known: use {}", known.join(", "))));
        }
        if parameters.get("connection").and_then(Value::as_str) != Some(connection) {
            faults.push(Invalid::at("/connection", format!("must be {connection:?} here")));
        }
        if parameters.get("worker").is_some_and(|label| !label.is_string()) {
            faults.push(Invalid::at("/worker", "must be the label of a worker, as text"));
        }
        let forward = list(parameters, "statements", 1, dialect, &mut faults);
        let back = list(parameters, "rollback_statements", 0, dialect, &mut faults);
        if faults.is_empty() { Ok(Self { forward, back }) } else { Err(faults) }
    }
}

fn list(
    parameters: &Parameters,
    field: &str,
    least: usize,
    dialect: Dialect,
    faults: &mut Vec<Invalid>,
) -> Vec<String> {
    let all = match parameters.get(field) {
        None if least == 0 => return Vec::new(),
        Some(Value::Array(all)) if (least..=MOST).contains(&all.len()) => all,
        _ => {
            faults
                .push(Invalid::at(format!("/{field}"), format!("must be a list of {least} to {MOST} texts")));
            return Vec::new();
        }
    };
    let mut statements = Vec::with_capacity(all.len());
    for (number, one) in all.iter().enumerate() {
        match one.as_str().ok_or_else(|| "must be text".to_owned()).and_then(|sql| fits(sql, dialect)) {
            Ok(sql) => statements.push(sql.to_owned()),
            Err(why) => faults.push(Invalid::at(format!("/{field}/{number}"), why)),
        }
    }
    statements
}

/// Whether a statement may be one of a task.
fn fits(sql: &str, dialect: Dialect) -> Result<&str, String> {
    if sql.len() > LONGEST {
        return Err(format!("must have at most {LONGEST} bytes"));
    }
    if sql.contains('\0') {
        return Err("must not contain NUL".to_owned());
    }
    let (first, rest) = word(sql, dialect);
    if first.is_empty() && rest.is_empty() {
        return Err("must be a statement".to_owned());
    }
    let (second, _) = word(rest, dialect);
    if ENDS_TRANSACTIONS.contains(&first.as_str()) || (first == "PREPARE" && second == "TRANSACTION") {
        return Err(format!(
            "must not begin or end a transaction ({first}): all statements together are one already"
        ));
    }
    if first == "COPY" {
        return Err("must not be COPY: files and streams are no part of a transaction; use INSERT".to_owned());
    }
    if sql.to_ascii_lowercase().contains(MARKS) {
        return Err(format!("must leave {MARKS} alone: it says what was applied"));
    }
    match dialect {
        // More than one is refused by the server: only it knows where one ends.
        Dialect::Postgres => Ok(sql),
        Dialect::Sqlite => fits_sqlite(sql, &first, rest),
    }
}

fn fits_sqlite<'a>(sql: &'a str, first: &str, rest: &str) -> Result<&'a str, String> {
    if matches!(first, "ATTACH" | "DETACH" | "VACUUM") {
        return Err(format!(
            "must not be {first}: only the configured database is written, in a transaction"
        ));
    }
    if first == "PRAGMA" {
        let (mut name, rest) = word(rest, Dialect::Sqlite);
        if let Some(rest) = skip(rest, Dialect::Sqlite).strip_prefix('.') {
            name = word(rest, Dialect::Sqlite).0;
        }
        if !PRAGMAS.contains(&name.as_str()) {
            let these = PRAGMAS.join(", ").to_ascii_lowercase();
            return Err(format!("may be a PRAGMA only for {these}: others outlast the transaction"));
        }
    }
    is_one(sql).map(|()| sql).map_err(str::to_owned)
}

/// Without blanks, comments and empty statements at the beginning.
fn skip(mut sql: &str, dialect: Dialect) -> &str {
    loop {
        // SQLite takes a byte order mark for a blank.
        let blank = |c: char| c.is_ascii_whitespace() || matches!(c, ';' | '\u{b}' | '\u{feff}');
        sql = sql.trim_start_matches(blank);
        match after_comment(sql, dialect) {
            Some(rest) => sql = rest,
            None => return sql,
        }
    }
}

/// What comes after a comment, if there is one. How comments end differs: whoever reads them otherwise than the database does
/// takes for a comment what is carried out.
fn after_comment(sql: &str, dialect: Dialect) -> Option<&str> {
    let rest = |at: Option<usize>, of: &'_ str| at.map_or(of.len(), |at| at + 1);
    if let Some(comment) = sql.strip_prefix("--") {
        let end = comment.find(|c| c == '\n' || (c == '\r' && dialect == Dialect::Postgres));
        return comment.get(rest(end, comment)..);
    }
    let mut comment = sql.strip_prefix("/*")?;
    let mut depth = 1_u32;
    while depth > 0 {
        let Some(ends) = comment.find("*/") else { return Some("") };
        let opens = comment.find("/*").filter(|opens| *opens < ends && dialect == Dialect::Postgres);
        depth = if opens.is_some() { depth + 1 } else { depth - 1 };
        comment = comment.get(opens.unwrap_or(ends) + 2..).unwrap_or_default();
    }
    Some(comment)
}

/// The first word in capitals, and what comes after it.
fn word(sql: &str, dialect: Dialect) -> (String, &str) {
    let sql = skip(sql, dialect);
    let (first, rest) = sql.split_at(sql.find(|c| !is_of_word(c)).unwrap_or(sql.len()));
    (first.to_ascii_uppercase(), rest)
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || (!c.is_ascii() && c != '\u{feff}')
}

/// Whether nothing comes after the first statement, as SQLite reads it.
fn is_one(sql: &str) -> Result<(), &'static str> {
    const SQLITE: Dialect = Dialect::Sqlite;
    let last = |rest: &str| {
        let only = skip(rest, SQLITE).is_empty();
        only.then_some(()).ok_or("must be one statement: give each an element of its own")
    };
    let (first, rest) = word(sql, SQLITE);
    let (mut second, mut more) = word(rest, SQLITE);
    if matches!(second.as_str(), "TEMP" | "TEMPORARY") {
        (second, more) = word(more, SQLITE);
    }
    // A trigger contains statements. It ends with the END that comes after a semicolon: others end expressions.
    let trigger = first == "CREATE" && second == "TRIGGER";
    let mut left = if trigger { more } else { skip(sql, SQLITE) };
    while let Some(c) = left.chars().next() {
        let rest = left.get(c.len_utf8()..).unwrap_or_default();
        left = match c {
            ';' if !trigger => return last(rest),
            ';' => match word(rest, SQLITE) {
                (end, rest) if end == "END" => return last(rest),
                _ => rest,
            },
            '\'' | '"' | '`' => after_quote(rest, c),
            '[' => after_quote(rest, ']'),
            // These begin arguments, whose names may contain quotes.
            '$' | ':' | '@' | '#' => {
                return Err("must not contain arguments, as :name or $name: write values");
            }
            _ if is_of_word(c) => left.trim_start_matches(is_of_word),
            _ => after_comment(left, SQLITE).unwrap_or(rest),
        };
    }
    Ok(())
}

/// A quote that is doubled ends one text and begins the next, which comes to the same.
fn after_quote(text: &str, quote: char) -> &str {
    text.split_once(quote).map_or("", |(_, rest)| rest)
}

/// In which way a statement changes something.
pub(super) fn kind(sql: &str, dialect: Dialect) -> ChangeKind {
    match word(sql, dialect).0.as_str() {
        "DELETE" | "DROP" | "TRUNCATE" => ChangeKind::Delete,
        "CREATE" | "INSERT" => ChangeKind::Create,
        _ => ChangeKind::Update,
    }
}

/// One line by which people recognize a statement.
pub(super) fn shortened(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(dialect: Dialect, sql: &str) -> Result<(), String> {
        fits(sql, dialect).map(drop)
    }

    #[test]
    fn whatever_begins_or_ends_a_transaction_is_refused_however_it_is_hidden() {
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
                assert!(on(dialect, sql).is_err(), "{sql} on {dialect:?}");
            }
        }
        // Each as its own database reads it.
        assert!(on(Dialect::Postgres, "/* /* */ SELECT */ COMMIT").is_err());
        assert!(on(Dialect::Postgres, "/* /* */ COMMIT */ SELECT 1").is_ok());
        assert!(on(Dialect::Sqlite, "/* /* */ COMMIT").is_err());
        assert!(on(Dialect::Postgres, "-- a\rCOMMIT").is_err());
        assert!(on(Dialect::Sqlite, "\u{feff}COMMIT").is_err());
    }

    #[test]
    fn what_looks_similar_is_allowed() {
        for sql in [
            "UPDATE t SET a = 'COMMIT; BEGIN' -- COMMIT",
            "WITH committed AS (SELECT 1) SELECT * FROM committed;",
            "UPDATE beginnings SET \"end;\" = 1 ; -- the end",
            "INSERT INTO t VALUES ('it''s; so')",
        ] {
            for dialect in [Dialect::Postgres, Dialect::Sqlite] {
                assert_eq!(on(dialect, sql), Ok(()), "{sql}");
            }
        }
        assert!(on(Dialect::Postgres, "PREPARE a AS SELECT 1").is_ok());
        assert!(on(Dialect::Sqlite, "PRAGMA main.user_version = 3").is_ok());
    }

    #[test]
    fn sqlite_gets_one_statement_of_which_all_is_seen() {
        let trigger = "CREATE TEMP TRIGGER a AFTER INSERT ON t BEGIN \
                       SELECT CASE WHEN 1 THEN 2 END; UPDATE t SET a = ';'; END";
        assert_eq!(on(Dialect::Sqlite, trigger), Ok(()));
        for sql in [
            "SELECT 1; SELECT 2",
            "SELECT 1;/* */COMMIT",
            "SELECT ';' ; COMMIT",
            "SELECT [a']; COMMIT; --']",
            "SELECT `a'`; COMMIT; --'",
            // A carriage return does not end a comment, and an argument may contain a quote.
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
            assert!(on(Dialect::Sqlite, sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn people_recognize_statements() {
        assert_eq!(shortened("UPDATE t\n   SET a = 1"), "UPDATE t SET a = 1");
        assert_eq!(shortened(&"ä".repeat(500)).chars().count(), SHOWN + 1);
        assert_eq!(kind("/* x */ delete FROM t", Dialect::Postgres), ChangeKind::Delete);
        assert_eq!(kind("create table t(a)", Dialect::Sqlite), ChangeKind::Create);
        assert_eq!(kind("WITH a AS (SELECT 1) DELETE FROM t", Dialect::Sqlite), ChangeKind::Update);
    }
}
