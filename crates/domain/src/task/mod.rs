//! A task: what is proposed, reviewed and applied, with its lifecycle, approval requests and execution.
//!
//! Each command is a pure function of the task, the actor, facts looked up beforehand, and the time. It changes the task and
//! appends transitions, or refuses and changes nothing. An approval counts only for the digest it was given for, and nobody in
//! the author set decides on any path.

mod agent_work;
mod allowed;
mod apply;
mod archived;
mod authors;
mod comment;
mod config;
mod decide;
mod digest;
mod execution;
mod lifecycle;
mod metadata;
mod reassign;
mod submit;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use apply::{Begin, Follows};
pub use archived::ArchivedApprovals;
pub use config::{AGENT, Config, NOOP, Resource, ResourceMode, RollbackStrategy};
pub use decide::Decision;
pub use digest::Digest;
pub use execution::{
    Asked, Execution, ExecutionResult, Failed, FailureCode, HeldLock, Left, MOST_RETRIES, Output, Phase,
    retry_after_ms,
};
pub use lifecycle::{InvalidTransition, State, TABLE, TaskCommand, allowed, next};
pub use metadata::{ChangeKind, Lineage, LockPreview, Metadata, Preview, PreviewChange, PreviewStatus};
pub use reassign::{MOST_ESCALATIONS, Successor};
pub use submit::Plan;

use crate::Moment;
use crate::approval::assignment::{ConsideredPolicy, QuorumUnreachable};
use crate::approval::quorum::{Progress, Requirement, Vote};
use crate::approval::{Approval, ApprovalStatus};
use crate::people::{AuthorReason, AuthorSet, UserId};
use crate::permission::{ActorRole, Permission, is_permitted};
use crate::risk::Risk;

/// Requests of one task, those included that do not count any more.
pub const MOST_REQUESTS: usize = 1_000;

/// How long the second administrator has to agree to an override.
pub const CONFIRM_WITHIN_MS: u64 = 3_600_000;

/// A task with its review.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// What it is known by.
    pub task_id: String,
    /// How far it has come.
    pub state: State,
    /// Grows with every change.
    pub revision: u64,
    /// What is to be done.
    pub config: Config,
    /// Everything said about it that is not executed: lineage, tags, team.
    pub metadata: Metadata,
    /// What an approval is given for.
    pub digest: Digest,
    pub preview: Preview,
    /// The locks that applying it will take, as they were when it was last created, modified or submitted.
    #[serde(default)]
    pub lock_preview: Vec<LockPreview>,
    /// The task that this one was resubmitted from.
    pub predecessor: Option<String>,
    /// Of which preview.
    pub fingerprint: Option<String>,
    /// Who wants it.
    pub author_id: UserId,
    /// Who can never decide about it.
    pub author_set: AuthorSet,
    /// How dangerous it is.
    pub risk: Option<Risk>,
    /// Whether nobody needs to be asked.
    #[serde(default)]
    pub auto_approvable: bool,
    /// When that was found out.
    #[serde(default)]
    pub assessed_at: Option<Moment>,
    /// What must be satisfied.
    pub requirements: Vec<Requirement>,
    /// Which policies were looked at, and what they have to do with it.
    pub considered: Vec<ConsideredPolicy>,
    /// Who or what was passed by when people were chosen.
    pub passed_by: Vec<String>,
    /// Why nobody had to be asked, if so.
    pub auto_approved: Option<String>,
    /// Who is asked; stored by themselves.
    #[serde(skip)]
    pub approvals: Vec<Approval>,
    /// What is left to be said about requests that are archived; stored by itself, and nothing while they are there.
    #[serde(skip)]
    pub remembered: Option<ArchivedApprovals>,
    /// An administrator wants it decided past its policies.
    pub override_asked: Option<OverrideRequest>,
    /// Why its review began anew the last time.
    #[serde(default)]
    pub reopened: Option<Reopened>,
    /// Whether it goes before all others.
    pub forced: bool,
    /// When its approval expires, while it is approved.
    #[serde(default)]
    pub approval_ends_at: Option<Moment>,
    /// Not before, after an attempt that changed nothing.
    #[serde(default)]
    pub apply_after: Option<Moment>,
    /// How carrying it out stands, once somebody began to.
    #[serde(default)]
    pub execution: Option<Execution>,
    /// Whether an agent proposed it: then its author's roles say nothing for it.
    #[serde(default)]
    pub by_agent: bool,
    /// The least number of approvals that would satisfy all requirements from the beginning.
    #[serde(default)]
    pub required_count: u32,
    /// When it came into each state for the last time.
    pub since: BTreeMap<State, Moment>,
    /// What happened since it was loaded; not part of what is stored with it.
    #[serde(skip)]
    pub transitions: Vec<Transition>,
}

/// Why a review began anew, and what was said before does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reopened {
    /// Why.
    pub why: String,
    /// When.
    pub at: Moment,
}

/// An override that waits for a second administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRequest {
    /// By whom.
    pub by: UserId,
    /// Why.
    pub reason: String,
    /// For which incident.
    pub incident_ticket: String,
    /// When.
    pub at: Moment,
    /// Who made the token that it was asked with, if somebody else did.
    #[serde(default)]
    pub token_made_by: Option<UserId>,
}

/// Whoever acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Who; nobody for the service itself.
    pub user: Option<UserId>,
    /// In which parts.
    pub parts: Vec<ActorRole>,
    /// Who made the token that it acts with.
    pub token_made_by: Option<UserId>,
    /// Whether it is an agent, for which somebody answers: then it decides nothing.
    pub by_agent: bool,
    /// Whether it acts with what is good for an administrator's acts, besides having the role.
    pub administers: bool,
}

impl Actor {
    /// The service itself.
    #[must_use]
    pub fn system() -> Self {
        Self {
            user: None,
            parts: vec![ActorRole::System],
            token_made_by: None,
            by_agent: false,
            administers: false,
        }
    }

    fn is_admin(&self) -> bool {
        self.parts.contains(&ActorRole::Admin) && self.administers
    }
}

/// Something that happened: one entry of the audit log, and one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// As `task.submit`.
    pub action: String,
    /// By whom; nobody for the service itself.
    pub actor: Option<UserId>,
    /// Out of which state.
    pub from: State,
    /// Into which.
    pub to: State,
    /// About which request, if about one.
    pub approval_id: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// For which ticket.
    pub ticket: Option<String>,
    /// Who should be told.
    pub tell: Vec<UserId>,
}

impl Transition {
    fn new(action: &str, actor: Option<UserId>, from: State, to: State) -> Self {
        Self {
            action: action.to_owned(),
            actor,
            from,
            to,
            approval_id: None,
            reason: None,
            ticket: None,
            tell: Vec::new(),
        }
    }
}

/// Why nothing happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not in this state.
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    /// Nobody who can decide.
    #[error(transparent)]
    NoQuorum(#[from] QuorumUnreachable),
    /// Not in this part.
    #[error("your roles do not permit this; ask somebody who may, or an administrator for the role")]
    Forbidden,
    /// Not about one's own.
    #[error("{who} cannot decide about this task: {why}")]
    OwnTask {
        /// Who.
        who: UserId,
        /// Why.
        why: String,
    },
    /// Not without saying why.
    #[error("say why: a reason is required")]
    ReasonRequired,
    /// Not without an incident.
    #[error("name the incident: an incident_ticket is required")]
    TicketRequired,
    /// Not about this any more.
    #[error("the task is not what it was when you looked: it has the digest {now}; look again")]
    DigestMismatch {
        /// What it is.
        now: Digest,
    },
    /// Too late.
    #[error("the task has been decided: it is {state}")]
    AlreadyDecided {
        /// How.
        state: State,
    },
    /// No such request.
    #[error("there is no such request")]
    UnknownApproval,
    /// Somebody else was asked.
    #[error("{reviewer} was asked, and only an administrator can answer in another's place")]
    NotAsked {
        /// Who.
        reviewer: UserId,
    },
    /// It cannot be answered any more.
    #[error("the request cannot be answered any more: it is {}", .status.word())]
    NotAnswerable {
        /// What became of it.
        status: ApprovalStatus,
    },
    /// Nothing to confirm.
    #[error("nobody asked for an override within the last hour; ask for one first")]
    NoOverride,
    /// The same one twice.
    #[error("an override needs two administrators, and {who} asked for it already")]
    SameAdmin {
        /// Who.
        who: UserId,
    },
    /// Too often.
    #[error("people were asked {asked} times about this task already; give it up, and propose it anew")]
    TooManyRequests {
        /// How often.
        asked: usize,
    },
    /// By an attempt that does not count any more.
    #[error("attempt {attempt} does not count: {}", present(*.now))]
    NotPresent {
        /// Which attempt.
        attempt: u64,
        /// The last one.
        now: u64,
    },
    /// Somebody wants it to end.
    #[error("an administrator stopped the task: change nothing more, and report it as cancelled")]
    Stopped,
    /// It takes longer than it may.
    #[error("the task takes longer than its timeout_seconds: change nothing more, and report it as timeout")]
    TimedOut,
    /// Its worker is there.
    #[error("nobody needs to take over: whoever carries the task out is heard of")]
    NotLost,
    /// Nothing can be undone.
    #[error(
        "there is nothing to roll back: that is for failed tasks which may have changed something that was not changed back, and \
         whose rollback_strategy is not none"
    )]
    NothingToRollBack,
    /// To nobody.
    #[error("{who} cannot be asked: {why}")]
    CannotBeAsked {
        /// Who.
        who: UserId,
        /// Why.
        why: String,
    },
}

fn present(attempt: u64) -> String {
    if attempt == 0 {
        "there was none".to_owned()
    } else {
        format!("the last one is {attempt}, or it has ended")
    }
}

impl Task {
    /// A new draft.
    #[must_use]
    pub fn draft(
        task_id: impl Into<String>,
        config: Config,
        digest: Digest,
        author_id: UserId,
        author_set: AuthorSet,
        now: Moment,
    ) -> Self {
        let mut review = Self {
            task_id: task_id.into(),
            state: State::Draft,
            // The record below makes it the first.
            revision: 0,
            config,
            metadata: Metadata::default(),
            digest,
            preview: Preview::none(),
            lock_preview: Vec::new(),
            predecessor: None,
            fingerprint: None,
            author_id: author_id.clone(),
            author_set,
            risk: None,
            auto_approvable: false,
            assessed_at: None,
            requirements: Vec::new(),
            considered: Vec::new(),
            passed_by: Vec::new(),
            auto_approved: None,
            approvals: Vec::new(),
            remembered: None,
            override_asked: None,
            reopened: None,
            forced: false,
            approval_ends_at: None,
            apply_after: None,
            execution: None,
            by_agent: false,
            required_count: 0,
            since: BTreeMap::from([(State::Draft, now)]),
            transitions: Vec::new(),
        };
        review.author_set.add(author_id.clone(), AuthorReason::Author);
        review.record("task.create", State::Draft, Some(author_id));
        review
    }

    /// How far each requirement has come.
    #[must_use]
    pub fn progress(&self) -> Vec<Progress> {
        if let Some(remembered) = &self.remembered {
            return remembered.progress.clone();
        }
        let votes = self.votes();
        self.requirements.iter().map(|requirement| requirement.progress(&votes)).collect()
    }

    /// The score that people are asked by.
    #[must_use]
    pub fn risk_score(&self) -> u8 {
        self.risk.as_ref().map_or(0, |risk| risk.score)
    }

    /// The answers that count: given for exactly what is proposed.
    fn votes(&self) -> Vec<Vote<'_>> {
        let counts = |approval: &&Approval| {
            self.is_about_present(approval)
                && matches!(approval.status, ApprovalStatus::Approved | ApprovalStatus::Rejected)
        };
        self.approvals
            .iter()
            .filter(counts)
            .filter_map(|approval| {
                let agrees = approval.status == ApprovalStatus::Approved;
                let decided_by = approval.reviewed_by.as_ref()?;
                Some(Vote { reviewer: &approval.reviewer_id, decided_by, agrees })
            })
            .collect()
    }

    fn approval_mut(&mut self, id: &str) -> Result<&mut Approval, Refusal> {
        self.approvals.iter_mut().find(|approval| approval.approval_id == id).ok_or(Refusal::UnknownApproval)
    }

    /// Whether a request is about exactly what is proposed now.
    fn is_about_present(&self, approval: &Approval) -> bool {
        approval.digest == self.digest && approval.fingerprint == self.fingerprint
    }

    /// Whether somebody is asked already and can still answer.
    fn is_asked(&self, who: &UserId) -> bool {
        self.approvals.iter().any(|approval| approval.reviewer_id == *who && approval.is_answerable())
    }

    fn permit(actor: &Actor, act: Permission) -> Result<(), Refusal> {
        if is_permitted(&actor.parts, act) { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    /// The same for what administrators alone do.
    fn permit_admin(actor: &Actor, act: Permission) -> Result<(), Refusal> {
        Self::permit(actor, act)?;
        if actor.administers { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    /// Whoever is asked acts as reviewer, also by another role that a policy asks for; agents are never asked.
    fn permit_answer(&self, actor: &Actor, approval_id: &str) -> Result<(), Refusal> {
        let asked = self
            .approvals
            .iter()
            .any(|one| one.approval_id == approval_id && actor.user.as_ref() == Some(&one.reviewer_id));
        if asked && !actor.by_agent { Ok(()) } else { Self::permit(actor, Permission::Decide) }
    }

    /// Nobody of the author set decides, and nobody by a token that one of them made.
    fn not_ones_own(&self, actor: &Actor) -> Result<UserId, Refusal> {
        let Some(who) = &actor.user else { return Err(Refusal::Forbidden) };
        if let Some(reason) = self.author_set.reason(who) {
            return Err(Refusal::OwnTask { who: who.clone(), why: reason.to_string() });
        }
        if let Some(maker) = actor.token_made_by.as_ref().filter(|maker| self.author_set.contains(maker)) {
            let why = format!(
                "what it acts with was made by {maker}, who belongs to its authors: {maker} set the password, or made the token; \
                 ask for a password that the bootstrap token sets, or for another reviewer"
            );
            return Err(Refusal::OwnTask { who: who.clone(), why });
        }
        Ok(who.clone())
    }

    /// Into the state where a verb leads, with one record.
    fn go(
        &mut self,
        verb: TaskCommand,
        actor: Option<UserId>,
        now: Moment,
    ) -> Result<&mut Transition, Refusal> {
        let to = next(self.state, verb)?;
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            self.since.insert(to, now);
        }
        Ok(self.record(&format!("task.{verb}"), from, actor))
    }

    fn record(&mut self, action: &str, from: State, actor: Option<UserId>) -> &mut Transition {
        self.revision += 1;
        self.transitions.push(Transition::new(action, actor, from, self.state));
        let last = self.transitions.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "it was pushed just now")]
        &mut self.transitions[last]
    }

    /// Requests that nobody needs to answer any more.
    fn close_open(&mut self) -> Vec<UserId> {
        let mut told = Vec::new();
        for approval in self.approvals.iter_mut().filter(|approval| approval.is_open()) {
            approval.become_one(ApprovalStatus::Closed);
            told.push(approval.reviewer_id.clone());
        }
        told
    }
}
