//! What holds on both databases.

use std::time::Duration;

use ade_domain::task::{ChangeKind, PreviewStatus};
use ade_executors::{Changed, Executor, Failure, Fence, Halt, Run, Settled, Sql};
use ade_testkit::wait::until;
use sqlx::{Connection, SqliteConnection};

use crate::database::{self, Opened, parameters, run, said};

on_both!(
    it_is_applied_once_and_says_how_many_rows,
    a_statement_that_fails_leaves_nothing,
    a_preview_counts_rows_and_changes_nothing,
    a_preview_ends_with_the_first_statement_that_fails,
    whoever_is_settled_stays_out,
    what_was_applied_is_found,
    it_is_undone_once,
    nothing_is_undone_that_was_not_applied,
    undoing_that_fails_changes_nothing,
    whoever_is_halted_has_changed_nothing,
    marks_cannot_be_taken_away,
    parameters_that_cannot_be_are_named,
);

const MORE: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";
const LESS: &str = "UPDATE things SET worth = worth - 1 WHERE id < 3";

async fn it_is_applied_once_and_says_how_many_rows(opened: Opened) {
    let (_halt, run) = run(&[MORE, "CREATE TABLE more (id INTEGER)", "DELETE FROM things WHERE id = 3"], &[]);
    for _ in 0..2 {
        opened.sql.apply(&run, &[]).await.expect("applied");
        assert_eq!(opened.worth().await, ["11", "21"]);
    }
    let said = said(&run);
    assert!(
        said.starts_with("statement 1: 2 rows\nstatement 2: 0 rows\nstatement 3: 1 row\n"),
        "it said: {said}"
    );
    assert!(said.ends_with("nothing is done again\n"), "it said: {said}");
    let next = Run { attempt: 2, ..run };
    let failure = opened.sql.apply(&next, &[]).await.expect_err("there is such a table");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, false));
    assert!(failure.message.starts_with("statement 2: "), "it said: {failure}");
}

async fn a_statement_that_fails_leaves_nothing(opened: Opened) {
    let (_halt, run) = run(&[MORE, "INSERT INTO things VALUES (1, 1)"], &[]);
    let failure = opened.sql.apply(&run, &[]).await.expect_err("there is one with this number");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, false));
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
    assert_eq!(opened.ask("SELECT count(*) FROM ade_applied").await, ["0"]);
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Nothing));
}

async fn a_preview_counts_rows_and_changes_nothing(opened: Opened) {
    let statements = [MORE, "DELETE FROM things", "INSERT INTO things\n  VALUES (9, 1)"];
    let preview = opened.sql.preview(&parameters(&statements, &[])).await.expect("made");
    assert_eq!((preview.status, preview.errors.len()), (PreviewStatus::Ready, 0), "{:?}", preview.errors);
    let seen: Vec<_> = preview
        .changes
        .iter()
        .map(|change| (change.kind, change.what.as_str(), change.after.as_deref()))
        .collect();
    assert_eq!(
        seen,
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
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
    let again = opened.sql.preview(&parameters(&statements, &[])).await.expect("made");
    assert_eq!(again.fingerprint, preview.fingerprint);
    opened.ask("DELETE FROM things WHERE id = 1").await;
    let other = opened.sql.preview(&parameters(&statements, &[])).await.expect("made");
    assert_ne!(other.fingerprint, preview.fingerprint, "the world has changed");
    let without = Sql::new("shop", &opened.url, None).expect("usable");
    let none = without.preview(&parameters(&statements, &[])).await.expect("none is also an answer");
    assert_eq!(none.status, PreviewStatus::None);
}

async fn a_preview_ends_with_the_first_statement_that_fails(opened: Opened) {
    let statements = [MORE, "UPDATE nowhere SET a = 1", MORE];
    let preview = opened.sql.preview(&parameters(&statements, &[])).await.expect("made");
    assert_eq!((preview.changes.len(), preview.errors.len()), (1, 1));
    assert!(preview.errors[0].starts_with("statement 2: "), "{:?}", preview.errors);
    assert!(preview.errors[0].contains("nowhere"), "{:?}", preview.errors);
}

async fn whoever_is_settled_stays_out(opened: Opened) {
    let (_halt, run) = run(&[MORE], &[]);
    for _ in 0..2 {
        assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Nothing));
    }
    let failure = opened.sql.apply(&run, &[]).await.expect_err("shut out");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, false));
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
    opened.sql.apply(&Run { attempt: 2, ..run }, &[]).await.expect("another attempt");
    assert_eq!(opened.worth().await, ["11", "21", "30"]);
}

async fn what_was_applied_is_found(opened: Opened) {
    let (_halt, run) = run(&[MORE], &[]);
    opened.sql.apply(&run, &[]).await.expect("applied");
    for _ in 0..2 {
        assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Everything));
    }
    assert_eq!(opened.sql.fence(), Fence::Fenced);
}

async fn it_is_undone_once(opened: Opened) {
    let (_halt, run) = run(&[MORE], &[LESS]);
    let stash = opened.sql.stash(&run).await.expect("kept");
    opened.sql.apply(&run, &stash).await.expect("applied");
    for _ in 0..2 {
        opened.sql.roll_back(&run, &stash).await.expect("undone");
        assert_eq!(opened.worth().await, ["10", "20", "30"]);
    }
    assert!(opened.sql.can_roll_back(&run.parameters));
    let forward = parameters(&[MORE], &[]);
    assert!(!opened.sql.can_roll_back(&forward));
    let run = Run { parameters: forward, ..run };
    assert_eq!(opened.sql.stash(&run).await, Ok(Vec::new()));
    assert!(opened.sql.roll_back(&run, &[]).await.is_err(), "there is no way back");
}

async fn nothing_is_undone_that_was_not_applied(opened: Opened) {
    let (_halt, run) = run(&[MORE], &[LESS]);
    let stash = opened.sql.stash(&run).await.expect("kept");
    opened.sql.roll_back(&run, &stash).await.expect("nothing to undo");
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
    assert!(opened.sql.apply(&run, &stash).await.is_err(), "it came too late");
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}

async fn undoing_that_fails_changes_nothing(opened: Opened) {
    let (_halt, run) = run(&[MORE], &[LESS, "DELETE FROM nowhere"]);
    let stash = opened.sql.stash(&run).await.expect("kept");
    opened.sql.apply(&run, &stash).await.expect("applied");
    let failure = opened.sql.roll_back(&run, &stash).await.expect_err("there is no such table");
    assert_eq!(failure.changed, Changed::Something);
    assert!(failure.message.starts_with("statement 2: "), "it said: {failure}");
    assert_eq!(opened.worth().await, ["11", "21", "30"]);
    opened.ask("CREATE TABLE nowhere (id INTEGER)").await;
    opened.sql.roll_back(&run, &stash).await.expect("undone");
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}

async fn whoever_is_halted_has_changed_nothing(opened: Opened) {
    let forever = if opened.is_postgres() {
        "SELECT pg_sleep(86400)"
    } else {
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    };
    let (halt, run) = run(&[MORE, forever], &[]);
    let (sql, applied) = (opened.sql.clone(), run.clone());
    let apply = tokio::spawn(async move { sql.apply(&applied, &[]).await });
    let begun = || async {
        Some(()).filter(|()| run.output.take_new().contains("1: 2 rows")).ok_or_else(String::new)
    };
    until("it has begun", Duration::from_secs(30), begun).await.expect("begins");
    halt.send_replace(Some(Halt::Stopped));
    let failure: Failure = apply.await.expect("ends").expect_err("halted");
    assert_eq!((failure.changed, failure.halted), (Changed::Nothing, Some(Halt::Stopped)));
    // The database notices by itself that nobody waits: soon nothing is locked.
    let settled = || async { opened.sql.settle(&run, &[]).await.map_err(|failure| failure.message) };
    let settled = until("it is over", Duration::from_secs(60), settled).await.expect("settled");
    assert_eq!(
        (settled, opened.worth().await),
        (Settled::Nothing, ["10", "20", "30"].map(str::to_owned).to_vec())
    );
    let (halt, late) = database::run(&[MORE], &[]);
    halt.send_replace(Some(Halt::Lost));
    let failure = opened.sql.apply(&late, &[]).await.expect_err("halted before");
    assert_eq!((failure.changed, failure.halted), (Changed::Nothing, Some(Halt::Lost)));
}

/// What the check by words does not see, the transaction does.
async fn marks_cannot_be_taken_away(opened: Opened) {
    let trigger = if opened.is_postgres() {
        vec![
            "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN EXECUTE 'DELETE FROM ade_' || 'applied'; RETURN NEW; END $$",
            "CREATE TRIGGER forget AFTER UPDATE ON things FOR EACH ROW EXECUTE FUNCTION forget()",
        ]
    } else {
        vec!["CREATE TRIGGER forget AFTER UPDATE ON things BEGIN DELETE FROM ade_applied; END"]
    };
    let (_halt, first) = run(&["DELETE FROM things WHERE id = 9"], &[]);
    opened.sql.apply(&first, &[]).await.expect("applied");
    for statement in trigger {
        opened.ask(statement).await;
    }
    let (_halt, run) = run(&[MORE], &[]);
    let failure = opened.sql.apply(&run, &[]).await.expect_err("its mark is gone");
    assert!(failure.message.contains("mark"), "it said: {failure}");
    assert_eq!(failure.changed, Changed::Nothing);
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}

async fn parameters_that_cannot_be_are_named(opened: Opened) {
    let mut wrong = parameters(&[MORE, "COMMIT", " -- nothing", "DELETE FROM ade_applied"], &["ROLLBACK"]);
    wrong.insert("statments".to_owned(), true.into());
    wrong.insert("connection".to_owned(), "other".into());
    let faults = opened.sql.check(&wrong).expect_err("wrong");
    let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/statments",
            "/connection",
            "/statements/1",
            "/statements/2",
            "/statements/3",
            "/rollback_statements/0"
        ]
    );
    assert!(opened.sql.check(&parameters(&[], &[])).is_err(), "nothing to do");
    assert!(opened.sql.check(&parameters(&[MORE; 101], &[])).is_err(), "too many");
    assert_eq!(opened.sql.check(&parameters(&[MORE], &[LESS])), Ok(()));
    let two = format!("{MORE}; {MORE}");
    let (_halt, run) = run(&[&two], &[]);
    let failure = opened.sql.apply(&run, &[]).await.expect_err("two in one");
    assert_eq!(failure.changed, Changed::Nothing);
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}

/// SQLite locks all of it: whoever is still at it is not waited for long.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_still_at_sqlite_is_not_settled() {
    let opened = database::on_sqlite().await;
    let (_halt, run) = run(&[MORE], &[]);
    let mut zombie = SqliteConnection::connect(&opened.url).await.expect("connects");
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut zombie).await.expect("begun");
    let failure = opened.sql.settle(&run, &[]).await.expect_err("somebody is at it");
    assert!(failure.again, "{failure}");
    let failure = opened.sql.apply(&run, &[]).await.expect_err("somebody is at it");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "{failure}");
    zombie.close().await.expect("closed");
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Nothing));
}
