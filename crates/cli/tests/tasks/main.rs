//! Approvals over HTTP on both databases: who may do what, in which state, under which rule, at the same time as whom.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail and tell like tests"
)]

mod chance;
mod conditions;
mod delegation;
mod lifecycle;
mod lists;
mod matrix;
mod own;
mod races;
mod random;
mod rules;
mod strange;
mod tampered;
