//! Approved changes carried out by real workers: the whole story, what stops it, and what kills it half-way.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests fail and tell like tests"
)]

mod agents;
mod archives;
mod blobs;
mod crashes;
mod effects;
mod faults;
mod files;
mod jobs;
mod outages;
mod story;
mod waiting;
