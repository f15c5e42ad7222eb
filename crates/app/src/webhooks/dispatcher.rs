//! The dispatcher: one process at a time turns events into deliveries, and every process sends those that are due.
//!
//! The position in the log moves in the transaction that writes the deliveries, so each event becomes exactly one delivery for each webhook
//! that wants it. Deliveries are claimed with a lease before they are sent: two processes do not send the same one, unless the first
//! stopped in between. Attempts are bounded, in all and for each destination, so that a slow receiver does not hold up the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::event::Event;
use ade_domain::people::People;
use ade_domain::webhook::delivery::{Circuit, CircuitState, RETRY_WINDOW_MS};
use ade_domain::webhook::email::Recipient;
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::DatabaseError;
use ade_store::database::{
    Claim, Delivery, DeliveryContent, NewDelivery, StoredTask, Versioned, WEBHOOK_CONSUMER,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::mail::recipients;
use super::stats::DeliveryOutcome;
use super::{StoredWebhook, WebhookService};
use crate::retry::FailureLog;
use crate::{Result, new_id};

/// How long the other processes wait for one that stopped.
const CONSUMER_LEASE_MS: u64 = 15_000;
/// A lease that ends earlier is renewed.
const MIN_LEASE_MS: u64 = 10_000;
/// How often the lease is renewed, or tried to be taken over.
const LEASE_INTERVAL: Duration = Duration::from_secs(5);
const EVENT_BATCH: u32 = 200;
/// Events within this time are read together.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Deliveries of one webhook that wait. A receiver that is gone for long must not fill the database.
const MAX_PENDING: u32 = 10_000;
/// Attempts of this process at the same time.
const MAX_ATTEMPTS: usize = 16;
const MAX_ATTEMPTS_PER_DESTINATION: usize = 4;
/// Longer than any attempt takes: another process sends the delivery again after it.
const CLAIM_MS: u64 = 60_000;
/// How late a delivery is noticed that another process made due.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Sends events to webhooks; every server runs one.
#[derive(Debug, Clone)]
pub struct WebhookDispatcher {
    service: WebhookService,
    /// Identifies this process.
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    Done,
    /// Another process reads the events.
    Elsewhere,
}

/// How far this process has read, while it is the one that reads.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The position in the database: behind the present one if the events in between concerned nobody.
    stored: u64,
    position: u64,
    until: Moment,
}

/// Attempts that this process makes.
#[derive(Debug, Default)]
struct Attempts {
    tasks: JoinSet<String>,
    /// How many, by destination.
    by_destination: BTreeMap<String, usize>,
}

impl Attempts {
    fn free(&self, destination: &str) -> usize {
        let at_destination = self.by_destination.get(destination).copied().unwrap_or_default();
        let total = MAX_ATTEMPTS.saturating_sub(self.tasks.len());
        total.min(MAX_ATTEMPTS_PER_DESTINATION.saturating_sub(at_destination))
    }

    /// Waits for the end of an attempt; `false` if there is none.
    async fn next(&mut self) -> bool {
        let Some(ended) = self.tasks.join_next().await else { return false };
        match ended {
            Ok(destination) => {
                if let Some(count) = self.by_destination.get_mut(&destination) {
                    *count = count.saturating_sub(1);
                }
            }
            // Its destination is unknown, so that all are counted anew.
            Err(_) => self.by_destination.clear(),
        }
        true
    }
}

impl WebhookDispatcher {
    #[must_use]
    pub fn new(service: WebhookService, name: &str) -> Self {
        Self { service, name: name.to_owned() }
    }

    /// Runs until `stopped`; then another process continues at once.
    pub(crate) async fn run(self, stopped: watch::Receiver<bool>) {
        tokio::join!(self.read_events(stopped.clone()), self.send_deliveries(stopped));
    }

    async fn read_events(&self, mut stopped: watch::Receiver<bool>) {
        let context = &self.service.context;
        let (mut head, mut failures) = (context.tail.head(), FailureLog::default());
        let mut reading = None;
        loop {
            let read = self.read_batch(&mut reading).await;
            let progress = failures.check(read, "cannot turn events into deliveries of webhooks");
            let pause = async {
                match progress {
                    Some(Progress::More) => {}
                    Some(Progress::Done) => {
                        sleep(BATCH_INTERVAL).await;
                        // Its sender lives as long as the context.
                        let _ = timeout(LEASE_INTERVAL, head.changed()).await;
                    }
                    Some(Progress::Elsewhere) => sleep(LEASE_INTERVAL).await,
                    None => sleep(POLL_INTERVAL).await,
                }
            };
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = pause => {}
            }
        }
        if let Err(error) = context.database.release_consumer(WEBHOOK_CONSUMER, &self.name).await {
            tracing::debug!(%error, "another process reads the events for webhooks a little later");
        }
    }

    /// Writes the deliveries of all events so far, if no other process does.
    pub async fn write_deliveries(&self) -> Result<()> {
        let mut reading = None;
        while self.read_batch(&mut reading).await? == Progress::More {}
        Ok(())
    }

    /// Renews the lease, or takes it if nobody has it.
    async fn lease(&self, before: Option<Reading>) -> Result<Option<Reading>> {
        let database = &self.service.context.database;
        let now = self.service.context.now();
        let until = now.plus_ms(CONSUMER_LEASE_MS);
        if let Some(Reading { position, .. }) = before
            && database.advance_consumer(WEBHOOK_CONSUMER, &self.name, position, until).await?
        {
            return Ok(Some(Reading { stored: position, position, until }));
        }
        // At first nobody has a webhook, so nothing before the end of the log matters.
        let start = database.audit_head().await?.number;
        let stored = database.lease_consumer(WEBHOOK_CONSUMER, &self.name, start, now, until).await?;
        Ok(stored.map(|stored| Reading { stored, position: stored, until }))
    }

    async fn read_batch(&self, reading: &mut Option<Reading>) -> Result<Progress> {
        let (database, now) = (&self.service.context.database, self.service.context.now());
        let is_valid = |reading: &Reading| now.plus_ms(MIN_LEASE_MS) < reading.until;
        if !reading.as_ref().is_some_and(is_valid) {
            *reading = self.lease(reading.take()).await?;
        }
        let Some(current) = reading else { return Ok(Progress::Elsewhere) };
        let events = database.events(current.position, EVENT_BATCH).await?;
        let Some((last, _)) = events.last() else { return Ok(Progress::Done) };
        let last = *last;
        let deliveries = self.deliveries_of(&events).await?;
        // Nothing is written for events that concern nobody: reading them again is harmless.
        current.position = last;
        if !deliveries.is_empty() {
            let (moved, until) = ((current.stored, last), now.plus_ms(CONSUMER_LEASE_MS));
            match database.add_deliveries(WEBHOOK_CONSUMER, &self.name, moved, until, &deliveries).await {
                Ok(()) => *current = Reading { stored: last, position: last, until },
                Err(error) => {
                    // Whether it was written is unknown: the position is read again.
                    *reading = None;
                    return match error {
                        DatabaseError::Conflict { .. } => Ok(Progress::Elsewhere),
                        error => Err(error.into()),
                    };
                }
            }
            self.service.due.notify_one();
        }
        self.service.stats.set_position(last);
        Ok(if events.len() < EVENT_BATCH as usize { Progress::Done } else { Progress::More })
    }

    async fn deliveries_of(&self, events: &[(u64, Event)]) -> Result<Vec<NewDelivery>> {
        let database = &self.service.context.database;
        let mut webhooks: Vec<StoredWebhook> = database.documents().await?;
        webhooks.retain(|stored| stored.value.active);
        let (mut deliveries, mut waiting) = (Vec::new(), BTreeMap::new());
        let sends_mail = |stored: &StoredWebhook| stored.value.format == WebhookFormat::Email;
        let people = match webhooks.iter().any(sends_mail) {
            true => database.people().await?,
            false => People::default(),
        };
        for (number, event) in events {
            // Read once, and only if somebody needs it.
            let mut task: Option<Option<StoredTask>> = None;
            for Versioned { id, value: webhook, .. } in &webhooks {
                let needs_task = webhook.filters_tasks() || webhook.format != WebhookFormat::Standard;
                if needs_task && task.is_none() {
                    task = Some(self.task_of(event).await?);
                }
                let task = task.as_ref().and_then(Option::as_ref);
                if !webhook.wants(event, task.map(|task| task.config.task_type.as_str())) {
                    continue;
                }
                let waiting = match waiting.get_mut(id) {
                    Some(waiting) => waiting,
                    None => {
                        let count = database.count_pending_deliveries(id, MAX_PENDING).await?;
                        waiting.entry(id.clone()).or_insert(count)
                    }
                };
                let payload = self.service.render(webhook, *number, event, task.map(|stored| &stored.task));
                let new = self.new_delivery(id, *number, event, payload.to_string());
                for mut new in for_recipients(webhook, event, &people, new) {
                    if *waiting >= u64::from(MAX_PENDING) && new.refused.is_none() {
                        new.refused = Some(format!("{MAX_PENDING} deliveries of this webhook already wait"));
                    }
                    if new.refused.is_some() {
                        self.service.stats.count(webhook.format, DeliveryOutcome::Refused, 1);
                    }
                    *waiting += u64::from(new.refused.is_none());
                    deliveries.push(new);
                }
            }
        }
        Ok(deliveries)
    }

    async fn task_of(&self, event: &Event) -> Result<Option<StoredTask>> {
        let Some(task_id) = &event.task_id else { return Ok(None) };
        Ok(self.service.context.database.task(task_id).await?)
    }

    fn new_delivery(&self, webhook_id: &str, number: u64, event: &Event, payload: String) -> NewDelivery {
        let now = self.service.context.now();
        NewDelivery {
            delivery_id: new_id(),
            webhook_id: webhook_id.to_owned(),
            event_id: event.event_id.clone(),
            recipient: None,
            digest_at: None,
            created_at: now,
            give_up_at: now.plus_ms(RETRY_WINDOW_MS),
            content: DeliveryContent {
                event: event.event.clone(),
                task_id: event.task_id.clone(),
                number,
                payload,
                skipped_people: 0,
            },
            refused: None,
        }
    }

    async fn send_deliveries(&self, mut stopped: watch::Receiver<bool>) {
        let (mut attempts, mut failures) = (Attempts::default(), FailureLog::default());
        loop {
            let started = self.start_due(&mut attempts).await;
            failures.check(started, "cannot send webhooks that are due");
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.service.due.notified() => {}
                true = attempts.next() => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
        // What was sent is also stored.
        while attempts.next().await {}
    }

    /// Sends what is due, and waits for all answers. Returns how many attempts were made.
    pub async fn send_due(&self) -> Result<usize> {
        let (mut attempts, mut total) = (Attempts::default(), 0);
        loop {
            let started = self.start_due(&mut attempts).await?;
            total += started;
            while attempts.next().await {}
            if started == 0 {
                return Ok(total);
            }
        }
    }

    /// Claims deliveries that are due, as far as there is capacity, and starts an attempt for each. Returns how many.
    async fn start_due(&self, attempts: &mut Attempts) -> Result<usize> {
        let context = &self.service.context;
        let (database, now) = (&context.database, context.now());
        let due: Vec<String> = database
            .next_deliveries()
            .await?
            .into_iter()
            .filter(|(_, at)| *at <= now)
            .map(|(id, _)| id)
            .collect();
        if due.is_empty() {
            return Ok(0);
        }
        let webhooks: Vec<StoredWebhook> = database.documents().await?;
        let webhooks: BTreeMap<&str, &StoredWebhook> = webhooks
            .iter()
            .filter(|stored| stored.value.active)
            .map(|stored| (stored.id.as_str(), stored))
            .collect();
        let circuits: BTreeMap<String, Circuit> = database.circuits().await?.into_iter().collect();
        let (mut started, mut probed) = (0, BTreeSet::new());
        for stored in due.iter().filter_map(|id| webhooks.get(id.as_str())) {
            let destination = &stored.value.destination;
            let circuit = circuits.get(destination).copied().unwrap_or_default();
            let limit = circuit.allowed_attempts(attempts.free(destination), now);
            let is_probe = circuit.state(now) == CircuitState::HalfOpen;
            if limit == 0 || (is_probe && !probed.insert(destination)) {
                continue;
            }
            let until = now.plus_ms(CLAIM_MS);
            if is_probe && !database.begin_probe(destination, now, until).await? {
                continue;
            }
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            let claim = Claim { webhook_id: stored.id.clone(), by: self.name.clone(), now, until, limit };
            let claimed = match stored.value.format {
                WebhookFormat::Email => database.claim_digests(claim).await?,
                _ => {
                    let one_per_task = stored.value.updates_messages();
                    let claimed = database.claim_deliveries(claim, one_per_task).await?;
                    claimed.into_iter().map(|delivery| vec![delivery]).collect()
                }
            };
            if claimed.is_empty() && is_probe {
                // Another process has the only delivery.
                database.end_probe(destination).await?;
            }
            started += claimed.len();
            for message in claimed {
                self.start(attempts, stored, message);
            }
        }
        Ok(started)
    }

    fn start(&self, attempts: &mut Attempts, stored: &StoredWebhook, message: Vec<Delivery>) {
        let destination = stored.value.destination.clone();
        *attempts.by_destination.entry(destination.clone()).or_default() += 1;
        let (service, stored, name) = (self.service.clone(), stored.clone(), self.name.clone());
        attempts.tasks.spawn(async move {
            if let Err(error) = service.attempt(&stored, &message, &name).await {
                let delivery_id = message.first().map(|first| &first.delivery_id);
                tracing::warn!(%error, delivery_id, "cannot store how a delivery ended; it is sent again");
            }
            destination
        });
    }
}

/// The deliveries of an event: one, or for e-mail one for each recipient.
fn for_recipients(webhook: &Webhook, event: &Event, people: &People, new: NewDelivery) -> Vec<NewDelivery> {
    if webhook.format != WebhookFormat::Email {
        return vec![new];
    }
    let (recipients, skipped_people) = recipients(webhook, event, people);
    let content = DeliveryContent { skipped_people, ..new.content.clone() };
    let digest_at = webhook.digest_at(new.created_at);
    let give_up_at = digest_at.unwrap_or(new.created_at).plus_ms(RETRY_WINDOW_MS);
    if recipients.is_empty() && skipped_people > 0 {
        let refused = Some("nobody whom the event concerns has an e-mail address".to_owned());
        return vec![NewDelivery { content, refused, ..new }];
    }
    let deliver_to = |recipient: Recipient| NewDelivery {
        delivery_id: new_id(),
        recipient: Some(recipient.to_string()),
        digest_at,
        give_up_at,
        content: content.clone(),
        ..new.clone()
    };
    recipients.into_iter().map(deliver_to).collect()
}
