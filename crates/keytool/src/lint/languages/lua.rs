//! Lua: scripts and functions in Redis (`redis.call`), and clients with methods of the names of commands.

use std::ops::Range;

use tree_sitter::{Language, Node};

use crate::lint::commands::is_command;
use crate::lint::model::{Arg, Call, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, children, join, printf, sum, text_or_hole,
    unescape_all,
};

pub(super) struct Lua;

impl FrontEnd for Lua {
    fn grammar(&self) -> Language {
        tree_sitter_lua::LANGUAGE.into()
    }

    fn is_scope(&self, kind: &str) -> bool {
        matches!(kind, "function_declaration" | "function_definition")
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(kind, "string" | "binary_expression" | "function_call")
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        if node.kind() != "assignment_statement" {
            return Vec::new();
        }
        let parts = children(node);
        let list = |kind: &str| {
            parts.iter().find(|part| part.kind() == kind).map(|list| children(*list)).unwrap_or_default()
        };
        let pairs = list("variable_list").into_iter().zip(list("expression_list"));
        let names = pairs.filter(|(name, _)| name.kind() == "identifier");
        names
            .map(|(name, value)| Declaration {
                name: cx.text_of(name),
                value: Some(value),
                origin: Some(value),
            })
            .collect()
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "assignment_statement" => Some(cx.text_of(node.named_child(0)?)),
            "function_declaration" | "field" => cx.text_of_field(node, "name"),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "string" => {
                let mut text = cx.start(node);
                let is_long = cx.text_of(node).starts_with('[');
                let content = node.child_by_field_name("content").map_or("", |content| cx.text_of(content));
                text.push_literal(&if is_long { content.to_owned() } else { unescape_all(content) });
                Some(text)
            }
            "identifier" => cx.resolve_text(cx.text_of(node), node.start_byte()).cloned(),
            "binary_expression" => sum(self, cx, node, "..", depth),
            "function_call" => self.call_text(cx, node, depth),
            _ => self.text(cx, self.unwrap(node)?, depth + 1),
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        match node.kind() {
            "number" => Arg::Number(cx.text_of(node).to_owned()),
            "table_constructor" => {
                let values =
                    children(node).into_iter().filter_map(|field| field.child_by_field_name("value"));
                Arg::List(values.map(|value| self.arg(cx, value, depth + 1)).collect())
            }
            _ => self.unwrap(node).map_or_else(|| cx.other(node), |inner| self.arg(cx, inner, depth + 1)),
        }
    }

    fn method_call<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<MethodCall<'s, 't>> {
        let (receiver, name) = self.callee(cx, node)?;
        receiver.filter(|receiver| cx.text_of(*receiver) != "redis")?;
        Some(MethodCall { receiver, name, args: self.args(cx, node) })
    }

    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        if node.kind() != "function_call" {
            return None;
        }
        let function = node.child_by_field_name("name")?;
        match self.member(cx, function) {
            Some((object, name)) => Some((Some(object), name)),
            None => (function.kind() == "identifier").then(|| (None, cx.text_of(function))),
        }
    }

    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let field = match node.kind() {
            "dot_index_expression" => "field",
            "method_index_expression" => "method",
            _ => return None,
        };
        Some((node.child_by_field_name("table")?, cx.text_of_field(node, field)?))
    }

    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>> {
        (node.kind() == "parenthesized_expression").then(|| node.named_child(0))?
    }

    /// `redis.call` and `redis.pcall`. All of a function are one script.
    fn commands(&self, cx: &Context<'_>, node: Node<'_>, scope: &Range<usize>) -> Vec<Call> {
        let Some((Some(receiver), "call" | "pcall")) = self.callee(cx, node) else { return Vec::new() };
        let mut args = self.args(cx, node).into_iter();
        let command = args.next().and_then(|name| name.as_word().map(str::to_ascii_uppercase));
        let command = command.filter(|command| cx.text_of(receiver) == "redis" && is_command(command));
        let (position, line) = (node.start_byte(), cx.start(node).line);
        let call = command.map(|command| Call {
            command,
            args: args.collect(),
            position,
            line,
            group: Some(scope.start),
        });
        call.into_iter().collect()
    }
}

impl Lua {
    fn args(&self, cx: &Context<'_>, node: Node<'_>) -> Vec<Arg> {
        let arguments = node.child_by_field_name("arguments").map(children).unwrap_or_default();
        arguments.into_iter().map(|arg| self.arg(cx, arg, 0)).collect()
    }

    /// `string.format`, `format:format(…)` and `table.concat`.
    fn call_text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let (object, name) = self.callee(cx, node)?;
        let object = object?;
        let arguments = node.child_by_field_name("arguments").map(children)?;
        let texts = |nodes: &[Node<'_>]| -> Vec<TextExpr> {
            nodes.iter().map(|node| text_or_hole(self, cx, *node, depth)).collect()
        };
        match (cx.text_of(object), name, arguments.as_slice()) {
            ("string", "format", [format, values @ ..]) => {
                Some(printf(cx.start(node), &self.text(cx, *format, depth + 1)?, &texts(values)))
            }
            ("table", "concat", [list, separator]) if list.kind() == "table_constructor" => {
                let values: Vec<Node<'_>> = children(*list)
                    .into_iter()
                    .filter_map(|field| field.child_by_field_name("value"))
                    .collect();
                let separator = self.text(cx, *separator, depth + 1)?;
                Some(join(cx.start(node), separator.as_literal()?, &texts(&values)))
            }
            (_, "format", values) => {
                Some(printf(cx.start(node), &self.text(cx, object, depth + 1)?, &texts(values)))
            }
            _ => None,
        }
    }
}
