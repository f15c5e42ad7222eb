//! Tasks, their requests and comments: one by id, many by filter. Lists go by keys, never by offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::people::UserId;
use ade_domain::risk::History;
use ade_domain::task::{ArchivedApprovals, State, Task};
use serde::{Deserialize, Serialize};

use super::rules::{self, RulesVersion};
use super::sql::{Arg, Conditions, Row};
use super::{Database, DatabaseError};

/// A task as it was loaded, with what a commit needs to write only what differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredTask {
    pub task: Task,
    #[serde(skip)]
    pub as_read: AsRead,
}

impl From<Task> for StoredTask {
    fn from(task: Task) -> Self {
        Self { task, as_read: AsRead::default() }
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

/// What stood beside a task when it was read, so that only what differs is written; nothing for one that was not read. It says
/// nothing about the task: any two are the same.
#[derive(Debug, Clone, Default)]
pub struct AsRead {
    seen: Option<Arc<Seen>>,
    /// Who had claimed it at which revision: a commit ends every claim.
    claimed: Option<(u64, String)>,
}

#[derive(Debug)]
struct Seen {
    revision: u64,
    beside: Beside,
    mark: RulesVersion,
}

impl PartialEq for AsRead {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl AsRead {
    fn new(task: &StoredTask, mark: RulesVersion) -> Self {
        let approvals = task.approvals.iter().map(|one| (one.approval_id.clone(), one.revision));
        let beside = Beside { marks: task.marks(), approvals: approvals.collect() };
        let seen = Seen { revision: task.revision, beside, mark };
        Self { seen: Some(Arc::new(seen)), claimed: None }
    }

    /// What stood beside this revision.
    pub(super) fn at(&self, revision: u64) -> Option<&Beside> {
        self.seen.as_deref().filter(|seen| seen.revision == revision).map(|seen| &seen.beside)
    }

    /// The mark that the record had at the same moment.
    #[must_use]
    pub fn mark(&self) -> Option<&RulesVersion> {
        self.seen.as_deref().map(|seen| &seen.mark)
    }
}

/// What stands beside a task: its marks, and the revisions of its requests.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) marks: BTreeSet<(&'static str, String)>,
    pub(super) approvals: BTreeMap<String, u64>,
}

/// What somebody said about a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    /// What it is known by.
    pub comment_id: String,
    /// About which task.
    pub task_id: String,
    /// Who.
    pub author_id: UserId,
    /// What.
    pub text: String,
    /// When.
    pub created_at: Moment,
}

impl StoredTask {
    /// It was committed as it is: from now on this is how it was when it was read.
    pub fn mark_committed(&mut self) {
        if let Some(mark) = self.as_read.mark().cloned() {
            self.as_read = AsRead::new(self, mark);
        }
    }

    /// Who tries to carry it out, or tried last since it changed last.
    #[must_use]
    pub fn claimed_by(&self) -> Option<&str> {
        let claimed = self.as_read.claimed.as_ref();
        claimed.filter(|(at, _)| *at == self.revision).map(|(_, by)| by.as_str())
    }

    fn claimed(&mut self, by: Option<&str>) {
        self.as_read.claimed = by.map(|by| (self.revision, by.to_owned()));
    }

    /// What it is found by besides its own columns.
    pub(super) fn marks(&self) -> BTreeSet<(&'static str, String)> {
        let resources = self.config.resources.iter().map(|resource| ("resource", resource.name()));
        let tags = self.metadata.tags.iter().map(|tag| ("tag", tag.clone()));
        let authors = self.author_set.iter().map(|who| ("person", who.to_string()));
        let reviewers = self.reviewers().into_iter().map(|who| ("person", who.to_string()));
        resources.chain(tags).chain(authors).chain(reviewers).collect()
    }
}

/// Which tasks.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// In this state.
    pub state: Option<State>,
    /// By this author.
    pub author: Option<String>,
    /// About this resource, as `type:id`.
    pub resource: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Of this type.
    pub task_type: Option<String>,
    /// That this person may see.
    pub visible_to: Option<UserId>,
}

/// Which requests.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// To this person.
    pub reviewer: Option<UserId>,
    /// In this state.
    pub status: Option<ApprovalStatus>,
    /// Behind this one in the list: its score and its id.
    pub after: Option<(u32, String)>,
}

/// A task and its requests, in one statement, and the mark of the record: all as they were at one moment.
macro_rules! whole {
    ($task:literal) => {
        concat!(
            "SELECT 0 AS part, version AS id, body::text AS body, micros(lease_until) AS lease, archived_approvals::text AS archived_approvals, \
             claimed_by FROM tasks CROSS JOIN rules_version WHERE task_id = ",
            $task,
            " UNION ALL SELECT 1 AS part, approval_id::text AS id, body::text AS body, NULL::bigint AS lease, NULL::text AS archived_approvals, \
             NULL::text AS claimed_by FROM approvals WHERE task_id = ",
            $task,
            " ORDER BY part, id"
        )
    };
}

/// What is remembered of requests that are archived.
fn remembered(row: &Row, at: usize) -> Result<Option<ArchivedApprovals>, DatabaseError> {
    row.maybe_text(at)?.map(|_| row.json(at)).transpose()
}

impl Database {
    /// One task.
    pub async fn task(&self, task_id: &str) -> Result<Option<StoredTask>, DatabaseError> {
        self.whole(whole!("$1::uuid"), task_id).await
    }

    /// The task that a request is about.
    pub async fn task_with(&self, approval_id: &str) -> Result<Option<StoredTask>, DatabaseError> {
        self.whole(whole!("(SELECT task_id FROM approvals WHERE approval_id = $1::uuid)"), approval_id).await
    }

    async fn whole(&self, sql: &str, id: &str) -> Result<Option<StoredTask>, DatabaseError> {
        let args = [id.into()];
        self.read(async |link| {
            let rows = link.rows(sql, &args).await?;
            let Some((first, others)) = rows.split_first() else { return Ok(None) };
            let mut task: StoredTask = first.json(2)?;
            if let (Some(execution), Some(lease)) = (&mut task.execution, first.maybe_moment(3)?) {
                execution.lease_until = lease;
            }
            task.remembered = remembered(first, 4)?;
            task.approvals = others.iter().map(|row| row.json(2)).collect::<Result<_, _>>()?;
            task.as_read = AsRead::new(&task, first.text(1)?.into());
            task.claimed(first.maybe_text(5)?);
            Ok(Some(task))
        })
        .await
    }

    /// Which task a request is about.
    pub async fn task_of_approval(&self, approval_id: &str) -> Result<Option<String>, DatabaseError> {
        let args = [approval_id.into()];
        self.read(async |link| {
            let sql = "SELECT task_id::text FROM approvals WHERE approval_id = $1::uuid";
            let rows = link.rows(sql, &args).await?;
            rows.first().map(|row| row.text(0).map(str::to_owned)).transpose()
        })
        .await
    }

    /// Tasks, the newest first, without their requests; from the first one before `before`.
    pub async fn tasks(
        &self,
        filter: &TaskFilter,
        before: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, DatabaseError> {
        let person = filter.visible_to.as_ref().map(ToString::to_string);
        let mut marks: Vec<(&str, &str)> =
            [("resource", &filter.resource), ("tag", &filter.tag), ("person", &person)]
                .into_iter()
                .filter_map(|(kind, mark)| Some((kind, mark.as_deref()?)))
                .collect();
        // What is walked along, in its order, until the page is full; everything else is looked up for each that is met. Few
        // tasks are open and few are by one author, however many there are: then along those. SQLite takes a cross join as
        // it is written; PostgreSQL decides by itself.
        let few = filter.author.is_some() || filter.state.is_some_and(|state| !state.is_final());
        let along = if few || marks.is_empty() { None } else { Some(marks.remove(0)) };
        let (mut wanted, key) = match along {
            None => (
                Conditions::new("SELECT t.body::text, t.archived_approvals::text, t.claimed_by FROM tasks t"),
                "t.task_id",
            ),
            Some((kind, mark)) => {
                let found = "SELECT t.body::text, t.archived_approvals::text, t.claimed_by FROM task_labels l CROSS JOIN tasks t";
                let mut wanted = Conditions::new(found);
                wanted.and("l.kind = ? AND l.label = ?", [kind.into(), mark.into()]);
                wanted.and("t.task_id = l.task_id", []);
                (wanted, "l.task_id")
            }
        };
        if let Some(state) = filter.state {
            wanted.and("t.state = ?", [state.word().into()]);
        }
        if let Some(author) = &filter.author {
            wanted.and("t.author_id = ?", [author.as_str().into()]);
        }
        if let Some(of) = &filter.task_type {
            wanted.and("t.type = ?", [of.as_str().into()]);
        }
        for (kind, mark) in marks {
            let found = format!(
                "EXISTS (SELECT 1 FROM task_labels o WHERE o.kind = ? AND o.label = ? AND o.task_id = {key})"
            );
            wanted.and(&found, [kind.into(), mark.into()]);
        }
        if let Some(before) = before {
            wanted.and("t.task_id < ?::uuid", [before.into()]);
            if along.is_some() {
                // The same again, where the walk begins: PostgreSQL does not conclude it by itself, and would join from the
                // newest task on.
                wanted.and("l.task_id < ?::uuid", [before.into()]);
            }
        }
        wanted.sql.push_str(&format!(" ORDER BY {key} DESC LIMIT {limit}"));
        let task = |row: &Row| {
            let mut task: StoredTask = row.json(0)?;
            task.remembered = remembered(row, 1)?;
            task.claimed(row.maybe_text(2)?);
            Ok(task)
        };
        self.read(async |link| link.rows(&wanted.sql, &wanted.args).await?.iter().map(task).collect()).await
    }

    /// Requests, the highest score first.
    pub async fn approvals(
        &self,
        filter: &ApprovalFilter,
        limit: u32,
    ) -> Result<Vec<Approval>, DatabaseError> {
        let mut wanted = Conditions::new("SELECT body::text FROM approvals");
        if let Some(reviewer) = &filter.reviewer {
            wanted.and("reviewer_id = ?", [reviewer.as_str().into()]);
        }
        if let Some(status) = filter.status {
            let word = serde_json::to_value(status).ok();
            let word = word.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
            wanted.and("status = ?", [word.into()]);
        }
        if let Some((score, id)) = &filter.after {
            let score = Arg::Int((*score).into());
            let args = [score.clone(), score, id.as_str().into()];
            // The first condition says nothing new, but an index knows where to begin by it.
            wanted.and("score <= ? AND (score < ? OR approval_id > ?::uuid)", args);
        }
        wanted.sql.push_str(&format!(" ORDER BY score DESC, approval_id LIMIT {limit}"));
        self.read(async |link| {
            link.rows(&wanted.sql, &wanted.args).await?.iter().map(|row| row.json(0)).collect()
        })
        .await
    }

    /// Requests that nobody answered in time, the longest waiting first: each with its task.
    pub async fn overdue(&self, now: Moment, limit: u32) -> Result<Vec<(String, String)>, DatabaseError> {
        let sql = format!(
            "SELECT approval_id::text, task_id::text FROM approvals \
             WHERE status = 'PENDING' AND due_at <= moment($1) ORDER BY due_at LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[now.into()]).await?;
            rows.iter().map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned()))).collect()
        })
        .await
    }

    /// Tasks whose approval has ended.
    pub async fn expired(&self, now: Moment, limit: u32) -> Result<Vec<String>, DatabaseError> {
        let sql = format!(
            "SELECT task_id::text FROM tasks WHERE approval_expires_at <= moment($1) \
             ORDER BY approval_expires_at LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[now.into()]).await?;
            rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
        })
        .await
    }

    /// How the last finished tasks of a type ended, and the mark of the record: both as they were at one moment.
    pub async fn history(
        &self,
        task_type: &str,
        most: u32,
    ) -> Result<(RulesVersion, History), DatabaseError> {
        let sql = format!(
            "SELECT rules_version.version, ended.finished, ended.failed FROM rules_version CROSS JOIN \
             (SELECT count(*)::bigint AS finished, count(CASE WHEN state = 'FAILED' THEN 1 END)::bigint AS failed FROM \
             (SELECT state FROM tasks WHERE type = $1 AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT {most}) AS last) \
             AS ended"
        );
        let args = [task_type.into()];
        self.read(async |link| {
            let rows = link.rows(&sql, &args).await?;
            let row = rows.first().ok_or_else(rules::without_mark)?;
            let count = |at| row.number(at).map(|many| u32::try_from(many).unwrap_or(u32::MAX));
            Ok((row.text(0)?.into(), History { finished: count(1)?, failed: count(2)? }))
        })
        .await
    }

    /// What was said about a task, in order.
    pub async fn comments(&self, task_id: &str) -> Result<Vec<Comment>, DatabaseError> {
        let args = [task_id.into()];
        self.read(async |link| {
            let sql = "SELECT body::text FROM comments WHERE task_id = $1::uuid ORDER BY comment_id";
            link.rows(sql, &args).await?.iter().map(|row| row.json(0)).collect()
        })
        .await
    }
}
