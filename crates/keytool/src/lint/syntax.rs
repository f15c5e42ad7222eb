//! What all front-ends share: a source file with its names, and the interface of a language.

use std::collections::HashMap;
use std::ops::Range;

use tree_sitter::{Language, Node};

use super::model::{Arg, Call, TextExpr};

/// Expressions are read to this depth; what lies deeper is an unknown part.
pub(super) const MAX_DEPTH: usize = 80;
/// Operands of a sum that are read.
const MAX_OPERANDS: usize = 100;

/// A source file and the names that it declares.
pub(super) struct Context<'s> {
    pub(super) source: &'s str,
    /// Whether the file uses Redis, apart from its comments.
    pub(super) mentions_redis: bool,
    names: HashMap<&'s str, Vec<Binding<'s>>>,
}

/// A name with its value.
#[derive(Debug)]
pub(super) struct Binding<'s> {
    pub(super) value: Arg,
    /// The value or the type, as written.
    pub(super) origin: &'s str,
    pub(super) start: usize,
    scope: Range<usize>,
}

/// A declaration in the source.
pub(super) struct Declaration<'s, 't> {
    pub(super) name: &'s str,
    pub(super) value: Option<Node<'t>>,
    /// What tells the kind of the value: its expression or its type.
    pub(super) origin: Option<Node<'t>>,
}

/// A call of a method or function.
pub(super) struct MethodCall<'s, 't> {
    pub(super) receiver: Option<Node<'t>>,
    pub(super) name: &'s str,
    pub(super) args: Vec<Arg>,
}

/// A language: how to read its expressions.
pub(super) trait FrontEnd: Sync {
    fn grammar(&self) -> Language;

    /// Whether names that are declared in such a node are unknown outside of it.
    fn is_scope(&self, kind: &str) -> bool;

    /// Whether the node is an expression that makes a text, such as a literal or a concatenation.
    fn is_text(&self, kind: &str) -> bool;

    /// Whether such a node is a word without quotes, which is often something else than a text.
    fn is_bare(&self, _kind: &str) -> bool {
        false
    }

    /// The names that a node declares.
    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>>;

    /// The name that a node gives to what is within, such as that of a function or a field.
    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str>;

    /// The text that an expression makes.
    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr>;

    /// An argument that is no text.
    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg;

    /// An expression as argument.
    fn arg(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        if depth > MAX_DEPTH {
            return cx.other(node);
        }
        self.text(cx, node, depth).map_or_else(|| self.value(cx, node, depth), Arg::Text)
    }

    /// The call that a node is.
    fn method_call<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<MethodCall<'s, 't>>;

    /// Receiver and name of the call that a node is, without its arguments.
    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)>;

    /// The object of `object.field`, with the field.
    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)>;

    /// The expression within parentheses, a borrow, an `await` and the like.
    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>>;

    /// Calls of Redis commands that are no method calls.
    fn commands(&self, _cx: &Context<'_>, _node: Node<'_>, _scope: &Range<usize>) -> Vec<Call> {
        Vec::new()
    }

    /// Whether a node is test code.
    fn is_test(&self, _cx: &Context<'_>, _node: Node<'_>) -> bool {
        false
    }
}

impl<'s> Context<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        Self { source, mentions_redis: mentions_redis(source), names: HashMap::new() }
    }

    pub(super) fn text_of(&self, node: Node<'_>) -> &'s str {
        self.source.get(node.byte_range()).unwrap_or_default()
    }

    pub(super) fn text_of_field(&self, node: Node<'_>, field: &str) -> Option<&'s str> {
        Some(self.text_of(node.child_by_field_name(field)?))
    }

    pub(super) fn bind(&mut self, name: &'s str, binding: Binding<'s>) {
        self.names.entry(name).or_default().push(binding);
    }

    /// The last declaration of a name before a place in the source, or the first one after it.
    pub(super) fn resolve(&self, name: &str, at: usize) -> Option<&Binding<'s>> {
        let visible = self.names.get(name)?.iter().filter(|binding| binding.scope.contains(&at));
        let before = visible.clone().filter(|binding| binding.start < at).max_by_key(|binding| binding.start);
        before.or_else(|| visible.min_by_key(|binding| binding.start))
    }

    /// The text of a variable or constant.
    pub(super) fn resolve_text(&self, name: &str, at: usize) -> Option<&TextExpr> {
        self.resolve(name, at)?.value.as_text()
    }

    /// A text that begins at a node.
    pub(super) fn start(&self, node: Node<'_>) -> TextExpr {
        TextExpr::new(node.start_byte(), node.start_position().row + 1)
    }

    /// An unknown text.
    pub(super) fn hole(&self, node: Node<'_>) -> TextExpr {
        let mut text = self.start(node);
        text.push_hole(self.text_of(node));
        text
    }

    pub(super) fn other(&self, node: Node<'_>) -> Arg {
        Arg::Other(self.text_of(node).chars().take(60).collect())
    }
}

impl<'s> Binding<'s> {
    pub(super) fn new(
        cx: &Context<'s>,
        declaration: &Declaration<'s, '_>,
        scope: Range<usize>,
        value: Arg,
    ) -> Self {
        let origin = declaration.origin.map_or("", |node| cx.text_of(node));
        let end = origin.char_indices().nth(300).map_or(origin.len(), |(end, _)| end);
        let start = declaration.origin.map_or(scope.start, |node| node.start_byte());
        Self { value, origin: origin.get(..end).unwrap_or_default(), start, scope }
    }
}

/// The named children of a node.
pub(super) fn children<'t>(node: Node<'t>) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).filter(|child| !child.is_extra()).collect()
}

/// Adds the value of an expression to a text: its text, or an unknown part.
pub(super) fn append(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    text: &mut TextExpr,
    node: Node<'_>,
    depth: usize,
) {
    match front_end.text(cx, node, depth + 1) {
        Some(part) => text.append(&part),
        None => text.push_hole(cx.text_of(node)),
    }
}

/// The text of an element of a list or an argument: unknown if it is none.
pub(super) fn text_or_hole(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    node: Node<'_>,
    depth: usize,
) -> TextExpr {
    front_end.text(cx, node, depth + 1).unwrap_or_else(|| cx.hole(node))
}

/// The text of `a + b + c`, if one of the operands is a text. Long sums are nested deeply to the left.
pub(super) fn sum(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    node: Node<'_>,
    operator: &str,
    depth: usize,
) -> Option<TextExpr> {
    let (kind, mut operands, mut rest) = (node.kind(), Vec::new(), node);
    while rest.kind() == kind && operands.len() < MAX_OPERANDS {
        let (left, right) = (rest.child_by_field_name("left")?, rest.child_by_field_name("right")?);
        let between = cx.source.get(left.end_byte()..right.start_byte())?;
        if between.trim() != operator {
            break;
        }
        operands.push(right);
        rest = left;
    }
    if operands.is_empty() {
        return None;
    }
    // What is left of a very long sum is unknown.
    let first = (operands.len() < MAX_OPERANDS).then(|| front_end.text(cx, rest, depth + 1)).flatten();
    let later = operands.into_iter().rev().map(|operand| (operand, front_end.text(cx, operand, depth + 1)));
    let texts: Vec<_> = std::iter::once((rest, first)).chain(later).collect();
    texts.iter().any(|(_, text)| text.is_some()).then(|| {
        let mut sum = cx.start(node);
        for (operand, text) in texts {
            match text {
                Some(text) => sum.append(&text),
                None => sum.push_hole(cx.text_of(operand)),
            }
        }
        sum
    })
}

/// The parts of a list, joined by a separator.
pub(super) fn join(place: TextExpr, separator: &str, parts: &[TextExpr]) -> TextExpr {
    let mut text = place;
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            text.push_literal(separator);
        }
        text.append(part);
    }
    text
}

/// Fills the verbs of `printf` with texts: `%s` and the like, `%%` for a percent sign.
pub(super) fn printf(place: TextExpr, format: &TextExpr, args: &[TextExpr]) -> TextExpr {
    use super::model::Piece;

    let (mut text, mut args) = (place, args.iter());
    for piece in &format.pieces {
        let literal = match piece {
            Piece::Literal(literal) => literal,
            Piece::Hole(source) => {
                text.push_hole(source);
                continue;
            }
        };
        let mut parts = literal.split('%');
        text.push_literal(parts.next().unwrap_or_default());
        let mut is_escaped = false;
        for part in parts {
            if std::mem::take(&mut is_escaped) {
                text.push_literal(part);
                continue;
            }
            if part.is_empty() {
                text.push_literal("%");
                is_escaped = true;
                continue;
            }
            // Python names the argument in parentheses.
            let (name, rest) = match part.strip_prefix('(').and_then(|named| named.split_once(')')) {
                Some((name, rest)) => (name, rest),
                None => ("", part),
            };
            let verb = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |at| at + 1);
            match args.next().filter(|_| name.is_empty()) {
                Some(value) => text.append(value),
                None => text.push_hole(name),
            }
            text.push_literal(rest.get(verb..).unwrap_or_default());
        }
    }
    text
}

/// Fills the braces of Rust's `format!` and Python's `str.format`. `value` returns the text of a placeholder, by its content
/// and its number among those without a name.
pub(super) fn braces(
    place: TextExpr,
    format: &TextExpr,
    value: impl Fn(&str, usize) -> Option<TextExpr>,
) -> TextExpr {
    use super::model::Piece;

    let (mut text, mut positional) = (place, 0);
    for piece in &format.pieces {
        let mut rest = match piece {
            Piece::Literal(literal) => literal.as_str(),
            Piece::Hole(source) => {
                text.push_hole(source);
                continue;
            }
        };
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            text.push_literal(before);
            if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
                text.push_literal(from.get(..1).unwrap_or_default());
                rest = after;
                continue;
            }
            let Some((content, after)) = from.strip_prefix('{').and_then(|from| from.split_once('}')) else {
                text.push_literal(from.get(..1).unwrap_or_default());
                rest = from.get(1..).unwrap_or_default();
                continue;
            };
            let name = content.split([':', '!']).next().unwrap_or_default().trim();
            match value(name, positional) {
                Some(value) => text.append(&value),
                None => text.push_hole(name),
            }
            if name.is_empty() {
                positional += 1;
            }
            rest = after;
        }
        text.push_literal(rest);
    }
    text
}

/// Whether code of the file, not only a comment, names Redis or a server that speaks like it.
fn mentions_redis(source: &str) -> bool {
    let is_comment = |line: &str| ["//", "#", "--", "*", "/*"].iter().any(|start| line.starts_with(start));
    let code = source.lines().map(str::trim_start).filter(|line| !is_comment(line) || line.starts_with("#!"));
    code.map(str::to_ascii_lowercase).any(|line| names_redis(&line))
}

/// Whether a text in lower case names Redis, or a common abbreviation of a client.
pub(super) fn names_redis(text: &str) -> bool {
    ["redis", "valkey", "rdb", "redigo", "rueidis"].iter().any(|name| text.contains(name))
}

/// The character that an escape sequence such as `\n` or `\u{e9}` stands for; nothing for a continued line.
pub(super) fn unescape(sequence: &str) -> String {
    let body = sequence.strip_prefix('\\').unwrap_or(sequence);
    let hexadecimal = |digits: &str| {
        let digits = digits.trim_matches(['{', '}']);
        u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).map(String::from).unwrap_or_default()
    };
    match body.chars().next() {
        Some('n') => "\n".to_owned(),
        Some('r') => "\r".to_owned(),
        Some('t') => "\t".to_owned(),
        Some('x' | 'u' | 'U') if body.len() > 1 => hexadecimal(body.get(1..).unwrap_or_default()),
        Some('\n' | '\r') | None => String::new(),
        Some(_) => body.to_owned(),
    }
}

/// A literal from its parts: content and escape sequences. Grammars leave out white space at the start of the content.
pub(super) fn literal(cx: &Context<'_>, node: Node<'_>) -> TextExpr {
    let mut text = cx.start(node);
    let mut cursor = node.walk();
    let quote = cx.text_of(node).find(['"', '\'', '`']);
    let mut at = quote.map(|quote| node.start_byte() + quote + 1);
    for child in node.children(&mut cursor) {
        let kind = child.kind();
        if kind == "escape_sequence" {
            text.push_literal(&unescape(cx.text_of(child)));
        } else if kind.contains("content") || kind.contains("fragment") {
            let gap = at.and_then(|at| cx.source.get(at..child.start_byte())).unwrap_or_default();
            text.push_literal(gap);
            text.push_literal(cx.text_of(child));
        }
        at = at.max(Some(child.end_byte()));
    }
    text
}

/// A text with the escape sequences of most languages.
pub(super) fn unescape_all(text: &str) -> String {
    let mut result = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, characters.clone().next()) {
            ('\\', Some(next)) => {
                characters.next();
                result.push_str(&unescape(&format!("\\{next}")));
            }
            _ => result.push(character),
        }
    }
    result
}
