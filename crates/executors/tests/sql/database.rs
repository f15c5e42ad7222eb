//! A database of either kind with a table of three rows, for scenarios that run on both. One PostgreSQL for all of them.

use std::sync::Arc;

use ade_executors::{Halt, Halted, Output, Parameters, Run, Secrets, Sql};
use ade_testkit::Postgres;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::{OnceCell, watch};
use uuid::Uuid;

static SERVER: OnceCell<Arc<Postgres>> = OnceCell::const_new();
const PREVIEWER: &str = "CREATE ROLE previewer LOGIN";
const TABLE: [&str; 2] = [
    "CREATE TABLE things (id INTEGER PRIMARY KEY, worth INTEGER NOT NULL)",
    "INSERT INTO things VALUES (1, 10), (2, 20), (3, 30)",
];

pub(crate) async fn server() -> Arc<Postgres> {
    let start = || async {
        let server = Postgres::start().expect("starts");
        server.psql("postgres", PREVIEWER).expect("made");
        Arc::new(server)
    };
    SERVER.get_or_init(start).await.clone()
}

/// A database, and what would end with it.
pub(crate) struct Opened {
    pub(crate) sql: Sql,
    pub(crate) url: String,
    database: Result<String, TempDir>,
}

pub(crate) async fn on_sqlite() -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("things.sqlite3");
    std::fs::write(&path, b"").expect("written");
    let url = format!("sqlite://{}", path.display());
    let sql = Sql::new("shop", &url, Some(&url)).expect("usable");
    let opened = Opened { sql, url, database: Err(folder) };
    for statement in TABLE {
        opened.ask(statement).await;
    }
    opened
}

pub(crate) async fn on_postgres() -> Opened {
    let name = format!("t{}", Uuid::now_v7().simple());
    let url = server().await.create_database(&name).expect("created");
    let preview = url.replace("postgres@", "previewer@");
    let sql = Sql::new("shop", &url, Some(&preview)).expect("usable");
    let opened = Opened { sql, url, database: Ok(name) };
    for statement in TABLE {
        opened.ask(statement).await;
    }
    opened.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON things TO previewer").await;
    opened
}

impl Opened {
    /// What the first column of a question says, for somebody else.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<String> {
        match &self.database {
            Ok(name) => {
                let printed = server().await.psql(name, sql).expect("answered");
                printed.lines().map(str::to_owned).collect()
            }
            Err(_) => {
                let mut connection = SqliteConnection::connect(&self.url).await.expect("connects");
                let rows =
                    sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("answered");
                rows.iter().map(|row| row.get::<i64, _>(0).to_string()).collect()
            }
        }
    }

    /// What every thing is worth.
    pub(crate) async fn worth(&self) -> Vec<String> {
        self.ask("SELECT worth FROM things ORDER BY id").await
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.database.is_ok()
    }
}

pub(crate) fn parameters(statements: &[&str], back: &[&str]) -> Parameters {
    let all = json!({ "connection": "shop", "statements": statements, "rollback_statements": back });
    let Value::Object(all) = all else { unreachable!("it is an object") };
    all
}

/// The first attempt of a new task, and who could end it.
pub(crate) fn run(statements: &[&str], back: &[&str]) -> (watch::Sender<Option<Halt>>, Run) {
    let (halt, halted) = Halted::new();
    let run = Run {
        approved: None,
        task_id: Uuid::now_v7().to_string(),
        attempt: 1,
        parameters: parameters(statements, back),
        tokens: Vec::new(),
        output: Output::new(Secrets::default(), None),
        halted,
    };
    (halt, run)
}

pub(crate) fn said(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

/// Each scenario is a test on SQLite and one on PostgreSQL.
macro_rules! on_both {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(super::database::on_sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(super::database::on_postgres().await).await;
            })+
        }
    };
}
