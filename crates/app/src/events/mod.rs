//! The path of events: audit entry and event are committed together (`outbox.rs`), numbered in order (`sequencer.rs`), and the
//! subscribers that have work are woken (`subscriptions.rs`, `wake_ups.rs`). Readers of numbered events wait at their end
//! (`event_tail.rs`): followers share one reader (`feed`), and the relay brings events and the state of their objects to Redis (`relay`). Lock
//! events, which are best effort, take `lock_events.rs` and, to followers, `lock_feed.rs`.

mod feed;
mod lock_events;
mod lock_feed;
mod outbox;
mod relay;
mod sequencer;
mod subscriptions;
pub(crate) mod wake_ups;

pub(crate) use outbox::{AuditedAction, record};
pub(crate) use subscriptions::Subscriptions;

pub use feed::{
    BackwardPage, CursorBatch, EventCursor, EventFeed, FeedError, FeedEvent, FollowerIdentity,
    LockEventMessage,
};
pub use lock_events::{AUDIT_TARGET, DatabaseEventSink, LockEventSink, LockNotice, LogEventSink};
pub use lock_feed::{LockEventTarget, follow_lock_stream, forward_lock_events};
pub use relay::{CheckedProjections, RebuildProgress, Relay, RelayError};
pub use sequencer::run_sequencer;
