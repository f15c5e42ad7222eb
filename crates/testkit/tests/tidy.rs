//! Project rules that the compiler does not check: dependencies between crates, file headers, file length.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Hard limit of a source file; most have fewer than 400 lines.
const MAX_LINES: usize = 800;

/// Allowed dependencies, as in ARCHITECTURE.md. A planned crate is listed before it exists.
const DEPENDENCIES: &[(&str, &[&str])] = &[
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

/// Crates without I/O.
const PURE_CRATES: &[&str] = &["domain", "catalog", "keyspace"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn manifests() -> Vec<(String, toml::Table)> {
    let folders = fs::read_dir(root().join("crates")).expect("readable");
    folders
        .map(|folder| folder.expect("readable").path())
        .map(|folder| {
            let name = folder.file_name().expect("named").to_string_lossy().into_owned();
            let text = fs::read_to_string(folder.join("Cargo.toml")).expect("every crate has a manifest");
            (name, text.parse().expect("valid TOML"))
        })
        .collect()
}

/// Package names of all dependencies and build dependencies, for every target.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table);
    let mut found = Vec::new();
    for table in tables.chain([manifest]) {
        for kind in ["dependencies", "build-dependencies"] {
            for (name, dependency) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
                let package = dependency.get("package").and_then(toml::Value::as_str);
                found.push(package.unwrap_or(name).to_owned());
            }
        }
    }
    found
}

/// The dependencies within the project.
fn project_dependencies(manifest: &toml::Table) -> Vec<String> {
    let all = dependencies(manifest);
    all.iter().filter_map(|name| name.strip_prefix("ade-")).map(str::to_owned).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.ends_with("fixtures") {
            // Generated: other tests check that they are fresh.
        } else if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn crates_have_only_allowed_dependencies() {
    let table: BTreeMap<&str, &[&str]> = DEPENDENCIES.iter().copied().collect();
    for (name, manifest) in manifests() {
        let allowed =
            table.get(name.as_str()).unwrap_or_else(|| panic!("the crate {name} has no row in DEPENDENCIES"));
        for other in project_dependencies(&manifest) {
            assert!(allowed.contains(&other.as_str()), "{name} must not depend on {other}");
        }
    }
}

#[test]
fn allowed_dependencies_have_no_cycle() {
    let mut remaining: Vec<(&str, &[&str])> = DEPENDENCIES.to_vec();
    while !remaining.is_empty() {
        let names: Vec<&str> = remaining.iter().map(|(name, _)| *name).collect();
        let before = remaining.len();
        remaining.retain(|(_, allowed)| allowed.iter().any(|other| names.contains(other)));
        assert!(remaining.len() < before, "a cycle among {names:?}");
    }
}

#[test]
fn test_kit_is_never_shipped() {
    for (name, manifest) in manifests() {
        let dependencies = project_dependencies(&manifest);
        assert!(!dependencies.contains(&"testkit".to_owned()), "{name} ships the test kit");
    }
}

/// `peers` is a workspace of its own, so that its dependencies never reach the shipped binary.
#[test]
fn peers_stay_outside_the_workspace() {
    let root_manifest = fs::read_to_string(root().join("Cargo.toml")).expect("readable");
    let workspace: toml::Table = root_manifest.parse().expect("valid TOML");
    let exclude = workspace["workspace"]["exclude"].as_array().expect("a list");
    assert!(exclude.contains(&"peers".into()), "peers must be excluded from the workspace");
    for (name, manifest) in manifests() {
        assert!(!dependencies(&manifest).contains(&"ade-peers".to_owned()), "{name} depends on peers");
    }
}

#[test]
fn pure_crates_do_no_io() {
    let drivers = ["tokio", "redis", "sqlx", "axum", "reqwest", "rustix"];
    let io_modules = ["std::fs", "std::net", "std::process", "std::env", "std::thread", "std::io", "std::{"];
    for (name, manifest) in manifests().iter().filter(|(name, _)| PURE_CRATES.contains(&name.as_str())) {
        for dependency in dependencies(manifest) {
            let is_driver = drivers.contains(&dependency.as_str());
            assert!(!is_driver, "{name} is pure and must not depend on {dependency}");
        }
        let mut files = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("readable");
            for module in io_modules {
                let path = file.display();
                assert!(!text.contains(module), "{path} is in a pure crate and must not use {module}");
            }
        }
    }
}

#[test]
fn files_have_a_header_and_a_limited_length() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    sources(&root().join("peers/src"), &mut files);
    assert!(files.len() > 20, "too few files found: {files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("readable");
        assert!(text.starts_with("//!"), "{} does not start with a //! header", file.display());
        assert!(text.lines().count() <= MAX_LINES, "{} is longer than {MAX_LINES} lines", file.display());
    }
}

#[test]
fn crates_inherit_workspace_lints() {
    for (name, manifest) in manifests() {
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints, Some(&toml::Value::Boolean(true)), "{name} does not inherit the workspace lints");
    }
}

#[test]
fn make_run_shows_build_progress() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("readable");
    let recipe = makefile.lines().skip_while(|line| !line.starts_with("run:")).skip(1);
    let recipe: Vec<&str> = recipe.take_while(|line| line.starts_with('\t')).collect();
    assert!(recipe.iter().any(|line| line.contains("cargo run")), "{recipe:?}");
    assert!(!recipe.iter().any(|line| line.contains("--quiet")), "{recipe:?}");
}
