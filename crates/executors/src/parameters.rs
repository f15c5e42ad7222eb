//! Checks of parameters that all executors share.

use ade_domain::{FieldPath, InvalidField};
use serde_json::{Map, Value};

use crate::{Failure, Parameters};

/// Reports unknown fields, and a worker label that is not text.
pub(crate) fn check_fields(parameters: &Parameters, known: &[&str]) -> Vec<InvalidField> {
    let mut violations = unknown_fields(parameters, known, "");
    if parameters.get("worker").is_some_and(|label| !label.is_string()) {
        violations.push(InvalidField::at("worker", "must be a worker label, as text"));
    }
    violations
}

pub(crate) fn unknown_fields(object: &Map<String, Value>, known: &[&str], parent: &str) -> Vec<InvalidField> {
    let unknown = object.keys().filter(|name| !known.contains(&name.as_str()));
    let detail = || format!("is unknown; expected one of {}", known.join(", "));
    unknown.map(|name| InvalidField::at(FieldPath::from(parent).field(name), detail())).collect()
}

/// Parameters are validated when a task is proposed and again by every operation, because the configuration may have changed.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(crate) fn invalid_parameters(violations: Vec<InvalidField>) -> Failure {
    let details: Vec<String> = violations.iter().map(ToString::to_string).collect();
    Failure::permanent(format!("invalid parameters: {}", details.join("; ")))
}
