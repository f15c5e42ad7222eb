//! What the builders of every language have in common: groups of functions with their identifiers, parts and lifetimes.

use heck::{ToLowerCamelCase, ToSnakeCase};

use super::camel;
use crate::key::Layout;
use crate::model::{Catalog, Entry, EntryKind, IdForm, IdKind};
use crate::pattern::Part;
use crate::text::one_line;
use crate::ttl::TtlRule;

/// Functions of one group of entries.
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    pub(super) functions: Vec<Function<'a>>,
}

/// A function that builds the keys or channels of one entry.
pub(super) struct Function<'a> {
    pub(super) entry: &'a Entry,
    pub(super) name: &'a str,
    pub(super) kinds: Vec<&'a IdKind>,
    pub(super) lifetime: Lifetime,
}

/// How long a key lives, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// A channel has no lifetime.
    Channel,
    Unbounded,
    Fixed {
        ttl: u64,
    },
    Default {
        ttl: u64,
        at_most: Option<u64>,
    },
    Renewable {
        ttl: u64,
        at_most: Option<u64>,
    },
    Ranged {
        min: u64,
        max: Option<u64>,
    },
    Given {
        plus: u64,
    },
}

impl Lifetime {
    fn of(rule: &TtlRule) -> Self {
        let ms = |ttl: &crate::ttl::TtlDuration| u64::try_from(ttl.duration.as_millis()).unwrap_or(u64::MAX);
        match rule.resolved() {
            TtlRule::None | TtlRule::Like { .. } => Self::Unbounded,
            TtlRule::Exact(ttl) => Self::Fixed { ttl: ms(ttl) },
            TtlRule::Range { min, max } => Self::Ranged { min: ms(min), max: max.as_ref().map(ms) },
            TtlRule::Default { ttl, at_most } => {
                Self::Default { ttl: ms(ttl), at_most: at_most.as_ref().map(ms) }
            }
            TtlRule::Renewable { ttl, at_most } => {
                Self::Renewable { ttl: ms(ttl), at_most: at_most.as_ref().map(ms) }
            }
            TtlRule::Given { plus, .. } => Self::Given { plus: plus.as_ref().map_or(0, ms) },
        }
    }

    /// The name of its type.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Channel => "Channel",
            Self::Unbounded => "Unbounded",
            Self::Fixed { .. } => "Fixed",
            Self::Default { .. } => "Default",
            Self::Renewable { .. } => "Renewable",
            Self::Ranged { .. } => "Ranged",
            Self::Given { .. } => "Given",
        }
    }

    /// Its numbers by name; `None`: without bound.
    pub(super) fn numbers(self) -> Vec<(&'static str, Option<u64>)> {
        match self {
            Self::Channel | Self::Unbounded => Vec::new(),
            Self::Fixed { ttl } => vec![("ttl_ms", Some(ttl))],
            Self::Default { ttl, at_most } | Self::Renewable { ttl, at_most } => {
                vec![("ttl_ms", Some(ttl)), ("at_most_ms", at_most)]
            }
            Self::Ranged { min, max } => vec![("min_ms", Some(min)), ("max_ms", max)],
            Self::Given { plus } => vec![("plus_ms", Some(plus))],
        }
    }
}

/// The groups of a catalog in order, without consumer groups, which are not built.
pub(super) fn groups(catalog: &Catalog) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for entry in &catalog.entries {
        let lifetime = match &entry.kind {
            EntryKind::Key(shape) => Lifetime::of(&shape.ttl.rule),
            EntryKind::Channel { .. } => Lifetime::Channel,
            EntryKind::Group { .. } => continue,
        };
        let (group, name) = entry.group_and_name();
        let kinds = entry.plain.ids().filter_map(|number| catalog.id(number)).collect();
        // A key and a channel may have the same name.
        let function = Function { entry, name, kinds, lifetime };
        match groups.iter_mut().find(|other| other.name == group) {
            Some(group) => group.functions.push(function),
            None => groups.push(Group { name: group, functions: vec![function] }),
        }
    }
    groups
}

impl Function<'_> {
    /// Literals as quoted by `quote`, identifiers as written by `id`, joined by ` + `.
    pub(super) fn concatenation(&self, layout: Layout, id: impl Fn(&IdKind) -> String) -> String {
        let mut kinds = self.kinds.iter();
        let parts = self.entry.pattern(layout).parts().iter().map(|part| match part {
            Part::Text(text) => quoted(text),
            Part::Id(_) => kinds.next().map_or_else(|| quoted(""), |kind| id(kind)),
        });
        parts.collect::<Vec<_>>().join(" + ")
    }

    /// What the function builds, in one line.
    pub(super) fn about(&self) -> String {
        format!("{}: {}", one_line(&self.entry.purpose), self.entry.plain)
    }
}

/// The members of a closed set, or nothing.
pub(super) fn members(kind: &IdKind) -> Option<Vec<&str>> {
    match &kind.form {
        IdForm::OneOf(members) => Some(members.iter().map(|member| member.value.as_str()).collect()),
        IdForm::Text(_) => None,
    }
}

/// A string literal that all languages read alike. Patterns and members are printable ASCII.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A name in the style of a language; a reserved word gets an underscore.
pub(super) fn snake_name(text: &str, reserved: &[&str]) -> String {
    escaped(text.to_snake_case(), reserved)
}

pub(super) fn lower_camel_name(text: &str, reserved: &[&str]) -> String {
    escaped(text.to_lower_camel_case(), reserved)
}

/// The type of a kind; `used` are names that the generated code has itself.
pub(super) fn type_name(text: &str, used: &[&str]) -> String {
    let name = camel(text);
    if used.contains(&name.as_str()) { format!("{name}Id") } else { name }
}

fn escaped(name: String, reserved: &[&str]) -> String {
    if reserved.contains(&name.as_str()) { format!("{name}_") } else { name }
}
