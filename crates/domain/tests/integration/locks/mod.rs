//! Tests of locks: the state machine, the lock table, deadlocks and requests for several locks.

mod deadlocks;
mod exhaustive;
mod fixture;
mod machine;
mod sagas;
mod snapshots;
