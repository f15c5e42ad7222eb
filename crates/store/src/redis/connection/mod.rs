//! Connections to Redis: one interface for a standalone server, Sentinel and Cluster.
//!
//! A script is repeated only if it was certainly not applied; otherwise the caller gets an error and has to look. No
//! script runs on a new primary until the maximum clock skew has passed, so that tokens keep increasing. A late reply
//! must never reach another caller: replies are matched by their order on a connection, which is dropped as soon as
//! that order is in doubt.

mod cluster;
mod connector;
mod execute;
mod node;
mod pipeline;
mod script;
mod subscriptions;
#[cfg(test)]
mod tests;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use ade_keyspace::{ChannelName, Layout, RedisKey};
use futures_util::future::try_join_all;
use redis::{Cmd, Value};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use self::cluster::Cluster;
use self::connector::Connector;
use self::execute::{ConnectionUse, Operation};
use self::node::Node;
pub use self::script::Script;
use self::subscriptions::ChannelSubscriptions;
pub(in crate::redis) use self::subscriptions::{ChannelEvent, ChannelEvents};
use super::url::{Kind, RedisUrl};
use crate::coordination::CoordinationError;

#[derive(Debug, Clone, Copy)]
pub struct ConnectionOptions {
    /// One attempt to connect.
    pub(in crate::redis) connect_timeout: Duration,
    /// One call as a whole: connecting, waiting for the gate of a new primary, retries.
    pub(in crate::redis) response_timeout: Duration,
    /// Maximum difference between the clocks of two servers.
    pub(in crate::redis) max_clock_skew: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(2),
            max_clock_skew: Duration::from_millis(250),
        }
    }
}

/// Clones share the connections; dropping the last one closes them.
#[derive(Clone)]
pub struct RedisClient {
    state: Arc<ClientState>,
    _tasks: Arc<Tasks>,
}

/// Aborts the tasks when the last client is dropped.
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

/// What a client shares with its tasks.
struct ClientState {
    connector: Arc<Connector>,
    deployment: Deployment,
    subscriptions: ChannelSubscriptions,
}

enum Deployment {
    /// Standalone, or the primary behind Sentinel.
    Single(Arc<Node>),
    Cluster(Cluster),
}

impl ClientState {
    fn unavailable(&self, reason: &str) -> CoordinationError {
        CoordinationError(format!("Redis at {}: {reason}", self.connector.url))
    }

    fn primaries(&self) -> Vec<Arc<Node>> {
        match &self.deployment {
            Deployment::Single(node) => vec![Arc::clone(node)],
            Deployment::Cluster(cluster) => cluster.slot_map().primaries.clone(),
        }
    }
}

impl RedisClient {
    pub async fn open(url: &RedisUrl, options: ConnectionOptions) -> Result<Self, CoordinationError> {
        let connector = Arc::new(Connector::new(url.clone(), options));
        let deployment = match &url.kind {
            Kind::Standalone { .. } => Deployment::Single(Node::new(
                Arc::clone(&connector),
                url.hosts.first().cloned(),
                String::new(),
            )),
            Kind::Sentinel { .. } => {
                Deployment::Single(Node::new(Arc::clone(&connector), None, String::new()))
            }
            Kind::Cluster => Deployment::Cluster(Cluster::new(Arc::clone(&connector))),
        };
        let subscriptions = ChannelSubscriptions::new();
        let state = Arc::new(ClientState { connector, deployment, subscriptions });
        let within = options.connect_timeout;
        // Each server gets a little less time than all together: one that hangs must not fail those that answer.
        timeout(within, state.connect_any(Instant::now() + within * 4 / 5))
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {within:?}")))
            .map_err(|reason| state.unavailable(&reason))?;
        let mut tasks = vec![tokio::spawn(subscriptions::run_subscriber(Arc::clone(&state))).abort_handle()];
        if let Deployment::Cluster(_) = state.deployment {
            let state = Arc::clone(&state);
            let refresh = async move {
                if let Deployment::Cluster(cluster) = &state.deployment {
                    cluster.refresh_periodically().await;
                }
            };
            tasks.push(tokio::spawn(refresh).abort_handle());
        }
        Ok(Self { state, _tasks: Arc::new(Tasks(tasks)) })
    }

    pub fn layout(&self) -> Layout {
        self.state.connector.url.layout()
    }

    /// Runs a script on the server of its first key. `ARGV[1]` is the id of the intended cluster node, or empty;
    /// `args` follow.
    pub async fn call(
        &self,
        script: &Script,
        keys: &[RedisKey],
        args: &[&[u8]],
    ) -> Result<Value, CoordinationError> {
        let operation = Operation::Script { script, keys, args };
        let (value, _) = self.state.execute(operation, ConnectionUse::Shared).await?;
        Ok(value)
    }

    /// The same, then waits until `acks` replicas have it, at most `within`. Returns how many have it.
    pub(in crate::redis) async fn call_acked(
        &self,
        script: &Script,
        keys: &[RedisKey],
        args: &[&[u8]],
        acks: u32,
        within: Duration,
    ) -> Result<(Value, u32), CoordinationError> {
        self.state.execute(Operation::Script { script, keys, args }, ConnectionUse::Acked(acks, within)).await
    }

    /// Runs one command on the server of `key`. Does not wait for the gate of a new primary.
    pub async fn query(&self, key: &RedisKey, command: Cmd) -> Result<Value, CoordinationError> {
        let operation = Operation::Command { key, command: &command };
        let (value, _) = self.state.execute(operation, ConnectionUse::Shared).await?;
        Ok(value)
    }

    /// The same for a blocking command, on a connection of its own.
    pub(in crate::redis) async fn query_blocking(
        &self,
        key: &RedisKey,
        command: Cmd,
        timeout: Duration,
    ) -> Result<Value, CoordinationError> {
        let operation = Operation::Command { key, command: &command };
        let (value, _) = self.state.execute(operation, ConnectionUse::Blocking(timeout)).await?;
        Ok(value)
    }

    /// Runs many commands concurrently, each on the server of its key. The results have the same order.
    pub(in crate::redis) async fn query_all(
        &self,
        commands: Vec<(RedisKey, Cmd)>,
    ) -> Vec<Result<Value, CoordinationError>> {
        self.state.execute_all(&commands).await
    }

    /// Runs one command on every primary.
    pub async fn query_primaries(&self, command: Cmd) -> Result<Vec<Value>, CoordinationError> {
        let primaries = self.state.primaries();
        if primaries.is_empty() {
            return Err(self.state.unavailable("no primary is known"));
        }
        try_join_all(primaries.iter().map(|node| self.state.execute_on(node, &command))).await
    }

    /// All events of subscribed channels from now on.
    pub(in crate::redis) fn channel_events(&self) -> ChannelEvents {
        self.state.subscriptions.events()
    }

    /// Subscriptions are counted: each needs one [`RedisClient::unsubscribe`]. Does not wait; see
    /// [`RedisClient::confirm_subscription`].
    pub(in crate::redis) fn subscribe(&self, channel: &ChannelName) {
        self.state.subscriptions.add(channel);
    }

    pub(in crate::redis) fn unsubscribe(&self, channel: &ChannelName) {
        self.state.subscriptions.remove(channel);
    }

    /// Waits until the server confirms a subscribed channel. No later message is missed without a gap event.
    pub(in crate::redis) async fn confirm_subscription(
        &self,
        channel: &ChannelName,
    ) -> Result<(), CoordinationError> {
        let within = self.state.connector.options.response_timeout;
        match timeout(within, self.state.subscriptions.wait_confirmed(channel)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.state.unavailable("channel is not subscribed; call subscribe first")),
            Err(_) => Err(self.state.unavailable(&format!("subscription not confirmed within {within:?}"))),
        }
    }
}

impl ClientState {
    /// Connects to at least one primary. Others may be in a failover, and are connected when they are needed.
    async fn connect_any(&self, deadline: Instant) -> Result<(), String> {
        if let Deployment::Cluster(cluster) = &self.deployment {
            cluster.refresh(0, None).await?;
        }
        let mut connecting = JoinSet::new();
        for node in self.primaries() {
            connecting.spawn(async move { node.connect(deadline).await.map(drop) });
        }
        let (mut is_connected, mut reasons) = (false, Vec::new());
        while let Some(joined) = connecting.join_next().await {
            match joined.map_err(|error| error.to_string()).flatten() {
                Ok(()) => is_connected = true,
                Err(reason) => reasons.push(reason),
            }
        }
        if is_connected { Ok(()) } else { Err(reasons.join("; ")) }
    }
}
