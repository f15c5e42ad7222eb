//! Why a server or worker process cannot start.

use std::io;
use std::net::SocketAddr;

use ade_app::RelayError;
use ade_app::audit::AuditLogError;
use ade_store::embedded::EmbeddedOpenError;
use ade_store::{BlobError, CoordinationError, DatabaseError, FolderError, SecretError};

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
    #[error("cannot recover: {0}")]
    Recovery(ade_app::Error),
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
    #[error("webhooks.allowed_private_hosts: {0}")]
    Webhooks(String),
    #[error("webhooks.smtp: {0}")]
    Mail(String),
    #[error("cannot publish the executors of this process: {0}")]
    Bindings(ade_app::Error),
    #[error(
        "a separate worker needs the Redis and the PostgreSQL of its servers; without them, ade serve applies tasks \
         itself"
    )]
    WorkerNeedsSharedStores,
    #[error(
        "only ade on Redis and PostgreSQL has projections: set server.redis and server.postgres as for its servers"
    )]
    NoProjections,
    #[error("cannot write the projections again: {0}")]
    Rebuild(#[from] RelayError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("ADE_SECRET is not set: all servers and workers on one PostgreSQL need the same secret")]
    SecretRequired,
    #[error(
        "this process has another secret (key id {own}) than the other processes of its database (key id {registered})"
    )]
    SecretMismatch { own: String, registered: String },
    #[error(
        "the audit log ends with an entry of a previous secret (key id {key_id}) that this process does not have"
    )]
    PreviousSecretMissing { key_id: String },
    #[error("cannot write the address of the server to the data folder: {0}")]
    AddressFile(io::Error),
    #[error("bootstrap token: {0}")]
    BootstrapToken(io::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}
