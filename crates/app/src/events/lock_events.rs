//! Where notices about locks go: audit entries and agents' inboxes in the database, and lines of the structured log.
//!
//! Deadlocks and broken locks are written to the database, and wait while it is unavailable. Other lock events are only
//! logged.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Clock;
use ade_domain::lock::{Deadlock, FencingToken, HoldView, LockName};
use ade_store::DatabaseError;
use ade_store::coordination::{LockEvent, LockEventKind};
use ade_store::database::{Commit, InboxMessage, Write};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::outbox::{AuditedAction, replace_nul, replace_nul_in};
use crate::{Context, new_id};

#[derive(Debug)]
pub enum LockNotice<'a> {
    /// A deadlock was resolved: for the audit log, and for the inbox of the victim.
    Deadlock(&'a Deadlock),
    /// An administrator broke a lock: for the audit log, and for the inboxes of its holders.
    Broken { actor: &'a str, lock: &'a LockName, reason: &'a str, holders: &'a [HoldView] },
    /// Any other event of a lock.
    Event(&'a LockEvent),
}

pub trait LockEventSink: fmt::Debug + Send + Sync {
    /// Must not block.
    fn publish(&self, notice: LockNotice<'_>);
}

/// Writes every notice as a line of the structured log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogEventSink;

/// The log target of lines that are written whatever the log level is.
pub const AUDIT_TARGET: &str = "ade::audit";

/// Names come from outside. They are logged as strings, which the log quotes, so that no name can forge a log line.
impl LockEventSink for LogEventSink {
    fn publish(&self, notice: LockNotice<'_>) {
        match notice {
            LockNotice::Deadlock(deadlock) => {
                let (victim, agent) = (deadlock.victim.to_string(), deadlock.victim.agent_id());
                let freed = list(deadlock.freed_locks.iter());
                let cycle =
                    list(deadlock.cycle.iter().map(|edge| format!("{} → {}", edge.holder, edge.waits_for)));
                tracing::warn!(target: AUDIT_TARGET, kind = "audit", action = "lock.deadlock", victim, cycle, freed);
                tracing::info!(target: AUDIT_TARGET, kind = "inbox", agent, notice = "DEADLOCK_DETECTED", cycle);
            }
            LockNotice::Broken { actor, lock, reason, holders } => {
                let (lock, held) = (lock.as_str(), list(holders.iter().map(|by| &by.holder)));
                tracing::warn!(target: AUDIT_TARGET, kind = "audit", action = "lock.break", actor, lock, reason, holders = held);
                for by in holders {
                    let agent = by.holder.agent_id();
                    tracing::info!(target: AUDIT_TARGET, kind = "inbox", agent, notice = "LOCK_BROKEN", lock, reason);
                }
            }
            LockNotice::Event(LockEvent { lock, at, kind: event }) => {
                let lock = lock.as_str();
                let (name, holder, token, why) = match event {
                    LockEventKind::QueueFull => {
                        return tracing::warn!(kind = "event", event = "lock:queue_full", lock, %at);
                    }
                    LockEventKind::Acquired(holder, token) => ("lock:acquired", holder, Some(*token), ""),
                    LockEventKind::Queued(holder) => ("lock:queued", holder, None, ""),
                    LockEventKind::WaitEnded(holder, why) => ("lock:wait_ended", holder, None, *why),
                    LockEventKind::Released(holder, token, why) => {
                        ("lock:released", holder, Some(*token), *why)
                    }
                };
                let (holder, token) = (holder.to_string(), token.map(FencingToken::number));
                tracing::debug!(kind = "event", event = name, lock, %at, holder, token, why);
            }
        }
    }
}

/// Lock notices that wait for the database; further ones are only logged.
const MAX_QUEUED: usize = 10_000;
/// With the backoff below: an outage of ten minutes.
const MAX_ATTEMPTS: u32 = 600;
const RETRY_BACKOFF: Duration = Duration::from_secs(1);

/// Writes notices to the database and to the log.
#[derive(Debug)]
pub struct DatabaseEventSink {
    clock: Arc<dyn Clock>,
    queue: mpsc::Sender<Commit>,
}

impl DatabaseEventSink {
    /// Starts the writer. Its task ends when the sink is dropped and all notices are written.
    #[must_use]
    pub fn start(context: &Context) -> (Self, JoinHandle<()>) {
        let Context { database, clock, .. } = context.clone();
        let (queue, mut queued) = mpsc::channel::<Commit>(MAX_QUEUED);
        let writer = tokio::spawn(async move {
            while let Some(commit) = queued.recv().await {
                let mut attempts = 0;
                while let Err(error) = database.commit(commit.clone()).await {
                    attempts += 1;
                    // A notice that the database rejects must not block the others.
                    if !matches!(error, DatabaseError::Unavailable(_)) || attempts == MAX_ATTEMPTS {
                        tracing::error!(%error, "cannot store a lock notice; it is only in the log");
                        break;
                    }
                    tracing::warn!(%error, "cannot store a lock notice; retrying");
                    tokio::time::sleep(RETRY_BACKOFF).await;
                }
            }
        });
        (Self { clock, queue }, writer)
    }

    fn send(&self, commit: Commit) {
        if self.queue.try_send(commit).is_err() {
            tracing::error!("too many lock notices wait for the database; this one is only in the log");
        }
    }

    fn inbox_message(&self, agent_id: &str, kind: &str, data: Value) -> Write {
        Write::InboxMessage(InboxMessage {
            message_id: new_id(),
            agent_id: replace_nul(agent_id),
            kind: kind.to_owned(),
            at: self.clock.now(),
            data: replace_nul_in(data),
        })
    }
}

impl LockEventSink for DatabaseEventSink {
    fn publish(&self, notice: LockNotice<'_>) {
        match &notice {
            LockNotice::Deadlock(deadlock) => {
                let edges = deadlock.cycle.iter();
                let edges = edges
                    .map(|edge| json!({ "holder": edge.holder.to_string(), "waits_for": edge.waits_for }));
                let cycle: Vec<Value> = edges.collect();
                let freed: Vec<String> = deadlock.freed_locks.iter().map(ToString::to_string).collect();
                let data = json!({ "victim": deadlock.victim.to_string(), "cycle": cycle, "freed": freed });
                let victim = deadlock.victim.agent_id();
                let details: Map<String, Value> = data.as_object().cloned().unwrap_or_default();
                let lock = deadlock.cycle.iter().next().map(|edge| edge.waits_for.to_string());
                let object_id = lock.unwrap_or_else(|| victim.to_owned());
                let action = AuditedAction { details, ..AuditedAction::new("lock.deadlock", &object_id) };
                let writes = vec![self.inbox_message(victim, "DEADLOCK_DETECTED", data)];
                self.send(action.commit(writes, None, self.clock.now()));
            }
            // The audit entry is written before the lock is broken: see `AuditService`.
            LockNotice::Broken { actor, lock, reason, holders } => {
                let agents: BTreeSet<&str> = holders.iter().map(|by| by.holder.agent_id()).collect();
                let data = json!({ "lock": lock.as_str(), "reason": reason, "by": actor });
                let message = |agent| self.inbox_message(agent, "LOCK_BROKEN", data.clone());
                self.send(Commit { writes: agents.into_iter().map(message).collect(), ..Commit::default() });
            }
            LockNotice::Event(_) => {}
        }
        LogEventSink.publish(notice);
    }
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
