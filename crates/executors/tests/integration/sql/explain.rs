//! Previews that PostgreSQL plans without executing anything, and errors that tell authors no values.

use ade_domain::task::{Digest, PreviewStatus};
use ade_executors::{Executor, PreviewMode, SqlExecutor};

use crate::sql::database::{TestDatabase, on_postgres, parameters, run};

const INCREMENT: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";

/// The executor that an operator gets by default.
fn explaining(database: &TestDatabase) -> SqlExecutor {
    database.sql.clone().with_preview_mode(PreviewMode::Explain).expect("valid")
}

#[tokio::test(flavor = "multi_thread")]
async fn explains_without_executing() {
    let database = on_postgres().await;
    database.query("CREATE SEQUENCE numbers; GRANT USAGE ON SEQUENCE numbers TO previewer").await;
    database.query("ANALYZE things").await;
    let sql = explaining(&database);
    let statements = [
        INCREMENT,
        "SELECT nextval('numbers')",
        "SELECT 1 / (worth - worth) FROM things",
        "DELETE FROM things",
    ];
    let preview = sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!(
        (preview.status, preview.estimated, &preview.errors),
        (PreviewStatus::Ready, true, &Vec::new())
    );
    let after: Vec<_> = preview.changes.iter().filter_map(|change| change.after.clone()).collect();
    assert_eq!(after, statements.map(|sql| Digest::of_bytes(sql.as_bytes()).to_string()));
    assert_eq!(preview.changes[3].diff.as_deref(), Some("estimated: 3 rows\n"));
    assert_eq!(preview.change_counts(), None, "an estimate says nothing about the magnitude");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    assert_eq!(database.query("SELECT is_called FROM numbers").await, ["f"], "the sequence is not advanced");
    // The fingerprint covers the statements, not the estimates.
    database.query("INSERT INTO things SELECT n, n FROM generate_series(100, 5000) n; ANALYZE things").await;
    let later = sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!(later.fingerprint, preview.fingerprint);
    assert_ne!(later.changes[3].diff, preview.changes[3].diff);
    let other = sql.preview(&parameters(&statements[..3], &[])).await.expect("previewed");
    assert_ne!(other.fingerprint, preview.fingerprint);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_what_cannot_be_explained_as_unverified() {
    let database = on_postgres().await;
    let sql = explaining(&database);
    let statements = [
        INCREMENT,
        "CREATE TABLE more (id INTEGER)",
        "INSERT INTO more VALUES (1)",
        "DO $$ BEGIN DELETE FROM things; END $$",
        "DELETE FROM things",
    ];
    let preview = sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!((preview.changes.len(), &preview.errors), (5, &Vec::new()));
    let warnings: Vec<&str> =
        preview.warnings.iter().map(|text| text.split(':').next().unwrap_or_default()).collect();
    assert_eq!(
        warnings,
        ["statement 2 is unverified", "statement 3 is unverified", "statement 4 is unverified"]
    );
    assert!(preview.warnings[1].contains("SQLSTATE 42P01"), "{:?}", preview.warnings);
    // Without a statement before it that may explain it, an error is one.
    let preview =
        sql.preview(&parameters(&["INSERT INTO more VALUES (1)", INCREMENT], &[])).await.expect("previewed");
    assert_eq!((preview.changes.len(), preview.errors.len()), (0, 1), "{:?}", preview.errors);
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

/// EXPLAIN with options of the author would execute the statement.
#[tokio::test(flavor = "multi_thread")]
async fn authors_cannot_have_explained_statements_executed() {
    let database = on_postgres().await;
    database.query("CREATE SEQUENCE numbers; GRANT USAGE ON SEQUENCE numbers TO previewer").await;
    for statement in [
        "ANALYZE SELECT nextval('numbers')",
        "(ANALYZE) SELECT nextval('numbers')",
        "/* */ ANALYZE VERBOSE SELECT nextval('numbers')",
        "SELECT 1; SELECT nextval('numbers')",
        "SET TRANSACTION READ WRITE",
        "EXECUTE sqlx_s_1",
        "WITH gone AS (DELETE FROM things RETURNING nextval('numbers')) SELECT * FROM gone",
    ] {
        let preview = explaining(&database).preview(&parameters(&[statement], &[])).await.expect("previewed");
        assert!(preview.estimated, "{statement}");
    }
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    assert_eq!(database.query("SELECT is_called FROM numbers").await, ["f"]);
}

/// Messages of the database quote the values that an operation failed on.
#[tokio::test(flavor = "multi_thread")]
async fn errors_tell_code_and_position_but_no_values() {
    let database = on_postgres().await;
    for statement in [
        "CREATE TABLE vault (secret TEXT UNIQUE)",
        "INSERT INTO vault VALUES ('hunter2')",
        "GRANT SELECT, INSERT ON vault TO previewer",
        "CREATE FUNCTION leak() RETURNS INTEGER LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER AS \
         $$ BEGIN RAISE EXCEPTION 'it is %', (SELECT secret FROM vault); END $$",
    ] {
        database.query(statement).await;
    }
    for (statement, code) in [
        ("SELECT CAST(secret AS INTEGER) FROM vault", "SQLSTATE 22P02"),
        ("INSERT INTO vault SELECT secret FROM vault", "SQLSTATE 23505"),
        ("SELECT leak()", "SQLSTATE P0001"),
    ] {
        let preview = database.sql.preview(&parameters(&[statement], &[])).await.expect("previewed");
        let (_stop, run) = run(&[statement], &[]);
        let failure = database.sql.apply(&run, &[]).await.expect_err("refused");
        for error in [&preview.errors[0], &failure.message] {
            assert!(error.contains(code) && !error.contains("hunter2"), "{statement}: {error}");
        }
    }
    // Planning evaluates immutable functions.
    let preview =
        explaining(&database).preview(&parameters(&["SELECT leak()"], &[])).await.expect("previewed");
    assert!(preview.errors[0].contains("SQLSTATE P0001") && !preview.errors[0].contains("hunter2"));
    // The position is that within the statement, whatever was sent before it.
    for sql in [database.sql.clone(), explaining(&database)] {
        let preview =
            sql.preview(&parameters(&["UPDATE things SET nope = 1"], &[])).await.expect("previewed");
        let expected = "statement 1: SQLSTATE 42703 (the column does not exist), at character 19";
        assert_eq!(preview.errors, [expected]);
    }
}
