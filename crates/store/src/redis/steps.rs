//! Steps on their way to Redis: a step is one command to one lock.
//!
//! On a cluster every step is a call of its own. Elsewhere the steps that wait go together in one call, with at most two calls
//! under way: a call costs more than a step. Steps are sent in the order in which they were queued, so that a cancellation never
//! overtakes the request it ends. A call that may have been applied is never repeated, and what one step meets does not affect
//! the others.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_keyspace::RedisKey;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::connection::{RedisClient, Script};
use super::encoding::CorruptValue;
use super::keys::{AgentKeys, LockKeys};
use super::query::UnixMicros;
use crate::coordination::{CoordinationError, Result};

/// Bounds how long Redis is busy with one call, which may be exceeded by one group.
const MAX_STEPS: usize = 64;
/// The steps of one request that stay together.
pub(super) const MAX_GROUP: usize = 32;
const MAX_CALLS: usize = 2;

/// Arguments of a step in one piece of text.
#[derive(Debug)]
pub(super) struct Arguments {
    text: String,
    ends: Vec<usize>,
}

impl Default for Arguments {
    fn default() -> Self {
        // Room for those of most steps.
        Self { text: String::with_capacity(256), ends: Vec::with_capacity(16) }
    }
}

impl Arguments {
    pub(super) fn push(&mut self, argument: impl std::fmt::Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = std::fmt::Write::write_fmt(&mut self.text, format_args!("{argument}"));
        self.ends.push(self.text.len());
        self
    }

    pub(super) fn push_text(&mut self, argument: &str) -> &mut Self {
        self.text.push_str(argument);
        self.ends.push(self.text.len());
        self
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.text.get(start..*end).unwrap_or_default())
    }
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) lock: Arc<LockKeys>,
    /// `None` for a command without a holder.
    pub(super) agent: Option<Arc<AgentKeys>>,
    pub(super) args: Arguments,
    pub(super) is_acquire: bool,
    /// Skipped unless the step before it in its group succeeded.
    pub(super) is_conditional: bool,
}

impl Step {
    /// Its keys in the order of `scripts/state.lua`. Without shared keys, which is on a cluster, it has no indexes.
    fn keys<'a>(&'a self, shared: &'a [RedisKey]) -> impl Iterator<Item = &'a RedisKey> {
        // A command without a holder touches no agent index, and a task has no type, but the script expects the keys by
        // position.
        let indexes = shared.first().map(|unused| {
            let of_agent = self.agent.as_ref().map(|keys| [&keys.held_locks, &keys.awaited_locks]);
            let [held, awaited] = of_agent.unwrap_or([unused; 2]);
            [held, awaited, self.lock.type_index.as_ref().unwrap_or(unused)]
        });
        self.lock.script_keys.iter().chain(indexes.into_iter().flatten())
    }

    /// The number of its arguments, negative if it is conditional.
    fn count(&self) -> &'static str {
        const COUNTS: [&str; 17] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];
        const CONDITIONAL: [&str; 17] = [
            "0", "-1", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9", "-10", "-11", "-12", "-13", "-14",
            "-15", "-16",
        ];
        let counts = if self.is_conditional { CONDITIONAL } else { COUNTS };
        counts.get(self.args.ends.len()).copied().unwrap_or_default()
    }
}

/// The time of the call, and the reply to one of its steps.
pub(super) type StepReply = (Moment, Value);

/// The keys and arguments of a call with these steps. `shared` are the keys that all of them use.
pub(super) fn call_parts<'a>(
    shared: &'a [RedisKey],
    steps: impl Iterator<Item = &'a Step> + Clone,
) -> (Vec<&'a RedisKey>, Vec<&'a str>) {
    let keys = shared.iter().chain(steps.clone().flat_map(|step| step.keys(shared))).collect();
    let args = steps.flat_map(|step| std::iter::once(step.count()).chain(step.args.iter()));
    (keys, args.collect())
}

/// The replies to the steps of one call.
pub(super) fn parse_replies(value: Value) -> Result<impl Iterator<Item = Result<StepReply>>> {
    let Value::Array(values) = value else {
        return Err(CorruptValue::new("the replies of a call", format!("{value:?}")).into());
    };
    let mut values = values.into_iter();
    let UnixMicros(now) = redis::from_redis_value(values.next().unwrap_or(Value::Nil))?;
    Ok(values.map(move |value| match value {
        Value::ServerError(error) => Err(CoordinationError(RedisError::from(error).to_string())),
        value => Ok((now, value)),
    }))
}

/// The steps of one caller, which go in one call.
struct QueuedSteps {
    first: Step,
    rest: Vec<Step>,
    reply: oneshot::Sender<GroupReply>,
}

/// The replies to the first step and to the others.
type GroupReply = (Result<StepReply>, Vec<Result<StepReply>>);

impl QueuedSteps {
    fn iter(&self) -> impl Iterator<Item = &Step> + Clone {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

/// The queue of steps to a Redis that is not a cluster.
#[derive(Debug)]
pub(super) struct StepQueue {
    sender: mpsc::UnboundedSender<QueuedSteps>,
    response_timeout: Duration,
}

impl StepQueue {
    /// The queue, and what sends its steps for as long as it is polled.
    pub(super) fn new(
        client: RedisClient,
        scripts: [Script; 2],
        shared_keys: Vec<RedisKey>,
        response_timeout: Duration,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, queued) = mpsc::unbounded_channel();
        let [acquire, apply_commands] = scripts;
        let sending = StepSender { client, acquire, apply_commands, shared_keys };
        (Self { sender, response_timeout }, async move { sending.run(queued).await })
    }

    /// Queues a step and returns its reply. A step that is not sent yet when its caller gives up is never sent.
    pub(super) async fn execute(&self, step: Step) -> Result<StepReply> {
        self.queue_steps(step, Vec::new()).await?.0
    }

    /// Queues at most [`MAX_GROUP`] steps for one call, of which each runs only if the one before it succeeded. They are queued when
    /// this returns; the future returns the replies to those that ran. Steps that are not sent yet when it is dropped are never sent.
    pub(super) fn queue_group(
        &self,
        steps: Vec<Step>,
    ) -> impl Future<Output = Result<Vec<Result<StepReply>>>> + Send + use<> {
        let mut steps = steps.into_iter();
        let replies = steps.next().map(|first| {
            let rest = steps.map(|step| Step { is_conditional: true, ..step }).collect();
            self.queue_steps(first, rest)
        });
        async move {
            let Some(replies) = replies else { return Ok(Vec::new()) };
            let (first, mut replies) = replies.await?;
            replies.insert(0, first);
            let is_skipped = |reply: &Result<StepReply>| matches!(reply, Ok((_, Value::Nil)));
            replies.truncate(replies.iter().position(is_skipped).unwrap_or(replies.len()));
            Ok(replies)
        }
    }

    fn queue_steps(
        &self,
        first: Step,
        rest: Vec<Step>,
    ) -> impl Future<Output = Result<GroupReply>> + Send + use<> {
        let (reply, received) = oneshot::channel();
        // Fails together with the receiver below.
        let _ = self.sender.send(QueuedSteps { first, rest, reply });
        let within = self.response_timeout;
        async move {
            match timeout(within, received).await {
                Ok(Ok(replies)) => Ok(replies),
                Ok(Err(_)) => Err(CoordinationError("the connection to Redis is closed".to_owned())),
                Err(_) => Err(CoordinationError(format!("Redis does not reply within {within:?}"))),
            }
        }
    }
}

struct StepSender {
    client: RedisClient,
    acquire: Script,
    apply_commands: Script,
    shared_keys: Vec<RedisKey>,
}

impl StepSender {
    async fn run(&self, mut queued: mpsc::UnboundedReceiver<QueuedSteps>) {
        // One task polls all calls, the oldest first: that keeps the order.
        let mut calls = FuturesUnordered::new();
        loop {
            tokio::select! {
                first = queued.recv(), if calls.len() < MAX_CALLS => {
                    let Some(first) = first else { return };
                    let (mut count, mut groups) = (1 + first.rest.len(), vec![first]);
                    while count < MAX_STEPS && let Ok(next) = queued.try_recv() {
                        count += 1 + next.rest.len();
                        groups.push(next);
                    }
                    calls.push(self.send(groups));
                }
                Some(()) = calls.next() => {}
            }
        }
    }

    async fn send(&self, mut groups: Vec<QueuedSteps>) {
        groups.retain(|queued| !queued.reply.is_closed());
        if groups.iter().any(|queued| queued.first.is_acquire) {
            match self.call(&self.acquire, &groups).await {
                Ok(Some(value)) => return reply_all(groups, parse_replies(value)),
                Err(error) => return reply_all(groups, Err::<std::iter::Empty<_>, _>(error)),
                // Nothing was applied. Acquiring is refused; whatever frees memory is not.
                Ok(None) => groups = refuse_acquires(groups),
            }
        }
        if groups.is_empty() {
            return;
        }
        match self.call(&self.apply_commands, &groups).await {
            Ok(value) => reply_all(groups, parse_replies(value.unwrap_or(Value::Nil))),
            Err(error) => reply_all(groups, Err::<std::iter::Empty<_>, _>(error)),
        }
    }

    async fn call(&self, script: &Script, groups: &[QueuedSteps]) -> Result<Option<Value>> {
        let (keys, args) = call_parts(&self.shared_keys, groups.iter().flat_map(QueuedSteps::iter));
        self.client.call_if_memory_allows(script, &keys, &args).await
    }
}

fn refuse_acquires(groups: Vec<QueuedSteps>) -> Vec<QueuedSteps> {
    let (acquires, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(|queued| queued.first.is_acquire);
    let error = CoordinationError("Redis is out of memory and refuses new locks".to_owned());
    reply_all(acquires, Err::<std::iter::Empty<_>, _>(error));
    others
}

/// A caller that gave up does not receive its reply.
fn reply_all(groups: Vec<QueuedSteps>, replies: Result<impl Iterator<Item = Result<StepReply>>>) {
    match replies {
        Ok(mut replies) => {
            for queued in groups {
                let missing = || Err(CorruptValue::new("the reply to a step", "nothing").into());
                let first = replies.next().unwrap_or_else(missing);
                let rest = replies.by_ref().take(queued.rest.len()).collect();
                let _ = queued.reply.send((first, rest));
            }
        }
        Err(error) => {
            for queued in groups {
                let rest = vec![Err(error.clone()); queued.rest.len()];
                let _ = queued.reply.send((Err(error.clone()), rest));
            }
        }
    }
}
