//! Client methods of tasks, executions and approval requests.

use std::time::Duration;

use reqwest::Method;

use super::{Client, segment};
use crate::Error;
use crate::wire::{
    Approval, AuditEntry, BatchRequest, BatchResponse, ClaimRequest, Comment, CommentRequest,
    CompleteRequest, DecisionRequest, DelegateRequest, Execution, LogLine, OverrideRequest, Page, Preview,
    ReasonRequest, Risk, Task, TaskClaim, TaskHeartbeatRequest, TaskLease, TaskRequest, TaskStats,
};

impl Client {
    /// Lists tasks, newest first. Filters: `state`, `author`, `resource`, `tag`, `type`, `limit`, `cursor`.
    pub async fn tasks(&self, filters: &[(&str, &str)]) -> Result<Page<Task>, Error> {
        self.get("/tasks", filters).await
    }

    /// Gets a task.
    pub async fn task(&self, task_id: &str) -> Result<Task, Error> {
        self.get(&task_path(task_id, ""), &[]).await
    }

    /// Creates a task in state DRAFT.
    pub async fn create_task(&self, task: &TaskRequest) -> Result<Task, Error> {
        self.post_idempotent("/tasks", task).await
    }

    /// Updates a task if it has this revision. Earlier decisions become invalid.
    pub async fn update_task(
        &self,
        task_id: &str,
        revision: Option<u64>,
        patch: &TaskRequest,
    ) -> Result<Task, Error> {
        self.update(Method::PATCH, &task_path(task_id, ""), revision, patch).await
    }

    /// Deletes a draft.
    pub async fn delete_task(&self, task_id: &str) -> Result<(), Error> {
        self.delete(&task_path(task_id, ""), None).await
    }

    /// Submits a draft for review.
    pub async fn submit_task(&self, task_id: &str) -> Result<Task, Error> {
        self.post_empty(&task_path(task_id, "/submit")).await
    }

    /// Cancels a task before it is applied.
    pub async fn cancel_task(&self, task_id: &str, reason: &ReasonRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/cancel"), reason).await
    }

    /// Revokes the caller's approval before the task is applied.
    pub async fn revoke_approval(&self, task_id: &str, reason: &ReasonRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/revoke"), reason).await
    }

    /// Stops a task that is being applied (admin).
    pub async fn stop_task(&self, task_id: &str, reason: &ReasonRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/stop"), reason).await
    }

    /// Rolls back the changes of a failed task (admin).
    pub async fn roll_back_task(&self, task_id: &str, reason: &ReasonRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/rollback"), reason).await
    }

    /// Lists the log of an execution, after the line with this number.
    pub async fn task_logs(&self, task_id: &str, after: u64) -> Result<Page<LogLine>, Error> {
        self.get(&task_path(task_id, "/logs"), &[("after", after.to_string().as_str())]).await
    }

    /// Gets the current or last execution of a task.
    pub async fn task_execution(&self, task_id: &str) -> Result<Execution, Error> {
        self.get(&task_path(task_id, "/execution"), &[]).await
    }

    /// Claims a task for an agent. Returns `None` if there is no task for it within the requested wait.
    pub async fn claim_task(&self, request: &ClaimRequest) -> Result<Option<TaskClaim>, Error> {
        let wait = Duration::try_from_secs_f64(request.wait_seconds.unwrap_or_default());
        self.post_optional("/tasks/claim", request, wait.unwrap_or_default()).await
    }

    /// Extends the lease of a claimed task.
    pub async fn task_heartbeat(&self, task_id: &str, attempt: u64) -> Result<TaskLease, Error> {
        self.post(&task_path(task_id, "/heartbeat"), &TaskHeartbeatRequest { attempt }).await
    }

    /// Reports the result of a claimed task.
    pub async fn complete_task(&self, task_id: &str, report: &CompleteRequest) -> Result<Task, Error> {
        self.post(&task_path(task_id, "/complete"), report).await
    }

    /// Moves an approved task before all others (admin).
    pub async fn force_apply_task(&self, task_id: &str, reason: &ReasonRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/force-apply"), reason).await
    }

    /// Requests an override of the policies (admin).
    pub async fn override_task(&self, task_id: &str, request: &OverrideRequest) -> Result<Task, Error> {
        self.post_idempotent(&task_path(task_id, "/override"), request).await
    }

    /// Confirms an override as the second administrator.
    pub async fn confirm_override(&self, task_id: &str) -> Result<Task, Error> {
        self.post_empty(&task_path(task_id, "/override/confirm")).await
    }

    /// Creates a new draft from a task that was rejected or failed.
    pub async fn resubmit_task(&self, task_id: &str) -> Result<Task, Error> {
        self.post_empty(&task_path(task_id, "/resubmit")).await
    }

    /// Comments on a task.
    pub async fn create_comment(&self, task_id: &str, text: &str) -> Result<Comment, Error> {
        self.post_idempotent(&task_path(task_id, "/comments"), &CommentRequest { text: text.to_owned() })
            .await
    }

    /// Lists the comments on a task. Filters: `limit`, `cursor`.
    pub async fn comments(&self, task_id: &str, filters: &[(&str, &str)]) -> Result<Page<Comment>, Error> {
        self.get(&task_path(task_id, "/comments"), filters).await
    }

    /// Gets the preview of a task.
    pub async fn task_preview(&self, task_id: &str) -> Result<Preview, Error> {
        self.get(&task_path(task_id, "/preview"), &[]).await
    }

    /// Gets the risk of a task.
    pub async fn task_risk(&self, task_id: &str) -> Result<Risk, Error> {
        self.get(&task_path(task_id, "/risk"), &[]).await
    }

    /// Lists the approval requests of a task. Filters: `limit`, `cursor`.
    pub async fn task_approvals(
        &self,
        task_id: &str,
        filters: &[(&str, &str)],
    ) -> Result<Page<Approval>, Error> {
        self.get(&task_path(task_id, "/approvals"), filters).await
    }

    /// Gets the review statistics of a task.
    pub async fn task_stats(&self, task_id: &str) -> Result<TaskStats, Error> {
        self.get(&task_path(task_id, "/stats"), &[]).await
    }

    /// Lists the audit entries of a task. Filters: `limit`, `cursor`.
    pub async fn task_audit(
        &self,
        task_id: &str,
        filters: &[(&str, &str)],
    ) -> Result<Page<AuditEntry>, Error> {
        self.get(&task_path(task_id, "/audit"), filters).await
    }

    /// Lists approval requests, highest score first. Filters: `reviewer` (`me` for the caller), `status`, `limit`,
    /// `cursor`.
    pub async fn approvals(&self, filters: &[(&str, &str)]) -> Result<Page<Approval>, Error> {
        self.get("/approvals", filters).await
    }

    /// Gets an approval request.
    pub async fn approval(&self, approval_id: &str) -> Result<Approval, Error> {
        self.get(&approval_path(approval_id, ""), &[]).await
    }

    /// Approves a task. Fails with `DIGEST_MISMATCH` if the task is not the one that was reviewed.
    pub async fn approve(&self, approval_id: &str, decision: &DecisionRequest) -> Result<Approval, Error> {
        self.post_idempotent(&approval_path(approval_id, "/approve"), decision).await
    }

    /// Rejects a task. A reason is required.
    pub async fn reject(&self, approval_id: &str, decision: &DecisionRequest) -> Result<Approval, Error> {
        self.post_idempotent(&approval_path(approval_id, "/reject"), decision).await
    }

    /// Requests changes of a task. A reason is required.
    pub async fn request_changes(
        &self,
        approval_id: &str,
        decision: &DecisionRequest,
    ) -> Result<Approval, Error> {
        self.post_idempotent(&approval_path(approval_id, "/request-changes"), decision).await
    }

    /// Delegates an approval request to another user.
    pub async fn delegate_approval(&self, approval_id: &str, to: &str) -> Result<Approval, Error> {
        self.post_idempotent(&approval_path(approval_id, "/delegate"), &DelegateRequest { to: to.to_owned() })
            .await
    }

    /// Makes the same decision on many approval requests: all succeed, or none is changed. The problem lists the
    /// refused ones.
    pub async fn decide_batch(&self, batch: &BatchRequest) -> Result<BatchResponse, Error> {
        self.post_idempotent("/approvals/batch", batch).await
    }
}

fn task_path(task_id: &str, rest: &str) -> String {
    format!("/tasks/{}{rest}", segment(task_id))
}

fn approval_path(approval_id: &str, rest: &str) -> String {
    format!("/approvals/{}{rest}", segment(approval_id))
}
