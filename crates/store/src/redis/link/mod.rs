//! The link to Redis: one interface for a standalone server, Sentinel and Cluster.
//!
//! A script is repeated only if it was certainly not carried out; otherwise the caller is told, and looks. No script runs
//! on a primary that took over until the greatest difference of clocks has passed, so that tokens keep growing. An
//! answer that comes late is nobody's: calls and answers are matched by their order on a connection that is dropped as
//! soon as it is in doubt.

mod cluster;
mod connect;
mod hints;
mod many;
mod node;
mod run;
mod script;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::time::Duration;

use ade_keyspace::{ChannelName, Layout, RedisKey};
use redis::{Cmd, Value};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use self::cluster::Cluster;
use self::connect::Connector;
pub(in crate::redis) use self::hints::{Hint, Hints};
use self::node::Node;
use self::run::{Manner, Work};
pub(in crate::redis) use self::script::Script;
use super::url::{Kind, RedisUrl};
use crate::coordination::CoordinationError;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(in crate::redis) struct Options {
    /// One attempt to connect.
    pub(in crate::redis) connect_within: Duration,
    /// One call, all of it: connecting, waiting before a gate, repeating.
    pub(in crate::redis) answer_within: Duration,
    /// How far the clocks of two servers may be apart.
    pub(in crate::redis) max_clock_skew: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_within: Duration::from_secs(5),
            answer_within: Duration::from_secs(2),
            max_clock_skew: Duration::from_millis(250),
        }
    }
}

/// A link to Redis. Clones share its connections; the last one that is dropped ends them.
#[derive(Clone)]
pub(in crate::redis) struct Link {
    shared: Arc<Shared>,
    _tasks: Arc<Tasks>,
}

/// Ends the tasks when the last link is dropped.
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// What the tasks of a link share with it.
struct Shared {
    connector: Arc<Connector>,
    servers: Servers,
    wishes: hints::Wishes,
}

enum Servers {
    One(Arc<Node>),
    Many(Cluster),
}

impl Shared {
    fn unavailable(&self, reason: &str) -> CoordinationError {
        CoordinationError(format!("redis at {}: {reason}", self.connector.url))
    }

    fn primaries(&self) -> Vec<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => vec![Arc::clone(node)],
            Servers::Many(cluster) => cluster.map().primaries.clone(),
        }
    }
}

impl Link {
    /// Connects.
    pub(in crate::redis) async fn open(url: &RedisUrl, options: Options) -> Result<Self, CoordinationError> {
        let connector = Arc::new(Connector::new(url.clone(), options));
        let servers = match &url.kind {
            Kind::Standalone { .. } => {
                Servers::One(Node::new(Arc::clone(&connector), url.hosts.first().cloned(), String::new()))
            }
            Kind::Sentinel { .. } => Servers::One(Node::new(Arc::clone(&connector), None, String::new())),
            Kind::Cluster => Servers::Many(Cluster::new(Arc::clone(&connector))),
        };
        let shared = Arc::new(Shared { connector, servers, wishes: hints::Wishes::new() });
        let within = options.connect_within;
        // A little less for each server than for all: one that hangs must not fail those that answer.
        timeout(within, shared.first_contact(Instant::now() + within * 4 / 5))
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {within:?}")))
            .map_err(|reason| shared.unavailable(&reason))?;
        let mut tasks = vec![tokio::spawn(hints::listen(Arc::clone(&shared))).abort_handle()];
        if let Servers::Many(_) = shared.servers {
            let shared = Arc::clone(&shared);
            let fresh = async move {
                if let Servers::Many(cluster) = &shared.servers {
                    cluster.keep_fresh().await;
                }
            };
            tasks.push(tokio::spawn(fresh).abort_handle());
        }
        Ok(Self { shared, _tasks: Arc::new(Tasks(tasks)) })
    }

    /// How keys are spelled here.
    pub(in crate::redis) fn layout(&self) -> Layout {
        self.shared.connector.url.layout()
    }

    /// Runs a script on the server of its first key. Its `ARGV[1]` is the id of the cluster node that is meant, or empty;
    /// `args` follow.
    pub(in crate::redis) async fn call(
        &self,
        script: &Script,
        keys: &[RedisKey],
        args: &[&[u8]],
    ) -> Result<Value, CoordinationError> {
        let (value, _) = self.shared.run(Work::Script { script, keys, args }, Manner::Shared).await?;
        Ok(value)
    }

    /// The same, and then waits until `acks` replicas have it, at most `within`; how many had it.
    pub(in crate::redis) async fn call_acked(
        &self,
        script: &Script,
        keys: &[RedisKey],
        args: &[&[u8]],
        acks: u32,
        within: Duration,
    ) -> Result<(Value, u32), CoordinationError> {
        self.shared.run(Work::Script { script, keys, args }, Manner::Acked(acks, within)).await
    }

    /// One command on the server of `key`. Does not wait before gates.
    pub(in crate::redis) async fn ask(
        &self,
        key: &RedisKey,
        command: Cmd,
    ) -> Result<Value, CoordinationError> {
        let (value, _) = self.shared.run(Work::Command { key, command: &command }, Manner::Shared).await?;
        Ok(value)
    }

    /// The same for a command that makes the server wait, at most so long: on a connection that nobody else uses.
    pub(in crate::redis) async fn ask_waiting(
        &self,
        key: &RedisKey,
        command: Cmd,
        at_most: Duration,
    ) -> Result<Value, CoordinationError> {
        let work = Work::Command { key, command: &command };
        let (value, _) = self.shared.run(work, Manner::Waiting(at_most)).await?;
        Ok(value)
    }

    /// Many commands at once, each on the server of its key; answers in the same order.
    pub(in crate::redis) async fn ask_all(
        &self,
        questions: Vec<(RedisKey, Cmd)>,
    ) -> Vec<Result<Value, CoordinationError>> {
        self.shared.run_all(&questions).await
    }

    /// One command on every primary.
    pub(in crate::redis) async fn each_primary(&self, command: Cmd) -> Result<Vec<Value>, CoordinationError> {
        let command = Arc::new(command);
        let mut asked = JoinSet::new();
        for (number, node) in self.shared.primaries().into_iter().enumerate() {
            let (shared, command) = (Arc::clone(&self.shared), Arc::clone(&command));
            asked.spawn(async move { (number, shared.run_on(&node, &command).await) });
        }
        let mut answers = std::collections::HashMap::new();
        while let Some(joined) = asked.join_next().await {
            let (number, answer) = joined.map_err(|error| self.shared.unavailable(&error.to_string()))?;
            answers.insert(number, answer?);
        }
        if answers.is_empty() {
            return Err(self.shared.unavailable("no primary is known"));
        }
        let mut answers: Vec<(usize, Value)> = answers.into_iter().collect();
        answers.sort_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Everything that is heard on subscribed channels from now on.
    pub(in crate::redis) fn hints(&self) -> Hints {
        self.shared.wishes.hints()
    }

    /// Wants a channel; each call needs one of [`Link::unsubscribe`]. Does not wait: see [`Link::subscribed`].
    pub(in crate::redis) fn subscribe(&self, channel: &ChannelName) {
        self.shared.wishes.add(channel);
    }

    /// Wants a channel once less.
    pub(in crate::redis) fn unsubscribe(&self, channel: &ChannelName) {
        self.shared.wishes.remove(channel);
    }

    /// Waits until the server has confirmed a channel that is wanted: whatever happens after that is heard.
    pub(in crate::redis) async fn subscribed(&self, channel: &ChannelName) -> Result<(), CoordinationError> {
        let within = self.shared.connector.options.answer_within;
        match timeout(within, self.shared.wishes.confirmed(channel)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.shared.unavailable("the channel is not wanted any more: subscribe first")),
            Err(_) => {
                Err(self.shared.unavailable(&format!("the subscription was not confirmed within {within:?}")))
            }
        }
    }
}

impl Shared {
    /// Reaches at least one primary: others may be about to be replaced, and are connected when they are needed.
    async fn first_contact(&self, deadline: Instant) -> Result<(), String> {
        if let Servers::Many(cluster) = &self.servers {
            cluster.refresh(0, None).await?;
        }
        let mut connecting = JoinSet::new();
        for node in self.primaries() {
            connecting.spawn(async move { node.up(deadline).await.map(drop) });
        }
        let (mut reached, mut reasons) = (false, Vec::new());
        while let Some(joined) = connecting.join_next().await {
            match joined.map_err(|error| error.to_string()).flatten() {
                Ok(()) => reached = true,
                Err(reason) => reasons.push(reason),
            }
        }
        if reached { Ok(()) } else { Err(reasons.join("; ")) }
    }
}
