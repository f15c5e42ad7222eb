//! The request of a task, parsed from its parameters. Secrets are referenced by name and go only to the host that they are bound
//! to. A task must not set headers that frame the request or that authenticate us.

use ade_domain::FieldPath;
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde_json::Value;
use url::Url;

use super::HttpExecutor;
use crate::egress::AllowedHost;
use crate::parameters::Violations;
use crate::{Parameters, Result, Validated};

const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 8_192;
const MAX_BODY_BYTES: usize = 131_072;
const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];
const FIELDS: [&str; 7] = ["method", "url", "headers", "body", "preview_url", "rollback_url", "worker"];
/// Headers of the connection, those that we set, and those that make servers call something else than the target says.
const RESERVED_HEADERS: [&str; 20] = [
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
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];
/// Authentication headers must be secrets, because many people can read a task.
const SECRET_HEADERS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

#[derive(Debug, Clone)]
pub(super) struct RequestSpec {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) secret_headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) preview_url: Option<Url>,
    pub(super) rollback_url: Option<Url>,
}

/// A URL, and the entry that allows it.
type CheckedUrl<'a> = (Url, Option<&'a AllowedHost>);

impl HttpExecutor {
    pub(super) fn parse(&self, parameters: &Parameters) -> Validated<RequestSpec> {
        let mut violations = Violations::of_fields(parameters, &FIELDS);
        let method = parameters.get("method").and_then(Value::as_str).unwrap_or_default();
        let method: Option<Method> =
            METHODS.iter().find(|known| **known == method).and_then(|known| known.parse().ok());
        if method.is_none() {
            violations.report("method", format!("must be one of {}", METHODS.join(", ")));
        }
        if !parameters.contains_key("url") {
            violations.report("url", "is required");
        }
        let mut parse_url = |field: &str| {
            let checked = match parameters.get(field)? {
                Value::String(url) => self.egress.check(url).map_err(|error| error.message),
                _ => Err("must be a URL".to_owned()),
            };
            checked.map_err(|reason| violations.report(field, reason)).ok()
        };
        let (url, preview_url, rollback_url) =
            (parse_url("url"), parse_url("preview_url"), parse_url("rollback_url"));
        let approved_urls: Vec<_> = url.iter().chain(&rollback_url).collect();
        let (mut headers, secret_headers) = self.parse_headers(parameters, &approved_urls, &mut violations);
        let (body, content_type) = match parameters.get("body") {
            None | Some(Value::Null) => (Bytes::new(), None),
            Some(Value::String(text)) => (text.clone().into(), Some("text/plain; charset=utf-8")),
            Some(json) => (json.to_string().into(), Some("application/json")),
        };
        if body.len() > MAX_BODY_BYTES {
            violations.report("body", format!("must have at most {MAX_BODY_BYTES} bytes"));
        }
        if !body.is_empty() && method == Some(Method::GET) {
            violations.report("body", "must be absent for GET");
        }
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("ade"));
        if let Some(content_type) = content_type {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type));
        }
        // A missing method or URL has been reported.
        let spec = method.zip(url).map(|(method, (url, _))| RequestSpec {
            method,
            url,
            headers,
            secret_headers,
            body,
            preview_url: preview_url.map(|(url, _)| url),
            rollback_url: rollback_url.map(|(url, _)| url),
        });
        violations.finish(spec).and_then(|spec| spec.ok_or_else(Vec::new))
    }

    /// Returns the headers, and those that are secrets.
    fn parse_headers(
        &self,
        parameters: &Parameters,
        urls: &[&CheckedUrl<'_>],
        violations: &mut Violations,
    ) -> (HeaderMap, HeaderMap) {
        let mut headers = (HeaderMap::new(), HeaderMap::new());
        match parameters.get("headers") {
            None => {}
            Some(Value::Object(given)) if given.len() <= MAX_HEADERS => {
                for (name, value) in given {
                    if let Err(reason) = self.add_header(name, value, urls, &mut headers) {
                        violations.report(FieldPath::from("headers").field(name), reason);
                    }
                }
            }
            Some(_) => {
                let detail = format!("must be an object with at most {MAX_HEADERS} headers");
                violations.report("headers", detail);
            }
        }
        headers
    }

    fn add_header(
        &self,
        name: &str,
        value: &Value,
        urls: &[&CheckedUrl<'_>],
        (headers, secret_headers): &mut (HeaderMap, HeaderMap),
    ) -> Result<(), String> {
        let name: HeaderName = name.parse().map_err(|_| "is not a valid header name")?;
        if RESERVED_HEADERS.contains(&name.as_str()) {
            return Err("is reserved and cannot be set by a task".to_owned());
        }
        if headers.contains_key(&name) || secret_headers.contains_key(&name) {
            return Err("is given twice".to_owned());
        }
        let secret = match value {
            Value::String(_) if SECRET_HEADERS.contains(&name.as_str()) => {
                Err("must be a secret, {\"secret\": \"NAME\"}, because many people can read a task")?
            }
            Value::String(text) if text.len() <= MAX_HEADER_BYTES => {
                let value = HeaderValue::from_str(text);
                headers
                    .insert(name, value.map_err(|_| "must be one line of text without control characters")?);
                return Ok(());
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
        secret_headers.insert(name, known.value.clone());
        Ok(())
    }
}
