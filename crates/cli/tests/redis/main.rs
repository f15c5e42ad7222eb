//! Integration tests of locks on Redis with several servers: queue order, deadlocks, stored keys, outages and injected
//! faults.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "test helpers panic on failure and print measurements, as tests do"
)]

mod deadlocks;
mod fault_injection;
mod key_catalog;
mod key_inspector;
mod multi_server;
mod redis_outage;
mod servers;
