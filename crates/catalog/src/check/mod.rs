//! Checks over the whole catalog: what makes it bounded, owned and obedient to its families. That it is unambiguous is
//! checked in [`ambiguity`].

pub(crate) mod ambiguity;

use std::collections::BTreeMap;

use self::ambiguity::may_lie_below;
use crate::builders::camel;
use crate::error::Fault;
use crate::file::Header;
use crate::load::Placed;
use crate::model::{Catalog, EntryKind, Family, IdForm};
use crate::pattern::{Part, Pattern};

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
pub(crate) fn owners(catalog: &Catalog, header: &Header, all: &[Placed]) -> Result<(), Fault> {
    let Some(place) = &header.owner_segment else { return Ok(()) };
    let position = *place.get_ref();
    if position == 0 {
        return Err(Fault::new(place.span(), "owner_segment counts from 1"));
    }
    let mut types: BTreeMap<String, &String> = BTreeMap::new();
    for placed in all {
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
        let twin = types.insert(camel(&entry.owner), &entry.owner).filter(|twin| **twin != entry.owner);
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
    match all.iter().find(|other| all.first().is_some_and(|first| leading(first) != leading(other))) {
        Some(odd) => Err(Fault::new(
            odd.pattern_span.clone(),
            format!("{} has other identifiers before its owner than the first entry", odd.entry.name),
        )),
        None => Ok(()),
    }
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

/// Every key that could lie below a family's prefix obeys the family.
pub(crate) fn families(catalog: &Catalog, placed: &[Placed]) -> Result<(), Fault> {
    for placed in placed {
        let EntryKind::Key(shape) = &placed.entry.kind else { continue };
        let is_of = |family: &&Family| may_lie_below(catalog, &placed.entry.plain, &family.prefix);
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
