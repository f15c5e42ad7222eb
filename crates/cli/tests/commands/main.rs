//! Commands of `ade`, run as a user or a script runs them, and the lock guard of the client against a real server.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "test helpers panic like tests")]

mod bench;
mod keys;
mod lock_guard;
mod login;
mod serve;
