//! What only SQLite does: entries are chained when they are inserted, so rows of others must be found without holding up a commit.

use ade_domain::audit::ChainVerifier;
use ade_store::Database;
use ade_store::database::{AuditFilter, Commit, DatabaseError};
use ade_testkit::test_keys;

use crate::database::fixture::{TestDatabase, at, execute_on_sqlite, on_sqlite};
use crate::database::tasks::entry;

async fn append(database: &Database) {
    let audit = vec![entry("task.submit", Some("ann"), None, 1)];
    database.commit(Commit { audit, ..Commit::default() }).await.expect("written");
}

/// The number of the last entry, if all are authentic and chained.
pub(super) async fn verified(fixture: &TestDatabase) -> u64 {
    let database = &fixture.database;
    let mut walk = ChainVerifier::new(None);
    for row in database.audit_rows(&AuditFilter::default(), 0, 1_000).await.expect("read") {
        walk.verify(&row.authentic_entry(database.keys()).expect("authentic")).expect("chained");
    }
    walk.finish().expect("complete").number
}

fn execute(fixture: &TestDatabase, sql: &str) {
    execute_on_sqlite(fixture.folder.as_ref().expect("a folder").path(), sql).expect("executed");
}

/// Inserts a row by hand. `number` may be NULL.
fn forge(fixture: &TestDatabase, number: &str, id: &str, body: &str, mac: &str) {
    let columns = "number, entry_id, at, action, body, mac, previous_hash, entry_hash";
    let sql =
        format!("INSERT INTO audit ({columns}) VALUES ({number}, {id}, 1, 'x', {body}, {mac}, 'x', 'x')");
    execute(fixture, &sql);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_others_do_not_hold_up_commits() {
    let fixture = on_sqlite().await;
    let database = &fixture.database;
    append(database).await;
    let numbers = ["NULL", "3", "0", "-1", "-9223372036854775808", "9223372036854775807"];
    for (forged, number) in (1..).zip(numbers) {
        forge(&fixture, number, &format!("'{forged}'"), "'{}'", "NULL");
        append(database).await;
        assert_eq!(database.quarantined_entries().await, Ok(forged), "{number}");
        assert_eq!(verified(&fixture).await, forged + 1, "{number}");
    }
    // Texts that are not valid.
    forge(&fixture, "NULL", "CAST(x'ff' AS TEXT)", "CAST(x'fe' AS TEXT)", "CAST(x'fd' AS TEXT)");
    append(database).await;
    // More rows with an invented key than are searched for an authentic one.
    for number in 0..150 {
        forge(&fixture, "NULL", &format!("'many {number}'"), "'{}'", "'0011223344556677:00'");
    }
    append(database).await;
    assert_eq!((database.quarantined_entries().await, verified(&fixture).await), (Ok(157), 9));
    let reported = database.number_entries(at(1), 10).await.expect("looked");
    assert_eq!((reported.numbered, reported.quarantined.len()), (0, 157), "each is reported");
    // Once, and also if nobody commits anything.
    execute(&fixture, "INSERT INTO audit (entry_id, at, action, body) VALUES ('last', 1, 'x', '{}')");
    assert_eq!(verified(&fixture).await, 9);
    assert!(matches!(database.audit_head().await, Ok(head) if head.number == 10));
    let reported = database.number_entries(at(1), 10).await.expect("looked").quarantined;
    assert_eq!(reported.iter().map(|row| row.entry_id.as_str()).collect::<Vec<_>>(), ["last"]);
    assert_eq!(database.audit_head().await.expect("read").number, 9);
    // Quarantined rows stay as they are.
    for sql in [
        "UPDATE audit SET number = 10 WHERE number < 0",
        "UPDATE audit SET quarantined_at = NULL WHERE number < 0",
    ] {
        let folder = fixture.folder.as_ref().expect("a folder");
        let refused = execute_on_sqlite(folder.path(), sql).expect_err("append-only").to_string();
        assert!(refused.contains("append-only"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_behind_the_end_of_the_chain_do_not_hold_up_commits() {
    let fixture = on_sqlite().await;
    let database = &fixture.database;
    append(database).await;
    append(database).await;
    execute(
        &fixture,
        "INSERT INTO audit (number, entry_id, at, action, body, quarantined_at) VALUES (3, 'x', 1, 'x', '{}', 1)",
    );
    append(database).await;
    assert_eq!(verified(&fixture).await, 3);
    assert_eq!(database.entry_without_place().await, Ok(None));
    // A time that cannot be, until the next commit quarantines the row.
    execute(
        &fixture,
        "INSERT INTO audit (number, entry_id, at, action, body, entry_hash) VALUES (4, 'y', -1, 'x', '{}', 'x')",
    );
    let rows = database.audit_rows(&AuditFilter::default(), 0, 10).await.expect("read");
    assert_eq!(rows.iter().map(|row| row.entry().is_ok()).collect::<Vec<_>>(), [true, true, true, false]);
    // An authentic row with the largest number, which only somebody who disables the triggers can insert.
    execute(
        &fixture,
        "DROP TRIGGER audit_no_delete; CREATE TABLE moved AS SELECT * FROM audit WHERE number = 3; \
         UPDATE moved SET number = 9223372036854775807; DELETE FROM audit WHERE number = 3; \
         INSERT INTO audit SELECT * FROM moved; DROP TABLE moved",
    );
    append(database).await;
    assert_eq!((database.quarantined_entries().await, verified(&fixture).await), (Ok(3), 3));
    assert!(matches!(database.entry_without_place().await, Ok(Some(_))), "it is missed");
    let reported = database.number_entries(at(1), 10).await.expect("looked").quarantined;
    let reasons: Vec<_> = reported.iter().map(|row| row.reason).collect();
    assert_eq!(reasons, ["it has no MAC", "no entry has the number before it", "it has no MAC"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_commit_takes_no_number() {
    let fixture = on_sqlite().await;
    let database = &fixture.database;
    let taken = entry("task.submit", Some("ann"), None, 1);
    let commit = |body| Commit { audit: vec![body], ..Commit::default() };
    database.commit(commit(taken.clone())).await.expect("written");
    // In one transaction with others, most likely, and alone.
    let mut all = Vec::new();
    for number in 0..30 {
        let body = if number % 3 == 0 { taken.clone() } else { entry("task.assign", None, None, number) };
        let (database, commit) = (database.clone(), commit(body));
        all.push(tokio::spawn(async move { database.commit(commit).await }));
    }
    let mut failed = 0;
    for one in all {
        match one.await.expect("no panic") {
            Ok(()) => {}
            Err(DatabaseError::AlreadyExists { .. }) => failed += 1,
            Err(other) => unreachable!("{other}"),
        }
    }
    assert!(database.commit(commit(taken)).await.is_err());
    append(database).await;
    assert_eq!((failed, verified(&fixture).await), (10, 22));
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_the_schema_of_a_newer_version() {
    let fixture = on_sqlite().await;
    execute(&fixture, "PRAGMA user_version = 1000");
    let folder = fixture.folder.as_ref().expect("a folder");
    let refused = Database::open_sqlite(folder.path(), test_keys()).await.expect_err("newer");
    assert!(matches!(&refused, DatabaseError::Unavailable(why) if why.contains("newer")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_databases_of_unreleased_versions() {
    for made_by_it in
        ["CREATE TABLE users (user_id TEXT)", "CREATE TABLE users (user_id TEXT); PRAGMA user_version = 1"]
    {
        let folder = tempfile::tempdir().expect("a folder");
        execute_on_sqlite(folder.path(), made_by_it).expect("executed");
        let refused = Database::open_sqlite(folder.path(), test_keys()).await.expect_err("unknown tables");
        assert!(refused.to_string().contains("start with a new data folder"), "{refused}");
    }
}
