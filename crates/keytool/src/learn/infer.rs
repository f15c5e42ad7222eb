//! Decides which words are literals of a pattern and which are identifiers, and lists the patterns.
//!
//! A word is an identifier if it is one of many with the same continuation, if it differs from its siblings by a number only, if
//! it appears as a whole value somewhere, because keys are built from identifiers that are stored, or if it and its siblings
//! enumerate the kinds of objects that other keys are about.

use std::collections::{BTreeMap, BTreeSet};

use super::leaf::Leaf;
use super::trie::{Ids, Node};
use super::words::stem;

/// So many words with the same continuation are identifiers.
const MANY_WORDS: usize = 12;
/// So many compound words with nothing beside them are names of settings.
const MIN_SETTINGS: usize = 3;

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

/// What is known besides the place of a word.
struct Evidence<'a> {
    /// Texts in values.
    known: &'a BTreeSet<String>,
    /// The second segments of all keys: kinds of objects.
    kinds: BTreeSet<String>,
    /// Words that have siblings somewhere, or are kinds.
    literals: BTreeSet<String>,
}

/// Turns words of a trie into identifiers, from its leaves up. `known` are texts in values.
pub(super) fn infer(root: &mut Node, known: &BTreeSet<String>) {
    let kinds: BTreeSet<String> =
        root.words.values().flat_map(|service| service.words.keys().cloned()).collect();
    let mut literals = kinds.clone();
    collect_siblings(root, &mut literals);
    infer_below(root, 0, &Evidence { known, kinds, literals });
}

fn collect_siblings(node: &Node, literals: &mut BTreeSet<String>) {
    let interior = node.words.iter().filter(|(_, child)| child.leaf.is_none());
    if node.words.len() > 1 {
        literals.extend(interior.map(|(word, _)| word.clone()));
    }
    node.words.values().chain(node.any.as_deref()).for_each(|child| collect_siblings(child, literals));
}

fn infer_below(node: &mut Node, depth: usize, evidence: &Evidence<'_>) {
    for child in node.words.values_mut() {
        infer_below(child, depth + 1, evidence);
    }
    if let Some(any) = &mut node.any {
        infer_below(any, depth + 1, evidence);
    }
    // The first segment names the service.
    if depth == 0 {
        return;
    }
    let of_ids = node.any.as_ref().map(|any| any.signature());
    let children = node.words.len() + usize::from(node.any.is_some());
    let mut groups: BTreeMap<BTreeSet<String>, Vec<String>> = BTreeMap::new();
    for (word, child) in &node.words {
        groups.entry(child.signature()).or_default().push(word.clone());
    }
    for (signature, words) in groups {
        let evident = words.iter().filter(|word| evidence.known.contains(*word)).count();
        let is_leaf = signature.iter().all(|shape| shape.starts_with("= "));
        let is_numbered = words.len() > 1 && {
            let stems: BTreeSet<_> = words.iter().map(|word| stem(word)).collect();
            stems.len() == 1 && !stems.contains(&None)
        };
        let is_like_ids = of_ids.as_ref().is_some_and(|of_ids| signature.is_subset(of_ids));
        let are_values = match (words.as_slice(), is_leaf) {
            ([_], true) => depth >= 2 && evident == 1,
            // Such as the type of a resource before its name.
            ([word], false) => {
                depth >= 3 && evident == 1 && children == 1 && !evidence.literals.contains(word)
            }
            (many, true) => evident * 2 >= many.len(),
            (many, false) => evident == many.len(),
        };
        let are_kinds = depth >= 2
            && is_leaf
            && words.len() > 1
            && words.iter().all(|word| evidence.kinds.contains(word));
        let are_settings = is_leaf
            && words.len() >= MIN_SETTINGS
            && children == words.len()
            && words.iter().all(|word| word.contains('_'));
        if words.len() >= MANY_WORDS || is_numbered || is_like_ids || are_values || are_kinds || are_settings
        {
            node.turn_into_ids(&words);
        }
    }
    // Words that became identifiers may have made their continuations alike.
    if let Some(any) = &mut node.any {
        infer_below(any, depth + 1, evidence);
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
