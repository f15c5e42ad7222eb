//! Background maintenance of locks: ends leases and waits that are over, expires silent agents, finds missed
//! deadlocks and repairs indexes. Every server runs all of it; running it twice is harmless.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{Deadlock, EndReason, Holder, LockCommand, LockName, RequestKey, Waiter};
use ade_keyspace::RedisKey;
use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::command::ReportedChange;
use super::indexes::{add_to_index, registry_score, remove_from_index};
use super::{Inner, keys, locked, reply, scripts};
use crate::coordination::{CoordinationError, LockCounts};

/// Locks of the registry that are visited concurrently.
const BATCH: usize = 100;
/// Per sweep; the rest is due at the next one.
const MAX_BATCHES: usize = 20;
/// Delay before a failed lock is visited again.
const RETRY_DELAY_MS: u64 = 1_000;
/// On a cluster an idle lock leaves the registry only after a second visit. Longer than a call can take.
const IDLE_RECHECK_MS: u64 = 5_000;
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// How often the waiters of one lock are searched for missed deadlocks, and its indexes repaired.
const INSPECT_INTERVAL: Duration = Duration::from_secs(5);
/// Agents whose waits one inspection searches.
const MAX_SEARCHED_AGENTS: usize = 20;
/// How long an agent's waits are not searched again. The key schema defines this TTL.
const DEADLOCK_CHECK_TTL_SECONDS: u64 = 30;
/// How often locks with recent heartbeats are checked against the registry.
const REGISTRY_REPAIR_INTERVAL: Duration = Duration::from_secs(10);
/// Idle time after which an agent that was only named is removed.
const NAMED_AGENT_TTL_MS: u64 = 86_400_000;

/// What this server did last, and what it still has to do.
#[derive(Default)]
pub(super) struct MaintenanceState {
    last_housekeeping: Option<Instant>,
    last_inspected: HashMap<LockName, Instant>,
    /// Locks with heartbeats since the last registry repair, with their holders.
    pub(super) renewed: HashSet<(LockName, Holder)>,
    last_registry_repair: Option<Instant>,
    name_scan_cursor: String,
    pub(super) deferred: Vec<DeferredWork>,
    /// Deadlocks resolved by a call that does not return them; the next sweep returns them.
    pub(super) unreported_deadlocks: Vec<Deadlock>,
    pub(super) cached_counts: Option<(LockCounts, Instant)>,
    /// The last error that was logged.
    last_failure: Option<String>,
}

/// The score of a lock that was idle at its last visit. It has a tenth of a millisecond, which no other score has, so
/// every server recognises it.
fn idle_score(next_visit: Moment) -> String {
    registry_score(next_visit) + "5"
}

fn is_idle_score(score: &str) -> bool {
    let tenths = score.parse::<f64>().map_or(0.0, |score| (score * 10_000.0).round() % 10.0);
    (tenths - 5.0).abs() < 0.5
}

/// Work for a background task.
pub(super) enum DeferredWork {
    Inspect(LockName),
    FindDeadlocks(Holder, LockName),
}

fn is_due(last: Option<Instant>, interval: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= interval)
}

impl Inner {
    pub(super) async fn sweep(&self) -> Result<Vec<Deadlock>, CoordinationError> {
        self.notifications.prune();
        if is_due(locked(&self.maintenance).last_housekeeping, HOUSEKEEPING_INTERVAL) {
            locked(&self.maintenance).last_housekeeping = Some(Instant::now());
            self.run_housekeeping().await;
        }
        for _ in 0..MAX_BATCHES {
            let due = self.due_locks().await?;
            let visits =
                due.iter().map(|(key, score, name)| self.visit_or_postpone(key, score, name.as_ref()));
            let failed: Vec<CoordinationError> = join_all(visits).await.into_iter().flatten().collect();
            self.log_failure(&failed);
            if due.len() < BATCH {
                break;
            }
        }
        Ok(std::mem::take(&mut locked(&self.maintenance).unreported_deadlocks))
    }

    /// Logs a repeated failure once.
    fn log_failure(&self, failed: &[CoordinationError]) {
        let current = failed.first().map(ToString::to_string);
        let mut state = locked(&self.maintenance);
        if let Some(error) = current.as_ref().filter(|_| current != state.last_failure) {
            tracing::warn!(locks = failed.len(), %error, "cannot sweep some locks; retrying every second");
        }
        // Postponed locks are not due in every sweep, so success does not clear it.
        if current.is_some() {
            state.last_failure = current;
        }
    }

    /// Runs in a task of its own: a long search must not delay the end of leases.
    pub(super) async fn run_deferred_work(&self) {
        let deferred = std::mem::take(&mut locked(&self.maintenance).deferred);
        for work in deferred {
            let result = match &work {
                DeferredWork::Inspect(name) => self.inspect_lock(name).await,
                DeferredWork::FindDeadlocks(holder, name) => self.resolve_and_report(holder, name).await,
            };
            if let Err(error) = result {
                tracing::debug!(%error, "cannot search for deadlocks; retrying later");
            }
        }
    }

    /// Postpones a lock that cannot be visited, so that it does not block those behind it.
    async fn visit_or_postpone(
        &self,
        key: &str,
        score: &str,
        name: Option<&LockName>,
    ) -> Option<CoordinationError> {
        let error = self.visit_lock(key, score, name).await.err()?;
        let retry_at = registry_score(self.clock.now().plus_ms(RETRY_DELAY_MS));
        if let Err(error) = self.compare_and_set_score(&self.keys.registry, key, score, &retry_at).await {
            tracing::debug!(%error, "cannot postpone the visit of a lock");
        }
        Some(error)
    }

    async fn due_locks(&self) -> Result<Vec<(String, String, Option<LockName>)>, CoordinationError> {
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(self.keys.registry.as_str()).arg("-inf").arg(registry_score(self.clock.now()));
        range.arg("WITHSCORES").arg("LIMIT").arg(0).arg(BATCH);
        let found = reply::texts(&self.query(&self.keys.registry, range).await?)?;
        let (pairs, _) = found.as_chunks::<2>();
        let keys: Vec<String> = pairs.iter().map(|[key, _]| key.clone()).collect();
        let mut names: HashMap<String, LockName> = self.resolve_names(keys).await?.into_iter().collect();
        Ok(pairs.iter().map(|[key, score]| (key.clone(), score.clone(), names.remove(key))).collect())
    }

    async fn visit_lock(
        &self,
        key: &str,
        score: &str,
        name: Option<&LockName>,
    ) -> Result<(), CoordinationError> {
        let Some(name) = name else {
            // A key without a name cannot be swept.
            self.compare_and_set_score(&self.keys.registry, key, score, "").await?;
            return Ok(());
        };
        let reply = self.apply(name, &LockCommand::Sweep).await?;
        let Some(next_due) = &reply.next_due else {
            return self.remove_idle_lock(key, score, name).await;
        };
        if self.is_cluster() {
            self.compare_and_set_score(&self.keys.registry, key, score, next_due).await?;
        }
        for change in &reply.changes {
            if let ReportedChange::UpgradeLost { holder } = change {
                locked(&self.maintenance)
                    .deferred
                    .push(DeferredWork::FindDeadlocks(holder.clone(), name.clone()));
            }
        }
        let mut state = locked(&self.maintenance);
        // A lock without waiters is not part of a deadlock, and heartbeats renew its indexes.
        if reply.queue_length > 0 && is_due(state.last_inspected.get(name).copied(), INSPECT_INTERVAL) {
            state.last_inspected.insert(name.clone(), Instant::now());
            state.deferred.push(DeferredWork::Inspect(name.clone()));
        }
        Ok(())
    }

    /// Removes an idle lock from the registry. On a cluster a request may be about to acquire it and has already
    /// registered it, so it must be idle at two visits with an unchanged entry in between.
    async fn remove_idle_lock(
        &self,
        key: &str,
        score: &str,
        name: &LockName,
    ) -> Result<(), CoordinationError> {
        if self.is_cluster() {
            if !is_idle_score(score) {
                let next_visit = self.clock.now().plus_ms(IDLE_RECHECK_MS);
                return self
                    .compare_and_set_score(&self.keys.registry, key, score, &idle_score(next_visit))
                    .await;
            }
            self.compare_and_set_score(&self.keys.registry, key, score, "").await?;
        }
        self.forget_lock(name).await
    }

    /// Resolves the deadlocks through a holder and reports them even if a later step fails.
    async fn resolve_and_report(&self, holder: &Holder, name: &LockName) -> Result<(), CoordinationError> {
        let resolved = self.resolve_deadlocks(holder, name, false).await?;
        locked(&self.maintenance).unreported_deadlocks.extend(resolved);
        Ok(())
    }

    /// Removes what remains of a lock without holders and waiters.
    async fn forget_lock(&self, name: &LockName) -> Result<(), CoordinationError> {
        locked(&self.maintenance).last_inspected.remove(name);
        let keys = self.lock_keys(name)?;
        let mut removals = Vec::new();
        if let Some(type_index) = &keys.type_index {
            removals.push(remove_from_index(type_index, keys.lock()));
        }
        if keys::has_hashed_name(name, &keys) {
            let mut delete = redis::cmd("HDEL");
            delete.arg(self.keys.lock_names.as_str()).arg(keys.lock().as_str());
            removals.push((self.keys.lock_names.clone(), delete));
        }
        self.query_all(removals).await.map(drop)
    }

    /// Repairs the indexes of a lock, and searches the waits of agents that were not searched recently.
    async fn inspect_lock(&self, name: &LockName) -> Result<(), CoordinationError> {
        let snapshot = self.read_lock(name, usize::MAX).await?;
        let keys = self.lock_keys(name)?;
        // One holder per agent suffices.
        let by_agent: BTreeMap<&str, &Holder> =
            snapshot.holds.iter().map(|hold| (hold.holder.agent_id(), &hold.holder)).collect();
        let held: Vec<(LockName, Holder)> =
            by_agent.into_values().map(|holder| (name.clone(), holder.clone())).collect();
        self.index_held_locks(&held).await?;
        let mut repairs = Vec::new();
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for waiter in &snapshot.waiters {
            let ttl = scripts::MIN_QUEUE_TTL_MS.max(waiter.deadline.ms_since(snapshot.now) + 5_000);
            let agent = waiter.holder.agent_id();
            if waiting.insert(agent) {
                repairs.extend(add_to_index(&self.agent_keys(agent)?.awaited_locks, keys.lock(), ttl));
            }
        }
        self.query_all(repairs).await?;
        if !self.limits().deadlock_detection {
            return Ok(());
        }
        let mut searched = 0;
        let agents: Vec<&str> = waiting.into_iter().collect();
        for agent in self.holders_blocking_others(&agents).await? {
            if searched >= MAX_SEARCHED_AGENTS {
                break;
            }
            if self.claim_check(agent, snapshot.now).await? {
                searched += 1;
                self.resolve_reachable_deadlocks(agent, snapshot.now).await?;
            }
        }
        Ok(())
    }

    /// Resolves every deadlock that is reachable from an agent's waits. The agents met on the way are searched by
    /// this too, and need no search of their own soon.
    async fn resolve_reachable_deadlocks(&self, agent: &str, now: Moment) -> Result<(), CoordinationError> {
        let (table, agents, is_complete) = self.reachable_from(agent).await?;
        let mut resolved = Vec::new();
        let is_clear = self.resolve_suspected(&table, &mut resolved).await;
        locked(&self.maintenance).unreported_deadlocks.extend(resolved);
        if is_clear? && is_complete {
            let stamps = agents.iter().map(|agent| self.check_stamp(agent, now)).collect::<Result<_, _>>()?;
            self.query_all(stamps).await?;
        }
        Ok(())
    }

    /// The agents that hold a lock which others wait for. Every deadlock involves such an agent: an agent that only
    /// waits blocks only those behind it, which wait for the same holders.
    async fn holders_blocking_others<'a>(
        &self,
        agents: &[&'a str],
    ) -> Result<Vec<&'a str>, CoordinationError> {
        let mut found = Vec::new();
        for batch in agents.chunks(BATCH) {
            let held = try_join_all(batch.iter().map(|agent| async {
                let index = self.agent_keys(agent)?.held_locks.clone();
                self.index_members(&index).await
            }))
            .await?;
            let names: BTreeSet<LockName> = held.iter().flatten().cloned().collect();
            let names: Vec<LockName> = names.into_iter().collect();
            let waited_for: HashSet<LockName> = self.with_waiters(&names).await?.into_iter().collect();
            let is_blocking = |held: &[LockName]| held.iter().any(|name| waited_for.contains(name));
            let blocking = batch.iter().zip(&held).filter(|(_, held)| is_blocking(held));
            found.extend(blocking.map(|(agent, _)| *agent));
        }
        Ok(found)
    }

    /// Returns whether this server may search the agent's waits now, because none did so recently.
    async fn claim_check(&self, agent: &str, now: Moment) -> Result<bool, CoordinationError> {
        let (key, set) = self.check_stamp(agent, now)?;
        Ok(self.query(&key, set).await? == Value::Okay)
    }

    fn check_stamp(&self, agent: &str, now: Moment) -> Result<(RedisKey, Cmd), CoordinationError> {
        let key = self.agent_keys(agent)?.deadlock_check.clone();
        let mut set = redis::cmd("SET");
        set.arg(key.as_str()).arg(now.to_string()).arg("NX").arg("EX").arg(DEADLOCK_CHECK_TTL_SECONDS);
        Ok((key, set))
    }

    async fn compare_and_set_score(
        &self,
        sorted_set: &RedisKey,
        member: &str,
        expected: &str,
        new: &str,
    ) -> Result<(), CoordinationError> {
        let args = [member.as_bytes(), expected.as_bytes(), new.as_bytes()];
        let keys = std::slice::from_ref(sorted_set);
        self.client.call(&self.scripts.compare_and_set_score, keys, &args).await.map(drop)
    }

    /// The steps are independent: one that fails is repeated next time.
    async fn run_housekeeping(&self) {
        locked(&self.maintenance).last_inspected.retain(|_, at| at.elapsed() < 2 * INSPECT_INTERVAL);
        let is_repair_due = is_due(locked(&self.maintenance).last_registry_repair, REGISTRY_REPAIR_INTERVAL);
        let results = [
            self.sync_clock().await,
            self.refresh_victim_ages().await,
            self.expire_silent_agents().await,
            self.remove_idle_agents().await,
            self.prune_lock_names().await,
            if is_repair_due { self.repair_registry().await } else { Ok(()) },
        ];
        if is_repair_due {
            locked(&self.maintenance).last_registry_repair = Some(Instant::now());
        }
        if let Some(error) = results.into_iter().find_map(Result::err) {
            tracing::debug!(%error, "lock housekeeping is incomplete; continuing in the next round");
        }
    }

    /// Adds held locks to the registry again if it lost them, for example with a part of the cluster. On a cluster it
    /// also renews the indexes; elsewhere every heartbeat does so.
    async fn repair_registry(&self) -> Result<(), CoordinationError> {
        let renewed: Vec<(LockName, Holder)> =
            std::mem::take(&mut locked(&self.maintenance).renewed).into_iter().collect();
        for batch in renewed.chunks(BATCH) {
            if self.is_cluster() {
                self.index_held_locks(batch).await?;
            }
            let mut lock_keys = Vec::with_capacity(batch.len());
            let mut get = redis::cmd("ZMSCORE");
            get.arg(self.keys.registry.as_str());
            for (name, _) in batch {
                let keys = self.lock_keys(name)?;
                get.arg(keys.lock().as_str());
                lock_keys.push(keys.lock().clone());
            }
            let scores = self.query(&self.keys.registry, get).await?;
            let scores = reply::array(&scores)?;
            for (key, _) in lock_keys.iter().zip(scores).filter(|(_, score)| **score == Value::Nil) {
                self.add_to_registry(key, self.clock.now()).await?;
            }
        }
        Ok(())
    }

    /// Cancels the tickets of agents without recent heartbeats and marks the agents offline.
    async fn expire_silent_agents(&self) -> Result<(), CoordinationError> {
        let now = self.clock.now();
        let limit = (now.micros() / 1000).saturating_sub(OFFLINE_AFTER_MS);
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range
            .arg(self.keys.alive_agents.as_str())
            .arg("-inf")
            .arg(limit)
            .arg("WITHSCORES")
            .arg("LIMIT")
            .arg(0)
            .arg(BATCH);
        let silent = reply::texts(&self.query(&self.keys.alive_agents, range).await?)?;
        for [agent, score] in silent.as_chunks::<2>().0 {
            // An agent whose locks are unavailable must not keep the others from being expired.
            if let Err(error) = self.expire_agent(agent, score).await {
                tracing::warn!(agent, %error, "cannot cancel the tickets of a silent agent; retrying later");
            }
        }
        Ok(())
    }

    async fn expire_agent(&self, agent: &str, score: &str) -> Result<(), CoordinationError> {
        for (name, holder, request) in self.tickets_of(agent).await? {
            let command = LockCommand::Cancel {
                holder,
                request,
                reason: EndReason::AgentOffline,
                include_claimed: false,
            };
            let reply = self.run_command(&name, &command).await?;
            locked(&self.maintenance).unreported_deadlocks.extend(reply.deadlocks);
        }
        let keys = self.agent_keys(agent)?;
        let agent_keys = [keys.profile.clone(), keys.capacity.clone()];
        self.client.call(&self.scripts.mark_agent_offline, &agent_keys, &[]).await?;
        self.compare_and_set_score(&self.keys.alive_agents, agent, score, "").await
    }

    /// The waits of an agent that no server holds open.
    async fn tickets_of(
        &self,
        agent: &str,
    ) -> Result<Vec<(LockName, Holder, RequestKey)>, CoordinationError> {
        let waits = self.waits_of(agent).await?.into_iter();
        let unserved = waits.filter(|(_, _, waiter)| waiter.served_by.is_none());
        Ok(unserved.map(|(name, holder, waiter)| (name, holder, waiter.request)).collect())
    }

    async fn waits_of(&self, agent: &str) -> Result<Vec<(LockName, Holder, Waiter)>, CoordinationError> {
        let names = self.index_members(&self.agent_keys(agent)?.awaited_locks).await?;
        let mut waits = Vec::new();
        for (name, snapshot) in names.iter().zip(self.read_locks(&names, usize::MAX).await?) {
            let agent_waiters =
                snapshot.waiters.into_iter().filter(|waiter| waiter.holder.agent_id() == agent);
            waits.extend(agent_waiters.map(|waiter| (name.clone(), waiter.holder.clone(), waiter)));
        }
        Ok(waits)
    }

    /// Checks one page of the stored names per call. Outside a cluster a lock leaves the registry with its last
    /// holder, so no later visit removes its name.
    async fn prune_lock_names(&self) -> Result<(), CoordinationError> {
        if self.is_cluster() {
            return Ok(());
        }
        let cursor = locked(&self.maintenance).name_scan_cursor.clone();
        let mut scan = redis::cmd("HSCAN");
        scan.arg(self.keys.lock_names.as_str()).arg(if cursor.is_empty() { "0" } else { &cursor });
        scan.arg("COUNT").arg(BATCH);
        let page = reply::texts(&self.query(&self.keys.lock_names, scan).await?)?;
        let Some((next, fields)) = page.split_first() else { return Ok(()) };
        next.clone_into(&mut locked(&self.maintenance).name_scan_cursor);
        let locks: Vec<&[u8]> = fields.as_chunks::<2>().0.iter().map(|[lock, _]| lock.as_bytes()).collect();
        if !locks.is_empty() {
            let keys = [self.keys.lock_names.clone(), self.keys.registry.clone()];
            self.client.call(&self.scripts.prune_lock_names, &keys, &locks).await?;
        }
        Ok(())
    }

    async fn remove_idle_agents(&self) -> Result<(), CoordinationError> {
        let limit = (self.clock.now().micros() / 1000).saturating_sub(NAMED_AGENT_TTL_MS);
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range.arg(self.keys.named_agents.as_str()).arg("-inf").arg(limit).arg("LIMIT").arg(0).arg(BATCH);
        for agent in reply::texts(&self.query(&self.keys.named_agents, range).await?)? {
            self.remove_agent(&agent).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_scores_of_idle_locks() {
        let now = Moment::from_micros(1_794_764_406_206_898);
        assert_eq!(idle_score(now), "1794764406.2065");
        assert!(is_idle_score(&idle_score(now)) && is_idle_score("1794764406.2065001"));
        assert!(
            !is_idle_score(&registry_score(now))
                && !is_idle_score("1794764406.205")
                && !is_idle_score("1794764406")
                && !is_idle_score("")
        );
    }
}
