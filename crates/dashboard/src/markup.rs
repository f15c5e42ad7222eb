//! Markup that is not escaped again. Only this crate can make it: from constants, numbers and text that was escaped.

use std::fmt::{self, Write};

use askama::filters::HtmlSafe;

/// Markup for a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Markup(String);

impl HtmlSafe for Markup {}

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Markup {
    /// Markup that a constant begins.
    pub(crate) fn new(constant: &'static str) -> Self {
        Self(constant.to_owned())
    }

    pub(crate) fn raw(&mut self, constant: &'static str) -> &mut Self {
        self.0.push_str(constant);
        self
    }

    /// Text, escaped for element content and quoted attributes.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
        self
    }

    /// A number, or something else that displays itself: escaped like text.
    pub(crate) fn value(&mut self, value: impl fmt::Display) -> &mut Self {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
        self.text(&text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_never_becomes_markup(text in ".*") {
            let escaped = Markup::default().text(&text).to_string();
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
        }
    }
}
