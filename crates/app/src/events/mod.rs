//! What leaves a service after a commit: notices about locks, and wake-ups for background work.

mod lock_events;
mod outbox;
mod sequencer;
pub(crate) mod wakeups;

pub(crate) use outbox::record;

pub use lock_events::{AUDIT_TARGET, DatabaseEventSink, LockEventSink, LockNotice, LogEventSink};
pub use sequencer::run_sequencer;
