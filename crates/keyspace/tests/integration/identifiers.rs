//! Property tests over all builders of all catalogs: keys can be decoded to their identifiers, and no two keys are equal.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ade_catalog::model::{EntryKind, IdForm};
use ade_catalog::{Identifier, Layout, ident, slot};
use ade_testkit::effort;
use proptest::prelude::*;

use crate::support::{any_choice, any_identifier, shipped};

proptest! {
    #![proptest_config(effort::property(400))]

    #[test]
    fn keys_decode_to_their_entry_and_identifiers(
        ((catalog, build), choice) in shipped().prop_flat_map(|it| (Just(it), any_choice(it.0)))
    ) {
        for (name, spelled) in build(&|kind| choice[kind].clone()).expect("no empty identifier") {
            let entry = catalog.entry(name).expect("builders come from the catalog");
            for (layout, key) in [Layout::Plain, Layout::Cluster].into_iter().zip(spelled) {
                let from_catalog = catalog.build(entry, layout, |kind| Cow::Borrowed(choice[kind].as_str()));
                prop_assert_eq!(from_catalog.expect("no empty identifier"), key.as_str());
                prop_assert!(key.len() < catalog.key_limit, "{} has {} bytes", key, key.len());
                prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));

                let found = catalog.find(&key).expect("a built key is known");
                prop_assert_eq!(&found.entry.name, name);
                prop_assert!(found.is_canonical());
                for id in &found.ids {
                    let raw = &choice[&id.kind.name];
                    match id.identifier.as_ref().expect("canonical") {
                        Identifier::Exact(text) => prop_assert_eq!(text, raw),
                        Identifier::Hashed { digest, .. } => prop_assert_eq!(digest, &ident::digest(raw)),
                    }
                }
            }
        }
    }

    #[test]
    fn entries_never_share_a_key(
        ((_, build), choice) in shipped().prop_flat_map(|it| (Just(it), any_choice(it.0)))
    ) {
        for layout in [0, 1] {
            let mut seen: BTreeMap<String, &str> = BTreeMap::new();
            for (name, spelled) in build(&|kind| choice[kind].clone()).expect("no empty identifier") {
                if let Some(other) = seen.insert(spelled[layout].clone(), name) {
                    prop_assert!(false, "{} and {} share {}", name, other, spelled[layout]);
                }
            }
        }
    }

    #[test]
    fn identifiers_never_share_a_key(
        ((catalog, build), one) in shipped().prop_flat_map(|it| (Just(it), any_choice(it.0))),
        text in any_identifier(),
        which in any::<prop::sample::Index>(),
    ) {
        let free: Vec<&str> = catalog.ids.iter()
            .filter(|kind| matches!(kind.form, IdForm::Text(_)))
            .map(|kind| kind.name.as_str())
            .collect();
        let changed = free[which.index(free.len())];
        prop_assume!(one[changed] != text);
        let mut other = one.clone();
        other.insert(changed.to_owned(), text);
        let before = build(&|kind| one[kind].clone()).expect("no empty identifier");
        let after = build(&|kind| other[kind].clone()).expect("no empty identifier");
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            let entry = catalog.entry(name).expect("builders come from the catalog");
            let contains_it = entry.plain.ids().any(|number| catalog.id(number).is_some_and(|kind| kind.name == changed));
            for layout in [0, 1] {
                prop_assert_eq!(before[layout] == after[layout], !contains_it, "{} {}", name, before[layout]);
            }
        }
    }

    #[test]
    fn keys_of_an_entity_share_a_slot(
        ((catalog, build), choice) in shipped().prop_flat_map(|it| (Just(it), any_choice(it.0)))
    ) {
        let mut slots: BTreeMap<String, (u16, &str)> = BTreeMap::new();
        for (name, [_, key]) in build(&|kind| choice[kind].clone()).expect("no empty identifier") {
            let Some((tag, _)) = catalog.entry(name).expect("known").cluster.tag() else { continue };
            let slot = slot::slot_of(key.as_bytes());
            let (first, other) = *slots.entry(tag).or_insert((slot, name));
            prop_assert_eq!(slot, first, "{} and {} are of one entity", name, other);
        }
    }
}

#[test]
fn every_builder_rejects_empty_identifiers() {
    for (name, build) in ade_keyspace::__EVERY_BUILDER {
        let catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == *name).expect("shipped");
        for empty in &catalog.ids {
            let is_used = catalog
                .entries
                .iter()
                .filter(|entry| !matches!(entry.kind, EntryKind::Group { .. }))
                .flat_map(|entry| entry.plain.ids())
                .any(|number| catalog.id(number).is_some_and(|kind| kind.name == empty.name));
            let raw = |kind: &str| {
                let known = catalog.ids.iter().find(|known| known.name == kind).expect("known");
                if known.name == empty.name { String::new() } else { known.example.clone() }
            };
            assert_eq!(build(&raw).is_err(), is_used, "{name}: {}", empty.name);
        }
    }
}

#[test]
fn loads_every_shipped_catalog() {
    assert_eq!(ade_keyspace::catalogs().len(), ade_keyspace::__EVERY_BUILDER.len());
}
