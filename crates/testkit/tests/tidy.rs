//! Project rules that the compiler does not check: dependencies between crates and modules, file headers, file length, paths in
//! documents, and words that the project avoids.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::collections::{BTreeMap, BTreeSet};
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
    ("client", &[]),
    ("config", &["store", "domain"]),
    ("dashboard", &["client", "domain"]),
    (
        "server",
        &[
            "app",
            "client",
            "config",
            "dashboard",
            "store",
            "runtime",
            "executors",
            "domain",
            "keyspace",
            "keytool",
            "catalog",
        ],
    ),
    ("bench", &["client", "store", "domain", "keyspace", "keytool"]),
    (
        "cli",
        &[
            "bench",
            "server",
            "client",
            "config",
            "app",
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

/// All files below a folder with one of the extensions, sorted.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("readable").path();
            if path.ends_with("fixtures") || path.ends_with("target") {
                // Generated: other tests check that fixtures are fresh.
            } else if path.is_dir() {
                pending.push(path);
            } else if path
                .extension()
                .is_some_and(|actual| extensions.iter().any(|extension| actual == *extension))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The guides and references, and the documents in the root folder.
fn documents() -> Vec<PathBuf> {
    let in_root = fs::read_dir(root()).expect("readable").map(|entry| entry.expect("readable").path());
    let in_root = in_root.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut found: Vec<PathBuf> = in_root.chain(files(&root().join("docs"), &["md"])).collect();
    found.sort();
    found
}

/// `path:line`, relative to the root folder.
fn place(file: &Path, line: usize) -> String {
    format!("{}:{line}", file.strip_prefix(root()).unwrap_or(file).display())
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

/// Fails if some of these depend on each other in a circle.
fn assert_no_cycle(mut dependencies: BTreeMap<String, BTreeSet<String>>) {
    while !dependencies.is_empty() {
        let names: Vec<String> = dependencies.keys().cloned().collect();
        dependencies.retain(|_, others| names.iter().any(|name| others.contains(name)));
        assert!(dependencies.len() < names.len(), "a cycle among {names:?}");
    }
}

#[test]
fn examples_in_documentation_are_run() {
    for (name, manifest) in manifests() {
        let doctest = manifest.get("lib").and_then(|lib| lib.get("doctest")).and_then(toml::Value::as_bool);
        if doctest != Some(false) {
            continue;
        }
        for file in files(&root().join("crates").join(&name).join("src"), &["rs"]) {
            let text = fs::read_to_string(&file).expect("readable");
            for (number, line) in text.lines().map(str::trim_start).enumerate() {
                let is_example = line.starts_with("//") && line.contains("```");
                assert!(!is_example, "{}: remove `doctest = false` of {name}", place(&file, number + 1));
            }
        }
    }
}

#[test]
fn allowed_dependencies_have_no_cycle() {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_no_cycle(
        DEPENDENCIES.iter().map(|(name, allowed)| ((*name).to_owned(), owned(allowed))).collect(),
    );
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|character: char| !character.is_alphanumeric() && character != '_');
    words.filter(|word| !word.is_empty())
}

/// The top-level modules of `app` form layers. A name that `lib.rs` exports counts as its module.
#[test]
fn modules_of_app_have_no_cycle() {
    let folder = root().join("crates/app/src");
    let lib = fs::read_to_string(folder.join("lib.rs")).expect("readable");
    let mut module_of: BTreeMap<&str, &str> = BTreeMap::new();
    for statement in lib.split(';') {
        if let Some((_, module)) = statement.rsplit_once("mod ") {
            module_of.insert(module, module);
        }
        if let Some((module, names)) =
            statement.split_once("pub use ").and_then(|(_, path)| path.split_once("::"))
        {
            module_of.extend(words(names).map(|name| (name, module)));
        }
    }
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files(&folder, &["rs"]) {
        let path = file.strip_prefix(&folder).expect("below the folder").to_string_lossy().into_owned();
        let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let text = fs::read_to_string(&file).expect("readable");
        let imported = imports.entry(module.to_owned()).or_default();
        for path in text.split("crate::").skip(1) {
            let is_end =
                |character| if path.starts_with('{') { character == '}' } else { ":;( ".contains(character) };
            let names = path.split(is_end).next().unwrap_or_default();
            let modules = words(names).filter_map(|name| module_of.get(name));
            imported.extend(modules.filter(|other| **other != module).map(|other| (*other).to_owned()));
        }
    }
    assert!(imports.len() > 10 && imports["rules"].contains("tasks"), "imports not found: {imports:?}");
    assert_no_cycle(imports);
}

/// Client commands must not need the server: only the commands that run one, or work on its data, import it.
#[test]
fn only_commands_of_the_operator_import_the_server() {
    let folder = root().join("crates/cli/src");
    let mut importers = files(&folder, &["rs"]);
    importers.retain(|file| fs::read_to_string(file).expect("readable").contains("ade_server"));
    assert_eq!(
        importers,
        ["commands/admin.rs", "commands/rebuild.rs", "commands/serve.rs", "commands/worker.rs"]
            .map(|name| folder.join(name))
    );
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
    let drivers = ["tokio", "redis", "rusqlite", "sqlx", "axum", "reqwest", "rustix"];
    let io_modules = ["std::fs", "std::net", "std::process", "std::env", "std::thread", "std::io", "std::{"];
    for (name, manifest) in manifests().iter().filter(|(name, _)| PURE_CRATES.contains(&name.as_str())) {
        for dependency in dependencies(manifest) {
            let is_driver = drivers.contains(&dependency.as_str());
            assert!(!is_driver, "{name} is pure and must not depend on {dependency}");
        }
        for file in files(&root().join("crates").join(name).join("src"), &["rs"]) {
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
    let sources =
        [files(&root().join("crates"), &["rs"]), files(&root().join("peers/src"), &["rs"])].concat();
    assert!(sources.len() > 20, "too few files found: {sources:?}");
    for file in sources {
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

/// Whether a code span names a file or folder of the repository. Source files may be given without their first folders.
fn is_repository_path(text: &str) -> bool {
    let is_plain =
        text.chars().all(|character| character.is_ascii_alphanumeric() || "/._-".contains(character));
    let is_below = |folders: &[&str]| folders.iter().any(|folder| text.starts_with(folder));
    let mut segments = text.split('/');
    let is_in_crate = segments.nth(1).is_some_and(|segment| ["src", "tests", "catalogs"].contains(&segment));
    is_plain
        && !text.starts_with(['/', '.'])
        && (is_below(&["crates/", "docs/", "peers/", "scripts/"]) || is_in_crate || is_source_file(text))
}

fn is_source_file(text: &str) -> bool {
    [".rs", ".lua", ".sql"]
        .iter()
        .any(|extension| text.strip_suffix(extension).is_some_and(|name| !name.is_empty()))
}

/// Code spans and link targets outside fenced blocks: line, text, whether it is a link.
fn mentions(text: &str) -> Vec<(usize, String, bool)> {
    let mut is_fenced = false;
    let without_fences: Vec<&str> = text
        .lines()
        .map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_fenced ^= is_fence;
            if is_fence || is_fenced { "" } else { line }
        })
        .collect();
    let text = without_fences.join("\n");
    let mut found = Vec::new();
    let mut line = 1;
    // Every second part is a code span; a span may continue on the next line.
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 1 {
            found.push((line, part.to_owned(), false));
        }
        line += part.matches('\n').count();
    }
    for (number, line) in without_fences.iter().enumerate() {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(|target| (number + 1, target.to_owned(), true)));
    }
    found
}

#[test]
fn paths_in_documents_exist() {
    let sources: Vec<PathBuf> = ["crates", "peers"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), &["rs", "lua", "sql"]))
        .collect();
    let exists = |document: &Path, text: &str, is_link: bool| {
        let folder = document.parent().expect("a folder");
        if is_link {
            return folder.join(text.split('#').next().unwrap_or_default()).exists();
        }
        let is_source = is_source_file(text) && sources.iter().any(|source| source.ends_with(text));
        is_source || root().join(text).exists() || root().join("crates").join(text).exists()
    };
    let is_external = |target: &str| target.contains("://") || target.starts_with('#');
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("readable");
        for (line, mention, is_link) in mentions(&text) {
            let is_checked = if is_link { !is_external(&mention) } else { is_repository_path(&mention) };
            if is_checked && !exists(&document, &mention, is_link) {
                missing.push(format!("{}: {mention}", place(&document, line)));
            }
        }
    }
    assert!(missing.is_empty(), "{} paths do not exist:\n  {}", missing.len(), missing.join("\n  "));
}

/// Identifiers and phrases that the project avoids, with what to use instead. The bar keeps this file from matching and is not
/// part of the term. A phrase (lower case) matches in any case and also in identifiers, where underscores separate the words.
/// A term with a capital or a bracket matches exactly; one that ends with an underscore matches the start of an identifier.
const AVOIDED: &[(&str, &str)] = &[
    ("De|ed", "TaskAction, command"),
    ("Ve|rb", "TaskCommand"),
    ("Sh|elf", "connection pool"),
    ("Ly|ing", "pooled connection"),
    ("E|ar", "subscription, listener"),
    ("Hear|ing", "subscription"),
    ("Dut|ies", "BackgroundServices"),
    ("Up|keep", "LockMaintenance"),
    ("Not|ices", "LockEventSink"),
    ("Happen|ing", "LockEvent"),
    ("On|Redis", "RedisCoordination"),
    ("Record|Error", "DatabaseError"),
    ("Stored|Answer", "StoredResponse"),
    ("Thing|Kind", "DocumentKind"),
    ("No|Quorum", "QuorumUnreachable"),
    ("FARE|WELL", "SHUTDOWN_TIMEOUT"),
    ("LISTEN|_AGAIN", "RECONNECT_BACKOFF"),
    ("MO|ST_", "MAX_…"),
    ("LONG|EST_", "MAX_…"),
    ("sa|id(", "a verb that names the action"),
    ("to|ld(", "notified"),
    ("in ho|pe", "optimistically"),
    ("is to|ld", "is notified, gets"),
    ("was to|ld", "was notified, got"),
    ("are to|ld", "are notified, get"),
    ("who|ever", "the role: caller, holder, waiter, reviewer"),
    ("carry o|ut", "apply"),
    ("carries o|ut", "applies"),
    ("carried o|ut", "applied"),
    ("change ba|ck", "roll back"),
    ("changes ba|ck", "rolls back"),
    ("changed ba|ck", "rolled back"),
    ("the record i|s", "the database is"),
    ("heard o|f", "has a recent heartbeat"),
    ("is aw|ay", "is unavailable"),
    ("looked a|t", "checked, read"),
    ("give w|ay", "is aborted, is the victim"),
    ("gives w|ay", "is aborted, is the victim"),
    ("stands in f|or", "is the delegate of"),
    ("stands beh|ind", "is the author or sponsor of"),
    ("unspeak|able", "invalid"),
    ("stran|ge", "invalid, special"),
    ("me|nd", "fix, repair"),
    ("de|ed", "action, command"),
];

/// A text without comment markers and line breaks, so that phrases are found across lines, with the line of every byte.
fn joined(text: &str) -> (String, Vec<usize>) {
    let (mut joined, mut lines) = (String::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let content = line.trim().trim_start_matches(['/', '!', '#', '-', '*']).trim_start();
        joined.push_str(content);
        joined.push(' ');
        lines.resize(joined.len(), number + 1);
    }
    (joined, lines)
}

/// Lines with the term as whole words.
fn lines_with(text: &str, lines: &[usize], term: &str) -> Vec<usize> {
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let is_free = |term_end: Option<char>, neighbour: Option<char>| {
        !term_end.is_some_and(is_word) || term_end == Some('_') || !neighbour.is_some_and(is_word)
    };
    let matches = text.match_indices(term).filter(|(start, _)| {
        let (before, rest) = text.split_at(*start);
        let after = rest.strip_prefix(term).unwrap_or_default();
        is_free(term.chars().next(), before.chars().next_back())
            && is_free(term.chars().next_back(), after.chars().next())
    });
    matches.filter_map(|(start, _)| lines.get(start).copied()).collect()
}

#[test]
fn sources_and_documents_avoid_private_terms() {
    // Catalogs and sample data have texts for people; docs has the recorded help of all commands and the description of the API.
    let extensions = ["rs", "lua", "sql", "py", "sh", "toml", "json"];
    let folders = ["crates", "docs", "peers", "scripts"];
    let sources = folders.iter().flat_map(|folder| files(&root().join(folder), &extensions));
    let mut found = Vec::new();
    for file in sources.chain(documents()) {
        let text = fs::read_to_string(&file).expect("readable");
        let (text, lines) = joined(&text);
        let phrases = text.to_ascii_lowercase().replace('_', " ");
        for (term, instead) in AVOIDED {
            let term = term.replace('|', "");
            let is_phrase = term.chars().all(|character| character.is_ascii_lowercase() || character == ' ');
            let places = lines_with(if is_phrase { &phrases } else { &text }, &lines, &term);
            let messages =
                places.iter().map(|line| format!("{}: {term} (use: {instead})", place(&file, *line)));
            found.extend(messages);
        }
    }
    assert!(found.is_empty(), "{} terms to replace:\n  {}", found.len(), found.join("\n  "));
}
