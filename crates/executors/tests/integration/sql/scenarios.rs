//! Scenarios that run on both databases.

use std::time::Duration;

use ade_domain::task::{ChangeKind, PreviewStatus};
use ade_executors::{AttemptOutcome, Executor, Failure, Fencing, Run, SideEffects, SqlExecutor, StopReason};
use ade_testkit::test_keys;
use ade_testkit::wait::until;
use sqlx::{Connection, SqliteConnection};

use crate::sql::database::{self, TestDatabase, output_of, parameters, run};

on_both!(
    applies_once_and_reports_row_counts,
    failed_statement_changes_nothing,
    preview_counts_rows_and_changes_nothing,
    preview_counts_changed_rows_for_the_risk,
    preview_ends_at_first_failed_statement,
    abandoned_attempt_cannot_be_applied,
    resolves_applied_attempt,
    rolls_back_once,
    rollback_without_apply_changes_nothing,
    failed_rollback_changes_nothing,
    stopped_attempt_changes_nothing,
    statements_cannot_remove_markers,
    forged_marker_says_nothing,
    reports_every_violation,
);

const INCREMENT: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";
const DECREMENT: &str = "UPDATE things SET worth = worth - 1 WHERE id < 3";

async fn applies_once_and_reports_row_counts(database: TestDatabase) {
    let (_stop, run) =
        run(&[INCREMENT, "CREATE TABLE more (id INTEGER)", "DELETE FROM things WHERE id = 3"], &[]);
    for _ in 0..2 {
        database.sql.apply(&run, &[]).await.expect("applied");
        assert_eq!(database.worth().await, ["11", "21"]);
    }
    let output = output_of(&run);
    assert!(
        output.starts_with("statement 1: 2 rows\nstatement 2: 0 rows\nstatement 3: 1 row\n"),
        "output: {output}"
    );
    assert!(output.ends_with("nothing was repeated\n"), "output: {output}");
    let next = Run { attempt: 2, ..run };
    let failure = database.sql.apply(&next, &[]).await.expect_err("the table exists");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, false));
    assert!(failure.message.starts_with("statement 2: "), "{failure}");
}

async fn failed_statement_changes_nothing(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT, "INSERT INTO things VALUES (1, 1)"], &[]);
    let failure = database.sql.apply(&run, &[]).await.expect_err("the id exists");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, false));
    let code = if database.is_postgres() { "SQLSTATE 23505" } else { "SQLite error 1555" };
    assert!(failure.message.starts_with(&format!("statement 2: {code}")), "{failure}");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    assert_eq!(database.query("SELECT count(*) FROM ade_applied").await, ["0"]);
    assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::NotApplied));
}

async fn preview_counts_rows_and_changes_nothing(database: TestDatabase) {
    let statements = [INCREMENT, "DELETE FROM things", "INSERT INTO things\n  VALUES (9, 1)"];
    let preview = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!((preview.status, preview.errors.len()), (PreviewStatus::Ready, 0), "{:?}", preview.errors);
    let changes: Vec<_> = preview
        .changes
        .iter()
        .map(|change| (change.kind, change.what.as_str(), change.after.as_deref()))
        .collect();
    assert_eq!(
        changes,
        [
            (
                ChangeKind::Update,
                "statement 1: UPDATE things SET worth = worth + 1 WHERE id < 3",
                Some("2 rows")
            ),
            (ChangeKind::Delete, "statement 2: DELETE FROM things", Some("3 rows")),
            (ChangeKind::Create, "statement 3: INSERT INTO things VALUES (9, 1)", Some("1 row")),
        ]
    );
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    let again = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!(again.fingerprint, preview.fingerprint);
    database.query("DELETE FROM things WHERE id = 1").await;
    let other = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_ne!(other.fingerprint, preview.fingerprint, "the data has changed");
    let without_preview = SqlExecutor::new("shop", &database.url, None, test_keys()).expect("valid");
    let none = without_preview.preview(&parameters(&statements, &[])).await.expect("no preview");
    assert_eq!(none.status, PreviewStatus::None);
}

async fn preview_counts_changed_rows_for_the_risk(database: TestDatabase) {
    let counts = async |statements: &[&str]| {
        let preview = database.sql.preview(&parameters(statements, &[])).await.expect("previewed");
        assert!(!preview.has_errors(), "{statements:?}: {:?}", preview.errors);
        preview.change_counts().map(|counts| (counts.created_or_changed, counts.deleted))
    };
    assert_eq!(counts(&[INCREMENT, "DELETE FROM things"]).await, Some((2, 3)));
    assert_eq!(counts(&["INSERT INTO things SELECT id + 10, 1 FROM things"]).await, Some((3, 0)));
    assert_eq!(counts(&["DELETE FROM things WHERE id = 9"]).await, Some((0, 0)));
    // On PostgreSQL a query can call functions with effects that no statistics show.
    let query = counts(&["SELECT worth FROM things"]).await;
    assert_eq!(query, if database.is_postgres() { None } else { Some((0, 0)) });
    // What deletes as well, or may, counts as the highest magnitude.
    for statement in [
        "WITH old AS (SELECT 1) DELETE FROM things",
        "WITH old AS (SELECT 1) SELECT * FROM old",
        "CREATE TEMPORARY TABLE more (id INTEGER)",
    ] {
        assert_eq!(counts(&[statement]).await, None, "{statement}");
    }
    if !database.is_postgres() {
        for statement in [
            "REPLACE INTO things VALUES (1, 5)",
            "INSERT /* x */ OR REPLACE INTO things VALUES (1, 5)",
            "UPDATE OR REPLACE things SET id = 2 WHERE id = 1",
            "PRAGMA user_version = 3",
        ] {
            assert_eq!(counts(&[statement]).await, None, "{statement}");
        }
    }
    database.query("CREATE TABLE log (id INTEGER)").await;
    if database.is_postgres() {
        database.query("GRANT INSERT ON log TO previewer").await;
        database
            .query(
                "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN DELETE FROM things; RETURN NEW; END $$",
            )
            .await;
        database
            .query("CREATE TRIGGER forget AFTER INSERT ON log FOR EACH ROW EXECUTE FUNCTION forget()")
            .await;
        database
            .query(
                "CREATE FUNCTION purge() RETURNS INTEGER LANGUAGE sql AS \
                 $$ DELETE FROM things WHERE id = 1; SELECT 1 $$",
            )
            .await;
        assert_eq!(
            counts(&["UPDATE things SET worth = purge() WHERE id = 2"]).await,
            None,
            "a function deletes"
        );
    } else {
        database.query("CREATE TRIGGER forget AFTER INSERT ON log BEGIN DELETE FROM things; END").await;
    }
    let preview =
        database.sql.preview(&parameters(&["INSERT INTO log VALUES (1)"], &[])).await.expect("previewed");
    assert_eq!(preview.change_counts(), None, "a trigger deletes");
    assert_eq!(preview.changes[0].after.as_deref(), Some("1 row, with triggers and cascades 4 rows"));
}

async fn preview_ends_at_first_failed_statement(database: TestDatabase) {
    let statements = [INCREMENT, "UPDATE nowhere SET a = 1", INCREMENT];
    let preview = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!((preview.changes.len(), preview.errors.len()), (1, 1));
    assert!(preview.errors[0].starts_with("statement 2: "), "{:?}", preview.errors);
    let code =
        if database.is_postgres() { "SQLSTATE 42P01 (the table does not exist)" } else { "SQLite error 1 " };
    assert!(preview.errors[0].contains(code), "{:?}", preview.errors);
}

async fn abandoned_attempt_cannot_be_applied(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT], &[]);
    for _ in 0..2 {
        assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::NotApplied));
    }
    let failure = database.sql.apply(&run, &[]).await.expect_err("abandoned");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, false));
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    database.sql.apply(&Run { attempt: 2, ..run }, &[]).await.expect("another attempt");
    assert_eq!(database.worth().await, ["11", "21", "30"]);
}

async fn resolves_applied_attempt(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT], &[]);
    database.sql.apply(&run, &[]).await.expect("applied");
    for _ in 0..2 {
        assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::Applied));
    }
    assert_eq!(database.sql.fencing(), Fencing::Fenced);
}

async fn rolls_back_once(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT], &[DECREMENT]);
    let rollback_data = database.sql.prepare_rollback(&run).await.expect("prepared");
    database.sql.apply(&run, &rollback_data).await.expect("applied");
    for _ in 0..2 {
        database.sql.roll_back(&run, &rollback_data).await.expect("rolled back");
        assert_eq!(database.worth().await, ["10", "20", "30"]);
    }
    assert!(database.sql.can_roll_back(&run.parameters));
    let forward = parameters(&[INCREMENT], &[]);
    assert!(!database.sql.can_roll_back(&forward));
    let run = Run { parameters: forward, ..run };
    assert_eq!(database.sql.prepare_rollback(&run).await, Ok(Vec::new()));
    assert!(database.sql.roll_back(&run, &[]).await.is_err(), "there are no rollback statements");
}

async fn rollback_without_apply_changes_nothing(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT], &[DECREMENT]);
    let rollback_data = database.sql.prepare_rollback(&run).await.expect("prepared");
    database.sql.roll_back(&run, &rollback_data).await.expect("nothing to roll back");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    assert!(database.sql.apply(&run, &rollback_data).await.is_err(), "abandoned by the rollback");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

async fn failed_rollback_changes_nothing(database: TestDatabase) {
    let (_stop, run) = run(&[INCREMENT], &[DECREMENT, "DELETE FROM nowhere"]);
    let rollback_data = database.sql.prepare_rollback(&run).await.expect("prepared");
    database.sql.apply(&run, &rollback_data).await.expect("applied");
    let failure = database.sql.roll_back(&run, &rollback_data).await.expect_err("the table is missing");
    assert_eq!(failure.side_effects, SideEffects::Remaining);
    assert!(failure.message.starts_with("statement 2: "), "{failure}");
    assert_eq!(database.worth().await, ["11", "21", "30"]);
    database.query("CREATE TABLE nowhere (id INTEGER)").await;
    database.sql.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

async fn stopped_attempt_changes_nothing(database: TestDatabase) {
    let endless = if database.is_postgres() {
        "SELECT pg_sleep(86400)"
    } else {
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    };
    let (stop, run) = run(&[INCREMENT, endless], &[]);
    let (sql, applied) = (database.sql.clone(), run.clone());
    let apply = tokio::spawn(async move { sql.apply(&applied, &[]).await });
    let has_begun = || async {
        Some(()).filter(|()| run.output.take_unread().contains("1: 2 rows")).ok_or_else(String::new)
    };
    until("the first statement is done", Duration::from_secs(30), has_begun).await.expect("begins");
    stop.send_replace(Some(StopReason::Stopped));
    let failure: Failure = apply.await.expect("joined").expect_err("stopped");
    assert_eq!((failure.side_effects, failure.stop_reason), (SideEffects::None, Some(StopReason::Stopped)));
    // The database notices by itself that the connection is closed, and releases the locks.
    let resolve =
        || async { database.sql.resolve_outcome(&run, &[]).await.map_err(|failure| failure.message) };
    let outcome = until("the locks are released", Duration::from_secs(60), resolve).await.expect("resolved");
    assert_eq!(
        (outcome, database.worth().await),
        (AttemptOutcome::NotApplied, ["10", "20", "30"].map(str::to_owned).to_vec())
    );
    let (stop, late) = database::run(&[INCREMENT], &[]);
    stop.send_replace(Some(StopReason::LeaseLost));
    let failure = database.sql.apply(&late, &[]).await.expect_err("stopped before");
    assert_eq!((failure.side_effects, failure.stop_reason), (SideEffects::None, Some(StopReason::LeaseLost)));
}

/// The check of the statements by keywords does not find this, but the check of the marker does.
async fn statements_cannot_remove_markers(database: TestDatabase) {
    let trigger = if database.is_postgres() {
        vec![
            "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN EXECUTE 'DELETE FROM ade_' || 'applied'; RETURN NEW; END $$",
            "CREATE TRIGGER forget AFTER UPDATE ON things FOR EACH ROW EXECUTE FUNCTION forget()",
        ]
    } else {
        vec!["CREATE TRIGGER forget AFTER UPDATE ON things BEGIN DELETE FROM ade_applied; END"]
    };
    let (_stop, first) = run(&["DELETE FROM things WHERE id = 9"], &[]);
    database.sql.apply(&first, &[]).await.expect("applied");
    for statement in trigger {
        database.query(statement).await;
    }
    let (_stop, run) = run(&[INCREMENT], &[]);
    let failure = database.sql.apply(&run, &[]).await.expect_err("its marker is removed");
    assert!(failure.message.contains("marker"), "{failure}");
    assert_eq!(failure.side_effects, SideEffects::None);
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

/// Somebody with write access to the target database inserts or edits the row of an attempt.
async fn forged_marker_says_nothing(database: TestDatabase) {
    let (_stop, genuine) = run(&[INCREMENT], &[DECREMENT]);
    database.sql.apply(&genuine, &[]).await.expect("applied");
    let worth = database.worth().await;
    // Without a MAC, and with that of another attempt or another outcome.
    for (attempt, state, mac) in [(7, "applied", "NULL"), (8, "applied", "mac"), (9, "abandoned", "mac")] {
        let values =
            format!("task_id, {attempt}, 'apply', '{state}', {mac} FROM ade_applied WHERE attempt = 1");
        database
            .query(&format!("INSERT INTO ade_applied (task_id, attempt, kind, state, mac) SELECT {values}"))
            .await;
        let forged = Run { attempt, ..genuine.clone() };
        for failure in [
            database.sql.resolve_outcome(&forged, &[]).await.expect_err("unknown"),
            database.sql.apply(&forged, &[]).await.expect_err("not applied"),
            database.sql.roll_back(&forged, &[]).await.expect_err("not rolled back"),
        ] {
            assert!(failure.message.contains("was not written by ade"), "{failure}");
            assert!(!failure.is_retryable, "{failure}");
        }
    }
    assert_eq!(database.worth().await, worth);
    database.query("UPDATE ade_applied SET state = 'abandoned' WHERE attempt = 1").await;
    assert!(database.sql.resolve_outcome(&genuine, &[]).await.is_err(), "an edited marker");
    database.query("UPDATE ade_applied SET state = 'applied' WHERE attempt = 1").await;
    assert_eq!(database.sql.resolve_outcome(&genuine, &[]).await, Ok(AttemptOutcome::Applied));
}

async fn reports_every_violation(database: TestDatabase) {
    let mut invalid =
        parameters(&[INCREMENT, "COMMIT", " -- nothing", "DELETE FROM ade_applied"], &["ROLLBACK"]);
    invalid.insert("statments".to_owned(), true.into());
    invalid.insert("connection".to_owned(), "other".into());
    let violations = database.sql.validate(&invalid).expect_err("invalid");
    let paths: Vec<_> = violations.iter().map(|violation| violation.path.to_string()).collect();
    assert_eq!(
        paths,
        ["statments", "connection", "statements.1", "statements.2", "statements.3", "rollback_statements.0"]
    );
    assert!(database.sql.validate(&parameters(&[], &[])).is_err(), "no statements");
    assert!(database.sql.validate(&parameters(&[INCREMENT; 101], &[])).is_err(), "too many");
    assert_eq!(database.sql.validate(&parameters(&[INCREMENT], &[DECREMENT])), Ok(()));
    let two = format!("{INCREMENT}; {INCREMENT}");
    let (_stop, run) = run(&[&two], &[]);
    let failure = database.sql.apply(&run, &[]).await.expect_err("two statements in one");
    assert_eq!(failure.side_effects, SideEffects::None);
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

/// SQLite locks the whole database, so recovery waits only a short time.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_is_retryable_while_sqlite_is_locked() {
    let database = database::on_sqlite().await;
    let (_stop, run) = run(&[INCREMENT], &[]);
    let mut zombie = SqliteConnection::connect(&database.url).await.expect("connects");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut zombie).await.expect("begun");
    let failure = database.sql.resolve_outcome(&run, &[]).await.expect_err("locked");
    assert!(failure.is_retryable, "{failure}");
    let failure = database.sql.apply(&run, &[]).await.expect_err("locked");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "{failure}");
    zombie.close().await.expect("closed");
    assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::NotApplied));
}
