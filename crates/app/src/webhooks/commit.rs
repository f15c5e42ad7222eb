//! The commit of a change to a webhook or an inbound hook, with its audit entry.

use ade_domain::Moment;
use ade_store::database::{Commit, Document, Versioned, Write};
use serde_json::{Map, Value};

use crate::Caller;
use crate::events::AuditedAction;

/// What an audit entry says about an object before and after a change.
pub(super) fn details<D>(
    before: Option<&D>,
    after: Option<&D>,
    audited: fn(&D) -> Value,
) -> Map<String, Value> {
    let named = [("before", before), ("after", after)];
    named.into_iter().filter_map(|(name, object)| Some((name.to_owned(), audited(object?)))).collect()
}

/// Creates an object if there is no `before`, deletes it if there is no `after`. `None` without either.
pub(super) fn commit_of<D: Document>(
    action: &str,
    before: Option<&Versioned<D>>,
    after: Option<&Versioned<D>>,
    audited: fn(&D) -> Value,
    (caller, now): (&Caller, Moment),
) -> Option<Commit> {
    let stored = after.or(before)?;
    let expected = before.map(|before| before.revision);
    let write = match after {
        Some(after) => Write::document(after, expected),
        None => Write::DeleteDocument {
            kind: D::KIND,
            id: stored.id.clone(),
            expected: expected.unwrap_or_default(),
        },
    };
    let [old, new] = [before, after].map(|stored| stored.map(|stored| &stored.value));
    let action = AuditedAction {
        revision: Some(stored.revision),
        details: details(old, new, audited),
        ..AuditedAction::new(action, &stored.id)
    };
    Some(action.commit(vec![write], caller, now))
}
