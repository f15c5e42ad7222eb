//! Scenarios of PostgreSQL only: roles, lost responses, and workers that are wrongly presumed lost.

use std::time::Duration;

use ade_executors::{AttemptOutcome, Executor, SideEffects, SqlExecutor, StopReason};
use ade_testkit::postgres_proxy::CommitFault;
use ade_testkit::wait::until;
use ade_testkit::{PostgresProxy, test_keys};
use tokio::net::TcpListener;

use crate::sql::database::{TestDatabase, on_postgres, output_of, parameters, run};

const INCREMENT: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";
const DECREMENT: &str = "UPDATE things SET worth = worth - 1 WHERE id < 3";

/// An executor whose connection is cut at the first COMMIT.
async fn cut_at_commit(
    database: &TestDatabase,
    cut: CommitFault,
    for_long: bool,
) -> (PostgresProxy, SqlExecutor) {
    let proxy = PostgresProxy::start(&database.url).await;
    proxy.inject_fault(cut, for_long);
    let sql = SqlExecutor::new("shop", proxy.url(), None, test_keys()).expect("valid");
    (proxy, sql)
}

#[tokio::test(flavor = "multi_thread")]
async fn resolves_lost_commit_response_by_marker() {
    let database = on_postgres().await;
    let (_stop, run) = run(&[INCREMENT], &[]);
    let (_proxy, sql) = cut_at_commit(&database, CommitFault::LoseResponse, false).await;
    sql.apply(&run, &[]).await.expect("it was committed");
    assert!(output_of(&run).contains("the response to COMMIT was lost"));
    assert_eq!(database.worth().await, ["11", "21", "30"]);
    assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::Applied));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_cannot_arrive_later() {
    let database = on_postgres().await;
    let (_stop, run) = run(&[INCREMENT], &[]);
    let (_proxy, sql) = cut_at_commit(&database, CommitFault::LoseRequest, false).await;
    let failure = sql.apply(&run, &[]).await.expect_err("it was not committed");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "{failure}");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
    assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::NotApplied));
}

#[tokio::test(flavor = "multi_thread")]
async fn outcome_is_unknown_while_database_is_unreachable() {
    let database = on_postgres().await;
    let (stop, run) = run(&[INCREMENT], &[]);
    let (proxy, sql) = cut_at_commit(&database, CommitFault::LoseResponse, true).await;
    let (applied, ()) = tokio::join!(sql.apply(&run, &[]), async {
        proxy.wait_for_fault().await;
        stop.send_replace(Some(StopReason::TimedOut));
    });
    let failure = applied.expect_err("unknown");
    assert_eq!(
        (failure.side_effects, failure.stop_reason),
        (SideEffects::Unknown, Some(StopReason::TimedOut)),
        "{failure}"
    );
    assert_eq!(
        database.sql.resolve_outcome(&run, &[]).await,
        Ok(AttemptOutcome::Applied),
        "known once the database is reachable"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_response_does_not_repeat_rollback() {
    for cut in [CommitFault::LoseResponse, CommitFault::LoseRequest] {
        let database = on_postgres().await;
        let (_stop, run) = run(&[INCREMENT], &[DECREMENT]);
        let rollback_data = database.sql.prepare_rollback(&run).await.expect("prepared");
        database.sql.apply(&run, &rollback_data).await.expect("applied");
        let (_proxy, sql) = cut_at_commit(&database, cut, false).await;
        sql.roll_back(&run, &rollback_data).await.expect("rolled back");
        assert_eq!(database.worth().await, ["10", "20", "30"], "{cut:?}");
    }
}

/// A worker is presumed lost while its transaction waits for a row lock.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_waits_for_open_transaction() {
    use sqlx::{Connection, PgConnection, raw_sql};
    let database = on_postgres().await;
    let (_stop, run) = run(&[INCREMENT], &[]);
    let mut other = PgConnection::connect(&database.url).await.expect("connects");
    raw_sql("BEGIN; UPDATE things SET worth = worth WHERE id = 2").execute(&mut other).await.expect("locked");
    let (sql, zombie) = (database.sql.clone(), run.clone());
    let apply = tokio::spawn(async move { sql.apply(&zombie, &[]).await });
    let is_waiting = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let count = database.query(sql).await;
        if count == ["1"] { Ok(()) } else { Err(format!("{count:?}")) }
    };
    until("the zombie waits", Duration::from_secs(30), is_waiting).await.expect("waits");
    let failure = database.sql.resolve_outcome(&run, &[]).await.expect_err("the transaction is open");
    assert!(failure.is_retryable, "{failure}");
    raw_sql("ROLLBACK").execute(&mut other).await.expect("unlocked");
    apply.await.expect("joined").expect("applied");
    assert_eq!(database.sql.resolve_outcome(&run, &[]).await, Ok(AttemptOutcome::Applied));
    assert_eq!(database.worth().await, ["11", "21", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn preview_has_only_rights_of_its_role() {
    let database = on_postgres().await;
    database.query("CREATE TABLE secrets (id INTEGER)").await;
    for statement in
        ["DROP TABLE things", "DELETE FROM secrets", "CREATE TABLE more (id INTEGER)", "SET ROLE postgres"]
    {
        let preview = database.sql.preview(&parameters(&[statement], &[])).await.expect("previewed");
        let error = preview.errors.first().cloned().unwrap_or_default();
        assert!(error.contains("SQLSTATE 42501 (insufficient privilege)"), "{statement}: {error}");
    }
    let two = format!("{INCREMENT}; COMMIT");
    let preview = database.sql.preview(&parameters(&[&two], &[])).await.expect("previewed");
    assert!(preview.errors.iter().any(|error| error.contains("SQLSTATE 42601")), "{:?}", preview.errors);
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}

/// A statement removes the timeout, which still applies to the following ones.
#[tokio::test(flavor = "multi_thread")]
async fn preview_restores_timeouts_before_each_statement() {
    let database = on_postgres().await;
    let statements = [
        "SET statement_timeout = 0",
        "SELECT set_config('statement_timeout', '0', false)",
        "SHOW statement_timeout",
        "SELECT 1 / (current_setting('statement_timeout') <> '0')::int",
    ];
    let preview = database.sql.preview(&parameters(&statements, &[])).await.expect("previewed");
    assert_eq!((preview.changes.len(), preview.errors), (4, Vec::new()));
}

/// Several workers start on a database without the marker table.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_workers_create_marker_table_once() {
    let database = on_postgres().await;
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let sql = database.sql.clone();
        workers.spawn(async move {
            let (_stop, run) = run(&[INCREMENT], &[]);
            sql.apply(&run, &[]).await
        });
    }
    workers.join_all().await.into_iter().for_each(|result| result.expect("applied"));
    assert_eq!(database.worth().await, ["18", "28", "30"]);
    assert_eq!(database.query("SELECT count(*) FROM ade_applied").await, ["8"]);
}

/// Without the right to create tables the message names the statement that an administrator must run.
#[tokio::test(flavor = "multi_thread")]
async fn names_statement_that_creates_marker_table() {
    let database = on_postgres().await;
    let url = database.url.replace("postgres@", "previewer@");
    let sql = SqlExecutor::new("shop", &url, None, test_keys()).expect("valid");
    let (_stop, run) = run(&[INCREMENT], &[]);
    let failure = sql.apply(&run, &[]).await.expect_err("permission denied");
    let (_, create) = failure.message.split_once("create it yourself: ").expect("named");
    database.query(create).await;
    database.query("GRANT SELECT, INSERT ON ade_applied TO previewer").await;
    sql.apply(&run, &[]).await.expect("applied");
    assert_eq!(database.worth().await, ["11", "21", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_contain_no_passwords() {
    let (password, encoded) = ("pass/word", "pass%2Fword");
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let url = format!("postgres://ann:{encoded}@{unused}/shop");
    let preview = format!("postgres://previewer@{unused}/shop?password=other-secret");
    let sql = SqlExecutor::new("shop", &url, Some(&preview), test_keys()).expect("valid");
    let (_stop, run) = run(&[INCREMENT], &[]);
    let preview_failure = sql.preview(&run.parameters).await.expect_err("unreachable");
    let apply_failure = sql.apply(&run, &[]).await.expect_err("unreachable");
    assert!(apply_failure.is_retryable && preview_failure.is_retryable);
    let messages = format!("{sql:?} {preview_failure:?} {apply_failure:?}");
    for secret in [password, encoded, "other-secret"] {
        assert!(!messages.contains(secret), "{messages}");
        assert!(sql.secrets().iter().any(|known| known == secret));
    }
    assert!(sql.secrets().contains(&url) && sql.secrets().contains(&preview));
    for (url, preview) in [
        (format!("mysql://ann:{encoded}@h/d"), None),
        (format!("postgres://ann:{encoded}@h:x/d"), None),
        (format!("sqlite::memory:?{encoded}"), None),
        (url.clone(), Some(format!("postgres://ann:{encoded}@h/d"))),
        (url.clone(), Some(format!("sqlite:///{encoded}"))),
    ] {
        let violation = SqlExecutor::new("shop", &url, preview.as_deref(), test_keys()).expect_err("invalid");
        assert!(!format!("{violation:?}").contains(encoded), "{violation:?}");
    }
}

/// The preview is dropped while a statement runs. Its locks are released soon.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_preview_is_cancelled_on_server() {
    let database = on_postgres().await;
    let sql = database.sql.clone();
    let preview = tokio::spawn(async move {
        sql.preview(&parameters(&[INCREMENT, "SELECT pg_sleep(9)"], &[])).await.map(drop)
    });
    let backends = |expected: &'static str| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'previewer' \
                   AND query LIKE '%pg_sleep%'";
        let count = database.query(sql);
        async move {
            let count = count.await;
            if count == [expected] { Ok(()) } else { Err(format!("{count:?}")) }
        }
    };
    until("the statement runs", Duration::from_secs(30), || backends("1")).await.expect("runs");
    preview.abort();
    until("the statement is cancelled", Duration::from_secs(6), || backends("0")).await.expect("cancelled");
    assert_eq!(database.worth().await, ["10", "20", "30"]);
}
