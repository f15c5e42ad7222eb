//! What people say about tasks, and tasks that are made of others which ended badly.

use ade_domain::task::{Refusal, Task, TaskCommand};
use ade_store::database::{Comment, Commit, StoredTask, Write};
use serde_json::Value;

use super::facts::Seen;
use super::{About, MOST_ATTEMPTS, TaskService, audit, event, new_id};
use crate::{Caller, Error, Outcome};

/// Bytes of a comment.
const LONGEST: usize = 16_384;

impl TaskService {
    /// Somebody who takes part in a task says something about it: auditors look, and leave it as it is. The task stays as it is, revision included; it is written back as it
    /// was seen, so that nothing is said about one that has left the states in which it may be.
    pub async fn comment(&self, task_id: &str, text: &str, caller: &Caller) -> Result<Comment, Error> {
        caller.require_for(TaskCommand::Comment)?;
        let author = caller.actor().user.ok_or(Refusal::Forbidden)?;
        if text.trim().is_empty() || text.len() > LONGEST {
            return Err(Error::invalid("/text", format!("must say something, in at most {LONGEST} bytes")));
        }
        for _ in 0..MOST_ATTEMPTS {
            let task = self.load(About::task(task_id, caller)).await?;
            let happened = task.comment(&caller.actor())?;
            let now = self.clock.now();
            let comment = Comment {
                comment_id: new_id(),
                task_id: task_id.to_owned(),
                author_id: author.clone(),
                text: text.to_owned(),
                created_at: now,
            };
            let mut entry = audit(&task, &happened, Some(caller), now);
            entry.details.insert("comment_id".to_owned(), Value::from(comment.comment_id.as_str()));
            let mut commit = Commit::default();
            commit.audit.push(entry);
            commit.events.push(event(&task, &happened, now));
            let expected = Some(task.revision);
            commit.writes.push(Write::Task { task: Box::new(task), expected, at: now });
            commit.writes.push(Write::Comment(comment.clone()));
            if let Some(keep) = &caller.keep {
                keep.add(&mut commit, Outcome::Comment(&comment), now);
            }
            if self.commit(commit).await? {
                return Ok(comment);
            }
        }
        Err(Error::Overtaken)
    }

    /// What was said about a task, in order.
    pub async fn comments(&self, task_id: &str, caller: &Caller) -> Result<Vec<Comment>, Error> {
        let task = self.task(task_id, caller).await?;
        Ok(self.record.comments(&task.task_id).await?)
    }

    /// A new draft of a task that was rejected or failed, by one of its authors. Nobody who could not decide about the old
    /// one decides about the new one. The answer is the new one.
    pub async fn resubmit(&self, task_id: &str, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require_for(TaskCommand::Resubmit)?;
        let about = About::task(task_id, caller);
        let (actor, copy_id) = (caller.actor(), new_id());
        for _ in 0..MOST_ATTEMPTS {
            let mut old = self.load(about).await?;
            let (seen, config) = (old.revision, old.config.clone());
            let facts = self.facts(&config.task_type).await?;
            let lock_preview = self.lock_preview(&config, Some(&copy_id)).await;
            let sponsors = self.sponsors(&old.metadata.lineage).await?;
            let now = self.clock.now();
            let author = old.resubmit(&actor, now)?;
            let mut metadata = old.metadata.clone();
            if let Some(user) = &caller.user {
                metadata.author_name.clone_from(&user.name);
            }
            let authors = old.author_set_for_resubmission(&sponsors, &actor);
            let digest = old.digest;
            let draft = Task::draft(copy_id.as_str(), config, digest, author, authors, now);
            let (preview, predecessor) = (old.preview.clone(), Some(task_id.to_owned()));
            let mut copy: StoredTask = Task { metadata, preview, predecessor, lock_preview, ..draft }.into();
            copy.by_agent = caller.agent_id.is_some() || copy.metadata.lineage.agent_id.is_some();
            let risk = facts.risk(&copy.config, &copy.preview);
            let alone = facts.approves_alone(&copy, Seen::of(risk.score, &copy.preview), now);
            copy.assess(risk, alone, now);
            let mut commit = Commit::default();
            self.add(&mut commit, Some(seen), &mut old, Some(caller), now).await?;
            self.add(&mut commit, None, &mut copy, Some(caller), now).await?;
            about.keep(&mut commit, &copy, now);
            if self.commit(commit).await? {
                return Ok(copy);
            }
        }
        Err(Error::Overtaken)
    }
}
