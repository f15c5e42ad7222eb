//! Checks of parameters that all executors share.

use ade_domain::{FieldPath, InvalidField};
use serde_json::{Map, Value};

use crate::{Failure, Parameters, Validated};

/// Collects the violations in the parameters of a task.
#[derive(Debug, Default)]
pub(crate) struct Violations(Vec<InvalidField>);

impl Violations {
    /// Begins with unknown fields, and a worker label that is not text.
    pub(crate) fn of_fields(parameters: &Parameters, known: &[&str]) -> Self {
        let mut violations = Self::default();
        violations.report_unknown(parameters, known, "");
        if parameters.get("worker").is_some_and(|label| !label.is_string()) {
            violations.report("worker", "must be a worker label, as text");
        }
        violations
    }

    pub(crate) fn report(&mut self, path: impl Into<FieldPath>, detail: impl Into<String>) {
        self.0.push(InvalidField::at(path, detail));
    }

    pub(crate) fn report_unknown(&mut self, object: &Map<String, Value>, known: &[&str], parent: &str) {
        for name in object.keys().filter(|name| !known.contains(&name.as_str())) {
            let detail = format!("is unknown; expected one of {}", known.join(", "));
            self.report(FieldPath::from(parent).field(name), detail);
        }
    }

    /// Takes over the violations of a part, or returns its value.
    pub(crate) fn absorb<T>(&mut self, part: Validated<T>) -> Option<T> {
        part.map_err(|violations| self.0.extend(violations)).ok()
    }

    /// Returns the value unless there are violations.
    pub(crate) fn finish<T>(self, value: T) -> Validated<T> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }
}

/// Parameters are validated when a task is proposed and again by every operation, because the configuration may have changed.
impl From<Vec<InvalidField>> for Failure {
    fn from(violations: Vec<InvalidField>) -> Self {
        let details: Vec<String> = violations.iter().map(ToString::to_string).collect();
        Self::permanent(format!("invalid parameters: {}", details.join("; ")))
    }
}
