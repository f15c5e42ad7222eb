//! The last check of everything that is printed: only line ends and colours pass besides characters that are shown, whatever a
//! caller forgot to escape.

use std::borrow::Cow;
use std::io::{self, Write};

use ade_domain::text::{escape_hidden, is_shown};

/// Escapes everything but lines and colours.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c == '\n' || is_shown(c)) {
        return text.into();
    }
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        let passed = colour_len(rest).unwrap_or(first.len_utf8());
        let (head, tail) = rest.split_at(passed);
        if passed > first.len_utf8() || first == '\n' {
            shown.push_str(head);
        } else {
            shown.push_str(&escape_hidden(head));
        }
        rest = tail;
    }
    shown.into()
}

/// The length of the colour sequence at the start of a text, such as `ESC [ 1 ; 31 m`.
fn colour_len(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters.get(end..)?.starts_with('m').then_some(end + 3)
}

/// A writer that escapes the same way, for text that arrives in pieces.
#[derive(Debug)]
pub(crate) struct VisibleText<W> {
    out: W,
    /// The start of a character whose other bytes have not arrived yet.
    pending: Vec<u8>,
}

impl<W> VisibleText<W> {
    pub(crate) const fn new(out: W) -> Self {
        Self { out, pending: Vec::new() }
    }
}

impl<W: Write> Write for VisibleText<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        let complete = match str::from_utf8(&self.pending) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.pending.len(),
        };
        let text: Vec<u8> = self.pending.drain(..complete).collect();
        let text = String::from_utf8_lossy(&text);
        for (at, line) in text.split('\n').enumerate() {
            if at > 0 {
                self.out.write_all(b"\n")?;
            }
            self.out.write_all(escape_hidden(line).as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_only_lines_and_colours_pass() {
        for (text, shown) in [
            ("plain\ntext\n", "plain\ntext\n"),
            ("\u{1b}[1;31mred\u{1b}[0m\n", "\u{1b}[1;31mred\u{1b}[0m\n"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[", "\\u{1b}[2J\\u{1b}]0;title\\u{7}\\u{1b}["),
            ("a\u{202e}b\tc\r", "a\\u{202e}b\\tc\\r"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn writer_escapes_text_in_pieces() {
        let mut out = VisibleText::new(Vec::new());
        for byte in "ü\u{202e}\n\u{1b}[2J".bytes() {
            out.write_all(&[byte]).expect("written");
        }
        assert_eq!(String::from_utf8(out.out).expect("text"), "ü\\u{202e}\n\\u{1b}[2J");
    }
}
