//! What is wrong with a catalog file, and where: always one sentence, always with a place.

use std::ops::Range;

/// Longest message in characters.
const MAX_MESSAGE: usize = 400;

/// The first fault of a catalog file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct CatalogError {
    /// The file as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// One sentence: what is wrong and, where there is one, the way out.
    pub message: String,
}

/// A fault by byte range, before the file's name and its lines are known.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) span: Range<usize>,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }

    pub(crate) fn locate(self, file: &str, source: &str) -> CatalogError {
        let mut at = self.span.start.min(source.len());
        while !source.is_char_boundary(at) {
            at -= 1;
        }
        let before = source.get(..at).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        CatalogError {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            message: one_line(&self.message),
        }
    }
}

/// The TOML reader explains some faults in several lines, and a message may quote what the file says at any length; a
/// place and one sentence is what a terminal wants.
fn one_line(message: &str) -> String {
    let line = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_not_bytes() {
        let source = "a = 1\nü = \"x\"\n";
        let at = source.find('x').expect("present");
        let error = Fault::new(at..at + 1, "two\n  lines").locate("f.toml", source);
        assert_eq!((error.line, error.column), (2, 6));
        assert_eq!(error.to_string(), "f.toml:2:6: two; lines");
    }
}
