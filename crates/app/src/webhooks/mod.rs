//! Webhooks: administrators register where events are sent, and which; a dispatcher sends them (`dispatcher.rs`). Inbound hooks propose
//! tasks (`inbound.rs`), and linked users decide in Slack (`slack.rs`).
//!
//! URLs and secrets are stored encrypted. A secret is returned once, when it is created; no view, list, audit entry, event or log line
//! contains one.

mod attempt;
mod chat_secrets;
mod dispatcher;
mod inbound;
mod mail;
mod sealed;
mod slack;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::event::Event;
use ade_domain::permission::Scope;
use ade_domain::task::Task;
use ade_domain::webhook::delivery::{CircuitState, RETRY_WINDOW_MS};
use ade_domain::webhook::email::Recipient;
use ade_domain::webhook::notification::Notification;
use ade_domain::webhook::signature::{ROTATION_OVERLAP_MS, SigningSecret};
use ade_domain::webhook::slack_request::check_signing_secret;
use ade_domain::webhook::{
    MAX_WEBHOOKS, PreviousSecret, SlackApp, Webhook, WebhookFormat, check_credential, email, pagerduty,
    servicenow, slack as slack_format, standard_payload,
};
use ade_executors::client::HttpClient;
use ade_executors::egress::{EgressPolicy, Resolver};
use ade_store::database::{
    Commit, Delivery, DeliveryContent, DeliveryFilter, DeliveryReport, DeliveryStatus, Document, NewDelivery,
    Versioned, Write,
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

pub use dispatcher::WebhookDispatcher;
pub use inbound::{
    HookedProposal, InboundHookChange, InboundHookService, InboundHookWithSecret, VerifiedMessage,
};
pub use mail::{MailEncryption, MailServer, MailSettings};
pub use sealed::reseal_secrets;
use sealed::{new_secret, seal, unseal};
pub use slack::{NewLinkCode, SlackService, VerifiedSlackRequest};
use stats::Stats;
pub use stats::{DeliveryOutcome, WebhookBacklog};

use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Context, Error, ObjectKind, Outcome, Result, WebhookView, new_id, set};

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// Allows a listed host to have private addresses; see [`EgressPolicy`].
const PRIVATE_SUFFIX: &str = "+private";
/// The event of a delivery that somebody requested to test a webhook.
const TEST_EVENT: &str = "webhook:test";

type StoredWebhook = Versioned<Webhook>;

/// Where webhooks may go, and how long an attempt may take.
#[derive(Debug, Clone)]
pub struct WebhookNetwork {
    egress: EgressPolicy,
    client: HttpClient,
    attempt_timeout: Duration,
    /// Where people reach this server, for links.
    public_url: Option<String>,
    /// Sends e-mail.
    mail: Option<MailServer>,
}

impl WebhookNetwork {
    /// All public addresses over HTTPS, and the listed hosts, which may be private and need no HTTPS.
    pub fn new(allowed_private_hosts: &[String]) -> Result<Self, InvalidField> {
        let private = |host: &String| format!("{}{PRIVATE_SUFFIX}", host.trim_end_matches(PRIVATE_SUFFIX));
        let hosts: Vec<String> = allowed_private_hosts.iter().map(private).collect();
        let egress = EgressPolicy::new(&hosts)?.allow_all_public();
        Ok(Self {
            egress,
            client: HttpClient::default(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            public_url: None,
            mail: None,
        })
    }

    #[must_use]
    pub fn with_resolver(self, resolver: Arc<dyn Resolver>) -> Self {
        Self { egress: self.egress.with_resolver(resolver), ..self }
    }

    /// Links in messages begin with this URL.
    #[must_use]
    pub fn with_public_url(self, url: Option<String>) -> Self {
        Self { public_url: url.map(|url| url.trim_end_matches('/').to_owned()), ..self }
    }

    /// E-mail is sent by this server.
    #[must_use]
    pub fn with_mail(self, mail: Option<MailServer>) -> Self {
        Self { mail, ..self }
    }

    #[must_use]
    pub fn with_attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self { attempt_timeout, ..self }
    }

    /// Destination and masked form of a URL that may be called at present.
    async fn check(&self, url: &str, format: WebhookFormat) -> Result<(String, String)> {
        let invalid = |reason: String| Error::invalid("url", reason);
        let (parsed, listed) = self.egress.check(url).map_err(|failure| invalid(failure.message))?;
        if parsed.scheme() != "https" && !listed.is_some_and(|host| host.is_internal()) {
            return Err(invalid(
                "must begin with https://, unless the operator lists the host in webhooks.allowed_private_hosts"
                    .to_owned(),
            ));
        }
        self.egress.resolve(url).await.map_err(|failure| invalid(failure.message))?;
        let host = parsed.host_str().unwrap_or_default();
        let port = parsed.port_or_known_default().unwrap_or_default();
        let destination = format!("{}://{host}:{port}", parsed.scheme());
        let mut masked = parsed.clone();
        if format == WebhookFormat::Slack {
            // The path of an incoming webhook is its secret.
            masked.set_path("***");
        }
        if parsed.query().is_some() {
            masked.set_query(Some("***"));
        }
        Ok((destination, masked.to_string()))
    }
}

/// Registers webhooks and shows their deliveries. Clones share the wake-up of the dispatcher and the counts.
#[derive(Debug, Clone)]
pub struct WebhookService {
    context: Context,
    network: WebhookNetwork,
    /// Wakes the dispatcher of this process when something is due.
    due: Arc<Notify>,
    stats: Arc<Stats>,
}

/// What administrators set. A missing field keeps its value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WebhookChange {
    pub name: Option<String>,
    pub url: Option<String>,
    /// Cannot be changed later.
    pub format: Option<WebhookFormat>,
    pub events: Option<Vec<String>>,
    pub task_types: Option<Vec<String>>,
    pub active: Option<bool>,
    /// What the receiver asks for; see [`Webhook::credential`].
    pub credential: Option<String>,
    /// The channel of Slack that a bot token posts to.
    pub channel: Option<String>,
    /// Addresses that get every event; see [`Webhook::addresses`].
    pub addresses: Option<Vec<String>>,
    /// 0: no digest.
    pub digest_minutes: Option<u32>,
    /// The signing secret of a Slack app, which lets linked users decide; an empty text removes it.
    pub signing_secret: Option<String>,
}

impl WebhookChange {
    fn digest(&self) -> Option<Option<u32>> {
        self.digest_minutes.map(|minutes| Some(minutes).filter(|minutes| *minutes > 0))
    }
}

/// A webhook with a secret that was just made, which is shown this once.
#[derive(Debug)]
pub struct WebhookWithSecret {
    pub view: WebhookView,
    pub secret: Option<SigningSecret>,
}

/// What audit entries say about a webhook.
fn audited(webhook: &Webhook) -> Value {
    json!({
        "name": webhook.name, "format": webhook.format, "destination": webhook.destination, "events": webhook.events,
        "task_types": webhook.task_types, "channel": webhook.channel, "active": webhook.active,
        "addresses": webhook.addresses, "digest_minutes": webhook.digest_minutes,
        "decisions": webhook.slack_app.is_some(), "secret_id": webhook.slack_app.as_ref().map(|app| &app.secret_id),
    })
}

fn details(before: Option<&Webhook>, after: Option<&Webhook>) -> Map<String, Value> {
    let named = [("before", before), ("after", after)];
    named.into_iter().filter_map(|(name, webhook)| Some((name.to_owned(), audited(webhook?)))).collect()
}

impl WebhookService {
    #[must_use]
    pub fn new(context: Context, network: WebhookNetwork) -> Self {
        Self { context, network, due: Arc::default(), stats: Arc::default() }
    }

    fn view(stored: &StoredWebhook, circuit: CircuitState) -> WebhookView {
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
            circuit,
        }
    }

    async fn views(&self, webhooks: &[StoredWebhook]) -> Result<Vec<WebhookView>> {
        let (circuits, now) = (self.context.database.circuits().await?, self.context.now());
        let state = |webhook: &Webhook| {
            let found = circuits.iter().find(|(destination, _)| *destination == webhook.destination);
            found.map_or(CircuitState::Closed, |(_, circuit)| circuit.state(now))
        };
        Ok(webhooks.iter().map(|stored| Self::view(stored, state(&stored.value))).collect())
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

    pub async fn create(&self, change: &WebhookChange, caller: &Caller) -> Result<WebhookWithSecret> {
        caller.require_admin()?;
        let is_email = change.format == Some(WebhookFormat::Email);
        let required = |missing: bool, path: &str| missing.then(|| InvalidField::at(path, "is required"));
        let missing = [
            required(change.name.is_none(), "name"),
            required(change.url.is_none() && default_url(change).is_none() && !is_email, "url"),
            required(change.events.is_none(), "events"),
        ];
        require_valid(missing.into_iter().flatten().collect())?;
        let existing = self.context.database.documents::<Webhook>().await?;
        if existing.len() >= MAX_WEBHOOKS {
            return Err(Error::Forbidden(format!(
                "there are already {MAX_WEBHOOKS} webhooks; delete some first"
            )));
        }
        let format = change.format.unwrap_or_default();
        let url = change.url.clone().or_else(|| default_url(change).map(str::to_owned)).unwrap_or_default();
        let (destination, masked_url) = self.check_url(&url, format).await?;
        let (id, keys) = (new_id(), self.context.database.keys());
        // Others do not verify our signatures.
        let secret = if format == WebhookFormat::Standard { Some(new_secret()?) } else { None };
        let sealed_secret = secret.as_ref().map(|secret| seal(keys, &id, "secret", secret.reveal()));
        let webhook = Webhook {
            name: change.name.clone().unwrap_or_default(),
            format,
            credential: self.sealed_credential(&id, change)?,
            channel: change.channel.clone(),
            addresses: change.addresses.clone().unwrap_or_default(),
            digest_minutes: change.digest().flatten(),
            slack_app: self.slack_app(&id, change, caller)?,
            events: change.events.clone().unwrap_or_default(),
            task_types: change.task_types.clone().unwrap_or_default(),
            active: change.active.unwrap_or(true),
            disabled_reason: None,
            owner: caller.user_id().cloned(),
            created_at: self.context.now(),
            destination,
            masked_url,
            url: seal(keys, &id, "url", &url)?,
            secret: sealed_secret.transpose()?,
            previous_secret: None,
        };
        require_valid(webhook.validate())?;
        self.record_chat_secrets(change, format, caller).await?;
        let after = Versioned { id, revision: 1, value: webhook };
        let view = self.commit("webhook.create", None, Some(&after), caller).await?.ok_or(Error::Conflict)?;
        Ok(WebhookWithSecret { view, secret })
    }

    /// Destination and masked form of a URL. E-mail has none: the operator sets the mail server.
    async fn check_url(&self, url: &str, format: WebhookFormat) -> Result<(String, String)> {
        if format != WebhookFormat::Email {
            return self.network.check(url, format).await;
        }
        if !url.is_empty() {
            return Err(Error::invalid("url", "is not used by this format"));
        }
        self.require_mail_server()?;
        Ok((mail::DESTINATION.to_owned(), mail::DESTINATION.to_owned()))
    }

    fn sealed_credential(&self, id: &str, change: &WebhookChange) -> Result<Option<String>> {
        let Some(credential) = &change.credential else { return Ok(None) };
        check_credential("credential", credential).map_err(|fault| Error::Invalid(vec![fault]))?;
        seal(self.context.database.keys(), id, "credential", credential).map(Some)
    }

    /// The app of a new signing secret: links that were made with another one end.
    fn slack_app(&self, id: &str, change: &WebhookChange, caller: &Caller) -> Result<Option<SlackApp>> {
        let given = change.signing_secret.as_ref().filter(|secret| !secret.is_empty());
        let Some(secret) = given else { return Ok(None) };
        check_signing_secret("signing_secret", secret).map_err(|fault| Error::Invalid(vec![fault]))?;
        let signing_secret = seal(self.context.database.keys(), id, "signing_secret", secret)?;
        Ok(Some(SlackApp { signing_secret, secret_id: new_id(), set_by: caller.credentials_creator() }))
    }

    pub async fn update(&self, id: &str, change: &WebhookChange, caller: &Caller) -> Result<WebhookView> {
        caller.require_admin()?;
        let format = self.load(id).await?.value.format;
        let checked = match &change.url {
            Some(url) => Some((url, self.check_url(url, format).await?)),
            None => None,
        };
        let credential = self.sealed_credential(id, change)?;
        let slack_app = self.slack_app(id, change, caller)?;
        self.record_chat_secrets(change, format, caller).await?;
        self.change("webhook.update", id, caller, |webhook| {
            if change.format.is_some_and(|format| format != webhook.format) {
                return Err(Error::invalid("format", "cannot be changed; create another webhook"));
            }
            set(&mut webhook.name, &change.name);
            set(&mut webhook.events, &change.events);
            set(&mut webhook.task_types, &change.task_types);
            set(&mut webhook.active, &change.active);
            if credential.is_some() {
                webhook.credential.clone_from(&credential);
            }
            if change.channel.is_some() {
                webhook.channel.clone_from(&change.channel);
            }
            set(&mut webhook.addresses, &change.addresses);
            set(&mut webhook.digest_minutes, &change.digest());
            if change.signing_secret.is_some() {
                webhook.slack_app.clone_from(&slack_app);
            }
            if change.active == Some(true) {
                webhook.disabled_reason = None;
            }
            if let Some((url, (destination, masked_url))) = &checked {
                // A secret belongs to the host that it was given for.
                if *destination != webhook.destination && webhook.credential.is_some() && credential.is_none()
                {
                    let detail = "goes to another host: give its credential in the same request";
                    return Err(Error::invalid("url", detail));
                }
                webhook.url = seal(self.context.database.keys(), id, "url", url)?;
                webhook.destination.clone_from(destination);
                webhook.masked_url.clone_from(masked_url);
            }
            require_valid(webhook.validate())
        })
        .await
    }

    /// Replaces the signing secret. The previous one signs too for a day, so that the receiver can change over.
    pub async fn rotate(&self, id: &str, caller: &Caller) -> Result<WebhookWithSecret> {
        caller.require_admin()?;
        let (secret, now) = (new_secret()?, self.context.now());
        let view = self.change("webhook.rotate", id, caller, |webhook| {
            let Some(present) = webhook.secret.take() else {
                let detail = "only webhooks of the format standard have a secret that can be rotated";
                return Err(Error::invalid("format", detail));
            };
            let valid_until = now.plus_ms(ROTATION_OVERLAP_MS);
            webhook.previous_secret = Some(PreviousSecret { secret: present, valid_until });
            // The context of a sealed text names its field, so the previous one is read as what it was.
            webhook.secret = Some(seal(self.context.database.keys(), id, "secret", secret.reveal())?);
            Ok(())
        });
        Ok(WebhookWithSecret { view: view.await?, secret: Some(secret) })
    }

    pub async fn delete(&self, id: &str, caller: &Caller) -> Result<()> {
        caller.require_admin()?;
        retry_on_conflict(async || {
            let before = self.load(id).await?;
            caller.check_revision(before.revision)?;
            Ok(self.commit("webhook.delete", Some(&before), None, caller).await?.map(drop))
        })
        .await
    }

    async fn change(
        &self,
        action: &str,
        id: &str,
        caller: &Caller,
        decide: impl Fn(&mut Webhook) -> Result<()>,
    ) -> Result<WebhookView> {
        retry_on_conflict(async || {
            let before = self.load(id).await?;
            caller.check_revision(before.revision)?;
            let mut webhook = before.value.clone();
            decide(&mut webhook)?;
            let after = before.next(webhook);
            self.commit(action, Some(&before), Some(&after), caller).await
        })
        .await
    }

    /// Commits a change of a webhook: created if there is no `before`, deleted if there is no `after`. `None` after a conflict.
    async fn commit(
        &self,
        action: &str,
        before: Option<&StoredWebhook>,
        after: Option<&StoredWebhook>,
        caller: &Caller,
    ) -> Result<Option<WebhookView>> {
        let Some(stored) = after.or(before) else { return Ok(None) };
        let expected = before.map(|before| before.revision);
        let write = match (after, expected) {
            (Some(after), expected) => Write::document(after, expected),
            (None, expected) => Write::DeleteDocument {
                kind: Webhook::KIND,
                id: stored.id.clone(),
                expected: expected.unwrap_or_default(),
            },
        };
        let [old, new] = [before, after].map(|stored| stored.map(|stored| &stored.value));
        let action = AuditedAction {
            revision: Some(stored.revision),
            details: details(old, new),
            ..AuditedAction::new(action, &stored.id)
        };
        let mut commit = action.commit(vec![write], caller, self.context.now());
        let view = self.views(std::slice::from_ref(stored)).await?.into_iter().next();
        let Some(view) = view else { return Ok(None) };
        commit.response = stored_response(caller, |_| Outcome::Webhook(Box::new(view.clone())))?;
        let is_committed = self.context.commit(commit).await?;
        self.due.notify_one();
        Ok(is_committed.then_some(view))
    }

    /// Sends a message of the event `webhook:test`, and returns its delivery, which is on its way.
    pub async fn test(&self, id: &str, caller: &Caller) -> Result<Delivery> {
        caller.require_admin()?;
        let stored = self.load(id).await?;
        if !stored.value.active {
            return Err(Error::invalid("active", "must be true: an inactive webhook is sent nothing"));
        }
        let recipient = match stored.value.format {
            WebhookFormat::Email => Some(self.test_recipient(&stored.value, caller).await?.to_string()),
            _ => None,
        };
        let (delivery_id, now) = (new_id(), self.context.now());
        let data = [("webhook_id", json!(id)), ("requested_by", json!(caller.user_id()))];
        let event = Event {
            event_id: delivery_id.clone(),
            event: TEST_EVENT.to_owned(),
            at: now,
            task_id: None,
            notify: Vec::new(),
            payload: data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            source: self.context.instance.to_string(),
        };
        let payload = self.render(&stored.value, 0, &event, None);
        let content = DeliveryContent {
            event: TEST_EVENT.to_owned(),
            task_id: None,
            number: 0,
            payload: payload.to_string(),
            skipped_people: 0,
        };
        let new = NewDelivery {
            event_id: delivery_id.clone(),
            delivery_id,
            webhook_id: id.to_owned(),
            recipient,
            digest_at: None,
            created_at: now,
            give_up_at: now.plus_ms(RETRY_WINDOW_MS),
            content,
            refused: None,
        };
        let delivery = Delivery {
            delivery_id: new.delivery_id.clone(),
            webhook_id: new.webhook_id.clone(),
            event_id: new.event_id.clone(),
            recipient: new.recipient.clone(),
            status: DeliveryStatus::Pending,
            next_at: Some(now),
            attempts: 0,
            give_up_at: new.give_up_at,
            created_at: now,
            content: new.content.clone(),
            report: DeliveryReport::default(),
        };
        // First, so that nothing is sent without a trace.
        self.audit("webhook.test", &delivery, caller).await?;
        self.context.database.add_delivery(&new).await?;
        self.due.notify_one();
        Ok(delivery)
    }

    /// Who gets a test by e-mail: the caller, or else the first address.
    async fn test_recipient(&self, webhook: &Webhook, caller: &Caller) -> Result<Recipient> {
        if let Some(id) = caller.user_id() {
            let found = self.context.database.user(id).await?;
            if found.is_some_and(|found| found.user.email.is_some()) {
                return Ok(Recipient::User(id.clone()));
            }
        }
        let address = webhook.addresses.first().cloned().map(Recipient::Address);
        address.ok_or_else(|| {
            let detail =
                "is empty, and you have no e-mail address that a test could go to: set one with ade user set";
            Error::invalid("addresses", detail)
        })
    }

    /// The deliveries of a webhook, newest first: for administrators and auditors.
    pub async fn deliveries(
        &self,
        filter: DeliveryFilter<'_>,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<Delivery>> {
        require_may_see(caller)?;
        self.load(filter.webhook_id).await?;
        Ok(self.context.database.deliveries(filter, limit).await?)
    }

    /// Sends a delivery again, with the same id, whether it arrived or not.
    pub async fn redeliver(&self, webhook_id: &str, delivery_id: &str, caller: &Caller) -> Result<Delivery> {
        caller.require_admin()?;
        self.load(webhook_id).await?;
        let found = self.context.database.delivery(webhook_id, delivery_id).await?;
        let found = found.ok_or(Error::NotFound(ObjectKind::Delivery))?;
        let now = self.context.now();
        let give_up_at = now.plus_ms(RETRY_WINDOW_MS);
        let (status, next_at) = (DeliveryStatus::Pending, Some(now));
        let delivery = Delivery { status, next_at, give_up_at, attempts: 0, ..found };
        self.audit("webhook.redeliver", &delivery, caller).await?;
        // If it is being sent at the moment, that is the attempt that was asked for.
        self.context.database.redeliver(delivery_id, now, give_up_at).await?;
        self.due.notify_one();
        Ok(delivery)
    }

    async fn audit(&self, action: &str, delivery: &Delivery, caller: &Caller) -> Result<()> {
        let mut action = AuditedAction::new(action, &delivery.webhook_id);
        action.details.insert("delivery_id".to_owned(), json!(delivery.delivery_id));
        let mut commit = action.commit(Vec::new(), caller, self.context.now());
        commit.response = stored_response(caller, |_| Outcome::Delivery(Box::new(delivery.clone())))?;
        Ok(self.context.database.commit(commit).await?)
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

    /// Deactivates a webhook whose receiver no longer exists; `false` if it has another URL by now, about which nothing is known.
    async fn disable(&self, attempted: &StoredWebhook, reason: &str) -> Result<bool> {
        let id = attempted.id.as_str();
        retry_on_conflict(async || {
            let Some(before) = self.context.database.document::<Webhook>(id).await? else {
                return Ok(Some(true));
            };
            if !self.has_same_url(id, &attempted.value, &before.value) {
                return Ok(Some(false));
            }
            if !before.value.active {
                return Ok(Some(true));
            }
            let value =
                Webhook { active: false, disabled_reason: Some(reason.to_owned()), ..before.value.clone() };
            let action = AuditedAction {
                reason: Some(reason),
                notify: self.context.database.people().await?.administrators(),
                details: details(Some(&before.value), Some(&value)),
                ..AuditedAction::new("webhook.disable", id).with_revision(before.revision + 1)
            };
            let write = Write::document(&before.next(value), Some(before.revision));
            let by = self.context.service("webhooks", ade_domain::audit::Trigger::Job("webhooks".to_owned()));
            let commit: Commit = action.commit_as(by, vec![write], self.context.now());
            Ok(self.context.commit(commit).await?.then_some(true))
        })
        .await
    }

    /// Each encryption of a URL looks different.
    fn has_same_url(&self, id: &str, one: &Webhook, other: &Webhook) -> bool {
        let [one, other] =
            [one, other].map(|webhook| unseal(self.context.database.keys(), id, "url", &webhook.url));
        one.is_ok() && one == other
    }
}

/// Where the services of others are.
fn default_url(change: &WebhookChange) -> Option<&'static str> {
    match change.format? {
        WebhookFormat::Pagerduty => Some("https://events.pagerduty.com/v2/enqueue"),
        WebhookFormat::Slack if change.credential.is_some() => Some("https://slack.com/api/chat.postMessage"),
        _ => None,
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
