//! Templates of commands: an operator says what is run, a task fills in words. A word stays one word: it is never split, never
//! read by a shell, and never becomes an option.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Invalid;
use serde_json::Value;

use crate::Parameters;

/// Bytes of one argument.
const LONGEST_ARGUMENT: usize = 4_096;

/// What an operator allows to be run. Each element is one word of the command; `{name}` in it is replaced by the task's argument
/// of that name, `{{` and `}}` stand for braces. A word that begins with an argument cannot begin with a dash; where that is
/// wanted, as for negative numbers, the operator writes the option: `--offset={offset}`. Programs that read other words as orders
/// (`@file`, `key=value`) are for the operator to know; `--` before arguments helps with many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Template {
    /// Carries it out. The first word is the program; it is looked for in the usual folders unless it is a path.
    pub argv: Vec<String>,
    /// Says what would change, and changes nothing.
    pub preview_argv: Option<Vec<String>>,
    /// Changes it back.
    pub rollback_argv: Option<Vec<String>>,
}

/// A template that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} of the command template {template:?} {why}")]
pub struct BadTemplate {
    pub(super) template: String,
    pub(super) field: &'static str,
    pub(super) why: String,
}

/// The arguments of a task, as text.
pub(super) type Arguments = BTreeMap<String, String>;

/// A word of a command, in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Argument(String),
}

/// A command whose words may have places for arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words(Vec<Vec<Part>>);

impl Words {
    pub(super) fn parse(argv: &[String]) -> Result<Self, String> {
        let words: Vec<Vec<Part>> = argv.iter().map(|word| parts(word)).collect::<Result<_, _>>()?;
        match words.first().map(Vec::as_slice) {
            Some([Part::Text(program)]) if !program.is_empty() => Ok(Self(words)),
            _ => Err("must begin with a program, which no argument can choose".to_owned()),
        }
    }

    /// The arguments that it needs.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flatten().filter_map(|part| match part {
            Part::Argument(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The command with these arguments. One that would turn a word into an option is named instead.
    pub(super) fn fill(&self, arguments: &Arguments) -> Result<Vec<String>, String> {
        self.0.iter().map(|word| fill(word, arguments)).collect()
    }
}

fn fill(word: &[Part], arguments: &Arguments) -> Result<String, String> {
    let mut filled = String::new();
    for part in word {
        match part {
            Part::Text(text) => filled.push_str(text),
            Part::Argument(name) => {
                let value = arguments.get(name).map(String::as_str).unwrap_or_default();
                // An operator who wants options writes the dash, as in `--name={name}`.
                if filled.is_empty() && value.starts_with('-') {
                    return Err(name.clone());
                }
                filled.push_str(value);
            }
        }
    }
    Ok(filled)
}

fn parts(word: &str) -> Result<Vec<Part>, String> {
    if word.contains('\0') {
        return Err("must not contain NUL".to_owned());
    }
    let broken = || format!("has {word:?}: a brace must be part of {{name}}, or be written twice");
    let (mut parts, mut text) = (Vec::new(), String::new());
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        if let Some(after) = from.strip_prefix("{{") {
            text.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            text.push('}');
            rest = after;
        } else {
            let (name, after) =
                from.strip_prefix('{').and_then(|from| from.split_once('}')).ok_or_else(broken)?;
            if !is_name(name) {
                return Err(broken());
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Argument(name.to_owned()));
            rest = after;
        }
    }
    text.push_str(rest);
    if !text.is_empty() || parts.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// The arguments of a task for commands that need these names, all of them and no others.
pub(super) fn arguments(
    template: &str,
    commands: &[&Words],
    parameters: &Parameters,
) -> Result<Arguments, Vec<Invalid>> {
    let mut faults = Vec::new();
    for name in parameters.keys().filter(|name| !["template", "arguments", "worker"].contains(&name.as_str()))
    {
        faults.push(Invalid::at(pointer("", name), "is not known; known are template, arguments, worker"));
    }
    if parameters.get("template").and_then(Value::as_str) != Some(template) {
        faults.push(Invalid::at("/template", format!("must be {template:?}")));
    }
    if parameters.get("worker").is_some_and(|label| !label.is_string()) {
        faults.push(Invalid::at("/worker", "must be the label of workers"));
    }
    let given = match parameters.get("arguments") {
        None => None,
        Some(Value::Object(given)) => Some(given),
        Some(_) => {
            faults.push(Invalid::at("/arguments", "must be an object of names and values"));
            return Err(faults);
        }
    };
    let needed: BTreeSet<&str> = commands.iter().flat_map(|words| words.names()).collect();
    let mut arguments = Arguments::new();
    for (name, value) in given.into_iter().flatten() {
        let at = pointer("/arguments", name);
        if !needed.contains(name.as_str()) {
            faults.push(Invalid::at(at, "is not an argument of this template"));
            continue;
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(yes) => yes.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                faults.push(Invalid::at(at, "must be a text, a number, true or false"));
                continue;
            }
        };
        if text.len() > LONGEST_ARGUMENT || text.contains('\0') {
            faults.push(Invalid::at(at, format!("must have at most {LONGEST_ARGUMENT} bytes, and no NUL")));
        }
        arguments.insert(name.clone(), text);
    }
    for name in needed.iter().filter(|name| !given.is_some_and(|given| given.contains_key(**name))) {
        faults.push(Invalid::at(pointer("/arguments", name), "is missing"));
    }
    let dashed: BTreeSet<String> = commands.iter().filter_map(|words| words.fill(&arguments).err()).collect();
    for name in dashed {
        faults.push(Invalid::at(
            pointer("/arguments", &name),
            "must not begin with \"-\": it would be read as an option",
        ));
    }
    if faults.is_empty() { Ok(arguments) } else { Err(faults) }
}

fn pointer(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(argv: &[&str]) -> Result<Words, String> {
        Words::parse(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    fn faults(parameters: &Value) -> Vec<String> {
        let command = words(&["run", "{a}", "--b={b}", "{c}.txt"]).expect("fits");
        let found = arguments("t", &[&command], parameters.as_object().expect("an object"));
        found.err().unwrap_or_default().into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn words_stay_words() {
        let command = words(&["run", "{a}", "x {a}{{{b}}} y", ""]).expect("fits");
        let arguments =
            Arguments::from([("a".to_owned(), "1 2; $(x)".to_owned()), ("b".to_owned(), "{a}".to_owned())]);
        assert_eq!(command.fill(&arguments).expect("filled"), ["run", "1 2; $(x)", "x 1 2; $(x){{a}} y", ""]);
        for broken in [
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
            assert!(words(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn arguments_are_all_there_and_no_options() {
        let with = |arguments: Value| json!({ "template": "t", "arguments": arguments });
        assert_eq!(faults(&with(json!({ "a": "x", "b": -1, "c": true }))), [""; 0]);
        assert_eq!(faults(&with(json!({ "a": "-x", "b": "-y", "c": "-z" }))), ["/arguments/a"]);
        assert_eq!(faults(&with(json!({ "a": "", "b": "", "c": "-z" }))), ["/arguments/c"]);
        assert_eq!(faults(&with(json!({ "a": -1, "b": "", "c": "" }))), ["/arguments/a"]);
        assert_eq!(
            faults(&with(json!({ "a": "\0", "b": [], "d/e": 1 }))),
            ["/arguments/a", "/arguments/b", "/arguments/d~1e", "/arguments/c"]
        );
        assert_eq!(faults(&with(json!({ "a": "x".repeat(4_097), "b": "", "c": "" }))), ["/arguments/a"]);
        assert_eq!(
            faults(&json!({ "template": "u", "x": 1, "arguments": [] })),
            ["/x", "/template", "/arguments"]
        );
        assert_eq!(faults(&json!({ "template": "t" })), ["/arguments/a", "/arguments/b", "/arguments/c"]);
    }
}
