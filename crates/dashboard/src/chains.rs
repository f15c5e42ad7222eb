//! Delegation chains as SVG: who gets whose approval requests, from left to right, with the conditions on the arrows. The page shows
//! the same as a table; the drawing is bounded.

use std::collections::{BTreeMap, BTreeSet};

use crate::Markup;
use crate::format::visible;

const MAX_NODES: usize = 60;
/// Chains are not followed further.
const MAX_LAYERS: usize = 10;
const BOX_WIDTH: usize = 150;
const BOX_HEIGHT: usize = 34;
const COLUMN: usize = 390;
const ROW: usize = 62;
const MARGIN: usize = 10;
/// Characters of a name in a box, and of each of two lines of a condition, above and below its arrow.
const NAME_LEN: usize = 19;
const LABEL_LEN: usize = 34;

/// An arrow from somebody to their delegate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Arrow {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Under which conditions.
    pub(crate) label: String,
    /// Both are asked, and the owner follows.
    pub(crate) is_follow: bool,
    /// Whether it applies now.
    pub(crate) is_active: bool,
    /// Whether a simulated task takes it.
    pub(crate) is_taken: bool,
}

/// The picture, and how many people are not in it.
pub(crate) fn draw(arrows: &[Arrow]) -> (Markup, usize) {
    let all: BTreeSet<&str> = arrows.iter().flat_map(|arrow| [&*arrow.from, &*arrow.to]).collect();
    // People of arrows that a task takes come first: they are the reason to look.
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    let (taken, others): (Vec<&Arrow>, Vec<&Arrow>) = arrows.iter().partition(|arrow| arrow.is_taken);
    for arrow in taken.into_iter().chain(others) {
        let added = [&*arrow.from, &*arrow.to].iter().filter(|person| !shown.contains(*person)).count();
        if shown.len() + added <= MAX_NODES {
            shown.extend([&*arrow.from, &*arrow.to]);
        }
    }
    let arrows: Vec<&Arrow> =
        arrows.iter().filter(|arrow| shown.contains(&*arrow.from) && shown.contains(&*arrow.to)).collect();
    let places = places(&arrows);
    let columns = places.values().map(|(column, _)| column + 1).max().unwrap_or(0);
    let rows = places.values().map(|(_, row)| row + 1).max().unwrap_or(0);
    let width = 2 * MARGIN + columns.saturating_sub(1) * COLUMN + BOX_WIDTH;
    let height = 2 * MARGIN + rows.saturating_sub(1) * ROW + BOX_HEIGHT;
    let mut svg = Markup::new(
        "<svg class=\"graph\" role=\"img\" aria-label=\"Delegation chains; the table says the same\" width=\"",
    );
    svg.value(width).raw("\" height=\"").value(height).raw("\" viewBox=\"0 0 ").value(width).raw(" ");
    svg.value(height).raw("\">");
    let mut drawn: BTreeMap<(&str, &str, bool), Vec<&Arrow>> = BTreeMap::new();
    for arrow in &arrows {
        drawn.entry((&arrow.from, &arrow.to, arrow.is_follow)).or_default().push(arrow);
    }
    for ((from, to, _), group) in &drawn {
        let (Some(from), Some(to)) = (places.get(from), places.get(to)) else { continue };
        draw_arrow(&mut svg, *from, *to, group);
    }
    for (person, place) in &places {
        let (left, top) = corner(*place);
        svg.raw("<g><title>")
            .text(&visible(person))
            .raw("</title><rect class=\"box\" rx=\"6\" x=\"")
            .value(left);
        svg.raw("\" y=\"")
            .value(top)
            .raw("\" width=\"")
            .value(BOX_WIDTH)
            .raw("\" height=\"")
            .value(BOX_HEIGHT);
        svg.raw("\"/><text text-anchor=\"middle\" x=\"").value(left + BOX_WIDTH / 2).raw("\" y=\"");
        svg.value(top + BOX_HEIGHT / 2 + 4).raw("\">").text(&shortened(person, NAME_LEN)).raw("</text></g>");
    }
    svg.raw("</svg>");
    (svg, all.len() - shown.len())
}

/// Column and row of each person: delegates are right of those who delegate to them. Cycles end at the last column.
fn places<'a>(arrows: &[&'a Arrow]) -> BTreeMap<&'a str, (usize, usize)> {
    let mut columns: BTreeMap<&str, usize> = BTreeMap::new();
    for arrow in arrows {
        columns.entry(&arrow.from).or_default();
        columns.entry(&arrow.to).or_default();
    }
    for _ in 0..MAX_LAYERS {
        let mut is_changed = false;
        for arrow in arrows {
            let wanted = columns.get(&*arrow.from).map_or(0, |column| column + 1).min(MAX_LAYERS - 1);
            if let Some(column) = columns.get_mut(&*arrow.to)
                && *column < wanted
            {
                (*column, is_changed) = (wanted, true);
            }
        }
        if !is_changed {
            break;
        }
    }
    // Chains one below the other: a person is beside the first of those who delegate to them, if there is room.
    let mut free = [0; MAX_LAYERS];
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut order: Vec<(&str, usize)> = columns.into_iter().collect();
    order.sort_by_key(|(_, column)| *column);
    for (person, column) in order {
        let beside =
            arrows.iter().filter(|arrow| arrow.to == person).find_map(|arrow| places.get(&*arrow.from));
        let row = beside.map_or(0, |(_, row)| *row).max(free.get(column).copied().unwrap_or(0));
        places.insert(person, (column, row));
        if let Some(next) = free.get_mut(column) {
            *next = row + 1;
        }
    }
    places
}

const fn corner((column, row): (usize, usize)) -> (usize, usize) {
    (MARGIN + column * COLUMN, MARGIN + row * ROW)
}

fn draw_arrow(svg: &mut Markup, from: (usize, usize), to: (usize, usize), group: &[&Arrow]) {
    let ((from_left, from_top), (to_left, to_top)) = (corner(from), corner(to));
    let (start, from_middle) = (from_left + BOX_WIDTH, from_top + BOX_HEIGHT / 2);
    let to_middle = to_top + BOX_HEIGHT / 2;
    let end = to_left.saturating_sub(7);
    let first = group.first().copied();
    let is_taken = group.iter().any(|arrow| arrow.is_taken);
    let is_active = group.iter().any(|arrow| arrow.is_active);
    let is_follow = first.is_some_and(|arrow| arrow.is_follow);
    let turn = start + 24;
    svg.raw("<g><title>");
    for arrow in group {
        svg.text(&visible(&arrow.from)).raw(if is_follow { " follows " } else { " delegates to " });
        svg.text(&visible(&arrow.to)).raw(": ").text(&visible(&arrow.label)).raw("\n");
    }
    svg.raw("</title><path class=\"arrow").raw(if is_follow { " follow" } else { "" });
    svg.raw(if is_taken { " taken" } else { "" }).raw(if is_active { "" } else { " off" }).raw("\" d=\"M");
    svg.value(start).raw(" ").value(from_middle).raw("C").value(turn).raw(" ").value(from_middle).raw(" ");
    svg.value(turn.saturating_sub(12)).raw(" ").value(to_middle).raw(" ").value(start + 40).raw(" ");
    svg.value(to_middle).raw("L").value(end).raw(" ").value(to_middle).raw("\"/><path class=\"tip");
    svg.raw(if is_taken { " taken" } else { "" }).raw("\" d=\"M").value(end + 6).raw(" ").value(to_middle);
    svg.raw("l-9 -5v10z\"/>");
    let label = match group {
        [one] => one.label.clone(),
        _ => format!("{} delegations", group.len()),
    };
    let prefix = if is_follow { "follows: " } else { "" };
    let (above, below) = two_lines(&visible(format!("{prefix}{label}")));
    for (line, y) in [(above, to_middle.saturating_sub(5)), (below, to_middle + 14)] {
        if !line.is_empty() {
            svg.raw("<text class=\"sub\" text-anchor=\"middle\" x=\"")
                .value(usize::midpoint(start + 40, end));
            svg.raw("\" y=\"").value(y).raw("\">").text(&shortened(&line, LABEL_LEN)).raw("</text>");
        }
    }
    svg.raw("</g>");
}

/// A text as two lines, of which the first ends between words if it can.
fn two_lines(text: &str) -> (String, String) {
    let Some((limit, _)) = text.char_indices().nth(LABEL_LEN) else {
        return (text.to_owned(), String::new());
    };
    let (head, _) = text.split_at(limit);
    let end = head.rfind(' ').unwrap_or(limit);
    let (first, second) = text.split_at(end);
    (first.to_owned(), second.trim_start().to_owned())
}

fn shortened(text: &str, length: usize) -> String {
    let text = visible(text);
    if text.chars().count() <= length {
        return text;
    }
    text.chars().take(length - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arrow(from: &str, to: &str) -> Arrow {
        let (from, to) = (from.to_owned(), to.to_owned());
        Arrow { from, to, label: "all tasks".to_owned(), is_active: true, ..Arrow::default() }
    }

    #[test]
    fn chains_go_from_left_to_right() {
        let arrows = [arrow("bob", "carol"), arrow("alice", "bob"), arrow("dave", "bob")];
        let places = places(&arrows.iter().collect::<Vec<_>>());
        assert_eq!(places["alice"], (0, 0));
        assert_eq!(places["dave"], (0, 1));
        assert_eq!((places["bob"], places["carol"]), ((1, 0), (2, 0)));
    }

    #[test]
    fn follows_and_taken_steps_look_different() {
        let arrows = [
            Arrow { is_follow: true, ..arrow("a", "b") },
            Arrow { is_taken: true, ..arrow("b", "c") },
            Arrow { is_active: false, ..arrow("c", "d") },
        ];
        let svg = draw(&arrows).0.to_string();
        for class in ["arrow follow\"", "arrow taken\"", "arrow off\""] {
            assert!(svg.contains(class), "{class}: {svg}");
        }
    }

    #[test]
    fn long_conditions_have_two_lines() {
        let label = "type infrastructure, risk above 40, resource service:prod-*";
        assert_eq!(two_lines("all tasks"), ("all tasks".to_owned(), String::new()));
        assert_eq!(
            two_lines(label),
            ("type infrastructure, risk above".to_owned(), "40, resource service:prod-*".to_owned())
        );
        assert_eq!(two_lines(&"x".repeat(40)).1, "x".repeat(6));
    }

    #[test]
    fn many_people_are_bounded() {
        let arrows: Vec<Arrow> = (0..100).map(|at| arrow(&format!("u{at}"), &format!("v{at}"))).collect();
        let (svg, omitted) = draw(&arrows);
        assert_eq!(svg.to_string().matches("<rect").count(), MAX_NODES);
        assert_eq!(omitted, 200 - MAX_NODES);
    }

    proptest! {
        #[test]
        fn any_graph_is_drawn_without_overlap(pairs in prop::collection::vec((0..12_u8, 0..12_u8), 0..40), text in ".*") {
            let arrows: Vec<Arrow> = pairs
                .iter()
                .map(|(from, to)| Arrow { label: text.clone(), ..arrow(&from.to_string(), &to.to_string()) })
                .collect();
            let (svg, omitted) = draw(&arrows);
            prop_assert_eq!(omitted, 0);
            prop_assert!(!svg.to_string().contains("<script"));
            let places = places(&arrows.iter().collect::<Vec<_>>());
            let distinct: BTreeSet<_> = places.values().collect();
            prop_assert_eq!(distinct.len(), places.len());
        }
    }
}
