//! Errors in a catalog file: one sentence with a position.

use std::ops::Range;

/// In characters.
const MAX_MESSAGE_LEN: usize = 400;

/// The first error in a catalog file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct CatalogError {
    /// Name of the file, as passed by the caller.
    pub file: String,
    /// Line, starting at 1.
    pub line: usize,
    /// Column in characters, starting at 1.
    pub column: usize,
    /// What is wrong and, if known, how to fix it.
    pub message: String,
}

pub(crate) type Result<T, E = SourceError> = std::result::Result<T, E>;

/// An error at a byte range of the source.
#[derive(Debug)]
pub(crate) struct SourceError {
    pub(crate) span: Range<usize>,
    pub(crate) message: String,
}

impl SourceError {
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }

    pub(crate) fn locate(self, file: &str, source: &str) -> CatalogError {
        let before = source.get(..source.floor_char_boundary(self.span.start)).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        CatalogError {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            message: shorten(&self.message),
        }
    }
}

/// Rejects the text at `span`.
pub(crate) fn reject<T>(span: Range<usize>, message: impl Into<String>) -> Result<T> {
    Err(SourceError::new(span, message))
}

/// Joins the lines of a message and truncates it: the TOML parser writes several lines, and messages may quote long values.
fn shorten(message: &str) -> String {
    let line = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    match line.char_indices().nth(MAX_MESSAGE_LEN) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_columns_in_characters() {
        let source = "a = 1\nü = \"x\"\n";
        let at = source.find('x').expect("present");
        let error = SourceError::new(at..at + 1, "two\n  lines").locate("f.toml", source);
        assert_eq!((error.line, error.column), (2, 6));
        assert_eq!(error.to_string(), "f.toml:2:6: two; lines");
    }
}
