//! The wait graph as a drawing: waiter → lock → holder from left to right, at most 60 nodes. Roots are on the right; a wait that closes
//! a cycle leads back to the right below the others. Its table says the same.

use std::collections::{BTreeMap, BTreeSet};

use super::waits::Waits;
use super::{agent_link, holder_name, lock_link};
use crate::Markup;
use crate::format::{count, visible};

const MAX_NODES: usize = 60;
/// Waiters of one lock that hold nothing themselves; the others are a number.
const MAX_LEAVES: usize = 4;
const WIDTH: usize = 208;
const HEIGHT: usize = 44;
const GAP_X: usize = 36;
const GAP_Y: usize = 12;
/// How far below its nodes a wait leads back, within the row that is left free.
const BELOW: usize = 48;
/// Characters of a name that fit.
const MAX_CHARS: usize = 27;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Holder(usize),
    Lock(usize),
    /// Further waiters of a lock.
    More(usize),
}

/// Where a node is: its tree, its column counted from the root on the right of that tree, and twice its row.
#[derive(Debug, Clone, Copy)]
struct Place {
    tree: usize,
    column: usize,
    half_row: usize,
}

/// A tree from each root, in which every node has rows of its own.
struct Layout<'w, 'a> {
    waits: &'w Waits<'a>,
    places: BTreeMap<Node, Place>,
    /// By lock: its waiters that are only a number.
    hidden: BTreeMap<usize, usize>,
    rows: usize,
    /// By tree: its columns. All trees begin at the left.
    columns: Vec<usize>,
}

impl Layout<'_, '_> {
    fn is_full(&self) -> bool {
        self.places.len() >= MAX_NODES
    }

    /// What is to the left of a node, without those that have a place already.
    fn children(&mut self, node: Node) -> Vec<Node> {
        let waits = self.waits;
        let is_new = |node: &Node| !self.places.contains_key(node);
        match node {
            Node::Holder(holder) => waits.holds(holder).map(Node::Lock).filter(is_new).collect(),
            Node::More(_) => Vec::new(),
            Node::Lock(lock) => {
                let new: Vec<usize> = waits.waiters(lock).filter(|at| is_new(&Node::Holder(*at))).collect();
                let (blocking, leaves): (Vec<usize>, Vec<usize>) =
                    new.into_iter().partition(|waiter| waits.holds(*waiter).next().is_some());
                let shown = if leaves.len() > MAX_LEAVES + 1 { MAX_LEAVES } else { leaves.len() };
                let children = blocking.iter().chain(leaves.iter().take(shown)).map(|at| Node::Holder(*at));
                let mut children: Vec<Node> = children.collect();
                if leaves.len() > shown {
                    self.hidden.insert(lock, leaves.len() - shown);
                    children.push(Node::More(lock));
                }
                children
            }
        }
    }

    /// Places a node and all that is to its left, and returns twice its row; nothing if it has a place already. The rows of its own
    /// children are no one else's, so the node may be in the middle of them.
    fn place(&mut self, node: Node, column: usize) -> Option<usize> {
        if self.is_full() || self.places.contains_key(&node) {
            return None;
        }
        let tree = self.columns.len().saturating_sub(1);
        if let Some(columns) = self.columns.last_mut() {
            *columns = (*columns).max(column + 1);
        }
        self.places.insert(node, Place { tree, column, half_row: 0 });
        let children = self.children(node);
        let rows: Vec<usize> =
            children.into_iter().filter_map(|child| self.place(child, column + 1)).collect();
        let half_row = match (rows.first(), rows.last()) {
            (Some(first), Some(last)) => usize::midpoint(*first, *last),
            _ => {
                self.rows += 1;
                (self.rows - 1) * 2
            }
        };
        self.places.insert(node, Place { tree, column, half_row });
        Some(half_row)
    }
}

fn lay_out<'w, 'a>(waits: &'w Waits<'a>) -> Layout<'w, 'a> {
    let (places, hidden) = (BTreeMap::new(), BTreeMap::new());
    let mut layout = Layout { waits, places, hidden, rows: 0, columns: Vec::new() };
    let blocking = (0..waits.holders.len()).filter(|at| waits.holds(*at).next().is_some());
    let is_root = |at: &usize| waits.awaits.get(*at).is_some_and(BTreeSet::is_empty);
    let mut roots: Vec<usize> = blocking.clone().filter(is_root).collect();
    roots.sort_by_key(|at| std::cmp::Reverse(waits.blocks.get(*at).map_or(0, BTreeSet::len)));
    let cyclic = blocking.clone().filter(|at| waits.is_cyclic(*at));
    // A lock that was just given up has waiters and no holder.
    let free = (0..waits.locks.len()).filter(|lock| waits.held_by.get(*lock).is_some_and(BTreeSet::is_empty));
    let roots = cyclic.chain(roots).chain(blocking).map(Node::Holder).chain(free.map(Node::Lock));
    for root in roots {
        if layout.is_full() || layout.places.contains_key(&root) {
            continue;
        }
        layout.columns.push(0);
        layout.place(root, 0);
        // Room for the wait that leads back.
        layout.rows += usize::from(matches!(root, Node::Holder(at) if waits.is_cyclic(at)));
    }
    layout
}

fn shortened(text: &str) -> String {
    let text = visible(text);
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    let (head, tail) = (MAX_CHARS / 2, MAX_CHARS - MAX_CHARS / 2 - 1);
    let start: String = text.chars().take(head).collect();
    let end: Vec<char> = text.chars().rev().take(tail).collect();
    format!("{start}…{}", end.into_iter().rev().collect::<String>())
}

/// Draws the waits. Nothing is drawn if nobody waits.
pub(super) fn draw(waits: &Waits<'_>) -> Markup {
    let layout = lay_out(waits);
    let columns = layout.columns.iter().copied().max().unwrap_or(0);
    if columns == 0 {
        return Markup::default();
    }
    let x = |place: Place| {
        let columns = layout.columns.get(place.tree).copied().unwrap_or_default();
        columns.saturating_sub(place.column + 1) * (WIDTH + GAP_X) + 4
    };
    let y = |place: Place| place.half_row * (HEIGHT + GAP_Y) / 2 + 4;
    let (width, height) = (columns * (WIDTH + GAP_X) - GAP_X + 8, layout.rows * (HEIGHT + GAP_Y) + 4);
    let mut svg = Markup::new(
        "<svg class=\"graph\" role=\"group\" aria-label=\"Who waits for whom; the table below says the same\" ",
    );
    svg.raw("width=\"").value(width).raw("\" height=\"").value(height);
    svg.raw("\" viewBox=\"0 0 ").value(width).raw(" ").value(height).raw("\">");
    let mut edge = |from: Node, to: Node, is_cyclic: bool| {
        let (Some(from), Some(to)) = (layout.places.get(&from), layout.places.get(&to)) else { return };
        let class = if is_cyclic { " cycle" } else { "" };
        let ((from_x, from_y), (to_x, to_y)) = ((x(*from), y(*from)), (x(*to), y(*to)));
        svg.raw("<path class=\"arrow").raw(class).raw("\" d=\"M");
        if from_x < to_x {
            let (from_x, from_y, to_y) = (from_x + WIDTH, from_y + HEIGHT / 2, to_y + HEIGHT / 2);
            let middle = usize::midpoint(from_x, to_x);
            svg.value(from_x).raw(" ").value(from_y).raw("C").value(middle).raw(" ").value(from_y).raw(" ");
            svg.value(middle).raw(" ").value(to_y).raw(" ").value(to_x - 7).raw(" ").value(to_y).raw("\"/>");
            svg.raw("<path class=\"tip").raw(class).raw("\" d=\"M").value(to_x).raw(" ").value(to_y);
            svg.raw("l-8 -4v8z\"/>");
        } else {
            let (from_x, from_y) = (from_x + WIDTH / 2, from_y + HEIGHT);
            let (to_x, to_y) = (to_x + WIDTH / 2, to_y + HEIGHT);
            let low = from_y.max(to_y) + BELOW;
            svg.value(from_x).raw(" ").value(from_y).raw("C").value(from_x).raw(" ").value(low).raw(" ");
            svg.value(to_x).raw(" ").value(low).raw(" ").value(to_x).raw(" ").value(to_y + 7).raw("\"/>");
            svg.raw("<path class=\"tip").raw(class).raw("\" d=\"M").value(to_x).raw(" ").value(to_y);
            svg.raw("l-4 8h8z\"/>");
        }
    };
    for (waiter, locks) in waits.awaits.iter().enumerate() {
        for lock in locks {
            edge(Node::Holder(waiter), Node::Lock(*lock), waits.is_cyclic_wait(waiter, *lock));
        }
    }
    for (lock, holders) in waits.held_by.iter().enumerate() {
        edge(Node::More(lock), Node::Lock(lock), false);
        for holder in holders {
            edge(
                Node::Lock(lock),
                Node::Holder(*holder),
                waits.is_cyclic_lock(lock) && waits.is_cyclic(*holder),
            );
        }
    }
    for (node, place) in &layout.places {
        draw_node(&mut svg, waits, &layout, *node, (x(*place), y(*place)));
    }
    svg.raw("</svg>");
    svg
}

fn draw_node(
    svg: &mut Markup,
    waits: &Waits<'_>,
    layout: &Layout<'_, '_>,
    node: Node,
    (x, y): (usize, usize),
) {
    let (link, name, kind, is_cyclic, sub) = match node {
        Node::Holder(at) => {
            let Some(holder) = waits.holders.get(at) else { return };
            let awaited = waits.awaits.get(at).map_or(0, BTreeSet::len);
            let held = waits.holds(at).count();
            let sub = match (held, awaited) {
                (0, _) => "waits".to_owned(),
                (held, 0) => format!("holds {}, waits for nobody", count(held, "lock")),
                (held, awaited) => format!("holds {held}, waits for {awaited}"),
            };
            let name = holder_name(&holder.agent_id, &holder.holder_id);
            (agent_link(&holder.agent_id), name, "", waits.is_cyclic(at), sub)
        }
        Node::Lock(at) => {
            let Some(lock) = waits.locks.get(at) else { return };
            let sub = format!("lock · {} waiting", waits.waiters(at).count());
            (lock_link(lock), visible(lock), " lock", waits.is_cyclic_lock(at), sub)
        }
        Node::More(lock) => {
            let Some(name) = waits.locks.get(lock) else { return };
            let more = format!("+{} more", layout.hidden.get(&lock).copied().unwrap_or(0));
            (lock_link(name), more, "", false, "wait for this lock".to_owned())
        }
    };
    let sub = if is_cyclic { format!("deadlock · {sub}") } else { sub };
    svg.raw("<a href=\"").text(&link).raw("\"><title>").text(&name).raw(": ").text(&sub).raw("</title>");
    svg.raw("<rect class=\"box").raw(kind).raw(if is_cyclic { " cycle" } else { "" });
    svg.raw("\" x=\"").value(x).raw("\" y=\"").value(y).raw("\" rx=\"6\" width=\"").value(WIDTH);
    svg.raw("\" height=\"")
        .value(HEIGHT)
        .raw("\"/><text x=\"")
        .value(x + 10)
        .raw("\" y=\"")
        .value(y + 19)
        .raw("\">");
    svg.text(&shortened(&name))
        .raw("</text><text class=\"sub\" x=\"")
        .value(x + 10)
        .raw("\" y=\"")
        .value(y + 35);
    svg.raw("\">").text(&sub).raw("</text></a>");
}

/// Holders and locks that the drawing neither shows nor counts.
pub(super) fn left_out(waits: &Waits<'_>) -> usize {
    let layout = lay_out(waits);
    let told = layout.places.keys().map(|node| match node {
        Node::More(lock) => layout.hidden.get(lock).copied().unwrap_or(0),
        _ => 1,
    });
    (waits.holders.len() + waits.locks.len()).saturating_sub(told.sum())
}
