//! What the metrics say about webhooks: what became of the deliveries that this process sent, and what waits. Labels have few values:
//! formats, outcomes and states, never names or destinations.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ade_domain::webhook::delivery::CircuitState;
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{AttemptOutcome, DeliveryStatus, WEBHOOK_CONSUMER};

use super::WebhookService;
use crate::Result;

/// What became of a delivery in one attempt, or instead of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryOutcome {
    Delivered,
    /// The receiver has a newer event already.
    Superseded,
    /// It failed, and is tried again.
    Retried,
    /// It failed for good.
    Failed,
    /// It was never tried: too many wait, or nobody has an address.
    Refused,
}

impl DeliveryOutcome {
    pub const ALL: [Self; 5] =
        [Self::Delivered, Self::Superseded, Self::Retried, Self::Failed, Self::Refused];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Superseded => "superseded",
            Self::Retried => "retried",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    pub(super) const fn of(outcome: &AttemptOutcome, is_superseded: bool) -> Self {
        match outcome.status {
            DeliveryStatus::Delivered if is_superseded => Self::Superseded,
            DeliveryStatus::Delivered => Self::Delivered,
            DeliveryStatus::Pending => Self::Retried,
            DeliveryStatus::Failed => Self::Failed,
        }
    }
}

/// Since the process started.
#[derive(Debug, Default)]
pub(super) struct Stats {
    deliveries: Mutex<BTreeMap<(WebhookFormat, DeliveryOutcome), u64>>,
    /// How far this process has read the events; it is stored later if they concern nobody.
    position: AtomicU64,
}

impl Stats {
    pub(super) fn count(&self, format: WebhookFormat, outcome: DeliveryOutcome, deliveries: usize) {
        let mut counts = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((format, outcome)).or_default() += deliveries as u64;
    }

    pub(super) fn set_position(&self, position: u64) {
        self.position.fetch_max(position, Ordering::Relaxed);
    }
}

/// What waits, in the whole installation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WebhookBacklog {
    /// Events that are no deliveries yet.
    pub unread_events: u64,
    /// The age of the first of them.
    pub unread_ms: u64,
    /// Destinations that are sent nothing.
    pub open_circuits: u64,
    /// Destinations of which one attempt is to decide.
    pub half_open_circuits: u64,
    /// For each format, for how long the first delivery that is due has been; inactive webhooks are left out.
    pub overdue_ms: Vec<(WebhookFormat, u64)>,
}

impl WebhookService {
    /// What became of deliveries in this process, for every format and outcome.
    #[must_use]
    pub fn delivery_counts(&self) -> Vec<(WebhookFormat, DeliveryOutcome, u64)> {
        let counts = self.stats.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        let of =
            |format, outcome| (format, outcome, counts.get(&(format, outcome)).copied().unwrap_or_default());
        WebhookFormat::ALL
            .into_iter()
            .flat_map(|format| DeliveryOutcome::ALL.map(|outcome| of(format, outcome)))
            .collect()
    }

    pub async fn backlog(&self) -> Result<WebhookBacklog> {
        let (database, now) = (&self.context.database, self.context.now());
        let mut backlog = WebhookBacklog::default();
        let consumers = database.consumers().await?;
        if let Some((_, stored)) = consumers.iter().find(|(name, _)| name == WEBHOOK_CONSUMER) {
            let position = self.stats.position.load(Ordering::Relaxed).max(*stored);
            if let Some((number, event)) = database.events(position, 1).await?.first() {
                // Numbers have no gaps.
                let head = database.audit_head().await?.number.max(*number);
                backlog.unread_events = head - position;
                backlog.unread_ms = now.ms_since(event.at);
            }
        }
        for (_, circuit) in database.circuits().await? {
            match circuit.state(now) {
                CircuitState::Open => backlog.open_circuits += 1,
                CircuitState::HalfOpen => backlog.half_open_circuits += 1,
                CircuitState::Closed => {}
            }
        }
        let formats: BTreeMap<String, WebhookFormat> = database
            .documents::<Webhook>()
            .await?
            .into_iter()
            .filter(|stored| stored.value.active)
            .map(|stored| (stored.id, stored.value.format))
            .collect();
        let mut overdue: BTreeMap<WebhookFormat, u64> =
            WebhookFormat::ALL.into_iter().map(|format| (format, 0)).collect();
        for (webhook_id, due_at) in database.next_deliveries().await? {
            let Some(format) = formats.get(&webhook_id) else { continue };
            let longest = overdue.entry(*format).or_default();
            *longest = now.ms_since(due_at).max(*longest);
        }
        backlog.overdue_ms = overdue.into_iter().collect();
        Ok(backlog)
    }
}
