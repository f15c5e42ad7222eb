//! Application services: load state, let `domain` decide, commit through `store`, then notify.
//!
//! Nothing is published before it is committed. No blocking mutex is held across an await. Modules do not import each other
//! in a circle.

pub mod accounts;
pub mod agents;
mod alerts;
pub mod audit;
pub mod background;
pub mod bindings;
mod caller;
mod changes;
mod context;
pub mod demo;
mod dual_control;
mod error;
mod event_tail;
mod events;
mod idempotency;
pub mod jobs;
pub mod locks;
mod retry;
pub mod rules;
pub mod shared_settings;
#[cfg(test)]
mod stored_formats;
pub mod tasks;
mod token_rate_limit;
pub mod webhooks;
pub mod worker;

pub use accounts::AccountService;
pub use alerts::{AlertCounts, Alerts};
pub use audit::AuditService;
pub use caller::{Caller, IdempotentRequest};
pub use changes::ChangeService;
pub use context::Context;
pub use error::{Error, HookSuspension, ObjectKind, Result};
pub use event_tail::EventTail;
pub use events::{
    AUDIT_TARGET, BackwardPage, CheckedProjections, CursorBatch, DatabaseEventSink, EventCursor, EventFeed,
    FeedError, FeedEvent, FollowerIdentity, LockEventMessage, LockEventSink, LockEventTarget, LockNotice,
    LogEventSink, RebuildProgress, Relay, RelayError, follow_lock_stream, forward_lock_events, run_sequencer,
};
pub use idempotency::{ApprovalView, InboundHookView, Outcome, RestoreResult, TaskView, WebhookView};
pub use jobs::Jobs;
pub use locks::{LockMaintenance, LockService};
pub use rules::RuleService;
pub use shared_settings::Settings;
pub use tasks::TaskService;
pub use token_rate_limit::TokenRateLimit;
pub use webhooks::WebhookService;
pub use worker::{Worker, WorkerHandle};

/// Replaces a field that has a new value.
fn set<T: Clone>(field: &mut T, value: &Option<T>) {
    if let Some(value) = value {
        field.clone_from(value);
    }
}

/// A new id; ids sort by creation time.
fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}
