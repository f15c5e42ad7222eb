//! Raw HTTP requests to an ADE server, also ones that a well-behaved client never sends. Every response is checked against the
//! OpenAPI description of the server: an undocumented status or problem code fails the test.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method};
use serde_json::Value;

use crate::server::{AdeServer, BOOTSTRAP_TOKEN};
use crate::wait::until;

/// Far longer than a server takes to sign its first checkpoint, also on a busy machine.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct ApiClient {
    http: Client,
    base: String,
    token: String,
    openapi: Value,
}

#[derive(Debug, Clone)]
pub struct ApiResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl ApiResponse {
    /// The body as JSON; null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The problem code, or an empty text.
    #[must_use]
    pub fn code(&self) -> String {
        self.json().get("code").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header, or an empty text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The JSON pointers of the `errors` of a problem.
    #[must_use]
    pub fn error_pointers(&self) -> Vec<String> {
        let json = self.json();
        let errors = json.get("errors").and_then(Value::as_array).cloned().unwrap_or_default();
        errors
            .iter()
            .filter_map(|error| error.get("pointer").and_then(Value::as_str).map(str::to_owned))
            .collect()
    }

    /// Asserts the status and returns the body.
    #[must_use]
    #[track_caller]
    pub fn expect_status(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// Asserts the status and the problem code and returns the body.
    #[must_use]
    #[track_caller]
    pub fn expect_problem(&self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        self.json()
    }
}

/// Percent-encodes a path segment.
#[must_use]
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Replaces every parameter of a path template with the same value.
#[must_use]
pub fn fill_path(path: &str, value: &str) -> String {
    let filled = |part: &str| if part.starts_with('{') { encode_segment(value) } else { part.to_owned() };
    path.split('/').map(filled).collect::<Vec<_>>().join("/")
}

impl ApiClient {
    /// Connects with the bootstrap token and loads the OpenAPI description.
    pub async fn connect(ade: &AdeServer) -> Self {
        // Every request opens a connection, so that none is stale after the server was killed.
        let http = Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        let mut api = Self { http, base: ade.url(), token: BOOTSTRAP_TOKEN.to_owned(), openapi: Value::Null };
        api.openapi = api.send_raw("GET", "/openapi.json", &[], "").await.expect_status(200);
        api
    }

    /// The same server with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// The OpenAPI description.
    #[must_use]
    pub fn openapi(&self) -> &Value {
        &self.openapi
    }

    /// `path` is below `/api/v1`.
    pub async fn get(&self, path: &str) -> ApiResponse {
        self.request("GET", path, "").await
    }

    /// Verifies the audit log, once the server has signed its first checkpoint.
    pub async fn verify_audit(&self) -> Value {
        let verify = || async {
            let verdict = self.get("/audit/verify").await.expect_status(200);
            let is_unverified = verdict.get("status").and_then(Value::as_str) == Some("unverified");
            if is_unverified { Err(verdict.to_string()) } else { Ok(verdict) }
        };
        until("a checkpoint of the audit log", CHECKPOINT_TIMEOUT, verify).await.expect("in time")
    }

    pub async fn post(&self, path: &str, body: &Value) -> ApiResponse {
        self.request("POST", path, &body.to_string()).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> ApiResponse {
        self.request("PATCH", path, &body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> ApiResponse {
        self.request("PUT", path, &body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.request("DELETE", path, "").await
    }

    pub async fn request(&self, method: &str, path: &str, body: &str) -> ApiResponse {
        self.request_with_headers(method, path, &[], body).await
    }

    pub async fn request_with_headers(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> ApiResponse {
        let authorization = format!("Bearer {}", self.token);
        let defaults = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        self.send_raw(method, &format!("/api/v1{path}"), &[&defaults, headers].concat(), body).await
    }

    /// Sends exactly this request, with no default headers. `path` is absolute.
    pub async fn send_raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> ApiResponse {
        let http_method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = self.http.request(http_method, format!("{}{path}", self.base)).body(body.into());
        for (name, value) in headers {
            request = request.header(*name, value.as_bytes());
        }
        let response = request.send().await.expect("a response");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // An event stream has no end.
        let is_stream = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream {
            Vec::new()
        } else {
            response.bytes().await.expect("a complete response").to_vec()
        };
        let response = ApiResponse { status, headers, body };
        self.check_documented(method, path, &response);
        response
    }

    /// Checks a response against the OpenAPI description.
    #[track_caller]
    fn check_documented(&self, method: &str, path: &str, response: &ApiResponse) {
        // Pages of the dashboard are for people.
        if response.header("content-type").starts_with("text/html") && !path.starts_with("/api/") {
            return;
        }
        if response.status >= 400 && method != "HEAD" {
            let (content_type, problem) = (response.header("content-type"), response.json());
            assert_eq!(content_type, "application/problem+json", "{method} {path}: {}", response.text());
            assert_eq!(
                problem.get("status").and_then(Value::as_u64),
                Some(response.status.into()),
                "{problem}"
            );
            for field in ["type", "title", "detail", "code"] {
                let text = problem.get(field).and_then(Value::as_str);
                assert!(text.is_some_and(|text| !text.is_empty()), "{field} of {problem}");
            }
        }
        // These come from before routing and are not part of any route.
        if matches!(response.status, 405 | 421) || response.code() == "PROXY_HEADERS" {
            return;
        }
        let Some(responses) = self.operation(method, path).and_then(|operation| operation.get("responses"))
        else {
            return;
        };
        let documented = responses.get(response.status.to_string());
        let description =
            documented.and_then(|documented| documented.get("description")).and_then(Value::as_str);
        let is_documented =
            description.is_some_and(|text| response.status < 400 || text.contains(&response.code()));
        assert!(is_documented, "undocumented response to {method} {path}: {}", response.text());
    }

    /// Every operation below `/api/v1`: method, path template, and its OpenAPI object.
    #[must_use]
    pub fn operations(&self) -> Vec<(String, String, Value)> {
        let paths = self.openapi.get("paths").and_then(Value::as_object).expect("paths");
        let operations_of = |(path, item): (&String, &Value)| {
            let item = item.as_object().cloned().unwrap_or_default();
            let path = path.clone();
            item.into_iter().map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
        };
        let all = paths.iter().filter(|(path, _)| path.starts_with("/api/v1/")).flat_map(operations_of);
        all.map(|(method, path, operation)| (method, path.replacen("/api/v1", "", 1), operation)).collect()
    }

    /// The operation that serves a path.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap_or_default();
        let matches_path = |template: &str| {
            let (mut left, mut right) = (template.split('/'), path.split('/'));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(part), Some(given)) if part == given || part.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        let paths = self.openapi.get("paths")?.as_object()?;
        // The template with the fewest parameters wins.
        let found = paths.iter().filter(|(template, _)| matches_path(template));
        let (_, item) = found.min_by_key(|(template, _)| template.matches('{').count())?;
        item.get(method.to_ascii_lowercase())
    }
}
