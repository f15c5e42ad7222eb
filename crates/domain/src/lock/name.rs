//! Names of locks and of those who hold them. A name comes back as it was given, whatever characters it has.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::repeats::digest;

/// Bytes that a lock's name may have.
const MAX_NAME_BYTES: usize = 512;
/// Bytes that the id of an agent or a holder may have.
const MAX_ID_BYTES: usize = 256;

/// A piece of text that many places share.
pub type Text = Arc<str>;

/// What a lock protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// The execution of one task: exclusive only.
    Task,
    /// A resource: exclusive or shared.
    Resource,
}

impl LockKind {
    /// Whether locks of this kind can be held in a mode.
    #[must_use]
    pub const fn admits(self, mode: Mode) -> bool {
        matches!((self, mode), (Self::Resource, _) | (Self::Task, Mode::Exclusive))
    }

    /// The first part of a lock's name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Resource => "resource",
        }
    }
}

/// How a lock is held: alone, or together with others that share it. Exclusive is the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Together with other sharers.
    Shared,
    /// Alone.
    Exclusive,
}

impl Mode {
    /// Whether two holders may hold at once in these modes.
    #[must_use]
    pub const fn goes_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Shared, Self::Shared))
    }

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        }
    }
}

/// `task:{task_id}` or `resource:{type}:{id}`; the id is all that follows the colon, any characters.
///
/// The order is the one in which several locks are taken: task locks, then resource locks, each by the bytes of the name.
#[derive(Debug, Clone)]
pub struct LockName {
    kind: LockKind,
    text: Text,
    mark: Mark,
}

/// A digest of a name, made once. Names are looked up far more often than they are made, and the search for cycles looks
/// at thousands: with this it need not read their texts. Names that collide are merely compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark(u64);

impl Mark {
    fn of(parts: &[&str]) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "half of a digest is a digest")]
        Self(digest(parts) as u64)
    }
}

/// Maps by name use the digest of the name as it is.
pub(super) type ByMark = BuildHasherDefault<Marked>;

/// Hands a mark on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marked(u64);

impl Hasher for Marked {
    fn write(&mut self, bytes: &[u8]) {
        // Names write their mark alone; this is for whatever else might be a key one day.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, mark: u64) {
        self.0 = mark;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn same(a: &Text, b: &Text) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Why a text does not name what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The kind is missing or unknown.
    #[error("a lock is named task:ID or resource:TYPE:ID")]
    Kind,
    /// Capacity is not taken like a lock.
    #[error("agent:ID is the capacity of an agent, which is not locked by hand; see GET /api/v1/agents/ID")]
    Capacity,
    /// A part is empty.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// Too long.
    #[error("{0} may have at most {1} bytes")]
    Long(&'static str, usize),
}

impl LockName {
    /// A name before all names, which is none itself.
    pub(super) fn least() -> Self {
        Self { kind: LockKind::Task, text: "".into(), mark: Mark(0) }
    }

    /// What it protects.
    #[must_use]
    pub const fn kind(&self) -> LockKind {
        self.kind
    }

    /// The name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The resource's type and id, for a resource lock.
    #[must_use]
    pub fn resource(&self) -> Option<(&str, &str)> {
        self.text.strip_prefix("resource:")?.split_once(':')
    }

    /// The resource's type, for a resource lock.
    #[must_use]
    pub fn resource_type(&self) -> Option<&str> {
        self.resource().map(|(of_type, _)| of_type)
    }

    /// All that follows the kind, for a task's lock its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text.split_once(':').map_or("", |(_, id)| id)
    }
}

impl FromStr for LockName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text.is_empty() {
            return Err(InvalidName::Empty("the name of a lock"));
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(InvalidName::Long("the name of a lock", MAX_NAME_BYTES));
        }
        let kind = match text.split_once(':') {
            Some(("task", "")) => return Err(InvalidName::Empty("the task's id")),
            Some(("task", _)) => LockKind::Task,
            Some(("resource", rest)) => match rest.split_once(':') {
                None => return Err(InvalidName::Kind),
                Some(("", _)) => return Err(InvalidName::Empty("the resource's type")),
                Some((_, "")) => return Err(InvalidName::Empty("the resource's id")),
                Some(_) => LockKind::Resource,
            },
            Some(("agent", _)) => return Err(InvalidName::Capacity),
            _ => return Err(InvalidName::Kind),
        };
        Ok(Self { kind, text: text.into(), mark: Mark::of(&[text]) })
    }
}

impl PartialEq for LockName {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark && same(&self.text, &other.text)
    }
}

impl Eq for LockName {}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mark.0);
    }
}

impl Ord for LockName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.kind.cmp(&other.kind).then_with(|| self.text.as_bytes().cmp(other.text.as_bytes()))
    }
}

impl PartialOrd for LockName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Who holds or waits: an agent, and which of its activities. Two holders of one agent exclude each other.
#[derive(Debug, Clone)]
pub struct Holder {
    agent: Text,
    id: Text,
    mark: Mark,
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.mark == other.mark && same(&self.agent, &other.agent) && same(&self.id, &other.id)
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mark.0);
    }
}

impl Ord for Holder {
    fn cmp(&self, other: &Self) -> Ordering {
        self.agent.cmp(&other.agent).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Holder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Holder {
    /// The activity `holder_id` of an agent; the agent itself if none is named.
    pub fn new(agent_id: &str, holder_id: Option<&str>) -> Result<Self, InvalidName> {
        for (what, id) in [("agent_id", Some(agent_id)), ("holder_id", holder_id)] {
            match id {
                Some("") => return Err(InvalidName::Empty(what)),
                Some(id) if id.len() > MAX_ID_BYTES => return Err(InvalidName::Long(what, MAX_ID_BYTES)),
                _ => {}
            }
        }
        let agent: Text = agent_id.into();
        let id = holder_id.filter(|id| *id != agent_id).map_or_else(|| agent.clone(), Text::from);
        let mark = Mark::of(&[&agent, &id]);
        Ok(Self { agent, id, mark })
    }

    /// A holder before all holders of an agent, which is none itself.
    pub(super) fn first_of(agent: &Text) -> Self {
        Self { agent: agent.clone(), id: "".into(), mark: Mark(0) }
    }

    /// The agent.
    #[must_use]
    pub fn agent_id(&self) -> &str {
        &self.agent
    }

    /// Which of its activities.
    #[must_use]
    pub fn holder_id(&self) -> &str {
        &self.id
    }
}

/// `agent`, or `agent/holder` where they differ.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.agent == self.id { f.write_str(&self.agent) } else { write!(f, "{}/{}", self.agent, self.id) }
    }
}

/// A pair of ids, so that no character needs escaping.
impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&*self.agent, &*self.id).serialize(serializer)
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
    fn names_come_back_as_they_were_given() {
        for name in ["task:1", "task:a:b{c}%3A", "resource:database:prod", "resource:x:y:z:{}%: ü\u{1F512}\n"]
        {
            let parsed: LockName = name.parse().expect("valid");
            assert_eq!(parsed.as_str(), name);
            let text = serde_json::to_string(&parsed).expect("JSON");
            assert_eq!(serde_json::from_str::<LockName>(&text).expect("the same"), parsed);
        }
        let lock: LockName = "resource:database:a:b".parse().expect("valid");
        assert_eq!(lock.resource_type(), Some("database"));
    }

    #[test]
    fn wrong_names_are_refused_with_the_reason() {
        let long = format!("task:{}", "x".repeat(MAX_NAME_BYTES));
        for (name, why) in [
            ("", InvalidName::Empty("the name of a lock")),
            ("x", InvalidName::Kind),
            ("tasks:1", InvalidName::Kind),
            ("Task:1", InvalidName::Kind),
            ("task:", InvalidName::Empty("the task's id")),
            ("resource:", InvalidName::Kind),
            ("resource:db", InvalidName::Kind),
            ("resource::1", InvalidName::Empty("the resource's type")),
            ("resource:db:", InvalidName::Empty("the resource's id")),
            ("agent:7", InvalidName::Capacity),
            (&long, InvalidName::Long("the name of a lock", MAX_NAME_BYTES)),
        ] {
            assert_eq!(name.parse::<LockName>(), Err(why), "{name}");
        }
        assert_eq!(Holder::new("", None), Err(InvalidName::Empty("agent_id")));
        assert_eq!(Holder::new("a", Some("")), Err(InvalidName::Empty("holder_id")));
        assert_eq!(Holder::new(&"a".repeat(257), None), Err(InvalidName::Long("agent_id", 256)));
    }

    #[test]
    fn task_locks_come_before_resource_locks() {
        let mut names: Vec<LockName> = ["resource:a:1", "task:z", "resource:Z:1", "task:b"]
            .iter()
            .map(|name| name.parse().expect("valid"))
            .collect();
        names.sort();
        let names: Vec<&str> = names.iter().map(LockName::as_str).collect();
        assert_eq!(names, ["task:b", "task:z", "resource:Z:1", "resource:a:1"]);
    }
}
