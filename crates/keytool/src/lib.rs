//! Keyspace tools for owners of any Redis: all of them are driven by a catalog, and need nothing else of ADE.
//!
//! [`server`] finds the servers of a deployment, [`scan`] reads their keys in small batches, [`audit`] compares them with
//! catalogs, [`learn`] writes a first catalog; [`diff`] compares two
//! catalogs; [`migrate`] renames keys of a former schema. [`lint`] checks source code, and needs no server.
//!
//! Invariants: reading never disturbs other clients more than its pace allows; a value is read only up to a limit, and never
//! becomes part of a message or report.

pub mod audit;
pub mod diff;
pub mod learn;
pub mod lint;
pub mod migrate;
pub mod scan;
pub mod server;
pub mod text;
