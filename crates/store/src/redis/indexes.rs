//! What lies in other slots than the lock: the registry, which says when a lock must be looked at, the indexes by agent and by
//! type, and the names that are too long for a key. Outside a cluster the function writes most of them itself.
//!
//! Nothing here decides who holds a lock. An entry too many does no harm; one too few is found again by the sweep.

use ade_domain::Moment;
use ade_domain::lock::{Acquire, Holder, LockName, Outcome, Standing};
use ade_keyspace::RedisKey;
use redis::Cmd;

use super::keys::{self, AgentKeys, LockKeys};
use super::step::{self, Changed, Said};
use super::{Inner, encoding, foreign};
use crate::coordination::CoordinationError;

impl Inner {
    /// What the function left to us: on a cluster every index, elsewhere those of agents other than the caller's.
    pub(super) fn index_updates(
        &self,
        keys: &LockKeys,
        agent: Option<&str>,
        changed: &[Changed],
    ) -> Result<Vec<(RedisKey, Cmd)>, CoordinationError> {
        let mut updates = Vec::new();
        let (lock, ttl) = (keys.lock(), step::index_ms(self.rules()));
        for (number, change) in changed.iter().enumerate() {
            let later = changed.get(number + 1..).unwrap_or_default();
            let (Changed::Granted { holder, .. }
            | Changed::Claimed { holder }
            | Changed::Freed { holder, .. }
            | Changed::Left { holder, .. }) = change
            else {
                continue;
            };
            if !self.in_cluster() && agent == Some(holder.agent_id()) {
                continue;
            }
            let of = self.agent_keys(holder.agent_id())?;
            match change {
                Changed::Granted { last_wait, .. } => {
                    updates.extend(add_to_index(&of.by_agent, lock, ttl));
                    if let Some(by_type) = keys.by_type.as_ref().filter(|_| self.in_cluster()) {
                        updates.extend(add_to_index(by_type, lock, ttl));
                    }
                    if *last_wait && !queues_again(later, holder) {
                        updates.push(remove_from_index(&of.waitfor, lock));
                    }
                }
                Changed::Claimed { .. } => updates.extend(add_to_index(&of.by_agent, lock, ttl)),
                Changed::Freed { last_hold: true, .. } => updates.push(remove_from_index(&of.by_agent, lock)),
                Changed::Left { last_wait: true, .. } if !queues_again(later, holder) => {
                    updates.push(remove_from_index(&of.waitfor, lock));
                }
                _ => {}
            }
        }
        Ok(updates)
    }

    /// Agents are found to hold these locks for as long again, and the locks by their types. Who gives one back at the same
    /// time may have been first: what is not held any more leaves its index again.
    pub(super) async fn list_held(&self, held: &[(LockName, Holder)]) -> Result<(), CoordinationError> {
        let ttl = step::index_ms(self.rules());
        let (mut entries, mut questions) = (Vec::new(), Vec::with_capacity(held.len()));
        for (name, holder) in held {
            let keys = self.lock_keys(name)?;
            entries.extend(add_to_index(&self.agent_keys(holder.agent_id())?.by_agent, keys.lock(), ttl));
            entries.extend(keys.by_type.iter().flat_map(|by_type| add_to_index(by_type, keys.lock(), ttl)));
            let mut ask = redis::cmd("HEXISTS");
            ask.arg(keys.lock().as_str()).arg(format!("h:{}", encoding::who(holder)));
            questions.push((keys.lock().clone(), ask));
        }
        self.ask_each(entries).await?;
        for ((name, holder), answer) in held.iter().zip(self.ask_each(questions).await?) {
            if step::number(&answer).map_err(foreign)? == 0 {
                self.unlist(name, holder.agent_id()).await?;
            }
        }
        Ok(())
    }

    async fn unlist(&self, name: &LockName, agent: &str) -> Result<(), CoordinationError> {
        let (seen, keys) = (self.see(name, 0).await?, self.lock_keys(name)?);
        let mut gone = Vec::new();
        if !seen.is_held_by(agent) {
            gone.push(remove_from_index(&self.agent_keys(agent)?.by_agent, keys.lock()));
        }
        if let Some(by_type) = keys.by_type.as_ref().filter(|_| seen.holds.is_empty()) {
            gone.push(remove_from_index(by_type, keys.lock()));
        }
        self.ask_each(gone).await.map(drop)
    }

    /// What must be known before a lock is taken or waited for: on a cluster that the sweep has to look at it, and that
    /// its holder waits for it; everywhere its name, if its key does not tell it. A stale entry does no harm.
    pub(super) async fn announce(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        wish: &Acquire,
    ) -> Result<(), CoordinationError> {
        let mut first = Vec::new();
        if keys::is_long(name, keys) {
            first.push(self.remember_name(name, keys));
        }
        if self.in_cluster() {
            if let (Some(wait), Some(agent)) = (&wish.wait, agent) {
                first.extend(add_to_index(&agent.waitfor, keys.lock(), step::QUEUE_MS.max(wait.ms + 5_000)));
            }
            let due = self.clock.now().plus_ms(self.first_look_ms(wish));
            self.enlist(keys.lock(), due).await?;
        }
        if !first.is_empty() {
            for answer in self.link.ask_all(first).await {
                answer?;
            }
        }
        Ok(())
    }

    fn remember_name(&self, name: &LockName, keys: &LockKeys) -> (RedisKey, Cmd) {
        let mut remember = redis::cmd("HSET");
        remember.arg(self.keys.names.as_str()).arg(keys.lock().as_str()).arg(name.as_str());
        (self.keys.names.clone(), remember)
    }

    /// What was announced and did not come about is taken back: on a cluster that the agent waits, if none of its holders
    /// does. A name is written again, because the sweep may have forgotten it before the lock was in the registry.
    pub(super) async fn announced(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        wish: &Acquire,
        said: &Said,
    ) -> Result<(), CoordinationError> {
        if keys::is_long(name, keys) && !said.changed.is_empty() {
            let (key, remember) = self.remember_name(name, keys);
            self.ask(&key, remember).await?;
        }
        let waits = matches!(said.outcome, Outcome::Standing(Standing::Waiting { .. }));
        let (true, Some(agent), Some(_), false) = (self.in_cluster(), agent, &wish.wait, waits) else {
            return Ok(());
        };
        let mut others = redis::cmd("HEXISTS");
        others.arg(keys.waiting().as_str()).arg(format!("a:{}", wish.holder.agent_id()));
        let others = self.ask(keys.waiting(), others).await?;
        if step::number(&others).map_err(foreign)? == 0 {
            let (key, remove) = remove_from_index(&agent.waitfor, keys.lock());
            self.ask(&key, remove).await?;
        }
        Ok(())
    }

    /// When something may be due at the earliest.
    fn first_look_ms(&self, wish: &Acquire) -> u64 {
        let rules = self.rules();
        let claim = rules.served_claim_ms.min(rules.ticket_claim_ms).min(rules.server_silence_ms);
        match &wish.wait {
            Some(wait) => wish.ttl_ms.min(claim).min(wait.ms),
            None if !wish.claimed => wish.ttl_ms.min(claim),
            None => wish.ttl_ms,
        }
    }

    pub(super) async fn enlist(&self, lock: &RedisKey, due: Moment) -> Result<(), CoordinationError> {
        let args = [lock.as_str().to_owned(), seconds(due)];
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        self.link.call(&self.scripts.enlist, std::slice::from_ref(&self.keys.registry), &args).await.map(drop)
    }
}

/// Whether somebody of the same agent queued later in the same step.
fn queues_again(later: &[Changed], holder: &Holder) -> bool {
    later
        .iter()
        .any(|change| matches!(change, Changed::Queued { holder: of } if of.agent_id() == holder.agent_id()))
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

/// A moment as a score of the registry.
pub(super) fn seconds(moment: Moment) -> String {
    let micros = moment.micros();
    format!("{}.{:03}", micros / 1_000_000, micros / 1_000 % 1_000)
}
