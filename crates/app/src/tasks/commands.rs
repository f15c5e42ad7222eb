//! Commands of people and agents to single tasks.

use ade_domain::approval::DecisionKind;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::{Answer, Config, Digest, Metadata, Preview, TaskCommand};
use ade_domain::task::{Decision, Task};
use ade_store::database::{Commit, StoredTask, Write};

use crate::error::require_valid;
use crate::events::record;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, ObjectKind, Result, new_id};

use super::planner::ApprovalPlanner;
use super::preview::PreviewRequest;
use super::{Target, TaskService};

/// A task to be created.
#[derive(Debug, Clone)]
pub struct TaskDraft {
    pub config: Config,
    pub metadata: Metadata,
    pub preview: Preview,
}

impl TaskDraft {
    /// The draft that would create the same task.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self { config: task.config.clone(), metadata: task.metadata.clone(), preview: task.preview.clone() }
    }
}

/// A reviewer's decision about an approval request.
#[derive(Debug, Clone)]
pub struct DecisionInput {
    pub action: DecisionKind,
    pub answer: Answer,
}

/// A command to a task as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
    /// Withdraws an approval before the task is applied.
    Revoke {
        reason: Option<String>,
    },
    Cancel {
        reason: Option<String>,
    },
    /// An administrator requests an approval that bypasses the policies.
    RequestOverride {
        reason: Option<String>,
        incident_ticket: Option<String>,
    },
    /// A second administrator confirms the override.
    ConfirmOverride(Answer),
    /// An administrator has the task applied before all others.
    ForceApply {
        reason: Option<String>,
    },
}

impl TaskAction {
    const fn command(&self) -> TaskCommand {
        match self {
            Self::Revoke { .. } => TaskCommand::Revoke,
            Self::Cancel { .. } => TaskCommand::Cancel,
            Self::RequestOverride { .. } => TaskCommand::Override,
            Self::ConfirmOverride(_) => TaskCommand::ConfirmOverride,
            Self::ForceApply { .. } => TaskCommand::ForceApply,
        }
    }
}

/// The digest of a valid config.
pub(super) fn validated_digest(config: &Config) -> Result<Digest> {
    require_valid(config.validate())?;
    config.digest().map_err(|fault| Error::Invalid(vec![fault]))
}

impl TaskService {
    /// Creates a draft, and assesses its risk.
    pub async fn create(&self, draft: TaskDraft, caller: &Caller) -> Result<StoredTask> {
        let planner = self.planner(&draft.config.task_type).await?;
        self.create_with(planner, draft, caller).await
    }

    /// The same with a planner that is loaded already.
    pub(super) async fn create_with(
        &self,
        planner: ApprovalPlanner,
        draft: TaskDraft,
        caller: &Caller,
    ) -> Result<StoredTask> {
        caller.require_scope(Scope::Propose)?;
        let actor = caller.actor();
        let author = actor.authorize_create()?;
        let TaskDraft { config, mut metadata, preview } = draft;
        let (digest, task_id) = (validated_digest(&config)?, new_id());
        let planner = planner.with_agents_for(&self.context.database, &config).await?;
        metadata.lineage = self.resolve_lineage(&metadata.lineage, caller).await?;
        let scope = planner.scope_for(&config, caller)?;
        let request = PreviewRequest { caller, task_id: Some(&task_id) };
        let preview = self.compute_preview(&config, preview, request).await?;
        let lock_preview = self.lock_preview(&config, &scope, Some(&task_id)).await;
        let now = self.context.now();
        let authors = self.authors(&metadata.lineage, caller).await?;
        let draft = Task::draft(task_id.as_str(), config, digest, author, authors, now);
        let mut draft = Task { metadata, preview, lock_preview, ..draft };
        draft.set_scope(scope);
        let mut task = Self::new_draft(&planner, draft, caller, now);
        let mut commit = Commit::default();
        self.add_task(&mut commit, None, &mut task, caller, now).await?;
        Target::Task(&task_id, caller).add_response(&mut commit, &task)?;
        if self.commit(commit).await? { Ok(task) } else { Err(Error::Conflict) }
    }

    pub async fn task(&self, task_id: &str, caller: &Caller) -> Result<StoredTask> {
        caller.require_scope(Scope::Read)?;
        self.visible_task(task_id, Some(caller)).await
    }

    /// Submits a draft for review.
    pub async fn submit(&self, task_id: &str, caller: &Caller) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Submit)?;
        let target = Target::Task(task_id, caller);
        retry_on_conflict(async || {
            let mut task = self.load_with_preview(target, caller).await?;
            let (revision, mut ids) = (task.revision, new_id);
            let planner = self.review_planner(&task.config).await?;
            let scope = planner.scope_for(&task.config, caller)?;
            task.set_scope(scope);
            let lock_preview = self.lock_preview(&task.config, &task.scope, Some(task_id)).await;
            let (now, actor) = (self.context.now(), caller.actor());
            // Before reviewers are chosen: the submitter is none of them.
            let prepared = task.prepare_submission(&actor);
            prepared.map_err(|error| target.explain(error.into(), &task, now))?;
            let plan = planner.plan(&task, &mut ids, now);
            task.submit(plan, &actor, now).map_err(|error| target.explain(error.into(), &task, now))?;
            task.lock_preview = lock_preview;
            self.commit_task(target, revision, task, now).await
        })
        .await
    }

    /// Changes a task. `change` may be called again after a conflict.
    pub async fn modify(
        &self,
        task_id: &str,
        change: impl Fn(&StoredTask) -> Result<TaskDraft>,
        caller: &Caller,
    ) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Modify)?;
        let target = Target::Task(task_id, caller);
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            target.authorize_preview(&task, TaskCommand::Modify, self.context.now())?;
            let revision = task.revision;
            let TaskDraft { config, mut metadata, preview } = change(&task)?;
            let (digest, mut ids) = (validated_digest(&config)?, new_id);
            if metadata.lineage != task.metadata.lineage {
                metadata.lineage = self.resolve_lineage(&metadata.lineage, caller).await?;
            }
            let planner = self.review_planner(&config).await?;
            let scope = planner.scope_for(&config, caller)?;
            let request = PreviewRequest { caller, task_id: Some(task_id) };
            let preview = self.compute_preview(&config, preview, request).await?;
            let lock_preview = self.lock_preview(&config, &scope, Some(task_id)).await;
            let now = self.context.now();
            let sponsors = self.sponsors(&metadata.lineage).await?;
            let author_set = task.author_set_after_edit(&metadata.lineage, &sponsors, &caller.actor());
            let author_set = author_set.map_err(|invalid| Error::Invalid(vec![invalid]))?;
            let mut changed =
                Task { config, metadata, preview, author_set, lock_preview, ..task.task.clone() };
            changed.set_scope(scope);
            changed.record_agent(&caller.actor());
            let plan = planner.plan(&changed, &mut ids, now);
            let modified = task.modify(changed.config, digest, plan, &caller.actor(), now);
            modified.map_err(|error| target.explain(error.into(), &task, now))?;
            let Task { metadata, preview, author_set, by_agent, lock_preview, .. } = changed;
            (task.metadata, task.preview, task.by_agent) = (metadata, preview, by_agent);
            (task.author_set, task.lock_preview) = (author_set, lock_preview);
            self.commit_task(target, revision, task, now).await
        })
        .await
    }

    /// Deletes a draft.
    pub async fn delete(&self, task_id: &str, caller: &Caller) -> Result<()> {
        caller.require_scopes_for(TaskCommand::Delete)?;
        let (target, actor) = (Target::Task(task_id, caller), caller.actor());
        retry_on_conflict(async || {
            let task = self.load(target).await?;
            let deleted = task.delete(&actor);
            let transition =
                deleted.map_err(|error| target.explain(error.into(), &task, self.context.now()))?;
            let write = Write::DeleteTask { task_id: task_id.to_owned(), expected: task.revision };
            let now = self.context.now();
            let mut commit = Commit { writes: vec![write], ..Commit::default() };
            let entry = self.audit(&task, &transition, caller, now);
            record(&mut commit, entry, transition.notify);
            target.add_response(&mut commit, &task)?;
            Ok(self.commit(commit).await?.then_some(()))
        })
        .await
    }

    /// Records that a cancelled task is archived; returns the task, which the caller moves. The attempt is on record even if
    /// moving it fails.
    pub async fn begin_archive(&self, task_id: &str, caller: &Caller) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Archive)?;
        retry_on_conflict(async || {
            let target = Target::Task(task_id, caller);
            let (task, now) = (self.load(target).await?, self.context.now());
            let archived = task.archive(&caller.actor());
            let transition = archived.map_err(|error| target.explain(error.into(), &task, now))?;
            let mut commit = Commit::default();
            record(&mut commit, self.audit(&task, &transition, caller, now), transition.notify);
            // Written back, so that it is not archived if it has changed meanwhile.
            let expected = Some(task.revision);
            commit.writes.push(Write::Task { task: Box::new(task.clone()), expected, at: now });
            Ok(self.commit(commit).await?.then_some(task))
        })
        .await
    }

    /// Records the decision of a reviewer, or of an administrator in place of the reviewer.
    pub async fn decide(
        &self,
        approval_id: &str,
        input: &DecisionInput,
        caller: &Caller,
    ) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Approve)?;
        let target = Target::Approval(approval_id, caller);
        let decided = self.update_with_people(target, |task, people, now| {
            task.decide(&decision(approval_id, input), &caller.actor(), people, now)
        });
        decided.await.map_err(approval_not_found)
    }

    pub(super) async fn task_id_of(&self, approval_id: &str) -> Result<String> {
        self.context
            .database
            .task_id_by_approval(approval_id)
            .await?
            .ok_or(Error::NotFound(ObjectKind::Approval))
    }

    /// Delegates a single approval request.
    pub async fn delegate(&self, approval_id: &str, to: &UserId, caller: &Caller) -> Result<StoredTask> {
        caller.require_scope(Scope::Decide)?;
        let target = Target::Approval(approval_id, caller);
        let delegated = self.update_with_people(target, |task, people, now| {
            task.delegate(approval_id, to, people, new_id(), &caller.actor(), now)
        });
        delegated.await.map_err(approval_not_found)
    }

    pub async fn perform(&self, task_id: &str, action: &TaskAction, caller: &Caller) -> Result<StoredTask> {
        caller.require_scopes_for(action.command())?;
        let actor = caller.actor();
        self.update_with_people(Target::Task(task_id, caller), |task, people, now| match action {
            TaskAction::Revoke { reason } => task.revoke(reason.as_deref(), &actor, now),
            TaskAction::Cancel { reason } => task.cancel(reason.as_deref(), &actor, now),
            TaskAction::RequestOverride { reason, incident_ticket } => {
                task.request_override(reason.as_deref(), incident_ticket.as_deref(), &actor, people, now)
            }
            TaskAction::ConfirmOverride(answer) => {
                let answer = Answer { revision: caller.if_match, ..answer.clone() };
                task.confirm_override(&answer, &actor, people, now)
            }
            TaskAction::ForceApply { reason } => task.force_apply(reason.as_deref(), &actor, people, now),
        })
        .await
    }
}

/// If the caller may not see the task, its approval request does not exist for the caller either.
pub(super) fn approval_not_found(error: Error) -> Error {
    if matches!(error, Error::NotFound(_)) { Error::NotFound(ObjectKind::Approval) } else { error }
}

pub(super) fn decision<'a>(approval_id: &'a str, input: &'a DecisionInput) -> Decision<'a> {
    Decision { approval_id, kind: input.action, answer: &input.answer, is_batch: false }
}
