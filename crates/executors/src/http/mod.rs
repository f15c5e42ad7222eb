//! HTTP calls: a task is one call to a host that an operator has listed, and its rollback is another.
//!
//! The effects of a call are unknown to us, so calls are not fenced except by the token that is sent along. A failure reports that
//! nothing was changed only if nothing was sent, or if the server rejected the request (4xx).

pub mod client;
mod request;

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::task::{ChangeKind, Digest, Preview, PreviewChange};
use ade_domain::{FieldPath, InvalidField};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use url::Url;

use self::client::{CallError, HttpClient, HttpConnection, HttpResponse};
use self::request::RequestSpec;
use crate::egress::{AllowedHost, EgressPolicy};
use crate::parameters::invalid_parameters;
use crate::{
    BoxFuture, Executor, Failure, Parameters, Run, Secrets, SideEffects, StopReason, preview_within,
    ready_preview,
};

const PREVIEW_TIMEOUT: Duration = Duration::from_secs(15);
/// Too Early, Too Many Requests.
const RETRYABLE_STATUSES: [u16; 2] = [425, 429];
/// May come from a proxy that does not know whether the server has processed the request.
const REQUEST_TIMEOUT_STATUS: u16 = 408;
/// Shorter tokens are not redacted, because they may be ordinary words.
const MIN_TOKEN_BYTES: usize = 6;

/// A header value that may only be sent to one host.
#[derive(Clone)]
struct Secret {
    host: AllowedHost,
    value: HeaderValue,
}

/// Calls allowed hosts.
#[derive(Clone)]
pub struct HttpExecutor {
    egress: EgressPolicy,
    client: HttpClient,
    secrets: BTreeMap<String, Secret>,
    redacted: Secrets,
}

impl std::fmt::Debug for HttpExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("Http").field("egress", &self.egress).field("secrets", &names).finish_non_exhaustive()
    }
}

impl HttpExecutor {
    pub const PLACE: &str = "http";

    /// Each secret is a name, the host that it is bound to (written as in the list of hosts), and a whole header value, such as
    /// `Bearer …`.
    pub fn new<'a>(
        egress: EgressPolicy,
        secrets: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<Self, InvalidField> {
        let (mut secrets_by_name, mut secret_texts) = (BTreeMap::new(), Vec::new());
        for (name, host, text) in secrets {
            let invalid = |field: &str, detail: String| {
                InvalidField::at(FieldPath::from("secrets").field(name).field(field), detail)
            };
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

    fn parse(&self, parameters: &Parameters) -> Result<RequestSpec, Vec<InvalidField>> {
        RequestSpec::parse(parameters, &self.egress, &self.secrets)
    }

    /// Parses parameters that were valid when the task was proposed.
    fn parse_again(&self, parameters: &Parameters) -> Result<RequestSpec, Failure> {
        self.parse(parameters).map_err(invalid_parameters)
    }

    async fn connect(&self, url: &Url) -> Result<HttpConnection, Failure> {
        let pinned = self.egress.resolve(url.as_str()).await;
        let pinned = pinned.map_err(|error| Failure {
            is_retryable: error.is_retryable,
            ..Failure::permanent(error.message)
        })?;
        self.client.connect(pinned).await.map_err(|error| Failure::retryable(error.to_string()))
    }

    /// Sends a request and interprets the response. `effects_if_sent` is reported if the request was sent and its effects are
    /// unknown.
    async fn call(
        &self,
        run: &Run,
        (method, url): (Method, &Url),
        headers: HeaderMap,
        body: Bytes,
        effects_if_sent: SideEffects,
    ) -> Result<(), Failure> {
        let connection = run.stop.run_until_stopped(self.connect(url)).await;
        let connection = connection.map_err(|reason| Failure::stopped(reason, SideEffects::None))??;
        let (title, is_idempotent) = (format!("{method} {url}"), method.is_idempotent());
        let head = run.stop.run_until_stopped(connection.send(method, headers, body)).await;
        let head = match head.map_err(|reason| Failure::stopped(reason, effects_if_sent))? {
            Ok(head) => head,
            Err(CallError::NotSent(reason)) => return Err(Failure::retryable(reason)),
            Err(CallError::Sent(reason)) => {
                let message = format!("{title} was sent but not answered: {reason}");
                return Err(Failure::with_side_effects(effects_if_sent, message));
            }
        };
        // The result is known. A stop from here on only cuts the body.
        let status = head.status;
        let without_body = |reason: StopReason| HttpResponse {
            status,
            body: Vec::new(),
            truncation: Some(reason.message(None)),
        };
        let response = run.stop.run_until_stopped(head.read_body()).await.unwrap_or_else(without_body);
        self.write_output(run, &title, &response);
        if status.is_success() {
            return Ok(());
        }
        let is_rejected = status.as_u16() != REQUEST_TIMEOUT_STATUS || is_idempotent;
        if status.is_client_error() && is_rejected {
            let is_retryable =
                status.as_u16() == REQUEST_TIMEOUT_STATUS || RETRYABLE_STATUSES.contains(&status.as_u16());
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

    async fn call_preview_url(&self, parameters: &Parameters) -> Result<Preview, Failure> {
        let spec = self.parse_again(parameters)?;
        let Some(url) = &spec.preview_url else { return Ok(Preview::none()) };
        // A preview is not approved yet, so no secrets are sent.
        let mut headers = spec.headers_without_secrets;
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
        };
        Ok(ready_preview(vec![change], response.truncation.into_iter().collect(), Vec::new()))
    }
}

/// Adds the headers by which the server recognizes repeated and outdated calls.
fn with_attempt_headers(mut headers: HeaderMap, run: &Run, suffix: &str) -> Result<HeaderMap, Failure> {
    let token = run.fencing_tokens.iter().map(|(_, token)| *token).max();
    // The key is the same for all attempts, because a task is retried only if the previous attempt had no effects.
    let key = format!("ade-{}{suffix}", run.task_id);
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

impl Executor for HttpExecutor {
    fn validate(&self, parameters: &Parameters) -> Result<(), Vec<InvalidField>> {
        self.parse(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> BoxFuture<'a, Result<Preview, Failure>> {
        Box::pin(preview_within(PREVIEW_TIMEOUT, self.call_preview_url(parameters)))
    }

    /// The rollback reads the parameters again. The data only tells that there is a rollback.
    fn prepare_rollback<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async move {
            let rollback_url = self.parse_again(&run.parameters)?.rollback_url;
            Ok(rollback_url
                .map(|url| json!({ "rollback_url": url.as_str() }).to_string().into_bytes())
                .unwrap_or_default())
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let spec = self.parse_again(&run.parameters)?;
            let headers = with_attempt_headers(spec.headers, run, "")?;
            let can_roll_back = spec.rollback_url.is_some();
            let effects_if_sent = if can_roll_back { SideEffects::Remaining } else { SideEffects::Unknown };
            self.call(run, (spec.method, &spec.url), headers, spec.body, effects_if_sent).await
        })
    }

    fn roll_back<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let spec = self.parse_again(&run.parameters).map_err(Failure::not_rolled_back)?;
            let Some(url) = &spec.rollback_url else {
                let message = "cannot roll back: the task has no rollback_url; undo the change by hand";
                return Err(Failure::with_side_effects(SideEffects::Remaining, message));
            };
            let mut headers =
                with_attempt_headers(spec.headers, run, "-undo").map_err(Failure::not_rolled_back)?;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let body = json!({ "task_id": run.task_id, "attempt": run.attempt }).to_string().into();
            self.call(run, (Method::POST, url), headers, body, SideEffects::Remaining)
                .await
                .map_err(Failure::not_rolled_back)
        })
    }

    fn can_roll_back(&self, parameters: &Parameters) -> bool {
        self.parse(parameters).is_ok_and(|spec| spec.rollback_url.is_some())
    }
}
