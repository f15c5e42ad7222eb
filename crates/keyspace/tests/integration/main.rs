//! Tests of all entries of the shipped catalogs.

mod cluster;
mod identifiers;
mod mediation;
mod support;
