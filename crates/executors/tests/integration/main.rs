//! Tests of executors with real servers.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "test helpers fail like tests")]

mod http;
mod sql;
