//! The audit log: who did what, as a hash chain in which a changed, removed or reordered entry is detected.
//!
//! The hash of an entry covers its number, the hash of the previous entry and its canonical form. A truncated chain is valid
//! by itself; truncation is detected only with a checkpoint that is stored elsewhere.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Moment;
use crate::people::UserId;
use crate::task::{Digest, TaskState};

/// The hash that the first entry refers to as its predecessor.
pub fn origin_hash() -> Digest {
    Digest::of_bytes(b"ade-audit-1")
}

/// Who did something. Every entry has one: a caller, or the service itself and what made it act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Principal {
    Caller(AuditActor),
    Service(ServiceActor),
}

impl Principal {
    /// The person, also for an agent that acts for the person.
    pub const fn user_id(&self) -> Option<&UserId> {
        match self {
            Self::Caller(caller) => caller.user_id.as_ref(),
            Self::Service(_) => None,
        }
    }
}

impl From<AuditActor> for Principal {
    fn from(caller: AuditActor) -> Self {
        Self::Caller(caller)
    }
}

impl From<ServiceActor> for Principal {
    fn from(service: ServiceActor) -> Self {
        Self::Service(service)
    }
}

/// A part of the service that acts by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceActor {
    /// The part, such as `worker`, `jobs` or `approvals`.
    pub service: String,
    /// The process or the worker in it.
    pub instance: String,
    pub trigger: Trigger,
}

/// Why the service acts by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// A worker applies or rolls back a task.
    Attempt(u64),
    /// A background job of this name.
    Job(String),
    /// These policies approve the task without a person.
    AutomaticApproval(Vec<String>),
    /// These policies require a decision.
    Policies(Vec<String>),
    /// The decision on this approval request was the last one needed.
    Decision(String),
    /// The reviewer follows this person's decision.
    Followed(UserId),
    /// A consequence of this command of the same commit.
    Command(String),
    /// The process started.
    Start,
}

impl std::fmt::Display for Trigger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attempt(attempt) => write!(f, "attempt {attempt}"),
            Self::Job(name) => write!(f, "job {name}"),
            Self::AutomaticApproval(names) => write!(f, "automatic approval by policy {}", names.join(", ")),
            Self::Policies(names) => write!(f, "policy {}", names.join(", ")),
            Self::Decision(approval_id) => write!(f, "decision {approval_id}"),
            Self::Followed(leader) => write!(f, "decision of {leader}"),
            Self::Command(action) => write!(f, "command {action}"),
            Self::Start => f.write_str("start"),
        }
    }
}

/// A caller, and from where it calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AuditActor {
    /// The person; none for the bootstrap token.
    pub user_id: Option<UserId>,
    /// The agent that acted for the person.
    pub agent_id: Option<String>,
    pub session_id: Option<String>,
    pub token_id: Option<String>,
    /// The client's address.
    pub ip: Option<String>,
    pub user_agent: Option<String>,
    /// The server that received the request.
    pub service: Option<String>,
}

/// What reviewers decide on, besides the config: the worker applies nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviewedContent {
    /// The fingerprint of the preview.
    pub fingerprint: Option<String>,
    /// The digest of the whole preview, as reviewers see it.
    pub preview: Option<Digest>,
    /// The digest of what the task can touch.
    pub scope: Option<Digest>,
    /// The digest of the approvals that are required.
    pub requirements: Digest,
}

/// The part of an entry that does not depend on its position in the chain. It has no default, so that no entry can lack its actor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditBody {
    pub entry_id: String,
    pub at: Moment,
    pub who: Principal,
    /// For example `task.submit`.
    pub action: String,
    /// For example `task`, `approval`, `policy` or `lock`.
    pub object_type: String,
    pub object_id: String,
    pub task_id: Option<String>,
    pub from: Option<TaskState>,
    pub to: Option<TaskState>,
    /// The revision after the change.
    pub revision: Option<u64>,
    /// The digest of the config at that time.
    pub digest: Option<Digest>,
    /// Set where reviewers are asked or decide, and where the task is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reviewed: Option<ReviewedContent>,
    pub reason: Option<String>,
    pub ticket: Option<String>,
    pub details: Map<String, Value>,
}

impl AuditBody {
    /// Its canonical JSON (RFC 8785), which is hashed.
    pub fn canonical_form(&self) -> Result<String, NotCanonical> {
        serde_json_canonicalizer::to_string(self).map_err(|_| NotCanonical)
    }
}

/// An entry at its position in the chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The position: starts at 1, without gaps.
    pub number: u64,
    pub previous_hash: Digest,
    pub entry_hash: Digest,
    pub body: AuditBody,
}

/// The last entry of a chain at some time. Stored elsewhere as a checkpoint, it shows whether the chain still contains that
/// entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    pub number: u64,
    pub entry_hash: Digest,
}

impl ChainHead {
    /// The head of an empty chain.
    pub fn origin() -> Self {
        Self { number: 0, entry_hash: origin_hash() }
    }

    /// The head after one more entry.
    pub fn after(self, body: &AuditBody) -> Result<Self, NotCanonical> {
        Ok(self.after_canonical(&body.canonical_form()?))
    }

    /// The head after one more entry, whose body has this canonical form.
    #[must_use]
    pub fn after_canonical(self, body: &str) -> Self {
        let number = self.number + 1;
        Self { number, entry_hash: hash(number, self.entry_hash, body) }
    }
}

/// The first entry of a chain that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {number}: {reason}")]
pub struct ChainError {
    pub number: u64,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit entry has no canonical JSON form")]
pub struct NotCanonical;

/// The hash of the canonical form of an object with the body, the number and the previous hash. The number is text, because numbers
/// above 2^53 are not exact in JSON.
fn hash(number: u64, previous: Digest, canonical_body: &str) -> Digest {
    let chained =
        format!("{{\"body\":{canonical_body},\"number\":\"{number}\",\"previous_hash\":\"{previous}\"}}");
    Digest::of_bytes(chained.as_bytes())
}

pub fn append(head: ChainHead, body: AuditBody) -> Result<AuditEntry, NotCanonical> {
    let ChainHead { number, entry_hash } = head.after(&body)?;
    Ok(AuditEntry { number, previous_hash: head.entry_hash, entry_hash, body })
}

/// Verifies a chain entry by entry.
#[derive(Debug, Clone)]
pub struct ChainVerifier {
    head: ChainHead,
    /// The heads that the chain must contain, in order.
    checkpoints: BTreeSet<(u64, Digest)>,
}

impl ChainVerifier {
    /// Starts at the first entry. The chain must contain all checkpoints.
    pub fn new(checkpoints: impl IntoIterator<Item = ChainHead>) -> Self {
        let checkpoints = checkpoints.into_iter().map(|head| (head.number, head.entry_hash));
        Self {
            head: ChainHead::origin(),
            checkpoints: checkpoints.filter(|(number, _)| *number > 0).collect(),
        }
    }

    /// Starts after an entry that is trusted.
    pub const fn from_trusted(trusted: ChainHead) -> Self {
        Self { head: trusted, checkpoints: BTreeSet::new() }
    }

    /// Verifies the next entry.
    pub fn verify(&mut self, entry: &AuditEntry) -> Result<(), ChainError> {
        let expected = self.head.number + 1;
        let broken = |reason: String| Err(ChainError { number: expected, reason });
        if entry.number != expected {
            let problem = if entry.number > expected { "is missing" } else { "is out of order" };
            return broken(format!("{problem}: found entry {} instead", entry.number));
        }
        if entry.previous_hash != self.head.entry_hash {
            return broken("its previous_hash is not the hash of the entry before it".to_owned());
        }
        let hash = entry.body.canonical_form().map(|body| hash(entry.number, entry.previous_hash, &body));
        if hash != Ok(entry.entry_hash) {
            return broken("was changed: its content does not match its hash".to_owned());
        }
        self.head = ChainHead { number: entry.number, entry_hash: entry.entry_hash };
        // All checkpoints up to this entry are confirmed and removed.
        while let Some((number, hash)) = self.checkpoints.first().copied()
            && number <= entry.number
        {
            if number == entry.number && hash != entry.entry_hash {
                return broken("does not match the checkpoint: the chain was rewritten".to_owned());
            }
            self.checkpoints.pop_first();
        }
        Ok(())
    }

    /// Ends the verification: the chain must reach the last checkpoint.
    pub fn finish(self) -> Result<ChainHead, ChainError> {
        let Some((count, _)) = self.checkpoints.last().copied() else { return Ok(self.head) };
        let reason = format!("is missing: the log was truncated; the checkpoint has {count} entries");
        Err(ChainError { number: self.head.number + 1, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> AuditBody {
        AuditBody {
            entry_id: text.to_owned(),
            at: Moment::from_micros(1_794_744_000_000_120),
            who: AuditActor::default().into(),
            action: "task.submit".to_owned(),
            object_type: "task".to_owned(),
            object_id: "t".to_owned(),
            task_id: None,
            from: Some(TaskState::Draft),
            to: Some(TaskState::Submitted),
            revision: Some(2),
            digest: None,
            reviewed: None,
            reason: Some(text.to_owned()),
            ticket: None,
            details: Map::new(),
        }
    }

    fn chain(length: usize) -> Vec<AuditEntry> {
        let mut entries: Vec<AuditEntry> = Vec::new();
        for number in 0..length {
            let head = entries.last().map_or_else(ChainHead::origin, |last| ChainHead {
                number: last.number,
                entry_hash: last.entry_hash,
            });
            entries.push(append(head, body(&number.to_string())).expect("plain text"));
        }
        entries
    }

    fn verify(entries: &[AuditEntry], checkpoint: Option<ChainHead>) -> Result<ChainHead, ChainError> {
        let mut verifier = ChainVerifier::new(checkpoint);
        entries.iter().try_for_each(|entry| verifier.verify(entry))?;
        verifier.finish()
    }

    #[test]
    fn hashes_the_canonical_form_of_the_whole_entry() {
        let (previous, body) = (ChainHead { number: 6, entry_hash: origin_hash() }, body("é \" \u{1}"));
        let whole = serde_json::json!({ "number": "7", "previous_hash": origin_hash(), "body": body });
        let head = previous.after(&body).expect("plain text");
        assert_eq!((head.number, Some(head.entry_hash)), (7, Digest::of(&whole)));
    }

    #[test]
    fn detects_changed_removed_reordered_and_truncated_entries() {
        let intact = chain(5);
        let head =
            |number: usize| ChainHead { number: number as u64, entry_hash: intact[number - 1].entry_hash };
        assert_eq!(verify(&intact, None), Ok(head(5)));
        assert_eq!(verify(&intact, Some(head(3))), Ok(head(5)));
        let number =
            |entries: &[AuditEntry], checkpoint| verify(entries, checkpoint).expect_err("detected").number;

        let mut edited = intact.clone();
        edited[2].body.reason = Some("something else".to_owned());
        assert_eq!(number(&edited, None), 3);
        let mut removed = intact.clone();
        removed.remove(1);
        assert_eq!(number(&removed, None), 2);
        let mut swapped = intact.clone();
        swapped.swap(2, 3);
        assert_eq!(number(&swapped, None), 3);
        let mut renumbered = intact.clone();
        (renumbered[2].body, renumbered[3].body) = (intact[3].body.clone(), intact[2].body.clone());
        assert_eq!(number(&renumbered, None), 3);
        assert_eq!(number(&intact[1..], None), 1);
        // Truncated: valid by itself, but not with a checkpoint.
        assert_eq!(verify(&intact[..3], None), Ok(head(3)));
        assert_eq!(number(&intact[..3], Some(head(5))), 4);
        // Rewritten from the third entry on: valid by itself, but not with a checkpoint.
        let mut rewritten = intact[..2].to_vec();
        for text in ["x", "y", "z"] {
            let last = rewritten.last().expect("two");
            let head = ChainHead { number: last.number, entry_hash: last.entry_hash };
            rewritten.push(append(head, body(text)).expect("plain text"));
        }
        assert!(verify(&rewritten, None).is_ok());
        assert_eq!(number(&rewritten, Some(head(4))), 4);
    }
}
