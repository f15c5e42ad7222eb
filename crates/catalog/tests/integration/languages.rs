//! Builders in other languages build the same keys as those in Rust, for any identifiers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, io};

use ade_catalog::builders::vectors::{Vectors, vectors};
use ade_catalog::builders::{go, python, typescript};
use ade_catalog::{Catalog, ident};
use ade_testkit::effort::{self, SeededRng};

use crate::catalogs;

const PYTHON_CHECK: &str = r#"
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("keys", sys.argv[1])
keys = importlib.util.module_from_spec(spec)
sys.modules["keys"] = keys
spec.loader.exec_module(keys)
vectors = json.load(open(sys.argv[2], encoding="utf-8"))
kinds = {name: kind for _, ids in keys.EVERY_BUILDER.values() for name, kind in ids}
for it in vectors["identifiers"]:
    if it["kind"] in kinds:
        written = kinds[it["kind"]](it["text"]).written
        assert written == it["written"], (it, written)
for it in vectors["keys"]:
    build, ids = keys.EVERY_BUILDER[it["entry"]]
    assert [name for name, _ in ids] == [name for name, _ in it["ids"]], it
    built = build(*(kind(text) for (_, kind), (_, text) in zip(ids, it["ids"])))
    assert (built.entry, built.plain, built.cluster) == (it["entry"], it["plain"], it["cluster"]), (it, built)
print(len(vectors["identifiers"]), len(vectors["keys"]))
"#;

const NODE_CHECK: &str = r#"
import { readFileSync } from "node:fs";
const keys = await import(process.argv[2]);
const vectors = JSON.parse(readFileSync(process.argv[3], "utf8"));
const equal = (one, other, it) => { if (one !== other) throw new Error(JSON.stringify([one, other, it])); };
const kinds = Object.fromEntries(Object.values(keys.everyBuilder).flatMap(([, ids]) => ids));
const identifier = (kind, text) => typeof kind === "function" ? kind(text) : Object.values(kind).find((it) => it.written === text);
for (const it of vectors.identifiers)
  if (kinds[it.kind]) equal(identifier(kinds[it.kind], it.text).written, it.written, it);
for (const it of vectors.keys) {
  const [build, ids] = keys.everyBuilder[it.entry];
  const built = build(...ids.map(([, kind], position) => identifier(kind, it.ids[position][1])));
  equal(built.entry, it.entry, it); equal(built.plain, it.plain, it); equal(built.cluster, it.cluster, it);
}
console.log(vectors.identifiers.length, vectors.keys.length);
"#;

/// Any text: letters of all scripts, separators, control characters, forms of digests.
fn random_texts() -> Vec<String> {
    let pieces = [
        "a",
        "Z",
        "0",
        "-",
        "~",
        ":",
        "{",
        "}",
        "%",
        " ",
        ".",
        "/",
        "index",
        "\u{e9}",
        "\u{130}",
        "\u{1f980}",
        "\u{7f}",
        "\n",
    ];
    let texts = effort::seeded_rounds(effort::rounds(40, 1000)).map(|(seed, round)| {
        let mut random = SeededRng::new(seed, round);
        let mut text = String::new();
        for _ in 0..=random.below(if round % 5 == 0 { 90 } else { 8 }) {
            match random.below(4) {
                0 => text.extend(char::from_u32(u32::try_from(random.below(0x0011_0000)).expect("small"))),
                1 => text.push_str(&ident::digest(&text)),
                _ => text.push_str(random.pick(&pieces).expect("one")),
            }
        }
        if text.is_empty() { "x".to_owned() } else { text }
    });
    texts.collect()
}

fn text(value: &str) -> String {
    let escaped = value.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn json(vectors: &Vectors) -> String {
    let identifiers = vectors.identifiers.iter().map(|it| {
        format!(
            "{{\"kind\":{},\"text\":{},\"written\":{}}}",
            text(&it.kind),
            text(&it.text),
            text(&it.written)
        )
    });
    let keys = vectors.keys.iter().map(|it| {
        let ids: Vec<String> =
            it.ids.iter().map(|(kind, id)| format!("[{},{}]", text(kind), text(id))).collect();
        let [entry, plain, cluster] = [&it.entry, &it.plain, &it.cluster].map(|value| text(value));
        format!("{{\"entry\":{entry},\"ids\":[{}],\"plain\":{plain},\"cluster\":{cluster}}}", ids.join(","))
    });
    let lists = [identifiers.collect::<Vec<_>>().join(",\n"), keys.collect::<Vec<_>>().join(",\n")];
    format!("{{\"identifiers\":[{}],\"keys\":[{}]}}", lists[0], lists[1])
}

/// Runs a check; `None` if the program is not installed.
fn check(program: &str, arguments: &[&Path]) -> Option<String> {
    let output = match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        output => output.expect("runs"),
    };
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}

fn check_all(
    program: &str,
    file: &str,
    check_code: (&str, &str),
    generate: impl Fn(&Catalog) -> String,
) -> bool {
    let folder = tempfile::tempdir().expect("created");
    let path = |name: &str| folder.path().join(name);
    fs::write(path(check_code.0), check_code.1).expect("written");
    let texts = random_texts();
    for catalog in &catalogs() {
        let vectors = vectors(catalog, &texts);
        fs::write(path(file), generate(catalog)).expect("written");
        fs::write(path("vectors.json"), json(&vectors)).expect("written");
        let arguments = [path(check_code.0), path(file), path("vectors.json")];
        let Some(counted) = check(program, &arguments.each_ref().map(std::path::PathBuf::as_path)) else {
            return false;
        };
        let expected = format!("{} {}", vectors.identifiers.len(), vectors.keys.len());
        assert_eq!(counted.trim(), expected, "{}", catalog.name);
    }
    true
}

#[test]
fn python_builds_the_same_keys() {
    assert!(
        check_all("python3", "keys.py", ("check.py", PYTHON_CHECK), python::generate),
        "python3 is installed"
    );
}

/// The same code as TypeScript, without types, because a compiler for them may be missing.
#[test]
fn javascript_builds_the_same_keys() {
    let generate = |catalog: &Catalog| typescript::generate(catalog, false);
    let is_checked = check_all("node", "keys.mjs", ("check.mjs", NODE_CHECK), generate);
    assert!(is_checked || !effort::is_soak(), "node is installed");
}

#[test]
fn types_are_all_that_typescript_adds() {
    for catalog in &catalogs() {
        let typed = typescript::generate(catalog, true);
        let untyped = typescript::generate(catalog, false);
        assert!(typed.len() > untyped.len() && !typed.contains("/*<*/") && !untyped.contains("/*>*/"));
        assert_eq!(typed.matches("entry: \"").count(), untyped.matches("entry: \"").count());
    }
}

/// Go itself compiles the code, where it is installed.
#[test]
fn go_code_is_formatted_and_compiles() {
    for catalog in &catalogs() {
        let code = go::generate(catalog);
        assert_eq!(code.matches('{').count(), code.matches('}').count(), "braces are paired");
        let folder = tempfile::tempdir().expect("created");
        fs::write(folder.path().join("keys.go"), &code).expect("written");
        fs::write(folder.path().join("go.mod"), "module example.com/keys\n\ngo 1.18\n").expect("written");
        let Ok(output) = Command::new("go").arg("vet").current_dir(folder.path()).output() else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
