//! The execution of tasks: what workers and agents report, and what administrators command.
//!
//! Every write names its attempt. A write of a superseded attempt is refused and changes nothing.

use ade_domain::Moment;
use ade_domain::task::{
    AttemptFailure, ExecutionOutput, ExecutionResult, Phase, Preview, PreviewStatus, TaskCommand, TaskState,
};
use ade_domain::task::{AttemptStart, NextStep, Refusal};
use ade_store::database::{Commit, StoredTask};

use super::planner::Assessment;
use super::{Target, TaskService};
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome, new_id};

/// A command of an administrator to the execution of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionCommand {
    Stop,
    /// Roll back what a failed task left behind.
    RollBack,
}

impl TaskService {
    /// The current state of a task, without a check of permissions.
    pub(crate) async fn get(&self, task_id: &str) -> Result<StoredTask, Error> {
        self.load(Target::internal(task_id)).await
    }

    /// Begins an attempt once a worker holds all locks. A conflict since `task` was loaded fails: what was checked must be what
    /// is begun, while its approval is valid.
    pub(crate) async fn begin(&self, mut task: StoredTask, begin: AttemptStart) -> Result<StoredTask, Error> {
        let (task_id, revision, now) = (task.task_id.clone(), task.revision, self.clock.now());
        if !self.is_approval_valid(&task) {
            return Err(Error::Conflict);
        }
        task.begin_apply(begin, now)?;
        self.commit_task(Target::internal(&task_id), revision, task, now).await?.ok_or(Error::Conflict)
    }

    /// Fails a task whose stored config does not match the approved digest.
    pub(crate) async fn mark_corrupt(&self, task_id: &str, revision: u64, worker: &str) -> Result<(), Error> {
        let task = self.update(Target::internal(task_id), |task, now| {
            if task.revision != revision {
                return Err(Error::Conflict);
            }
            Ok(task.fail_digest_mismatch(worker, now)?)
        });
        task.await.map(drop)
    }

    /// Begins an attempt of an agent, which starts immediately. The stored response is part of the commit.
    pub(crate) async fn begin_for_agent(
        &self,
        task_id: &str,
        revision: u64,
        begin: &AttemptStart,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        let mut task = self.load(Target::internal(task_id)).await?;
        let now = self.clock.now();
        if task.revision != revision || !self.is_approval_valid(&task) {
            return Err(Error::Conflict);
        }
        let attempt = task.begin_apply(begin.clone(), now)?;
        task.mark_started(attempt, None, now)?;
        let mut commit = Commit::default();
        self.add_task(&mut commit, Some(revision), &mut task, Some(caller), now).await?;
        if let Some(request) = &caller.idempotent_request {
            request.add_to(&mut commit, Outcome::Claim(&task), now);
        }
        if self.commit(commit).await? { Ok(task) } else { Err(Error::Conflict) }
    }

    /// Begins an attempt that rolls back what a failed task left behind.
    pub(crate) async fn begin_roll_back(&self, task_id: &str, begin: &AttemptStart) -> Result<u64, Error> {
        let task = self.update(Target::internal(task_id), |task, _| {
            task.begin_rollback(begin.clone())?;
            Ok(())
        });
        Ok(task.await?.attempt())
    }

    /// Records that the executor may change something from now on.
    pub(crate) async fn started(
        &self,
        task_id: &str,
        attempt: u64,
        rollback_data_key: Option<String>,
    ) -> Result<StoredTask, Error> {
        self.update(Target::internal(task_id), |task, now| {
            Ok(task.mark_started(attempt, rollback_data_key.clone(), now)?)
        })
        .await
    }

    /// Completes a task. `known` is its probable state, which saves a read.
    pub(crate) async fn complete(
        &self,
        known: &StoredTask,
        attempt: u64,
        output: &ExecutionOutput,
    ) -> Result<(), Error> {
        self.update_loaded(Target::internal(&known.task_id), known.clone(), |task, now| {
            Ok(task.complete(attempt, output.clone(), now)?)
        })
        .await
        .map(drop)
    }

    /// Records a failure; returns what the worker has to do next.
    pub(crate) async fn fail(
        &self,
        task_id: &str,
        attempt: u64,
        failed: &AttemptFailure,
        output: &ExecutionOutput,
    ) -> Result<NextStep, Error> {
        let task = self
            .update(Target::internal(task_id), |task, now| {
                task.fail(attempt, failed.clone(), output.clone(), now)?;
                Ok(())
            })
            .await?;
        Ok(next_step(&task))
    }

    /// Records the report of an agent, and whether the agent held its locks until then.
    pub(crate) async fn report(
        &self,
        task_id: &str,
        attempt: u64,
        report: &(ExecutionResult, Option<String>),
        held_locks: bool,
        output: &ExecutionOutput,
    ) -> Result<StoredTask, Error> {
        self.update(Target::internal(task_id), |task, now| {
            Ok(task.report(attempt, report.clone(), held_locks, output.clone(), now)?)
        })
        .await
    }

    /// Records the outcome of a rollback.
    pub(crate) async fn rolled_back(
        &self,
        task_id: &str,
        attempt: u64,
        outcome: &Result<(), String>,
    ) -> Result<(), Error> {
        self.update(Target::internal(task_id), |task, now| {
            Ok(task.finish_rollback(attempt, outcome.clone(), now)?)
        })
        .await
        .map(drop)
    }

    /// Takes over from a lost worker; returns the new attempt and what to do next.
    pub(crate) async fn recover(
        &self,
        task_id: &str,
        begin: &AttemptStart,
        can_resolve: bool,
    ) -> Result<(u64, NextStep), Error> {
        let task = self
            .update(Target::internal(task_id), |task, now| {
                task.recover(begin.clone(), can_resolve, now)?;
                Ok(())
            })
            .await?;
        let is_open = task.execution.as_ref().is_some_and(|execution| execution.phase != Phase::Ended);
        Ok((task.attempt(), if is_open { NextStep::RollBack } else { next_step(&task) }))
    }

    /// Records that recovery begins to roll back.
    pub(crate) async fn begin_recovery_rollback(&self, task_id: &str, attempt: u64) -> Result<(), Error> {
        self.update(Target::internal(task_id), |task, _| Ok(task.start_rollback(attempt)?)).await.map(drop)
    }

    /// Sends a task back into review because its preview differs from the approved one.
    pub(crate) async fn go_stale(
        &self,
        task_id: &str,
        revision: u64,
        preview: &Preview,
    ) -> Result<(), Error> {
        let target = Target::internal(task_id);
        let mut task = self.load(target).await?;
        if task.revision != revision {
            return Ok(());
        }
        let planner = self.planner(&task.config.task_type).await?;
        let (now, mut ids) = (self.clock.now(), new_id);
        let plan = planner.plan_best_effort(&task, preview, true, &mut ids, now);
        task.go_stale(plan, now)?;
        task.preview = preview.clone();
        // After a conflict, the next worker checks the preview again.
        self.commit_task(target, revision, task, now).await.map(drop)
    }

    /// Stores a preview that a worker computed for `of`. It is dropped if the task has changed meanwhile.
    pub(crate) async fn put_preview(
        &self,
        task_id: &str,
        of: &StoredTask,
        preview: &Preview,
    ) -> Result<(), Error> {
        let target = Target::internal(task_id);
        retry_on_conflict(async || {
            let mut task = self.load(target).await?;
            if task.digest != of.digest || task.preview.status != PreviewStatus::Pending {
                return Ok(Some(()));
            }
            let revision = task.revision;
            let planner = self.planner(&task.config.task_type).await?;
            let (now, mut ids) = (self.clock.now(), new_id);
            if task.state == TaskState::Draft {
                let risk = planner.risk(&task.config, preview);
                let auto_approvable =
                    planner.is_auto_approved(&task, Assessment::of(risk.score, preview), now);
                task.assess(risk, auto_approvable, now);
                task.record_preview();
            } else {
                let plan = planner.plan_best_effort(&task, preview, false, &mut ids, now);
                task.go_stale(plan, now)?;
            }
            task.preview = preview.clone();
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
    ) -> Result<StoredTask, Error> {
        caller.require_scopes_for(match command {
            ExecutionCommand::Stop => TaskCommand::Stop,
            ExecutionCommand::RollBack => TaskCommand::RollBack,
        })?;
        let actor = caller.actor();
        self.update(Target::task(task_id, caller), |task, now: Moment| match command {
            ExecutionCommand::Stop => Ok(task.request_stop(reason, &actor, now)?),
            ExecutionCommand::RollBack => Ok(task.request_rollback(reason, &actor, now)?),
        })
        .await
    }

    pub(crate) fn is_approval_valid(&self, task: &StoredTask) -> bool {
        !task.is_approval_expired(self.clock.now())
    }
}

/// What follows from the state of a task after an attempt failed.
fn next_step(task: &StoredTask) -> NextStep {
    let phase = task.execution.as_ref().map(|execution| execution.phase);
    match (task.state, phase) {
        (TaskState::Approved, _) => NextStep::Retry,
        (_, Some(Phase::RollingBack)) => NextStep::RollBack,
        _ => NextStep::Finished,
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
