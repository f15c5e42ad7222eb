//! Background maintenance of locks: ends leases and waits that are over, expires silent agents, finds missed
//! deadlocks and repairs indexes. Every server runs all of it; running it twice is harmless.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{Deadlock, EndReason, Holder, LockCommand, LockName, Waiter};
use ade_keyspace::RedisKey;
use futures_util::future::{join_all, try_join_all};
use redis::Cmd;
use tokio::time::Instant;

use super::command::ChangeKind;
use super::indexes::{add_to_index, registry_score, remove_from_index};
use super::name_indexes::{NameCursor, NameIndex};
use super::query::command;
use super::{Inner, Result, keys, locked, scripts};
use crate::coordination::CoordinationError;

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
/// How often the registry and the indexes by name are repaired, and the waiters counted.
const REPAIR_INTERVAL: Duration = Duration::from_secs(5);
/// Idle time after which an agent that was only named is removed.
const NAMED_AGENT_TTL_MS: u64 = 86_400_000;

/// What this server did last, and what it still has to do.
#[derive(Default)]
pub(super) struct MaintenanceState {
    /// Whether the last sweep did not reach Redis.
    has_failed: bool,
    /// After an outage agents look silent, because their heartbeats did not get through: until then none is expired.
    agents_expire_after: Option<Instant>,
    last_housekeeping: Option<Instant>,
    last_inspected: HashMap<LockName, Instant>,
    /// Locks with heartbeats since the last repair, with their holders.
    pub(super) renewed: HashSet<(LockName, Holder)>,
    last_repair: Option<Instant>,
    name_scan_cursor: u64,
    pub(super) deferred: Vec<DeferredWork>,
    /// Deadlocks resolved by a call that does not return them; the next sweep returns them.
    pub(super) unreported_deadlocks: Vec<Deadlock>,
    /// How many waiters there were when they were last counted.
    pub(super) waiting: Option<usize>,
    /// How far the indexes by name were checked.
    checked_used: Option<NameCursor>,
    checked_awaited: Option<NameCursor>,
    /// The last error that was logged.
    last_failure: Option<String>,
}

/// A lock whose visit is due, as it is in the registry.
struct DueLock {
    key: String,
    score: String,
    /// `None` if the name is not known.
    name: Option<LockName>,
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
    RepairIndexes,
}

fn is_due(last: Option<Instant>, interval: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= interval)
}

impl Inner {
    pub(super) async fn sweep(&self) -> Result<Vec<Deadlock>> {
        self.notifications.prune();
        if is_due(locked(&self.maintenance).last_housekeeping, HOUSEKEEPING_INTERVAL) {
            locked(&self.maintenance).last_housekeeping = Some(Instant::now());
            self.run_housekeeping().await;
        }
        for _ in 0..MAX_BATCHES {
            let due = self.due_locks().await;
            self.note_outage(due.is_err());
            let due = due?;
            let visits = join_all(due.iter().map(|lock| self.visit_or_postpone(lock))).await;
            let failed: Vec<CoordinationError> = visits.into_iter().flatten().collect();
            self.log_failure(&failed);
            if due.len() < BATCH {
                break;
            }
        }
        Ok(std::mem::take(&mut locked(&self.maintenance).unreported_deadlocks))
    }

    fn note_outage(&self, has_failed: bool) {
        let mut state = locked(&self.maintenance);
        let is_back = std::mem::replace(&mut state.has_failed, has_failed) && !has_failed;
        if is_back {
            state.agents_expire_after = Some(Instant::now() + Duration::from_millis(OFFLINE_AFTER_MS));
        }
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

    pub(super) fn defer(&self, work: DeferredWork) {
        locked(&self.maintenance).deferred.push(work);
    }

    /// Runs in a task of its own: a long search must not delay the end of leases.
    pub(super) async fn run_deferred_work(&self) {
        let deferred = std::mem::take(&mut locked(&self.maintenance).deferred);
        for work in deferred {
            let result = match &work {
                DeferredWork::Inspect(name) => self.inspect_lock(name).await,
                DeferredWork::FindDeadlocks(holder, name) => self.resolve_and_report(holder, name).await,
                DeferredWork::RepairIndexes => self.repair_indexes().await,
            };
            if let Err(error) = result {
                tracing::debug!(%error, "cannot search for deadlocks or repair indexes; retrying later");
            }
        }
    }

    /// Postpones a lock that cannot be visited, so that it does not block those behind it.
    async fn visit_or_postpone(&self, due: &DueLock) -> Option<CoordinationError> {
        let error = self.visit_lock(due).await.err()?;
        let retry_at = registry_score(self.clock.now().plus_ms(RETRY_DELAY_MS));
        if let Err(error) = self.reschedule(due, &retry_at).await {
            tracing::debug!(%error, "cannot postpone the visit of a lock");
        }
        Some(error)
    }

    async fn due_locks(&self) -> Result<Vec<DueLock>> {
        let due = self.members_up_to(&self.keys.registry, &registry_score(self.clock.now())).await?;
        let keys: Vec<String> = due.iter().map(|(key, _)| key.clone()).collect();
        let mut names: HashMap<String, LockName> = self.resolve_names(keys).await?.into_iter().collect();
        Ok(due.into_iter().map(|(key, score)| DueLock { name: names.remove(&key), key, score }).collect())
    }

    /// Sets the time of the next visit, or removes the lock from the registry if `score` is empty.
    async fn reschedule(&self, due: &DueLock, score: &str) -> Result<()> {
        self.compare_and_set_score(&self.keys.registry, &due.key, &due.score, score).await
    }

    /// The first members of a sorted set with a score of at most `max`, and their scores.
    async fn members_up_to(&self, sorted_set: &RedisKey, max: &str) -> Result<Vec<(String, String)>> {
        let range = ("-inf", max, "WITHSCORES", "LIMIT", 0, BATCH);
        self.query("ZRANGEBYSCORE", sorted_set, range).await
    }

    async fn visit_lock(&self, due: &DueLock) -> Result<()> {
        // A key without a name cannot be swept.
        let Some(name) = &due.name else { return self.reschedule(due, "").await };
        let reply = self.apply(name, &LockCommand::Sweep).await?;
        let Some(next_due) = &reply.next_due else {
            return self.remove_idle_lock(due, name).await;
        };
        if self.is_cluster() {
            self.reschedule(due, next_due).await?;
        }
        for change in reply.changes.iter().filter(|change| change.kind == ChangeKind::UpgradeLost) {
            self.defer(DeferredWork::FindDeadlocks(change.holder.clone(), name.clone()));
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
    async fn remove_idle_lock(&self, due: &DueLock, name: &LockName) -> Result<()> {
        if self.is_cluster() {
            if !is_idle_score(&due.score) {
                let next_visit = idle_score(self.clock.now().plus_ms(IDLE_RECHECK_MS));
                return self.reschedule(due, &next_visit).await;
            }
            self.reschedule(due, "").await?;
        }
        self.forget_lock(name).await
    }

    /// Resolves the deadlocks through a holder and reports them even if a later step fails.
    async fn resolve_and_report(&self, holder: &Holder, name: &LockName) -> Result<()> {
        let resolved = self.resolve_deadlocks(holder, name, false).await?;
        locked(&self.maintenance).unreported_deadlocks.extend(resolved);
        Ok(())
    }

    /// Removes what remains of a lock without holders and waiters.
    async fn forget_lock(&self, name: &LockName) -> Result<()> {
        locked(&self.maintenance).last_inspected.remove(name);
        let keys = self.lock_keys(name)?;
        let type_index = keys.type_index.iter();
        let mut removals: Vec<_> = type_index.map(|index| remove_from_index(index, keys.lock())).collect();
        if keys::has_hashed_name(name, &keys) {
            removals.push(command("HDEL", &self.keys.lock_names, keys.lock().as_str()));
        }
        self.run_all(removals).await
    }

    /// Repairs the indexes of a lock, and searches the waits of agents that were not searched recently.
    async fn inspect_lock(&self, name: &LockName) -> Result<()> {
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
            let ttl = scripts::queue_ttl_ms(waiter.deadline.ms_since(snapshot.now));
            let agent = waiter.holder.agent_id();
            if waiting.insert(agent) {
                repairs.extend(add_to_index(&self.agent_keys(agent)?.awaited_locks, keys.lock(), ttl));
            }
        }
        self.run_all(repairs).await?;
        if !waiting.is_empty() {
            self.add_names(NameIndex::Used, std::slice::from_ref(name)).await?;
            self.add_names(NameIndex::Awaited, std::slice::from_ref(name)).await?;
        }
        if !self.detects_deadlocks() {
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
    async fn resolve_reachable_deadlocks(&self, agent: &str, now: Moment) -> Result<()> {
        let (table, agents, is_complete) = self.reachable_from(agent).await?;
        let mut resolved = Vec::new();
        let is_clear = self.resolve_suspected(&table, &mut resolved).await;
        locked(&self.maintenance).unreported_deadlocks.extend(resolved);
        if is_clear? && is_complete {
            let stamps = agents.iter().map(|agent| self.check_stamp(agent, now)).collect::<Result<_, _>>()?;
            self.run_all(stamps).await?;
        }
        Ok(())
    }

    /// The agents that hold a lock which others wait for. Every deadlock involves such an agent: an agent that only
    /// waits blocks only those behind it, which wait for the same holders.
    async fn holders_blocking_others<'a>(&self, agents: &[&'a str]) -> Result<Vec<&'a str>> {
        let mut found = Vec::new();
        for batch in agents.chunks(BATCH) {
            let held =
                batch.iter().map(async |agent| self.index_members(&self.agent_keys(agent)?.held_locks).await);
            let held = try_join_all(held).await?;
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
    async fn claim_check(&self, agent: &str, now: Moment) -> Result<bool> {
        let is_set = self.query_all(vec![self.check_stamp(agent, now)?]).await?;
        Ok(is_set.contains(&true))
    }

    fn check_stamp(&self, agent: &str, now: Moment) -> Result<(RedisKey, Cmd)> {
        let args = (now.to_string(), "NX", "EX", DEADLOCK_CHECK_TTL_SECONDS);
        Ok(command("SET", &self.agent_keys(agent)?.deadlock_check, args))
    }

    async fn compare_and_set_score(
        &self,
        sorted_set: &RedisKey,
        member: &str,
        expected: &str,
        new: &str,
    ) -> Result<()> {
        self.call(&self.scripts.compare_and_set_score, &[sorted_set], &[member, expected, new]).await
    }

    /// The steps are independent: one that fails is repeated next time.
    async fn run_housekeeping(&self) {
        locked(&self.maintenance).last_inspected.retain(|_, at| at.elapsed() < 2 * INSPECT_INTERVAL);
        if is_due(locked(&self.maintenance).last_repair, REPAIR_INTERVAL) {
            locked(&self.maintenance).last_repair = Some(Instant::now());
            self.defer(DeferredWork::RepairIndexes);
        }
        let results = [
            self.sync_clock().await,
            self.refresh_victim_ages().await,
            self.expire_silent_agents().await,
            self.remove_idle_agents().await,
            self.prune_lock_names().await,
        ];
        if let Some(error) = results.into_iter().find_map(Result::err) {
            tracing::debug!(%error, "lock housekeeping is incomplete; continuing in the next round");
        }
    }

    /// Adds held locks to the registry and to the index by name again if these lost them, for example with a part of the
    /// cluster. On a cluster it also renews the other indexes; elsewhere every heartbeat does so.
    async fn repair_registry(&self) -> Result<()> {
        let renewed: Vec<(LockName, Holder)> =
            std::mem::take(&mut locked(&self.maintenance).renewed).into_iter().collect();
        for batch in renewed.chunks(BATCH) {
            if self.is_cluster() {
                self.index_held_locks(batch).await?;
            }
            let names: Vec<LockName> = batch.iter().map(|(name, _)| name.clone()).collect();
            // Some may have been released since their heartbeat.
            let names = self.used_names(NameIndex::Used, &names).await?;
            self.add_names(NameIndex::Used, &names).await?;
            if names.is_empty() {
                continue;
            }
            let keys = names.iter().map(|name| self.lock_keys(name)).collect::<Result<Vec<_>>>()?;
            let members: Vec<&str> = keys.iter().map(|keys| keys.lock().as_str()).collect();
            let scores: Vec<Option<f64>> = self.query("ZMSCORE", &self.keys.registry, members).await?;
            for (keys, _) in keys.iter().zip(scores).filter(|(_, score)| score.is_none()) {
                self.add_to_registry(keys.lock(), self.clock.now()).await?;
            }
        }
        Ok(())
    }

    /// Repairs the registry, checks one page of each index by name, and counts the waiters.
    async fn repair_indexes(&self) -> Result<()> {
        self.repair_registry().await?;
        let (used, awaited) = {
            let mut state = locked(&self.maintenance);
            (state.checked_used.take(), state.checked_awaited.take())
        };
        let used = self.check_names(NameIndex::Used, used.as_ref()).await?;
        let awaited = self.check_names(NameIndex::Awaited, awaited.as_ref()).await?;
        let waiting = self.count_waiting().await?;
        let mut state = locked(&self.maintenance);
        (state.checked_used, state.checked_awaited, state.waiting) = (used, awaited, Some(waiting));
        Ok(())
    }

    /// Cancels the tickets of agents without recent heartbeats and marks the agents offline.
    async fn expire_silent_agents(&self) -> Result<()> {
        let is_spared = {
            let state = locked(&self.maintenance);
            state.has_failed || state.agents_expire_after.is_some_and(|at| Instant::now() < at)
        };
        if is_spared {
            return Ok(());
        }
        for (agent, score) in self.idle_agents(&self.keys.alive_agents, OFFLINE_AFTER_MS).await? {
            // An agent whose locks are unavailable must not keep the others from being expired.
            if let Err(error) = self.expire_agent(&agent, &score).await {
                tracing::warn!(agent, %error, "cannot cancel the tickets of a silent agent; retrying later");
            }
        }
        Ok(())
    }

    async fn expire_agent(&self, agent: &str, score: &str) -> Result<()> {
        let names = self.index_members(&self.agent_keys(agent)?.awaited_locks).await?;
        for (name, snapshot) in names.iter().zip(self.read_locks(&names, usize::MAX).await?) {
            // The waits that no server holds open.
            let is_ticket = |waiter: &Waiter| waiter.holder.agent_id() == agent && waiter.served_by.is_none();
            for Waiter { holder, request, .. } in snapshot.waiters.into_iter().filter(is_ticket) {
                let reason = EndReason::AgentOffline;
                let cancel = LockCommand::Cancel { holder, request, reason, include_claimed: false };
                let reply = self.run_command(name, &cancel).await?;
                locked(&self.maintenance).unreported_deadlocks.extend(reply.deadlocks);
            }
        }
        self.call_agent::<()>(&self.scripts.mark_agent_offline, agent, &[]).await?;
        self.compare_and_set_score(&self.keys.alive_agents, agent, score, "").await
    }

    /// Checks one page of the stored names per call. Outside a cluster a lock leaves the registry with its last
    /// holder, so no later visit removes its name.
    async fn prune_lock_names(&self) -> Result<()> {
        if self.is_cluster() {
            return Ok(());
        }
        let cursor = locked(&self.maintenance).name_scan_cursor;
        let (next, names): (u64, Vec<(String, String)>) =
            self.query("HSCAN", &self.keys.lock_names, (cursor, "COUNT", BATCH)).await?;
        locked(&self.maintenance).name_scan_cursor = next;
        if names.is_empty() {
            return Ok(());
        }
        let locks: Vec<&str> = names.iter().map(|(lock, _)| lock.as_str()).collect();
        let keys = [&self.keys.lock_names, &self.keys.registry];
        self.call(&self.scripts.prune_lock_names, &keys, &locks).await
    }

    async fn remove_idle_agents(&self) -> Result<()> {
        for (agent, _) in self.idle_agents(&self.keys.named_agents, NAMED_AGENT_TTL_MS).await? {
            self.remove_agent(&agent).await?;
        }
        Ok(())
    }

    /// The agents of an index whose last heartbeat is at least `idle_ms` old, and its time.
    async fn idle_agents(&self, index: &RedisKey, idle_ms: u64) -> Result<Vec<(String, String)>> {
        let limit = (self.clock.now().micros() / 1000).saturating_sub(idle_ms);
        self.members_up_to(index, &limit.to_string()).await
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
