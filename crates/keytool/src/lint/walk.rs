//! Walks the syntax tree of a file, twice: for its names, then for texts, calls and comments. Never recursive: a source may
//! be nested deeper than a stack.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use tree_sitter::{Node, ParseOptions, Parser, Point, Tree};

use super::calls;
use super::model::{Arg, Comment, MAX_KEY_BYTES, Mention, Source};
use super::syntax::{Binding, Context, FrontEnd};

/// Steps that the parser may take for each byte of a file, and at least. A grammar can be slow on text that it does not fit.
const MAX_STEPS_PER_BYTE: usize = 8;
const MIN_STEPS: usize = 100_000;

/// Why a file was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unparsable {
    /// The parser gave up.
    TooComplex,
}

/// Part of a file that the grammar leaves as tokens: the arguments of a macro.
struct Island {
    range: tree_sitter::Range,
    scope: Range<usize>,
    is_named_key: bool,
}

struct Frame<'t> {
    node: Node<'t>,
    scope: Range<usize>,
    /// Whether the text around it contains it.
    is_part: bool,
    is_named_key: bool,
}

/// Reads a file.
pub(super) fn read(front_end: &dyn FrontEnd, source: &str) -> Result<Source, Unparsable> {
    let mut parser = Parser::new();
    if parser.set_language(&front_end.grammar()).is_err() {
        return Err(Unparsable::TooComplex);
    }
    let mut cx = Context::new(source);
    let mut found = Found::default();
    let tree = parse(&mut parser, source)?;
    let whole = 0..source.len() + 1;
    found.read(front_end, &mut cx, &tree, &whole, false);
    let mut is_in_macro = 0;
    while let Some(island) = found.islands.pop() {
        is_in_macro += 1;
        if is_in_macro > source.len() || parser.set_included_ranges(&[island.range]).is_err() {
            break;
        }
        let tree = parse(&mut parser, source)?;
        found.read(front_end, &mut cx, &tree, &island.scope, island.is_named_key);
    }
    let mut source = found.source;
    source.calls.sort_by_key(|call| call.position);
    Ok(source)
}

fn parse(parser: &mut Parser, source: &str) -> Result<Tree, Unparsable> {
    let (mut steps, limit) = (0, MIN_STEPS + source.len() * MAX_STEPS_PER_BYTE);
    let mut watch = |_: &_| {
        steps += 1;
        if steps > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut watch);
    let mut bytes = |start: usize, _: Point| source.as_bytes().get(start..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut bytes, None, Some(options));
    tree.ok_or(Unparsable::TooComplex)
}

#[derive(Default)]
struct Found {
    source: Source,
    islands: Vec<Island>,
    /// Where texts begin that are recorded, and macros that are read.
    seen: HashSet<usize>,
}

impl Found {
    fn read(
        &mut self,
        front_end: &dyn FrontEnd,
        cx: &mut Context<'_>,
        tree: &Tree,
        scope: &Range<usize>,
        is_named_key: bool,
    ) {
        let root = || Frame { node: tree.root_node(), scope: scope.clone(), is_part: false, is_named_key };
        let mut pending = vec![root()];
        while let Some(frame) = pending.pop() {
            for declaration in front_end.declarations(cx, frame.node) {
                let value =
                    declaration.value.map_or(Arg::Other(String::new()), |node| front_end.arg(cx, node, 0));
                let binding = Binding::new(cx, &declaration, frame.scope.clone(), value);
                cx.bind(declaration.name, binding);
            }
            push_children(front_end, frame, &mut pending);
        }
        let mut pending = vec![root()];
        while let Some(mut frame) = pending.pop() {
            if self.visit(front_end, cx, &mut frame) {
                push_children(front_end, frame, &mut pending);
            }
        }
    }

    /// Records what a node is. Returns whether its children are visited too.
    fn visit(&mut self, front_end: &dyn FrontEnd, cx: &Context<'_>, frame: &mut Frame<'_>) -> bool {
        let node = frame.node;
        let kind = node.kind();
        if kind.ends_with("comment") {
            self.comment(cx, node);
            return false;
        }
        if kind == "token_tree" {
            self.island(cx, frame);
            return false;
        }
        if front_end.is_test(cx, node) {
            self.source.tests.push(node.byte_range());
        }
        if let Some(label) = front_end.label(cx, node) {
            frame.is_named_key |= names_key(label);
        }
        let calls = self.source.calls.len();
        self.source.calls.extend(front_end.commands(cx, node, &frame.scope));
        if front_end.callee(cx, node).is_some_and(|(_, name)| calls::NOT_FOR_KEYS.contains(&name)) {
            frame.is_part = true;
            return true;
        }
        if let Some(call) = front_end.method_call(cx, node) {
            self.source.calls.extend(calls::redis_calls(front_end, cx, node, call));
        }
        let is_call = self.source.calls.len() > calls;
        if !front_end.is_text(kind) {
            frame.is_part &= !kind.contains("call") && !front_end.is_scope(kind);
            return true;
        }
        if !frame.is_part
            && let Some(text) = front_end.text(cx, node, 0)
        {
            frame.is_part = !is_call;
            let is_script = calls::embedded_language(&text).is_some();
            let is_short = text.literal_bytes() <= MAX_KEY_BYTES;
            if text.has_literal() && (is_short || is_script) && self.seen.insert(text.position) {
                let is_bare = front_end.is_bare(kind) && !frame.is_named_key;
                self.source.mentions.push(Mention { text, is_named_key: frame.is_named_key, is_bare });
            }
        }
        true
    }

    fn comment(&mut self, cx: &Context<'_>, node: Node<'_>) {
        let text = cx.text_of(node);
        if !text.contains("ade-lint") {
            return;
        }
        let before = cx.source.get(..node.start_byte()).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let is_alone = before.get(line_start..).unwrap_or_default().trim().is_empty();
        let first = node.start_position().row + 1;
        for (number, line) in text.lines().enumerate() {
            let text = line.trim_start_matches(['/', '*', '#', '-', '!', ' ', '\t']).trim_end().to_owned();
            self.source.comments.push(Comment {
                text,
                line: first + number,
                is_alone: is_alone || number > 0,
            });
        }
    }

    /// The arguments of a macro are parsed later, as an expression.
    fn island(&mut self, cx: &Context<'_>, frame: &Frame<'_>) {
        let node = frame.node;
        let has_text = cx.text_of(node).contains('"');
        if has_text && self.seen.insert(node.start_byte()) {
            self.islands.push(Island {
                range: node.range(),
                scope: frame.scope.clone(),
                is_named_key: frame.is_named_key,
            });
        }
    }
}

fn push_children<'t>(front_end: &dyn FrontEnd, frame: Frame<'t>, pending: &mut Vec<Frame<'t>>) {
    let Frame { node, scope, is_part, is_named_key } = frame;
    if node.child_count() == 0 {
        return;
    }
    let scope = if front_end.is_scope(node.kind()) { node.byte_range() } else { scope };
    let first = pending.len();
    let mut cursor = node.walk();
    for child in node.children(&mut cursor) {
        pending.push(Frame { node: child, scope: scope.clone(), is_part, is_named_key });
    }
    // In the order of the source.
    if let Some(added) = pending.get_mut(first..) {
        added.reverse();
    }
}

/// Whether a name has the word key or channel.
fn names_key(name: &str) -> bool {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        if !character.is_ascii_alphanumeric() || (character.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = character.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| character.is_ascii_alphanumeric()) {
            word.push(character.to_ascii_lowercase());
        }
    }
    words.iter().any(|word| matches!(word.as_str(), "key" | "keys" | "channel" | "channels"))
}

#[cfg(test)]
mod tests {
    use super::names_key;

    #[test]
    fn names_of_keys_have_the_word() {
        for name in ["key", "sessionKey", "SESSION_KEY", "lock_keys", "keyFor", "news_channel"] {
            assert!(names_key(name), "{name}");
        }
        for name in ["keyword", "monkey", "session", "whiskey", ""] {
            assert!(!names_key(name), "{name}");
        }
    }
}
