//! The indexes of projected objects: sorted sets and sets in slots of their own.

use ade_domain::people::UserId;
use ade_domain::task::TaskState;
use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{Layout, RedisKey, Writable};
use redis::Cmd;
use serde::{Deserialize, Serialize};

use super::{ObjectId, Result};
use crate::redis::query::command;

/// An index that has an object as a member. Stored in Redis, so that the object can be removed from indexes that it left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Membership {
    State(TaskState),
    Author(UserId),
    Resource(String, String),
    Tag(String),
    /// Not an index: an approval request of the task, which goes with it.
    Request(String),
    /// With the score.
    ReviewerQueue(UserId, u32),
    /// With the score.
    DueQueue(u64),
    SessionOf(UserId),
    DelegationOf(UserId),
}

/// An index and, if it is ordered, the score of the member.
pub(super) struct Index {
    pub(super) key: RedisKey,
    ttl: Option<std::time::Duration>,
    pub(super) score: Option<u64>,
}

impl Membership {
    /// The index in a layout; none for a request. `created` is the score in indexes ordered by creation.
    pub(super) fn index(&self, created: u64, layout: Layout) -> Result<Option<Index>> {
        let index =
            |key: Writable<'_>, score| Some(Index { key: key.in_layout(layout), ttl: key.ttl(), score });
        Ok(match self {
            Self::State(state) => {
                let state = ids::State::new(state.as_str())?;
                index(keys::task::by_state(&state).writable(), Some(created))
            }
            Self::Author(user) => {
                let user = ids::UserId::new(user.as_str())?;
                index(keys::task::by_author(&user).writable(), Some(created))
            }
            Self::Resource(resource_type, id) => {
                let (resource_type, id) = (ids::ResourceType::new(resource_type)?, ids::ResourceId::new(id)?);
                index(keys::task::by_resource(&resource_type, &id).writable(), Some(created))
            }
            Self::Tag(tag) => index(keys::task::by_tag(&ids::TagName::new(tag)?).writable(), Some(created)),
            Self::Request(_) => None,
            Self::ReviewerQueue(user, score) => {
                let user = ids::UserId::new(user.as_str())?;
                index(keys::approval::user_queue(&user).writable(), Some(u64::from(*score)))
            }
            Self::DueQueue(due) => index(keys::approval::global_queue().writable(), Some(*due)),
            Self::SessionOf(user) => {
                let user = ids::UserId::new(user.as_str())?;
                index(keys::session::by_user(&user).writable(), None)
            }
            Self::DelegationOf(user) => {
                let user = ids::UserId::new(user.as_str())?;
                index(keys::approval::delegations_by_user(&user).writable(), None)
            }
        })
    }
}

impl Membership {
    /// Whether both are the same index, with any score.
    pub(super) fn is_same_index(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ReviewerQueue(user, _), Self::ReviewerQueue(other, _)) => user == other,
            (Self::DueQueue(_), Self::DueQueue(_)) => true,
            _ => self == other,
        }
    }

    /// The object that a member of this index stands for.
    #[must_use]
    pub fn object(&self, member: &str) -> Option<ObjectId> {
        let member = member.to_owned();
        match self {
            Self::State(_) | Self::Author(_) | Self::Resource(..) | Self::Tag(_) => {
                Some(ObjectId::Task(member))
            }
            Self::ReviewerQueue(..) | Self::DueQueue(_) => Some(ObjectId::Approval(member)),
            Self::SessionOf(_) => Some(ObjectId::Session(member)),
            Self::DelegationOf(owner) => Some(ObjectId::Delegation(owner.clone(), member)),
            Self::Request(_) => None,
        }
    }
}

impl Index {
    /// The commands that add a member.
    pub(super) fn add(&self, member: &str) -> Vec<(RedisKey, Cmd)> {
        let mut commands = vec![match self.score {
            Some(score) => command("ZADD", &self.key, (score, member)),
            None => command("SADD", &self.key, member),
        }];
        let expire = self.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        commands.extend(expire.map(|ms| command("PEXPIRE", &self.key, ms)));
        commands
    }

    /// The command that removes a member.
    pub(super) fn remove(&self, member: &str) -> (RedisKey, Cmd) {
        command(if self.score.is_some() { "ZREM" } else { "SREM" }, &self.key, member)
    }
}
