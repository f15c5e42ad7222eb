//! JavaScript and TypeScript: templates, concatenation, and methods of ioredis, node-redis and clients like them.

use tree_sitter::{Language, Node};

use crate::lint::model::{Arg, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, append, children, join, literal, sum,
    text_or_hole, unescape,
};

pub(super) enum JavaScript {
    Plain,
    TypeScript,
    Tsx,
}

impl FrontEnd for JavaScript {
    fn grammar(&self) -> Language {
        match self {
            Self::Plain => tree_sitter_javascript::LANGUAGE.into(),
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Self::Tsx => tree_sitter_typescript::LANGUAGE_TSX.into(),
        }
    }

    fn is_scope(&self, kind: &str) -> bool {
        matches!(
            kind,
            "statement_block"
                | "function_declaration"
                | "function_expression"
                | "arrow_function"
                | "method_definition"
                | "class_body"
        )
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(kind, "string" | "template_string" | "binary_expression" | "call_expression")
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        let (name, value) = match node.kind() {
            "variable_declarator" => (node.child_by_field_name("name"), node.child_by_field_name("value")),
            "assignment_expression" => (node.child_by_field_name("left"), node.child_by_field_name("right")),
            "required_parameter" | "optional_parameter" => (node.child_by_field_name("pattern"), None),
            _ => return Vec::new(),
        };
        let origin = value.or_else(|| node.child_by_field_name("type"));
        let name = name.filter(|name| name.kind() == "identifier");
        name.map(|name| Declaration { name: cx.text_of(name), value, origin }).into_iter().collect()
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "variable_declarator"
            | "function_declaration"
            | "method_definition"
            | "public_field_definition" => cx.text_of_field(node, "name"),
            "field_definition" => cx.text_of_field(node, "property"),
            "pair" => cx.text_of_field(node, "key"),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "string" => Some(literal(cx, node)),
            "template_string" => {
                let mut text = cx.start(node);
                for child in children(node) {
                    match child.kind() {
                        "string_fragment" => text.push_literal(cx.text_of(child)),
                        "escape_sequence" => text.push_literal(&unescape(cx.text_of(child))),
                        _ => match child.named_child(0) {
                            Some(expression) => append(self, cx, &mut text, expression, depth),
                            None => text.push_hole(""),
                        },
                    }
                }
                Some(text)
            }
            "identifier" => cx.resolve_text(cx.text_of(node), node.start_byte()).cloned(),
            "binary_expression" => sum(self, cx, node, "+", depth),
            "call_expression" => {
                let (list, name) = self.callee(cx, node)?;
                let arguments = children(node.child_by_field_name("arguments")?);
                match (name, list?, arguments.as_slice()) {
                    ("join", list, [separator]) if list.kind() == "array" => {
                        let separator = self.text(cx, *separator, depth + 1)?;
                        let items: Vec<TextExpr> = children(list)
                            .into_iter()
                            .map(|item| text_or_hole(self, cx, item, depth))
                            .collect();
                        Some(join(cx.start(node), separator.as_literal()?, &items))
                    }
                    ("concat", start, parts) => {
                        let mut text = self.text(cx, start, depth + 1)?;
                        parts.iter().for_each(|part| append(self, cx, &mut text, *part, depth));
                        Some(text)
                    }
                    ("toString", text, []) => self.text(cx, text, depth + 1),
                    _ => None,
                }
            }
            _ => self.text(cx, self.unwrap(node)?, depth + 1),
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        let deeper = |node| self.arg(cx, node, depth + 1);
        match node.kind() {
            "number" => Arg::Number(cx.text_of(node).to_owned()),
            "array" => Arg::List(children(node).into_iter().map(deeper).collect()),
            "object" => Arg::Map(
                children(node).into_iter().map(|property| self.property(cx, property, depth)).collect(),
            ),
            "spread_element" => node.named_child(0).map_or_else(|| cx.other(node), deeper),
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
        let args = args.into_iter().map(|arg| self.arg(cx, arg, 0)).collect();
        Some(MethodCall { receiver, name, args })
    }

    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        let function = match node.kind() {
            "call_expression" => node.child_by_field_name("function")?,
            "new_expression" => node.child_by_field_name("constructor")?,
            _ => return None,
        };
        match self.member(cx, function) {
            Some((object, name)) => Some((Some(object), name)),
            None => (function.kind() == "identifier").then(|| (None, cx.text_of(function))),
        }
    }

    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let is_member = node.kind() == "member_expression";
        let field = |node: Node<'_>| Some(cx.text_of_field(node, "property")?.trim_start_matches('#'));
        is_member.then(|| Some((node.child_by_field_name("object")?, field(node)?)))?
    }

    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>> {
        let is_wrapper = matches!(
            node.kind(),
            "parenthesized_expression"
                | "await_expression"
                | "non_null_expression"
                | "as_expression"
                | "satisfies_expression"
                | "type_assertion"
        );
        is_wrapper.then(|| node.named_child(0))?
    }
}

impl JavaScript {
    fn property(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> (TextExpr, Arg) {
        let (Some(key), Some(value)) = (node.child_by_field_name("key"), node.child_by_field_name("value"))
        else {
            return (
                TextExpr::literal(cx.text_of(node), node.start_byte(), cx.start(node).line),
                cx.other(node),
            );
        };
        let name = match key.kind() {
            "property_identifier" => TextExpr::literal(cx.text_of(key), key.start_byte(), cx.start(key).line),
            "computed_property_name" => {
                key.named_child(0).map_or_else(|| cx.hole(key), |key| text_or_hole(self, cx, key, depth))
            }
            _ => text_or_hole(self, cx, key, depth),
        };
        (name, self.arg(cx, value, depth + 1))
    }
}
