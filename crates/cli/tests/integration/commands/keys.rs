//! `ade keys`, run as a user or a script runs it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ade_catalog::{Catalog, Layout, ident, reference};
use ade_testkit::golden::assert_fresh;
use serde_json::Value;

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../catalog/tests/fixtures/shop.toml");

fn ade(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ade")).arg("keys").args(arguments).output().expect("runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ade(arguments))).expect("JSON")
}

/// Exit code and message of a command that must fail, having printed no data.
fn refusal(arguments: &[&str]) -> (i32, String) {
    let output = ade(arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    failure(&output)
}

fn failure(output: &Output) -> (i32, String) {
    assert!(!output.status.success());
    (output.status.code().expect("not killed"), String::from_utf8(output.stderr.clone()).expect("text"))
}

#[test]
fn json_list_contains_every_entry_of_every_catalog() {
    let rows = json(&["list", "--json"]);
    let rows = rows.as_array().expect("an array");
    let expected: usize = ade_keyspace::catalogs().iter().map(|catalog| catalog.rows().len()).sum();
    assert_eq!(rows.len(), expected);
    for row in rows {
        for field in ["name", "catalog", "pattern", "cluster_pattern", "type", "ttl", "owner", "purpose"] {
            assert!(row[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {row}");
        }
        assert!(row["addition"].is_boolean());
    }
    for catalog in ade_keyspace::catalogs() {
        for entry in &catalog.entries {
            let found = rows.iter().find(|row| row["catalog"] == *catalog.name && row["name"] == *entry.name);
            assert_eq!(found.expect("listed")["pattern"], entry.plain.text());
        }
    }
}

#[test]
fn table_shows_every_entry_and_marks_additions() {
    let table = stdout(&ade(&["list"]));
    for catalog in ade_keyspace::catalogs() {
        for entry in &catalog.entries {
            let line = table.lines().find(|line| line.contains(&format!(" {} ", entry.plain)));
            let line = line.unwrap_or_else(|| panic!("{} is not in the table", entry.name));
            assert_eq!(line.contains(&format!(" {} + ", entry.name)), entry.addition, "{line}");
        }
    }
    assert!(!table.contains('\u{1b}'), "no colours without a terminal");
    let first = ade_keyspace::catalogs().first().expect("a catalog");
    let single = stdout(&ade(&["list", "--catalog", &first.name]));
    assert!(table.starts_with(&single) && single.len() < table.len());
}

#[test]
fn explains_keys_in_both_layouts() {
    for catalog in ade_keyspace::catalogs() {
        // Property tests of the catalogs decode the keys of all entries.
        for entry in [catalog.entries.first(), catalog.entries.last()].into_iter().flatten() {
            for layout in [Layout::Plain, Layout::Cluster] {
                let key = catalog.example(entry, layout);
                let explained = json(&["explain", "--json", &key]);
                assert_eq!(explained["name"], *entry.name, "{key}");
                assert_eq!(explained["catalog"], *catalog.name, "{key}");
                let spelling = explained["layout"].as_str().expect("text");
                let expected = if layout == Layout::Plain { "plain" } else { "cluster" };
                assert!(spelling.contains(expected), "{key} is {spelling}");
                let kinds: Vec<_> = entry.plain.ids().filter_map(|number| catalog.id(number)).collect();
                let ids = explained["identifiers"].as_array().expect("an array");
                assert_eq!(ids.len(), kinds.len());
                for (id, kind) in ids.iter().zip(kinds) {
                    let is_exact = id["value"] == *kind.example;
                    assert!(is_exact || id["digest"] == ident::digest(&kind.example), "{id}");
                }
            }
        }
    }
}

#[test]
fn explain_decodes_identifiers() {
    let task = "a:b {c}% *\n日本";
    let catalog = Catalog::parse(SHOP, &fs::read_to_string(SHOP).expect("readable")).expect("valid");
    let key = catalog.build(&catalog.entries[0], Layout::Cluster, |_| task.into()).expect("not empty");
    let explained = json(&["explain", "--json", "--catalog", SHOP, &key]);
    assert!(explained["identifiers"].as_array().expect("an array").iter().all(|id| id["value"] == task));
}

#[test]
fn distinguishes_unknown_from_misspelled_keys() {
    let (code, message) = refusal(&["explain", "nobody:knows:this"]);
    assert_eq!(code, 1);
    assert!(message.contains("no entry of") && message.contains("hint:"), "{message}");

    // The key matches a pattern, but an identifier is not encoded correctly: explained, and still a failure.
    for (key, hint) in [
        ("shop:cart:a b:items", "write \"a b\" as a%20b"),
        ("shop:cart:a%3ab:items", "write \"a%3ab\" as a%3Ab"),
    ] {
        let output = ade(&["explain", "--catalog", SHOP, key]);
        let (code, message) = failure(&output);
        assert_eq!(code, 1);
        assert!(message.contains(hint), "{message}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("cart.items"));
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "no escape sequences");
    }

    let (code, message) = failure(&ade(&["explain", "--catalog", SHOP, "news.17.loud"]));
    assert_eq!(code, 1);
    assert!(
        message.contains("\"loud\" is not a valid level: use one of info, very:loud, 24h, QUIET"),
        "{message}"
    );

    let long = format!("shop:cart:{}:items", "x".repeat(100_000));
    let (_, message) = failure(&ade(&["explain", "--catalog", SHOP, &long]));
    assert!(message.len() < 2_000, "{} bytes", message.len());

    let (_, message) = refusal(&["explain", "--catalog", SHOP, "shop:{cart:17}:stat"]);
    assert!(message.contains("the nearest entry is cart.state: shop:{cart:{cart_id}}:state"), "{message}");
    let (code, message) = refusal(&["explain", "--catalog", SHOP, "shop:cart:a:unheard"]);
    assert_eq!(code, 1);
    assert!(message.contains("is in the family carts"), "{message}");
}

#[test]
fn input_cannot_send_terminal_escapes() {
    // Colours are forced, because otherwise all escape sequences are stripped when writing to a pipe.
    let escape = "\u{1b}[31mRED\u{7}";
    for arguments in [
        ["explain", "--catalog", SHOP, &format!("shop:cart:{escape}:items")],
        ["explain", "--catalog", SHOP, &format!("cart:{escape}")],
        ["explain", "--catalog", SHOP, &format!("unknown:{escape}")],
        ["show", "--catalog", SHOP, escape],
        ["list", "--catalog", escape, "--json"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
        let output = command.arg("keys").args(arguments).env("CLICOLOR_FORCE", "1").output().expect("runs");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).expect("text");
        assert!(!text.contains(escape) && !text.contains('\u{7}'), "{arguments:?}: {text:?}");
        assert!(text.contains("error:") || text.contains("\u{1b}["), "colours are on, so the test can fail");
    }
}

#[test]
fn recognises_former_spelling() {
    let explained = json(&["explain", "--json", "--catalog", SHOP, "cart:17"]);
    assert_eq!(
        (explained["name"].as_str(), explained["layout"].as_str()),
        (Some("cart.items"), Some("former"))
    );
    assert_eq!(explained["now"], "shop:cart:17:items");

    let output = ade(&["explain", "--json", "--catalog", SHOP, "cart:a b"]);
    let explained: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(explained["now"], "shop:cart:a%20b:items", "encoded as a builder encodes it");

    let hashed = format!("long~{}", ident::digest("long"));
    let explained = json(&["explain", "--json", "--catalog", SHOP, &format!("cart:{hashed}")]);
    assert_eq!(explained["now"], format!("shop:cart:{hashed}:items"), "a hash is kept");
}

#[test]
fn show_prints_all_details_of_entry() {
    let shown = json(&["show", "cart.items", "--json", "--catalog", SHOP]);
    assert_eq!(shown["fields"][0]["name"], "sku");
    assert_eq!(shown["example"]["key"], "shop:cart:c-17:items");
    assert_eq!(shown["cluster_example"]["key"], "shop:{cart:c-17}:items");
    let text = stdout(&ade(&["show", "cart.items", "--catalog", SHOP]));
    for part in
        ["shop:{cart:{cart_id}}:items", "30m, renewable up to 2h", "cart:{cart_id}", "reserved: index", "sku"]
    {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let family = json(&["show", "carts", "--json", "--catalog", SHOP]);
    assert_eq!((family["type"].as_str(), family["pattern"].as_str()), (Some("family"), Some("shop:cart:*")));
    assert!(stdout(&ade(&["show", "carts", "--catalog", SHOP])).contains("shop:cart:*"));
    let (code, message) = refusal(&["show", "cart.itms", "--catalog", SHOP]);
    assert_eq!(code, 1);
    assert!(message.contains("did you mean cart.items?"), "{message}");
    let (_, message) = refusal(&["show", "CART", "--catalog", SHOP]);
    assert!(message.contains("the group has cart.items, cart.state, cart.index"), "{message}");
}

#[test]
fn reads_custom_catalog_and_reports_position_of_errors() {
    assert_eq!(json(&["list", "--json", "--catalog", SHOP]).as_array().expect("an array").len(), 12);

    let folder = tempfile::tempdir().expect("made");
    let file = folder.path().join("wrong.toml");
    let source = fs::read_to_string(SHOP).expect("readable").replace("{cart_id}:items", "{card_id}:items");
    let wrong = source.lines().position(|line| line.contains("card_id")).expect("replaced") + 1;
    fs::write(&file, source).expect("written");
    let name = file.to_str().expect("text");
    let (code, message) = refusal(&["list", "--catalog", name]);
    assert_eq!(code, 2);
    assert!(message.starts_with(&format!("error: {name}:{wrong}:22: in the pattern")), "{message}");
    assert!(message.trim_end().ends_with("did you mean {cart_id}?"), "{message}");

    let (code, message) = refusal(&["list", "--catalog", "/dev/zero"]);
    assert_eq!(code, 2);
    assert!(message.contains("larger than"), "{message}");

    let (code, message) = refusal(&["list", "--catalog", "no-such-file"]);
    assert_eq!(code, 2);
    assert!(message.contains("cannot read the catalog no-such-file") && message.contains("hint: use one of"));
}

#[test]
fn writes_and_checks_reference() {
    let folder = tempfile::tempdir().expect("made");
    let file = folder.path().join("keys.md");
    let name = file.to_str().expect("text");
    stdout(&ade(&["doc", "--catalog", SHOP, "--output", name]));
    assert_eq!(fs::read_to_string(&file).expect("written"), stdout(&ade(&["doc", "--catalog", SHOP])));
    stdout(&ade(&["doc", "--catalog", SHOP, "--check", name]));
    let (code, message) = refusal(&["doc", "--catalog", "mesh", "--check", name]);
    assert_eq!(code, 1);
    assert!(message.contains("is outdated from line"), "{message}");
    assert!(message.contains(&format!("`ade keys doc --catalog mesh --output {name}`")), "{message}");
    let (code, _) = refusal(&["doc", "--check", "no-such-file"]);
    assert_eq!(code, 1);
}

#[test]
fn committed_key_reference_is_fresh() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/keys.md");
    let catalogs: &[Catalog] = ade_keyspace::catalogs();
    assert_fresh(&file, &reference::markdown(catalogs)).expect("fresh");
}

#[test]
fn readme_shows_actual_output() {
    let readme = include_str!("../../../../../README.md");
    let (_, after) = readme.split_once("keys explain '").expect("an example");
    let (key, after) = after.split_once("'\n").expect("one argument");
    let printed = stdout(&ade(&["explain", key]));
    assert!(after.starts_with(&printed), "README.md differs from:\n{printed}");
}

#[test]
fn closed_pipe_is_not_a_failure() {
    let (reader, writer) = std::io::pipe().expect("made");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ade"));
    let output = command.args(["keys", "list"]).stdout(writer).output().expect("runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
