//! SQL is applied at most once, previewed without effects, rolled back at most once, and its outcome can be resolved.

#[macro_use]
mod database;

mod explain;
mod postgres;
mod scenarios;
mod sqlite;
