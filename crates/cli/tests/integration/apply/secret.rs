//! The secret of an installation: a process without it, or with another one, refuses to start and says what to do. A replaced secret
//! still verifies what was written with the previous one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ade_testkit::server::{SECRET, ServerBuilder};
use ade_testkit::wait::until;
use ade_testkit::{AdeServer, ApiClient, Deployment};
use serde_json::json;

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const NEW_SECRET: &str = "another-secret-of-the-test-installation";
/// Generous: only a hang reaches it, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a process that must refuse to start; returns what it says.
fn refused(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(ADE);
    command.args(arguments).env_clear().env("NO_COLOR", "1").envs(variables.iter().copied());
    let Output { status, stderr, .. } = command.current_dir(folder).output().expect("runs");
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(!said.contains(SECRET) && !said.contains(NEW_SECRET), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_one_database_need_one_secret() {
    let house = Deployment::distributed(ADE, 1);
    let (redis, postgres) =
        (house.redis.as_ref().expect("Redis").url(), house.postgres.as_ref().expect("PostgreSQL").url("ade"));
    let blobs = house.server().blobs().to_string_lossy().into_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let stores = ["--redis", &redis, "--postgres", &postgres];
    for process in
        [["serve", "--listen", "127.0.0.1:0", "--data", "two"].as_slice(), &["worker", "--data", "three"]]
    {
        let arguments = [process, stores.as_slice()].concat();
        let refused = |secret: &[(&str, &str)]| {
            refused(
                folder.path(),
                &arguments,
                &[[("ADE_SERVER_BLOBS", blobs.as_str())].as_slice(), secret].concat(),
            )
        };
        let said = refused(&[]);
        assert!(said.contains("ADE_SECRET is not set") && said.contains("openssl rand -hex 32"), "{said}");
        let said = refused(&[("ADE_SECRET", "short")]);
        assert!(said.contains("at least 32"), "{said}");
        let said = refused(&[("ADE_SECRET", NEW_SECRET)]);
        assert!(said.contains("another secret") && said.contains("ADE_SECRET_PREVIOUS"), "{said}");
    }
    // A server replaces the secret, and knows the previous one; the other one still runs with that.
    let setup = ServerBuilder::new(ADE).env("ADE_SERVER_BLOBS", &blobs).env("ADE_SECRET", NEW_SECRET);
    let setup =
        setup.env("ADE_SECRET_PREVIOUS", SECRET).arg("--redis").arg(&redis).arg("--postgres").arg(&postgres);
    let replaced = setup.start().expect("starts");
    let (before, after) = (ApiClient::connect(house.server()).await, ApiClient::connect(&replaced).await);
    for (api, name) in [(&before, "ann"), (&after, "bob")] {
        let _ = api.post("/users", &json!({ "user_id": name })).await.expect_status(201);
    }
    let numbered = || async {
        let export = after.get("/audit/export?action=user.create").await.text();
        if export.contains("\"ann\"") && export.contains("\"bob\"") { Ok(()) } else { Err(export) }
    };
    until("entries of both secrets are numbered", TIMEOUT, numbered).await.expect("in time");
    let verdict = after.verify_audit().await;
    assert_eq!((&verdict["valid"], &verdict["quarantined"]), (&json!(true), &json!(0)), "{verdict}");
    let said = refused(
        folder.path(),
        &[["worker", "--data", "three"].as_slice(), stores.as_slice()].concat(),
        &[("ADE_SERVER_BLOBS", &blobs), ("ADE_SECRET", SECRET)],
    );
    assert!(said.contains("another secret"), "the old secret is replaced: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_server_keeps_its_secret_in_a_private_file() {
    let ade = AdeServer::start(ADE).expect("starts");
    let file = ade.data().join("secret");
    assert_eq!(fs::metadata(&file).expect("created").permissions().mode() & 0o777, 0o600);
    let first = fs::read_to_string(&file).expect("read");
    let _ = ApiClient::connect(&ade).await.verify_audit().await;
    ade.stop().expect("stopped");
    // Without its file, the database of the data folder does not count any more.
    fs::rename(&file, ade.data().join("kept")).expect("renamed");
    let said = refused(ade.folder(), &["serve", "--listen", "127.0.0.1:0", "--data", "data"], &[]);
    assert!(said.contains("another secret") && said.contains("secret.previous"), "{said}");
    // The refused start has created a new secret: with the old one as the previous one, it counts.
    let previous = ade.data().join("secret.previous");
    fs::rename(ade.data().join("kept"), &previous).expect("renamed");
    ade.start_again().expect("starts");
    // The previous one is still needed while the log ends with what it wrote.
    ade.stop().expect("stopped");
    fs::rename(&previous, ade.data().join("kept")).expect("renamed");
    let said = refused(ade.folder(), &["serve", "--listen", "127.0.0.1:0", "--data", "data"], &[]);
    assert!(said.contains("previous secret") && said.contains("ADE_SECRET_PREVIOUS"), "{said}");
    fs::rename(ade.data().join("kept"), &previous).expect("renamed");
    ade.start_again().expect("starts");
    assert_ne!(fs::read_to_string(&file).expect("read"), first);
    let api = ApiClient::connect(&ade).await;
    let _ = api.post("/users", &json!({ "user_id": "ann" })).await.expect_status(201);
    assert_eq!(api.verify_audit().await["valid"], true);
}
