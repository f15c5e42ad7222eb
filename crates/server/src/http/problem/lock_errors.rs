//! Problems of lock requests: why a lock was refused, timed out or lost, and an unavailable coordination store.

use ade_app::locks::LockError;
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::lock::saga::AcquireFailure;
use ade_domain::lock::{Cycle, EndReason, LockName, LockRefusal};
use ade_store::CoordinationError;
use axum::http::StatusCode;

use super::Problem;
use crate::api::convert;

impl Problem {
    /// `now` is the coordination clock, from which `Retry-After` is computed.
    pub(crate) fn from_lock_error(error: LockError, now: Moment) -> Self {
        match error {
            LockError::Failed { failure, now: view } => {
                let problem = Self::from_lock_failure(failure, now);
                match view {
                    None => problem,
                    Some(view) => {
                        let lock = convert::lock(&view);
                        problem.with("holders", lock.holders).with("queue_length", lock.queue_length)
                    }
                }
            }
            LockError::RateLimited { retry_at } => {
                let seconds = seconds_until(retry_at, now);
                let detail = format!("the agent exceeds its lock request rate; retry in {seconds} s");
                Self::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", detail).retry_after(seconds)
            }
            LockError::RequestReused => {
                let detail = "this request_id was already used with a different body; use a new request_id";
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "REQUEST_ID_REUSED", detail)
            }
            LockError::TicketNotFound => Self::ticket_not_found(),
            LockError::TooManyAgents => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TOO_MANY_AGENTS",
                LockError::TooManyAgents.to_string(),
            ),
            LockError::TooManyStored { .. } => {
                Self::unavailable("TOO_MANY_STORED", error.to_string()).retry_after(1)
            }
            LockError::Unavailable(error) => error.into(),
            LockError::NotStored(error) => error.into(),
        }
    }

    pub(crate) fn ticket_not_found() -> Self {
        Self::not_found("TICKET_NOT_FOUND", LockError::TicketNotFound.to_string())
    }

    pub(crate) fn lock_lost(detail: impl Into<String>) -> Self {
        Self::conflict("LOCK_LOST", detail)
    }

    fn from_lock_failure(failure: AcquireFailure, now: Moment) -> Self {
        match failure {
            AcquireFailure::Refused(lock, refusal) => Self::from_refusal(&lock, refusal, now),
            AcquireFailure::TimedOut(lock) => {
                let detail = format!("{lock} was not granted within the wait time; retry or wait longer");
                Self::lock_held(detail).with("lock", lock)
            }
            AcquireFailure::Cancelled => Self::conflict("CANCELLED", "the lock request was cancelled"),
            AcquireFailure::Ended(lock, end) => Self::from_end(&lock, end),
        }
    }

    fn from_refusal(lock: &LockName, refusal: LockRefusal, now: Moment) -> Self {
        match refusal {
            LockRefusal::Held { holders, queue_length } => {
                let detail = match holders.first() {
                    Some(first) => format!("{lock} is held by {}", first.holder),
                    None => format!("{lock} is reserved for waiting requests"),
                };
                let holders: Vec<wire::LockHolder> = holders.iter().map(convert::lock_holder).collect();
                Self::lock_held(format!("{detail}; wait for it with wait_seconds or queue"))
                    .with("lock", lock)
                    .with("holders", holders)
                    .with("queue_length", queue_length)
            }
            LockRefusal::QueueFull { queue_length } => {
                let detail = format!("the queue of {lock} is full ({queue_length} requests); retry later");
                Self::unavailable("QUEUE_FULL", detail)
                    .with("lock", lock)
                    .with("queue_length", queue_length)
                    .retry_after(1)
            }
            LockRefusal::CircuitOpen { retry_at } => {
                let detail = format!("contention on {lock} is too high; retry later");
                Self::unavailable("CONTENTION", detail)
                    .with("lock", lock)
                    .retry_after(seconds_until(retry_at, now))
            }
            LockRefusal::Unreplicated { acks, required_acks: wanted } => {
                let detail = format!(
                    "{acks} of {wanted} required replicas confirmed the grant of {lock} in time, so it was released; \
                     retry when the replicas are back, or lower lock.min_replica_acks"
                );
                Self::unavailable("UNAVAILABLE", detail).with("lock", lock).retry_after(1)
            }
        }
    }

    fn from_end(lock: &LockName, end: EndReason) -> Self {
        match end {
            EndReason::Deadlock(cycle) => Self::deadlock(lock, &cycle),
            EndReason::Superseded => {
                let detail = format!(
                    "a newer request of the same holder replaced this one in the queue of {lock}; use a separate \
                     holder_id for each activity"
                );
                Self::conflict("SUPERSEDED", detail).with("lock", lock)
            }
            EndReason::Cancelled | EndReason::Disconnected => {
                Self::conflict("CANCELLED", "the lock request was cancelled").with("lock", lock)
            }
            EndReason::AgentOffline => {
                let detail =
                    format!("the agent sent no heartbeat for 30 s, so its request for {lock} was cancelled");
                Self::conflict("CANCELLED", detail).with("lock", lock)
            }
            end => {
                let why = end.as_str();
                Self::lock_lost(format!("the grant of {lock} has ended ({why}); start a new request"))
                    .with("lock", lock)
                    .with("reason", why)
            }
        }
    }

    fn deadlock(lock: &LockName, cycle: &Cycle) -> Self {
        let detail = format!(
            "deadlock of {} holders: this request, which waited for {lock}, was aborted, and all locks of its holder were released; \
             acquire them again after a random pause",
            cycle.len()
        );
        let edges: Vec<wire::CycleEdge> = cycle.iter().map(convert::cycle_edge).collect();
        Self::new(StatusCode::LOCKED, "DEADLOCK_DETECTED", detail).with("lock", lock).with("cycle", edges)
    }

    fn lock_held(detail: String) -> Self {
        Self::new(StatusCode::LOCKED, "LOCK_HELD", detail)
    }
}

fn seconds_until(moment: Moment, now: Moment) -> u64 {
    moment.ms_since(now).div_ceil(1000).max(1)
}

impl From<CoordinationError> for Problem {
    fn from(error: CoordinationError) -> Self {
        tracing::error!(%error, "coordination request failed");
        let detail = "the lock store is unavailable; the request may have been applied: retry it with the same \
                      request_id";
        Self::unavailable("UNAVAILABLE", detail).retry_after(1)
    }
}
