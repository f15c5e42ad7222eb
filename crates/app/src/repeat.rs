//! Requests that may be repeated: what one is answered is committed with what it changes, so that its repetition is answered
//! the same and changes nothing.

use std::fmt;
use std::sync::Arc;

use ade_domain::Moment;
use ade_store::database::{
    Comment, Commit, KeyedResponse, StoredDocument, StoredResponse, StoredTask, StoredToken, StoredUser,
};
use serde_json::Value;

use crate::jobs::Restored;

/// What a use case made or changed: all that an answer is made of.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// A task.
    Task(&'a StoredTask),
    /// A task that an agent carries out from now on.
    Claim(&'a StoredTask),
    /// A request of a task.
    Approval(&'a StoredTask, &'a str),
    /// Many requests, each with its task.
    Batch(&'a [String], &'a [StoredTask]),
    /// What came back from an archive.
    Restored(&'a Restored),
    /// What an agent said was kept.
    Said,
    /// A comment.
    Comment(&'a Comment),
    /// A person.
    User(&'a StoredUser),
    /// A token; its secret is told once and kept nowhere.
    Token(&'a StoredToken),
    /// A policy, a delegation, a registered resource, a setting or a flag.
    Thing(&'a StoredDocument),
}

/// How the answer to a request is kept.
#[derive(Clone)]
pub struct IdempotentRequest {
    /// Whose key it is.
    pub owner: String,
    /// What the request is known by.
    pub key: String,
    /// A digest of what was asked.
    pub asked: String,
    /// The answer, as it goes over the wire: status and body.
    pub render: Arc<Render>,
}

/// Makes an answer.
pub type Render = dyn Fn(Outcome<'_>) -> (u16, Value) + Send + Sync;

impl fmt::Debug for IdempotentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep").field("owner", &self.owner).field("key", &self.key).finish_non_exhaustive()
    }
}

impl IdempotentRequest {
    /// The answer, as the record keeps it.
    pub(crate) fn answer(&self, made: Outcome<'_>, now: Moment) -> KeyedResponse {
        let (status, body) = (self.render)(made);
        let answer = StoredResponse { asked: self.asked.clone(), status, body };
        (self.owner.clone(), self.key.clone(), now, answer)
    }

    /// Puts the answer into the commit of what it tells of.
    pub fn add(&self, commit: &mut Commit, made: Outcome<'_>, now: Moment) {
        commit.answer = Some(self.answer(made, now));
    }
}
