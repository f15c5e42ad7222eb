//! What people and agents do to tasks, one by one.

use ade_domain::people::UserId;
use ade_domain::permission::{Act, Scope, may};
use ade_domain::review::{Action, Answer, Refusal, Review};
use ade_domain::task::{Config, Digest, Metadata, Preview, Verb, next};
use ade_store::record::{Commit, StoredTask, Write};

use crate::{Caller, Error};

use super::{Reviews, new_id};

/// A task that somebody wants to make.
#[derive(Debug, Clone)]
pub struct Draft {
    /// What is to be done.
    pub config: Config,
    /// What is said about it besides.
    pub metadata: Metadata,
    /// What it would change.
    pub preview: Preview,
    /// The task that it is made of.
    pub predecessor: Option<String>,
}

/// An answer to a request.
#[derive(Debug, Clone)]
pub struct Response {
    /// Yes, no, or not like this.
    pub action: Action,
    /// Why.
    pub reason: Option<String>,
    /// For what exactly, if the caller says so.
    pub digest: Option<Digest>,
}

/// What is done to a task as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// An approval is taken back before anything was done.
    Revoke {
        /// Why.
        reason: Option<String>,
    },
    /// It is given up.
    Cancel {
        /// Why.
        reason: Option<String>,
    },
    /// An administrator asks for a decision past the policies.
    AskOverride {
        /// Why.
        reason: Option<String>,
        /// For which incident.
        incident_ticket: Option<String>,
    },
    /// A second administrator agrees.
    ConfirmOverride,
    /// An administrator puts it before all others.
    ForceApply {
        /// Why.
        reason: Option<String>,
    },
}

pub(super) fn checked(config: &Config) -> Result<Digest, Error> {
    let faults = config.faults();
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    config.digest().map_err(|fault| Error::Invalid(vec![fault]))
}

impl Reviews {
    /// A new draft, with its risk.
    ///
    /// # Errors
    /// The caller may not, or what it wants cannot be.
    pub async fn create(&self, draft: Draft, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require(Scope::Propose)?;
        let actor = caller.actor();
        let author = actor.user.clone().ok_or(Refusal::Forbidden)?;
        if !may(&actor.parts, Act::CreateTask) {
            return Err(Refusal::Forbidden.into());
        }
        let Draft { config, metadata, preview, predecessor } = draft;
        let digest = checked(&config)?;
        let facts = self.facts(&config.task_type).await?;
        let now = self.clock.now();
        let authors = caller.authors(&metadata.lineage);
        let mut review = Review::draft(new_id(), config, digest, author, authors, now);
        review.risk = Some(facts.risk(&review.config, &preview));
        let mut task = StoredTask { review, metadata, preview, predecessor };
        let mut commit = Commit::default();
        self.add(&mut commit, None, &mut task, Some(caller), now);
        self.record.commit(commit).await?;
        Ok(task)
    }

    /// A task that the caller may see.
    ///
    /// # Errors
    /// There is none.
    pub async fn task(&self, task_id: &str, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require(Scope::Read)?;
        self.visible(task_id, Some(caller)).await
    }

    /// The author wants it decided.
    ///
    /// # Errors
    /// It may not, or nobody could decide.
    pub async fn submit(&self, task_id: &str, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require(Scope::Propose)?;
        let due_after_ms = self.rules.due_after_ms;
        self.change(task_id, Some(caller), |task, facts, now| {
            let (config, mut ids) = (task.review.config.clone(), new_id);
            let plan = facts.plan(&task.review, &config, &task.preview, due_after_ms, &mut ids, now);
            Ok(task.review.submit(plan, &caller.actor(), now)?)
        })
        .await
    }

    /// The author changes it.
    ///
    /// # Errors
    /// It may not, it is too late, or what it wants cannot be.
    pub async fn modify(
        &self,
        task_id: &str,
        change: impl Fn(&StoredTask) -> (Config, Metadata, Preview),
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require(Scope::Propose)?;
        let due_after_ms = self.rules.due_after_ms;
        self.change(task_id, Some(caller), |task, facts, now| {
            let (config, metadata, preview) = change(task);
            let (digest, mut ids) = (checked(&config)?, new_id);
            let plan = facts.plan(&task.review, &config, &preview, due_after_ms, &mut ids, now);
            task.review.modify(config, digest, plan, &caller.actor(), now)?;
            (task.metadata, task.preview) = (metadata, preview);
            Ok(())
        })
        .await
    }

    /// The author deletes a draft.
    ///
    /// # Errors
    /// It may not, or it is no draft any more.
    pub async fn delete(&self, task_id: &str, caller: &Caller) -> Result<(), Error> {
        caller.require(Scope::Propose)?;
        let task = self.visible(task_id, Some(caller)).await?;
        next(task.review.state, Verb::Delete).map_err(Refusal::from)?;
        let actor = caller.actor();
        let own = actor.user.as_ref().is_some_and(|who| task.review.author_set.contains(who));
        if !own || !may(&actor.parts, Act::CreateTask) {
            return Err(Refusal::Forbidden.into());
        }
        let write = Write::DeleteTask { task_id: task_id.to_owned(), expected: task.review.revision };
        let now = self.clock.now();
        let happened = ade_domain::review::Record {
            action: "task.delete".to_owned(),
            actor: actor.user,
            from: task.review.state,
            to: task.review.state,
            approval_id: None,
            reason: None,
            ticket: None,
            tell: Vec::new(),
        };
        let audit = vec![super::audit(&task, &happened, Some(caller), now)];
        let events = vec![super::event(&task, &happened, now)];
        Ok(self.record.commit(Commit { writes: vec![write], audit, events, ..Commit::default() }).await?)
    }

    /// A reviewer answers, or an administrator in its place.
    ///
    /// # Errors
    /// It may not, or there is nothing to be answered like this.
    pub async fn respond(
        &self,
        approval_id: &str,
        response: &Response,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require(Scope::Decide)?;
        let task_id = self.task_of(approval_id).await?;
        self.change(&task_id, Some(caller), |task, _, now| {
            Ok(task.review.respond(&answer(approval_id, response), &caller.actor(), now)?)
        })
        .await
    }

    pub(super) async fn task_of(&self, approval_id: &str) -> Result<String, Error> {
        let is_id = uuid::Uuid::parse_str(approval_id).is_ok();
        let found = if is_id { self.record.task_of_approval(approval_id).await? } else { None };
        found.ok_or(Error::NotFound("approval"))
    }

    /// A reviewer hands one request on.
    ///
    /// # Errors
    /// It was not asked, or whom it names cannot decide.
    pub async fn delegate(
        &self,
        approval_id: &str,
        to: &UserId,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require(Scope::Decide)?;
        let task_id = self.task_of(approval_id).await?;
        self.change(&task_id, Some(caller), |task, facts, now| {
            Ok(task.review.delegate(approval_id, to, &facts.people, new_id(), &caller.actor(), now)?)
        })
        .await
    }

    /// What is done to a task as a whole.
    ///
    /// # Errors
    /// The caller may not, or it cannot be done now.
    pub async fn act(&self, task_id: &str, deed: &Deed, caller: &Caller) -> Result<StoredTask, Error> {
        let is_authors = matches!(deed, Deed::Cancel { .. });
        caller.require(if is_authors { Scope::Propose } else { Scope::Decide })?;
        self.change(task_id, Some(caller), |task, _, now| {
            let (review, actor) = (&mut task.review, caller.actor());
            Ok(match deed {
                Deed::Revoke { reason } => review.revoke(reason.as_deref(), &actor, now),
                Deed::Cancel { reason } => review.cancel(reason.as_deref(), &actor, now),
                Deed::AskOverride { reason, incident_ticket } => {
                    review.ask_override(reason.as_deref(), incident_ticket.as_deref(), &actor, now)
                }
                Deed::ConfirmOverride => review.confirm_override(&actor, now),
                Deed::ForceApply { reason } => review.force_apply(reason.as_deref(), &actor, now),
            }?)
        })
        .await
    }
}

pub(super) fn answer<'a>(approval_id: &'a str, response: &'a Response) -> Answer<'a> {
    let Response { action, reason, digest } = response;
    Answer { approval_id, action: *action, reason: reason.as_deref(), digest: *digest }
}
