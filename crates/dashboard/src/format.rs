//! How values are shown: times, ids, counts, words. Every time is relative with the exact one in its title, and a script keeps it
//! current.

use std::fmt::Display;

use ade_client::wire::Time;
use ade_domain::text::is_shown;
use jiff::Timestamp;

use crate::Markup;

/// Characters of an id that hold its time to the millisecond.
const SHORT_ID_LEN: usize = 13;

/// The prefix of an id that tells it apart from others that people made.
#[must_use]
pub fn short_id(id: &str) -> &str {
    let is_uuid = id.len() == 36 && id.is_ascii();
    if is_uuid { id.get(..SHORT_ID_LEN).unwrap_or(id) } else { id }
}

/// A duration in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {small_unit}"),
    };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => two(minutes, "min", if minutes < 10 { seconds % 60 } else { 0 }, "s"),
        3_600..86_400 => two(hours, "h", if hours < 10 { minutes % 60 } else { 0 }, "min"),
        _ => two(days, "d", if days < 10 { hours % 24 } else { 0 }, "h"),
    }
}

/// A duration in its largest unit.
fn rough(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..3_600 => (seconds / 60, "min"),
        3_600..172_800 => (seconds / 3_600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    format!("{number} {unit}")
}

fn exact(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// `3 min ago` or `in 3 min`.
pub(crate) fn relative(time: Time, now: Timestamp) -> Markup {
    let seconds = now.as_second() - time.0.as_second();
    let mut markup = Markup::new("<time data-relative datetime=\"");
    markup.value(time).raw("\" title=\"").text(&exact(time.0)).raw("\">");
    match seconds {
        -4..5 => markup.raw("now"),
        5.. => markup.text(&rough(seconds.unsigned_abs())).raw(" ago"),
        _ => markup.raw("in ").text(&rough(seconds.unsigned_abs())),
    };
    markup.raw("</time>");
    markup
}

/// The time that remains until a moment. The script counts it down.
pub(crate) fn countdown(time: Time, now: Timestamp) -> Markup {
    let seconds = time.0.as_second() - now.as_second();
    let mut markup = Markup::new("<time data-countdown datetime=\"");
    markup.value(time).raw("\" title=\"").text(&exact(time.0)).raw("\">");
    match u64::try_from(seconds) {
        Ok(seconds) => markup.text(&duration(seconds)),
        Err(_) => markup.raw("overdue by ").text(&duration(seconds.unsigned_abs())),
    };
    markup.raw("</time>");
    markup
}

/// A whole number that is not negative, with its digits in groups: `37,524`.
pub(crate) fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 task`, `3 tasks`.
pub(crate) fn count(number: impl Display, noun: &str) -> String {
    match grouped(number).as_str() {
        "1" => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// `Alice`, `Alice or Bob`, `Alice, Bob or 3 more`: at most `max` names, the others are counted. They must be visible already.
pub(crate) fn names(names: &[String], max: usize, joint: &str) -> String {
    let mut parts: Vec<String> = names.iter().take(max).cloned().collect();
    if names.len() > max {
        parts.push(format!("{} more", names.len() - max));
    }
    match parts.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, first)) => format!("{} {joint} {last}", first.join(", ")),
    }
}

/// The first line of a text that others wrote, cut at a length that fits a row.
pub(crate) fn title(text: &str) -> String {
    const LEN: usize = 70;
    let line = text.lines().next().unwrap_or_default();
    let is_whole = line.chars().count() <= LEN && line.len() == text.trim_end().len();
    let end = if is_whole { "" } else { "…" };
    visible(line.chars().take(LEN).collect::<String>()) + end
}

/// What opens the filters on a phone, where they are folded.
pub(crate) fn filter_label(chosen: usize) -> String {
    if chosen == 0 { "Filter".to_owned() } else { format!("Filter ({chosen})") }
}

/// How many filters are not empty.
pub(crate) fn chosen(filters: &[&str]) -> usize {
    filters.iter().filter(|filter| !filter.is_empty()).count()
}

/// The beginning of a random id that a machine gave itself, such as `worker-5c6c1750…`, at which people tell it apart.
pub(crate) fn short_machine_id(id: &str) -> String {
    const KEPT: usize = 8;
    const RANDOM: usize = 16;
    let (name, random) = id.rsplit_once('-').map_or(("", id), |(name, random)| (name, random));
    let is_random = random.len() >= RANDOM && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(kept) = random.get(..KEPT).filter(|_| is_random) else { return visible(id) };
    if name.is_empty() { format!("{kept}…") } else { visible(format!("{name}-{kept}…")) }
}

/// A text that begins a sentence.
pub(crate) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// A segment of a path, encoded.
pub(crate) fn segment(text: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    percent_encoding::utf8_percent_encode(text, KEPT).to_string()
}

/// A path with the query parameters that are not empty.
pub(crate) fn link(path: &str, params: &[(&str, &str)]) -> String {
    let set = params.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> = set.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Text with characters that a reader cannot see, or that reorder what is read, as their code points. Line breaks and tabs stay.
pub(crate) fn visible(text: impl AsRef<str>) -> String {
    let text = text.as_ref();
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if !is_shown(character) && !matches!(character, '\n' | '\t') {
            shown.push_str(&format!("⟦U+{:04X}⟧", u32::from(character)));
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let cases = [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (600, "10 min"),
            (3_660, "1 h 1 min"),
            (40_000, "11 h"),
            (90_000, "1 d 1 h"),
            (86_400 * 12 + 7_200, "12 d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected);
        }
    }

    #[test]
    fn digits_come_in_groups_of_three() {
        assert_eq!(
            [0, 999, 1_000, 37_524, 1_234_567].map(grouped),
            ["0", "999", "1,000", "37,524", "1,234,567"]
        );
        assert_eq!(count(10_000, "task"), "10,000 tasks");
    }

    #[test]
    fn names_are_bounded() {
        let all: Vec<String> = ["Alice", "Bob", "Carol", "Dave", "Erin"].map(str::to_owned).to_vec();
        let shown: Vec<String> =
            [0, 1, 2, 3, 5].map(|number| names(all.get(..number).unwrap_or_default(), 3, "or")).to_vec();
        assert_eq!(
            shown,
            ["", "Alice", "Alice or Bob", "Alice, Bob or Carol", "Alice, Bob, Carol or 2 more"]
        );
    }

    #[test]
    fn invisible_and_reordering_characters_show_as_code_points() {
        assert_eq!(visible("a\u{202e}b\u{200b}\u{1b}[2J"), "a⟦U+202E⟧b⟦U+200B⟧⟦U+001B⟧[2J");
        assert_eq!(visible("line\n\tümläut 漢字"), "line\n\tümläut 漢字");
    }

    #[test]
    fn random_ids_of_machines_are_cut() {
        assert_eq!(short_machine_id("worker-5c6c17508ee94e34a29a29641ea8b268"), "worker-5c6c1750…");
        assert_eq!(short_machine_id("5c6c17508ee94e34a29a29641ea8b268"), "5c6c1750…");
        assert_eq!(short_machine_id("deploy-bot"), "deploy-bot");
        assert_eq!(short_machine_id("release-2026-11-19"), "release-2026-11-19");
    }

    #[test]
    fn short_ids_are_prefixes() {
        assert_eq!(short_id("019a9d1e-3c4f-7a10-8f00-1234567890ab"), "019a9d1e-3c4f");
        assert_eq!(short_id("deploy-bot"), "deploy-bot");
    }
}
