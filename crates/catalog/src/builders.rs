//! Generates the source of typed builders from a catalog. Call [`generate`] in a build script and include the result.
//!
//! There is one type per kind of identifier (a [`crate::key::Id`], or an enum for a closed set), and one module per group with
//! one function per entry. If a segment names the owner, there is instead one type per owner, which can build only the keys of
//! that owner. The generated source refers to `ade_catalog` by its absolute path.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use crate::key::{Layout, MAX_IDS};
use crate::model::{Catalog, Entry, EntryKind, IdForm, IdKind};
use crate::pattern::Part;
use crate::text::one_line;
use crate::ttl::TtlRule;

/// Generates the builders of `catalog`, to be included into a module of their own.
#[must_use]
pub fn generate(catalog: &Catalog) -> String {
    let mut source = Source::default();
    source.line("use ::ade_catalog::key as __key;");
    identifiers(&mut source, catalog);
    match catalog.owner_segment {
        Some(position) => by_owner(&mut source, catalog, position),
        None => by_group(&mut source, catalog),
    }
    every_builder(&mut source, catalog);
    source.text
}

#[derive(Default)]
struct Source {
    text: String,
    depth: usize,
}

impl Source {
    fn line(&mut self, line: &str) {
        self.depth -= usize::from(line.starts_with(['}', ']']));
        // Writing to a String never fails.
        let _ = writeln!(self.text, "{:indent$}{line}", "", indent = self.depth * 4);
        self.depth += usize::from(line.ends_with(['{', '[']));
    }

    /// Writes a doc comment in one line, with links, tags and code fences escaped.
    fn doc(&mut self, text: &str) {
        let text = one_line(text).replace('[', "\\[").replace('<', "\\<").replace("```", "` ` `");
        let _ = writeln!(self.text, "{:indent$}/// {text}", "", indent = self.depth * 4);
    }
}

fn identifiers(source: &mut Source, catalog: &Catalog) {
    let free = catalog.ids.iter().filter_map(|kind| match &kind.form {
        IdForm::Text(rules) => Some((kind, rules)),
        IdForm::OneOf(_) => None,
    });
    source.doc("Identifiers in the keys of this catalog.");
    source.line("pub mod ids {");
    if free.clone().next().is_some() {
        source.line("use super::__key;");
    }
    for (kind, _) in free.clone() {
        source.doc(&kind.about);
        source.line(&format!("pub type {0} = __key::Id<kinds::{0}>;", camel(&kind.name)));
    }
    for kind in &catalog.ids {
        if let IdForm::OneOf(members) = &kind.form {
            let members: Vec<(String, &str)> =
                members.iter().map(|member| (variant(&member.value), member.value.as_str())).collect();
            source.doc(&kind.about);
            closed_set(source, &camel(&kind.name), &kind.name, &members);
        }
    }
    source.doc("How the identifiers are encoded.");
    source.line("#[doc(hidden)]");
    source.line("pub mod kinds {");
    if free.clone().next().is_some() {
        source.line("use super::__key;");
    }
    for (kind, rules) in free {
        let name = camel(&kind.name);
        source.doc(&kind.about);
        source.line("#[derive(Debug)]");
        source.line(&format!("pub enum {name} {{}}"));
        source.line(&format!("impl __key::Kind for {name} {{"));
        source.line(&format!("const NAME: &'static str = {:?};", kind.name));
        source
            .line("const RULES: ::ade_catalog::ident::EncodingRules = ::ade_catalog::ident::EncodingRules {");
        source.line(&format!("max_bytes: {},", rules.max_bytes));
        source.line(&format!("hashed: {},", rules.hashed));
        source.line(&format!("sensitive: {},", rules.sensitive));
        let reserved: Vec<String> =
            rules.reserved.iter().map(|word| format!("::std::borrow::Cow::Borrowed({word:?})")).collect();
        source.line(&format!("reserved: ::std::borrow::Cow::Borrowed(&[{}]),", reserved.join(", ")));
        source.line(&format!("separators: ::std::borrow::Cow::Borrowed({:?}),", rules.separators));
        source.line("};");
        source.line("}");
    }
    source.line("}");
    source.line("}");
}

fn closed_set(source: &mut Source, name: &str, kind: &str, members: &[(String, &str)]) {
    source.line("#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]");
    source.line(&format!("pub enum {name} {{"));
    for (variant, value) in members {
        source.doc(&format!("`{value}`"));
        source.line(&format!("{variant},"));
    }
    source.line("}");
    source.line(&format!("impl {name} {{"));
    source.doc("All members, in the order of the catalog.");
    let all: Vec<String> = members.iter().map(|(variant, _)| format!("Self::{variant}")).collect();
    source.line("#[must_use]");
    source.line("pub fn all() -> &'static [Self] {");
    source.line(&format!("&[{}]", all.join(", ")));
    source.line("}");
    source.doc("The text in keys.");
    source.line("#[must_use]");
    source.line("pub fn as_written(&self) -> &'static str {");
    source.line("match self {");
    for (variant, value) in members {
        source.line(&format!("Self::{variant} => {value:?},"));
    }
    source.line("}");
    source.line("}");
    source.doc("Parses a member.");
    source.line("pub fn new(text: &str) -> ::core::result::Result<Self, ::ade_catalog::IdentifierError> {");
    source.line("Self::all().iter().copied().find(|member| member.as_written() == text).ok_or_else(|| {");
    let error = "::ade_catalog::IdentifierError::not_in_set";
    source.line(&format!("{error}({kind:?}, text, Self::all().iter().map(Self::as_written))"));
    source.line("})");
    source.line("}");
    source.line("}");
}

fn by_group(source: &mut Source, catalog: &Catalog) {
    for group in groups(catalog) {
        source.doc(&format!("Keys, channels and groups `{group}.*`."));
        source.line(&format!("pub mod {} {{", escape_keyword(group)));
        let own = || catalog.entries.iter().filter(|entry| entry.group_and_name().0 == group);
        let is_built = |entry: &&Entry| !matches!(entry.kind, EntryKind::Group { .. });
        if own().any(|entry| is_built(&entry)) {
            source.line("use super::__key;");
        }
        if own().filter(is_built).any(|entry| entry.plain.ids().next().is_some()) {
            source.line("use super::ids;");
        }
        for entry in own() {
            if let EntryKind::Group { names, .. } = &entry.kind {
                let members: Vec<(String, &str)> =
                    names.iter().map(|name| (variant(name), name.as_str())).collect();
                source.doc(&entry.purpose);
                closed_set(source, &camel(entry.group_and_name().1), &entry.name, &members);
            } else {
                builder(source, catalog, entry, &[]);
            }
        }
        source.line("}");
    }
}

fn by_owner(source: &mut Source, catalog: &Catalog, position: usize) {
    for group in groups(catalog) {
        let own: Vec<&Entry> = catalog.entries.iter().filter(|entry| entry.owner == group).collect();
        let shared: Vec<usize> = own.first().map_or_else(Vec::new, |entry| {
            entry.plain.segments().iter().take(position - 1).filter_map(|segment| segment.id).collect()
        });
        let fields: Vec<(String, String)> = shared
            .iter()
            .filter_map(|number| {
                Some((escape_keyword(&snake(&catalog.id(*number)?.name)), camel(&catalog.id(*number)?.name)))
            })
            .collect();
        let name = camel(group);
        source.doc(&format!("Builds the keys of `{group}` only."));
        let default = if fields.is_empty() { "Default, " } else { "" };
        source.line(&format!("#[derive({default}Debug, Clone, Copy, PartialEq, Eq)]"));
        source.line(&format!("pub struct {name} {{"));
        for (field, of) in &fields {
            source.line(&format!("{field}: ids::{of},"));
        }
        source.line("}");
        source.line(&format!("impl {name} {{"));
        let parameters: Vec<String> =
            fields.iter().map(|(field, of)| format!("{field}: ids::{of}")).collect();
        let given: Vec<&str> = fields.iter().map(|(field, _)| field.as_str()).collect();
        source.doc(&format!("Creates the builders of `{group}`."));
        source.line("#[must_use]");
        source.line(&format!("pub fn new({}) -> Self {{", parameters.join(", ")));
        source.line(&format!("Self {{ {} }}", given.join(", ")));
        source.line("}");
        for entry in own.iter().filter(|entry| !matches!(entry.kind, EntryKind::Group { .. })) {
            builder(source, catalog, entry, &shared);
        }
        source.line("}");
    }
}

/// Generates one function. Identifiers in `self_ids` are fields of `self`.
fn builder(source: &mut Source, catalog: &Catalog, entry: &Entry, self_ids: &[usize]) {
    let mut parameters: Vec<String> = Vec::new();
    let mut written: Vec<String> = Vec::new();
    for kind in entry.plain.ids().filter_map(|number| catalog.id(number)) {
        let is_field =
            self_ids.iter().filter_map(|number| catalog.id(*number)).any(|field| field.name == kind.name);
        let name = escape_keyword(&snake(&kind.name));
        if is_field {
            written.push(format!("self.{name}.as_written()"));
        } else {
            parameters.push(format!("{name}: &'a ids::{}", camel(&kind.name)));
            written.push(format!("{name}.as_written()"));
        }
    }
    let lifetime_parameter = if parameters.is_empty() { "" } else { "<'a>" };
    let lifetime = if parameters.is_empty() { "'static" } else { "'a" };
    if catalog.owner_segment.is_some() {
        // The fields are closed sets with static text, so nothing is borrowed from `self`.
        parameters.insert(0, "self".to_owned());
    }
    written.resize(MAX_IDS, "\"\"".to_owned());

    let (returned, value) = match &entry.kind {
        EntryKind::Key(shape) => lifetime_of(&shape.ttl.rule),
        EntryKind::Channel { .. } | EntryKind::Group { .. } => ("", String::new()),
    };
    source.doc(&entry.purpose);
    source.line("///");
    source.doc(&format!("`{}`", entry.plain));
    source.line("#[must_use]");
    let of = if returned.is_empty() {
        format!("__key::Channel<{lifetime}>")
    } else {
        format!("__key::Key<{lifetime}, __key::lifetime::{returned}>")
    };
    let name = escape_keyword(entry.group_and_name().1);
    source.line(&format!("pub fn {name}{lifetime_parameter}({}) -> {of} {{", parameters.join(", ")));
    source.line("static TEMPLATE: __key::Template = __key::Template {");
    source.line(&format!("name: {:?},", entry.name));
    for (field, layout) in [("plain", Layout::Plain), ("cluster", Layout::Cluster)] {
        source.line(&format!("{field}: &[{}],", template(entry, layout)));
    }
    source.line("};");
    let ids = written.join(", ");
    if returned.is_empty() {
        source.line(&format!("__key::Channel::from_builder(&TEMPLATE, [{ids}])"));
    } else {
        source.line(&format!("__key::Key::from_builder(&TEMPLATE, [{ids}], __key::lifetime::{value})"));
    }
    source.line("}");
}

fn template(entry: &Entry, layout: Layout) -> String {
    // Positions work for both layouts: they have the same identifiers in the same order.
    let mut position = 0;
    let parts: Vec<String> = entry
        .pattern(layout)
        .parts()
        .iter()
        .map(|part| match part {
            Part::Text(text) => format!("__key::TemplatePart::Text({text:?})"),
            Part::Id(_) => {
                position += 1;
                format!("__key::TemplatePart::Id({})", position - 1)
            }
        })
        .collect();
    parts.join(", ")
}

fn lifetime_of(rule: &TtlRule) -> (&'static str, String) {
    let duration =
        |duration: Duration| format!("::std::time::Duration::from_millis({})", duration.as_millis());
    let optional = |ttl: &Option<crate::ttl::TtlDuration>| {
        ttl.as_ref().map_or_else(|| "None".to_owned(), |ttl| format!("Some({})", duration(ttl.duration)))
    };
    match rule.resolved() {
        TtlRule::None | TtlRule::Like { .. } => ("Unbounded", "Unbounded".to_owned()),
        TtlRule::Exact(ttl) => ("Fixed", format!("Fixed {{ ttl: {} }}", duration(ttl.duration))),
        TtlRule::Range { min, max } => {
            ("Ranged", format!("Ranged {{ min: {}, max: {} }}", duration(min.duration), optional(max)))
        }
        TtlRule::Default { ttl, at_most } => (
            "Default",
            format!("Default {{ ttl: {}, at_most: {} }}", duration(ttl.duration), optional(at_most)),
        ),
        TtlRule::Renewable { ttl, at_most } => (
            "Renewable",
            format!("Renewable {{ ttl: {}, at_most: {} }}", duration(ttl.duration), optional(at_most)),
        ),
        TtlRule::Given { plus, .. } => {
            let plus = plus.as_ref().map_or(Duration::ZERO, |plus| plus.duration);
            ("Given", format!("Given {{ plus: {} }}", duration(plus)))
        }
    }
}

/// Generates a function that calls every builder, for tests.
fn every_builder(source: &mut Source, catalog: &Catalog) {
    source.doc("Calls every builder with identifiers by kind; returns entry, plain key and cluster key.");
    source.line("#[doc(hidden)]");
    source.line("pub fn __every_builder(raw: __key::RawIds<'_>) -> __key::EveryKey {");
    source.line("let _ = raw;");
    source.line("Ok(vec![");
    for entry in catalog.entries.iter().filter(|entry| !matches!(entry.kind, EntryKind::Group { .. })) {
        let kinds: Vec<&IdKind> = entry.plain.ids().filter_map(|number| catalog.id(number)).collect();
        let leading = catalog.owner_segment.map_or(0, |position| {
            entry.plain.segments().iter().take(position - 1).filter(|segment| segment.id.is_some()).count()
        });
        let new = |kind: &&IdKind| format!("ids::{}::new(&raw({:?}))?", camel(&kind.name), kind.name);
        let own: Vec<String> = kinds.iter().take(leading).map(new).collect();
        let given: Vec<String> = kinds.iter().skip(leading).map(|kind| format!("&{}", new(kind))).collect();
        let (group, name) = entry.group_and_name();
        let call = match catalog.owner_segment {
            Some(_) => {
                format!(
                    "{}::new({}).{}({})",
                    camel(group),
                    own.join(", "),
                    escape_keyword(name),
                    given.join(", ")
                )
            }
            None => format!("{}::{}({})", escape_keyword(group), escape_keyword(name), given.join(", ")),
        };
        source.line(&format!("({:?}, {call}.in_both_layouts()),", entry.name));
    }
    source.line("])");
    source.line("}");
}

fn groups(catalog: &Catalog) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    catalog.entries.iter().map(|entry| entry.group_and_name().0).filter(|group| seen.insert(*group)).collect()
}

/// `task_id`, `lock:default_ttl`, `DRAFT`, `idempotencyKey` → `TaskId`, `LockDefaultTtl`, `Draft`, `IdempotencyKey`.
pub(crate) fn camel(text: &str) -> String {
    let all_caps = !text.contains(|c: char| c.is_ascii_lowercase());
    let mut camel = String::new();
    let mut upper = true;
    for character in text.chars() {
        if !character.is_ascii_alphanumeric() {
            upper = true;
        } else if upper {
            camel.push(character.to_ascii_uppercase());
            upper = false;
        } else {
            camel.push(if all_caps { character.to_ascii_lowercase() } else { character });
        }
    }
    // Single letters such as `a-l-l` become one word.
    if camel.len() > 1 && camel.bytes().all(|byte| byte.is_ascii_uppercase()) {
        let tail = camel.split_off(1).to_ascii_lowercase();
        camel.push_str(&tail);
    }
    if camel == "Self" { "Self_".to_owned() } else { camel }
}

pub(crate) fn variant(text: &str) -> String {
    let camel = camel(text);
    if camel.starts_with(|c: char| c.is_ascii_digit()) { format!("N{camel}") } else { camel }
}

/// `idempotencyKey` → `idempotency_key`.
pub(crate) fn snake(text: &str) -> String {
    let mut snake = String::new();
    for character in text.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() && !snake.ends_with('_') {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// Escapes Rust keywords. The loader rejects those that cannot be escaped.
fn escape_keyword(name: &str) -> String {
    const KEYWORDS: &[&str] = &[
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
        "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
        "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static",
        "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where",
        "while", "yield",
    ];
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_names() {
        assert_eq!(camel("task_id"), "TaskId");
        assert_eq!(camel("lock:default_ttl"), "LockDefaultTtl");
        assert_eq!(camel("DRAFT"), "Draft");
        assert_eq!(camel("a-l-l"), "All");
        assert_eq!(camel("self"), "Self_");
        assert_eq!(camel("idempotencyKey"), "IdempotencyKey");
        assert_eq!(camel("notification-service"), "NotificationService");
        assert_eq!(variant("24h"), "N24h");
        assert_eq!(snake("configKeyHash"), "config_key_hash");
        assert_eq!(escape_keyword("type"), "r#type");
    }
}
