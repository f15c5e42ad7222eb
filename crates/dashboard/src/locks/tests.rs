//! Tests of the waits and their drawing: cycles against a plain search, and that a drawing of any graph is bounded and says no more
//! than text.

use std::collections::BTreeSet;

use ade_client::wire::{HolderRef, LockMode, WaitGraph, WaitGraphEdge};
use proptest::prelude::*;

use super::graph::{draw, left_out};
use super::root_blockers;
use super::waits::Waits;

fn holder(name: &str) -> HolderRef {
    HolderRef { agent_id: name.to_owned(), holder_id: name.to_owned() }
}

fn wait(waiter: &str, lock: &str, holders: &[&str]) -> WaitGraphEdge {
    WaitGraphEdge {
        agent_id: waiter.to_owned(),
        holder_id: waiter.to_owned(),
        mode: LockMode::Exclusive,
        waits_for: lock.to_owned(),
        holders: holders.iter().map(|name| holder(name)).collect(),
        ahead: Vec::new(),
    }
}

fn graph(waits: Vec<WaitGraphEdge>) -> WaitGraph {
    WaitGraph { waits }
}

fn boxes(svg: &str) -> Vec<(usize, usize)> {
    let number = |text: &str, name: &str| -> Option<usize> {
        let (_, rest) = text.split_once(&format!(" {name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let rects = svg.split("<rect ").skip(1);
    rects.filter_map(|rect| Some((number(rect, "x")?, number(rect, "y")?))).collect()
}

#[test]
fn a_root_blocks_those_who_wait_behind_one_another() {
    let mut third = wait("c", "l1", &["root"]);
    third.ahead = vec![holder("b")];
    let graph =
        graph(vec![wait("b", "l1", &["root"]), third, wait("d", "l2", &["b"]), wait("y", "l3", &["x"])]);
    let roots = root_blockers(&graph);
    let found: Vec<_> =
        roots.iter().map(|root| (root.holder.agent_id.as_str(), root.blocked, root.locks.len())).collect();
    assert_eq!(found, [("root", 3, 1), ("x", 1, 1)]);
    assert_eq!(Waits::of(&graph).cycles, 0);
}

#[test]
fn a_cycle_is_marked_by_word_and_outline_in_drawing_and_table() {
    let graph = graph(vec![wait("a", "l2", &["b"]), wait("b", "l1", &["a"]), wait("c", "l1", &["a"])]);
    let waits = Waits::of(&graph);
    assert_eq!(waits.cycle_members(), [[&holder("a"), &holder("b")]]);
    assert!(root_blockers(&graph).is_empty(), "everybody waits");
    let svg = draw(&waits).to_string();
    assert_eq!(svg.matches("class=\"box cycle\"").count(), 2, "{svg}");
    assert_eq!(svg.matches("class=\"box lock cycle\"").count(), 2, "{svg}");
    assert_eq!(svg.matches("deadlock · ").count(), 8, "in the title and in the box of each");
    let (rows, more) = waits.rows(60);
    assert_eq!(rows.iter().map(|row| row.is_cyclic).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(more, 0);
}

#[test]
fn a_deadlock_names_its_locks_and_who_waits_behind() {
    let mut behind = wait("c", "l2", &["b"]);
    behind.ahead = vec![holder("a")];
    let mut after = wait("a", "l2", &["b"]);
    after.ahead = vec![holder("d")];
    let graph = graph(vec![
        after,
        behind,
        wait("d", "l2", &["b"]),
        wait("b", "l1", &["a", "x"]),
        wait("e", "l3", &["x"]),
    ]);
    let waits = Waits::of(&graph);
    let deadlocks = waits.deadlocks();
    assert_eq!(deadlocks.len(), 1);
    assert_eq!(deadlocks[0].locks, ["l2", "l1"], "breaking `l3` would not help");
    assert_eq!(deadlocks[0].roles(), "2 hold the locks, 1 waits behind in the queues");
    let svg = draw(&waits).to_string();
    assert_eq!(svg.matches("class=\"arrow ahead cycle\"").count(), 1, "a is behind d: {svg}");
    assert_eq!(svg.matches("class=\"arrow ahead\"").count(), 1, "c is behind a: {svg}");
}

#[test]
fn names_begin_with_the_type_of_the_resource() {
    let svg = draw(&Waits::of(&graph(vec![wait("a", "resource:database:prod-ledger", &["b"])]))).to_string();
    assert!(svg.contains(">database:prod-ledger</text>"), "{svg}");
}

/// The corners of each line that leads around boxes: those with straight parts only.
fn around(svg: &str) -> Vec<Vec<(usize, usize)>> {
    let paths = svg
        .split("<path class=\"arrow")
        .skip(1)
        .filter_map(|path| path.split("d=\"M").nth(1)?.split('"').next());
    let corners = |path: &str| {
        let mut corners: Vec<(usize, usize)> = Vec::new();
        for part in path.split(['H', 'V']).enumerate() {
            let number = |text: &str| text.trim().parse::<usize>().expect("a coordinate");
            let last = corners.last().copied().unwrap_or_default();
            corners.push(match part {
                (0, start) => start.split_once(' ').map(|(x, y)| (number(x), number(y))).expect("a start"),
                // Lines alternate between both directions, and begin sideways.
                (at, x) if at % 2 == 1 => (number(x), last.1),
                (_, y) => (last.0, number(y)),
            });
        }
        corners
    };
    paths.filter(|path| !path.contains('C')).map(corners).collect()
}

#[test]
fn many_waiters_of_a_lock_become_a_number() {
    let names: Vec<String> = (0..1_000).map(|number| format!("w{number}")).collect();
    let graph = graph(names.iter().map(|name| wait(name, "l", &["holder"])).collect());
    let waits = Waits::of(&graph);
    let svg = draw(&waits).to_string();
    assert!(svg.contains("+996 more"), "{svg}");
    assert_eq!(left_out(&waits), 0, "the number counts all");
    let (rows, more) = waits.rows(60);
    assert_eq!((rows.len(), more), (60, 940));
}

#[test]
fn names_are_text_without_hidden_characters() {
    let name = "\"><script>alert(1)</script>\u{202e}";
    let svg = draw(&Waits::of(&graph(vec![wait(name, name, &[name, "x"])]))).to_string();
    assert!(!svg.contains("<script") && !svg.contains('\u{202e}'), "{svg}");
    assert!(svg.contains("&lt;script"), "{svg}");
}

fn any_graph() -> impl Strategy<Value = WaitGraph> {
    let edge = (
        0..12_usize,
        0..10_usize,
        proptest::collection::vec(0..12_usize, 0..3),
        proptest::option::of(0..12_usize),
    );
    proptest::collection::vec(edge, 0..40).prop_map(|edges| {
        let edges = edges.into_iter().map(|(waiter, lock, holders, ahead)| {
            let holders: Vec<String> = holders.iter().map(|by| format!("h{by}")).collect();
            let names: Vec<&str> = holders.iter().map(String::as_str).collect();
            let mut edge = wait(&format!("h{waiter}"), &format!("l{lock}"), &names);
            edge.ahead = ahead.map(|by| holder(&format!("h{by}"))).into_iter().collect();
            edge
        });
        graph(edges.collect())
    })
}

/// Those who wait for themselves in the end, by repeated steps from each.
fn cyclic(graph: &WaitGraph) -> BTreeSet<String> {
    let next = |from: &BTreeSet<String>| -> BTreeSet<String> {
        let waits = graph.waits.iter().filter(|wait| from.contains(&wait.agent_id));
        waits
            .flat_map(|wait| wait.holders.iter().chain(&wait.ahead).filter(|by| by.agent_id != wait.agent_id))
            .map(|by| by.agent_id.clone())
            .collect()
    };
    let is_cyclic = |name: &String| {
        let mut reached = next(&BTreeSet::from([name.clone()]));
        for _ in 0..13 {
            let further = next(&reached);
            reached.extend(further);
        }
        reached.contains(name)
    };
    graph.waits.iter().map(|wait| wait.agent_id.clone()).filter(is_cyclic).collect()
}

proptest! {
    #[test]
    fn cycles_are_those_of_a_plain_search(graph in any_graph()) {
        let waits = Waits::of(&graph);
        let found: BTreeSet<String> =
            waits.cycle_members().into_iter().flatten().map(|member| member.agent_id.clone()).collect();
        prop_assert_eq!(found, cyclic(&graph));
    }

    #[test]
    fn a_drawing_is_bounded_and_its_boxes_are_apart(graph in any_graph()) {
        let waits = Waits::of(&graph);
        let svg = draw(&waits).to_string();
        let boxes = boxes(&svg);
        prop_assert!(boxes.len() <= 60 + waits.locks.len());
        for line in around(&svg).iter().flat_map(|line| line.windows(2)) {
            let [(x1, y1), (x2, y2)] = line else { unreachable!("pairs") };
            let is_behind = |(x, y): &(usize, usize)| {
                x1.max(x2) > x && x1.min(x2) < &(x + 208) && y1.max(y2) > y && y1.min(y2) < &(y + 44)
            };
            prop_assert!(!boxes.iter().any(is_behind), "{:?} in {}", line, svg);
        }
        for (at, (x, y)) in boxes.iter().enumerate() {
            for (other_x, other_y) in boxes.iter().skip(at + 1) {
                prop_assert!(x.abs_diff(*other_x) >= 208 || y.abs_diff(*other_y) >= 44, "{:?}", boxes);
            }
        }
    }
}
