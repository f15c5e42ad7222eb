//! Tasks: load one, let `domain` decide about it, and commit it with its audit entries and events if its revision is unchanged.
//! After a conflict the task is loaded and decided about again.

mod batch;
mod commands;
mod comments;
mod execution;
mod lists;
mod lock_preview;
mod offboarding;
mod planner;
mod preview;
mod proposal;
mod rules_cache;
mod simulate;
mod timeouts;

use std::collections::BTreeMap;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::audit::{AuditActor, AuditBody};
use ade_domain::people::{AuthorSet, UserId};
use ade_domain::task::{Lineage, Task, Transition};
use ade_store::database::{Commit, StoredTask, Write};
use serde_json::{Map, Value, json};

pub use batch::{DecisionBatch, MAX_BATCH_SIZE};
pub use commands::{DecisionInput, TaskAction, TaskDraft};
pub use execution::ExecutionCommand;
pub(crate) use execution::is_superseded;
pub use lists::ApprovalOwner;
pub use offboarding::MAX_REASSIGNED_TASKS;
pub use preview::{EXECUTORS, PreviewConfig};
pub(crate) use preview::{preview_of, redact};
pub use proposal::{DeclaredPreview, Proposal};
pub use simulate::{ReplayDifference, Simulation, SimulationInput};

use crate::events::wake_ups::FollowUp;
use crate::events::{Subscriptions, record};
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{ApprovalView, Caller, Context, Error, ObjectKind, Outcome, Result, Settings, TaskView, new_id};
use planner::ApprovalPlanner;
use rules_cache::{RulesCache, RulesSnapshot};

#[derive(Debug, Clone)]
pub struct TaskService {
    context: Context,
    previews: PreviewConfig,
    subscriptions: Subscriptions,
    rules: Arc<RulesCache>,
}

/// The task to change, and the caller who changes it.
#[derive(Clone, Copy)]
enum Target<'a> {
    Task(&'a str, &'a Caller),
    /// The task of this approval request.
    Approval(&'a str, &'a Caller),
    /// A task that the service itself changes.
    Internal(&'a str),
}

impl<'a> Target<'a> {
    const fn caller(self) -> Option<&'a Caller> {
        match self {
            Self::Task(_, caller) | Self::Approval(_, caller) => Some(caller),
            Self::Internal(_) => None,
        }
    }

    /// Checks `If-Match` against the approval request if one is given, else against the task.
    fn check_revision(self, task: &StoredTask) -> Result<()> {
        match self {
            Self::Task(_, caller) => caller.check_revision(task.revision),
            Self::Approval(id, caller) => {
                let approval = task.approvals.iter().find(|approval| approval.approval_id == id);
                caller.check_revision(approval.map_or(task.revision, |approval| approval.revision))
            }
            Self::Internal(_) => Ok(()),
        }
    }

    fn add_response(self, commit: &mut Commit, task: &StoredTask) -> Result<()> {
        commit.response = match self {
            Self::Task(_, caller) => {
                stored_response(caller, |at| Outcome::Task(TaskView::new(task, caller, at)))?
            }
            Self::Approval(id, caller) => {
                stored_response(caller, |_| Outcome::Approval(ApprovalView::find(task, id)))?
            }
            Self::Internal(_) => None,
        };
        Ok(())
    }
}

impl TaskService {
    #[must_use]
    pub fn new(context: Context, previews: PreviewConfig) -> Self {
        let subscriptions = Subscriptions::new(&context.coordination, previews.has_remote_workers);
        Self { context, previews, subscriptions, rules: Arc::default() }
    }

    #[must_use]
    pub fn now(&self) -> Moment {
        self.context.now()
    }

    pub(crate) const fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    async fn rules(&self) -> Result<Arc<RulesSnapshot>> {
        Ok(self.rules.current(&self.context.database).await?)
    }

    /// The settings in force.
    async fn settings(&self) -> Result<Settings> {
        Ok(self.rules().await?.settings.clone())
    }

    /// The author set of what a caller proposes with this lineage.
    async fn authors(&self, lineage: &Lineage, caller: &Caller) -> Result<AuthorSet> {
        let mut authors = caller.actor().author_set();
        authors.add_lineage(lineage, &self.sponsors(lineage).await?);
        Ok(authors)
    }

    /// The sponsors of the agents that a lineage names, by agent.
    async fn sponsors(&self, lineage: &Lineage) -> Result<BTreeMap<String, UserId>> {
        let mut sponsors = BTreeMap::new();
        for agent_id in lineage.agents() {
            let agent = self.context.database.agent(agent_id).await?;
            sponsors.extend(agent.and_then(|agent| Some((agent_id.to_owned(), agent.sponsor_id?))));
        }
        Ok(sponsors)
    }

    async fn planner(&self, task_type: &str) -> Result<ApprovalPlanner> {
        Ok(ApprovalPlanner::load(&self.context.database, &self.rules, task_type).await?)
    }

    /// Changes a task without a check of permissions, and retries after conflicts.
    pub(crate) async fn change<T, E: Into<Error>>(
        &self,
        task_id: &str,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<T, E>,
    ) -> Result<(StoredTask, T)> {
        let task = self.get(task_id).await?;
        self.change_loaded(Target::Internal(task_id), task, decide).await
    }

    /// Changes a task for a caller, and retries after conflicts.
    async fn update<E: Into<Error>>(
        &self,
        target: Target<'_>,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<(), E>,
    ) -> Result<StoredTask> {
        let task = self.load(target).await?;
        Ok(self.change_loaded(target, task, decide).await?.0)
    }

    /// Changes a task that is loaded already: it is read again only after a conflict.
    async fn change_loaded<T, E: Into<Error>>(
        &self,
        target: Target<'_>,
        task: StoredTask,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<T, E>,
    ) -> Result<(StoredTask, T)> {
        let attempt = async |loaded: Option<StoredTask>| {
            let mut task = match loaded {
                Some(task) => task,
                None => self.load(target).await?,
            };
            let (revision, now) = (task.revision, self.context.now());
            let decided = decide(&mut task, now).map_err(Into::into)?;
            Ok(self.commit_task(target, revision, task, now).await?.map(|task| (task, decided)))
        };
        let mut loaded = Some(task);
        retry_on_conflict(|| attempt(loaded.take())).await
    }

    /// The task of a target, if its revision is the one that the caller expects.
    async fn load(&self, target: Target<'_>) -> Result<StoredTask> {
        let task = match target {
            Target::Approval(id, caller) => {
                let found = self.context.database.task_by_approval(id).await?;
                visible(found, Some(caller)).ok_or(Error::NotFound(ObjectKind::Approval))?
            }
            Target::Task(id, _) | Target::Internal(id) => self.visible_task(id, target.caller()).await?,
        };
        target.check_revision(&task)?;
        Ok(task)
    }

    /// Commits a task that was loaded with `revision`; `None` after a conflict.
    async fn commit_task(
        &self,
        target: Target<'_>,
        revision: u64,
        mut task: StoredTask,
        now: Moment,
    ) -> Result<Option<StoredTask>> {
        let mut commit = Commit::default();
        let is_changed = !task.transitions.is_empty();
        if is_changed {
            self.add_task(&mut commit, Some(revision), &mut task, target.caller(), now).await?;
        }
        target.add_response(&mut commit, &task)?;
        if !self.commit(commit).await? {
            return Ok(None);
        }
        if is_changed {
            task.mark_committed();
        }
        Ok(Some(task))
    }

    /// Commits, and wakes the workers that have work then; returns false after a conflict.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<bool> {
        if commit.writes.is_empty() && commit.response.is_none() {
            return Ok(true);
        }
        let follow_up = FollowUp::of(&commit.writes, self.context.now());
        let is_committed = self.context.commit(commit).await?;
        if is_committed {
            self.subscriptions.committed(&follow_up);
        }
        Ok(is_committed)
    }

    async fn visible_task(&self, task_id: &str, caller: Option<&Caller>) -> Result<StoredTask> {
        visible(self.context.database.task(task_id).await?, caller).ok_or(Error::NotFound(ObjectKind::Task))
    }

    /// A new draft of a caller, with its risk.
    fn new_draft(planner: &ApprovalPlanner, draft: Task, caller: &Caller, now: Moment) -> StoredTask {
        let mut task = StoredTask::from(draft);
        task.proposed_by_agent = caller.agent_id.is_some() || task.metadata.lineage.agent_id.is_some();
        planner.assess(&mut task, now);
        task
    }

    /// Adds a task with its audit entries and events to a commit.
    async fn add_task(
        &self,
        commit: &mut Commit,
        expected: Option<u64>,
        task: &mut StoredTask,
        caller: Option<&Caller>,
        now: Moment,
    ) -> Result<()> {
        if task.needs_approval_end() {
            let rules = match task.loaded_version.rules_version() {
                Some(version) => self.rules.at(&self.context.database, version).await?,
                None => self.rules().await?,
            };
            task.set_approval_end(rules.settings.valid_for_ms());
        }
        for transition in std::mem::take(&mut task.transitions) {
            record(commit, audit(task, &transition, caller, now), transition.notify);
        }
        commit.writes.push(Write::Task { task: Box::new(task.clone()), expected, at: now });
        Ok(())
    }
}

/// A task that the caller may not see does not exist for the caller.
fn visible(task: Option<StoredTask>, caller: Option<&Caller>) -> Option<StoredTask> {
    task.filter(|task| caller.is_none_or(|caller| caller.can_see(task)))
}

fn audit(task: &StoredTask, transition: &Transition, caller: Option<&Caller>, now: Moment) -> AuditBody {
    let (object_type, object_id) = match &transition.approval_id {
        Some(id) => ("approval", id.clone()),
        None => ("task", task.task_id.clone()),
    };
    // A consequence, such as the approval of the task by the last decision, has no actor.
    let caller = caller.filter(|_| transition.actor.is_some());
    let actor = caller.map(|caller| caller.audit_actor.clone()).unwrap_or_default();
    AuditBody {
        entry_id: new_id(),
        at: now,
        who: AuditActor { user_id: transition.actor.clone(), ..actor },
        action: transition.action.clone(),
        object_type: object_type.to_owned(),
        object_id,
        task_id: Some(task.task_id.clone()),
        from: Some(transition.from),
        to: Some(transition.to),
        revision: Some(task.revision),
        digest: Some(task.digest),
        reason: transition.reason.clone(),
        ticket: transition.ticket.clone(),
        details: notified(&transition.notify),
    }
}

/// The people who are notified: those who are asked to decide from now on, or no longer have to.
fn notified(people: &[UserId]) -> Map<String, Value> {
    if people.is_empty() { Map::new() } else { Map::from_iter([("notified".to_owned(), json!(people))]) }
}
