//! Agents that ask for work: they are given a task with its locks, say that they are alive, what they do, and how it ended.
//!
//! What an agent says counts only while its attempt is the present one; saying the same again changes nothing.

use std::sync::Arc;
use std::time::Duration;

use ade_domain::review::{Begin, Refusal};
use ade_domain::task::{Config, ExecutionResult, Failed, FailureCode, Left, Output as Said, Phase, State};
use ade_domain::{Clock, Moment};
use ade_store::coordination::Claimed;
use ade_store::record::{LogLine, Renewed, StoredTask};
use ade_store::{Blobs, Record};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::hold::{Locks, PATIENCE_MS, take};
use crate::agents::AgentService;
use crate::{Caller, Error, LockService, Reviews};

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
    pub record: Record,
    /// Reviews.
    pub reviews: Reviews,
    /// Locks.
    pub locks: LockService,
    /// Who acts for whom.
    pub agents: AgentService,
    /// By which clock.
    pub clock: Arc<dyn Clock>,
    /// Where long output is kept.
    pub blobs: Blobs,
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

impl Pulls {
    /// Gives an agent a task that names it, or something that it can; waits for one.
    ///
    /// # Errors
    /// The caller may not act for the agent, or something is away.
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
        let by = format!("agent {agent}");
        let now = self.clock.now();
        let until = now.plus_ms(self.lease_ms.min(CLAIM_MS));
        let found = self.record.claim(places, types, &by, now, until, 1).await?;
        let Some(task_id) = found.first() else { return Ok(None) };
        match self.begin(agent, task_id, caller).await {
            Ok(Some(task)) => Ok(Some(task)),
            Ok(None) => {
                let _ = self.record.put_off(task_id, &by, self.clock.now().plus_ms(REST_MS)).await?;
                Ok(None)
            }
            Err(error) if crate::reviews::is_over(&error) || error == Error::Overtaken => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn begin(&self, agent: &str, task_id: &str, caller: &Caller) -> Result<Option<StoredTask>, Error> {
        let task = self.reviews.look(task_id).await?;
        let (attempt, config) = (task.review.next_attempt(), &task.review.config);
        if task.review.state != State::Approved || !self.reviews.is_valid(&task) {
            return Ok(None);
        }
        if !self.has_room(agent, task_id).await? {
            return Ok(None);
        }
        let taken = take(&self.locks, agent, task_id, attempt, config, self.lease_ms, PATIENCE_MS).await?;
        let Some((locks, _)) = taken else {
            self.give_room_back(agent, task_id).await;
            return Ok(None);
        };
        let lease_until = self.clock.now().plus_ms(self.lease_ms);
        let begin = Begin { worker: agent.to_owned(), grants: locks.grants(), lease_until };
        let begun = self.reviews.begin_pulled(task_id, task.review.revision, &begin, caller).await;
        if begun.is_err() {
            locks.release(&self.locks).await;
            self.give_room_back(agent, task_id).await;
        }
        begun.map(Some)
    }

    /// Whether the agent may do one more, or goes on with one that it does.
    async fn has_room(&self, agent: &str, task_id: &str) -> Result<bool, Error> {
        let coordination = self.locks.coordination();
        let until = coordination.now().plus_ms(self.lease_ms);
        match coordination.claim(agent.to_owned(), task_id.to_owned(), until).await {
            Ok(claimed) => Ok(claimed == Claimed::Yes),
            Err(error) => Err(Error::Record(ade_store::RecordError::Unavailable(error.to_string()))),
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
        let Some(execution) = &task.review.execution else {
            return Err(if caller.may_see(&task) {
                Refusal::NotPresent { attempt, now: 0 }.into()
            } else {
                Error::NotFound("task")
            });
        };
        let worker = execution.worker.clone();
        let is_pulled = task.review.config.executor == ade_domain::task::AGENT;
        if !is_pulled || !self.agents.acts_for(caller, &worker).await? {
            return Err(if caller.may_see(&task) {
                Error::Forbidden(format!("{worker} carries this task out, and only it says how that goes"))
            } else {
                Error::NotFound("task")
            });
        }
        Ok((task, worker))
    }

    /// The agent is alive: its lease and its locks go on, but never longer than the task may take.
    ///
    /// # Errors
    /// Its attempt is not the present one, or its locks are gone.
    pub async fn heartbeat(&self, task_id: &str, attempt: u64, caller: &Caller) -> Result<Alive, Error> {
        let (task, worker) = self.own(task_id, attempt, caller).await?;
        let not_present = || {
            let now = task.review.execution.as_ref().map_or(0, |execution| execution.attempt);
            Error::from(Refusal::NotPresent { attempt, now })
        };
        let execution = task.review.execution.as_ref().filter(|one| one.attempt == attempt);
        let execution = execution.filter(|one| one.phase != Phase::Ended).ok_or_else(not_present)?;
        let timeout_ms = u64::from(task.review.config.timeout_seconds) * 1_000;
        let now = self.clock.now();
        let lease_until = now.plus_ms(self.lease_ms).min(execution.started_at.plus_ms(timeout_ms));
        // Locks first: whoever has lost them is not alive for longer by saying so again and again.
        if let Some(locks) = Locks::of(&worker, task_id, attempt, &execution.grants) {
            let away = |error: crate::locks::LockError| {
                Error::Record(ade_store::RecordError::Unavailable(error.to_string()))
            };
            if !locks.renew(&self.locks, self.lease_ms).await.map_err(away)? {
                return Err(Error::LocksLost);
            }
        }
        let renewed = self.record.renew(task_id, attempt, lease_until).await?;
        if renewed == Renewed::No {
            return Err(not_present());
        }
        self.has_room(&worker, task_id).await?;
        Ok(Alive { lease_until, stop: renewed == Renewed::Stop })
    }

    /// Keeps what the agent says, for whoever follows.
    ///
    /// # Errors
    /// Its attempt is not the present one.
    pub async fn log(&self, task_id: &str, attempt: u64, text: &str, caller: &Caller) -> Result<(), Error> {
        let (task, _) = self.own(task_id, attempt, caller).await?;
        if self.record.say(task_id, attempt, self.clock.now(), text).await? {
            return Ok(());
        }
        let now = task.review.execution.as_ref().map_or(0, |execution| execution.attempt);
        Err(Refusal::NotPresent { attempt, now }.into())
    }

    /// What was said while a task was carried out.
    ///
    /// # Errors
    /// The caller may not see the task.
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

    /// The agent says how it ended. Saying the same again is answered the same.
    ///
    /// # Errors
    /// Its attempt is not the present one.
    pub async fn complete(
        &self,
        task_id: &str,
        report: Report,
        caller: &Caller,
    ) -> Result<StoredTask, Error> {
        let (task, worker) = self.own(task_id, report.attempt, caller).await?;
        let execution = task.review.execution.as_ref();
        let ended =
            execution.is_some_and(|one| one.attempt == report.attempt && one.result == Some(report.result));
        if ended {
            return Ok(task);
        }
        let output = self.output(task_id, report.attempt, report.output).await?;
        let done = if report.result == ExecutionResult::Success {
            self.reviews.complete(task_id, report.attempt, &output).await
        } else {
            let code = match report.result {
                ExecutionResult::Timeout => FailureCode::TimedOut,
                ExecutionResult::Cancelled => FailureCode::Stopped,
                _ => FailureCode::ExecutionFailed,
            };
            let error = report.error.unwrap_or_else(|| format!("{worker} did not say why"));
            // Only the agent knows what it did, and only it could undo it.
            let failed = Failed { code, error, left: Left::Stays, again: false };
            self.reviews.fail(task_id, report.attempt, &failed, &output).await.map(drop)
        };
        done?;
        let grants = execution.map(|execution| execution.grants.clone()).unwrap_or_default();
        if let Some(locks) = Locks::of(&worker, task_id, report.attempt, &grants) {
            locks.release(&self.locks).await;
        }
        self.give_room_back(&worker, task_id).await;
        self.reviews.look(task_id).await
    }

    /// The beginning of what an agent said, and all of it as a blob if that is more.
    async fn output(&self, task_id: &str, attempt: u64, output: Option<String>) -> Result<Said, Error> {
        let Some(text) = output.filter(|text| !text.is_empty()) else { return Ok(Said::default()) };
        if text.len() <= KEPT {
            return Ok(Said { text: Some(text), key: None });
        }
        let kept: String = text.get(..text.floor_char_boundary(KEPT)).unwrap_or_default().to_owned();
        let (blobs, key) = (self.blobs.clone(), format!("output/{task_id}/{attempt}"));
        let away = |error: String| Error::Record(ade_store::RecordError::Unavailable(error));
        let put = spawn_blocking(move || blobs.put(&key, text.as_bytes()).map(|()| key)).await;
        let key = put.map_err(|error| away(error.to_string()))?.map_err(|error| away(error.to_string()))?;
        Ok(Said { text: Some(kept), key: Some(key) })
    }
}
