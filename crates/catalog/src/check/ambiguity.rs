//! Ensures that no two entries can build the same key: reserves words for identifiers and rejects overlapping patterns.
//!
//! Closed sets are treated as literal text: each pattern is first expanded to one variant per combination of members, so that
//! `ratelimit:{endpoint}:…` and `ratelimit:lock:acquire:…` are distinguished.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use super::{MAX_VARIANTS, expand};
use crate::error::{Result, reject};
use crate::ident::EncodingRules;
use crate::key::Layout;
use crate::load::LocatedEntry;
use crate::model::{Catalog, Entry, IdForm};
use crate::pattern::{Part, Pattern, Segment};

/// Identifiers must encode the separators of all patterns that contain them.
pub(crate) fn encode_separators(catalog: &mut Catalog, located: &[LocatedEntry<'_>]) {
    for pattern in located.iter().map(|located| &located.entry.plain) {
        let separator = pattern.separator();
        for id in pattern.ids().filter(|_| separator != ':') {
            if let Some(IdForm::Text(rules)) = catalog.ids.get_mut(id).map(|kind| &mut kind.form)
                && !rules.separators.contains(separator)
            {
                rules.separators.to_mut().push(separator);
            }
        }
    }
}

/// Reserves, for each kind of identifier, the literal words that other patterns have in its position.
pub(crate) fn reserve_siblings(catalog: &mut Catalog, located: &[LocatedEntry<'_>]) -> Result<()> {
    let variants = all_variants(catalog, located, |entry| vec![&entry.plain])?;
    let mut reserved: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for variant in &variants {
        for (position, segment) in variant.segments.iter().enumerate() {
            let Some(id) = segment.id else { continue };
            let words = variants.iter().filter_map(|other| {
                let sibling = other.segments.get(position).filter(|sibling| sibling.id.is_none())?;
                let mut parents = variant.segments.iter().zip(&other.segments).take(position);
                let is_sibling = other.pattern.separator() == variant.pattern.separator()
                    && parents.all(|(a, b)| {
                        a.prefix == b.prefix && a.suffix == b.suffix && a.id.is_some() == b.id.is_some()
                    });
                identifier_in(segment, &sibling.prefix).filter(|word| is_sibling && !word.is_empty())
            });
            reserved.entry(id).or_default().extend(words.map(str::to_owned));
        }
    }
    for (id, words) in reserved {
        if let Some(IdForm::Text(rules)) = catalog.ids.get_mut(id).map(|kind| &mut kind.form) {
            rules.reserved = words.into_iter().map(Cow::Owned).collect();
        }
    }
    Ok(())
}

/// No two entries may build the same key in either layout. Keys, channels and groups are separate namespaces.
pub(crate) fn reject_overlaps(catalog: &Catalog, located: &[LocatedEntry<'_>]) -> Result<()> {
    for layout in [Layout::Plain, Layout::Cluster] {
        let variants = all_variants(catalog, located, |entry| match layout {
            // Former patterns are still looked up, so they must not be ambiguous either.
            Layout::Plain => entry.formerly.iter().chain([&entry.plain]).collect(),
            Layout::Cluster => vec![&entry.cluster],
        })?;
        for (position, later) in variants.iter().enumerate() {
            let mut earlier = variants.iter().take(position);
            let Some(clash) = earlier.find(|earlier| earlier.may_equal(catalog, later)) else { continue };
            let (name, other) = (&later.located.entry.name, &clash.located.entry.name);
            let (span, on) = match layout {
                Layout::Plain => (later.located.decl.pattern.span(), ""),
                Layout::Cluster => (later.located.cluster_span(), " on a cluster"),
            };
            let clash = if name == other {
                format!("{name} can build the same key from two combinations of its closed sets")
            } else {
                format!("{name} and {other} can build the same key{on}")
            };
            return reject(span, format!("{clash}: change a segment"));
        }
    }
    Ok(())
}

/// One expansion of a pattern: only text identifiers are left.
struct Variant<'a> {
    located: &'a LocatedEntry<'a>,
    pattern: Pattern,
    segments: Vec<Segment>,
    symbols: Vec<Symbol<'a>>,
}

impl Variant<'_> {
    fn may_equal(&self, catalog: &Catalog, other: &Self) -> bool {
        if discriminant(&self.located.entry.kind) != discriminant(&other.located.entry.kind) {
            return false;
        }
        if self.pattern.separator() != other.pattern.separator() {
            return overlap(&self.symbols, &other.symbols);
        }
        self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(|(a, b)| may_be_equal(catalog, a, b))
    }
}

/// The variants of the patterns that `patterns_of` selects.
fn all_variants<'a>(
    catalog: &'a Catalog,
    located: &'a [LocatedEntry<'a>],
    patterns_of: impl Fn(&'a Entry) -> Vec<&'a Pattern>,
) -> Result<Vec<Variant<'a>>> {
    let mut variants = Vec::new();
    for located in located {
        for pattern in patterns_of(&located.entry) {
            let Some(expanded) = expand(catalog, pattern, MAX_VARIANTS - variants.len()) else {
                let message =
                    format!("the patterns up to {pattern} expand to more than {MAX_VARIANTS} variants");
                return reject(located.decl.pattern.span(), message);
            };
            variants.extend(expanded.into_iter().map(|pattern| {
                let (segments, symbols) = (pattern.segments(), symbols(catalog, &pattern));
                Variant { located, pattern, segments, symbols }
            }));
        }
    }
    Ok(variants)
}

/// The identifier of `segment` for which the segment equals `text`.
fn identifier_in<'a>(segment: &Segment, text: &'a str) -> Option<&'a str> {
    text.strip_prefix(segment.prefix.as_str())?.strip_suffix(segment.suffix.as_str())
}

/// Whether two segments can be equal. May return true for segments that cannot.
fn may_be_equal(catalog: &Catalog, one: &Segment, other: &Segment) -> bool {
    let can_equal = |segment: &Segment, id: usize, literal: &str| {
        let rules = match catalog.id(id).map(|kind| &kind.form) {
            Some(IdForm::Text(rules)) => rules,
            _ => return true,
        };
        identifier_in(segment, literal).is_some_and(|word| rules.decode(word).is_some())
    };
    match (one.id, other.id) {
        (None, None) => one.prefix == other.prefix,
        (Some(id), None) => can_equal(one, id, &other.prefix),
        (None, Some(id)) => can_equal(other, id, &one.prefix),
        (Some(_), Some(_)) => {
            let nested = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
            let reversed = |text: &str| text.chars().rev().collect::<String>();
            nested(&one.prefix, &other.prefix) && nested(&reversed(&one.suffix), &reversed(&other.suffix))
        }
    }
}

/// A byte of a pattern, or an identifier with its encoding rules.
enum Symbol<'a> {
    Byte(u8),
    Id(&'a EncodingRules),
}

impl Symbol<'_> {
    fn matches(&self, byte: u8) -> bool {
        match self {
            Self::Byte(expected) => *expected == byte,
            Self::Id(rules) => rules.can_contain(byte),
        }
    }
}

fn symbols<'a>(catalog: &'a Catalog, pattern: &Pattern) -> Vec<Symbol<'a>> {
    let symbols = pattern.parts().iter().flat_map(|part| match part {
        Part::Text(text) => text.bytes().map(Symbol::Byte).collect(),
        Part::Id(id) => match catalog.id(*id).map(|kind| &kind.form) {
            Some(IdForm::Text(rules)) => vec![Symbol::Id(rules)],
            // Closed sets were expanded before.
            _ => Vec::new(),
        },
    });
    symbols.collect()
}

/// Whether some text matches both patterns. Walks through both at once; an identifier consumes one byte or more. Segments
/// cannot be compared here, because the separators differ.
fn overlap(one: &[Symbol<'_>], other: &[Symbol<'_>]) -> bool {
    let mut seen = BTreeSet::new();
    let mut pending = vec![(0, 0)];
    while let Some((left, right)) = pending.pop() {
        match (one.get(left), other.get(right)) {
            (None, None) => return true,
            (Some(a), Some(b)) if seen.insert((left, right)) => {
                let can_match = match (a, b) {
                    (Symbol::Byte(byte), other) | (other, Symbol::Byte(byte)) => other.matches(*byte),
                    // Every identifier can contain letters.
                    (Symbol::Id(_), Symbol::Id(_)) => true,
                };
                let can_repeat = |symbol: &Symbol<'_>| matches!(symbol, Symbol::Id(_));
                if can_match {
                    pending.push((left + 1, right + 1));
                    pending.extend(can_repeat(a).then_some((left, right + 1)));
                    pending.extend(can_repeat(b).then_some((left + 1, right)));
                }
            }
            _ => {}
        }
    }
    false
}

/// Whether a key of `pattern` can start with `prefix`. May return true for patterns that cannot.
pub(crate) fn may_match_prefix(catalog: &Catalog, pattern: &Pattern, prefix: &Pattern) -> bool {
    let expanded = |pattern| expand(catalog, pattern, MAX_VARIANTS).unwrap_or_default();
    let prefixes: Vec<Vec<Segment>> = expanded(prefix).iter().map(Pattern::segments).collect();
    expanded(pattern).iter().map(Pattern::segments).any(|segments| {
        prefixes.iter().any(|prefix| {
            segments.len() > prefix.len()
                && segments.iter().zip(prefix).all(|(a, b)| may_be_equal(catalog, a, b))
        })
    })
}
