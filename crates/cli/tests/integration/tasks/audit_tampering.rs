//! `ade audit verify` detects changes made to the audit log directly in its database and names the first bad entry.
//! Truncation and rewriting are detected with a checkpoint that was saved before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ade_testkit::server::{BOOTSTRAP_TOKEN, ServerBuilder};
use ade_testkit::wait::eventually;
use ade_testkit::{AdeServer, ApiClient};
use serde_json::json;
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const CHECKPOINT_EVERY_SECOND: &str = "[audit]\ncheckpoint_seconds = 1\n";

/// A server with four audit entries, and direct access to its database.
struct AuditLogFixture {
    ade: AdeServer,
    checkpoint: PathBuf,
}

impl AuditLogFixture {
    async fn new() -> Self {
        let ade = ServerBuilder::new(ADE).config(CHECKPOINT_EVERY_SECOND).start().expect("starts");
        let api = ApiClient::connect(&ade).await;
        for name in ["ann", "bob", "carol"] {
            let _ = api.post("/users", &json!({ "user_id": name })).await.expect_status(201);
        }
        let checkpoint = ade.folder().join("saved-checkpoints.ndjson");
        let log = Self { ade, checkpoint };
        // One entry for the first administrator, and three for the users above.
        log.wait_for_checkpoint(4);
        fs::copy(log.checkpoint_file(), &log.checkpoint).expect("copied");
        log
    }

    fn checkpoint_file(&self) -> PathBuf {
        self.ade.data().join("audit-checkpoints.ndjson")
    }

    /// Waits until the server has written a checkpoint of this many entries.
    fn wait_for_checkpoint(&self, entries: u64) {
        let has_all_entries = || {
            let text = fs::read_to_string(self.checkpoint_file()).unwrap_or_default();
            let last = text.lines().last().map(serde_json::from_str::<serde_json::Value>);
            let last = last.and_then(Result::ok).unwrap_or_default();
            match last.pointer("/head/number").and_then(serde_json::Value::as_u64).unwrap_or_default() {
                number if number == entries => Ok(()),
                other => Err(format!("{other} entries")),
            }
        };
        eventually("a checkpoint of all entries", Duration::from_secs(30), has_all_entries).expect("written");
    }

    /// Whether the server says that the log is not intact, and how often it found that.
    async fn is_degraded(&self) -> (bool, u64) {
        let read = |path: &str| {
            let url = format!("{}/{path}", self.ade.url());
            async { reqwest::get(url).await.expect("answered").text().await.expect("text") }
        };
        let metrics = read("metrics").await;
        let metric = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
        };
        let is_degraded = read("readyz").await.contains("\"degraded\"");
        assert_eq!(metric("ade_audit_mismatch"), u64::from(is_degraded), "{metrics}");
        (is_degraded, metric("ade_audit_mismatches_total"))
    }

    fn verify(&self, checkpoint: Option<&Path>) -> (i32, String) {
        let mut command = Command::new(ADE);
        command.args(["audit", "verify", "--server", &self.ade.url()]).env("ADE_TOKEN", BOOTSTRAP_TOKEN);
        command.env("XDG_CONFIG_HOME", self.ade.folder());
        command.args(checkpoint.iter().flat_map(|file| ["--checkpoint".as_ref(), file.as_os_str()]));
        let Output { status, stdout, stderr } = command.output().expect("runs");
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (status.code().expect("not killed"), said)
    }

    /// Runs SQL as the owner of the database, who can disable the triggers that protect the log.
    async fn tamper(&self, sql: &str) {
        let sql =
            format!("DROP TRIGGER IF EXISTS audit_no_update; DROP TRIGGER IF EXISTS audit_no_delete; {sql}");
        let file = self.ade.data().join("ade.sqlite3");
        let options =
            sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut connection)
            .await
            .expect("the owner may change it");
        connection.close().await.expect("closed");
    }

    #[track_caller]
    fn assert_tampered(&self, entry: u64, checkpoint: Option<&Path>) {
        let (code, said) = self.verify(checkpoint);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("the audit log was tampered with: entry {entry}:")), "{said}");
    }
}

/// Every kind of tampering, and both databases, are tested with the services.
#[tokio::test(flavor = "multi_thread")]
async fn verify_reports_tampering() {
    let log = AuditLogFixture::new().await;
    let kept = Some(log.checkpoint.as_path());
    let (code, said) = log.verify(kept);
    assert!(code == 0 && said.contains("4 entries") && said.contains("the checkpoint at entry 4"), "{said}");

    let rewrite = |from: &str, to: &str| {
        format!("UPDATE audit SET body = replace(body, '{from}', '{to}') WHERE number = 2")
    };
    // A wrong entry of the caller says nothing about the log.
    let api = ApiClient::connect(&log.ade).await;
    let unknown = format!("/audit/verify?number=2&entry_hash={}", "0".repeat(64));
    assert_eq!(api.get(&unknown).await.expect_status(200)["status"], "invalid");
    assert_eq!(log.is_degraded().await, (false, 0));

    log.tamper(&rewrite("user.create", "user.delete")).await;
    log.assert_tampered(2, None);
    assert_eq!(log.is_degraded().await, (true, 1));
    log.assert_tampered(2, None);
    // The alert is on record, once. A checkpoint of what follows the change does not end it.
    log.wait_for_checkpoint(5);
    assert_eq!(log.is_degraded().await, (true, 1));
    let reported = api.get("/audit/export?action=audit.mismatch").await.text();
    assert_eq!(reported.lines().count(), 1, "{reported}");
    assert!(reported.contains("audit.verify"), "{reported}");
    log.tamper(&rewrite("user.delete", "user.create")).await;
    assert_eq!(log.verify(kept).0, 0, "valid again after the change is undone");
    assert_eq!(log.is_degraded().await, (false, 1));

    // The server notices a truncation by its own checkpoints, and adds an entry about it: the third or the fourth is missing.
    log.tamper("DELETE FROM audit WHERE number > 2").await;
    for checkpoint in [None, kept] {
        let (code, said) = log.verify(checkpoint);
        assert!(code == 1 && said.contains("the audit log was tampered with: entry"), "{said}");
    }

    // A checkpoint with a wrong signature is rejected.
    let forged = fs::read_to_string(&log.checkpoint).expect("read").replace("\"number\":4", "\"number\":2");
    fs::write(&log.checkpoint, forged).expect("written");
    let (code, said) = log.verify(kept);
    assert!(code == 2 && said.contains("does not match the key that it names"), "{said}");
}
