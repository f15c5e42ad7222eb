//! Checks over the whole catalog: what makes it unambiguous, bounded and owned.
//!
//! Identifiers of a closed set are literal text as far as ambiguity goes: each pattern is first unfolded into one variant
//! per member, so that `ratelimit:{endpoint}:…` and `ratelimit:lock:acquire:…` can be told apart.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};

use crate::builders::camel;
use crate::error::Fault;
use crate::file::Header;
use crate::find::matches_prefix;
use crate::ident::Rules;
use crate::key::Layout;
use crate::load::Placed;
use crate::model::{Catalog, EntryKind, Family, IdForm};
use crate::pattern::{Part, Pattern, Segment};

/// Bound on unfolded variants of all patterns: they are compared with each other.
const MAX_VARIANTS: usize = 4096;

/// Every key stays below the limit, in both layouts, whatever the identifiers.
pub(crate) fn lengths(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    for placed in placed {
        let both =
            [(&placed.entry.plain, &placed.pattern_span), (&placed.entry.cluster, &placed.cluster_span)];
        for (pattern, span) in both {
            let longest: usize = pattern
                .parts()
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.len(),
                    Part::Id(id) => catalog.id(*id).map_or(0, |kind| kind.longest()),
                })
                .fold(0, usize::saturating_add);
            if longest >= catalog.key_limit {
                let message = format!(
                    "{} can reach {longest} bytes and must stay below {}: lower max_bytes of its identifiers",
                    placed.entry.name, catalog.key_limit
                );
                return Err(Fault::new(span.clone(), message));
            }
        }
    }
    Ok(())
}

/// Where a segment names the owner, it names the right one, and so does the entry's group.
pub(crate) fn owners(catalog: &Catalog, header: &Header, others: &[Placed]) -> Result<(), Fault> {
    let Some(place) = &header.owner_segment else { return Ok(()) };
    let position = *place.get_ref();
    if position == 0 {
        return Err(Fault::new(place.span(), "owner_segment counts from 1"));
    }
    for placed in others {
        let (entry, segments) = (&placed.entry, placed.entry.plain.segments());
        let owner = segments.get(position - 1).filter(|segment| segment.id.is_none());
        if owner.is_none_or(|segment| segment.prefix != entry.owner) {
            let message =
                format!("segment {position} of {} must be its owner, {:?}", entry.plain, entry.owner);
            return Err(Fault::new(placed.pattern_span.clone(), message));
        }
        if entry.group_and_name().0 != entry.owner {
            let name = format!("{}.{}", entry.owner, entry.group_and_name().1);
            let message = format!("{} belongs to {:?}: name it {name:?}", entry.name, entry.owner);
            return Err(Fault::new(placed.owner_span.clone(), message));
        }
        if entry.group_and_name().1 == "new" {
            let message = format!(
                "{} cannot be called new: the type of its owner has a function of that name",
                entry.name
            );
            return Err(Fault::new(placed.name_span.clone(), message));
        }
        let twin = owner_twin(&entry.owner, others.iter().map(|other| other.entry.owner.as_str()));
        if let Some(twin) = twin {
            let message =
                format!("the owner {:?} cannot be told from {twin:?}: choose another name", entry.owner);
            return Err(Fault::new(placed.owner_span.clone(), message));
        }
        let shared = segments.iter().take(position - 1).filter_map(|segment| segment.id);
        if shared.clone().any(|id| !matches!(catalog.id(id).map(|kind| &kind.form), Some(IdForm::OneOf(_)))) {
            let message = "identifiers before the owner's segment must be closed sets (one_of)";
            return Err(Fault::new(placed.pattern_span.clone(), message));
        }
    }
    let leading = |placed: &Placed| -> Vec<usize> {
        placed.entry.plain.segments().iter().take(position - 1).filter_map(|segment| segment.id).collect()
    };
    match others.iter().find(|other| others.first().is_some_and(|first| leading(first) != leading(other))) {
        Some(odd) => Err(Fault::new(
            odd.pattern_span.clone(),
            format!("{} has other identifiers before its owner than the first entry", odd.entry.name),
        )),
        None => Ok(()),
    }
}

/// Another owner whose builder type would have the same name.
fn owner_twin<'a>(owner: &str, mut others: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    others.find(|other| *other != owner && camel(other) == camel(owner))
}

/// Tags of one shape use the same identifiers: otherwise one entity could be spelled in two ways, on two slots.
pub(crate) fn tags(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    let mut shapes: BTreeMap<String, (Vec<usize>, &str)> = BTreeMap::new();
    for placed in placed {
        let Some((shape, ids)) = placed.entry.cluster.tag() else { continue };
        let (first, named) = shapes.entry(shape.clone()).or_insert((ids.clone(), &placed.entry.name));
        if *first != ids {
            let names: Vec<&str> =
                first.iter().filter_map(|id| Some(catalog.id(*id)?.name.as_str())).collect();
            let message = format!(
                "the hash tag {{{shape}}} is filled with {} in {named}: use the same identifiers here",
                names.join(", ")
            );
            return Err(Fault::new(placed.cluster_span.clone(), message));
        }
    }
    Ok(())
}

/// An identifier avoids the separators of every pattern it stands in.
pub(crate) fn separators(catalog: &mut Catalog, placed: &[Placed]) {
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
    let variants = all_variants(catalog, placed, Layout::Plain)?;
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
pub(crate) fn overlaps(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    for layout in [Layout::Plain, Layout::Cluster] {
        let variants = all_variants(catalog, placed, layout)?;
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

/// Every key below a family's prefix obeys the family.
pub(crate) fn families(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    for placed in placed {
        let EntryKind::Key(shape) = &placed.entry.kind else { continue };
        let variants = unfold(catalog, &placed.entry.plain, MAX_VARIANTS).unwrap_or_default();
        let examples: Vec<String> = variants.iter().map(|variant| example(catalog, variant)).collect();
        let is_of =
            |family: &&Family| examples.iter().any(|key| matches_prefix(catalog, &family.prefix, key));
        for family in catalog.families.iter().filter(is_of) {
            let message = if family.must_expire && !shape.ttl.rule.expires() {
                format!(
                    "{} must have a ttl: keys of the family {} always expire",
                    placed.entry.name, family.name
                )
            } else if family.format.is_some_and(|format| format != shape.format) {
                format!("{} does not have the format of the family {}", placed.entry.name, family.name)
            } else {
                continue;
            };
            return Err(Fault::new(placed.name_span.clone(), message));
        }
    }
    Ok(())
}

/// A key that a variant can build.
fn example(catalog: &Catalog, variant: &Pattern) -> String {
    let written: Vec<String> = variant
        .ids()
        .filter_map(|id| catalog.id(id))
        .map(|kind| kind.write(&kind.example).unwrap_or_default())
        .collect();
    let mut written = written.iter();
    variant.fill(|_| written.next().map_or("", String::as_str))
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
    fn may_equal(&self, catalog: &Catalog, other: &Self) -> bool {
        if self.pattern.separator() != other.pattern.separator() {
            return overlap(&symbols(catalog, &self.pattern), &symbols(catalog, &other.pattern));
        }
        self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(|(a, b)| may_be_equal(catalog, a, b))
    }
}

fn all_variants(catalog: &Catalog, placed: &[Placed], layout: Layout) -> Result<Vec<Variant>, Fault> {
    let mut variants = Vec::new();
    for (number, placed) in placed.iter().enumerate() {
        let pattern = placed.entry.pattern(layout);
        let unfolded = unfold(catalog, pattern, MAX_VARIANTS - variants.len()).ok_or_else(|| {
            let message =
                format!("the closed sets up to {pattern} have more than {MAX_VARIANTS} combinations");
            Fault::new(placed.pattern_span.clone(), message)
        })?;
        let namespace = discriminant(&placed.entry.kind);
        variants.extend(unfolded.into_iter().map(|pattern| {
            let segments = pattern.segments();
            Variant { number, namespace, pattern, segments }
        }));
    }
    Ok(variants)
}

/// All combinations of the pattern's closed sets, unless there are more than `most`.
fn unfold(catalog: &Catalog, pattern: &Pattern, most: usize) -> Option<Vec<Pattern>> {
    let mut unfolded: Vec<Vec<Part>> = vec![Vec::new()];
    for part in pattern.parts() {
        let alternatives: Vec<Part> = match part {
            Part::Id(id) => match catalog.id(*id).map(|kind| &kind.form) {
                Some(IdForm::OneOf(members)) => {
                    members.iter().map(|member| Part::Text(member.value.clone())).collect()
                }
                _ => vec![part.clone()],
            },
            Part::Text(_) => vec![part.clone()],
        };
        if unfolded.len() * alternatives.len() > most {
            return None;
        }
        unfolded = unfolded
            .iter()
            .flat_map(|parts| {
                alternatives.iter().map(|next| [parts.as_slice(), std::slice::from_ref(next)].concat())
            })
            .collect();
    }
    Some(unfolded.into_iter().map(|parts| pattern.with_parts(parts)).collect())
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
                let share = (0x21..0x7f).any(|byte| a.takes(byte) && b.takes(byte));
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
