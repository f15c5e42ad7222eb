//! `ade keys explain`: maps a concrete key to its entry. The key comes from outside and is never printed raw.

use std::borrow::Cow;

use ade_catalog::find::{MatchedId, MatchedLayout, find_in};
use ade_catalog::slot::slot_of;
use ade_catalog::{Catalog, Identifier};
use owo_colors::OwoColorize;
use serde::Serialize;

use super::catalog_names;
use crate::failure::{Failure, Result};
use crate::output::OutputFormat;
use crate::output::page::Page;

/// Longest part of a key that is printed.
const MAX_PRINTED_CHARS: usize = 220;

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
    /// The present spelling in the plain layout, if the key has a former one.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
}

#[derive(Serialize)]
struct ExplainedId<'a> {
    name: &'a str,
    about: &'a str,
    written: &'a str,
    /// The identifier, unless the key contains only its hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    /// The first 40 digits of the SHA-256 of the identifier, if the key contains only that.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
    /// The canonical spelling, if the key has another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    should_be: Option<String>,
}

impl ExplainedId<'_> {
    /// The canonical spelling. That of a hash is the text in the key: it must not be encoded as if it were text.
    fn canonical(&self) -> Option<&str> {
        let is_canonical = self.value.or(self.digest).is_some();
        if is_canonical { Some(self.written) } else { self.should_be.as_deref() }
    }
}

pub(super) fn run(catalogs: &[Catalog], key: &str, format: OutputFormat) -> Result {
    let Some((catalog, found)) = find_in(catalogs, key) else { return Err(unknown_key(catalogs, key)) };
    let row = catalog.row(found.entry);
    let identifiers: Vec<ExplainedId<'_>> = found.ids.iter().map(explain_id).collect();
    let spelled: Option<Vec<&str>> = identifiers.iter().map(ExplainedId::canonical).collect();
    let spelled = spelled.filter(|_| found.layout == MatchedLayout::Former).map(Vec::into_iter);
    let now = spelled.map(|mut ids| found.entry.plain.fill(|_| ids.next().unwrap_or_default()));
    let explanation = Explanation {
        key,
        name: row.name,
        catalog: row.catalog,
        layout: match found.layout {
            MatchedLayout::Both => "plain and cluster",
            MatchedLayout::Plain => "plain",
            MatchedLayout::Cluster => "cluster",
            MatchedLayout::Former => "former",
        },
        canonical: found.is_canonical(),
        identifiers,
        type_name: row.type_name,
        ttl: row.ttl,
        owner: row.owner,
        purpose: row.purpose,
        slot: slot_of(key.as_bytes()),
        now,
    };
    format.print(&explanation, page)?;
    if explanation.canonical { Ok(()) } else { Err(not_canonical(&explanation, &found.ids)) }
}

fn explain_id<'a>(id: &'a MatchedId<'_>) -> ExplainedId<'a> {
    let (value, digest) = match &id.identifier {
        Some(Identifier::Exact(text)) => (Some(text.as_str()), None),
        Some(Identifier::Hashed { digest, .. }) => (None, Some(digest.as_str())),
        None => (None, None),
    };
    let should_be = if id.identifier.is_none() { id.kind.canonicalize(&id.written).ok() } else { None };
    ExplainedId { name: &id.kind.name, about: &id.kind.about, written: &id.written, value, digest, should_be }
}

fn page(explanation: &Explanation<'_>) -> Page {
    let mut page = Page::default();
    page.line(format_args!("{}  {}", explanation.name.bold(), explanation.purpose));
    for id in &explanation.identifiers {
        let meaning = match (id.value, id.digest) {
            (Some(value), _) => format!("{:?}", shortened(value)),
            (None, Some(digest)) => format!("hashed: its SHA-256 begins with {digest}"),
            (None, None) => format!("{:?}, which is not canonical", shortened(id.written)),
        };
        page.line(format_args!("  {:<16} {meaning}  ({})", id.name.cyan(), id.about));
    }
    page.field("catalog", explanation.catalog);
    page.field("layout", explanation.layout);
    page.field("type", explanation.type_name);
    page.field("ttl", &explanation.ttl);
    page.field("owner", explanation.owner);
    page.field("slot", explanation.slot);
    page.optional("now written", explanation.now.as_ref());
    page
}

fn not_canonical(explanation: &Explanation<'_>, ids: &[MatchedId<'_>]) -> Failure {
    let invalid = ids.iter().filter(|id| id.identifier.is_none());
    let corrections = invalid.map(|id| match id.kind.canonicalize(&id.written) {
        Ok(should_be) => format!("write {:?} as {should_be}", shortened(&id.written)),
        Err(error) => error.to_string(),
    });
    let (key, name) = (shortened(explanation.key), explanation.name);
    Failure::negative(format!("{key:?} matches {name}, but its identifiers are not encoded canonically"))
        .hints(corrections)
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_PRINTED_CHARS) {
        Some((end, _)) => {
            Cow::Owned(format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()))
        }
        None => Cow::Borrowed(text),
    }
}

fn unknown_key(catalogs: &[Catalog], key: &str) -> Failure {
    let near = ade_catalog::find::nearest(catalogs, key)
        .map(|(name, pattern)| format!("the nearest entry is {name}: {pattern}"));
    let family = catalogs.iter().find_map(|catalog| catalog.families_of(key).last());
    let family = family.map(|family| format!("it is in the family {} ({})", family.name, family.purpose));
    let general = "list every pattern with ade keys list, or read another catalog with --catalog FILE";
    let general = (near.is_none() && family.is_none()).then(|| general.to_owned());
    let (names, shown) = (catalog_names(catalogs), shortened(key));
    let failure = Failure::negative(format!("no entry of {names} matches {shown:?}"));
    failure.hints(near).hints(family).hints(general)
}
