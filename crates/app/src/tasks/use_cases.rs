//! What people and agents do to tasks, one by one.

use ade_domain::approval::DecisionKind;
use ade_domain::people::UserId;
use ade_domain::permission::{Permission, Scope, is_permitted};
use ade_domain::task::{Config, Digest, Metadata, Preview, TaskCommand};
use ade_domain::task::{Decision, Refusal, Task};
use ade_store::database::{Commit, StoredTask, Write};

use crate::{Caller, Error};

use super::facts::{Facts, Seen};
use super::{About, MOST_ATTEMPTS, TaskService, new_id};

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
    pub action: DecisionKind,
    /// Why.
    pub reason: Option<String>,
    /// For what exactly, if the caller says so.
    pub digest: Option<Digest>,
}

/// What is done to a task as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskAction {
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

impl TaskAction {
    const fn verb(&self) -> TaskCommand {
        match self {
            Self::Revoke { .. } => TaskCommand::Revoke,
            Self::Cancel { .. } => TaskCommand::Cancel,
            Self::AskOverride { .. } => TaskCommand::Override,
            Self::ConfirmOverride => TaskCommand::ConfirmOverride,
            Self::ForceApply { .. } => TaskCommand::ForceApply,
        }
    }
}

pub(super) fn checked(config: &Config) -> Result<Digest, Error> {
    let faults = config.faults();
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    config.digest().map_err(|fault| Error::Invalid(vec![fault]))
}

impl TaskService {
    /// A new draft, with its risk.
    pub async fn create(&self, draft: Draft, caller: &Caller) -> Result<StoredTask, Error> {
        let facts = self.facts(&draft.config.task_type).await?;
        self.create_by(&facts, draft, caller).await
    }

    /// The same by facts of its type that are loaded already.
    pub(crate) async fn create_by(
        &self,
        facts: &Facts,
        draft: Draft,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require(Scope::Propose)?;
        let actor = caller.actor();
        let author = actor.user.clone().ok_or(Refusal::Forbidden)?;
        if !is_permitted(&actor.parts, Permission::CreateTask) {
            return Err(Refusal::Forbidden.into());
        }
        let Draft { config, metadata, preview, predecessor } = draft;
        let (digest, task_id) = (checked(&config)?, new_id());
        let preview = self.look_ahead(&config, preview).await?;
        let lock_preview = self.lock_preview(&config, Some(&task_id)).await;
        let now = self.clock.now();
        let authors = self.authors(&metadata.lineage, caller).await?;
        let draft = Task::draft(task_id.as_str(), config, digest, author, authors, now);
        let mut task: StoredTask = Task { metadata, preview, predecessor, lock_preview, ..draft }.into();
        task.by_agent = caller.agent_id.is_some() || task.metadata.lineage.agent_id.is_some();
        let risk = facts.risk(&task.config, &task.preview);
        let alone = facts.approves_alone(&task, Seen::of(risk.score, &task.preview), now);
        task.assess(risk, alone, now);
        let mut commit = Commit::default();
        self.add(&mut commit, None, &mut task, Some(caller), now).await?;
        About::task(&task_id, caller).keep(&mut commit, &task, now);
        if self.commit(commit).await? { Ok(task) } else { Err(Error::Overtaken) }
    }

    /// A task that the caller may see.
    pub async fn task(&self, task_id: &str, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require(Scope::Read)?;
        self.visible(task_id, Some(caller)).await
    }

    /// The author wants it decided.
    pub async fn submit(&self, task_id: &str, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require_for(TaskCommand::Submit)?;
        let about = About::task(task_id, caller);
        for _ in 0..MOST_ATTEMPTS {
            let mut task = self.with_preview(about).await?;
            let (seen, config, mut ids) = (task.revision, task.config.clone(), new_id);
            let facts = self.facts(&config.task_type).await?;
            let lock_preview = self.lock_preview(&config, Some(task_id)).await;
            let now = self.clock.now();
            let plan = facts.plan(&task.task, &config, &task.preview, &mut ids, now);
            task.submit(plan, &caller.actor(), now)?;
            task.lock_preview = lock_preview;
            if let Some(task) = self.finish(about, seen, task, now).await? {
                return Ok(task);
            }
        }
        Err(Error::Overtaken)
    }

    /// The author changes it.
    pub async fn modify(
        &self,
        task_id: &str,
        change: impl Fn(&StoredTask) -> Result<(Config, Metadata, Preview), Error>,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require_for(TaskCommand::Modify)?;
        let about = About::task(task_id, caller);
        for _ in 0..MOST_ATTEMPTS {
            let mut task = self.load(about).await?;
            let seen = task.revision;
            let (config, metadata, preview) = change(&task)?;
            let (digest, mut ids) = (checked(&config)?, new_id);
            let preview = self.look_ahead(&config, preview).await?;
            let facts = self.facts(&config.task_type).await?;
            let lock_preview = self.lock_preview(&config, Some(task_id)).await;
            let now = self.clock.now();
            let mut review = task.task.clone();
            let sponsors = self.sponsors(&metadata.lineage).await?;
            review.author_set = task
                .author_set_after_edit(&metadata.lineage, &sponsors, &caller.actor())
                .map_err(|invalid| Error::Invalid(vec![invalid]))?;
            let plan = facts.plan(&review, &config, &preview, &mut ids, now);
            task.modify(config, digest, plan, &caller.actor(), now)?;
            task.author_set = review.author_set;
            (task.metadata, task.preview, task.lock_preview) = (metadata, preview, lock_preview);
            if let Some(task) = self.finish(about, seen, task, now).await? {
                return Ok(task);
            }
        }
        Err(Error::Overtaken)
    }

    /// The author deletes a draft.
    pub async fn delete(&self, task_id: &str, caller: &Caller) -> Result<(), Error> {
        caller.require_for(TaskCommand::Delete)?;
        let (about, actor) = (About::task(task_id, caller), caller.actor());
        for _ in 0..MOST_ATTEMPTS {
            let task = self.load(about).await?;
            let happened = task.delete(&actor)?;
            let write = Write::DeleteTask { task_id: task_id.to_owned(), expected: task.revision };
            let now = self.clock.now();
            let audit = vec![super::audit(&task, &happened, Some(caller), now)];
            let events = vec![super::event(&task, &happened, now)];
            let mut commit = Commit { writes: vec![write], audit, events, ..Commit::default() };
            about.keep(&mut commit, &task, now);
            if self.commit(commit).await? {
                return Ok(());
            }
        }
        Err(Error::Overtaken)
    }

    /// A reviewer answers, or an administrator in its place.
    pub async fn respond(
        &self,
        approval_id: &str,
        response: &Response,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require_for(TaskCommand::Approve)?;
        let about = About::request(approval_id, caller);
        self.change(about, |task, now| {
            Ok(task.respond(&answer(approval_id, response), &caller.actor(), now)?)
        })
        .await
        .map_err(of_request)
    }

    pub(super) async fn task_of(&self, approval_id: &str) -> Result<String, Error> {
        let is_id = uuid::Uuid::parse_str(approval_id).is_ok();
        let found = if is_id { self.record.task_of_approval(approval_id).await? } else { None };
        found.ok_or(Error::NotFound("approval"))
    }

    /// A reviewer hands one request on.
    pub async fn delegate(
        &self,
        approval_id: &str,
        to: &UserId,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        caller.require(Scope::Decide)?;
        let about = About::request(approval_id, caller);
        let known = self.kept.now(&self.record).await?;
        self.change(about, |task, now| {
            Ok(task.delegate(approval_id, to, &known.people, new_id(), &caller.actor(), now)?)
        })
        .await
        .map_err(of_request)
    }

    /// What is done to a task as a whole.
    pub async fn act(&self, task_id: &str, deed: &TaskAction, caller: &Caller) -> Result<StoredTask, Error> {
        caller.require_for(deed.verb())?;
        self.change(About::task(task_id, caller), |task, now| {
            let (review, actor) = (&mut task.task, caller.actor());
            Ok(match deed {
                TaskAction::Revoke { reason } => review.revoke(reason.as_deref(), &actor, now),
                TaskAction::Cancel { reason } => review.cancel(reason.as_deref(), &actor, now),
                TaskAction::AskOverride { reason, incident_ticket } => {
                    review.ask_override(reason.as_deref(), incident_ticket.as_deref(), &actor, now)
                }
                TaskAction::ConfirmOverride => review.confirm_override(&actor, now),
                TaskAction::ForceApply { reason } => review.force_apply(reason.as_deref(), &actor, now),
            }?)
        })
        .await
    }
}

/// A request about a task that the caller may not see is not there either.
pub(super) fn of_request(error: Error) -> Error {
    if matches!(error, Error::NotFound(_)) { Error::NotFound("approval") } else { error }
}

pub(super) fn answer<'a>(approval_id: &'a str, response: &'a Response) -> Decision<'a> {
    let Response { action, reason, digest } = response;
    Decision { approval_id, action: *action, reason: reason.as_deref(), digest: *digest }
}
