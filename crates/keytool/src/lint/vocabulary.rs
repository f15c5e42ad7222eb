//! What the catalogs say about a text of the source: whether it can be a key, of which entry, and in which slot.

use std::collections::BTreeSet;

use ade_catalog::find::nearest;
use ade_catalog::model::{Catalog, Entry, EntryKind, IdForm};
use ade_catalog::pattern::{Part, Pattern};

use super::model::{MAX_KEY_BYTES, Mention, Piece, TextExpr};
use super::overlap::{Token, overlaps, tokens};

/// Closed sets of a pattern are spelled out up to this many combinations; beyond, any text is accepted.
const MAX_VARIANTS: usize = 256;

/// Characters that keys in source code do not have, but URLs, expressions, markup and messages do.
const NOT_IN_KEYS: &[char] =
    &['"', '\'', '`', '\\', '<', '>', '(', ')', '=', ';', ',', '&', '^', '!', '|', '#'];

/// The catalogs, prepared for texts with unknown parts.
pub(super) struct Vocabulary<'c> {
    catalogs: &'c [Catalog],
    spellings: Vec<Spelling<'c>>,
    /// Beginnings that only keys have.
    prefixes: BTreeSet<String>,
    /// Beginnings that are common words too: they count only where a name says that the text is a key.
    common_prefixes: BTreeSet<String>,
    /// Keys without identifiers and with several segments.
    fixed: BTreeSet<String>,
}

struct Spelling<'c> {
    entry: &'c Entry,
    pattern: &'c Pattern,
    is_former: bool,
    separator: u8,
    tokens: Vec<Token>,
}

/// What a text is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verdict<'c> {
    /// A key of this entry.
    Key(&'c Entry),
    /// A key of this entry in a former spelling.
    FormerKey(&'c Entry),
    /// The beginning of keys, or a pattern that matches some.
    Prefix,
    /// No entry has such keys.
    Unknown,
}

impl<'c> Vocabulary<'c> {
    pub(super) fn new(catalogs: &'c [Catalog]) -> Self {
        let mut vocabulary = Self {
            catalogs,
            spellings: Vec::new(),
            prefixes: BTreeSet::new(),
            common_prefixes: BTreeSet::new(),
            fixed: BTreeSet::new(),
        };
        for catalog in catalogs {
            vocabulary.add_prefixes(catalog);
            for entry in &catalog.entries {
                let current = [&entry.plain, &entry.cluster].into_iter().map(|pattern| (pattern, false));
                for (pattern, is_former) in current.chain(entry.formerly.iter().map(|former| (former, true)))
                {
                    let separator = u8::try_from(pattern.separator()).unwrap_or(b':');
                    let variants = variants(catalog, pattern);
                    vocabulary.spellings.extend(variants.into_iter().map(|tokens| Spelling {
                        entry,
                        pattern,
                        is_former,
                        separator,
                        tokens,
                    }));
                }
            }
        }
        vocabulary
    }

    /// A first segment that all keys of a catalog share is a namespace of its own. Otherwise it may be a common word, and
    /// only two segments together are distinctive.
    fn add_prefixes(&mut self, catalog: &Catalog) {
        let keys = || catalog.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Key(_)));
        let first_segments: BTreeSet<&str> = keys().map(|entry| first_segment(&entry.plain)).collect();
        let namespace = first_segments.first().filter(|_| first_segments.len() == 1).copied();
        for entry in &catalog.entries {
            for pattern in [&entry.plain, &entry.cluster] {
                let first = first_segment(pattern);
                let prefix = format!("{first}{}", pattern.separator());
                if first.is_empty() {
                    continue;
                }
                if Some(first) == namespace {
                    self.prefixes.insert(prefix);
                    continue;
                }
                self.common_prefixes.insert(prefix);
                let Some(Part::Text(head)) = pattern.parts().first() else { continue };
                let is_fixed = pattern.parts().len() == 1;
                match head.rsplit_once(pattern.separator()) {
                    Some((start, _)) if start.contains(pattern.separator()) => {
                        self.prefixes.insert(format!("{start}{}", pattern.separator()));
                    }
                    Some(_) if is_fixed => {
                        self.fixed.insert(head.clone());
                    }
                    _ => {}
                }
            }
        }
    }

    /// The names of the catalogs, for messages.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.catalogs.iter().map(|catalog| catalog.name.as_str()).collect();
        names.join(", ")
    }

    /// Words of which one occurs in every file with keys, apart from words about Redis itself.
    pub(super) fn beginnings(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().chain(&self.common_prefixes).chain(&self.fixed).map(String::as_str)
    }

    /// Whether a text outside calls of Redis is one that the catalogs govern.
    pub(super) fn governs(&self, mention: &Mention) -> bool {
        let Mention { text, is_named_key, is_bare } = mention;
        // A word such as `name:1.2` is an image or a host with a path.
        if *is_bare && text.split(|character| character == ':').len() < 3 {
            return false;
        }
        let head = text.head();
        let begins =
            |prefix: &String| head.starts_with(prefix.as_str()) && text.literal_bytes() > prefix.len();
        let is_fixed = || text.as_literal().is_some_and(|text| self.fixed.contains(text));
        let is_governed = self.prefixes.iter().any(begins)
            || is_fixed()
            || (*is_named_key && self.common_prefixes.iter().any(begins));
        is_governed && looks_like_key(text)
    }

    /// What a text is that stands where a key is expected. `None` if nothing is known about its beginning.
    pub(super) fn classify(&self, text: &TextExpr) -> Option<Verdict<'c>> {
        if text.head().is_empty() || text.literal_bytes() > MAX_KEY_BYTES {
            return None;
        }
        let verdict = self.classify_tokens(&key_tokens(text));
        if !matches!(verdict, Verdict::Unknown) {
            return Some(verdict);
        }
        // A template that other code fills in, such as `task:{}` or `task:%s`.
        let template = with_placeholders(text);
        let verdict = template.map_or(verdict, |template| self.classify_tokens(&key_tokens(&template)));
        Some(verdict)
    }

    fn classify_tokens(&self, text: &[Token]) -> Verdict<'c> {
        let is_pattern = text.contains(&Token::Any);
        let find = |text: &[Token]| {
            let matches = |spelling: &&Spelling<'_>| overlaps(text, &spelling.tokens, spelling.separator);
            self.spellings.iter().filter(matches).min_by_key(|spelling| spelling.is_former)
        };
        match find(text) {
            Some(_) if is_pattern => return Verdict::Prefix,
            Some(spelling) if spelling.is_former => return Verdict::FormerKey(spelling.entry),
            Some(spelling) => return Verdict::Key(spelling.entry),
            None => {}
        }
        let open = match text.split_last() {
            Some((Token::Segment, rest)) => [rest, &[Token::Any]].concat(),
            Some((Token::Byte(b':' | b'.' | b'/' | b'|' | b'{'), _)) => [text, &[Token::Any]].concat(),
            _ => return Verdict::Unknown,
        };
        if find(&open).is_some() { Verdict::Prefix } else { Verdict::Unknown }
    }

    /// Where an unknown key may have been meant to go.
    pub(super) fn suggestion(&self, text: &TextExpr) -> Option<String> {
        let written: String = text
            .pieces
            .iter()
            .map(|piece| match piece {
                Piece::Literal(text) => text.as_str(),
                Piece::Hole(_) => "x",
            })
            .collect();
        let (name, pattern) = nearest(self.catalogs, &written)?;
        Some(format!("{name}: {pattern}"))
    }

    /// The part of a key that determines its slot in the cluster layout.
    pub(super) fn hashed_part(&self, text: &TextExpr) -> Option<TextExpr> {
        let head = text.pieces.first()?;
        if matches!(head, Piece::Hole(_)) || text.literal_bytes() > MAX_KEY_BYTES {
            return None;
        }
        if let Some(tag) = written_tag(text) {
            return Some(tag);
        }
        let wanted = key_tokens(text);
        if wanted.contains(&Token::Any) {
            return None;
        }
        let found = self
            .spellings
            .iter()
            .find(|spelling| overlaps(&wanted, &spelling.tokens, spelling.separator) && !spelling.is_former);
        let Some(spelling) = found else { return Some(text.clone()) };
        let ids = identifiers(text, spelling.pattern)?;
        let cluster = TextExpr::filled(&spelling.entry.cluster, &ids, text)?;
        written_tag(&cluster).or(Some(cluster))
    }
}

impl TextExpr {
    /// The key of a pattern with these identifiers.
    fn filled(pattern: &Pattern, ids: &[(usize, Self)], place: &Self) -> Option<Self> {
        let mut key = Self::new(place.position, place.line);
        for part in pattern.parts() {
            match part {
                Part::Text(text) => key.push_literal(text),
                Part::Id(number) => key.append(&ids.iter().find(|(id, _)| id == number)?.1),
            }
        }
        Some(key)
    }
}

fn first_segment(pattern: &Pattern) -> &str {
    match pattern.parts().first() {
        Some(Part::Text(text)) => text.split(pattern.separator()).next().unwrap_or_default(),
        _ => "",
    }
}

/// Tokens of a pattern, once for every member of its closed sets.
fn variants(catalog: &Catalog, pattern: &Pattern) -> Vec<Vec<Token>> {
    let mut variants: Vec<Vec<Token>> = vec![Vec::new()];
    for part in pattern.parts() {
        let number = match part {
            Part::Text(text) => {
                variants.iter_mut().for_each(|variant| variant.extend(tokens(text)));
                continue;
            }
            Part::Id(number) => *number,
        };
        match catalog.id(number).map(|kind| &kind.form) {
            Some(IdForm::OneOf(members)) if variants.len() * members.len() <= MAX_VARIANTS => {
                let with = |variant: &Vec<Token>, member: &str| {
                    variant.iter().copied().chain(tokens(member)).collect()
                };
                let longer = |variant: &Vec<Token>| -> Vec<Vec<Token>> {
                    members.iter().map(|member| with(variant, &member.value)).collect()
                };
                variants = variants.iter().flat_map(longer).collect();
            }
            _ => variants.iter_mut().for_each(|variant| variant.push(Token::Segment)),
        }
    }
    variants
}

/// The tokens of a text. Wildcards of `KEYS` and `SCAN` are placeholders, and so is an expression that is a whole hash tag.
fn key_tokens(text: &TextExpr) -> Vec<Token> {
    let mut found = Vec::new();
    for (number, piece) in text.pieces.iter().enumerate() {
        match piece {
            Piece::Literal(text) => found.extend(text.bytes().map(|byte| match byte {
                b'*' => Token::Any,
                b'?' => Token::Segment,
                other => Token::Byte(other),
            })),
            Piece::Hole(_) => {
                let before = number.checked_sub(1).and_then(|before| text.pieces.get(before));
                let opens = matches!(before, Some(Piece::Literal(text)) if text.ends_with('{'));
                let closes = matches!(text.pieces.get(number + 1), Some(Piece::Literal(text)) if text.starts_with('}'));
                found.push(if opens && closes { Token::Any } else { Token::Segment });
            }
        }
    }
    found.dedup_by(|next, last| last.is_any() && next.is_any());
    found
}

impl Token {
    fn is_any(self) -> bool {
        self == Self::Any
    }
}

/// The same text with `{name}`, `{}`, `%s` and the like as unknown parts; `None` if it has none of them.
fn with_placeholders(text: &TextExpr) -> Option<TextExpr> {
    let mut template = TextExpr::new(text.position, text.line);
    let mut has_placeholder = false;
    for piece in &text.pieces {
        let Piece::Literal(literal) = piece else {
            template.append(&TextExpr { pieces: vec![piece.clone()], ..TextExpr::default() });
            continue;
        };
        let mut rest = literal.as_str();
        while let Some(first) = rest.chars().next() {
            let length = placeholder_length(rest).unwrap_or(0);
            if length > 0 {
                template.push_hole(rest.get(..length).unwrap_or_default());
                has_placeholder = true;
            } else {
                template.push_literal(rest.get(..first.len_utf8()).unwrap_or_default());
            }
            rest = rest.get(length.max(first.len_utf8())..).unwrap_or_default();
        }
    }
    has_placeholder.then_some(template)
}

/// Bytes of the placeholder that a text begins with.
fn placeholder_length(text: &str) -> Option<usize> {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
    if let Some(rest) = text.strip_prefix("${").or_else(|| text.strip_prefix('{')) {
        let (name, _) = rest.split_once('}')?;
        return is_name(name).then_some(text.len() - rest.len() + name.len() + 1);
    }
    let verb = text.strip_prefix('%')?.chars().next()?;
    matches!(verb, 's' | 'd' | 'v' | 'q' | 'i' | 'u' | 'x').then_some(2)
}

fn looks_like_key(text: &TextExpr) -> bool {
    let is_key_text = |text: &str| {
        !text.contains("::")
            && !text.contains(":/")
            && !text.contains("//")
            && !text.contains(NOT_IN_KEYS)
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    text.literal_bytes() <= MAX_KEY_BYTES
        && text.pieces.iter().all(|piece| match piece {
            Piece::Literal(text) => is_key_text(text),
            Piece::Hole(_) => true,
        })
}

/// The hash tag that the text contains.
fn written_tag(text: &TextExpr) -> Option<TextExpr> {
    let after = text.split_once('{')?.1;
    let (tag, _) = after.split_once('}')?;
    (!tag.pieces.is_empty()).then_some(tag)
}

impl TextExpr {
    fn split_once(&self, at: char) -> Option<(Self, Self)> {
        let (mut before, mut after) = (Self::new(self.position, self.line), None);
        for piece in &self.pieces {
            let piece = Self { pieces: vec![piece.clone()], ..Self::new(self.position, self.line) };
            let literal = piece.as_literal().and_then(|text| text.split_once(at));
            match (&mut after, literal) {
                (Some(after), _) => Self::append(after, &piece),
                (None, Some((left, right))) => {
                    before.push_literal(left);
                    after = Some(Self::literal(right, self.position, self.line));
                }
                (None, None) => before.append(&piece),
            }
        }
        Some((before, after?))
    }
}

/// The identifiers in a key of a pattern, if both have the same segments.
fn identifiers(text: &TextExpr, pattern: &Pattern) -> Option<Vec<(usize, TextExpr)>> {
    // Private-use characters cannot occur in patterns. Each stands for an identifier.
    let ids: Vec<usize> = pattern.ids().collect();
    let shape = pattern.fill(|_| "\u{e000}");
    let is_separator =
        |character: char| character == pattern.separator() || matches!(character, ':' | '{' | '}');
    let (segments, shapes) = (text.split(is_separator), shape.split(is_separator).collect::<Vec<_>>());
    if segments.len() != shapes.len() {
        return None;
    }
    let with_id = segments.into_iter().zip(shapes).filter(|(_, shape)| shape.contains('\u{e000}'));
    let found = with_id.zip(ids).map(|((segment, shape), id)| {
        // An identifier that shares its segment with text is rare; what it is then does not matter for most tags.
        (
            id,
            if shape == "\u{e000}" {
                segment
            } else {
                TextExpr { pieces: segment.pieces, ..TextExpr::default() }
            },
        )
    });
    Some(found.collect())
}
