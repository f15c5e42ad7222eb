//! Reviews: load, let `domain` decide on the whole review, commit it with its audit entries and events, guarded by the revision
//! that was seen. Whoever was overtaken loads again and decides again.

mod batch;
mod due;
mod facts;
mod simulate;
mod use_cases;

use std::sync::Arc;

use ade_domain::audit::Body;
use ade_domain::review::Record as Happened;
use ade_domain::review::risk::Thresholds;
use ade_domain::task::State;
use ade_domain::{Clock, Moment};
use ade_store::record::{Commit, Event, StoredTask, Write};
use ade_store::{Record, RecordError};
use serde_json::json;
use uuid::Uuid;

pub use batch::{Batch, MOST_AT_ONCE};
pub use facts::{RegisteredPattern, StoredPolicy};
pub use simulate::{Differs, Imagined, Simulated};
pub use use_cases::{Deed, Draft, Response};

use crate::{Caller, Error};
use facts::Facts;

/// How often a decision is repeated that somebody else overtook.
const MOST_ATTEMPTS: usize = 10;

/// What reviews go by.
#[derive(Debug, Clone, Copy)]
pub struct ReviewRules {
    /// How long people have before somebody else is asked.
    pub due_after_ms: u64,
    /// How long an approval is good for.
    pub valid_for_ms: u64,
    /// What the words for risks mean.
    pub thresholds: Thresholds,
}

impl Default for ReviewRules {
    fn default() -> Self {
        Self { due_after_ms: 48 * 3_600_000, valid_for_ms: 7 * 86_400_000, thresholds: Thresholds::default() }
    }
}

/// The use cases; clones are the same ones.
#[derive(Clone)]
pub struct Reviews {
    record: Record,
    clock: Arc<dyn Clock>,
    rules: ReviewRules,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").field("rules", &self.rules).finish_non_exhaustive()
    }
}

fn new_id() -> String {
    Uuid::now_v7().to_string()
}

impl Reviews {
    /// On a record, by a clock.
    #[must_use]
    pub fn new(record: Record, clock: Arc<dyn Clock>, rules: ReviewRules) -> Self {
        Self { record, clock, rules }
    }

    async fn facts(&self, task_type: &str) -> Result<Facts, Error> {
        Ok(Facts::load(&self.record, task_type, self.rules.thresholds).await?)
    }

    /// Changes one task, as often as it takes for nobody to overtake it.
    async fn change(
        &self,
        task_id: &str,
        caller: Option<&Caller>,
        decide: impl Fn(&mut StoredTask, &Facts, Moment) -> Result<(), Error>,
    ) -> Result<StoredTask, Error> {
        for _ in 0..MOST_ATTEMPTS {
            let before = self.visible(task_id, caller).await?;
            let facts = self.facts(&before.review.config.task_type).await?;
            let now = self.clock.now();
            let mut after = before.clone();
            decide(&mut after, &facts, now)?;
            if after.review.records.is_empty() {
                return Ok(after);
            }
            let mut commit = Commit::default();
            self.add(&mut commit, Some(before.review.revision), &mut after, caller, now);
            match self.record.commit(commit).await {
                Ok(()) => return Ok(after),
                Err(RecordError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Overtaken)
    }

    async fn visible(&self, task_id: &str, caller: Option<&Caller>) -> Result<StoredTask, Error> {
        let is_id = Uuid::parse_str(task_id).is_ok();
        let found = if is_id { self.record.task(task_id).await? } else { None };
        let may_see = |task: &StoredTask| caller.is_none_or(|caller| caller.may_see(task));
        found.filter(may_see).ok_or(Error::NotFound("task"))
    }

    /// Puts a task into a commit, with what happened to it.
    fn add(
        &self,
        commit: &mut Commit,
        expected: Option<u64>,
        task: &mut StoredTask,
        caller: Option<&Caller>,
        now: Moment,
    ) {
        for happened in std::mem::take(&mut task.review.records) {
            commit.audit.push(audit(task, &happened, caller, now));
            commit.events.push(event(task, &happened, now));
        }
        let approved_at = task.review.since.get(&State::Approved).copied();
        let approval_ends_at = approved_at.map(|at| at.plus_ms(self.rules.valid_for_ms));
        commit.writes.push(Write::Task { task: Box::new(task.clone()), expected, approval_ends_at });
    }
}

fn audit(task: &StoredTask, happened: &Happened, caller: Option<&Caller>, now: Moment) -> Body {
    let review = &task.review;
    let (object_type, object_id) = match &happened.approval_id {
        Some(id) => ("approval", id.clone()),
        None => ("task", review.task_id.clone()),
    };
    // What follows from an act by itself, such as an approval by the last answer, is nobody's act.
    let own = happened.actor.is_some();
    let who = caller.filter(|_| own).map(|caller| caller.who.clone()).unwrap_or_default();
    Body {
        entry_id: new_id(),
        at: now,
        who: ade_domain::audit::Who { user_id: happened.actor.clone(), ..who },
        action: happened.action.clone(),
        object_type: object_type.to_owned(),
        object_id,
        task_id: Some(review.task_id.clone()),
        from: Some(happened.from),
        to: Some(happened.to),
        revision: Some(review.revision),
        digest: Some(review.digest),
        reason: happened.reason.clone(),
        ticket: happened.ticket.clone(),
        details: serde_json::Map::new(),
    }
}

fn event(task: &StoredTask, happened: &Happened, now: Moment) -> Event {
    let review = &task.review;
    Event {
        event_id: new_id(),
        kind: happened.action.replacen('.', ":", 1),
        at: now,
        task_id: Some(review.task_id.clone()),
        tell: happened.tell.iter().map(ToString::to_string).collect(),
        data: json!({
            "task_id": review.task_id, "state": happened.to, "revision": review.revision,
            "approval_id": happened.approval_id,
        }),
    }
}
