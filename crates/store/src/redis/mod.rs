//! Coordination on Redis: standalone, behind Sentinel, or a cluster. Any number of servers share it.
//!
//! A command to a lock is one script in the lock's own slot: the machine of `domain`, written a second time, with Redis'
//! clock. Whatever lies in other slots (indexes, registry) is written beside it and repaired by the sweep; nothing that
//! safety depends on reads it. No key is made of a string. No script is repeated that may have been carried out.

mod agents;
mod bare;
mod clock;
mod deadlocks;
#[cfg(test)]
mod differential;
mod hearing;
mod keys;
mod link;
mod locks;
mod record;
mod requests;
mod step;
mod sweep;
mod url;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{Acquire, Answer, Command, Deadlock, End, Holder, LockName, Outcome, Rules, Standing};
use ade_keyspace::{Layout, RedisKey};
use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use bare::Bare;
pub use url::{InvalidUrl, RedisUrl};

use crate::coordination::{Happening, Unavailable, Watchers};
use clock::StoreClock;
use hearing::Hearing;
use keys::{AgentKeys, Built, LockKeys, SingleKeys};
use link::{Link, Script};
use record::Foreign;
use step::{Changed, Said};

/// Events that may wait for a slow listener.
const EVENT_BACKLOG: usize = 4_096;
/// Locks of one call that are worked on at once; the others wait for their turn here, not in a queue of Redis.
const AT_ONCE: usize = 64;
/// How long replicas have to confirm a grant.
const ACKS_WITHIN: Duration = Duration::from_secs(1);

/// How the backend works.
#[derive(Debug, Clone)]
pub struct Options {
    /// What locks go by.
    pub rules: Rules,
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
            rules: Rules::default(),
            max_named_agents: 10_000,
            min_replica_acks: 0,
            max_clock_skew: Duration::from_millis(250),
        }
    }
}

/// The backend; clones are the same one.
#[derive(Clone)]
pub struct OnRedis {
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
    watchers: Watchers,
    hearing: Hearing,
    events: broadcast::Sender<Arc<Happening>>,
    /// Agents that were heard of here: when that was last written, and when it last was.
    told: Mutex<HashMap<String, (Instant, Moment)>>,
    /// Digests of holders that gave way in a deadlock and count as older than they look.
    aged: Mutex<HashSet<String>>,
    rounds: Mutex<sweep::Rounds>,
}

struct Scripts {
    step: Script,
    look: Script,
    enlist: Script,
    revise: Script,
    forget_names: Script,
    put_agent: Script,
    hear_agent: Script,
    admit: Script,
}

impl Scripts {
    fn new(rules: &Rules) -> Self {
        let functions =
            ["step", "look", "enlist", "revise", "forget_names", "put_agent", "hear_agent", "admit"];
        let [step, look, enlist, revise, forget_names, put_agent, hear_agent, admit] =
            Script::library(&step::library(rules), functions);
        Self { step, look, enlist, revise, forget_names, put_agent, hear_agent, admit }
    }
}

impl OnRedis {
    /// Connects, and begins to listen.
    ///
    /// # Errors
    /// Redis does not answer.
    pub async fn open(url: &RedisUrl, options: Options) -> Result<Self, Unavailable> {
        let link_options =
            link::Options { max_clock_skew: options.max_clock_skew, ..link::Options::default() };
        let link = Link::open(url, link_options).await?;
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let watchers = Watchers::default();
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
            options,
            link,
        };
        inner.ask_time().await?;
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

    fn rules(&self) -> &Rules {
        &self.options.rules
    }

    fn lock_keys(&self, name: &LockName) -> Result<Arc<LockKeys>, Unavailable> {
        self.of_locks.get(name, || LockKeys::of(name, self.layout()))
    }

    fn agent_keys(&self, agent_id: &str) -> Result<Arc<AgentKeys>, Unavailable> {
        self.of_agents.get(agent_id, || AgentKeys::of(agent_id, self.layout()))
    }

    async fn ask_time(&self) -> Result<(), Unavailable> {
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

    /// One command to one lock, and everything that follows from it, except the search for deadlocks.
    async fn step(&self, name: &LockName, command: &Command) -> Result<Said, Unavailable> {
        let keys = self.lock_keys(name)?;
        let agent = command.holder().map(|holder| holder.agent_id());
        let of_agent = agent.map(|agent| self.agent_keys(agent)).transpose()?;
        if let Command::Acquire(wish) = command {
            self.announce(name, &keys, of_agent.as_deref(), wish).await?;
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
            && matches!(command, Command::Acquire(_) | Command::Claim { .. });
        let said = if must_ack {
            self.step_acked(name, command, &all, &args).await?
        } else {
            Said::read(&self.link.call(&self.scripts.step, &all, &args).await?).map_err(foreign)?
        };
        self.follow_up(name, &keys, agent, &said).await;
        if let Command::Acquire(wish) = command
            && let Err(error) = self.announced(name, &keys, of_agent.as_deref(), wish, &said).await
        {
            tracing::warn!(%error, "indexes of locks cannot be written; the sweep repairs them");
        }
        Ok(said)
    }

    /// Runs the script, and takes the grant back if too few replicas have it.
    async fn step_acked(
        &self,
        name: &LockName,
        command: &Command,
        keys: &[RedisKey],
        args: &[&[u8]],
    ) -> Result<Said, Unavailable> {
        let wanted = self.options.min_replica_acks;
        let (value, acks) = self.link.call_acked(&self.scripts.step, keys, args, wanted, ACKS_WITHIN).await?;
        let said = Said::read(&value).map_err(foreign)?;
        let granted = matches!(said.outcome, Outcome::Standing(Standing::Held(_)) | Outcome::Kept(_));
        if !granted || acks >= wanted {
            return Ok(said);
        }
        let (holder, request) = match command {
            Command::Acquire(wish) => (wish.holder.clone(), wish.request),
            Command::Claim { holder, request, .. } => (holder.clone(), *request),
            _ => return Ok(said),
        };
        let why = End::Refused;
        Box::pin(self.step(name, &Command::Cancel { holder, request, why, begun: true })).await?;
        Err(Unavailable(format!(
            "only {acks} of {wanted} replicas have the grant of {name}, so it was given back"
        )))
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
                let happening = Happening { lock: name.clone(), at: said.now, event };
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

    /// What the script left to us: on a cluster every index, elsewhere those of agents other than the caller's.
    fn index_updates(
        &self,
        keys: &LockKeys,
        agent: Option<&str>,
        changed: &[Changed],
    ) -> Result<Vec<(RedisKey, Cmd)>, Unavailable> {
        let mut updates = Vec::new();
        let (lock, ttl) = (keys.lock(), step::index_ms(self.rules()));
        for change in changed {
            let (Changed::Granted { holder, .. }
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
                    if *last_wait && !queues_again(changed, holder) {
                        updates.push(remove_from_index(&of.waitfor, lock));
                    }
                }
                Changed::Freed { last_hold: true, .. } => updates.push(remove_from_index(&of.by_agent, lock)),
                Changed::Left { last_wait: true, .. } if !queues_again(changed, holder) => {
                    updates.push(remove_from_index(&of.waitfor, lock));
                }
                _ => {}
            }
        }
        Ok(updates)
    }

    /// What must be known before a lock is taken or waited for: on a cluster that the sweep has to look at it, and that
    /// its holder waits for it; everywhere its name, if its key does not tell it. A stale entry does no harm.
    async fn announce(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        wish: &Acquire,
    ) -> Result<(), Unavailable> {
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
    async fn announced(
        &self,
        name: &LockName,
        keys: &LockKeys,
        agent: Option<&AgentKeys>,
        wish: &Acquire,
        said: &Said,
    ) -> Result<(), Unavailable> {
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

    async fn enlist(&self, lock: &RedisKey, due: Moment) -> Result<(), Unavailable> {
        let args = [lock.as_str().to_owned(), seconds(due)];
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        self.link.call(&self.scripts.enlist, std::slice::from_ref(&self.keys.registry), &args).await.map(drop)
    }

    async fn ask(&self, key: &RedisKey, command: Cmd) -> Result<Value, Unavailable> {
        self.link.ask(key, command).await.map(step::plain)
    }

    /// Asks all at once; the first failure is the answer.
    async fn ask_each(&self, questions: Vec<(RedisKey, Cmd)>) -> Result<Vec<Value>, Unavailable> {
        self.link.ask_all(questions).await.into_iter().map(|answer| answer.map(step::plain)).collect()
    }

    /// Commands to locks: those of one lock one after the other, different locks at once.
    async fn run(&self, commands: Vec<(LockName, Command)>) -> Result<Vec<Answer>, Unavailable> {
        if let [(name, command)] = commands.as_slice() {
            return Ok(vec![self.command(name, command).await?]);
        }
        let mut by_lock: HashMap<&LockName, Vec<(usize, &Command)>> = HashMap::new();
        for (number, (name, command)) in commands.iter().enumerate() {
            by_lock.entry(name).or_default().push((number, command));
        }
        let mut answers = Vec::with_capacity(commands.len());
        let mut by_lock = by_lock.into_iter();
        loop {
            let some: Vec<_> = by_lock.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let some = some.into_iter().map(|(name, commands)| self.in_order(name, commands));
            for of_one in join_all(some).await {
                answers.extend(of_one?);
            }
        }
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    async fn in_order(
        &self,
        name: &LockName,
        commands: Vec<(usize, &Command)>,
    ) -> Result<Vec<(usize, Answer)>, Unavailable> {
        let mut answers = Vec::with_capacity(commands.len());
        for (number, command) in commands {
            answers.push((number, self.command(name, command).await?));
        }
        Ok(answers)
    }

    /// Whether whatever happens to this acquisition from now on will be heard of.
    fn hears_of(&self, name: &LockName, command: &Command) -> Result<bool, Unavailable> {
        let Command::Acquire(wish) = command else { return Ok(false) };
        if wish.wait.is_none() {
            return Ok(false);
        }
        let keys = self.lock_keys(name)?;
        Ok(self.hearing.join(&keys.channel, wish.holder.agent_id(), wish.request))
    }

    /// A command to one lock, and the end of every cycle that its waiting closed.
    async fn command(&self, name: &LockName, command: &Command) -> Result<Answer, Unavailable> {
        let heard = self.hears_of(name, command)?;
        let said = self.step(name, command).await?;
        let mut outcome = said.outcome;
        let mut deadlocks: Vec<Deadlock> = Vec::new();
        for change in &said.changed {
            if let Changed::Queued { holder } | Changed::Back { holder } = change {
                let is_last = matches!(change, Changed::Queued { .. });
                let is_last = is_last && !took_a_place(&said.changed, holder);
                deadlocks.extend(self.end_deadlocks(holder, name, is_last).await?);
            }
        }
        let acquires = matches!(command, Command::Acquire(_));
        if acquires && !deadlocks.is_empty() {
            // Somebody gave way: the request may hold the lock by now, or have been the one that gave way.
            outcome = self.step(name, command).await?.outcome;
        }
        if let (false, Command::Acquire(wish), Outcome::Standing(Standing::Waiting { .. })) =
            (heard, command, &outcome)
        {
            let keys = self.lock_keys(name)?;
            if self.hearing.follow(&keys.channel, wish.holder.agent_id(), wish.request).await {
                // What happened before we could hear it is seen now.
                outcome = self.step(name, command).await?.outcome;
            }
        }
        if let (Command::Extend { .. }, Outcome::Kept(_)) = (command, &outcome) {
            locked(&self.rounds).alive.insert(name.clone());
        }
        if let (Command::Release { holder, .. }, Outcome::Done) = (command, &outcome) {
            self.forget_age(holder).await;
        }
        Ok(Answer { outcome, deadlocks })
    }
}

/// Whether somebody of the same agent queued in the same step.
fn queues_again(changed: &[Changed], holder: &Holder) -> bool {
    changed
        .iter()
        .any(|change| matches!(change, Changed::Queued { holder: of } if of.agent_id() == holder.agent_id()))
}

/// Whether a newer request of a holder stands where its older one stood.
fn took_a_place(changed: &[Changed], holder: &Holder) -> bool {
    changed.iter().any(|change| matches!(change, Changed::Left { holder: of, .. } if of == holder))
}

fn add_to_index(index: &RedisKey, lock: &RedisKey, ttl_ms: u64) -> [(RedisKey, Cmd); 2] {
    let (mut add, mut expire) = (redis::cmd("SADD"), redis::cmd("PEXPIRE"));
    add.arg(index.as_str()).arg(lock.as_str());
    expire.arg(index.as_str()).arg(ttl_ms);
    [(index.clone(), add), (index.clone(), expire)]
}

fn remove_from_index(index: &RedisKey, lock: &RedisKey) -> (RedisKey, Cmd) {
    let mut remove = redis::cmd("SREM");
    remove.arg(index.as_str()).arg(lock.as_str());
    (index.clone(), remove)
}

/// A moment as a score of the registry.
fn seconds(moment: Moment) -> String {
    let micros = moment.micros();
    format!("{}.{:03}", micros / 1_000_000, micros / 1_000 % 1_000)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn foreign(error: Foreign) -> Unavailable {
    Unavailable(error.to_string())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for OnRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnRedis").finish_non_exhaustive()
    }
}
