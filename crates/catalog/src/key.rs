//! Keys: what typed builders return and what a store accepts.
//!
//! Invariants: only builders create a [`RedisKey`] or [`ChannelName`], never a string; a key whose catalog entry requires a TTL
//! becomes [`Writable`] only together with it. A key with a range takes the TTL:
//!
//! ```
//! use ade_catalog::key::{Key, TtlOutOfRange, Writable, lifetime::Ranged};
//!
//! fn write<'a>(key: Key<'a, Ranged>, ttl: std::time::Duration) -> Result<Writable<'a>, TtlOutOfRange> {
//!     key.writable_for(ttl)
//! }
//! ```
//!
//! and cannot be written without it:
//!
//! ```compile_fail
//! use ade_catalog::key::{Key, TtlOutOfRange, Writable, lifetime::Ranged};
//!
//! fn write<'a>(key: Key<'a, Ranged>) -> Writable<'a> {
//!     key.writable()
//! }
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::ident::{EncodingRules, IdentifierError};
use crate::slot::slot_of;

/// Redis counts milliseconds, and a TTL of zero would delete the key.
const MIN_TTL: Duration = Duration::from_millis(1);

/// About a hundred years. A longer TTL is a mistake, and a much longer one overflows in the server.
pub const MAX_TTL: Duration = Duration::from_secs(36_525 * 86_400);

/// Maximum number of identifiers in a key.
pub const MAX_IDS: usize = 4;

/// How keys are written; chosen once, when a store connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// For a standalone server or Sentinel.
    Plain,
    /// With hash tags, so that related keys share a slot.
    Cluster,
}

/// The catalog does not allow this TTL for the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a ttl of {ttl:?} is not allowed for {entry}: use {min:?} to {max:?}")]
pub struct TtlOutOfRange {
    /// Name of the entry.
    pub entry: &'static str,
    /// The rejected TTL.
    pub ttl: Duration,
    /// Minimum.
    pub min: Duration,
    /// Maximum.
    pub max: Duration,
}

/// Lifetimes as types: they determine how a key may be written. The values come from the catalog.
pub mod lifetime {
    use std::time::Duration;

    /// The key does not expire.
    #[derive(Debug, Clone, Copy)]
    pub struct Unbounded;

    /// The key always has the same TTL.
    #[derive(Debug, Clone, Copy)]
    pub struct Fixed {
        /// The TTL.
        pub ttl: Duration,
    }

    /// The key has a default TTL unless the writer chooses another.
    #[derive(Debug, Clone, Copy)]
    pub struct Default {
        /// The default TTL.
        pub ttl: Duration,
        /// Maximum that the writer may choose.
        pub at_most: Option<Duration>,
    }

    /// The TTL is extended while the key is in use.
    #[derive(Debug, Clone, Copy)]
    pub struct Renewable {
        /// The initial TTL.
        pub ttl: Duration,
        /// Maximum of an extension.
        pub at_most: Option<Duration>,
    }

    /// The writer chooses the TTL between bounds.
    #[derive(Debug, Clone, Copy)]
    pub struct Ranged {
        /// Minimum.
        pub min: Duration,
        /// Maximum.
        pub max: Option<Duration>,
    }

    /// The data of the writer determines the TTL.
    #[derive(Debug, Clone, Copy)]
    pub struct Given {
        /// Grace period that is added to it.
        pub plus: Duration,
    }
}

/// An entry in generated code.
#[doc(hidden)]
#[derive(Debug)]
pub struct Template {
    pub name: &'static str,
    pub plain: &'static [TemplatePart],
    pub cluster: &'static [TemplatePart],
}

/// A part of a [`Template`]; identifiers by position.
#[doc(hidden)]
#[derive(Debug)]
pub enum TemplatePart {
    Text(&'static str),
    Id(usize),
}

/// A template with its identifiers.
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

/// Returns a raw identifier for the name of a kind; for [`EveryKey`].
#[doc(hidden)]
pub type RawIds<'a> = &'a dyn Fn(&str) -> String;

/// Every entry with one key in the plain and the cluster layout, as generated code lists them for tests.
#[doc(hidden)]
pub type EveryKey = Result<Vec<(&'static str, [String; 2])>, IdentifierError>;

/// A kind of identifier in generated code.
#[doc(hidden)]
pub trait Kind {
    const NAME: &'static str;
    const RULES: EncodingRules;
}

/// An encoded identifier of kind `K`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Id<K> {
    written: Box<str>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Id<K> {
    /// Encodes a text. Only the empty text is rejected.
    pub fn new(text: &str) -> Result<Self, IdentifierError> {
        Ok(Self { written: K::RULES.encode(K::NAME, text)?.into(), kind: PhantomData })
    }
}

impl<K> Id<K> {
    /// The encoded form, as it appears in keys.
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

/// A key, not yet in a layout; `L` is its [`lifetime`].
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

    /// Name of the catalog entry.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.name.template.name
    }

    /// The key in a layout, for reading and deleting.
    #[must_use]
    pub fn in_layout(&self, layout: Layout) -> RedisKey {
        self.name.redis_key(layout)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn in_both_layouts(&self) -> [String; 2] {
        self.name.in_both_layouts()
    }

    fn with_ttl(&self, ttl: Option<Duration>) -> Writable<'a> {
        Writable { name: self.name, ttl }
    }

    fn with_bounded_ttl(
        &self,
        ttl: Duration,
        min: Duration,
        max: Option<Duration>,
    ) -> Result<Writable<'a>, TtlOutOfRange> {
        let max = max.unwrap_or(MAX_TTL);
        if ttl < min || ttl > max {
            return Err(TtlOutOfRange { entry: self.entry(), ttl, min, max });
        }
        Ok(self.with_ttl(Some(ttl)))
    }
}

impl<'a> Key<'a, lifetime::Unbounded> {
    /// The key without a TTL.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with_ttl(None)
    }
}

impl<'a> Key<'a, lifetime::Fixed> {
    /// The key with the TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with_ttl(Some(self.lifetime.ttl))
    }
}

impl<'a> Key<'a, lifetime::Default> {
    /// The key with the TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with_ttl(Some(self.lifetime.ttl))
    }

    /// The key with another TTL, up to the maximum of its entry.
    pub fn writable_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRange> {
        self.with_bounded_ttl(ttl, MIN_TTL, self.lifetime.at_most)
    }
}

impl<'a> Key<'a, lifetime::Renewable> {
    /// The key with the initial TTL of its entry.
    #[must_use]
    pub fn writable(&self) -> Writable<'a> {
        self.with_ttl(Some(self.lifetime.ttl))
    }

    /// The key with a renewed TTL, up to the maximum of its entry.
    pub fn renewed_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRange> {
        self.with_bounded_ttl(ttl, MIN_TTL, self.lifetime.at_most)
    }
}

impl<'a> Key<'a, lifetime::Ranged> {
    /// The key with a TTL between the bounds of its entry.
    pub fn writable_for(&self, ttl: Duration) -> Result<Writable<'a>, TtlOutOfRange> {
        self.with_bounded_ttl(ttl, self.lifetime.min, self.lifetime.max)
    }
}

impl<'a> Key<'a, lifetime::Given> {
    /// The key with the given duration plus the grace period of its entry.
    pub fn writable_for(&self, given: Duration) -> Result<Writable<'a>, TtlOutOfRange> {
        self.with_bounded_ttl(given.saturating_add(self.lifetime.plus), MIN_TTL.max(self.lifetime.plus), None)
    }
}

/// A key with the TTL it must be written with.
#[derive(Debug, Clone, Copy)]
pub struct Writable<'a> {
    name: Name<'a>,
    ttl: Option<Duration>,
}

impl Writable<'_> {
    /// Name of the catalog entry.
    #[must_use]
    pub fn entry(&self) -> &'static str {
        self.name.template.name
    }

    /// The key in a layout.
    #[must_use]
    pub fn in_layout(&self, layout: Layout) -> RedisKey {
        self.name.redis_key(layout)
    }

    /// The TTL; `None` only if the catalog says that the key does not expire.
    #[must_use]
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }
}

/// A key as the server sees it. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RedisKey {
    text: Arc<str>,
    entry: &'static str,
}

impl RedisKey {
    /// The text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Name of the catalog entry.
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

/// A channel, not yet in a layout.
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

    /// The channel in a layout.
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
    /// The name of the channel.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
