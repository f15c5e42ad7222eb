//! Tests of the domain through its public interface.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "test helpers panic on failure, like the tests themselves"
)]

mod locks;
mod tasks;
