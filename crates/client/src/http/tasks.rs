//! Tasks, and the requests to decide about them.

use std::time::Duration;

use ade_domain::task::Preview;
use reqwest::Method;

use super::{Client, segment};
use crate::Error;
use crate::wire::{
    Alive, Approval, AttemptRequest, AuditEntry, BatchAnswer, BatchRequest, Claim, ClaimRequest, Comment,
    CommentRequest, CompleteRequest, DelegateRequest, Execution, LogLine, OverrideRequest, Page, Reason,
    ResponseRequest, Risk, Task, TaskRequest, TaskStats,
};

impl Client {
    /// Tasks, the newest first. Filters are `state`, `author`, `resource`, `tag`, `type`, `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn tasks(&self, filters: &[(&str, &str)]) -> Result<Page<Task>, Error> {
        self.get("/tasks", filters).await
    }

    /// One task.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn task(&self, task_id: &str) -> Result<Task, Error> {
        self.get(&task_path(task_id, ""), &[]).await
    }

    /// Makes a draft.
    ///
    /// # Errors
    /// Something about it cannot be.
    pub async fn make_task(&self, task: &TaskRequest) -> Result<Task, Error> {
        self.make("/tasks", task).await
    }

    /// Changes a task, if it still has this revision.
    ///
    /// # Errors
    /// It was changed meanwhile, or cannot be any more.
    pub async fn change_task(
        &self,
        task_id: &str,
        revision: Option<u64>,
        patch: &TaskRequest,
    ) -> Result<Task, Error> {
        self.change(Method::PATCH, &task_path(task_id, ""), revision, patch).await
    }

    /// Deletes a draft.
    ///
    /// # Errors
    /// It is none any more.
    pub async fn delete_task(&self, task_id: &str) -> Result<(), Error> {
        self.remove(&task_path(task_id, ""), None).await
    }

    /// Wants a draft decided.
    ///
    /// # Errors
    /// Nobody could decide it, or it is no draft.
    pub async fn submit_task(&self, task_id: &str) -> Result<Task, Error> {
        self.make_bare(&task_path(task_id, "/submit")).await
    }

    /// Gives a task up.
    ///
    /// # Errors
    /// It is too late.
    pub async fn cancel_task(&self, task_id: &str, reason: &Reason) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/cancel"), reason).await
    }

    /// Takes an approval back before anything was done.
    ///
    /// # Errors
    /// It is too late, or the caller did not approve it.
    pub async fn revoke_task(&self, task_id: &str, reason: &Reason) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/revoke"), reason).await
    }

    /// Stops a task that is carried out.
    ///
    /// # Errors
    /// Nothing is carried out, or the caller may not.
    pub async fn stop_task(&self, task_id: &str, reason: &Reason) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/stop"), reason).await
    }

    /// Wants undone what a failed task left behind.
    ///
    /// # Errors
    /// There is nothing to undo, or the caller may not.
    pub async fn roll_back_task(&self, task_id: &str, reason: &Reason) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/rollback"), reason).await
    }

    /// What was said while a task was carried out, after the line with this number.
    ///
    /// # Errors
    /// The caller may not see the task.
    pub async fn task_logs(&self, task_id: &str, after: u64) -> Result<Page<LogLine>, Error> {
        self.get(&task_path(task_id, "/logs"), &[("after", after.to_string().as_str())]).await
    }

    /// How carrying a task out stands.
    ///
    /// # Errors
    /// Nobody began to.
    pub async fn execution(&self, task_id: &str) -> Result<Execution, Error> {
        self.get(&task_path(task_id, "/execution"), &[]).await
    }

    /// Asks for work as an agent; nothing, if there is none.
    ///
    /// # Errors
    /// The caller may not act for the agent.
    pub async fn claim_task(&self, request: &ClaimRequest) -> Result<Option<Claim>, Error> {
        let waits = Duration::try_from_secs_f64(request.wait_seconds.unwrap_or_default());
        self.make_or_nothing("/tasks/claim", request, waits.unwrap_or_default()).await
    }

    /// Says that an agent is alive.
    ///
    /// # Errors
    /// Its attempt does not count any more.
    pub async fn task_heartbeat(&self, task_id: &str, attempt: u64) -> Result<Alive, Error> {
        self.post(&task_path(task_id, "/heartbeat"), &AttemptRequest { attempt }).await
    }

    /// Says how a task ended.
    ///
    /// # Errors
    /// Its attempt does not count any more.
    pub async fn complete_task(&self, task_id: &str, report: &CompleteRequest) -> Result<Task, Error> {
        self.post(&task_path(task_id, "/complete"), report).await
    }

    /// Puts an approved task before all others (admin).
    ///
    /// # Errors
    /// It is not approved, or the caller may not.
    pub async fn force_task(&self, task_id: &str, reason: &Reason) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/force-apply"), reason).await
    }

    /// Asks for a decision past the policies (admin).
    ///
    /// # Errors
    /// It is not being reviewed, or the caller may not.
    pub async fn override_task(&self, task_id: &str, request: &OverrideRequest) -> Result<Task, Error> {
        self.make(&task_path(task_id, "/override"), request).await
    }

    /// Agrees to an override as the second administrator.
    ///
    /// # Errors
    /// Nobody asked for one, or the caller may not.
    pub async fn confirm_override(&self, task_id: &str) -> Result<Task, Error> {
        self.make_bare(&task_path(task_id, "/override/confirm")).await
    }

    /// Makes a new draft of a task that was rejected or failed.
    ///
    /// # Errors
    /// It was neither.
    pub async fn resubmit_task(&self, task_id: &str) -> Result<Task, Error> {
        self.make_bare(&task_path(task_id, "/resubmit")).await
    }

    /// Says something about a task.
    ///
    /// # Errors
    /// Nothing is said about it any more.
    pub async fn comment(&self, task_id: &str, text: &str) -> Result<Comment, Error> {
        self.make(&task_path(task_id, "/comments"), &CommentRequest { text: text.to_owned() }).await
    }

    /// What was said about a task. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn comments(&self, task_id: &str, filters: &[(&str, &str)]) -> Result<Page<Comment>, Error> {
        self.get(&task_path(task_id, "/comments"), filters).await
    }

    /// What a task would change.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn preview(&self, task_id: &str) -> Result<Preview, Error> {
        self.get(&task_path(task_id, "/preview"), &[]).await
    }

    /// How dangerous a task is.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn risk(&self, task_id: &str) -> Result<Risk, Error> {
        self.get(&task_path(task_id, "/risk"), &[]).await
    }

    /// Who was asked about a task. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn task_approvals(
        &self,
        task_id: &str,
        filters: &[(&str, &str)],
    ) -> Result<Page<Approval>, Error> {
        self.get(&task_path(task_id, "/approvals"), filters).await
    }

    /// How long a task took on its way.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn task_stats(&self, task_id: &str) -> Result<TaskStats, Error> {
        self.get(&task_path(task_id, "/stats"), &[]).await
    }

    /// What was done about a task. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// There is no such task, or the caller may not see it.
    pub async fn task_audit(
        &self,
        task_id: &str,
        filters: &[(&str, &str)],
    ) -> Result<Page<AuditEntry>, Error> {
        self.get(&task_path(task_id, "/audit"), filters).await
    }

    /// Requests, the highest score first. Filters are `reviewer` (`me` for the caller), `status`, `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong.
    pub async fn approvals(&self, filters: &[(&str, &str)]) -> Result<Page<Approval>, Error> {
        self.get("/approvals", filters).await
    }

    /// One request.
    ///
    /// # Errors
    /// There is no such request, or the caller may not see it.
    pub async fn approval(&self, approval_id: &str) -> Result<Approval, Error> {
        self.get(&approval_path(approval_id, ""), &[]).await
    }

    /// Says yes.
    ///
    /// # Errors
    /// The task is not what was looked at, was decided already, or is the caller's own.
    pub async fn approve(&self, approval_id: &str, answer: &ResponseRequest) -> Result<Approval, Error> {
        self.make(&approval_path(approval_id, "/approve"), answer).await
    }

    /// Says no.
    ///
    /// # Errors
    /// There is no reason, or the task was decided already.
    pub async fn reject(&self, approval_id: &str, answer: &ResponseRequest) -> Result<Approval, Error> {
        self.make(&approval_path(approval_id, "/reject"), answer).await
    }

    /// Says: not like this.
    ///
    /// # Errors
    /// There is no reason, or the task was decided already.
    pub async fn request_changes(
        &self,
        approval_id: &str,
        answer: &ResponseRequest,
    ) -> Result<Approval, Error> {
        self.make(&approval_path(approval_id, "/request-changes"), answer).await
    }

    /// Hands a request on.
    ///
    /// # Errors
    /// The other one cannot decide, or the caller may not.
    pub async fn delegate(&self, approval_id: &str, to: &str) -> Result<Approval, Error> {
        self.make(&approval_path(approval_id, "/delegate"), &DelegateRequest { to: to.to_owned() }).await
    }

    /// Answers many requests the same way: all of them, or none.
    ///
    /// # Errors
    /// One of them cannot be answered so; the problem says which.
    pub async fn answer_all(&self, batch: &BatchRequest) -> Result<BatchAnswer, Error> {
        self.make("/approvals/batch", batch).await
    }
}

fn task_path(task_id: &str, rest: &str) -> String {
    format!("/tasks/{}{rest}", segment(task_id))
}

fn approval_path(approval_id: &str, rest: &str) -> String {
    format!("/approvals/{}{rest}", segment(approval_id))
}
