//! What is special about PostgreSQL: roles, answers that get lost on the way, and workers that others take for gone.

use std::time::Duration;

use ade_executors::{Changed, Executor, Halt, Settled, Sql};
use ade_testkit::Proxy;
use ade_testkit::proxy::Cut;
use ade_testkit::wait::until;
use tokio::net::TcpListener;

use crate::database::{Opened, on_postgres, parameters, run, said};

const MORE: &str = "UPDATE things SET worth = worth + 1 WHERE id < 3";
const LESS: &str = "UPDATE things SET worth = worth - 1 WHERE id < 3";

/// The executor at the end of a line that is cut at the first COMMIT.
async fn cut(opened: &Opened, cut: Cut, for_long: bool) -> (Proxy, Sql) {
    let proxy = Proxy::start(&opened.url).await;
    proxy.cut(cut, for_long);
    let sql = Sql::new("shop", proxy.url(), None).expect("usable");
    (proxy, sql)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_commit_that_is_lost_is_settled_by_the_mark() {
    let opened = on_postgres().await;
    let (_halt, run) = run(&[MORE], &[]);
    let (_proxy, sql) = cut(&opened, Cut::Answer, false).await;
    sql.apply(&run, &[]).await.expect("it was committed");
    assert!(said(&run).contains("the answer to COMMIT was lost"));
    assert_eq!(opened.worth().await, ["11", "21", "30"]);
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Everything));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_did_not_arrive_never_will() {
    let opened = on_postgres().await;
    let (_halt, run) = run(&[MORE], &[]);
    let (_proxy, sql) = cut(&opened, Cut::Question, false).await;
    let failure = sql.apply(&run, &[]).await.expect_err("it was not committed");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "{failure}");
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Nothing));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_can_be_asked_nobody_knows() {
    let opened = on_postgres().await;
    let (halt, run) = run(&[MORE], &[]);
    let (proxy, sql) = cut(&opened, Cut::Answer, true).await;
    let (applied, ()) = tokio::join!(sql.apply(&run, &[]), async {
        proxy.was_cut().await;
        // Somebody wants it to end meanwhile.
        halt.send_replace(Some(Halt::TimedOut));
    });
    let failure = applied.expect_err("nobody knows");
    assert_eq!((failure.changed, failure.halted), (Changed::Unknown, Some(Halt::TimedOut)), "{failure}");
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Everything), "later somebody does");
}

#[tokio::test(flavor = "multi_thread")]
async fn undoing_whose_answer_is_lost_is_not_done_twice() {
    for how in [Cut::Answer, Cut::Question] {
        let opened = on_postgres().await;
        let (_halt, run) = run(&[MORE], &[LESS]);
        let stash = opened.sql.stash(&run).await.expect("kept");
        opened.sql.apply(&run, &stash).await.expect("applied");
        let (_proxy, sql) = cut(&opened, how, false).await;
        sql.roll_back(&run, &stash).await.expect("undone");
        assert_eq!(opened.worth().await, ["10", "20", "30"], "{how:?}");
    }
}

/// A worker that others take for gone, while its transaction waits for a row.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_still_at_it_is_waited_for() {
    use sqlx::{Connection, PgConnection, raw_sql};
    let opened = on_postgres().await;
    let (_halt, run) = run(&[MORE], &[]);
    let mut other = PgConnection::connect(&opened.url).await.expect("connects");
    raw_sql("BEGIN; UPDATE things SET worth = worth WHERE id = 2").execute(&mut other).await.expect("locked");
    let (sql, zombie) = (opened.sql.clone(), run.clone());
    let apply = tokio::spawn(async move { sql.apply(&zombie, &[]).await });
    let waits = || async {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let waits = opened.ask(sql).await;
        if waits == ["1"] { Ok(()) } else { Err(format!("{waits:?}")) }
    };
    until("the zombie waits", Duration::from_secs(30), waits).await.expect("waits");
    let failure = opened.sql.settle(&run, &[]).await.expect_err("somebody is at it");
    assert!(failure.again, "{failure}");
    raw_sql("ROLLBACK").execute(&mut other).await.expect("unlocked");
    apply.await.expect("ends").expect("applied");
    assert_eq!(opened.sql.settle(&run, &[]).await, Ok(Settled::Everything));
    assert_eq!(opened.worth().await, ["11", "21", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_may_do_no_more_than_its_role() {
    let opened = on_postgres().await;
    opened.ask("CREATE TABLE secrets (id INTEGER)").await;
    for statement in
        ["DROP TABLE things", "DELETE FROM secrets", "CREATE TABLE more (id INTEGER)", "SET ROLE postgres"]
    {
        let preview = opened.sql.preview(&parameters(&[statement], &[])).await.expect("made");
        let error = preview.errors.first().cloned().unwrap_or_default();
        assert!(
            error.contains("permission denied") || error.contains("must be owner"),
            "{statement}: {error}"
        );
    }
    let two = format!("{MORE}; COMMIT");
    let preview = opened.sql.preview(&parameters(&[&two], &[])).await.expect("made");
    assert!(preview.errors.iter().any(|error| error.contains("multiple commands")), "{:?}", preview.errors);
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}

/// A statement lifts the limit of time: it holds for those after it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_preview_lifts_its_limits() {
    let opened = on_postgres().await;
    let statements = [
        "SET statement_timeout = 0",
        "SELECT set_config('statement_timeout', '0', false)",
        "SHOW statement_timeout",
        "SELECT 1 / (current_setting('statement_timeout') <> '0')::int",
    ];
    let preview = opened.sql.preview(&parameters(&statements, &[])).await.expect("made");
    assert_eq!((preview.changes.len(), preview.errors), (4, Vec::new()));
}

/// Many begin on a database without the table of marks.
#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_marks_is_made_once_by_many() {
    let opened = on_postgres().await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let sql = opened.sql.clone();
        all.spawn(async move {
            let (_halt, run) = run(&[MORE], &[]);
            sql.apply(&run, &[]).await
        });
    }
    all.join_all().await.into_iter().for_each(|done| done.expect("applied"));
    assert_eq!(opened.worth().await, ["18", "28", "30"]);
    assert_eq!(opened.ask("SELECT count(*) FROM ade_applied").await, ["8"]);
}

/// A role that may not make tables uses the one that somebody made for it, and is told how if nobody did.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_is_told_what_to_make() {
    let opened = on_postgres().await;
    let url = opened.url.replace("postgres@", "previewer@");
    let sql = Sql::new("shop", &url, None).expect("usable");
    let (_halt, run) = run(&[MORE], &[]);
    let failure = sql.apply(&run, &[]).await.expect_err("it may not");
    let (_, create) = failure.message.split_once("make it yourself: ").expect("told");
    opened.ask(create).await;
    opened.ask("GRANT SELECT, INSERT ON ade_applied TO previewer").await;
    sql.apply(&run, &[]).await.expect("applied");
    assert_eq!(opened.worth().await, ["11", "21", "30"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_never_said() {
    let (secret, written) = ("pass/word", "pass%2Fword");
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let url = format!("postgres://ann:{written}@{nobody}/shop");
    let preview = format!("postgres://previewer@{nobody}/shop?password=other-secret");
    let sql = Sql::new("shop", &url, Some(&preview)).expect("usable");
    let (_halt, run) = run(&[MORE], &[]);
    let preview_failure = sql.preview(&run.parameters).await.expect_err("nobody is there");
    let apply_failure = sql.apply(&run, &[]).await.expect_err("nobody is there");
    assert!(apply_failure.again && preview_failure.again);
    let all = format!("{sql:?} {preview_failure:?} {apply_failure:?}");
    for hidden in [secret, written, "other-secret"] {
        assert!(!all.contains(hidden), "{all}");
        assert!(sql.secrets().iter().any(|known| known == hidden));
    }
    assert!(sql.secrets().contains(&url) && sql.secrets().contains(&preview));
    for (url, preview) in [
        (format!("mysql://ann:{written}@h/d"), None),
        (format!("postgres://ann:{written}@h:x/d"), None),
        (format!("sqlite::memory:?{written}"), None),
        (url.clone(), Some(format!("postgres://ann:{written}@h/d"))),
        (url.clone(), Some(format!("sqlite:///{written}"))),
    ] {
        let invalid = Sql::new("shop", &url, preview.as_deref()).expect_err("unusable");
        assert!(!format!("{invalid:?}").contains(written), "{invalid:?}");
    }
}

/// Whoever asked for a preview is gone, while a statement of it runs: nothing stays locked for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_preview_that_nobody_waits_for_ends() {
    let opened = on_postgres().await;
    let sql = opened.sql.clone();
    let preview =
        tokio::spawn(
            async move { sql.preview(&parameters(&[MORE, "SELECT pg_sleep(9)"], &[])).await.map(drop) },
        );
    let backends = |expected: &'static str| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'previewer' \
                   AND query LIKE '%pg_sleep%'";
        let seen = opened.ask(sql);
        async move {
            let seen = seen.await;
            if seen == [expected] { Ok(()) } else { Err(format!("{seen:?}")) }
        }
    };
    until("it sleeps", Duration::from_secs(30), || backends("1")).await.expect("sleeps");
    preview.abort();
    until("it is gone", Duration::from_secs(6), || backends("0")).await.expect("ends long before it would");
    assert_eq!(opened.worth().await, ["10", "20", "30"]);
}
