//! SQL is applied once or not at all, previewed without a trace, undone once, and settled for good.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

#[macro_use]
mod database;

mod both;
mod postgres;
