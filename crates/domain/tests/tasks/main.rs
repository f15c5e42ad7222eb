//! Tasks: author sets, review, reassignment of approval requests, and application.

#![expect(clippy::expect_used, reason = "test helpers panic like tests")]

mod apply;
mod authors;
mod fixture;
mod reassignment;
mod review;
