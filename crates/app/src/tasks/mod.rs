//! Reviews: load, let `domain` decide on the whole review, commit it with its audit entries and events, guarded by the revision
//! that was seen. Whoever was overtaken loads again and decides again.

mod apply;
mod batch;
mod comments;
mod due;
mod facts;
mod leave;
mod lists;
mod locks;
mod preview;
mod simulate;
mod use_cases;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::audit::AuditBody;
use ade_domain::people::{AuthorSet, UserId};
use ade_domain::task::Transition as Happened;
use ade_domain::task::{Lineage, State};
use ade_domain::{Clock, Moment};
use ade_store::coordination::WakeAt;
use ade_store::database::{Commit, Event, StoredTask, Write};
use ade_store::{Coordination, Database, DatabaseError};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use uuid::Uuid;

pub use apply::Command;
pub(crate) use apply::is_over;
pub use batch::{Batch, MOST_AT_ONCE};
pub use leave::MOST_MOVED;
pub use lists::Whose;
pub(crate) use preview::hidden;
pub use preview::{EXECUTORS, Previews};
pub use simulate::{Differs, Imagined, Simulated};
pub use use_cases::{Draft, Response, TaskAction};

use crate::signals::{APPLY, APPROVAL_TIMEOUT, Due, PREVIEW, WakeUps};
use crate::{Caller, Error, Outcome, Settings};
pub(crate) use facts::Facts;
use facts::RulesCache;

/// How often a decision is repeated that somebody else overtook.
const MOST_ATTEMPTS: usize = 10;

/// What workers are called for if others may be gone.
const SILENT: &str = "silent";
const LISTEN_FOR: Duration = Duration::from_secs(30);
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The use cases; clones are the same ones.
#[derive(Clone)]
pub struct TaskService {
    record: Database,
    clock: Arc<dyn Clock>,
    locks: Option<Arc<dyn Coordination>>,
    previews: Previews,
    signals: WakeUps,
    wake: watch::Sender<()>,
    silent: watch::Sender<()>,
    kept: Arc<RulesCache>,
}

impl std::fmt::Debug for TaskService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

fn new_id() -> String {
    Uuid::now_v7().to_string()
}

/// What is changed, and by whom.
#[derive(Clone, Copy)]
struct About<'a> {
    /// Which task; if none was named, the one of the request.
    task_id: Option<&'a str>,
    /// Which of its requests, if one was named.
    approval_id: Option<&'a str>,
    /// Nobody, where it is due by itself.
    caller: Option<&'a Caller>,
}

impl<'a> About<'a> {
    const fn task(task_id: &'a str, caller: &'a Caller) -> Self {
        Self { task_id: Some(task_id), approval_id: None, caller: Some(caller) }
    }

    const fn request(approval_id: &'a str, caller: &'a Caller) -> Self {
        Self { task_id: None, approval_id: Some(approval_id), caller: Some(caller) }
    }

    const fn due(task_id: &'a str) -> Self {
        Self { task_id: Some(task_id), approval_id: None, caller: None }
    }

    /// Refuses whoever saw another revision of what it named.
    fn seen(&self, task: &StoredTask) -> Result<(), Error> {
        let mut approvals = task.approvals.iter();
        let named = self.approval_id.and_then(|id| approvals.find(|one| one.approval_id == id));
        let now = named.map_or(task.revision, |approval| approval.revision);
        match self.caller.and_then(|caller| caller.if_match) {
            Some(revision) if revision != now => Err(Error::Stale { now }),
            _ => Ok(()),
        }
    }

    fn keep(&self, commit: &mut Commit, task: &StoredTask, now: Moment) {
        if let Some(keep) = self.caller.and_then(|caller| caller.keep.as_ref()) {
            let made = self.approval_id.map_or(Outcome::Task(task), |id| Outcome::Approval(task, id));
            keep.add(commit, made, now);
        }
    }
}

impl TaskService {
    /// On a record, by a clock; with what coordinates, if locks are to be looked at.
    #[must_use]
    pub fn new(record: Database, clock: Arc<dyn Clock>, locks: Option<Arc<dyn Coordination>>) -> Self {
        Self {
            record,
            clock,
            signals: WakeUps::to(locks.clone()),
            locks,
            previews: Previews::default(),
            wake: watch::Sender::new(()),
            silent: watch::Sender::new(()),
            kept: Arc::default(),
        }
    }

    /// The same, with previews made like this.
    #[must_use]
    pub fn with_previews(self, previews: Previews) -> Self {
        Self { previews, ..self }
    }

    /// The time by which it decides.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Hears that some task may have work for workers: a hint, for everybody here who listens.
    #[must_use]
    pub fn work(&self) -> watch::Receiver<()> {
        self.wake.subscribe()
    }

    /// Hears that workers may be gone whose tasks are to be settled: a hint, as above.
    #[must_use]
    pub fn silence(&self) -> watch::Receiver<()> {
        self.silent.subscribe()
    }

    /// Tells what is due when.
    pub(crate) const fn signals(&self) -> &WakeUps {
        &self.signals
    }

    /// Some tasks have work: everybody here hears it, and workers elsewhere, if there may be some.
    fn call_workers(&self, ready: &[(&'static str, String)]) {
        if ready.is_empty() {
            return;
        }
        self.wake.send_replace(());
        for (queue, task_id) in ready.iter().filter(|_| self.previews.elsewhere) {
            self.signals.call(queue, task_id, WakeAt::Now);
        }
    }

    /// Some workers may be gone: everybody here hears it, and one worker elsewhere, if there may be some.
    pub(crate) fn call_recovery(&self) {
        self.silent.send_replace(());
        if self.previews.elsewhere {
            self.signals.call(APPLY, SILENT, WakeAt::Now);
        }
    }

    /// Somebody left: what that one was asked, and could not be moved at once, moves on soon.
    pub(crate) fn call_for_leavers(&self, leaver: &UserId) {
        self.signals.call(APPROVAL_TIMEOUT, leaver.as_str(), WakeAt::Now);
    }

    /// Passes calls for workers on to everybody here, for as long as it is polled: from elsewhere, and for what was not ready before.
    pub async fn hear_calls(&self) {
        let Some(coordination) = self.locks.clone() else { return };
        let queues = [PREVIEW, APPLY].map(str::to_owned);
        loop {
            match coordination.woken(queues.to_vec(), LISTEN_FOR).await {
                Ok(Some(call)) if call.about == SILENT => self.silent.send_replace(()),
                Ok(Some(_)) => self.wake.send_replace(()),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "calls for workers cannot be heard; work is found by looking");
                    tokio::time::sleep(LISTEN_AGAIN).await;
                }
            }
        }
    }

    /// The settings in force.
    pub(crate) async fn settings(&self) -> Result<Settings, Error> {
        Ok(self.kept.now(&self.record).await?.settings.clone())
    }

    /// The author set of what a caller proposes with this lineage.
    async fn authors(&self, lineage: &Lineage, caller: &Caller) -> Result<AuthorSet, Error> {
        let mut authors = caller.actor().author_set();
        authors.add_lineage(lineage, &self.sponsors(lineage).await?);
        Ok(authors)
    }

    /// The sponsors of the agents that a lineage names, by agent.
    async fn sponsors(&self, lineage: &Lineage) -> Result<BTreeMap<String, UserId>, Error> {
        let mut sponsors = BTreeMap::new();
        for agent_id in lineage.agents() {
            let agent = self.record.agent(agent_id).await?;
            sponsors.extend(agent.and_then(|agent| Some((agent_id.to_owned(), agent.sponsor_id?))));
        }
        Ok(sponsors)
    }

    pub(crate) async fn facts(&self, task_type: &str) -> Result<Facts, Error> {
        Ok(Facts::load(&self.record, &self.kept, task_type).await?)
    }

    /// Changes one task by itself, as often as it takes for nobody to overtake it.
    async fn change(
        &self,
        about: About<'_>,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<(), Error>,
    ) -> Result<StoredTask, Error> {
        let task = self.load(about).await?;
        self.change_known(about, task, decide).await
    }

    /// The same for whoever knows how it probably is: only if somebody changed it since then, it is read again.
    async fn change_known(
        &self,
        about: About<'_>,
        mut task: StoredTask,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<(), Error>,
    ) -> Result<StoredTask, Error> {
        for _ in 0..MOST_ATTEMPTS {
            let (seen, now) = (task.revision, self.clock.now());
            decide(&mut task, now)?;
            if let Some(task) = self.finish(about, seen, task, now).await? {
                return Ok(task);
            }
            task = self.load(about).await?;
        }
        Err(Error::Overtaken)
    }

    /// What is to be changed, as the caller saw it.
    async fn load(&self, about: About<'_>) -> Result<StoredTask, Error> {
        let task = match (about.task_id, about.approval_id) {
            (None, Some(approval_id)) => self.visible_by(approval_id, about.caller).await?,
            (task_id, _) => self.visible(task_id.unwrap_or_default(), about.caller).await?,
        };
        about.seen(&task)?;
        Ok(task)
    }

    /// Commits what was decided; nothing if somebody else was faster.
    async fn finish(
        &self,
        about: About<'_>,
        seen: u64,
        mut task: StoredTask,
        now: Moment,
    ) -> Result<Option<StoredTask>, Error> {
        let mut commit = Commit::default();
        if !task.transitions.is_empty() {
            self.add(&mut commit, Some(seen), &mut task, about.caller, now).await?;
        }
        about.keep(&mut commit, &task, now);
        if !self.commit(commit).await? {
            return Ok(None);
        }
        task.mark_committed();
        Ok(Some(task))
    }

    /// Commits, and calls whoever has something to do then; whether nobody was faster.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<bool, Error> {
        if commit.writes.is_empty() && commit.answer.is_none() {
            return Ok(true);
        }
        let due = Due::of(&commit.writes, self.clock.now());
        match self.record.commit(commit).await {
            Ok(()) => {
                self.call_workers(&due.tell(&self.signals));
                Ok(true)
            }
            Err(DatabaseError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn visible(&self, task_id: &str, caller: Option<&Caller>) -> Result<StoredTask, Error> {
        let is_id = Uuid::parse_str(task_id).is_ok();
        let found = if is_id { self.record.task(task_id).await? } else { None };
        seen_by(caller, found).ok_or(Error::NotFound("task"))
    }

    /// The task that a request is about.
    async fn visible_by(&self, approval_id: &str, caller: Option<&Caller>) -> Result<StoredTask, Error> {
        let is_id = Uuid::parse_str(approval_id).is_ok();
        let found = if is_id { self.record.task_with(approval_id).await? } else { None };
        seen_by(caller, found).ok_or(Error::NotFound("approval"))
    }

    /// Puts a task into a commit, with what happened to it.
    async fn add(
        &self,
        commit: &mut Commit,
        expected: Option<u64>,
        task: &mut StoredTask,
        caller: Option<&Caller>,
        now: Moment,
    ) -> Result<(), Error> {
        // An approval is good for as long as was said when it was given, whatever is said later.
        let is_approved = task.state == State::Approved;
        let comes = |one: &Happened| one.to == State::Approved && one.from != State::Approved;
        if !is_approved {
            task.approval_ends_at = None;
        } else if task.approval_ends_at.is_none() || task.transitions.iter().any(comes) {
            let known = match task.as_read.mark() {
                Some(mark) => self.kept.at(&self.record, mark).await?,
                None => self.kept.now(&self.record).await?,
            };
            let valid_for_ms = known.settings.valid_for_ms();
            let approved_at = task.since.get(&State::Approved).copied();
            task.approval_ends_at = approved_at.map(|at| at.plus_ms(valid_for_ms));
        }
        for happened in std::mem::take(&mut task.transitions) {
            commit.audit.push(audit(task, &happened, caller, now));
            commit.events.push(event(task, &happened, now));
        }
        commit.writes.push(Write::Task { task: Box::new(task.clone()), expected, at: now });
        Ok(())
    }
}

/// What a caller may not see is not there for it.
fn seen_by(caller: Option<&Caller>, found: Option<StoredTask>) -> Option<StoredTask> {
    found.filter(|task| caller.is_none_or(|caller| caller.may_see(task)))
}

fn audit(task: &StoredTask, happened: &Happened, caller: Option<&Caller>, now: Moment) -> AuditBody {
    let review = &task.task;
    let (object_type, object_id) = match &happened.approval_id {
        Some(id) => ("approval", id.clone()),
        None => ("task", review.task_id.clone()),
    };
    // What follows from an act by itself, such as an approval by the last answer, is nobody's act.
    let own = happened.actor.is_some();
    let who = caller.filter(|_| own).map(|caller| caller.who.clone()).unwrap_or_default();
    AuditBody {
        entry_id: new_id(),
        at: now,
        who: ade_domain::audit::AuditActor { user_id: happened.actor.clone(), ..who },
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
        details: told(&happened.tell),
    }
}

/// Whom it concerns: who is asked from now on, or need not answer any more.
fn told(people: &[UserId]) -> Map<String, Value> {
    if people.is_empty() { Map::new() } else { Map::from_iter([("told".to_owned(), json!(people))]) }
}

fn event(task: &StoredTask, happened: &Happened, now: Moment) -> Event {
    let review = &task.task;
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
