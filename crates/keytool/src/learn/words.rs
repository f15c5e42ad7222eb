//! Segments of keys: how a key is divided, and what a segment looks like.

/// Separators of segments, in the order in which they are tried.
const SEPARATORS: [char; 4] = [':', '/', '|', '.'];
/// Longer words are identifiers.
const MAX_WORD_BYTES: usize = 32;

/// A key divided into segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segments<'a> {
    pub(super) separator: char,
    /// Without the braces of a hash tag.
    pub(super) segments: Vec<&'a str>,
    /// The first and last segment within the hash tag.
    pub(super) tag: Option<(usize, usize)>,
}

/// Divides a key; `None` if no pattern can describe it.
pub(super) fn split(key: &str) -> Option<Segments<'_>> {
    let separator = SEPARATORS.into_iter().find(|separator| key.contains(*separator)).unwrap_or(':');
    let (mut segments, mut open, mut tag) = (Vec::new(), None, None);
    for (position, segment) in key.split(separator).enumerate() {
        let mut text = segment;
        if tag.is_none()
            && open.is_none()
            && let Some(rest) = text.strip_prefix('{')
        {
            open = Some(position);
            text = rest;
        }
        if let (Some(first), Some(rest)) = (open, text.strip_suffix('}')) {
            tag = Some((first, position));
            open = None;
            text = rest;
        }
        if text.is_empty() || text.contains(['{', '}']) {
            return None;
        }
        segments.push(text);
    }
    open.is_none().then_some(Segments { separator, segments, tag })
}

/// What an identifier looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    Word,
    Number,
    Uuid,
    Hex,
    Text,
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Word => "words",
            Self::Number => "numbers",
            Self::Uuid => "UUIDs",
            Self::Hex => "hexadecimal digits",
            Self::Text => "text",
        }
    }
}

/// The form of a segment. A word may be a literal of a pattern, anything else is an identifier.
pub(super) fn form(segment: &str) -> Form {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = segment.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_uuid = segment.len() == 36
        && segment.bytes().enumerate().all(|(position, byte)| {
            if [8, 13, 18, 23].contains(&position) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    let is_plain = segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    let has_number = digits >= 2 || (digits == 1 && segment.len() >= 8);
    match () {
        () if digits == segment.len() => Form::Number,
        () if is_uuid => Form::Uuid,
        () if is_hex && segment.len() >= 16 && digits > 0 => Form::Hex,
        () if !is_plain || segment.len() > MAX_WORD_BYTES || (has_number && !is_version(segment)) => {
            Form::Text
        }
        () => Form::Word,
    }
}

/// `v2`, `sha256`, `oauth2`: words in spite of their digits.
fn is_version(segment: &str) -> bool {
    let word = segment.trim_end_matches(|c: char| c.is_ascii_digit());
    ["v", "sha", "md", "oauth", "utf", "base", "ipv"].contains(&word.to_ascii_lowercase().as_str())
}

/// A word without the digits at its end, if it has some.
pub(super) fn stem(word: &str) -> Option<&str> {
    let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.len() < word.len() && !is_version(word)).then_some(stem)
}

/// A name in a catalog: lower case with underscores.
pub(super) fn name_of(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            name.push(character.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('_') {
            name.push('_');
        }
    }
    name.truncate(40);
    let name = name.trim_end_matches('_');
    if name.starts_with(|c: char| c.is_ascii_lowercase()) { name.to_owned() } else { format!("x{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_keys() {
        let parts = split("ade:{task:7}:state").expect("divided");
        assert_eq!((parts.segments, parts.tag), (vec!["ade", "task", "7", "state"], Some((1, 2))));
        let parts = split("news.x.a").expect("divided");
        assert_eq!((parts.separator, parts.tag), ('.', None));
        assert_eq!(split("{a}").expect("divided").tag, Some((0, 0)));
        for key in ["", ":a", "a::b", "a{b}c:d", "{a:b", "a}"] {
            assert_eq!(split(key), None, "{key}");
        }
    }

    #[test]
    fn recognises_identifiers() {
        for (segment, expected) in [
            ("state", Form::Word),
            ("oauth2", Form::Word),
            ("v12", Form::Word),
            ("42", Form::Number),
            ("550e8400-e29b-41d4-a716-446655440000", Form::Uuid),
            ("0123456789abcdef", Form::Hex),
            ("agent-123", Form::Text),
            ("a@b.c", Form::Text),
            ("a%20b", Form::Text),
        ] {
            assert_eq!(form(segment), expected, "{segment}");
        }
        assert_eq!((stem("s3"), stem("v2"), stem("x")), (Some("s"), None, None));
        assert_eq!(name_of("Shop-Cart.2"), "shop_cart_2");
    }
}
