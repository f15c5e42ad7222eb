//! Comments on tasks, and resubmission of tasks that were rejected or failed.

use ade_domain::task::{Refusal, Task, TaskCommand};
use ade_store::database::{Comment, Commit, StoredTask, Write};
use serde_json::Value;

use super::{Target, TaskService};
use crate::events::record;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome, Result, new_id};

const MAX_COMMENT_BYTES: usize = 16_384;

impl TaskService {
    /// Adds a comment of somebody who takes part in the review; auditors only read. The task itself stays as it is, revision
    /// included. It is written back with its revision, so that the comment fails if the task has left the states that allow one.
    pub async fn comment(&self, task_id: &str, text: &str, caller: &Caller) -> Result<Comment> {
        caller.require_scopes_for(TaskCommand::Comment)?;
        let author = caller.actor().user.ok_or(Refusal::Forbidden)?;
        if text.trim().is_empty() || text.len() > MAX_COMMENT_BYTES {
            let detail = format!("must not be empty, and have at most {MAX_COMMENT_BYTES} bytes");
            return Err(Error::invalid("text", detail));
        }
        retry_on_conflict(async || {
            let target = Target::Task(task_id, caller);
            let (task, now) = (self.load(target).await?, self.context.now());
            let commented = task.comment(&caller.actor());
            let transition = commented.map_err(|error| target.explain(error.into(), &task, now))?;
            let comment = Comment {
                comment_id: new_id(),
                task_id: task_id.to_owned(),
                author_id: author.clone(),
                agent_id: caller.agent_id.clone(),
                text: text.to_owned(),
                created_at: now,
            };
            let mut entry = self.audit(&task, &transition, caller, now);
            entry.details.insert("comment_id".to_owned(), Value::from(comment.comment_id.as_str()));
            let mut commit = Commit::default();
            record(&mut commit, entry, transition.notify);
            let expected = Some(task.revision);
            commit.writes.push(Write::Task { task: Box::new(task), expected, at: now });
            commit.writes.push(Write::Comment(comment.clone()));
            commit.response = stored_response(caller, |_| Outcome::Comment(comment.clone()))?;
            Ok(self.commit(commit).await?.then_some(comment))
        })
        .await
    }

    /// The comments on a task, in order.
    pub async fn comments(&self, task_id: &str, caller: &Caller) -> Result<Vec<Comment>> {
        let task = self.task(task_id, caller).await?;
        Ok(self.context.database.comments(&task.task_id).await?)
    }

    /// Creates a new draft of a rejected or failed task, by one of its authors. The authors of the old task are authors of the new
    /// one, which is returned.
    pub async fn resubmit(&self, task_id: &str, caller: &Caller) -> Result<StoredTask> {
        caller.require_scopes_for(TaskCommand::Resubmit)?;
        let target = Target::Task(task_id, caller);
        let (actor, copy_id) = (caller.actor(), new_id());
        retry_on_conflict(async || {
            let mut old = self.load(target).await?;
            target.authorize_preview(&old, TaskCommand::Resubmit, self.context.now())?;
            let (revision, config) = (old.revision, old.config.clone());
            let planner = self.review_planner(&config).await?;
            let scope = planner.scope_for(&config, caller)?;
            let lock_preview = self.lock_preview(&config, &scope, Some(&copy_id)).await;
            let sponsors = self.sponsors(&old.metadata.lineage).await?;
            let now = self.context.now();
            let resubmitted = old.resubmit(&actor, now);
            let author = resubmitted.map_err(|error| target.explain(error.into(), &old, now))?;
            let mut metadata = old.metadata.clone();
            if let Some(user) = &caller.user {
                metadata.author_name.clone_from(&user.name);
            }
            let authors = old.author_set_for_resubmission(&sponsors, &actor);
            let digest = old.digest;
            let draft = Task::draft(copy_id.as_str(), config, digest, author, authors, now);
            let (preview, predecessor) = (old.preview.clone(), Some(task_id.to_owned()));
            let by_agent = old.by_agent.clone();
            let mut draft = Task { metadata, preview, predecessor, by_agent, lock_preview, ..draft };
            draft.set_scope(scope);
            let mut copy = Self::new_draft(&planner, draft, caller, now);
            let mut commit = Commit::default();
            self.add_task(&mut commit, Some(revision), &mut old, caller, now).await?;
            self.add_task(&mut commit, None, &mut copy, caller, now).await?;
            target.add_response(&mut commit, &copy)?;
            Ok(self.commit(commit).await?.then_some(copy))
        })
        .await
    }
}
