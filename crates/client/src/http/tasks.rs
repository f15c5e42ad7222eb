//! Tasks, and the requests to decide about them.

use ade_domain::task::Preview;
use reqwest::Method;

use super::{Client, segment};
use crate::Error;
use crate::wire::{
    Approval, AuditEntry, BatchAnswer, BatchRequest, Comment, CommentRequest, DelegateRequest,
    OverrideRequest, Page, Reason, ResponseRequest, Risk, Task, TaskRequest, TaskStats,
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
