//! Data about a lock outside its slot: the registry with the time of the next visit, the indexes by agent and by
//! type, and names that are too long for a key. Outside a cluster the script writes most of it itself.
//!
//! Nothing here decides who holds a lock. A stale entry is harmless; the sweep restores a missing one.

use ade_domain::Moment;
use ade_domain::lock::{Acquisition, Holder, LockName};
use ade_keyspace::RedisKey;
use redis::Cmd;

use super::command::{ChangeKind, CommandReply, ReportedChange};
use super::keys::{self, LockKeys};
use super::query::command;
use super::{Inner, Result, encoding, scripts};

impl Inner {
    /// Index updates that the script could not make: all on a cluster, otherwise the ends of holds of agents other than the
    /// caller's.
    pub(super) fn index_updates(
        &self,
        keys: &LockKeys,
        agent: Option<&str>,
        changes: &[ReportedChange],
    ) -> Result<Vec<(RedisKey, Cmd)>> {
        let mut updates = Vec::new();
        let (lock, ttl) = (keys.lock(), scripts::INDEX_TTL_MS);
        for (index, ReportedChange { holder, kind }) in changes.iter().enumerate() {
            let agent_id = holder.agent_id();
            let later = changes.get(index + 1..).unwrap_or_default();
            let has_later = |is_meant: fn(&ChangeKind) -> bool| {
                later.iter().any(|change| change.holder.agent_id() == agent_id && is_meant(&change.kind))
            };
            let queues_later = || has_later(|kind| matches!(kind, ChangeKind::Queued { .. }));
            let is_end = matches!(kind, ChangeKind::HoldEnded { .. });
            if !self.is_cluster()
                && (agent == Some(agent_id)
                    || !is_end
                    || has_later(|kind| matches!(kind, ChangeKind::Granted { .. })))
            {
                continue;
            }
            let agent_keys = self.agent_keys(agent_id)?;
            if matches!(kind, ChangeKind::Granted { .. } | ChangeKind::Claimed) {
                updates.extend(add_to_index(&agent_keys.held_locks, lock, ttl));
            }
            match kind {
                ChangeKind::Granted { last_wait, .. } => {
                    if let Some(type_index) = keys.type_index.as_ref().filter(|_| self.is_cluster()) {
                        updates.extend(add_to_index(type_index, lock, ttl));
                    }
                    if *last_wait && !queues_later() {
                        updates.push(remove_from_index(&agent_keys.awaited_locks, lock));
                    }
                }
                ChangeKind::HoldEnded { last_hold: true, .. } => {
                    updates.push(remove_from_index(&agent_keys.held_locks, lock));
                }
                ChangeKind::WaitEnded { last_wait: true, .. } if !queues_later() => {
                    updates.push(remove_from_index(&agent_keys.awaited_locks, lock));
                }
                _ => {}
            }
        }
        Ok(updates)
    }

    /// Adds locks to the indexes of their holders and types, or renews the entries. A concurrent release may already
    /// have removed them, so entries of locks that are no longer held are removed again.
    pub(super) async fn index_held_locks(&self, held: &[(LockName, Holder)]) -> Result<()> {
        let ttl = scripts::INDEX_TTL_MS;
        let (mut entries, mut checks) = (Vec::new(), Vec::with_capacity(held.len()));
        for (name, holder) in held {
            let keys = self.lock_keys(name)?;
            entries.extend(add_to_index(&self.agent_keys(holder.agent_id())?.held_locks, keys.lock(), ttl));
            let type_index = keys.type_index.iter();
            entries.extend(type_index.flat_map(|index| add_to_index(index, keys.lock(), ttl)));
            checks.push(command("HEXISTS", keys.lock(), format!("h:{}", encoding::holder_digest(holder))));
        }
        self.run_all(entries).await?;
        for ((name, holder), is_held) in held.iter().zip(self.query_all::<bool>(checks).await?) {
            if !is_held {
                self.unindex_lock(name, holder.agent_id()).await?;
            }
        }
        Ok(())
    }

    async fn unindex_lock(&self, name: &LockName, agent: &str) -> Result<()> {
        let (snapshot, keys) = (self.read_lock(name, 0).await?, self.lock_keys(name)?);
        let mut removals = Vec::new();
        if !snapshot.is_held_by(agent) {
            removals.push(remove_from_index(&self.agent_keys(agent)?.held_locks, keys.lock()));
        }
        if let Some(type_index) = keys.type_index.as_ref().filter(|_| snapshot.holds.is_empty()) {
            removals.push(remove_from_index(type_index, keys.lock()));
        }
        self.run_all(removals).await
    }

    /// Writes what must be in place before a lock is acquired or waited for: the name, if the key has a hash instead
    /// of it; on a cluster also the registry entry and the wait of the agent. A stale entry is harmless.
    pub(super) async fn announce_acquire(
        &self,
        name: &LockName,
        keys: &LockKeys,
        acquire: &Acquisition,
    ) -> Result<()> {
        let mut updates: Vec<_> = self.store_name(name, keys).into_iter().collect();
        if self.is_cluster() {
            if let Some(wait) = &acquire.wait {
                let index = &self.agent_keys(acquire.holder.agent_id())?.awaited_locks;
                updates.extend(add_to_index(index, keys.lock(), scripts::queue_ttl_ms(wait.timeout_ms)));
            }
            let due = self.clock.now().plus_ms(self.first_due_in_ms(acquire));
            self.add_to_registry(keys.lock(), due).await?;
        }
        self.run_all(updates).await
    }

    /// Stores the name of a lock whose key has a hash instead of it.
    fn store_name(&self, name: &LockName, keys: &LockKeys) -> Option<(RedisKey, Cmd)> {
        let names = &self.keys.lock_names;
        keys::has_hashed_name(name, keys)
            .then(|| command("HSET", names, (keys.lock().as_str(), name.as_str())))
    }

    /// Removes announcements that turned out to be wrong: on a cluster the wait, if no holder of the agent waits. Stores
    /// the name again, because the sweep may have deleted it before the lock was in the registry.
    pub(super) async fn finish_announcement(
        &self,
        name: &LockName,
        keys: &LockKeys,
        acquire: &Acquisition,
        reply: &CommandReply,
    ) -> Result<()> {
        if !reply.changes.is_empty() {
            self.run_all(self.store_name(name, keys).into_iter().collect()).await?;
        }
        let agent = acquire.holder.agent_id();
        if self.is_cluster()
            && acquire.wait.is_some()
            && !reply.is_waiting()
            && !self.query::<bool>("HEXISTS", keys.waiting(), format!("a:{agent}")).await?
        {
            let awaited = &self.agent_keys(agent)?.awaited_locks;
            self.run_all(vec![remove_from_index(awaited, keys.lock())]).await?;
        }
        Ok(())
    }

    /// The earliest time at which something can be due.
    fn first_due_in_ms(&self, acquire: &Acquisition) -> u64 {
        let limits = self.limits();
        let claim = limits.long_poll_claim_ms.min(limits.ticket_claim_ms).min(limits.server_timeout_ms);
        match &acquire.wait {
            Some(wait) => acquire.ttl_ms.min(claim).min(wait.timeout_ms),
            None if !acquire.claimed => acquire.ttl_ms.min(claim),
            None => acquire.ttl_ms,
        }
    }

    pub(super) async fn add_to_registry(&self, lock: &RedisKey, due: Moment) -> Result<()> {
        let args = [lock.as_str(), &registry_score(due)];
        self.call(&self.scripts.add_to_registry, &[&self.keys.registry], &args).await
    }
}

pub(super) fn add_to_index(index: &RedisKey, lock: &RedisKey, ttl_ms: u64) -> [(RedisKey, Cmd); 2] {
    [command("SADD", index, lock.as_str()), command("PEXPIRE", index, ttl_ms)]
}

pub(super) fn remove_from_index(index: &RedisKey, lock: &RedisKey) -> (RedisKey, Cmd) {
    command("SREM", index, lock.as_str())
}

/// A time as a score of the registry: Unix seconds.
pub(super) fn registry_score(moment: Moment) -> String {
    let micros = moment.micros();
    format!("{}.{:03}", micros / 1_000_000, micros / 1_000 % 1_000)
}
