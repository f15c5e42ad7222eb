//! The secret is replaced while processes run: those that lack the present one number nothing, and all others start.

use std::time::Duration;

use ade_domain::Keys;
use ade_store::Database;
use ade_store::database::{DatabaseError, Numbering, SecretRegistration};
use ade_testkit::server::SECRET;
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::timeout;

use crate::database::fixture::{TestDatabase, at, on_postgres};
use crate::database::postgres::{psql, write_entries};
use crate::database::sqlite::verified;

const OTHER_SECRET: &str = "secret-of-the-test-installation-0002";

/// A process that starts with this secret.
async fn start(fixture: &TestDatabase, secret: &str, previous: &str) -> Database {
    let (_, url) = fixture.postgres.as_ref().expect("on PostgreSQL");
    let keys = Keys::derive(secret, previous).expect("long enough");
    let database = Database::open_postgres(url, keys).await.expect("opens");
    assert_eq!(database.register_secret().await, Ok(SecretRegistration::Registered));
    database
}

async fn number(database: &Database) -> Result<u64, DatabaseError> {
    let Numbering { numbered, quarantined, .. } = database.number_entries(at(1), 1_000).await?;
    assert_eq!(quarantined, []);
    Ok(numbered)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_secret_was_replaced_numbers_nothing_until_it_is_restarted() {
    let fixture = on_postgres().await;
    let noticed = start(&fixture, SECRET, "").await;
    let unnoticed = start(&fixture, SECRET, "").await;
    write_entries(&noticed, &[at(1)]).await;
    assert_eq!(number(&noticed).await, Ok(1));
    assert_eq!(unnoticed.needs_numbering().await, Ok(false));

    let replaced = start(&fixture, OTHER_SECRET, SECRET).await;
    write_entries(&replaced, &[at(2); 150]).await;
    assert_eq!(number(&replaced).await, Ok(150));
    let superseded = |by: &Database| Err(DatabaseError::Superseded(by.keys().id().to_owned()));
    assert_eq!(number(&noticed).await, superseded(&replaced));

    // The old secret is registered again. Those that never had the other one would undo what it wrote.
    let restarted = start(&fixture, SECRET, OTHER_SECRET).await;
    write_entries(&restarted, &[at(3)]).await;
    for old in [&noticed, &unnoticed, &replaced] {
        assert_eq!(number(old).await, superseded(&restarted));
        assert_eq!(old.superseded_by().await, Ok(Some(restarted.keys().id().to_owned())));
    }
    assert_eq!(number(&restarted).await, Ok(1));
    let fixture = TestDatabase { database: restarted, ..fixture };
    assert_eq!(verified(&fixture).await, 152);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_not_replaced_while_a_process_numbers() {
    let fixture = on_postgres().await;
    let old = start(&fixture, SECRET, "").await;
    let (_, url) = fixture.postgres.as_ref().expect("on PostgreSQL");
    let mut other = PgConnection::connect(url).await.expect("connects");
    other.execute("BEGIN; UPDATE secret_key SET key_id = 'x', version = 2").await.expect("replaced");
    let numbering = tokio::spawn(async move { number(&old).await });
    // How an operator finds the session that keeps the lock.
    let blockers = "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity \
                    WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.expect("read");
    while psql(&fixture, blockers).await.expect("read") != [pid.to_string()] {
        assert!(!numbering.is_finished(), "it must wait");
    }
    // A process with the registered secret does not wait.
    timeout(Duration::from_secs(60), start(&fixture, SECRET, OTHER_SECRET)).await.expect("starts");
    other.execute("COMMIT").await.expect("committed");
    assert_eq!(numbering.await.expect("no panic"), Err(DatabaseError::Superseded("x".to_owned())));
}
