//! What went wrong in the pages of a window: from the console and the network log of Chromium.
//!
//! Everything that is not known to be harmless is a problem; tests remove what they expect.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;

use reqwest::Url;
use serde_json::Value;

use super::driver::DriverError;
use super::page::{Page, must};

/// Console lines that error messages show.
const MAX_CONSOLE_LINES: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// An error or warning in the console.
    Console,
    /// An uncaught exception or rejected promise.
    Exception,
    /// A violation of the content security policy, or another refusal of the browser.
    Security,
    /// A request without a response, or with a status from 400.
    FailedRequest,
    /// A request to an origin that is not allowed.
    ForeignRequest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.kind, self.text)
    }
}

impl Page {
    /// Everything that went wrong since the last call, in all tabs of this window.
    pub async fn problems(&self) -> Vec<Problem> {
        // Logged before the answer to this are all messages of what the page did before.
        let _ = self.session.execute("return 0", &Value::Array(Vec::new())).await;
        must(self.collect().await);
        std::mem::take(&mut self.collected().problems)
    }

    /// Fails if anything went wrong since the last call of [`Self::problems`].
    pub async fn assert_clean(&self) {
        let problems = self.problems().await;
        let list: Vec<String> = problems.iter().map(|problem| format!("  {problem}")).collect();
        assert!(problems.is_empty(), "{} problems at {}:\n{}", list.len(), self.url().await, list.join("\n"));
    }

    /// Fetches what Chromium has logged since the last time.
    pub(super) async fn collect(&self) -> Result<(), DriverError> {
        let network = self.session.log("performance").await?;
        let console = self.session.log("browser").await?;
        let mut collected = self.collected();
        for entry in &network {
            collected.add_network(entry);
        }
        for entry in &console {
            collected.add_console(entry);
        }
        Ok(())
    }
}

/// What was logged so far in a window.
#[derive(Debug, Default)]
pub(super) struct Collected {
    problems: Vec<Problem>,
    console: VecDeque<String>,
    allowed_origins: BTreeSet<String>,
    /// Method and URL by request.
    requests: HashMap<String, (String, String)>,
    failed_urls: BTreeSet<String>,
}

impl Collected {
    pub(super) fn new(allowed_origins: &[String]) -> Self {
        let mut collected = Self::default();
        for origin in allowed_origins {
            collected.allow(origin);
        }
        collected
    }

    pub(super) fn allow(&mut self, url: &str) {
        self.allowed_origins.extend(origin(url));
    }

    pub(super) fn console(&self) -> String {
        self.console.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }

    fn add(&mut self, kind: ProblemKind, text: String) {
        self.problems.push(Problem { kind, text });
    }

    fn add_console(&mut self, entry: &Value) {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let (level, source, message) = (text("level"), text("source"), text("message"));
        self.console.push_back(format!("{level} {source}: {message}"));
        if self.console.len() > MAX_CONSOLE_LINES {
            self.console.pop_front();
        }
        // Failed requests are known from the network log, with more details.
        let is_known =
            source == "network" && self.failed_urls.iter().any(|url| message.starts_with(url.as_str()));
        if is_known || !["WARNING", "SEVERE"].contains(&level) {
            return;
        }
        let kind = match source {
            "javascript" => ProblemKind::Exception,
            "network" => ProblemKind::FailedRequest,
            "security" => ProblemKind::Security,
            _ => ProblemKind::Console,
        };
        self.add(kind, message.to_owned());
    }

    fn add_network(&mut self, entry: &Value) {
        let message = entry.get("message").and_then(Value::as_str).unwrap_or_default();
        let message: Value = serde_json::from_str(message).unwrap_or_default();
        let at = |pointer: &str| message.pointer(pointer).unwrap_or(&Value::Null);
        let text = |pointer: &str| at(pointer).as_str().unwrap_or_default().to_owned();
        let id = text("/message/params/requestId");
        match text("/message/method").as_str() {
            "Network.requestWillBeSent" => {
                let (method, url) =
                    (text("/message/params/request/method"), text("/message/params/request/url"));
                self.check_origin(&method, &url);
                self.requests.insert(id, (method, url));
            }
            "Network.webSocketCreated" => self.check_origin("WebSocket", &text("/message/params/url")),
            "Network.responseReceived" => {
                let status = at("/message/params/response/status").as_i64().unwrap_or_default();
                if status >= 400 {
                    self.add_failed(&id, &format!("status {status}"));
                }
            }
            // Cancelled: the page was left, or its script aborted the request.
            "Network.loadingFailed" if at("/message/params/canceled").as_bool() != Some(true) => {
                let reason = text("/message/params/blockedReason");
                self.add_failed(&id, format!("{} {reason}", text("/message/params/errorText")).trim());
            }
            _ => {}
        }
    }

    fn add_failed(&mut self, request_id: &str, reason: &str) {
        let (method, url) = self.requests.get(request_id).cloned().unwrap_or_default();
        self.add(ProblemKind::FailedRequest, format!("{method} {url}: {reason}"));
        self.failed_urls.insert(url);
    }

    fn check_origin(&mut self, method: &str, url: &str) {
        if origin(url).is_some_and(|origin| !self.allowed_origins.contains(&origin)) {
            self.add(ProblemKind::ForeignRequest, format!("{method} {url}"));
        }
    }
}

/// Host and port, if a request for the URL leaves the browser.
fn origin(url: &str) -> Option<String> {
    let Ok(parsed) = Url::parse(url) else { return Some(url.to_owned()) };
    if ["about", "blob", "chrome", "chrome-error", "data"].contains(&parsed.scheme()) {
        return None;
    }
    // A WebSocket belongs to the origin of its page.
    let scheme = parsed.scheme().replacen("ws", "http", 1);
    Some(format!("{scheme}://{}:{}", parsed.host_str()?, parsed.port_or_known_default()?))
}
