//! Locks on Redis through several servers: in order, without deadlocks, with the keys that the catalog says, through outages
//! and faults.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "helpers of tests fail and tell like tests"
)]

mod deadlocks;
mod faults;
mod fleet;
mod keys;
mod observer;
mod outage;
mod queues;
