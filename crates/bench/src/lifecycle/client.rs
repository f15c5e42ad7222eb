//! One client: an author that proposes, a reviewer that approves, and somebody who looks what is completed, at once and each
//! over a connection of its own. So many tasks are under way, never more.
//!
//! Nothing is assumed: a task counts when the server says that it is COMPLETED, and each that was created is waited for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ade_client::wire::{Page, TaskRequest};
use ade_domain::task::{Resource, ResourceMode, State};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::place::{Place, author, kind, reviewer};
use crate::approvals::sign_in;
use crate::error::{BenchError, ErrorKind};
use crate::link::{self, Link};

/// How often a client looks what is completed, at most and at least. A list costs the server something, so that a client looks
/// again when it can expect to see a part of what it waits for, and not more often.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How often a client looks at a task by itself that takes long: it may be behind the pages that are read, or have failed.
const LONG: Duration = Duration::from_secs(1);
/// So many of those at most; looking must not be what keeps the server busy.
const LATE_AT_ONCE: usize = 4;
/// After this without any task completed, something is wrong.
const TOO_LONG: Duration = Duration::from_secs(60);
/// Tasks of a page, at least and at most.
const PAGE: (usize, usize) = (8, 200);
/// Resources of a client: more than it has tasks under way, so that none waits for another.
const RESOURCES: usize = 1_000;

/// What tasks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Deed {
    Noop,
    Files,
}

impl Deed {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Files => "files",
        }
    }
}

/// A lifecycle that was seen to its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifecycle {
    pub(super) created: Instant,
    pub(super) approved: Instant,
    pub(super) seen: Instant,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: usize,
    /// Everything that it ever created, in this order.
    pub(super) created: Vec<String>,
    deed: Deed,
    root: String,
    window: usize,
    author: Link,
    reviewer: Link,
    looks: Link,
}

/// A task under way.
#[derive(Debug)]
struct Flight {
    created: Instant,
    approved: Option<Instant>,
}

/// What the three of a client know together.
#[derive(Debug)]
struct Shared {
    room: Semaphore,
    flights: Mutex<BTreeMap<String, Flight>>,
    submitted: Notify,
    over: Mutex<bool>,
}

/// As much of a task as must be known.
#[derive(Debug, Deserialize)]
struct Stands {
    task_id: String,
    state: State,
}

/// As much of a request.
#[derive(Debug, Deserialize)]
struct Asked {
    approval_id: String,
    task_id: String,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wrong(message: String) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, message)
}

/// Where a task puts its file, below the root, and what is in it.
pub(super) fn file(client: usize, number: usize) -> (String, String) {
    (format!("{client:03}/{number:08}/settings.ini"), format!("client = {client}\nnumber = {number}\n"))
}

impl Shared {
    fn is_over(&self) -> bool {
        *held(&self.over)
    }

    fn oldest_approved(&self) -> Option<String> {
        let flights = held(&self.flights);
        flights.iter().find(|(_, flight)| flight.approved.is_some()).map(|(id, _)| id.clone())
    }

    /// Tasks that nobody approved so far.
    fn has_unapproved(&self) -> bool {
        held(&self.flights).values().any(|flight| flight.approved.is_none())
    }
}

impl Client {
    pub(super) async fn make(
        place: &Place,
        number: usize,
        deed: Deed,
        window: usize,
    ) -> Result<Self, BenchError> {
        let target = &place.subject.target;
        let mut admin = target.link().await?;
        let proposes = sign_in(&mut admin, target, &author(number), false).await?;
        let decides = sign_in(&mut admin, target, &reviewer(number), true).await?;
        Ok(Self {
            number,
            created: Vec::new(),
            deed,
            root: place.root.to_string_lossy().into_owned(),
            window,
            author: proposes.link().await?,
            reviewer: decides.link().await?,
            looks: proposes.link().await?,
        })
    }

    pub(super) fn writes_files(&self) -> bool {
        self.deed == Deed::Files
    }

    /// Proposes until then, and waits for all that was proposed.
    pub(super) async fn run(mut self, until: Instant) -> Result<(Self, Vec<Lifecycle>), BenchError> {
        let shared = Shared {
            room: Semaphore::new(self.window),
            flights: Mutex::default(),
            submitted: Notify::new(),
            over: Mutex::new(false),
        };
        let mine = format!("/api/v1/tasks?author={}&state=COMPLETED", author(self.number));
        let proposal = Proposal { client: self.number, deed: self.deed, root: &self.root };
        let proposing = propose(&mut self.author, &mut self.created, &proposal, &shared, until);
        let approving = approve(&mut self.reviewer, &shared);
        let looking = look(&mut self.looks, &mine, self.window, &shared);
        let ((), (), seen) = tokio::try_join!(proposing, approving, looking)?;
        Ok((self, seen))
    }
}

struct Proposal<'a> {
    client: usize,
    deed: Deed,
    root: &'a str,
}

impl Proposal<'_> {
    fn body(&self, number: usize) -> Result<bytes::Bytes, BenchError> {
        let parameters = match self.deed {
            Deed::Noop => json!({ "version": format!("2.{number}"), "replicas": 3 }),
            Deed::Files => {
                let (path, content) = file(self.client, number);
                json!({ "root": self.root, "files": [{ "path": path, "content": content }] })
            }
        };
        let resource = Resource {
            resource_type: "service".to_owned(),
            id: format!("measured-{}-{}", self.client, number % RESOURCES),
            mode: ResourceMode::Exclusive,
        };
        link::body(&TaskRequest {
            task_type: Some(kind(self.client)),
            description: Some(format!("number {number} of a measurement")),
            executor: Some(self.deed.name().to_owned()),
            parameters: parameters.as_object().cloned(),
            resources: Some(vec![resource]),
            tags: Some(vec!["measured".to_owned()]),
            ..TaskRequest::default()
        })
    }
}

async fn propose(
    link: &mut Link,
    made: &mut Vec<String>,
    proposal: &Proposal<'_>,
    shared: &Shared,
    until: Instant,
) -> Result<(), BenchError> {
    while Instant::now() < until {
        let Ok(Ok(room)) = tokio::time::timeout_at(until, shared.room.acquire()).await else { break };
        // Whoever sees the task completed gives it back.
        room.forget();
        let body = proposal.body(made.len())?;
        let created = Instant::now();
        let answer = link.post("/api/v1/tasks", body).await?.expect(201)?;
        let id = answer.text("task_id").ok_or_else(|| wrong("an answer has no task".to_owned()))?.to_owned();
        made.push(id.clone());
        let submit = format!("/api/v1/tasks/{id}/submit");
        held(&shared.flights).insert(id, Flight { created, approved: None });
        link.post(&submit, "{}").await?.expect(202)?;
        shared.submitted.notify_one();
    }
    *held(&shared.over) = true;
    shared.submitted.notify_one();
    Ok(())
}

/// Looks into the inbox when something was submitted, and answers all of it.
async fn approve(link: &mut Link, shared: &Shared) -> Result<(), BenchError> {
    const INBOX: &str = "/api/v1/approvals?reviewer=me&status=PENDING&limit=200";
    loop {
        if timeout(TOO_LONG, shared.submitted.notified()).await.is_err() {
            return Err(wrong("tasks do not come to their reviewer".to_owned()));
        }
        // Never more than a page: no client has more under way.
        let page: Page<Asked> = link.get(INBOX).await?.expect(200)?.read()?;
        for Asked { approval_id, task_id } in page.items {
            if let Some(flight) = held(&shared.flights).get_mut(&task_id) {
                flight.approved = Some(Instant::now());
            }
            link.post(&format!("/api/v1/approvals/{approval_id}/approve"), "{}").await?.expect(200)?;
        }
        if shared.is_over() {
            if !shared.has_unapproved() {
                return Ok(());
            }
            // What was submitted after the inbox was looked into.
            shared.submitted.notify_one();
        }
    }
}

/// Looks again and again what is completed, until all is over.
async fn look(
    link: &mut Link,
    mine: &str,
    window: usize,
    shared: &Shared,
) -> Result<Vec<Lifecycle>, BenchError> {
    let (mut all, mut expected, mut progress) = (Vec::new(), 0, Instant::now());
    let (mut looked, mut pause) = (Instant::now(), LOOK_EVERY.0);
    loop {
        if held(&shared.flights).is_empty() {
            if shared.is_over() {
                return Ok(all);
            }
            progress = Instant::now();
        }
        sleep(pause).await;
        let before = all.len();
        newest(link, mine, expected, shared, &mut all).await?;
        expected = all.len() - before;
        // The last ones are not waited for by the clock of those before.
        pause = if shared.is_over() || expected > window / 4 { pause / 2 } else { pause * 3 / 2 };
        pause = pause.clamp(LOOK_EVERY.0, LOOK_EVERY.1);
        if looked.elapsed() > LONG {
            looked = Instant::now();
            late(link, shared, &mut all).await?;
        }
        if all.len() > before {
            progress = Instant::now();
        } else if progress.elapsed() > TOO_LONG {
            let many = held(&shared.flights).len();
            return Err(wrong(format!("{many} tasks of a client do not come to their end")));
        }
    }
}

/// Reads pages, the newest tasks first, back to the oldest that is waited for. They are completed about in the order in which
/// they were created, so that this is little more than what is new; if one takes long, it is left to whoever looks at it alone.
async fn newest(
    link: &mut Link,
    mine: &str,
    expected: usize,
    shared: &Shared,
    all: &mut Vec<Lifecycle>,
) -> Result<(), BenchError> {
    let limit = (expected + PAGE.0).min(PAGE.1);
    let (mut cursor, mut read) = (String::new(), 0);
    // Ids go by the time at which tasks were created.
    while let Some(oldest) = shared.oldest_approved()
        && read <= 2 * limit
    {
        let page = link.get(&format!("{mine}&limit={limit}{cursor}")).await?.expect(200)?;
        let page: Page<Stands> = page.read()?;
        read += page.items.len();
        for task in &page.items {
            shared.see(&task.task_id, all);
        }
        match (page.next_cursor, page.items.last()) {
            (Some(next), Some(last)) if last.task_id > oldest => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    Ok(())
}

/// Looks at those that were approved long ago, whatever became of them.
async fn late(link: &mut Link, shared: &Shared, all: &mut Vec<Lifecycle>) -> Result<(), BenchError> {
    let late: Vec<String> = {
        let flights = held(&shared.flights);
        let long = |flight: &Flight| flight.approved.is_some_and(|at| at.elapsed() > LONG);
        let late = flights.iter().filter(|(_, flight)| long(flight)).map(|(id, _)| id.clone());
        late.take(LATE_AT_ONCE).collect()
    };
    for id in late {
        let task: Stands = link.get(&format!("/api/v1/tasks/{id}")).await?.expect(200)?.read()?;
        match task.state {
            State::Completed => shared.see(&id, all),
            State::Approved | State::Applying => {}
            other => return Err(wrong(format!("task {id} should be completed and is {other:?}"))),
        }
    }
    Ok(())
}

impl Shared {
    /// A task is completed; nothing, if that was known.
    fn see(&self, task_id: &str, all: &mut Vec<Lifecycle>) {
        let Some(flight) = held(&self.flights).remove(task_id) else { return };
        let seen = Instant::now();
        all.push(Lifecycle { created: flight.created, approved: flight.approved.unwrap_or(seen), seen });
        self.room.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn files_of_different_tasks_are_in_different_folders() {
        let folder = |client, number| Path::new(&file(client, number).0).parent().map(Path::to_owned);
        assert_ne!(folder(0, 1), folder(0, 2));
        assert_ne!(folder(0, 1), folder(1, 1));
    }
}
