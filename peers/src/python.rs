//! Peers in Python: their clients are threads of worker processes (`python/worker.py`), which execute the same commands.
//!
//! Invariant: a worker exits when its standard input closes, so it cannot outlive this process.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::clients::{ClientCommand, ClientEvent, ClientGroup};
use crate::error::BenchError;
use crate::lock_service::TTL_MS;

const WORKER: &str = include_str!("../python/worker.py");

/// A Python library with locks on Redis.
#[derive(Debug, Clone)]
pub(crate) struct PythonPeer {
    pub(crate) interpreter: PathBuf,
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    pub(crate) processes: usize,
    /// Pause between two tries; None for the default of the library.
    pub(crate) pause: Option<Duration>,
}

struct Worker {
    /// Killed when dropped.
    _process: Child,
    commands: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
}

impl PythonPeer {
    /// Names and versions of the interpreter and the libraries.
    pub(crate) async fn versions(interpreter: &PathBuf) -> Result<Vec<(String, String)>, BenchError> {
        let arguments = ["-c", WORKER, "versions", "", "", "", "", ""];
        let output = Command::new(interpreter).args(arguments).stdin(Stdio::null()).output().await;
        let output = output.map_err(BenchError::context("start Python"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).map_err(|_| match serde_json::from_str(&text) {
            Ok(ClientEvent::Failed { reason }) => BenchError::new(reason),
            _ => BenchError::new(format!(
                "unexpected output of Python: {text} {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        })
    }

    pub(crate) async fn connect(&self, count: usize) -> Result<ClientGroup, BenchError> {
        let (events_in, events) = unbounded_channel();
        let (mut commands, mut tasks, mut workers) = (Vec::new(), JoinSet::new(), Vec::new());
        let processes = self.processes.min(count);
        for number in 0..processes {
            let (first, end) = (number * count / processes, (number + 1) * count / processes);
            workers.push((first..end, self.start(first, end - first)?));
        }
        for (clients, mut worker) in workers {
            // The first event of a worker says that all its clients are connected.
            if let ClientEvent::Failed { reason } = worker.next_event().await? {
                return Err(BenchError::new(reason));
            }
            let (to_worker, for_worker) = unbounded_channel();
            for client in clients {
                let (sender, receiver) = unbounded_channel();
                commands.push(sender);
                tasks.spawn(forward(client, receiver, to_worker.clone()));
            }
            tasks.spawn(worker.relay(for_worker, events_in.clone()));
        }
        Ok(ClientGroup::new(commands, events, tasks))
    }

    fn start(&self, first: usize, count: usize) -> Result<Worker, BenchError> {
        let pause = self.pause.map_or_else(|| "-".to_owned(), |pause| pause.as_secs_f64().to_string());
        let numbers = [u64::from(self.port), first as u64, count as u64, TTL_MS / 1_000];
        let mut process = Command::new(&self.interpreter)
            .args(["-c", WORKER, self.name])
            .args(numbers.map(|number| number.to_string()))
            .arg(pause)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::context("start Python"))?;
        let (Some(commands), Some(events)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(BenchError::new("cannot open the pipes of a Python worker"));
        };
        Ok(Worker { _process: process, commands, events: BufReader::new(events).lines() })
    }
}

impl Worker {
    async fn next_event(&mut self) -> Result<ClientEvent, BenchError> {
        let line = self.events.next_line().await.map_err(BenchError::context("read from a Python worker"))?;
        let line =
            line.ok_or_else(|| BenchError::new("a Python worker exited; see standard error for the reason"))?;
        serde_json::from_str(&line).map_err(BenchError::context("parse the output of a Python worker"))
    }

    /// Relays commands to the worker and events back.
    async fn relay(mut self, mut commands: UnboundedReceiver<String>, events: UnboundedSender<ClientEvent>) {
        loop {
            let event = tokio::select! {
                // Cancel-safe: a partly read line is kept.
                event = self.next_event() => event,
                command = commands.recv() => {
                    let Some(command) = command else { return };
                    match self.commands.write_all(command.as_bytes()).await {
                        Ok(()) => continue,
                        Err(error) => Err(BenchError::context("write to a Python worker")(error)),
                    }
                }
            };
            let has_failed = event.is_err();
            let event = event.unwrap_or_else(|error| ClientEvent::Failed { reason: error.to_string() });
            if events.send(event).is_err() || has_failed {
                return;
            }
        }
    }
}

/// Adds the number of the client to its commands.
async fn forward(
    client: usize,
    mut commands: UnboundedReceiver<ClientCommand>,
    to_worker: UnboundedSender<String>,
) {
    while let Some(command) = commands.recv().await {
        // Cannot fail: every command can be serialised.
        let Ok(line) = serde_json::to_string(&(client, command)) else { return };
        if to_worker.send(line + "\n").is_err() {
            return;
        }
    }
}
