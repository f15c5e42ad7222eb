//! Keyspace tools for owners of any Redis: all of them are driven by a catalog, and need nothing else of ADE.

pub mod lint;
