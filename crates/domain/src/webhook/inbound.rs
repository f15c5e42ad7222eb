//! Inbound hooks: a signed message proposes a task. Its template fixes everything but the values of typed parameters, which are checked
//! before they are placed into it. A value is never read as a part of the template.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{PreviousSecret, SealedText, check_name};
use crate::people::UserId;
use crate::task::{Resource, RollbackStrategy};
use crate::{FieldPath, InvalidField, Moment, Validator};

pub const MAX_INBOUND_HOOKS: usize = 100;
const MAX_PARAMETERS: usize = 50;
const MAX_PARAMETER_NAME_LEN: usize = 64;
const MAX_STRING_LEN: u32 = 4_096;
const DEFAULT_STRING_LEN: u32 = 256;
const MAX_CHOICES: usize = 100;
/// Bytes of a template as JSON.
const MAX_TEMPLATE_BYTES: usize = 65_536;
/// Levels of objects and lists in the parameters of a template.
const MAX_DEPTH: usize = 32;

/// A hook that proposes tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboundHook {
    pub name: String,
    /// The author of the tasks.
    pub owner: UserId,
    /// Who registered the hook; none for the bootstrap token.
    pub created_by: Option<UserId>,
    /// Everybody who ever got a secret of the hook or changed what it proposes: they never decide about its tasks. It only grows.
    pub makers: BTreeSet<UserId>,
    pub created_at: Moment,
    pub active: bool,
    /// Whether tasks are submitted for review at once.
    pub submit: bool,
    pub template: TaskTemplate,
    pub secret: SealedText,
    /// Who got the secret when it was made; nobody if the operator did. None, in a hook of before this was stored: all makers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<BTreeSet<UserId>>,
    pub previous_secret: Option<PreviousSecret>,
    /// Who got the previous secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_holders: Option<BTreeSet<UserId>>,
}

/// A task with placeholders: `{name}` in a text is replaced by the value of that parameter. A text of `parameters` that is nothing but a
/// placeholder becomes the value itself, with its type.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    #[serde(rename = "type")]
    pub task_type: String,
    pub description: String,
    #[serde(default)]
    pub executor: Option<String>,
    #[serde(default)]
    pub parameters: Map<String, Value>,
    #[serde(default)]
    pub resources: Vec<Resource>,
    #[serde(default)]
    pub rollback_strategy: Option<RollbackStrategy>,
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
    #[serde(default)]
    pub priority: Option<u8>,
    #[serde(default)]
    pub team: Option<String>,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub inputs: BTreeMap<String, InputRule>,
}

/// Which values a parameter accepts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum InputRule {
    String {
        /// In characters; 256 by default.
        #[serde(default)]
        max_length: Option<u32>,
        #[serde(default)]
        default: Option<String>,
    },
    Integer {
        minimum: i64,
        maximum: i64,
        #[serde(default)]
        default: Option<i64>,
    },
    Boolean {
        #[serde(default)]
        default: Option<bool>,
    },
    Enum {
        values: Vec<String>,
        #[serde(default)]
        default: Option<String>,
    },
}

impl InputRule {
    fn default_value(&self) -> Option<Value> {
        match self {
            Self::String { default, .. } | Self::Enum { default, .. } => default.clone().map(Value::from),
            Self::Integer { default, .. } => default.map(Value::from),
            Self::Boolean { default } => default.map(Value::from),
        }
    }

    /// What is wrong with a value, if anything.
    fn fault(&self, value: &Value) -> Option<String> {
        match (self, value) {
            (Self::String { max_length, .. }, Value::String(text)) => {
                let max = max_length.unwrap_or(DEFAULT_STRING_LEN);
                let fits = text.chars().count() <= max as usize && text.chars().all(is_plain);
                let detail =
                    || format!("must be at most {max} characters, without hidden or control characters");
                (!fits).then(detail)
            }
            (Self::String { .. }, _) => Some("must be a string".to_owned()),
            (Self::Integer { minimum, maximum, .. }, value) => {
                let fits = value.as_i64().is_some_and(|number| (*minimum..=*maximum).contains(&number));
                (!fits).then(|| format!("must be an integer between {minimum} and {maximum}"))
            }
            (Self::Boolean { .. }, value) => {
                (!value.is_boolean()).then(|| "must be true or false".to_owned())
            }
            (Self::Enum { values, .. }, value) => {
                let fits = value.as_str().is_some_and(|text| values.iter().any(|choice| choice == text));
                (!fits).then(|| format!("must be one of {}", values.join(", ")))
            }
        }
    }

    fn validate(&self, input: &mut Validator, path: &str) {
        match self {
            Self::String { max_length, .. } => {
                let is_valid = max_length.is_none_or(|max| (1..=MAX_STRING_LEN).contains(&max));
                let detail = format_args!("must be between 1 and {MAX_STRING_LEN}");
                input.check(is_valid, format_args!("{path}.max_length"), detail);
            }
            Self::Integer { minimum, maximum, .. } => {
                let detail = "must not be below minimum";
                input.check(minimum <= maximum, format_args!("{path}.maximum"), detail);
            }
            Self::Boolean { .. } => {}
            Self::Enum { values, .. } => {
                let is_choice = |text: &String| {
                    (1..=DEFAULT_STRING_LEN as usize).contains(&text.len()) && text.chars().all(is_plain)
                };
                let is_valid = (1..=MAX_CHOICES).contains(&values.len()) && values.iter().all(is_choice);
                let detail =
                    format_args!("must be 1 to {MAX_CHOICES} texts of 1 to {DEFAULT_STRING_LEN} bytes");
                input.check(is_valid, format_args!("{path}.values"), detail);
            }
        }
        if let Some(fault) = self.default_value().and_then(|default| self.fault(&default)) {
            input.check(false, format_args!("{path}.default"), fault);
        }
    }
}

/// Values come from outside and are shown to reviewers: line breaks are fine, what hides or reorders text is not.
const fn is_plain(c: char) -> bool {
    matches!(c, '\n' | '\t') || crate::text::is_shown(c)
}

impl InboundHook {
    /// The secrets that are accepted at a time, each with its holders.
    pub fn accepted_secrets(&self, now: Moment) -> impl Iterator<Item = (&SealedText, &BTreeSet<UserId>)> {
        let previous = self.previous_secret.iter().filter(move |previous| now < previous.valid_until);
        let or_makers = |holders| Option::unwrap_or(holders, &self.makers);
        let previous =
            previous.map(move |previous| (&previous.secret, or_makers(self.previous_holders.as_ref())));
        std::iter::once((&self.secret, or_makers(self.holders.as_ref()))).chain(previous)
    }

    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        check_name(&mut input, &self.name);
        let faults = self.template.validate().into_iter().map(|fault| fault.within("template"));
        input.errors.into_iter().chain(faults).collect()
    }
}

impl TaskTemplate {
    /// Checks the rules and that every parameter is used. The task itself is checked when it is proposed.
    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let size = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        input.check(
            size <= MAX_TEMPLATE_BYTES,
            "",
            format_args!("must have at most {MAX_TEMPLATE_BYTES} bytes"),
        );
        input.check(!self.task_type.is_empty(), "type", "is required");
        input.check(!self.description.is_empty(), "description", "is required");
        let is_flat = self.parameters.values().all(|value| depth(value) <= MAX_DEPTH);
        input.check(is_flat, "parameters", format_args!("must have at most {MAX_DEPTH} levels"));
        if !is_flat {
            return input.errors;
        }
        let detail = format_args!("must have at most {MAX_PARAMETERS} entries");
        input.check(self.inputs.len() <= MAX_PARAMETERS, "inputs", detail);
        let used = self.texts();
        for (name, rule) in self.inputs.iter().take(MAX_PARAMETERS) {
            let is_name = (1..=MAX_PARAMETER_NAME_LEN).contains(&name.len())
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
            let detail =
                format_args!("has an invalid name: use 1 to {MAX_PARAMETER_NAME_LEN} of a-z, 0-9 and _");
            input.check(is_name, format_args!("inputs.{name}"), detail);
            rule.validate(&mut input, &format!("inputs.{name}"));
            let is_used = used.iter().any(|text| text.contains(&format!("{{{name}}}")));
            let detail = format_args!("is not used: write {{{name}}} where its value belongs");
            input.check(is_used, format_args!("inputs.{name}"), detail);
        }
        input.errors
    }

    /// Every text that may contain placeholders.
    fn texts(&self) -> Vec<&str> {
        let mut texts = vec![self.description.as_str()];
        texts.extend(self.resources.iter().map(|resource| resource.id.as_str()));
        self.parameters.values().for_each(|value| collect_texts(value, &mut texts));
        texts
    }

    /// The template with the values of a message; every violation if they do not fit.
    pub fn fill(&self, given: &Map<String, Value>) -> Result<Self, Vec<InvalidField>> {
        let (mut faults, mut values) = (Vec::new(), BTreeMap::new());
        for name in given.keys().filter(|name| !self.inputs.contains_key(*name)) {
            let path = FieldPath::from("data").field(name.clone());
            faults.push(InvalidField::at(path, "is not an input of this hook"));
        }
        for (name, rule) in &self.inputs {
            let path = || FieldPath::from("data").field(name.clone());
            match given.get(name).cloned().or_else(|| rule.default_value()) {
                None => faults.push(InvalidField::at(path(), "is required")),
                Some(value) => match rule.fault(&value) {
                    Some(fault) => faults.push(InvalidField::at(path(), fault)),
                    None => {
                        values.insert(name.as_str(), value);
                    }
                },
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut filled = self.clone();
        filled.description = fill_text(&self.description, &values);
        for resource in &mut filled.resources {
            resource.id = fill_text(&resource.id, &values);
        }
        for value in filled.parameters.values_mut() {
            fill_value(value, &values);
        }
        Ok(filled)
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| collect_texts(field, texts)),
        _ => {}
    }
}

/// Replaces placeholders in one pass, so that a value with braces stays as it is.
fn fill_text(template: &str, values: &BTreeMap<&str, Value>) -> String {
    let (mut filled, mut rest) = (String::with_capacity(template.len()), template);
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let found = after.split_once('}').and_then(|(name, after)| Some((values.get(name)?, after)));
        rest = match found {
            Some((Value::String(text), after)) => {
                filled.push_str(text);
                after
            }
            Some((value, after)) => {
                filled.push_str(&value.to_string());
                after
            }
            None => {
                filled.push('{');
                after
            }
        };
    }
    filled.push_str(rest);
    filled
}

fn fill_value(value: &mut Value, values: &BTreeMap<&str, Value>) {
    match value {
        Value::String(text) => {
            let name = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            *value = match name.and_then(|name| values.get(name)) {
                Some(whole) => whole.clone(),
                None => Value::String(fill_text(text, values)),
            };
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill_value(item, values)),
        Value::Object(fields) => fields.values_mut().for_each(|field| fill_value(field, values)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> TaskTemplate {
        serde_json::from_value(json!({
            "type": "deploy", "description": "Deploy {version} to {stage}", "executor": "agent",
            "parameters": { "replicas": "{replicas}", "text": "v{version} {unknown}", "nested": [{ "dry": "{dry_run}" }] },
            "resources": [{ "type": "service", "id": "shop-{stage}" }],
            "inputs": {
                "version": { "type": "string", "max_length": 20 },
                "stage": { "type": "enum", "values": ["test", "prod"] },
                "replicas": { "type": "integer", "minimum": 1, "maximum": 10, "default": 2 },
                "dry_run": { "type": "boolean", "default": false },
            },
        }))
        .expect("a template")
    }

    fn fill(values: Value) -> Result<TaskTemplate, Vec<String>> {
        let Value::Object(values) = values else { panic!("an object") };
        let paths = |faults: Vec<InvalidField>| faults.iter().map(|fault| fault.path.to_string()).collect();
        template().fill(&values).map_err(paths)
    }

    #[test]
    fn places_typed_values() {
        assert_eq!(template().validate(), []);
        let filled = fill(json!({ "version": "1.2", "stage": "prod", "replicas": 3 })).expect("valid");
        assert_eq!(filled.description, "Deploy 1.2 to prod");
        assert_eq!(filled.resources[0].id, "shop-prod");
        let parameters = json!({ "replicas": 3, "text": "v1.2 {unknown}", "nested": [{ "dry": false }] });
        assert_eq!(Value::Object(filled.parameters), parameters);
    }

    #[test]
    fn never_reads_values_as_placeholders() {
        let filled = fill(json!({ "version": "{stage}{", "stage": "test" })).expect("valid");
        assert_eq!(filled.description, "Deploy {stage}{ to test");
        assert_eq!(filled.parameters["text"], "v{stage}{ {unknown}");
    }

    #[test]
    fn rejects_values_of_other_types_and_beyond_bounds() {
        let valid = json!({ "version": "1", "stage": "test" });
        for (name, value) in [
            ("version", json!(1)),
            ("version", json!(null)),
            ("version", json!("x".repeat(21))),
            ("version", json!("a\u{202e}b")),
            ("version", json!("a\u{1b}b")),
            ("stage", json!("Prod")),
            ("stage", json!(["test"])),
            ("replicas", json!("3")),
            ("replicas", json!(0)),
            ("replicas", json!(11)),
            ("replicas", json!(1.5)),
            ("replicas", json!(u64::MAX)),
            ("dry_run", json!("true")),
            ("other", json!(1)),
        ] {
            let mut values = valid.clone();
            values[name] = value.clone();
            assert_eq!(fill(values), Err(vec![format!("data.{name}")]), "{name} {value}");
        }
        assert_eq!(fill(json!({})), Err(vec!["data.stage".to_owned(), "data.version".to_owned()]));
    }

    #[test]
    fn rejects_templates_that_cannot_work() {
        let faults = |change: fn(&mut Value)| {
            let mut json = json!(template());
            change(&mut json);
            let template: TaskTemplate = serde_json::from_value(json).expect("readable");
            template.validate().iter().map(|fault| fault.path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(faults(|json| json["description"] = json!("Deploy {version}")), [""; 0]);
        assert_eq!(faults(|json| json["parameters"] = json!({})), ["inputs.dry_run", "inputs.replicas"]);
        assert_eq!(
            faults(|json| json["inputs"]["replicas"]["maximum"] = json!(0)),
            ["inputs.replicas.maximum", "inputs.replicas.default"]
        );
        assert_eq!(faults(|json| json["inputs"]["stage"]["values"] = json!([])), ["inputs.stage.values"]);
        assert_eq!(
            faults(|json| json["inputs"]["A"] = json!({ "type": "boolean" })),
            ["inputs.A", "inputs.A"]
        );
    }
}
