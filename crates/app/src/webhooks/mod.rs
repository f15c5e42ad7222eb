//! Webhooks: administrators register where events are sent, and which (`registration.rs`); a dispatcher sends them (`dispatcher.rs`).
//! Inbound hooks propose tasks (`inbound.rs`), and linked users decide in Slack (`slack.rs`).
//!
//! URLs and secrets are stored encrypted. A secret is returned once, when it is created; no view, list, audit entry, event or log line
//! contains one.

mod attempt;
mod chat_secrets;
mod commit;
mod deliveries;
mod dispatcher;
mod inbound;
mod mail;
mod network;
mod registration;
mod sealed;
mod slack;
mod stats;

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::event::Event;
use ade_domain::permission::Scope;
use ade_domain::task::Task;
use ade_domain::webhook::delivery::Circuit;
use ade_domain::webhook::notification::Notification;
use ade_domain::webhook::{
    Webhook, WebhookFormat, email, pagerduty, servicenow, slack as slack_format, standard_payload,
};
use ade_store::database::{Document, Versioned};
use serde_json::{Value, json};
use tokio::sync::Notify;

pub use dispatcher::WebhookDispatcher;
pub use inbound::{
    HookedProposal, InboundHookChange, InboundHookService, InboundHookWithSecret, VerifiedMessage,
};
pub use mail::{MailEncryption, MailServer, MailSettings};
pub use network::WebhookNetwork;
pub use registration::{WebhookChange, WebhookWithSecret};
pub use sealed::reseal_secrets;
pub use slack::{NewLinkCode, SlackService, VerifiedSlackRequest};
use stats::Stats;
pub use stats::{DeliveryOutcome, WebhookBacklog};

use crate::{Caller, Context, Error, ObjectKind, Result, WebhookView};

type StoredWebhook = Versioned<Webhook>;

/// Registers webhooks and shows their deliveries. Clones share the wake-up of the dispatcher and the counts.
#[derive(Debug, Clone)]
pub struct WebhookService {
    context: Context,
    network: WebhookNetwork,
    /// Wakes the dispatcher of this process when something is due.
    due: Arc<Notify>,
    stats: Arc<Stats>,
}

impl WebhookService {
    #[must_use]
    pub fn new(context: Context, network: WebhookNetwork) -> Self {
        Self { context, network, due: Arc::default(), stats: Arc::default() }
    }

    fn view(stored: &StoredWebhook, circuit: Circuit, now: Moment) -> WebhookView {
        let webhook = stored.value.clone();
        WebhookView {
            webhook_id: stored.id.clone(),
            revision: stored.revision,
            name: webhook.name,
            url: webhook.masked_url,
            format: webhook.format,
            events: webhook.events,
            task_types: webhook.task_types,
            channel: webhook.channel,
            addresses: webhook.addresses,
            digest_minutes: webhook.digest_minutes,
            decisions: webhook.slack_app.is_some(),
            active: webhook.active,
            disabled_reason: webhook.disabled_reason,
            owner: webhook.owner,
            created_at: webhook.created_at,
            previous_secret_until: webhook.previous_secret.map(|previous| previous.valid_until),
            circuit: circuit.state(now),
            circuit_open_until: circuit.open_until.filter(|until| *until > now),
        }
    }

    async fn views(&self, webhooks: &[StoredWebhook]) -> Result<Vec<WebhookView>> {
        let (circuits, now) = (self.context.database.circuits().await?, self.context.now());
        let circuit = |webhook: &Webhook| {
            let found = circuits.iter().find(|(destination, _)| *destination == webhook.destination);
            found.map_or_else(Circuit::default, |(_, circuit)| *circuit)
        };
        Ok(webhooks.iter().map(|stored| Self::view(stored, circuit(&stored.value), now)).collect())
    }

    /// All webhooks, oldest first: for administrators and auditors.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Versioned<WebhookView>>> {
        require_may_see(caller)?;
        let views = self.views(&self.context.database.documents().await?).await?;
        let listed = |view: WebhookView| {
            let view = shown_to(caller, view);
            let (id, revision) = (view.webhook_id.clone(), view.revision);
            Versioned { id, revision, value: view }
        };
        Ok(views.into_iter().map(listed).collect())
    }

    pub async fn get(&self, id: &str, caller: &Caller) -> Result<WebhookView> {
        require_may_see(caller)?;
        let views = self.views(&[self.load(id).await?]).await?;
        views.into_iter().next().map(|view| shown_to(caller, view)).ok_or(not_found())
    }

    async fn load(&self, id: &str) -> Result<StoredWebhook> {
        self.context.database.document(id).await?.ok_or(not_found())
    }

    /// The body of a request about an event, without secrets.
    fn render(&self, webhook: &Webhook, number: u64, event: &Event, task: Option<&Task>) -> Value {
        let notification = Notification { event, task, public_url: self.network.public_url.as_deref() };
        match webhook.format {
            WebhookFormat::Standard => standard_payload(number, event),
            WebhookFormat::Slack => {
                let offers_decisions = webhook.slack_app.is_some();
                slack_format::message(&notification, webhook.channel.as_deref(), offers_decisions)
            }
            WebhookFormat::Pagerduty => pagerduty::event(&notification),
            WebhookFormat::Servicenow => servicenow::record(&notification),
            WebhookFormat::Email => json!(email::part(&notification)),
        }
    }
}

/// Only administrators see the path of a URL, which some receivers treat as a secret.
fn shown_to(caller: &Caller, view: WebhookView) -> WebhookView {
    let origin_end = view.url.find("://").and_then(|at| Some(at + 3 + view.url.get(at + 3..)?.find('/')?));
    let Some(origin) = origin_end.and_then(|end| view.url.get(..=end)).filter(|_| !caller.is_admin()) else {
        return view;
    };
    WebhookView { url: format!("{origin}***"), ..view }
}

fn not_found() -> Error {
    Error::NotFound(ObjectKind::Document(Webhook::KIND))
}

fn require_may_see(caller: &Caller) -> Result<()> {
    caller.require_scope(Scope::Read)?;
    if caller.can_see_all() {
        return Ok(());
    }
    Err(Error::forbidden("only administrators and auditors see webhooks"))
}
