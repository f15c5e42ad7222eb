//! The coordination port on every backend: one conformance suite, then tests specific to one backend.

#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers may panic")]

mod conformance;
mod data_folder;
mod journal;
mod redis_edge_cases;
mod redis_keys;
