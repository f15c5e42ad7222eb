//! The use cases on both databases, in a small office with as many processes as a test wants.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail and tell like tests"
)]

mod archives;
mod backlog;
mod conditions;
mod jobs;
mod kept;
mod leavers;
mod ledger;
mod office;
mod reviews;
mod rules;
mod talk;
