//! Checks across all entries: key lengths, owners, hash tags and families. Ambiguity is checked in [`ambiguity`].

pub(crate) mod ambiguity;

use std::collections::BTreeMap;

use self::ambiguity::may_match_prefix;
use crate::builders::camel;
use crate::error::{Result, reject};
use crate::file::Header;
use crate::load::LocatedEntry;
use crate::model::{Catalog, Entry, EntryKind, Family, IdForm};
use crate::pattern::{Part, Pattern};

/// Limit on the variants of all patterns, because each pair of them is compared.
const MAX_VARIANTS: usize = 4096;

/// Keys must be shorter than the limit in both layouts, for any identifiers.
pub(crate) fn lengths(catalog: &Catalog, located: &[LocatedEntry<'_>]) -> Result<()> {
    for located in located {
        let Entry { name, plain, cluster, .. } = &located.entry;
        for (pattern, span) in [(plain, located.decl.pattern.span()), (cluster, located.cluster_span())] {
            let lengths = pattern.parts().iter().map(|part| match part {
                Part::Text(text) => text.len(),
                Part::Id(id) => catalog.id(*id).map_or(0, |kind| kind.max_len()),
            });
            let max_len = lengths.fold(0, usize::saturating_add);
            if max_len >= catalog.key_limit {
                let limit = catalog.key_limit;
                let advice = "lower max_bytes of its identifiers";
                let message =
                    format!("{name} can reach {max_len} bytes and must stay below {limit}: {advice}");
                return reject(span, message);
            }
        }
    }
    Ok(())
}

/// If a segment names the owner, it must match the owner and the group of the entry.
pub(crate) fn owners(catalog: &Catalog, header: &Header, all: &[LocatedEntry<'_>]) -> Result<()> {
    let Some(place) = &header.owner_segment else { return Ok(()) };
    let position = *place.get_ref();
    if position == 0 {
        return reject(place.span(), "owner_segment starts at 1");
    }
    let leading = |located: &LocatedEntry<'_>| located.entry.plain.leading_ids(position);
    let mut types: BTreeMap<String, &String> = BTreeMap::new();
    for located in all {
        let Entry { name, plain, owner, .. } = &located.entry;
        let (group, short_name) = located.entry.group_and_name();
        let segments = plain.segments();
        let named = segments.get(position - 1).filter(|segment| segment.id.is_none());
        if named.is_none_or(|segment| segment.prefix != *owner) {
            let message = format!("segment {position} of {plain} must be its owner, {owner:?}");
            return reject(located.decl.pattern.span(), message);
        }
        if group != owner {
            let right_name = format!("{owner}.{short_name}");
            let message = format!("{name} belongs to {owner:?}: name it {right_name:?}");
            return reject(located.decl.owner.span(), message);
        }
        if short_name == "new" {
            let reason = "the builder type of its owner has a function with this name";
            return reject(located.decl.name.span(), format!("{name} cannot be named new: {reason}"));
        }
        if let Some(other) = types.insert(camel(owner), owner).filter(|other| *other != owner) {
            let message =
                format!("the owner {owner:?} has the same Rust name as {other:?}: choose another name");
            return reject(located.decl.owner.span(), message);
        }
        let is_closed = |id: usize| matches!(catalog.id(id).map(|kind| &kind.form), Some(IdForm::OneOf(_)));
        if !leading(located).into_iter().all(is_closed) {
            let message = "identifiers before the segment of the owner must be closed sets (one_of)";
            return reject(located.decl.pattern.span(), message);
        }
    }
    let first = all.first().map(leading);
    match all.iter().find(|other| first.as_ref() != Some(&leading(other))) {
        Some(LocatedEntry { entry, decl, .. }) => {
            let message = "has different identifiers before its owner than the first entry";
            reject(decl.pattern.span(), format!("{} {message}", entry.name))
        }
        None => Ok(()),
    }
}

/// Hash tags of one shape must use the same identifiers: otherwise an entity could have two slots.
pub(crate) fn tags(catalog: &Catalog, located: &[LocatedEntry<'_>]) -> Result<()> {
    let mut shapes: BTreeMap<String, (Vec<usize>, &str)> = BTreeMap::new();
    for located in located {
        let Some((shape, ids)) = located.entry.cluster.tag() else { continue };
        let (first, named) = shapes.entry(shape.clone()).or_insert((ids.clone(), &located.entry.name));
        if *first != ids {
            let names = first.iter().filter_map(|id| Some(catalog.id(*id)?.name.as_str()));
            let names = names.collect::<Vec<_>>().join(", ");
            let message = format!(
                "the hash tag {{{shape}}} contains {names} in {named}: use the same identifiers here"
            );
            return reject(located.cluster_span(), message);
        }
    }
    Ok(())
}

/// Every key that may match the prefix of a family must obey its rules.
pub(crate) fn families(catalog: &Catalog, located: &[LocatedEntry<'_>]) -> Result<()> {
    for located in located {
        let Entry { name, plain, kind: EntryKind::Key(shape), .. } = &located.entry else { continue };
        let may_match = |family: &&Family| may_match_prefix(catalog, plain, &family.prefix);
        for family in catalog.families.iter().filter(may_match) {
            let message = if family.must_expire && !shape.ttl.rule.expires() {
                format!("{name} must have a ttl: keys of the family {} always expire", family.name)
            } else if family.format.is_some_and(|format| format != shape.format) {
                format!("{name} does not have the format of the family {}", family.name)
            } else {
                continue;
            };
            return reject(located.decl.name.span(), message);
        }
    }
    Ok(())
}

/// Expands the closed sets of a pattern to all combinations; `None` if there are more than `limit`.
fn expand(catalog: &Catalog, pattern: &Pattern, limit: usize) -> Option<Vec<Pattern>> {
    let mut expanded: Vec<Vec<Part>> = vec![Vec::new()];
    for part in pattern.parts() {
        let id = if let Part::Id(id) = part { catalog.id(*id) } else { None };
        let alternatives: Vec<Part> = match id.map(|kind| &kind.form) {
            Some(IdForm::OneOf(members)) => {
                members.iter().map(|member| Part::Text(member.value.clone())).collect()
            }
            _ => vec![part.clone()],
        };
        if expanded.len() * alternatives.len() > limit {
            return None;
        }
        let with = |parts: &Vec<Part>, next: &Part| [parts.as_slice(), std::slice::from_ref(next)].concat();
        let longer = expanded.iter().flat_map(|parts| alternatives.iter().map(|next| with(parts, next)));
        expanded = longer.collect();
    }
    Some(expanded.into_iter().map(|parts| pattern.with_parts(parts)).collect())
}
