//! Integration tests of locks with the embedded store: the command line, long queues, deadlocks, and every way in which a
//! server can stop.

mod cli_output;
mod deadlocks;
mod hold_command;
mod kill_and_restart;
mod many_waiters;
mod server;
mod server_lifecycle;
mod workload;
