//! Draws the wait-for graph: every waiter with the holders that block it; deadlocks are marked.

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire::{HolderRef, WaitGraph, WaitGraphEdge};
use owo_colors::OwoColorize;

use super::{holder_name, mode_name};
use crate::output::safe;

/// Draws lines such as `ann ──exclusive──▶ resource:db:prod`, each followed by the blocking holders and waiters.
pub(super) fn draw(graph: &WaitGraph) -> String {
    if graph.waits.is_empty() {
        return "no waiters found".to_owned();
    }
    let deadlocked = deadlocked(graph);
    let mut lines = Vec::new();
    for wait in &graph.waits {
        let waiter = waiter(wait);
        let name = holder_name(&wait.agent_id, &wait.holder_id);
        let mark = if deadlocked.contains(&waiter) { "⟳ ".red().to_string() } else { "  ".to_owned() };
        let mode = mode_name(wait.mode);
        lines.push(format!("{mark}{} ──{mode}──▶ {}", name.bold(), safe(&wait.waits_for)));
        for (what, others) in [("held by", &wait.holders), ("behind", &wait.ahead)] {
            for (index, other) in others.iter().filter(|other| **other != waiter).enumerate() {
                let label = if index == 0 { what } else { "" };
                lines.push(format!("      {label:>8} {}", holder_name(&other.agent_id, &other.holder_id)));
            }
        }
    }
    if !deadlocked.is_empty() {
        lines.push(format!("{} is part of a deadlock", "⟳".red()));
    }
    lines.join("\n")
}

fn waiter(wait: &WaitGraphEdge) -> HolderRef {
    HolderRef { agent_id: wait.agent_id.clone(), holder_id: wait.holder_id.clone() }
}

/// The waiters that can reach themselves in the graph.
fn deadlocked(graph: &WaitGraph) -> BTreeSet<HolderRef> {
    let mut edges: BTreeMap<HolderRef, BTreeSet<&HolderRef>> = BTreeMap::new();
    for wait in &graph.waits {
        let waiter = waiter(wait);
        let blockers = wait.holders.iter().chain(&wait.ahead).filter(|other| **other != waiter);
        edges.entry(waiter.clone()).or_default().extend(blockers);
    }
    let reaches_itself = |start: &HolderRef| {
        let mut seen = BTreeSet::new();
        let mut pending: Vec<&HolderRef> = edges.get(start).into_iter().flatten().copied().collect();
        while let Some(node) = pending.pop() {
            if node == start {
                return true;
            }
            if seen.insert(node) {
                pending.extend(edges.get(node).into_iter().flatten().copied());
            }
        }
        false
    };
    edges.keys().filter(|start| reaches_itself(start)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use ade_client::wire::LockMode;

    use super::*;

    fn wait(agent: &str, lock: &str, held_by: &str) -> WaitGraphEdge {
        let holder = HolderRef { agent_id: held_by.to_owned(), holder_id: held_by.to_owned() };
        WaitGraphEdge {
            agent_id: agent.to_owned(),
            holder_id: agent.to_owned(),
            mode: LockMode::Exclusive,
            waits_for: lock.to_owned(),
            holders: vec![holder],
            ahead: Vec::new(),
        }
    }

    #[test]
    fn marks_only_waiters_in_a_cycle() {
        let waits = vec![
            wait("ann", "resource:a:1", "ben"),
            wait("ben", "resource:a:2", "ann"),
            wait("cem", "task:1", "ann"),
        ];
        let plain = anstream::adapter::strip_str(&draw(&WaitGraph { waits })).to_string();
        assert!(plain.contains("⟳ ann ──exclusive──▶ resource:a:1\n       held by ben\n"), "{plain}");
        assert!(plain.contains("  cem ──exclusive──▶ task:1\n"), "{plain}");
        assert_eq!(draw(&WaitGraph { waits: Vec::new() }), "no waiters found");
    }
}
