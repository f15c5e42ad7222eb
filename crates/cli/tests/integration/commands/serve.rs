//! `ade serve` creates a private data folder and warns about configuration that cannot work.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ade_testkit::server::ServerBuilder;
use ade_testkit::{ApiClient, Postgres, Redis};

const ADE: &str = env!("CARGO_BIN_EXE_ade");

fn mode(folder: &Path) -> u32 {
    folder.metadata().expect("exists").permissions().mode() & 0o777
}

#[test]
fn data_folder_is_private_to_its_owner() {
    for setup in [ServerBuilder::new(ADE), ServerBuilder::new(ADE).arg("--demo")] {
        let ade = setup.start().expect("starts");
        assert_eq!(mode(&ade.data()), 0o700, "{:?}", ade.data());
    }
}

/// The passwords of a demo are public, so its database serves demos only.
#[tokio::test]
async fn demo_has_a_postgres_database_of_its_own() {
    let (redis, postgres) = (Redis::start().expect("starts"), Postgres::start().expect("starts"));
    let [demo, plain] = ["demo", "plain"].map(|name| postgres.create_database(name).expect("created"));
    let setup = |database: &str| {
        ServerBuilder::new(ADE).arg("--redis").arg(&redis.url()).arg("--postgres").arg(database)
    };
    let ade = setup(&demo).arg("--demo").start().expect("starts");
    let users = ApiClient::connect(&ade).await.get("/users").await.expect_status(200);
    assert!(users.to_string().contains("erin"), "{users}");
    drop(ade);
    drop(setup(&plain).start().expect("starts"));
    for (database, flag) in [(&demo, None), (&plain, Some("--demo"))] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut serve = Command::new(ADE);
        serve.env("ADE_SECRET", ade_testkit::server::SECRET);
        serve.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--redis",
            &redis.url(),
            "--postgres",
            database,
            "--data",
        ]);
        let refused = serve.arg(folder.path().join("data")).args(flag).output().expect("runs");
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && error.contains("demo; "), "{error}");
    }
}

#[test]
fn missing_root_is_reported_and_does_not_prevent_start() {
    let parent = tempfile::tempdir().expect("a folder");
    let (existing, missing) = (parent.path().join("there"), parent.path().join("missing"));
    std::fs::create_dir(&existing).expect("made");
    let config = format!(
        "[executors.files.roots.here]\npath = {existing:?}\n[executors.files.roots.gone]\npath = {missing:?}\n"
    );
    let ade = ServerBuilder::new(ADE).config(&config).start().expect("starts");
    let logged = ade.process().log_lines_with("file root");
    assert_eq!(logged.len(), 1, "{logged:?}");
    let names_root = |line: &String| line.contains(&format!("{} does not exist", missing.display()));
    assert!(logged.iter().all(names_root), "{logged:?}");

    let file = parent.path().join("ade.toml");
    std::fs::write(&file, &config).expect("written");
    let shown =
        Command::new(ADE).arg("config").arg("--config").arg(&file).env_clear().output().expect("runs");
    let (table, warned) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(shown.status.success(), "{warned}");
    let fault = format!("{} does not exist", missing.display());
    assert!(table.contains(&fault) && warned.contains(&fault), "{table}{warned}");
    assert_eq!(warned.matches("does not exist").count(), 1, "{warned}");
}

#[test]
fn open_data_folder_is_closed_to_others_with_a_warning() {
    let ade = ServerBuilder::new(ADE).start().expect("starts");
    let open_files = || -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(ade.data()).expect("readable").map(|entry| entry.expect("readable").path());
        entries.filter(|path| mode(path) & 0o077 != 0).collect()
    };
    assert_eq!((open_files(), mode(&ade.data())), (Vec::new(), 0o700));
    ade.stop().expect("stops");
    let (folder, database) = (ade.data(), ade.data().join("ade.sqlite3"));
    for (path, mode) in [(&folder, 0o755), (&database, 0o644)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("changed");
    }
    ade.start_again().expect("starts");
    assert_eq!((open_files(), mode(&ade.data())), (Vec::new(), 0o700));
    let warned = ade.process().log_lines_with("was open to other users");
    assert_eq!(warned.len(), 2, "{warned:?}");
}
