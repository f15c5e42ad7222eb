//! Data about a lock outside its slot: the registry with the time of the next visit, the indexes by agent and by
//! type, and names that are too long for a key. Outside a cluster the script writes most of it itself.
//!
//! Nothing here decides who holds a lock. A stale entry is harmless; the sweep restores a missing one.

use ade_domain::Moment;
use ade_domain::lock::{AcquireStatus, Acquisition, Holder, LockName, LockOutcome};
use ade_keyspace::RedisKey;
use redis::Cmd;

use super::command::{CommandReply, ReportedChange};
use super::keys::{self, AgentKeys, LockKeys};
use super::{Inner, encoding, reply, scripts};
use crate::coordination::CoordinationError;

impl Inner {
    /// Index updates that the script could not make: all on a cluster, otherwise those of agents other than the
    /// caller's.
    pub(super) fn index_updates(
        &self,
        keys: &LockKeys,
        agent: Option<&str>,
        changes: &[ReportedChange],
    ) -> Result<Vec<(RedisKey, Cmd)>, CoordinationError> {
        let mut updates = Vec::new();
        let (lock, ttl) = (keys.lock(), scripts::index_ttl_ms(self.limits()));
        for (index, change) in changes.iter().enumerate() {
            let later = changes.get(index + 1..).unwrap_or_default();
            let (ReportedChange::Granted { holder, .. }
            | ReportedChange::Claimed { holder }
            | ReportedChange::HoldEnded { holder, .. }
            | ReportedChange::WaitEnded { holder, .. }) = change
            else {
                continue;
            };
            if !self.is_cluster() && agent == Some(holder.agent_id()) {
                continue;
            }
            let agent_keys = self.agent_keys(holder.agent_id())?;
            match change {
                ReportedChange::Granted { last_wait, .. } => {
                    updates.extend(add_to_index(&agent_keys.held_locks, lock, ttl));
                    if let Some(type_index) = keys.type_index.as_ref().filter(|_| self.is_cluster()) {
                        updates.extend(add_to_index(type_index, lock, ttl));
                    }
                    if *last_wait && !queues_later(later, holder) {
                        updates.push(remove_from_index(&agent_keys.awaited_locks, lock));
                    }
                }
                ReportedChange::Claimed { .. } => {
                    updates.extend(add_to_index(&agent_keys.held_locks, lock, ttl));
                }
                ReportedChange::HoldEnded { last_hold: true, .. } => {
                    updates.push(remove_from_index(&agent_keys.held_locks, lock));
                }
                ReportedChange::WaitEnded { last_wait: true, .. } if !queues_later(later, holder) => {
                    updates.push(remove_from_index(&agent_keys.awaited_locks, lock));
                }
                _ => {}
            }
        }
        Ok(updates)
    }

    /// Adds locks to the indexes of their holders and types, or renews the entries. A concurrent release may already
    /// have removed them, so entries of locks that are no longer held are removed again.
    pub(super) async fn index_held_locks(
        &self,
        held: &[(LockName, Holder)],
    ) -> Result<(), CoordinationError> {
        let ttl = scripts::index_ttl_ms(self.limits());
        let (mut entries, mut checks) = (Vec::new(), Vec::with_capacity(held.len()));
        for (name, holder) in held {
            let keys = self.lock_keys(name)?;
            entries.extend(add_to_index(&self.agent_keys(holder.agent_id())?.held_locks, keys.lock(), ttl));
            entries.extend(
                keys.type_index.iter().flat_map(|type_index| add_to_index(type_index, keys.lock(), ttl)),
            );
            let mut exists = redis::cmd("HEXISTS");
            exists.arg(keys.lock().as_str()).arg(format!("h:{}", encoding::holder_digest(holder)));
            checks.push((keys.lock().clone(), exists));
        }
        self.query_all(entries).await?;
        for ((name, holder), is_held) in held.iter().zip(self.query_all(checks).await?) {
            if reply::number(&is_held)? == 0 {
                self.unindex_lock(name, holder.agent_id()).await?;
            }
        }
        Ok(())
    }

    async fn unindex_lock(&self, name: &LockName, agent: &str) -> Result<(), CoordinationError> {
        let (snapshot, keys) = (self.read_lock(name, 0).await?, self.lock_keys(name)?);
        let mut removals = Vec::new();
        if !snapshot.is_held_by(agent) {
            removals.push(remove_from_index(&self.agent_keys(agent)?.held_locks, keys.lock()));
        }
        if let Some(type_index) = keys.type_index.as_ref().filter(|_| snapshot.holds.is_empty()) {
            removals.push(remove_from_index(type_index, keys.lock()));
        }
        self.query_all(removals).await.map(drop)
    }

    /// Writes what must be in place before a lock is acquired or waited for: the name, if the key has a hash instead
    /// of it; on a cluster also the registry entry and the wait of the agent. A stale entry is harmless.
    pub(super) async fn announce_acquire(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        acquire: &Acquisition,
    ) -> Result<(), CoordinationError> {
        let mut updates = Vec::new();
        if keys::has_hashed_name(name, keys) {
            updates.push(self.store_name(name, keys));
        }
        if self.is_cluster() {
            if let (Some(wait), Some(agent)) = (&acquire.wait, agent) {
                updates.extend(add_to_index(
                    &agent.awaited_locks,
                    keys.lock(),
                    scripts::MIN_QUEUE_TTL_MS.max(wait.timeout_ms + 5_000),
                ));
            }
            let due = self.clock.now().plus_ms(self.first_due_in_ms(acquire));
            self.add_to_registry(keys.lock(), due).await?;
        }
        if !updates.is_empty() {
            for result in self.client.query_all(updates).await {
                result?;
            }
        }
        Ok(())
    }

    fn store_name(&self, name: &LockName, keys: &LockKeys) -> (RedisKey, Cmd) {
        let mut store = redis::cmd("HSET");
        store.arg(self.keys.lock_names.as_str()).arg(keys.lock().as_str()).arg(name.as_str());
        (self.keys.lock_names.clone(), store)
    }

    /// Undoes announcements that did not come true: on a cluster the wait, if no holder of the agent waits. Stores
    /// the name again, because the sweep may have deleted it before the lock was in the registry.
    pub(super) async fn finish_announcement(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        acquire: &Acquisition,
        reply: &CommandReply,
    ) -> Result<(), CoordinationError> {
        if keys::has_hashed_name(name, keys) && !reply.changes.is_empty() {
            let (key, store) = self.store_name(name, keys);
            self.query(&key, store).await?;
        }
        let is_waiting = matches!(reply.outcome, LockOutcome::Status(AcquireStatus::Waiting { .. }));
        let (true, Some(agent), Some(_), false) = (self.is_cluster(), agent, &acquire.wait, is_waiting)
        else {
            return Ok(());
        };
        let mut exists = redis::cmd("HEXISTS");
        exists.arg(keys.waiting().as_str()).arg(format!("a:{}", acquire.holder.agent_id()));
        let has_waiters = self.query(keys.waiting(), exists).await?;
        if reply::number(&has_waiters)? == 0 {
            let (key, remove) = remove_from_index(&agent.awaited_locks, keys.lock());
            self.query(&key, remove).await?;
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

    pub(super) async fn add_to_registry(
        &self,
        lock: &RedisKey,
        due: Moment,
    ) -> Result<(), CoordinationError> {
        let args = [lock.as_str().to_owned(), registry_score(due)];
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        self.client
            .call(&self.scripts.add_to_registry, std::slice::from_ref(&self.keys.registry), &args)
            .await
            .map(drop)
    }
}

/// Whether a holder of the same agent queues later in the same step.
fn queues_later(later: &[ReportedChange], holder: &Holder) -> bool {
    later
        .iter()
        .any(|change| matches!(change, ReportedChange::Queued { holder: queued } if queued.agent_id() == holder.agent_id()))
}

pub(super) fn add_to_index(index: &RedisKey, lock: &RedisKey, ttl_ms: u64) -> [(RedisKey, Cmd); 2] {
    let (mut add, mut expire) = (redis::cmd("SADD"), redis::cmd("PEXPIRE"));
    add.arg(index.as_str()).arg(lock.as_str());
    expire.arg(index.as_str()).arg(ttl_ms);
    [(index.clone(), add), (index.clone(), expire)]
}

pub(super) fn remove_from_index(index: &RedisKey, lock: &RedisKey) -> (RedisKey, Cmd) {
    let mut remove = redis::cmd("SREM");
    remove.arg(index.as_str()).arg(lock.as_str());
    (index.clone(), remove)
}

/// A time as a score of the registry: Unix seconds.
pub(super) fn registry_score(moment: Moment) -> String {
    let micros = moment.micros();
    format!("{}.{:03}", micros / 1_000_000, micros / 1_000 % 1_000)
}
