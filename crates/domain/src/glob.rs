//! Patterns of policies, delegations and the registry of resources: `*` stands for any text, `?` for one character.
//!
//! Everything else stands for itself. Matching takes time in proportion to both lengths multiplied at worst, and never more.

use serde::{Deserialize, Serialize};

/// A pattern on `type:id`; one without `:` is matched against the id alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// The pattern that is written so.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches a resource.
    #[must_use]
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

/// Whether a pattern matches the whole of a text.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The last `*`, and how far it reached into the text: where to go on if what follows does not fit.
    let mut star: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(p), text.get(t)) {
            (Some('*'), _) => {
                star = Some((p, t));
                p += 1;
            }
            (Some('?'), Some(_)) => (p, t) = (p + 1, t + 1),
            (Some(wanted), Some(found)) if wanted == found => (p, t) = (p + 1, t + 1),
            (None, None) => return true,
            _ => match star {
                Some((at, reached)) if reached < text.len() => {
                    star = Some((at, reached + 1));
                    (p, t) = (at + 1, reached + 1);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by the definition.
    fn by_definition(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => {
                by_definition(rest, text)
                    || text.split_first().is_some_and(|(_, less)| by_definition(pattern, less))
            }
            (Some(('?', rest)), Some((_, less))) => by_definition(rest, less),
            (Some((wanted, rest)), Some((found, less))) => wanted == found && by_definition(rest, less),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_what_its_definition_says(pattern in "[ab*?]{0,7}", text in "[ab]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), by_definition(&chars(&pattern), &chars(&text)));
        }
    }

    #[test]
    fn a_pattern_without_a_type_is_about_the_id_alone() {
        let matches = |pattern: &str| Pattern::new(pattern).matches("database", "prod-orders");
        assert!(matches("prod-*") && matches("database:prod-*") && matches("*:prod-orders") && matches("*"));
        assert!(!matches("staging-*") && !matches("queue:*") && !matches("prod") && !matches("database:"));
    }
}
