//! Key patterns: literal text and identifiers in braces, in the plain and the cluster layout.
//!
//! In a cluster pattern, a brace that does not enclose exactly the name of an identifier opens the hash tag:
//! `ade:{task:{task_id}}:state` builds `ade:{task:123}:state`.

use std::fmt;

use crate::key::Layout;
use crate::slot::hash_tag;

/// A parsed pattern. Identifiers are indexes into [`crate::Catalog::ids`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
    separator: char,
}

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Literal text, including the braces of a hash tag.
    Text(String),
    /// An identifier, by the index of its kind.
    Id(usize),
}

/// An error in a pattern, with its byte offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PatternError {
    pub(crate) offset: usize,
    pub(crate) message: String,
}

fn fault<T>(offset: usize, message: impl Into<String>) -> Result<T, PatternError> {
    Err(PatternError { offset, message: message.into() })
}

impl Pattern {
    /// The text of the pattern in the catalog.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The parts in order; two texts are never adjacent.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The separator of segments.
    #[must_use]
    pub fn separator(&self) -> char {
        self.separator
    }

    /// The kinds of identifiers, in order.
    pub fn ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Id(id) => Some(*id),
            Part::Text(_) => None,
        })
    }

    /// Builds a key from encoded identifiers.
    #[must_use]
    pub fn fill<'a>(&self, mut written: impl FnMut(usize) -> &'a str) -> String {
        let texts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text,
            Part::Id(id) => written(*id),
        });
        texts.collect()
    }

    /// The hash tag, with `{}` in place of identifiers, and the kinds of these identifiers.
    #[must_use]
    pub fn tag(&self) -> Option<(String, Vec<usize>)> {
        // A private-use character is a safe placeholder: encoded identifiers are ASCII.
        let shape = self.fill(|_| "\u{e000}");
        let tag = std::str::from_utf8(hash_tag(shape.as_bytes())?).ok()?;
        let before = shape.find('{')?;
        let skipped = shape.get(..before)?.matches('\u{e000}').count();
        let count = tag.matches('\u{e000}').count();
        Some((tag.replace('\u{e000}', "{}"), self.ids().skip(skipped).take(count).collect()))
    }

    pub(crate) fn parse(
        text: &str,
        separator: char,
        layout: Layout,
        resolve_id: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, PatternError> {
        let mut parts: Vec<Part> = Vec::new();
        let mut tag_opened = false;
        let mut tag_open_at = None;
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            let offset = text.len() - rest.len();
            if let Some(name) = identifier_name(rest) {
                let id = resolve_id(name).or_else(|message| fault(offset, message))?;
                parts.push(Part::Id(id));
                rest = rest.get(name.len() + 2..).unwrap_or_default();
                continue;
            }
            match character {
                '{' if layout == Layout::Plain => {
                    return fault(offset, "a brace must enclose the name of an identifier, as in {task_id}");
                }
                '{' if tag_opened => {
                    return fault(offset, "only one hash tag is allowed: the cluster ignores a second one");
                }
                '{' => {
                    tag_opened = true;
                    tag_open_at = Some(offset);
                }
                '}' if tag_open_at.is_none() => {
                    return fault(offset, "a closing brace without an opening one");
                }
                '}' => tag_open_at = None,
                '%' | '*' | '?' | '[' | ']' | '\\' | '"' | '\'' => {
                    return fault(offset, format!("{character:?} is not allowed in a pattern"));
                }
                other if !other.is_ascii_graphic() => {
                    return fault(
                        offset,
                        format!("{other:?} is not allowed in a pattern: use printable ASCII"),
                    );
                }
                _ => {}
            }
            match parts.last_mut() {
                Some(Part::Text(literal)) => literal.push(character),
                _ => parts.push(Part::Text(character.to_string())),
            }
            rest = rest.get(character.len_utf8()..).unwrap_or_default();
        }
        if let Some(offset) = tag_open_at {
            return fault(offset, "the hash tag opened here is never closed");
        }
        let pattern = Self { text: text.to_owned(), parts, separator };
        if text.is_empty() || pattern.fill(|_| "x").split(separator).any(str::is_empty) {
            return fault(0, "a segment is empty: remove leading, trailing and repeated separators");
        }
        if tag_opened && pattern.tag().is_none() {
            return fault(0, "the hash tag is empty");
        }
        if pattern.segments().iter().any(|segment| segment.ids > 1) {
            let advice = format!("put {separator:?} between them");
            return fault(0, format!("two identifiers in one segment are ambiguous: {advice}"));
        }
        Ok(pattern)
    }

    /// The same pattern with other parts.
    pub(crate) fn with_parts(&self, parts: Vec<Part>) -> Self {
        Self { text: self.text.clone(), parts, separator: self.separator }
    }

    /// The kinds of identifiers before a segment, which counts from 1.
    pub(crate) fn leading_ids(&self, segment: usize) -> Vec<usize> {
        self.segments().iter().take(segment - 1).filter_map(|segment| segment.id).collect()
    }

    /// The segments, each with the literal text before and after its identifier.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let (mut segments, mut last) = (Vec::new(), Segment::default());
        for part in &self.parts {
            match part {
                Part::Id(id) => {
                    last.id = Some(*id);
                    last.ids += 1;
                }
                Part::Text(text) => {
                    for (position, piece) in text.split(self.separator).enumerate() {
                        if position > 0 {
                            segments.push(std::mem::take(&mut last));
                        }
                        let side = if last.id.is_some() { &mut last.suffix } else { &mut last.prefix };
                        side.push_str(piece);
                    }
                }
            }
        }
        segments.push(last);
        segments
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One segment: `prefix{id}suffix`, or `prefix` alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) prefix: String,
    pub(crate) id: Option<usize>,
    pub(crate) suffix: String,
    ids: usize,
}

/// Parses the name in `{name}…`.
fn identifier_name(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix('{')?.split_once('}')?;
    is_identifier_name(name).then_some(name)
}

/// Letters, digits and underscores, beginning with a letter.
pub(crate) fn is_identifier_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, layout: Layout) -> Result<Pattern, PatternError> {
        Pattern::parse(text, ':', layout, |name| match name {
            "id" => Ok(0),
            "other" => Ok(1),
            _ => Err(format!("unknown {name}")),
        })
    }

    #[test]
    fn braces_around_more_than_a_name_are_a_hash_tag() {
        let pattern = parse("ade:{task:{id}}:state", Layout::Cluster).expect("valid");
        assert_eq!(
            pattern.parts(),
            [Part::Text("ade:{task:".into()), Part::Id(0), Part::Text("}:state".into())]
        );
        assert_eq!(pattern.tag(), Some(("task:{}".into(), vec![0])));
        assert_eq!(pattern.fill(|_| "7"), "ade:{task:7}:state");
        let after = parse("x:{other}:{t:{id}}", Layout::Cluster).expect("valid");
        assert_eq!(after.tag(), Some(("t:{}".into(), vec![0])));
        assert_eq!(parse("x:{{id}}", Layout::Cluster).expect("valid").tag(), Some(("{}".into(), vec![0])));
        assert_eq!(parse("x:{id}", Layout::Plain).expect("valid").tag(), None);
    }

    #[test]
    fn errors_point_at_the_character() {
        let fault = |text, layout| parse(text, layout).expect_err("rejected");
        assert_eq!(fault("a:{nope}", Layout::Plain).offset, 2);
        assert_eq!(fault("a:{task:{id}}", Layout::Plain).offset, 2);
        assert_eq!(fault("a:{t:{id}}:{u:x}", Layout::Cluster).offset, 11);
        assert_eq!(fault("a:{t:{id}", Layout::Cluster).offset, 2);
        assert_eq!(fault("a:b}", Layout::Cluster).offset, 3);
        assert_eq!(fault("a:b c", Layout::Plain).offset, 3);
        for text in ["", ":a", "a:", "a::b", "a:{id}{other}", "a:{id}-{other}"] {
            assert!(parse(text, Layout::Plain).is_err(), "{text:?}");
        }
    }
}
