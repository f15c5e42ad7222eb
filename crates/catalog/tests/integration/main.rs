//! Tests of catalogs through the public interface, with the catalogs in `fixtures`.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_catalog::Catalog;

mod builders;
mod errors;
mod generated;
mod index;
mod languages;

/// Those in `fixtures`, and the shipped ones.
fn catalogs() -> Vec<Catalog> {
    let sources = [
        include_str!("../fixtures/shop.toml"),
        include_str!("../fixtures/guild.toml"),
        include_str!("../fixtures/tricky.toml"),
        include_str!("../fixtures/bare.toml"),
        include_str!("../../../keyspace/catalogs/ade.toml"),
        include_str!("../../../keyspace/catalogs/mediation.toml"),
        include_str!("../../../keyspace/catalogs/mesh.toml"),
    ];
    sources.map(|source| Catalog::parse("a catalog", source).expect("valid")).into()
}
