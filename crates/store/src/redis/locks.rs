//! Locks as people see them, on Redis: one at one moment, lists, waits, counts. And the port itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ade_domain::Moment;
use ade_domain::lock::{
    Answer, Change, Deadlock, Hold, Lock, LockCommand, LockLimits, LockName, RequestKey, Waiter,
};
use ade_keyspace::RedisKey;
use futures_util::future::try_join_all;
use redis::Value;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::encoding::{self, Foreign};
use super::indexes::remove_from_index;
use super::keys::{self, Named};
use super::{Inner, RedisCoordination, foreign, locked, step};
use crate::coordination::{
    CoordinationError, Counts, Filter, LockEvent, LockView, Locks, Reply, Subscription, WaitView,
};

/// Holders and waiters of each lock in a list.
const SHOWN_IN_LIST: usize = 20;
/// Locks that are read at once.
const READ_AT_ONCE: usize = 200;
/// Members of an index that one question asks for.
const PAGE: usize = 5_000;
/// Counting more locks than this is not repeated for a while.
const COUNT_SELDOM: usize = 1_000;
/// That while.
const COUNTED_FOR: std::time::Duration = std::time::Duration::from_secs(5);

/// A lock at one moment, with the first of its queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) now: Moment,
    pub(super) holds: Vec<Hold>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) waiting: usize,
}

impl Seen {
    fn read(value: &Value) -> Result<Self, Foreign> {
        let [now, fields, queue, waiting] = step::list(value)? else {
            return Err(Foreign::new("a lock", format!("{value:?}")));
        };
        let fields: HashMap<&str, &str> = step::list(fields)?
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[field, value]| Ok((step::text(field)?, step::text(value)?)))
            .collect::<Result<_, Foreign>>()?;
        let mut holds = Vec::new();
        let mut befores = Vec::new();
        for (field, value) in &fields {
            match field.split_at_checked(2) {
                Some(("h:", who)) => {
                    let part = |kind: &str| {
                        fields.get(format!("{kind}:{who}").as_str()).copied().unwrap_or_default()
                    };
                    holds.push(encoding::hold(&format!("{value} {} {}", part("r"), part("a")))?);
                }
                Some(("b:", _)) => befores.push(encoding::hold(value)?),
                _ => {}
            }
        }
        for before in befores {
            if let Some(hold) = holds.iter_mut().find(|hold| hold.holder == before.holder) {
                hold.before = Some(Box::new(before));
            }
        }
        let waiter = |[member, score]: &[Value; 2]| {
            let score = step::text(score)?;
            let score = score.parse().map_err(|_| Foreign::new("a score", score))?;
            encoding::waiter(step::text(member)?, score)
        };
        let waiters = step::list(queue)?.as_chunks::<2>().0.iter().map(waiter).collect::<Result<_, _>>()?;
        Ok(Self { now: step::moment(now)?, holds, waiters, waiting: step::number(waiting)? })
    }

    /// The changes that make this lock.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> {
        let granted = self.holds.iter().cloned().map(Change::Granted);
        granted.chain(self.waiters.iter().cloned().map(Change::Queued))
    }

    pub(super) fn is_held_by(&self, agent: &str) -> bool {
        self.holds.iter().any(|hold| hold.holder.agent_id() == agent)
    }

    fn is_waited_for_by(&self, agent: &str) -> bool {
        self.waiters.iter().any(|waiter| waiter.holder.agent_id() == agent)
    }

    pub(super) fn lock(&self, rules: &LockLimits) -> Lock {
        let mut lock = Lock::default();
        self.changes().for_each(|change| lock.apply(&change, rules));
        lock
    }

    fn view(&self, name: &LockName, rules: &LockLimits, most: usize) -> LockView {
        let view = LockView::of(name, Some(&self.lock(rules)), most);
        LockView { queue_length: self.waiting, ..view }
    }
}

impl Inner {
    /// A lock as it is, with so many of its waiters.
    pub(super) async fn see(&self, name: &LockName, most: usize) -> Result<Seen, CoordinationError> {
        let keys = self.lock_keys(name)?;
        let last = match most {
            0 => String::new(),
            usize::MAX => "-1".to_owned(),
            most => (most - 1).to_string(),
        };
        let pair = [keys.lock().clone(), keys.queue().clone()];
        let value = self.link.call(&self.scripts.look, &pair, &[last.as_bytes()]).await?;
        let seen = Seen::read(&value).map_err(foreign)?;
        self.clock.heard(seen.now);
        Ok(seen)
    }

    pub(super) async fn see_all(
        &self,
        names: &[LockName],
        most: usize,
    ) -> Result<Vec<Seen>, CoordinationError> {
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(READ_AT_ONCE) {
            all.extend(try_join_all(some.iter().map(|name| self.see(name, most))).await?);
        }
        Ok(all)
    }

    /// The names behind keys of locks, each with its key; what is no lock, or has lost its name, is left out.
    pub(super) async fn resolve(
        &self,
        lock_keys: Vec<String>,
    ) -> Result<Vec<(String, LockName)>, CoordinationError> {
        let mut names = Vec::with_capacity(lock_keys.len());
        let mut long = Vec::new();
        for key in lock_keys {
            match keys::name_of(&key) {
                Named::Name(name) => names.push((key, name)),
                Named::Long => long.push(key),
                Named::NotALock => {}
            }
        }
        for some in long.chunks(READ_AT_ONCE) {
            let mut ask = redis::cmd("HMGET");
            ask.arg(self.keys.names.as_str()).arg(some);
            let found = self.ask(&self.keys.names, ask).await?;
            for (key, name) in some.iter().zip(step::list(&found).map_err(foreign)?) {
                let name =
                    if *name == Value::Nil { None } else { step::text(name).map_err(foreign)?.parse().ok() };
                names.extend(name.map(|name| (key.clone(), name)));
            }
        }
        Ok(names)
    }

    pub(super) async fn members(&self, index: &RedisKey) -> Result<Vec<LockName>, CoordinationError> {
        let mut ask = redis::cmd("SMEMBERS");
        ask.arg(index.as_str());
        let members = texts(&self.ask(index, ask).await?)?;
        Ok(self.resolve(members).await?.into_iter().map(|(_, name)| name).collect())
    }

    /// The same, and those that do not belong there any more leave it.
    async fn members_of(
        &self,
        index: &RedisKey,
        belongs: impl Fn(&Seen) -> bool,
    ) -> Result<Vec<LockName>, CoordinationError> {
        let names = self.members(index).await?;
        let (mut found, mut stale) = (Vec::new(), Vec::new());
        for (name, seen) in names.iter().zip(self.see_all(&names, usize::MAX).await?) {
            if belongs(&seen) {
                found.push(name.clone());
            } else {
                stale.push(remove_from_index(index, self.lock_keys(name)?.lock()));
            }
        }
        self.ask_each(stale).await?;
        Ok(found)
    }

    /// Every lock in the registry.
    async fn registered(&self) -> Result<Vec<LockName>, CoordinationError> {
        let mut names = Vec::new();
        for page in 0.. {
            let mut ask = redis::cmd("ZRANGE");
            ask.arg(self.keys.registry.as_str()).arg(page * PAGE).arg((page + 1) * PAGE - 1);
            let members = texts(&self.ask(&self.keys.registry, ask).await?)?;
            let is_last = members.len() < PAGE;
            names.extend(self.resolve(members).await?.into_iter().map(|(_, name)| name));
            if is_last {
                break;
            }
        }
        Ok(names)
    }

    async fn find(
        &self,
        filter: &Filter,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<LockView>, CoordinationError> {
        let names = match (&filter.agent, &filter.resource_type) {
            (Some(agent), _) => {
                let keys = self.agent_keys(agent)?;
                let mut names = self.members_of(&keys.by_agent, |seen| seen.is_held_by(agent)).await?;
                names.extend(self.members_of(&keys.waitfor, |seen| seen.is_waited_for_by(agent)).await?);
                names
            }
            (None, Some(of_type)) => self.members(&keys::by_type(of_type, self.layout())?).await?,
            (None, None) => self.registered().await?,
        };
        let wanted = |name: &LockName| {
            after.is_none_or(|after| name > after)
                && filter.kind.is_none_or(|kind| name.kind() == kind)
                && filter.resource_type.as_deref().is_none_or(|of_type| name.resource_type() == Some(of_type))
        };
        let names: BTreeSet<LockName> = names.into_iter().filter(wanted).collect();
        let names: Vec<LockName> = names.into_iter().collect();
        let most = if filter.agent.is_some() { usize::MAX } else { SHOWN_IN_LIST };
        let mut views = Vec::new();
        for some in names.chunks(limit.clamp(1, READ_AT_ONCE)) {
            for (name, seen) in some.iter().zip(self.see_all(some, most).await?) {
                if filter.admits(name, &seen.lock(self.rules())) {
                    views.push(seen.view(name, self.rules(), SHOWN_IN_LIST));
                }
                if views.len() == limit {
                    return Ok(views);
                }
            }
        }
        Ok(views)
    }

    async fn all_waits(&self, limit: usize) -> Result<Vec<WaitView>, CoordinationError> {
        let mut views = Vec::new();
        for some in self.registered().await?.chunks(READ_AT_ONCE) {
            let waited_for = self.with_queue(some).await?;
            for (name, seen) in waited_for.iter().zip(self.see_all(&waited_for, usize::MAX).await?) {
                let lock = seen.lock(self.rules());
                let view = |waiter: &Waiter| {
                    let (waiter, ahead) = lock.wait_and_ahead(&waiter.holder)?;
                    let ahead =
                        ahead.into_iter().take(SHOWN_IN_LIST).map(|waiter| waiter.holder.clone()).collect();
                    let holders =
                        lock.holds().iter().take(SHOWN_IN_LIST).map(|hold| hold.holder.clone()).collect();
                    let (holder, request) = (waiter.holder.clone(), waiter.request);
                    Some(WaitView { holder, lock: name.clone(), mode: waiter.mode, request, holders, ahead })
                };
                views.extend(seen.waiters.iter().filter_map(view));
                if views.len() >= limit {
                    views.truncate(limit);
                    return Ok(views);
                }
            }
        }
        views.sort_by(|a, b| (&a.holder, &a.lock).cmp(&(&b.holder, &b.lock)));
        Ok(views)
    }

    /// Those of the locks that somebody waits for.
    pub(super) async fn with_queue(&self, names: &[LockName]) -> Result<Vec<LockName>, CoordinationError> {
        let lengths = self.queue_lengths(names).await?;
        let waited_for = names.iter().zip(lengths).filter(|(_, length)| *length > 0);
        Ok(waited_for.map(|(name, _)| name.clone()).collect())
    }

    pub(super) async fn queue_lengths(&self, names: &[LockName]) -> Result<Vec<usize>, CoordinationError> {
        let mut questions = Vec::with_capacity(names.len());
        for name in names {
            let queue = self.lock_keys(name)?.queue().clone();
            let mut count = redis::cmd("ZCARD");
            count.arg(queue.as_str());
            questions.push((queue, count));
        }
        let answers = self.ask_each(questions).await?;
        answers.iter().map(|answer| step::number(answer).map_err(foreign)).collect()
    }

    async fn count(&self) -> Result<Counts, CoordinationError> {
        if let Some((counts, at)) = locked(&self.rounds).counted
            && at.elapsed() < COUNTED_FOR
        {
            return Ok(counts);
        }
        let mut counts = Counts::default();
        let names = self.registered().await?;
        for some in names.chunks(READ_AT_ONCE) {
            counts.waiting += self.queue_lengths(some).await?.into_iter().sum::<usize>();
            let mut questions = Vec::with_capacity(some.len());
            for name in some {
                let lock = self.lock_keys(name)?.lock().clone();
                let mut ask = redis::cmd("HGET");
                ask.arg(lock.as_str()).arg("n");
                questions.push((lock, ask));
            }
            for held in self.ask_each(questions).await? {
                counts.held += if held == Value::Nil { 0 } else { step::number(&held).map_err(foreign)? };
            }
        }
        let mut agents = redis::cmd("ZCARD");
        agents.arg(self.keys.agents.as_str());
        counts.agents = step::number(&self.ask(&self.keys.agents, agents).await?).map_err(foreign)?;
        if names.len() > COUNT_SELDOM {
            locked(&self.rounds).counted = Some((counts, Instant::now()));
        }
        Ok(counts)
    }
}

pub(super) fn texts(value: &Value) -> Result<Vec<String>, CoordinationError> {
    let parts = step::list(value).map_err(foreign)?;
    parts.iter().map(|part| Ok(step::text(part).map_err(foreign)?.to_owned())).collect()
}

impl Locks for RedisCoordination {
    fn commands(&self, commands: Vec<(LockName, LockCommand)>) -> Reply<'_, Vec<Answer>> {
        Box::pin(async move { self.inner.run(commands).await })
    }

    fn look(&self, lock: LockName) -> Reply<'_, LockView> {
        Box::pin(async move {
            // What is due happens first, so that nobody is shown who holds no more.
            let Answer { deadlocks, .. } = self.inner.command(&lock, &LockCommand::Tick).await?;
            locked(&self.inner.rounds).untold.extend(deadlocks);
            let seen = self.inner.see(&lock, usize::MAX).await?;
            Ok(seen.view(&lock, self.inner.rules(), usize::MAX))
        })
    }

    fn list(&self, filter: Filter, after: Option<LockName>, limit: usize) -> Reply<'_, Vec<LockView>> {
        Box::pin(async move { self.inner.find(&filter, after.as_ref(), limit).await })
    }

    fn waits(&self, limit: usize) -> Reply<'_, Vec<WaitView>> {
        Box::pin(async move { self.inner.all_waits(limit).await })
    }

    fn counts(&self) -> Reply<'_, Counts> {
        Box::pin(async move { self.inner.count().await })
    }

    fn sweep(&self) -> Reply<'_, Vec<Deadlock>> {
        Box::pin(async move {
            let swept = self.inner.sweep().await;
            if !self.inner.working.swap(true, Ordering::SeqCst) {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move {
                    inner.work_off().await;
                    inner.working.store(false, Ordering::SeqCst);
                });
            }
            swept
        })
    }

    fn watch(&self, request: RequestKey) -> Subscription {
        self.inner.watchers.watch(request)
    }

    fn events(&self) -> broadcast::Receiver<Arc<LockEvent>> {
        self.inner.events.subscribe()
    }

    fn rules(&self) -> &LockLimits {
        self.inner.rules()
    }

    fn now(&self) -> Moment {
        self.inner.clock.now()
    }
}
