//! The keyspace: the entries of the key catalogs as a list with filters, one entry in detail, and what a key means.

use std::collections::BTreeSet;

use ade_client::wire::{KeyCatalog, KeyDetails, KeyEntry, KeyExplanation, Problem};
use askama::Template;

use crate::Shell;
use crate::audit::percent_encoded;
use crate::format::{chosen, count, link as page_link, visible};

/// Filters of the list and the key to explain, as in the URL.
#[derive(Debug, Clone, Default)]
pub struct KeyFilters {
    /// Words that name, pattern or purpose contain.
    pub text: String,
    pub catalog: String,
    pub kind: String,
    pub owner: String,
    pub key: String,
}

const PAGE_LEN: usize = 50;

#[derive(Debug, Clone, Template)]
#[template(path = "keyspace.html")]
pub struct KeyspacePage {
    pub shell: Shell,
    pub filters: KeyFilters,
    pub catalogs: Vec<KeyCatalog>,
    /// The page of the list, from 1.
    pub number: usize,
    pub explanation: Option<KeyExplanation>,
    /// Why the key cannot be explained.
    pub problem: Option<Problem>,
}

fn link(entry: &KeyEntry) -> String {
    format!("/keyspace/{}/{}", percent_encoded(&entry.catalog), percent_encoded(&entry.name))
}

fn matches(entry: &KeyEntry, filters: &KeyFilters) -> bool {
    let text =
        [&entry.name, &entry.pattern, &entry.cluster_pattern, &entry.purpose].map(|text| text.to_lowercase());
    let contains = |word: &str| text.iter().any(|text| text.contains(&word.to_lowercase()));
    let is_equal = |filter: &str, value: &str| filter.is_empty() || filter == value;
    filters.text.split_whitespace().all(contains)
        && is_equal(&filters.catalog, &entry.catalog)
        && is_equal(&filters.kind, &entry.kind)
        && is_equal(&filters.owner, &entry.owner)
}

impl KeyspacePage {
    fn all(&self) -> impl Iterator<Item = &KeyEntry> {
        self.catalogs.iter().flat_map(|catalog| &catalog.entries)
    }

    fn shown(&self) -> Vec<&KeyEntry> {
        self.all().filter(|entry| matches(entry, &self.filters)).collect()
    }

    /// The entries of this page.
    fn page(&self) -> Vec<&KeyEntry> {
        self.shown()
            .into_iter()
            .skip((self.number.max(1) - 1).saturating_mul(PAGE_LEN))
            .take(PAGE_LEN)
            .collect()
    }

    fn pages(&self) -> usize {
        self.shown().len().div_ceil(PAGE_LEN)
    }

    /// The list with the same filters from another page on.
    fn page_link(&self, number: usize) -> String {
        let KeyFilters { text, catalog, kind, owner, key: _ } = &self.filters;
        let number = if number > 1 { number.to_string() } else { String::new() };
        page_link(
            "/keyspace",
            &[("q", text), ("catalog", catalog), ("type", kind), ("owner", owner), ("page", &number)],
        )
    }

    /// `187 entries, 51 to 100`.
    fn entries(&self) -> String {
        let total = self.shown().len();
        let all = if total == 1 { count(total, "entry") } else { format!("{total} entries") };
        let first = (self.number.max(1) - 1).saturating_mul(PAGE_LEN) + 1;
        let last = first + self.page().len().saturating_sub(1);
        if total <= PAGE_LEN { all } else { format!("{all}, {first} to {last} shown") }
    }

    fn chosen(&self) -> usize {
        let KeyFilters { text, catalog, kind, owner, key: _ } = &self.filters;
        chosen(&[text, catalog, kind, owner])
    }

    fn is_filtered(&self) -> bool {
        self.chosen() > 0
    }

    fn kinds(&self) -> BTreeSet<&str> {
        self.all().map(|entry| entry.kind.as_str()).collect()
    }

    fn owners(&self) -> BTreeSet<&str> {
        self.all().map(|entry| entry.owner.as_str()).collect()
    }

    fn link(&self, entry: &KeyEntry) -> String {
        link(entry)
    }

    fn has_cluster_pattern(&self, entry: &KeyEntry) -> bool {
        entry.pattern != entry.cluster_pattern
    }

    fn layout(&self, explanation: &KeyExplanation) -> &'static str {
        match explanation.layout.as_str() {
            "plain" => "standalone servers",
            "cluster" => "a cluster",
            "former" => "a former version; it is not written any more",
            _ => "standalone servers and clusters alike",
        }
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// One entry.
#[derive(Debug, Clone, Template)]
#[template(path = "key.html")]
pub struct KeyPage {
    pub shell: Shell,
    pub details: KeyDetails,
}

impl KeyPage {
    fn has_cluster_pattern(&self) -> bool {
        self.details.entry.pattern != self.details.entry.cluster_pattern
    }

    /// Where the key of an example is explained.
    fn explain(&self, key: &str) -> String {
        format!("/keyspace?key={}#explained", percent_encoded(key))
    }

    fn stream_link(&self, stream: &str) -> String {
        format!("/keyspace/{}/{}", percent_encoded(&self.details.entry.catalog), percent_encoded(stream))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn entry(name: &str, kind: &str) -> KeyEntry {
        KeyEntry {
            name: name.to_owned(),
            catalog: "ade".to_owned(),
            pattern: format!("ade:{name}"),
            cluster_pattern: format!("ade:{name}"),
            kind: kind.to_owned(),
            ttl: "none".to_owned(),
            owner: "locks".to_owned(),
            purpose: "Holders of a lock".to_owned(),
            addition: false,
            formerly: Vec::new(),
        }
    }

    fn page(filters: KeyFilters) -> KeyspacePage {
        let catalog = KeyCatalog {
            name: "ade".to_owned(),
            title: "ADE".to_owned(),
            source: "a document".to_owned(),
            entries: vec![entry("lock.task", "hash"), entry("task.queue", "zset")],
        };
        let shell = Shell::anonymous("Keyspace", Timestamp::UNIX_EPOCH);
        KeyspacePage { shell, filters, catalogs: vec![catalog], number: 1, explanation: None, problem: None }
    }

    #[test]
    fn filters_by_words_and_kind() {
        let shown = |text: &str, kind: &str| {
            let filters =
                KeyFilters { text: text.to_owned(), kind: kind.to_owned(), ..KeyFilters::default() };
            page(filters).shown().iter().map(|entry| entry.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown("", ""), ["lock.task", "task.queue"]);
        assert_eq!(shown("HOLDERS lock.t", ""), ["lock.task"]);
        assert_eq!(shown("", "zset"), ["task.queue"]);
        assert!(shown("nothing", "").is_empty());
    }

    #[test]
    fn entries_come_in_pages() {
        let mut page = page(KeyFilters { owner: "locks".to_owned(), ..KeyFilters::default() });
        page.catalogs[0].entries = (0..120).map(|number| entry(&format!("key.{number}"), "hash")).collect();
        page.number = 3;
        assert_eq!((page.pages(), page.page().len()), (3, 20));
        assert_eq!(page.entries(), "120 entries, 101 to 120 shown");
        assert_eq!(page.page_link(2), "/keyspace?owner=locks&page=2");
        page.number = usize::MAX;
        assert!(page.page().is_empty());
    }

    #[test]
    fn a_typed_key_stays_text() {
        let key = "<script>alert(1)</script>\u{202e}\"".to_owned();
        let html = page(KeyFilters { key, ..KeyFilters::default() }).render().expect("rendered");
        assert!(!html.contains("<script>alert"), "{html}");
    }
}
