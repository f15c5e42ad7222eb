//! Command templates: the operator defines the command, a task fills in arguments. An argument stays within its word: it is never
//! split, never interpreted by a shell, and never becomes an option.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::FieldPath;
use serde_json::{Map, Value};

use crate::parameters::Violations;

const MAX_ARGUMENT_BYTES: usize = 4_096;

/// A command that an operator allows. Each element is one word of the command; `{name}` in it is replaced by the argument of that
/// name, `{{` and `}}` are literal braces. The value of a placeholder at the beginning of a word must not start with a dash. If it
/// may, as for negative numbers, the operator writes the option: `--offset={offset}`. The operator must know whether a program
/// interprets other words (`@file`, `key=value`); `--` before arguments helps with many programs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandTemplate {
    /// Applies the task. The first word is the program, which is searched in the usual directories unless it is a path.
    pub argv: Vec<String>,
    /// Prints what would change, and changes nothing.
    pub preview_argv: Option<Vec<String>>,
    /// Undoes what `argv` has changed.
    pub rollback_argv: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} of the command template {template:?} {reason}")]
pub struct InvalidTemplate {
    pub(super) template: String,
    pub(super) field: &'static str,
    pub(super) reason: String,
}

/// The arguments of a task by name.
pub(super) type Arguments = BTreeMap<String, String>;

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Replaced by the argument of this name.
    Placeholder(String),
}

/// A command whose words may contain placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Argv(Vec<Vec<Segment>>);

impl Argv {
    pub(super) fn parse(argv: &[String]) -> Result<Self, String> {
        let words: Vec<Vec<Segment>> = argv.iter().map(|word| parse_word(word)).collect::<Result<_, _>>()?;
        match words.first().map(Vec::as_slice) {
            Some([Segment::Literal(program)]) if !program.is_empty() => Ok(Self(words)),
            _ => Err("must begin with a program name without placeholders".to_owned()),
        }
    }

    /// The names of its placeholders.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().filter_map(|segment| match segment {
            Segment::Placeholder(name) => Some(name.as_str()),
            Segment::Literal(_) => None,
        })
    }

    /// Fills in the arguments. The error is the name of an argument that would turn its word into an option.
    pub(super) fn fill(&self, arguments: &Arguments) -> Result<Vec<String>, String> {
        self.0.iter().map(|word| fill_word(word, arguments)).collect()
    }
}

fn fill_word(word: &[Segment], arguments: &Arguments) -> Result<String, String> {
    let mut filled = String::new();
    for segment in word {
        match segment {
            Segment::Literal(text) => filled.push_str(text),
            Segment::Placeholder(name) => {
                let value = arguments.get(name).map(String::as_str).unwrap_or_default();
                // Where options are intended, the template contains the dash, as in `--name={name}`.
                if filled.is_empty() && value.starts_with('-') {
                    return Err(name.clone());
                }
                filled.push_str(value);
            }
        }
    }
    Ok(filled)
}

/// Fills the arguments of a task into a text of the operator, such as the name of a resource.
pub(crate) fn fill_text(text: &str, arguments: Option<&Value>) -> Result<String, String> {
    let mut filled = String::new();
    for segment in parse_word(text)? {
        match segment {
            Segment::Literal(text) => filled.push_str(&text),
            Segment::Placeholder(name) => match arguments.and_then(|arguments| arguments.get(&name)) {
                Some(Value::String(value)) if !value.is_empty() => filled.push_str(value),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => filled.push_str(&value.to_string()),
                _ => return Err(format!("the argument {name} is missing or empty")),
            },
        }
    }
    Ok(filled)
}

/// The arguments that a text of the operator uses.
pub(crate) fn placeholder_names(text: &str) -> Vec<String> {
    let placeholder = |segment| match segment {
        Segment::Placeholder(name) => Some(name),
        Segment::Literal(_) => None,
    };
    parse_word(text).unwrap_or_default().into_iter().filter_map(placeholder).collect()
}

fn parse_word(word: &str) -> Result<Vec<Segment>, String> {
    if word.contains('\0') {
        return Err("must not contain NUL".to_owned());
    }
    let invalid = || format!("has {word:?}: a brace must be part of {{name}}, or be doubled");
    let (mut segments, mut literal) = (Vec::new(), String::new());
    let mut rest = word;
    while let Some(position) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(position);
        literal.push_str(before);
        if let Some(after) = brace.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = brace.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else {
            let (name, after) =
                brace.strip_prefix('{').and_then(|name| name.split_once('}')).ok_or_else(invalid)?;
            if !is_name(name) {
                return Err(invalid());
            }
            if !literal.is_empty() {
                segments.push(Segment::Literal(std::mem::take(&mut literal)));
            }
            segments.push(Segment::Placeholder(name.to_owned()));
            rest = after;
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() || segments.is_empty() {
        segments.push(Segment::Literal(literal));
    }
    Ok(segments)
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Reads the arguments of a task. All placeholders of the commands must have one, and no others are accepted. Without violations the
/// commands can be filled.
pub(super) fn parse_arguments(
    commands: &[&Argv],
    given: Option<&Value>,
    violations: &mut Violations,
) -> Arguments {
    let mut arguments = Arguments::new();
    let given = match given {
        None => &Map::new(),
        Some(Value::Object(given)) => given,
        Some(_) => {
            violations.report("arguments", "must be an object with the arguments by name");
            return arguments;
        }
    };
    let required: BTreeSet<&str> = commands.iter().flat_map(|argv| argv.names()).collect();
    for (name, value) in given {
        let at = FieldPath::from("arguments").field(name);
        if !required.contains(name.as_str()) {
            violations.report(at, "is not an argument of this template");
            continue;
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                violations.report(at, "must be text, a number, true or false");
                continue;
            }
        };
        if text.len() > MAX_ARGUMENT_BYTES || text.contains('\0') {
            violations.report(at, format!("must have at most {MAX_ARGUMENT_BYTES} bytes and no NUL"));
        }
        arguments.insert(name.clone(), text);
    }
    for name in required.iter().filter(|name| !given.contains_key(**name)) {
        violations.report(FieldPath::from("arguments").field(*name), "is missing");
    }
    let options: BTreeSet<String> = commands.iter().filter_map(|argv| argv.fill(&arguments).err()).collect();
    for name in options {
        let detail = "must not begin with \"-\": it would be read as an option";
        violations.report(FieldPath::from("arguments").field(&name), detail);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(argv: &[&str]) -> Result<Argv, String> {
        Argv::parse(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn violations(arguments: &Value) -> Vec<String> {
        let command = parse(&["run", "{a}", "--b={b}", "{c}.txt"]).expect("valid");
        let mut violations = Violations::default();
        parse_arguments(&[&command], Some(arguments), &mut violations);
        violations
            .finish(())
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(|violation| violation.path.to_string())
            .collect()
    }

    #[test]
    fn fills_placeholders_within_words() {
        let command = parse(&["run", "{a}", "x {a}{{{b}}} y", ""]).expect("valid");
        let arguments =
            Arguments::from([("a".to_owned(), "1 2; $(x)".to_owned()), ("b".to_owned(), "{a}".to_owned())]);
        assert_eq!(command.fill(&arguments).expect("filled"), ["run", "1 2; $(x)", "x 1 2; $(x){{a}} y", ""]);
        for invalid in [
            &[][..],
            &[""],
            &["{a}"],
            &["run{a}"],
            &["run", "{"],
            &["run", "}"],
            &["run", "{a b}"],
            &["run", "{}"],
            &["run", "a\0"],
        ] {
            assert!(parse(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn requires_all_arguments_and_rejects_options() {
        assert_eq!(violations(&json!({ "a": "x", "b": -1, "c": true })), [""; 0]);
        assert_eq!(violations(&json!({ "a": "-x", "b": "-y", "c": "-z" })), ["arguments.a"]);
        assert_eq!(violations(&json!({ "a": "", "b": "", "c": "-z" })), ["arguments.c"]);
        assert_eq!(violations(&json!({ "a": -1, "b": "", "c": "" })), ["arguments.a"]);
        assert_eq!(
            violations(&json!({ "a": "\0", "b": [], "d/e": 1 })),
            ["arguments.a", "arguments.b", "arguments.d/e", "arguments.c"]
        );
        assert_eq!(violations(&json!({ "a": "x".repeat(4_097), "b": "", "c": "" })), ["arguments.a"]);
        assert_eq!(violations(&json!([])), ["arguments"]);
        assert_eq!(violations(&json!({})), ["arguments.a", "arguments.b", "arguments.c"]);
    }
}
