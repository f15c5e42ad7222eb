//! Client methods of tasks, executions and approval requests.

use std::time::Duration;

use super::{Client, Result, path, routes};
use crate::wire::{
    Approval, AuditEntry, BatchRequest, BatchResponse, ClaimRequest, Comment, CommentRequest,
    CompleteRequest, DecisionRequest, DelegateRequest, Execution, LogLine, OverrideRequest, Page, Preview,
    ReasonRequest, Risk, Task, TaskClaim, TaskHeartbeatRequest, TaskLease, TaskRequest, TaskStats,
};

routes! {
    /// Lists tasks, newest first. Filters: `state`, `author`, `resource`, `tag`, `type`, `limit`, `cursor`.
    list tasks() "/tasks" => Task;
    /// Gets a task.
    get task(task_id) "/tasks/{}" => Task;
    /// Creates a task in state DRAFT.
    post create_task() "/tasks": TaskRequest => Task;
    /// Updates a task if it has this revision. Earlier decisions become invalid.
    patch update_task(task_id) "/tasks/{}": TaskRequest => Task;
    /// Deletes a draft.
    delete delete_task(task_id) "/tasks/{}" => ();
    /// Submits a draft for review.
    post submit_task(task_id) "/tasks/{}/submit" => Task;
    /// Cancels a task before it is applied.
    post cancel_task(task_id) "/tasks/{}/cancel": ReasonRequest => Task;
    /// Archives a cancelled task at once.
    post archive_task(task_id) "/tasks/{}/archive" => ();
    /// Revokes the caller's approval before the task is applied.
    post revoke_approval(task_id) "/tasks/{}/revoke": ReasonRequest => Task;
    /// Stops a task that is being applied (admin).
    post stop_task(task_id) "/tasks/{}/stop": ReasonRequest => Task;
    /// Rolls back the changes of a failed task (admin).
    post roll_back_task(task_id) "/tasks/{}/rollback": ReasonRequest => Task;
    /// Gets the current or last execution of a task.
    get task_execution(task_id) "/tasks/{}/execution" => Execution;
    /// Reports the result of a claimed task.
    send complete_task(task_id) "/tasks/{}/complete": CompleteRequest => Task;
    /// Moves an approved task before all others (admin).
    post force_apply_task(task_id) "/tasks/{}/force-apply": ReasonRequest => Task;
    /// Requests an override of the policies (admin).
    post override_task(task_id) "/tasks/{}/override": OverrideRequest => Task;
    /// Confirms an override as the second administrator, of the task at this revision. From level MEDIUM on, the server asks for it.
    post_at confirm_override(task_id) "/tasks/{}/override/confirm": DecisionRequest => Task;
    /// Creates a new draft from a task that was rejected or failed.
    post resubmit_task(task_id) "/tasks/{}/resubmit" => Task;
    /// Lists the comments on a task. Filters: `limit`, `cursor`.
    list comments(task_id) "/tasks/{}/comments" => Comment;
    /// Gets the preview of a task.
    get task_preview(task_id) "/tasks/{}/preview" => Preview;
    /// Gets the risk of a task.
    get task_risk(task_id) "/tasks/{}/risk" => Risk;
    /// Lists the approval requests of a task. Filters: `limit`, `cursor`.
    list task_approvals(task_id) "/tasks/{}/approvals" => Approval;
    /// Gets the review statistics of a task.
    get task_stats(task_id) "/tasks/{}/stats" => TaskStats;
    /// Lists the audit entries of a task. Filters: `limit`, `cursor`.
    list task_audit(task_id) "/tasks/{}/audit" => AuditEntry;
    /// Lists approval requests, highest score first. Filters: `reviewer` (`me` for the caller), `status`, `limit`,
    /// `cursor`.
    list approvals() "/approvals" => Approval;
    /// Gets an approval request.
    get approval(approval_id) "/approvals/{}" => Approval;
    /// Approves a task. Fails with `DIGEST_MISMATCH` if the task is not the one that was reviewed.
    post approve(approval_id) "/approvals/{}/approve": DecisionRequest => Approval;
    /// Rejects a task. A reason is required.
    post reject(approval_id) "/approvals/{}/reject": DecisionRequest => Approval;
    /// Requests changes of a task. A reason is required.
    post request_changes(approval_id) "/approvals/{}/request-changes": DecisionRequest => Approval;
    /// Makes the same decision on many approval requests: all succeed, or none is changed. The problem lists the
    /// refused ones.
    post decide_batch() "/approvals/batch": BatchRequest => BatchResponse;
}

impl Client {
    /// Lists the log of an execution, after the line with this number.
    pub async fn task_logs(&self, task_id: &str, after: u64) -> Result<Page<LogLine>> {
        self.get(&path("/tasks/{}/logs", &[task_id]), &[("after", after.to_string().as_str())]).await
    }

    /// Claims a task for an agent. Returns `None` if there is no task for it within the requested wait.
    pub async fn claim_task(&self, request: &ClaimRequest) -> Result<Option<TaskClaim>> {
        let wait = Duration::try_from_secs_f64(request.wait_seconds.unwrap_or_default());
        self.post_optional("/tasks/claim", request, wait.unwrap_or_default()).await
    }

    /// Extends the lease of a claimed task.
    pub async fn task_heartbeat(&self, task_id: &str, attempt: u64) -> Result<TaskLease> {
        self.post(&path("/tasks/{}/heartbeat", &[task_id]), &TaskHeartbeatRequest { attempt }).await
    }

    /// Comments on a task.
    pub async fn create_comment(&self, task_id: &str, text: &str) -> Result<Comment> {
        let comment = CommentRequest { text: text.to_owned() };
        self.post_idempotent(&path("/tasks/{}/comments", &[task_id]), &comment).await
    }

    /// Delegates an approval request to another user.
    pub async fn delegate_approval(&self, approval_id: &str, to: &str) -> Result<Approval> {
        let delegate = DelegateRequest { to: to.to_owned() };
        self.post_idempotent(&path("/approvals/{}/delegate", &[approval_id]), &delegate).await
    }
}
