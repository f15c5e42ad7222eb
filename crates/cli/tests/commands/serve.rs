//! What whoever starts a server finds: a data folder that nobody else reads, and a word about what cannot work as it is configured.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ade_testkit::ade::Setup;

const ADE: &str = env!("CARGO_BIN_EXE_ade");

fn mode(folder: &Path) -> u32 {
    folder.metadata().expect("there").permissions().mode() & 0o777
}

#[test]
fn a_data_folder_that_is_made_is_its_owner_s_alone() {
    for setup in [Setup::new(ADE), Setup::new(ADE).argument("--demo")] {
        let ade = setup.start().expect("starts");
        assert_eq!(mode(&ade.data()), 0o700, "{:?}", ade.data());
    }
}

#[test]
fn a_root_that_is_not_there_is_told_and_keeps_nothing_from_starting() {
    let around = tempfile::tempdir().expect("a folder");
    let (there, away) = (around.path().join("there"), around.path().join("away"));
    std::fs::create_dir(&there).expect("made");
    let config = format!("[executors.files]\nroots = [{there:?}, {away:?}]\n");
    let ade = Setup::new(ADE).config(&config).start().expect("starts");
    let told = ade.process().lines_with("file root");
    assert_eq!(told.len(), 1, "{told:?}");
    let is_told = |line: &String| line.contains(&format!("{} does not exist", away.display()));
    assert!(told.iter().all(is_told), "{told:?}");

    let file = around.path().join("ade.toml");
    std::fs::write(&file, &config).expect("written");
    let shown =
        Command::new(ADE).arg("config").arg("--config").arg(&file).env_clear().output().expect("runs");
    let (table, warned) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(shown.status.success(), "{warned}");
    let fault = format!("{} does not exist", away.display());
    assert!(table.contains(&fault) && warned.contains(&fault), "{table}{warned}");
    assert_eq!(warned.matches("does not exist").count(), 1, "{warned}");
}
