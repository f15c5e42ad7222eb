//! Who knows the secrets of a chat. Holders are recorded for each secret, not for each webhook: the same secret in several webhooks, also in
//! deleted ones, has the holders of all. Nothing here forgets anybody.

use std::collections::BTreeSet;

use ade_domain::people::UserId;
use ade_domain::webhook::chat_secret::{ChatSecret, MAX_CHAT_SECRETS};
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::DatabaseError;
use ade_store::database::{Commit, Versioned, Write};
use subtle::ConstantTimeEq;

use super::sealed::{seal, unseal};
use super::{StoredWebhook, WebhookChange, WebhookService};
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Result};

pub(super) const FIELD: &str = "chat_secret";

type StoredSecret = Versioned<ChatSecret>;

fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

impl WebhookService {
    /// Records that the caller knows the secrets of a change of a Slack webhook. It comes before the change: who sent a secret knows it,
    /// whether the change succeeds or not.
    pub(super) async fn record_chat_secrets(
        &self,
        change: &WebhookChange,
        format: WebhookFormat,
        caller: &Caller,
    ) -> Result<()> {
        if format != WebhookFormat::Slack {
            return Ok(());
        }
        let given = change.signing_secret.iter().chain(&change.credential);
        for secret in given.filter(|secret| !secret.is_empty()) {
            retry_on_conflict(async || self.record_holder(secret, caller).await).await?;
        }
        Ok(())
    }

    async fn record_holder(&self, secret: &str, caller: &Caller) -> Result<Option<()>> {
        let (database, keys) = (&self.context.database, self.context.database.keys());
        let known: Vec<StoredSecret> = database.documents().await?;
        let matches = |stored: &&StoredSecret| {
            unseal(keys, &stored.id, FIELD, &stored.value.secret).is_ok_and(|text| is_same(&text, secret))
        };
        let before = known.iter().find(matches);
        let mut holders = self.setters(secret).await?;
        holders.extend(caller.credentials_creator().into_iter().chain(caller.user_id().cloned()));
        let after = match before {
            Some(before) if holders.is_subset(&before.value.holders) => return Ok(Some(())),
            Some(before) => {
                let mut value = before.value.clone();
                value.holders.extend(holders);
                before.next(value)
            }
            None if known.len() >= MAX_CHAT_SECRETS => {
                let detail =
                    format!("there were already {MAX_CHAT_SECRETS} secrets of chats; use one of them");
                return Err(Error::Forbidden(detail));
            }
            None => {
                // The same for the same secret: the database decides between requests at the same time.
                let id = keys.hidden_content(format!("{FIELD}:{secret}").as_bytes());
                holders.extend(self.owners(secret).await?);
                let secret = seal(keys, &id, FIELD, secret)?;
                Versioned { id, revision: 1, value: ChatSecret { secret, holders } }
            }
        };
        let write = Write::document(&after, before.map(|before| before.revision));
        match self.context.commit(Commit { writes: vec![write], ..Commit::default() }).await {
            Err(Error::Database(DatabaseError::AlreadyExists { .. })) => Ok(None),
            committed => Ok(committed?.then_some(())),
        }
    }

    /// Everybody who knows a secret with which requests of a webhook can be made; `None` if nobody knows who they are: its bot token is
    /// older than the record of holders, or cannot be read.
    pub(super) async fn chat_holders(
        &self,
        id: &str,
        webhook: &Webhook,
        signing_secret: &str,
    ) -> Result<Option<BTreeSet<UserId>>> {
        let (database, keys) = (&self.context.database, self.context.database.keys());
        let token = webhook.credential.as_ref().map(|sealed| unseal(keys, id, "credential", sealed));
        let Ok(token) = token.transpose() else { return Ok(None) };
        let mut is_token_known = token.is_none();
        let mut holders = self.setters(signing_secret).await?;
        let known: Vec<StoredSecret> = database.documents().await?;
        for StoredSecret { id, value, .. } in known {
            let Ok(secret) = unseal(keys, &id, FIELD, &value.secret) else {
                // A secret that cannot be read any more could be one of these.
                holders.extend(value.holders);
                continue;
            };
            let is_token = token.as_ref().is_some_and(|token| is_same(&secret, token));
            is_token_known |= is_token;
            if is_token || is_same(&secret, signing_secret) {
                holders.extend(value.holders);
            }
        }
        Ok(is_token_known.then_some(holders))
    }

    /// Who created the webhooks that have a bot token. They probably set it, if that was before holders were recorded.
    async fn owners(&self, token: &str) -> Result<BTreeSet<UserId>> {
        let (database, keys) = (&self.context.database, self.context.database.keys());
        let webhooks: Vec<StoredWebhook> = database.documents().await?;
        let owner = |stored: StoredWebhook| {
            let text = unseal(keys, &stored.id, "credential", stored.value.credential.as_ref()?).ok()?;
            stored.value.owner.filter(|_| is_same(&text, token))
        };
        Ok(webhooks.into_iter().filter_map(owner).collect())
    }

    /// Who set a signing secret last, in all webhooks that have it: some are older than the record of holders.
    async fn setters(&self, signing_secret: &str) -> Result<BTreeSet<UserId>> {
        let (database, keys) = (&self.context.database, self.context.database.keys());
        let webhooks: Vec<StoredWebhook> = database.documents().await?;
        let setter = |stored: StoredWebhook| {
            let app = stored.value.slack_app?;
            let text = unseal(keys, &stored.id, "signing_secret", &app.signing_secret).ok()?;
            app.set_by.filter(|_| is_same(&text, signing_secret))
        };
        Ok(webhooks.into_iter().filter_map(setter).collect())
    }
}
