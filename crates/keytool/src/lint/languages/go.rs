//! Go: `fmt.Sprintf`, concatenation, and methods of go-redis, redigo and clients like them.

use tree_sitter::{Language, Node};

use crate::lint::model::{Arg, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, children, join, literal, printf, sum, text_or_hole,
};

pub(super) struct Go;

impl FrontEnd for Go {
    fn grammar(&self) -> Language {
        tree_sitter_go::LANGUAGE.into()
    }

    fn is_scope(&self, kind: &str) -> bool {
        matches!(kind, "block" | "function_declaration" | "method_declaration" | "func_literal")
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(
            kind,
            "interpreted_string_literal" | "raw_string_literal" | "binary_expression" | "call_expression"
        )
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        let (names, values) = match node.kind() {
            "short_var_declaration" | "assignment_statement" => {
                let side = |field| node.child_by_field_name(field).map(children).unwrap_or_default();
                (side("left"), side("right"))
            }
            "var_spec" | "const_spec" | "parameter_declaration" => {
                let mut cursor = node.walk();
                let names = node.children_by_field_name("name", &mut cursor).collect();
                (names, node.child_by_field_name("value").map(children).unwrap_or_default())
            }
            _ => return Vec::new(),
        };
        let type_of = node.child_by_field_name("type");
        // `value, err := call()` has one value.
        let last = values.last().copied().filter(|_| values.len() < names.len());
        let declaration = |(number, name): (usize, &Node<'t>)| {
            let value = values.get(number).copied();
            Declaration { name: cx.text_of(*name), value, origin: value.or(last).or(type_of) }
        };
        names.iter().enumerate().filter(|(_, name)| name.kind() == "identifier").map(declaration).collect()
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "short_var_declaration" => cx.text_of_field(node, "left"),
            "var_spec" | "const_spec" | "function_declaration" | "method_declaration" => {
                cx.text_of_field(node, "name")
            }
            "keyed_element" => Some(cx.text_of(node.named_child(0)?)),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "interpreted_string_literal" | "raw_string_literal" => Some(literal(cx, node)),
            "identifier" => cx.resolve_text(cx.text_of(node), node.start_byte()).cloned(),
            "binary_expression" => sum(self, cx, node, "+", depth),
            "call_expression" => self.call_text(cx, node, depth),
            _ => self.text(cx, self.unwrap(node)?, depth + 1),
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        let deeper = |node| self.arg(cx, node, depth + 1);
        match node.kind() {
            "int_literal" | "float_literal" => Arg::Number(cx.text_of(node).to_owned()),
            "composite_literal" => node.child_by_field_name("body").map_or_else(|| cx.other(node), deeper),
            "literal_value" => self.elements(cx, node, depth),
            // `keys...`
            "variadic_argument" => node.named_child(0).map_or_else(|| cx.other(node), deeper),
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
        let mut args = children(node.child_by_field_name("arguments")?);
        let is_context = |arg: &Node<'_>| {
            let source = cx.text_of(*arg).to_ascii_lowercase();
            arg.kind() != "interpreted_string_literal"
                && (source.contains("ctx") || source.contains("context"))
        };
        if args.first().is_some_and(is_context) {
            args.remove(0);
        }
        let args = args.into_iter().map(|arg| self.arg(cx, arg, 0)).collect();
        Some(MethodCall { receiver, name, args })
    }

    fn callee<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        if node.kind() != "call_expression" {
            return None;
        }
        let function = node.child_by_field_name("function")?;
        match self.member(cx, function) {
            Some((object, name)) => Some((Some(object), name)),
            None => (function.kind() == "identifier").then(|| (None, cx.text_of(function))),
        }
    }

    fn member<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        let is_member = node.kind() == "selector_expression";
        is_member.then(|| Some((node.child_by_field_name("operand")?, cx.text_of_field(node, "field")?)))?
    }

    fn unwrap<'t>(&self, node: Node<'t>) -> Option<Node<'t>> {
        match node.kind() {
            "parenthesized_expression" | "literal_element" | "expression_list" => node.named_child(0),
            "unary_expression" => node.child_by_field_name("operand"),
            _ => None,
        }
    }
}

impl Go {
    fn call_text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        let function = cx.text_of_field(node, "function")?;
        let arguments = children(node.child_by_field_name("arguments")?);
        match (function, arguments.as_slice()) {
            ("fmt.Sprintf", [format, values @ ..]) => {
                let format = self.text(cx, *format, depth + 1)?;
                let values: Vec<TextExpr> =
                    values.iter().map(|value| text_or_hole(self, cx, *value, depth)).collect();
                Some(printf(cx.start(node), &format, &values))
            }
            ("strings.Join", [list, separator]) => {
                let separator = self.text(cx, *separator, depth + 1)?;
                let list = list.child_by_field_name("body")?;
                let items: Vec<TextExpr> = children(list)
                    .into_iter()
                    .map(|item| text_or_hole(self, cx, self.unwrap(item).unwrap_or(item), depth))
                    .collect();
                Some(join(cx.start(node), separator.as_literal()?, &items))
            }
            ("string" | "[]byte", [only]) => self.text(cx, *only, depth + 1),
            _ => None,
        }
    }

    /// The elements of a slice, or the pairs of a map.
    fn elements(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Arg {
        let items = children(node);
        let is_map = items.first().is_some_and(|item| item.kind() == "keyed_element");
        if !is_map {
            return Arg::List(items.into_iter().map(|item| self.arg(cx, item, depth + 1)).collect());
        }
        let pairs = items.into_iter().filter_map(|item| {
            let (key, value) = (item.named_child(0)?, item.named_child(1)?);
            let key = self.unwrap(key).unwrap_or(key);
            Some((text_or_hole(self, cx, key, depth), self.arg(cx, value, depth + 1)))
        });
        Arg::Map(pairs.collect())
    }
}
