//! Tampering with the audit log is detected and located, in either database.

use std::fs;
use std::path::Path;

use ade_app::audit::{AuditLogError, Checkpoint, CheckpointFile, Signer, VerifiedLog, verify};
use ade_domain::audit::{AuditActor, AuditBody, ChainHead};
use ade_domain::{Keys, Moment};
use ade_store::Database;
use ade_store::database::{Commit, DatabaseError, SecretRegistration};
use ade_testkit::server::SECRET;
use ade_testkit::{Postgres, test_keys};
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
        let database = Database::open_sqlite(folder.path(), test_keys()).await.expect("opens");
        Self::filled(database, folder, None).await
    }

    async fn on_postgres() -> Self {
        let server = SERVER.get_or_init(|| async { Postgres::start().expect("starts") }).await;
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        server.create_database(&name).expect("created");
        let database = Database::open_postgres(&server.url(&name), test_keys()).await.expect("opens");
        Self::filled(database, tempfile::tempdir().expect("temporary folder"), Some(name)).await
    }

    async fn filled(database: Database, folder: TempDir, database_name: Option<String>) -> Self {
        let signer = Signer::new(database.keys()).expect("derived");
        let log = Self { database, signer, folder, database_name };
        log.write(10).await;
        log
    }

    /// The same database in a process with other keys.
    async fn reopen(&self, keys: Keys) -> Database {
        match (&self.database_name, SERVER.get()) {
            (Some(name), Some(server)) => Database::open_postgres(&server.url(name), keys).await,
            _ => Database::open_sqlite(self.folder.path(), keys).await,
        }
        .expect("opens")
    }

    async fn write(&self, many: usize) {
        self.append(&self.database, many).await;
    }

    async fn append(&self, database: &Database, many: usize) {
        for _ in 0..many {
            self.try_append(database).await.expect("written");
        }
    }

    /// Appends an entry, and numbers what has no number yet.
    async fn try_append(&self, database: &Database) -> Result<(), DatabaseError> {
        let body = AuditBody {
            entry_id: uuid::Uuid::now_v7().to_string(),
            at: now(),
            who: AuditActor::default().into(),
            action: "task.submit".to_owned(),
            object_type: "task".to_owned(),
            object_id: "t".to_owned(),
            task_id: None,
            from: None,
            to: None,
            revision: None,
            digest: None,
            reviewed: None,
            reason: Some("a reason".to_owned()),
            ticket: None,
            details: serde_json::Map::new(),
        };
        database.commit(Commit { audit: vec![body], ..Commit::default() }).await?;
        database.number_entries(now(), 1_000).await.map(drop)
    }

    /// Changes the log as the owner of the database could, who disables the triggers first.
    async fn tamper(&self, sql: &str) {
        match (&self.database_name, SERVER.get()) {
            (Some(name), Some(server)) => {
                let disable =
                    "ALTER TABLE audit DISABLE TRIGGER USER; ALTER TABLE audit_chain DISABLE TRIGGER USER;";
                server.psql(name, &format!("{disable} {sql}")).expect("tampered");
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

    /// The table with the numbers and hashes of entries.
    fn chain(&self) -> &'static str {
        if self.database_name.is_some() { "audit_chain" } else { "audit" }
    }

    /// The condition for entries by their numbers.
    fn numbered(&self, condition: &str) -> String {
        match self.database_name {
            Some(_) => format!("entry_id IN (SELECT entry_id FROM audit_chain WHERE number {condition})"),
            None => format!("number {condition}"),
        }
    }

    /// Verifies the log with the stored checkpoints and a saved one.
    async fn verify(&self, saved: Option<&Checkpoint>) -> Result<VerifiedLog, AuditLogError> {
        verify(&self.database, &self.signer, &[], saved.map(|saved| saved.head)).await
    }

    async fn intact(&self, saved: Option<&Checkpoint>) -> VerifiedLog {
        self.verify(saved).await.expect("intact")
    }

    async fn broken_at(&self, saved: Option<&Checkpoint>) -> u64 {
        match self.verify(saved).await {
            Err(AuditLogError::Broken(broken)) => broken.number,
            other => unreachable!("{other:?}"),
        }
    }

    async fn store(&self, checkpoint: &Checkpoint) {
        let text = serde_json::to_string(checkpoint).expect("JSON");
        self.database.put_checkpoint(checkpoint.head.number, &text).await.expect("stored");
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
    detects_log_that_was_rewritten_as_a_whole,
    uses_shared_checkpoints_of_this_installation_only,
    quarantines_rows_that_ade_did_not_write,
    keeps_numbered_rows_of_an_unknown_secret,
    ignores_incomplete_last_line_of_checkpoint_file,
);

async fn detects_edited_entry(log: Log) {
    assert_eq!(log.intact(None).await.head.number, 10);
    let edit = "UPDATE audit SET body = replace(body, 'a reason', 'another') WHERE";
    log.tamper(&format!("{edit} {}", log.numbered("= 4"))).await;
    assert_eq!(log.broken_at(None).await, 4);
    // The columns beside the body are verified as well.
    log.tamper(&format!("UPDATE audit SET actor = 'mallory' WHERE {}", log.numbered("= 3"))).await;
    assert_eq!(log.broken_at(None).await, 3);
    // So are the hashes.
    log.tamper(&format!("UPDATE {} SET entry_hash = previous_hash WHERE number = 2", log.chain())).await;
    assert_eq!(log.broken_at(None).await, 2);
    // Signing a broken log would hide the break.
    assert!(log.signer.checkpoint(&log.database, None, now()).await.is_err());
}

async fn detects_removed_entry(log: Log) {
    log.tamper(&format!("DELETE FROM audit WHERE {}", log.numbered("= 7"))).await;
    assert_eq!(log.broken_at(None).await, 7);
    // Lists go on past it.
    let rows = log.database.audit_rows(&Default::default(), 5, 3).await.expect("read");
    assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [6, 8, 9]);
    assert!(rows.iter().all(|row| row.entry().is_ok()));
}

/// On PostgreSQL an entry and its place in the chain are two rows: removing one of them, also at the end, is detected.
#[tokio::test(flavor = "multi_thread")]
async fn detects_entry_without_its_place_and_place_without_its_entry() {
    let log = Log::on_postgres().await;
    log.tamper("DELETE FROM audit_chain WHERE number = 10").await;
    assert_eq!(log.broken_at(None).await, 9, "entry 10 is not in the chain");
    log.tamper("DELETE FROM audit_chain WHERE number = 5").await;
    assert_eq!(log.broken_at(None).await, 5);

    let log = Log::on_postgres().await;
    log.tamper(&format!("DELETE FROM audit WHERE {}", log.numbered("= 10"))).await;
    assert_eq!(log.broken_at(None).await, 10);
    // A place that somebody made up, and an entry that somebody queued again, hold up nothing.
    let columns = "number, at, entry_id, previous_hash, entry_hash";
    log.tamper(&format!(
        "INSERT INTO audit_chain ({columns}) SELECT 12, at, gen_random_uuid(), 'x', 'y' FROM audit LIMIT 1; \
         INSERT INTO audit_queue (at, entry_id) SELECT at, entry_id FROM audit; \
         INSERT INTO audit_queue (at, entry_id) SELECT at, gen_random_uuid() FROM audit LIMIT 1"
    ))
    .await;
    log.write(2).await;
    let VerifiedLog { head, .. } = log.intact(None).await;
    assert_eq!(head.number, 11, "in the places of the removed and of the made-up one");
    assert_eq!(log.database.quarantined_entries().await, Ok(2));
    assert_eq!(log.database.has_unnumbered().await, Ok(false));
}

async fn detects_swapped_entries(log: Log) {
    let swap = [(3, 99), (5, 3), (99, 5)]
        .map(|(from, to)| format!("UPDATE {} SET number = {to} WHERE number = {from};", log.chain()));
    log.tamper(&swap.concat()).await;
    assert_eq!(log.broken_at(None).await, 3);
}

async fn detects_truncated_log_with_a_checkpoint(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.database, None, now()).await.expect("signed");
    log.write(2).await;
    let VerifiedLog { head, checkpoint: found } = log.intact(Some(&checkpoint)).await;
    assert_eq!((head.number, found), (12, Some(checkpoint.head)));
    let mut truncate = format!("DELETE FROM audit WHERE {};", log.numbered("> 8"));
    if log.database_name.is_some() {
        truncate.push_str("DELETE FROM audit_chain WHERE number > 8;");
    }
    log.tamper(&truncate).await;
    let VerifiedLog { head, checkpoint: found } = log.intact(None).await;
    assert_eq!((head.number, found), (8, None), "valid by itself, but no checkpoint confirms it");
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 9);
    // New entries after the truncation do not match the checkpoint either.
    log.write(4).await;
    assert_eq!(log.intact(None).await.head.number, 12);
    assert_eq!(log.broken_at(Some(&checkpoint)).await, 10);
    // The same with the checkpoint that the servers share.
    log.store(&checkpoint).await;
    assert_eq!(log.broken_at(None).await, 10);
}

/// Hashes need no secret: somebody who rewrites an entry can chain all later ones again. MACs cannot be computed.
async fn detects_log_that_was_rewritten_as_a_whole(log: Log) {
    let mut head = ChainHead::origin();
    let mut sql = String::new();
    for row in log.database.audit_rows(&Default::default(), 0, 100).await.expect("read") {
        let mut body = row.entry().expect("valid").body;
        if row.number == 6 {
            body.action = "task.cancel".to_owned();
        }
        let text = body.canonical_form().expect("JSON");
        let entry = ade_domain::audit::append(head, body).expect("chained");
        head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
        sql.push_str(&format!(
            "UPDATE audit SET body = '{text}', action = '{}' WHERE {}; \
             UPDATE {} SET previous_hash = '{}', entry_hash = '{}' WHERE number = {};",
            entry.body.action,
            log.numbered(&format!("= {}", entry.number)),
            log.chain(),
            entry.previous_hash,
            entry.entry_hash,
            entry.number
        ));
    }
    log.tamper(&sql).await;
    let verified = log.verify(None).await;
    let is_found = matches!(
        &verified,
        Err(AuditLogError::Broken(broken)) if broken.number == 6 && broken.reason.contains("MAC")
    );
    assert!(is_found, "{verified:?}");
}

async fn uses_shared_checkpoints_of_this_installation_only(log: Log) {
    let checkpoint = log.signer.checkpoint(&log.database, None, now()).await.expect("signed");
    // All servers sign with the same key.
    let other = Signer::new(&test_keys()).expect("derived");
    let again = other.checkpoint(&log.database, Some(&checkpoint), now()).await;
    assert_eq!(again.expect("signed"), checkpoint);
    // A checkpoint of somebody else proves nothing, neither that the log is intact nor that it is not.
    let stranger = Keys::derive(&"x".repeat(40), "").expect("long enough");
    let foreign = Signer::new(&stranger).expect("derived").checkpoint(&log.database, None, now()).await;
    let mut foreign = foreign.expect("signed");
    log.store(&foreign).await;
    assert_eq!(log.intact(None).await.checkpoint, None);
    // One that names the key of this installation must be signed by it.
    foreign.head.number = 99;
    foreign.public_key.clone_from(&checkpoint.public_key);
    log.store(&foreign).await;
    assert!(matches!(log.verify(None).await, Err(AuditLogError::InvalidSignature)));
    // So must the file of a server.
    let file = CheckpointFile::in_folder(log.folder.path());
    assert_eq!(file.last(&log.signer).expect("missing"), None);
    file.append(&checkpoint).expect("written");
    assert_eq!(file.last(&log.signer).expect("read"), Some(checkpoint));
    file.append(&foreign).expect("written");
    assert!(matches!(file.last(&log.signer), Err(AuditLogError::InvalidSignature)));
}

async fn quarantines_rows_that_ade_did_not_write(log: Log) {
    // A copy of the last entry with other values, and its number if somebody gave it one.
    let copy = |body: &str, mac: &str, number: Option<&str>| {
        let (id, from) = (uuid::Uuid::now_v7(), log.numbered("= 10"));
        let (columns, values) =
            ("entry_id, at, actor, action, task_id, body, mac", "at, actor, action, task_id");
        let (number, is_chained) = (number.unwrap_or("NULL"), number.is_some());
        if log.database_name.is_none() {
            let insert = format!("INSERT INTO audit ({columns}, number, previous_hash, entry_hash)");
            let hash = if is_chained { "entry_hash" } else { "NULL" };
            return format!(
                "{insert} SELECT '{id}', {values}, {body}, {mac}, {number}, {hash}, {hash} FROM audit WHERE {from};"
            );
        }
        let entry = format!(
            "INSERT INTO audit ({columns}) SELECT '{id}', {values}, {body}, {mac} FROM audit WHERE {from};"
        );
        let place = "INSERT INTO audit_chain (number, at, entry_id, previous_hash, entry_hash)";
        let place = format!("{place} SELECT {number}, at, '{id}', 'x', 'y' FROM audit WHERE {from};");
        if is_chained { entry + &place } else { entry }
    };
    let edited = "replace(body, 'a reason', 'another')";
    let mut forged = vec![
        // Numbered by hand, behind the end of the chain.
        copy("body", "NULL", Some("11")),
        // Without a MAC, with a made-up one, and an authentic body under another id.
        copy("body", "NULL", None),
        copy(edited, "mac", None),
        copy("body", "mac", None),
        copy("'not JSON'", "'x'", None),
        copy("body", "'0011223344556677:00'", None),
        copy("body", "mac", Some("9000000000000000000")),
    ];
    if log.database_name.is_none() {
        // An id that cannot be an argument of a statement.
        let odd = |id: &str, number: &str| {
            format!(
                "INSERT INTO audit (entry_id, at, action, body, number) VALUES ('{id}' || char(0), 1, 'x', '{{}}', {number});"
            )
        };
        forged.extend([odd("x", "NULL"), odd("y", "9000000000000000002")]);
    } else {
        // The place of an authentic row.
        forged.push(copy("body", "NULL", None).replacen("(entry_id", "(insert_seq, entry_id", 1).replacen(
            "SELECT",
            "SELECT insert_seq,",
            1,
        ));
    }
    for sql in &forged {
        log.tamper(sql).await;
    }
    // Authentic entries are numbered as if nothing had happened.
    log.write(3).await;
    let VerifiedLog { head, .. } = log.intact(None).await;
    assert_eq!(head.number, 13);
    assert_eq!(log.database.quarantined_entries().await, Ok(forged.len() as u64));
    assert_eq!(log.database.has_unnumbered().await, Ok(false));
}

async fn keeps_numbered_rows_of_an_unknown_secret(log: Log) {
    // The secret was replaced, and the previous one was dropped before anything was written.
    let secret = "x".repeat(40);
    let replaced = log.reopen(Keys::derive(&secret, "").expect("long enough")).await;
    let said = log.try_append(&replaced).await.expect_err("an unknown key").to_string();
    assert!(said.contains(log.database.keys().id()) && said.contains("ADE_SECRET_PREVIOUS"), "{said}");
    let missing = SecretRegistration::MissingPrevious { key_id: log.database.keys().id().to_owned() };
    assert_eq!(replaced.register_secret().await, Ok(missing));
    assert_eq!(log.database.quarantined_entries().await, Ok(0));
    assert_eq!(log.intact(None).await.head.number, 10);
    // The chain goes on with the previous secret, and then also without it. On PostgreSQL the first entry was left without a number,
    // and on SQLite it was refused.
    let rotated = log.reopen(Keys::derive(&secret, SECRET).expect("long enough")).await;
    let last = async || rotated.audit_head().await.expect("read").number;
    log.append(&rotated, 1).await;
    let next = if log.database_name.is_some() { 12 } else { 11 };
    assert_eq!(last().await, next);
    assert_eq!(replaced.register_secret().await, Ok(SecretRegistration::Registered));
    log.append(&replaced, 1).await;
    assert_eq!(last().await, next + 1);
    // An invented key in a row behind them stops nothing.
    let last_number = format!("= (SELECT max(number) FROM {})", log.chain());
    log.tamper(&format!("UPDATE audit SET mac = 'ff' || mac WHERE {}", log.numbered(&last_number))).await;
    assert_eq!(replaced.register_secret().await, Ok(SecretRegistration::Registered));
    log.append(&replaced, 1).await;
    assert_eq!(last().await, next + 1, "in the place of the edited one");
    assert_eq!(log.database.quarantined_entries().await, Ok(1));
    // A process with an outdated secret says so.
    let outdated = log.try_append(&log.database).await;
    assert_eq!(outdated, Err(DatabaseError::Superseded(replaced.keys().id().to_owned())));
}

async fn ignores_incomplete_last_line_of_checkpoint_file(log: Log) {
    let file = CheckpointFile::in_folder(log.folder.path());
    let path = log.folder.path().join("audit-checkpoints.ndjson");
    let first = log.signer.checkpoint(&log.database, None, now()).await.expect("signed");
    log.write(1).await;
    let second = log.signer.checkpoint(&log.database, Some(&first), now()).await.expect("signed");
    // A crash may leave any part of a line.
    for kept in [None, Some(&first)] {
        for torn in [1, 20, 0] {
            let _ = fs::remove_file(&path);
            kept.iter().for_each(|kept| file.append(kept).expect("written"));
            let before = fs::read_to_string(&path).unwrap_or_default();
            file.append(&second).expect("written");
            let whole = fs::read_to_string(&path).expect("read");
            let end = if torn == 0 { before.len() + 1 } else { whole.len() - torn };
            fs::write(&path, &whole[..end]).expect("torn");
            assert_eq!(file.last(&log.signer).expect("ignored").as_ref(), kept);
            file.append(&second).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), whole);
            assert_eq!(file.last(&log.signer).expect("read").as_ref(), Some(&second));
        }
    }
    // The end of a long file suffices.
    let line = fs::read_to_string(&path).expect("read").lines().next_back().expect("a line").to_owned();
    fs::write(&path, format!("{line}\n").repeat(1_000)).expect("written");
    assert_eq!(file.last(&log.signer).expect("read"), Some(second));
    // Whatever else is no checkpoint is an error.
    for malformed in ["{}\n".to_owned(), format!("{line}\nx\n"), format!("x{}", "x".repeat(100_000))] {
        fs::write(&path, malformed).expect("written");
        assert!(matches!(file.last(&log.signer), Err(AuditLogError::Io(_))));
    }
}
