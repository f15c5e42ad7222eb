//! Moves the consumer groups of ADE's own work: webhooks and e-mail read the database, and their groups show how far they are.

use std::collections::BTreeMap;

use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{Versioned, WEBHOOK_CONSUMER};
use ade_store::redis::projections::{EventTopic, entry_id};

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

/// How far the groups are in the stream of locks, whose ids are not numbers.
#[derive(Debug, Default)]
pub(super) struct LockAcknowledgements {
    /// An end of the stream that webhooks had not reached. Under load they never reach the present one, but get past this one.
    awaited: Option<StreamEnd>,
    /// The last acknowledged entry, by group.
    entries: BTreeMap<&'static str, String>,
}

/// The end of the stream of locks at some time.
#[derive(Debug)]
struct StreamEnd {
    entry: String,
    /// No event of the database before it has a greater number. The others are in no database and need no webhook.
    number: u64,
}

impl LockAcknowledgements {
    /// The entry up to which webhooks have read, if that is known.
    fn reached(&mut self, present: StreamEnd, read: u64) -> Option<String> {
        if present.number <= read {
            self.awaited = None;
            return Some(present.entry);
        }
        match self.awaited.take() {
            Some(awaited) if awaited.number <= read => {
                self.awaited = Some(present);
                Some(awaited.entry)
            }
            awaited => {
                self.awaited = Some(awaited.unwrap_or(present));
                None
            }
        }
    }
}

impl Relay {
    pub(super) async fn acknowledge_own_groups(&self, state: &mut RelayState) -> Result<()> {
        let stored: Vec<Versioned<Webhook>> = self.database.documents().await?;
        let groups: Vec<&str> = own_groups(&stored).collect();
        if !state.positions.contains_key(&(EventTopic::Lock as usize)) {
            // Another process goes on.
            state.acknowledged_locks = LockAcknowledgements::default();
        }
        if groups.is_empty() {
            return Ok(());
        }
        let consumers = self.database.consumers().await?;
        let Some((_, read)) = consumers.into_iter().find(|(name, _)| name == WEBHOOK_CONSUMER) else {
            return Ok(());
        };
        for (shard, position) in state.positions.clone() {
            let Some(topic) = topic_of(shard) else { continue };
            if topic == EventTopic::Lock {
                self.acknowledge_locks(state, &groups, read, position).await?;
                continue;
            }
            let number = read.min(position);
            for group in &groups {
                let acknowledged = state.acknowledged.entry((shard, *group)).or_default();
                if number > *acknowledged && self.acknowledge(topic, group, &entry_id(number)).await {
                    *acknowledged = number;
                }
            }
        }
        Ok(())
    }

    async fn acknowledge_locks(
        &self,
        state: &mut RelayState,
        groups: &[&'static str],
        read: u64,
        position: u64,
    ) -> Result<()> {
        // This process has appended the events up to its position, and no others.
        let entry = self.projections.last_entry(EventTopic::Lock).await?;
        let present = StreamEnd { entry, number: position };
        let Some(entry) = state.acknowledged_locks.reached(present, read) else { return Ok(()) };
        for group in groups {
            if state.acknowledged_locks.entries.get(group) != Some(&entry)
                && self.acknowledge(EventTopic::Lock, group, &entry).await
            {
                state.acknowledged_locks.entries.insert(group, entry.clone());
            }
        }
        Ok(())
    }

    async fn acknowledge(&self, topic: EventTopic, group: &str, entry: &str) -> bool {
        let acknowledged = self.projections.acknowledge(topic, group, entry).await;
        if let Err(error) = &acknowledged {
            // Somebody deleted the stream or the group, which are created again soon.
            tracing::debug!(%error, group, "cannot acknowledge events; retrying");
        }
        acknowledged.is_ok()
    }
}
