//! Strategies for identifiers: arbitrary input, and a set of identifiers for all kinds of a catalog. Nothing here names a key
//! or a kind, so that tests need no change when a catalog changes.

use std::collections::BTreeMap;

use ade_catalog::Catalog;
use ade_catalog::model::IdForm;
use proptest::prelude::*;

/// Non-empty text up to 10 KiB: arbitrary Unicode, separators, control characters and reserved words.
pub(crate) fn any_identifier() -> impl Strategy<Value = String> {
    let special = proptest::sample::select(vec![
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
        3 => proptest::collection::vec(special, 1..8).prop_map(|parts| parts.concat()),
        2 => "[a-zA-Z0-9_-]{1,90}",
        1 => (any::<char>(), 1usize..10_240).prop_map(|(character, bytes)| {
            character.to_string().repeat(bytes / character.len_utf8() + 1)
        }),
    ]
    .prop_filter("empty is tested elsewhere", |text| !text.is_empty())
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
                // Literal words of patterns must be frequent: they are most likely to be ambiguous.
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

/// A shipped catalog and the function that calls its builders.
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
