//! Finds accessibility faults in a page with axe-core, which `scripts/axe-core/fetch` fetches pinned when the first test asks.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::page::{Page, must};

/// A fault of impact serious or critical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule of axe-core, such as `color-contrast`.
    pub rule: String,
    pub impact: String,
    pub help: String,
    /// Selectors of the elements.
    pub elements: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, impact, help, elements } = self;
        write!(formatter, "{rule} ({impact}): {help}\n    {}", elements.join("\n    "))
    }
}

impl Page {
    /// The accessibility faults of impact serious and critical. Scripts of tests run whatever the policy of the page allows.
    pub async fn axe(&self) -> Vec<Violation> {
        let is_loaded = self.eval("return typeof axe === 'object'", &[]).await;
        if is_loaded != json!(true) {
            must(self.session.execute(axe_core(), &json!([])).await);
        }
        let settings = json!({
            // Nothing but the page sends requests.
            "preload": false,
            "resultTypes": ["violations"],
            "rules": { "target-size": { "enabled": true } },
        });
        let result = self.eval("return axe.run(document, arguments[0])", &[settings]).await;
        let violations = result.get("violations").and_then(Value::as_array).expect("a result of axe-core");
        violations.iter().filter_map(violation).collect()
    }

    /// Fails if [`Self::axe`] finds anything.
    pub async fn assert_accessible(&self) {
        let violations = self.axe().await;
        let list: Vec<String> = violations.iter().map(|violation| format!("  {violation}")).collect();
        assert!(list.is_empty(), "{} faults at {}:\n{}", list.len(), self.url().await, list.join("\n"));
    }
}

fn violation(found: &Value) -> Option<Violation> {
    let text = |name: &str| found.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let impact = text("impact");
    if !["serious", "critical"].contains(&impact.as_str()) {
        return None;
    }
    let nodes = found.get("nodes").and_then(Value::as_array).into_iter().flatten();
    let details = |node: &Value| {
        let why = node.get("failureSummary").and_then(Value::as_str).unwrap_or_default();
        let selector = node.get("target").map(Value::to_string).unwrap_or_default();
        format!("{selector}: {}", why.replace('\n', " "))
    };
    Some(Violation { rule: text("id"), impact, help: text("help"), elements: nodes.map(details).collect() })
}

/// The source of axe-core.
fn axe_core() -> &'static str {
    static SOURCE: OnceLock<String> = OnceLock::new();
    SOURCE.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/axe-core/fetch");
        let test = std::env::current_exe().expect("the path of this test");
        let target = test.ancestors().nth(3).expect("a target folder");
        let output = Command::new(script).env("CARGO_TARGET_DIR", target).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = String::from_utf8(output.stdout).expect("a path");
        fs::read_to_string(path.trim()).expect("axe-core is readable")
    })
}
