//! The report in SARIF 2.1.0, which code hosts show beside the code.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};
use strum::IntoEnumIterator;

use super::{Finding, Report, Rule};

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// The report as a SARIF log with one run.
#[must_use]
pub fn log(report: &Report, version: &str) -> Value {
    let rules: Vec<Value> = Rule::iter()
        .map(|rule| json!({ "id": rule.as_str(), "shortDescription": { "text": rule.summary() } }))
        .collect();
    let notifications: Vec<Value> = report
        .errors
        .iter()
        .map(|error| json!({ "level": "error", "message": { "text": error.to_string() } }))
        .collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "ade keys lint", "version": version, "rules": rules } },
            "columnKind": "unicodeCodePoints",
            "invocations": [{
                "executionSuccessful": report.errors.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
            "results": report.findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn result(finding: &Finding) -> Value {
    json!({
        "ruleId": finding.rule.as_str(),
        "ruleIndex": Rule::iter().position(|rule| rule == finding.rule),
        "level": "error",
        "message": { "text": format!("{}: {}", finding.key, finding.message) },
        "locations": [{
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&finding.path) },
                "region": { "startLine": finding.line },
            },
        }],
    })
}

/// A relative path as it is, an absolute one as file URI, both percent-encoded.
fn uri(path: &str) -> String {
    let mut uri = if Path::new(path).is_absolute() { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}
