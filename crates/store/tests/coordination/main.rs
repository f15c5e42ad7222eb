//! Locks, claims and job queues on every backend: one suite for all of them, then what each can get wrong alone.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail and tell like tests"
)]

mod conformance;
mod disk;
mod journal;
mod redis_edges;
mod redis_keys;
