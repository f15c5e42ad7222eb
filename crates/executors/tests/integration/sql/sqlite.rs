//! Scenarios of SQLite only: previews cannot take all memory, leave no process behind, and touch no other database.

use std::time::Duration;

use ade_executors::{Executor, PreviewMode, SqlExecutor};
use ade_testkit::test_keys;
use ade_testkit::wait::until;

use crate::sql::database::{on_sqlite, parameters, run};

const INCREMENT: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";
const NUMBERS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";

#[tokio::test(flavor = "multi_thread")]
async fn preview_that_allocates_without_end_fails_alone() {
    let database = on_sqlite().await;
    for endless in [
        "SELECT length(randomblob(999999999))".to_owned(),
        format!(
            "{NUMBERS} SELECT length(group_concat(text)) FROM (SELECT zeroblob(i * 0 + 1000000) AS text FROM n LIMIT 300)"
        ),
        "UPDATE things SET worth = length(replace(hex(zeroblob(400000)), '0', hex(zeroblob(400000))))"
            .to_owned(),
    ] {
        let statements = [INCREMENT, &endless, INCREMENT];
        let preview = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
        assert_eq!((preview.changes.len(), preview.errors.len()), (1, 1), "{endless}");
        let expected = [
            "SQLite error 7 (it needs more memory than it may use)",
            "SQLite error 18 (text or blob too large)",
        ];
        assert!(
            expected.iter().any(|code| preview.errors[0].ends_with(code)),
            "{endless}: {:?}",
            preview.errors
        );
    }
    let preview = database.sql.preview(&parameters(&[INCREMENT], &[])).await.expect("others go on");
    assert!(!preview.has_errors() && !preview.estimated);
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

/// Applying shares the process, where SQLite itself limits its memory.
#[tokio::test(flavor = "multi_thread")]
async fn applying_has_limited_memory() {
    let database = on_sqlite().await;
    let (_stop, run) = run(&[INCREMENT, "SELECT length(randomblob(999999999))"], &[]);
    let failure = database.sql.apply(&run, &[]).await.expect_err("too much");
    assert!(failure.message.contains("SQLite error 7 "), "{failure}");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_preview_ends_its_process() {
    let database = on_sqlite().await;
    let sql = database.sql.clone();
    let endless = format!("{NUMBERS} SELECT count(*) FROM n");
    let preview =
        tokio::spawn(async move { sql.preview(&parameters(&[INCREMENT, &endless], &[])).await.map(drop) });
    let connection = |sql: &'static str| {
        let options: sqlx::sqlite::SqliteConnectOptions = database.url.parse().expect("a URL");
        async move {
            use sqlx::ConnectOptions as _;
            let mut connection = options.busy_timeout(Duration::ZERO).connect().await.expect("connects");
            sqlx::raw_sql(sql).execute(&mut connection).await.map(drop).map_err(|error| error.to_string())
        }
    };
    let is_locked = || async {
        let free = connection("BEGIN IMMEDIATE; ROLLBACK").await;
        free.err().ok_or_else(|| "not locked".to_owned())
    };
    until("the preview holds the lock", Duration::from_secs(30), is_locked).await.expect("locked");
    preview.abort();
    let is_free = || connection("BEGIN IMMEDIATE; ROLLBACK");
    until("the lock is released", Duration::from_secs(8), is_free).await.expect("released");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_tell_no_values() {
    let database = on_sqlite().await;
    database.query("CREATE TABLE vault (secret TEXT)").await;
    database.query("INSERT INTO vault VALUES ('hunter2')").await;
    let leak = "SELECT json_extract('{}', (SELECT secret FROM vault))";
    let preview = database.sql.preview(&parameters(&[leak], &[])).await.expect("previewed");
    let (_stop, run) = run(&[leak], &[]);
    let failure = database.sql.apply(&run, &[]).await.expect_err("refused");
    for error in [&preview.errors[0], &failure.message] {
        assert!(error.starts_with("statement 1: SQLite error 1 ") && !error.contains("hunter2"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preview_reaches_only_its_database() {
    let database = on_sqlite().await;
    for statement in
        ["SELECT load_extension('x')", "SELECT writefile('/tmp/x', 'y')", "SELECT readfile('/etc/passwd')"]
    {
        let preview = database.sql.preview(&parameters(&[statement], &[])).await.expect("previewed");
        assert!(preview.has_errors(), "{statement}");
    }
    for statement in
        ["ATTACH '/tmp/other' AS other", "PRAGMA writable_schema = ON", "PRAGMA hard_heap_limit = 0"]
    {
        assert!(database.sql.validate(&parameters(&[statement], &[])).is_err(), "{statement}");
    }
    let explained = SqlExecutor::new("shop", &database.url, None, test_keys()).expect("valid");
    let refused = explained.with_preview_mode(PreviewMode::Explain).expect_err("SQLite only executes");
    assert_eq!(refused.path.to_string(), "preview");
}
