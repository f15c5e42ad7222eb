//! Locks: the machine of one, the table of all, deadlocks and requests for several.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail and tell like tests"
)]

mod deadlocks;
mod machine;
mod sagas;
mod search;
mod world;
