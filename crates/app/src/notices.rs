//! What others must hear of: the audit log, the inbox of an agent, the stream of events. One port for all three.

use std::fmt;

use ade_domain::lock::{Deadlock, HeldBy, Holder, LockName};
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

impl Notices for LogNotices {
    fn tell(&self, notice: Notice<'_>) {
        match notice {
            Notice::Deadlock(deadlock) => {
                let freed = list(deadlock.freed.iter());
                let cycle =
                    list(deadlock.cycle.iter().map(|edge| format!("{} → {}", edge.holder, edge.waits_for)));
                tracing::warn!(kind = "audit", action = "lock.deadlock", victim = %deadlock.victim, cycle, freed);
                tracing::info!(
                    kind = "inbox",
                    agent = deadlock.victim.agent_id(),
                    message = "DEADLOCK_DETECTED",
                    cycle
                );
            }
            Notice::Broken { actor, lock, reason, holders } => {
                let held = list(holders.iter().map(|by| &by.holder));
                tracing::warn!(kind = "audit", action = "lock.break", actor, %lock, reason, holders = held);
                for by in holders {
                    let agent = by.holder.agent_id();
                    tracing::info!(kind = "inbox", agent, message = "LOCK_BROKEN", %lock, reason);
                }
            }
            Notice::Lock(Happening { lock, at, event }) => {
                let event_of = |name, holder: &Holder| tracing::debug!(kind = "event", event = name, %lock, %at, %holder);
                match event {
                    Event::Acquired(holder, token) => {
                        tracing::debug!(kind = "event", event = "lock:acquired", %lock, %at, %holder, %token);
                    }
                    Event::Queued(holder) => event_of("lock:queued", holder),
                    Event::Left(holder, why) => {
                        tracing::debug!(kind = "event", event = "lock:left", %lock, %at, %holder, why);
                    }
                    Event::Freed(holder, token, why) => {
                        tracing::debug!(kind = "event", event = "lock:released", %lock, %at, %holder, %token, why);
                    }
                    Event::QueueFull => tracing::warn!(kind = "event", event = "lock:queue_full", %lock, %at),
                }
            }
        }
    }
}

fn list<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
