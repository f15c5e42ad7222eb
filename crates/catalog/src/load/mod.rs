//! Converts a parsed file to the model and validates each declaration. Checks across entries are in [`crate::check`]. The first
//! error is returned with its position.

mod ids;
mod ttl;

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;

use crate::builders::{camel, snake, variant};
use crate::check::{self, ambiguity};
use crate::error::SourceError;
use crate::file::{ChannelDecl, FamilyDecl, File, GroupDecl, Header, KeyDecl};
use crate::key::MAX_IDS;
use crate::model::{
    Catalog, DEFAULT_KEY_LIMIT, Entry, EntryKind, Family, Field, Format, IdKind, KeyShape, MessageDoc,
    ValueType,
};
use crate::pattern::{Dialect, Pattern, is_identifier_name};
use crate::text::{closest, one_line};

/// In bytes.
const MAX_NAME_LEN: usize = 64;
/// In bytes.
const MAX_KEY_LIMIT: usize = 1000;
/// Maximum number of identifiers, members of a closed set, or names of groups.
const MAX_LIST_LEN: usize = 1000;

/// An entry with the spans of its declaration, for later error messages.
pub(crate) struct LocatedEntry {
    pub(crate) entry: Entry,
    pub(crate) name_span: Range<usize>,
    pub(crate) pattern_span: Range<usize>,
    pub(crate) cluster_span: Range<usize>,
    pub(crate) owner_span: Range<usize>,
    ttl_span: Range<usize>,
}

/// The fields of every kind of entry.
struct CommonFields<'a> {
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
        impl<'a> From<&'a $decl> for CommonFields<'a> {
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

pub(crate) fn load(source: &str) -> Result<Catalog, SourceError> {
    let file: File = toml::from_str(source).map_err(|error| {
        SourceError::new(error.span().unwrap_or(source.len()..source.len()), error.message())
    })?;
    let header = file.catalog.get_ref();
    check_word(&header.name)?;
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

    let mut located = Vec::new();
    for decl in &file.key {
        located.push(key(&catalog.ids, decl)?);
    }
    for decl in &file.channel {
        let described = |message: &MessageDoc| MessageDoc {
            name: one_line(&message.name),
            about: one_line(&message.about),
        };
        let kind = EntryKind::Channel { messages: decl.messages.iter().map(described).collect() };
        located.push(entry(&catalog.ids, &decl.into(), kind)?);
    }
    for decl in &file.group {
        let names = group_names(&decl.names)?;
        let kind = EntryKind::Group { stream: decl.stream.get_ref().clone(), names };
        located.push(entry(&catalog.ids, &decl.into(), kind)?);
    }
    located.sort_by_key(|located| located.name_span.start);
    check_unique_names(&located)?;
    check_group_streams(&file, &located)?;
    ttl::resolve_likes(&mut located)?;
    check::lengths(&catalog, &located)?;
    check::owners(&catalog, header, &located)?;
    check::tags(&catalog, &located)?;
    ambiguity::encode_separators(&mut catalog, &located);
    ambiguity::reserve_siblings(&mut catalog, &located)?;
    ambiguity::reject_overlaps(&catalog, &located)?;
    catalog.families = families(&file.family, &catalog.ids)?;
    check::families(&catalog, &located)?;
    catalog.entries = located.into_iter().map(|located| located.entry).collect();
    Ok(catalog)
}

fn key(ids: &[IdKind], decl: &KeyDecl) -> Result<LocatedEntry, SourceError> {
    let value_type = *decl.value_type.get_ref();
    let ttl = ttl::ttl(&decl.ttl)?;
    if ttl.maxlen.is_some() && value_type != ValueType::Stream {
        return Err(SourceError::new(decl.ttl.span(), "maxlen is for streams only"));
    }
    let format = value_format(decl)?;
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
    let mut located = entry(ids, &decl.into(), EntryKind::Key(shape))?;
    located.ttl_span = decl.ttl.span();
    for former in &decl.formerly {
        let separator = located.entry.plain.separator();
        let parsed = pattern(ids, former.get_ref(), former.span(), separator, Dialect::Plain)?;
        if parsed.ids().ne(located.entry.plain.ids()) {
            return Err(SourceError::new(
                former.span(),
                "a former pattern needs the same identifiers in the same order",
            ));
        }
        located.entry.formerly.push(parsed);
    }
    Ok(located)
}

/// Checks that the fields that the type requires are present, and no others. Returns the format of the value.
fn value_format(decl: &KeyDecl) -> Result<Format, SourceError> {
    let value_type = *decl.value_type.get_ref();
    let (name, kind) = (decl.name.get_ref(), value_type.as_str());
    let fault = |message: String| Err(SourceError::new(decl.name.span(), message));
    let has_fields = matches!(value_type, ValueType::Hash | ValueType::Stream);
    if let Some(field) = decl.fields.first().filter(|_| !has_fields) {
        return Err(SourceError::new(field.span(), format!("a {kind} has no fields")));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = decl.fields.iter().find(|field| !seen.insert(&field.get_ref().name)) {
        return Err(SourceError::new(
            twice.span(),
            format!("the field {} is listed twice", twice.get_ref().name),
        ));
    }
    if value_type == ValueType::Hash && decl.fields.is_empty() {
        return fault(format!("{name} is incomplete: a hash needs fields"));
    }
    let is_collection = matches!(value_type, ValueType::Zset | ValueType::Set | ValueType::List);
    for (what, value, is_expected) in [
        ("score", &decl.score, value_type == ValueType::Zset),
        ("members", &decl.members, is_collection),
        ("value", &decl.value, value_type == ValueType::String),
    ] {
        match (value, is_expected) {
            (Some(_), false) => return fault(format!("{name} is a {kind}: it has no {what}")),
            (None, true) => {
                return fault(format!("{name} is incomplete: a {kind} needs a {what}"));
            }
            _ => {}
        }
    }
    let default = if has_fields { Format::Hash } else { Format::Plain };
    match &decl.format {
        None => Ok(default),
        Some(format) if (*format.get_ref() == Format::Hash) == has_fields => Ok(*format.get_ref()),
        Some(invalid) => Err(SourceError::new(invalid.span(), format!("a {kind} cannot have this format"))),
    }
}

fn families(decls: &[FamilyDecl], ids: &[IdKind]) -> Result<Vec<Family>, SourceError> {
    let mut families: Vec<Family> = Vec::new();
    for decl in decls {
        check_word(&decl.name)?;
        let (name, text) = (decl.name.get_ref(), decl.pattern.get_ref());
        if families.iter().any(|family| family.name == *name) {
            return Err(SourceError::new(decl.name.span(), format!("the family {name} is listed twice")));
        }
        let prefix = text.strip_suffix(":*").or_else(|| text.strip_suffix(":{key}")).ok_or_else(|| {
            let message =
                "the pattern of a family must end in \":*\" or \":{key}\", as in med:{env}:{module}:idem:*";
            SourceError::new(decl.pattern.span(), message)
        })?;
        families.push(Family {
            name: name.clone(),
            pattern: text.clone(),
            prefix: pattern(ids, prefix, decl.pattern.span(), ':', Dialect::Plain)?,
            purpose: one_line(decl.purpose.get_ref()),
            must_expire: decl.must_expire,
            format: decl.format,
            addition: decl.addition,
        });
    }
    Ok(families)
}

fn entry(ids: &[IdKind], common: &CommonFields<'_>, kind: EntryKind) -> Result<LocatedEntry, SourceError> {
    let name = common.name.get_ref();
    let is_valid = name.split_once('.').is_some_and(|(group, name)| is_word(group) && is_word(name));
    if !is_valid || name.starts_with("ids.") {
        return Err(SourceError::new(
            common.name.span(),
            format!(
                "{name:?} is not a valid name: write group.name in lower case with digits and underscores (the group \"ids\" is reserved)"
            ),
        ));
    }
    for text in [common.owner, common.purpose] {
        if text.get_ref().trim().is_empty() {
            return Err(SourceError::new(
                text.span(),
                format!("{name} needs an owner and a purpose: this is empty"),
            ));
        }
    }
    let separator = common.separator.map_or(':', |separator| *separator.get_ref());
    if let Some(place) = common.separator.filter(|_| !":./|".contains(separator)) {
        return Err(SourceError::new(place.span(), "the separator must be one of : . / |"));
    }
    let plain = pattern(ids, common.pattern.get_ref(), common.pattern.span(), separator, Dialect::Plain)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = plain.ids().find(|id| !seen.insert(*id)).and_then(|id| ids.get(id)) {
        let message = format!("{{{}}} appears twice in {plain}: declare a second identifier", twice.name);
        return Err(SourceError::new(common.pattern.span(), message));
    }
    if plain.ids().count() > MAX_IDS {
        return Err(SourceError::new(
            common.pattern.span(),
            format!("a key can have at most {MAX_IDS} identifiers"),
        ));
    }
    let cluster = match common.cluster {
        Some(text) => pattern(ids, text.get_ref(), text.span(), separator, Dialect::Cluster)?,
        None => plain.clone(),
    };
    let cluster_span = common.cluster.map_or(common.pattern.span(), Spanned::span);
    if cluster != plain && cluster.tag().is_none() {
        let message = "a cluster pattern that differs needs a hash tag: braces around more than the name of an identifier";
        return Err(SourceError::new(cluster_span, message));
    }
    if cluster.ids().ne(plain.ids()) {
        return Err(SourceError::new(
            cluster_span,
            format!("both layouts of {name} need the same identifiers in the same order"),
        ));
    }
    Ok(LocatedEntry {
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

fn key_limit(header: &Header) -> Result<usize, SourceError> {
    match &header.key_limit {
        None => Ok(DEFAULT_KEY_LIMIT),
        Some(limit) if (1..=MAX_KEY_LIMIT).contains(limit.get_ref()) => Ok(*limit.get_ref()),
        Some(invalid) => Err(SourceError::new(
            invalid.span(),
            format!("key_limit must be a number from 1 to {MAX_KEY_LIMIT}"),
        )),
    }
}

fn group_names(names: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>, SourceError> {
    let mut known: Vec<String> = Vec::new();
    check_count(names.get_ref().len(), names.span())?;
    for name in names.get_ref() {
        let text = name.get_ref();
        if variant(text).is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!(
                "{text:?} is not a valid name of a consumer group: use printable ASCII without spaces"
            );
            return Err(SourceError::new(name.span(), message));
        }
        if let Some(other) = known.iter().find(|other| variant(other) == variant(text)) {
            return Err(SourceError::new(
                name.span(),
                format!("{text:?} has the same Rust name as {other:?}: choose another name"),
            ));
        }
        known.push(text.clone());
    }
    if known.is_empty() {
        return Err(SourceError::new(names.span(), "names is empty: name at least one consumer group"));
    }
    Ok(known)
}

fn pattern(
    ids: &[IdKind],
    text: &str,
    span: Range<usize>,
    separator: char,
    dialect: Dialect,
) -> Result<Pattern, SourceError> {
    let resolve_id = |name: &str| {
        ids.iter().position(|kind| kind.name == name).ok_or_else(|| {
            let hint = closest(name, ids.iter().map(|kind| kind.name.as_str())).map_or_else(
                || format!("add [[id]] name = {name:?}"),
                |near| format!("did you mean {{{near}}}?"),
            );
            format!("the identifier {{{name}}} is not declared; {hint}")
        })
    };
    Pattern::parse(text, separator, dialect, resolve_id).map_err(|fault| {
        // With escapes or three quotes the offset is unknown; then the span is the whole string.
        let is_simple = span.len() == text.len() + 2 || span.len() == text.len() + 4;
        let start = if is_simple { span.start + 1 + fault.offset } else { span.start };
        SourceError::new(start..span.end, format!("in the pattern {text:?}: {}", fault.message))
    })
}

/// Names of entries and the Rust types generated for groups must be unique.
fn check_unique_names(located: &[LocatedEntry]) -> Result<(), SourceError> {
    let mut seen = BTreeSet::new();
    for located in located {
        let entry = &located.entry;
        let (module, name) = entry.group_and_name();
        let type_name =
            matches!(entry.kind, EntryKind::Group { .. }).then(|| format!("{module}.{}", camel(name)));
        if !seen.insert(entry.name.clone()) || type_name.is_some_and(|name| !seen.insert(name)) {
            let message =
                format!("{} is listed twice, or has the same Rust name as another entry", entry.name);
            return Err(SourceError::new(located.name_span.clone(), message));
        }
    }
    Ok(())
}

/// The stream of a group must exist and have the same identifiers.
fn check_group_streams(file: &File, located: &[LocatedEntry]) -> Result<(), SourceError> {
    for decl in &file.group {
        let stream = decl.stream.get_ref();
        let streams =
            located.iter().map(|located| &located.entry).filter(|entry| entry.type_name() == "stream");
        let group =
            located.iter().map(|located| &located.entry).find(|entry| entry.name == *decl.name.get_ref());
        match streams.clone().find(|entry| entry.name == *stream) {
            None => {
                let hint = did_you_mean(stream, streams.map(|entry| entry.name.as_str()));
                return Err(SourceError::new(
                    decl.stream.span(),
                    format!("{stream:?} is not a stream of this catalog{hint}"),
                ));
            }
            Some(found) if group.is_some_and(|group| group.plain.ids().ne(found.plain.ids())) => {
                let message = format!("the group needs the same identifiers as its stream {}", found.plain);
                return Err(SourceError::new(decl.pattern.span(), message));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_count(count: usize, span: Range<usize>) -> Result<(), SourceError> {
    if count <= MAX_LIST_LEN {
        return Ok(());
    }
    Err(SourceError::new(span, format!("the list has {count} items: the maximum is {MAX_LIST_LEN}")))
}

/// `; did you mean …?`, if a candidate is similar.
fn did_you_mean<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    closest(name, candidates).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn check_word(name: &Spanned<String>) -> Result<(), SourceError> {
    if is_word(name.get_ref()) {
        return Ok(());
    }
    let message = format!(
        "{:?} is not a valid name: use lower-case letters, digits and underscores, starting with a letter",
        name.get_ref()
    );
    Err(SourceError::new(name.span(), message))
}

fn is_word(text: &str) -> bool {
    is_name(text) && !text.contains(|c: char| c.is_ascii_uppercase())
}

/// Whether the name is short enough and valid in all forms that generated code uses.
fn is_name(text: &str) -> bool {
    is_identifier_name(text)
        && text.len() <= MAX_NAME_LEN
        && !text.contains("__")
        && !text.ends_with('_')
        && !["self", "super", "crate"].contains(&snake(text).as_str())
}
