//! Conversions of the key catalogs.

use ade_catalog::find::{MatchedId, MatchedLayout};
use ade_catalog::listing::{Details, Example, IdRow, Row};
use ade_catalog::model::{EntryKind, Family, Member};
use ade_catalog::slot::slot_of;
use ade_catalog::{Catalog, Identifier, KeyMatch};
use ade_client::wire;

pub(crate) fn key_catalog(catalog: &Catalog) -> wire::KeyCatalog {
    wire::KeyCatalog {
        name: catalog.name.clone(),
        title: catalog.title.clone(),
        source: catalog.source.clone(),
        entries: catalog.rows().into_iter().map(entry).collect(),
    }
}

fn entry(row: Row<'_>) -> wire::KeyEntry {
    wire::KeyEntry {
        name: row.name.to_owned(),
        catalog: row.catalog.to_owned(),
        pattern: row.pattern,
        cluster_pattern: row.cluster_pattern,
        kind: row.type_name.to_owned(),
        ttl: row.ttl,
        owner: row.owner.to_owned(),
        purpose: row.purpose.to_owned(),
        addition: row.addition,
        formerly: row.formerly.into_iter().map(str::to_owned).collect(),
    }
}

fn identifier(row: &IdRow<'_>) -> wire::KeyIdentifier {
    let text = |member: &Member| member.value.clone();
    wire::KeyIdentifier {
        name: row.name.to_owned(),
        about: row.about.to_owned(),
        form: row.form.clone(),
        one_of: row.one_of.iter().map(text).collect(),
    }
}

fn named(name: &str, about: &str) -> wire::KeyField {
    wire::KeyField { name: name.to_owned(), kind: None, about: about.to_owned(), addition: false }
}

fn without_value(entry: wire::KeyEntry) -> wire::KeyDetails {
    wire::KeyDetails {
        entry,
        format: None,
        sensitivity: None,
        cleanup: None,
        value: None,
        members: None,
        score: None,
        fields: Vec::new(),
        messages: Vec::new(),
        stream: None,
        identifiers: Vec::new(),
        example: None,
        cluster_example: None,
    }
}

pub(crate) fn key_family_details(catalog: &Catalog, family: &Family) -> wire::KeyDetails {
    without_value(entry(catalog.family_row(family)))
}

pub(crate) fn key_details(details: &Details<'_>) -> wire::KeyDetails {
    let example = |example: &Example| Some(wire::KeyExample { key: example.key.clone(), slot: example.slot });
    let mut shown = wire::KeyDetails {
        identifiers: details.identifiers.iter().map(identifier).collect(),
        example: example(&details.example),
        cluster_example: example(&details.cluster_example),
        ..without_value(entry(details.row.clone()))
    };
    match details.kind {
        EntryKind::Key(shape) => {
            shown.format = Some(shape.format.to_string());
            shown.sensitivity = Some(shape.sensitivity.to_string());
            shown.cleanup.clone_from(&shape.cleanup);
            shown.value.clone_from(&shape.value);
            shown.members.clone_from(&shape.members);
            shown.score.clone_from(&shape.score);
            let fields = shape.fields.iter().map(|field| wire::KeyField {
                kind: Some(field.field_type.to_string()),
                addition: field.addition,
                ..named(&field.name, &field.about)
            });
            shown.fields = fields.collect();
        }
        EntryKind::Channel { messages } => {
            shown.messages = messages.iter().map(|message| named(&message.name, &message.about)).collect();
        }
        EntryKind::Group { names, stream } => {
            shown.messages = names.iter().map(|name| named(name, "consumer group")).collect();
            shown.stream = Some(stream.clone());
        }
    }
    shown
}

pub(crate) fn key_explanation(catalog: &Catalog, found: &KeyMatch<'_>, key: &str) -> wire::KeyExplanation {
    let layout = match found.layout {
        MatchedLayout::Both => "both",
        MatchedLayout::Plain => "plain",
        MatchedLayout::Cluster => "cluster",
        MatchedLayout::Former => "former",
    };
    wire::KeyExplanation {
        key: key.to_owned(),
        entry: entry(catalog.row(found.entry)),
        layout: layout.to_owned(),
        canonical: found.is_canonical(),
        identifiers: found.ids.iter().map(explained_identifier).collect(),
        slot: slot_of(key.as_bytes()),
    }
}

fn explained_identifier(id: &MatchedId<'_>) -> wire::ExplainedIdentifier {
    let (value, digest) = match &id.identifier {
        Some(Identifier::Exact(text)) => (Some(text.clone()), None),
        Some(Identifier::Hashed { digest, .. }) => (None, Some(digest.clone())),
        None => (None, None),
    };
    let should_be = if id.identifier.is_none() { id.kind.canonicalize(&id.written).ok() } else { None };
    wire::ExplainedIdentifier {
        name: id.kind.name.clone(),
        about: id.kind.about.clone(),
        written: id.written.clone(),
        value,
        digest,
        should_be,
    }
}
