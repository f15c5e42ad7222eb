//! What the front-ends of all languages produce and the rules read: texts that may be keys, and calls of Redis commands.

use std::fmt;

/// A longer text is no key, and is not shown in messages.
pub(super) const MAX_KEY_BYTES: usize = 1000;

/// A piece of a text that the source builds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Piece {
    /// Text that the source contains.
    Literal(String),
    /// An expression whose value is only known at run time, as written in the source.
    Hole(String),
}

/// A text expression of the source: a literal, a template, a concatenation.
#[derive(Debug, Clone, Default)]
pub(super) struct TextExpr {
    /// Literals are never adjacent and never empty.
    pub(super) pieces: Vec<Piece>,
    /// First byte of the expression in the file.
    pub(super) position: usize,
    /// Line of the expression, from 1.
    pub(super) line: usize,
}

/// An argument of a call.
#[derive(Debug, Clone)]
pub(super) enum Arg {
    Text(TextExpr),
    Number(String),
    List(Vec<Self>),
    /// An object or dictionary.
    Map(Vec<(TextExpr, Self)>),
    /// An argument with a name.
    Named(String, Box<Self>),
    /// Anything else, as written in the source.
    Other(String),
}

/// A call of a Redis command, with its arguments in the order of the command.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Name in upper case.
    pub(super) command: String,
    pub(super) args: Vec<Arg>,
    pub(super) position: usize,
    pub(super) line: usize,
    /// Calls of one pipeline, transaction or script have the same group.
    pub(super) group: Option<usize>,
}

/// A text outside the key arguments of a recognised call, with its surroundings.
#[derive(Debug, Clone)]
pub(super) struct Mention {
    pub(super) text: TextExpr,
    /// Whether a name around it, such as that of the variable, says that it is a key.
    pub(super) is_named_key: bool,
    /// Whether it has no quotes.
    pub(super) is_bare: bool,
}

/// A comment, or one line of it.
#[derive(Debug, Clone)]
pub(super) struct Comment {
    pub(super) text: String,
    pub(super) line: usize,
    /// Whether nothing else is on the line, so that it belongs to the next one.
    pub(super) is_alone: bool,
}

/// Everything that the rules need to know about a source file.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) mentions: Vec<Mention>,
    pub(super) calls: Vec<Call>,
    pub(super) comments: Vec<Comment>,
    /// Byte ranges of test code.
    pub(super) tests: Vec<std::ops::Range<usize>>,
}

impl TextExpr {
    pub(super) fn new(position: usize, line: usize) -> Self {
        Self { pieces: Vec::new(), position, line }
    }

    pub(super) fn literal(text: &str, position: usize, line: usize) -> Self {
        let mut expr = Self::new(position, line);
        expr.push_literal(text);
        expr
    }

    pub(super) fn push_literal(&mut self, text: &str) {
        match self.pieces.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Literal(last)) => last.push_str(text),
            _ => self.pieces.push(Piece::Literal(text.to_owned())),
        }
    }

    pub(super) fn push_hole(&mut self, source: &str) {
        let words: Vec<&str> = source.split_whitespace().take(20).collect();
        self.pieces.push(Piece::Hole(words.join(" ").chars().take(60).collect()));
    }

    pub(super) fn append(&mut self, other: &Self) {
        for piece in &other.pieces {
            match piece {
                Piece::Literal(text) => self.push_literal(text),
                Piece::Hole(source) => self.push_hole(source),
            }
        }
    }

    /// The text, if no part of it is known only at run time.
    pub(super) fn as_literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The text with its unknown parts as shell variables.
    pub(super) fn as_source(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Literal(text) => text.clone(),
            Piece::Hole(source) => {
                let name: String = source.chars().filter(char::is_ascii_alphanumeric).collect();
                format!("${{{name}}}")
            }
        };
        self.pieces.iter().map(piece).collect()
    }

    /// The literal text at its beginning.
    pub(super) fn head(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Literal(text)) => text,
            _ => "",
        }
    }

    pub(super) fn has_literal(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Literal(_)))
    }

    pub(super) fn literal_bytes(&self) -> usize {
        let sizes = self.pieces.iter().map(|piece| match piece {
            Piece::Literal(text) => text.len(),
            Piece::Hole(_) => 1,
        });
        sizes.sum()
    }

    /// Splits at a character of the literal text.
    pub(super) fn split(&self, is_separator: impl Fn(char) -> bool) -> Vec<Self> {
        let mut parts = vec![Self::new(self.position, self.line)];
        for piece in &self.pieces {
            match piece {
                Piece::Hole(source) => {
                    if let Some(last) = parts.last_mut() {
                        last.push_hole(source);
                    }
                }
                Piece::Literal(text) => {
                    for (number, word) in text.split(&is_separator).enumerate() {
                        if number > 0 {
                            parts.push(Self::new(self.position, self.line));
                        }
                        if let Some(last) = parts.last_mut() {
                            last.push_literal(word);
                        }
                    }
                }
            }
        }
        parts
    }
}

/// The text with its expressions in braces, as messages show it.
impl fmt::Display for TextExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => f.write_str(text)?,
                Piece::Hole(source) => write!(f, "{{{}}}", source.trim_matches(['{', '}', '$']))?,
            }
        }
        Ok(())
    }
}

impl Arg {
    pub(super) fn as_text(&self) -> Option<&TextExpr> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A literal word, such as an option of a command.
    pub(super) fn as_word(&self) -> Option<&str> {
        match self {
            Self::Text(text) => text.as_literal(),
            Self::Number(text) => Some(text),
            _ => None,
        }
    }
}
