//! Server and worker processes: start, run, shut down; their logging and metrics.

mod address_file;
mod bindings;
mod demo;
mod error;
mod executors;
mod logging;
pub(crate) mod metrics;
mod rebuild;
mod recovery;
mod server;
mod storage;
mod worker;

pub use error::StartError;
pub use logging::start as start_logging;
pub use rebuild::rebuild_projections;
pub use recovery::recover_admin;
pub use server::Server;
pub use worker::WorkerProcess;
