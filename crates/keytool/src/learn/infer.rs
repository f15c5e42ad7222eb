//! Decides which words are literals of a pattern and which are identifiers, and lists the patterns.
//!
//! A word is an identifier if it is one of many with the same continuation, if it differs from its siblings by a number only, or
//! if it appears as a whole value somewhere: keys are built from identifiers that are stored, and not from words.

use std::collections::{BTreeMap, BTreeSet};

use super::leaf::Leaf;
use super::trie::{Ids, Node};
use super::words::stem;

/// So many words with the same continuation are identifiers.
const MANY_WORDS: usize = 12;

/// A pattern with what is known about its keys.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub(super) parts: Vec<Part>,
    pub(super) leaf: Leaf,
}

/// A segment of a pattern.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Literal(String),
    Id(Ids),
}

/// Turns words of the trie into identifiers, from its leaves up. `known` are texts in values.
pub(super) fn infer(node: &mut Node, depth: usize, known: &BTreeSet<String>) {
    for child in node.words.values_mut() {
        infer(child, depth + 1, known);
    }
    if let Some(any) = &mut node.any {
        infer(any, depth + 1, known);
    }
    // The first segment names the service.
    if depth == 0 {
        return;
    }
    let of_ids = node.any.as_ref().map(|any| any.signature());
    let mut groups: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
    for (word, child) in &node.words {
        groups.entry(child.signature()).or_default().push(word.clone());
    }
    for (signature, words) in groups {
        let evident = words.iter().filter(|word| known.contains(*word)).count();
        let is_leaf = signature.iter().all(|shape| shape.starts_with("= "));
        let numbered = words.len() > 1 && {
            let stems: BTreeSet<_> = words.iter().map(|word| stem(word)).collect();
            stems.len() == 1 && !stems.contains(&None)
        };
        let is_like_ids = of_ids.as_ref() == Some(&signature);
        let are_values = match (words.len(), is_leaf) {
            (1, true) => depth >= 2 && evident == 1,
            (1, false) => false,
            (many, true) => evident * 2 >= many,
            (many, false) => evident == many,
        };
        if words.len() >= MANY_WORDS || numbered || is_like_ids || are_values {
            node.turn_into_ids(&words);
        }
    }
    // Words that became identifiers may have made their continuations alike.
    if let Some(any) = &mut node.any {
        infer(any, depth + 1, known);
    }
}

/// The patterns of a trie, with their leaves.
pub(super) fn patterns(node: &Node, before: &[Part], found: &mut Vec<Pattern>) {
    let parts = |part: Part| before.iter().cloned().chain([part]).collect::<Vec<_>>();
    if let Some(leaf) = &node.leaf {
        found.push(Pattern { parts: before.to_vec(), leaf: leaf.clone() });
    }
    for (word, child) in &node.words {
        patterns(child, &parts(Part::Literal(word.clone())), found);
    }
    if let Some(any) = &node.any {
        patterns(any, &parts(Part::Id(any.ids.clone())), found);
    }
}
