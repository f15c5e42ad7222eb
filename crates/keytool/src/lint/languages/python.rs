//! Python: f-strings, `%`, `str.format`, concatenation, and methods of redis-py and clients like it.

use tree_sitter::{Language, Node};

use crate::lint::model::{Arg, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, append, braces, children, join, printf, sum,
    text_or_hole, unescape_all,
};

pub(super) struct Python;

impl FrontEnd for Python {
    fn grammar(&self) -> Language {
        tree_sitter_python::LANGUAGE.into()
    }

    fn is_scope(&self, kind: &str) -> bool {
        matches!(kind, "function_definition" | "lambda" | "class_definition")
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(kind, "string" | "concatenated_string" | "binary_operator" | "call")
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        let (name, value, origin) = match node.kind() {
            "assignment" => {
                let value = node.child_by_field_name("right");
                (node.child_by_field_name("left"), value, value.or_else(|| node.child_by_field_name("type")))
            }
            "named_expression" => {
                let value = node.child_by_field_name("value");
                (node.child_by_field_name("name"), value, value)
            }
            "typed_parameter" => (node.named_child(0), None, node.child_by_field_name("type")),
            "typed_default_parameter" => {
                (node.child_by_field_name("name"), None, node.child_by_field_name("type"))
            }
            "as_pattern" => {
                let alias =
                    node.child_by_field_name("alias").and_then(|alias| alias.named_child(0).or(Some(alias)));
                (alias, None, node.named_child(0))
            }
            _ => return Vec::new(),
        };
        let name = name.filter(|name| matches!(name.kind(), "identifier" | "as_pattern_target"));
        name.map(|name| Declaration { name: cx.text_of(name), value, origin }).into_iter().collect()
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "assignment" => cx.text_of_field(node, "left"),
            "function_definition" | "keyword_argument" => cx.text_of_field(node, "name"),
            "pair" => cx.text_of_field(node, "key"),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "string" => Some(self.string(cx, node, depth)),
            "concatenated_string" => {
                let mut text = cx.start(node);
                children(node).into_iter().for_each(|part| append(self, cx, &mut text, part, depth));
                Some(text)
            }
            "identifier" => cx.resolve_text(cx.text_of(node), node.start_byte()).cloned(),
            "binary_operator" => self.operator(cx, node, depth),
            "call" => self.call_text(cx, node, depth),
            _ => self.text(cx, self.unwrap(node)?, depth + 1),
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        let deeper = |node| self.arg(cx, node, depth + 1);
        match node.kind() {
            "integer" | "float" => Arg::Number(cx.text_of(node).to_owned()),
            "list" | "tuple" | "set" => Arg::List(children(node).into_iter().map(deeper).collect()),
            "dictionary" => {
                let pairs = children(node).into_iter().filter_map(|pair| {
                    let (key, value) = (pair.child_by_field_name("key")?, pair.child_by_field_name("value")?);
                    Some((text_or_hole(self, cx, key, depth), deeper(value)))
                });
                Arg::Map(pairs.collect())
            }
            "keyword_argument" => match (cx.text_of_field(node, "name"), node.child_by_field_name("value")) {
                (Some(name), Some(value)) => Arg::Named(name.to_owned(), Box::new(deeper(value))),
                _ => cx.other(node),
            },
            // `*keys`
            "list_splat" => node.named_child(0).map_or_else(|| cx.other(node), deeper),
            "identifier" => match cx.resolve(cx.text_of(node), node.start_byte()) {
                Some(binding) if matches!(binding.value, Arg::List(_) | Arg::Map(_)) => binding.value.clone(),
                _ => cx.other(node),
            },
            _ => self.unwrap(node).map_or_else(|| cx.other(node), deeper),
        }
    }

    fn method_call<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<MethodCall<'s, 't>> {
        let (receiver, name) = self.callee(cx, node)?;
        receiver?;
        let args = children(node.child_by_field_name("arguments")?);
        let args = args.into_iter().map(|arg| self.arg(cx, arg, 0)).map(positional).collect();
        Some(MethodCall { receiver, name, args })
    }

    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        if node.kind() != "call" {
            return None;
        }
        let function = node.child_by_field_name("function")?;
        match self.member(cx, function) {
            Some((object, name)) => Some((Some(object), name)),
            None => (function.kind() == "identifier").then(|| (None, cx.text_of(function))),
        }
    }

    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let is_member = node.kind() == "attribute";
        is_member
            .then(|| Some((node.child_by_field_name("object")?, cx.text_of_field(node, "attribute")?)))?
    }

    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>> {
        matches!(node.kind(), "parenthesized_expression" | "await").then(|| node.named_child(0))?
    }

    fn is_test(&self, cx: &Context<'_>, node: Node<'_>) -> bool {
        let name = || cx.text_of_field(node, "name").unwrap_or_default();
        match node.kind() {
            "function_definition" => name().starts_with("test_"),
            "class_definition" => name().starts_with("Test"),
            _ => false,
        }
    }
}

/// Keys and values that redis-py also takes by name.
fn positional(arg: Arg) -> Arg {
    match arg {
        Arg::Named(name, value) if matches!(name.as_str(), "name" | "key" | "keys" | "value" | "mapping") => {
            *value
        }
        other => other,
    }
}

impl Python {
    fn string(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> TextExpr {
        let mut text = cx.start(node);
        let prefix = node.named_child(0).filter(|start| start.kind() == "string_start");
        let prefix = prefix.map_or("", |start| cx.text_of(start)).to_ascii_lowercase();
        let (is_raw, is_format) = (prefix.contains('r'), prefix.contains('f'));
        for child in children(node) {
            match child.kind() {
                "string_content" => {
                    let content = cx.text_of(child);
                    let content = if is_raw { content.to_owned() } else { unescape_all(content) };
                    let content =
                        if is_format { content.replace("{{", "{").replace("}}", "}") } else { content };
                    text.push_literal(&content);
                }
                "interpolation" => {
                    match child.child_by_field_name("expression").or_else(|| child.named_child(0)) {
                        Some(expression) => append(self, cx, &mut text, expression, depth),
                        None => text.push_hole(""),
                    }
                }
                _ => {}
            }
        }
        text
    }

    /// `left + right` and `format % args`.
    fn operator(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let (left, right) = (node.child_by_field_name("left")?, node.child_by_field_name("right")?);
        match cx.text_of_field(node, "operator")? {
            "+" => sum(self, cx, node, "+", depth),
            "%" => {
                let format = self.text(cx, left, depth + 1)?;
                let args = if right.kind() == "tuple" { children(right) } else { vec![right] };
                let args: Vec<TextExpr> =
                    args.into_iter().map(|arg| text_or_hole(self, cx, arg, depth)).collect();
                Some(printf(cx.start(node), &format, &args))
            }
            _ => None,
        }
    }

    /// `format.format(args)` and `separator.join(list)`.
    fn call_text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let (object, name) = self.callee(cx, node)?;
        let arguments = || Some(children(node.child_by_field_name("arguments")?));
        match name {
            "format" => {
                let format = self.text(cx, object?, depth + 1)?;
                let arguments = arguments()?;
                let value = |name: &str, number: usize| {
                    let (plain, named): (Vec<Node<'_>>, Vec<Node<'_>>) =
                        arguments.iter().partition(|arg| arg.kind() != "keyword_argument");
                    let number = if name.is_empty() { Ok(number) } else { name.parse() };
                    let value = match number {
                        Ok(number) => plain.get(number).copied(),
                        Err(_) => {
                            let named =
                                named.into_iter().find(|arg| cx.text_of_field(*arg, "name") == Some(name));
                            named.and_then(|arg| arg.child_by_field_name("value"))
                        }
                    };
                    Some(text_or_hole(self, cx, value?, depth))
                };
                Some(braces(cx.start(node), &format, value))
            }
            "join" => {
                let separator = self.text(cx, object?, depth + 1)?;
                let list =
                    arguments()?.into_iter().next().filter(|list| matches!(list.kind(), "list" | "tuple"))?;
                let items: Vec<TextExpr> =
                    children(list).into_iter().map(|item| text_or_hole(self, cx, item, depth)).collect();
                Some(join(cx.start(node), separator.as_literal()?, &items))
            }
            "encode" => self.text(cx, object?, depth + 1),
            "str" | "bytes" if object.is_none() => self.text(cx, arguments()?.into_iter().next()?, depth + 1),
            _ => None,
        }
    }
}
