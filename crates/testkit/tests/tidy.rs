//! House rules that a compiler does not check: which room may depend on which, and that every file says what it is for.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Hard limit on the length of a source file; most stay below 400 lines.
const MAX_LINES: usize = 800;

/// The arrows, as in ARCHITECTURE.md: room → rooms it may depend on. A room is listed before it exists, so that its
/// first line of code already obeys.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("catalog", &[]),
    ("keyspace", &["catalog"]),
    ("keytool", &["catalog"]),
    ("store", &["domain", "keyspace", "catalog"]),
    ("runtime", &["domain", "keyspace", "catalog"]),
    ("executors", &["domain", "keyspace"]),
    ("app", &["store", "executors", "runtime", "domain", "keyspace"]),
    ("client", &["domain"]),
    (
        "server",
        &["app", "client", "store", "runtime", "executors", "domain", "keyspace", "keytool", "catalog"],
    ),
    ("bench", &["client", "store", "domain"]),
    (
        "cli",
        &[
            "bench",
            "server",
            "client",
            "app",
            "store",
            "runtime",
            "executors",
            "domain",
            "keyspace",
            "keytool",
            "catalog",
        ],
    ),
    ("testkit", &["store", "domain", "keyspace", "catalog", "client"]),
];

/// Rooms without I/O.
const PURE: &[&str] = &["domain", "catalog", "keyspace"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manifests() -> Vec<(String, toml::Table)> {
    let rooms = fs::read_dir(root().join("crates")).expect("readable");
    rooms
        .map(|room| room.expect("readable").path())
        .map(|room| {
            let name = room.file_name().expect("named").to_string_lossy().into_owned();
            let text = fs::read_to_string(room.join("Cargo.toml")).expect("every room has a manifest");
            (name, text.parse().expect("valid TOML"))
        })
        .collect()
}

/// What a manifest depends on besides its tests, for every target, by the name of the package.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
    let mut found = Vec::new();
    for table in tables.chain([manifest]) {
        for kind in ["dependencies", "build-dependencies"] {
            for (name, how) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
                let package = how.get("package").and_then(toml::Value::as_str);
                found.push(package.unwrap_or(name).to_owned());
            }
        }
    }
    found
}

/// The rooms among them.
fn rooms_of(manifest: &toml::Table) -> Vec<String> {
    let all = dependencies(manifest);
    all.iter().filter_map(|name| name.strip_prefix("ade-")).map(str::to_owned).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.ends_with("fixtures") {
            // Generated; their freshness is tested elsewhere.
        } else if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn arrows_go_one_way() {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for (room, manifest) in manifests() {
        let allowed =
            arrows.get(room.as_str()).unwrap_or_else(|| panic!("the room {room} has no row in ARROWS"));
        for other in rooms_of(&manifest) {
            assert!(allowed.contains(&other.as_str()), "{room} must not depend on {other}");
        }
    }
}

#[test]
fn the_table_of_arrows_has_no_cycle() {
    let mut left: Vec<(&str, &[&str])> = ARROWS.to_vec();
    while !left.is_empty() {
        let names: Vec<&str> = left.iter().map(|(room, _)| *room).collect();
        let before = left.len();
        left.retain(|(_, needs)| needs.iter().any(|need| names.contains(need)));
        assert!(left.len() < before, "a cycle among {names:?}");
    }
}

#[test]
fn the_test_kit_is_for_tests_only() {
    for (room, manifest) in manifests() {
        assert!(!rooms_of(&manifest).contains(&"testkit".to_owned()), "{room} ships the test kit");
    }
}

/// What measures peers is a workspace of its own, so that nothing of theirs can get into the binary.
#[test]
fn peers_stay_outside() {
    let root_manifest = fs::read_to_string(root().join("Cargo.toml")).expect("readable");
    let workspace: toml::Table = root_manifest.parse().expect("valid TOML");
    let exclude = workspace["workspace"]["exclude"].as_array().expect("a list");
    assert!(exclude.contains(&"peers".into()), "peers must be excluded from the workspace");
    for (room, manifest) in manifests() {
        assert!(!dependencies(&manifest).contains(&"ade-peers".to_owned()), "{room} depends on peers");
    }
}

#[test]
fn pure_rooms_have_no_runtime_no_driver_and_no_way_out() {
    let drivers = ["tokio", "redis", "sqlx", "axum", "reqwest", "rustix"];
    let ways_out = ["std::fs", "std::net", "std::process", "std::env", "std::thread", "std::io", "std::{"];
    for (room, manifest) in manifests().iter().filter(|(room, _)| PURE.contains(&room.as_str())) {
        for name in dependencies(manifest) {
            assert!(!drivers.contains(&name.as_str()), "{room} is pure and must not depend on {name}");
        }
        let mut files = Vec::new();
        sources(&root().join("crates").join(room).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("readable");
            for way in ways_out {
                assert!(!text.contains(way), "{} is in a pure room and must not use {way}", file.display());
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_for_and_stays_readable() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    sources(&root().join("peers/src"), &mut files);
    assert!(files.len() > 20, "the search found too little: {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        assert!(text.starts_with("//!"), "{} does not open with //! and its purpose", file.display());
        assert!(text.lines().count() <= MAX_LINES, "{} is longer than {MAX_LINES} lines", file.display());
    }
}

#[test]
fn every_room_keeps_the_house_s_lints() {
    for (room, manifest) in manifests() {
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints, Some(&toml::Value::Boolean(true)), "{room} does not inherit the workspace's lints");
    }
}

#[test]
fn the_first_command_of_a_newcomer_is_not_silent_while_it_builds() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("readable");
    let recipe = makefile.lines().skip_while(|line| !line.starts_with("run:")).skip(1);
    let recipe: Vec<&str> = recipe.take_while(|line| line.starts_with('\t')).collect();
    assert!(recipe.iter().any(|line| line.contains("cargo run")), "{recipe:?}");
    assert!(!recipe.iter().any(|line| line.contains("--quiet")), "{recipe:?}");
}
