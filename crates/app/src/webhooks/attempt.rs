//! One attempt to deliver: the address of the receiver is resolved and checked again, the message is signed or gets the credential of the
//! receiver, and the answer is judged.

use ade_domain::Moment;
use ade_domain::keys::UnsealError;
use ade_domain::text::escape_hidden;
use ade_domain::webhook::delivery::next_attempt;
use ade_domain::webhook::signature::signatures;
use ade_domain::webhook::slack_request::message_ref;
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_executors::Secrets;
use ade_executors::client::CallError;
use ade_store::database::{AttemptOutcome, Delivery, DeliveryReport, DeliveryStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::sealed::{random_number, signing_secrets, unseal};
use super::stats::DeliveryOutcome;
use super::{StoredWebhook, WebhookService};
use crate::Result;

/// Characters of a response that are kept.
const MAX_RESPONSE_CHARS: usize = 1_000;
const GONE: u16 = 410;
const TOO_MANY_REQUESTS: u16 = 429;
/// The methods of Slack that post a message and change it.
const SLACK_POST: &str = "chat.postMessage";
const SLACK_UPDATE: &str = "chat.update";

/// What came of an attempt.
#[derive(Debug)]
enum Answer {
    Response {
        status: u16,
        body: Vec<u8>,
    },
    /// The destination cannot be reached, or did not answer.
    Silence(String),
    /// Nothing was sent, and it says nothing about the destination.
    NotSent(String),
}

/// An attempt, whatever was sent.
#[derive(Debug)]
pub(super) struct AttemptResult {
    /// None if it was delivered.
    pub(super) error: Option<String>,
    /// Whether a failure is not tried again.
    pub(super) is_final: bool,
    /// Status and beginning of the response.
    pub(super) response: Option<(u16, Vec<u8>)>,
    /// Whether the destination works; `None` if that is unknown.
    pub(super) is_reachable: Option<bool>,
    /// Why nothing had to be sent, if so.
    pub(super) superseded: Option<String>,
}

impl AttemptResult {
    /// The receiver has a newer event already.
    const fn superseded(reason: String) -> Self {
        Self { error: None, is_final: true, response: None, is_reachable: None, superseded: Some(reason) }
    }

    pub(super) const fn accepted(status: u16, body: Vec<u8>) -> Self {
        Self {
            error: None,
            is_final: false,
            response: Some((status, body)),
            is_reachable: Some(true),
            superseded: None,
        }
    }

    pub(super) const fn silence(reason: String) -> Self {
        Self::without_response(reason, false, Some(false))
    }

    /// Nothing was sent, and it says nothing about the destination.
    pub(super) const fn not_sent(reason: String) -> Self {
        Self::without_response(reason, false, None)
    }

    /// Nothing was sent, and nothing will be.
    pub(super) const fn refused(reason: String) -> Self {
        Self::without_response(reason, true, None)
    }

    const fn without_response(reason: String, is_final: bool, is_reachable: Option<bool>) -> Self {
        Self { error: Some(reason), is_final, response: None, is_reachable, superseded: None }
    }
}

impl Answer {
    fn result(self, error: Option<String>) -> AttemptResult {
        let is_reachable = self.is_reachable();
        let is_final = matches!(self, Self::Response { status: GONE, .. });
        let response = match self {
            Self::Response { status, body } => Some((status, body)),
            Self::Silence(_) | Self::NotSent(_) => None,
        };
        AttemptResult { error, is_final, response, is_reachable, superseded: None }
    }

    fn error(&self, is_slack_api: bool) -> Option<String> {
        match self {
            // The API of Slack reports most errors with status 200.
            Self::Response { status: 200..=299, body } if is_slack_api => slack_error(body),
            Self::Response { status: 200..=299, .. } => None,
            Self::Response { status: 300..=399, .. } => {
                Some("the receiver redirects, which is not followed: set its final URL".to_owned())
            }
            Self::Response { status: GONE, .. } => {
                Some("the receiver is gone (410): the webhook was deactivated".to_owned())
            }
            Self::Response { status, .. } => Some(format!("the receiver answered with status {status}")),
            Self::Silence(reason) | Self::NotSent(reason) => Some(reason.clone()),
        }
    }

    /// Whether the destination works; `None` if that is unknown.
    const fn is_reachable(&self) -> Option<bool> {
        match self {
            Self::Response { status: 500.. | TOO_MANY_REQUESTS, .. } | Self::Silence(_) => Some(false),
            Self::Response { .. } => Some(true),
            Self::NotSent(_) => None,
        }
    }
}

/// What the API of Slack answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SlackAnswer {
    ok: bool,
    error: String,
    channel: String,
    ts: String,
}

impl SlackAnswer {
    fn parse(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// Channel and time of a message, which identify it.
    fn message_ref(&self) -> Option<String> {
        message_ref(&self.channel, &self.ts)
    }
}

fn slack_error(body: &[u8]) -> Option<String> {
    let answer = SlackAnswer::parse(body);
    let reason = if answer.error.is_empty() { "it gave no reason" } else { &answer.error };
    (!answer.ok).then(|| format!("Slack refused the message: {}", escape_hidden(reason)))
}

/// A request to a receiver. It contains secrets.
struct Request {
    url: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    /// What must not appear in the stored response.
    secrets: Secrets,
}

impl WebhookService {
    /// Sends a claimed message, and stores how that ended. Only e-mail has messages of several deliveries.
    pub(super) async fn attempt(&self, stored: &StoredWebhook, message: &[Delivery], by: &str) -> Result<()> {
        let Some(first) = message.first() else { return Ok(()) };
        let webhook = &stored.value;
        let is_slack_api = webhook.updates_messages();
        let (mut result, secrets) = match webhook.format {
            WebhookFormat::Email => self.send_mail(message).await?,
            _ => self.send_request(stored, first, is_slack_api).await?,
        };
        if matches!(result.response, Some((GONE, _)))
            && !self.disable(stored, "the receiver answered with status 410").await?
        {
            result.error = Some("the previous URL of the webhook is gone (410)".to_owned());
            result.is_final = false;
        }
        let now = self.context.now();
        let mut outcome = judge(&result, first, now, &secrets);
        if let (true, None, Some((_, body))) = (is_slack_api, &result.error, &result.response) {
            outcome.message_ref = SlackAnswer::parse(body).message_ref();
        }
        if let Some(error) = &outcome.report.error {
            let (webhook_id, destination) = (&stored.id, &webhook.destination);
            tracing::info!(webhook_id, destination, attempt = first.attempts + 1, error, "a webhook failed");
        }
        let reached = (webhook.destination.as_str(), result.is_reachable);
        let is_stored = self.context.database.finish_attempt(message, by, &outcome, reached, now).await?;
        let counted = DeliveryOutcome::of(&outcome, result.superseded.is_some());
        self.stats.count(webhook.format, counted, message.len());
        if !is_stored {
            let delivery_id = &first.delivery_id;
            tracing::warn!(delivery_id, "a delivery took too long and may be sent twice");
        }
        Ok(())
    }

    async fn send_request(
        &self,
        stored: &StoredWebhook,
        delivery: &Delivery,
        is_slack_api: bool,
    ) -> Result<(AttemptResult, Secrets)> {
        let mut message_ref = None;
        if let (true, Some(task_id)) = (is_slack_api, &delivery.content.task_id) {
            let shown = self.context.database.message_of_task(&stored.id, task_id).await?;
            // No other process sends about this task meanwhile.
            if let Some(shown) = shown.as_ref().filter(|shown| shown.number > delivery.content.number) {
                let reason = format!(
                    "not sent: the message about the task already shows the newer event {}, this is event {}",
                    shown.number, delivery.content.number
                );
                return Ok((AttemptResult::superseded(reason), Secrets::default()));
            }
            message_ref = shown.map(|shown| shown.message_ref);
        }
        let (answer, secrets) = self.send(&stored.id, &stored.value, delivery, message_ref.as_deref()).await;
        let error = answer.error(is_slack_api);
        Ok((answer.result(error), secrets))
    }

    async fn send(
        &self,
        id: &str,
        webhook: &Webhook,
        delivery: &Delivery,
        message_ref: Option<&str>,
    ) -> (Answer, Secrets) {
        let request = match self.request(id, webhook, delivery, message_ref) {
            Ok(request) => request,
            Err(error) => {
                let reason = format!("cannot decrypt the URL or a secret: {error}");
                return (Answer::NotSent(reason), Secrets::default());
            }
        };
        let Request { url, headers, body, secrets } = request;
        let network = &self.network;
        let answer = match network.egress.resolve(&url).await {
            Err(failure) if failure.is_retryable => Answer::Silence(failure.message),
            Err(failure) => Answer::NotSent(format!("the URL {}", failure.message)),
            Ok(pinned) => {
                match network.client.post(pinned, &headers, body.into_bytes(), network.attempt_timeout).await
                {
                    Ok(response) => {
                        Answer::Response { status: response.status.as_u16(), body: response.body }
                    }
                    Err(CallError::NotSent(reason) | CallError::Sent(reason)) => Answer::Silence(reason),
                }
            }
        };
        (answer, secrets)
    }

    fn request(
        &self,
        id: &str,
        webhook: &Webhook,
        delivery: &Delivery,
        message_ref: Option<&str>,
    ) -> Result<Request, UnsealError> {
        let (keys, now) = (self.context.database.keys(), self.context.now());
        let mut url = unseal(keys, id, "url", &webhook.url)?;
        let credential = webhook.credential.as_ref().map(|sealed| unseal(keys, id, "credential", sealed));
        let credential = credential.transpose()?;
        let mut body = delivery.content.payload.clone();
        let mut headers = vec![
            ("content-type", "application/json; charset=utf-8".to_owned()),
            ("accept", "application/json".to_owned()),
            ("user-agent", concat!("ade/", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        match (webhook.format, &credential) {
            (WebhookFormat::Standard, _) => {
                let previous = webhook.previous_secret.iter().filter(|previous| now < previous.valid_until);
                let sealed = webhook.secret.iter().chain(previous.map(|previous| &previous.secret));
                let secrets = signing_secrets(keys, id, sealed)?;
                let (message_id, seconds) = (&delivery.delivery_id, now.micros() / 1_000_000);
                let signed = signatures(&secrets, message_id, seconds, body.as_bytes());
                headers.push(("webhook-id", message_id.clone()));
                headers.push(("webhook-timestamp", seconds.to_string()));
                headers.push(("webhook-signature", signed));
            }
            (WebhookFormat::Slack, Some(token)) => {
                headers.push(("authorization", format!("Bearer {token}")));
                if let Some((channel, ts)) = message_ref.and_then(|found| found.split_once(' ')) {
                    url = url.replace(SLACK_POST, SLACK_UPDATE);
                    body = with_fields(&body, [("channel", channel), ("ts", ts)]);
                }
            }
            (WebhookFormat::Pagerduty, Some(key)) => {
                body = with_fields(&body, [("routing_key", key.as_str())]);
            }
            (WebhookFormat::Servicenow, Some(authorization)) => {
                headers.push(("authorization", authorization.clone()));
            }
            // E-mail is no request.
            (WebhookFormat::Email, _)
            | (WebhookFormat::Slack | WebhookFormat::Pagerduty | WebhookFormat::Servicenow, None) => {}
        }
        let secrets = Secrets::new(credential.into_iter().chain([url.clone()]));
        Ok(Request { url, headers, body, secrets })
    }
}

/// A JSON object with further fields.
fn with_fields<'a>(body: &str, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut object: Value = serde_json::from_str(body).unwrap_or_default();
    for (name, value) in fields {
        if let Some(object) = object.as_object_mut() {
            object.insert(name.to_owned(), json!(value));
        }
    }
    object.to_string()
}

fn judge(result: &AttemptResult, delivery: &Delivery, now: Moment, secrets: &Secrets) -> AttemptOutcome {
    let failed_attempts = u32::try_from(delivery.attempts + 1).unwrap_or(u32::MAX);
    let AttemptResult { error, is_final, .. } = result;
    let next_at = error
        .as_ref()
        .filter(|_| !is_final)
        .and_then(|_| next_attempt(failed_attempts, now, delivery.give_up_at, random_number()));
    let status = match (error, next_at) {
        (None, _) => DeliveryStatus::Delivered,
        (Some(_), Some(_)) => DeliveryStatus::Pending,
        (Some(_), None) => DeliveryStatus::Failed,
    };
    let response_status = result.response.as_ref().map(|(status, _)| *status);
    let response = result.response.as_ref().map(|(_, body)| excerpt(body, secrets));
    let response = response.or_else(|| result.superseded.clone());
    let finished_at = (status != DeliveryStatus::Pending).then_some(now);
    let error = error.as_ref().map(|error| secrets.redact(error));
    let report = DeliveryReport { last_attempt_at: Some(now), finished_at, response_status, response, error };
    AttemptOutcome { status, next_at, report, message_ref: None }
}

/// The beginning of a response, as text that is safe to show.
fn excerpt(body: &[u8], secrets: &Secrets) -> String {
    let text = secrets.redact(&String::from_utf8_lossy(body));
    let beginning: String = text.chars().take(MAX_RESPONSE_CHARS).collect();
    escape_hidden(&beginning).into_owned()
}
