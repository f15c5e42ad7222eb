//! Writes all projections again from the database, while the system runs.

use std::collections::BTreeSet;

use ade_domain::people::UserId;
use ade_store::redis::projections::{EventTopic, Overwrite, StreamEntry};

use super::subject::Subject;
use super::{Relay, RelayState, Result, SHARDS, consumer, topic_of};

/// Tasks that are read and written together.
const PAGE: u32 = 200;
/// As many as a stream keeps, about.
const MAX_STREAM_ENTRIES: u64 = 10_000;
/// Events that are read at a time.
const EVENT_PAGE: u32 = 1_000;
/// How long streams keep events.
const STREAM_TTL_MS: u64 = 7 * 86_400_000;

/// How far a rebuild is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildProgress {
    pub tasks: u64,
    /// Sessions, delegations, statistics, settings.
    pub others: u64,
    /// Keys and members that do not belong there.
    pub removed: u64,
    pub events: u64,
}

impl Relay {
    /// Writes everything again, whatever Redis has, and removes what does not belong there.
    pub async fn rebuild(&self, mut report: impl FnMut(RebuildProgress) + Send) -> Result<RebuildProgress> {
        let mut state = RelayState::default();
        let mut total = RebuildProgress::default();
        let servers = self.projections.server_runs().await?;
        for shard in 0..SHARDS {
            let before = total;
            let mut add = |of: RebuildProgress| report(before.plus(of));
            let done = self.rebuild_shard(shard, Overwrite::Everything, &mut state, &mut add).await?;
            total = before.plus(done);
        }
        total.removed = self.remove_unexpected().await?;
        let consumers = self.database.consumers().await?;
        for name in (0..SHARDS).map(consumer) {
            // Otherwise the servers would write everything once more. Where none ever did, one has to: with a mark it would not learn where
            // it begins, and relay every event there ever was.
            if consumers.iter().any(|(known, position)| *known == name && *position > 0) {
                self.projections.mark(&name, &servers).await?;
            }
        }
        report(total);
        Ok(total)
    }

    /// Writes the objects and the stream of a shard.
    pub(super) async fn rebuild_shard(
        &self,
        shard: usize,
        overwrite: Overwrite,
        state: &mut RelayState,
        report: &mut (dyn FnMut(RebuildProgress) + Send),
    ) -> Result<RebuildProgress> {
        let database = &self.database;
        let mut progress = RebuildProgress::default();
        let mut after: Option<String> = None;
        loop {
            let page = database.task_ids(after.as_deref(), PAGE).await?;
            let is_full = page.len() >= PAGE as usize;
            after = page.last().cloned();
            let own = page.into_iter().map(Subject::Task).filter(|subject| subject.shard(SHARDS) == shard);
            let own: BTreeSet<Subject> = own.collect();
            progress.tasks += own.len() as u64;
            self.rewrite(own, overwrite, state).await?;
            report(progress);
            if !is_full {
                break;
            }
            // A long rebuild must not lose its lease.
            if state.positions.contains_key(&shard) {
                self.renew_leases(state).await?;
            }
        }
        let people = database.people().await?;
        let users: Vec<UserId> = people.iter().map(|user| user.user_id.clone()).collect();
        let sessions = users.iter().cloned().map(Subject::SessionsOf);
        let others = sessions.chain([Subject::Delegations, Subject::Settings]);
        let others: BTreeSet<Subject> = others.filter(|subject| subject.shard(SHARDS) == shard).collect();
        progress.others = others.len() as u64;
        self.rewrite(others, overwrite, state).await?;
        let own_reviewers = people.iter().filter(|user| user.is_reviewer()).map(|user| user.user_id.clone());
        let own_reviewers: BTreeSet<UserId> =
            own_reviewers.filter(|user| Subject::SessionsOf(user.clone()).shard(SHARDS) == shard).collect();
        let statistics = self.statistics(&own_reviewers).await?;
        progress.others += statistics.len() as u64;
        self.projections.write(&statistics, overwrite).await?;
        progress.events = self.backfill_stream(shard).await?;
        report(progress);
        Ok(progress)
    }

    pub(super) async fn rewrite(
        &self,
        subjects: BTreeSet<Subject>,
        overwrite: Overwrite,
        state: &mut RelayState,
    ) -> Result<()> {
        if overwrite == Overwrite::Everything {
            let loaded = self.load(&subjects).await?;
            self.projections.write(&loaded.projections, overwrite).await?;
        }
        // Whatever changed meanwhile.
        self.project(subjects, state).await
    }

    /// Appends the latest events to the stream of a shard, as far as it does not have them. The stream of locks keeps what it has: its
    /// entries cannot be recognised.
    async fn backfill_stream(&self, shard: usize) -> Result<u64> {
        let Some(topic) = topic_of(shard) else { return Ok(0) };
        let last = self.projections.last_number(topic).await?;
        if topic == EventTopic::Lock && last.is_some() {
            return Ok(0);
        }
        let database = &self.database;
        let (head, oldest) = (database.audit_head().await?.number, self.clock.now().micros());
        let oldest = oldest.saturating_sub(STREAM_TTL_MS * 1_000);
        let mut after = last.unwrap_or_default().max(head.saturating_sub(MAX_STREAM_ENTRIES));
        let mut count = 0;
        self.projections.append(topic, &[]).await?;
        loop {
            let events = database.events(after, EVENT_PAGE).await?;
            let Some((number, _)) = events.last() else { return Ok(count) };
            after = *number;
            let mut entries = Vec::new();
            for (number, event) in &events {
                if EventTopic::of(&event.event) == Some(topic) && event.at.micros() >= oldest {
                    entries.push(StreamEntry::of(*number, event)?);
                }
            }
            count += entries.len() as u64;
            self.projections.append(topic, &entries).await?;
        }
    }
}

impl RebuildProgress {
    const fn plus(self, other: Self) -> Self {
        Self {
            tasks: self.tasks + other.tasks,
            others: self.others + other.others,
            removed: self.removed + other.removed,
            events: self.events + other.events,
        }
    }
}
