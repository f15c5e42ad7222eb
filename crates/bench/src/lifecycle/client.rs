//! A client of the lifecycle benchmark: an author who proposes, a reviewer who approves and an observer who polls for completed
//! tasks, in parallel and each on its own connection. It never has more than a fixed number of tasks in flight.
//!
//! A task counts only when the server reports it as COMPLETED, and the client waits for every task that it created.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_client::wire::{LockMode, Page, Resource, TaskRequest, TaskState};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::environment::{Environment, FILES_ROOT, author, reviewer, task_type};
use crate::approvals::with_token_of;
use crate::error::{BenchError, ErrorKind};
use crate::http_client::{self, Connection};

/// Bounds of the poll interval. Lists cost the server time, so the interval adapts to the rate of completion.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A task that takes longer is looked up by id, this often: it may be behind the pages that are read, or have failed.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// Lookups by id at a time, so that they do not load the server.
const MAX_LATE_LOOKUPS: usize = 4;
/// Without any progress for this long, the benchmark fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(60);
const MIN_PAGE: usize = 8;
const MAX_PAGE: usize = 200;
/// Resources of a client: more than its tasks in flight, so that no task waits for a lock of another.
const RESOURCES: usize = 1_000;

/// What the tasks of a row do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    Noop,
    Files,
}

impl Workload {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Files => "files",
        }
    }
}

/// A completed lifecycle: when create and approve were sent, and when the client saw COMPLETED.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifecycle {
    pub(super) created: Instant,
    pub(super) approved: Instant,
    pub(super) completed: Instant,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(super) number: usize,
    /// Ids of all tasks of all rounds, in order.
    pub(super) created: Vec<String>,
    workload: Workload,
    window: usize,
    author: Connection,
    reviewer: Connection,
    observer: Connection,
}

#[derive(Debug)]
struct InFlight {
    created: Instant,
    approved: Option<Instant>,
}

/// State shared by author, reviewer and observer of a client.
#[derive(Debug)]
struct Shared {
    free_slots: Semaphore,
    in_flight: Mutex<BTreeMap<String, InFlight>>,
    submitted: Notify,
    has_stopped_proposing: Mutex<bool>,
}

/// The fields of a task that are needed here.
#[derive(Debug, Deserialize)]
struct TaskStatus {
    task_id: String,
    state: TaskState,
}

/// The fields of an approval request that are needed here.
#[derive(Debug, Deserialize)]
struct PendingApproval {
    approval_id: String,
    task_id: String,
    digest: String,
    scope_digest: Option<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(message: String) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, message)
}

/// Path below the root and content of the file that a task writes.
pub(super) fn file(client: usize, number: usize) -> (String, String) {
    (format!("{client:03}/{number:08}/settings.ini"), format!("client = {client}\nnumber = {number}\n"))
}

impl Shared {
    fn has_stopped_proposing(&self) -> bool {
        *lock(&self.has_stopped_proposing)
    }

    fn oldest_approved(&self) -> Option<String> {
        let in_flight = lock(&self.in_flight);
        in_flight.iter().find(|(_, task)| task.approved.is_some()).map(|(id, _)| id.clone())
    }

    fn has_unapproved(&self) -> bool {
        lock(&self.in_flight).values().any(|task| task.approved.is_none())
    }

    /// Does nothing if the task is already complete.
    fn complete(&self, task_id: &str, lifecycles: &mut Vec<Lifecycle>) {
        let Some(task) = lock(&self.in_flight).remove(task_id) else { return };
        let completed = Instant::now();
        let approved = task.approved.unwrap_or(completed);
        lifecycles.push(Lifecycle { created: task.created, approved, completed });
        self.free_slots.add_permits(1);
    }
}

impl Client {
    pub(super) async fn connect(
        environment: &Environment,
        number: usize,
        workload: Workload,
        window: usize,
    ) -> Result<Self, BenchError> {
        let target = &environment.server.target;
        let mut admin = target.connect().await?;
        let as_author = with_token_of(&mut admin, target, &author(number), false).await?;
        let as_reviewer = with_token_of(&mut admin, target, &reviewer(number), true).await?;
        Ok(Self {
            number,
            created: Vec::new(),
            workload,
            window,
            author: as_author.connect().await?,
            reviewer: as_reviewer.connect().await?,
            observer: as_author.connect().await?,
        })
    }

    pub(super) fn writes_files(&self) -> bool {
        self.workload == Workload::Files
    }

    /// Proposes tasks until the deadline, then waits until all are completed.
    pub(super) async fn run(mut self, deadline: Instant) -> Result<(Self, Vec<Lifecycle>), BenchError> {
        let shared = Shared {
            free_slots: Semaphore::new(self.window),
            in_flight: Mutex::default(),
            submitted: Notify::new(),
            has_stopped_proposing: Mutex::new(false),
        };
        let completed_list = format!("/api/v1/tasks?author={}&state=COMPLETED", author(self.number));
        let template = TaskTemplate { client: self.number, workload: self.workload };
        let proposing = propose(&mut self.author, &mut self.created, &template, &shared, deadline);
        let approving = approve(&mut self.reviewer, &shared);
        let observing = observe(&mut self.observer, &completed_list, self.window, &shared);
        let ((), (), lifecycles) = tokio::try_join!(proposing, approving, observing)?;
        Ok((self, lifecycles))
    }
}

struct TaskTemplate {
    client: usize,
    workload: Workload,
}

impl TaskTemplate {
    fn body(&self, number: usize) -> Result<bytes::Bytes, BenchError> {
        let parameters = match self.workload {
            Workload::Noop => json!({ "version": format!("2.{number}"), "replicas": 3 }),
            Workload::Files => {
                let (path, content) = file(self.client, number);
                json!({ "root": FILES_ROOT, "files": [{ "path": path, "content": content }] })
            }
        };
        let resource = Resource {
            resource_type: "service".to_owned(),
            id: format!("measured-{}-{}", self.client, number % RESOURCES),
            mode: LockMode::Exclusive,
        };
        http_client::to_json(&TaskRequest {
            task_type: Some(task_type(self.client)),
            description: Some(format!("task {number} of the benchmark")),
            executor: Some(self.workload.name().to_owned()),
            parameters: parameters.as_object().cloned(),
            resources: Some(vec![resource]),
            tags: Some(vec!["measured".to_owned()]),
            ..TaskRequest::default()
        })
    }
}

async fn propose(
    connection: &mut Connection,
    created_ids: &mut Vec<String>,
    template: &TaskTemplate,
    shared: &Shared,
    deadline: Instant,
) -> Result<(), BenchError> {
    while Instant::now() < deadline {
        let Ok(Ok(slot)) = timeout_at(deadline, shared.free_slots.acquire()).await else { break };
        // The observer returns the slot when the task is completed.
        slot.forget();
        let body = template.body(created_ids.len())?;
        let created = Instant::now();
        let response = connection.post("/api/v1/tasks", body).await?.expect(201)?;
        let id = response.find_text("task_id");
        let id = id.ok_or_else(|| failed("a response has no task id".to_owned()))?.to_owned();
        created_ids.push(id.clone());
        let submit = format!("/api/v1/tasks/{id}/submit");
        lock(&shared.in_flight).insert(id, InFlight { created, approved: None });
        connection.post(&submit, "{}").await?.expect(202)?;
        shared.submitted.notify_one();
    }
    *lock(&shared.has_stopped_proposing) = true;
    shared.submitted.notify_one();
    Ok(())
}

/// Reads the inbox after each submission and approves all requests in it.
async fn approve(connection: &mut Connection, shared: &Shared) -> Result<(), BenchError> {
    const INBOX: &str = "/api/v1/approvals?reviewer=me&status=PENDING&limit=200";
    loop {
        if timeout(PROGRESS_TIMEOUT, shared.submitted.notified()).await.is_err() {
            return Err(failed(format!("no task was submitted for {} s", PROGRESS_TIMEOUT.as_secs())));
        }
        // One page is enough: no client has more tasks in flight.
        let page: Page<PendingApproval> = connection.get(INBOX).await?.expect(200)?.json()?;
        for PendingApproval { approval_id, task_id, digest, scope_digest } in page.items {
            let body = http_client::approval_body(digest, scope_digest)?;
            if let Some(task) = lock(&shared.in_flight).get_mut(&task_id) {
                task.approved = Some(Instant::now());
            }
            connection.post(&format!("/api/v1/approvals/{approval_id}/approve"), body).await?.expect(200)?;
        }
        if shared.has_stopped_proposing() {
            if !shared.has_unapproved() {
                return Ok(());
            }
            // A task was submitted after the inbox was read.
            shared.submitted.notify_one();
        }
    }
}

/// Polls for completed tasks until all are completed.
async fn observe(
    connection: &mut Connection,
    completed_list: &str,
    window: usize,
    shared: &Shared,
) -> Result<Vec<Lifecycle>, BenchError> {
    let (mut lifecycles, mut expected, mut last_progress) = (Vec::new(), 0, Instant::now());
    let (mut last_lookup, mut interval) = (Instant::now(), MIN_POLL_INTERVAL);
    loop {
        if lock(&shared.in_flight).is_empty() {
            if shared.has_stopped_proposing() {
                return Ok(lifecycles);
            }
            last_progress = Instant::now();
        }
        sleep(interval).await;
        let before = lifecycles.len();
        read_newest(connection, completed_list, expected, shared, &mut lifecycles).await?;
        expected = lifecycles.len() - before;
        // At the end few tasks complete per poll, but the last ones must not wait for a long interval.
        let is_behind = shared.has_stopped_proposing() || expected > window / 4;
        interval = if is_behind { interval / 2 } else { interval * 3 / 2 };
        interval = interval.clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        if last_lookup.elapsed() > LATE_AFTER {
            last_lookup = Instant::now();
            look_up_late(connection, shared, &mut lifecycles).await?;
        }
        if lifecycles.len() > before {
            last_progress = Instant::now();
        } else if last_progress.elapsed() > PROGRESS_TIMEOUT {
            let count = lock(&shared.in_flight).len();
            let seconds = PROGRESS_TIMEOUT.as_secs();
            return Err(failed(format!("none of {count} tasks was completed within {seconds} s")));
        }
    }
}

/// Reads pages, newest tasks first, back to the oldest task in flight. Tasks complete about in the order of their creation, so
/// this reads little more than the new ones. A task that takes long is left to [`look_up_late`].
async fn read_newest(
    connection: &mut Connection,
    completed_list: &str,
    expected: usize,
    shared: &Shared,
    lifecycles: &mut Vec<Lifecycle>,
) -> Result<(), BenchError> {
    let limit = (expected + MIN_PAGE).min(MAX_PAGE);
    let (mut cursor, mut read) = (String::new(), 0);
    // Ids are ordered by the time of creation.
    while let Some(oldest) = shared.oldest_approved()
        && read <= 2 * limit
    {
        let response =
            connection.get(&format!("{completed_list}&limit={limit}{cursor}")).await?.expect(200)?;
        let page: Page<TaskStatus> = response.json()?;
        read += page.items.len();
        for task in &page.items {
            shared.complete(&task.task_id, lifecycles);
        }
        match (page.next_cursor, page.items.last()) {
            (Some(next), Some(last)) if last.task_id > oldest => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    Ok(())
}

/// Looks up tasks that were approved long ago. Fails if one can no longer complete.
async fn look_up_late(
    connection: &mut Connection,
    shared: &Shared,
    lifecycles: &mut Vec<Lifecycle>,
) -> Result<(), BenchError> {
    let late: Vec<String> = {
        let in_flight = lock(&shared.in_flight);
        let is_late = |task: &InFlight| task.approved.is_some_and(|at| at.elapsed() > LATE_AFTER);
        let late = in_flight.iter().filter(|(_, task)| is_late(task)).map(|(id, _)| id.clone());
        late.take(MAX_LATE_LOOKUPS).collect()
    };
    for id in late {
        let task: TaskStatus = connection.get(&format!("/api/v1/tasks/{id}")).await?.expect(200)?.json()?;
        match task.state {
            TaskState::Completed => shared.complete(&id, lifecycles),
            TaskState::Approved | TaskState::Applying => {}
            other => return Err(failed(format!("task {id} is {other:?}, it will not be completed"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn tasks_write_to_separate_folders() {
        let folder = |client, number| Path::new(&file(client, number).0).parent().map(Path::to_owned);
        assert_ne!(folder(0, 1), folder(0, 2));
        assert_ne!(folder(0, 1), folder(1, 1));
    }
}
