//! What a task wants to be called, read from its parameters. Secrets are named, never written, and go only to the host that they
//! are bound to; what frames a request, and what says who we are, is not for a task to write.

use std::collections::BTreeMap;

use ade_domain::Invalid;
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use serde_json::Value;
use url::Url;

use super::Secret;
use crate::Parameters;
use crate::guard::{Guard, Listed};

/// Headers of one request.
const MOST_HEADERS: usize = 64;
/// Bytes of one of them.
const LONGEST_HEADER: usize = 8_192;
/// Bytes of what is sent.
const LONGEST_BODY: usize = 131_072;
const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];
const FIELDS: [&str; 7] = ["method", "url", "headers", "body", "preview_url", "rollback_url", "worker"];
/// They belong to the connection, or are written by us.
const OURS: [&str; 15] = [
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
/// They say who we are: never written in a task, which many people read.
const ONLY_SECRET: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

/// What is to be called.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) method: Method,
    pub(super) url: Url,
    /// What is written in the task.
    pub(super) plain: HeaderMap,
    /// The same with secrets.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) preview_url: Option<Url>,
    pub(super) rollback_url: Option<Url>,
}

/// Reads the parameters of one task.
struct Reader<'a> {
    guard: &'a Guard,
    secrets: &'a BTreeMap<String, Secret>,
    faults: Vec<Invalid>,
}

impl Wanted {
    pub(super) fn read(
        parameters: &Parameters,
        guard: &Guard,
        secrets: &BTreeMap<String, Secret>,
    ) -> Result<Self, Vec<Invalid>> {
        let mut reader = Reader { guard, secrets, faults: Vec::new() };
        for field in parameters.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
            reader.fault(&pointer("", field), format!("is not known: use {}", FIELDS.join(", ")));
        }
        if parameters.get("worker").is_some_and(|label| !label.is_string()) {
            reader.fault("/worker", "must be the label of a worker, as text");
        }
        let method = parameters.get("method").and_then(Value::as_str).unwrap_or_default();
        let method = METHODS.iter().find(|known| **known == method).and_then(|known| known.parse().ok());
        if method.is_none() {
            reader.fault("/method", format!("must be one of {}", METHODS.join(", ")));
        }
        let url = reader.url(parameters, "url");
        if url.is_none() && !parameters.contains_key("url") {
            reader.fault("/url", "must say what is called");
        }
        let preview_url = reader.url(parameters, "preview_url");
        let rollback_url = reader.url(parameters, "rollback_url");
        let after_approval: Vec<_> = url.iter().chain(&rollback_url).collect();
        let (mut plain, mut headers) = reader.headers(parameters, &after_approval);
        let (body, content) = reader.body(parameters);
        if !body.is_empty() && method == Some(Method::GET) {
            reader.fault("/body", "must not be there for GET");
        }
        for headers in [&mut plain, &mut headers] {
            headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("ade"));
            if let Some(content) = content {
                headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content));
            }
        }
        match (method, url, reader.faults.is_empty()) {
            (Some(method), Some((url, _)), true) => {
                let bare = |url: Option<(Url, _)>| url.map(|(url, _)| url);
                let (preview_url, rollback_url) = (bare(preview_url), bare(rollback_url));
                Ok(Self { method, url, plain, headers, body, preview_url, rollback_url })
            }
            _ => Err(reader.faults),
        }
    }
}

impl<'a> Reader<'a> {
    fn fault(&mut self, pointer: &str, detail: impl Into<String>) {
        self.faults.push(Invalid::at(pointer, detail));
    }

    fn url(&mut self, parameters: &Parameters, field: &str) -> Option<(Url, Option<&'a Listed>)> {
        let read = match parameters.get(field)? {
            Value::String(url) => self.guard.read(url).map_err(|refusal| refusal.message),
            _ => Err("must be a URL".to_owned()),
        };
        read.map_err(|why| self.fault(&format!("/{field}"), why)).ok()
    }

    /// Without and with secrets.
    fn headers(
        &mut self,
        parameters: &Parameters,
        urls: &[&(Url, Option<&Listed>)],
    ) -> (HeaderMap, HeaderMap) {
        let (mut plain, mut headers) = (HeaderMap::new(), HeaderMap::new());
        let all = match parameters.get("headers") {
            None => return (plain, headers),
            Some(Value::Object(all)) if all.len() <= MOST_HEADERS => all,
            Some(_) => {
                self.fault("/headers", format!("must be an object with at most {MOST_HEADERS} headers"));
                return (plain, headers);
            }
        };
        for (written, value) in all {
            let at = pointer("/headers", written);
            let Ok(name) = written.parse::<HeaderName>() else {
                self.fault(&at, "is not the name of a header");
                continue;
            };
            if OURS.contains(&name.as_str()) {
                self.fault(&at, "is not for a task to write");
                continue;
            }
            if headers.contains_key(&name) {
                self.fault(&at, "is there twice");
                continue;
            }
            match self.value(&name, value, urls) {
                Ok((value, is_secret)) => {
                    if !is_secret {
                        plain.insert(name.clone(), value.clone());
                    }
                    headers.insert(name, value);
                }
                Err(why) => self.fault(&at, why),
            }
        }
        (plain, headers)
    }

    /// What a header says, and whether that is a secret.
    fn value(
        &self,
        name: &HeaderName,
        value: &Value,
        urls: &[&(Url, Option<&Listed>)],
    ) -> Result<(HeaderValue, bool), String> {
        let secret = match value {
            Value::String(_) if ONLY_SECRET.contains(&name.as_str()) => {
                return Err("must be a secret, as {\"secret\": \"NAME\"}: many people read this".to_owned());
            }
            Value::String(text) if text.len() <= LONGEST_HEADER => {
                let value = HeaderValue::from_str(text);
                let value =
                    value.map_err(|_| "must be one line of text without control characters".to_owned());
                return value.map(|value| (value, false));
            }
            Value::Object(secret) if secret.len() == 1 => secret.get("secret").and_then(Value::as_str),
            _ => None,
        };
        let secret = secret.ok_or_else(|| {
            format!("must be text of at most {LONGEST_HEADER} bytes, or {{\"secret\": \"NAME\"}}")
        })?;
        let known = self.secrets.get(secret).ok_or_else(|| format!("there is no secret {secret:?}"))?;
        for (url, listed) in urls {
            if !known.host.is_for(url) {
                let host = url.host_str().unwrap_or_default();
                return Err(format!("the secret {secret:?} is not bound to {host}"));
            }
            if url.scheme() != "https" && !listed.is_some_and(Listed::is_inside) {
                return Err(format!("the secret {secret:?} is sent only over https"));
            }
        }
        Ok((known.value.clone(), true))
    }

    /// What is sent, and of which kind it is.
    fn body(&mut self, parameters: &Parameters) -> (Bytes, Option<&'static str>) {
        let (body, content) = match parameters.get("body") {
            None | Some(Value::Null) => return (Bytes::new(), None),
            Some(Value::String(text)) => (text.clone().into_bytes(), "text/plain; charset=utf-8"),
            Some(json) => (json.to_string().into_bytes(), "application/json"),
        };
        if body.len() > LONGEST_BODY {
            self.fault("/body", format!("must have at most {LONGEST_BODY} bytes"));
        }
        (body.into(), Some(content))
    }
}

fn pointer(before: &str, field: &str) -> String {
    format!("{before}/{}", field.replace('~', "~0").replace('/', "~1"))
}
