//! Tests of locks: the state machine, the lock table, deadlocks and requests for several locks.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test helpers panic on failure, like the tests themselves"
)]

mod deadlocks;
mod exhaustive;
mod fixture;
mod machine;
mod sagas;
