//! Server and worker processes: start, run, shut down; their logging and metrics.

mod demo;
mod error;
mod executors;
mod logging;
pub(crate) mod metrics;
mod server;
mod storage;
mod worker;

pub use error::StartError;
pub use logging::start as start_logging;
pub use server::Server;
pub use worker::WorkerProcess;
