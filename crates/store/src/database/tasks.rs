//! Tasks and their comments: one by id, many by filter. Lists are paged by keys, never by offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::Approval;
use ade_domain::normal_form::fold;
use ade_domain::people::UserId;
use ade_domain::risk::{FailureHistory, RiskLevel};
use ade_domain::task::{AGENT_EXECUTOR, Task, TaskState};
use serde::{Deserialize, Serialize};

use super::documents::{RulesVersion, missing_rules_version};
use super::sql::{Row, Select, uuid};
use super::{Database, DatabaseError, Result};

/// Who has claimed the current revision of the task `t`.
const CLAIMED_BY: &str =
    "(SELECT c.claimed_by FROM task_claims c WHERE c.task_id = t.task_id AND c.revision = t.revision)";

/// A task, with what a commit needs to write only the differences to the loaded version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredTask {
    pub task: Task,
    #[serde(skip)]
    pub loaded_version: LoadedVersion,
}

impl From<Task> for StoredTask {
    fn from(task: Task) -> Self {
        Self { task, loaded_version: LoadedVersion::default() }
    }
}

impl Deref for StoredTask {
    type Target = Task;

    fn deref(&self) -> &Task {
        &self.task
    }
}

impl DerefMut for StoredTask {
    fn deref_mut(&mut self) -> &mut Task {
        &mut self.task
    }
}

/// The version of a task that was loaded; empty for a new task. It is not part of the task: any two are equal.
#[derive(Debug, Clone, Default)]
pub struct LoadedVersion {
    loaded: Option<Arc<Loaded>>,
    /// Revision and claimant. A claim ends with the next revision.
    claim: Option<(u64, String)>,
}

/// What was loaded: a revision, the rules version at that time, and the rows of other tables that belong to the task.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    revision: u64,
    rules_version: RulesVersion,
    pub(super) labels: BTreeSet<(&'static str, String)>,
    pub(super) approval_revisions: BTreeMap<String, u64>,
}

impl PartialEq for LoadedVersion {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl LoadedVersion {
    fn new(task: &StoredTask, rules_version: RulesVersion) -> Self {
        let revision = |approval: &Approval| (approval.approval_id.clone(), approval.revision);
        let loaded = Loaded {
            revision: task.revision,
            rules_version,
            labels: task.labels(),
            approval_revisions: task.approvals.iter().map(revision).collect(),
        };
        Self { loaded: Some(Arc::new(loaded)), claim: None }
    }

    /// What was loaded, if this revision was.
    pub(super) fn at(&self, revision: u64) -> Option<&Loaded> {
        self.loaded.as_deref().filter(|loaded| loaded.revision == revision)
    }

    /// The rules version at the time of loading.
    #[must_use]
    pub fn rules_version(&self) -> Option<&RulesVersion> {
        self.loaded.as_deref().map(|loaded| &loaded.rules_version)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    pub comment_id: String,
    pub task_id: String,
    pub author_id: UserId,
    /// The agent that wrote it for the author, if one did.
    pub agent_id: Option<String>,
    pub text: String,
    pub created_at: Moment,
}

impl StoredTask {
    /// Call it after a successful commit: the task as it is now becomes the loaded version.
    pub fn mark_committed(&mut self) {
        if let Some(version) = self.loaded_version.rules_version().cloned() {
            self.loaded_version = LoadedVersion::new(self, version);
        }
    }

    /// The worker that has claimed this revision of the task, or claimed it last.
    #[must_use]
    pub fn claimed_by(&self) -> Option<&str> {
        let claim = self.loaded_version.claim.as_ref();
        claim.filter(|(revision, _)| *revision == self.revision).map(|(_, by)| by.as_str())
    }

    fn set_claim(&mut self, by: Option<String>) {
        self.loaded_version.claim = by.map(|by| (self.revision, by));
    }

    /// Kind and value of everything that the task is found by besides its own columns.
    #[must_use]
    pub fn labels(&self) -> BTreeSet<(&'static str, String)> {
        let resources = self.scope.locked_resources(&self.config).into_iter();
        let resources = resources.map(|resource| ("resource", fold(&resource.name()).into_owned()));
        let tags = self.metadata.tags.iter().map(|tag| ("tag", tag.clone()));
        let authors = self.author_set.iter().map(|user_id| ("person", user_id.to_string()));
        let reviewers = self.reviewers().into_iter().map(|user_id| ("person", user_id.to_string()));
        let agents = self.agents().into_iter().map(|agent| ("agent", agent.to_owned()));
        let risk = self.risk.iter().map(|risk| ("risk", risk.level.to_string()));
        resources.chain(risk).chain(tags).chain(authors).chain(reviewers).chain(agents).collect()
    }

    /// The agents that proposed, changed or submitted it, and the one that applies it.
    fn agents(&self) -> BTreeSet<&str> {
        let is_applied_by_agent = self.config.executor == AGENT_EXECUTOR;
        let applies = self.execution.as_ref().filter(|_| is_applied_by_agent);
        let authors = self.by_agent.iter().chain(&self.metadata.lineage.agent_id);
        authors.map(String::as_str).chain(applies.map(|execution| execution.worker.as_str())).collect()
    }
}

/// How a task of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOutcome {
    pub agent_id: String,
    pub task_id: String,
    pub task_type: String,
    pub state: TaskState,
    pub at: Moment,
}

/// Tasks of an agent whose outcomes are looked for, the newest first: one with more open tasks has fewer outcomes.
const MAX_SEARCHED_TASKS: u32 = 200;

#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only these tasks.
    pub ids: Option<Vec<String>>,
    pub state: Option<TaskState>,
    pub risk: Option<RiskLevel>,
    pub author: Option<String>,
    /// As `type:id`.
    pub resource: Option<String>,
    pub tag: Option<String>,
    /// An agent that proposed it or applies it.
    pub agent: Option<String>,
    pub task_type: Option<String>,
    pub visible_to: Option<UserId>,
    /// Of what is visible to this user, only what the user is an author of.
    pub authored_only: bool,
}

impl Database {
    pub async fn task(&self, task_id: &str) -> Result<Option<StoredTask>> {
        self.whole_task("$1", task_id).await
    }

    /// The task of an approval request.
    pub async fn task_by_approval(&self, approval_id: &str) -> Result<Option<StoredTask>> {
        self.whole_task("(SELECT task_id FROM approvals WHERE approval_id = $1)", approval_id).await
    }

    /// Selects a task, its approval requests and the rules version in one statement, so that all are of the same snapshot.
    async fn whole_task(&self, task_id: &str, arg: &str) -> Result<Option<StoredTask>> {
        let claimed_by = CLAIMED_BY;
        let sql = format!(
            "SELECT 'approval' AS kind, approval_id::text AS id, body, NULL::bigint AS lease, \
             NULL::text AS archived_approvals, NULL::text AS claimed_by, 0::bigint AS restored FROM approvals \
             WHERE task_id = {task_id} \
             UNION ALL SELECT 'task' AS kind, version AS id, body, micros(lease_until) AS lease, \
             archived_approvals, {claimed_by} AS claimed_by, restored \
             FROM tasks t CROSS JOIN rules_version WHERE task_id = {task_id} ORDER BY kind, id"
        );
        let rows = self.read(async |connection| connection.query(&sql, &[uuid(arg)]).await).await?;
        // `task` sorts after `approval`.
        let Some((last, approvals)) = rows.split_last() else { return Ok(None) };
        let mut task: StoredTask = last.json(2)?;
        if let (Some(execution), Some(lease_until)) = (&mut task.execution, last.get(3)?) {
            execution.lease_until = lease_until;
        }
        task.archived_approvals = last.json(4)?;
        task.approvals = approvals.iter().map(|row| row.json(2)).collect::<Result<_>>()?;
        task.loaded_version = LoadedVersion::new(&task, RulesVersion(last.get(1)?));
        task.set_claim(last.get(5)?);
        task.restored = last.get(6)?;
        Ok(Some(task))
    }

    /// The id of the task of an approval request.
    pub async fn task_id_by_approval(&self, approval_id: &str) -> Result<Option<String>> {
        let sql = "SELECT task_id::text FROM approvals WHERE approval_id = $1";
        self.fetch_first(sql, &[uuid(approval_id)], |row| row.get(0)).await
    }

    /// Tasks without their approval requests, the newest first; only those before the id `before`.
    pub async fn tasks(
        &self,
        filter: &TaskFilter,
        before: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StoredTask>> {
        let columns = format!("SELECT t.body, t.archived_approvals, {CLAIMED_BY}, t.restored FROM");
        let person = filter.visible_to.as_ref().map(ToString::to_string);
        let risk = filter.risk.map(|level| level.to_string());
        let mut labels: Vec<(&str, &str)> = [
            ("agent", &filter.agent),
            ("resource", &filter.resource),
            ("tag", &filter.tag),
            ("risk", &risk),
            ("person", &person),
        ]
        .into_iter()
        .filter_map(|(kind, label)| Some((kind, label.as_deref()?)))
        .collect();
        // One index is scanned in its order until the page is full; every other condition is looked up for each row. Few tasks
        // are open and few are by one author, however many tasks there are: then the tasks themselves are scanned, otherwise
        // the first label. SQLite takes a cross join as it is written; PostgreSQL decides by itself.
        let is_selective = filter.ids.is_some()
            || filter.author.is_some()
            || filter.state.is_some_and(|state| !state.is_final());
        let scanned_label = if is_selective || labels.is_empty() { None } else { Some(labels.remove(0)) };
        let (mut select, key) = match scanned_label {
            None => (Select::new(&format!("{columns} tasks t")), "t.task_id"),
            Some((kind, label)) => {
                let mut select = Select::new(&format!("{columns} task_labels l CROSS JOIN tasks t"));
                select.and("l.kind = ? AND l.label = ?", [kind.into(), label.into()]);
                select.and("t.task_id = l.task_id", []);
                (select, "l.task_id")
            }
        };
        if let Some(ids) = &filter.ids {
            select.and_in("t.task_id", ids.iter().map(|id| uuid(id)));
        }
        select.and_if("t.state = ?", filter.state.map(|state| state.as_str()));
        select.and_if("t.author_id = ?", filter.author.as_deref());
        select.and_if("t.type = ?", filter.task_type.as_deref());
        if filter.authored_only {
            select.and_if("t.body::jsonb->'author_set'->>? IS NOT NULL", person.as_deref());
        }
        for (kind, label) in labels {
            let exists = format!(
                "EXISTS (SELECT 1 FROM task_labels o WHERE o.kind = ? AND o.label = ? AND o.task_id = {key})"
            );
            select.and(&exists, [kind.into(), label.into()]);
        }
        if let Some(before) = before {
            select.and("t.task_id < ?", [uuid(before)]);
            if scanned_label.is_some() {
                // PostgreSQL does not infer this from the join, and would scan the index from the newest task on.
                select.and("l.task_id < ?", [uuid(before)]);
            }
        }
        select.sql.push_str(&format!(" ORDER BY {key} DESC"));
        let task = |row: &Row| {
            let mut task: StoredTask = row.json(0)?;
            task.archived_approvals = row.json(1)?;
            task.set_claim(row.get(2)?);
            task.restored = row.get(3)?;
            Ok(task)
        };
        self.fetch_page(&select.sql, &select.args, limit, task).await
    }

    /// How the last tasks of each of these agents ended, the newest first; at most `limit` of each. `filter` says whose tasks are
    /// visible; its other fields are ignored.
    pub async fn agent_outcomes(
        &self,
        agents: &[&str],
        filter: &TaskFilter,
        limit: u32,
    ) -> Result<Vec<AgentOutcome>> {
        let (mut args, mut parts) = (Vec::new(), Vec::new());
        let mut visible = String::new();
        if let Some(person) = &filter.visible_to {
            args.push(person.as_str().into());
            visible.push_str(
                " AND EXISTS (SELECT 1 FROM task_labels o WHERE o.kind = 'person' AND o.label = $1 AND o.task_id = t.task_id)",
            );
            if filter.authored_only {
                visible.push_str(" AND t.body::jsonb->'author_set'->>$1 IS NOT NULL");
            }
        }
        // One statement with a part for each agent, which reads no more of its index than it needs.
        for agent in agents {
            args.push((*agent).into());
            let arg = args.len();
            parts.push(format!(
                "SELECT * FROM (SELECT l.label, t.task_id::text AS id, t.type, t.state, micros(t.closed_at) AS at FROM \
                 (SELECT label, task_id FROM task_labels WHERE kind = 'agent' AND label = ${arg} \
                 ORDER BY task_id DESC LIMIT {MAX_SEARCHED_TASKS}) AS l JOIN tasks t ON t.task_id = l.task_id \
                 WHERE t.closed_at IS NOT NULL{visible} ORDER BY l.task_id DESC LIMIT {limit}) AS of{arg}"
            ));
        }
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let outcome = |row: &Row| {
            let state: String = row.get(3)?;
            let unknown = |_| DatabaseError::Corrupt(format!("unknown state {state}"));
            Ok(AgentOutcome {
                agent_id: row.get(0)?,
                task_id: row.get(1)?,
                task_type: row.get(2)?,
                state: serde_json::from_value(state.as_str().into()).map_err(unknown)?,
                at: row.get(4)?,
            })
        };
        self.scan(&parts.join(" UNION ALL "), &args).await?.iter().map(outcome).collect()
    }

    /// Ids of tasks whose approval has expired.
    pub async fn tasks_with_expired_approval(&self, now: Moment, limit: u32) -> Result<Vec<String>> {
        let sql = "SELECT task_id::text FROM tasks WHERE approval_expires_at <= $1 \
                   ORDER BY approval_expires_at";
        self.fetch_page(sql, &[now.into()], limit, |row| row.get(0)).await
    }

    /// How the last `limit` finished tasks of a type ended, with the rules version of the same snapshot.
    pub async fn task_history(&self, task_type: &str, limit: u32) -> Result<(RulesVersion, FailureHistory)> {
        let sql = format!(
            "SELECT rules_version.version, counts.finished, counts.failed FROM rules_version CROSS JOIN \
             (SELECT count(*)::bigint AS finished, count(CASE WHEN state = 'FAILED' THEN 1 END)::bigint AS failed FROM \
             (SELECT state FROM tasks WHERE type = $1 AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT {limit}) AS last) \
             AS counts"
        );
        let history = |row: &Row| {
            let count = |at| row.get::<u64>(at).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            Ok((RulesVersion(row.get(0)?), FailureHistory { finished: count(1)?, failed: count(2)? }))
        };
        let found = self.fetch_first(&sql, &[task_type.into()], history).await?;
        found.ok_or_else(missing_rules_version)
    }

    /// The comments on a task, the oldest first.
    pub async fn comments(&self, task_id: &str) -> Result<Vec<Comment>> {
        let sql = "SELECT body FROM comments WHERE task_id = $1 ORDER BY comment_id";
        self.fetch_all(sql, &[uuid(task_id)], Row::body).await
    }
}
