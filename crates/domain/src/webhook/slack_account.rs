//! Links between users and their accounts of Slack. A link is made by its user with a code that is used once, belongs to one signing
//! secret and one password, and expires: none of them outlives what it was based on.

use serde::{Deserialize, Serialize};

use super::slack_request::SlackIdentity;
use crate::Moment;

/// How long a code can be used.
pub const LINK_CODE_TTL_MS: u64 = 600_000;
/// How long a link is valid.
pub const LINK_TTL_MS: u64 = 90 * 86_400_000;

/// A code with which its user links an account of Slack. Only its hash is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCode {
    pub code_hash: String,
    /// A hash of the password with which it was made.
    pub password_mark: String,
    pub expires_at: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlackLink {
    pub webhook_id: String,
    pub identity: SlackIdentity,
    /// The signing secret with which it was made: another one can be known to other people.
    pub secret_id: String,
    /// A hash of the password that the user had: a new password ends the link, as it ends sessions.
    pub password_mark: String,
    pub expires_at: Moment,
}

/// What a user has linked, by the id of the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlackAccount {
    pub code: Option<LinkCode>,
    pub link: Option<SlackLink>,
}

impl SlackAccount {
    /// The link with an account of Slack, unless it has expired.
    pub fn link_with(&self, identity: &SlackIdentity, now: Moment) -> Option<&SlackLink> {
        self.link.as_ref().filter(|link| link.identity == *identity && now < link.expires_at)
    }

    /// Whether requests of an account of Slack come from the user, as far as the link says.
    pub fn is_linked_to(
        &self,
        webhook_id: &str,
        secret_id: &str,
        identity: &SlackIdentity,
        now: Moment,
    ) -> bool {
        self.link_with(identity, now)
            .is_some_and(|link| link.webhook_id == webhook_id && link.secret_id == secret_id)
    }
}
