//! Tasks: load one, let `domain` decide about it, and commit it with its audit entries and events if its revision is unchanged.
//! After a conflict the task is loaded and decided about again.

mod batch;
mod chat;
mod claims;
mod commands;
mod comments;
mod execution;
mod lists;
mod lock_preview;
mod offboarding;
mod planner;
mod preview;
mod preview_limits;
mod proposal;
mod rules_cache;
mod simulate;
mod timeouts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, Principal};
use ade_domain::people::{AuthorReason, AuthorSet, People, UserId};
use ade_domain::task::{
    InvalidTransition, Lineage, Refusal, RegisteredAgent, RegisteredAgents, Task, TaskCommand, TaskState,
    Transition,
};
use ade_store::database::{Commit, StoredTask, Write};

pub use batch::{BatchItem, DecisionBatch, MAX_BATCH_SIZE};
pub(crate) use claims::{AgentIdentity, ClaimSearch};
pub use commands::{DecisionInput, TaskAction, TaskDraft};
pub use execution::ExecutionCommand;
pub(crate) use execution::is_superseded;
pub use lists::ApprovalOwner;
pub use offboarding::MAX_REASSIGNED_TASKS;
pub use preview::{EXECUTORS, PreviewConfig};
pub(crate) use preview::{preview_of, redact};
pub use proposal::{DeclaredPreview, Proposal};
pub use simulate::{Replay, ReplayDifference, Simulation, SimulationInput};

use crate::events::wake_ups::FollowUp;
use crate::events::{Subscriptions, record};
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{ApprovalView, Caller, Context, Error, ObjectKind, Outcome, Result, Settings, TaskView, new_id};
use planner::ApprovalPlanner;
use preview_limits::PreviewLimits;
use rules_cache::{RulesCache, RulesSnapshot};

#[derive(Debug, Clone)]
pub struct TaskService {
    context: Context,
    previews: PreviewConfig,
    preview_limits: Arc<PreviewLimits>,
    subscriptions: Subscriptions,
    rules: Arc<RulesCache>,
    /// The task in a backlog that was reconsidered last.
    reconsidered: Arc<Mutex<Option<String>>>,
}

/// The task to change, and the caller who changes it.
#[derive(Clone, Copy)]
enum Target<'a> {
    Task(&'a str, &'a Caller),
    /// The task of this approval request.
    Approval(&'a str, &'a Caller),
    /// A task that the service itself changes, or that an agent reports about.
    Internal(&'a str, &'a Principal),
}

impl<'a> Target<'a> {
    const fn caller(self) -> Option<&'a Caller> {
        match self {
            Self::Task(_, caller) | Self::Approval(_, caller) => Some(caller),
            Self::Internal(..) => None,
        }
    }

    fn principal(self) -> Principal {
        match self {
            Self::Task(_, caller) | Self::Approval(_, caller) => caller.into(),
            Self::Internal(_, by) => by.clone(),
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
            Self::Internal(..) => Ok(()),
        }
    }

    /// Checks before a preview runs that the caller may give the command that needs it.
    fn authorize_preview(self, task: &StoredTask, command: TaskCommand, now: Moment) -> Result<()> {
        let Some(caller) = self.caller() else { return Ok(()) };
        let authorized = task.authorize_preview(command, &caller.actor());
        authorized.map_err(|refusal| self.explain(refusal.into(), task, now))
    }

    /// A refusal for the state of the task lists what this caller may do instead, and nothing that only others may.
    fn explain(self, error: Error, task: &StoredTask, now: Moment) -> Error {
        match (error, self.caller()) {
            (Error::Refused(Refusal::InvalidTransition(refused)), Some(caller)) => {
                let allowed = caller.allowed_commands(task, now);
                Refusal::InvalidTransition(InvalidTransition { allowed, ..refused }).into()
            }
            (error, _) => error,
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
            Self::Internal(..) => None,
        };
        Ok(())
    }
}

impl TaskService {
    #[must_use]
    pub fn new(context: Context, previews: PreviewConfig) -> Self {
        let subscriptions = Subscriptions::new(&context.coordination, previews.has_remote_workers);
        Self {
            context,
            previews,
            preview_limits: Arc::default(),
            subscriptions,
            rules: Arc::default(),
            reconsidered: Arc::default(),
        }
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
        for author in &caller.further_authors {
            authors.add(author.clone(), AuthorReason::TokenIssuer);
        }
        authors.add_lineage(lineage, &self.sponsors(lineage).await?);
        Ok(authors)
    }

    /// The lineage of a task that a caller proposes with this one; see [`Lineage::resolve`].
    async fn resolve_lineage(&self, lineage: &Lineage, caller: &Caller) -> Result<Lineage> {
        let mut agents = RegisteredAgents::new();
        for agent_id in lineage.agent_id.iter().chain(&caller.agent_id) {
            if let Some(agent) = self.context.database.agent(agent_id).await? {
                let agent = RegisteredAgent { sponsor: agent.sponsor_id, parent: agent.parent_agent_id };
                agents.insert(agent_id.clone(), agent);
            }
        }
        let resolved = lineage.resolve(&caller.actor(), &agents);
        resolved.map_err(|invalid| Error::Invalid(vec![invalid]))
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

    /// Changes a task without a check of permissions, and retries after conflicts. `by` is on record as the actor.
    pub(crate) async fn change<T, E: Into<Error>>(
        &self,
        task_id: &str,
        by: &Principal,
        decide: impl Fn(&mut StoredTask, Moment) -> Result<T, E>,
    ) -> Result<(StoredTask, T)> {
        let task = self.get(task_id).await?;
        self.change_loaded(Target::Internal(task_id, by), task, decide).await
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

    /// Changes a task for a caller by the people at the time of loading it, and retries after conflicts.
    async fn update_with_people<E: Into<Error>>(
        &self,
        target: Target<'_>,
        decide: impl Fn(&mut StoredTask, &People, Moment) -> Result<(), E>,
    ) -> Result<StoredTask> {
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            let rules = self.rules_of(&task).await?;
            let (revision, now) = (task.revision, self.context.now());
            let decided = decide(&mut task, &rules.people, now);
            decided.map_err(|error| target.explain(error.into(), &task, now))?;
            self.commit_task(target, revision, task, now).await
        })
        .await
    }

    /// The rules at the time when a task was loaded, or newer ones.
    async fn rules_of(&self, task: &StoredTask) -> Result<Arc<RulesSnapshot>> {
        match task.loaded_version.rules_version() {
            Some(version) => Ok(self.rules.at(&self.context.database, version).await?),
            None => self.rules().await,
        }
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
            let decided = decide(&mut task, now).map_err(|error| target.explain(error.into(), &task, now))?;
            Ok(self.commit_task(target, revision, task, now).await?.map(|task| (task, decided)))
        };
        let mut loaded = Some(task);
        retry_on_conflict(|| attempt(loaded.take())).await
    }

    /// The task of a target, to be changed: if it can be, and if its revision is the one that the caller expects.
    async fn load(&self, target: Target<'_>) -> Result<StoredTask> {
        let task = match target {
            Target::Approval(id, caller) => {
                let found = self.context.database.task_by_approval(id).await?;
                self.visible(found, Some(caller)).await?.ok_or(Error::NotFound(ObjectKind::Approval))?
            }
            Target::Task(id, _) | Target::Internal(id, _) => self.visible_task(id, target.caller()).await?,
        };
        require_not_restored(&task)?;
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
            self.add_task(&mut commit, Some(revision), &mut task, target.principal(), now).await?;
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
        let found = self.context.database.task(task_id).await?;
        self.visible(found, caller).await?.ok_or(Error::NotFound(ObjectKind::Task))
    }

    /// A task that the caller may not see does not exist for the caller. An agent sees also what it may claim.
    async fn visible(&self, task: Option<StoredTask>, caller: Option<&Caller>) -> Result<Option<StoredTask>> {
        let Some(task) = task else { return Ok(None) };
        let is_visible = match caller {
            None => true,
            Some(caller) => caller.can_see(&task) || self.is_claimable_by(caller, &task).await?,
        };
        Ok(is_visible.then_some(task))
    }

    /// A new draft of a caller, with its risk.
    fn new_draft(planner: &ApprovalPlanner, draft: Task, caller: &Caller, now: Moment) -> StoredTask {
        let mut task = StoredTask::from(draft);
        task.record_agent(&caller.actor());
        planner.assess(&mut task, now);
        task
    }

    /// Adds a task with its audit entries and events to a commit.
    async fn add_task(
        &self,
        commit: &mut Commit,
        expected: Option<u64>,
        task: &mut StoredTask,
        by: impl Into<Principal>,
        now: Moment,
    ) -> Result<()> {
        require_not_restored(task)?;
        let by = by.into();
        if task.needs_approval_times() {
            let rules = self.rules_of(task).await?;
            task.set_approval_times(rules.settings.valid_for_ms(), rules.settings.hold_ms());
        }
        task.updated_at = now;
        for transition in std::mem::take(&mut task.transitions) {
            record(commit, self.audit(task, &transition, by.clone(), now), transition.notify);
        }
        commit.writes.push(Write::Task { task: Box::new(task.clone()), expected, at: now });
        Ok(())
    }

    /// The audit entry of a transition: of `by`, or of the service if it is a consequence, such as the approval of the task by the last
    /// decision.
    fn audit(
        &self,
        task: &StoredTask,
        transition: &Transition,
        by: impl Into<Principal>,
        now: Moment,
    ) -> AuditBody {
        let (object_type, object_id) = match &transition.approval_id {
            Some(id) => ("approval", id.clone()),
            None => ("task", task.task_id.clone()),
        };
        let who = match &transition.trigger {
            Some(trigger) => self.context.service("approvals", trigger.clone()),
            None => by.into(),
        };
        let is_about_approval = transition.approval_id.is_some() || transition.to == TaskState::Approved;
        AuditBody {
            entry_id: new_id(),
            at: now,
            who,
            action: transition.action.clone(),
            object_type: object_type.to_owned(),
            object_id,
            task_id: Some(task.task_id.clone()),
            from: transition.from,
            to: Some(transition.to),
            revision: Some(task.revision),
            digest: Some(task.digest),
            reviewed: is_about_approval.then(|| task.reviewed_content()),
            reason: transition.reason.clone(),
            ticket: transition.ticket.clone().or_else(|| task.metadata.ticket_ref.clone()),
            details: transition.details(),
        }
    }
}

/// A restored task is history, whatever its state says.
fn require_not_restored(task: &StoredTask) -> Result<(), Refusal> {
    if task.restored { Err(Refusal::RestoredTask) } else { Ok(()) }
}
