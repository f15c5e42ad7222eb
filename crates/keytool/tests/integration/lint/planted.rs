//! How many of the planted keys are found in all languages, and how much else is reported, also in the sources of our own
//! dependencies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ade_keytool::lint::Finding;
use ade_testkit::effort;

use super::{check, linter};

const MINIMUM: f64 = 0.95;
/// The client for Redis itself: its tests and examples have real keys, which no catalog of ours lists.
const REDIS_CLIENT: &str = "redis-";

/// Lines and rules, with how often each is expected or found.
type Places = BTreeMap<(usize, String), usize>;

fn planted_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lint");
    let files = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().contains("planted.")).collect();
    files.sort();
    files
}

/// What the comments of a file announce.
fn expected(source: &str) -> Places {
    let mut places = Places::new();
    for (number, line) in source.lines().enumerate() {
        let rules = line.split_once("want: ").map_or("", |(_, rules)| rules);
        for rule in rules.split(", ").filter(|rule| !rule.is_empty()) {
            *places.entry((number + 1, rule.trim().to_owned())).or_default() += 1;
        }
    }
    places
}

fn found(findings: &[Finding]) -> Places {
    let mut places = Places::new();
    for finding in findings {
        *places.entry((finding.line, finding.rule.to_string())).or_default() += 1;
    }
    places
}

fn total(places: &Places) -> usize {
    places.values().sum()
}

/// What is in both.
fn common(one: &Places, other: &Places) -> usize {
    one.iter().map(|(place, count)| (*count).min(other.get(place).copied().unwrap_or(0))).sum()
}

/// The sources of crates that cargo has downloaded: all of them in long runs, else those of a few that are full of texts
/// with colons.
fn dependencies() -> Vec<PathBuf> {
    let cargo = Path::new(env!("CARGO")).ancestors().find(|folder| folder.join("registry").is_dir());
    let cargo = cargo.map(Path::to_owned).or_else(home_of_cargo).expect("cargo has a home");
    let registries = fs::read_dir(cargo.join("registry/src")).expect("dependencies are downloaded");
    let registries = registries.map(|entry| entry.expect("readable").path());
    let crates = registries.flat_map(|folder| fs::read_dir(folder).expect("readable"));
    let mut crates: Vec<PathBuf> = crates.map(|entry| entry.expect("readable").path()).collect();
    let few =
        ["http-", "hyper-", "jiff-", "url-", "tracing-", "clap_builder-", "tree-sitter-python-", "redis-"];
    let is_chosen = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        effort::is_soak() || few.iter().any(|start| name.starts_with(start))
    };
    crates.retain(is_chosen);
    crates.sort();
    crates
}

#[expect(clippy::disallowed_methods, reason = "tests find the downloaded crates where cargo has them")]
fn home_of_cargo() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

#[test]
fn precision_and_recall_are_high_in_all_languages() {
    let (mut planted, mut correct, mut reported) = (0, 0, 0);
    let mut wrong = Vec::new();
    for file in planted_files() {
        let source = fs::read_to_string(&file).expect("readable");
        let name = file.file_stem().expect("a name").to_string_lossy();
        let findings = check(&name, &source);
        let (expected, found) = (expected(&source), found(&findings));
        for (place, count) in &expected {
            let missing = count.saturating_sub(found.get(place).copied().unwrap_or(0));
            wrong.extend((0..missing).map(|_| format!("{name}:{}: missed {}", place.0, place.1)));
        }
        for finding in &findings {
            if !expected.contains_key(&(finding.line, finding.rule.to_string())) {
                wrong.push(format!("{name}:{}: wrong {} {}", finding.line, finding.rule, finding.key));
            }
        }
        planted += total(&expected);
        reported += total(&found);
        correct += common(&expected, &found);
    }
    let report = linter().check_paths(&dependencies());
    let is_of_client =
        |finding: &&Finding| finding.path.split('/').any(|part| part.starts_with(REDIS_CLIENT));
    let (of_client, others): (Vec<&Finding>, Vec<&Finding>) = report.findings.iter().partition(is_of_client);
    wrong.extend(
        others.iter().map(|found| format!("{}:{}: {} {}", found.path, found.line, found.rule, found.key)),
    );
    let (recall, precision) = (ratio(correct, planted), ratio(correct, reported + others.len()));
    println!(
        "{correct} of {planted} planted findings; {} other reports, {} of them in {} files of dependencies ({} more in the Redis client)",
        reported - correct + others.len(),
        others.len(),
        report.files,
        of_client.len(),
    );
    println!("recall {recall:.3}, precision {precision:.3}");
    wrong.iter().for_each(|wrong| println!("  {wrong}"));
    assert!(planted >= 100 && report.files > 200, "{planted} planted, {} files", report.files);
    assert!(
        recall >= MINIMUM && precision >= MINIMUM,
        "recall {recall:.3}, precision {precision:.3}: {wrong:#?}"
    );
    assert!(of_client.len() > 50, "the keys in the tests of the Redis client are found");
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
