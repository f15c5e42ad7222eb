//! Rust: literals, `format!` and its kin, concatenation, methods of clients, and `redis::cmd("GET").arg(…)`.

use std::ops::Range;

use tree_sitter::{Language, Node};

use crate::lint::calls;
use crate::lint::commands::is_command;
use crate::lint::model::{Arg, Call, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, braces, children, join, literal, sum, text_or_hole,
};

pub(super) struct Rust;

/// Macros with a format string.
const FORMATS: &[&str] = &[
    "format",
    "format_args",
    "write",
    "writeln",
    "print",
    "println",
    "eprint",
    "eprintln",
    "panic",
    "debug",
    "info",
    "warn",
    "error",
    "trace",
    "bail",
    "anyhow",
    "ensure",
    "formatcp",
];

/// Methods that keep the text.
const SAME_TEXT: &[&str] = &[
    "to_owned",
    "to_string",
    "into",
    "as_str",
    "clone",
    "as_bytes",
    "as_ref",
    "to_vec",
    "into_bytes",
    "borrow",
    "into_boxed_str",
];

impl FrontEnd for Rust {
    fn grammar(&self) -> Language {
        tree_sitter_rust::LANGUAGE.into()
    }

    fn is_scope(&self, kind: &str) -> bool {
        matches!(
            kind,
            "block" | "function_item" | "closure_expression" | "mod_item" | "impl_item" | "match_arm"
        )
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(
            kind,
            "string_literal"
                | "raw_string_literal"
                | "macro_invocation"
                | "binary_expression"
                | "call_expression"
        )
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        let name = match node.kind() {
            "let_declaration" | "parameter" => node.child_by_field_name("pattern").map(simple_pattern),
            "const_item" | "static_item" => node.child_by_field_name("name"),
            _ => None,
        };
        let Some(name) = name.filter(|name| name.kind() == "identifier") else { return Vec::new() };
        let value = node.child_by_field_name("value");
        let origin = value.or_else(|| node.child_by_field_name("type"));
        vec![Declaration { name: cx.text_of(name), value, origin }]
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "let_declaration" => cx.text_of_field(node, "pattern"),
            "const_item" | "static_item" | "function_item" | "mod_item" => cx.text_of_field(node, "name"),
            "field_initializer" => cx.text_of_field(node, "field"),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "string_literal" | "raw_string_literal" => Some(literal(cx, node)),
            "identifier" => cx.resolve_text(cx.text_of(node), node.start_byte()).cloned(),
            "scoped_identifier" => {
                let name = cx.text_of_field(node, "name")?;
                let is_constant =
                    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
                cx.resolve_text(name, node.start_byte()).filter(|_| is_constant).cloned()
            }
            "macro_invocation" => self.macro_text(cx, node, depth),
            "binary_expression" => sum(self, cx, node, "+", depth),
            "call_expression" => self.call_text(cx, node, depth),
            _ => self.text(cx, self.unwrap(node)?, depth + 1),
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        match node.kind() {
            "integer_literal" | "float_literal" => Arg::Number(cx.text_of(node).to_owned()),
            "array_expression" | "tuple_expression" => {
                Arg::List(children(node).into_iter().map(|item| self.arg(cx, item, depth + 1)).collect())
            }
            "identifier" => match cx.resolve(cx.text_of(node), node.start_byte()) {
                Some(binding) if matches!(binding.value, Arg::List(_)) => binding.value.clone(),
                _ => cx.other(node),
            },
            _ => self.unwrap(node).map_or_else(|| cx.other(node), |inner| self.arg(cx, inner, depth + 1)),
        }
    }

    fn method_call<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<MethodCall<'s, 't>> {
        let (receiver, name) = self.callee(cx, node)?;
        receiver?;
        let args = children(node.child_by_field_name("arguments")?);
        let args = args.into_iter().map(|arg| self.arg(cx, arg, 0)).collect();
        Some(MethodCall { receiver, name, args })
    }

    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        if node.kind() != "call_expression" {
            return None;
        }
        let function = node.child_by_field_name("function")?;
        let function = function.child_by_field_name("function").unwrap_or(function);
        match function.kind() {
            "field_expression" => {
                Some((function.child_by_field_name("value"), cx.text_of_field(function, "field")?))
            }
            "scoped_identifier" => Some((None, cx.text_of_field(function, "name")?)),
            "identifier" => Some((None, cx.text_of(function))),
            _ => None,
        }
    }

    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let is_member = node.kind() == "field_expression";
        is_member.then(|| Some((node.child_by_field_name("value")?, cx.text_of_field(node, "field")?)))?
    }

    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>> {
        match node.kind() {
            "reference_expression" => node.child_by_field_name("value"),
            "parenthesized_expression"
            | "try_expression"
            | "await_expression"
            | "unary_expression"
            | "index_expression" => node.named_child(0),
            _ => None,
        }
    }

    fn commands(&self, cx: &Context<'_>, node: Node<'_>, _scope: &Range<usize>) -> Vec<Call> {
        let (receiver, name) = self.callee(cx, node).unwrap_or_default();
        if name == "key" {
            return self.script_key(cx, node, receiver).into_iter().collect();
        }
        if name != "cmd" {
            return Vec::new();
        }
        let arguments = node.child_by_field_name("arguments").map(children).unwrap_or_default();
        let name = arguments.first().and_then(|name| self.text(cx, *name, 0));
        let name = name.and_then(|name| name.as_literal().map(str::to_ascii_uppercase)).unwrap_or_default();
        let mut words = name.split_ascii_whitespace();
        let command = words.next().unwrap_or_default().to_owned();
        if !cx.mentions_redis || !is_command(&command) {
            return Vec::new();
        }
        let subcommands = words.map(|word| Arg::Text(TextExpr::literal(word, node.start_byte(), 0)));
        let place = node.child_by_field_name("arguments").unwrap_or(node);
        vec![Call {
            command,
            args: subcommands.chain(self.chained_args(cx, node)).collect(),
            position: place.start_byte(),
            line: place.start_position().row + 1,
            group: receiver.and_then(|receiver| calls::group_of(self, cx, receiver)),
        }]
    }

    /// Functions and modules with an attribute about tests.
    fn is_test(&self, cx: &Context<'_>, node: Node<'_>) -> bool {
        if !matches!(node.kind(), "function_item" | "mod_item") {
            return false;
        }
        let before = cx.source.get(..node.start_byte()).unwrap_or_default();
        let above = before.lines().rev().map(str::trim).skip_while(|line| line.is_empty());
        let mut attributes =
            above.take(20).take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        attributes.any(|line| line.starts_with("#[") && line.contains("test"))
    }
}

impl Rust {
    /// The arguments that follow in `.arg(…)` calls around the node.
    fn chained_args(&self, cx: &Context<'_>, node: Node<'_>) -> Vec<Arg> {
        let (mut args, mut node) = (Vec::new(), node);
        for _ in 0..MAX_DEPTH {
            let call = node
                .parent()
                .filter(|parent| parent.kind() == "field_expression")
                .and_then(|field| field.parent());
            let Some(call) = call else { break };
            match self.callee(cx, call) {
                Some((_, "arg")) => {
                    let given = call.child_by_field_name("arguments").map(children).unwrap_or_default();
                    args.extend(given.into_iter().map(|arg| self.arg(cx, arg, 0)));
                }
                Some((_, "ignore" | "to_owned" | "clone")) => {}
                _ => break,
            }
            node = call;
        }
        args
    }

    /// `script.key(a).key(b)`: the keys of one invocation.
    fn script_key(&self, cx: &Context<'_>, node: Node<'_>, receiver: Option<Node<'_>>) -> Option<Call> {
        let mut root = receiver?;
        for _ in 0..MAX_DEPTH {
            match self.callee(cx, root) {
                Some((Some(object), _)) => root = object,
                _ => break,
            }
        }
        let is_script = |text: &str| text.to_ascii_lowercase().contains("script");
        let origin = || cx.resolve(cx.text_of(root), root.start_byte()).map_or("", |binding| binding.origin);
        let first = children(node.child_by_field_name("arguments")?).into_iter().next()?;
        let place = node.child_by_field_name("arguments")?;
        (is_script(cx.text_of(root)) || is_script(origin())).then(|| Call {
            command: "EVAL".to_owned(),
            args: vec![Arg::Other(String::new()), Arg::List(vec![self.arg(cx, first, 0)])],
            position: place.start_byte(),
            line: place.start_position().row + 1,
            group: Some(root.start_byte()),
        })
    }

    fn call_text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let (receiver, name) = self.callee(cx, node)?;
        let arguments = children(node.child_by_field_name("arguments")?);
        match receiver {
            Some(receiver) if SAME_TEXT.contains(&name) && arguments.is_empty() => {
                self.text(cx, receiver, depth + 1)
            }
            Some(receiver) if matches!(name, "join" | "concat") => {
                let list = self.unwrap(receiver).unwrap_or(receiver);
                let separator = arguments.first().map(|separator| self.text(cx, *separator, depth + 1));
                let separator = separator.unwrap_or_else(|| Some(TextExpr::default()))?;
                let items = (list.kind() == "array_expression").then(|| children(list))?;
                let items: Vec<_> =
                    items.into_iter().map(|item| text_or_hole(self, cx, item, depth)).collect();
                Some(join(cx.start(node), separator.as_literal()?, &items))
            }
            None if name == "from" || name == "new" => {
                let [only] = arguments.as_slice() else { return None };
                let function = cx.text_of_field(node, "function")?;
                let is_text = ["String::from", "Cow::from", "Arc::from", "Box::from"].contains(&function);
                self.text(cx, *only, depth + 1).filter(|_| is_text)
            }
            _ => None,
        }
    }

    /// The text of `format!` and `concat!`. Macros have tokens, not expressions.
    fn macro_text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let name = cx.text_of_field(node, "macro")?.rsplit("::").next()?;
        let is_format = FORMATS.contains(&name);
        if !is_format && name != "concat" {
            return None;
        }
        let tokens = children_with_punctuation(node)?;
        let args: Vec<&[Node<'_>]> = tokens.split(|token| token.kind() == ",").collect();
        let text_of = |arg: &[Node<'_>]| -> Option<TextExpr> {
            let arg = arg.iter().filter(|token| token.kind() != "&").copied().collect::<Vec<_>>();
            match arg.as_slice() {
                [only] => self.text(cx, *only, depth + 1),
                [first, .., last] => {
                    let mut hole = cx.start(*first);
                    hole.push_hole(cx.source.get(first.start_byte()..last.end_byte()).unwrap_or_default());
                    Some(hole)
                }
                [] => None,
            }
        };
        let is_literal = |arg: &&[Node<'_>]| matches!(arg, [only] if only.kind().ends_with("string_literal"));
        let first = args.iter().position(is_literal)?;
        let format = text_of(args.get(first)?)?;
        if !is_format {
            let parts: Vec<TextExpr> = args.iter().filter_map(|arg| text_of(arg)).collect();
            return Some(join(TextExpr::new(format.position, format.line), "", &parts));
        }
        let values = args.get(first + 1..).unwrap_or_default();
        let is_named = |arg: &[Node<'_>], name: &str| matches!(arg, [key, equals, ..] if equals.kind() == "=" && cx.text_of(*key) == name);
        let value = |name: &str, number: usize| -> Option<TextExpr> {
            let source = |arg: &[Node<'_>]| {
                text_of(arg).or_else(|| {
                    let mut hole = TextExpr::default();
                    hole.push_hole(cx.text_of(*arg.first()?));
                    Some(hole)
                })
            };
            if name.is_empty() {
                return source(values.get(number)?);
            }
            if let Ok(number) = name.parse::<usize>() {
                return source(values.get(number)?);
            }
            match values.iter().find(|arg| is_named(arg, name)) {
                Some(arg) => source(arg.get(2..)?),
                None => cx.resolve_text(name, node.start_byte()).cloned(),
            }
        };
        Some(braces(TextExpr::new(format.position, format.line), &format, value))
    }
}

fn simple_pattern(pattern: Node<'_>) -> Node<'_> {
    match pattern.kind() {
        "mut_pattern" | "ref_pattern" => {
            pattern.named_child(pattern.named_child_count().saturating_sub(1) as u32).unwrap_or(pattern)
        }
        _ => pattern,
    }
}

/// The tokens of a macro's arguments, without the delimiters.
fn children_with_punctuation<'t>(invocation: Node<'t>) -> Option<Vec<Node<'t>>> {
    let mut cursor = invocation.walk();
    let tree = invocation.named_children(&mut cursor).find(|child| child.kind() == "token_tree")?;
    let mut cursor = tree.walk();
    let tokens: Vec<Node<'t>> = tree.children(&mut cursor).collect();
    let inner = tokens.get(1..tokens.len().saturating_sub(1))?;
    Some(inner.to_vec())
}
