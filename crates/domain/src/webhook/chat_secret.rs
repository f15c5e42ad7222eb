//! Who knows the secrets of a chat: its signing secret and its bot token. A person who set one could press buttons in the name of others, for as
//! long as the secret is used anywhere: holders are added, never removed, and stay when a webhook is deleted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::SealedText;
use crate::people::UserId;

/// Secrets that are remembered.
pub const MAX_CHAT_SECRETS: usize = 1_000;

/// A secret that was set for a chat at some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatSecret {
    pub secret: SealedText,
    /// Everybody who ever set it. The operator is not among them.
    pub holders: BTreeSet<UserId>,
}
