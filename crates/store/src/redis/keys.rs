//! The Redis keys of locks, agents and jobs, and the way back from a lock's key to its name. Every key comes from a
//! builder of the key catalog, never from string formatting.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, LazyLock, Mutex};

use ade_catalog::Catalog;
use ade_catalog::ident::Identifier;
use ade_domain::lock::{LockKind, LockName, RequestKey};
use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{ChannelName, Layout, RedisKey};

use super::{Result, encoding, locked};

/// The keys of one lock, all in one slot.
#[derive(Debug, Clone)]
pub(super) struct LockKeys {
    /// Lock, queue, waiting, deadline, fence, ended: the order that the scripts expect.
    pub(super) script_keys: [RedisKey; 6],
    pub(super) channel: ChannelName,
    /// The index of locks on resources of the same type.
    pub(super) type_index: Option<RedisKey>,
}

impl LockKeys {
    pub(super) fn new(name: &LockName, layout: Layout) -> Result<Self> {
        use keys::lock;
        if let Some((resource_type, id)) = name.resource() {
            let (kind, id) = (&ids::ResourceType::new(resource_type)?, &ids::ResourceId::new(id)?);
            return Ok(Self {
                script_keys: [
                    lock::resource(kind, id).in_layout(layout),
                    lock::resource_queue(kind, id).in_layout(layout),
                    lock::resource_waiting(kind, id).in_layout(layout),
                    lock::resource_deadline(kind, id).in_layout(layout),
                    lock::resource_fence(kind, id).in_layout(layout),
                    lock::resource_ended(kind, id).in_layout(layout),
                ],
                channel: lock::resource_channel(kind, id).in_layout(layout),
                type_index: Some(lock::by_resource_type(kind).in_layout(layout)),
            });
        }
        let id = &ids::TaskId::new(name.id())?;
        Ok(Self {
            script_keys: [
                lock::task(id).in_layout(layout),
                lock::task_queue(id).in_layout(layout),
                lock::task_waiting(id).in_layout(layout),
                lock::task_deadline(id).in_layout(layout),
                lock::task_fence(id).in_layout(layout),
                lock::task_ended(id).in_layout(layout),
            ],
            channel: lock::task_channel(id).in_layout(layout),
            type_index: None,
        })
    }

    pub(super) const fn lock(&self) -> &RedisKey {
        let [lock, ..] = &self.script_keys;
        lock
    }

    pub(super) const fn queue(&self) -> &RedisKey {
        let [_, queue, ..] = &self.script_keys;
        queue
    }

    pub(super) const fn waiting(&self) -> &RedisKey {
        let [_, _, waiting, ..] = &self.script_keys;
        waiting
    }
}

#[derive(Debug, Clone)]
pub(super) struct AgentKeys {
    /// The digest of the holder that is the agent itself.
    pub(super) digest: String,
    pub(super) held_locks: RedisKey,
    pub(super) awaited_locks: RedisKey,
    pub(super) deadlock_check: RedisKey,
    pub(super) profile: RedisKey,
    pub(super) capacity: RedisKey,
    pub(super) acquire_rate: RedisKey,
}

impl AgentKeys {
    pub(super) fn new(agent_id: &str, layout: Layout) -> Result<Self> {
        let id = &ids::AgentId::new(agent_id)?;
        Ok(Self {
            digest: encoding::digest_text(agent_id, agent_id),
            held_locks: keys::lock::by_agent(id).in_layout(layout),
            awaited_locks: keys::lock::waitfor(id).in_layout(layout),
            deadlock_check: keys::lock::deadlock_check(id).in_layout(layout),
            profile: keys::agent::profile(id).in_layout(layout),
            capacity: keys::lock::agent_capacity(id).in_layout(layout),
            acquire_rate: keys::ratelimit::lock_acquire(id).in_layout(layout),
        })
    }
}

/// Caches built keys, because building them takes longer than sending them.
#[derive(Debug)]
pub(super) struct KeyCache<N, K> {
    /// A part that is full is cleared. There are many, so that nobody waits for long while one is.
    parts: [Mutex<HashMap<N, Arc<K>>>; 64],
    hasher: RandomState,
}

impl<N, K> Default for KeyCache<N, K> {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

impl<N: Eq + Hash, K> KeyCache<N, K> {
    const MAX_ENTRIES_PER_PART: usize = 1_000;

    pub(super) fn get<Q>(&self, name: &Q, build: impl FnOnce() -> Result<K>) -> Result<Arc<K>>
    where
        N: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = N> + ?Sized,
    {
        let index = self.hasher.hash_one(name) % self.parts.len() as u64;
        let Some(part) = usize::try_from(index).ok().and_then(|index| self.parts.get(index)) else {
            return build().map(Arc::new);
        };
        if let Some(found) = locked(part).get(name) {
            return Ok(Arc::clone(found));
        }
        let built = Arc::new(build()?);
        let mut keys = locked(part);
        if keys.len() >= Self::MAX_ENTRIES_PER_PART {
            keys.clear();
        }
        keys.insert(name.to_owned(), Arc::clone(&built));
        Ok(built)
    }
}

/// Keys that exist once.
#[derive(Debug, Clone)]
pub(super) struct GlobalKeys {
    pub(super) registry: RedisKey,
    /// The last fencing token. Not used on a cluster.
    pub(super) token: RedisKey,
    /// The locks in use, and those with waiters, by name.
    pub(super) locks_by_name: RedisKey,
    pub(super) awaited_by_name: RedisKey,
    /// The names of locks whose keys have a hash instead.
    pub(super) lock_names: RedisKey,
    pub(super) victim_ages: RedisKey,
    pub(super) agents: RedisKey,
    pub(super) alive_agents: RedisKey,
    pub(super) named_agents: RedisKey,
    pub(super) scheduled: RedisKey,
    /// The queues of wake-ups, in catalog order.
    pub(super) queues: Vec<(ids::QueueName, RedisKey)>,
}

impl GlobalKeys {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            registry: keys::lock::registry().in_layout(layout),
            token: keys::lock::token().in_layout(layout),
            locks_by_name: keys::lock::by_name().in_layout(layout),
            awaited_by_name: keys::lock::awaited().in_layout(layout),
            lock_names: keys::lock::names().in_layout(layout),
            victim_ages: keys::lock::ages().in_layout(layout),
            agents: keys::agent::index().in_layout(layout),
            alive_agents: keys::agent::alive().in_layout(layout),
            named_agents: keys::agent::named().in_layout(layout),
            scheduled: keys::job::scheduled().writable().in_layout(layout),
            queues: ids::QueueName::all().iter().map(|name| (*name, queue(*name, layout))).collect(),
        }
    }
}

pub(super) fn request(key: RequestKey, layout: Layout) -> Result<RedisKey> {
    let id = ids::RequestKey::new(&key.to_string())?;
    Ok(keys::lock::request(&id).in_layout(layout))
}

pub(super) fn endpoint_rate(endpoint: &str, caller: &str, layout: Layout) -> Result<RedisKey> {
    let endpoint = ids::Endpoint::new(endpoint)?;
    let caller = ids::UserId::new(caller)?;
    Ok(keys::ratelimit::endpoint(&endpoint, &caller).in_layout(layout))
}

pub(super) fn queue(name: ids::QueueName, layout: Layout) -> RedisKey {
    keys::job::queue(&name).writable().in_layout(layout)
}

/// Where processes announce numbered events.
pub(super) fn announcements(layout: Layout) -> ChannelName {
    keys::events::numbered().in_layout(layout)
}

pub(super) fn job_lock(id: &ids::JobId, layout: Layout) -> RedisKey {
    keys::job::lock(id).in_layout(layout)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedLockKey {
    Lock(LockName),
    /// The name is too long for a key, which has a hash instead. `lock.names` stores the name.
    Hashed,
    NotALock,
}

pub(super) fn parse_lock_key(key: &str) -> ParsedLockKey {
    /// Only the two catalog entries of lock keys: searching the whole catalog is slow.
    static LOCKS: LazyLock<Option<Catalog>> = LazyLock::new(|| {
        let mut catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade")?.clone();
        catalog.entries.retain(|entry| matches!(entry.name.as_str(), "lock.task" | "lock.resource"));
        Some(catalog)
    });
    let Some(found) = LOCKS.as_ref().and_then(|catalog| catalog.find(key)) else {
        return ParsedLockKey::NotALock;
    };
    let mut name =
        if found.ids.len() == 1 { LockKind::Task.as_str() } else { LockKind::Resource.as_str() }.to_owned();
    for id in found.ids {
        match id.identifier {
            Some(Identifier::Exact(text)) => {
                name.push(':');
                name.push_str(&text);
            }
            Some(Identifier::Hashed { .. }) => return ParsedLockKey::Hashed,
            None => return ParsedLockKey::NotALock,
        }
    }
    name.parse().map_or(ParsedLockKey::NotALock, ParsedLockKey::Lock)
}

/// Whether the key of this lock has a hash instead of its name.
pub(super) fn has_hashed_name(name: &LockName, keys: &LockKeys) -> bool {
    // Encoding lengthens a name and hashing shortens it, so only a name with a long part can be hashed.
    name.as_str().len() > 40 && parse_lock_key(keys.lock().as_str()) == ParsedLockKey::Hashed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_names_from_keys_unless_they_are_hashed() {
        let long = "x".repeat(300);
        for layout in [Layout::Plain, Layout::Cluster] {
            for name in
                ["task:1", "task:a:b{c}%3A", "resource:database:prod", "resource:x:y:z:{}%: ü", "task:index"]
            {
                let name: LockName = name.parse().expect("valid");
                let keys = LockKeys::new(&name, layout).expect("valid keys");
                assert_eq!(parse_lock_key(keys.lock().as_str()), ParsedLockKey::Lock(name.clone()));
                assert!(!has_hashed_name(&name, &keys));
                assert_eq!(
                    parse_lock_key(keys.queue().as_str()),
                    ParsedLockKey::NotALock,
                    "{}",
                    keys.queue()
                );
            }
            let name: LockName =
                format!("resource:{long}:{long}").get(..500).expect("ascii").parse().expect("valid");
            let keys = LockKeys::new(&name, layout).expect("valid keys");
            assert_eq!(parse_lock_key(keys.lock().as_str()), ParsedLockKey::Hashed);
            assert!(has_hashed_name(&name, &keys));
        }
        assert_eq!(parse_lock_key("ade:lock:registry"), ParsedLockKey::NotALock);
    }
}
