//! The way back: from a concrete key to its entry and identifiers, in either layout.

use crate::ident::Identifier;
use crate::model::{Catalog, Entry, Family, IdForm, IdKind};
use crate::pattern::{Part, Pattern};

/// What a concrete key turned out to be.
#[derive(Debug, Clone)]
pub struct Found<'a> {
    /// Its entry.
    pub entry: &'a Entry,
    /// How it is spelled.
    pub spelling: Spelling,
    /// Its identifiers in order.
    pub ids: Vec<FoundId<'a>>,
}

/// How a concrete key is spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// The same in both layouts.
    Both,
    /// As on a standalone server.
    Plain,
    /// With the hash tag of a cluster.
    Cluster,
    /// An earlier spelling, no longer built.
    Former,
}

/// An identifier inside a concrete key.
#[derive(Debug, Clone)]
pub struct FoundId<'a> {
    /// Its kind.
    pub kind: &'a IdKind,
    /// As it stands in the key.
    pub written: String,
    /// What it means; `None` if no builder writes it like that.
    pub identifier: Option<Identifier>,
}

/// How closely a key must fit a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    /// A builder could have written it.
    Exact,
    /// Members of closed sets are what they must be; other identifiers may be spelled in any way.
    Members,
    /// Only its literal text fits.
    Shape,
}

impl Found<'_> {
    /// Whether every identifier is written as a builder writes it.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        self.ids.iter().all(|id| id.identifier.is_some())
    }
}

impl Catalog {
    /// The entry that a concrete key, channel or group belongs to; former spellings come last. A key that no builder
    /// would spell like this is found too, as long as its shape fits; see [`Found::is_canonical`].
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Found<'_>> {
        let current = self.entries.iter().flat_map(|entry| {
            let plain = if entry.plain == entry.cluster { Spelling::Both } else { Spelling::Plain };
            [(entry, plain, &entry.plain), (entry, Spelling::Cluster, &entry.cluster)]
        });
        let former = self
            .entries
            .iter()
            .flat_map(|entry| entry.formerly.iter().map(move |pattern| (entry, Spelling::Former, pattern)));
        let found = |care: Care| {
            current.clone().chain(former.clone()).find_map(|(entry, spelling, pattern)| {
                let ids = self.match_parts(pattern, pattern.parts(), key, care, &str::is_empty)?;
                Some(Found { entry, spelling, ids })
            })
        };
        [Care::Exact, Care::Members, Care::Shape].into_iter().find_map(found)
    }

    /// The families a concrete key belongs to, in whichever layout it is spelled.
    pub fn families_of(&self, key: &str) -> impl Iterator<Item = &Family> {
        let untagged = key.replace(['{', '}'], "");
        self.families.iter().filter(move |family| matches_prefix(self, &family.prefix, &untagged))
    }

    fn match_parts<'a>(
        &'a self,
        pattern: &Pattern,
        parts: &[Part],
        text: &str,
        care: Care,
        at_end: &dyn Fn(&str) -> bool,
    ) -> Option<Vec<FoundId<'a>>> {
        let (first, later) = match parts.split_first() {
            None => return at_end(text).then(Vec::new),
            Some(split) => split,
        };
        let go_on = |rest: &str| self.match_parts(pattern, later, rest, care, at_end);
        let number = match first {
            Part::Text(literal) => return go_on(text.strip_prefix(literal.as_str())?),
            Part::Id(number) => *number,
        };
        let kind = self.id(number)?;
        let with = |written: &str, identifier, mut ids: Vec<FoundId<'a>>| {
            ids.insert(0, FoundId { kind, written: written.to_owned(), identifier });
            Some(ids)
        };
        match &kind.form {
            IdForm::OneOf(members) if care != Care::Shape => members.iter().find_map(|member| {
                let ids = go_on(text.strip_prefix(member.value.as_str())?)?;
                with(&member.value, Some(Identifier::Exact(member.value.clone())), ids)
            }),
            form => {
                let end = text
                    .find(|c| c == pattern.separator() || matches!(c, ':' | '{' | '}'))
                    .unwrap_or(text.len());
                let ends = (1..=end).rev().filter(|end| text.is_char_boundary(*end));
                ends.map(|end| text.split_at(end)).find_map(|(written, rest)| {
                    let ids = go_on(rest)?;
                    let identifier = match form {
                        IdForm::Text(rules) => rules.read(written),
                        IdForm::OneOf(members) => {
                            let is_member = members.iter().any(|member| member.value == written);
                            is_member.then(|| Identifier::Exact(written.to_owned()))
                        }
                    };
                    let is_wrong = care == Care::Exact && identifier.is_none();
                    if is_wrong { None } else { with(written, identifier, ids) }
                })
            }
        }
    }
}

/// Whether `key` lies below the prefix, with something following it.
pub(crate) fn matches_prefix(catalog: &Catalog, prefix: &Pattern, key: &str) -> bool {
    let follows = |rest: &str| rest.strip_prefix(':').is_some_and(|rest| !rest.is_empty());
    catalog.match_parts(prefix, prefix.parts(), key, Care::Members, &follows).is_some()
}
