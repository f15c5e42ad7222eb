//! Idempotency keys: the outcome of a request is committed with its changes, so that a repeated request gets the same
//! response and changes nothing.

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::PolicyVersions;
use ade_domain::approval::quorum::RequirementProgress;
use ade_domain::dual_control::ProposedChange;
use ade_domain::people::{User, UserId};
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::{Task, TaskCommand, TaskState};
use ade_domain::webhook::WebhookFormat;
use ade_domain::webhook::delivery::CircuitState;
use ade_domain::webhook::inbound::TaskTemplate;
use ade_store::database::{
    Archive, Comment, Delivery, FeatureFlag, KeyedResponse, Setting, SkippedTasks, StoredResponse,
    StoredTask, StoredToken, Versioned,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Caller, Error, IdempotentRequest, Result};

/// What a request created or changed: everything that its response is rendered from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Task(Box<TaskView>),
    /// A task that an agent has claimed.
    Claim(Box<TaskView>),
    Approval(Option<ApprovalView>),
    Batch(Vec<ApprovalView>),
    Restored(RestoreResult),
    /// There is nothing to show.
    Done,
    Comment(Comment),
    User {
        user: User,
        revision: u64,
    },
    /// An invitation without its code, which is never stored.
    Invitation {
        user: User,
        revision: u64,
        expires_at: Moment,
    },
    /// A token without its secret, which is never stored.
    Token(StoredToken),
    Policy(Versioned<PolicyVersions>),
    Delegation(Versioned<Delegation>),
    Resource(Versioned<RegisteredPattern>),
    Setting(Versioned<Setting>),
    Feature(Versioned<FeatureFlag>),
    /// A webhook without its secret, which is returned only once.
    Webhook(Box<WebhookView>),
    Delivery(Box<Delivery>),
    /// An inbound hook without its secret.
    InboundHook(Box<InboundHookView>),
    /// A change that was confirmed or rejected, without its request.
    Change(Versioned<ProposedChange>),
    /// It waits for a second administrator.
    AwaitsConfirmation {
        change_id: String,
        expires_at: Moment,
    },
}

impl Outcome {
    /// The response to the confirmation or rejection of a change shows the change, whatever it changed.
    #[must_use]
    pub fn confirmed(change: &Versioned<ProposedChange>) -> Self {
        let mut change = change.clone();
        change.value.request = Value::Null;
        Self::Change(change)
    }
}

/// A task as a caller sees it at some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    pub task: Task,
    /// The progress of its approval requests, which are not stored with it.
    pub requirements: Vec<RequirementProgress>,
    /// The archive of its approval requests.
    pub requests_archive: Option<String>,
    pub claimed_by: Option<String>,
    /// The commands that the caller can give to it.
    pub allowed: Vec<TaskCommand>,
}

impl TaskView {
    #[must_use]
    pub fn new(stored: &StoredTask, caller: &Caller, now: Moment) -> Box<Self> {
        let archived = stored.archived_approvals.as_ref();
        let held_until = stored.held_until(now);
        Box::new(Self {
            requirements: stored.progress(),
            requests_archive: archived.map(|archived| archived.archive_id.clone()),
            claimed_by: stored.claimed_by().map(str::to_owned),
            allowed: caller.allowed_commands(stored, now),
            task: Task { held_until, ..caller.visible_part_of(stored) },
        })
    }
}

/// An approval request with what it shows of its task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalView {
    pub approval: Approval,
    pub task_description: String,
    pub task_state: TaskState,
}

impl ApprovalView {
    /// An approval request of a task, by its id.
    #[must_use]
    pub fn find(task: &Task, id: &str) -> Option<Self> {
        let approval = task.approvals.iter().find(|approval| approval.approval_id == id)?.clone();
        Some(Self { approval, task_description: task.config.description.clone(), task_state: task.state })
    }

    /// The approval requests with these ids, in the same order.
    #[must_use]
    pub fn find_all<'a>(tasks: &[StoredTask], ids: impl Iterator<Item = &'a str>) -> Vec<Self> {
        ids.filter_map(|id| tasks.iter().find_map(|task| Self::find(task, id))).collect()
    }
}

/// What was restored from an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreResult {
    pub archive: Archive,
    /// Items that were restored.
    pub items: u64,
    pub left_out: SkippedTasks,
}

/// A webhook as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookView {
    pub webhook_id: String,
    pub revision: u64,
    pub name: String,
    /// Without what may be secret in it.
    pub url: String,
    pub format: WebhookFormat,
    pub events: Vec<String>,
    pub task_types: Vec<String>,
    pub channel: Option<String>,
    #[serde(default)]
    pub addresses: Vec<String>,
    #[serde(default)]
    pub digest_minutes: Option<u32>,
    /// Whether linked users decide in Slack.
    pub decisions: bool,
    pub active: bool,
    /// Why the service deactivated it.
    pub disabled_reason: Option<String>,
    pub owner: Option<UserId>,
    pub created_at: Moment,
    /// Until when the previous secret signs too.
    pub previous_secret_until: Option<Moment>,
    /// Of its destination.
    pub circuit: CircuitState,
    /// Until when nothing is sent to its destination.
    #[serde(default)]
    pub circuit_open_until: Option<Moment>,
}

/// A hook as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboundHookView {
    pub hook_id: String,
    pub revision: u64,
    pub name: String,
    pub owner: UserId,
    pub created_by: Option<UserId>,
    pub created_at: Moment,
    pub active: bool,
    pub submit: bool,
    pub template: TaskTemplate,
    pub previous_secret_until: Option<Moment>,
}

/// The stored response of a request, if it has an idempotency key. It is part of the commit of the changes that it reports.
pub(crate) fn stored_response(
    caller: &Caller,
    outcome: impl FnOnce(Moment) -> Outcome,
) -> Result<Option<KeyedResponse>> {
    let Some(request) = &caller.idempotent_request else { return Ok(None) };
    let IdempotentRequest { owner, key, request_digest, received_at } = request.clone();
    let outcome = match &caller.confirms {
        Some(change) => Outcome::confirmed(change),
        None => outcome(received_at),
    };
    let outcome = serde_json::to_value(outcome).map_err(Error::system)?;
    let response = StoredResponse { request_digest, outcome };
    Ok(Some(KeyedResponse { owner, key, at: received_at, response }))
}
