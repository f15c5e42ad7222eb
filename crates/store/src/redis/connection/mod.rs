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
use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use self::cluster::Servers;
use self::connector::Connector;
use self::execute::{ConnectionUse, Operation};
pub use self::script::Script;
use self::subscriptions::ChannelSubscriptions;
pub(crate) use self::subscriptions::{ChannelEvent, ChannelEvents};
use super::url::RedisUrl;
use crate::coordination::{CoordinationError, Result};

/// Keys that one step of a scan visits, about.
const SCAN_COUNT: usize = 500;

#[derive(Debug, Clone, Copy)]
pub struct ConnectionOptions {
    /// One attempt to connect.
    pub(crate) connect_timeout: Duration,
    /// One call as a whole: connecting, waiting for the gate of a new primary, retries.
    pub(crate) response_timeout: Duration,
    /// Maximum difference between the clocks of two servers.
    pub(crate) max_clock_skew: Duration,
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
    /// Aborted when the last client is dropped.
    _tasks: Arc<JoinSet<()>>,
}

/// What a client shares with its tasks.
struct ClientState {
    connector: Arc<Connector>,
    servers: Servers,
    subscriptions: ChannelSubscriptions,
}

impl RedisClient {
    pub async fn open(url: &RedisUrl, options: ConnectionOptions) -> Result<Self> {
        let connector = Arc::new(Connector::new(url.clone(), options));
        let servers = Servers::new(Arc::clone(&connector));
        let state = Arc::new(ClientState { connector, servers, subscriptions: ChannelSubscriptions::new() });
        let within = options.connect_timeout;
        // Each server gets a little less time than all together: one that hangs must not fail those that answer.
        timeout(within, state.connect_any(Instant::now() + within * 4 / 5))
            .await
            .unwrap_or_else(|_| Err(format!("no connection within {within:?}")))
            .map_err(|reason| state.unavailable(&reason))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(subscriptions::run_subscriber(Arc::clone(&state)));
        if url.layout() == Layout::Cluster {
            let state = Arc::clone(&state);
            tasks.spawn(async move { state.servers.refresh_periodically().await });
        }
        Ok(Self { state, _tasks: Arc::new(tasks) })
    }

    pub fn layout(&self) -> Layout {
        self.state.connector.url.layout()
    }

    /// Runs a script on the server of its first key. `ARGV[1]` is the id of the intended cluster node, or empty;
    /// `args` follow.
    pub async fn call(&self, script: &Script, keys: &[&RedisKey], args: &[&str]) -> Result<Value> {
        let operation = Operation::Script { script, keys, args };
        Ok(self.state.execute(operation, ConnectionUse::Shared).await?.0)
    }

    /// The same; `None` if the server refused it because it is out of memory. Then nothing was applied.
    pub(crate) async fn call_if_memory_allows(
        &self,
        script: &Script,
        keys: &[&RedisKey],
        args: &[&str],
    ) -> Result<Option<Value>> {
        let operation = Operation::Script { script, keys, args };
        let reply = self.state.execute_raw(operation, ConnectionUse::Shared).await?.0;
        Ok(Some(reply).filter(|reply| !matches!(reply, Value::ServerError(_))))
    }

    /// The same as `call`, then waits until `acks` replicas have it, at most `within`. Returns how many have it.
    pub(crate) async fn call_acked(
        &self,
        script: &Script,
        keys: &[&RedisKey],
        args: &[&str],
        acks: u32,
        within: Duration,
    ) -> Result<(Value, u32)> {
        self.state.execute(Operation::Script { script, keys, args }, ConnectionUse::Acked(acks, within)).await
    }

    /// Runs one command on the server of `key`. Does not wait for the gate of a new primary.
    pub async fn query(&self, key: &RedisKey, command: Cmd) -> Result<Value> {
        let operation = Operation::Command { key, command: &command };
        Ok(self.state.execute(operation, ConnectionUse::Shared).await?.0)
    }

    /// The same for a blocking command, on a connection of its own.
    pub(crate) async fn query_blocking(&self, key: &RedisKey, command: Cmd, max: Duration) -> Result<Value> {
        let operation = Operation::Command { key, command: &command };
        Ok(self.state.execute(operation, ConnectionUse::Blocking(max)).await?.0)
    }

    /// Runs many commands concurrently, each on the server of its key. The results have the same order.
    pub(crate) async fn query_all(&self, commands: Vec<(RedisKey, Cmd)>) -> Vec<Result<Value>> {
        self.state.execute_all(&commands).await
    }

    /// Runs one command on every primary.
    pub async fn query_primaries(&self, command: Cmd) -> Result<Vec<Value>> {
        let primaries = self.state.servers.primaries();
        if primaries.is_empty() {
            return Err(self.state.unavailable("no primary is known"));
        }
        try_join_all(primaries.iter().map(|node| self.state.execute_on(node, &command))).await
    }

    /// The id of the server that has a key, as long as it is known; empty outside a cluster.
    pub(crate) fn server_of(&self, key: &RedisKey) -> Option<String> {
        self.state.servers.slot_map().owner_of(key.as_str()).map(|node| node.id.clone())
    }

    /// How many servers have keys.
    pub(crate) fn server_count(&self) -> usize {
        self.state.servers.primaries().len()
    }

    /// Passes all keys that match a pattern to `visit`, in parts. A key that exists all the time is passed at least once.
    pub(crate) async fn scan_keys(&self, pattern: &str, mut visit: impl FnMut(Vec<String>)) -> Result<()> {
        for node in self.state.servers.primaries() {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
                let reply = self.state.execute_on(&node, &scan).await?;
                let (next, keys): (String, Vec<String>) = redis::from_redis_value(reply)?;
                visit(keys);
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    /// Publishes a message for all subscribers of a channel.
    pub(crate) async fn publish(&self, channel: &ChannelName, text: &str) -> Result<()> {
        let name = if self.layout() == Layout::Cluster { "SPUBLISH" } else { "PUBLISH" };
        let mut command = redis::cmd(name);
        command.arg(channel.as_str()).arg(text);
        let operation = Operation::Publish { channel, command: &command };
        self.state.execute(operation, ConnectionUse::Shared).await.map(drop)
    }

    /// All events of subscribed channels from now on.
    pub(crate) fn channel_events(&self) -> ChannelEvents {
        self.state.subscriptions.events()
    }

    /// Does not wait; see [`RedisClient::confirm_subscription`].
    pub(crate) fn subscribe(&self, channel: &ChannelName) {
        self.state.subscriptions.add(channel);
    }

    pub(crate) fn unsubscribe(&self, channel: &ChannelName) {
        self.state.subscriptions.remove(channel);
    }

    /// Waits until the server confirms a subscribed channel. No later message is missed without a gap event.
    pub(crate) async fn confirm_subscription(&self, channel: &ChannelName) -> Result<()> {
        let within = self.state.connector.options.response_timeout;
        match timeout(within, self.state.subscriptions.wait_confirmed(channel)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.state.unavailable("channel is not subscribed; call subscribe first")),
            Err(_) => Err(self.state.unavailable(&format!("subscription not confirmed within {within:?}"))),
        }
    }
}

impl ClientState {
    fn unavailable(&self, reason: &str) -> CoordinationError {
        CoordinationError(format!("Redis at {}: {reason}", self.connector.url))
    }

    /// Connects to at least one primary. Others may be in a failover, and are connected when they are needed.
    async fn connect_any(&self, deadline: Instant) -> Result<(), String> {
        self.servers.refresh(0, None).await?;
        let primaries = self.servers.primaries();
        let connected = join_all(primaries.iter().map(|node| node.connect(deadline))).await;
        if connected.iter().any(Result::is_ok) {
            return Ok(());
        }
        Err(connected.into_iter().filter_map(Result::err).collect::<Vec<String>>().join("; "))
    }
}
