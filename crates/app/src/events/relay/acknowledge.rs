//! Moves the consumer groups of ADE's own work: webhooks and e-mail read the database, and their groups show how far they are.

use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{Versioned, WEBHOOK_CONSUMER};
use ade_store::redis::projections::EventTopic;

use super::{Relay, RelayState, Result, topic_of};

/// The groups whose work ADE does while it has such webhooks; without them, the groups are left to others.
fn own_groups(webhooks: &[Versioned<Webhook>]) -> impl Iterator<Item = &'static str> {
    let has = |is_email: bool| {
        let is_such = |webhook: &Webhook| (webhook.format == WebhookFormat::Email) == is_email;
        webhooks.iter().any(|stored| stored.value.active && is_such(&stored.value))
    };
    let groups = [("webhook-dispatcher", has(false)), ("notification-service", has(true))];
    groups.into_iter().filter_map(|(group, is_own)| is_own.then_some(group))
}

impl Relay {
    pub(super) async fn acknowledge_own_groups(&self, state: &mut RelayState) -> Result<()> {
        let stored: Vec<Versioned<Webhook>> = self.database.documents().await?;
        let groups: Vec<&str> = own_groups(&stored).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let consumers = self.database.consumers().await?;
        let Some((_, read)) = consumers.into_iter().find(|(name, _)| name == WEBHOOK_CONSUMER) else {
            return Ok(());
        };
        for (shard, position) in state.positions.clone() {
            let Some(topic) = topic_of(shard) else { continue };
            // The stream of locks counts as read as a whole, or not at all.
            let number = if topic == EventTopic::Lock && read < position { 0 } else { read.min(position) };
            for group in &groups {
                let acknowledged = state.acknowledged.entry((shard, *group)).or_default();
                if number <= *acknowledged {
                    continue;
                }
                match self.projections.acknowledge(topic, group, number).await {
                    Ok(()) => *acknowledged = number,
                    // Somebody deleted the stream or the group, which are created again soon.
                    Err(error) => tracing::debug!(%error, group, "cannot acknowledge events; retrying"),
                }
            }
        }
        Ok(())
    }
}
