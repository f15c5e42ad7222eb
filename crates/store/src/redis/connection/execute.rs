//! Executes one operation on the right server.
//!
//! Only what was certainly not applied is retried, a bounded number of times and within the deadline.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ade_catalog::slot::slot_of;
use ade_keyspace::{ChannelName, RedisKey};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::ClientState;
use super::connector::one_line;
use super::node::{ActiveConnection, Node};
use super::script::Script;
use crate::coordination::{CoordinationError, Result};
use crate::redis::url::Address;

/// Enough for loading a script, a redirection and a failover in one call.
const MAX_ATTEMPTS: usize = 8;

/// Delay before a slot in migration is tried again.
const MIGRATION_RETRY_DELAY: Duration = Duration::from_millis(20);

/// The error of a script that runs on another node than intended.
const WRONG_NODE: &str = "ANOTHERPRIMARY";
/// Redis has no error code for this; it ends the message if the library is loaded already.
const ALREADY_LOADED: &str = "already exists";
/// Redis has no error code for this; it is the message if a function is unknown.
const FUNCTION_NOT_FOUND: &str = "Function not found";

#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    Script {
        script: &'a Script,
        keys: &'a [&'a RedisKey],
        args: &'a [&'a str],
    },
    Command {
        key: &'a RedisKey,
        command: &'a Cmd,
    },
    /// Publishes on a channel. On a cluster it is a shard channel, which belongs to the server of its slot.
    Publish {
        channel: &'a ChannelName,
        command: &'a Cmd,
    },
}

impl<'a> Operation<'a> {
    /// The key or channel whose slot decides which server executes it.
    fn routed_by(&self) -> &'a str {
        match self {
            Self::Script { keys, .. } => keys.first().map_or("", |key| key.as_str()),
            Self::Command { key, .. } => key.as_str(),
            Self::Publish { channel, .. } => channel.as_str(),
        }
    }

    fn is_gated(&self) -> bool {
        matches!(self, Self::Script { .. })
    }

    /// The command to send; with `load`, the one that loads the script.
    fn command(&self, node_id: &str, load: bool) -> Cow<'a, Cmd> {
        match *self {
            Self::Script { script, .. } if load => Cow::Owned(script.load()),
            Self::Script { script, keys, args } => Cow::Owned(script.call(node_id, keys, args)),
            Self::Command { command, .. } | Self::Publish { command, .. } => Cow::Borrowed(command),
        }
    }
}

/// Which connection an operation uses.
#[derive(Clone, Copy)]
pub(super) enum ConnectionUse {
    Shared,
    /// A dedicated one, which then waits for so many replicas, at most that long.
    Acked(u32, Duration),
    /// A dedicated one, because the command blocks on the server for at most that long.
    Blocking(Duration),
}

/// How to handle an error reply.
enum ErrorAction {
    /// Not applied; the server does not have the script.
    LoadScript,
    /// Not applied; another server owns the slot.
    Moved(Option<Address>),
    /// Not applied; another server already has this key of a slot in migration.
    Ask(Address),
    /// Not applied; the slot is in migration.
    RetryLater,
    /// Not applied; the server is not a primary any more.
    NotPrimary,
    /// The server cannot serve now.
    Unavailable,
    /// Not applied; the server has too little memory for it.
    OutOfMemory,
    /// The server would refuse it again.
    Refused,
}

fn classify(error: &ServerError, replied: &Address) -> ErrorAction {
    match error.kind() {
        _ if error.details() == Some(FUNCTION_NOT_FOUND) => ErrorAction::LoadScript,
        Some(ServerErrorKind::Moved) => ErrorAction::Moved(redirection(error, replied)),
        Some(ServerErrorKind::Ask) => {
            redirection(error, replied).map_or(ErrorAction::RetryLater, ErrorAction::Ask)
        }
        Some(ServerErrorKind::TryAgain) => ErrorAction::RetryLater,
        Some(ServerErrorKind::ReadOnly) => ErrorAction::NotPrimary,
        Some(ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
            ErrorAction::Unavailable
        }
        _ if error.code() == WRONG_NODE || error.details() == Some(WRONG_NODE) => ErrorAction::Moved(None),
        _ if matches!(error.code(), "NOAUTH" | "UNBLOCKED") => ErrorAction::Unavailable,
        _ if error.code() == "OOM" => ErrorAction::OutOfMemory,
        _ => ErrorAction::Refused,
    }
}

/// Parses `slot host:port`; an empty host means the server that replied.
fn redirection(error: &ServerError, replied: &Address) -> Option<Address> {
    let location = error.details()?.split_ascii_whitespace().nth(1)?;
    let (host, port) = location.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { replied.host.as_str() } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

impl ClientState {
    /// Executes an operation. Returns the reply, and how many replicas have it if that was requested.
    pub(super) async fn execute(
        &self,
        operation: Operation<'_>,
        connection_use: ConnectionUse,
    ) -> Result<(Value, u32)> {
        match self.execute_raw(operation, connection_use).await? {
            (Value::ServerError(error), _) => {
                Err(self.unavailable(&format!("refused: {}", one_line(&RedisError::from(error)))))
            }
            executed => Ok(executed),
        }
    }

    /// The same, but the error of a server that is out of memory is a reply.
    pub(super) async fn execute_raw(
        &self,
        operation: Operation<'_>,
        connection_use: ConnectionUse,
    ) -> Result<(Value, u32)> {
        let started = Instant::now();
        let mut deadline = started + self.connector.options.response_timeout;
        let mut load = false;
        let mut now = started;
        let mut asking: Option<Arc<Node>> = None;
        let mut last_error = String::from("no attempt was made");
        for _ in 0..MAX_ATTEMPTS {
            if now >= deadline {
                break;
            }
            let (version, node) = match asking.clone() {
                Some(node) => (0, node),
                None => self.route(operation.routed_by(), deadline).await?,
            };
            let active = self.connect(&node, deadline).await?;
            if operation.is_gated() && !node.wait_for_gate(now, deadline).await {
                last_error = "the primary changed and its clock is not trusted yet".to_owned();
                break;
            }
            let command = operation.command(&node.id, load);
            let mut dedicated = match node.dedicated(&active, connection_use, deadline).await {
                Ok(dedicated) => dedicated,
                Err(reason) => {
                    (last_error, now) = (reason, Instant::now());
                    continue;
                }
            };
            let mut shared = active.connection.clone();
            let connection = dedicated.as_mut().map_or(&mut shared, |dedicated| &mut dedicated.connection);
            let response_timeout = self.connector.options.response_timeout;
            let until = match connection_use {
                ConnectionUse::Blocking(within) => Instant::now() + within + response_timeout,
                ConnectionUse::Shared | ConnectionUse::Acked(..) => deadline,
            };
            // A caller that gives up drops a dedicated connection, and the server stops blocking.
            let sent = send(connection, &command, asking.is_some());
            let reply = self.await_reply(&node, &active, until, sent).await?;
            let mut acks = 0;
            match connection_use {
                ConnectionUse::Acked(required, within)
                    if !load && !matches!(reply, Value::ServerError(_)) =>
                {
                    let until = Instant::now() + within + response_timeout;
                    let waited = wait_for_replicas(connection, required, within);
                    acks = self.await_reply(&node, &active, until, waited).await?;
                }
                ConnectionUse::Blocking(_) => deadline = Instant::now() + response_timeout,
                ConnectionUse::Shared | ConnectionUse::Acked(..) => {}
            }
            if let Some(dedicated) = dedicated {
                active.put_back(dedicated);
            }
            let Value::ServerError(error) = reply else {
                if load {
                    load = false;
                    continue;
                }
                return Ok((reply, acks));
            };
            if load && error.details().is_some_and(|details| details.ends_with(ALREADY_LOADED)) {
                // Another call loaded it first.
                load = false;
                continue;
            }
            let asked_node = asking.take();
            match classify(&error, &active.address) {
                // The script must be loaded on the node that does not have it.
                ErrorAction::LoadScript => (load, asking) = (true, asked_node),
                ErrorAction::Moved(first) => self.refresh(version, first.as_ref(), deadline).await?,
                // The primary that already has the key.
                ErrorAction::Ask(address) => {
                    asking = self.servers.slot_map().node_at(&address).cloned();
                    if asking.is_none() {
                        self.refresh(version, Some(&address), deadline).await?;
                        asking = self.servers.slot_map().node_at(&address).cloned();
                    }
                }
                ErrorAction::RetryLater => sleep(MIGRATION_RETRY_DELAY).await,
                ErrorAction::NotPrimary => {
                    node.drop_connection(&active);
                    self.servers.request_refresh();
                    self.refresh(version, None, deadline).await?;
                }
                ErrorAction::Unavailable => {
                    node.drop_connection(&active);
                    self.servers.request_refresh();
                    return Err(self.refused(&active.address, error));
                }
                ErrorAction::OutOfMemory => return Ok((Value::ServerError(error), 0)),
                ErrorAction::Refused => return Err(self.refused(&active.address, error)),
            }
            last_error = one_line(&RedisError::from(error));
            now = Instant::now();
        }
        Err(self.unavailable(&format!("gave up after {:?}: {last_error}", started.elapsed())))
    }

    fn refused(&self, address: &Address, error: ServerError) -> CoordinationError {
        self.unavailable(&format!("{address} refused: {}", one_line(&RedisError::from(error))))
    }

    /// Awaits a reply, which may be an error reply. Without one the connection is dropped, and the operation may have
    /// been applied.
    pub(super) async fn await_reply<T>(
        &self,
        node: &Node,
        active: &ActiveConnection,
        deadline: Instant,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T> {
        let address = &active.address;
        match timeout_at(deadline, sent).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                node.drop_connection(active);
                self.servers.request_refresh();
                Err(self.unavailable(&format!("{address}: {}", one_line(&error))))
            }
            Err(_) => {
                let reason = format!("{address} does not reply");
                node.report_timeout(active, &reason);
                self.servers.request_refresh();
                Err(self.unavailable(&reason))
            }
        }
    }

    pub(super) async fn connect(&self, node: &Arc<Node>, deadline: Instant) -> Result<Arc<ActiveConnection>> {
        node.connect(deadline).await.map_err(|reason| {
            self.servers.request_refresh();
            self.unavailable(&reason)
        })
    }

    /// The server of a key or channel, with the version of the slot map.
    pub(super) async fn route(&self, key: &str, deadline: Instant) -> Result<(u64, Arc<Node>)> {
        let mut map = self.servers.slot_map();
        if map.owner_of(key).is_none() {
            self.refresh(map.version, None, deadline).await?;
            map = self.servers.slot_map();
        }
        let no_owner = || self.unavailable(&format!("no primary owns slot {}", slot_of(key.as_bytes())));
        let node = map.owner_of(key).ok_or_else(no_owner)?;
        Ok((map.version, Arc::clone(node)))
    }

    async fn refresh(&self, version: u64, first: Option<&Address>, deadline: Instant) -> Result<()> {
        match timeout_at(deadline, self.servers.refresh(version, first)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(self.unavailable(&reason)),
            Err(_) => Err(self.unavailable("cluster topology not available before the deadline")),
        }
    }

    /// Runs one command on one server, regardless of slots.
    pub(super) async fn execute_on(&self, node: &Arc<Node>, command: &Cmd) -> Result<Value> {
        let deadline = Instant::now() + self.connector.options.response_timeout;
        let active = self.connect(node, deadline).await?;
        let mut connection = active.connection.clone();
        let sent = send(&mut connection, command, false);
        match self.await_reply(node, &active, deadline, sent).await? {
            Value::ServerError(error) => {
                if !matches!(
                    classify(&error, &active.address),
                    ErrorAction::Refused | ErrorAction::OutOfMemory
                ) {
                    node.drop_connection(&active);
                    self.servers.request_refresh();
                }
                Err(self.refused(&active.address, error))
            }
            value => Ok(value),
        }
    }
}

async fn send(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    asking: bool,
) -> Result<Value, RedisError> {
    if !asking {
        return connection.send_packed_command(command).await;
    }
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING").add_command(command.clone());
    let replies = connection.send_packed_commands(&pipeline, 0, 2).await?;
    Ok(replies.into_iter().nth(1).unwrap_or(Value::Nil))
}

async fn wait_for_replicas(
    connection: &mut MultiplexedConnection,
    acks: u32,
    within: Duration,
) -> Result<u32, RedisError> {
    let mut command = redis::cmd("WAIT");
    // Zero would wait forever.
    command.arg(acks).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1));
    command.query_async(connection).await
}
