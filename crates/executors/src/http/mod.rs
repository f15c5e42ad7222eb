//! HTTP calls: a task is one call to a host that an operator has listed, and its rollback is another.
//!
//! The effects of a call are unknown to us, so calls are not fenced except by the token that is sent along. A failure reports that
//! nothing was changed only if nothing was sent, or if the server rejected the request (4xx).

pub mod client;
mod request;

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use async_trait::async_trait;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::json;
use url::Url;

use self::client::{CallError, HttpClient, HttpConnection, HttpResponse};
use self::request::RequestSpec;
use crate::egress::{AllowedHost, EgressPolicy};
use crate::{
    Executor, Failure, Parameters, Result, Run, Secrets, SideEffects, Validated, preview_within,
    ready_preview,
};

const PREVIEW_TIMEOUT: Duration = Duration::from_secs(15);
const RETRYABLE_STATUSES: [StatusCode; 3] =
    [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
/// Shorter tokens are not redacted, because they may be ordinary words.
const MIN_TOKEN_BYTES: usize = 6;

/// A header value that may only be sent to one host.
#[derive(Debug, Clone)]
struct Secret {
    host: AllowedHost,
    /// Marked as sensitive, so that Debug does not print it.
    value: HeaderValue,
}

/// Calls allowed hosts.
#[derive(Debug, Clone)]
pub struct HttpExecutor {
    egress: EgressPolicy,
    client: HttpClient,
    secrets: BTreeMap<String, Secret>,
    redacted: Secrets,
}

impl HttpExecutor {
    pub const WORK_QUEUE: &str = "http";

    /// Each secret is a name, the host that it is bound to (written as in the list of hosts), and a whole header value, such as
    /// `Bearer …`.
    pub fn new<'a>(
        egress: EgressPolicy,
        secrets: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<Self, InvalidField> {
        let (mut secrets_by_name, mut secret_texts) = (BTreeMap::new(), Vec::new());
        for (name, host, text) in secrets {
            let invalid =
                |field: &str, detail: String| InvalidField::at(format!("secrets.{name}.{field}"), detail);
            let host = AllowedHost::parse(host).map_err(|reason| invalid("host", reason))?;
            let value = HeaderValue::from_str(text).ok().filter(|value| !value.is_empty());
            let mut value = value.ok_or_else(|| {
                invalid("value", "must be one line of text without control characters".to_owned())
            })?;
            value.set_sensitive(true);
            secret_texts.push(text.to_owned());
            // A server may echo the token without its scheme.
            let token = text.split_once(' ').map(|(_, token)| token.trim().to_owned());
            secret_texts.extend(token.filter(|token| token.len() >= MIN_TOKEN_BYTES));
            secrets_by_name.insert(name.to_owned(), Secret { host, value });
        }
        let (client, redacted) = (HttpClient::default(), Secrets::new(secret_texts));
        Ok(Self { egress, client, secrets: secrets_by_name, redacted })
    }

    #[must_use]
    pub fn with_client(self, client: HttpClient) -> Self {
        Self { client, ..self }
    }

    /// Texts that must be redacted in all output.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        self.redacted.texts().to_vec()
    }

    async fn connect(&self, url: &Url) -> Result<HttpConnection> {
        let pinned = self.egress.resolve(url.as_str()).await?;
        self.client.connect(pinned).await.map_err(|error| Failure::retryable(error.to_string()))
    }

    /// Sends a request and interprets the response. `effects_if_sent` is reported if the request was sent and its effects are
    /// unknown.
    async fn call(
        &self,
        run: &Run,
        spec: &RequestSpec,
        key_suffix: &str,
        effects_if_sent: SideEffects,
    ) -> Result<()> {
        let RequestSpec { method, url, body, .. } = spec;
        let (title, is_idempotent) = (format!("{method} {url}"), method.is_idempotent());
        let headers = attempt_headers(spec, run, key_suffix)?;
        let connection = run.stop.run_until_stopped(SideEffects::None, self.connect(url)).await??;
        let sending = connection.send(method.clone(), headers, body.clone());
        let head =
            run.stop.run_until_stopped(effects_if_sent, sending).await?.map_err(|error| match error {
                CallError::NotSent(reason) => Failure::retryable(reason),
                CallError::Sent(reason) => {
                    let message = format!("{title} was sent but not answered: {reason}");
                    Failure::with_side_effects(effects_if_sent, message)
                }
            })?;
        // The result is known. A stop from here on only cuts the body.
        let status = head.status;
        let response = run.stop.run_until_stopped(effects_if_sent, head.read_body()).await;
        let response = response.unwrap_or_else(|stopped| HttpResponse {
            status,
            body: Vec::new(),
            truncation: Some(stopped.message),
        });
        self.write_output(run, &title, &response);
        if status.is_success() {
            return Ok(());
        }
        // A request timeout may come from a proxy that does not know whether the server has processed the request.
        let is_rejected = status != StatusCode::REQUEST_TIMEOUT || is_idempotent;
        if status.is_client_error() && is_rejected {
            let is_retryable = RETRYABLE_STATUSES.contains(&status);
            return Err(Failure { is_retryable, ..Failure::permanent(format!("{title} returned {status}")) });
        }
        let hint = if status.is_redirection() { ": redirects are not followed" } else { "" };
        Err(Failure::with_side_effects(effects_if_sent, format!("{title} returned {status}{hint}")))
    }

    fn write_output(&self, run: &Run, title: &str, response: &HttpResponse) {
        let body = self.redacted.redact(&String::from_utf8_lossy(&response.body));
        let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
        let truncation = response.truncation.as_ref().map(|reason| format!("({reason})\n"));
        let truncation = truncation.unwrap_or_default();
        run.output.write(format!("{title}: {}\n{body}{end}{truncation}", response.status).as_bytes());
    }

    async fn call_preview_url(&self, parameters: &Parameters) -> Result<Preview> {
        let spec = self.parse(parameters)?;
        let Some(url) = &spec.preview_url else { return Ok(Preview::none()) };
        // A preview is not approved yet, so no secrets are sent.
        let mut headers = spec.headers;
        headers.remove(CONTENT_TYPE);
        let head = self.connect(url).await?.send(Method::GET, headers, Bytes::new()).await;
        let head = head.map_err(|error| Failure::retryable(format!("GET {url}: {error}")))?;
        let response = head.read_body().await;
        if !response.status.is_success() {
            let error = format!("GET {url} returned {}", response.status);
            return Ok(ready_preview(Vec::new(), Vec::new(), vec![error]));
        }
        let change = PreviewChange {
            kind: ChangeKind::Update,
            what: format!("{} {}", spec.method, spec.url),
            before: Some(Digest::of_bytes(&response.body).to_string()),
            after: None,
            diff: Some(self.redacted.redact(&String::from_utf8_lossy(&response.body))),
            items: Some(1),
            reviewers_only: false,
        };
        Ok(ready_preview(vec![change], response.truncation.into_iter().collect(), Vec::new()))
    }
}

/// The headers of a request, with those by which the server recognizes repeated and outdated calls.
fn attempt_headers(spec: &RequestSpec, run: &Run, key_suffix: &str) -> Result<HeaderMap> {
    let mut headers = spec.headers.clone();
    headers.extend(spec.secret_headers.clone());
    let token = run.fencing_tokens.iter().map(|(_, token)| *token).max();
    // The key is the same for all attempts, because a task is retried only if the previous attempt had no effects.
    let key = format!("ade-{}{key_suffix}", run.task_id);
    for (name, value) in [
        ("idempotency-key", Some(key)),
        ("ade-task-id", Some(run.task_id.clone())),
        ("ade-attempt", Some(run.attempt.to_string())),
        ("ade-fencing-token", token.map(|token| token.to_string())),
    ] {
        let Some(value) = value else { continue };
        let value = HeaderValue::from_str(&value).map_err(|error| Failure::permanent(error.to_string()))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

#[async_trait]
impl Executor for HttpExecutor {
    fn validate(&self, parameters: &Parameters) -> Validated<()> {
        self.parse(parameters).map(drop)
    }

    async fn preview(&self, parameters: &Parameters) -> Result<Preview> {
        preview_within(PREVIEW_TIMEOUT, self.call_preview_url(parameters)).await
    }

    /// The rollback reads the parameters again. The data only tells that there is a rollback.
    async fn prepare_rollback(&self, run: &Run) -> Result<Vec<u8>> {
        let rollback_url = self.parse(&run.parameters)?.rollback_url;
        let data = rollback_url.map(|url| json!({ "rollback_url": url.as_str() }).to_string());
        Ok(data.unwrap_or_default().into_bytes())
    }

    async fn apply(&self, run: &Run, _: &[u8]) -> Result<()> {
        let spec = self.parse(&run.parameters)?;
        let can_roll_back = spec.rollback_url.is_some();
        let effects_if_sent = if can_roll_back { SideEffects::Remaining } else { SideEffects::Unknown };
        self.call(run, &spec, "", effects_if_sent).await
    }

    async fn roll_back(&self, run: &Run, _: &[u8]) -> Result<()> {
        let mut spec =
            self.parse(&run.parameters).map_err(|invalid| Failure::from(invalid).not_rolled_back())?;
        let Some(url) = spec.rollback_url.take() else {
            let message = "cannot roll back: the task has no rollback_url; undo the change by hand";
            return Err(Failure::with_side_effects(SideEffects::Remaining, message));
        };
        spec.secret_headers.remove(CONTENT_TYPE);
        spec.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = json!({ "task_id": run.task_id, "attempt": run.attempt }).to_string().into();
        let undo = RequestSpec { method: Method::POST, url, body, ..spec };
        self.call(run, &undo, "-undo", SideEffects::Remaining).await.map_err(Failure::not_rolled_back)
    }

    fn can_roll_back(&self, parameters: &Parameters) -> bool {
        self.parse(parameters).is_ok_and(|spec| spec.rollback_url.is_some())
    }
}
