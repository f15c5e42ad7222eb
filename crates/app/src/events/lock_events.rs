//! Where notices about locks go: audit entries and agents' inboxes in the database, and lines of the structured log.
//!
//! Deadlocks, broken locks and full queues are written to the database, and wait while it is unavailable. Other lock events are
//! only logged.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ade_domain::audit::{Principal, Trigger};
use ade_domain::lock::{Deadlock, FencingToken, HoldView, LockName};
use ade_domain::people::{ADMIN, ON_CALL, UserId};
use ade_domain::{Clock, Moment};
use ade_store::coordination::{LockEvent, LockEventKind};
use ade_store::database::{Commit, InboxMessage, Write};
use ade_store::{Database, DatabaseError};
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
                    LockEventKind::Promoted(holder, token) => ("lock:promoted", holder, Some(*token), ""),
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

/// Operators are notified of the full queue of a lock at most this often.
const QUEUE_FULL_INTERVAL_MS: u64 = 60_000;
/// Full queues that one process reports within that time.
const MAX_REPORTED_QUEUES: usize = 1_000;
/// Lock notices that wait for the database; further ones are only logged.
const MAX_QUEUED: usize = 10_000;
/// With the backoff below: an outage of ten minutes.
const MAX_ATTEMPTS: u32 = 600;
const RETRY_BACKOFF: Duration = Duration::from_secs(1);

/// Writes notices to the database and to the log.
#[derive(Debug)]
pub struct DatabaseEventSink {
    clock: Arc<dyn Clock>,
    queue: mpsc::Sender<QueuedNotice>,
    /// When each lock whose queue was full may be reported again by this process.
    reported_queues: Mutex<HashMap<LockName, Moment>>,
    /// Who resolves deadlocks.
    detection: Principal,
}

/// A notice that waits for the database.
#[derive(Debug, Clone)]
enum QueuedNotice {
    Commit(Commit),
    /// The queue of a lock was full: for the operators, once for all processes.
    QueueFull {
        lock: String,
        at: Moment,
        by: Principal,
    },
}

impl QueuedNotice {
    /// Stores it, or fails and can be stored again.
    async fn store(&mut self, database: &Database) -> Result<(), DatabaseError> {
        let commit = match self {
            Self::Commit(commit) => commit.clone(),
            Self::QueueFull { lock, at, by } => {
                let people = database.people().await?;
                let (turn, until) = (format!("queue_full:{lock}"), at.plus_ms(QUEUE_FULL_INTERVAL_MS));
                if !database.take_turn(&turn, *at, until).await? {
                    return Ok(());
                }
                let with_role = |role| people.with_role(role).map(|user| user.user_id.clone()).collect();
                let on_call: Vec<UserId> = with_role(ON_CALL);
                let operators = if on_call.is_empty() { with_role(ADMIN) } else { on_call };
                let details = Map::from_iter([("notified".to_owned(), json!(operators))]);
                let action = AuditedAction { details, ..AuditedAction::new("lock.queue_full", lock) };
                let mut commit = action.commit_as(by.clone(), Vec::new(), *at);
                commit.events.iter_mut().for_each(|event| event.notify.clone_from(&operators));
                // It is reported by this process from now on, even if the first attempt to commit it fails.
                *self = Self::Commit(commit.clone());
                commit
            }
        };
        database.commit(commit).await
    }
}

impl DatabaseEventSink {
    /// Starts the writer. Its task ends when the sink is dropped and all notices are written.
    #[must_use]
    pub fn start(context: &Context) -> (Self, JoinHandle<()>) {
        let Context { database, clock, .. } = context.clone();
        let detection = context.service("locks", Trigger::Job("deadlock_detect".to_owned()));
        let (queue, mut queued) = mpsc::channel::<QueuedNotice>(MAX_QUEUED);
        let writer = tokio::spawn(async move {
            while let Some(mut notice) = queued.recv().await {
                let mut attempts = 0;
                while let Err(error) = notice.store(&database).await {
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
        (Self { clock, queue, reported_queues: Mutex::default(), detection }, writer)
    }

    /// Whether this process has not reported the full queue of a lock for a while. Locks beyond a limit are left to the next time.
    fn reports_full_queue(&self, lock: &LockName, at: Moment) -> bool {
        let mut reported = self.reported_queues.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|_, until| *until > at);
        if reported.contains_key(lock) || reported.len() >= MAX_REPORTED_QUEUES {
            return false;
        }
        reported.insert(lock.clone(), at.plus_ms(QUEUE_FULL_INTERVAL_MS));
        true
    }

    fn send(&self, commit: Commit) {
        self.enqueue(QueuedNotice::Commit(commit));
    }

    fn enqueue(&self, notice: QueuedNotice) {
        if self.queue.try_send(notice).is_err() {
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
                let own = deadlock.cycle.iter().find(|edge| edge.holder == deadlock.victim);
                let lock = own.map(|edge| edge.waits_for.to_string());
                let object_id = lock.unwrap_or_else(|| victim.to_owned());
                let action = AuditedAction { details, ..AuditedAction::new("lock.deadlock", &object_id) };
                let writes = vec![self.inbox_message(victim, "DEADLOCK_DETECTED", data)];
                self.send(action.commit_as(self.detection.clone(), writes, self.clock.now()));
            }
            // The audit entry is written before the lock is broken: see `AuditService`.
            LockNotice::Broken { actor, lock, reason, holders } => {
                let agents: BTreeSet<&str> = holders.iter().map(|by| by.holder.agent_id()).collect();
                let data = json!({ "lock": lock.as_str(), "reason": reason, "by": actor });
                let message = |agent| self.inbox_message(agent, "LOCK_BROKEN", data.clone());
                self.send(Commit { writes: agents.into_iter().map(message).collect(), ..Commit::default() });
            }
            LockNotice::Event(LockEvent { lock, kind: LockEventKind::QueueFull, .. }) => {
                let at = self.clock.now();
                if self.reports_full_queue(lock, at) {
                    self.enqueue(QueuedNotice::QueueFull {
                        lock: lock.to_string(),
                        at,
                        by: self.detection.clone(),
                    });
                }
            }
            LockNotice::Event(_) => {}
        }
        LogEventSink.publish(notice);
    }
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
