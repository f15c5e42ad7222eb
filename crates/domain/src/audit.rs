//! The audit log: what was done by whom, chained so that nobody can change, remove or reorder an entry without being found.
//!
//! Each entry's hash covers its number, the hash before it and its canonical form. Cutting the end off leaves a chain that is
//! whole: that is found only beside a checkpoint that was kept elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Moment;
use crate::people::UserId;
use crate::task::{Digest, State};

/// What stands before the first entry.
#[must_use]
pub fn origin() -> Digest {
    Digest::of_bytes(b"ade-audit-1")
}

/// Who did something, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditActor {
    /// Which person; nobody for the service itself.
    pub user_id: Option<UserId>,
    /// By which agent.
    pub agent_id: Option<String>,
    /// In which session.
    pub session_id: Option<String>,
    /// With which token.
    pub token_id: Option<String>,
    /// From which address.
    pub ip: Option<String>,
    /// With which program.
    pub user_agent: Option<String>,
    /// Through which server.
    pub service: Option<String>,
}

/// What was done: all of an entry that does not depend on its place in the chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditBody {
    /// What it is known by.
    pub entry_id: String,
    /// When.
    pub at: Moment,
    /// By whom.
    pub who: AuditActor,
    /// As `task.submit`.
    pub action: String,
    /// About what: `task`, `approval`, `policy`, `lock`.
    pub object_type: String,
    /// About which.
    pub object_id: String,
    /// About which task, if about one.
    pub task_id: Option<String>,
    /// Out of which state.
    pub from: Option<State>,
    /// Into which.
    pub to: Option<State>,
    /// Which revision it made.
    pub revision: Option<u64>,
    /// For what exactly.
    pub digest: Option<Digest>,
    /// Why.
    pub reason: Option<String>,
    /// For which ticket.
    pub ticket: Option<String>,
    /// Whatever else belongs to it.
    pub details: Map<String, Value>,
}

/// An entry in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place: the first has 1, and none is left out.
    pub number: u64,
    /// The hash of the entry before.
    pub previous_hash: Digest,
    /// The hash of this one.
    pub entry_hash: Digest,
    /// What was done.
    pub body: AuditBody,
}

/// Where a chain was at some time: whoever keeps it elsewhere can tell whether the chain still leads there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The last number.
    pub number: u64,
    /// Its hash.
    pub entry_hash: Digest,
}

impl Head {
    /// Before the first entry.
    #[must_use]
    pub fn origin() -> Self {
        Self { number: 0, entry_hash: origin() }
    }
}

/// What is wrong with a chain, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {number}: {why}")]
pub struct Broken {
    /// The first entry that is not as it was.
    pub number: u64,
    /// In which way.
    pub why: String,
}

/// Something that has no canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the audit log has no canonical form as JSON")]
pub struct NotCanonical;

fn hash(number: u64, previous: Digest, body: &AuditBody) -> Result<Digest, NotCanonical> {
    #[derive(Serialize)]
    struct Chained<'a> {
        // As text: numbers above 2^53 have no exact form in JSON.
        number: String,
        previous_hash: Digest,
        body: &'a AuditBody,
    }
    Digest::of(&Chained { number: number.to_string(), previous_hash: previous, body }).ok_or(NotCanonical)
}

/// The next entry of a chain.
pub fn append(head: Head, body: AuditBody) -> Result<Entry, NotCanonical> {
    let number = head.number + 1;
    let entry_hash = hash(number, head.entry_hash, &body)?;
    Ok(Entry { number, previous_hash: head.entry_hash, entry_hash, body })
}

/// Walks along a chain, entry by entry.
#[derive(Debug, Clone)]
pub struct Walk {
    head: Head,
    checkpoint: Option<Head>,
}

impl Walk {
    /// From the first entry on, past a checkpoint that is trusted.
    #[must_use]
    pub fn new(checkpoint: Option<Head>) -> Self {
        Self { head: Head::origin(), checkpoint }
    }

    /// From an entry on that is trusted.
    #[must_use]
    pub const fn from(trusted: Head) -> Self {
        Self { head: trusted, checkpoint: Some(trusted) }
    }

    /// The next entry.
    pub fn step(&mut self, entry: &Entry) -> Result<(), Broken> {
        let expected = self.head.number + 1;
        let broken = |why: String| Err(Broken { number: expected, why });
        if entry.number != expected {
            let why = if entry.number > expected { "is missing" } else { "stands in another place" };
            return broken(format!("{why}: entry {} stands there", entry.number));
        }
        if entry.previous_hash != self.head.entry_hash {
            return broken("does not follow the entry before it".to_owned());
        }
        match hash(entry.number, entry.previous_hash, &entry.body) {
            Ok(hash) if hash == entry.entry_hash => {}
            _ => return broken("was changed: its hash does not fit what it says".to_owned()),
        }
        self.head = Head { number: entry.number, entry_hash: entry.entry_hash };
        match self.checkpoint {
            Some(checkpoint)
                if checkpoint.number == entry.number && checkpoint.entry_hash != entry.entry_hash =>
            {
                broken(
                    "is not the one that the checkpoint was made for: the chain was written anew".to_owned(),
                )
            }
            _ => Ok(()),
        }
    }

    /// The end of the chain.
    pub fn end(self) -> Result<Head, Broken> {
        match self.checkpoint {
            Some(checkpoint) if checkpoint.number > self.head.number => Err(Broken {
                number: self.head.number + 1,
                why: format!(
                    "is missing: the log was cut off; the checkpoint knows {} entries",
                    checkpoint.number
                ),
            }),
            _ => Ok(self.head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> AuditBody {
        AuditBody {
            entry_id: text.to_owned(),
            at: Moment::from_micros(1_794_744_000_000_120),
            who: AuditActor::default(),
            action: "task.submit".to_owned(),
            object_type: "task".to_owned(),
            object_id: "t".to_owned(),
            task_id: None,
            from: Some(State::Draft),
            to: Some(State::Submitted),
            revision: Some(2),
            digest: None,
            reason: Some(text.to_owned()),
            ticket: None,
            details: Map::new(),
        }
    }

    fn chain(length: usize) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for number in 0..length {
            let head = entries
                .last()
                .map_or_else(Head::origin, |last| Head { number: last.number, entry_hash: last.entry_hash });
            entries.push(append(head, body(&number.to_string())).expect("plain text"));
        }
        entries
    }

    fn walk(entries: &[Entry], checkpoint: Option<Head>) -> Result<Head, Broken> {
        let mut walk = Walk::new(checkpoint);
        entries.iter().try_for_each(|entry| walk.step(entry))?;
        walk.end()
    }

    #[test]
    fn whatever_is_done_to_a_chain_is_found_and_named() {
        let whole = chain(5);
        let head = |number: usize| Head { number: number as u64, entry_hash: whole[number - 1].entry_hash };
        assert_eq!(walk(&whole, None), Ok(head(5)));
        assert_eq!(walk(&whole, Some(head(3))), Ok(head(5)));
        let number = |entries: &[Entry], checkpoint| walk(entries, checkpoint).expect_err("found").number;

        let mut edited = whole.clone();
        edited[2].body.reason = Some("something else".to_owned());
        assert_eq!(number(&edited, None), 3);
        let mut removed = whole.clone();
        removed.remove(1);
        assert_eq!(number(&removed, None), 2);
        let mut swapped = whole.clone();
        swapped.swap(2, 3);
        assert_eq!(number(&swapped, None), 3);
        let mut renumbered = whole.clone();
        (renumbered[2].body, renumbered[3].body) = (whole[3].body.clone(), whole[2].body.clone());
        assert_eq!(number(&renumbered, None), 3);
        assert_eq!(number(&whole[1..], None), 1);
        // Cut off: whole by itself, but not beside a checkpoint.
        assert_eq!(walk(&whole[..3], None), Ok(head(3)));
        assert_eq!(number(&whole[..3], Some(head(5))), 4);
        // Written anew from the third on: whole by itself, but not beside a checkpoint.
        let mut anew = whole[..2].to_vec();
        for text in ["x", "y", "z"] {
            let last = anew.last().expect("two");
            let head = Head { number: last.number, entry_hash: last.entry_hash };
            anew.push(append(head, body(text)).expect("plain text"));
        }
        assert!(walk(&anew, None).is_ok());
        assert_eq!(number(&anew, Some(head(4))), 4);
    }
}
