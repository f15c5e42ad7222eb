//! Why a server or worker process cannot start.

use std::io;
use std::net::SocketAddr;

use ade_app::audit::LedgerError;
use ade_store::embedded::OpenError;
use ade_store::{BlobError, CoordinationError, DatabaseError, FolderError};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{0}")]
    Redis(CoordinationError),
    #[error("{0}")]
    Record(#[from] DatabaseError),
    #[error("cannot create the first administrator: {0}")]
    FirstAdmin(ade_app::Error),
    #[error("cannot create the demo organisation: {0}")]
    Demo(ade_app::Error),
    /// The configuration does not allow a demo.
    #[error("{0}")]
    NoDemo(String),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
    #[error(
        "blob folder {folder}: other processes on this PostgreSQL use a different blob folder, first registered as \
         {first}; all servers and workers on one PostgreSQL must share one folder"
    )]
    OtherBlobs { folder: String, first: String },
    #[error("executors: {0}")]
    Executor(String),
    #[error(
        "a separate worker needs the Redis and the PostgreSQL of its servers; without them, ade serve applies tasks \
         itself"
    )]
    NoWorker,
    #[error("bootstrap token: {0}")]
    Token(io::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}
