//! The record on SQLite and on PostgreSQL: every scenario on both, against real databases.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail and tell like tests"
)]

mod archives;
mod bulk;
mod opened;
mod people;
mod postgres;
mod reviews;
mod work;
