//! The deliveries of a webhook: list them, send one again, or send a test.

use ade_domain::event::Event;
use ade_domain::webhook::delivery::RETRY_WINDOW_MS;
use ade_domain::webhook::email::Recipient;
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{
    Delivery, DeliveryContent, DeliveryFilter, DeliveryReport, DeliveryStatus, NewDelivery,
};
use serde_json::json;

use super::{WebhookService, require_may_see};
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{Caller, Error, ObjectKind, Outcome, Result, new_id};

/// The event of a delivery that somebody requested to test a webhook.
const TEST_EVENT: &str = "webhook:test";

impl WebhookService {
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
}
