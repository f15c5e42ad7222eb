//! Fast lookup of many concrete keys, for tools that read millions of them.
//!
//! Invariant: the result is that of [`crate::find`]. The index only leaves out patterns that cannot match: each pattern is stored
//! in a trie by its literal beginning, and its literal end is compared before anything is decoded.

use std::collections::BTreeMap;

use crate::find::{KeyMatch, Spelling};
use crate::model::{Catalog, Entry};
use crate::pattern::Part;

/// An index of the patterns of some catalogs.
#[derive(Debug)]
pub struct KeyIndex<'a> {
    catalogs: Vec<CatalogIndex<'a>>,
}

#[derive(Debug)]
struct CatalogIndex<'a> {
    catalog: &'a Catalog,
    /// In the order of precedence.
    spellings: Vec<Spelling<'a>>,
    /// The first one is the root.
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    children: BTreeMap<u8, usize>,
    /// The patterns whose literal beginning ends here, by their position in `spellings`.
    spellings: Vec<usize>,
}

impl<'a> KeyIndex<'a> {
    /// Indexes every entry of the catalogs.
    #[must_use]
    pub fn new(catalogs: &'a [Catalog]) -> Self {
        Self::of(catalogs, |_| true)
    }

    /// Indexes only entries that `is_indexed` selects; the others are as if the catalogs did not have them.
    #[must_use]
    pub fn of(catalogs: &'a [Catalog], is_indexed: impl Fn(&Entry) -> bool) -> Self {
        let catalogs = catalogs.iter().map(|catalog| CatalogIndex::new(catalog, &is_indexed)).collect();
        Self { catalogs }
    }

    /// The same as [`crate::find::find_in`].
    #[must_use]
    pub fn find(&self, key: &str) -> Option<(&'a Catalog, KeyMatch<'a>)> {
        let mut first = None;
        for index in &self.catalogs {
            let Some(found) = index.find(key) else { continue };
            if found.is_canonical() {
                return Some((index.catalog, found));
            }
            first.get_or_insert((index.catalog, found));
        }
        first
    }
}

impl<'a> CatalogIndex<'a> {
    fn new(catalog: &'a Catalog, is_indexed: &impl Fn(&Entry) -> bool) -> Self {
        let spellings = catalog.spellings().filter(|(entry, ..)| is_indexed(entry)).collect();
        let mut index = Self { catalog, spellings, nodes: vec![Node::default()] };
        for position in 0..index.spellings.len() {
            index.insert(position);
        }
        index
    }

    fn insert(&mut self, position: usize) {
        let first = self.spellings.get(position).and_then(|(.., pattern)| pattern.parts().first());
        let literal = if let Some(Part::Text(text)) = first { text.as_bytes() } else { &[] };
        let mut at = 0;
        for byte in literal {
            let added = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { return };
            at = *node.children.entry(*byte).or_insert(added);
            if at == added {
                self.nodes.push(Node::default());
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.spellings.push(position);
        }
    }

    fn find(&self, key: &str) -> Option<KeyMatch<'a>> {
        let mut positions: Vec<usize> = Vec::new();
        let mut node = self.nodes.first();
        let mut bytes = key.bytes();
        while let Some(Node { children, spellings }) = node {
            positions.extend(spellings.iter().filter(|position| self.may_end(**position, key)));
            node = bytes.next().and_then(|byte| self.nodes.get(*children.get(&byte)?));
        }
        if positions.is_empty() {
            return None;
        }
        positions.sort_unstable();
        let candidates = positions.iter().filter_map(|position| self.spellings.get(*position).copied());
        self.catalog.first_match(&candidates, key)
    }

    /// Whether the key ends with the literal end of the pattern.
    fn may_end(&self, position: usize, key: &str) -> bool {
        match self.spellings.get(position).and_then(|(.., pattern)| pattern.parts().last()) {
            Some(Part::Text(text)) => key.ends_with(text.as_str()),
            Some(Part::Id(_)) | None => true,
        }
    }
}
