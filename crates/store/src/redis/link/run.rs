//! Carrying out one piece of work on the right server.
//!
//! Repeats only what was certainly not carried out, a bounded number of times and within the deadline.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ade_keyspace::RedisKey;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::connect::plain;
use super::node::{Node, Up};
use super::script::Script;
use super::{Servers, Shared};
use crate::coordination::CoordinationError;
use crate::redis::url::Address;

/// Most attempts at one piece of work: enough for a load, a redirection, and a change of primary at the same time.
const MOST_ATTEMPTS: usize = 8;

/// Pause before a slot that is being moved is asked again.
const WHILE_MOVING: Duration = Duration::from_millis(20);

/// What a script says that finds itself on another node than was meant.
const ANOTHER_PRIMARY: &str = "ANOTHERPRIMARY";
/// What a server says that knows a library already.
const ALREADY_LOADED: &str = "already exists";
/// What a server says that does not know a function.
const NO_FUNCTION: &str = "Function not found";

/// A piece of work.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    Script { script: &'a Script, keys: &'a [RedisKey], args: &'a [&'a [u8]] },
    Command { key: &'a RedisKey, command: &'a Cmd },
}

impl<'a> Work<'a> {
    fn key(&self) -> Option<&'a RedisKey> {
        match self {
            Self::Script { keys, .. } => keys.first(),
            Self::Command { key, .. } => Some(key),
        }
    }

    fn is_gated(&self) -> bool {
        matches!(self, Self::Script { .. })
    }

    /// What to send; `load` first, if the server does not know a script.
    fn command(&self, node_id: &str, load: bool) -> Cow<'a, Cmd> {
        match *self {
            Self::Script { script, .. } if load => Cow::Owned(script.load()),
            Self::Script { script, keys, args } => Cow::Owned(script.by_name(node_id, keys, args)),
            Self::Command { command, .. } => Cow::Borrowed(command),
        }
    }
}

/// On which connection a piece of work is done.
#[derive(Clone, Copy)]
pub(super) enum Manner {
    /// The one that all share.
    Shared,
    /// One of its own, which then waits for so many replicas, at most so long.
    Acked(u32, Duration),
    /// One of its own, because the command itself makes the server wait, at most so long.
    Waiting(Duration),
}

/// What an error of the server calls for.
enum Next {
    /// Not carried out; the server does not know the script.
    Load,
    /// Not carried out; another server has the slot for good.
    Moved(Option<Address>),
    /// Not carried out; another server has this key already.
    Ask(Address),
    /// Not carried out; the slot is being moved.
    Wait,
    /// Not carried out; the server is no primary any more.
    Elsewhere,
    /// The server cannot serve now.
    Unfit,
    /// The server refused; it would do so again.
    Refused,
}

fn judge(error: &ServerError, asked: &Address) -> Next {
    match error.kind() {
        Some(ServerErrorKind::NoScript) => Next::Load,
        _ if error.details() == Some(NO_FUNCTION) => Next::Load,
        Some(ServerErrorKind::Moved) => Next::Moved(redirection(error, asked)),
        Some(ServerErrorKind::Ask) => redirection(error, asked).map_or(Next::Wait, Next::Ask),
        Some(ServerErrorKind::TryAgain) => Next::Wait,
        Some(ServerErrorKind::ReadOnly) => Next::Elsewhere,
        Some(ServerErrorKind::BusyLoading | ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
            Next::Unfit
        }
        _ if error.code() == ANOTHER_PRIMARY || error.details() == Some(ANOTHER_PRIMARY) => Next::Moved(None),
        _ if matches!(error.code(), "NOAUTH" | "UNBLOCKED") => Next::Unfit,
        _ => Next::Refused,
    }
}

/// `slot host:port`; an empty host is the one that was asked.
fn redirection(error: &ServerError, asked: &Address) -> Option<Address> {
    let place = error.details()?.split_ascii_whitespace().nth(1)?;
    let (host, port) = place.rsplit_once(':')?;
    let host = if matches!(host, "" | "?") { asked.host.as_str() } else { host };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

impl Shared {
    /// Carries out `work`, and says how many replicas have it, if that was asked for.
    pub(super) async fn run(
        &self,
        work: Work<'_>,
        manner: Manner,
    ) -> Result<(Value, u32), CoordinationError> {
        let started = Instant::now();
        let mut deadline = started + self.connector.options.answer_within;
        let slot = match &self.servers {
            Servers::One(_) => 0,
            Servers::Many(_) => work.key().map_or(0, RedisKey::slot),
        };
        let mut load = false;
        let mut now = started;
        let mut asking: Option<Arc<Node>> = None;
        let mut last = String::from("no attempt was made");
        for _ in 0..MOST_ATTEMPTS {
            if now >= deadline {
                break;
            }
            let (map_number, node) = match asking.clone() {
                Some(node) => (0, node),
                None => self.route(slot, deadline).await?,
            };
            let up = node.up(deadline).await.map_err(|reason| {
                self.doubt();
                self.unavailable(&reason)
            })?;
            if work.is_gated() && !node.opened(now, deadline).await {
                last = "the primary changed and its clock is not trusted yet".to_owned();
                break;
            }
            let command = work.command(&node.id, load);
            let answer = match manner {
                Manner::Shared => {
                    let mut connection = up.connection.clone();
                    let sent = send(&mut connection, &command, asking.is_some());
                    self.answer(&node, &up, deadline, sent).await?
                }
                Manner::Waiting(within) => {
                    let mut own = match node.own(&up, deadline).await {
                        Ok(own) => own,
                        Err(reason) => {
                            (last, now) = (reason, Instant::now());
                            continue;
                        }
                    };
                    let until = Instant::now() + within + self.connector.options.answer_within;
                    let sent = send(&mut own.connection, &command, asking.is_some());
                    // Whoever gives up before the answer drops the connection with it: the server then stops waiting.
                    let answer = self.answer(&node, &up, until, sent).await?;
                    up.keep(own);
                    deadline = Instant::now() + self.connector.options.answer_within;
                    answer
                }
                Manner::Acked(acks, within) => {
                    let (mut own, _permit) = match node.own_acked(&up, deadline).await {
                        Ok(own) => own,
                        Err(reason) => {
                            (last, now) = (reason, Instant::now());
                            continue;
                        }
                    };
                    let sent = send(&mut own.connection, &command, asking.is_some());
                    let answer = self.answer(&node, &up, deadline, sent).await?;
                    if load || matches!(answer, Value::ServerError(_)) {
                        up.keep(own);
                        answer
                    } else {
                        let until = Instant::now() + within + self.connector.options.answer_within;
                        let waited = wait(&mut own.connection, acks, within);
                        let acks = self.answer(&node, &up, until, waited).await?;
                        up.keep(own);
                        return Ok((answer, acks));
                    }
                }
            };
            let Value::ServerError(error) = answer else {
                if load {
                    load = false;
                    continue;
                }
                return Ok((answer, 0));
            };
            if load && error.details().is_some_and(|details| details.ends_with(ALREADY_LOADED)) {
                // Somebody else was faster.
                load = false;
                continue;
            }
            let asked = asking.take();
            match judge(&error, &up.address) {
                // The one that does not know it is the one that must learn it.
                Next::Load => (load, asking) = (true, asked),
                Next::Moved(first) => self.refresh(map_number, first.as_ref(), deadline).await?,
                Next::Ask(address) => {
                    asking = self.at(&address);
                    if asking.is_none() {
                        self.refresh(map_number, Some(&address), deadline).await?;
                        asking = self.at(&address);
                    }
                }
                Next::Wait => sleep(WHILE_MOVING).await,
                Next::Elsewhere => {
                    node.drop_connection(&up);
                    self.doubt();
                    if let Servers::Many(_) = self.servers {
                        self.refresh(map_number, None, deadline).await?;
                    }
                }
                Next::Unfit => {
                    node.drop_connection(&up);
                    self.doubt();
                    return Err(self.refused(&up.address, error));
                }
                Next::Refused => return Err(self.refused(&up.address, error)),
            }
            last = plain(&RedisError::from(error));
            now = Instant::now();
        }
        Err(self.unavailable(&format!("gave up after {:?}: {last}", started.elapsed())))
    }

    fn refused(&self, address: &Address, error: ServerError) -> CoordinationError {
        self.unavailable(&format!("{address} refused: {}", plain(&RedisError::from(error))))
    }

    /// The answer of a server, its errors included. If there is none, the connection is dropped: what was sent may have
    /// been carried out.
    pub(super) async fn answer<T>(
        &self,
        node: &Node,
        up: &Up,
        deadline: Instant,
        sent: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, CoordinationError> {
        let address = &up.address;
        match timeout_at(deadline, sent).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                node.drop_connection(up);
                self.doubt();
                Err(self.unavailable(&format!("{address}: {}", plain(&error))))
            }
            Err(_) => {
                let reason = format!("{address} gives no answer");
                node.gave_no_answer(up, &reason);
                self.doubt();
                Err(self.unavailable(&reason))
            }
        }
    }

    pub(super) fn doubt(&self) {
        if let Servers::Many(cluster) = &self.servers {
            cluster.doubt();
        }
    }

    pub(super) async fn route(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<(u64, Arc<Node>), CoordinationError> {
        let Servers::Many(cluster) = &self.servers else {
            return match &self.servers {
                Servers::One(node) => Ok((0, Arc::clone(node))),
                Servers::Many(_) => Err(self.unavailable("no server")),
            };
        };
        let map = cluster.map();
        if let Some(node) = map.owner(slot) {
            return Ok((map.number, Arc::clone(node)));
        }
        self.refresh(map.number, None, deadline).await?;
        let map = cluster.map();
        match map.owner(slot) {
            Some(node) => Ok((map.number, Arc::clone(node))),
            None => Err(self.unavailable(&format!("nobody serves slot {slot}"))),
        }
    }

    async fn refresh(
        &self,
        seen: u64,
        first: Option<&Address>,
        deadline: Instant,
    ) -> Result<(), CoordinationError> {
        let Servers::Many(cluster) = &self.servers else { return Ok(()) };
        match timeout_at(deadline, cluster.refresh(seen, first)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(self.unavailable(&reason)),
            Err(_) => Err(self.unavailable("no view of the cluster in time")),
        }
    }

    /// The primary at an address to which a key went ahead of its slot.
    fn at(&self, address: &Address) -> Option<Arc<Node>> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Many(cluster) => cluster.map().at(address).cloned(),
        }
    }

    /// One command on one server, whatever it owns.
    pub(super) async fn run_on(&self, node: &Arc<Node>, command: &Cmd) -> Result<Value, CoordinationError> {
        let deadline = Instant::now() + self.connector.options.answer_within;
        let up = node.up(deadline).await.map_err(|reason| {
            self.doubt();
            self.unavailable(&reason)
        })?;
        let mut connection = up.connection.clone();
        let sent = send(&mut connection, command, false);
        match self.answer(node, &up, deadline, sent).await? {
            Value::ServerError(error) => {
                if !matches!(judge(&error, &up.address), Next::Refused) {
                    node.drop_connection(&up);
                    self.doubt();
                }
                Err(self.refused(&up.address, error))
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
    let answers = connection.send_packed_commands(&pipeline, 0, 2).await?;
    Ok(answers.into_iter().nth(1).unwrap_or(Value::Nil))
}

async fn wait(
    connection: &mut MultiplexedConnection,
    acks: u32,
    within: Duration,
) -> Result<u32, RedisError> {
    let mut command = redis::cmd("WAIT");
    // Zero would mean for ever.
    command.arg(acks).arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1));
    command.query_async(connection).await
}
