//! Integration tests of the keyspace tools, on real servers where they need one. One program, so that it is linked once.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail like tests"
)]

mod audit;
mod audit_resume;
mod audit_servers;
mod learn;
mod lint;
mod migrate;
mod support;
