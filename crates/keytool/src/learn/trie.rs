//! The keys of a server as a trie of segments. It stays small: segments that look like identifiers share one node.

use std::collections::{BTreeMap, BTreeSet};

use super::leaf::Leaf;
use super::words::{Form, form};

/// More words in one place are identifiers.
const MAX_WORDS: usize = 200;
/// Identifiers that are kept as examples.
const MAX_EXAMPLES: usize = 40;

#[derive(Debug, Default)]
pub(super) struct Node {
    /// Segments that may be literals.
    pub(super) words: BTreeMap<String, Node>,
    /// All segments that look like identifiers.
    pub(super) any: Option<Box<Node>>,
    /// What the identifiers are, if this node stands for them.
    pub(super) ids: Ids,
    /// The keys that end here.
    pub(super) leaf: Option<Leaf>,
}

/// Identifiers in one place.
#[derive(Debug, Default, Clone)]
pub(super) struct Ids {
    pub(super) examples: BTreeSet<String>,
    pub(super) forms: BTreeSet<Form>,
    pub(super) longest: usize,
    /// Whether some could have been literals.
    pub(super) is_guess: bool,
}

impl Ids {
    pub(super) fn add(&mut self, id: &str) {
        self.forms.insert(form(id));
        self.longest = self.longest.max(id.len());
        if self.examples.len() < MAX_EXAMPLES && !self.examples.contains(id) {
            self.examples.insert(id.to_owned());
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.forms.extend(&other.forms);
        self.longest = self.longest.max(other.longest);
        self.is_guess |= other.is_guess;
        let room = MAX_EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.iter().take(room).cloned());
    }
}

impl Node {
    /// The leaf of a key, which is created if it is new.
    pub(super) fn leaf(&mut self, segments: &[&str]) -> &mut Leaf {
        let Some((first, rest)) = segments.split_first() else { return self.leaf.get_or_insert_default() };
        if form(first) != Form::Word {
            let any = self.any.get_or_insert_default();
            any.ids.add(first);
            return any.leaf(rest);
        }
        if self.words.len() >= MAX_WORDS && !self.words.contains_key(*first) {
            let words: Vec<String> = self.words.keys().cloned().collect();
            self.turn_into_ids(&words);
        }
        // Once there were too many words, all of them are identifiers.
        if self.any.as_ref().is_some_and(|any| any.ids.is_guess) && !self.words.contains_key(*first) {
            let any = self.any.get_or_insert_default();
            any.ids.add(first);
            return any.leaf(rest);
        }
        self.words.entry((*first).to_owned()).or_default().leaf(rest)
    }

    /// Moves words to the node of identifiers.
    pub(super) fn turn_into_ids(&mut self, words: &[String]) {
        let any = self.any.get_or_insert_default();
        any.ids.is_guess = true;
        for word in words {
            if let Some(node) = self.words.remove(word) {
                any.ids.add(word);
                any.merge(node);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { words, any, ids: _, leaf } = other;
        for (word, node) in words {
            self.words.entry(word).or_default().merge(node);
        }
        if let Some(node) = any {
            let any = self.any.get_or_insert_default();
            any.ids.merge(&node.ids);
            any.merge(*node);
        }
        if let Some(leaf) = leaf {
            self.leaf.get_or_insert_default().merge(&leaf);
        }
    }

    /// What follows this node, such as `{words}:state string`: equal for places of the same kind.
    pub(super) fn signature(&self) -> BTreeSet<String> {
        let mut shapes = BTreeSet::new();
        if let Some(leaf) = &self.leaf {
            shapes.insert(format!("= {}", leaf.type_name()));
        }
        for (word, node) in &self.words {
            shapes.extend(node.signature().iter().map(|shape| format!("{word}:{shape}")));
        }
        if let Some(any) = &self.any {
            let forms: Vec<&str> = any.ids.forms.iter().map(|form| form.name()).collect();
            shapes.extend(any.signature().iter().map(|shape| format!("{{{}}}:{shape}", forms.join("|"))));
        }
        shapes
    }
}
