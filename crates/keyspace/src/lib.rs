//! The Redis keys of ADE, of the mediation runtime and of the mesh: three catalogs, the typed builders generated from them, and
//! the envelope of mediation values.
//!
//! ```
//! use ade_keyspace::{Layout, ade as keys};
//!
//! let task = keys::ids::TaskId::new("550e8400")?;
//! let lock = keys::lock::task(&task);
//! assert_eq!(lock.in_layout(Layout::Plain).as_str(), "ade:lock:task:550e8400");
//! assert_eq!(lock.in_layout(Layout::Cluster).as_str(), "ade:lock:task:{task:550e8400}");
//! # Ok::<(), ade_keyspace::IdentifierError>(())
//! ```
//!
//! Mediation keys belong to modules. Only module D builds circuit keys, together with their TTL:
//!
//! ```
//! use ade_keyspace::mediation::{D, ids};
//!
//! let source = ids::SourceId::new("weather-api")?;
//! let circuit = D::new(ids::Env::Prod).circuit_source(&source).writable_for(std::time::Duration::from_secs(30))?;
//! assert_eq!(circuit.ttl(), Some(std::time::Duration::from_secs(90)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Module F cannot:
//!
//! ```compile_fail
//! use ade_keyspace::mediation::{F, ids};
//!
//! let source = ids::SourceId::new("weather-api")?;
//! let circuit = F::new(ids::Env::Prod).circuit_source(&source);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants: only builders create keys, and only for entries in `catalogs/`; no I/O, no clock.

#![warn(missing_docs)]

pub mod envelope;

use std::sync::LazyLock;

use ade_catalog::Catalog;
pub use ade_catalog::key::{ChannelName, Key, RedisKey, TtlOutOfRange, Writable, lifetime};
pub use ade_catalog::{IdentifierError, Layout};

include!(concat!(env!("OUT_DIR"), "/catalogs.rs"));

/// The shipped catalogs, in alphabetical order.
pub fn catalogs() -> &'static [Catalog] {
    static CATALOGS: LazyLock<Vec<Catalog>> = LazyLock::new(|| {
        // The build script has parsed all of them, so parsing cannot fail here.
        SHIPPED.iter().filter_map(|(name, source)| Catalog::parse(name, source).ok()).collect()
    });
    &CATALOGS
}

/// A function that calls every builder of a catalog; see [`__EVERY_BUILDER`].
#[doc(hidden)]
pub type EveryBuilder = fn(ade_catalog::key::RawIds<'_>) -> ade_catalog::key::EveryKey;

/// Compiles the Rust code of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
