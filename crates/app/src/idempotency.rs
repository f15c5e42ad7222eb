//! Idempotency keys: the response of a request is committed with its changes, so that a repeated request gets the same
//! response and changes nothing.

use std::fmt;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::PolicyVersions;
use ade_domain::risk::RegisteredPattern;
use ade_store::database::{
    Comment, Commit, FeatureFlag, KeyedResponse, Setting, StoredResponse, StoredTask, StoredToken,
    StoredUser, Versioned,
};
use serde_json::Value;

use crate::jobs::RestoreResult;

/// What a request created or changed: everything that its response is rendered from.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    Task(&'a StoredTask),
    /// A task that an agent has claimed.
    Claim(&'a StoredTask),
    /// An approval request of a task, by its id.
    Approval(&'a StoredTask, &'a str),
    /// The ids of approval requests, and their tasks.
    Batch(&'a [String], &'a [StoredTask]),
    Restored(&'a RestoreResult),
    /// Log output of an agent was stored.
    LogAppended,
    Comment(&'a Comment),
    User(&'a StoredUser),
    /// A token without its secret, which is never stored.
    Token(&'a StoredToken),
    Policy(&'a Versioned<PolicyVersions>),
    Delegation(&'a Versioned<Delegation>),
    Resource(&'a Versioned<RegisteredPattern>),
    Setting(&'a Versioned<Setting>),
    Feature(&'a Versioned<FeatureFlag>),
}

/// A request with an idempotency key.
#[derive(Clone)]
pub struct IdempotentRequest {
    /// Whose key it is: keys of different owners are independent.
    pub owner: String,
    pub key: String,
    /// A digest of the request: the same key with another digest is an error.
    pub request_digest: String,
    pub render: Arc<Render>,
}

/// Renders status and body of a response.
pub type Render = dyn Fn(Outcome<'_>) -> (u16, Value) + Send + Sync;

impl fmt::Debug for IdempotentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentRequest")
            .field("owner", &self.owner)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl IdempotentRequest {
    pub(crate) fn response(&self, outcome: Outcome<'_>, now: Moment) -> KeyedResponse {
        let (status, body) = (self.render)(outcome);
        let response = StoredResponse { request_digest: self.request_digest.clone(), status, body };
        KeyedResponse { owner: self.owner.clone(), key: self.key.clone(), at: now, response }
    }

    /// Adds the response to the commit of the changes that it reports.
    pub(crate) fn add_to(&self, commit: &mut Commit, outcome: Outcome<'_>, now: Moment) {
        commit.response = Some(self.response(outcome, now));
    }
}
