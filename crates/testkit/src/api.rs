//! Requests to a server of ADE's own, byte by byte: for what a well-behaved client never sends. Every answer is held
//! against the description that the server itself gives of its API: a status or a code that is not promised there fails
//! the test.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method};
use serde_json::Value;

use crate::ade::{Ade, TOKEN};

/// A caller who may send anything.
#[derive(Debug, Clone)]
pub struct Api {
    http: Client,
    base: String,
    token: String,
    description: Value,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The problem's code, or nothing.
    #[must_use]
    pub fn code(&self) -> String {
        self.json().get("code").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header, or nothing.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The JSON pointers of `errors`.
    #[must_use]
    pub fn pointers(&self) -> Vec<String> {
        let json = self.json();
        let errors = json.get("errors").and_then(Value::as_array).cloned().unwrap_or_default();
        errors
            .iter()
            .filter_map(|error| error.get("pointer").and_then(Value::as_str).map(str::to_owned))
            .collect()
    }

    /// The body of an answer that must have this status.
    #[must_use]
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// The body of a problem that must have this status and code.
    #[must_use]
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        self.json()
    }
}

/// A part of a path with every special character encoded.
#[must_use]
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A path of the description with its variable parts filled in.
#[must_use]
pub fn fill(path: &str, with: &str) -> String {
    let filled = |part: &str| if part.starts_with('{') { segment(with) } else { part.to_owned() };
    path.split('/').map(filled).collect::<Vec<_>>().join("/")
}

impl Api {
    /// A caller of this server.
    pub async fn of(ade: &Ade) -> Self {
        // Every request has a connection of its own, so that none of them is left over when the server is killed.
        let http = Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        let mut api = Self { http, base: ade.url(), token: TOKEN.to_owned(), description: Value::Null };
        api.description = api.send("GET", "/openapi.json", &[], "").await.expect(200);
        api
    }

    /// The same, with another token.
    #[must_use]
    pub fn acting_with(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// What the server says about itself.
    #[must_use]
    pub fn description(&self) -> &Value {
        &self.description
    }

    /// With its token, below the base of the API: the administrator's, unless it acts with another.
    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    /// The same with a body.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, &body.to_string()).await
    }

    /// The same that changes a part.
    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.call("PATCH", path, &body.to_string()).await
    }

    /// The same that puts something in the place of what is there.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, &body.to_string()).await
    }

    /// The same with another method.
    pub async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, "").await
    }

    /// The same with any method and any body.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.call_with(method, path, &[], body).await
    }

    /// The same with more headers.
    pub async fn call_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let authorization = format!("Bearer {}", self.token);
        let usual = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        self.send(method, &format!("/api/v1{path}"), &[&usual, headers].concat(), body).await
    }

    /// Exactly this.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        let verb = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut call = self.http.request(verb, format!("{}{path}", self.base)).body(body.into());
        for (name, value) in headers {
            call = call.header(*name, value.as_bytes());
        }
        let answer = call.send().await.expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.bytes().await.expect("a whole answer").to_vec();
        let answer = Answer { status, headers, body };
        self.check(method, path, &answer);
        answer
    }

    /// Holds an answer against the description.
    #[track_caller]
    fn check(&self, method: &str, path: &str, answer: &Answer) {
        if answer.status >= 400 && method != "HEAD" {
            let (kind, problem) = (answer.header("content-type"), answer.json());
            assert_eq!(kind, "application/problem+json", "{method} {path}: {}", answer.text());
            assert_eq!(
                problem.get("status").and_then(Value::as_u64),
                Some(answer.status.into()),
                "{problem}"
            );
            for field in ["type", "title", "detail", "code"] {
                let text = problem.get(field).and_then(Value::as_str);
                assert!(text.is_some_and(|text| !text.is_empty()), "{field} of {problem}");
            }
        }
        // What is decided before a route is found is the same for all.
        if matches!(answer.status, 405 | 421) {
            return;
        }
        let Some(responses) = self.operation(method, path).and_then(|operation| operation.get("responses"))
        else {
            return;
        };
        let promised = responses.get(answer.status.to_string());
        let promised = promised.and_then(|response| response.get("description")).and_then(Value::as_str);
        let described = promised.is_some_and(|text| answer.status < 400 || text.contains(&answer.code()));
        assert!(described, "{method} {path} answers what is not described: {}", answer.text());
    }

    /// Every operation below the base: method, path as the description writes it, and what it says about it.
    #[must_use]
    pub fn operations(&self) -> Vec<(String, String, Value)> {
        let paths = self.description.get("paths").and_then(Value::as_object).expect("paths");
        let of = |(path, item): (&String, &Value)| {
            let item = item.as_object().cloned().unwrap_or_default();
            let path = path.clone();
            item.into_iter().map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
        };
        let all = paths.iter().filter(|(path, _)| path.starts_with("/api/v1/")).flat_map(of);
        all.map(|(method, path, operation)| (method, path.replacen("/api/v1", "", 1), operation)).collect()
    }

    /// The description of the route that serves a path, if there is one.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next().unwrap_or_default();
        let fits = |template: &str| {
            let (mut left, mut right) = (template.split('/'), path.split('/'));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(part), Some(given)) if part == given || part.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        let paths = self.description.get("paths")?.as_object()?;
        // A template with fewer variables wins.
        let found = paths.iter().filter(|(template, _)| fits(template));
        let (_, item) = found.min_by_key(|(template, _)| template.matches('{').count())?;
        item.get(method.to_ascii_lowercase())
    }
}
