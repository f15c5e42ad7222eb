//! Charts of values over days, as SVG: stacked bars and a line. A chart never replaces its numbers: the page shows them as a table too.
//!
//! Every number that reaches the drawing is finite and within the picture, whatever the values are.

use crate::Markup;
use crate::format::grouped;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 190.0;
/// The room of the numbers at the axis, and of the days below it.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 24.0;
const MAX_BAR_WIDTH: f64 = 36.0;

/// One kind of value, with its colour.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    /// A class of the style sheet, such as `bar-ok`.
    pub(crate) class: &'static str,
    /// One for each label; `None` where nothing is known.
    pub(crate) values: Vec<Option<f64>>,
}

/// What a chart says about one of its numbers.
pub(crate) type Format = fn(f64) -> String;

/// A number as it is.
pub(crate) fn plain(value: f64) -> String {
    grouped(format_args!("{value:.0}"))
}

/// Where the axis of a chart ends, for its largest value.
pub(crate) type Maximum = fn(f64) -> f64;

/// Bars for each label, one series upon the other.
pub(crate) fn stacked_bars(title: &str, labels: &[String], series: &[Series]) -> Markup {
    let value = |series: &Series, at: usize| known(series.values.get(at)).unwrap_or(0.0);
    let totals = (0..labels.len()).map(|at| series.iter().map(|one| value(one, at)).sum::<f64>());
    let highest = totals.fold(0.0, f64::max);
    if highest <= 0.0 {
        return no_data(title);
    }
    let top = nice_maximum(highest);
    let mut svg = start(title, labels, top, plain);
    let step = step(labels.len());
    let width = (step * 0.72).clamp(1.0, MAX_BAR_WIDTH);
    for (at, label) in labels.iter().enumerate() {
        let mut below = 0.0;
        for one in series {
            let number = value(one, at);
            if number <= 0.0 {
                continue;
            }
            let (high, low) = (y(below + number, top), y(below, top));
            below += number;
            svg.raw("<rect class=\"")
                .raw(one.class)
                .raw("\" x=\"")
                .value(coordinate(x(at, step) - width / 2.0));
            svg.raw("\" y=\"").value(coordinate(high)).raw("\" width=\"").value(coordinate(width));
            svg.raw("\" height=\"").value(coordinate((low - high).max(1.0))).raw("\"><title>");
            svg.text(label).raw(": ").text(&plain(number)).raw(" ").text(one.name).raw("</title></rect>");
        }
    }
    svg.raw("</svg>");
    svg
}

/// A line through the known values, with gaps where nothing is known, and the last value beside its point.
pub(crate) fn line(
    title: &str,
    labels: &[String],
    series: &Series,
    maximum: Maximum,
    format: Format,
) -> Markup {
    let values: Vec<Option<f64>> = (0..labels.len()).map(|at| known(series.values.get(at))).collect();
    let Some(last) = values.iter().rposition(Option::is_some) else { return no_data(title) };
    let top = maximum(values.iter().flatten().copied().fold(0.0, f64::max));
    let mut svg = start(title, labels, top, format);
    let step = step(labels.len());
    svg.raw("<path class=\"").raw(series.class).raw("\" d=\"");
    let mut is_connected = false;
    for (at, value) in values.iter().enumerate() {
        if let Some(value) = value {
            svg.raw(if is_connected { "L" } else { "M" }).value(coordinate(x(at, step))).raw(" ");
            svg.value(coordinate(y(*value, top)));
        }
        is_connected = value.is_some();
    }
    svg.raw("\"/>");
    for ((at, value), label) in values.iter().enumerate().zip(labels) {
        let Some(value) = value else { continue };
        svg.raw("<circle class=\"point\" r=\"3\" cx=\"").value(coordinate(x(at, step))).raw("\" cy=\"");
        svg.value(coordinate(y(*value, top))).raw("\"><title>").text(label).raw(": ").text(&format(*value));
        svg.raw("</title></circle>");
        if at == last {
            let is_right = x(at, step) > WIDTH / 2.0;
            svg.raw("<text class=\"value\" text-anchor=\"").raw(if is_right { "end" } else { "start" });
            svg.raw("\" x=\"").value(coordinate(x(at, step))).raw("\" y=\"");
            svg.value(coordinate(y(*value, top) - 8.0)).raw("\">").text(&format(*value)).raw("</text>");
        }
    }
    svg.raw("</svg>");
    svg
}

/// The picture of a chart of which nothing is known: an axis would be invented.
fn no_data(title: &str) -> Markup {
    let mut svg = Markup::new("<svg class=\"chart\" viewBox=\"0 0 520 60\" role=\"img\" aria-label=\"");
    svg.text(title).raw(": no data yet\"><text class=\"none\" x=\"0\" y=\"34\">No data yet</text></svg>");
    svg
}

/// The picture with its axis: three lines with their numbers, and the first, middle and last label.
fn start(title: &str, labels: &[String], top: f64, format: Format) -> Markup {
    let mut svg = Markup::new("<svg class=\"chart\" viewBox=\"0 0 520 190\" role=\"img\" aria-label=\"");
    svg.text(title).raw("\">");
    // If all values are zero there is no scale.
    let parts: &[f64] = if top > 0.0 { &[0.0, 0.5, 1.0] } else { &[0.0] };
    for part in parts {
        let height = coordinate(y(top * part, top));
        svg.raw("<line class=\"axis\" x1=\"76\" x2=\"510\" y1=\"")
            .value(&height)
            .raw("\" y2=\"")
            .value(&height);
        svg.raw("\"/><text text-anchor=\"end\" x=\"70\" y=\"").value(coordinate(y(top * part, top) + 4.0));
        svg.raw("\">").text(&format(top * part)).raw("</text>");
    }
    let step = step(labels.len());
    let last = labels.len().saturating_sub(1);
    let mut shown = vec![0, last / 2, last];
    shown.dedup();
    for at in shown {
        let Some(label) = labels.get(at) else { continue };
        let anchor = match at {
            _ if labels.len() < 4 => "middle",
            0 => "start",
            at if at == last => "end",
            _ => "middle",
        };
        let left = match anchor {
            "start" => LEFT,
            "end" => WIDTH - RIGHT,
            _ => x(at, step),
        };
        svg.raw("<text y=\"184\" text-anchor=\"").raw(anchor).raw("\" x=\"").value(coordinate(left));
        svg.raw("\">").text(label).raw("</text>");
    }
    svg
}

/// A number that can be drawn.
fn known(value: Option<&Option<f64>>) -> Option<f64> {
    value.copied().flatten().filter(|value| value.is_finite()).map(|value| value.max(0.0))
}

#[expect(clippy::cast_precision_loss, reason = "a chart has far fewer bars than 2^52")]
fn step(count: usize) -> f64 {
    (WIDTH - LEFT - RIGHT) / count.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "a chart has far fewer bars than 2^52")]
fn x(at: usize, step: f64) -> f64 {
    (at as f64 + 0.5).mul_add(step, LEFT)
}

fn y(value: f64, top: f64) -> f64 {
    let height = HEIGHT - TOP - BOTTOM;
    let share = if top > 0.0 { (value / top).clamp(0.0, 1.0) } else { 0.0 };
    height.mul_add(-share, HEIGHT - BOTTOM)
}

fn coordinate(value: f64) -> String {
    format!("{:.1}", value.clamp(0.0, WIDTH))
}

/// A fixed end: a share is at most the whole.
pub(crate) const fn whole(_: f64) -> f64 {
    1.0
}

/// The least of 2 s, 4 s, 10 s, … that is not below a number of seconds: it and half of it are short to write.
pub(crate) fn nice_seconds(value: f64) -> f64 {
    const ENDS: [f64; 18] = [
        2.0, 4.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0,
        36_000.0, 72_000.0, 86_400.0, 172_800.0,
    ];
    const DAY: f64 = 86_400.0;
    if value <= 0.0 {
        return 0.0;
    }
    ENDS.into_iter().find(|end| value <= *end).unwrap_or_else(|| nice_maximum(value / DAY) * DAY)
}

/// The least of 2, 4, 10, 20, 40, 100, … that is not below a value: half of it is a whole number. Zero has no scale.
pub(crate) fn nice_maximum(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let mut unit = 1.0;
    while unit < 1e15 {
        for factor in [2.0, 4.0, 10.0] {
            if value <= unit * factor {
                return unit * factor;
            }
        }
        unit *= 10.0;
    }
    value.min(f64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(values: Vec<Option<f64>>) -> Series {
        Series { name: "completed", class: "bar-ok", values }
    }

    fn labels(count: usize) -> Vec<String> {
        (0..count).map(|day| format!("day {day}")).collect()
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let failed = Series { name: "failed", class: "bar-danger", values: vec![Some(1.0), None] };
        let svg =
            stacked_bars("Outcomes", &labels(2), &[series(vec![Some(3.0), Some(0.0)]), failed]).to_string();
        // Four of four take the whole height of 144, three of them 108.
        assert!(svg.contains("height=\"108.0\"><title>day 0: 3 completed"), "{svg}");
        assert!(svg.contains("y=\"22.0\" width"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2, "nothing is drawn for zero: {svg}");
    }

    #[test]
    fn lines_have_gaps_where_nothing_is_known() {
        let values = vec![Some(1.0), Some(2.0), None, Some(1.0)];
        let svg = line("Backlog", &labels(4), &series(values), nice_maximum, plain).to_string();
        assert_eq!((svg.matches('M').count(), svg.matches('L').count()), (2, 1), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("class=\"value\"").count(), 1, "the last value is written");
    }

    #[test]
    fn nothing_known_has_no_axis_and_zero_no_scale() {
        for svg in [
            line("Backlog", &labels(3), &series(vec![None; 3]), nice_seconds, plain),
            stacked_bars("Outcomes", &labels(3), &[series(vec![Some(0.0); 3])]),
        ] {
            let svg = svg.to_string();
            assert!(svg.contains("No data yet") && !svg.contains("axis"), "{svg}");
        }
        let zero = line("Time", &labels(2), &series(vec![None, Some(0.0)]), nice_seconds, plain).to_string();
        assert_eq!(zero.matches("axis").count(), 1, "{zero}");
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        let cases =
            [(0.0, 0.0), (0.5, 2.0), (2.0, 2.0), (3.0, 4.0), (5.0, 10.0), (11.0, 20.0), (401.0, 1_000.0)];
        for (value, expected) in cases {
            assert!((nice_maximum(value) - expected).abs() < f64::EPSILON, "{value}");
        }
        let cases =
            [(0.0, 0.0), (45.0, 60.0), (700.0, 1_200.0), (100_000.0, 172_800.0), (300_000.0, 345_600.0)];
        for (value, expected) in cases {
            assert!((nice_seconds(value) - expected).abs() < f64::EPSILON, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_values_are_drawn_within_the_picture(
            values in prop::collection::vec(prop::option::of(any::<f64>()), 0..40),
            title in ".*",
            label in ".*",
        ) {
            let labels = vec![label; values.len()];
            let series = series(values);
            let bars = stacked_bars(&title, &labels, std::slice::from_ref(&series)).to_string();
            let line = line(&title, &labels, &series, nice_seconds, plain).to_string();
            for svg in [bars, line] {
                let tags = svg.split('<').filter_map(|tag| tag.split_once('>')).map(|(tag, _)| tag);
                for tag in tags {
                    prop_assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
                }
                prop_assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
            }
        }
    }
}
