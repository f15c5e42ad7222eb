//! Tests of catalogs through the public interface, with the catalogs in `fixtures`.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

mod builders;
mod errors;
mod generated;
mod index;
mod languages;
