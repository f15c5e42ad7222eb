//! Speaks the WebDriver protocol with chromedriver, and through it the DevTools protocol with Chromium.
//!
//! Without a crate: the tests need about fifteen commands, each one line of JSON over the HTTP client that is here anyway.
//! fantoccini has no logs and a second HTTP stack; thirtyfour turns on features of shared dependencies (such as the order of
//! JSON objects), so that tests would build another server than the shipped one.

use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

/// Longer than all limits within the browser, so that those report first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(150);
/// Of a page that never finishes loading.
const PAGE_LOAD_TIMEOUT_MS: u32 = 60_000;
/// Of a script that never calls back; waiting has shorter limits of its own.
const SCRIPT_TIMEOUT_MS: u32 = 120_000;
/// The key of a reference to an element in JSON, as the standard defines it.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A command that failed.
#[derive(Debug, thiserror::Error)]
#[error("the browser cannot {doing}: {code}: {message}")]
pub struct DriverError {
    doing: String,
    /// The code of the standard, such as `no such element`; empty if chromedriver could not be reached.
    pub code: String,
    message: String,
}

impl DriverError {
    pub(crate) fn is_no_such_element(&self) -> bool {
        self.code == "no such element"
    }
}

/// One browser of a chromedriver, with a profile of its own.
#[derive(Debug)]
pub(crate) struct Session {
    http: Client,
    url: String,
    pub(crate) chromium_pid: i32,
}

impl Session {
    pub(crate) async fn open(driver: &str, chromium_options: &Value) -> Result<Self, DriverError> {
        let http = Client::builder().no_proxy().timeout(COMMAND_TIMEOUT).build().map_err(|error| {
            DriverError { doing: "connect".into(), code: String::new(), message: error.to_string() }
        })?;
        let mut session = Self { http, url: driver.to_owned(), chromium_pid: 0 };
        let capabilities = json!({
            "browserName": "chrome",
            "timeouts": { "script": SCRIPT_TIMEOUT_MS, "pageLoad": PAGE_LOAD_TIMEOUT_MS },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            "goog:chromeOptions": chromium_options,
            "unhandledPromptBehavior": "ignore",
        });
        let body = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let created = session.post("session", &body).await?;
        let text = |name: &str| created.get(name).and_then(Value::as_str).unwrap_or_default();
        session.url = format!("{driver}/session/{}", text("sessionId"));
        let pid = created.pointer("/capabilities/goog:processID").and_then(Value::as_i64);
        session.chromium_pid = pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        Ok(session)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, DriverError> {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, DriverError> {
        self.send(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value, DriverError> {
        self.send(Method::DELETE, path, None).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, DriverError> {
        let failed = |code: &str, message: &str| {
            let arguments = body.map(Value::to_string).unwrap_or_default();
            let arguments: String = arguments.chars().take(300).collect();
            let doing = format!("{method} {path} {arguments}");
            DriverError { doing, code: code.to_owned(), message: message.to_owned() }
        };
        let url = if path.is_empty() { self.url.clone() } else { format!("{}/{path}", self.url) };
        let mut request = self.http.request(method.clone(), url);
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable =
            |error: reqwest::Error| failed("", &format!("chromedriver did not respond: {error}"));
        let response = request.send().await.map_err(unreachable)?;
        let is_success = response.status().is_success();
        let mut answer: Value = response.json().await.map_err(unreachable)?;
        let value = answer.get_mut("value").map(Value::take).unwrap_or_default();
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        if is_success { Ok(value) } else { Err(failed(text("error"), text("message"))) }
    }

    /// Runs a command of the DevTools protocol.
    pub(crate) async fn cdp(&self, command: &str, parameters: &Value) -> Result<Value, DriverError> {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).await
    }

    /// Runs a script and returns what it returns.
    pub(crate) async fn execute(&self, script: &str, arguments: &Value) -> Result<Value, DriverError> {
        self.post("execute/sync", &json!({ "script": script, "args": arguments })).await
    }

    /// Runs a script and returns what it passes to its last argument.
    pub(crate) async fn execute_async(&self, script: &str) -> Result<Value, DriverError> {
        self.post("execute/async", &json!({ "script": script, "args": [] })).await
    }

    /// A reference to the first element that matches.
    pub(crate) async fn element(&self, css: &str) -> Result<String, DriverError> {
        let found = self.post("element", &json!({ "using": "css selector", "value": css })).await?;
        Ok(element_id(&found))
    }

    pub(crate) async fn active_element(&self) -> Result<String, DriverError> {
        match self.get("element/active").await {
            Ok(element) => Ok(element_id(&element)),
            Err(error) if error.is_no_such_element() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Entries that were logged since the last call.
    pub(crate) async fn log(&self, kind: &str) -> Result<Vec<Value>, DriverError> {
        let mut entries = self.post("se/log", &json!({ "type": kind })).await?;
        Ok(entries.as_array_mut().map(std::mem::take).unwrap_or_default())
    }
}

/// An element as an argument of a script or action.
pub(crate) fn reference(element: &str) -> Value {
    json!({ ELEMENT: element })
}

fn element_id(element: &Value) -> String {
    element.get(ELEMENT).and_then(Value::as_str).unwrap_or_default().to_owned()
}
