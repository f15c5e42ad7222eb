//! Locks: what is wrong first, then the locks with their holders and queues, and the waits as a graph and as a table. Who waits for
//! whom follows from the answer of the API alone; this module decides nothing about locks.

mod graph;
#[cfg(test)]
mod tests;
mod waits;

use ade_client::wire::{AuditEntry, HolderRef, Lock, LockHolder, LockMode, Page, Problem, WaitGraph};
use askama::Template;
use jiff::Timestamp;
use serde_json::Value;

use crate::format::{chosen, duration, link, segment, short_machine_id, visible};
use crate::{Markup, Shell};
use waits::Waits;
pub use waits::{RootBlocker, root_blockers};

/// Root blockers that are listed, and whose locks are read for that.
pub const LISTED_BLOCKERS: usize = 5;
/// Waiters of a lock that the list names; the others are on its own page.
const LISTED_WAITERS: usize = 5;
const LISTED_HOLDERS: usize = 3;

/// Which locks are listed, as in the URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocksFilter {
    pub kind: String,
    pub resource_type: String,
    pub agent: String,
    pub name: String,
}

impl LocksFilter {
    fn chosen(&self) -> usize {
        let Self { kind, resource_type, agent, name } = self;
        chosen(&[kind, resource_type, agent, name])
    }

    fn is_set(&self) -> bool {
        self.chosen() > 0
    }

    /// The query of the page, and of the API.
    #[must_use]
    pub fn query(&self, path: &str, cursor: &str) -> String {
        let Self { kind, resource_type, agent, name } = self;
        let params = [("kind", kind), ("resource_type", resource_type), ("agent", agent), ("name", name)];
        let params = params.map(|(key, value)| (key, value.as_str()));
        link(path, &[&params[..], &[("cursor", cursor)]].concat())
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "locks.html")]
pub struct LocksPage {
    pub shell: Shell,
    pub filter: LocksFilter,
    /// Where this page of the list begins; empty for the first.
    pub cursor: String,
    pub locks: Page<Lock>,
    pub graph: WaitGraph,
    /// The locks that root blockers hold, as far as they were read.
    pub blocked: Vec<Lock>,
    /// Deadlocks of the last hour that the visitor may see, the newest first.
    pub deadlocks: Vec<AuditEntry>,
    /// Whether deadlocks are resolved when they arise; unknown to those who may not see settings.
    pub detection: Option<bool>,
    pub problem: Option<Problem>,
}

/// Somebody who waits for nobody and keeps others waiting, as the page shows it.
struct Blocker {
    holder: HolderRef,
    blocked: usize,
    lock: String,
    /// Since when the first of them waits.
    since: Option<Timestamp>,
    held: Option<LockHolder>,
    others: usize,
}

impl LocksPage {
    fn waits(&self) -> Waits<'_> {
        Waits::of(&self.graph)
    }

    fn blockers(&self) -> Vec<Blocker> {
        let listed = root_blockers(&self.graph).into_iter().take(LISTED_BLOCKERS).map(|root| {
            let of_root = |lock: &&Lock| root.locks.contains(&lock.lock);
            let known: Vec<&Lock> = self.blocked.iter().filter(of_root).collect();
            let since = known.iter().flat_map(|lock| &lock.queue).map(|waiter| waiter.requested_at.0).min();
            let holders = known.iter().flat_map(|lock| &lock.holders);
            let is_root = |by: &&LockHolder| {
                by.agent_id == root.holder.agent_id && by.holder_id == root.holder.holder_id
            };
            Blocker {
                held: holders.clone().find(is_root).cloned(),
                since,
                blocked: root.blocked,
                lock: root.locks.first().cloned().unwrap_or_default(),
                others: root.locks.len().saturating_sub(1),
                holder: root.holder,
            }
        });
        listed.collect()
    }

    fn more_blockers(&self) -> usize {
        root_blockers(&self.graph).len().saturating_sub(LISTED_BLOCKERS)
    }

    fn next_link(&self) -> Option<String> {
        Some(self.filter.query("/locks", self.locks.next_cursor.as_deref()?))
    }

    fn drawing(&self) -> Markup {
        graph::draw(&self.waits())
    }

    /// `blocks 14 for 3 min`.
    fn blocks(&self, blocker: &Blocker) -> String {
        let for_long = blocker
            .since
            .and_then(|since| u64::try_from(self.shell.now.as_second() - since.as_second()).ok());
        let for_long = for_long.filter(|seconds| *seconds > 0);
        let for_long = for_long.map_or_else(String::new, |seconds| format!(" for {}", duration(seconds)));
        format!("blocks {}{for_long}", blocker.blocked)
    }
}

/// `agent`, or `agent · activity`.
fn holder_name(agent: &str, activity: &str) -> String {
    let name = short_machine_id(agent);
    if activity.is_empty() || activity == agent {
        name
    } else {
        format!("{name} · {}", short_machine_id(activity))
    }
}

fn mode_name(mode: &LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}

fn mode_of(mode: &Option<LockMode>) -> &'static str {
    mode.as_ref().map_or("free", mode_name)
}

fn lock_link(lock: &str) -> String {
    format!("/locks/{}", segment(lock))
}

fn agent_link(agent: &str) -> String {
    format!("/agents/{}", segment(agent))
}

/// The victim and the cycle of a deadlock, from its audit entry.
fn deadlock_text(entry: &AuditEntry) -> (String, Vec<String>) {
    let text =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(visible).unwrap_or_default();
    let victim = entry.details.get("victim").and_then(Value::as_str).map(visible).unwrap_or_default();
    let cycle = entry.details.get("cycle").and_then(Value::as_array).into_iter().flatten();
    (
        victim,
        cycle.map(|edge| format!("{} waits for {}", text(edge, "holder"), text(edge, "waits_for"))).collect(),
    )
}

#[derive(Debug, Clone, Template)]
#[template(path = "lock.html")]
pub struct LockPage {
    pub shell: Shell,
    pub lock: Lock,
    /// The reason that was typed.
    pub reason: String,
    pub problem: Option<Problem>,
}

impl LockPage {
    fn task_id(&self) -> Option<&str> {
        self.lock.lock.strip_prefix("task:")
    }

    fn is_admin(&self) -> bool {
        self.shell.viewer.as_ref().is_some_and(crate::Viewer::is_admin)
    }

    /// Waiters that the API named only as a number.
    fn unlisted(&self) -> usize {
        usize::try_from(self.lock.queue_length).unwrap_or(usize::MAX).saturating_sub(self.lock.queue.len())
    }
}
