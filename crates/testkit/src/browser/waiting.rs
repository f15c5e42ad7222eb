//! Waits in the page until a condition holds: it is evaluated at each change of the document and at each event that can change
//! what it reads. A page that takes the place of the first is observed in turn.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::driver::DriverError;
use super::page::Page;
use crate::wait::until;

/// Far longer than a page needs, also on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pages that may take the place of each other during one wait.
const MAX_DOCUMENTS: usize = 20;
/// Of the displayed text in an error message.
const MAX_TEXT_LENGTH: usize = 3_000;

impl Page {
    /// Waits until an element that matches is displayed.
    pub async fn wait_for(&self, css: &str) {
        let css = json!(css);
        self.wait_until(&format!(
            "[...document.querySelectorAll({css})].some(element => element.checkVisibility())"
        ))
        .await;
    }

    /// Clicks an element that loads another page, and waits until that page is complete: a click returns before a slow response
    /// replaces the page.
    pub async fn click_through(&self, css: &str) {
        let document = || async { self.session.element("html").await.map_err(|error| error.to_string()) };
        let before = document().await.unwrap_or_else(|message| panic!("{message}"));
        self.click(css).await;
        let replaced = || async {
            let is_complete =
                self.session.execute("return document.readyState === 'complete'", &json!([])).await;
            let is_another = document().await? != before;
            let is_complete = is_complete.map_err(|error| error.to_string())? == Value::Bool(true);
            if is_another && is_complete { Ok(()) } else { Err("the page is the same".to_owned()) }
        };
        let loaded = until("another page", WAIT_TIMEOUT, replaced).await;
        loaded.unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Waits until a JavaScript expression is true, or the promise that it returns resolves to something true, and returns its
    /// value. It must depend on the document, focus or scrolling: nothing announces a change of a variable.
    pub async fn wait_until(&self, expression: &str) -> Value {
        self.try_wait_until(expression, WAIT_TIMEOUT).await.unwrap_or_else(|message| panic!("{message}"))
    }

    /// [`Self::wait_until`] with a time limit. The error tells what the page shows instead.
    pub async fn try_wait_until(&self, expression: &str, timeout: Duration) -> Result<Value, String> {
        let result = if self.options().has_javascript {
            self.observe(expression, timeout).await
        } else {
            self.poll(expression, timeout).await
        };
        match result {
            Ok(value) => Ok(value),
            Err(cause) => Err(format!(
                "{expression} is not true after {timeout:?}{cause}\n{}",
                self.description().await
            )),
        }
    }

    async fn observe(&self, expression: &str, timeout: Duration) -> Result<Value, String> {
        let deadline = Instant::now() + timeout;
        let mut last_error = String::new();
        for _ in 0..MAX_DOCUMENTS {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            let script = format!(
                "const condition = async () => ({expression}); const milliseconds = {left};\n{}",
                include_str!("wait.js")
            );
            let result = match self.session.execute_async(&script).await {
                Ok(result) => result,
                // The document has been replaced, or the expression is invalid: then it fails again.
                Err(error) => {
                    last_error = format!(": {error}");
                    continue;
                }
            };
            if let Some(value) = result.get("met") {
                return Ok(value.clone());
            }
            let thrown = result.get("error").and_then(Value::as_str);
            return Err(thrown.map(|thrown| format!(": {thrown}")).unwrap_or_default());
        }
        Err(last_error)
    }

    /// Without JavaScript, pages run no observer; they change only by navigation.
    async fn poll(&self, expression: &str, timeout: Duration) -> Result<Value, String> {
        let script = format!("return ({expression})");
        let evaluate = || async {
            match self.session.execute(&script, &json!([])).await {
                Ok(Value::Null | Value::Bool(false)) => Err(String::new()),
                Ok(value) => Ok(value),
                Err(error) => Err(error.to_string()),
            }
        };
        until("the page changes", timeout, evaluate).await.map_err(|error| format!(": {error}"))
    }

    /// What a person who looks at the failed test wants to know.
    async fn description(&self) -> String {
        let script = "return [location.href, document.title, document.body ? document.body.innerText : '']";
        let shown = match self.session.execute(script, &json!([])).await {
            Ok(shown) => shown,
            Err(error) => return format!("the page does not respond: {error}"),
        };
        let part = |number: usize| shown.get(number).and_then(Value::as_str).unwrap_or_default();
        let text: String = part(2).chars().take(MAX_TEXT_LENGTH).collect();
        let console = match self.collect().await {
            Ok(()) => self.collected().console(),
            Err(error) => DriverError::to_string(&error),
        };
        format!("URL: {}\ntitle: {}\ntext:\n{text}\nconsole:\n{console}", part(0), part(1))
    }
}
