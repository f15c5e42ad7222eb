//! A group of clients that execute commands and report events: tasks of this process, or threads of worker processes in other
//! languages. Commands and events are the same for both, so that every row is measured in the same way.
//!
//! Invariant: dropping a group ends all its clients.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::clock::now_ns;
use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService};

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum ClientCommand {
    /// Acquire and release these locks in turn until the end of the window.
    Run { locks: Vec<String>, span: MeasuredSpan, from_ns: u64, until_ns: u64 },
    /// Acquire the lock and keep it.
    Queue { lock: String },
    /// Release the lock.
    Release,
}

/// The part of an acquire-release pair that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasuredSpan {
    /// From the request until the release is done.
    Pair,
    /// From the request until the grant.
    Wait,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum ClientEvent {
    /// The client starts to acquire the lock.
    Acquiring,
    Granted {
        client: usize,
        at_ns: u64,
    },
    /// The release is done; it started at this time.
    Released {
        at_ns: u64,
    },
    Finished(RunResult),
    /// The client has failed and executes no more commands.
    Failed {
        reason: String,
    },
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct RunResult {
    /// Samples that ended within the window.
    pub(crate) samples_ns: Vec<u64>,
    /// The longest sample that ended within the window or after it.
    pub(crate) longest_ns: u64,
}

/// Connected clients that wait for commands.
pub(crate) struct ClientGroup {
    commands: Vec<UnboundedSender<ClientCommand>>,
    events: UnboundedReceiver<ClientEvent>,
    /// Aborted when the group is dropped.
    _tasks: JoinSet<()>,
}

impl ClientGroup {
    pub(crate) fn new(
        commands: Vec<UnboundedSender<ClientCommand>>,
        events: UnboundedReceiver<ClientEvent>,
        tasks: JoinSet<()>,
    ) -> Self {
        Self { commands, events, _tasks: tasks }
    }

    /// Connects clients that are tasks of this process.
    pub(crate) async fn of_tasks<S: LockService>(service: Arc<S>, count: usize) -> Result<Self, BenchError> {
        let (events_in, events) = unbounded_channel();
        let (mut commands, mut tasks) = (Vec::new(), JoinSet::new());
        for number in 0..count {
            let client = service.client().await?;
            let (sender, receiver) = unbounded_channel();
            commands.push(sender);
            tasks.spawn(serve(number, client, receiver, events_in.clone()));
        }
        Ok(Self::new(commands, events, tasks))
    }

    pub(crate) fn size(&self) -> usize {
        self.commands.len()
    }

    pub(crate) fn send(&self, client: usize, command: ClientCommand) -> Result<(), BenchError> {
        let ended = || BenchError::new(format!("client {client} has ended"));
        self.commands.get(client).ok_or_else(ended)?.send(command).map_err(|_| ended())
    }

    pub(crate) async fn next_event(&mut self) -> Result<ClientEvent, BenchError> {
        match self.events.recv().await {
            Some(ClientEvent::Failed { reason }) => Err(BenchError::new(reason)),
            Some(event) => Ok(event),
            None => Err(BenchError::new("all clients have ended")),
        }
    }

    /// Waits for the results of all clients, in any order. Every client must have got a run command.
    pub(crate) async fn run_results(&mut self) -> Result<Vec<RunResult>, BenchError> {
        let mut results = Vec::new();
        while results.len() < self.size() {
            if let ClientEvent::Finished(result) = self.next_event().await? {
                results.push(result);
            }
        }
        Ok(results)
    }
}

/// Executes the commands of a client that is a task.
async fn serve<C: LockClient>(
    number: usize,
    mut client: C,
    mut commands: UnboundedReceiver<ClientCommand>,
    events: UnboundedSender<ClientEvent>,
) {
    let mut held = String::new();
    while let Some(command) = commands.recv().await {
        let result = match command {
            ClientCommand::Run { locks, span, from_ns, until_ns } => {
                run(&mut client, &locks, span, from_ns, until_ns).await.map(ClientEvent::Finished)
            }
            ClientCommand::Queue { lock } => {
                // Fails only while the group is being dropped.
                let _ = events.send(ClientEvent::Acquiring);
                let granted = client.acquire(&lock).await;
                held = lock;
                granted.map(|()| ClientEvent::Granted { client: number, at_ns: now_ns() })
            }
            ClientCommand::Release => {
                let at_ns = now_ns();
                client.release(&held).await.map(|()| ClientEvent::Released { at_ns })
            }
        };
        let event = result.unwrap_or_else(|error| ClientEvent::Failed { reason: error.to_string() });
        if events.send(event).is_err() {
            return;
        }
    }
}

async fn run<C: LockClient>(
    client: &mut C,
    locks: &[String],
    span: MeasuredSpan,
    from_ns: u64,
    until_ns: u64,
) -> Result<RunResult, BenchError> {
    let mut result = RunResult::default();
    for lock in locks.iter().cycle() {
        let began = now_ns();
        if began >= until_ns {
            break;
        }
        client.acquire(lock).await?;
        let granted = now_ns();
        client.release(lock).await?;
        let ended = if span == MeasuredSpan::Pair { now_ns() } else { granted };
        if ended >= from_ns {
            result.longest_ns = result.longest_ns.max(ended - began);
            if ended < until_ns {
                result.samples_ns.push(ended - began);
            }
        }
    }
    Ok(result)
}
