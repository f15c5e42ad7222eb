//! A crowd of clients that do what they are told and say what happened: tasks of this process, or threads of workers in
//! other languages. Orders and events are the same for both, so that every row is measured in the same way.
//!
//! Invariant: dropping a crowd ends all of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::clock::now_ns;
use crate::failure::Failure;
use crate::peer::{Client, Peer};

/// What one client is told.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Take and give back these locks in turns, until the end of the window.
    Run { locks: Vec<String>, timed: Timed, from_ns: u64, until_ns: u64 },
    /// Ask for the lock, and keep it.
    Queue { lock: String },
    /// Give back what is held.
    Release,
}

/// What of a pair is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Timed {
    /// From asking until it was given back.
    Pair,
    /// From asking until it was granted.
    Wait,
}

/// What one client says.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// It asks for the lock from now on.
    Asks,
    /// It holds the lock since then.
    Granted { client: usize, at_ns: u64 },
    /// It gave the lock back, and began to do so then.
    Released { at_ns: u64 },
    /// Its run is over.
    Ran(Run),
    /// It cannot go on.
    Failed { why: String },
}

/// What came of one client's run.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Run {
    /// What was timed and ended within the window.
    pub(crate) samples_ns: Vec<u64>,
    /// The longest of all that ended within the window or after it.
    pub(crate) longest_ns: u64,
}

/// Clients that are connected and wait for orders.
pub(crate) struct Crowd {
    orders: Vec<UnboundedSender<Order>>,
    events: UnboundedReceiver<Event>,
    /// Whatever lives as long as the crowd.
    _members: JoinSet<()>,
}

impl Crowd {
    pub(crate) fn new(
        orders: Vec<UnboundedSender<Order>>,
        events: UnboundedReceiver<Event>,
        members: JoinSet<()>,
    ) -> Self {
        Self { orders, events, _members: members }
    }

    /// Clients of this process, each a task.
    pub(crate) async fn of_tasks<P: Peer>(peer: Arc<P>, count: usize) -> Result<Self, Failure> {
        let (events_in, events) = unbounded_channel();
        let (mut orders, mut members) = (Vec::new(), JoinSet::new());
        for number in 0..count {
            let client = peer.client().await?;
            let (sender, receiver) = unbounded_channel();
            orders.push(sender);
            members.spawn(obey(number, client, receiver, events_in.clone()));
        }
        Ok(Self::new(orders, events, members))
    }

    pub(crate) fn size(&self) -> usize {
        self.orders.len()
    }

    /// Tells one client what to do.
    pub(crate) fn order(&self, client: usize, order: Order) -> Result<(), Failure> {
        let gone = || Failure::new(format!("client {client} is gone"));
        self.orders.get(client).ok_or_else(gone)?.send(order).map_err(|_| gone())
    }

    /// What happens next.
    pub(crate) async fn next(&mut self) -> Result<Event, Failure> {
        match self.events.recv().await {
            Some(Event::Failed { why }) => Err(Failure::new(why)),
            Some(event) => Ok(event),
            None => Err(Failure::new("all clients are gone")),
        }
    }

    /// The results of runs that were ordered of everybody, in no order.
    pub(crate) async fn runs(&mut self) -> Result<Vec<Run>, Failure> {
        let mut runs = Vec::new();
        while runs.len() < self.size() {
            if let Event::Ran(run) = self.next().await? {
                runs.push(run);
            }
        }
        Ok(runs)
    }
}

/// The life of a client that is a task.
async fn obey<C: Client>(
    number: usize,
    mut client: C,
    mut orders: UnboundedReceiver<Order>,
    events: UnboundedSender<Event>,
) {
    let mut held = String::new();
    while let Some(order) = orders.recv().await {
        let done = match order {
            Order::Run { locks, timed, from_ns, until_ns } => {
                run(&mut client, &locks, timed, from_ns, until_ns).await.map(Event::Ran)
            }
            Order::Queue { lock } => {
                // If nobody listens any more, the crowd is being dropped.
                let _ = events.send(Event::Asks);
                let granted = client.acquire(&lock).await;
                held = lock;
                granted.map(|()| Event::Granted { client: number, at_ns: now_ns() })
            }
            Order::Release => {
                let at_ns = now_ns();
                client.release(&held).await.map(|()| Event::Released { at_ns })
            }
        };
        let event = done.unwrap_or_else(|failure| Event::Failed { why: failure.to_string() });
        if events.send(event).is_err() {
            return;
        }
    }
}

async fn run<C: Client>(
    client: &mut C,
    locks: &[String],
    timed: Timed,
    from_ns: u64,
    until_ns: u64,
) -> Result<Run, Failure> {
    let mut run = Run::default();
    for lock in locks.iter().cycle() {
        let asked = now_ns();
        if asked >= until_ns {
            break;
        }
        client.acquire(lock).await?;
        let granted = now_ns();
        client.release(lock).await?;
        let ended = if timed == Timed::Pair { now_ns() } else { granted };
        if ended >= from_ns {
            run.longest_ns = run.longest_ns.max(ended - asked);
            if ended < until_ns {
                run.samples_ns.push(ended - asked);
            }
        }
    }
    Ok(run)
}
