//! The language of Redis key catalogs, and everything that follows from a catalog alone.
//!
//! A catalog is one TOML file that lists every key, channel and consumer group of a service ([`Catalog::parse`]).
//! From it come the spelling of identifiers ([`ident`]), the keys themselves in both layouts ([`key`]), their cluster
//! slots ([`slot`]), the way back from a concrete key to its entry ([`find`]), the reference ([`mod@reference`]), the listing
//! ([`listing`]) and the source of typed builders ([`builders`]).
//!
//! Invariants: a catalog that loads is unambiguous (no two entries can build the same key) and bounded (no key can grow
//! beyond its limit). This crate does no I/O: it never opens a file, a socket or a clock.

#![warn(missing_docs)]

mod check;
mod error;
mod file;
mod load;
mod text;

pub mod builders;
pub mod find;
pub mod ident;
pub mod key;
pub mod listing;
pub mod model;
pub mod pattern;
pub mod reference;
pub mod slot;
pub mod ttl;

pub use error::CatalogError;
pub use find::Found;
pub use ident::{Identifier, IdentifierError};
pub use key::Layout;
pub use model::{Catalog, Entry};
pub use text::closest;
