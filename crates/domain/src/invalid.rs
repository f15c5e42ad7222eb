//! Validation errors: which field of an input is invalid, and why.

use std::fmt;

use crate::glob::check_pattern;

/// The way from the root of an input to one of its fields: names, and positions in lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Vec<String>);

impl FieldPath {
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// The path of a field of this one. Its name may contain any character.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.0.push(name.into());
        self
    }
}

/// Splits at dots, as in `resources.0.id`. An empty text is the input itself.
impl<T: AsRef<str>> From<T> for FieldPath {
    fn from(path: T) -> Self {
        Self(path.as_ref().split_terminator('.').map(str::to_owned).collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} {detail}")]
pub struct InvalidField {
    pub path: FieldPath,
    /// What the field must be. The text follows the name of the field: "must be between 0 and 100".
    pub detail: String,
}

impl InvalidField {
    pub fn at(path: impl Into<FieldPath>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), detail: detail.into() }
    }

    /// The same error, where the input is a field of a larger one.
    #[must_use]
    pub fn within(mut self, parent: impl Into<FieldPath>) -> Self {
        self.path.0.splice(..0, parent.into().0);
        self
    }
}

/// Collects every invalid field of an input.
#[derive(Debug, Default)]
pub struct Validator {
    pub errors: Vec<InvalidField>,
}

impl Validator {
    /// The path is dotted. Path and detail are formatted only for an invalid field.
    pub fn check(&mut self, is_valid: bool, path: impl fmt::Display, detail: impl fmt::Display) {
        if !is_valid {
            self.errors.push(InvalidField::at(path.to_string(), detail.to_string()));
        }
    }

    /// Checks the size of each pattern of a list.
    pub fn check_patterns<'a>(&mut self, path: &str, patterns: impl IntoIterator<Item = &'a str>) {
        for (index, pattern) in patterns.into_iter().enumerate() {
            if let Err(detail) = check_pattern(pattern) {
                self.check(false, format_args!("{path}.{index}"), detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_names_with_dots_and_slashes() {
        let path = FieldPath::from("arguments").field("a.b/c");
        assert_eq!(path.names(), ["arguments", "a.b/c"]);
        let nested = InvalidField::at(path, "is missing").within("verify.0");
        assert_eq!(nested.path.names(), ["verify", "0", "arguments", "a.b/c"]);
        assert_eq!(InvalidField::at("name", "is required").to_string(), "name is required");
        assert!(FieldPath::from("").names().is_empty());
    }
}
