//! Coordination on Redis: standalone, behind Sentinel, or a cluster. Any number of servers share it.
//!
//! A command to a lock is one script in the lock's own slot: the machine of `domain`, written a second time, with Redis'
//! clock. Whatever lies in other slots (indexes, registry) is written beside it and repaired by the sweep; nothing that
//! safety depends on reads it. No key is made of a string. No script is repeated that may have been carried out.

mod agents;
mod bare;
mod capacity;
mod clock;
mod deadlocks;
#[cfg(test)]
mod differential;
mod encoding;
mod hearing;
mod indexes;
mod jobs;
mod keys;
mod limits;
mod link;
mod locks;
mod reach;
mod requests;
mod scripts;
mod step;
mod sweep;
mod url;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{
    Answer, Deadlock, End, Holder, LockCommand, LockLimits, LockName, LockRefusal, Outcome, Standing,
};
use ade_keyspace::{Layout, RedisKey};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::sync::{Semaphore, broadcast};
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use bare::Bare;
pub use url::{InvalidUrl, RedisUrl};

use crate::coordination::{CoordinationError, LockEvent, Subscriptions};
use clock::StoreClock;
use encoding::Foreign;
use hearing::Hearing;
use keys::{AgentKeys, Built, LockKeys, SingleKeys};
use link::Link;
use scripts::Scripts;
use step::{Changed, Said};
use sweep::Later;

/// Events that may wait for a slow listener.
const EVENT_BACKLOG: usize = 4_096;
/// Locks of one call that are worked on at once; the others wait for their turn here, not in a queue of Redis.
const FEW_AT_ONCE: usize = 64;
/// The same for calls that cannot lead to a search: one that waits for a part of a cluster must not delay the rest.
const MANY_AT_ONCE: usize = 1_000;
/// How long replicas have to confirm a grant.
const ACKS_WITHIN: Duration = Duration::from_secs(1);

/// How the backend works.
#[derive(Debug, Clone)]
pub struct Options {
    /// What locks go by.
    pub rules: LockLimits,
    /// Agents that are known by their name only.
    pub max_named_agents: usize,
    /// Replicas that must confirm a grant; zero does not ask.
    pub min_replica_acks: u32,
    /// How far the clocks of two Redis servers may be apart.
    pub max_clock_skew: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rules: LockLimits::default(),
            max_named_agents: 10_000,
            min_replica_acks: 0,
            max_clock_skew: Duration::from_millis(250),
        }
    }
}

/// The backend; clones are the same one.
#[derive(Clone)]
pub struct RedisCoordination {
    inner: Arc<Inner>,
    _listening: Arc<Listening>,
}

/// Ends the task that listens to channels when the last clone is dropped.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Inner {
    options: Options,
    link: Link,
    scripts: Scripts,
    keys: SingleKeys,
    of_locks: Built<LockName, LockKeys>,
    of_agents: Built<String, AgentKeys>,
    clock: StoreClock,
    watchers: Subscriptions,
    hearing: Hearing,
    events: broadcast::Sender<Arc<LockEvent>>,
    /// Agents that were heard of here: when that was last written, and when it last was.
    told: Mutex<HashMap<String, (Instant, Moment)>>,
    /// Digests of holders that gave way in a deadlock and count as older than they look.
    aged: Mutex<HashSet<String>>,
    rounds: Mutex<sweep::Rounds>,
    /// Whether a task works off what the sweep left to it.
    working: AtomicBool,
    /// Connections on which somebody may wait to be called.
    listeners: Semaphore,
}

impl RedisCoordination {
    /// Connects, and begins to listen.
    pub async fn open(url: &RedisUrl, options: Options) -> Result<Self, CoordinationError> {
        let link_options =
            link::Options { max_clock_skew: options.max_clock_skew, ..link::Options::default() };
        let link = Link::open(url, link_options).await?;
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let watchers = Subscriptions::default();
        let hearing = Hearing::new(link.clone(), watchers.clone());
        let inner = Inner {
            scripts: Scripts::new(&options.rules),
            keys: SingleKeys::of(link.layout()),
            of_locks: Built::default(),
            of_agents: Built::default(),
            clock: StoreClock::default(),
            hearing,
            watchers,
            events,
            told: Mutex::default(),
            aged: Mutex::default(),
            rounds: Mutex::default(),
            working: AtomicBool::new(false),
            listeners: Semaphore::new(jobs::MOST_LISTENERS),
            options,
            link,
        };
        inner.ask_time().await?;
        inner.look_at_eviction().await?;
        // One call alone brings the library to a server that does not know it, before many do so at once.
        if let Ok(any) = "task:any".parse() {
            inner.see(&any, 1).await?;
        }
        let inner = Arc::new(inner);
        let listening = tokio::spawn(inner.hearing.clone().listen()).abort_handle();
        Ok(Self { inner, _listening: Arc::new(Listening(listening)) })
    }
}

impl Inner {
    fn layout(&self) -> Layout {
        self.link.layout()
    }

    fn in_cluster(&self) -> bool {
        self.layout() == Layout::Cluster
    }

    fn rules(&self) -> &LockLimits {
        &self.options.rules
    }

    fn lock_keys(&self, name: &LockName) -> Result<Arc<LockKeys>, CoordinationError> {
        self.of_locks.get(name, || LockKeys::of(name, self.layout()))
    }

    fn agent_keys(&self, agent_id: &str) -> Result<Arc<AgentKeys>, CoordinationError> {
        self.of_agents.get(agent_id, || AgentKeys::of(agent_id, self.layout()))
    }

    async fn ask_time(&self) -> Result<(), CoordinationError> {
        let value = self.ask(&self.keys.registry, redis::cmd("TIME")).await?;
        let parts = step::list(&value).map_err(foreign)?;
        let [seconds, micros] = parts else {
            return Err(foreign(Foreign::new("no time", format!("{value:?}"))));
        };
        let number = |value| {
            step::text(value).and_then(|text| text.parse::<u64>().map_err(|_| Foreign::new("no time", text)))
        };
        let (seconds, micros) = (number(seconds).map_err(foreign)?, number(micros).map_err(foreign)?);
        self.clock.heard(Moment::from_micros(seconds * 1_000_000 + micros));
        Ok(())
    }

    /// A lock that Redis throws away to make room is free although somebody holds it.
    async fn look_at_eviction(&self) -> Result<(), CoordinationError> {
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let answer = self.link.ask(&self.keys.registry, info).await?;
        let text = match &answer {
            Value::VerbatimString { text, .. } => text.as_str(),
            other => step::text(other).map_err(foreign)?,
        };
        let field =
            |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default();
        let (limit, policy) = (field("maxmemory:"), field("maxmemory_policy:"));
        if limit != "0" && policy != "noeviction" {
            tracing::warn!(
                policy,
                "Redis may evict locks that are held: set maxmemory-policy noeviction, or give locks a Redis of their own"
            );
        }
        Ok(())
    }

    /// One command to one lock, and everything that follows from it, except the search for deadlocks.
    async fn step(&self, name: &LockName, command: &LockCommand) -> Result<Said, CoordinationError> {
        let keys = self.lock_keys(name)?;
        let agent = command.holder().map(|holder| holder.agent_id());
        let of_agent = agent.map(|agent| self.agent_keys(agent)).transpose()?;
        let mut announced = false;
        if let LockCommand::Acquire(wish) = command
            && !self.hearing.knows(&keys.channel, wish.request)
        {
            self.announce(name, &keys, of_agent.as_deref(), wish).await?;
            announced = true;
        }
        let mut all: Vec<RedisKey> = keys.own.to_vec();
        if !self.in_cluster() {
            all.push(self.keys.registry.clone());
            // Commands that are about no holder touch no agent's index: the places are taken by something harmless.
            let (by_agent, waitfor) = of_agent
                .as_ref()
                .map_or((&self.keys.registry, &self.keys.registry), |of| (&of.by_agent, &of.waitfor));
            all.extend([by_agent.clone(), waitfor.clone()]);
            all.extend(keys.by_type.clone());
        }
        let args = step::arguments(name, keys.channel.as_str(), command);
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let must_ack = self.options.min_replica_acks > 0
            && matches!(command, LockCommand::Acquire(_) | LockCommand::Claim { .. });
        let said = if must_ack {
            self.step_acked(name, command, &all, &args).await?
        } else {
            Said::read(&self.link.call(self.scripts.of(command), &all, &args).await?).map_err(foreign)?
        };
        self.follow_up(name, &keys, agent, &said).await;
        if let Some(holder) = command.holder().filter(|_| holds_while_it_waits(command, &said)) {
            let held = [(name.clone(), holder.clone())];
            if let Err(error) = self.list_held(&held).await {
                tracing::debug!(%error, "an index of locks cannot be written; the next sign of life does");
            }
        }
        if let LockCommand::Acquire(wish) = command {
            let of_agent = of_agent.as_deref();
            let done = if announced {
                self.announced(name, &keys, of_agent, wish, &said).await
            } else if said.changed.iter().any(|change| change.begins_for(&wish.holder)) {
                // It had lost its place without knowing, and begins anew.
                match self.announce(name, &keys, of_agent, wish).await {
                    Ok(()) => self.announced(name, &keys, of_agent, wish, &said).await,
                    failed => failed,
                }
            } else {
                Ok(())
            };
            if let Err(error) = done {
                tracing::warn!(%error, "indexes of locks cannot be written; the sweep repairs them");
            }
        }
        Ok(said)
    }

    /// Runs the script, and takes the grant back if too few replicas have it.
    async fn step_acked(
        &self,
        name: &LockName,
        command: &LockCommand,
        keys: &[RedisKey],
        args: &[&[u8]],
    ) -> Result<Said, CoordinationError> {
        let wanted = self.options.min_replica_acks;
        let script = self.scripts.of(command);
        let (value, acks) = self.link.call_acked(script, keys, args, wanted, ACKS_WITHIN).await?;
        let said = Said::read(&value).map_err(foreign)?;
        // What was held before, by whichever request, was confirmed when it began.
        let begins = |change: &Changed| matches!(change, Changed::Granted { holder, .. } | Changed::Claimed { holder } if Some(holder) == command.holder());
        if acks >= wanted || !said.changed.iter().any(begins) {
            return Ok(said);
        }
        let (holder, request) = match command {
            LockCommand::Acquire(wish) => (wish.holder.clone(), wish.request),
            LockCommand::Claim { holder, request, .. } => (holder.clone(), *request),
            _ => return Ok(said),
        };
        let why = End::Refused;
        let given_back =
            Box::pin(self.step(name, &LockCommand::Cancel { holder, request, why, begun: true })).await?;
        tracing::warn!(lock = %name, acks, wanted, "too few replicas had a grant in time; it was given back");
        let outcome = match command {
            LockCommand::Acquire(_) => {
                Outcome::Standing(Standing::Refused(LockRefusal::Unconfirmed { acks, wanted }))
            }
            _ => Outcome::Lost,
        };
        Ok(Said { outcome, changed: Vec::new(), ..given_back })
    }

    /// Tells those who wait or listen, and writes what the script could not reach.
    async fn follow_up(&self, name: &LockName, keys: &LockKeys, agent: Option<&str>, said: &Said) {
        self.clock.heard(said.now);
        for change in &said.changed {
            match change {
                Changed::Granted { requests, .. } => {
                    requests.iter().for_each(|request| self.watchers.wake(*request));
                }
                Changed::Left { request, .. } => self.watchers.wake(*request),
                _ => {}
            }
            if self.events.receiver_count() > 0
                && let Some(event) = change.event()
            {
                let happening = LockEvent { lock: name.clone(), at: said.now, event };
                // Nobody listens any more: then nobody misses it.
                let _ = self.events.send(Arc::new(happening));
            }
        }
        let updates: Vec<(RedisKey, Cmd)> = match self.index_updates(keys, agent, &said.changed) {
            Ok(updates) if updates.is_empty() => return,
            Ok(updates) => updates,
            Err(error) => {
                return tracing::warn!(%error, "indexes of locks cannot be written; the sweep repairs them");
            }
        };
        for answer in self.link.ask_all(updates).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "indexes of locks cannot be written; the sweep repairs them");
                return;
            }
        }
    }

    async fn ask(&self, key: &RedisKey, command: Cmd) -> Result<Value, CoordinationError> {
        self.link.ask(key, command).await.map(step::plain)
    }

    /// Asks all at once; the first failure is the answer.
    async fn ask_each(&self, questions: Vec<(RedisKey, Cmd)>) -> Result<Vec<Value>, CoordinationError> {
        self.link.ask_all(questions).await.into_iter().map(|answer| answer.map(step::plain)).collect()
    }

    /// Commands to locks: those of one lock one after the other, different locks at once.
    async fn run(&self, commands: Vec<(LockName, LockCommand)>) -> Result<Vec<Answer>, CoordinationError> {
        if let [(name, command)] = commands.as_slice() {
            return Ok(vec![self.command(name, command).await?]);
        }
        let mut by_lock: HashMap<&LockName, Vec<(usize, &LockCommand)>> = HashMap::new();
        for (number, (name, command)) in commands.iter().enumerate() {
            by_lock.entry(name).or_default().push((number, command));
        }
        let mut answers = Vec::with_capacity(commands.len());
        let searches = |(_, command): &(LockName, LockCommand)| matches!(command, LockCommand::Acquire(_));
        let at_once = if commands.iter().any(searches) { FEW_AT_ONCE } else { MANY_AT_ONCE };
        let mut failed = None;
        let mut by_lock = by_lock.into_iter();
        loop {
            let some: Vec<_> = by_lock.by_ref().take(at_once).collect();
            if some.is_empty() {
                break;
            }
            let some = some.into_iter().map(|(name, commands)| self.in_order(name, commands));
            for of_one in join_all(some).await {
                match of_one {
                    Ok(of_one) => answers.extend(of_one),
                    Err(error) => failed = Some(error),
                }
            }
        }
        // A part of a cluster that is away must not keep the others from being heard of: all are sent, then it is told.
        if let Some(error) = failed {
            return Err(error);
        }
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    async fn in_order(
        &self,
        name: &LockName,
        commands: Vec<(usize, &LockCommand)>,
    ) -> Result<Vec<(usize, Answer)>, CoordinationError> {
        let mut answers = Vec::with_capacity(commands.len());
        for (number, command) in commands {
            answers.push((number, self.command(name, command).await?));
        }
        Ok(answers)
    }

    /// Whether whatever happens to this acquisition from now on will be heard of.
    fn hears_of(&self, name: &LockName, command: &LockCommand) -> Result<bool, CoordinationError> {
        let LockCommand::Acquire(wish) = command else { return Ok(false) };
        if wish.wait.is_none() {
            return Ok(false);
        }
        let keys = self.lock_keys(name)?;
        Ok(self.hearing.join(&keys.channel, wish.holder.agent_id(), wish.request))
    }

    /// A command to one lock, and the end of every cycle that its waiting closed.
    async fn command(&self, name: &LockName, command: &LockCommand) -> Result<Answer, CoordinationError> {
        let heard = self.hears_of(name, command)?;
        let said = self.step(name, command).await?;
        let mut outcome = said.outcome;
        let mut deadlocks: Vec<Deadlock> = Vec::new();
        for change in &said.changed {
            if let Changed::Queued { holder } | Changed::Back { holder } = change {
                let is_last = matches!(change, Changed::Queued { .. });
                let is_last = is_last && !took_a_place(&said.changed, holder);
                match self.end_deadlocks(holder, name, is_last).await {
                    Ok(ended) => deadlocks.extend(ended),
                    // A part of the graph is away. Whoever queued stands in the queue all the same; the search is repeated.
                    Err(error) => {
                        tracing::debug!(%holder, %error, "waits cannot be searched now; later");
                        locked(&self.rounds).later.push(Later::Search(holder.clone(), name.clone()));
                    }
                }
            }
        }
        let acquires = matches!(command, LockCommand::Acquire(_));
        if acquires && !deadlocks.is_empty() {
            // Somebody gave way: the request may hold the lock by now, or have been the one that gave way.
            outcome = self.step(name, command).await?.outcome;
        }
        if let (LockCommand::Acquire(wish), Outcome::Standing(Standing::Waiting { .. })) = (command, &outcome)
        {
            let keys = self.lock_keys(name)?;
            if heard {
                self.hearing.stays(&keys.channel, wish.request);
            } else if self.hearing.follow(&keys.channel, wish.holder.agent_id(), wish.request).await {
                // What happened before we could hear it is seen now.
                outcome = self.step(name, command).await?.outcome;
            }
        }
        if let (LockCommand::Extend { .. }, Outcome::Kept(_)) = (command, &outcome) {
            locked(&self.rounds).alive.extend(command.holder().map(|holder| (name.clone(), holder.clone())));
        }
        if let (LockCommand::Release { holder, .. }, Outcome::Done) = (command, &outcome) {
            self.forget_age(holder).await;
        }
        Ok(Answer { outcome, deadlocks })
    }
}

/// Whether a command is of a request that holds this lock already while it waits for another: what it holds must be found by
/// whoever searches for deadlocks, and whoever granted it may not have been able to write it down.
fn holds_while_it_waits(command: &LockCommand, said: &Said) -> bool {
    match (command, &said.outcome) {
        (LockCommand::Acquire(wish), Outcome::Standing(Standing::Held(grant))) => {
            !wish.claimed && !grant.claimed
        }
        (LockCommand::Keep { .. }, Outcome::Kept(_)) => true,
        _ => false,
    }
}

/// Whether a newer request of a holder stands where its older one stood.
fn took_a_place(changed: &[Changed], holder: &Holder) -> bool {
    changed.iter().any(|change| matches!(change, Changed::Left { holder: of, .. } if of == holder))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn foreign(error: Foreign) -> CoordinationError {
    CoordinationError(error.to_string())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for RedisCoordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnRedis").finish_non_exhaustive()
    }
}
