//! The outbox: every audit entry is committed with the one event that follows from it.

use ade_domain::audit::AuditBody;
use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_store::database::Commit;

use crate::new_id;

/// Adds an audit entry and its event to a commit. The users of `notify` are notified by name.
pub(crate) fn record(commit: &mut Commit, entry: AuditBody, notify: Vec<UserId>) {
    commit.events.push(Event::of(&entry, new_id(), notify));
    commit.audit.push(entry);
}
