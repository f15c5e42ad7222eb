//! `ade keys explain`: what a concrete key is. The key comes from outside: it is never printed raw.

use std::borrow::Cow;

use ade_catalog::find::{FoundId, Spelling};
use ade_catalog::slot::slot_of;
use ade_catalog::{Catalog, Found, Identifier};
use owo_colors::OwoColorize;
use serde::Serialize;

use super::nearest::nearest;
use crate::failure::{Failure, Kind};
use crate::output;

/// Longest text from outside that is repeated on the terminal.
const SHOWN_CHARACTERS: usize = 220;

#[derive(Serialize)]
struct Explanation<'a> {
    key: &'a str,
    name: &'a str,
    catalog: &'a str,
    layout: &'static str,
    canonical: bool,
    identifiers: Vec<ExplainedId<'a>>,
    #[serde(rename = "type")]
    type_name: &'static str,
    ttl: String,
    owner: &'a str,
    purpose: &'a str,
    slot: u16,
    /// The plain spelling that replaced this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
}

#[derive(Serialize)]
struct ExplainedId<'a> {
    name: &'a str,
    about: &'a str,
    written: &'a str,
    /// The exact identifier, where the key still tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    /// The documented hash of the identifier (40 digits of its SHA-256), where the key tells only that.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    /// How a builder writes it, where the key does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    should_be: Option<String>,
}

pub(super) fn run(catalogs: &[Catalog], key: &str, json: bool) -> Result<(), Failure> {
    let mut found: Vec<(&Catalog, Found<'_>)> =
        catalogs.iter().filter_map(|catalog| Some((catalog, catalog.find(key)?))).collect();
    if found.iter().any(|(_, found)| found.is_canonical()) {
        found.retain(|(_, found)| found.is_canonical());
    }
    let Some((catalog, found)) = found.first() else { return Err(unknown(catalogs, key)) };
    let row = catalog.row(found.entry);
    let explanation = Explanation {
        key,
        name: row.name,
        catalog: row.catalog,
        layout: match found.spelling {
            Spelling::Both => "plain and cluster",
            Spelling::Plain => "plain",
            Spelling::Cluster => "cluster",
            Spelling::Former => "former",
        },
        canonical: found.is_canonical(),
        identifiers: found.ids.iter().map(explained).collect(),
        type_name: row.type_name,
        ttl: row.ttl,
        owner: row.owner,
        purpose: row.purpose,
        slot: slot_of(key.as_bytes()),
        now: (found.spelling == Spelling::Former).then(|| present_spelling(found)).flatten(),
    };
    if json {
        output::json(&explanation)?;
    } else {
        print(&explanation)?;
    }
    if explanation.canonical { Ok(()) } else { Err(misspelled(&explanation, &found.ids)) }
}

/// How a builder spells what was found under a former spelling.
fn present_spelling(found: &Found<'_>) -> Option<String> {
    let written: Vec<String> = found
        .ids
        .iter()
        .map(|id| match id.identifier {
            // Already as a builder writes it; a hash would otherwise be taken for a text that looks like one.
            Some(_) => Some(id.written.clone()),
            None => id.kind.respell(&id.written).ok(),
        })
        .collect::<Option<_>>()?;
    let mut written = written.iter();
    Some(found.entry.plain.fill(|_| written.next().map_or("", String::as_str)))
}

fn explained<'a>(id: &'a FoundId<'_>) -> ExplainedId<'a> {
    let (value, digest) = match &id.identifier {
        Some(Identifier::Exact(text)) => (Some(text.as_str()), None),
        Some(Identifier::Hashed { digest, .. }) => (None, Some(digest.as_str())),
        None => (None, None),
    };
    let should_be = if id.identifier.is_none() { id.kind.respell(&id.written).ok() } else { None };
    ExplainedId { name: &id.kind.name, about: &id.kind.about, written: &id.written, value, digest, should_be }
}

fn print(explanation: &Explanation<'_>) -> Result<(), Failure> {
    output::line(&format!("{}  {}", explanation.name.bold(), explanation.purpose))?;
    for id in &explanation.identifiers {
        let meaning = match (id.value, id.digest) {
            (Some(value), _) => format!("{:?}", shortened(value)),
            (None, Some(digest)) => format!("hashed: sha256 begins {digest}"),
            (None, None) => format!("{:?}, which no builder writes like this", shortened(id.written)),
        };
        output::line(&format!("  {:<16} {meaning}  ({})", id.name.cyan(), id.about))?;
    }
    let facts = [
        ("catalog", explanation.catalog),
        ("layout", explanation.layout),
        ("type", explanation.type_name),
        ("ttl", &explanation.ttl),
        ("owner", explanation.owner),
        ("slot", &explanation.slot.to_string()),
    ];
    for (label, fact) in facts {
        output::fact(label, fact)?;
    }
    explanation.now.as_ref().map_or(Ok(()), |now| output::fact("now written", now))
}

fn misspelled(explanation: &Explanation<'_>, ids: &[FoundId<'_>]) -> Failure {
    let repairs: Vec<String> = ids
        .iter()
        .filter(|id| id.identifier.is_none())
        .map(|id| match id.kind.respell(&id.written) {
            Ok(should_be) => format!("a builder writes {:?} as {should_be}", shortened(&id.written)),
            Err(error) => error.to_string(),
        })
        .collect();
    let key = shortened(explanation.key);
    Failure::new(Kind::No, format!("{key:?} has the shape of {} but no builder writes it", explanation.name))
        .hint(repairs.join("; "))
}

/// A key may be of any length; a line on a terminal is not.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => {
            Cow::Owned(format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()))
        }
        None => Cow::Borrowed(text),
    }
}

fn unknown(catalogs: &[Catalog], key: &str) -> Failure {
    let failure =
        Failure::new(Kind::No, format!("no entry of {} describes {:?}", names(catalogs), shortened(key)));
    let near = nearest(catalogs, key).map(|(name, pattern)| format!("the nearest is {name}: {pattern}"));
    let family = catalogs.iter().find_map(|catalog| catalog.families_of(key).last());
    let family = family.map(|family| format!("it lies in the family {} ({})", family.name, family.purpose));
    let hints: Vec<String> = near.into_iter().chain(family).collect();
    if hints.is_empty() {
        return failure.hint("`ade keys list` shows every pattern; --catalog FILE reads another catalog");
    }
    failure.hint(hints.join("; "))
}

fn names(catalogs: &[Catalog]) -> String {
    catalogs.iter().map(|catalog| catalog.name.as_str()).collect::<Vec<_>>().join(", ")
}
