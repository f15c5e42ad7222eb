//! Generates the source of typed builders from a catalog. Call [`generate`] in a build script and include the result.
//!
//! There is one type per kind of identifier (a [`crate::key::Id`], or an enum for a closed set), and one module per group with
//! one function per entry. If a segment names the owner, there is instead one type per owner, which can build only the keys of
//! that owner. The generated source refers to `ade_catalog` by its absolute path. The modules below generate builders for other
//! languages, which need nothing of ADE, and test vectors for all of them.

pub mod go;
mod outline;
pub mod python;
pub mod typescript;
pub mod vectors;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use heck::{ToSnakeCase, ToUpperCamelCase};

use crate::ident::EncodingRules;
use crate::key::{Layout, MAX_IDS};
use crate::model::{Catalog, Entry, EntryKind, IdForm, IdKind};
use crate::pattern::Part;
use crate::text::one_line;
use crate::ttl::{TtlDuration, TtlRule};

/// Generates the builders of `catalog`, to be included into a module of their own.
#[must_use]
pub fn generate(catalog: &Catalog) -> String {
    let builders = match catalog.owner_segment {
        Some(position) => by_owner(catalog, position),
        None => by_group(catalog),
    };
    let (identifiers, every_builder) = (identifiers(catalog), every_builder(catalog));
    indented(&format!("use ::ade_catalog::key as __key;\n{identifiers}\n{builders}\n{every_builder}"))
}

/// Indents the lines of the source by its braces, and removes empty lines.
fn indented(source: &str) -> String {
    let (mut text, mut depth) = (String::new(), 0);
    for line in source.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_doc = line.starts_with("///");
        depth -= usize::from(line.starts_with(['}', ']']));
        // Writing to a String never fails.
        let _ = writeln!(text, "{:indent$}{line}", "", indent = depth * 4);
        depth += usize::from(!is_doc && line.ends_with(['{', '[']));
    }
    text
}

/// A doc comment in one line, with links, tags and code fences escaped.
fn doc(text: &str) -> String {
    format!("/// {}", one_line(text).replace('[', "\\[").replace('<', "\\<").replace("```", "` ` `"))
}

fn identifiers(catalog: &Catalog) -> String {
    let (mut types, mut sets, mut kinds) = (String::new(), String::new(), String::new());
    for IdKind { name: kind, about, form, .. } in &catalog.ids {
        let (name, about) = (camel(kind), doc(about));
        let rules = match form {
            IdForm::OneOf(members) => {
                let members: Vec<&str> = members.iter().map(|member| member.value.as_str()).collect();
                sets += &format!("{about}\n{}\n", closed_set(&name, kind, &members));
                continue;
            }
            IdForm::Text(rules) => rules,
        };
        types += &format!("{about}\npub type {name} = __key::Id<kinds::{name}>;\n");
        let EncodingRules { max_bytes, hashed, sensitive, reserved, separators } = rules;
        let reserved = join(reserved.iter().map(|word| format!("::std::borrow::Cow::Borrowed({word:?})")));
        kinds += &format!(
            "{about}
            #[derive(Debug, Clone, PartialEq, Eq, Hash)]
            pub enum {name} {{}}
            impl __key::Kind for {name} {{
                const NAME: &'static str = {kind:?};
                const RULES: ::ade_catalog::ident::EncodingRules = ::ade_catalog::ident::EncodingRules {{
                    max_bytes: {max_bytes},
                    hashed: {hashed},
                    sensitive: {sensitive},
                    reserved: ::std::borrow::Cow::Borrowed(&[{reserved}]),
                    separators: ::std::borrow::Cow::Borrowed({separators:?}),
                }};
            }}\n"
        );
    }
    let import = if kinds.is_empty() { "" } else { "use super::__key;" };
    format!(
        "/// Identifiers in the keys of this catalog.
        pub mod ids {{
            {import}
            {types}
            {sets}
            /// How the identifiers are encoded.
            #[doc(hidden)]
            pub mod kinds {{
                {import}
                {kinds}
            }}
        }}"
    )
}

fn closed_set(name: &str, kind: &str, members: &[&str]) -> String {
    let (mut variants, mut texts) = (String::new(), String::new());
    for member in members {
        let (doc, variant) = (doc(&format!("`{member}`")), variant(member));
        variants += &format!("{doc}\n{variant},\n");
        texts += &format!("Self::{variant} => {member:?},\n");
    }
    let all = join(members.iter().map(|member| format!("Self::{}", variant(member))));
    format!(
        "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum {name} {{
            {variants}
        }}
        impl {name} {{
            /// All members, in the order of the catalog.
            #[must_use]
            pub fn all() -> &'static [Self] {{
                &[{all}]
            }}
            /// The text in keys.
            #[must_use]
            pub fn as_written(&self) -> &'static str {{
                match self {{
                    {texts}
                }}
            }}
            /// Parses a member.
            pub fn new(text: &str) -> ::core::result::Result<Self, ::ade_catalog::IdentifierError> {{
                Self::all().iter().copied().find(|member| member.as_written() == text).ok_or_else(|| {{
                    ::ade_catalog::IdentifierError::not_in_set({kind:?}, text, Self::all().iter().map(Self::as_written))
                }})
            }}
        }}"
    )
}

fn by_group(catalog: &Catalog) -> String {
    let mut modules = String::new();
    for group in groups(catalog) {
        let (mut items, mut imports) = (String::new(), BTreeSet::new());
        for entry in catalog.entries.iter().filter(|entry| entry.group_and_name().0 == group) {
            if let EntryKind::Group { names, .. } = &entry.kind {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let set = closed_set(&camel(entry.group_and_name().1), &entry.name, &names);
                items += &format!("{}\n{set}\n", doc(&entry.purpose));
            } else {
                imports.insert("use super::__key;\n");
                imports.extend(entry.plain.ids().map(|_| "use super::ids;\n"));
                items += &builder(catalog, entry, &[]);
            }
        }
        let about = doc(&format!("Keys, channels and groups `{group}.*`."));
        let (name, imports) = (escape_keyword(group), String::from_iter(imports));
        modules += &format!("{about}\npub mod {name} {{\n{imports}{items}\n}}\n");
    }
    modules
}

fn by_owner(catalog: &Catalog, position: usize) -> String {
    let mut types = String::new();
    for group in groups(catalog) {
        let own = || catalog.entries.iter().filter(|entry| entry.owner == group);
        let shared = own().next().map_or_else(Vec::new, |entry| entry.plain.leading_ids(position));
        let kinds = shared.iter().filter_map(|number| catalog.id(*number));
        let fields = kinds.clone().map(|kind| escape_keyword(&snake(&kind.name)));
        let of = kinds.map(|kind| format!("ids::{}", camel(&kind.name)));
        let parameters: Vec<String> =
            fields.clone().zip(of).map(|(field, of)| format!("{field}: {of}")).collect();
        let declared: String = parameters.iter().map(|field| format!("{field},\n")).collect();
        let (parameters, fields) = (parameters.join(", "), join(fields));
        let (name, default) = (camel(group), if shared.is_empty() { "Default, " } else { "" });
        let is_built = |entry: &&Entry| !matches!(entry.kind, EntryKind::Group { .. });
        let builders: String = own().filter(is_built).map(|entry| builder(catalog, entry, &shared)).collect();
        types += &format!(
            "/// Builds the keys of `{group}` only.
            #[derive({default}Debug, Clone, Copy, PartialEq, Eq)]
            pub struct {name} {{
                {declared}
            }}
            impl {name} {{
                /// Creates the builders of `{group}`.
                #[must_use]
                pub fn new({parameters}) -> Self {{
                    Self {{ {fields} }}
                }}
                {builders}
            }}\n"
        );
    }
    types
}

/// Generates one function. Identifiers in `self_ids` are fields of `self`.
fn builder(catalog: &Catalog, entry: &Entry, self_ids: &[usize]) -> String {
    let (mut parameters, mut written) = (Vec::new(), Vec::new());
    for number in entry.plain.ids() {
        let Some(kind) = catalog.id(number) else { continue };
        let name = escape_keyword(&snake(&kind.name));
        if self_ids.contains(&number) {
            written.push(format!("self.{name}.as_written()"));
        } else {
            parameters.push(format!("{name}: &'a ids::{}", camel(&kind.name)));
            written.push(format!("{name}.as_written()"));
        }
    }
    written.resize(MAX_IDS, "\"\"".to_owned());
    let ids = written.join(", ");
    let (lifetimes, lifetime) = if parameters.is_empty() { ("", "'static") } else { ("<'a>", "'a") };
    if catalog.owner_segment.is_some() {
        // The fields are closed sets with static text, so nothing is borrowed from `self`.
        parameters.insert(0, "self".to_owned());
    }
    let (of, build) = match &entry.kind {
        EntryKind::Key(shape) => {
            let (of, value) = lifetime_of(&shape.ttl.rule);
            (
                format!("__key::Key<{lifetime}, __key::lifetime::{of}>"),
                format!("__key::Key::from_builder(&TEMPLATE, [{ids}], __key::lifetime::{value})"),
            )
        }
        EntryKind::Channel { .. } | EntryKind::Group { .. } => (
            format!("__key::Channel<{lifetime}>"),
            format!("__key::Channel::from_builder(&TEMPLATE, [{ids}])"),
        ),
    };
    let (purpose, pattern) = (doc(&entry.purpose), doc(&format!("`{}`", entry.plain)));
    let [plain, cluster] = [Layout::Plain, Layout::Cluster].map(|layout| template(entry, layout));
    let (name, parameters) = (escape_keyword(entry.group_and_name().1), parameters.join(", "));
    format!(
        "{purpose}
        ///
        {pattern}
        #[must_use]
        pub fn {name}{lifetimes}({parameters}) -> {of} {{
            static TEMPLATE: __key::Template = __key::Template {{
                name: {:?},
                plain: &[{plain}],
                cluster: &[{cluster}],
            }};
            {build}
        }}\n",
        entry.name
    )
}

fn template(entry: &Entry, layout: Layout) -> String {
    // Positions work for both layouts: they have the same identifiers in the same order.
    let mut positions = 0..;
    join(entry.pattern(layout).parts().iter().map(|part| match part {
        Part::Text(text) => format!("__key::TemplatePart::Text({text:?})"),
        Part::Id(_) => format!("__key::TemplatePart::Id({})", positions.next().unwrap_or(MAX_IDS)),
    }))
}

/// The type of a lifetime, and its value.
fn lifetime_of(rule: &TtlRule) -> (&'static str, String) {
    let duration =
        |duration: Duration| format!("::std::time::Duration::from_millis({})", duration.as_millis());
    let ttl = |ttl: &TtlDuration| duration(ttl.duration);
    let max = |max: &Option<TtlDuration>| {
        max.as_ref().map_or_else(|| "None".to_owned(), |max| format!("Some({})", ttl(max)))
    };
    let (name, fields) = match rule.resolved() {
        TtlRule::None | TtlRule::Like { .. } => return ("Unbounded", "Unbounded".to_owned()),
        TtlRule::Exact(fixed) => ("Fixed", format!("ttl: {}", ttl(fixed))),
        TtlRule::Range { min, max: to } => ("Ranged", format!("min: {}, max: {}", ttl(min), max(to))),
        TtlRule::Default { ttl: default, at_most } => {
            ("Default", format!("ttl: {}, at_most: {}", ttl(default), max(at_most)))
        }
        TtlRule::Renewable { ttl: initial, at_most } => {
            ("Renewable", format!("ttl: {}, at_most: {}", ttl(initial), max(at_most)))
        }
        TtlRule::Given { plus, .. } => {
            let plus = plus.as_ref().map_or(Duration::ZERO, |plus| plus.duration);
            ("Given", format!("plus: {}", duration(plus)))
        }
    };
    (name, format!("{name} {{ {fields} }}"))
}

/// Generates a function that calls every builder, for tests.
fn every_builder(catalog: &Catalog) -> String {
    let mut calls = String::new();
    for entry in catalog.entries.iter().filter(|entry| !matches!(entry.kind, EntryKind::Group { .. })) {
        let mut ids = entry
            .plain
            .ids()
            .filter_map(|number| catalog.id(number))
            .map(|kind| format!("ids::{}::new(&raw({:?}))?", camel(&kind.name), kind.name));
        let (group, name) = entry.group_and_name();
        let builder = match catalog.owner_segment {
            Some(position) => {
                let own = entry.plain.leading_ids(position).len();
                format!("{}::new({}).", camel(group), join(ids.by_ref().take(own)))
            }
            None => format!("{}::", escape_keyword(group)),
        };
        let (function, given) = (escape_keyword(name), join(ids.map(|id| format!("&{id}"))));
        calls += &format!("({:?}, {builder}{function}({given}).in_both_layouts()),\n", entry.name);
    }
    format!(
        "/// Calls every builder with identifiers by kind; returns entry, plain key and cluster key.
        #[doc(hidden)]
        pub fn __every_builder(raw: __key::RawIds<'_>) -> __key::EveryKey {{
            let _ = raw;
            Ok(vec![
                {calls}
            ])
        }}"
    )
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

fn groups(catalog: &Catalog) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    catalog.entries.iter().map(|entry| entry.group_and_name().0).filter(|group| seen.insert(*group)).collect()
}

/// `task_id`, `lock:default_ttl`, `DRAFT`, `idempotencyKey` → `TaskId`, `LockDefaultTtl`, `Draft`, `IdempotencyKey`.
pub(crate) fn camel(text: &str) -> String {
    let mut camel = text.to_upper_camel_case();
    // Single letters such as `a-l-l` become one word.
    if camel.bytes().all(|byte| byte.is_ascii_uppercase()) {
        camel = camel.to_ascii_lowercase().to_upper_camel_case();
    }
    if camel == "Self" { "Self_".to_owned() } else { camel }
}

pub(crate) fn variant(text: &str) -> String {
    let camel = camel(text);
    if camel.starts_with(|c: char| c.is_ascii_digit()) { format!("N{camel}") } else { camel }
}

/// `idempotencyKey` → `idempotency_key`.
pub(crate) fn snake(text: &str) -> String {
    text.to_snake_case()
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
