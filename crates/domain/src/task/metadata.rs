//! What is known about a task besides its config: metadata, lineage, preview of the changes and of the locks.

use serde::{Deserialize, Serialize};

use super::Digest;
use crate::lock::LockMode;
use crate::people::UserId;
use crate::risk::ChangeCounts;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// The author's name when the task was created.
    pub author_name: String,
    pub team: Option<String>,
    pub ticket_ref: Option<String>,
    pub tags: Vec<String>,
    pub lineage: Lineage,
}

/// The agents that proposed a task and the person on whose behalf they act.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lineage {
    /// The agent that proposed the task.
    pub agent_id: Option<String>,
    /// The agent that instructed it.
    pub parent_agent_id: Option<String>,
    /// The person who is responsible for these agents.
    pub sponsor_id: Option<UserId>,
}

impl Lineage {
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        [&self.agent_id, &self.parent_agent_id].into_iter().flatten().map(String::as_str)
    }
}

/// What applying a task would change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preview {
    pub status: PreviewStatus,
    pub changes: Vec<PreviewChange>,
    pub warnings: Vec<String>,
    /// What would fail.
    pub errors: Vec<String>,
    /// Identifies the changes. A different fingerprint means that applying the task would change something else.
    pub fingerprint: Option<Digest>,
    /// The author declared the changes; the service could not verify them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverifiable: bool,
    /// The changes were estimated without being executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreviewStatus {
    /// The executor offers no preview.
    #[default]
    #[serde(alias = "unavailable")]
    None,
    /// A worker has to create it.
    Pending,
    Ready,
    /// Creating it failed.
    Failed,
}

/// One item that would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreviewChange {
    pub kind: ChangeKind,
    /// The item, such as a path or a table.
    pub what: String,
    /// A hash of the present content, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// A hash of the new content, or the number of items, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// How many items change, such as rows; none if that is not known.
    #[serde(default = "one_item", skip_serializing_if = "is_one_item")]
    pub items: Option<u64>,
    /// Whether the diff shows content that authors and agents may not read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reviewers_only: bool,
}

#[expect(clippy::unnecessary_wraps, reason = "it is the default of an optional field")]
const fn one_item() -> Option<u64> {
    Some(1)
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn is_one_item(items: &Option<u64>) -> bool {
    *items == one_item()
}

/// What authors and agents get in place of a diff that is for reviewers only.
const HIDDEN_DIFF: &str = "(hidden: the operator shows the content of this file to reviewers only)\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Create,
    Update,
    Delete,
}

/// A lock that applying a task will need, as it was at the time of the preview. No lock is held during a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPreview {
    /// The name, such as `resource:database:users`.
    pub lock: String,
    pub mode: LockMode,
    /// The agents that held it.
    pub holders: Vec<String>,
    /// The number of waiters.
    pub queue_length: u64,
    /// An estimate of the time to acquire it.
    pub expected_wait_seconds: u64,
    /// The lock could not be read; the other fields mean nothing.
    pub unavailable: bool,
}

impl LockPreview {
    /// For a lock that could not be read.
    pub const fn unavailable(lock: String, mode: LockMode) -> Self {
        Self { lock, mode, holders: Vec::new(), queue_length: 0, expected_wait_seconds: 0, unavailable: true }
    }
}

impl Preview {
    /// A preview without changes.
    pub fn ready() -> Self {
        Self { status: PreviewStatus::Ready, ..Self::default() }
    }

    pub fn none() -> Self {
        Self::default()
    }

    pub fn pending() -> Self {
        Self { status: PreviewStatus::Pending, ..Self::default() }
    }

    pub fn failed(error: impl Into<String>) -> Self {
        Self { status: PreviewStatus::Failed, errors: vec![error.into()], ..Self::default() }
    }

    /// The digest of the changes without their diffs, which are for people only.
    pub fn fingerprint_of(changes: &[PreviewChange]) -> Option<Digest> {
        let without_diff =
            |change: &PreviewChange| PreviewChange { diff: None, reviewers_only: false, ..change.clone() };
        let without_diffs: Vec<PreviewChange> = changes.iter().map(without_diff).collect();
        Digest::of(&without_diffs)
    }

    /// Whether creating the preview failed or it contains errors. It may then not show all changes.
    pub fn has_errors(&self) -> bool {
        self.status == PreviewStatus::Failed || !self.errors.is_empty()
    }

    /// The preview as authors and agents see it.
    #[must_use]
    pub fn restricted(mut self) -> Self {
        for change in self.changes.iter_mut().filter(|change| change.reviewers_only) {
            change.diff = Some(HIDDEN_DIFF.to_owned());
        }
        self
    }

    /// Whether the service itself has found out what would change, by trying it.
    pub fn is_verified(&self) -> bool {
        self.status == PreviewStatus::Ready && self.errors.is_empty() && !self.unverifiable && !self.estimated
    }

    /// The number of changed items; none if it is not known of every change, and none without a verified preview: estimates say
    /// too little, and an author must not lower the risk of its own task.
    pub fn change_counts(&self) -> Option<ChangeCounts> {
        if !self.is_verified() {
            return None;
        }
        let mut counts = ChangeCounts::default();
        for change in &self.changes {
            let count = match change.kind {
                ChangeKind::Create | ChangeKind::Update => &mut counts.created_or_changed,
                ChangeKind::Delete => &mut counts.deleted,
            };
            *count = count.saturating_add(change.items?);
        }
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(reviewers_only: bool) -> PreviewChange {
        PreviewChange {
            kind: ChangeKind::Update,
            what: "app.conf".to_owned(),
            before: Some("hash".to_owned()),
            after: None,
            diff: Some("-password = hunter2".to_owned()),
            items: Some(1),
            reviewers_only,
        }
    }

    #[test]
    fn restricted_preview_hides_diffs_for_reviewers_and_keeps_its_fingerprint() {
        let changes = vec![change(false), change(true)];
        let fingerprint = Preview::fingerprint_of(&changes);
        assert_eq!(fingerprint, Preview::fingerprint_of(&[change(false), change(false)]));
        let preview = Preview { changes, fingerprint, ..Preview::ready() };
        let restricted = preview.clone().restricted();
        assert_eq!(restricted.changes[0], preview.changes[0]);
        assert_eq!(restricted.changes[1].diff.as_deref(), Some(HIDDEN_DIFF));
        assert_eq!(restricted.clone().restricted(), restricted);
        assert_eq!((restricted.fingerprint, restricted.changes[1].what.as_str()), (fingerprint, "app.conf"));
    }

    #[test]
    fn estimated_preview_counts_no_changes() {
        let preview = Preview { changes: vec![change(false)], ..Preview::ready() };
        assert_eq!(preview.change_counts(), Some(ChangeCounts { created_or_changed: 1, deleted: 0 }));
        assert_eq!(Preview { estimated: true, ..preview }.change_counts(), None);
    }

    #[test]
    fn counts_items_of_changes_unless_one_is_unknown() {
        let items = |kind, items| PreviewChange { kind, items, ..change(false) };
        let mut changes = vec![items(ChangeKind::Delete, Some(u64::MAX)), items(ChangeKind::Delete, Some(3))];
        changes.push(items(ChangeKind::Create, Some(0)));
        let mut preview = Preview { changes, ..Preview::ready() };
        let counts = ChangeCounts { created_or_changed: 0, deleted: u64::MAX };
        assert_eq!(preview.change_counts(), Some(counts));
        preview.changes.push(items(ChangeKind::Update, None));
        assert_eq!(preview.change_counts(), None);
        let json = serde_json::to_value(&preview).expect("plain");
        assert_eq!(serde_json::from_value::<Preview>(json).expect("read"), preview);
        let old = serde_json::json!({ "kind": "update", "what": "app.conf" });
        assert_eq!(serde_json::from_value::<PreviewChange>(old).expect("read").items, Some(1));
    }
}
