//! Identifiers for tests: anything a caller could send, and a choice of them for every kind of a catalog. No key and no
//! kind is named here: tests iterate over the catalogs, so that a changed catalog needs no changed test.

use std::collections::BTreeMap;

use ade_catalog::Catalog;
use ade_catalog::model::IdForm;
use proptest::prelude::*;

/// Any text but the empty one: arbitrary unicode, what could break out of a segment, reserved words, up to 10 KiB.
pub(crate) fn any_identifier() -> impl Strategy<Value = String> {
    let nasty = proptest::sample::select(vec![
        ":",
        "{",
        "}",
        "%",
        "*",
        "?",
        "[",
        "\\",
        "\n",
        "\r",
        "\t",
        " ",
        "\0",
        "\u{7f}",
        "~",
        ".",
        "/",
        "index",
        "user",
        "%69ndex",
        "project",
        "queue",
        "é",
        "日本語",
        "🦀",
        "e\u{301}",
        "a",
        "A",
        "0",
        "-",
        "0123456789abcdef0123456789abcdef01234567",
    ]);
    prop_oneof![
        3 => any::<String>(),
        3 => proptest::collection::vec(nasty, 1..8).prop_map(|parts| parts.concat()),
        2 => "[a-zA-Z0-9_-]{1,90}",
        1 => (any::<char>(), 1usize..10_240).prop_map(|(character, bytes)| {
            character.to_string().repeat(bytes / character.len_utf8() + 1)
        }),
    ]
    .prop_filter("empty is refused elsewhere", |text| !text.is_empty())
}

/// An identifier for every kind of the catalog.
pub(crate) type Choice = BTreeMap<String, String>;

/// Identifiers for every kind: any text, or any member of a closed set.
pub(crate) fn any_choice(catalog: &'static Catalog) -> impl Strategy<Value = Choice> {
    let words: Vec<String> = catalog
        .entries
        .iter()
        .flat_map(|entry| entry.plain.text().split(':'))
        .filter(|segment| !segment.contains('{'))
        .map(str::to_owned)
        .collect();
    let kinds: Vec<_> = catalog
        .ids
        .iter()
        .map(|kind| {
            let value = match &kind.form {
                // A word that some pattern has literally must not be rare: it is where keys could be mistaken.
                IdForm::Text(_) if words.is_empty() => any_identifier().boxed(),
                IdForm::Text(_) => {
                    prop_oneof![2 => any_identifier(), 1 => proptest::sample::select(words.clone())].boxed()
                }
                IdForm::OneOf(members) => {
                    let values: Vec<String> = members.iter().map(|member| member.value.clone()).collect();
                    proptest::sample::select(values).boxed()
                }
            };
            (Just(kind.name.clone()), value)
        })
        .collect();
    kinds.prop_map(|chosen| chosen.into_iter().collect())
}

/// A shipped catalog, and the function that calls each of its builders.
pub(crate) fn shipped() -> impl Strategy<Value = (&'static Catalog, ade_keyspace::EveryBuilder)> {
    let all: Vec<_> = ade_keyspace::__EVERY_BUILDER
        .iter()
        .filter_map(|(name, build)| {
            let catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == *name)?;
            Some((catalog, *build))
        })
        .collect();
    proptest::sample::select(all)
}
