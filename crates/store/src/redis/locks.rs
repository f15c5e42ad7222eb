//! The lock port on Redis, and the reads behind it: single locks, lists, waits and counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{
    Deadlock, Hold, Lock, LockChange, LockCommand, LockLimits, LockName, LockReply, RequestKey, Waiter,
};
use ade_keyspace::RedisKey;
use futures_util::future::try_join_all;
use redis::Value;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::indexes::remove_from_index;
use super::keys::{self, ParsedLockKey};
use super::query::{NO_ARGS, UnixMicros, command};
use super::{Inner, RedisCoordination, Result, encoding, locked};
use crate::coordination::{
    AsyncResult, LockCounts, LockEvent, LockFilter, LockView, Locks, Subscription, WaitView,
};

/// Holders and waiters per lock in a list.
const MAX_LISTED: usize = 20;
/// Locks that are read concurrently.
const READ_BATCH: usize = 200;
const INDEX_PAGE_SIZE: usize = 5_000;
/// Counts over more locks than this are cached.
const COUNT_CACHE_THRESHOLD: usize = 1_000;
const COUNT_CACHE_TTL: Duration = Duration::from_secs(5);

/// A lock at one moment, with the first waiters of its queue.
#[derive(Debug, Clone, Default)]
pub(super) struct LockSnapshot {
    pub(super) now: Moment,
    pub(super) holds: Vec<Hold>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) queue_length: usize,
}

impl LockSnapshot {
    fn parse(value: Value) -> Result<Self> {
        type Reply = (UnixMicros, HashMap<String, String>, Vec<(String, f64)>, usize);
        let (UnixMicros(now), fields, queue, queue_length): Reply = redis::from_redis_value(value)?;
        let (mut holds, mut upgraded_from) = (Vec::new(), Vec::new());
        for (field, value) in &fields {
            match field.split_at_checked(2) {
                Some(("h:", digest)) => {
                    let part = |kind| fields.get(&format!("{kind}:{digest}")).map_or("", String::as_str);
                    holds.push(encoding::parse_hold(&format!("{value} {} {}", part("r"), part("a")))?);
                }
                Some(("b:", _)) => upgraded_from.push(encoding::parse_hold(value)?),
                _ => {}
            }
        }
        for shared in upgraded_from {
            if let Some(hold) = holds.iter_mut().find(|hold| hold.holder == shared.holder) {
                hold.upgraded_from = Some(Box::new(shared));
            }
        }
        let waiters = queue.iter().map(|(member, score)| encoding::parse_waiter(member, *score));
        Ok(Self { now, holds, waiters: waiters.collect::<Result<_, _>>()?, queue_length })
    }

    /// The changes that produce this state from an empty lock.
    pub(super) fn changes(&self) -> impl Iterator<Item = LockChange> {
        let granted = self.holds.iter().cloned().map(LockChange::Granted);
        granted.chain(self.waiters.iter().cloned().map(LockChange::Queued))
    }

    pub(super) fn is_held_by(&self, agent: &str) -> bool {
        self.holds.iter().any(|hold| hold.holder.agent_id() == agent)
    }

    fn is_waited_for_by(&self, agent: &str) -> bool {
        self.waiters.iter().any(|waiter| waiter.holder.agent_id() == agent)
    }

    pub(super) fn lock(&self, limits: &LockLimits) -> Lock {
        let mut lock = Lock::default();
        self.changes().for_each(|change| lock.apply(&change, limits));
        lock
    }

    fn view(&self, name: &LockName, limits: &LockLimits, max_listed: usize) -> LockView {
        let view = LockView::new(name, Some(&self.lock(limits)), max_listed);
        LockView { queue_length: self.queue_length, ..view }
    }
}

impl Inner {
    /// Gives back the leases that started with a promotion and that no caller took.
    async fn return_unreported(&self) {
        for returned in self.subscriptions.take_returned() {
            match self.run_command(&returned.lock, &returned.return_command()).await {
                Ok(reply) => locked(&self.maintenance).unreported_deadlocks.extend(reply.deadlocks),
                Err(error) => {
                    tracing::debug!(%error, "cannot give back a lock; the next sweep retries");
                    self.subscriptions.put_back(returned);
                }
            }
        }
    }

    /// Reads a lock with at most `max_waiters` of its waiters.
    pub(super) async fn read_lock(&self, name: &LockName, max_waiters: usize) -> Result<LockSnapshot> {
        let keys = self.lock_keys(name)?;
        let last = match max_waiters {
            0 => String::new(),
            usize::MAX => "-1".to_owned(),
            max => (max - 1).to_string(),
        };
        let lock_and_queue = [keys.lock(), keys.queue()];
        let snapshot = self.client.call(&self.scripts.read_lock, &lock_and_queue, &[&last]).await?;
        let snapshot = LockSnapshot::parse(snapshot)?;
        self.clock.observe(snapshot.now);
        Ok(snapshot)
    }

    pub(super) async fn read_locks(
        &self,
        names: &[LockName],
        max_waiters: usize,
    ) -> Result<Vec<LockSnapshot>> {
        let mut snapshots = Vec::with_capacity(names.len());
        for batch in names.chunks(READ_BATCH) {
            snapshots.extend(try_join_all(batch.iter().map(|name| self.read_lock(name, max_waiters))).await?);
        }
        Ok(snapshots)
    }

    /// The names of lock keys. Keys of anything else, and keys whose stored name is missing, are left out.
    pub(super) async fn resolve_names(&self, lock_keys: Vec<String>) -> Result<Vec<(String, LockName)>> {
        let mut names = Vec::with_capacity(lock_keys.len());
        let mut hashed = Vec::new();
        for key in lock_keys {
            match keys::parse_lock_key(&key) {
                ParsedLockKey::Lock(name) => names.push((key, name)),
                ParsedLockKey::Hashed => hashed.push(key),
                ParsedLockKey::NotALock => {}
            }
        }
        for batch in hashed.chunks(READ_BATCH) {
            let found: Vec<Option<String>> = self.query("HMGET", &self.keys.lock_names, batch).await?;
            for (key, name) in batch.iter().zip(found) {
                names.extend(name.and_then(|name| Some((key.clone(), name.parse().ok()?))));
            }
        }
        Ok(names)
    }

    pub(super) async fn index_members(&self, index: &RedisKey) -> Result<Vec<LockName>> {
        let members = self.query("SMEMBERS", index, NO_ARGS).await?;
        Ok(self.resolve_names(members).await?.into_iter().map(|(_, name)| name).collect())
    }

    /// The same, but removes stale entries from the index.
    async fn pruned_members(
        &self,
        index: &RedisKey,
        is_current: impl Fn(&LockSnapshot) -> bool,
    ) -> Result<Vec<LockName>> {
        let names = self.index_members(index).await?;
        let (mut found, mut stale) = (Vec::new(), Vec::new());
        for (name, snapshot) in names.iter().zip(self.read_locks(&names, usize::MAX).await?) {
            if is_current(&snapshot) {
                found.push(name.clone());
            } else {
                stale.push(remove_from_index(index, self.lock_keys(name)?.lock()));
            }
        }
        self.run_all(stale).await?;
        Ok(found)
    }

    async fn registered_locks(&self) -> Result<Vec<LockName>> {
        let mut names = Vec::new();
        for page in 0.. {
            let range = (page * INDEX_PAGE_SIZE, (page + 1) * INDEX_PAGE_SIZE - 1);
            let members: Vec<String> = self.query("ZRANGE", &self.keys.registry, range).await?;
            let is_last = members.len() < INDEX_PAGE_SIZE;
            names.extend(self.resolve_names(members).await?.into_iter().map(|(_, name)| name));
            if is_last {
                break;
            }
        }
        Ok(names)
    }

    async fn list_locks(
        &self,
        filter: &LockFilter,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>> {
        let names = match (&filter.agent, &filter.resource_type) {
            (Some(agent), _) => {
                let keys = self.agent_keys(agent)?;
                let mut names = self.pruned_members(&keys.held_locks, |lock| lock.is_held_by(agent)).await?;
                names.extend(
                    self.pruned_members(&keys.awaited_locks, |lock| lock.is_waited_for_by(agent)).await?,
                );
                names
            }
            (None, Some(resource_type)) => {
                self.index_members(&keys::type_index(resource_type, self.layout())?).await?
            }
            (None, None) => self.registered_locks().await?,
        };
        let matches = |name: &LockName| after.is_none_or(|after| name > after) && filter.matches_name(name);
        let names: BTreeSet<LockName> = names.into_iter().filter(matches).collect();
        let names: Vec<LockName> = names.into_iter().collect();
        let max_waiters = if filter.agent.is_some() { usize::MAX } else { MAX_LISTED };
        let mut views = Vec::new();
        for batch in names.chunks(limit.clamp(1, READ_BATCH)) {
            for (name, snapshot) in batch.iter().zip(self.read_locks(batch, max_waiters).await?) {
                if filter.matches(name, &snapshot.lock(self.limits())) {
                    views.push(snapshot.view(name, self.limits(), MAX_LISTED));
                }
                if views.len() == limit {
                    return Ok(views);
                }
            }
        }
        Ok(views)
    }

    async fn all_waits(&self, limit: usize) -> Result<Vec<WaitView>> {
        let mut views = Vec::new();
        for batch in self.registered_locks().await?.chunks(READ_BATCH) {
            let waited_for = self.with_waiters(batch).await?;
            for (name, snapshot) in waited_for.iter().zip(self.read_locks(&waited_for, usize::MAX).await?) {
                let lock = snapshot.lock(self.limits());
                let view = |waiter: &Waiter| WaitView::new(name, &lock, &waiter.holder, MAX_LISTED);
                views.extend(snapshot.waiters.iter().filter_map(view));
                if views.len() >= limit {
                    views.truncate(limit);
                    return Ok(views);
                }
            }
        }
        views.sort_by(|a, b| (&a.holder, &a.lock).cmp(&(&b.holder, &b.lock)));
        Ok(views)
    }

    /// The locks that have waiters.
    pub(super) async fn with_waiters(&self, names: &[LockName]) -> Result<Vec<LockName>> {
        let lengths = self.queue_lengths(names).await?;
        let waited_for = names.iter().zip(lengths).filter(|(_, length)| *length > 0);
        Ok(waited_for.map(|(name, _)| name.clone()).collect())
    }

    pub(super) async fn queue_lengths(&self, names: &[LockName]) -> Result<Vec<usize>> {
        let count = |name| Ok(command("ZCARD", self.lock_keys(name)?.queue(), NO_ARGS));
        self.query_all(names.iter().map(count).collect::<Result<_>>()?).await
    }

    async fn count_all(&self) -> Result<LockCounts> {
        if let Some((counts, at)) = locked(&self.maintenance).cached_counts
            && at.elapsed() < COUNT_CACHE_TTL
        {
            return Ok(counts);
        }
        let mut counts = LockCounts::default();
        let names = self.registered_locks().await?;
        for batch in names.chunks(READ_BATCH) {
            counts.waiting += self.queue_lengths(batch).await?.into_iter().sum::<usize>();
            let count = |name| Ok(command("HGET", self.lock_keys(name)?.lock(), "n"));
            let held: Vec<Option<usize>> =
                self.query_all(batch.iter().map(count).collect::<Result<_>>()?).await?;
            counts.held += held.into_iter().flatten().sum::<usize>();
        }
        counts.agents = self.query("ZCARD", &self.keys.agents, NO_ARGS).await?;
        if names.len() > COUNT_CACHE_THRESHOLD {
            locked(&self.maintenance).cached_counts = Some((counts, Instant::now()));
        }
        Ok(counts)
    }
}

impl Locks for RedisCoordination {
    fn execute_commands(&self, commands: Vec<(LockName, LockCommand)>) -> AsyncResult<'_, Vec<LockReply>> {
        Box::pin(async move { self.inner.run_commands(commands).await })
    }

    fn execute_while_successful(
        &self,
        commands: Vec<(LockName, LockCommand)>,
    ) -> AsyncResult<'_, Vec<LockReply>> {
        Box::pin(async move { self.inner.run_while_successful(commands).await })
    }

    fn lock_view(&self, lock: LockName) -> AsyncResult<'_, LockView> {
        Box::pin(async move {
            // Expires leases and waits first, so that the view has no expired holders.
            let LockReply { deadlocks, .. } = self.inner.run_command(&lock, &LockCommand::Tick).await?;
            locked(&self.inner.maintenance).unreported_deadlocks.extend(deadlocks);
            let snapshot = self.inner.read_lock(&lock, usize::MAX).await?;
            Ok(snapshot.view(&lock, self.inner.limits(), usize::MAX))
        })
    }

    fn list_locks(
        &self,
        filter: LockFilter,
        after: Option<LockName>,
        limit: usize,
    ) -> AsyncResult<'_, Vec<LockView>> {
        Box::pin(async move { self.inner.list_locks(&filter, after.as_ref(), limit).await })
    }

    fn waits(&self, limit: usize) -> AsyncResult<'_, Vec<WaitView>> {
        Box::pin(async move { self.inner.all_waits(limit).await })
    }

    fn counts(&self) -> AsyncResult<'_, LockCounts> {
        Box::pin(async move { self.inner.count_all().await })
    }

    fn sweep(&self) -> AsyncResult<'_, Vec<Deadlock>> {
        Box::pin(async move {
            self.inner.return_unreported().await;
            let deadlocks = self.inner.sweep().await;
            if !self.inner.is_deferred_work_running.swap(true, Ordering::SeqCst) {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    inner.run_deferred_work().await;
                    inner.is_deferred_work_running.store(false, Ordering::SeqCst);
                });
            }
            deadlocks
        })
    }

    fn subscribe(&self, request: RequestKey) -> Subscription {
        self.inner.subscriptions.subscribe(request)
    }

    fn subscribe_events(&self) -> broadcast::Receiver<Arc<LockEvent>> {
        self.inner.events.subscribe()
    }

    fn limits(&self) -> &LockLimits {
        self.inner.limits()
    }

    fn set_deadlock_detection(&self, is_enabled: bool) {
        self.inner.deadlock_detection.store(is_enabled, Ordering::Relaxed);
    }

    fn now(&self) -> Moment {
        self.inner.clock.now()
    }
}
