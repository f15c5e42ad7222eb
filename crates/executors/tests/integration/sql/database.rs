//! Test databases of either kind with a table of three rows. All tests share one PostgreSQL server.

use std::path::Path;
use std::sync::Arc;

use ade_executors::limited_process::LimitedProgram;
use ade_executors::{Parameters, PreviewMode, Run, RunOutput, Secrets, SqlExecutor, StopReason, StopSignal};
use ade_testkit::{Postgres, test_keys};
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
        server.psql("postgres", PREVIEWER).expect("created");
        Arc::new(server)
    };
    SERVER.get_or_init(start).await.clone()
}

/// The example program `limited`, which cargo builds with the tests.
fn limited_program() -> LimitedProgram {
    let test_exe = std::env::current_exe().expect("a program");
    let path = test_exe.parent().and_then(Path::parent).expect("a directory").join("examples/limited");
    assert!(path.exists(), "{} is missing: cargo build -p ade-executors --example limited", path.display());
    LimitedProgram::at(path)
}

/// A database of one test, with an executor for it that executes previews.
pub(crate) struct TestDatabase {
    pub(crate) sql: SqlExecutor,
    pub(crate) url: String,
    kind: Kind,
}

enum Kind {
    Postgres { database: String },
    Sqlite { _dir: TempDir },
}

pub(crate) async fn on_sqlite() -> TestDatabase {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("things.sqlite3");
    std::fs::write(&path, b"").expect("written");
    let url = format!("sqlite://{}", path.display());
    let sql = SqlExecutor::new("shop", &url, Some(&url), test_keys()).expect("valid");
    let sql = sql.with_limited_program(limited_program());
    let database = TestDatabase { sql, url, kind: Kind::Sqlite { _dir: dir } };
    for statement in TABLE {
        database.query(statement).await;
    }
    database
}

pub(crate) async fn on_postgres() -> TestDatabase {
    let name = format!("t{}", Uuid::now_v7().simple());
    let url = server().await.create_database(&name).expect("created");
    let preview_url = url.replace("postgres@", "previewer@");
    let sql = SqlExecutor::new("shop", &url, Some(&preview_url), test_keys()).expect("valid");
    let sql = sql.with_preview_mode(PreviewMode::Execute).expect("valid");
    let database = TestDatabase { sql, url, kind: Kind::Postgres { database: name } };
    for statement in TABLE {
        database.query(statement).await;
    }
    database.query("GRANT SELECT, INSERT, UPDATE, DELETE ON things TO previewer").await;
    database
}

impl TestDatabase {
    /// Runs a query on another connection and returns its first column.
    pub(crate) async fn query(&self, sql: &str) -> Vec<String> {
        match &self.kind {
            Kind::Postgres { database } => {
                let printed = server().await.psql(database, sql).expect("answered");
                printed.lines().map(str::to_owned).collect()
            }
            Kind::Sqlite { .. } => {
                let mut connection = SqliteConnection::connect(&self.url).await.expect("connects");
                let rows =
                    sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("answered");
                rows.iter().map(|row| row.get::<i64, _>(0).to_string()).collect()
            }
        }
    }

    /// The column `worth` of all rows.
    pub(crate) async fn worth(&self) -> Vec<String> {
        self.query("SELECT worth FROM things ORDER BY id").await
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.kind, Kind::Postgres { .. })
    }
}

pub(crate) fn parameters(statements: &[&str], rollback: &[&str]) -> Parameters {
    let parameters =
        json!({ "connection": "shop", "statements": statements, "rollback_statements": rollback });
    let Value::Object(parameters) = parameters else { unreachable!("it is an object") };
    parameters
}

/// The first attempt of a new task, with the sender of its stop signal.
pub(crate) fn run(statements: &[&str], rollback: &[&str]) -> (watch::Sender<Option<StopReason>>, Run) {
    let (stop_sender, stop) = StopSignal::new();
    let run = Run {
        approved_fingerprint: None,
        task_id: Uuid::now_v7().to_string(),
        attempt: 1,
        parameters: parameters(statements, rollback),
        fencing_tokens: Vec::new(),
        output: RunOutput::new(Secrets::default(), None),
        stop,
    };
    (stop_sender, run)
}

pub(crate) fn output_of(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

/// Makes a test on SQLite and one on PostgreSQL of each scenario.
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
