//! Checks across all entries: key lengths, owners, hash tags and families. Ambiguity is checked in [`ambiguity`].

pub(crate) mod ambiguity;

use std::collections::BTreeMap;

use self::ambiguity::may_match_prefix;
use crate::builders::camel;
use crate::error::SourceError;
use crate::file::Header;
use crate::load::LocatedEntry;
use crate::model::{Catalog, EntryKind, Family, IdForm};
use crate::pattern::{Part, Pattern};

/// Limit on the variants of all patterns, because each pair of them is compared.
const MAX_VARIANTS: usize = 4096;

/// Keys must be shorter than the limit in both layouts, for any identifiers.
pub(crate) fn lengths(catalog: &Catalog, located: &[LocatedEntry]) -> Result<(), SourceError> {
    for located in located {
        let both =
            [(&located.entry.plain, &located.pattern_span), (&located.entry.cluster, &located.cluster_span)];
        for (pattern, span) in both {
            let max_len: usize = pattern
                .parts()
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.len(),
                    Part::Id(id) => catalog.id(*id).map_or(0, |kind| kind.max_len()),
                })
                .fold(0, usize::saturating_add);
            if max_len >= catalog.key_limit {
                let message = format!(
                    "{} can reach {max_len} bytes and must stay below {}: lower max_bytes of its identifiers",
                    located.entry.name, catalog.key_limit
                );
                return Err(SourceError::new(span.clone(), message));
            }
        }
    }
    Ok(())
}

/// If a segment names the owner, it must match the owner and the group of the entry.
pub(crate) fn owners(catalog: &Catalog, header: &Header, all: &[LocatedEntry]) -> Result<(), SourceError> {
    let Some(place) = &header.owner_segment else { return Ok(()) };
    let position = *place.get_ref();
    if position == 0 {
        return Err(SourceError::new(place.span(), "owner_segment starts at 1"));
    }
    let mut types: BTreeMap<String, &String> = BTreeMap::new();
    for located in all {
        let (entry, segments) = (&located.entry, located.entry.plain.segments());
        let owner = segments.get(position - 1).filter(|segment| segment.id.is_none());
        if owner.is_none_or(|segment| segment.prefix != entry.owner) {
            let message =
                format!("segment {position} of {} must be its owner, {:?}", entry.plain, entry.owner);
            return Err(SourceError::new(located.pattern_span.clone(), message));
        }
        if entry.group_and_name().0 != entry.owner {
            let name = format!("{}.{}", entry.owner, entry.group_and_name().1);
            let message = format!("{} belongs to {:?}: name it {name:?}", entry.name, entry.owner);
            return Err(SourceError::new(located.owner_span.clone(), message));
        }
        if entry.group_and_name().1 == "new" {
            let message = format!(
                "{} cannot be named new: the builder type of its owner has a function with this name",
                entry.name
            );
            return Err(SourceError::new(located.name_span.clone(), message));
        }
        let other = types.insert(camel(&entry.owner), &entry.owner).filter(|other| **other != entry.owner);
        if let Some(other) = other {
            let message = format!(
                "the owner {:?} has the same Rust name as {other:?}: choose another name",
                entry.owner
            );
            return Err(SourceError::new(located.owner_span.clone(), message));
        }
        let shared = segments.iter().take(position - 1).filter_map(|segment| segment.id);
        if shared.clone().any(|id| !matches!(catalog.id(id).map(|kind| &kind.form), Some(IdForm::OneOf(_)))) {
            let message = "identifiers before the segment of the owner must be closed sets (one_of)";
            return Err(SourceError::new(located.pattern_span.clone(), message));
        }
    }
    let leading = |located: &LocatedEntry| -> Vec<usize> {
        located.entry.plain.segments().iter().take(position - 1).filter_map(|segment| segment.id).collect()
    };
    match all.iter().find(|other| all.first().is_some_and(|first| leading(first) != leading(other))) {
        Some(different) => Err(SourceError::new(
            different.pattern_span.clone(),
            format!(
                "{} has different identifiers before its owner than the first entry",
                different.entry.name
            ),
        )),
        None => Ok(()),
    }
}

/// Hash tags of one shape must use the same identifiers: otherwise an entity could have two slots.
pub(crate) fn tags(catalog: &Catalog, located: &[LocatedEntry]) -> Result<(), SourceError> {
    let mut shapes: BTreeMap<String, (Vec<usize>, &str)> = BTreeMap::new();
    for located in located {
        let Some((shape, ids)) = located.entry.cluster.tag() else { continue };
        let (first, named) = shapes.entry(shape.clone()).or_insert((ids.clone(), &located.entry.name));
        if *first != ids {
            let names: Vec<&str> =
                first.iter().filter_map(|id| Some(catalog.id(*id)?.name.as_str())).collect();
            let message = format!(
                "the hash tag {{{shape}}} contains {} in {named}: use the same identifiers here",
                names.join(", ")
            );
            return Err(SourceError::new(located.cluster_span.clone(), message));
        }
    }
    Ok(())
}

/// Every key that may match the prefix of a family must obey its rules.
pub(crate) fn families(catalog: &Catalog, located: &[LocatedEntry]) -> Result<(), SourceError> {
    for located in located {
        let EntryKind::Key(shape) = &located.entry.kind else { continue };
        let may_match = |family: &&Family| may_match_prefix(catalog, &located.entry.plain, &family.prefix);
        for family in catalog.families.iter().filter(may_match) {
            let message = if family.must_expire && !shape.ttl.rule.expires() {
                format!(
                    "{} must have a ttl: keys of the family {} always expire",
                    located.entry.name, family.name
                )
            } else if family.format.is_some_and(|format| format != shape.format) {
                format!("{} does not have the format of the family {}", located.entry.name, family.name)
            } else {
                continue;
            };
            return Err(SourceError::new(located.name_span.clone(), message));
        }
    }
    Ok(())
}

/// Expands the closed sets of a pattern to all combinations; `None` if there are more than `limit`.
fn expand(catalog: &Catalog, pattern: &Pattern, limit: usize) -> Option<Vec<Pattern>> {
    let mut expanded: Vec<Vec<Part>> = vec![Vec::new()];
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
        if expanded.len() * alternatives.len() > limit {
            return None;
        }
        expanded = expanded
            .iter()
            .flat_map(|parts| {
                alternatives.iter().map(|next| [parts.as_slice(), std::slice::from_ref(next)].concat())
            })
            .collect();
    }
    Some(expanded.into_iter().map(|parts| pattern.with_parts(parts)).collect())
}
