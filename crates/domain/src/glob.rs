//! Glob patterns for names: `*` matches any text, also across `/`, `?` matches one character, everything else matches itself.
//! Names are compared in their normal form, so that no spelling escapes a pattern.
//!
//! Patterns are bounded, so that no list of them takes long to match.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::normal_form::fold;

/// A pattern for `type:id`. A pattern without `:` is matched against the id alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn matches(&self, resource_type: &str, id: &str) -> bool {
        match self.0.split_once(':') {
            None => matches(&self.0, id),
            Some(_) => matches(&self.0, &format!("{resource_type}:{id}")),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

const MAX_PATTERN_BYTES: usize = 256;
/// Of a pattern with `?`, which are searched bit by bit.
const MAX_PATTERN_BYTES_WITH_SINGLES: usize = 64;
const MAX_STARS: usize = 16;

/// Checks the size of a pattern.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    let has_single = pattern.contains('?');
    let max_bytes = if has_single { MAX_PATTERN_BYTES_WITH_SINGLES } else { MAX_PATTERN_BYTES };
    let fits = pattern.len() <= max_bytes && pattern.matches('*').count() <= MAX_STARS;
    fits.then_some(()).ok_or_else(|| {
        format!(
            "must have at most {MAX_PATTERN_BYTES} bytes ({MAX_PATTERN_BYTES_WITH_SINGLES} with ?), and * at \
             most {MAX_STARS} times"
        )
    })
}

/// Patterns in their normal form, to be compared with many names.
#[derive(Debug)]
pub(crate) struct PatternSet<'a>(Vec<Cow<'a, str>>);

impl<'a> PatternSet<'a> {
    pub(crate) fn new(patterns: &'a [String]) -> Self {
        Self(patterns.iter().map(|pattern| fold(pattern)).collect())
    }

    /// See [`Pattern`].
    pub(crate) fn of_resources(patterns: &'a [Pattern]) -> Self {
        Self(patterns.iter().map(|pattern| fold(pattern.as_str())).collect())
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        let text = fold(text);
        self.0.iter().any(|pattern| matches_exactly(pattern, &text))
    }

    pub(crate) fn matches_resource(&self, resource_type: &str, id: &str) -> bool {
        let (resource_type, id) = (fold(resource_type), fold(id));
        let name = format!("{resource_type}:{id}");
        let text = |pattern: &str| if pattern.contains(':') { name.as_str() } else { &*id };
        self.0.iter().any(|pattern| matches_exactly(pattern, text(pattern)))
    }
}

pub(crate) fn matches_any(patterns: &[String], text: &str) -> bool {
    PatternSet::new(patterns).matches(text)
}

/// Whether a pattern matches the whole text, in whatever spelling.
pub fn matches(pattern: &str, text: &str) -> bool {
    matches_exactly(&fold(pattern), &fold(text))
}

/// Whether a pattern may match a text that begins with `prefix`. It is never false if there is such a text.
pub(crate) fn may_begin_with(pattern: &str, prefix: &str) -> bool {
    let (pattern, prefix) = (fold(pattern), fold(prefix));
    let mut expected = pattern.chars();
    for found in prefix.chars() {
        match expected.next() {
            Some('*') => return true,
            Some(one) if one == '?' || one == found => {}
            _ => return false,
        }
    }
    true
}

/// Whether a pattern matches the whole text in exactly this spelling, as in names of files.
pub fn matches_exactly(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return strip_part(text, pattern) == Some("") };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = strip_part(text, first) else { return false };
    // The first match of each part leaves the most text to the others.
    for part in middle.split('*') {
        let Some(rest) = after_part(text, part) else { return false };
        text = rest;
    }
    let length = last.chars().count();
    let end = text.char_indices().map(|(at, _)| at).chain([text.len()]).rev().nth(length);
    end.and_then(|end| strip_part(text.get(end..)?, last)) == Some("")
}

/// The text after a part of a pattern without `*`, if the text begins with that.
fn strip_part<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    let mut runs = part.split('?');
    let mut rest = text.strip_prefix(runs.next()?)?;
    for run in runs {
        let mut chars = rest.chars();
        chars.next()?;
        rest = chars.as_str().strip_prefix(run)?;
    }
    Some(rest)
}

/// The text after the first occurrence of a part of a pattern without `*`.
fn after_part<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    if !part.contains('?') {
        return text.split_once(part).map(|(_, rest)| rest);
    }
    // One bit for each character of the part, set where it matches a character of the text.
    let (mut single, mut literals, mut last) = (0, BTreeMap::<char, u64>::new(), 0);
    for (number, expected) in (0..).zip(part.chars()) {
        let Some(bit) = 1_u64.checked_shl(number) else {
            // Only a pattern that was stored before patterns were bounded.
            return text.char_indices().find_map(|(at, _)| strip_part(text.get(at..)?, part));
        };
        *if expected == '?' { &mut single } else { literals.entry(expected).or_default() } |= bit;
        last = bit;
    }
    // A bit is set if the text so far ends with the part up to this character.
    let (mut matched, mut rest) = (0, text.chars());
    while let Some(found) = rest.next() {
        matched = ((matched << 1) | 1) & (single | literals.get(&found).copied().unwrap_or_default());
        if matched & last != 0 {
            return Some(rest.as_str());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use ade_testkit::effort;
    use proptest::prelude::*;

    use super::*;

    /// A recursive reference implementation.
    fn reference(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => {
                reference(rest, text) || text.split_first().is_some_and(|(_, less)| reference(pattern, less))
            }
            (Some(('?', rest)), Some((_, less))) => reference(rest, less),
            (Some((expected, rest)), Some((found, less))) => expected == found && reference(rest, less),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(effort::property(256))]

        #[test]
        fn matches_like_the_reference(pattern in "[abé*?]{0,7}", text in "[abé]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), reference(&chars(&pattern), &chars(&text)));
        }
    }

    #[test]
    fn prefixes_are_matched_by_what_matches_a_longer_text() {
        for pattern in ["*", "agent:*", "Agent:prod-?", "a*", "?gent:x", "agent*", "*:x", "agent:"] {
            assert!(may_begin_with(pattern, "agent:"), "{pattern}");
        }
        for pattern in ["", "agent", "files:*", "agen?", "?", "capability:*", "b*"] {
            assert!(!may_begin_with(pattern, "agent:"), "{pattern}");
        }
    }

    #[test]
    fn patterns_are_bounded() {
        for (text, max) in [("a", 256), ("?", 64), ("*", 16)] {
            assert_eq!(check_pattern(&text.repeat(max)), Ok(()), "{text}");
            assert!(check_pattern(&text.repeat(max + 1)).is_err(), "{text}");
        }
        let long = format!("*{}?b*", "a".repeat(80));
        assert!(matches(&long, &format!("x{}cby", "a".repeat(81))) && !matches(&long, &"a".repeat(90)));
    }

    #[test]
    fn set_matches_like_its_patterns() {
        let patterns = ["prod-*", "Queue:\u{c9}*", "*:x"].map(Pattern::new);
        let set = PatternSet::of_resources(&patterns);
        for (resource_type, id) in
            [("database", "PROD-1"), ("queue", "e\u{301}1"), ("a", "x"), ("queue", "prod"), ("a", "b:x")]
        {
            let expected = patterns.iter().any(|pattern| pattern.matches(resource_type, id));
            assert_eq!(set.matches_resource(resource_type, id), expected, "{resource_type}:{id}");
        }
    }

    #[test]
    fn pattern_without_type_matches_the_id_alone() {
        let matches = |pattern: &str| Pattern::new(pattern).matches("database", "prod-orders");
        assert!(matches("prod-*") && matches("database:prod-*") && matches("*:prod-orders") && matches("*"));
        assert!(matches("Database:PROD-*") && Pattern::new("prod-*").matches("database", "PROD-Orders"));
        assert!(!matches("staging-*") && !matches("queue:*") && !matches("prod") && !matches("database:"));
    }
}
