//! The request of a task, parsed from its parameters. Secrets are referenced by name and go only to the host that they are bound
//! to. A task must not set headers that frame the request or that authenticate us.

use std::collections::BTreeMap;

use ade_domain::{FieldPath, InvalidField};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde_json::Value;
use url::Url;

use super::Secret;
use crate::Parameters;
use crate::egress::{AllowedHost, EgressPolicy};
use crate::parameters::check_fields;

const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 8_192;
const MAX_BODY_BYTES: usize = 131_072;
const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];
const FIELDS: [&str; 7] = ["method", "url", "headers", "body", "preview_url", "rollback_url", "worker"];
/// Headers of the connection, and those that we set.
const RESERVED_HEADERS: [&str; 15] = [
    "host",
    "content-length",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "referer",
    "idempotency-key",
    "ade-fencing-token",
    "ade-task-id",
    "ade-attempt",
];
/// Authentication headers must be secrets, because many people can read a task.
const SECRET_HEADERS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

#[derive(Debug, Clone)]
pub(super) struct RequestSpec {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers_without_secrets: HeaderMap,
    /// All headers, including secrets.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) preview_url: Option<Url>,
    pub(super) rollback_url: Option<Url>,
}

/// Parses the parameters of one task and collects violations.
struct Parser<'a> {
    egress: &'a EgressPolicy,
    secrets: &'a BTreeMap<String, Secret>,
    violations: Vec<InvalidField>,
}

impl RequestSpec {
    pub(super) fn parse(
        parameters: &Parameters,
        egress: &EgressPolicy,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<Self, Vec<InvalidField>> {
        let mut parser = Parser { egress, secrets, violations: check_fields(parameters, &FIELDS) };
        let method = parameters.get("method").and_then(Value::as_str).unwrap_or_default();
        let method = METHODS.iter().find(|known| **known == method).and_then(|known| known.parse().ok());
        if method.is_none() {
            parser.report("method", format!("must be one of {}", METHODS.join(", ")));
        }
        let url = parser.url(parameters, "url");
        if url.is_none() && !parameters.contains_key("url") {
            parser.report("url", "is required");
        }
        let preview_url = parser.url(parameters, "preview_url");
        let rollback_url = parser.url(parameters, "rollback_url");
        let approved_urls: Vec<_> = url.iter().chain(&rollback_url).collect();
        let (mut headers_without_secrets, mut headers) = parser.headers(parameters, &approved_urls);
        let (body, content_type) = parser.body(parameters);
        if !body.is_empty() && method == Some(Method::GET) {
            parser.report("body", "must be absent for GET");
        }
        for headers in [&mut headers_without_secrets, &mut headers] {
            headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("ade"));
            if let Some(content_type) = content_type {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type));
            }
        }
        match (method, url, parser.violations.is_empty()) {
            (Some(method), Some((url, _)), true) => {
                let (preview_url, rollback_url) =
                    (preview_url.map(|(url, _)| url), rollback_url.map(|(url, _)| url));
                Ok(Self { method, url, headers_without_secrets, headers, body, preview_url, rollback_url })
            }
            _ => Err(parser.violations),
        }
    }
}

impl<'a> Parser<'a> {
    fn report(&mut self, path: impl Into<FieldPath>, detail: impl Into<String>) {
        self.violations.push(InvalidField::at(path, detail));
    }

    fn url(&mut self, parameters: &Parameters, field: &str) -> Option<(Url, Option<&'a AllowedHost>)> {
        let checked = match parameters.get(field)? {
            Value::String(url) => self.egress.check(url).map_err(|error| error.message),
            _ => Err("must be a URL".to_owned()),
        };
        checked.map_err(|reason| self.report(field, reason)).ok()
    }

    /// Returns the headers without and with secrets.
    fn headers(
        &mut self,
        parameters: &Parameters,
        urls: &[&(Url, Option<&AllowedHost>)],
    ) -> (HeaderMap, HeaderMap) {
        let (mut without_secrets, mut headers) = (HeaderMap::new(), HeaderMap::new());
        let given = match parameters.get("headers") {
            None => return (without_secrets, headers),
            Some(Value::Object(given)) if given.len() <= MAX_HEADERS => given,
            Some(_) => {
                self.report("headers", format!("must be an object with at most {MAX_HEADERS} headers"));
                return (without_secrets, headers);
            }
        };
        for (given_name, value) in given {
            let at = FieldPath::from("headers").field(given_name);
            let Ok(name) = given_name.parse::<HeaderName>() else {
                self.report(at, "is not a valid header name");
                continue;
            };
            if RESERVED_HEADERS.contains(&name.as_str()) {
                self.report(at, "is reserved and cannot be set by a task");
                continue;
            }
            if headers.contains_key(&name) {
                self.report(at, "is given twice");
                continue;
            }
            match self.header_value(&name, value, urls) {
                Ok((value, is_secret)) => {
                    if !is_secret {
                        without_secrets.insert(name.clone(), value.clone());
                    }
                    headers.insert(name, value);
                }
                Err(reason) => self.report(at, reason),
            }
        }
        (without_secrets, headers)
    }

    /// Returns the value of a header and whether it is a secret.
    fn header_value(
        &self,
        name: &HeaderName,
        value: &Value,
        urls: &[&(Url, Option<&AllowedHost>)],
    ) -> Result<(HeaderValue, bool), String> {
        let secret = match value {
            Value::String(_) if SECRET_HEADERS.contains(&name.as_str()) => {
                return Err("must be a secret, {\"secret\": \"NAME\"}, because many people can read a task"
                    .to_owned());
            }
            Value::String(text) if text.len() <= MAX_HEADER_BYTES => {
                let value = HeaderValue::from_str(text);
                let value =
                    value.map_err(|_| "must be one line of text without control characters".to_owned());
                return value.map(|value| (value, false));
            }
            Value::Object(secret) if secret.len() == 1 => secret.get("secret").and_then(Value::as_str),
            _ => None,
        };
        let secret = secret.ok_or_else(|| {
            format!("must be text of at most {MAX_HEADER_BYTES} bytes, or {{\"secret\": \"NAME\"}}")
        })?;
        let known = self.secrets.get(secret).ok_or_else(|| format!("names the unknown secret {secret:?}"))?;
        for (url, allowed_host) in urls {
            if !known.host.matches(url) {
                let host = url.host_str().unwrap_or_default();
                return Err(format!("names the secret {secret:?}, which is not bound to {host}"));
            }
            if url.scheme() != "https" && !allowed_host.is_some_and(AllowedHost::is_internal) {
                return Err(format!("names the secret {secret:?}, which is only sent over https"));
            }
        }
        Ok((known.value.clone(), true))
    }

    /// Returns the body and its content type.
    fn body(&mut self, parameters: &Parameters) -> (Bytes, Option<&'static str>) {
        let (body, content_type) = match parameters.get("body") {
            None | Some(Value::Null) => return (Bytes::new(), None),
            Some(Value::String(text)) => (text.clone().into_bytes(), "text/plain; charset=utf-8"),
            Some(json) => (json.to_string().into_bytes(), "application/json"),
        };
        if body.len() > MAX_BODY_BYTES {
            self.report("body", format!("must have at most {MAX_BODY_BYTES} bytes"));
        }
        (body.into(), Some(content_type))
    }
}
