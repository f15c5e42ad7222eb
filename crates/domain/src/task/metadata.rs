//! What is said about a task besides what is to be done: by whom, for whom, and what it would change.

use serde::{Deserialize, Serialize};

use super::{Digest, ResourceMode};
use crate::people::UserId;
use crate::risk::Changes;

/// Who stands behind a task, and what it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// The author's name when it was made.
    pub author_name: String,
    /// For which team.
    pub team: Option<String>,
    /// For which ticket.
    pub ticket_ref: Option<String>,
    /// Words to find it by.
    pub tags: Vec<String>,
    /// Through whom it came.
    pub lineage: Lineage,
}

/// From the agent that proposed a task to the human who answers for it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Lineage {
    /// The agent that proposed it.
    pub agent_id: Option<String>,
    /// The agent that told it to.
    pub parent_agent_id: Option<String>,
    /// Who answers for them.
    pub sponsor_id: Option<UserId>,
}

impl Lineage {
    /// The agents that it names.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        [&self.agent_id, &self.parent_agent_id].into_iter().flatten().map(String::as_str)
    }
}

/// What a task would change, as far as that is known before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Preview {
    /// Whether there is one.
    pub status: PreviewStatus,
    /// What would change.
    pub changes: Vec<PreviewChange>,
    /// What to look at twice.
    pub warnings: Vec<String>,
    /// What would go wrong.
    pub errors: Vec<String>,
    /// What it was made from: another one means that the world has changed.
    pub fingerprint: Option<Digest>,
    /// It is what the author says: nobody could look.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverifiable: bool,
}

/// Whether there is a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PreviewStatus {
    /// There is none to be had.
    #[serde(alias = "unavailable")]
    None,
    /// A worker is asked for it.
    Pending,
    /// There is.
    Ready,
    /// Making it failed.
    Failed,
}

/// One thing that would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PreviewChange {
    /// In which way.
    pub kind: ChangeKind,
    /// What.
    pub what: String,
    /// A hash of what it is before, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// A hash of what it is afterwards, or how many there are of it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
}

/// In which way something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It comes to be.
    Create,
    /// It becomes another.
    Update,
    /// It goes.
    Delete,
}

/// A lock that carrying a task out will need, as it was when somebody looked: nothing is held while people think.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPreview {
    /// Its name, as `resource:database:users`.
    pub lock: String,
    /// How it will be needed.
    pub mode: ResourceMode,
    /// Who held it, as agents are named.
    pub holders: Vec<String>,
    /// How many waited for it.
    pub waiting: u64,
    /// How long getting it might have taken: an estimate.
    pub expected_wait_seconds: u64,
    /// Nobody could look: then nothing else here says anything.
    pub unavailable: bool,
}

impl LockPreview {
    /// A lock that nobody could look at.
    #[must_use]
    pub const fn unavailable(lock: String, mode: ResourceMode) -> Self {
        Self { lock, mode, holders: Vec::new(), waiting: 0, expected_wait_seconds: 0, unavailable: true }
    }
}

impl Preview {
    /// There is one, in which nothing changes.
    #[must_use]
    pub const fn ready() -> Self {
        Self::without(PreviewStatus::Ready)
    }

    /// There is none to be had.
    #[must_use]
    pub const fn none() -> Self {
        Self::without(PreviewStatus::None)
    }

    /// A worker is asked for it.
    #[must_use]
    pub const fn pending() -> Self {
        Self::without(PreviewStatus::Pending)
    }

    /// Nobody could tell.
    #[must_use]
    pub fn failed(why: impl Into<String>) -> Self {
        let mut failed = Self::without(PreviewStatus::Failed);
        failed.errors.push(why.into());
        failed
    }

    const fn without(status: PreviewStatus) -> Self {
        Self {
            status,
            changes: Vec::new(),
            warnings: Vec::new(),
            errors: Vec::new(),
            fingerprint: None,
            unverifiable: false,
        }
    }

    /// What tells whether the same would be changed: the changes, without their diffs, which are for people.
    #[must_use]
    pub fn fingerprint_of(changes: &[PreviewChange]) -> Option<Digest> {
        let bare: Vec<PreviewChange> =
            changes.iter().map(|change| PreviewChange { diff: None, ..change.clone() }).collect();
        Digest::of(&bare)
    }

    /// Whether making it went wrong, or it says that something would: then it may not show all that would change.
    #[must_use]
    pub fn went_wrong(&self) -> bool {
        self.status == PreviewStatus::Failed || !self.errors.is_empty()
    }

    /// How much would change; nothing if nobody knows.
    #[must_use]
    pub fn magnitude(&self) -> Option<Changes> {
        if self.status != PreviewStatus::Ready || !self.errors.is_empty() {
            return None;
        }
        let deleted = self.changes.iter().filter(|change| change.kind == ChangeKind::Delete).count() as u64;
        Some(Changes { created_or_changed: self.changes.len() as u64 - deleted, deleted })
    }
}
