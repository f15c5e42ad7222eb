//! What others must hear of: the audit log, the inbox of an agent, the stream of events. One port for all three.
//!
//! Deadlocks and breaks go through the record, and wait for it when it is away; what happens to locks otherwise is a line of
//! the log.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Clock;
use ade_domain::lock::{Deadlock, HeldBy, LockName, Token};
use ade_store::coordination::{LockEvent, LockEventKind};
use ade_store::database::{Commit, InboxMessage, Write};
use ade_store::{Database, DatabaseError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::acts::{Act, new_id, storable, storable_value};

/// Something that people or agents must hear of.
#[derive(Debug)]
pub enum LockNotice<'a> {
    /// A deadlock was ended: for the audit log, and for the inbox of the agent that gave way.
    Deadlock(&'a Deadlock),
    /// An administrator took a lock from its holders: for the audit log, and for their inboxes.
    Broken {
        /// Who did it.
        actor: &'a str,
        /// Which lock.
        lock: &'a LockName,
        /// Why.
        reason: &'a str,
        /// Who held it.
        holders: &'a [HeldBy],
    },
    /// Something happened to a lock: for the stream of events.
    Lock(&'a LockEvent),
}

/// Where notices go.
pub trait LockEventSink: Send + Sync {
    /// Takes one.
    fn tell(&self, notice: LockNotice<'_>);
}

/// Writes every notice as a line of the structured log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogNotices;

/// What must be in the log whatever its level.
pub const AUDIT: &str = "ade::audit";

/// Names come from outside: they are written as strings, which the log quotes, so that no name looks like another line.
impl LockEventSink for LogNotices {
    fn tell(&self, notice: LockNotice<'_>) {
        match notice {
            LockNotice::Deadlock(deadlock) => {
                let (victim, agent) = (deadlock.victim.to_string(), deadlock.victim.agent_id());
                let freed = list(deadlock.freed.iter());
                let cycle =
                    list(deadlock.cycle.iter().map(|edge| format!("{} → {}", edge.holder, edge.waits_for)));
                tracing::warn!(target: AUDIT, kind = "audit", action = "lock.deadlock", victim, cycle, freed);
                tracing::info!(target: AUDIT, kind = "inbox", agent, notice = "DEADLOCK_DETECTED", cycle);
            }
            LockNotice::Broken { actor, lock, reason, holders } => {
                let (lock, held) = (lock.as_str(), list(holders.iter().map(|by| &by.holder)));
                tracing::warn!(target: AUDIT, kind = "audit", action = "lock.break", actor, lock, reason, holders = held);
                for by in holders {
                    let agent = by.holder.agent_id();
                    tracing::info!(target: AUDIT, kind = "inbox", agent, notice = "LOCK_BROKEN", lock, reason);
                }
            }
            LockNotice::Lock(LockEvent { lock, at, event }) => {
                let lock = lock.as_str();
                let (name, holder, token, why) = match event {
                    LockEventKind::QueueFull => {
                        return tracing::warn!(kind = "event", event = "lock:queue_full", lock, %at);
                    }
                    LockEventKind::Acquired(holder, token) => ("lock:acquired", holder, Some(*token), ""),
                    LockEventKind::Queued(holder) => ("lock:queued", holder, None, ""),
                    LockEventKind::Left(holder, why) => ("lock:left", holder, None, *why),
                    LockEventKind::Freed(holder, token, why) => ("lock:released", holder, Some(*token), *why),
                };
                let (holder, token) = (holder.to_string(), token.map(Token::number));
                tracing::debug!(kind = "event", event = name, lock, %at, holder, token, why);
            }
        }
    }
}

/// Notices that wait for the record; beyond that they are lines of the log alone.
const MOST_WAITING: usize = 10_000;
/// How often: an outage of ten minutes.
const MOST_TRIES: u32 = 600;
/// The pause before the record is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Writes to the record, and to the log as before.
pub struct RecordNotices {
    clock: Arc<dyn Clock>,
    waiting: mpsc::Sender<Commit>,
}

impl fmt::Debug for RecordNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordNotices").finish_non_exhaustive()
    }
}

impl RecordNotices {
    /// Begins to write; whoever ends the task has waited for what was told before.
    #[must_use]
    pub fn start(record: Database, clock: Arc<dyn Clock>) -> (Self, JoinHandle<()>) {
        let (waiting, mut told) = mpsc::channel::<Commit>(MOST_WAITING);
        let task = tokio::spawn(async move {
            while let Some(commit) = told.recv().await {
                let mut tries = 0;
                while let Err(error) = record.commit(commit.clone()).await {
                    tries += 1;
                    // What the record does not take at all must not keep others waiting.
                    if !matches!(error, DatabaseError::Unavailable(_)) || tries == MOST_TRIES {
                        tracing::error!(%error, "a notice is in the log alone");
                        break;
                    }
                    tracing::warn!(%error, "a notice cannot be written to the record; trying again");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
        (Self { clock, waiting }, task)
    }

    fn send(&self, commit: Commit) {
        if self.waiting.try_send(commit).is_err() {
            tracing::error!("too many notices wait for the record; this one is in the log alone");
        }
    }

    fn message(&self, agent_id: &str, kind: &str, data: Value) -> Write {
        Write::Inbox(InboxMessage {
            message_id: new_id(),
            agent_id: storable(agent_id),
            kind: kind.to_owned(),
            at: self.clock.now(),
            data: storable_value(data),
        })
    }
}

impl LockEventSink for RecordNotices {
    fn tell(&self, notice: LockNotice<'_>) {
        let mut commit = Commit::default();
        match &notice {
            LockNotice::Deadlock(deadlock) => {
                let cycle: Vec<Value> = deadlock
                    .cycle
                    .iter()
                    .map(|edge| json!({ "holder": edge.holder.to_string(), "waits_for": edge.waits_for }))
                    .collect();
                let freed: Vec<String> = deadlock.freed.iter().map(ToString::to_string).collect();
                let data = json!({ "victim": deadlock.victim.to_string(), "cycle": cycle, "freed": freed });
                let victim = deadlock.victim.agent_id();
                commit.writes.push(self.message(victim, "DEADLOCK_DETECTED", data.clone()));
                let details: Map<String, Value> = data.as_object().cloned().unwrap_or_default();
                let lock = deadlock.cycle.iter().next().map(|edge| edge.waits_for.to_string());
                let object_id = lock.unwrap_or_else(|| victim.to_owned());
                let act = Act { action: "lock.deadlock", object_id: &object_id, details, ..Act::default() };
                act.add(&mut commit, None, self.clock.now());
                self.send(commit);
            }
            LockNotice::Broken { actor, lock, reason, holders } => {
                let agents: BTreeSet<&str> = holders.iter().map(|by| by.holder.agent_id()).collect();
                for agent in agents {
                    let data = json!({ "lock": lock.as_str(), "reason": reason, "by": actor });
                    commit.writes.push(self.message(agent, "LOCK_BROKEN", data));
                }
                self.send(commit);
            }
            LockNotice::Lock(_) => {}
        }
        LogNotices.tell(notice);
    }
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
