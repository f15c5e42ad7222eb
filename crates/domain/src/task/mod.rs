//! A task: what is proposed, reviewed and applied, with its lifecycle, approval requests and execution.
//!
//! Each command is a pure function of the task, the actor, data that was loaded beforehand, and the time. It changes the task and
//! appends transitions, or refuses and changes nothing. An approval counts only for the digest it was given for, and nobody in
//! the author set decides on any path.

mod agent_work;
mod allowed_commands;
mod apply;
mod archived;
mod authors;
mod chat;
mod claimants;
mod comment;
mod config;
mod decision;
mod digest;
mod eligibility;
mod evidence;
mod execution;
mod friction;
mod lifecycle;
mod metadata;
mod reassign;
mod scope;
mod submit;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use agent_work::AttemptReport;
pub use apply::{AttemptStart, NextStep};
pub use archived::{ArchivedApprovals, ReviewCounts};
pub use authors::{RegisteredAgent, RegisteredAgents};
pub use chat::ChatOrigin;
pub use claimants::{PossibleClaimants, names_agent};
pub use config::{
    AGENT_EXECUTOR, AgentWork, Config, GATE_EXECUTOR, HTTP_EXECUTOR, NOOP_EXECUTOR, Resource,
    RollbackStrategy,
};
pub use decision::Decision;
pub use digest::Digest;
pub use evidence::{ACTIONS_WITHOUT_TRANSITION, UnprovenApproval};
pub use execution::{
    AdminRequest, AttemptFailure, Execution, ExecutionOutput, ExecutionResult, FailureCode, HeldLock,
    MAX_RETRIES, Phase, RemainingEffects, retry_backoff_ms, rollback_data_key,
};
pub use friction::{Answer, ApprovalNeed, CRITICAL_PASSWORD_TTL_MS, LackingFriction};
pub use lifecycle::{InvalidTransition, TRANSITIONS, TaskCommand, TaskState, commands_for, next_state};
pub use metadata::{ChangeKind, Lineage, LockPreview, Metadata, Preview, PreviewChange, PreviewStatus};
pub use reassign::MAX_ESCALATIONS;
pub use scope::{
    AllowedAuthor, Binding, BindingLock, InvalidAllowedAuthor, PublishedBinding, PublishedBindings,
    RESERVED_TYPES, ReviewSubject, ScopePart, TaskScope, is_reserved_type,
};
pub use submit::ReviewPlan;

use evidence::CHAT_HOLDERS;

use crate::Moment;
use crate::approval::assignment::{ConsideredPolicy, QuorumUnreachable};
use crate::approval::quorum::{Requirement, RequirementProgress, Vote};
use crate::approval::{Approval, ApprovalStatus, ReviewedVersion};
use crate::audit::Trigger;
use crate::independence::Dependence;
use crate::people::{AuthorReason, AuthorSet, UserId};
use crate::permission::{ActorRole, Permission, is_permitted};
use crate::risk::{Risk, RiskLevel};

/// Limits the approval requests of one task, including closed and invalidated ones.
pub const MAX_APPROVAL_REQUESTS: usize = 1_000;

/// How long a second administrator can confirm an override.
pub const OVERRIDE_CONFIRMATION_TIMEOUT_MS: u64 = 3_600_000;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub task_id: String,
    pub state: TaskState,
    /// Increases with every change; guards concurrent updates.
    pub revision: u64,
    pub config: Config,
    /// What is known about the task but not executed: lineage, tags, team.
    pub metadata: Metadata,
    /// The digest of `config`: an approval counts for exactly this.
    pub digest: Digest,
    /// What the task can touch, derived from its config.
    pub scope: TaskScope,
    /// The digest of the scope: an approval counts for exactly this, too.
    pub scope_digest: Option<Digest>,
    pub preview: Preview,
    /// The locks that applying the task will take, as they were when it was last created, modified or submitted.
    pub lock_preview: Vec<LockPreview>,
    /// The task that this one was resubmitted from.
    pub predecessor: Option<String>,
    /// The fingerprint of the preview that reviewers decide on.
    pub fingerprint: Option<String>,
    pub author_id: UserId,
    pub author_set: AuthorSet,
    pub risk: Option<Risk>,
    /// Whether no approval is required.
    pub auto_approvable: bool,
    /// When the risk was assessed.
    pub assessed_at: Option<Moment>,
    /// The approvals required, one entry for each applicable policy.
    pub requirements: Vec<Requirement>,
    pub considered_policies: Vec<ConsideredPolicy>,
    /// People and delegations that were skipped when reviewers were chosen, each with the reason.
    pub skipped: Vec<String>,
    /// Why no approval was required, if none was.
    pub auto_approved: Option<String>,
    /// Why approvals are required although some policy approves automatically.
    pub not_automatic: Vec<String>,
    /// Whether it was restored from an archive: it is history, and refuses every command. Stored separately.
    #[serde(skip)]
    pub restored: bool,
    /// Stored separately.
    #[serde(skip)]
    pub approvals: Vec<Approval>,
    /// A summary of the approval requests once they are archived. Stored separately.
    #[serde(skip)]
    pub archived_approvals: Option<ArchivedApprovals>,
    /// An override that waits for confirmation.
    pub override_request: Option<OverrideRequest>,
    /// Why the review last restarted.
    pub reopened: Option<Reopened>,
    /// Whether it is applied before all others.
    pub forced: bool,
    /// When the approval expires. Set while the task is approved.
    pub approval_ends_at: Option<Moment>,
    /// Until when a risky task waits after its approval, so that there is time to revoke it. It lasts until the task is neither approved
    /// nor applied any more: a further attempt does not wait again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Moment>,
    /// The earliest time of the next attempt, after one that failed without effects.
    pub apply_after: Option<Moment>,
    /// The current or last attempt to apply the task.
    pub execution: Option<Execution>,
    /// The agents that created, changed or submitted it. The roles of their sponsors do not count for automatic approval.
    pub by_agent: BTreeSet<String>,
    /// The smallest number of approvals that satisfies all requirements.
    pub required_count: u32,
    /// When the task last changed.
    pub updated_at: Moment,
    /// When the task last entered each state.
    pub entered_at: BTreeMap<TaskState, Moment>,
    /// Transitions since the task was loaded; not stored with it.
    #[serde(skip)]
    pub transitions: Vec<Transition>,
}

/// Why a review restarted. Earlier decisions do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reopened {
    pub reason: String,
    pub at: Moment,
}

/// An override that a second administrator must confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRequest {
    pub by: UserId,
    pub reason: String,
    pub incident_ticket: String,
    pub at: Moment,
}

/// The caller of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// None for the service itself and for the bootstrap token.
    pub user: Option<UserId>,
    pub roles: Vec<ActorRole>,
    /// Who issued the token that the caller uses, if somebody else did: an author of what is proposed with it.
    pub token_issuer: Option<UserId>,
    /// The agent that acts for the user, if one does. Agents never decide.
    pub agent_id: Option<String>,
    /// Whether the token or session has the admin scope, which administrative commands require besides the role.
    pub has_admin_scope: bool,
    /// When the password of the session was given, or of the one in which the token was made.
    pub password_at: Option<Moment>,
}

impl Actor {
    /// The service itself.
    pub fn system() -> Self {
        Self {
            user: None,
            roles: vec![ActorRole::System],
            token_issuer: None,
            agent_id: None,
            has_admin_scope: false,
            password_at: None,
        }
    }

    pub const fn is_agent(&self) -> bool {
        self.agent_id.is_some()
    }

    pub fn is_admin(&self) -> bool {
        self.roles.contains(&ActorRole::Admin) && self.has_admin_scope
    }

    fn require(&self, permission: Permission) -> Result {
        if is_permitted(&self.roles, permission) { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    /// Checks a permission that only administrators have, and the admin scope.
    fn require_admin(&self, permission: Permission) -> Result {
        self.require(permission)?;
        if self.has_admin_scope { Ok(()) } else { Err(Refusal::Forbidden) }
    }

    /// Whether this actor may preview a task of its own without creating it.
    pub fn authorize_simulated_preview(&self) -> Result {
        self.require(Permission::CreateTask)
    }

    /// The author of a task that this actor creates.
    pub fn authorize_create(&self) -> Result<UserId> {
        self.require(Permission::CreateTask)?;
        self.user.clone().ok_or(Refusal::Forbidden)
    }
}

/// A change of a task. Each becomes an audit entry and an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// For example `task.submit`.
    pub action: String,
    /// The person who gave the command; none for the service, an agent's report and the bootstrap token.
    pub actor: Option<UserId>,
    /// Set if the service does this by itself, as a consequence: why.
    pub trigger: Option<Trigger>,
    /// None for a new task.
    pub from: Option<TaskState>,
    pub to: TaskState,
    pub approval_id: Option<String>,
    pub reason: Option<String>,
    pub ticket: Option<String>,
    /// The people to notify.
    pub notify: Vec<UserId>,
    /// See [`Approval::chat_holders`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub chat_holders: BTreeSet<UserId>,
}

impl Transition {
    fn new(action: &str, actor: Option<UserId>, from: TaskState, to: TaskState) -> Self {
        Self {
            action: action.to_owned(),
            actor,
            trigger: None,
            from: Some(from),
            to,
            approval_id: None,
            reason: None,
            ticket: None,
            notify: Vec::new(),
            chat_holders: BTreeSet::new(),
        }
    }

    /// What its audit entry says besides: the people who are asked to decide from now on, or no longer have to; and who could have sent a
    /// decision in a chat.
    pub fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        if !self.notify.is_empty() {
            details.insert("notified".to_owned(), json!(self.notify));
        }
        if !self.chat_holders.is_empty() {
            details.insert(CHAT_HOLDERS.to_owned(), json!(self.chat_holders));
        }
        details
    }
}

pub type Result<T = (), E = Refusal> = std::result::Result<T, E>;

/// Why a command was refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    #[error(transparent)]
    QuorumUnreachable(#[from] QuorumUnreachable),
    #[error(
        "you do not have permission for this. Ask somebody who has it, or ask an administrator for the role."
    )]
    Forbidden,
    #[error("{user} cannot decide on this task: {reason}")]
    OwnTask { user: UserId, reason: String },
    #[error("{0}")]
    NotIndependent(Box<Dependence>),
    #[error(
        "{user} no longer has a role for which the policies of this request ask. Ask an administrator for the role, or to \
         delegate the request."
    )]
    RoleLost { user: UserId },
    #[error("a reason is required")]
    ReasonRequired,
    #[error("an incident ticket is required")]
    TicketRequired,
    #[error(
        "the task has changed since: the digest is not the current one. Review it again before you decide."
    )]
    DigestMismatch,
    #[error(
        "what the task can touch has changed since: the scope digest is not the current one. Review it again before you decide."
    )]
    ScopeMismatch,
    #[error(transparent)]
    FrictionRequired(LackingFriction),
    #[error("a task of level {level} is not approved together with others. Review it, and approve it alone.")]
    NotInBatch { level: RiskLevel },
    #[error(
        "approving a task of level CRITICAL needs a password given within 15 minutes; give it again: \
         POST /api/v1/sessions/reauthenticate, or sign in again for a new token"
    )]
    PasswordTooOld,
    #[error("the preview of the task changed since this message. Open the task to decide.")]
    PreviewChanged,
    #[error("only tasks of level LOW are decided in a chat. Open the task to decide.")]
    NotLowRisk,
    #[error(
        "{user} knows a secret of this chat, and is an author or another approver of this task, or not independent of one, or could \
         have sent another approval. Open the task to decide."
    )]
    ChatSecretHolder { user: UserId },
    #[error(
        "{approver} approved in a chat of which {user} knows a secret, so this approval would not count beside it. Somebody else can \
         decide, or {approver} decides again on the page of the task."
    )]
    ApprovedInChat { user: UserId, approver: UserId },
    #[error("the task has already been decided: it is {state}")]
    AlreadyDecided { state: TaskState },
    #[error("there is no such approval request")]
    UnknownApproval,
    #[error("the request is addressed to {reviewer}; only {reviewer} or an administrator can decide it")]
    NotReviewer { reviewer: UserId },
    #[error("the approval request is {status}: it can no longer be decided")]
    ApprovalClosed { status: ApprovalStatus },
    #[error("no override was requested within the last hour. Request one first.")]
    NoOverrideRequest,
    #[error(
        "an override needs two independent administrators; {user} requested it. Another administrator must confirm it."
    )]
    SameAdmin { user: UserId },
    #[error(
        "the stored task does not match its digest; find out who changed the database, and cancel the task"
    )]
    EditedTask,
    #[error("the task has reached the limit of approval requests ({count}). Cancel it and create a new one.")]
    TooManyApprovalRequests { count: usize },
    #[error("attempt {attempt} is not the current attempt: {}", describe_current(*.current))]
    NotCurrentAttempt { attempt: u64, current: u64 },
    #[error(
        "an administrator stopped the task. Make no further changes, and report the result as cancelled."
    )]
    Stopped,
    #[error(
        "the task has exceeded its timeout_seconds. Make no further changes, and report the result as timeout."
    )]
    TimedOut,
    #[error(
        "the task was approved a moment ago and is held until {until}, so that the approval can be revoked"
    )]
    Held { until: Moment },
    #[error("the task cannot be recovered: no attempt is in progress, or its worker still holds the lease")]
    WorkerNotLost,
    #[error(
        "there is nothing to roll back: the task must have failed, its effects must not be rolled back yet, and its \
         rollback_strategy must not be none"
    )]
    NothingToRollBack,
    #[error("{user} cannot review this task: {reason}")]
    InvalidReviewer { user: UserId, reason: String },
    #[error(
        "agent {agent} cannot claim this task: the policy {policy} applies if this agent does the work, and the task was approved without it. \
         Modify the task, or have its approval revoked and resubmit it: then {policy} is asked too."
    )]
    ReviewRequired { agent: String, policy: String },
    #[error(
        "the task was restored from an archive, to be read: nothing about it changes any more. Create a new task instead."
    )]
    RestoredTask,
}

fn describe_current(attempt: u64) -> String {
    if attempt == 0 {
        "the task was never applied".to_owned()
    } else {
        format!("the last one is {attempt}, or it has ended")
    }
}

impl Task {
    pub fn draft(
        task_id: impl Into<String>,
        config: Config,
        digest: Digest,
        author_id: UserId,
        author_set: AuthorSet,
        now: Moment,
    ) -> Self {
        let mut task = Self {
            task_id: task_id.into(),
            state: TaskState::Draft,
            // The transition below makes it 1.
            revision: 0,
            scope_digest: TaskScope::default().digest(&config),
            scope: TaskScope::default(),
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
            considered_policies: Vec::new(),
            skipped: Vec::new(),
            auto_approved: None,
            not_automatic: Vec::new(),
            restored: false,
            approvals: Vec::new(),
            archived_approvals: None,
            override_request: None,
            reopened: None,
            forced: false,
            approval_ends_at: None,
            held_until: None,
            apply_after: None,
            execution: None,
            by_agent: BTreeSet::new(),
            required_count: 0,
            updated_at: now,
            entered_at: BTreeMap::from([(TaskState::Draft, now)]),
            transitions: Vec::new(),
        };
        task.author_set.add(author_id.clone(), AuthorReason::Author);
        task.record("task.create", TaskState::Draft, Some(author_id)).from = None;
        task
    }

    /// Sets what the task can touch, as derived from its present config.
    pub fn set_scope(&mut self, scope: TaskScope) {
        self.scope_digest = scope.digest(&self.config);
        self.scope = scope;
    }

    pub fn progress(&self) -> Vec<RequirementProgress> {
        if let Some(remembered) = &self.archived_approvals {
            return remembered.progress.clone();
        }
        let votes = self.votes();
        let blocking = self.approvals.iter().filter(|approval| self.requests_changes(approval));
        let blocking: Vec<&UserId> = blocking.map(|approval| &approval.reviewer_id).collect();
        let progress =
            |requirement: &Requirement| requirement.progress(&votes).blocked_by(requirement, &blocking);
        self.requirements.iter().map(progress).collect()
    }

    /// Whether the task was approved and the times of its approval are not set yet.
    pub fn needs_approval_times(&self) -> bool {
        self.state == TaskState::Approved && self.approval_ends_at.is_none()
    }

    /// Sets the end of a new approval, and of its hold if the risk asks for one. Each is set once: a later change of the settings does
    /// not apply.
    pub fn set_approval_times(&mut self, valid_for_ms: u64, hold_ms: u64) {
        let approved_at = self.entered_at.get(&TaskState::Approved).copied();
        self.approval_ends_at = approved_at.map(|at| at.plus_ms(valid_for_ms));
        if self.held_until.is_none() && self.is_held_after_approval() {
            self.held_until = approved_at.map(|at| at.plus_ms(hold_ms));
        }
    }

    pub fn is_approval_expired(&self, now: Moment) -> bool {
        self.approval_ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// 0 if the risk has not been assessed.
    pub fn risk_score(&self) -> u8 {
        self.risk.as_ref().map_or(0, |risk| risk.score)
    }

    fn is_low_risk(&self) -> bool {
        self.risk_level() == RiskLevel::Low
    }

    /// The decisions that count: those on the current config and preview.
    fn votes(&self) -> Vec<Vote<'_>> {
        let current = self.approvals.iter().filter(|approval| self.is_current(approval));
        let vote = current.filter_map(|approval| {
            let approves = match approval.status {
                ApprovalStatus::Approved => true,
                ApprovalStatus::Rejected => false,
                _ => return None,
            };
            Some(Vote {
                reviewer: &approval.reviewer_id,
                decided_by: approval.reviewed_by.as_ref()?,
                approves,
            })
        });
        vote.collect()
    }

    fn approval_mut(&mut self, id: &str) -> Result<&mut Approval> {
        self.approvals.iter_mut().find(|approval| approval.approval_id == id).ok_or(Refusal::UnknownApproval)
    }

    /// Whether a request is about the current config and preview.
    fn is_current(&self, approval: &Approval) -> bool {
        approval.is_about(&self.reviewed_version())
    }

    /// What reviewers decide on now.
    fn reviewed_version(&self) -> ReviewedVersion {
        let Self { digest, scope_digest, fingerprint, .. } = self;
        ReviewedVersion { digest: *digest, scope_digest: *scope_digest, fingerprint: fingerprint.clone() }
    }

    /// Whether somebody sees the diffs that are for reviewers only: people who review the task or see all tasks, unless they
    /// are authors. Agents never do.
    pub fn shows_full_preview(&self, actor: &Actor, sees_all_tasks: bool) -> bool {
        let is_author = actor.user.as_ref().is_some_and(|user| self.author_set.contains(user));
        let is_reviewer = || actor.user.as_ref().is_some_and(|user| self.was_reviewer(user));
        !actor.is_agent() && !is_author && (sees_all_tasks || is_reviewer())
    }

    /// Whether somebody has a request that can still be decided.
    fn has_decidable_request(&self, user: &UserId) -> bool {
        self.approvals.iter().any(|approval| approval.reviewer_id == *user && approval.is_decidable())
    }

    /// A person who was asked may decide even without the reviewer role, because policies may require other roles. Agents may
    /// not.
    fn authorize_decision(&self, actor: &Actor, approval_id: &str) -> Result {
        let is_asked = self.approvals.iter().any(|approval| {
            approval.approval_id == approval_id && actor.user.as_ref() == Some(&approval.reviewer_id)
        });
        if is_asked && !actor.is_agent() { Ok(()) } else { actor.require(Permission::Decide) }
    }

    /// Refuses authors.
    fn authorize_non_author(&self, actor: &Actor) -> Result<UserId> {
        let Some(user) = &actor.user else { return Err(Refusal::Forbidden) };
        if let Some(reason) = self.author_set.reason(user) {
            return Err(Refusal::OwnTask { user: user.clone(), reason: format!("{user} {reason}") });
        }
        Ok(user.clone())
    }

    /// Executes a command of the lifecycle table and records the transition.
    fn execute(&mut self, command: TaskCommand, by: Option<UserId>, now: Moment) -> Result<&mut Transition> {
        let to = next_state(self.state, command)?;
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            self.entered_at.insert(to, now);
            self.approval_ends_at = None;
            if !matches!(to, TaskState::Approved | TaskState::Applying) {
                self.held_until = None;
            }
        }
        Ok(self.record(&format!("task.{command}"), from, by))
    }

    fn record(&mut self, action: &str, from: TaskState, by: Option<UserId>) -> &mut Transition {
        self.revision += 1;
        self.transitions.push(Transition::new(action, by, from, self.state));
        let last = self.transitions.len() - 1;
        #[expect(clippy::indexing_slicing, reason = "the transition was just pushed")]
        &mut self.transitions[last]
    }

    /// Records what happened to an approval request; the state of the task stays the same.
    fn record_approval(&mut self, action: &str, approval_id: &str, by: Option<UserId>) -> &mut Transition {
        let transition = self.record(action, self.state, by);
        transition.approval_id = Some(approval_id.to_owned());
        transition
    }

    /// Closes the open approval requests after the transition that made them needless, and notifies their reviewers.
    fn resolve_open_approvals(&mut self) {
        let trigger = self.transitions.last().map(|last| Trigger::Command(last.action.clone()));
        let mut closed = Vec::new();
        for approval in self.approvals.iter_mut().filter(|approval| approval.is_open()) {
            approval.set_status(ApprovalStatus::Closed);
            closed.push((approval.approval_id.clone(), approval.reviewer_id.clone()));
        }
        for (approval_id, reviewer) in closed {
            let transition = self.record_approval("approval.resolve", &approval_id, None);
            transition.trigger.clone_from(&trigger);
            transition.notify = vec![reviewer];
        }
    }
}
