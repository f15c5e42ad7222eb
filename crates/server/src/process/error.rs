//! Why a server or worker process cannot start.

use std::io;
use std::net::SocketAddr;

use ade_app::audit::AuditLogError;
use ade_store::embedded::EmbeddedOpenError;
use ade_store::{BlobError, CoordinationError, DatabaseError, FolderError};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    EmbeddedStore(#[from] EmbeddedOpenError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("{0}")]
    Redis(CoordinationError),
    #[error("{0}")]
    Database(#[from] DatabaseError),
    #[error("cannot create the first administrator: {0}")]
    FirstAdmin(ade_app::Error),
    #[error("cannot create the demo organisation: {0}")]
    Demo(ade_app::Error),
    /// The configuration does not allow a demo.
    #[error("{0}")]
    DemoNotAllowed(String),
    #[error(transparent)]
    Ledger(#[from] AuditLogError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
    #[error(
        "blob folder {folder}: other processes on this PostgreSQL use a different blob folder, first registered as \
         {first}; all servers and workers on one PostgreSQL must share one folder"
    )]
    BlobFolderMismatch { folder: String, first: String },
    #[error("executors: {0}")]
    Executors(String),
    #[error(
        "a separate worker needs the Redis and the PostgreSQL of its servers; without them, ade serve applies tasks \
         itself"
    )]
    WorkerNeedsSharedStores,
    #[error("bootstrap token: {0}")]
    BootstrapToken(io::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}
