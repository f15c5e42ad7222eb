//! Steps on their way to Redis: a step is one command to one lock.
//!
//! On a cluster every step is a call of its own. Elsewhere the steps that wait go together in one call, with at most two calls
//! under way: a call costs more than a step. Steps are sent in the order in which they were queued, so that a cancellation never
//! overtakes the request it ends. A call that may have been applied is never repeated, and what one step meets does not affect
//! the others.

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
use super::query::UnixMicros;
use crate::coordination::{CoordinationError, Result};

/// Bounds how long Redis is busy with one call.
const MAX_STEPS: usize = 64;
const MAX_CALLS: usize = 2;

/// The numbers of arguments of a step, as text.
const COUNTS: [&str; 17] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"];

/// Arguments of a step in one piece of text.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    text: String,
    ends: Vec<usize>,
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
    pub(super) keys: Vec<RedisKey>,
    pub(super) args: Arguments,
    pub(super) is_acquire: bool,
}

/// The time of the call, and the reply to one of its steps.
pub(super) type StepReply = (Moment, Value);

/// The keys and arguments of a call with these steps. `shared` are the keys that all of them use.
pub(super) fn call_parts<'a>(
    shared: &'a [RedisKey],
    steps: impl Iterator<Item = &'a Step> + Clone,
) -> (Vec<&'a RedisKey>, Vec<&'a str>) {
    let keys = shared.iter().chain(steps.clone().flat_map(|step| &step.keys)).collect();
    let args = steps.flat_map(|step| {
        let count = COUNTS.get(step.args.ends.len()).copied().unwrap_or_default();
        std::iter::once(count).chain(step.args.iter())
    });
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

struct QueuedStep {
    step: Step,
    reply: oneshot::Sender<Result<StepReply>>,
}

/// The queue of steps to a Redis that is not a cluster.
#[derive(Debug)]
pub(super) struct StepQueue {
    sender: mpsc::UnboundedSender<QueuedStep>,
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
        let (reply, received) = oneshot::channel();
        // Fails together with the receiver below.
        let _ = self.sender.send(QueuedStep { step, reply });
        match timeout(self.response_timeout, received).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(CoordinationError("the connection to Redis is closed".to_owned())),
            Err(_) => {
                Err(CoordinationError(format!("Redis does not reply within {:?}", self.response_timeout)))
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
    async fn run(&self, mut queued: mpsc::UnboundedReceiver<QueuedStep>) {
        // One task polls all calls, the oldest first: that keeps the order.
        let mut calls = FuturesUnordered::new();
        let mut steps = Vec::new();
        loop {
            tokio::select! {
                count = queued.recv_many(&mut steps, MAX_STEPS), if calls.len() < MAX_CALLS => {
                    if count == 0 {
                        return;
                    }
                    calls.push(self.send(std::mem::take(&mut steps)));
                }
                Some(()) = calls.next() => {}
            }
        }
    }

    async fn send(&self, mut steps: Vec<QueuedStep>) {
        steps.retain(|queued| !queued.reply.is_closed());
        if steps.iter().any(|queued| queued.step.is_acquire) {
            match self.call(&self.acquire, &steps).await {
                Ok(Some(value)) => return reply_all(steps, parse_replies(value)),
                Err(error) => return reply_all(steps, Err::<std::iter::Empty<_>, _>(error)),
                // Nothing was applied. Acquiring is refused; whatever frees memory is not.
                Ok(None) => steps = refuse_acquires(steps),
            }
        }
        if steps.is_empty() {
            return;
        }
        match self.call(&self.apply_commands, &steps).await {
            Ok(value) => reply_all(steps, parse_replies(value.unwrap_or(Value::Nil))),
            Err(error) => reply_all(steps, Err::<std::iter::Empty<_>, _>(error)),
        }
    }

    async fn call(&self, script: &Script, steps: &[QueuedStep]) -> Result<Option<Value>> {
        let (keys, args) = call_parts(&self.shared_keys, steps.iter().map(|queued| &queued.step));
        self.client.call_if_memory_allows(script, &keys, &args).await
    }
}

fn refuse_acquires(steps: Vec<QueuedStep>) -> Vec<QueuedStep> {
    let (acquires, others): (Vec<_>, Vec<_>) = steps.into_iter().partition(|queued| queued.step.is_acquire);
    let error = CoordinationError("Redis is out of memory and refuses new locks".to_owned());
    reply_all(acquires, Err::<std::iter::Empty<_>, _>(error));
    others
}

/// A caller that gave up does not receive its reply.
fn reply_all(steps: Vec<QueuedStep>, replies: Result<impl Iterator<Item = Result<StepReply>>>) {
    match replies {
        Ok(replies) => {
            for (queued, reply) in steps.into_iter().zip(replies) {
                let _ = queued.reply.send(reply);
            }
        }
        Err(error) => {
            for queued in steps {
                let _ = queued.reply.send(Err(error.clone()));
            }
        }
    }
}
