//! Agents that ask for work: they are given a task with its locks, say that they are alive, what they do, and how it ended.
//!
//! What an agent says counts only while its attempt is the present one; saying the same again changes nothing. Secrets of the
//! configuration are hidden in all of it.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::task::{Begin, Refusal};
use ade_domain::task::{Config, Execution, ExecutionResult, Output as Said, State};
use ade_domain::{Clock, Moment};
use ade_executors::Secrets;
use ade_store::coordination::CapacityClaim;
use ade_store::database::{LogLine, Renewed, StoredTask};
use ade_store::{Blobs, Database};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::hold::{Locks, PATIENCE_MS, take};
use super::one::is_exact;
use crate::agents::{AgentService, Room};
use crate::{Caller, Error, LockService, Outcome, TaskService};

/// How often an open answer looks for work that it was not told of.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a claim keeps others away before the attempt has begun.
const CLAIM_MS: u64 = 10_000;
/// How long a task rests whose locks were not to be had.
const REST_MS: u64 = 1_000;
/// Bytes of output that the record keeps.
const KEPT: usize = 65_536;
/// Places that an agent's claim looks at.
const MOST_PLACES: usize = 64;

/// Use cases of agents that ask for work; clones are the same ones.
#[derive(Clone)]
pub struct Pulls {
    /// The record.
    pub record: Database,
    /// Reviews.
    pub reviews: TaskService,
    /// Locks.
    pub locks: LockService,
    /// Who acts for whom.
    pub agents: AgentService,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// Where long output is kept.
    pub blobs: Blobs,
    /// What must never be seen.
    pub secrets: Secrets,
    /// How long an agent counts as alive without being heard of.
    pub lease_ms: u64,
}

impl std::fmt::Debug for Pulls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulls").finish_non_exhaustive()
    }
}

/// How an agent says that it ended.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its attempt.
    pub attempt: u64,
    /// How.
    pub result: ExecutionResult,
    /// What it said.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// The answer to a sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    /// Until when it counts as alive.
    pub lease_until: Moment,
    /// Whether an administrator wants it to end.
    pub stop: bool,
}

/// What came of trying to give an agent a task.
enum Tried {
    Begun(Box<StoredTask>),
    /// Others first: its locks are not to be had, or it is not ready any more.
    NotNow,
    /// The agent does as much as it may; somebody else may have it at once.
    NoRoom,
}

impl Pulls {
    /// Gives an agent a task that names it, or something that it can; waits for one.
    pub async fn claim(
        &self,
        named: Option<&str>,
        types: &[String],
        wait: Duration,
        caller: &Caller,
    ) -> Result<Option<StoredTask>, Error> {
        let agent = self.agents.acts_as(caller, named).await?;
        let known = self.record.agent(&agent).await?;
        let capabilities = known.map(|known| known.capabilities).unwrap_or_default();
        let places: Vec<String> = std::iter::once(Config::place_of_agent(&agent))
            .chain(capabilities.iter().map(|one| Config::place_of_capability(one)))
            .take(MOST_PLACES)
            .collect();
        let (mut work, until) = (self.reviews.work(), Instant::now() + wait);
        loop {
            // What becomes ready from here on is heard.
            work.mark_unchanged();
            if let Some(task) = self.try_claim(&agent, &places, types, caller).await? {
                return Ok(Some(task));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            // Whether woken or not, the next question is the same.
            let _ = timeout(left.min(LOOK_EVERY), work.changed()).await;
        }
    }

    async fn try_claim(
        &self,
        agent: &str,
        places: &[String],
        types: &[String],
        caller: &Caller,
    ) -> Result<Option<StoredTask>, Error> {
        let now = self.clock.now();
        // Before anything is claimed: whoever has no room keeps nothing from others.
        match self.agents.room(agent).await? {
            Room::Free => {}
            Room::Draining => return Ok(None),
            Room::Full => {
                // What it would have had counts as waiting for it.
                if let Some(task_id) = self.record.first_ready(places, types, now).await?
                    && self.has_room(agent, &task_id, self.lease_ms).await?
                {
                    self.give_room_back(agent, &task_id).await;
                }
                return Ok(None);
            }
        }
        let by = format!("agent {agent}");
        let until = now.plus_ms(self.lease_ms.min(CLAIM_MS));
        let found = self.record.claim(places, types, &by, now, until, 1).await?;
        let Some(task_id) = found.first() else { return Ok(None) };
        let tried = self.begin(agent, task_id, caller).await;
        let rest_ms = match &tried {
            Ok(Tried::NoRoom) | Err(_) => 0,
            Ok(Tried::NotNow | Tried::Begun(_)) => REST_MS,
        };
        if let Ok(Tried::Begun(task)) = tried {
            return Ok(Some(*task));
        }
        // If this is not written, the claim ends by itself.
        if let Err(error) = self.record.put_off(task_id, &by, self.clock.now().plus_ms(rest_ms)).await {
            tracing::debug!(task_id, %error, "cannot put a task off");
        }
        match tried {
            Err(error) if !crate::tasks::is_over(&error) && error != Error::Overtaken => Err(error),
            _ => Ok(None),
        }
    }

    async fn begin(&self, agent: &str, task_id: &str, caller: &Caller) -> Result<Tried, Error> {
        let task = self.reviews.look(task_id).await?;
        let (attempt, config) = (task.next_attempt(), &task.config);
        if task.state != State::Approved || !self.reviews.is_valid(&task) {
            return Ok(Tried::NotNow);
        }
        if !is_exact(&task) {
            tracing::error!(task_id, "what is stored is not what was approved; no agent is given it");
            self.reviews.spoiled(task_id, task.revision, agent).await?;
            return Ok(Tried::NotNow);
        }
        // Also the first lease ends when the task may not take longer.
        let lease_ms = self.lease_ms.min(u64::from(config.timeout_seconds) * 1_000);
        if !self.has_room(agent, task_id, lease_ms).await? {
            return Ok(Tried::NoRoom);
        }
        let taken = take(&self.locks, agent, task_id, attempt, config, lease_ms, PATIENCE_MS).await;
        let Some((locks, _)) = taken.as_ref().ok().and_then(Option::as_ref) else {
            self.give_room_back(agent, task_id).await;
            return taken.map(|_| Tried::NotNow);
        };
        let lease_until = self.clock.now().plus_ms(lease_ms);
        let begin = Begin { worker: agent.to_owned(), grants: locks.grants(), lease_until };
        let begun = self.reviews.begin_pulled(task_id, task.revision, &begin, caller).await;
        if begun.is_err() {
            locks.release(&self.locks).await;
            self.give_room_back(agent, task_id).await;
        }
        begun.map(|task| Tried::Begun(Box::new(task)))
    }

    /// Whether the agent may do one more, or goes on with one that it does.
    async fn has_room(&self, agent: &str, task_id: &str, ms: u64) -> Result<bool, Error> {
        let coordination = self.locks.coordination();
        let until = coordination.now().plus_ms(ms);
        match coordination.claim(agent.to_owned(), task_id.to_owned(), until).await {
            Ok(claimed) => Ok(claimed == CapacityClaim::Yes),
            Err(error) => Err(away(error)),
        }
    }

    async fn give_room_back(&self, agent: &str, task_id: &str) {
        let given = self.locks.coordination().unclaim(agent.to_owned(), task_id.to_owned()).await;
        if let Err(error) = given {
            tracing::debug!(task_id, %error, "what an agent does ends to count by itself");
        }
    }

    /// A task that the caller carries out, as the attempt that it names.
    async fn own(&self, task_id: &str, attempt: u64, caller: &Caller) -> Result<(StoredTask, String), Error> {
        let is_id = uuid::Uuid::parse_str(task_id).is_ok();
        let task =
            if is_id { self.reviews.look(task_id).await? } else { return Err(Error::NotFound("task")) };
        let Some(execution) = &task.execution else {
            return Err(if caller.may_see(&task) {
                Refusal::NotPresent { attempt, current: 0 }.into()
            } else {
                Error::NotFound("task")
            });
        };
        let worker = execution.worker.clone();
        let is_pulled = task.config.executor == ade_domain::task::AGENT;
        if !is_pulled || !self.agents.acts_for(caller, &worker).await? {
            return Err(if caller.may_see(&task) {
                Error::Forbidden(format!("{worker} carries this task out, and only it says how that goes"))
            } else {
                Error::NotFound("task")
            });
        }
        Ok((task, worker))
    }

    /// The agent is alive: its lease and its locks go on, but never longer than the task may take, and once it is to end, not
    /// longer than one lease after that. The locks never outlive the lease.
    pub async fn heartbeat(&self, task_id: &str, attempt: u64, caller: &Caller) -> Result<Alive, Error> {
        let (task, worker) = self.own(task_id, attempt, caller).await?;
        let now = self.clock.now();
        let lease_until = task.lives_until(attempt, self.lease_ms, now)?;
        let execution = task.under_way(attempt)?;
        let ms = lease_until.ms_since(now);
        // Locks first: whoever has lost them is not alive for longer by saying so again and again.
        if let Some(locks) = Locks::of(&worker, task_id, attempt, &execution.grants)
            && !locks.renew(&self.locks, ms).await.map_err(away)?
        {
            return Err(Error::LocksLost);
        }
        let renewed = self.record.renew(task_id, attempt, lease_until).await?;
        if renewed == Renewed::No {
            let now = self.reviews.look(task_id).await?.next_attempt() - 1;
            return Err(Refusal::NotPresent { attempt, current: now }.into());
        }
        self.has_room(&worker, task_id, ms).await?;
        Ok(Alive { lease_until, stop: renewed == Renewed::Stop })
    }

    /// Keeps what the agent says, for whoever follows.
    pub async fn log(&self, task_id: &str, attempt: u64, text: &str, caller: &Caller) -> Result<(), Error> {
        let (task, _) = self.own(task_id, attempt, caller).await?;
        let (now, text) = (self.clock.now(), self.secrets.hide(text));
        let answer = caller.keep.as_ref().map(|keep| keep.answer(Outcome::Said, now));
        if self.record.say(task_id, attempt, now, &text, answer).await? {
            return Ok(());
        }
        let now = task.execution.as_ref().map_or(0, |execution| execution.attempt);
        Err(Refusal::NotPresent { attempt, current: now }.into())
    }

    /// What was said while a task was carried out.
    pub async fn logs(
        &self,
        task_id: &str,
        after: u64,
        limit: u32,
        caller: &Caller,
    ) -> Result<(Vec<LogLine>, StoredTask), Error> {
        let task = self.reviews.task(task_id, caller).await?;
        Ok((self.record.said(task_id, after, limit).await?, task))
    }

    /// The agent says how it ended. Saying the same again is answered the same. That it is done counts only if it holds its locks
    /// still, under its own tokens.
    pub async fn complete(
        &self,
        task_id: &str,
        report: Report,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        let Report { attempt, result, output, error } = report;
        let (task, worker) = self.own(task_id, attempt, caller).await?;
        if task.was_reported(attempt, result) {
            return Ok(task);
        }
        // Only the present attempt leaves anything behind.
        let execution = task.under_way(attempt)?;
        let locks = Locks::of(&worker, task_id, attempt, &execution.grants);
        let held = result != ExecutionResult::Success || self.holds(locks.as_ref(), execution).await;
        let output = self.output(task_id, attempt, output).await?;
        let said = (result, error.map(|error| self.secrets.hide(&error)));
        let reported = self.reviews.report(task_id, attempt, &said, held, &output).await;
        if matches!(reported, Err(Error::Refused(_) | Error::Overtaken)) {
            self.drop_output(task_id, output).await;
        }
        if let Err(error) = reported {
            // The same report may have come in twice at once.
            let now = self.reviews.look(task_id).await?;
            return if now.was_reported(attempt, result) { Ok(now) } else { Err(error) };
        }
        if let Some(locks) = locks {
            locks.release(&self.locks).await;
        }
        self.give_room_back(&worker, task_id).await;
        self.reviews.look(task_id).await
    }

    /// Whether the locks of an attempt are held under its own tokens. Where coordination does not answer, the record alone decides:
    /// its attempt is the present one, and its lease has not passed.
    async fn holds(&self, locks: Option<&Locks>, execution: &Execution) -> bool {
        let lives = execution.lease_until > self.clock.now();
        let Some(locks) = locks else { return lives };
        match locks.are_held(&self.locks).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "the locks of an agent cannot be looked at; its lease decides");
                lives
            }
        }
    }

    /// The beginning of what an agent said, and all of it as a blob if that is more. Each blob has a name of its own: none ever
    /// takes the place of what was kept before.
    async fn output(&self, task_id: &str, attempt: u64, output: Option<String>) -> Result<Said, Error> {
        let Some(text) = output.filter(|text| !text.is_empty()) else { return Ok(Said::default()) };
        let text = self.secrets.hide(&text);
        if text.len() <= KEPT {
            return Ok(Said { text: Some(text), key: None });
        }
        let kept: String = text.get(..text.floor_char_boundary(KEPT)).unwrap_or_default().to_owned();
        let key = format!("output/{task_id}/{attempt}-{}", uuid::Uuid::new_v4().simple());
        let blobs = self.blobs.clone();
        let put = spawn_blocking(move || blobs.put(&key, text.as_bytes()).map(|()| key)).await;
        let key = put.map_err(away)?.map_err(away)?;
        Ok(Said { text: Some(kept), key: Some(key) })
    }

    /// What was kept for a report that does not count.
    async fn drop_output(&self, task_id: &str, output: Said) {
        let Some(key) = output.key else { return };
        let blobs = self.blobs.clone();
        let removed = spawn_blocking(move || blobs.remove(&key).map_err(|error| error.to_string())).await;
        if let Err(error) = removed.map_err(|error| error.to_string()).and_then(|removed| removed) {
            tracing::warn!(task_id, error, "what an agent said is left over, and belongs to nothing");
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped with")]
fn away(error: impl ToString) -> Error {
    Error::Record(ade_store::DatabaseError::Unavailable(error.to_string()))
}
