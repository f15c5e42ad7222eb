//! One attempt to deliver: the address of the receiver is resolved and checked again, the message is signed, and the answer is judged.

use ade_domain::Moment;
use ade_domain::keys::UnsealError;
use ade_domain::text::escape_hidden;
use ade_domain::webhook::Webhook;
use ade_domain::webhook::delivery::next_attempt;
use ade_domain::webhook::signature::signatures;
use ade_executors::client::CallError;
use ade_store::database::{AttemptOutcome, Delivery, DeliveryReport, DeliveryStatus};

use super::sealed::{random_number, signing_secrets, unseal};
use super::{StoredWebhook, WebhookService};
use crate::Result;

/// Characters of a response that are kept.
const MAX_RESPONSE_CHARS: usize = 1_000;
const GONE: u16 = 410;
const TOO_MANY_REQUESTS: u16 = 429;

type Headers = Vec<(&'static str, String)>;

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

impl Answer {
    fn error(&self) -> Option<String> {
        match self {
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

impl WebhookService {
    /// Sends a claimed delivery, and stores how it ended.
    pub(super) async fn attempt(&self, stored: &StoredWebhook, delivery: &Delivery, by: &str) -> Result<()> {
        let webhook = &stored.value;
        let answer = self.send(&stored.id, webhook, delivery).await;
        let now = self.context.now();
        let outcome = judge(&answer, delivery, now);
        if matches!(answer, Answer::Response { status: GONE, .. }) {
            self.disable(&stored.id, "the receiver answered with status 410").await?;
        }
        if let Some(error) = &outcome.report.error {
            let (webhook_id, destination) = (&stored.id, &webhook.destination);
            tracing::info!(
                webhook_id,
                destination,
                attempt = delivery.attempts + 1,
                error,
                "a webhook failed"
            );
        }
        let reached = (webhook.destination.as_str(), answer.is_reachable());
        let is_stored = self.context.database.finish_attempt(delivery, by, &outcome, reached, now).await?;
        if !is_stored {
            tracing::warn!(
                delivery_id = delivery.delivery_id,
                "a delivery took too long and may be sent twice"
            );
        }
        Ok(())
    }

    async fn send(&self, id: &str, webhook: &Webhook, delivery: &Delivery) -> Answer {
        let now = self.context.now();
        let (url, headers) = match self.request(id, webhook, delivery, now) {
            Ok(request) => request,
            Err(error) => return Answer::NotSent(format!("cannot decrypt the URL or the secret: {error}")),
        };
        let network = &self.network;
        let pinned = match network.egress.resolve(&url).await {
            Ok(pinned) => pinned,
            Err(failure) if failure.is_retryable => return Answer::Silence(failure.message),
            Err(failure) => return Answer::NotSent(format!("the URL {}", failure.message)),
        };
        let body = delivery.content.payload.clone().into_bytes();
        match network.client.post(pinned, &headers, body, network.attempt_timeout).await {
            Ok(response) => Answer::Response { status: response.status.as_u16(), body: response.body },
            Err(CallError::NotSent(reason) | CallError::Sent(reason)) => Answer::Silence(reason),
        }
    }

    /// URL and headers of an attempt.
    fn request(
        &self,
        id: &str,
        webhook: &Webhook,
        delivery: &Delivery,
        now: Moment,
    ) -> Result<(String, Headers), UnsealError> {
        let keys = self.context.database.keys();
        let url = unseal(keys, id, "url", &webhook.url)?;
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("user-agent", concat!("ade/", env!("CARGO_PKG_VERSION")).to_owned()),
        ];
        let previous = webhook.previous_secret.iter().filter(|previous| now < previous.valid_until);
        let sealed = webhook.secret.iter().chain(previous.map(|previous| &previous.secret));
        let secrets = signing_secrets(keys, id, sealed)?;
        if !secrets.is_empty() {
            let (message_id, seconds) = (&delivery.delivery_id, now.micros() / 1_000_000);
            let signed = signatures(&secrets, message_id, seconds, delivery.content.payload.as_bytes());
            headers.push(("webhook-id", message_id.clone()));
            headers.push(("webhook-timestamp", seconds.to_string()));
            headers.push(("webhook-signature", signed));
        }
        Ok((url, headers))
    }
}

fn judge(answer: &Answer, delivery: &Delivery, now: Moment) -> AttemptOutcome {
    let error = answer.error();
    let failed_attempts = u32::try_from(delivery.attempts + 1).unwrap_or(u32::MAX);
    let is_gone = matches!(answer, Answer::Response { status: GONE, .. });
    let next_at = error
        .as_ref()
        .filter(|_| !is_gone)
        .and_then(|_| next_attempt(failed_attempts, now, delivery.give_up_at, random_number()));
    let status = match (&error, next_at) {
        (None, _) => DeliveryStatus::Delivered,
        (Some(_), Some(_)) => DeliveryStatus::Pending,
        (Some(_), None) => DeliveryStatus::Failed,
    };
    let (response_status, response) = match answer {
        Answer::Response { status, body } => (Some(*status), Some(excerpt(body))),
        _ => (None, None),
    };
    let finished_at = (status != DeliveryStatus::Pending).then_some(now);
    let report = DeliveryReport { last_attempt_at: Some(now), finished_at, response_status, response, error };
    AttemptOutcome { status, next_at, report }
}

/// The beginning of a response, as text that is safe to show.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let beginning: String = text.chars().take(MAX_RESPONSE_CHARS).collect();
    escape_hidden(&beginning).into_owned()
}
