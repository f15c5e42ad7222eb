//! No two keys are ever spelled alike: which words an identifier must not be written as, and which patterns could meet.
//!
//! Identifiers of a closed set are literal text here: each pattern is first unfolded into one variant per combination of
//! members, so that `ratelimit:{endpoint}:…` and `ratelimit:lock:acquire:…` can be told apart.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use super::{MAX_VARIANTS, unfold};
use crate::error::Fault;
use crate::ident::Rules;
use crate::key::Layout;
use crate::load::Placed;
use crate::model::{Catalog, Entry, EntryKind, IdForm};
use crate::pattern::{Part, Pattern, Segment};

/// An identifier avoids the separators of every pattern it stands in.
pub(crate) fn avoid_separators(catalog: &mut Catalog, placed: &[Placed]) {
    for pattern in
        placed.iter().map(|placed| &placed.entry.plain).filter(|pattern| pattern.separator() != ':')
    {
        for id in pattern.ids() {
            if let Some(IdForm::Text(rules)) = catalog.ids.get_mut(id).map(|kind| &mut kind.form)
                && !rules.separators.contains(pattern.separator())
            {
                rules.separators.to_mut().push(pattern.separator());
            }
        }
    }
}

/// A word that stands literally where another pattern has an identifier is reserved for that kind of identifier.
pub(crate) fn reserve_siblings(catalog: &mut Catalog, placed: &[Placed]) -> Result<(), Fault> {
    let variants = all_variants(catalog, placed, |entry| vec![&entry.plain])?;
    let mut reserved: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for one in &variants {
        for (position, segment) in one.segments.iter().enumerate() {
            let Some(id) = segment.id else { continue };
            for other in variants.iter().filter(|other| other.pattern.separator() == one.pattern.separator())
            {
                let Some(sibling) = other.segments.get(position).filter(|sibling| sibling.id.is_none())
                else {
                    continue;
                };
                let same_parents = one.segments.iter().zip(&other.segments).take(position).all(|(a, b)| {
                    a.prefix == b.prefix && a.suffix == b.suffix && a.id.is_some() == b.id.is_some()
                });
                let word = inside(segment, &sibling.prefix).filter(|word| !word.is_empty());
                if let (true, Some(word)) = (same_parents, word) {
                    reserved.entry(id).or_default().insert(word.to_owned());
                }
            }
        }
    }
    for (id, words) in reserved {
        if let Some(IdForm::Text(rules)) = catalog.ids.get_mut(id).map(|kind| &mut kind.form) {
            rules.reserved = words.into_iter().map(Cow::Owned).collect();
        }
    }
    Ok(())
}

/// No two entries can build the same key, in either layout. Keys and channels do not meet: a channel may be named like
/// a key.
pub(crate) fn refuse_overlaps(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    for layout in [Layout::Plain, Layout::Cluster] {
        let variants = all_variants(catalog, placed, |entry| match layout {
            // Former spellings are never built, but they are found: they must not be mistaken for others either.
            Layout::Plain => entry.formerly.iter().chain([&entry.plain]).collect(),
            Layout::Cluster => vec![&entry.cluster],
        })?;
        for (position, later) in variants.iter().enumerate() {
            let clash = variants
                .iter()
                .take(position)
                .find(|earlier| earlier.namespace == later.namespace && earlier.may_equal(catalog, later));
            if let (Some(earlier), Some(mine)) = (clash, placed.get(later.number)) {
                let other = placed.get(earlier.number).map_or("", |other| other.entry.name.as_str());
                let span = if layout == Layout::Plain { &mine.pattern_span } else { &mine.cluster_span };
                let on = if layout == Layout::Plain { "" } else { " on a cluster" };
                let message = if earlier.number == later.number {
                    format!(
                        "{other} could build one key from two choices of its closed sets: make a segment differ"
                    )
                } else {
                    format!(
                        "{} and {other} could build the same key{on}: make a segment differ",
                        mine.entry.name
                    )
                };
                return Err(Fault::new(span.clone(), message));
            }
        }
    }
    Ok(())
}

/// One unfolding of an entry's pattern: only free identifiers are left.
struct Variant {
    /// Position of the entry.
    number: usize,
    namespace: Discriminant<EntryKind>,
    pattern: Pattern,
    segments: Vec<Segment>,
}

impl Variant {
    /// The literal text before the first identifier.
    fn head(&self) -> &str {
        match self.pattern.parts().first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    fn may_equal(&self, catalog: &Catalog, other: &Self) -> bool {
        if self.pattern.separator() != other.pattern.separator() {
            let heads = self.head().bytes().zip(other.head().bytes());
            return heads.into_iter().all(|(a, b)| a == b)
                && overlap(&symbols(catalog, &self.pattern), &symbols(catalog, &other.pattern));
        }
        self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(|(a, b)| may_be_equal(catalog, a, b))
    }
}

/// The variants of those patterns of each entry that `patterns_of` chooses.
fn all_variants<'a>(
    catalog: &Catalog,
    placed: &'a [Placed],
    patterns_of: impl Fn(&'a Entry) -> Vec<&'a Pattern>,
) -> Result<Vec<Variant>, Fault> {
    let mut variants = Vec::new();
    for (number, placed) in placed.iter().enumerate() {
        let namespace = discriminant(&placed.entry.kind);
        for pattern in patterns_of(&placed.entry) {
            let Some(unfolded) = unfold(catalog, pattern, MAX_VARIANTS - variants.len()) else {
                let message =
                    format!("up to {pattern} there are more than {MAX_VARIANTS} spellings of patterns");
                return Err(Fault::new(placed.pattern_span.clone(), message));
            };
            variants.extend(unfolded.into_iter().map(|pattern| {
                let segments = pattern.segments();
                Variant { number, namespace, pattern, segments }
            }));
        }
    }
    Ok(variants)
}

/// The part of `text` that the identifier of `segment` would have to be.
fn inside<'a>(segment: &Segment, text: &'a str) -> Option<&'a str> {
    text.strip_prefix(segment.prefix.as_str())?.strip_suffix(segment.suffix.as_str())
}

/// Whether two segments can be written alike; in doubt, yes.
fn may_be_equal(catalog: &Catalog, one: &Segment, other: &Segment) -> bool {
    let can_write = |segment: &Segment, id: usize, literal: &str| {
        let rules = match catalog.id(id).map(|kind| &kind.form) {
            Some(IdForm::Text(rules)) => rules,
            _ => return true,
        };
        inside(segment, literal).is_some_and(|word| rules.read(word).is_some())
    };
    match (one.id, other.id) {
        (None, None) => one.prefix == other.prefix,
        (Some(id), None) => can_write(one, id, &other.prefix),
        (None, Some(id)) => can_write(other, id, &one.prefix),
        (Some(_), Some(_)) => {
            let nested = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
            let reversed = |text: &str| text.chars().rev().collect::<String>();
            nested(&one.prefix, &other.prefix) && nested(&reversed(&one.suffix), &reversed(&other.suffix))
        }
    }
}

/// A pattern as what it can be read as: bytes, and identifiers that are written by their rules.
enum Symbol<'a> {
    Byte(u8),
    Id(&'a Rules),
}

impl Symbol<'_> {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Id(rules) => rules.may_write(byte),
        }
    }
}

fn symbols<'a>(catalog: &'a Catalog, pattern: &Pattern) -> Vec<Symbol<'a>> {
    let mut symbols = Vec::new();
    for part in pattern.parts() {
        match part {
            Part::Text(text) => symbols.extend(text.bytes().map(Symbol::Byte)),
            Part::Id(id) => symbols.extend(catalog.id(*id).and_then(|kind| match &kind.form {
                IdForm::Text(rules) => Some(Symbol::Id(rules)),
                // Unfolded before.
                IdForm::OneOf(_) => None,
            })),
        }
    }
    symbols
}

/// Whether some text can be read as both: a walk through both at once, in which an identifier takes one byte or more.
/// Segments do not help here, because the two do not separate alike.
fn overlap(one: &[Symbol<'_>], other: &[Symbol<'_>]) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![(0, 0)];
    while let Some((left, right)) = open.pop() {
        match (one.get(left), other.get(right)) {
            (None, None) => return true,
            (Some(a), Some(b)) if seen.insert((left, right)) => {
                let share = match (a, b) {
                    (Symbol::Byte(byte), other) | (other, Symbol::Byte(byte)) => other.takes(*byte),
                    // Every identifier can be written with letters.
                    (Symbol::Id(_), Symbol::Id(_)) => true,
                };
                let stays = |symbol: &Symbol<'_>| matches!(symbol, Symbol::Id(_));
                if share {
                    open.push((left + 1, right + 1));
                    open.extend(stays(a).then_some((left, right + 1)));
                    open.extend(stays(b).then_some((left + 1, right)));
                }
            }
            _ => {}
        }
    }
    false
}

/// Whether some key of `pattern` lies below `prefix`; in doubt, yes.
pub(crate) fn may_lie_below(catalog: &Catalog, pattern: &Pattern, prefix: &Pattern) -> bool {
    let unfolded = |pattern| unfold(catalog, pattern, MAX_VARIANTS).unwrap_or_default();
    let prefixes: Vec<Vec<Segment>> = unfolded(prefix).iter().map(Pattern::segments).collect();
    unfolded(pattern).iter().map(Pattern::segments).any(|segments| {
        prefixes.iter().any(|prefix| {
            segments.len() > prefix.len()
                && segments.iter().zip(prefix).all(|(a, b)| may_be_equal(catalog, a, b))
        })
    })
}
