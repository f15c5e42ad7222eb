//! Ports, one small trait per noun, and their backends.
//!
//! A backend carries out what `domain` decides and keeps it; it decides nothing by itself. What was answered survives
//! the death of the process. Ports are shaped for Redis Cluster: one command changes one lock, atomically.

pub mod blobs;
mod clock;
pub mod coordination;
pub mod database;
pub mod embedded;
mod folder;
pub mod redis;

pub use blobs::{BlobError, Blobs};
pub use clock::SystemClock;
pub use coordination::{Agents, Capacity, Coordination, CoordinationError, Jobs, Limits, Locks, Requests};
pub use database::{Database, DatabaseError};
pub use embedded::EmbeddedCoordination;
pub use folder::{DataFolder, FolderError, private_folder};
pub use redis::{RedisCoordination, RedisUrl};
