//! Built keys: what typed builders return and what a store accepts.
//!
//! Invariants: a [`RedisKey`] or [`ChannelName`] comes only from a builder, so that no key is ever made of a string; a
//! key whose catalog demands a lifetime becomes [`Writable`] only together with it. A key under a range takes the TTL:
//!
//! ```
//! use ade_catalog::key::{Key, TtlOutOfRule, Writable, lifetime::Ranged};
//!
//! fn write<'a>(key: Key<'a, Ranged>, ttl: std::time::Duration) -> Result<Writable<'a>, TtlOutOfRule> {
//!     key.writable_for(ttl)
//! }
//! ```
//!
//! and cannot be written without one:
//!
//! ```compile_fail
//! use ade_catalog::key::{Key, TtlOutOfRule, Writable, lifetime::Ranged};
//!
//! fn write<'a>(key: Key<'a, Ranged>) -> Writable<'a> {
//!     key.writable()
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{IdentifierError, Rules};
use crate::slot::slot_of;

/// Redis counts in milliseconds, and a TTL of none at all would delete the key.
const SHORTEST_TTL: Duration = Duration::from_millis(1);

/// Beyond this, about a hundred years, a TTL is a mistake; far beyond it, the server's arithmetic overflows.
pub const LONGEST_TTL: Duration = Duration::from_secs(36_525 * 86_400);

/// Most identifiers a key can have.
pub const MAX_IDS: usize = 4;

/// How keys are spelled: chosen once, when a store connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As on a standalone server or behind Sentinel.
    Plain,
    /// With hash tags, so that what belongs together shares a slot.
    Cluster,
}

/// A TTL that the catalog does not allow for a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a ttl of {asked:?} is outside the rule of {entry}: from {min:?} to {max:?}")]
pub struct TtlOutOfRule {
    /// The key's entry.
    pub entry: &'static str,
    /// What was asked for.
    pub asked: Duration,
    /// Shortest allowed.
    pub min: Duration,
    /// Longest allowed.
    pub max: Duration,
}

/// Lifetimes as types: they decide how a key may be written. Their values come from the catalog.
pub mod lifetime {
    use std::time::Duration;

    /// Does not expire.
    #[derive(Debug, Clone, Copy)]
    pub struct Unbounded;

    /// Always the same.
    #[derive(Debug, Clone, Copy)]
    pub struct Fixed {
        /// That long.
        pub ttl: Duration,
    }

    /// The same unless the writer chooses otherwise.
    #[derive(Debug, Clone, Copy)]
    pub struct Default {
        /// If the writer does not choose.
        pub ttl: Duration,
        /// Longest the writer may choose.
        pub at_most: Option<Duration>,
    }

    /// Extended while in use.
    #[derive(Debug, Clone, Copy)]
    pub struct Renewable {
        /// At first.
        pub ttl: Duration,
        /// Longest extension.
        pub at_most: Option<Duration>,
    }

    /// Chosen by the writer between bounds.
    #[derive(Debug, Clone, Copy)]
    pub struct Ranged {
        /// Shortest.
        pub min: Duration,
        /// Longest.
        pub max: Option<Duration>,
    }

    /// Given by the writer's data.
    #[derive(Debug, Clone, Copy)]
    pub struct Given {
        /// Grace added to it.
        pub plus: Duration,
    }
}

/// An entry as generated code holds it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Template {
    pub name: &'static str,
    pub plain: &'static [TemplatePart],
    pub cluster: &'static [TemplatePart],
}

/// A piece of a [`Template`]; identifiers by position.
#[doc(hidden)]
#[derive(Debug)]
pub enum TemplatePart {
    Text(&'static str),
    Id(usize),
}

/// A template with its identifiers: all that is needed to spell it.
#[derive(Debug, Clone, Copy)]
struct Name<'a> {
    template: &'static Template,
    ids: [&'a str; MAX_IDS],
}

impl Name<'_> {
    fn in_layout(&self, layout: Layout) -> String {
        let parts = match layout {
            Layout::Plain => self.template.plain,
            Layout::Cluster => self.template.cluster,
        };
        let mut text = String::with_capacity(96);
        for part in parts {
            text.push_str(match part {
                TemplatePart::Text(literal) => literal,
                TemplatePart::Id(position) => self.ids.get(*position).copied().unwrap_or_default(),
            });
        }
        text
    }

    fn redis_key(&self, layout: Layout) -> RedisKey {
        RedisKey { text: self.in_layout(layout).into(), entry: self.template.name }
    }

    fn in_both_layouts(&self) -> [String; 2] {
        [Layout::Plain, Layout::Cluster].map(|layout| self.in_layout(layout))
    }
}

/// Gives each kind of identifier, by name, a raw text; for [`EveryKey`].
#[doc(hidden)]
pub type RawIds<'a> = &'a dyn Fn(&str) -> String;

/// Every entry with the plain and the cluster spelling of one key, as generated code lists them for tests.
#[doc(hidden)]
pub type EveryKey = Result<Vec<(&'static str, [String; 2])>, IdentifierError>;

/// A kind of identifier as generated code holds it.
#[doc(hidden)]
pub trait Kind {
    const NAME: &'static str;
    const RULES: Rules;
}

/// An identifier of kind `K`, checked and written: it fits into every key that takes one.
pub struct Id<K> {
    written: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Id<K> {
    /// Any text but the empty one.
    pub fn new(text: &str) -> Result<Self, IdentifierError> {
        Ok(Self { written: K::RULES.write(K::NAME, text)?.into(), kind: PhantomData })
    }
}

impl<K> Id<K> {
    /// As it stands in keys.
    #[must_use]
    pub fn as_written(&self) -> &str {
        &self.written
    }
}

impl<K: Kind> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", K::NAME, self.written)
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self { written: self.written.clone(), kind: PhantomData }
    }
}

impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl<K> Eq for Id<K> {}

impl<K> std::hash::Hash for Id<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.written.hash(state);
    }
}

/// A key named but not yet spelled; `L` is its [`lifetime`].
#[derive(Debug, Clone, Copy)]
pub struct Key<'a, L> {
    name: Name<'a>,
    lifetime: L,
}

impl<'a, L> Key<'a, L> {
    #[doc(hidden)]
    #[must_use]
    pub fn from_builder(template: &'static Template, ids: [&'a str; MAX_IDS], lifetime: L) -> Self {
        Self { name: Name { template, ids }, lifetime }
    }

    /// The name of its entry.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.name.template.name
    }

    /// The key as the server sees it, for reading and deleting.
    #[must_use]
    pub fn in_layout(&self, layout: Layout) -> RedisKey {
        self.name.redis_key(layout)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn in_both_layouts(&self) -> [String; 2] {
        self.name.in_both_layouts()
    }

    fn with(&self, ttl: Option<Duration>) -> Writable<'a> {
        Writable { name: self.name, ttl }
    }

    fn within(
        &self,
        asked: Duration,
        min: Duration,
        max: Option<Duration>,
    ) -> Result<Writable<'a>, TtlOutOfRule> {
        let max = max.unwrap_or(LONGEST_TTL);
        if asked < min || asked > max {
            return Err(TtlOutOfRule { entry: self.entry(), asked, min, max });
        }
        Ok(self.with(Some(asked)))
    }
}

impl<'a> Key<'a, lifetime::Unbounded> {
    /// The key, to be written without a TTL.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with(None)
    }
}

impl<'a> Key<'a, lifetime::Fixed> {
    /// The key with the TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with(Some(self.lifetime.ttl))
    }
}

impl<'a> Key<'a, lifetime::Default> {
    /// The key with the TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with(Some(self.lifetime.ttl))
    }

    /// The key with a TTL of the writer's choice, which the entry may bound.
    pub fn writable_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRule> {
        self.within(ttl, SHORTEST_TTL, self.lifetime.at_most)
    }
}

impl<'a> Key<'a, lifetime::Renewable> {
    /// The key with the first TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with(Some(self.lifetime.ttl))
    }

    /// The key with a renewed TTL, which the entry may bound.
    pub fn renewed_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRule> {
        self.within(ttl, SHORTEST_TTL, self.lifetime.at_most)
    }
}

impl<'a> Key<'a, lifetime::Ranged> {
    /// The key with a TTL between the bounds of its entry.
    pub fn writable_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRule> {
        self.within(ttl, self.lifetime.min, self.lifetime.max)
    }
}

impl<'a> Key<'a, lifetime::Given> {
    /// The key with the duration its entry speaks of; the entry's grace is added here.
    pub fn writable_for(&self, given: Duration) -> Result<Writable<'a>, TtlOutOfRule> {
        self.within(given.saturating_add(self.lifetime.plus), SHORTEST_TTL.max(self.lifetime.plus), None)
    }
}

/// A key together with the lifetime it must be written with.
#[derive(Debug, Clone, Copy)]
pub struct Writable<'a> {
    name: Name<'a>,
    ttl: Option<Duration>,
}

impl Writable<'_> {
    /// The name of its entry.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.name.template.name
    }

    /// The key as the server sees it.
    #[must_use]
    pub fn in_layout(&self, layout: Layout) -> RedisKey {
        self.name.redis_key(layout)
    }

    /// The TTL to write it with; `None` only where the catalog allows a key to stay.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }
}

/// A key as the server sees it. Clones share its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RedisKey {
    text: Arc<str>,
    entry: &'static str,
}

impl RedisKey {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name of its entry.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Its cluster slot.
    #[must_use]
    pub fn slot(&self) -> u16 {
        slot_of(self.text.as_bytes())
    }
}

impl fmt::Display for RedisKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A channel named but not yet spelled.
#[derive(Debug, Clone, Copy)]
pub struct Channel<'a> {
    name: Name<'a>,
}

impl<'a> Channel<'a> {
    #[doc(hidden)]
    #[must_use]
    pub fn from_builder(template: &'static Template, ids: [&'a str; MAX_IDS]) -> Self {
        Self { name: Name { template, ids } }
    }

    /// The channel as the server sees it.
    #[must_use]
    pub fn in_layout(&self, layout: Layout) -> ChannelName {
        ChannelName { text: self.name.in_layout(layout).into() }
    }

    #[doc(hidden)]
    #[must_use]
    pub fn in_both_layouts(&self) -> [String; 2] {
        self.name.in_both_layouts()
    }
}

/// A channel as the server sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChannelName {
    text: Arc<str>,
}

impl ChannelName {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
