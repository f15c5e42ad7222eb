//! Administrators create, change, rotate and delete webhooks; the dispatcher deactivates those whose receiver is gone.

use ade_domain::InvalidField;
use ade_domain::audit::Trigger;
use ade_domain::webhook::signature::{ROTATION_OVERLAP_MS, SigningSecret};
use ade_domain::webhook::slack_request::check_signing_secret;
use ade_domain::webhook::{MAX_WEBHOOKS, PreviousSecret, SlackApp, Webhook, WebhookFormat, check_credential};
use ade_store::database::{Commit, Versioned, Write};
use serde_json::{Value, json};

use super::commit::{commit_of, details};
use super::sealed::{new_secret, seal, unseal};
use super::{StoredWebhook, WebhookService, mail};
use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome, Result, WebhookView, new_id, set};

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

impl WebhookService {
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
        let by = (caller, self.context.now());
        let Some(mut commit) = commit_of(action, before, after, audited, by) else { return Ok(None) };
        let view = self.views(std::slice::from_ref(stored)).await?.into_iter().next();
        let Some(view) = view else { return Ok(None) };
        commit.response = stored_response(caller, |_| Outcome::Webhook(Box::new(view.clone())))?;
        let is_committed = self.context.commit(commit).await?;
        self.due.notify_one();
        Ok(is_committed.then_some(view))
    }

    /// Deactivates a webhook whose receiver no longer exists; `false` if it has another URL by now, about which nothing is known.
    pub(super) async fn disable(&self, attempted: &StoredWebhook, reason: &str) -> Result<bool> {
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
                details: details(Some(&before.value), Some(&value), audited),
                ..AuditedAction::new("webhook.disable", id).with_revision(before.revision + 1)
            };
            let write = Write::document(&before.next(value), Some(before.revision));
            let by = self.context.service("webhooks", Trigger::Job("webhooks".to_owned()));
            let commit: Commit = action.commit_as(by, vec![write], self.context.now());
            Ok(self.context.commit(commit).await?.then_some(true))
        })
        .await
    }

    /// Each encryption of a URL looks different.
    pub(super) fn has_same_url(&self, id: &str, one: &Webhook, other: &Webhook) -> bool {
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
