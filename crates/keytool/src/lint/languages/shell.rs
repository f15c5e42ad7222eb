//! Shell: `redis-cli` with its arguments, and commands that it reads from a here-document or a pipe.

use std::ops::Range;

use tree_sitter::{Language, Node};

use crate::lint::commands::is_command;
use crate::lint::model::{Arg, Call, Piece, TextExpr};
use crate::lint::syntax::{
    Context, Declaration, FrontEnd, MAX_DEPTH, MethodCall, append, children, unescape_all,
};

pub(super) struct Shell;

const PROGRAMS: &[&str] = &["redis-cli", "valkey-cli", "keydb-cli"];

/// Options of `redis-cli` with a value.
const WITH_VALUE: &[&str] = &[
    "-h",
    "-p",
    "-t",
    "-s",
    "-a",
    "-u",
    "-r",
    "-i",
    "-n",
    "-d",
    "-D",
    "-X",
    "--user",
    "--pass",
    "--sni",
    "--cacert",
    "--cacertdir",
    "--cert",
    "--key",
    "--tls-ciphers",
    "--tls-ciphersuites",
    "--count",
    "--quoted-input",
];

impl FrontEnd for Shell {
    fn grammar(&self) -> Language {
        tree_sitter_bash::LANGUAGE.into()
    }

    fn is_scope(&self, _kind: &str) -> bool {
        // Variables are global unless they are declared local, and most functions are small.
        false
    }

    fn is_text(&self, kind: &str) -> bool {
        matches!(kind, "word" | "string" | "raw_string" | "ansi_c_string" | "concatenation")
    }

    fn is_bare(&self, kind: &str) -> bool {
        kind == "word"
    }

    fn declarations<'s, 't>(&self, cx: &Context<'s>, node: Node<'t>) -> Vec<Declaration<'s, 't>> {
        let declared = match node.kind() {
            "variable_assignment" => node.child_by_field_name("name").zip(node.child_by_field_name("value")),
            "function_definition" => node.child_by_field_name("name").zip(node.child_by_field_name("body")),
            _ => None,
        };
        let declaration = declared.map(|(name, value)| Declaration {
            name: cx.text_of(name),
            value: (node.kind() == "variable_assignment").then_some(value),
            origin: Some(value),
        });
        declaration.into_iter().collect()
    }

    fn label<'s>(&self, cx: &Context<'s>, node: Node<'_>) -> Option<&'s str> {
        match node.kind() {
            "variable_assignment" | "function_definition" => cx.text_of_field(node, "name"),
            _ => None,
        }
    }

    fn text(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> Option<TextExpr> {
        if depth > MAX_DEPTH {
            return None;
        }
        match node.kind() {
            "word" => {
                let mut text = cx.start(node);
                text.push_literal(&without_backslashes(cx.text_of(node)));
                Some(text)
            }
            "number" => Some(TextExpr::literal(cx.text_of(node), node.start_byte(), cx.start(node).line)),
            "raw_string" => {
                let content = cx.text_of(node).trim_matches('\'');
                Some(TextExpr::literal(content, node.start_byte(), cx.start(node).line))
            }
            "ansi_c_string" => {
                let content = cx.text_of(node).trim_start_matches('$').trim_matches('\'');
                Some(TextExpr::literal(&unescape_all(content), node.start_byte(), cx.start(node).line))
            }
            "string" | "concatenation" | "heredoc_body" => Some(self.composed(cx, node, depth)),
            "command_name" => self.text(cx, node.named_child(0)?, depth + 1),
            "simple_expansion" | "expansion" => {
                let mut cursor = node.walk();
                let name = node.named_children(&mut cursor).find(|child| child.kind() == "variable_name")?;
                let is_plain = node.kind() == "simple_expansion" || node.named_child_count() == 1;
                let value = cx.resolve_text(cx.text_of(name), node.start_byte()).filter(|_| is_plain);
                let hole = || {
                    let mut hole = cx.start(node);
                    hole.push_hole(cx.text_of(name));
                    hole
                };
                Some(value.cloned().unwrap_or_else(hole))
            }
            "command_substitution" | "process_substitution" | "arithmetic_expansion" => Some(cx.hole(node)),
            "string_content" => Some(literal_content(cx, node)),
            _ => None,
        }
    }

    fn value(&self, cx: &Context<'_>, node: Node<'_>, _depth: usize) -> Arg {
        cx.other(node)
    }

    fn method_call<'s, 't>(&self, _cx: &Context<'s>, _node: Node<'t>) -> Option<MethodCall<'s, 't>> {
        None
    }

    fn callee<'s, 't>(&self, _cx: &Context<'s>, _node: Node<'t>) -> Option<(Option<Node<'t>>, &'s str)> {
        None
    }

    fn member<'s, 't>(&self, _cx: &Context<'s>, _node: Node<'t>) -> Option<(Node<'t>, &'s str)> {
        None
    }

    fn unwrap<'t>(&self, _node: Node<'t>) -> Option<Node<'t>> {
        None
    }

    fn commands(&self, cx: &Context<'_>, node: Node<'_>, _scope: &Range<usize>) -> Vec<Call> {
        match node.kind() {
            "command" => match self.client_args(cx, node) {
                Some(args) if args.is_empty() => self.input(cx, node, node).unwrap_or_default(),
                Some(args) => call(cx, node, args, None).into_iter().collect(),
                None => Vec::new(),
            },
            "redirected_statement" => self.here_document(cx, node).unwrap_or_default(),
            "pipeline" => self.piped(cx, node).unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

impl Shell {
    fn composed(&self, cx: &Context<'_>, node: Node<'_>, depth: usize) -> TextExpr {
        let parts = children(node);
        if let [only] = parts.as_slice()
            && only.kind() == "simple_expansion"
            && let Some(text) = self.text(cx, *only, depth + 1)
        {
            return text;
        }
        let mut text = cx.start(node);
        let is_document = node.kind() == "heredoc_body";
        let mut at = is_document.then_some(node.start_byte());
        for child in parts {
            if node.kind() == "concatenation" {
                append(self, cx, &mut text, child, depth);
                continue;
            }
            // The grammar leaves out white space between expansions.
            let gap = at.and_then(|at| cx.source.get(at..child.start_byte())).unwrap_or_default();
            text.push_literal(gap);
            match child.kind() {
                "string_content" | "heredoc_content" => text.append(&literal_content(cx, child)),
                _ => append(self, cx, &mut text, child, depth),
            }
            at = Some(child.end_byte());
        }
        if is_document {
            text.push_literal(at.and_then(|at| cx.source.get(at..node.end_byte())).unwrap_or_default());
        }
        text
    }

    /// What follows `redis-cli`; `None` if the command is another one.
    fn client_args(&self, cx: &Context<'_>, command: Node<'_>) -> Option<Vec<TextExpr>> {
        let words: Vec<TextExpr> = children(command)
            .into_iter()
            .filter(|word| !word.kind().ends_with("redirect") && word.kind() != "variable_assignment")
            .map(|word| self.text(cx, word, 0).unwrap_or_else(|| cx.hole(word)))
            .collect();
        let is_program = |word: &TextExpr| self.is_client(cx, word);
        let start = words.iter().position(is_program)?;
        let mut args = words.get(start + 1..).unwrap_or_default().iter();
        let mut rest = Vec::new();
        while let Some(arg) = args.next() {
            match arg.as_literal() {
                Some("--eval") => return Some(script_keys(args.as_slice())),
                Some("--pattern") => return Some(pattern_scan(args.as_slice())),
                Some(option) if WITH_VALUE.contains(&option) => {
                    args.next();
                }
                Some(option) if option.starts_with('-') => {}
                _ => {
                    rest.push(arg.clone());
                    rest.extend(args.by_ref().cloned());
                }
            }
        }
        // `$CLI GET key`: the options are in the variable.
        if rest.first().is_some_and(|first| matches!(first.pieces.as_slice(), [Piece::Hole(_)])) {
            let is_command = |word: &TextExpr| {
                word.as_literal().is_some_and(|word| is_command(&word.to_ascii_uppercase()))
            };
            rest.drain(..rest.iter().position(is_command).unwrap_or(0));
        }
        Some(rest)
    }

    /// Whether a word runs `redis-cli`: itself, a variable or a function with it.
    fn is_client(&self, cx: &Context<'_>, word: &TextExpr) -> bool {
        let names_client = |text: &str| {
            text.split([' ', '\t', '(', ')', '"', '\''])
                .any(|word| word.rsplit('/').next().is_some_and(|name| PROGRAMS.contains(&name)))
        };
        match word.pieces.as_slice() {
            [Piece::Literal(text)] if names_client(text) => true,
            [Piece::Literal(name)] => cx.resolve(name, word.position).is_some_and(|binding| {
                let passes_on = binding.origin.contains("\"$@\"") || binding.origin.contains("$*");
                binding.origin.starts_with('{') && passes_on && names_client(binding.origin)
            }),
            [Piece::Hole(name)] => {
                let name = name.trim_matches(['$', '{', '}', '"', '[', ']', '@', '*']);
                let lower = name.to_ascii_lowercase();
                let is_named =
                    (lower.contains("redis") && lower.contains("cli")) || lower == "redis" || lower == "rcli";
                is_named
                    || cx.resolve(name, word.position).is_some_and(|binding| names_client(binding.origin))
            }
            _ => false,
        }
    }

    /// `redis-cli <<END`.
    fn here_document(&self, cx: &Context<'_>, node: Node<'_>) -> Option<Vec<Call>> {
        let body = node.child_by_field_name("body")?;
        let is_idle = body.kind() == "command" && self.client_args(cx, body)?.is_empty();
        is_idle.then(|| self.input(cx, node, body)).flatten()
    }

    /// The commands in a here-document or here-string.
    fn input(&self, cx: &Context<'_>, node: Node<'_>, command: Node<'_>) -> Option<Vec<Call>> {
        let redirect = children(node).into_iter().find(|child| child.kind().starts_with("here"))?;
        let input = children(redirect).into_iter().rfind(|child| {
            let is_text =
                self.is_text(child.kind()) || matches!(child.kind(), "simple_expansion" | "expansion");
            child.kind() == "heredoc_body" || (is_text && redirect.kind() == "herestring_redirect")
        })?;
        read_commands(cx, &self.text(cx, input, 0)?, command)
    }

    /// `echo GET key | redis-cli`.
    fn piped(&self, cx: &Context<'_>, node: Node<'_>) -> Option<Vec<Call>> {
        let parts = children(node);
        let (last, before) = parts.split_last()?;
        let input = before.last().filter(|input| input.kind() == "command")?;
        let is_idle = last.kind() == "command" && self.client_args(cx, *last)?.is_empty();
        let mut words = children(*input).into_iter().map(|word| (word.kind(), self.text(cx, word, 0)));
        let program = words.next()?.1?;
        let program = program.as_literal()?;
        let mut text = cx.start(*input);
        for (_, word) in words {
            let word = word?;
            if word.head().starts_with('-') {
                continue;
            }
            if !text.pieces.is_empty() {
                text.push_literal(if program == "printf" { "\n" } else { " " });
            }
            for piece in &word.pieces {
                match piece {
                    Piece::Literal(literal) => text.push_literal(&unescape_all(literal)),
                    Piece::Hole(source) => text.push_hole(source),
                }
            }
        }
        (is_idle && matches!(program, "echo" | "printf")).then(|| read_commands(cx, &text, node)).flatten()
    }
}

fn call(cx: &Context<'_>, node: Node<'_>, words: Vec<TextExpr>, group: Option<usize>) -> Option<Call> {
    let mut words = words.into_iter();
    let name = words.next()?;
    let command = name.as_literal()?.to_ascii_uppercase();
    let (position, line) = (node.start_byte(), cx.start(node).line);
    is_command(&command).then(|| Call {
        command,
        args: words.map(Arg::Text).collect(),
        position,
        line,
        group,
    })
}

/// `--eval FILE KEY… , ARG…`
fn script_keys(args: &[TextExpr]) -> Vec<TextExpr> {
    let keys: Vec<&TextExpr> = args.iter().skip(1).take_while(|arg| arg.as_literal() != Some(",")).collect();
    let word = |text: &str| TextExpr::literal(text, 0, 0);
    let start = [word("EVAL"), word(""), word(&keys.len().to_string())];
    start.into_iter().chain(keys.into_iter().cloned()).collect()
}

/// `--scan --pattern PATTERN`
fn pattern_scan(args: &[TextExpr]) -> Vec<TextExpr> {
    let start = ["SCAN", "0", "MATCH"].map(|text| TextExpr::literal(text, 0, 0));
    start.into_iter().chain(args.iter().take(1).cloned()).collect()
}

/// The commands of an input, one for each line. Those between MULTI and EXEC are a transaction.
fn read_commands(cx: &Context<'_>, input: &TextExpr, node: Node<'_>) -> Option<Vec<Call>> {
    let (mut found, mut group) = (Vec::new(), None);
    let mut position = input.position;
    for (number, line) in input.split(|character| character == '\n').into_iter().enumerate() {
        let words = line.split(|character| character.is_whitespace());
        let words = words.into_iter().filter(|word| !word.pieces.is_empty());
        // Each word has a place of its own, so that equal positions mean the same text.
        let words: Vec<TextExpr> = words
            .map(|mut word| {
                position += 1 + word.literal_bytes();
                word.position = position;
                word.line = input.line + number;
                word.pieces.iter_mut().for_each(unquote);
                word
            })
            .collect();
        match words.first().and_then(TextExpr::as_literal).map(str::to_ascii_uppercase).as_deref() {
            Some("MULTI") => group = Some(node.start_byte() + number),
            Some("EXEC" | "DISCARD") => group = None,
            _ => {}
        }
        found.extend(call(cx, node, words, group).map(|call| Call { line: input.line + number, ..call }));
    }
    Some(found)
}

fn unquote(piece: &mut Piece) {
    if let Piece::Literal(text) = piece {
        *text = text.trim_matches(['"', '\'']).to_owned();
    }
}

fn literal_content(cx: &Context<'_>, node: Node<'_>) -> TextExpr {
    let mut text = cx.start(node);
    text.push_literal(&cx.text_of(node).replace("\\\"", "\"").replace("\\$", "$").replace("\\\\", "\\"));
    text
}

fn without_backslashes(word: &str) -> String {
    let mut is_escaped = false;
    let kept = word.chars().filter(|character| {
        is_escaped = *character == '\\' && !is_escaped;
        !is_escaped
    });
    kept.collect()
}
