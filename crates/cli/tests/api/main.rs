//! The served API, route by route: what it takes, what it answers, and everything it refuses.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "helpers of tests fail and tell like tests"
)]

mod agents;
mod locks;
mod names;
mod refusals;
mod repeats;
mod routes;
mod schemathesis;
mod stopping;
mod tickets;
