//! The lock port on Redis, and the reads behind it: single locks, lists, waits and counts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ade_domain::Moment;
use ade_domain::lock::{
    Deadlock, Hold, Lock, LockChange, LockCommand, LockLimits, LockName, LockReply, RequestKey, Waiter,
};
use ade_keyspace::RedisKey;
use futures_util::future::{join_all, try_join_all};
use redis::Value;
use tokio::sync::broadcast;

use super::encoding::CorruptValue;
use super::indexes::remove_from_index;
use super::keys::{self, AgentKeys, ParsedLockKey};
use super::name_indexes::{NAMES_PER_COMMAND, NameCursor, NameIndex, NamePage, NameRange};
use super::query::{NO_ARGS, UnixMicros, command};
use super::{Inner, RedisCoordination, Result, encoding, locked};
use crate::coordination::{
    AsyncResult, LockCounts, LockEvent, LockFilter, LockView, Locks, Subscription, WaitView,
};

/// Holders and waiters per lock in a list.
const MAX_LISTED: usize = 20;
/// Locks that are read concurrently.
const READ_BATCH: usize = 200;
/// Locks that one call reads, with few of their waiters. Bounds how long Redis is busy with it.
const LOCKS_PER_CALL: usize = 50;
/// Bounds how long Redis is busy with one page.
const INDEX_PAGE_SIZE: usize = 2_000;

/// A lock at one moment, with the first waiters of its queue.
#[derive(Debug, Clone, Default)]
pub(super) struct LockSnapshot {
    pub(super) now: Moment,
    pub(super) holds: Vec<Hold>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) queue_length: usize,
}

impl LockSnapshot {
    fn parse(now: Moment, value: Value) -> Result<Self> {
        type Reply = (HashMap<String, String>, Vec<(String, f64)>, usize);
        let (fields, queue, queue_length): Reply = redis::from_redis_value(value)?;
        let (mut holds, mut upgraded_from) = (Vec::new(), Vec::new());
        for (field, value) in &fields {
            match field.split_at_checked(2) {
                Some(("h:", digest)) => {
                    let part = |kind| fields.get(&format!("{kind}:{digest}")).map_or("", String::as_str);
                    let hold = encoding::parse_hold(&format!("{value} {} {}", part("r"), part("a")))?;
                    let unreported_by = encoding::is_unreported(value).then(|| part("s").into());
                    holds.push(Hold { unreported_by, ..hold });
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

    const fn is_used(&self) -> bool {
        !self.holds.is_empty() || self.queue_length > 0
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
        // All at once: a part of a cluster that does not answer must not delay the others.
        join_all(self.subscriptions.take_returned().into_iter().map(|returned| async {
            match self.run_command(&returned.lock, &returned.return_command()).await {
                Ok(reply) => locked(&self.maintenance).unreported_deadlocks.extend(reply.deadlocks),
                // A lease that has ended by itself needs nothing any more.
                Err(_) if returned.grant.expires_at <= self.clock.now() => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot give back a lock; the next sweep retries");
                    self.subscriptions.put_back(returned);
                }
            }
        }))
        .await;
    }

    /// Reads a lock with at most `max_waiters` of its waiters.
    pub(super) async fn read_lock(&self, name: &LockName, max_waiters: usize) -> Result<LockSnapshot> {
        let snapshots = self.call_read_locks(std::slice::from_ref(name), max_waiters).await?;
        let missing = || CorruptValue::new("the snapshot of a lock", "nothing").into();
        snapshots.into_iter().next().ok_or_else(missing)
    }

    pub(super) async fn read_locks(
        &self,
        names: &[LockName],
        max_waiters: usize,
    ) -> Result<Vec<LockSnapshot>> {
        // On a cluster every lock has a slot of its own. A whole queue is enough for one call.
        let is_one = self.is_cluster() || max_waiters > MAX_LISTED;
        let per_call = if is_one { 1 } else { LOCKS_PER_CALL };
        let mut snapshots = Vec::with_capacity(names.len());
        for batch in names.chunks(READ_BATCH) {
            let calls = batch.chunks(per_call).map(|names| self.call_read_locks(names, max_waiters));
            snapshots.extend(try_join_all(calls).await?.into_iter().flatten());
        }
        Ok(snapshots)
    }

    /// Reads locks of one slot in one call.
    async fn call_read_locks(&self, names: &[LockName], max_waiters: usize) -> Result<Vec<LockSnapshot>> {
        let keys = names.iter().map(|name| self.lock_keys(name)).collect::<Result<Vec<_>>>()?;
        let lock_and_queue: Vec<&RedisKey> =
            keys.iter().flat_map(|keys| [keys.lock(), keys.queue()]).collect();
        let last = match max_waiters {
            0 => String::new(),
            usize::MAX => "-1".to_owned(),
            max => (max - 1).to_string(),
        };
        let reply = self.client.call(&self.scripts.read_locks, &lock_and_queue, &[&last]).await?;
        let mut values: std::vec::IntoIter<Value> = redis::from_redis_value::<Vec<Value>>(reply)?.into_iter();
        let UnixMicros(now) = redis::from_redis_value(values.next().unwrap_or(Value::Nil))?;
        self.clock.observe(now);
        values.map(|value| LockSnapshot::parse(now, value)).collect()
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

    /// The locks of an index by agent. It is read in pages, which may contain what was added or removed meanwhile.
    pub(super) async fn index_members(&self, index: &RedisKey) -> Result<Vec<LockName>> {
        let (mut members, mut cursor) = (BTreeSet::new(), 0_u64);
        loop {
            let page: (u64, Vec<String>) =
                self.query("SSCAN", index, (cursor, "COUNT", INDEX_PAGE_SIZE)).await?;
            members.extend(page.1);
            cursor = page.0;
            if cursor == 0 {
                break;
            }
        }
        let names = self.resolve_names(members.into_iter().collect()).await?;
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    async fn list_locks(
        &self,
        filter: &LockFilter,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>> {
        if let Some(agent) = &filter.agent {
            return self.list_locks_of_agent(agent, filter, after, limit).await;
        }
        self.write_name_indexes().await;
        let range = NameRange::of(filter);
        let (mut views, mut after) = (Vec::new(), after.map(NameCursor::from));
        loop {
            let wanted = (limit - views.len()).min(READ_BATCH);
            // Few of the names may match: then whole batches are checked.
            let wanted = if filter.name_part.is_some() { READ_BATCH } else { wanted };
            let NamePage { mut names, next } =
                self.names_after(NameIndex::Used, &range, after.as_ref(), wanted).await?;
            names.retain(|name| filter.matches_name(name));
            let mut unused = Vec::new();
            for (name, snapshot) in names.iter().zip(self.read_locks(&names, MAX_LISTED).await?) {
                if !snapshot.is_used() {
                    unused.push(name.clone());
                } else if views.len() < limit {
                    views.push(snapshot.view(name, self.limits(), MAX_LISTED));
                }
            }
            self.remove_unused_names(NameIndex::Used, &unused).await?;
            if next.is_none() || views.len() == limit {
                return Ok(views);
            }
            after = next;
        }
    }

    /// The same for the locks that an agent holds or waits for. Removes stale entries from its indexes.
    async fn list_locks_of_agent(
        &self,
        agent: &str,
        filter: &LockFilter,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>> {
        let AgentKeys { held_locks, awaited_locks, .. } = &*self.agent_keys(agent)?;
        let awaited: HashSet<LockName> = self.index_members(awaited_locks).await?.into_iter().collect();
        let held: HashSet<LockName> = self.index_members(held_locks).await?.into_iter().collect();
        let is_wanted =
            |name: &&LockName| after.is_none_or(|after| *name > after) && filter.matches_name(name);
        let names: BTreeSet<&LockName> = held.union(&awaited).filter(is_wanted).collect();
        let names: Vec<LockName> = names.into_iter().cloned().collect();
        let mut views = Vec::new();
        for batch in names.chunks(limit.clamp(1, READ_BATCH)) {
            let is_waiting =
                |name| Ok(command("HEXISTS", self.lock_keys(name)?.waiting(), format!("a:{agent}")));
            let is_waiting: Vec<bool> =
                self.query_all(batch.iter().map(is_waiting).collect::<Result<_>>()?).await?;
            let mut stale = Vec::new();
            for ((name, snapshot), is_waiting) in
                batch.iter().zip(self.read_locks(batch, MAX_LISTED).await?).zip(is_waiting)
            {
                let is_holding = snapshot.is_held_by(agent);
                if (is_holding || is_waiting) && views.len() < limit {
                    views.push(snapshot.view(name, self.limits(), MAX_LISTED));
                }
                let entries = [(held_locks, &held, is_holding), (awaited_locks, &awaited, is_waiting)];
                for (index, entries, is_current) in entries {
                    if !is_current && entries.contains(name) {
                        stale.push(remove_from_index(index, self.lock_keys(name)?.lock()));
                    }
                }
            }
            self.run_all(stale).await?;
            if views.len() == limit {
                break;
            }
        }
        Ok(views)
    }

    async fn all_waits(&self, limit: usize) -> Result<Vec<WaitView>> {
        self.write_name_indexes().await;
        let range = NameRange::of(&LockFilter::default());
        let (mut views, mut after): (Vec<WaitView>, Option<NameCursor>) = (Vec::new(), None);
        loop {
            let NamePage { names, next } =
                self.names_after(NameIndex::Awaited, &range, after.as_ref(), READ_BATCH).await?;
            let mut unused = Vec::new();
            for (name, snapshot) in names.iter().zip(self.read_locks(&names, limit).await?) {
                let lock = snapshot.lock(self.limits());
                let view = |waiter: &Waiter| WaitView::new(name, &lock, &waiter.holder, MAX_LISTED);
                views.extend(snapshot.waiters.iter().filter_map(view));
                if snapshot.queue_length == 0 {
                    unused.push(name.clone());
                }
            }
            self.remove_unused_names(NameIndex::Awaited, &unused).await?;
            if next.is_none() || views.len() >= limit {
                views.sort_by(|a, b| (&a.holder, &a.lock).cmp(&(&b.holder, &b.lock)));
                views.truncate(limit);
                return Ok(views);
            }
            after = next;
        }
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
        self.write_name_indexes().await;
        let keys = &self.keys;
        let sizes = [&keys.locks_by_name, &keys.awaited_by_name, &keys.agents];
        let sizes: Vec<usize> =
            self.query_all(sizes.map(|key| command("ZCARD", key, NO_ARGS)).into()).await?;
        let [held, awaited, agents] = sizes.as_slice() else { return Ok(LockCounts::default()) };
        let known = locked(&self.maintenance).waiting;
        let waiting = match known.filter(|_| *awaited > READ_BATCH) {
            Some(waiting) => waiting,
            None => self.count_waiting().await?,
        };
        Ok(LockCounts { held: *held, waiting, agents: *agents })
    }

    /// The waiters of all locks.
    pub(super) async fn count_waiting(&self) -> Result<usize> {
        let range = NameRange::of(&LockFilter::default());
        let (mut waiting, mut after): (usize, Option<NameCursor>) = (0, None);
        loop {
            let NamePage { names, next } =
                self.names_after(NameIndex::Awaited, &range, after.as_ref(), NAMES_PER_COMMAND).await?;
            waiting += self.queue_lengths(&names).await?.into_iter().sum::<usize>();
            if next.is_none() {
                return Ok(waiting);
            }
            after = next;
        }
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

    fn peek_locks(&self, locks: Vec<LockName>) -> AsyncResult<'_, Vec<LockView>> {
        Box::pin(async move {
            let snapshots = self.inner.read_locks(&locks, 0).await?;
            let peek = |(name, snapshot): (&LockName, LockSnapshot)| {
                let view = LockView::peek(name, Some(&snapshot.lock(self.inner.limits())), snapshot.now);
                LockView { queue_length: snapshot.queue_length, ..view }
            };
            Ok(locks.iter().zip(snapshots).map(peek).collect())
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

    fn held_counts(&self, agents: Vec<String>) -> AsyncResult<'_, Vec<usize>> {
        Box::pin(async move {
            let count = |agent: &String| {
                let keys = self.inner.agent_keys(agent)?;
                Ok(command("SCARD", &keys.held_locks, NO_ARGS))
            };
            self.inner.query_all(agents.iter().map(count).collect::<Result<_>>()?).await
        })
    }

    fn sweep(&self) -> AsyncResult<'_, Vec<Deadlock>> {
        Box::pin(async move {
            self.inner.return_unreported().await;
            let deadlocks = self.inner.sweep().await;
            if !self.inner.is_deferred_work_running.swap(true, Ordering::SeqCst) {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    inner.run_deferred_work().await;
                    inner.return_unused_requests().await;
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
