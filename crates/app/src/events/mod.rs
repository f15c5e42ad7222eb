//! The path of events: audit entry and event are committed together (`outbox.rs`), numbered in order (`sequencer.rs`), and the
//! subscribers that have work are woken (`subscriptions.rs`, `wake_ups.rs`). Readers of numbered events wait at their end (`tail.rs`); the relay
//! brings events and the state of their objects to Redis (`relay`). Lock events, which are best effort, take `lock_events.rs`.

mod lock_events;
mod outbox;
mod relay;
mod sequencer;
mod subscriptions;
mod tail;
pub(crate) mod wake_ups;

pub(crate) use outbox::{AuditedAction, record};
pub(crate) use subscriptions::Subscriptions;

pub use lock_events::{AUDIT_TARGET, DatabaseEventSink, LockEventSink, LockNotice, LogEventSink};
pub use relay::{CheckedProjections, RebuildProgress, Relay, RelayError};
pub use sequencer::run_sequencer;
pub use tail::EventTail;
