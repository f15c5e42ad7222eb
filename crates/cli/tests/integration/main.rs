//! Integration tests of the binary, by topic. They are one program: it links once, and tests of different topics run at the
//! same time while each waits for its servers.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "test helpers panic on failure and print measurements, as tests do"
)]

mod api;
mod apply;
mod commands;
mod dashboard;
mod events;
mod locks;
mod outages;
mod redis;
mod tasks;
