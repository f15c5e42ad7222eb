//! Projections: keys of Redis that repeat what the database says, for services that read Redis, and the event streams.
//!
//! The database is the authority, and nothing in ADE decides by these keys. The keys of an object are written from its current row and
//! guarded by its revision, so that a late or repeated write does no harm. `objects.rs` says which keys an object has, `write.rs`
//! writes them, `compare.rs` finds differences, `streams.rs` appends events.

mod compare;
mod marks;
mod membership;
mod objects;
mod streams;
mod write;

use std::time::Duration;

use ade_keyspace::{Layout, RedisKey, Writable};

use super::connection::{RedisClient, Script};
use crate::coordination::CoordinationError;

pub use compare::{Difference, StoredObject};
pub use marks::ServerRuns;
pub use membership::Membership;
pub use objects::{ObjectId, setting_text};
pub use streams::{CONSUMER_GROUPS, EventTopic, StreamEntry, entry_id};
pub use write::Overwrite;

type Result<T, E = CoordinationError> = std::result::Result<T, E>;

/// An object of the database as keys of Redis.
#[derive(Debug, Clone, PartialEq)]
pub struct Projection {
    id: ObjectId,
    revision: u64,
    /// All in one slot. The first one is a hash, which guards the others, unless the object has no revision.
    keys: Vec<ProjectedKey>,
    /// The indexes that have the object as a member.
    memberships: Vec<Membership>,
    /// The score in the indexes that are ordered by the creation of their members: Unix seconds.
    created: u64,
}

/// What a key contains.
#[derive(Debug, Clone, PartialEq)]
struct ProjectedKey {
    key: RedisKey,
    ttl: Option<Duration>,
    value: ProjectedValue,
}

#[derive(Debug, Clone, PartialEq)]
enum ProjectedValue {
    /// The key does not exist.
    Absent,
    Text(String),
    Hash(Vec<(&'static str, String)>),
    Set(Vec<String>),
}

impl ProjectedKey {
    fn new(key: Writable<'_>, layout: Layout, value: ProjectedValue) -> Self {
        // An empty set or hash does not exist.
        let value = match value {
            ProjectedValue::Hash(fields) if fields.is_empty() => ProjectedValue::Absent,
            ProjectedValue::Set(members) if members.is_empty() => ProjectedValue::Absent,
            value => value,
        };
        Self { key: key.in_layout(layout), ttl: key.ttl(), value }
    }
}

impl Projection {
    #[must_use]
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// The task of an approval request.
    #[must_use]
    pub fn task_id(&self) -> Option<&str> {
        self.field("task_id")
    }

    /// The user of a session.
    #[must_use]
    pub fn user_id(&self) -> Option<&str> {
        self.field("user_id")
    }

    fn field(&self, name: &str) -> Option<&str> {
        let ProjectedValue::Hash(fields) = &self.keys.first()?.value else { return None };
        fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
    }

    /// Whether the object belongs to an index, with any score.
    #[must_use]
    pub fn is_member_of(&self, index: &Membership) -> bool {
        self.memberships.iter().any(|membership| membership.is_same_index(index))
    }
}

/// Writes and reads projections. Clones share the connections of the coordination.
#[derive(Clone)]
pub struct RedisProjections {
    client: RedisClient,
    scripts: Scripts,
}

#[derive(Clone)]
struct Scripts {
    project: Script,
    confirm: Script,
    remove: Script,
    append_entries: Script,
}

impl std::fmt::Debug for RedisProjections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisProjections").finish_non_exhaustive()
    }
}

impl RedisProjections {
    /// Uses a connection of its own: a large batch must not delay lock commands.
    pub async fn open(url: &super::RedisUrl) -> Result<Self> {
        let client = RedisClient::open(url, super::ConnectionOptions::default()).await?;
        let source = include_str!("../scripts/projections.lua");
        let [project, confirm, remove, append_entries] =
            Script::library(source, ["project", "confirm", "remove", "append_entries"]);
        Ok(Self { client, scripts: Scripts { project, confirm, remove, append_entries } })
    }

    #[must_use]
    pub fn layout(&self) -> Layout {
        self.client.layout()
    }
}
