//! No source makes the linter panic, recurse without bound or run forever.

use std::fs;
use std::path::Path;

use ade_testkit::effort::{self, SeededRng};
use proptest::prelude::*;

use super::linter;

const NAMES: &[&str] = &["a.rs", "a.sh", "a.py", "a.js", "a.ts", "a.tsx", "a.go", "a.lua"];

/// Fragments that the front-ends read, in any order.
fn fragment() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "redis",
        ".set(",
        ".get(",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "`",
        "${",
        "f\"",
        "format!(",
        "redis::cmd(",
        "redis-cli ",
        "GET ",
        "ade:task:",
        "{id}",
        "%s",
        "{{",
        "}}",
        "\\",
        "\\u{",
        "%",
        ":",
        ",",
        "..",
        "+",
        "=",
        "const a",
        "let b",
        "def f",
        "fn g",
        "func h",
        "<<EOF\n",
        "\nEOF\n",
        "|",
        "#",
        "//",
        "--",
        "ade-lint: allow ",
        "\n",
        "é",
        "\u{0}",
        "redis.call('GET', ",
        "KEYS[1]",
        ".pipeline()",
        ".join(",
        "multi()",
        "[[",
        "]]",
        "*",
        "&",
    ]);
    prop_oneof![4 => fixed.prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #![proptest_config(effort::property(if effort::is_soak() { 20_000 } else { 200 }))]

    #[test]
    fn any_text_is_accepted(parts in proptest::collection::vec(fragment(), 0..40), name in prop::sample::select(NAMES.to_vec())) {
        let _ = linter().check_source(Path::new(name), &parts.concat());
    }
}

#[test]
fn mutated_sources_are_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lint");
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        let source = fs::read_to_string(&path).expect("readable");
        let name = path.file_stem().expect("a name").to_owned();
        for (seed, round) in effort::seeded_rounds(effort::rounds(5, 500)) {
            let mut random = SeededRng::new(seed, round);
            let mut bytes = source.clone().into_bytes();
            for _ in 0..=random.below(8) {
                let at = usize::try_from(random.below(bytes.len() as u64)).expect("small");
                match random.below(3) {
                    0 => bytes.truncate(at),
                    1 => drop(bytes.drain(at..(at + 20).min(bytes.len()))),
                    _ => bytes.insert(
                        at,
                        b"\"'`(){}[]<>\\$#|\n"[usize::try_from(random.below(16)).expect("small")],
                    ),
                }
            }
            let _ = linter().check_source(Path::new(&name), &String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn deep_and_long_expressions_are_accepted() {
    let depth = usize::try_from(effort::rounds(1_000, 50_000)).expect("small");
    for (name, open, close) in [
        ("a.rs", "(", ")"),
        ("a.py", "[", "]"),
        ("a.js", "{a:", "}"),
        ("a.ts", "(", ")"),
        ("a.go", "(", ")"),
        ("a.lua", "{", "}"),
        ("a.sh", "$(", ")"),
    ] {
        let source = format!("redis = {}'ade:nope'{}", open.repeat(depth), close.repeat(depth));
        let _ = linter().check_source(Path::new(name), &source);
        let sum = format!("redis = 'ade:'{}", " + 'x'".repeat(depth));
        let _ = linter().check_source(Path::new(name), &sum);
        let chain = format!("redis{}", ".get('ade:nope')".repeat(depth / 10));
        let _ = linter().check_source(Path::new(name), &chain);
    }
}
