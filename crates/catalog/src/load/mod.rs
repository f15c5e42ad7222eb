//! Converts a parsed file to the model and validates each declaration. Checks across entries are in [`crate::check`]. The first
//! error is returned with its position.

mod ids;
mod ttl;

use std::collections::BTreeSet;
use std::ops::Range;

use toml::Spanned;

use crate::builders::{camel, snake, variant};
use crate::check::{self, ambiguity};
use crate::error::{Result, SourceError, reject};
use crate::file::{CommonFields, FamilyDecl, File, KeyDecl};
use crate::key::{Layout, MAX_IDS};
use crate::model::{
    Catalog, DEFAULT_KEY_LIMIT, Entry, EntryKind, Family, Field, Format, IdKind, KeyShape, MessageDoc,
    ValueType,
};
use crate::pattern::{Pattern, is_identifier_name};
use crate::text::{closest, one_line};

/// In bytes.
const MAX_NAME_LEN: usize = 64;
/// In bytes.
const MAX_KEY_LIMIT: usize = 1000;
/// Maximum number of identifiers, members of a closed set, or names of groups.
const MAX_LIST_LEN: usize = 1000;

/// An entry with its declaration, for the positions of later errors.
pub(crate) struct LocatedEntry<'a> {
    pub(crate) entry: Entry,
    pub(crate) decl: CommonFields<'a>,
    ttl_span: Range<usize>,
}

impl LocatedEntry<'_> {
    pub(crate) fn cluster_span(&self) -> Range<usize> {
        self.decl.cluster.unwrap_or(self.decl.pattern).span()
    }
}

pub(crate) fn load(source: &str) -> Result<Catalog> {
    let file: File = toml::from_str(source).map_err(|error| {
        SourceError::new(error.span().unwrap_or(source.len()..source.len()), error.message())
    })?;
    let header = file.catalog.get_ref();
    check_word(&header.name)?;
    let key_limit = header.key_limit.as_ref();
    if let Some(invalid) = key_limit.filter(|limit| !(1..=MAX_KEY_LIMIT).contains(limit.get_ref())) {
        return reject(invalid.span(), format!("key_limit must be a number from 1 to {MAX_KEY_LIMIT}"));
    }
    let mut catalog = Catalog {
        name: header.name.get_ref().clone(),
        title: one_line(&header.title),
        source: one_line(&header.source),
        key_limit: key_limit.map_or(DEFAULT_KEY_LIMIT, |limit| *limit.get_ref()),
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
        let mut messages = decl.messages.clone();
        for MessageDoc { name, about } in &mut messages {
            (*name, *about) = (one_line(name), one_line(about));
        }
        located.push(entry(&catalog.ids, decl.common(), EntryKind::Channel { messages })?);
    }
    for decl in &file.group {
        let (stream, names) = (decl.stream.get_ref().clone(), group_names(&decl.names)?);
        located.push(entry(&catalog.ids, decl.common(), EntryKind::Group { stream, names })?);
    }
    located.sort_by_key(|located| located.decl.name.span().start);
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

fn key<'a>(ids: &[IdKind], decl: &'a KeyDecl) -> Result<LocatedEntry<'a>> {
    let value_type = *decl.value_type.get_ref();
    let ttl = ttl::ttl(&decl.ttl)?;
    if ttl.maxlen.is_some() && value_type != ValueType::Stream {
        return reject(decl.ttl.span(), "maxlen is for streams only");
    }
    let format = value_format(decl)?;
    let field = |field: &Spanned<Field>| {
        let field = field.get_ref();
        Field { name: one_line(&field.name), about: one_line(&field.about), ..field.clone() }
    };
    let shape = KeyShape {
        value_type,
        ttl,
        format,
        sensitivity: decl.sensitivity,
        cleanup: decl.cleanup.as_deref().map(one_line),
        fields: decl.fields.iter().map(field).collect(),
        score: decl.score.as_deref().map(one_line),
        members: decl.members.as_deref().map(one_line),
        value: decl.value.as_deref().map(one_line),
    };
    let mut located = entry(ids, decl.common(), EntryKind::Key(shape))?;
    located.ttl_span = decl.ttl.span();
    for former in &decl.formerly {
        let parsed = pattern(ids, former, located.entry.plain.separator(), Layout::Plain)?;
        if parsed.ids().ne(located.entry.plain.ids()) {
            return reject(former.span(), "a former pattern needs the same identifiers in the same order");
        }
        located.entry.formerly.push(parsed);
    }
    Ok(located)
}

/// Checks that the fields that the type requires are present, and no others. Returns the format of the value.
fn value_format(decl: &KeyDecl) -> Result<Format> {
    let value_type = *decl.value_type.get_ref();
    let (name, kind) = (decl.name.get_ref(), value_type.as_str());
    let has_fields = matches!(value_type, ValueType::Hash | ValueType::Stream);
    if let Some(field) = decl.fields.first().filter(|_| !has_fields) {
        return reject(field.span(), format!("a {kind} has no fields"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = decl.fields.iter().find(|field| !seen.insert(&field.get_ref().name)) {
        return reject(twice.span(), format!("the field {} is listed twice", twice.get_ref().name));
    }
    if value_type == ValueType::Hash && decl.fields.is_empty() {
        return reject(decl.name.span(), format!("{name} is incomplete: a hash needs fields"));
    }
    let is_collection = matches!(value_type, ValueType::Zset | ValueType::Set | ValueType::List);
    for (what, is_present, is_expected) in [
        ("score", decl.score.is_some(), value_type == ValueType::Zset),
        ("members", decl.members.is_some(), is_collection),
        ("value", decl.value.is_some(), value_type == ValueType::String),
    ] {
        if is_present && !is_expected {
            return reject(decl.name.span(), format!("{name} is a {kind}: it has no {what}"));
        }
        if is_expected && !is_present {
            return reject(decl.name.span(), format!("{name} is incomplete: a {kind} needs a {what}"));
        }
    }
    match &decl.format {
        None => Ok(if has_fields { Format::Hash } else { Format::Plain }),
        Some(format) if (*format.get_ref() == Format::Hash) == has_fields => Ok(*format.get_ref()),
        Some(invalid) => reject(invalid.span(), format!("a {kind} cannot have this format")),
    }
}

fn families(decls: &[FamilyDecl], ids: &[IdKind]) -> Result<Vec<Family>> {
    let mut families: Vec<Family> = Vec::new();
    for decl in decls {
        check_word(&decl.name)?;
        let (name, text) = (decl.name.get_ref(), decl.pattern.get_ref());
        if families.iter().any(|family| family.name == *name) {
            return reject(decl.name.span(), format!("the family {name} is listed twice"));
        }
        let Some(prefix) = text.strip_suffix(":*").or_else(|| text.strip_suffix(":{key}")) else {
            let message =
                "the pattern of a family must end in \":*\" or \":{key}\", as in med:{env}:{module}:idem:*";
            return reject(decl.pattern.span(), message);
        };
        let prefix = Spanned::new(decl.pattern.span(), prefix.to_owned());
        families.push(Family {
            name: name.clone(),
            pattern: text.clone(),
            prefix: pattern(ids, &prefix, ':', Layout::Plain)?,
            purpose: one_line(decl.purpose.get_ref()),
            must_expire: decl.must_expire,
            format: decl.format,
            addition: decl.addition,
        });
    }
    Ok(families)
}

fn entry<'a>(ids: &[IdKind], decl: CommonFields<'a>, kind: EntryKind) -> Result<LocatedEntry<'a>> {
    let name = decl.name.get_ref();
    let is_valid = name.split_once('.').is_some_and(|(group, name)| is_word(group) && is_word(name));
    if !is_valid || name.starts_with("ids.") {
        let rule =
            "write group.name in lower case with digits and underscores (the group \"ids\" is reserved)";
        return reject(decl.name.span(), format!("{name:?} is not a valid name: {rule}"));
    }
    if let Some(empty) = [decl.owner, decl.purpose].into_iter().find(|text| text.get_ref().trim().is_empty())
    {
        return reject(empty.span(), format!("{name} needs an owner and a purpose: this is empty"));
    }
    let separator = decl.separator.map_or(':', |separator| *separator.get_ref());
    if let Some(place) = decl.separator.filter(|_| !":./|".contains(separator)) {
        return reject(place.span(), "the separator must be one of : . / |");
    }
    let plain = pattern(ids, decl.pattern, separator, Layout::Plain)?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = plain.ids().find(|id| !seen.insert(*id)).and_then(|id| ids.get(id)) {
        let message = format!("{{{}}} appears twice in {plain}: declare a second identifier", twice.name);
        return reject(decl.pattern.span(), message);
    }
    if plain.ids().count() > MAX_IDS {
        return reject(decl.pattern.span(), format!("a key can have at most {MAX_IDS} identifiers"));
    }
    let cluster = match decl.cluster {
        Some(text) => pattern(ids, text, separator, Layout::Cluster)?,
        None => plain.clone(),
    };
    let located = LocatedEntry {
        entry: Entry {
            name: name.clone(),
            plain,
            cluster,
            owner: one_line(decl.owner.get_ref()),
            purpose: one_line(decl.purpose.get_ref()),
            addition: decl.addition,
            formerly: Vec::new(),
            kind,
        },
        decl,
        ttl_span: decl.name.span(),
    };
    let Entry { plain, cluster, .. } = &located.entry;
    if cluster != plain && cluster.tag().is_none() {
        let message = "a cluster pattern that differs needs a hash tag: braces around more than the name of an identifier";
        return reject(located.cluster_span(), message);
    }
    if cluster.ids().ne(plain.ids()) {
        let message = format!("both layouts of {name} need the same identifiers in the same order");
        return reject(located.cluster_span(), message);
    }
    Ok(located)
}

fn group_names(names: &Spanned<Vec<Spanned<String>>>) -> Result<Vec<String>> {
    let mut known: Vec<String> = Vec::new();
    check_count(names.get_ref().len(), names.span())?;
    for name in names.get_ref() {
        let text = name.get_ref();
        if variant(text).is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let rule = "use printable ASCII without spaces";
            let message = format!("{text:?} is not a valid name of a consumer group: {rule}");
            return reject(name.span(), message);
        }
        if let Some(other) = known.iter().find(|other| variant(other) == variant(text)) {
            let message = format!("{text:?} has the same Rust name as {other:?}: choose another name");
            return reject(name.span(), message);
        }
        known.push(text.clone());
    }
    if known.is_empty() {
        return reject(names.span(), "names is empty: name at least one consumer group");
    }
    Ok(known)
}

fn pattern(ids: &[IdKind], decl: &Spanned<String>, separator: char, layout: Layout) -> Result<Pattern> {
    let (text, span) = (decl.get_ref(), decl.span());
    let resolve_id = |name: &str| {
        ids.iter().position(|kind| kind.name == name).ok_or_else(|| {
            let hint = closest(name, ids.iter().map(|kind| kind.name.as_str())).map_or_else(
                || format!("add [[id]] name = {name:?}"),
                |near| format!("did you mean {{{near}}}?"),
            );
            format!("the identifier {{{name}}} is not declared; {hint}")
        })
    };
    Pattern::parse(text, separator, layout, resolve_id).or_else(|fault| {
        // With escapes or three quotes the offset is unknown; then the span is the whole string.
        let is_simple = span.len() == text.len() + 2 || span.len() == text.len() + 4;
        let start = if is_simple { span.start + 1 + fault.offset } else { span.start };
        reject(start..span.end, format!("in the pattern {text:?}: {}", fault.message))
    })
}

/// Names of entries and the Rust types generated for groups must be unique.
fn check_unique_names(located: &[LocatedEntry<'_>]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for LocatedEntry { entry, decl, .. } in located {
        let (module, name) = entry.group_and_name();
        let is_group = matches!(entry.kind, EntryKind::Group { .. });
        let type_name = is_group.then(|| format!("{module}.{}", camel(name)));
        if !seen.insert(entry.name.clone()) || type_name.is_some_and(|name| !seen.insert(name)) {
            let message =
                format!("{} is listed twice, or has the same Rust name as another entry", entry.name);
            return reject(decl.name.span(), message);
        }
    }
    Ok(())
}

/// The stream of a group must exist and have the same identifiers.
fn check_group_streams(file: &File, located: &[LocatedEntry<'_>]) -> Result<()> {
    let entries = || located.iter().map(|located| &located.entry);
    let streams = || entries().filter(|entry| entry.type_name() == "stream");
    for decl in &file.group {
        let stream = decl.stream.get_ref();
        let Some(found) = streams().find(|entry| entry.name == *stream) else {
            let hint = did_you_mean(stream, streams().map(|entry| entry.name.as_str()));
            return reject(decl.stream.span(), format!("{stream:?} is not a stream of this catalog{hint}"));
        };
        let group = entries().find(|entry| entry.name == *decl.name.get_ref());
        if group.is_some_and(|group| group.plain.ids().ne(found.plain.ids())) {
            let message = format!("the group needs the same identifiers as its stream {}", found.plain);
            return reject(decl.common().pattern.span(), message);
        }
    }
    Ok(())
}

fn check_count(count: usize, span: Range<usize>) -> Result<()> {
    if count <= MAX_LIST_LEN {
        return Ok(());
    }
    reject(span, format!("the list has {count} items: the maximum is {MAX_LIST_LEN}"))
}

/// `; did you mean …?`, if a candidate is similar.
fn did_you_mean<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    closest(name, candidates).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn check_word(name: &Spanned<String>) -> Result<()> {
    if is_word(name.get_ref()) {
        return Ok(());
    }
    let rule = "use lower-case letters, digits and underscores, starting with a letter";
    reject(name.span(), format!("{:?} is not a valid name: {rule}", name.get_ref()))
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
