//! Storage: the traits that the application uses for coordination (locks, agents, wake-ups) with their two backends, the SQL database,
//! and blobs.
//!
//! A backend stores what `domain` decides and decides nothing by itself. An acknowledged change survives the death of the process. The
//! coordination traits are designed for Redis Cluster: one command changes one lock, atomically.

pub mod blobs;
mod clock;
pub mod coordination;
mod data_folder;
pub mod database;
pub mod embedded;
mod rate_windows;
pub mod redis;
mod secret;

pub use blobs::{BlobError, Blobs};
pub use clock::SystemClock;
pub use coordination::{
    Agents, Capacity, Coordination, CoordinationError, EventAnnouncements, LockRequests, Locks, RateLimits,
    WakeUpQueue,
};
pub use data_folder::{ADDRESS_FILE, DataFolder, FolderError, create_private_folder, private_file};
pub use database::{Database, DatabaseError};
pub use embedded::EmbeddedCoordination;
pub use redis::{RedisCoordination, RedisUrl};
pub use secret::{PREVIOUS_SECRET_FILE, SECRET_FILE, SecretError, open_secret_file};
