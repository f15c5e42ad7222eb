//! The keys of a lock, from its name and back. Every key comes from a builder of the catalog.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex};

use ade_catalog::Catalog;
use ade_catalog::ident::Identifier;
use ade_domain::lock::{LockKind, LockName, RequestKey};
use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{ChannelName, IdentifierError, Layout, RedisKey};

use super::locked;
use crate::coordination::CoordinationError;

/// Every key that belongs to one lock, all in one slot.
#[derive(Debug, Clone)]
pub(super) struct LockKeys {
    /// lock, queue, waiting, deadline, fence, ended: the order in which the scripts expect them.
    pub(super) own: [RedisKey; 6],
    pub(super) channel: ChannelName,
    /// The index of locks on resources of its type.
    pub(super) by_type: Option<RedisKey>,
}

impl LockKeys {
    pub(super) fn of(name: &LockName, layout: Layout) -> Result<Self, CoordinationError> {
        Self::build(name, layout).map_err(unspeakable)
    }

    fn build(name: &LockName, layout: Layout) -> Result<Self, IdentifierError> {
        use keys::lock::{
            resource, resource_channel, resource_deadline, resource_ended, resource_fence, resource_queue,
            resource_waiting, task, task_channel, task_deadline, task_ended, task_fence, task_queue,
            task_waiting,
        };
        if let Some((of_type, id)) = name.resource() {
            let (of_type, id) = (ids::ResourceType::new(of_type)?, ids::ResourceId::new(id)?);
            let (of_type, id) = (&of_type, &id);
            return Ok(Self {
                own: [
                    resource(of_type, id).in_layout(layout),
                    resource_queue(of_type, id).in_layout(layout),
                    resource_waiting(of_type, id).in_layout(layout),
                    resource_deadline(of_type, id).in_layout(layout),
                    resource_fence(of_type, id).in_layout(layout),
                    resource_ended(of_type, id).in_layout(layout),
                ],
                channel: resource_channel(of_type, id).in_layout(layout),
                by_type: Some(keys::lock::by_resource_type(of_type).in_layout(layout)),
            });
        }
        let id = &ids::TaskId::new(name.id())?;
        Ok(Self {
            own: [
                task(id).in_layout(layout),
                task_queue(id).in_layout(layout),
                task_waiting(id).in_layout(layout),
                task_deadline(id).in_layout(layout),
                task_fence(id).in_layout(layout),
                task_ended(id).in_layout(layout),
            ],
            channel: task_channel(id).in_layout(layout),
            by_type: None,
        })
    }

    pub(super) const fn lock(&self) -> &RedisKey {
        let [lock, ..] = &self.own;
        lock
    }

    pub(super) const fn queue(&self) -> &RedisKey {
        let [_, queue, ..] = &self.own;
        queue
    }

    pub(super) const fn waiting(&self) -> &RedisKey {
        let [_, _, waiting, ..] = &self.own;
        waiting
    }
}

/// The keys of one agent, all in one slot.
#[derive(Debug, Clone)]
pub(super) struct AgentKeys {
    pub(super) by_agent: RedisKey,
    pub(super) waitfor: RedisKey,
    pub(super) check: RedisKey,
    pub(super) profile: RedisKey,
    pub(super) capacity: RedisKey,
    pub(super) rate: RedisKey,
}

impl AgentKeys {
    pub(super) fn of(agent_id: &str, layout: Layout) -> Result<Self, CoordinationError> {
        let id = &ids::AgentId::new(agent_id).map_err(unspeakable)?;
        Ok(Self {
            by_agent: keys::lock::by_agent(id).in_layout(layout),
            waitfor: keys::lock::waitfor(id).in_layout(layout),
            check: keys::lock::deadlock_check(id).in_layout(layout),
            profile: keys::agent::profile(id).in_layout(layout),
            capacity: keys::lock::agent_capacity(id).in_layout(layout),
            rate: keys::ratelimit::lock_acquire(id).in_layout(layout),
        })
    }
}

/// Keys that were built lately: building them takes longer than sending them.
#[derive(Debug)]
pub(super) struct Built<N, K> {
    keys: Mutex<HashMap<N, Arc<K>>>,
}

impl<N, K> Default for Built<N, K> {
    fn default() -> Self {
        Self { keys: Mutex::default() }
    }
}

impl<N: Eq + Hash, K> Built<N, K> {
    /// More are not kept; when there are as many, all are forgotten.
    const MOST: usize = 20_000;

    pub(super) fn get<Q>(
        &self,
        name: &Q,
        build: impl FnOnce() -> Result<K, CoordinationError>,
    ) -> Result<Arc<K>, CoordinationError>
    where
        N: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = N> + ?Sized,
    {
        if let Some(found) = locked(&self.keys).get(name) {
            return Ok(Arc::clone(found));
        }
        let built = Arc::new(build()?);
        let mut keys = locked(&self.keys);
        if keys.len() >= Self::MOST {
            keys.clear();
        }
        keys.insert(name.to_owned(), Arc::clone(&built));
        Ok(built)
    }
}

/// Keys that there is one of.
#[derive(Debug, Clone)]
pub(super) struct SingleKeys {
    pub(super) registry: RedisKey,
    pub(super) names: RedisKey,
    pub(super) ages: RedisKey,
    pub(super) agents: RedisKey,
    pub(super) alive: RedisKey,
    pub(super) named: RedisKey,
    pub(super) scheduled: RedisKey,
}

impl SingleKeys {
    pub(super) fn of(layout: Layout) -> Self {
        Self {
            registry: keys::lock::registry().in_layout(layout),
            names: keys::lock::names().in_layout(layout),
            ages: keys::lock::ages().in_layout(layout),
            agents: keys::agent::index().in_layout(layout),
            alive: keys::agent::alive().in_layout(layout),
            named: keys::agent::named().in_layout(layout),
            scheduled: keys::job::scheduled().writable().in_layout(layout),
        }
    }
}

pub(super) fn by_type(of_type: &str, layout: Layout) -> Result<RedisKey, CoordinationError> {
    let of_type = ids::ResourceType::new(of_type).map_err(unspeakable)?;
    Ok(keys::lock::by_resource_type(&of_type).in_layout(layout))
}

pub(super) fn request(key: RequestKey, layout: Layout) -> Result<RedisKey, CoordinationError> {
    let id = ids::RequestKey::new(&key.to_string()).map_err(unspeakable)?;
    Ok(keys::lock::request(&id).in_layout(layout))
}

pub(super) fn endpoint_rate(
    endpoint: &str,
    who: &str,
    layout: Layout,
) -> Result<RedisKey, CoordinationError> {
    let endpoint = ids::Endpoint::new(endpoint).map_err(unspeakable)?;
    let who = ids::UserId::new(who).map_err(unspeakable)?;
    Ok(keys::ratelimit::endpoint(&endpoint, &who).in_layout(layout))
}

/// The queue of calls to the workers of one kind.
pub(super) fn queue(name: ids::QueueName, layout: Layout) -> RedisKey {
    keys::job::queue(&name).writable().in_layout(layout)
}

/// The lock of a job.
pub(super) fn job_lock(id: &ids::JobId, layout: Layout) -> RedisKey {
    keys::job::lock(id).in_layout(layout)
}

/// Names are never empty, and that is the only thing a builder refuses.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unspeakable(error: IdentifierError) -> CoordinationError {
    CoordinationError(format!("no key can be made: {error}"))
}

/// What a lock's key says of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// All of it.
    Name(LockName),
    /// A name that is too long for a key: only `lock.names` knows it.
    Long,
    /// It is not the key of a lock.
    NotALock,
}

/// The name behind the key of a lock.
pub(super) fn name_of(key: &str) -> Named {
    /// The two entries of the catalog that a lock's own key may belong to: looking through all of them takes long.
    static LOCKS: LazyLock<Option<Catalog>> = LazyLock::new(|| {
        let mut catalog = ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade")?.clone();
        catalog.entries.retain(|entry| matches!(entry.name.as_str(), "lock.task" | "lock.resource"));
        Some(catalog)
    });
    let Some(found) = LOCKS.as_ref().and_then(|catalog| catalog.find(key)) else { return Named::NotALock };
    let mut name =
        if found.ids.len() == 1 { LockKind::Task.word() } else { LockKind::Resource.word() }.to_owned();
    for id in found.ids {
        match id.identifier {
            Some(Identifier::Exact(text)) => {
                name.push(':');
                name.push_str(&text);
            }
            Some(Identifier::Hashed { .. }) => return Named::Long,
            None => return Named::NotALock,
        }
    }
    name.parse().map_or(Named::NotALock, Named::Name)
}

/// Whether the key of this lock does not tell its name.
pub(super) fn is_long(name: &LockName, keys: &LockKeys) -> bool {
    // Encoding makes a name longer, hashing makes it shorter: only a name with a long part can be hashed.
    name.as_str().len() > 40 && name_of(keys.lock().as_str()) == Named::Long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_keys_unless_they_are_too_long() {
        let long = "x".repeat(300);
        for layout in [Layout::Plain, Layout::Cluster] {
            for name in
                ["task:1", "task:a:b{c}%3A", "resource:database:prod", "resource:x:y:z:{}%: ü", "task:index"]
            {
                let name: LockName = name.parse().expect("valid");
                let keys = LockKeys::of(&name, layout).expect("built");
                assert_eq!(name_of(keys.lock().as_str()), Named::Name(name.clone()));
                assert!(!is_long(&name, &keys));
                assert_eq!(name_of(keys.queue().as_str()), Named::NotALock, "{}", keys.queue());
            }
            let name: LockName =
                format!("resource:{long}:{long}").get(..500).expect("ascii").parse().expect("valid");
            let keys = LockKeys::of(&name, layout).expect("built");
            assert_eq!(name_of(keys.lock().as_str()), Named::Long);
            assert!(is_long(&name, &keys));
        }
        assert_eq!(name_of("ade:lock:registry"), Named::NotALock);
    }
}
