//! Which keys each object has, and what they contain. Pure: the same functions serve writing and comparing.
//!
//! A preview is projected as authors see it: what only reviewers may read does not leave the database.

use std::collections::BTreeMap;
use std::fmt;

use ade_domain::Moment;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::{Approval, ApprovalStatus, DecisionKind};
use ade_domain::normal_form::fold;
use ade_domain::people::{User, UserId};
use ade_domain::permission::{PERMISSION_MATRIX, actor_roles, is_permitted};
use ade_domain::task::{Execution, ReviewCounts, Task, TaskState};
use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{Layout, RedisKey};
use serde::Serialize;
use serde_json::Value;

use super::membership::Membership;
use super::{ProjectedKey, ProjectedValue, Projection, Result};
use crate::coordination::CoordinationError;
use crate::database::{Session, StoredTask, UserStats, Versioned};
use crate::redis::encoding::to_json;

/// Names an object that has projections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectId {
    Task(String),
    Approval(String),
    /// By the hash of the secret.
    Session(String),
    Reviewer(UserId),
    Delegation(UserId, String),
    /// All settings and feature flags together.
    Settings,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(f, "task {id}"),
            Self::Approval(id) => write!(f, "approval request {id}"),
            // The hash would tell the key of a session, and is of no use to a person.
            Self::Session(_) => f.write_str("a session"),
            Self::Reviewer(user) => write!(f, "statistics of {user}"),
            Self::Delegation(owner, id) => write!(f, "delegation {id} of {owner}"),
            Self::Settings => f.write_str("settings"),
        }
    }
}

impl ObjectId {
    /// All keys that the object can have, the guard first; none for settings, which have no guard.
    pub(super) fn keys(&self, layout: Layout) -> Result<Vec<RedisKey>> {
        Ok(match self {
            Self::Task(id) => TaskKeys::new(id)?.all(layout),
            Self::Approval(id) => {
                vec![keys::approval::request(&ids::ApprovalId::new(id)?).in_layout(layout)]
            }
            Self::Session(hash) => {
                vec![keys::session::session(&ids::SessionId::new(hash)?).in_layout(layout)]
            }
            Self::Reviewer(user) => {
                vec![keys::approval::user_stats(&ids::UserId::new(user.as_str())?).in_layout(layout)]
            }
            Self::Delegation(owner, id) => {
                let (owner, id) = (ids::UserId::new(owner.as_str())?, ids::PolicyId::new(id)?);
                vec![keys::approval::delegation(&owner, &id).in_layout(layout)]
            }
            Self::Settings => Vec::new(),
        })
    }

    /// Its name in indexes.
    pub(super) fn member(&self) -> &str {
        match self {
            Self::Task(id) | Self::Approval(id) | Self::Session(id) | Self::Delegation(_, id) => id,
            Self::Reviewer(user) => user.as_str(),
            Self::Settings => "",
        }
    }
}

/// The fields of a hash; what has no value is left out.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    #[expect(clippy::needless_pass_by_value, reason = "callers pass values and references alike")]
    fn put(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    fn put_some(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.put(name, value),
            None => self,
        }
    }

    fn put_json(self, name: &'static str, value: &impl Serialize) -> Result<Self> {
        Ok(self.put(name, to_json(name, value)?))
    }
}

impl From<Fields> for ProjectedValue {
    fn from(Fields(fields): Fields) -> Self {
        Self::Hash(fields)
    }
}

/// The text of a unit variant, as JSON writes it.
fn name_of(value: &impl Serialize) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => Ok(name),
        other => Err(CoordinationError(format!("cannot name {other:?}"))),
    }
}

struct TaskKeys {
    id: ids::TaskId,
}

impl TaskKeys {
    fn new(id: &str) -> Result<Self> {
        Ok(Self { id: ids::TaskId::new(id)? })
    }

    fn all(&self, layout: Layout) -> Vec<RedisKey> {
        let id = &self.id;
        vec![
            keys::task::metadata(id).in_layout(layout),
            keys::task::state(id).in_layout(layout),
            keys::task::data(id).in_layout(layout),
            keys::task::config(id).in_layout(layout),
            keys::task::execution(id).in_layout(layout),
            keys::task::preview(id).in_layout(layout),
            keys::task::risk(id).in_layout(layout),
            keys::approval::by_task(id).in_layout(layout),
            keys::approval::task_stats(id).in_layout(layout),
        ]
    }
}

impl Projection {
    /// A task with its approval requests, each of which has a projection of its own.
    pub fn of_task(stored: &StoredTask, layout: Layout) -> Result<Vec<Self>> {
        let mut projections = vec![Self::of_task_alone(stored, layout)?];
        for approval in &stored.approvals {
            projections.push(Self::of_approval(approval, layout)?);
        }
        Ok(projections)
    }

    fn of_task_alone(stored: &StoredTask, layout: Layout) -> Result<Self> {
        let mut task = stored.task.clone();
        task.preview = task.preview.restricted();
        let task_keys = TaskKeys::new(&task.task_id)?;
        let id = &task_keys.id;
        let since = |state: TaskState| task.entered_at.get(&state).copied();
        let created_at = since(TaskState::Draft).unwrap_or(task.updated_at);
        let metadata = Fields::default()
            .put("author_id", &task.author_id)
            .put("author_name", &task.metadata.author_name)
            .put_some("team", task.metadata.team.as_ref())
            .put_some("ticket_ref", task.metadata.ticket_ref.as_ref())
            .put_json("tags", &task.metadata.tags)?
            .put("created_at", created_at)
            .put("updated_at", task.updated_at)
            .put_some("submitted_at", since(TaskState::Submitted))
            .put_some("approved_at", since(TaskState::Approved))
            .put_some("applying_at", since(TaskState::Applying))
            .put_some("completed_at", since(TaskState::Completed).or(since(TaskState::Failed)));
        let has_preview = task.preview != Default::default();
        let preview = if has_preview {
            ProjectedValue::Text(to_json("a preview", &task.preview)?)
        } else {
            ProjectedValue::Absent
        };
        let approvals = stored.approvals.iter().map(|approval| approval.approval_id.clone()).collect();
        let stats = keys::approval::task_stats(id);
        let keys = vec![
            ProjectedKey::new(keys::task::metadata(id).writable(), layout, metadata.into()),
            ProjectedKey::new(
                keys::task::state(id).writable(),
                layout,
                ProjectedValue::Text(task.state.to_string()),
            ),
            ProjectedKey::new(
                keys::task::data(id).writable(),
                layout,
                ProjectedValue::Text(to_json("a task", &task)?),
            ),
            ProjectedKey::new(keys::task::config(id).writable(), layout, config(&task)?.into()),
            ProjectedKey::new(
                keys::task::execution(id).writable(),
                layout,
                task.execution.as_ref().map_or(Ok(Fields::default()), execution)?.into(),
            ),
            ProjectedKey::new(keys::task::preview(id).writable(), layout, preview),
            ProjectedKey::new(keys::task::risk(id).writable(), layout, risk(&task)?.into()),
            ProjectedKey::new(keys::approval::by_task(id).writable(), layout, ProjectedValue::Set(approvals)),
            ProjectedKey::new(stats.writable(), layout, task_stats(stored).into()),
        ];
        Ok(Self {
            id: ObjectId::Task(task.task_id.clone()),
            revision: task.revision,
            keys,
            memberships: task_memberships(stored),
            created: seconds(created_at),
        })
    }

    fn of_approval(approval: &Approval, layout: Layout) -> Result<Self> {
        let chain: Vec<&UserId> = approval.delegation_chain.iter().map(|step| &step.from).collect();
        let chain: Vec<&UserId> = match chain.is_empty() {
            true => chain,
            false => chain.into_iter().chain([&approval.reviewer_id]).collect(),
        };
        let fields = Fields::default()
            .put("task_id", &approval.task_id)
            .put("reviewer_id", &approval.reviewer_id)
            .put("reviewer_name", &approval.reviewer_name)
            .put("status", approval.status)
            .put("priority", name_of(&approval.priority)?)
            .put_some("delegated_to", approval.delegated_to.as_ref())
            .put_json("delegation_chain", &chain)?
            .put("created_at", approval.created_at)
            .put("due_at", approval.due_at)
            .put_some("responded_at", approval.responded_at)
            .put_some("response_action", approval.response_action.map(DecisionKind::as_str))
            .put_some("response_reason", approval.response_reason.as_ref())
            .put_some("reviewed_by", approval.reviewed_by.as_ref());
        let id = ids::ApprovalId::new(&approval.approval_id)?;
        let key = ProjectedKey::new(keys::approval::request(&id).writable(), layout, fields.into());
        let memberships = match approval.status {
            ApprovalStatus::Pending => vec![
                Membership::ReviewerQueue(approval.reviewer_id.clone(), approval.score),
                Membership::DueQueue(seconds(approval.due_at)),
            ],
            _ => Vec::new(),
        };
        Ok(Self {
            id: ObjectId::Approval(approval.approval_id.clone()),
            revision: approval.revision,
            keys: vec![key],
            memberships,
            created: seconds(approval.created_at),
        })
    }

    /// A session. Its revision is the time of its last use; `now` determines how long it lasts.
    pub fn of_session(session: &Session, user: &User, now: Moment, layout: Layout) -> Result<Option<Self>> {
        if session.expires_at <= now {
            return Ok(None);
        }
        let granted = actor_roles(user);
        let permitted =
            PERMISSION_MATRIX.iter().filter(|(permission, _)| is_permitted(&granted, *permission));
        let permissions: Vec<&'static str> = permitted.map(|(permission, _)| permission.as_str()).collect();
        let fields = Fields::default()
            .put("user_id", &session.user_id)
            .put("user_name", &user.name)
            .put_json("roles", &user.roles)?
            .put_json("permissions", &permissions)?
            .put("created_at", session.created_at)
            .put("last_active", session.last_active)
            .put_some("ip_address", session.ip.as_ref())
            .put_some("user_agent", session.user_agent.as_ref());
        let ttl = std::time::Duration::from_millis(session.expires_at.ms_since(now));
        let id = ids::SessionId::new(&session.session_hash)?;
        let key = keys::session::session(&id);
        let writable = key.renewed_for(ttl).map_err(|error| CoordinationError(error.to_string()))?;
        Ok(Some(Self {
            id: ObjectId::Session(session.session_hash.clone()),
            revision: session.last_active.micros(),
            keys: vec![ProjectedKey::new(writable, layout, fields.into())],
            memberships: vec![Membership::SessionOf(session.user_id.clone())],
            created: seconds(session.created_at),
        }))
    }

    /// The statistics of a reviewer, as they were when the event with this number was the last one.
    pub fn of_reviewer(user: &UserId, stats: &UserStats, as_of: u64, layout: Layout) -> Result<Self> {
        let fields = Fields::default()
            .put("pending_count", stats.pending)
            .put("approved_today", stats.approved_today)
            .put("rejected_today", stats.rejected_today)
            .put_some("avg_response_time", stats.mean_seconds.map(|seconds| format!("{seconds:.3}")))
            .put_some("last_action_at", stats.last_action_at);
        let id = ids::UserId::new(user.as_str())?;
        let key = ProjectedKey::new(keys::approval::user_stats(&id).writable(), layout, fields.into());
        Ok(Self {
            id: ObjectId::Reviewer(user.clone()),
            revision: as_of,
            keys: vec![key],
            memberships: Vec::new(),
            created: 0,
        })
    }

    /// A delegation; none once it has ended.
    pub fn of_delegation(
        delegation: &Versioned<Delegation>,
        now: Moment,
        layout: Layout,
    ) -> Result<Option<Self>> {
        let Versioned { revision, value, .. } = delegation;
        // As good as for ever: a delegation without an end.
        let until = value.valid_until.unwrap_or_else(|| now.plus_ms(NO_END_MS));
        if until <= now {
            return Ok(None);
        }
        let fields = Fields::default()
            .put("owner_id", &value.owner_id)
            .put("delegate_to", &value.delegate_to)
            .put_json("conditions", &value.conditions)?
            .put("cascade", value.cascade)
            .put("active", value.active)
            .put("created_at", value.created_at)
            .put_some("expires_at", value.valid_until);
        let (owner, id) =
            (ids::UserId::new(value.owner_id.as_str())?, ids::PolicyId::new(&value.delegation_id)?);
        let key = keys::approval::delegation(&owner, &id);
        let ttl = std::time::Duration::from_millis(until.ms_since(now));
        let writable = key.writable_for(ttl).map_err(|error| CoordinationError(error.to_string()))?;
        Ok(Some(Self {
            id: ObjectId::Delegation(value.owner_id.clone(), value.delegation_id.clone()),
            revision: *revision,
            keys: vec![ProjectedKey::new(writable, layout, fields.into())],
            memberships: vec![Membership::DelegationOf(value.owner_id.clone())],
            created: seconds(value.created_at),
        }))
    }

    /// All settings and feature flags in force.
    pub fn of_settings(
        settings: &BTreeMap<String, Value>,
        flags: &BTreeMap<String, bool>,
        layout: Layout,
    ) -> Result<Self> {
        let mut projected = Vec::new();
        for (name, value) in settings {
            let name = ids::ConfigName::new(name)?;
            let key = keys::config::value(&name).writable();
            projected.push(ProjectedKey::new(key, layout, ProjectedValue::Text(setting_text(value))));
        }
        for (name, is_enabled) in flags {
            let name = ids::FlagName::new(name)?;
            let key = keys::feature::flag(&name).writable();
            let text = if *is_enabled { "enabled" } else { "disabled" };
            projected.push(ProjectedKey::new(key, layout, ProjectedValue::Text(text.to_owned())));
        }
        Ok(Self { id: ObjectId::Settings, revision: 0, keys: projected, memberships: Vec::new(), created: 0 })
    }
}

/// About ten years.
const NO_END_MS: u64 = 3_652 * 86_400_000;

/// A setting as text: a plain integer, or JSON.
#[must_use]
pub fn setting_text(value: &Value) -> String {
    value.to_string()
}

const fn seconds(at: Moment) -> u64 {
    at.micros() / 1_000_000
}

fn config(task: &Task) -> Result<Fields> {
    let config = &task.config;
    Fields::default()
        .put("type", &config.task_type)
        .put("version", &config.version)
        .put("description", &config.description)
        .put_json("parameters", &config.parameters)?
        .put_json("resources", &config.resources)
        .and_then(|fields| Ok(fields.put("rollback_strategy", name_of(&config.rollback_strategy)?)))
        .map(|fields| fields.put("timeout_seconds", config.timeout_seconds).put("priority", config.priority))
}

fn execution(execution: &Execution) -> Result<Fields> {
    let fields = Fields::default()
        .put("started_at", execution.started_at)
        .put_some("completed_at", execution.completed_at)
        .put("agent_id", &execution.worker)
        .put_some("result", execution.result.as_ref().map(name_of).transpose()?)
        .put_some("output", execution.output.as_ref())
        .put_some("output_key", execution.output_key.as_ref())
        .put_some("error", execution.error.as_ref());
    let fields = match &execution.error_details {
        Some(details) => fields.put_json("error_details", details)?,
        None => fields,
    };
    Ok(fields.put("retry_count", execution.retry_count))
}

fn risk(task: &Task) -> Result<Fields> {
    let Some(risk) = &task.risk else { return Ok(Fields::default()) };
    let fields = Fields::default().put("score", risk.score).put("level", name_of(&risk.level)?);
    let fields = fields.put_json("factors", &risk.factors)?.put("auto_approvable", task.auto_approvable);
    Ok(fields.put_some("assessed_at", task.assessed_at).put("assessed_by", &risk.assessed_by))
}

fn task_stats(task: &Task) -> Fields {
    let ReviewCounts { approved, rejected, pending, quorum_reached } = task.review_counts();
    Fields::default()
        .put("required_count", task.required_count)
        .put("approved_count", approved)
        .put("rejected_count", rejected)
        .put("pending_count", pending)
        .put("quorum_reached", quorum_reached)
}

fn task_memberships(stored: &StoredTask) -> Vec<Membership> {
    let mut memberships = vec![Membership::State(stored.state), Membership::Author(stored.author_id.clone())];
    for resource in stored.scope.locked_resources(&stored.config) {
        let id = fold(&resource.id).into_owned();
        memberships.push(Membership::Resource(resource.resource_type, id));
    }
    memberships.extend(stored.metadata.tags.iter().cloned().map(Membership::Tag));
    let requests = stored.approvals.iter().map(|approval| approval.approval_id.clone());
    memberships.extend(requests.map(Membership::Request));
    memberships.sort();
    memberships.dedup();
    memberships
}
