//! Peers in Python: their clients are threads of worker processes (`python/worker.py`), which obey the same orders.
//!
//! Invariant: a worker ends when its standard input closes, so it cannot outlive this process.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::crowd::{Crowd, Event, Order};
use crate::failure::Failure;
use crate::peer::TTL_MS;

const WORKER: &str = include_str!("../python/worker.py");

/// A Python library that locks with Redis.
#[derive(Debug, Clone)]
pub(crate) struct Python {
    pub(crate) interpreter: PathBuf,
    pub(crate) peer: &'static str,
    pub(crate) port: u16,
    pub(crate) processes: usize,
    /// Between two tries, if not the library's own.
    pub(crate) pause: Option<Duration>,
}

struct Worker {
    /// Killed when dropped.
    _process: Child,
    orders: ChildStdin,
    events: Lines<BufReader<ChildStdout>>,
}

impl Python {
    /// Versions of the interpreter and of the peers, by name.
    pub(crate) async fn versions(interpreter: &PathBuf) -> Result<Vec<(String, String)>, Failure> {
        let arguments = ["-c", WORKER, "versions", "", "", "", "", ""];
        let output = Command::new(interpreter).args(arguments).stdin(Stdio::null()).output().await;
        let output = output.map_err(Failure::of("start Python"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).map_err(|_| match serde_json::from_str(&text) {
            Ok(Event::Failed { why }) => Failure::new(why),
            _ => Failure::new(format!(
                "odd answer of Python: {text} {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        })
    }

    pub(crate) async fn crowd(&self, count: usize) -> Result<Crowd, Failure> {
        let (events_in, events) = unbounded_channel();
        let (mut orders, mut members, mut started) = (Vec::new(), JoinSet::new(), Vec::new());
        let processes = self.processes.min(count);
        for number in 0..processes {
            let (first, end) = (number * count / processes, (number + 1) * count / processes);
            started.push((first..end, self.start(first, end - first)?));
        }
        for (clients, mut worker) in started {
            // Its first word says that all of its clients are connected.
            if let Event::Failed { why } = worker.hear().await? {
                return Err(Failure::new(why));
            }
            let (to_worker, for_worker) = unbounded_channel();
            for client in clients {
                let (sender, receiver) = unbounded_channel();
                orders.push(sender);
                members.spawn(forward(client, receiver, to_worker.clone()));
            }
            members.spawn(worker.work(for_worker, events_in.clone()));
        }
        Ok(Crowd::new(orders, events, members))
    }

    fn start(&self, first: usize, count: usize) -> Result<Worker, Failure> {
        let pause = self.pause.map_or_else(|| "-".to_owned(), |pause| pause.as_secs_f64().to_string());
        let numbers = [u64::from(self.port), first as u64, count as u64, TTL_MS / 1_000];
        let mut process = Command::new(&self.interpreter)
            .args(["-c", WORKER, self.peer])
            .args(numbers.map(|number| number.to_string()))
            .arg(pause)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::of("start Python"))?;
        let (Some(orders), Some(events)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Failure::new("cannot take the pipes of a worker"));
        };
        Ok(Worker { _process: process, orders, events: BufReader::new(events).lines() })
    }
}

impl Worker {
    async fn hear(&mut self) -> Result<Event, Failure> {
        let line = self.events.next_line().await.map_err(Failure::of("hear a worker"))?;
        let line = line.ok_or_else(|| Failure::new("a Python worker ended; standard error tells why"))?;
        serde_json::from_str(&line).map_err(Failure::of("understand a worker"))
    }

    /// Carries orders there and events back.
    async fn work(mut self, mut orders: UnboundedReceiver<String>, events: UnboundedSender<Event>) {
        loop {
            let event = tokio::select! {
                // Reading a line can be taken up again where it was left.
                event = self.hear() => event,
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    match self.orders.write_all(order.as_bytes()).await {
                        Ok(()) => continue,
                        Err(error) => Err(Failure::of("order a worker")(error)),
                    }
                }
            };
            let ends = event.is_err();
            let event = event.unwrap_or_else(|failure| Event::Failed { why: failure.to_string() });
            if events.send(event).is_err() || ends {
                return;
            }
        }
    }
}

/// Writes the client's number on its orders.
async fn forward(client: usize, mut orders: UnboundedReceiver<Order>, to_worker: UnboundedSender<String>) {
    while let Some(order) = orders.recv().await {
        // An order has nothing that JSON cannot say.
        let Ok(line) = serde_json::to_string(&(client, order)) else { return };
        if to_worker.send(line + "\n").is_err() {
            return;
        }
    }
}
