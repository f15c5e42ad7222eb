//! Names of locks and identities of holders. Any characters are allowed. The lock of a resource has the resource's name in normal
//! form: two spellings of one resource are one lock.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::request_key::digest;
use crate::normal_form::fold;

const MAX_NAME_BYTES: usize = 512;
/// For agent ids and holder ids.
const MAX_ID_BYTES: usize = 256;

/// Immutable text that is cheap to clone.
pub type SharedStr = Arc<str>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum LockKind {
    /// The execution of one task: exclusive only.
    Task,
    /// A resource: exclusive or shared.
    Resource,
}

impl LockKind {
    pub const fn supports(self, mode: LockMode) -> bool {
        matches!((self, mode), (Self::Resource, _) | (Self::Task, LockMode::Exclusive))
    }

    /// The prefix of the lock name.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// How a lock is held.
// Ordered by strength: exclusive is stronger than shared.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum LockMode {
    Shared,
    #[default]
    Exclusive,
}

impl LockMode {
    /// Whether two holders can hold a lock in these modes at the same time.
    pub const fn is_compatible_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Shared, Self::Shared))
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A value with a digest, computed once. Lookups and the search for cycles touch thousands of names: comparing digests first
/// saves reading their texts. Colliding names are still compared by text, and the order ignores the digest.
#[derive(Debug, Clone)]
struct Hashed<T> {
    hash: u64,
    value: T,
}

impl<T> Hashed<T> {
    fn new(value: T, parts: &[&str]) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "half of a digest is a digest")]
        Self { hash: digest(parts) as u64, value }
    }
}

impl<T: Eq> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.value == other.value
    }
}

impl<T: Eq> Eq for Hashed<T> {}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<T: Ord> Ord for Hashed<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.value.cmp(&other.value)
    }
}

impl<T: Ord> PartialOrd for Hashed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// For maps keyed by names or holders: uses their precomputed digest as the hash.
pub(super) type NameHashBuilder = BuildHasherDefault<NameHasher>;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        // Names and holders call only `write_u64`; this keeps the hasher correct for any other key.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("a lock name is task:ID or resource:TYPE:ID")]
    UnknownKind,
    /// `agent:ID` names the capacity of an agent, which is not a lock.
    #[error("agent:ID is the capacity of an agent and cannot be locked; its limit is a setting of the agent")]
    AgentCapacity,
    #[error("{0} must not be empty")]
    Empty(&'static str),
    #[error("{0} must have at most {1} bytes")]
    TooLong(&'static str, usize),
}

/// `task:{task_id}` or `resource:{type}:{id}`; the id is everything after the last of these colons.
///
/// The order is the global order in which several locks are acquired: task locks, then resource locks, each by the bytes
/// of the name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Hashed<(LockKind, SharedStr)>);

impl LockName {
    /// Sorts before every valid name; for the start of a range.
    pub(super) fn lower_bound() -> Self {
        Self(Hashed { hash: 0, value: (LockKind::Task, "".into()) })
    }

    /// Sorts before every valid name with this kind and prefix.
    pub(super) fn prefix_bound(kind: LockKind, prefix: &str) -> Self {
        Self(Hashed { hash: 0, value: (kind, prefix.into()) })
    }

    pub(super) const fn digest(&self) -> u64 {
        self.0.hash
    }

    pub const fn kind(&self) -> LockKind {
        self.0.value.0
    }

    pub fn as_str(&self) -> &str {
        &self.0.value.1
    }

    /// The type and id of the resource; `None` for a task lock.
    pub fn resource(&self) -> Option<(&str, &str)> {
        self.as_str().strip_prefix("resource:")?.split_once(':')
    }

    pub fn resource_type(&self) -> Option<&str> {
        self.resource().map(|(resource_type, _)| resource_type)
    }

    /// Everything after the kind; for a task lock, the task id.
    pub fn id(&self) -> &str {
        self.as_str().split_once(':').map_or("", |(_, id)| id)
    }
}

impl FromStr for LockName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text.is_empty() {
            return Err(InvalidName::Empty("the lock name"));
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(InvalidName::TooLong("the lock name", MAX_NAME_BYTES));
        }
        let kind = match text.split_once(':') {
            Some(("task", "")) => return Err(InvalidName::Empty("the task id")),
            Some(("task", _)) => LockKind::Task,
            Some(("resource", rest)) => match rest.split_once(':') {
                None => return Err(InvalidName::UnknownKind),
                Some(("", _)) => return Err(InvalidName::Empty("the resource type")),
                Some((_, "")) => return Err(InvalidName::Empty("the resource id")),
                Some(_) => LockKind::Resource,
            },
            Some(("agent", _)) => return Err(InvalidName::AgentCapacity),
            _ => return Err(InvalidName::UnknownKind),
        };
        let text = if kind == LockKind::Resource { fold(text) } else { text.into() };
        // Folding can lengthen a name.
        if text.len() > MAX_NAME_BYTES {
            return Err(InvalidName::TooLong("the lock name", MAX_NAME_BYTES));
        }
        Ok(Self(Hashed::new((kind, (&*text).into()), &[&*text])))
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An agent and the id of one of its activities. Two holders of the same agent exclude each other like any others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(Hashed<(SharedStr, SharedStr)>);

impl Holder {
    /// Without a `holder_id`, the agent itself is the holder.
    pub fn new(agent_id: &str, holder_id: Option<&str>) -> Result<Self, InvalidName> {
        for (field, id) in [("agent_id", Some(agent_id)), ("holder_id", holder_id)] {
            match id {
                Some("") => return Err(InvalidName::Empty(field)),
                Some(id) if id.len() > MAX_ID_BYTES => return Err(InvalidName::TooLong(field, MAX_ID_BYTES)),
                _ => {}
            }
        }
        let agent: SharedStr = agent_id.into();
        let id = holder_id.filter(|id| *id != agent_id).map_or_else(|| agent.clone(), SharedStr::from);
        let parts = [agent_id, holder_id.unwrap_or(agent_id)];
        Ok(Self(Hashed::new((agent, id), &parts)))
    }

    /// Sorts before every valid holder of the agent; for the start of a range.
    pub(super) fn lower_bound(agent: &SharedStr) -> Self {
        Self(Hashed { hash: 0, value: (agent.clone(), "".into()) })
    }

    /// Sorts right after this holder; for the start of a range.
    pub(super) fn upper_bound(&self) -> Self {
        let (agent, id) = &self.0.value;
        Self(Hashed { hash: 0, value: (agent.clone(), format!("{id}\0").into()) })
    }

    pub fn agent_id(&self) -> &str {
        &self.0.value.0
    }

    pub fn holder_id(&self) -> &str {
        &self.0.value.1
    }
}

/// `agent`, or `agent/holder` where they differ.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (agent, id) = &self.0.value;
        if agent == id { f.write_str(agent) } else { write!(f, "{agent}/{id}") }
    }
}

/// Serialized as a pair of ids, so that no character needs escaping.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Holder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (agent, id) = <(String, String)>::deserialize(deserializer)?;
        Self::new(&agent, Some(&id)).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_unchanged() {
        for name in ["task:1", "task:a:b{c}%3A", "resource:database:prod", "resource:x:y:z:{}%: ü\u{1F512}\n"]
        {
            let parsed: LockName = name.parse().expect("valid");
            assert_eq!(parsed.as_str(), name);
            let text = serde_json::to_string(&parsed).expect("JSON");
            assert_eq!(serde_json::from_str::<LockName>(&text).expect("valid"), parsed);
        }
        let spelled: LockName = "resource:Database:PROD".parse().expect("valid");
        assert_eq!(spelled.as_str(), "resource:database:prod");
        let lock: LockName = "resource:database:a:b".parse().expect("valid");
        assert_eq!(lock.resource_type(), Some("database"));
    }

    #[test]
    fn rejects_invalid_names_with_the_reason() {
        let long = format!("task:{}", "x".repeat(MAX_NAME_BYTES));
        for (name, error) in [
            ("", InvalidName::Empty("the lock name")),
            ("x", InvalidName::UnknownKind),
            ("tasks:1", InvalidName::UnknownKind),
            ("Task:1", InvalidName::UnknownKind),
            ("task:", InvalidName::Empty("the task id")),
            ("resource:", InvalidName::UnknownKind),
            ("resource:db", InvalidName::UnknownKind),
            ("resource::1", InvalidName::Empty("the resource type")),
            ("resource:db:", InvalidName::Empty("the resource id")),
            ("agent:7", InvalidName::AgentCapacity),
            (&long, InvalidName::TooLong("the lock name", MAX_NAME_BYTES)),
        ] {
            assert_eq!(name.parse::<LockName>(), Err(error), "{name}");
        }
        assert_eq!(Holder::new("", None), Err(InvalidName::Empty("agent_id")));
        assert_eq!(Holder::new("a", Some("")), Err(InvalidName::Empty("holder_id")));
        assert_eq!(Holder::new(&"a".repeat(257), None), Err(InvalidName::TooLong("agent_id", 256)));
    }

    #[test]
    fn task_locks_sort_before_resource_locks() {
        let mut names: Vec<LockName> = ["resource:a:1", "task:z", "resource:_:1", "task:b"]
            .iter()
            .map(|name| name.parse().expect("valid"))
            .collect();
        names.sort();
        let names: Vec<&str> = names.iter().map(LockName::as_str).collect();
        assert_eq!(names, ["task:b", "task:z", "resource:_:1", "resource:a:1"]);
    }
}
