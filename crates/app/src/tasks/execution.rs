//! The execution of tasks: what workers and agents report, and what administrators command.
//!
//! Every write names its attempt. A write of a superseded attempt is refused and changes nothing.

use ade_domain::audit::Principal;
use ade_domain::task::{
    AttemptStart, ExecutionOutput, Preview, PreviewStatus, Refusal, TaskCommand, TaskState, UnprovenApproval,
};
use ade_store::database::{Commit, StoredTask};

use super::{Target, TaskService};
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome, Result, TaskView, new_id};

/// A command of an administrator to the execution of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionCommand {
    Stop,
    /// Roll back what a failed task left behind.
    RollBack,
}

impl TaskService {
    /// The current state of a task, without a check of permissions.
    pub(crate) async fn get(&self, task_id: &str) -> Result<StoredTask> {
        self.visible_task(task_id, None).await
    }

    /// Begins an attempt once a worker holds all locks; that of an agent starts immediately. A conflict since `task` was loaded
    /// fails: what was checked must be what is begun, while its approval is valid.
    pub(crate) async fn begin(
        &self,
        mut task: StoredTask,
        start: AttemptStart,
        by: &Principal,
        agent: Option<&Caller>,
    ) -> Result<StoredTask> {
        let (revision, now) = (task.revision, self.context.now());
        if !self.is_approval_valid(&task) {
            return Err(Error::Conflict);
        }
        let attempt = task.begin_apply(start, now)?;
        if agent.is_some() {
            task.mark_started(attempt, None, now)?;
        }
        let mut commit = Commit::default();
        self.add_task(&mut commit, Some(revision), &mut task, by.clone(), now).await?;
        if let Some(agent) = agent {
            commit.response = stored_response(agent, |at| Outcome::Claim(TaskView::new(&task, agent, at)))?;
        }
        if !self.commit(commit).await? {
            return Err(Error::Conflict);
        }
        task.mark_committed();
        Ok(task)
    }

    /// Fails a task whose approval the audit log does not prove.
    pub(crate) async fn fail_unproven(
        &self,
        task_id: &str,
        revision: u64,
        worker: &str,
        reason: &UnprovenApproval,
        by: &Principal,
    ) -> Result<()> {
        let failed = self.change(task_id, by, |task, now| {
            if task.revision != revision {
                return Err(Error::Conflict);
            }
            Ok(task.fail_unproven(worker, reason, now)?)
        });
        failed.await.map(drop)
    }

    /// Completes a task. `known` is its probable state, which saves a read.
    pub(crate) async fn complete(
        &self,
        known: &StoredTask,
        attempt: u64,
        output: &ExecutionOutput,
        by: &Principal,
    ) -> Result<()> {
        let target = Target::Internal(&known.task_id, by);
        let complete = |task: &mut StoredTask, now| task.complete(attempt, output.clone(), now);
        self.change_loaded(target, known.clone(), complete).await.map(drop)
    }

    /// Sends a task back into review because its preview differs from the approved one.
    pub(crate) async fn go_stale(
        &self,
        task_id: &str,
        revision: u64,
        preview: &Preview,
        by: &Principal,
    ) -> Result<()> {
        let target = Target::Internal(task_id, by);
        let mut task = self.load(target).await?;
        if task.revision != revision {
            return Ok(());
        }
        let planner = self.review_planner(&task.config).await?;
        let (now, mut ids) = (self.context.now(), new_id);
        task.preview = preview.clone();
        let plan = planner.plan_best_effort(&task, true, &mut ids, now);
        task.go_stale(plan, now)?;
        // After a conflict, the next worker checks the preview again.
        self.commit_task(target, revision, task, now).await.map(drop)
    }

    /// Sends a task back into review because what it can touch differs from what was approved. Returns false if it does not differ.
    pub(crate) async fn go_stale_in_scope(
        &self,
        task_id: &str,
        revision: u64,
        by: &Principal,
    ) -> Result<bool> {
        let target = Target::Internal(task_id, by);
        let mut task = self.load(target).await?;
        if task.revision != revision {
            return Ok(true);
        }
        let planner = self.review_planner(&task.config).await?;
        let approved = task.scope_digest;
        let scope = planner.scope(&task.config)?;
        task.set_scope(scope);
        if task.scope_digest == approved {
            return Ok(false);
        }
        let (now, mut ids) = (self.context.now(), new_id);
        let plan = planner.plan_best_effort(&task, true, &mut ids, now);
        task.go_stale_in_scope(plan, now)?;
        // After a conflict, the next worker checks the scope again.
        self.commit_task(target, revision, task, now).await.map(|_| true)
    }

    /// Stores a preview that a worker computed for `of`. It is dropped if the task has changed meanwhile.
    pub(crate) async fn put_preview(&self, of: &StoredTask, preview: &Preview, by: &Principal) -> Result<()> {
        let target = Target::Internal(&of.task_id, by);
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            if task.digest != of.digest || task.preview.status != PreviewStatus::Pending {
                return Ok(Some(()));
            }
            let revision = task.revision;
            let planner = self.review_planner(&task.config).await?;
            let (now, mut ids) = (self.context.now(), new_id);
            task.preview = preview.clone();
            if task.state == TaskState::Draft {
                planner.assess(&mut task, now);
                task.record_preview();
            } else {
                let plan = planner.plan_best_effort(&task, false, &mut ids, now);
                task.go_stale(plan, now)?;
            }
            Ok(self.commit_task(target, revision, task, now).await?.map(drop))
        })
        .await
    }

    /// Stops the execution of a task, or requests its rollback.
    pub async fn control_execution(
        &self,
        task_id: &str,
        command: ExecutionCommand,
        reason: Option<&str>,
        caller: &Caller,
    ) -> Result<StoredTask> {
        caller.require_scopes_for(match command {
            ExecutionCommand::Stop => TaskCommand::Stop,
            ExecutionCommand::RollBack => TaskCommand::RollBack,
        })?;
        let actor = caller.actor();
        self.update(Target::Task(task_id, caller), |task, now| match command {
            ExecutionCommand::Stop => task.request_stop(reason, &actor, now),
            ExecutionCommand::RollBack => task.request_rollback(reason, &actor, now),
        })
        .await
    }

    /// Whether the approval of a task has not expired, and its hold is over.
    pub(crate) fn is_approval_valid(&self, task: &StoredTask) -> bool {
        let now = self.context.now();
        !task.is_approval_expired(now) && task.held_until(now).is_none()
    }
}

/// Whether a write was refused because another attempt took over, or the task has left the state that it needs.
pub(crate) const fn is_superseded(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused(
            Refusal::NotCurrentAttempt { .. } | Refusal::WorkerNotLost | Refusal::InvalidTransition(_)
        )
    )
}
