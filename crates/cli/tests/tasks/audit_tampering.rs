//! Whatever is done to the audit log directly in its database, `ade audit verify` finds and names it; what is cut off or written
//! anew behind a checkpoint that somebody kept, it finds beside that checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ade_testkit::ade::{Setup, TOKEN};
use ade_testkit::wait::eventually;
use ade_testkit::{Ade, Api, Postgres, Redis};
use serde_json::json;
use sqlx::Connection;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const CONFIG: &str = "[audit]\ncheckpoint_seconds = 1\n";

/// A server with some entries, and a way past it into its database.
struct Log {
    ade: Ade,
    postgres: Option<Postgres>,
    _redis: Option<Redis>,
    kept: PathBuf,
}

impl Log {
    async fn of(ade: Ade, postgres: Option<Postgres>, redis: Option<Redis>) -> Self {
        let api = Api::of(&ade).await;
        for name in ["ann", "bob", "carol"] {
            let _ = api.post("/users", &json!({ "user_id": name })).await.expect(201);
        }
        let written = ade.data().join("audit-checkpoints.ndjson");
        let entries = || {
            let text = fs::read_to_string(&written).unwrap_or_default();
            let last = text.lines().last().map(serde_json::from_str::<serde_json::Value>);
            let last = last.and_then(Result::ok).unwrap_or_default();
            last.pointer("/head/number").and_then(serde_json::Value::as_u64).unwrap_or_default()
        };
        // The first administrator and three others.
        let all = || match entries() {
            4 => Ok(()),
            other => Err(format!("{other} entries")),
        };
        eventually("a checkpoint of all entries", Duration::from_secs(30), all).expect("written");
        let kept = ade.folder().join("kept.ndjson");
        fs::copy(&written, &kept).expect("copied");
        Self { ade, postgres, _redis: redis, kept }
    }

    fn verify(&self, checkpoint: Option<&Path>) -> (i32, String) {
        let mut command = Command::new(ADE);
        command.args(["audit", "verify", "--server", &self.ade.url()]).env("ADE_TOKEN", TOKEN);
        command.env("XDG_CONFIG_HOME", self.ade.folder());
        command.args(checkpoint.iter().flat_map(|file| ["--checkpoint".as_ref(), file.as_os_str()]));
        let Output { status, stdout, stderr } = command.output().expect("runs");
        let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        (status.code().expect("not killed"), said)
    }

    /// As the owner of the database could, who switches the triggers off first.
    async fn tamper(&self, sql: &str) {
        if let Some(server) = &self.postgres {
            let sql = format!("ALTER TABLE audit DISABLE TRIGGER USER; {sql}");
            server.psql("ade", &sql).expect("its owner");
            return;
        }
        let sql =
            format!("DROP TRIGGER IF EXISTS audit_unchanged; DROP TRIGGER IF EXISTS audit_undeleted; {sql}");
        let file = self.ade.data().join("record.sqlite3");
        let options =
            sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
        let mut link = sqlx::SqliteConnection::connect_with(&options).await.expect("opens");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut link).await.expect("its owner");
        link.close().await.expect("closed");
    }

    #[track_caller]
    fn names(&self, entry: u64, checkpoint: Option<&Path>) {
        let (code, said) = self.verify(checkpoint);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("the audit log was tampered with: entry {entry}:")), "{said}");
    }
}

async fn whatever_is_done_is_named(log: Log) {
    let kept = Some(log.kept.as_path());
    let (code, said) = log.verify(kept);
    assert!(code == 0 && said.contains("4 entries") && said.contains("leads through entry 4"), "{said}");

    let rewrite = |from: &str, to: &str| {
        format!("UPDATE audit SET body = replace(body, '{from}', '{to}') WHERE number = 2")
    };
    log.tamper(&rewrite("user.create", "user.delete")).await;
    log.names(2, None);
    log.tamper(&rewrite("user.delete", "user.create")).await;
    assert_eq!(log.verify(kept).0, 0, "as it was");

    log.tamper("UPDATE audit SET actor = 'mallory' WHERE number = 3").await;
    log.names(3, None);
    log.tamper("UPDATE audit SET actor = NULL WHERE number = 3").await;

    let swap = "UPDATE audit SET number = 99 WHERE number = 2; UPDATE audit SET number = 2 WHERE number = 3; \
                UPDATE audit SET number = 3 WHERE number = 99";
    log.tamper(swap).await;
    log.names(2, None);
    log.tamper(swap).await;
    assert_eq!(log.verify(kept).0, 0, "as it was");

    log.tamper("DELETE FROM audit WHERE number > 2").await;
    assert_eq!(log.verify(None).0, 0, "what is left is whole by itself");
    log.names(3, kept);
    // Whoever cuts it off and lets it grow again has written another one.
    let api = Api::of(&log.ade).await;
    for name in ["dave", "erin"] {
        let _ = api.post("/users", &json!({ "user_id": name })).await.expect(201);
    }
    let grown = || {
        let (_, said) = log.verify(None);
        if said.contains("4 entries") { Ok(()) } else { Err(said) }
    };
    eventually("the log to grow again", Duration::from_secs(30), grown).expect("numbered");
    log.names(4, kept);
    log.tamper("DELETE FROM audit WHERE number = 1").await;
    log.names(1, None);

    // A checkpoint that nobody signed is none.
    let forged = fs::read_to_string(&log.kept).expect("read").replace("\"number\":4", "\"number\":2");
    fs::write(&log.kept, forged).expect("written");
    let (code, said) = log.verify(kept);
    assert!(code == 2 && said.contains("not signed by the key that it names"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_data_folder() {
    let ade = Setup::new(ADE).config(CONFIG).start().expect("starts");
    whatever_is_done_is_named(Log::of(ade, None, None).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    postgres.create_database("ade").expect("made");
    let setup = Setup::new(ADE).config(CONFIG).argument("--redis").argument(&redis.url());
    let ade = setup.argument("--postgres").argument(&postgres.url("ade")).start().expect("starts");
    whatever_is_done_is_named(Log::of(ade, Some(postgres), Some(redis)).await).await;
}
