//! The database on SQLite and on PostgreSQL: every scenario runs on both, against real databases.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "test helpers fail like tests")]

mod archives;
mod fixture;
mod people;
mod postgres;
mod tasks;
mod work;
