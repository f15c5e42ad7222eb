//! From the file to the model. Each check yields the first fault with its place; what concerns several entries at once
//! is in [`crate::check`].

mod ids;
mod ttl;

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;

use crate::builders::{camel, snake, variant};
use crate::check::{self, ambiguity};
use crate::error::Fault;
use crate::file::{ChannelDecl, FamilyDecl, File, GroupDecl, Header, KeyDecl};
use crate::key::MAX_IDS;
use crate::model::{
    Catalog, DEFAULT_KEY_LIMIT, Described, Entry, EntryKind, Family, Field, Format, IdKind, KeyShape,
    ValueType,
};
use crate::pattern::{Dialect, Pattern, is_identifier_name};
use crate::text::{closest, one_line};

/// Longest name of anything in bytes.
const MAX_NAME: usize = 64;
/// Largest limit on keys in bytes.
const MAX_KEY_LIMIT: usize = 1000;
/// Most identifiers, or members of a closed set, or names of groups.
const MAX_LISTED: usize = 1000;

/// An entry and where its name and its pattern stand, for the checks that follow.
pub(crate) struct Placed {
    pub(crate) entry: Entry,
    pub(crate) name_span: Range<usize>,
    pub(crate) pattern_span: Range<usize>,
    pub(crate) cluster_span: Range<usize>,
    pub(crate) owner_span: Range<usize>,
    ttl_span: Range<usize>,
}

/// The parts every entry has.
struct Common<'a> {
    name: &'a Spanned<String>,
    pattern: &'a Spanned<String>,
    cluster: Option<&'a Spanned<String>>,
    separator: Option<&'a Spanned<char>>,
    owner: &'a Spanned<String>,
    purpose: &'a Spanned<String>,
    addition: bool,
}

macro_rules! common_of {
    ($decl:ty) => {
        impl<'a> From<&'a $decl> for Common<'a> {
            fn from(decl: &'a $decl) -> Self {
                Self {
                    name: &decl.name,
                    pattern: &decl.pattern,
                    cluster: decl.cluster.as_ref(),
                    separator: decl.separator.as_ref(),
                    owner: &decl.owner,
                    purpose: &decl.purpose,
                    addition: decl.addition,
                }
            }
        }
    };
}
common_of!(KeyDecl);
common_of!(ChannelDecl);
common_of!(GroupDecl);

pub(crate) fn load(source: &str) -> Result<Catalog, Fault> {
    let file: File = toml::from_str(source)
        .map_err(|error| Fault::new(error.span().unwrap_or(source.len()..source.len()), error.message()))?;
    let header = file.catalog.get_ref();
    expect_word(&header.name)?;
    let mut catalog = Catalog {
        name: header.name.get_ref().clone(),
        title: one_line(&header.title),
        source: one_line(&header.source),
        key_limit: key_limit(header)?,
        owner_segment: header.owner_segment.as_ref().map(|segment| *segment.get_ref()),
        ids: ids::ids(&file.id)?,
        entries: Vec::new(),
        families: Vec::new(),
    };

    let mut placed = Vec::new();
    for decl in &file.key {
        placed.push(key(&catalog.ids, decl)?);
    }
    for decl in &file.channel {
        let described = |message: &Described| Described {
            name: one_line(&message.name),
            about: one_line(&message.about),
        };
        let kind = EntryKind::Channel { messages: decl.messages.iter().map(described).collect() };
        placed.push(entry(&catalog.ids, &decl.into(), kind)?);
    }
    for decl in &file.group {
        let names = group_names(&decl.names)?;
        let kind = EntryKind::Group { stream: decl.stream.get_ref().clone(), names };
        placed.push(entry(&catalog.ids, &decl.into(), kind)?);
    }
    placed.sort_by_key(|placed| placed.name_span.start);
    unique_names(&placed)?;
    streams_of_groups(&file, &placed)?;
    ttl::resolve_likes(&mut placed)?;
    check::lengths(&catalog, &placed)?;
    check::owners(&catalog, header, &placed)?;
    check::tags(&catalog, &placed)?;
    ambiguity::avoid_separators(&mut catalog, &placed);
    ambiguity::reserve_siblings(&mut catalog, &placed)?;
    ambiguity::refuse_overlaps(&catalog, &placed)?;
    catalog.families = families(&file.family, &catalog.ids)?;
    check::families(&catalog, &placed)?;
    catalog.entries = placed.into_iter().map(|placed| placed.entry).collect();
    Ok(catalog)
}

fn key(ids: &[IdKind], decl: &KeyDecl) -> Result<Placed, Fault> {
    let value_type = *decl.value_type.get_ref();
    let ttl = ttl::ttl(&decl.ttl)?;
    if ttl.maxlen.is_some() && value_type != ValueType::Stream {
        return Err(Fault::new(decl.ttl.span(), "maxlen bounds streams only"));
    }
    let format = shape_of(decl)?;
    let shape = KeyShape {
        value_type,
        ttl,
        cleanup: decl.cleanup.as_deref().map(one_line),
        format,
        sensitivity: decl.sensitivity,
        fields: decl
            .fields
            .iter()
            .map(|field| field.get_ref())
            .map(|field| Field {
                name: one_line(&field.name),
                about: one_line(&field.about),
                ..field.clone()
            })
            .collect(),
        score: decl.score.as_deref().map(one_line),
        members: decl.members.as_deref().map(one_line),
        value: decl.value.as_deref().map(one_line),
    };
    let mut placed = entry(ids, &decl.into(), EntryKind::Key(shape))?;
    placed.ttl_span = decl.ttl.span();
    for former in &decl.formerly {
        let separator = placed.entry.plain.separator();
        let parsed = pattern(ids, former.get_ref(), former.span(), separator, Dialect::Plain)?;
        if parsed.ids().ne(placed.entry.plain.ids()) {
            return Err(Fault::new(
                former.span(),
                "an earlier spelling has the same identifiers in the same order",
            ));
        }
        placed.entry.formerly.push(parsed);
    }
    Ok(placed)
}

/// Whether everything its type calls for is explained, and nothing else; returns the format of its value.
fn shape_of(decl: &KeyDecl) -> Result<Format, Fault> {
    let value_type = *decl.value_type.get_ref();
    let (name, kind) = (decl.name.get_ref(), value_type.as_str());
    let fault = |message: String| Err(Fault::new(decl.name.span(), message));
    let has_fields = matches!(value_type, ValueType::Hash | ValueType::Stream);
    if let Some(field) = decl.fields.first().filter(|_| !has_fields) {
        return Err(Fault::new(field.span(), format!("a {kind} has no fields")));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = decl.fields.iter().find(|field| !seen.insert(&field.get_ref().name)) {
        return Err(Fault::new(twice.span(), format!("the field {} is listed twice", twice.get_ref().name)));
    }
    if value_type == ValueType::Hash && decl.fields.is_empty() {
        return fault(format!("{name} is incomplete: a hash needs its fields"));
    }
    let is_collection = matches!(value_type, ValueType::Zset | ValueType::Set | ValueType::List);
    for (what, given, belongs) in [
        ("score", &decl.score, value_type == ValueType::Zset),
        ("members", &decl.members, is_collection),
        ("value", &decl.value, value_type == ValueType::String),
    ] {
        match (given, belongs) {
            (Some(_), false) => return fault(format!("{name} is a {kind}: it has no {what}")),
            (None, true) => {
                return fault(format!("{name} is incomplete: a {kind} needs its {what} explained"));
            }
            _ => {}
        }
    }
    let natural = if has_fields { Format::Hash } else { Format::Plain };
    match &decl.format {
        None => Ok(natural),
        Some(format) if (*format.get_ref() == Format::Hash) == has_fields => Ok(*format.get_ref()),
        Some(odd) => Err(Fault::new(odd.span(), format!("a {kind} cannot have this format"))),
    }
}

fn families(decls: &[FamilyDecl], ids: &[IdKind]) -> Result<Vec<Family>, Fault> {
    let mut families: Vec<Family> = Vec::new();
    for decl in decls {
        expect_word(&decl.name)?;
        let (name, written) = (decl.name.get_ref(), decl.pattern.get_ref());
        if families.iter().any(|family| family.name == *name) {
            return Err(Fault::new(decl.name.span(), format!("the family {name} is listed twice")));
        }
        let prefix =
            written.strip_suffix(":*").or_else(|| written.strip_suffix(":{key}")).ok_or_else(|| {
                let message =
                    "the pattern of a family ends in \":*\" or \":{key}\", as in med:{env}:{module}:idem:*";
                Fault::new(decl.pattern.span(), message)
            })?;
        families.push(Family {
            name: name.clone(),
            pattern: written.clone(),
            prefix: pattern(ids, prefix, decl.pattern.span(), ':', Dialect::Plain)?,
            purpose: one_line(decl.purpose.get_ref()),
            must_expire: decl.must_expire,
            format: decl.format,
            addition: decl.addition,
        });
    }
    Ok(families)
}

fn entry(ids: &[IdKind], common: &Common<'_>, kind: EntryKind) -> Result<Placed, Fault> {
    let name = common.name.get_ref();
    let well_named = name.split_once('.').is_some_and(|(group, name)| is_word(group) && is_word(name));
    if !well_named || name.starts_with("ids.") {
        return Err(Fault::new(
            common.name.span(),
            format!(
                "{name:?} is not a name: write group.name in lower case with digits and underscores (the group \"ids\" is taken)"
            ),
        ));
    }
    for text in [common.owner, common.purpose] {
        if text.get_ref().trim().is_empty() {
            return Err(Fault::new(
                text.span(),
                format!("{name} needs an owner and a purpose: this is empty"),
            ));
        }
    }
    let separator = common.separator.map_or(':', |separator| *separator.get_ref());
    if let Some(place) = common.separator.filter(|_| !":./|".contains(separator)) {
        return Err(Fault::new(place.span(), "a separator is one of : . / |"));
    }
    let plain = pattern(ids, common.pattern.get_ref(), common.pattern.span(), separator, Dialect::Plain)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = plain.ids().find(|id| !seen.insert(*id)).and_then(|id| ids.get(id)) {
        let message = format!("{{{}}} stands twice in {plain}: declare a second identifier", twice.name);
        return Err(Fault::new(common.pattern.span(), message));
    }
    if plain.ids().count() > MAX_IDS {
        return Err(Fault::new(common.pattern.span(), format!("a key has at most {MAX_IDS} identifiers")));
    }
    let cluster = match common.cluster {
        Some(text) => pattern(ids, text.get_ref(), text.span(), separator, Dialect::Cluster)?,
        None => plain.clone(),
    };
    let cluster_span = common.cluster.map_or(common.pattern.span(), Spanned::span);
    if cluster != plain && cluster.tag().is_none() {
        let message = "a cluster pattern that differs needs a hash tag: braces around more than one name";
        return Err(Fault::new(cluster_span, message));
    }
    if cluster.ids().ne(plain.ids()) {
        return Err(Fault::new(
            cluster_span,
            format!("both layouts of {name} need the same identifiers in the same order"),
        ));
    }
    Ok(Placed {
        entry: Entry {
            name: name.clone(),
            plain,
            cluster,
            owner: one_line(common.owner.get_ref()),
            purpose: one_line(common.purpose.get_ref()),
            addition: common.addition,
            formerly: Vec::new(),
            kind,
        },
        name_span: common.name.span(),
        pattern_span: common.pattern.span(),
        cluster_span,
        owner_span: common.owner.span(),
        ttl_span: common.name.span(),
    })
}

fn key_limit(header: &Header) -> Result<usize, Fault> {
    match &header.key_limit {
        None => Ok(DEFAULT_KEY_LIMIT),
        Some(limit) if (1..=MAX_KEY_LIMIT).contains(limit.get_ref()) => Ok(*limit.get_ref()),
        Some(odd) => Err(Fault::new(odd.span(), format!("key_limit is a number from 1 to {MAX_KEY_LIMIT}"))),
    }
}

fn group_names(names: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>, Fault> {
    let mut known: Vec<String> = Vec::new();
    at_most(names.get_ref().len(), names.span())?;
    for name in names.get_ref() {
        let text = name.get_ref();
        if variant(text).is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message =
                format!("{text:?} is no name of a consumer group: use printable ASCII without spaces");
            return Err(Fault::new(name.span(), message));
        }
        if let Some(twin) = known.iter().find(|other| variant(other) == variant(text)) {
            return Err(Fault::new(
                name.span(),
                format!("{text:?} is listed already, or cannot be told from {twin:?}"),
            ));
        }
        known.push(text.clone());
    }
    if known.is_empty() {
        return Err(Fault::new(names.span(), "names is empty: name at least one consumer group"));
    }
    Ok(known)
}

fn pattern(
    ids: &[IdKind],
    text: &str,
    span: Range<usize>,
    separator: char,
    dialect: Dialect,
) -> Result<Pattern, Fault> {
    let id_named = |name: &str| {
        ids.iter().position(|kind| kind.name == name).ok_or_else(|| {
            let hint = closest(name, ids.iter().map(|kind| kind.name.as_str())).map_or_else(
                || format!("add [[id]] name = {name:?}"),
                |near| format!("did you mean {{{near}}}?"),
            );
            format!("the identifier {{{name}}} is not declared; {hint}")
        })
    };
    Pattern::parse(text, separator, dialect, id_named).map_err(|fault| {
        // With escapes or three quotes the text is not where it seems; then the whole string is the place.
        let is_simple = span.len() == text.len() + 2 || span.len() == text.len() + 4;
        let start = if is_simple { span.start + 1 + fault.offset } else { span.start };
        Fault::new(start..span.end, format!("in the pattern {text:?}: {}", fault.message))
    })
}

/// Names are unique, and so are the types that builders make of groups.
fn unique_names(placed: &[Placed]) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for placed in placed {
        let entry = &placed.entry;
        let (module, name) = entry.group_and_name();
        let type_name =
            matches!(entry.kind, EntryKind::Group { .. }).then(|| format!("{module}.{}", camel(name)));
        if !seen.insert(entry.name.clone()) || type_name.is_some_and(|name| !seen.insert(name)) {
            let message = format!("{} is listed twice, or cannot be told from another name", entry.name);
            return Err(Fault::new(placed.name_span.clone(), message));
        }
    }
    Ok(())
}

/// A group's stream exists and has the group's identifiers.
fn streams_of_groups(file: &File, placed: &[Placed]) -> Result<(), Fault> {
    for decl in &file.group {
        let stream = decl.stream.get_ref();
        let streams = placed.iter().map(|placed| &placed.entry).filter(|entry| entry.type_name() == "stream");
        let group =
            placed.iter().map(|placed| &placed.entry).find(|entry| entry.name == *decl.name.get_ref());
        match streams.clone().find(|entry| entry.name == *stream) {
            None => {
                let hint = did_you_mean(stream, streams.map(|entry| entry.name.as_str()));
                return Err(Fault::new(
                    decl.stream.span(),
                    format!("{stream:?} is not a stream of this catalog{hint}"),
                ));
            }
            Some(found) if group.is_some_and(|group| group.plain.ids().ne(found.plain.ids())) => {
                let message = format!("the group needs the identifiers of its stream, {}", found.plain);
                return Err(Fault::new(decl.pattern.span(), message));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn at_most(count: usize, span: Range<usize>) -> Result<(), Fault> {
    if count <= MAX_LISTED {
        return Ok(());
    }
    Err(Fault::new(span, format!("{count} are too many: list at most {MAX_LISTED}")))
}

/// `; did you mean …?`, if something is close.
fn did_you_mean<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    closest(name, candidates).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn expect_word(name: &Spanned<String>) -> Result<(), Fault> {
    if is_word(name.get_ref()) {
        return Ok(());
    }
    let message = format!(
        "{:?} is not a name: use lower case, digits and underscores, beginning with a letter",
        name.get_ref()
    );
    Err(Fault::new(name.span(), message))
}

fn is_word(text: &str) -> bool {
    is_name(text) && !text.contains(|c: char| c.is_ascii_uppercase())
}

/// A name that fits into messages and, in any of the forms that builders give it, into Rust.
fn is_name(text: &str) -> bool {
    is_identifier_name(text)
        && text.len() <= MAX_NAME
        && !text.contains("__")
        && !text.ends_with('_')
        && !["self", "super", "crate"].contains(&snake(text).as_str())
}
