//! The relay: brings what the database says to Redis, as projections and as event streams.
//!
//! The work is divided into shards, each with a lease and a position in the database; any process may take a shard over. A batch of
//! events is coalesced: each object is written once, from its current row. The position moves only after everything is written, so
//! that nothing is missed, and whatever is written twice does no harm. After Redis has lost data, a shard is written again from the
//! database.

mod acknowledge;
mod check;
mod rebuild;
mod rows;
mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ade_domain::people::UserId;
use ade_domain::{Clock, Moment};
use ade_store::redis::projections::{EventTopic, Overwrite, RedisProjections, StreamEntry};
use ade_store::{CoordinationError, Database, DatabaseError};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::EventTail;
use acknowledge::LockAcknowledgements;
use rows::Loaded;
use subject::Subject;

pub use check::CheckedProjections;
pub use rebuild::RebuildProgress;

/// As many as streams: a shard appends to one stream, and projects the objects that hash to it.
const SHARDS: usize = EventTopic::ALL.len();
/// How long a process that died keeps its shards.
const LEASE_MS: u64 = 3_000;
/// How often leases are renewed, free shards taken, and losses of Redis noticed.
const TICK: Duration = Duration::from_millis(500);
/// Events within this time are written together.
const BATCH_INTERVAL: Duration = Duration::from_millis(25);
const BATCH_SIZE: u32 = 500;
const RETRY_BACKOFF: Duration = Duration::from_millis(200);
/// Statistics of a reviewer are written at most this often.
const STATS_INTERVAL_MS: u64 = 1_000;
const SESSIONS_INTERVAL_MS: u64 = 5_000;
/// Sessions that were used this long before the last look are written again: clocks of servers differ.
const SESSIONS_OVERLAP_MS: u64 = 10_000;
const DELEGATIONS_INTERVAL_MS: u64 = 30_000;
const ACKNOWLEDGE_INTERVAL_MS: u64 = 2_000;
/// How often the TTL of streams without events is renewed, and missing consumer groups are created.
const STREAMS_INTERVAL_MS: u64 = 60_000;

/// Why the relay could not go on. It tries again.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Redis(#[from] CoordinationError),
}

type Result<T, E = RelayError> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub struct Relay {
    pub database: Database,
    pub clock: Arc<dyn Clock>,
    pub tail: EventTail,
    pub projections: RedisProjections,
    /// The name of this process.
    pub name: String,
}

/// What a process remembers between batches.
#[derive(Debug, Default)]
struct RelayState {
    /// The shards that this process has, with their positions.
    positions: BTreeMap<usize, u64>,
    /// Reviewers whose statistics have changed.
    reviewers: BTreeSet<UserId>,
    stats_written: Moment,
    sessions_read: Option<Moment>,
    delegations_checked: Option<Moment>,
    streams_kept: Option<Moment>,
    acknowledged_at: Option<Moment>,
    /// How far the groups of ADE's own work are, by shard; not for locks.
    acknowledged: BTreeMap<(usize, &'static str), u64>,
    acknowledged_locks: LockAcknowledgements,
}

/// The stream of a shard.
fn topic_of(shard: usize) -> Option<EventTopic> {
    EventTopic::ALL.get(shard).copied()
}

fn consumer(shard: usize) -> String {
    format!("relay:{shard}")
}

impl Relay {
    /// Runs until `stop` becomes true; then gives up its shards. Logs the first of several failures, and the recovery.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let (mut head, mut state, mut is_failing) = (self.tail.head(), RelayState::default(), false);
        while !*stop.borrow() {
            let pause = match self.step(&mut state).await {
                Ok(()) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("projections and streams are written again");
                    }
                    BATCH_INTERVAL
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "cannot write projections and streams; retrying");
                    }
                    RETRY_BACKOFF
                }
            };
            sleep(pause).await;
            let changed = async {
                tokio::select! {
                    _ = head.changed() => {}
                    _ = stop.changed() => {}
                }
            };
            // In either case it goes on.
            let _ = timeout(TICK, changed).await;
        }
        for shard in state.positions.into_keys() {
            // The lease ends soon in any case.
            let _ = self.database.release_consumer(&consumer(shard), &self.name).await;
        }
    }

    /// How many events the slowest shard has not written yet.
    pub async fn unread_events(&self) -> Result<u64> {
        let head = self.database.audit_head().await?.number;
        let consumers = self.database.consumers().await?;
        let position = |shard| {
            let name = consumer(shard);
            consumers.iter().find(|(other, _)| *other == name).map_or(0, |(_, position)| *position)
        };
        Ok((0..SHARDS).map(|shard| head.saturating_sub(position(shard))).max().unwrap_or_default())
    }

    async fn step(&self, state: &mut RelayState) -> Result<()> {
        while self.renew_leases(state).await? {
            // Another process that starts at the same time gets some, too.
            sleep(BATCH_INTERVAL).await;
        }
        if state.positions.is_empty() {
            return Ok(());
        }
        self.restore_lost(state).await?;
        while self.relay_batch(state).await? {
            self.renew_leases(state).await?;
        }
        self.refresh(state).await
    }

    /// Keeps the leases of this process, and takes at most one more, so that several processes share the work. Returns whether it took
    /// one.
    async fn renew_leases(&self, state: &mut RelayState) -> Result<bool> {
        let now = self.clock.now();
        let until = now.plus_ms(LEASE_MS);
        let mut has_taken = false;
        for shard in 0..SHARDS {
            let is_own = state.positions.contains_key(&shard);
            if !is_own && has_taken {
                continue;
            }
            let (name, database) = (consumer(shard), &self.database);
            match database.lease_consumer(&name, &self.name, 0, now, until).await? {
                Some(position) => {
                    has_taken |= !is_own;
                    let known = state.positions.entry(shard).or_insert(position);
                    *known = position;
                    if !is_own {
                        tracing::info!(shard, position, "relaying events to Redis");
                    }
                }
                None => {
                    state.positions.remove(&shard);
                }
            }
        }
        Ok(has_taken)
    }

    /// Writes everything again that a server of Redis has lost, or never had: it started without data, took over with a replica that
    /// lagged behind, or somebody emptied it.
    async fn restore_lost(&self, state: &mut RelayState) -> Result<()> {
        let mut is_restored = false;
        for shard in state.positions.keys().copied().collect::<Vec<_>>() {
            if self.projections.has_mark(&consumer(shard)).await? {
                continue;
            }
            tracing::info!(shard, "writing projections and streams again from the database");
            let servers = self.projections.server_runs().await?;
            let head = self.database.audit_head().await?.number;
            // What is committed from now on has a greater number.
            self.rebuild_shard(shard, Overwrite::Earlier, state, &mut |_| {}).await?;
            // The stream of locks may have what follows the position or not: it gets it again.
            let is_new = state.positions.get(&shard) == Some(&0);
            if is_new || topic_of(shard) != Some(EventTopic::Lock) {
                self.advance(state, shard, head).await?;
            }
            self.projections.mark(&consumer(shard), &servers).await?;
            is_restored = true;
        }
        if is_restored {
            state.acknowledged.clear();
            state.acknowledged_locks = LockAcknowledgements::default();
            // What was removed shortly before the loss may be there again.
            self.remove_unexpected().await?;
        }
        Ok(())
    }

    /// Writes the next events. Returns whether there may be more.
    async fn relay_batch(&self, state: &mut RelayState) -> Result<bool> {
        let Some(first) = state.positions.values().min().copied() else { return Ok(false) };
        let events = self.database.events(first, BATCH_SIZE).await?;
        let Some((last, _)) = events.last() else { return Ok(false) };
        let (last, is_full) = (*last, events.len() >= BATCH_SIZE as usize);
        let mut subjects = BTreeSet::new();
        let mut entries: BTreeMap<usize, Vec<StreamEntry>> = BTreeMap::new();
        for (number, event) in &events {
            let is_due = |shard: usize| state.positions.get(&shard).is_some_and(|position| position < number);
            if let Some(shard) = EventTopic::of(&event.event).map(|topic| topic as usize)
                && is_due(shard)
            {
                entries.entry(shard).or_default().push(StreamEntry::of(*number, event)?);
            }
            subjects.extend(Subject::of(event).into_iter().filter(|subject| is_due(subject.shard(SHARDS))));
        }
        let written = subjects.clone();
        self.project(subjects, state).await?;
        for (shard, entries) in entries {
            if let Some(topic) = topic_of(shard) {
                self.projections.append(topic, &entries).await?;
            }
        }
        let shards: Vec<usize> = state.positions.keys().copied().collect();
        for shard in &shards {
            self.advance(state, *shard, last).await?;
        }
        if shards.len() > state.positions.len() {
            // Somebody took a shard over before this process had written. What that process removed meanwhile may be there again.
            let taken = |subject: &Subject| !state.positions.contains_key(&subject.shard(SHARDS));
            let again = written.into_iter().filter(taken).collect();
            self.project(again, state).await?;
        }
        Ok(is_full)
    }

    async fn advance(&self, state: &mut RelayState, shard: usize, position: u64) -> Result<()> {
        if state.positions.get(&shard).is_some_and(|known| *known >= position) {
            return Ok(());
        }
        let until = self.clock.now().plus_ms(LEASE_MS);
        let is_own = self.database.advance_consumer(&consumer(shard), &self.name, position, until).await?;
        if is_own {
            state.positions.insert(shard, position);
        } else {
            state.positions.remove(&shard);
        }
        Ok(())
    }

    /// Writes what has changed without an event: the statistics of reviewers, sessions in use, delegations that ended.
    async fn refresh(&self, state: &mut RelayState) -> Result<()> {
        let now = self.clock.now();
        if now.ms_since(state.stats_written) >= STATS_INTERVAL_MS {
            if day_of(now) != day_of(state.stats_written) {
                let people = self.database.people().await?;
                state
                    .reviewers
                    .extend(people.iter().filter(|user| user.is_reviewer()).map(|user| user.user_id.clone()));
            }
            let reviewers = state.reviewers.clone();
            self.write_statistics(&reviewers).await?;
            state.reviewers.clear();
            state.stats_written = now;
        }
        let is_due = |last: Option<Moment>, interval| last.is_none_or(|last| now.ms_since(last) >= interval);
        if is_due(state.sessions_read, SESSIONS_INTERVAL_MS) {
            let before =
                state.sessions_read.map(|last| last.micros().saturating_sub(SESSIONS_OVERLAP_MS * 1_000));
            let own: BTreeSet<usize> = state.positions.keys().copied().collect();
            self.refresh_sessions(Moment::from_micros(before.unwrap_or_default()), &own).await?;
            state.sessions_read = Some(now);
        }
        if is_due(state.acknowledged_at, ACKNOWLEDGE_INTERVAL_MS) {
            self.acknowledge_own_groups(state).await?;
            state.acknowledged_at = Some(now);
        }
        // One shard does the rest.
        if !state.positions.contains_key(&0) {
            return Ok(());
        }
        if is_due(state.streams_kept, STREAMS_INTERVAL_MS) {
            for topic in EventTopic::ALL {
                self.projections.append(topic, &[]).await?;
            }
            state.streams_kept = Some(now);
        }
        if is_due(state.delegations_checked, DELEGATIONS_INTERVAL_MS) {
            self.project(BTreeSet::from([Subject::Delegations]), state).await?;
            state.delegations_checked = Some(now);
        }
        Ok(())
    }

    /// Writes objects from their current rows. An object that somebody else has written from a later row is read and written again.
    async fn project(&self, mut subjects: BTreeSet<Subject>, state: &mut RelayState) -> Result<()> {
        while !subjects.is_empty() {
            let Loaded { projections, missing, reviewers } = self.load(&subjects).await?;
            state.reviewers.extend(reviewers);
            let later = self.projections.write(&projections, Overwrite::Earlier).await?;
            for id in &missing {
                self.projections.remove(id).await?;
            }
            subjects = later.iter().filter_map(|id| Subject::of_object(id, &projections)).collect();
        }
        Ok(())
    }
}

/// Days since 1970, in UTC.
const fn day_of(at: Moment) -> u64 {
    at.micros() / 86_400_000_000
}

#[cfg(test)]
mod tests;
