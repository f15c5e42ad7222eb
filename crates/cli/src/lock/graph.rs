//! The wait-for graph as a drawing: every wait with who is in its way, and circles marked.

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire::{Graph, GraphWait, HolderRef};
use owo_colors::OwoColorize;

use super::see::name;
use crate::output::safe;

/// Who a wait is in the way of, for drawing.
fn blockers(wait: &GraphWait) -> impl Iterator<Item = &HolderRef> {
    wait.holders.iter().chain(&wait.ahead)
}

/// Lines such as `ann ──exclusive──▶ resource:db:prod ──held by──▶ ben`.
pub(super) fn draw(graph: &Graph) -> String {
    if graph.waits.is_empty() {
        return "nobody waits\n".to_owned();
    }
    let circular = in_cycles(graph);
    let mut text = String::new();
    let mut marked = false;
    for wait in &graph.waits {
        let own = HolderRef { agent_id: wait.agent_id.clone(), holder_id: wait.holder_id.clone() };
        let in_cycle = circular.contains(&own);
        marked |= in_cycle;
        let who = name(&wait.agent_id, &wait.holder_id);
        let mode = if wait.mode == ade_client::wire::Mode::Shared { "shared" } else { "exclusive" };
        let mark = if in_cycle { "⟳ ".red().to_string() } else { "  ".to_owned() };
        text.push_str(&format!("{mark}{} ──{mode}──▶ {}\n", who.bold(), safe(&wait.waits_for)));
        for (what, others) in [("held by", &wait.holders), ("behind", &wait.ahead)] {
            for (at, other) in others.iter().filter(|other| **other != own).enumerate() {
                let label = if at == 0 { what } else { "" };
                text.push_str(&format!("      {label:>8} {}\n", name(&other.agent_id, &other.holder_id)));
            }
        }
    }
    if marked {
        text.push_str(&format!("{} waits for itself in a circle\n", "⟳".red()));
    }
    text
}

/// Holders that can reach themselves.
fn in_cycles(graph: &Graph) -> BTreeSet<HolderRef> {
    let mut edges: BTreeMap<HolderRef, BTreeSet<&HolderRef>> = BTreeMap::new();
    for wait in &graph.waits {
        let own = HolderRef { agent_id: wait.agent_id.clone(), holder_id: wait.holder_id.clone() };
        let others = blockers(wait).filter(|other| **other != own);
        edges.entry(own.clone()).or_default().extend(others);
    }
    let reaches_itself = |start: &HolderRef| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&HolderRef> = edges.get(start).into_iter().flatten().copied().collect();
        while let Some(one) = next.pop() {
            if one == start {
                return true;
            }
            if seen.insert(one) {
                next.extend(edges.get(one).into_iter().flatten().copied());
            }
        }
        false
    };
    edges.keys().filter(|start| reaches_itself(start)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Mode;

    use super::*;

    fn wait(who: &str, lock: &str, held_by: &str) -> GraphWait {
        let holder = HolderRef { agent_id: held_by.to_owned(), holder_id: held_by.to_owned() };
        GraphWait {
            agent_id: who.to_owned(),
            holder_id: who.to_owned(),
            mode: Mode::Exclusive,
            waits_for: lock.to_owned(),
            holders: vec![holder],
            ahead: Vec::new(),
        }
    }

    #[test]
    fn circles_are_marked_and_nothing_else() {
        let waits = vec![
            wait("ann", "resource:a:1", "ben"),
            wait("ben", "resource:a:2", "ann"),
            wait("cem", "task:1", "ann"),
        ];
        let text = draw(&Graph { waits });
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.contains("⟳ ann ──exclusive──▶ resource:a:1\n       held by ben\n"), "{plain}");
        assert!(plain.contains("  cem ──exclusive──▶ task:1\n"), "{plain}");
        assert_eq!(draw(&Graph { waits: Vec::new() }), "nobody waits\n");
    }
}
