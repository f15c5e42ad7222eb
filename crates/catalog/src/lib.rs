//! Redis key catalogs: parsing, validation, and everything that is derived from a catalog.
//!
//! A catalog is one TOML file that lists every key, channel and consumer group of a service ([`Catalog::parse`]).
//! Derived from it are the encoding of identifiers ([`ident`]), keys in both layouts ([`key`]), their cluster slots ([`slot`]),
//! the lookup of a concrete key ([`find`], and [`index`] for many keys), the Markdown reference ([`mod@reference`]), the listing ([`listing`]) and the source of
//! typed builders ([`builders`]).
//!
//! Invariants: a valid catalog is unambiguous (no two entries can build the same key) and bounded (no key can exceed the
//! length limit). This crate does no I/O: no files, no sockets, no clock.

#![warn(missing_docs)]

mod check;
mod error;
mod file;
mod load;
mod text;

pub mod builders;
pub mod find;
pub mod ident;
pub mod index;
pub mod key;
pub mod listing;
pub mod model;
pub mod pattern;
pub mod reference;
pub mod slot;
pub mod ttl;

pub use error::CatalogError;
pub use find::KeyMatch;
pub use ident::{Identifier, IdentifierError};
pub use index::KeyIndex;
pub use key::Layout;
pub use model::{Catalog, Entry};
pub use text::closest;
