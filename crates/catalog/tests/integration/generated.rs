//! The committed fixtures are up to date, and a changed key changes the builders, the reference and the listing.

use std::path::{Path, PathBuf};

use ade_catalog::{Catalog, builders, reference};
use ade_testkit::golden::assert_fresh;

const VALID: &str = include_str!("../fixtures/shop.toml");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn committed_builders_are_fresh() {
    for name in ["shop", "guild", "tricky", "bare"] {
        let source = std::fs::read_to_string(fixture(&format!("{name}.toml"))).expect("readable");
        let catalog = Catalog::parse(name, &source).expect("valid");
        assert_fresh(&fixture(&format!("{name}.rs")), &builders::generate(&catalog)).expect("fresh");
    }
}

/// Builders, reference and listing of a catalog.
fn derived(source: &str) -> [String; 3] {
    let catalog = Catalog::parse("shop.toml", source).expect("valid");
    let listing: Vec<String> = catalog.rows().iter().map(|row| format!("{row:?}")).collect();
    [builders::generate(&catalog), reference::markdown([&catalog]), listing.join("\n")]
}

#[test]
fn added_key_appears_in_all_outputs() {
    let added = format!(
        "{VALID}\n[[key]]\nname = \"cart.coupon\"\npattern = \"shop:cart:{{cart_id}}:coupon\"\ntype = \"string\"\n\
         ttl = {{ exact = \"1h\" }}\nowner = \"checkout\"\npurpose = \"a coupon\"\nvalue = \"code\"\n"
    );
    let marks =
        ["pub fn coupon<'a>(cart_id: &'a ids::CartId)", "### cart.coupon", "shop:cart:{cart_id}:coupon"];
    for ((before, after), mark) in derived(VALID).iter().zip(derived(&added)).zip(marks) {
        assert!(!before.contains(mark) && after.contains(mark), "{mark}");
    }
}

#[test]
fn renamed_key_changes_only_its_name() {
    let renamed = VALID.replace("name = \"cache.search\"", "name = \"cache.found\"");
    let [builders, reference, listing] = derived(VALID);
    let [new_builders, new_reference, new_listing] = derived(&renamed);
    let names = |text: &str| {
        text.replace("cache.search", "cache.found")
            .replace("cache-search", "cache-found")
            .replace("cache::search(", "cache::found(")
            .replace("fn search<", "fn found<")
    };
    assert_ne!(builders, new_builders);
    assert_eq!(names(&builders), new_builders);
    assert_eq!(names(&reference), new_reference);
    assert_eq!(names(&listing), new_listing);
}

#[test]
fn removed_key_disappears_from_all_outputs() {
    let start = VALID.find("[[key]]\nname = \"cache.search\"").expect("present");
    let end = start + 1 + VALID[start + 1..].find("[[key]]").expect("another follows");
    let removed = format!("{}{}", &VALID[..start], &VALID[end..]);
    for ((before, after), mark) in derived(VALID).iter().zip(derived(&removed)).zip([
        "pub mod cache",
        "### cache.search",
        "shop:cache:{search}",
    ]) {
        assert!(before.contains(mark) && !after.contains(mark), "{mark}");
    }
}
