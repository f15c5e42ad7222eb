//! Tests of the backends through their ports, with real servers.

#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "test helpers may panic")]

mod coordination;
mod database;
mod formats;
mod projections;
