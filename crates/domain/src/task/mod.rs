//! A task: what somebody wants to be done, how far it has come, and exactly what was approved.

mod config;
mod digest;
mod execution;
mod lifecycle;
mod metadata;

pub use config::{AGENT, Config, NOOP, Resource, ResourceMode, RollbackStrategy};
pub use digest::Digest;
pub use execution::{
    Asked, Execution, ExecutionResult, Failed, FailureCode, HeldLock, Left, MOST_RETRIES, Output, Phase,
    retry_after_ms,
};
pub use lifecycle::{InvalidTransition, State, TABLE, Verb, allowed, next};
pub use metadata::{ChangeKind, Lineage, LockPreview, Metadata, Preview, PreviewChange, PreviewStatus};
