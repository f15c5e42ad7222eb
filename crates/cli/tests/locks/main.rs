//! Locks with the embedded store: held from the command line, by crowds, in deadlocks, and through every way a server can
//! end.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail and tell like tests"
)]

mod crowd;
mod deadlocks;
mod hold;
mod killed;
mod listed;
mod load;
mod server;
mod stopped;
