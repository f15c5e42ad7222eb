//! The commands of `ade` that need no crowd: from outside, as a person or a script uses them.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail and tell like tests"
)]

mod bench;
mod guard;
mod keys;
mod login;
mod serve;
