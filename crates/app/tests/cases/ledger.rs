//! Whatever is done to the audit log behind its back, in either database, is found and named.

use std::path::Path;

use ade_app::ledger::{Checkpoint, LedgerError, Signer, verify};
use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody};
use ade_store::Database;
use ade_store::database::Commit;
use ade_testkit::Postgres;
use sqlx::Connection;
use tempfile::TempDir;
use tokio::sync::OnceCell;

static SERVER: OnceCell<Postgres> = OnceCell::const_new();

/// A log of ten entries, its signer, and a way past the record.
struct Log {
    record: Database,
    signer: Signer,
    folder: TempDir,
    database: Option<String>,
}

fn now() -> Moment {
    Moment::from_micros(1_794_744_000_000_120)
}

impl Log {
    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let record = Database::in_folder(folder.path()).await.expect("opens");
        Self::filled(record, folder, None).await
    }

    async fn on_postgres() -> Self {
        let server = SERVER.get_or_init(|| async { Postgres::start().expect("starts") }).await;
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        server.create_database(&name).expect("created");
        let record = Database::on_postgres(&server.url(&name)).await.expect("opens");
        Self::filled(record, tempfile::tempdir().expect("a folder"), Some(name)).await
    }

    async fn filled(record: Database, folder: TempDir, database: Option<String>) -> Self {
        let signer = Signer::open(&folder.path().join("audit-key")).expect("made");
        let log = Self { record, signer, folder, database };
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
            self.record.commit(Commit { audit: vec![body], ..Commit::default() }).await.expect("written");
        }
        self.record.number("test", now(), 1_000, 1_000).await.expect("numbered");
    }

    /// As the owner of the database could, who switches the triggers off first.
    async fn tamper(&self, sql: &str) {
        match (&self.database, SERVER.get()) {
            (Some(name), Some(server)) => {
                let sql = format!("ALTER TABLE audit DISABLE TRIGGER USER; {sql}");
                server.psql(name, &sql).expect("its owner");
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
        match verify(&self.record, checkpoint).await {
            Err(LedgerError::Broken(broken)) => broken.number,
            other => unreachable!("{other:?}"),
        }
    }
}

async fn sqlite(file: &Path, sql: String) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut link).await.expect("its owner");
}

macro_rules! on_both {
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

on_both!(
    an_edited_entry_is_found,
    a_removed_entry_is_found,
    swapped_entries_are_found,
    a_log_that_was_cut_off_is_found_beside_a_checkpoint,
    a_checkpoint_that_nobody_signed_is_no_checkpoint,
);

async fn an_edited_entry_is_found(log: Log) {
    assert_eq!(verify(&log.record, None).await.expect("whole").number, 10);
    log.tamper("UPDATE audit SET body = replace(body, 'a reason', 'another') WHERE number = 4").await;
    assert_eq!(log.broken_at(None).await, 4);
    // A signature under a broken log would hide it.
    assert!(log.signer.checkpoint(&log.record, None, now()).await.is_err());
}

async fn a_removed_entry_is_found(log: Log) {
    log.tamper("DELETE FROM audit WHERE number = 7").await;
    assert_eq!(log.broken_at(None).await, 7);
}

async fn swapped_entries_are_found(log: Log) {
    log.tamper(
        "UPDATE audit SET number = 99 WHERE number = 3; UPDATE audit SET number = 3 WHERE number = 5; \
         UPDATE audit SET number = 5 WHERE number = 99",
    )
    .await;
    assert_eq!(log.broken_at(None).await, 3);
}

async fn a_log_that_was_cut_off_is_found_beside_a_checkpoint(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.record, None, now()).await.expect("signed");
    log.write(2).await;
    assert_eq!(verify(&log.record, Some(&checkpoint)).await.expect("whole").number, 12);
    log.tamper("DELETE FROM audit WHERE number > 8").await;
    assert_eq!(verify(&log.record, None).await.expect("whole by itself").number, 8);
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 9);
    // Written anew behind the cut: still not what was signed.
    log.write(4).await;
    assert_eq!(verify(&log.record, None).await.expect("whole by itself").number, 12);
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 10);
}

async fn a_checkpoint_that_nobody_signed_is_no_checkpoint(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.record, None, now()).await.expect("signed");
    let mut forged = checkpoint.clone();
    forged.head.number = 3;
    assert!(matches!(verify(&log.record, Some(&forged)).await, Err(LedgerError::Forged)));
    forged.signature = "00".to_owned();
    assert!(!forged.is_signed());
    // The key is kept, and nobody else may read it.
    let file = log.folder.path().join("audit-key");
    let again = Signer::open(&file).expect("kept").checkpoint(&log.record, Some(&checkpoint), now()).await;
    assert_eq!(again.expect("signed"), checkpoint);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).expect("there").permissions());
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, "not a key").expect("written");
    assert!(matches!(Signer::open(&file), Err(LedgerError::Key(..))));
}
