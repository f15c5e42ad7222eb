//! The coordination port on every backend: one conformance suite, then tests specific to one backend.

mod conformance;
mod folder_fixture;
mod journal;
mod redis_edge_cases;
mod redis_keys;
mod redis_memory;
