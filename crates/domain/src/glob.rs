//! Glob patterns for names: `*` matches any text, also across `/`, `?` matches one character, everything else matches itself.
//! Names are compared in their normal form, so that no spelling escapes a pattern.
//!
//! Matching takes at most time proportional to the product of both lengths.

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

pub(crate) fn matches_any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
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
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The last `*` and the end of the text it consumed: where to backtrack to after a mismatch.
    let mut star: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(p), text.get(t)) {
            (Some('*'), _) => {
                star = Some((p, t));
                p += 1;
            }
            (Some('?'), Some(_)) => (p, t) = (p + 1, t + 1),
            (Some(expected), Some(found)) if expected == found => (p, t) = (p + 1, t + 1),
            (None, None) => return true,
            _ => match star {
                Some((at, consumed)) if consumed < text.len() => {
                    star = Some((at, consumed + 1));
                    (p, t) = (at + 1, consumed + 1);
                }
                _ => return false,
            },
        }
    }
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
        fn matches_like_the_reference(pattern in "[ab*?]{0,7}", text in "[ab]{0,8}") {
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
    fn pattern_without_type_matches_the_id_alone() {
        let matches = |pattern: &str| Pattern::new(pattern).matches("database", "prod-orders");
        assert!(matches("prod-*") && matches("database:prod-*") && matches("*:prod-orders") && matches("*"));
        assert!(matches("Database:PROD-*") && Pattern::new("prod-*").matches("database", "PROD-Orders"));
        assert!(!matches("staging-*") && !matches("queue:*") && !matches("prod") && !matches("database:"));
    }
}
