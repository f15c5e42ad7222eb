//! What an event makes stale in Redis.

use ade_domain::event::Event;
use ade_domain::people::UserId;
use ade_store::redis::projections::{ObjectId, Projection};
use serde_json::Value;

/// Objects that are read and written together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// A task with its approval requests.
    Task(String),
    /// The tasks of an archive.
    Archive(String),
    SessionsOf(UserId),
    Delegations,
    Settings,
}

impl Subject {
    /// Everything that an event is about.
    pub(super) fn of(event: &Event) -> Vec<Self> {
        let field = |name: &str| event.payload.get(name).and_then(Value::as_str).map(str::to_owned);
        let noun = event.event.split(':').next().unwrap_or_default();
        let subject = match noun {
            _ if event.task_id.is_some() => event.task_id.clone().map(Self::Task),
            "archive" => field("archive_id").map(Self::Archive),
            "user" => field("user_id").map(|id| Self::SessionsOf(UserId::new(id))),
            "session" => {
                let who = event.payload.get("who").and_then(|who| who.get("user_id")).and_then(Value::as_str);
                who.map(|id| Self::SessionsOf(UserId::new(id)))
            }
            "delegation" => Some(Self::Delegations),
            "config" | "feature" => Some(Self::Settings),
            _ => None,
        };
        subject.into_iter().collect()
    }

    /// The subject to read again for an object that somebody else wrote from a later row. Statistics are written again anyway.
    pub(super) fn of_object(id: &ObjectId, written: &[Projection]) -> Option<Self> {
        match id {
            ObjectId::Task(task_id) => Some(Self::Task(task_id.clone())),
            ObjectId::Approval(_) => {
                let of = written.iter().find(|projection| projection.id() == id)?;
                of.task_id().map(|task_id| Self::Task(task_id.to_owned()))
            }
            ObjectId::Session(_) => {
                let of = written.iter().find(|projection| projection.id() == id)?;
                of.user_id().map(|user_id| Self::SessionsOf(UserId::new(user_id)))
            }
            ObjectId::Delegation(..) => Some(Self::Delegations),
            ObjectId::Settings => Some(Self::Settings),
            ObjectId::Reviewer(_) => None,
        }
    }

    /// The shard that writes it, of so many.
    pub(super) fn shard(&self, shards: usize) -> usize {
        let key = match self {
            Self::Task(id) | Self::Archive(id) => id.as_str(),
            Self::SessionsOf(user) => user.as_str(),
            Self::Delegations | Self::Settings => "",
        };
        shard_of(key, shards)
    }
}

/// FNV-1a, whose results must not change between versions of ADE: two processes must agree.
fn shard_of(key: &str, shards: usize) -> usize {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    usize::try_from(hash % (shards.max(1) as u64)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_tasks_evenly_and_always_the_same_way() {
        let mut counts = [0; 4];
        for number in 0..4_000 {
            let shard = Subject::Task(format!("0192f6c0-5a7e-7cc0-8c7b-{number:012}")).shard(4);
            counts[shard] += 1;
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        assert_eq!(shard_of("0192f6c0-5a7e-7cc0-8c7b-2f0f6d3f8f11", 4), 0);
        assert_eq!(shard_of("", 4), 1);
    }
}
