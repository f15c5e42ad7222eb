//! Coordination on Redis: standalone, behind Sentinel, or as a cluster, shared by any number of servers.
//!
//! A lock command is one step of a script, in the slot of the lock. The script implements the state machine of the `domain`
//! crate with the clock of Redis. Data in other slots (indexes, registry) is written separately and repaired by the
//! sweep; safety never depends on it. Keys are never formatted from strings. A script that may have been applied is
//! never repeated.

mod agents;
mod announcements;
mod capacity;
mod clock;
mod command;
mod connection;
mod deadlocks;
mod encoding;
mod indexes;
mod keys;
mod locks;
mod name_indexes;
pub mod projections;
mod query;
mod rate_limits;
mod requests;
mod scripts;
mod steps;
mod sweep;
#[cfg(test)]
mod tests;
mod url;
mod wait_graph;
mod waiter_notifications;
mod wake_ups;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, Deadlock, EndReason, LockCommand, LockLimits, LockName, LockOutcome, LockRefusal,
    LockReply,
};
use ade_keyspace::Layout;
use futures_util::stream::{self, StreamExt as _};
use redis::InfoDict;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

pub use connection::{ConnectionOptions, RedisClient, Script};
pub use url::{InvalidRedisUrl, RedisUrl};

use crate::coordination::{CoordinationError, LockEvent, Result, Subscriptions, UnreportedGrant};
use crate::rate_windows::RateWindows;
use clock::StoreClock;
use command::{ChangeKind, CommandReply};
use encoding::CorruptValue;
use keys::{AgentKeys, GlobalKeys, KeyCache, LockKeys};
use name_indexes::NameIndexes;
use rate_limits::RateCounters;
use scripts::Scripts;
use steps::{Step, StepQueue, StepReply};
use sweep::{DeferredWork, MaintenanceState};
use waiter_notifications::WaiterNotifications;

/// Events buffered for a slow subscriber.
const EVENT_BUFFER: usize = 4_096;
/// Locks of one request that are processed concurrently. The rest waits here and not in the queue to Redis, where other requests
/// would wait for all of them.
const MAX_CONCURRENT: usize = 64;
/// The same on a cluster, for commands that cannot cause a deadlock search: a part that is slow must not delay the others.
const MAX_CONCURRENT_ON_CLUSTER: usize = 1_000;
const REPLICA_ACK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct RedisOptions {
    pub limits: LockLimits,
    /// Maximum number of agents that were only named in a request.
    pub max_named_agents: usize,
    /// Replicas that must confirm a grant; zero disables the check.
    pub min_replica_acks: u32,
    /// Maximum difference between the clocks of two Redis servers.
    pub max_clock_skew: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            limits: LockLimits::default(),
            max_named_agents: 10_000,
            min_replica_acks: 0,
            max_clock_skew: Duration::from_millis(250),
        }
    }
}

/// Clones share one backend.
#[derive(Clone)]
pub struct RedisCoordination {
    inner: Arc<Inner>,
    /// The tasks that listen to channels and send steps; aborted when the last clone is dropped.
    _tasks: Arc<JoinSet<()>>,
}

struct Inner {
    options: RedisOptions,
    client: RedisClient,
    scripts: Scripts,
    keys: GlobalKeys,
    steps: StepQueue,
    lock_key_cache: KeyCache<LockName, LockKeys>,
    agent_key_cache: KeyCache<String, AgentKeys>,
    clock: StoreClock,
    subscriptions: Subscriptions,
    notifications: WaiterNotifications,
    name_indexes: NameIndexes,
    events: broadcast::Sender<Arc<LockEvent>>,
    announcements: watch::Sender<()>,
    /// When the heartbeat of an agent was last written, and its time.
    heartbeats: Mutex<HashMap<String, (Instant, Moment)>>,
    /// The requests that this process counted.
    rate_windows: Mutex<RateWindows>,
    rate_counters: RateCounters,
    /// Digests of deadlock victims, which keep the age of their aborted grants so that they are not chosen again.
    victims: Mutex<HashSet<String>>,
    maintenance: Mutex<MaintenanceState>,
    is_deferred_work_running: AtomicBool,
    deadlock_detection: AtomicBool,
    /// Limits the connections that block on queues.
    blocking_slots: Semaphore,
}

impl RedisCoordination {
    pub async fn open(url: &RedisUrl, options: RedisOptions) -> Result<Self> {
        let connection_options =
            ConnectionOptions { max_clock_skew: options.max_clock_skew, ..ConnectionOptions::default() };
        let client = RedisClient::open(url, connection_options).await?;
        let (events, _) = broadcast::channel(EVENT_BUFFER);
        let subscriptions = Subscriptions::default();
        let notifications = WaiterNotifications::new(client.clone(), subscriptions.clone());
        let scripts = Scripts::new(&options.limits);
        let keys = GlobalKeys::new(client.layout());
        let (steps, sending_steps) = StepQueue::new(
            client.clone(),
            [scripts.acquire.clone(), scripts.apply_commands.clone()],
            vec![keys.registry.clone(), keys.token.clone()],
            connection_options.response_timeout,
        );
        let inner = Inner {
            scripts,
            keys,
            steps,
            lock_key_cache: KeyCache::default(),
            agent_key_cache: KeyCache::default(),
            clock: StoreClock::default(),
            notifications,
            name_indexes: NameIndexes::default(),
            subscriptions,
            events,
            announcements: watch::Sender::new(()),
            heartbeats: Mutex::default(),
            rate_windows: Mutex::default(),
            rate_counters: RateCounters::default(),
            victims: Mutex::default(),
            maintenance: Mutex::default(),
            is_deferred_work_running: AtomicBool::new(false),
            deadlock_detection: AtomicBool::new(options.limits.deadlock_detection),
            blocking_slots: Semaphore::new(wake_ups::MAX_BLOCKING_WAITS),
            options,
            client,
        };
        inner.sync_clock().await?;
        inner.warn_if_evicting().await?;
        // One call loads the library into a server that does not have it, before many calls do so at once.
        if let Ok(any) = "task:any".parse() {
            inner.read_lock(&any, 1).await?;
        }
        let inner = Arc::new(inner);
        let mut tasks = JoinSet::new();
        tasks.spawn(inner.notifications.clone().run());
        tasks.spawn(sending_steps);
        tasks.spawn(announcements::listen(inner.client.clone(), inner.announcements.clone()));
        announcements::subscribe(&inner.client).await;
        tasks.spawn(name_indexes::keep_name_indexes(Arc::clone(&inner)));
        Ok(Self { inner, _tasks: Arc::new(tasks) })
    }
}

impl Inner {
    fn layout(&self) -> Layout {
        self.client.layout()
    }

    fn is_cluster(&self) -> bool {
        self.layout() == Layout::Cluster
    }

    fn limits(&self) -> &LockLimits {
        &self.options.limits
    }

    fn detects_deadlocks(&self) -> bool {
        self.deadlock_detection.load(Ordering::Relaxed)
    }

    fn lock_keys(&self, name: &LockName) -> Result<Arc<LockKeys>> {
        self.lock_key_cache.get(name, || LockKeys::new(name, self.layout()))
    }

    fn agent_keys(&self, agent_id: &str) -> Result<Arc<AgentKeys>> {
        self.agent_key_cache.get(agent_id, || AgentKeys::new(agent_id, self.layout()))
    }

    async fn sync_clock(&self) -> Result<()> {
        let time = self.client.query(&self.keys.registry, redis::cmd("TIME")).await?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
        self.clock.observe(Moment::from_micros(seconds * 1_000_000 + micros));
        Ok(())
    }

    /// An evicted lock is free although somebody holds it.
    async fn warn_if_evicting(&self) -> Result<()> {
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let info: InfoDict = redis::from_redis_value(self.client.query(&self.keys.registry, info).await?)?;
        let field = |name| info.get::<String>(name).unwrap_or_default();
        let (limit, policy) = (field("maxmemory"), field("maxmemory_policy"));
        if limit != "0" && policy != "noeviction" {
            tracing::warn!(
                policy,
                "Redis may evict held locks; set maxmemory-policy to noeviction, or use a separate Redis for locks"
            );
        }
        Ok(())
    }

    /// Applies one command to one lock, with all consequences except the deadlock search.
    async fn apply(&self, name: &LockName, command: &LockCommand) -> Result<CommandReply> {
        let prepared = self.prepare(name, command).await?;
        let reply = if prepared.must_ack {
            self.apply_acked(name, command, &prepared.step).await?
        } else if self.is_cluster() {
            let (keys, args) = steps::call_parts(&[], [&prepared.step].into_iter());
            let script = self.scripts.for_steps(prepared.step.is_acquire);
            let reply = only_reply(self.client.call(script, &keys, &args).await?)?;
            CommandReply::parse(reply, command.holder())?
        } else {
            CommandReply::parse(self.steps.execute(prepared.step).await?, command.holder())?
        };
        self.complete(name, command, prepared.is_announced, &reply).await?;
        Ok(reply)
    }

    /// Builds the step of a command, and writes what must be in place before it.
    async fn prepare(&self, name: &LockName, command: &LockCommand) -> Result<PreparedStep> {
        let keys = self.lock_keys(name)?;
        let agent = command.holder().map(|holder| holder.agent_id());
        let agent_keys = agent.map(|agent| self.agent_keys(agent)).transpose()?;
        let mut is_announced = false;
        if let LockCommand::Acquire(acquire) = command
            && (acquire.wait.is_none() || !self.notifications.is_waiting(&keys.channel, acquire.request))
        {
            self.announce_acquire(name, &keys, acquire).await?;
            is_announced = true;
        }
        let must_ack = self.options.min_replica_acks > 0
            && matches!(command, LockCommand::Acquire(_) | LockCommand::Claim { .. });
        Ok(PreparedStep { step: self.step(keys, agent_keys, command), is_announced, must_ack })
    }

    /// Does what follows from the reply.
    async fn complete(
        &self,
        name: &LockName,
        command: &LockCommand,
        is_announced: bool,
        reply: &CommandReply,
    ) -> Result<()> {
        let keys = self.lock_keys(name)?;
        let agent = command.holder().map(|holder| holder.agent_id());
        self.propagate(name, &keys, agent, reply).await;
        let is_unindexed = self.is_cluster() && holds_while_waiting(command, reply);
        if let Some(holder) = command.holder().filter(|_| is_unindexed) {
            let held = [(name.clone(), holder.clone())];
            if let Err(error) = self.index_held_locks(&held).await {
                tracing::debug!(%error, "cannot update lock indexes; the next heartbeat retries");
            }
        }
        if let LockCommand::Acquire(acquire) = command {
            let is_entry =
                |kind: &ChangeKind| matches!(kind, ChangeKind::Queued { .. } | ChangeKind::Granted { .. });
            let finish = async {
                if !is_announced && !reply.has_change_of(&acquire.holder, is_entry) {
                    return Ok(());
                }
                if !is_announced {
                    // Its earlier wait had ended without a notification; this is a new one.
                    self.announce_acquire(name, &keys, acquire).await?;
                }
                self.finish_announcement(name, &keys, acquire, reply).await
            };
            if let Err(error) = finish.await {
                tracing::warn!(%error, "cannot update lock indexes; the sweep repairs them");
            }
        }
        Ok(())
    }

    fn step(&self, lock: Arc<LockKeys>, agent: Option<Arc<AgentKeys>>, command: &LockCommand) -> Step {
        // A grant that replicas must confirm is claimed by a call that waits for them.
        let unanswered = match command {
            LockCommand::Release { holder, token, server: Some(_) } if self.options.min_replica_acks > 0 => {
                Some(LockCommand::Release { holder: holder.clone(), token: *token, server: None })
            }
            _ => None,
        };
        let command = unanswered.as_ref().unwrap_or(command);
        let args = command::arguments(lock.channel.as_str(), agent.as_deref(), command);
        let is_acquire = matches!(command, LockCommand::Acquire(_));
        Step { lock, agent, args, is_acquire, is_conditional: false }
    }

    /// Applies a command and cancels the grant again if too few replicas confirm it.
    async fn apply_acked(&self, name: &LockName, command: &LockCommand, step: &Step) -> Result<CommandReply> {
        let required_acks = self.options.min_replica_acks;
        let shared = [self.keys.registry.clone(), self.keys.token.clone()];
        let shared = if self.is_cluster() { &[][..] } else { &shared };
        let (keys, args) = steps::call_parts(shared, [step].into_iter());
        let script = self.scripts.for_steps(step.is_acquire);
        let (value, acks) =
            self.client.call_acked(script, &keys, &args, required_acks, REPLICA_ACK_TIMEOUT).await?;
        let reply = CommandReply::parse(only_reply(value)?, command.holder())?;
        let refused = LockRefusal::Unreplicated { acks, required_acks };
        let (holder, request, outcome) = match command {
            LockCommand::Acquire(acquire) => {
                (&acquire.holder, acquire.request, LockOutcome::Status(AcquireStatus::Refused(refused)))
            }
            LockCommand::Claim { holder, request, .. } => (holder, *request, LockOutcome::NotFound),
            _ => return Ok(reply),
        };
        // A grant that existed before was confirmed when it was made.
        let is_grant = |kind: &ChangeKind| matches!(kind, ChangeKind::Granted { .. } | ChangeKind::Claimed);
        if acks >= required_acks || !reply.has_change_of(holder, is_grant) {
            return Ok(reply);
        }
        let cancel = LockCommand::Cancel {
            holder: holder.clone(),
            request,
            reason: EndReason::Refused,
            include_claimed: true,
        };
        let cancelled = Box::pin(self.apply(name, &cancel)).await?;
        tracing::warn!(lock = %name, acks, required = required_acks, "too few replicas confirmed a grant; cancelled it");
        Ok(CommandReply { outcome, changes: Vec::new(), ..cancelled })
    }

    /// Wakes local waiters, sends events, and writes the indexes that the script could not write.
    async fn propagate(&self, name: &LockName, keys: &LockKeys, agent: Option<&str>, reply: &CommandReply) {
        self.clock.observe(reply.now);
        self.name_indexes.note(name, &reply.changes);
        for change in &reply.changes {
            match &change.kind {
                ChangeKind::Granted { grant, is_unreported: true, requests, .. } => {
                    for request in requests {
                        let (lock, holder, grant) = (name.clone(), change.holder.clone(), grant.clone());
                        self.subscriptions.deliver(*request, UnreportedGrant { lock, holder, grant });
                    }
                }
                ChangeKind::Granted { requests, .. } => {
                    requests.iter().for_each(|request| self.subscriptions.notify(*request));
                }
                ChangeKind::WaitEnded { request, .. } => self.subscriptions.notify(*request),
                _ => {}
            }
            if self.events.receiver_count() > 0
                && let Some(kind) = change.event()
            {
                // Fails only without subscribers.
                let _ = self.events.send(Arc::new(LockEvent { lock: name.clone(), at: reply.now, kind }));
            }
        }
        let indexed = match self.index_updates(keys, agent, &reply.changes) {
            Ok(updates) => self.run_all(updates).await,
            Err(error) => Err(error),
        };
        if let Err(error) = indexed {
            tracing::warn!(%error, "cannot update lock indexes; the sweep repairs them");
        }
    }

    /// Applies commands to one lock in order, and to different locks concurrently.
    async fn run_commands(&self, commands: Vec<(LockName, LockCommand)>) -> Result<Vec<LockReply>> {
        if let [(name, command)] = commands.as_slice() {
            return Ok(vec![self.run_command(name, command).await?]);
        }
        let mut by_lock: HashMap<&LockName, Vec<(usize, &LockCommand)>> = HashMap::new();
        for (index, (name, command)) in commands.iter().enumerate() {
            by_lock.entry(name).or_default().push((index, command));
        }
        let may_deadlock = commands.iter().any(|(_, command)| matches!(command, LockCommand::Acquire(_)));
        let is_wide = self.is_cluster() && !may_deadlock;
        let max_concurrent = if is_wide { MAX_CONCURRENT_ON_CLUSTER } else { MAX_CONCURRENT };
        let runs: Vec<_> =
            by_lock.into_iter().map(|(name, commands)| self.run_in_order(name, commands)).collect();
        let mut runs = stream::iter(runs).buffer_unordered(max_concurrent);
        let (mut replies, mut failed) = (Vec::with_capacity(commands.len()), None);
        while let Some(result) = runs.next().await {
            match result {
                Ok(of_lock) => replies.extend(of_lock),
                Err(error) => failed = Some(error),
            }
        }
        // An unavailable part of a cluster must not keep commands from the others, so the error is returned last.
        if let Some(error) = failed {
            return Err(error);
        }
        replies.sort_by_key(|(index, _)| *index);
        Ok(replies.into_iter().map(|(_, reply)| reply).collect())
    }

    async fn run_in_order(
        &self,
        name: &LockName,
        commands: Vec<(usize, &LockCommand)>,
    ) -> Result<Vec<(usize, LockReply)>> {
        let mut replies = Vec::with_capacity(commands.len());
        for (index, command) in commands {
            replies.push((index, self.run_command(name, command).await?));
        }
        Ok(replies)
    }

    /// Registers for the lock's channel if it is subscribed already. Returns whether all later changes will be
    /// noticed.
    fn join_channel(&self, name: &LockName, command: &LockCommand) -> Result<bool> {
        let LockCommand::Acquire(acquire) = command else { return Ok(false) };
        if acquire.wait.is_none() {
            return Ok(false);
        }
        let keys = self.lock_keys(name)?;
        Ok(self.notifications.join(&keys.channel, acquire.holder.agent_id(), acquire.request))
    }

    /// Applies a command to one lock and resolves every deadlock that its wait causes.
    async fn run_command(&self, name: &LockName, command: &LockCommand) -> Result<LockReply> {
        let is_subscribed = self.join_channel(name, command)?;
        let reply = self.apply(name, command).await?;
        self.follow_up(name, command, is_subscribed, reply).await
    }

    /// Applies the commands of a request, each to another lock, up to the first that does not succeed. Outside a cluster many of
    /// them go in one call, which skips the rest.
    async fn run_while_successful(
        self: &Arc<Self>,
        commands: Vec<(LockName, LockCommand)>,
    ) -> Result<Vec<LockReply>> {
        let is_single = self.is_cluster() || self.options.min_replica_acks > 0;
        let mut replies = Vec::with_capacity(commands.len());
        for group in commands.chunks(if is_single { 1 } else { steps::MAX_GROUP }) {
            let applied = replies.len() + group.len();
            match group {
                [(name, command)] => replies.push(self.run_command(name, command).await?),
                _ => replies.extend(self.run_group(group).await?),
            }
            if replies.len() < applied || replies.last().is_none_or(|reply| !reply.outcome.is_success()) {
                break;
            }
        }
        Ok(replies)
    }

    /// Applies commands in one call, up to the first that does not succeed.
    async fn run_group(self: &Arc<Self>, group: &[(LockName, LockCommand)]) -> Result<Vec<LockReply>> {
        let (mut steps, mut prepared) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        for (name, command) in group {
            let is_subscribed = self.join_channel(name, command)?;
            let PreparedStep { step, is_announced, .. } = self.prepare(name, command).await?;
            steps.push(step);
            prepared.push((name.clone(), command.clone(), is_subscribed, is_announced));
        }
        // The steps are queued here, and the task that waits for their replies does not end with the caller: they are sent although
        // the caller gives up, and the commands that cancel its request are queued behind them. The task completes what they did, since
        // a part of the locks is held by then, and others may have been promoted.
        let (inner, applied) = (Arc::clone(self), self.steps.queue_group(steps));
        let completed: JoinHandle<Result<Vec<_>>> = tokio::spawn(async move {
            let mut replies = Vec::with_capacity(prepared.len());
            for ((name, command, is_subscribed, is_announced), reply) in
                prepared.into_iter().zip(applied.await?)
            {
                let reply = CommandReply::parse(reply?, command.holder())?;
                inner.complete(&name, &command, is_announced, &reply).await?;
                replies.push((is_subscribed, reply));
            }
            Ok(replies)
        });
        let stopped = |_| CoordinationError("the commands were stopped".to_owned());
        let mut replies = Vec::with_capacity(group.len());
        // This may apply a command again, and ends with the caller: a request that was cancelled must not come back.
        for ((name, command), (is_subscribed, reply)) in group.iter().zip(completed.await.map_err(stopped)??)
        {
            replies.push(self.follow_up(name, command, is_subscribed, reply).await?);
        }
        Ok(replies)
    }

    /// Resolves the deadlocks that a command caused, and subscribes to the lock that its request waits for.
    async fn follow_up(
        &self,
        name: &LockName,
        command: &LockCommand,
        is_subscribed: bool,
        mut reply: CommandReply,
    ) -> Result<LockReply> {
        let mut deadlocks: Vec<Deadlock> = Vec::new();
        for change in &reply.changes {
            let holder = &change.holder;
            let has_left = |kind: &ChangeKind| matches!(kind, ChangeKind::WaitEnded { .. });
            let is_last = match change.kind {
                ChangeKind::Queued { is_alone: true } => continue,
                // A newer request of the holder may have taken the place of its older one.
                ChangeKind::Queued { .. } => !reply.has_change_of(holder, has_left),
                ChangeKind::UpgradeLost => false,
                _ => continue,
            };
            match self.resolve_deadlocks(holder, name, is_last).await {
                Ok(resolved) => deadlocks.extend(resolved),
                // Part of the wait graph is unavailable. The holder stays queued, and the search is repeated later.
                Err(error) => {
                    tracing::debug!(%holder, %error, "cannot search for deadlocks; retrying later");
                    self.defer(DeferredWork::FindDeadlocks(holder.clone(), name.clone()));
                }
            }
        }
        if let LockCommand::Acquire(acquire) = command {
            if !deadlocks.is_empty() {
                // The request may hold the lock now, or may be the victim.
                reply = self.apply(name, command).await?;
            }
            if reply.is_waiting() {
                let channel = &self.lock_keys(name)?.channel;
                let (agent, request) = (acquire.holder.agent_id(), acquire.request);
                if is_subscribed {
                    self.notifications.set_waiting(channel, request);
                } else if self.notifications.subscribe(channel, agent, request).await {
                    // Catches changes from before the subscription.
                    reply = self.apply(name, command).await?;
                }
            }
        }
        match (command, &reply.outcome) {
            (LockCommand::Extend { holder, .. }, LockOutcome::Updated(_)) => {
                locked(&self.maintenance).renewed.insert((name.clone(), holder.clone()));
            }
            (LockCommand::Release { holder, .. }, LockOutcome::Done) => {
                locked(&self.maintenance).renewed.remove(&(name.clone(), holder.clone()));
                self.forget_victim_age(holder).await;
            }
            _ => {}
        }
        Ok(LockReply { outcome: reply.outcome, deadlocks })
    }
}

/// A step that is ready to be sent.
struct PreparedStep {
    step: Step,
    /// Whether an acquisition is announced.
    is_announced: bool,
    /// Whether replicas must confirm it.
    must_ack: bool,
}

/// Whether the command belongs to a request that holds this lock while it waits for another. A deadlock search must
/// find such a hold in the index, and the server that granted it may have failed to write it. Outside a cluster the script
/// does that.
fn holds_while_waiting(command: &LockCommand, reply: &CommandReply) -> bool {
    match (command, &reply.outcome) {
        (LockCommand::Acquire(acquire), LockOutcome::Status(AcquireStatus::Held(grant))) => {
            !acquire.claimed && !grant.claimed
        }
        (LockCommand::ExtendUnclaimed { .. }, LockOutcome::Updated(_)) => true,
        _ => false,
    }
}

/// The reply to a call with one step.
fn only_reply(value: redis::Value) -> Result<StepReply> {
    let missing = || CorruptValue::new("the reply to a step", "nothing").into();
    steps::parse_replies(value)?.next().unwrap_or_else(|| Err(missing()))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for RedisCoordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisCoordination").finish_non_exhaustive()
    }
}
