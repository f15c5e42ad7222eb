//! Tampering with the audit log is detected and located, in either database.

use std::path::Path;

use ade_app::audit::{AuditLogError, Checkpoint, Signer, verify};
use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody};
use ade_store::Database;
use ade_store::database::Commit;
use ade_testkit::Postgres;
use sqlx::Connection;
use tempfile::TempDir;
use tokio::sync::OnceCell;

static SERVER: OnceCell<Postgres> = OnceCell::const_new();

/// A log of ten entries with its signer, and direct access to its database.
struct Log {
    database: Database,
    signer: Signer,
    folder: TempDir,
    database_name: Option<String>,
}

fn now() -> Moment {
    Moment::from_micros(1_794_744_000_000_120)
}

impl Log {
    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let database = Database::open_sqlite(folder.path()).await.expect("opens");
        Self::filled(database, folder, None).await
    }

    async fn on_postgres() -> Self {
        let server = SERVER.get_or_init(|| async { Postgres::start().expect("starts") }).await;
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        server.create_database(&name).expect("created");
        let database = Database::open_postgres(&server.url(&name)).await.expect("opens");
        Self::filled(database, tempfile::tempdir().expect("temporary folder"), Some(name)).await
    }

    async fn filled(database: Database, folder: TempDir, database_name: Option<String>) -> Self {
        let signer = Signer::open(&folder.path().join("audit-key")).expect("created");
        let log = Self { database, signer, folder, database_name };
        log.write(10).await;
        log
    }

    async fn write(&self, many: usize) {
        for _ in 0..many {
            let body = AuditBody {
                entry_id: uuid::Uuid::now_v7().to_string(),
                at: now(),
                who: AuditActor::default(),
                action: "task.submit".to_owned(),
                object_type: "task".to_owned(),
                object_id: "t".to_owned(),
                task_id: None,
                from: None,
                to: None,
                revision: None,
                digest: None,
                reason: Some("a reason".to_owned()),
                ticket: None,
                details: serde_json::Map::new(),
            };
            self.database.commit(Commit { audit: vec![body], ..Commit::default() }).await.expect("written");
        }
        self.database.assign_numbers("test", now(), 1_000, 1_000).await.expect("numbered");
    }

    /// Changes the log as the owner of the database could, who disables the triggers first.
    async fn tamper(&self, sql: &str) {
        match (&self.database_name, SERVER.get()) {
            (Some(name), Some(server)) => {
                let sql = format!("ALTER TABLE audit DISABLE TRIGGER USER; {sql}");
                server.psql(name, &sql).expect("tampered");
            }
            _ => {
                let file = self.folder.path().join("ade.sqlite3");
                let sql = format!(
                    "DROP TRIGGER IF EXISTS audit_no_update; DROP TRIGGER IF EXISTS audit_no_delete; {sql}"
                );
                sqlite(&file, sql).await;
            }
        }
    }

    async fn broken_at(&self, checkpoint: Option<&Checkpoint>) -> u64 {
        match verify(&self.database, checkpoint).await {
            Err(AuditLogError::Broken(broken)) => broken.number,
            other => unreachable!("{other:?}"),
        }
    }
}

async fn sqlite(file: &Path, sql: String) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect("tampered");
}

macro_rules! on_both_databases {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(super::Log::on_sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(super::Log::on_postgres().await).await;
            })+
        }
    };
}

on_both_databases!(
    detects_edited_entry,
    detects_removed_entry,
    detects_swapped_entries,
    detects_truncated_log_with_a_checkpoint,
    rejects_forged_checkpoint,
);

async fn detects_edited_entry(log: Log) {
    assert_eq!(verify(&log.database, None).await.expect("intact").number, 10);
    log.tamper("UPDATE audit SET body = replace(body, 'a reason', 'another') WHERE number = 4").await;
    assert_eq!(log.broken_at(None).await, 4);
    // The columns beside the body are verified as well.
    log.tamper("UPDATE audit SET actor = 'mallory' WHERE number = 3").await;
    assert_eq!(log.broken_at(None).await, 3);
    // Signing a broken log would hide the break.
    assert!(log.signer.checkpoint(&log.database, None, now()).await.is_err());
}

async fn detects_removed_entry(log: Log) {
    log.tamper("DELETE FROM audit WHERE number = 7").await;
    assert_eq!(log.broken_at(None).await, 7);
}

async fn detects_swapped_entries(log: Log) {
    log.tamper(
        "UPDATE audit SET number = 99 WHERE number = 3; UPDATE audit SET number = 3 WHERE number = 5; \
         UPDATE audit SET number = 5 WHERE number = 99",
    )
    .await;
    assert_eq!(log.broken_at(None).await, 3);
}

async fn detects_truncated_log_with_a_checkpoint(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.database, None, now()).await.expect("signed");
    log.write(2).await;
    assert_eq!(verify(&log.database, Some(&checkpoint)).await.expect("intact").number, 12);
    log.tamper("DELETE FROM audit WHERE number > 8").await;
    assert_eq!(verify(&log.database, None).await.expect("intact").number, 8);
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 9);
    // New entries after the truncation do not match the checkpoint either.
    log.write(4).await;
    assert_eq!(verify(&log.database, None).await.expect("intact").number, 12);
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 10);
}

async fn rejects_forged_checkpoint(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.database, None, now()).await.expect("signed");
    let mut forged = checkpoint.clone();
    forged.head.number = 3;
    assert!(matches!(verify(&log.database, Some(&forged)).await, Err(AuditLogError::InvalidSignature)));
    forged.signature = "00".to_owned();
    assert!(!forged.is_signed());
    // The key is reused, and only its owner can read it.
    let file = log.folder.path().join("audit-key");
    let again =
        Signer::open(&file).expect("stored").checkpoint(&log.database, Some(&checkpoint), now()).await;
    assert_eq!(again.expect("signed"), checkpoint);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("exists").permissions());
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, "not a key").expect("written");
    assert!(matches!(Signer::open(&file), Err(AuditLogError::InvalidKey(..))));
}
