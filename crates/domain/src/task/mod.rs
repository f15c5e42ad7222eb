//! A task: what somebody wants to be done, how far it has come, and exactly what was approved.

mod config;
mod digest;
mod lifecycle;
mod metadata;

pub use config::{Config, Resource, ResourceMode, RollbackStrategy};
pub use digest::Digest;
pub use lifecycle::{InvalidTransition, State, TABLE, Verb, allowed, next};
pub use metadata::{ChangeKind, Lineage, LockPreview, Metadata, Preview, PreviewChange, PreviewStatus};
