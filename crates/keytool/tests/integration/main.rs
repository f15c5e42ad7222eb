//! Tests of the live side against real servers.

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
mod migrate;
mod support;
