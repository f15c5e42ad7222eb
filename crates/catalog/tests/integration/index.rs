//! The index finds what the search through all patterns finds.

use std::borrow::Cow;
use std::sync::LazyLock;

use ade_catalog::model::{EntryKind, IdForm};
use ade_catalog::{Catalog, Entry, KeyIndex, KeyMatch, Layout, find};
use ade_testkit::effort;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::catalogs;

static CATALOGS: LazyLock<Vec<Catalog>> = LazyLock::new(catalogs);

fn is_key(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Key(_))
}

static ONLY_KEYS: LazyLock<Vec<Catalog>> = LazyLock::new(|| {
    let mut catalogs = catalogs();
    catalogs.iter_mut().for_each(|catalog| catalog.entries.retain(is_key));
    catalogs
});

static INDEXES: LazyLock<[KeyIndex<'static>; 2]> =
    LazyLock::new(|| [KeyIndex::new(&CATALOGS), KeyIndex::of(&CATALOGS, is_key)]);

fn described(found: Option<(&Catalog, KeyMatch<'_>)>) -> Option<String> {
    let (catalog, found) = found?;
    let ids: Vec<_> = found.ids.iter().map(|id| (&id.kind.name, &id.written, &id.identifier)).collect();
    Some(format!("{} {} {:?} {ids:?}", catalog.name, found.entry.name, found.layout))
}

/// A change of a key at a position: what resembles a key is found, or is nearly found.
fn changed(key: &str, (change, at, text): (u8, Index, String)) -> String {
    let mut segments: Vec<&str> = key.split(':').collect();
    let position = at.index(segments.len());
    match change {
        0 => {}
        1 => drop(segments.remove(position)),
        2 => segments.insert(position, &text),
        3 => segments[position] = &text,
        _ => return key.replace(['{', '}'], ""),
    }
    segments.join(":")
}

proptest! {
    #![proptest_config(effort::property(400))]

    #[test]
    fn index_and_search_agree(
        which in any::<(Index, Index, Index)>(),
        layout in select(vec![Layout::Plain, Layout::Cluster]),
        text in prop_oneof![any::<String>(), "[a-z]{1,4}", select(vec!["index".to_owned(), "a:b".to_owned(), "%69x".to_owned()])],
        change in (0u8..6, any::<Index>(), prop_oneof!["[a-z{}:%]{0,4}", select(vec!["index".to_owned(), "lock".to_owned()])]),
    ) {
        let catalog = &CATALOGS[which.0.index(CATALOGS.len())];
        let entry = &catalog.entries[which.1.index(catalog.entries.len())];
        let raw = |name: &str| {
            let kind = catalog.ids.iter().find(|kind| kind.name == name).expect("known");
            match &kind.form {
                IdForm::OneOf(members) => Cow::Borrowed(members[which.2.index(members.len())].value.as_str()),
                IdForm::Text(_) if text.is_empty() => Cow::Borrowed("x"),
                IdForm::Text(_) => Cow::Borrowed(text.as_str()),
            }
        };
        let built = catalog.build(entry, layout, raw).expect("valid");
        let former = entry.formerly.first().map(|former| former.fill(|_| "x"));
        for key in [changed(&built, change), former.unwrap_or_default(), text.clone()] {
            let [all, only_keys] = &*INDEXES;
            prop_assert_eq!(described(all.find(&key)), described(find::find_in(&CATALOGS, &key)), "{}", key);
            prop_assert_eq!(described(only_keys.find(&key)), described(find::find_in(&ONLY_KEYS, &key)), "{}", key);
        }
    }
}
