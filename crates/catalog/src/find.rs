//! Looks up a concrete key: its entry and its identifiers, in either layout.

use crate::ident::Identifier;
use crate::model::{Catalog, Entry, Family, IdForm, IdKind};
use crate::pattern::{Part, Pattern};

/// The entry and identifiers of a concrete key.
#[derive(Debug, Clone)]
pub struct KeyMatch<'a> {
    /// The matching entry.
    pub entry: &'a Entry,
    /// The layout that matches.
    pub layout: MatchedLayout,
    /// The identifiers, in the order of the pattern.
    pub ids: Vec<MatchedId<'a>>,
}

/// The layout in which a concrete key is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchedLayout {
    /// The same in both layouts.
    Both,
    /// The plain layout, for standalone servers and Sentinel.
    Plain,
    /// The cluster layout, with a hash tag.
    Cluster,
    /// A former pattern that is no longer written.
    Former,
}

/// An identifier in a concrete key.
#[derive(Debug, Clone)]
pub struct MatchedId<'a> {
    /// The kind of identifier.
    pub kind: &'a IdKind,
    /// The text in the key.
    pub written: String,
    /// The decoded identifier; `None` if the text is not a canonical encoding.
    pub identifier: Option<Identifier>,
}

/// How strictly a key must match a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    /// All identifiers are encoded canonically.
    Canonical,
    /// Identifiers of closed sets are members; others may have any text.
    Members,
    /// Only the literal text matches.
    Shape,
}

/// A pattern, the entry that it belongs to, and what it says about the layout of a key.
pub(crate) type Spelling<'a> = (&'a Entry, MatchedLayout, &'a Pattern);

impl KeyMatch<'_> {
    /// Whether every identifier is encoded canonically.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        self.ids.iter().all(|id| id.identifier.is_some())
    }
}

impl Catalog {
    /// Finds the entry of a concrete key, channel or group; present patterns take precedence over former ones. Keys whose
    /// identifiers are not encoded canonically are found too; see [`KeyMatch::is_canonical`].
    #[must_use]
    pub fn find(&self, key: &str) -> Option<KeyMatch<'_>> {
        self.first_match(&self.spellings(), key)
    }

    /// Every pattern with its entry, in the order of precedence: those in use, then former ones.
    pub(crate) fn spellings(&self) -> impl Iterator<Item = Spelling<'_>> + Clone {
        let current = self.entries.iter().flat_map(|entry| {
            let plain = if entry.plain == entry.cluster { MatchedLayout::Both } else { MatchedLayout::Plain };
            [(entry, plain, &entry.plain), (entry, MatchedLayout::Cluster, &entry.cluster)]
        });
        let former = self.entries.iter().flat_map(|entry| {
            entry.formerly.iter().map(move |pattern| (entry, MatchedLayout::Former, pattern))
        });
        current.chain(former)
    }

    /// The first of the patterns that matches the key: those with canonical identifiers take precedence.
    pub(crate) fn first_match<'a>(
        &'a self,
        spellings: &(impl Iterator<Item = Spelling<'a>> + Clone),
        key: &str,
    ) -> Option<KeyMatch<'a>> {
        let find = |strictness: Strictness| {
            spellings.clone().find_map(|(entry, layout, pattern)| {
                let ids = self.match_parts(pattern, pattern.parts(), key, strictness, &str::is_empty)?;
                Some(KeyMatch { entry, layout, ids })
            })
        };
        [Strictness::Canonical, Strictness::Members, Strictness::Shape].into_iter().find_map(find)
    }

    /// The families of a concrete key in either layout.
    pub fn families_of(&self, key: &str) -> impl Iterator<Item = &Family> {
        let untagged = key.replace(['{', '}'], "");
        self.families.iter().filter(move |Family { prefix, .. }| {
            // The prefix is followed by at least one more segment.
            let at_end = |rest: &str| rest.strip_prefix(':').is_some_and(|rest| !rest.is_empty());
            self.match_parts(prefix, prefix.parts(), &untagged, Strictness::Members, &at_end).is_some()
        })
    }

    fn match_parts<'a>(
        &'a self,
        pattern: &Pattern,
        parts: &[Part],
        text: &str,
        strictness: Strictness,
        at_end: &dyn Fn(&str) -> bool,
    ) -> Option<Vec<MatchedId<'a>>> {
        let Some((first, later)) = parts.split_first() else { return at_end(text).then(Vec::new) };
        let match_rest = |rest: &str| self.match_parts(pattern, later, rest, strictness, at_end);
        let number = match first {
            Part::Text(literal) => return match_rest(text.strip_prefix(literal.as_str())?),
            Part::Id(number) => *number,
        };
        let kind = self.id(number)?;
        let prepend = |written: &str, identifier, mut ids: Vec<MatchedId<'a>>| {
            ids.insert(0, MatchedId { kind, written: written.to_owned(), identifier });
            Some(ids)
        };
        match &kind.form {
            IdForm::OneOf(members) if strictness != Strictness::Shape => members.iter().find_map(|member| {
                let ids = match_rest(text.strip_prefix(member.value.as_str())?)?;
                prepend(&member.value, Some(Identifier::Exact(member.value.clone())), ids)
            }),
            form => {
                let end = text.find([pattern.separator(), ':', '{', '}']).unwrap_or(text.len());
                let mut splits = (1..=end).rev().filter_map(|end| text.split_at_checked(end));
                splits.find_map(|(written, rest)| {
                    let ids = match_rest(rest)?;
                    let identifier = match form {
                        IdForm::Text(rules) => rules.decode(written),
                        IdForm::OneOf(members) => {
                            let is_member = members.iter().any(|member| member.value == written);
                            is_member.then(|| Identifier::Exact(written.to_owned()))
                        }
                    };
                    let is_rejected = strictness == Strictness::Canonical && identifier.is_none();
                    if is_rejected { None } else { prepend(written, identifier, ids) }
                })
            }
        }
    }
}

/// Finds the entry of a concrete key in several catalogs; one whose identifiers are encoded canonically takes precedence.
#[must_use]
pub fn find_in<'a>(catalogs: &'a [Catalog], key: &str) -> Option<(&'a Catalog, KeyMatch<'a>)> {
    let mut found: Vec<_> =
        catalogs.iter().filter_map(|catalog| Some((catalog, catalog.find(key)?))).collect();
    let canonical = found.iter().position(|(_, found)| found.is_canonical()).unwrap_or(0);
    (!found.is_empty()).then(|| found.swap_remove(canonical))
}

/// The entry whose pattern comes closest to the key, with the identifiers of the key filled in. Only a hint.
#[must_use]
pub fn nearest<'a>(catalogs: &'a [Catalog], key: &str) -> Option<(&'a str, &'a str)> {
    let patterns = catalogs.iter().flat_map(|catalog| {
        let both = catalog.entries.iter().flat_map(|entry| [(entry, &entry.plain), (entry, &entry.cluster)]);
        both.flat_map(|(entry, pattern)| {
            expand_members(catalog, pattern).into_iter().map(move |text| (entry, pattern, text))
        })
    });
    let candidates: Vec<(&str, &str, String)> = patterns
        .map(|(entry, pattern, text)| {
            let separator = pattern.separator();
            let key_segments: Vec<&str> = key.split(separator).collect();
            let filled = text.split(separator).enumerate().map(|(position, segment)| {
                let is_id = segment.contains('{') && segment.contains('}');
                if is_id { key_segments.get(position).copied().unwrap_or_default() } else { segment }
            });
            (entry.name.as_str(), pattern.text(), filled.collect::<Vec<_>>().join(&separator.to_string()))
        })
        .collect();
    let near = crate::closest(key, candidates.iter().map(|(.., filled)| filled.as_str()))?;
    candidates.iter().find(|(.., filled)| filled == near).map(|(name, pattern, _)| (*name, *pattern))
}

/// The pattern, once for every member of a closed set with colons: such members span several segments.
fn expand_members(catalog: &Catalog, pattern: &Pattern) -> Vec<String> {
    let members = pattern.ids().filter_map(|number| catalog.id(number)).find_map(|kind| match &kind.form {
        IdForm::OneOf(members) if members.iter().any(|member| member.value.contains(':')) => {
            Some((kind, members))
        }
        _ => None,
    });
    let Some((kind, members)) = members else { return vec![pattern.text().to_owned()] };
    let placeholder = format!("{{{}}}", kind.name);
    members.iter().map(|member| pattern.text().replace(&placeholder, &member.value)).collect()
}
