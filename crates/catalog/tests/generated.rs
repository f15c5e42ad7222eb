//! What is generated is fresh, and one file is all that has to be edited: adding, removing or renaming a key changes the
//! builders, the reference and the listing.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::path::{Path, PathBuf};

use ade_catalog::{Catalog, builders, reference};
use ade_testkit::golden::assert_fresh;

const GOOD: &str = include_str!("fixtures/shop.toml");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn the_committed_builders_are_what_is_generated() {
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
fn an_added_key_appears_everywhere() {
    let added = format!(
        "{GOOD}\n[[key]]\nname = \"cart.coupon\"\npattern = \"shop:cart:{{cart_id}}:coupon\"\ntype = \"string\"\n\
         ttl = {{ exact = \"1h\" }}\nowner = \"checkout\"\npurpose = \"a coupon\"\nvalue = \"code\"\n"
    );
    let marks =
        ["pub fn coupon<'a>(cart_id: &'a ids::CartId)", "### cart.coupon", "shop:cart:{cart_id}:coupon"];
    for ((before, after), mark) in derived(GOOD).iter().zip(derived(&added)).zip(marks) {
        assert!(!before.contains(mark) && after.contains(mark), "{mark}");
    }
}

#[test]
fn a_renamed_key_changes_its_name_everywhere_and_nothing_else() {
    let renamed = GOOD.replace("name = \"cache.search\"", "name = \"cache.found\"");
    let [builders, reference, listing] = derived(GOOD);
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
fn a_removed_key_is_gone_everywhere() {
    let start = GOOD.find("[[key]]\nname = \"cache.search\"").expect("present");
    let end = start + 1 + GOOD[start + 1..].find("[[key]]").expect("another follows");
    let removed = format!("{}{}", &GOOD[..start], &GOOD[end..]);
    for ((before, after), mark) in derived(GOOD).iter().zip(derived(&removed)).zip([
        "pub mod cache",
        "### cache.search",
        "shop:cache:{search}",
    ]) {
        assert!(before.contains(mark) && !after.contains(mark), "{mark}");
    }
}
