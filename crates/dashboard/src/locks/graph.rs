//! The wait graph as a drawing: waiter → lock → holder from left to right, at most 60 nodes, and dashed who is behind whom in a queue.
//! Roots are on the right; a wait that closes a cycle leads back below its tree. No line runs behind a box. Its table says the same.

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
/// Room at the left and at the right for lines that lead around the boxes.
const SIDE: usize = 24;
/// Lines around boxes are beside each other, not upon each other.
const LANES: usize = 3;
const LANE_WIDTH: usize = 3;
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
    }
    layout
}

/// A name that fits its box. What a lock is called begins with its type.
fn shortened(text: &str) -> String {
    let text = visible(text.strip_prefix("resource:").unwrap_or(text));
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    let (head, tail) = (MAX_CHARS / 2, MAX_CHARS - MAX_CHARS / 2 - 1);
    let start: String = text.chars().take(head).collect();
    let end: Vec<char> = text.chars().rev().take(tail).collect();
    format!("{start}…{}", end.into_iter().rev().collect::<String>())
}

/// Lines between boxes, with the boxes' places in the picture.
struct Lines<'l> {
    svg: Markup,
    /// Left and upper edge of each box, and its tree.
    boxes: &'l BTreeMap<Node, (usize, usize, usize)>,
    /// By tree: where its lowest box ends.
    lowest: Vec<usize>,
    /// Lines so far that lead around boxes.
    around: usize,
}

impl Lines<'_> {
    /// A line from the right of one box to the left of another: through the gap between their columns, or around what is between them.
    fn edge(&mut self, from: Node, to: Node, class: &'static str) {
        let (Some(start), Some(end)) = (self.boxes.get(&from), self.boxes.get(&to)) else { return };
        let ((from_x, from_y, from_tree), (to_x, to_y, to_tree)) = (*start, *end);
        let (from_x, from_y, to_y) = (from_x + WIDTH, from_y + HEIGHT / 2, to_y + HEIGHT / 2);
        self.svg.raw("<path class=\"arrow").raw(class).raw("\" d=\"M");
        self.svg.value(from_x).raw(" ").value(from_y);
        if from_x + GAP_X == to_x {
            let middle = usize::midpoint(from_x, to_x);
            self.svg.raw("C").value(middle).raw(" ").value(from_y).raw(" ");
            self.svg.value(middle).raw(" ").value(to_y).raw(" ").value(to_x - 7).raw(" ").value(to_y);
        } else {
            let lane = self.around % LANES * LANE_WIDTH;
            self.around += 1;
            let low = |tree: usize| self.lowest.get(tree).copied().unwrap_or_default();
            let low = low(from_tree).max(low(to_tree)) + 4 + lane;
            self.svg.raw("H").value(from_x + SIDE / 2 + lane).raw("V").value(low);
            self.svg.raw("H").value(to_x.saturating_sub(SIDE / 2 + lane)).raw("V").value(to_y);
            self.svg.raw("H").value(to_x - 7);
        }
        self.svg.raw("\"/><path class=\"tip").raw(class).raw("\" d=\"M").value(to_x).raw(" ").value(to_y);
        self.svg.raw("l-8 -4v8z\"/>");
    }

    /// A line from a waiter to the one ahead of it in the queue: at their right if they are in one column.
    fn behind(&mut self, from: Node, to: Node, class: &'static str) {
        let (Some(start), Some(end)) = (self.boxes.get(&from), self.boxes.get(&to)) else { return };
        let ((from_x, from_y, _), (to_x, to_y, _)) = (*start, *end);
        if from_x != to_x {
            return self.edge(from, to, class);
        }
        let is_above = to_y < from_y;
        let from_y = from_y + if is_above { 10 } else { HEIGHT - 10 };
        let to_y = to_y + if is_above { HEIGHT - 10 } else { 10 };
        let (right, far) = (from_x + WIDTH, from_x + WIDTH + SIDE);
        self.svg.raw("<path class=\"arrow").raw(class).raw("\" d=\"M").value(right).raw(" ").value(from_y);
        self.svg.raw("C").value(far).raw(" ").value(from_y).raw(" ").value(far).raw(" ").value(to_y);
        self.svg.raw(" ").value(right + 7).raw(" ").value(to_y).raw("\"/><path class=\"tip").raw(class);
        self.svg.raw("\" d=\"M").value(right).raw(" ").value(to_y).raw("l8 -4v8z\"/>");
    }
}

/// Draws the waits. Nothing is drawn if nobody waits.
pub(super) fn draw(waits: &Waits<'_>) -> Markup {
    let layout = lay_out(waits);
    let columns = layout.columns.iter().copied().max().unwrap_or(0);
    if columns == 0 {
        return Markup::default();
    }
    let corner = |place: &Place| {
        let columns = layout.columns.get(place.tree).copied().unwrap_or_default();
        let x = columns.saturating_sub(place.column + 1) * (WIDTH + GAP_X) + SIDE;
        (x, place.half_row * (HEIGHT + GAP_Y) / 2 + 4, place.tree)
    };
    let boxes: BTreeMap<Node, (usize, usize, usize)> =
        layout.places.iter().map(|(node, place)| (*node, corner(place))).collect();
    let mut lowest = vec![0; layout.columns.len()];
    for (_, y, tree) in boxes.values() {
        if let Some(low) = lowest.get_mut(*tree) {
            *low = (y + HEIGHT).max(*low);
        }
    }
    let width = columns * (WIDTH + GAP_X) - GAP_X + 2 * SIDE;
    let height = layout.rows * (HEIGHT + GAP_Y) + 4;
    let mut svg = Markup::new(
        "<svg class=\"graph\" role=\"group\" aria-label=\"Who waits for whom; the table below says the same\" ",
    );
    svg.raw("width=\"").value(width).raw("\" height=\"").value(height);
    svg.raw("\" viewBox=\"0 0 ").value(width).raw(" ").value(height).raw("\">");
    let mut lines = Lines { svg, boxes: &boxes, lowest, around: 0 };
    for (waiter, locks) in waits.awaits.iter().enumerate() {
        for lock in locks {
            let class = if waits.is_cyclic_wait(waiter, *lock) { " cycle" } else { "" };
            lines.edge(Node::Holder(waiter), Node::Lock(*lock), class);
        }
    }
    for (waiter, ahead) in waits.queued_behind() {
        let class = if waits.is_same_cycle(waiter, ahead) { " ahead cycle" } else { " ahead" };
        lines.behind(Node::Holder(waiter), Node::Holder(ahead), class);
    }
    for (lock, holders) in waits.held_by.iter().enumerate() {
        lines.edge(Node::More(lock), Node::Lock(lock), "");
        for holder in holders {
            let is_cyclic = waits.is_cyclic_lock(lock) && waits.is_cyclic(*holder);
            lines.edge(Node::Lock(lock), Node::Holder(*holder), if is_cyclic { " cycle" } else { "" });
        }
    }
    let mut svg = lines.svg;
    for (node, (x, y, _)) in &boxes {
        draw_node(&mut svg, waits, &layout, *node, (*x, *y));
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
    let drawn = layout.places.keys().map(|node| match node {
        Node::More(lock) => layout.hidden.get(lock).copied().unwrap_or(0),
        _ => 1,
    });
    (waits.holders.len() + waits.locks.len()).saturating_sub(drawn.sum())
}
