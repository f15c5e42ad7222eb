//! The linter, on planted keys and on sources without any.

mod calls;
mod exceptions;
mod files;
mod malformed;
mod planted;
mod sarif;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ade_catalog::Catalog;
use ade_keytool::lint::{Finding, Linter};
use jiff::civil::{Date, date};

const TODAY: Date = date(2026, 11, 19);

/// The catalogs that ADE ships.
static CATALOGS: LazyLock<Vec<Catalog>> = LazyLock::new(|| {
    let parse = |name: &str| {
        let file = root().join("crates/keyspace/catalogs").join(name).with_extension("toml");
        Catalog::parse(name, &fs::read_to_string(file).expect("readable")).expect("valid")
    };
    ["ade", "mediation", "mesh"].map(parse).into()
});

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn linter() -> Linter<'static> {
    Linter::new(&CATALOGS, TODAY)
}

fn check(path: &str, source: &str) -> Vec<Finding> {
    linter().check_source(Path::new(path), source).unwrap_or_else(|error| panic!("{error}"))
}

/// `line rule key` of each finding.
fn brief(path: &str, source: &str) -> Vec<String> {
    let findings = check(path, source);
    findings.iter().map(|found| format!("{} {} {}", found.line, found.rule, found.key)).collect()
}
