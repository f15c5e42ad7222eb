//! `ade serve` creates a private data folder and warns about configuration that cannot work.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ade_testkit::server::ServerBuilder;

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

#[test]
fn missing_root_is_reported_and_does_not_prevent_start() {
    let parent = tempfile::tempdir().expect("a folder");
    let (existing, missing) = (parent.path().join("there"), parent.path().join("missing"));
    std::fs::create_dir(&existing).expect("made");
    let config = format!("[executors.files]\nroots = [{existing:?}, {missing:?}]\n");
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
