//! Whether a text with unknown parts can be a key of a pattern: some text matches both.

use std::collections::HashSet;

/// A byte, or a placeholder for at least one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Byte(u8),
    /// Text within one segment.
    Segment,
    /// Any text, across segments.
    Any,
}

impl Token {
    fn accepts(self, byte: u8, separator: u8) -> bool {
        match self {
            Self::Byte(own) => own == byte,
            Self::Segment => byte != separator && !matches!(byte, b':' | b'{' | b'}'),
            Self::Any => true,
        }
    }

    /// Whether one byte can stand for both.
    fn meets(self, other: Self, separator: u8) -> bool {
        match (self, other) {
            (Self::Byte(byte), other) | (other, Self::Byte(byte)) => other.accepts(byte, separator),
            _ => true,
        }
    }

    fn repeats(self) -> bool {
        !matches!(self, Self::Byte(_))
    }
}

pub(super) fn tokens(text: &str) -> impl Iterator<Item = Token> + '_ {
    text.bytes().map(Token::Byte)
}

/// Whether some text matches both.
pub(super) fn overlaps(one: &[Token], other: &[Token], separator: u8) -> bool {
    let mut pending = vec![(0, 0)];
    let mut seen = HashSet::new();
    while let Some((left, right)) = pending.pop() {
        let (a, b) = match (one.get(left), other.get(right)) {
            (None, None) => return true,
            (Some(a), Some(b)) => (*a, *b),
            _ => continue,
        };
        if !a.meets(b, separator) || !seen.insert((left, right)) {
            continue;
        }
        pending.push((left + 1, right + 1));
        if a.repeats() {
            pending.push((left, right + 1));
        }
        if b.repeats() {
            pending.push((left + 1, right));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Vec<Token> {
        let token = |byte| match byte {
            b'_' => Token::Segment,
            b'*' => Token::Any,
            other => Token::Byte(other),
        };
        text.bytes().map(token).collect()
    }

    #[test]
    fn placeholders_overlap_within_their_segments() {
        let check = |one: &str, other: &str| overlaps(&parse(one), &parse(other), b':');
        for (one, other) in [
            ("a:b", "a:b"),
            ("a:_:c", "a:_:c"),
            ("a:x_:c", "a:_:c"),
            ("a:_:_", "a:b:_"),
            ("a:*", "a:b:_"),
            ("a:{*}:c", "a:{t:_}:c"),
            ("_:_", "a:b"),
        ] {
            assert!(check(one, other) && check(other, one), "{one} {other}");
        }
        for (one, other) in
            [("a:b", "a:c"), ("a:_:c", "a:_:d"), ("a:_", "a:b:c"), ("a:_", "a:"), ("a:_:c", "a:{t:_}:c")]
        {
            assert!(!check(one, other) && !check(other, one), "{one} {other}");
        }
    }
}
