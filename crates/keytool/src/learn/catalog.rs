//! Writes learned patterns as a catalog.
//!
//! Invariant: the text is a valid catalog. An entry that the loader rejects is left out, with the reason in a comment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ade_catalog::Catalog;
use ade_catalog::model::ValueType;

use super::infer::{Part, Pattern};
use super::leaf::Leaf;
use super::words::name_of;
use crate::audit::looks_secret;
use crate::text::{count, duration};

/// Maximum number of identifiers in a key.
const MAX_IDS: usize = ade_catalog::key::MAX_IDS;
/// Default of the loader.
const MIN_ID_BYTES: usize = 80;
const MAX_KEY_LIMIT: usize = 1000;

/// A learned catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    pub toml: String,
    /// Entries of the catalog.
    pub entries: usize,
    /// Patterns that no catalog can have, with their numbers of keys and the reason.
    pub rejected: Vec<(String, u64, String)>,
}

/// A kind of identifier.
#[derive(Debug, Default)]
struct Kind {
    examples: BTreeSet<String>,
    forms: BTreeSet<&'static str>,
    longest: usize,
    after: String,
}

/// An entry before it is written.
struct Draft {
    text: String,
    pattern: String,
    keys: u64,
    /// Names of identifiers, and bytes of the literals.
    ids: Vec<String>,
    literal_bytes: usize,
}

pub(super) fn write(name: &str, patterns: &[Pattern]) -> Learned {
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    let mut names = BTreeSet::new();
    let (mut drafts, mut rejected) = (Vec::new(), Vec::new());
    for pattern in patterns {
        match draft(pattern, &mut kinds, &mut names) {
            Ok(draft) => drafts.push(draft),
            Err(reason) => rejected.push((plain_text(pattern, None), pattern.leaf.keys, reason)),
        }
    }
    loop {
        let toml = assemble(name, &kinds, &drafts, &rejected);
        let Err(error) = Catalog::parse("learned", &toml) else {
            return Learned { toml, entries: drafts.len(), rejected };
        };
        // The error is at a line of the rejected entry.
        let before = toml.lines().take(error.line).filter(|line| *line == "[[key]]").count();
        let position = before.saturating_sub(1);
        if position >= drafts.len() {
            return Learned { toml: header(name, 200), entries: 0, rejected };
        }
        let draft = drafts.remove(position);
        rejected.push((draft.pattern, draft.keys, error.message));
    }
}

fn header(name: &str, limit: usize) -> String {
    format!(
        "# A first catalog, learned from a live Redis. Review it: names, owners and purposes are guesses, and so are identifiers\n\
         # with a low confidence. docs/catalogs.md explains the format; check it with `ade keys audit URL --catalog FILE`.\n\n\
         [catalog]\nname = {name:?}\ntitle = \"learned from a live Redis\"\nsource = \"ade keys learn\"\nkey_limit = {limit}\n"
    )
}

fn assemble(
    name: &str,
    kinds: &BTreeMap<String, Kind>,
    drafts: &[Draft],
    rejected: &[(String, u64, String)],
) -> String {
    let max_bytes = |kind: &Kind| {
        if kind.longest > MIN_ID_BYTES { kind.longest.next_multiple_of(10) } else { MIN_ID_BYTES }
    };
    let length = |draft: &Draft| {
        let ids = draft.ids.iter().filter_map(|id| kinds.get(id)).map(max_bytes);
        draft.literal_bytes + ids.sum::<usize>() + 1
    };
    let limit = drafts.iter().map(length).max().unwrap_or(0).clamp(200, MAX_KEY_LIMIT);
    let mut toml = header(name, limit);
    for (pattern, keys, reason) in rejected {
        let _ =
            write!(toml, "\n# left out: {} ({} keys): {}\n", comment(pattern), count(*keys), comment(reason));
    }
    let used: BTreeSet<&String> = drafts.iter().flat_map(|draft| &draft.ids).collect();
    for (id, kind) in kinds.iter().filter(|(id, _)| used.contains(id)) {
        let forms: Vec<&str> = kind.forms.iter().copied().collect();
        let example = kind.examples.iter().find(|example| example.is_ascii()).map_or("x", String::as_str);
        let _ = write!(
            toml,
            "\n[[id]]\nname = {id:?}\nabout = {}\nexample = {}\n",
            quoted(&format!("what follows {}: {}", kind.after, forms.join(", "))),
            quoted(example)
        );
        if max_bytes(kind) != MIN_ID_BYTES {
            let _ = writeln!(toml, "max_bytes = {}", max_bytes(kind));
        }
    }
    for draft in drafts {
        toml.push('\n');
        toml.push_str(&draft.text);
    }
    toml
}

/// Without line breaks and control characters.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml_string(&comment(text))
}

fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn draft(
    pattern: &Pattern,
    kinds: &mut BTreeMap<String, Kind>,
    names: &mut BTreeSet<String>,
) -> Result<Draft, String> {
    let leaf = &pattern.leaf;
    let value_type = leaf
        .value_type()
        .ok_or_else(|| format!("the type {} is not described by catalogs", leaf.type_name()))?;
    let separator = leaf.separator.unwrap_or(':');
    let mut ids = Vec::new();
    let mut before = "the beginning".to_owned();
    for part in &pattern.parts {
        match part {
            Part::Literal(word) => before.clone_from(word),
            Part::Id(found) => {
                let suffix = match separator {
                    ':' => "",
                    '.' => "_dotted",
                    '/' => "_path",
                    _ => "_piped",
                };
                let base = format!("{}_id{suffix}", name_of(&before));
                let mut id = base.clone();
                for number in 2.. {
                    if !ids.contains(&id) {
                        break;
                    }
                    id = format!("{base}_{number}");
                }
                let kind = kinds.entry(id.clone()).or_default();
                // An example may get into a repository.
                let harmless = found.examples.iter().filter(|example| !looks_secret(example));
                kind.examples.extend(harmless.take(3).cloned());
                kind.forms.extend(found.forms.iter().map(|form| form.name()));
                kind.longest = kind.longest.max(found.longest);
                kind.after.clone_from(&before);
                ids.push(id);
            }
        }
    }
    if ids.len() > MAX_IDS {
        return Err(format!("it has {} identifiers, at most {MAX_IDS} are possible", ids.len()));
    }
    let name = entry_name(pattern, names);
    let plain = plain_text(pattern, Some(&ids));
    let literals =
        pattern.parts.iter().map(|part| if let Part::Literal(word) = part { word.len() + 1 } else { 1 });
    let mut text =
        format!("# {}\n[[key]]\nname = {name:?}\npattern = {}\n", evidence(pattern), quoted(&plain));
    if let Some(cluster) = cluster_text(pattern, &ids) {
        let _ = writeln!(text, "cluster = {}", quoted(&cluster));
    }
    if separator != ':' {
        let _ = writeln!(text, "separator = \"{separator}\"");
    }
    let owner = pattern
        .parts
        .iter()
        .find_map(|part| if let Part::Literal(word) = part { Some(word.as_str()) } else { None });
    let _ = write!(
        text,
        "type = \"{value_type}\"\nttl = {}\nowner = {}\npurpose = {}\n{}",
        ttl(leaf),
        quoted(owner.unwrap_or("unknown")),
        quoted(&format!("to be described; learned from {} keys", count(leaf.keys))),
        shape(leaf, value_type),
    );
    Ok(Draft { text, pattern: plain, keys: leaf.keys, ids, literal_bytes: literals.sum::<usize>() + 4 })
}

/// `group.name` from the literals.
fn entry_name(pattern: &Pattern, names: &mut BTreeSet<String>) -> String {
    let words: Vec<String> = pattern
        .parts
        .iter()
        .filter_map(|part| if let Part::Literal(word) = part { Some(name_of(word)) } else { None })
        .collect();
    let group = words.get(1).filter(|_| words.len() > 2).or(words.first()).map_or("keys", String::as_str);
    let rest: Vec<&str> =
        words.iter().skip(if words.len() > 2 { 2 } else { 1 }).map(String::as_str).collect();
    let rest = rest.join("_").chars().take(40).collect::<String>();
    let rest = if rest.is_empty() { "item" } else { rest.trim_end_matches('_') };
    let group = if ["ids", "self", "super", "crate"].contains(&group) { "keys" } else { group };
    let rest = if ["self", "super", "crate", "new"].contains(&rest) { "item" } else { rest };
    let mut name = format!("{group}.{rest}");
    for number in 2.. {
        if names.insert(name.clone()) {
            break;
        }
        name = format!("{group}.{rest}_{number}");
    }
    name
}

fn plain_text(pattern: &Pattern, ids: Option<&[String]>) -> String {
    let mut ids = ids.unwrap_or_default().iter();
    let segments = pattern.parts.iter().map(|part| match part {
        Part::Literal(word) => word.clone(),
        Part::Id(_) => format!("{{{}}}", ids.next().map_or("id", String::as_str)),
    });
    segments.collect::<Vec<_>>().join(&pattern.leaf.separator.unwrap_or(':').to_string())
}

/// With the hash tag, if all keys have the same one.
fn cluster_text(pattern: &Pattern, ids: &[String]) -> Option<String> {
    let mut tags = pattern.leaf.tags.iter();
    let (Some(Some((first, last))), None) = (tags.next(), tags.next()) else { return None };
    let mut ids = ids.iter();
    let segments = pattern.parts.iter().enumerate().map(|(position, part)| {
        let text = match part {
            Part::Literal(word) => word.clone(),
            Part::Id(_) => format!("{{{}}}", ids.next().map_or("id", String::as_str)),
        };
        let (open, close) =
            (if position == *first { "{" } else { "" }, if position == *last { "}" } else { "" });
        format!("{open}{text}{close}")
    });
    let text = segments.collect::<Vec<_>>().join(&pattern.leaf.separator.unwrap_or(':').to_string());
    // A tag of a single word would look like an identifier.
    let is_word = first == last && matches!(pattern.parts.get(*first), Some(Part::Literal(_)));
    (!is_word).then_some(text)
}

/// How sure the pattern is, and why.
fn evidence(pattern: &Pattern) -> String {
    let leaf = &pattern.leaf;
    let ids = pattern.parts.iter().filter_map(|part| if let Part::Id(ids) = part { Some(ids) } else { None });
    let (mut has_guess, mut fewest) = (false, usize::MAX);
    for id in ids {
        has_guess |= id.is_guess;
        fewest = fewest.min(id.examples.len());
    }
    let confidence = match (has_guess, fewest) {
        (false, _) | (true, 20..) => "high",
        (true, 3..20) => "medium",
        (true, _) => "low",
    };
    let others = if leaf.other_types() > 0 {
        format!(", {} of other types", count(leaf.other_types()))
    } else {
        String::new()
    };
    let ttl = match (leaf.never, leaf.expiring) {
        (_, 0) => "none expires".to_owned(),
        (never, expiring) => {
            let never = if never > 0 { format!("{} never expire, ", count(never)) } else { String::new() };
            let range = [leaf.min_ms, leaf.mean_ms(), leaf.max_ms].map(duration);
            format!(
                "{never}{} expire in {} to {}, on average {}",
                count(expiring),
                range[0],
                range[2],
                range[1]
            )
        }
    };
    format!("confidence {confidence}: {} keys{others}; {ttl}", count(leaf.keys))
}

fn ttl(leaf: &Leaf) -> String {
    if leaf.expiring == 0 || leaf.never > leaf.expiring {
        return "\"none\"".to_owned();
    }
    const STEPS: [(u64, &str); 24] = [
        (1, "1s"),
        (2, "2s"),
        (5, "5s"),
        (10, "10s"),
        (15, "15s"),
        (30, "30s"),
        (60, "1m"),
        (120, "2m"),
        (300, "5m"),
        (600, "10m"),
        (900, "15m"),
        (1800, "30m"),
        (3600, "1h"),
        (7200, "2h"),
        (21_600, "6h"),
        (43_200, "12h"),
        (86_400, "1d"),
        (172_800, "2d"),
        (604_800, "7d"),
        (1_209_600, "14d"),
        (2_592_000, "30d"),
        (5_184_000, "60d"),
        (7_776_000, "90d"),
        (31_536_000, "365d"),
    ];
    let step =
        STEPS.iter().find(|(seconds, _)| leaf.max_ms <= seconds * 1000).map(|(_, text)| (*text).to_owned());
    let longest = step.unwrap_or_else(|| format!("{}d", leaf.max_ms.div_ceil(86_400_000).min(36_000)));
    format!("{{ default = \"{longest}\", at_most = \"{longest}\" }}")
}

/// What the loader requires for a type.
fn shape(leaf: &Leaf, value_type: ValueType) -> String {
    let format = match leaf.format() {
        "plain" => String::new(),
        other => format!("format = \"{other}\"\n"),
    };
    match value_type {
        ValueType::String => format!("{format}value = \"to be described\"\n"),
        ValueType::Zset => format!("{format}score = \"to be described\"\nmembers = \"to be described\"\n"),
        ValueType::List | ValueType::Set => format!("{format}members = \"to be described\"\n"),
        ValueType::Hash | ValueType::Stream => fields(leaf),
    }
}

fn fields(leaf: &Leaf) -> String {
    let is_name =
        |name: &str| !name.is_empty() && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_graphic());
    let known = leaf
        .fields
        .iter()
        .filter(|(name, _)| is_name(name) && super::words::form(name) == super::words::Form::Word);
    let mut text = String::from("fields = [\n");
    let mut is_empty = true;
    for (name, counts) in known {
        let kind = match counts {
            [_, 0, 0, 0] => "integer",
            [0, _, 0, 0] => "json",
            [0, 0, _, 0] => "timestamp",
            _ => "string",
        };
        let _ = writeln!(
            text,
            "  {{ name = {}, type = \"{kind}\", about = \"to be described\" }},",
            toml_string(name)
        );
        is_empty = false;
    }
    if is_empty {
        text.push_str("  { name = \"FIELD\", type = \"string\", about = \"any field\" },\n");
    }
    text + "]\n"
}
