//! SQL is applied at most once, previewed without effects, rolled back at most once, and its outcome can be resolved.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "test helpers fail like tests")]

#[macro_use]
mod database;

mod postgres;
mod scenarios;
