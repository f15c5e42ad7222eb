//! What others must hear of: the audit log, the inbox of an agent, the stream of events. One port for all three.

use std::fmt;

use ade_domain::lock::{Deadlock, HeldBy, LockName, Token};
use ade_store::coordination::{Event, Happening};

/// Something that people or agents must hear of.
#[derive(Debug)]
pub enum Notice<'a> {
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
    Lock(&'a Happening),
}

/// Where notices go.
pub trait Notices: Send + Sync {
    /// Takes one.
    fn tell(&self, notice: Notice<'_>);
}

/// Writes every notice as a line of the structured log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogNotices;

/// What must be in the log whatever its level: it is all the audit there is.
pub const AUDIT: &str = "ade::audit";

/// Names come from outside: they are written as strings, which the log quotes, so that no name looks like another line.
impl Notices for LogNotices {
    fn tell(&self, notice: Notice<'_>) {
        match notice {
            Notice::Deadlock(deadlock) => {
                let (victim, agent) = (deadlock.victim.to_string(), deadlock.victim.agent_id());
                let freed = list(deadlock.freed.iter());
                let cycle =
                    list(deadlock.cycle.iter().map(|edge| format!("{} → {}", edge.holder, edge.waits_for)));
                tracing::warn!(target: AUDIT, kind = "audit", action = "lock.deadlock", victim, cycle, freed);
                tracing::info!(target: AUDIT, kind = "inbox", agent, notice = "DEADLOCK_DETECTED", cycle);
            }
            Notice::Broken { actor, lock, reason, holders } => {
                let (lock, held) = (lock.as_str(), list(holders.iter().map(|by| &by.holder)));
                tracing::warn!(target: AUDIT, kind = "audit", action = "lock.break", actor, lock, reason, holders = held);
                for by in holders {
                    let agent = by.holder.agent_id();
                    tracing::info!(target: AUDIT, kind = "inbox", agent, notice = "LOCK_BROKEN", lock, reason);
                }
            }
            Notice::Lock(Happening { lock, at, event }) => {
                let lock = lock.as_str();
                let (name, holder, token, why) = match event {
                    Event::QueueFull => {
                        return tracing::warn!(kind = "event", event = "lock:queue_full", lock, %at);
                    }
                    Event::Acquired(holder, token) => ("lock:acquired", holder, Some(*token), ""),
                    Event::Queued(holder) => ("lock:queued", holder, None, ""),
                    Event::Left(holder, why) => ("lock:left", holder, None, *why),
                    Event::Freed(holder, token, why) => ("lock:released", holder, Some(*token), *why),
                };
                let (holder, token) = (holder.to_string(), token.map(Token::number));
                tracing::debug!(kind = "event", event = name, lock, %at, holder, token, why);
            }
        }
    }
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
