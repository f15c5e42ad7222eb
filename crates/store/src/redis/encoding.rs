//! How holds, waiters and reasons are encoded in Redis, and how they are read back. The scripts write the same forms.
//!
//! A value that cannot be read is an error that names it, never a guess.
//!
//! DIGEST is a digest of agent id and holder id; times are Unix microseconds unless stated otherwise. The fields that the
//! key catalog inherits (`holder_agent_id`, `mode`, `holders`, …) are documented there; these are our own:
//!
//! | Key | Field | Value |
//! |---|---|---|
//! | lock | `n` | number of holders |
//! | lock | `next` | no lease ends before the first time, no wait times out before the second |
//! | lock | `h:DIGEST` | one hold: mode (`x`, `s`), token, acquired, expires, claimed (2: by its promotion, and only the server in `s:` can have reported it), leave tombstone, priority, heartbeats |
//! | lock | `r:DIGEST` | the keys of the requests that share this hold, separated by commas |
//! | lock | `a:DIGEST` | lengths of agent id and holder id in bytes, then agent id, holder id (empty if equal) and purpose |
//! | lock | `s:DIGEST` | the server whose release started the lease of this hold |
//! | lock | `b:DIGEST` | the whole shared hold that an unclaimed upgrade replaces |
//! | queue | member | JSON of one waiter; `who` is its DIGEST |
//! | waiting | `DIGEST` | the queue member of this holder |
//! | waiting | `a:AGENT` | how many holders of this agent wait |
//! | deadline | member DIGEST | scored by the deadline of the wait |
//! | token | | the last fencing token of all locks; not on a cluster |
//! | fence | `token` | the last fencing token of this lock; only on a cluster |
//! | fence | `score` | the last score of the queue, which only increases |
//! | fence | `kept` | when the TTL of this key was last renewed |
//! | fence | `crowd` | circuit breaker: start of the window, refusals within it, open until |
//! | fence | `m:SERVER` | last heartbeat of a server that holds waiters open |
//! | ended | `head`, `tail`, `#N` | tombstones of ended requests in a ring buffer: expiry and request key |
//! | ended | `REQUEST` | expiry and reason of one tombstone |
//! | agent profile | `profile` | JSON of the agent's profile |
//! | agent profile | `registered_at`, `last_heartbeat` | first registration and last heartbeat |
//! | agent profile | `draining`, `named` | 1 if it accepts no new work; 1 if it was only named in a request |
//! | agent capacity | `t:TASK`, `q:TASK` | expiry of a claimed or queued task in Unix milliseconds |
//! | ages | `DIGEST` | age of a deadlock victim: since when, and until when that counts |

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::{
    Acquisition, Cycle, EndReason, FencingToken, Grant, Hold, Holder, LockMode, QueueScore, RequestKey,
    SharedStr, Waiter, digest,
};
use redis::ParsingError;
use serde::{Deserialize, Serialize};

use super::keys::AgentKeys;
use crate::coordination::{CoordinationError, Result};

/// A value in one of our keys that ade did not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "corrupt value in Redis: expected {expected}, found {found}. ade did not write it: remove it. `ade keys explain` says what a key holds"
)]
pub(super) struct CorruptValue {
    expected: &'static str,
    found: String,
}

impl CorruptValue {
    pub(super) fn new(expected: &'static str, found: impl Into<String>) -> Self {
        Self { expected, found: found.into() }
    }
}

impl From<CorruptValue> for CoordinationError {
    fn from(error: CorruptValue) -> Self {
        Self(error.to_string())
    }
}

impl From<ParsingError> for CoordinationError {
    fn from(error: ParsingError) -> Self {
        CorruptValue::new("a reply of another type", error.to_string()).into()
    }
}

/// `what` names the value in an error.
pub(super) fn to_json(what: &str, value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| CoordinationError(format!("cannot serialize {what}: {error}")))
}

/// Identifies a holder in the fields of a lock.
pub(super) fn holder_digest(holder: &Holder) -> String {
    digest_text(holder.agent_id(), holder.holder_id())
}

pub(super) fn digest_text(agent_id: &str, holder_id: &str) -> String {
    format!("{:032x}", digest(&[agent_id, holder_id]))
}

/// The holder id, or empty if it equals the agent id.
pub(super) fn explicit_holder_id(holder: &Holder) -> &str {
    if holder.holder_id() == holder.agent_id() { "" } else { holder.holder_id() }
}

pub(super) fn parse_holder(agent: &str, id: &str) -> Result<Holder, CorruptValue> {
    let id = Some(id).filter(|id| !id.is_empty());
    Holder::new(agent, id).map_err(|error| CorruptValue::new("a holder", error.to_string()))
}

/// Parses the fields `h:`, `r:` and `a:` of a hold, separated by spaces. They do not say who can have reported it.
pub(super) fn parse_hold(text: &str) -> Result<Hold, CorruptValue> {
    try_parse_hold(text).ok_or_else(|| CorruptValue::new("a hold", text))
}

/// Parses the part of the field `h:` that the holder gets.
pub(super) fn parse_grant(text: &str) -> Result<Grant, CorruptValue> {
    try_parse_grant(&mut text.splitn(6, ' ')).ok_or_else(|| CorruptValue::new("a grant", text))
}

/// Whether the lease in a field `h:` started with its promotion, and only one server can have reported it.
pub(super) fn is_unreported(numbers: &str) -> bool {
    numbers.split(' ').nth(4) == Some("2")
}

fn try_parse_grant<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Grant> {
    let mode = match words.next()? {
        "x" => LockMode::Exclusive,
        "s" => LockMode::Shared,
        _ => return None,
    };
    let token = FencingToken::from_number(words.next()?.parse().ok()?);
    let (acquired_at, expires_at) = (parse_moment(words.next()?)?, parse_moment(words.next()?)?);
    Some(Grant { mode, token, acquired_at, expires_at, claimed: words.next()? != "0" })
}

fn try_parse_hold(text: &str) -> Option<Hold> {
    let mut words = text.splitn(12, ' ');
    let Grant { mode, token, acquired_at, expires_at, claimed } = try_parse_grant(&mut words)?;
    let mut next = || words.next();
    let remember = next()? == "1";
    let (priority, heartbeat_count) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let requests = next()?.split(',').map(str::parse).collect::<Result<Vec<RequestKey>, _>>().ok()?;
    let (agent_len, holder_len): (usize, usize) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let names = next()?;
    let (agent, rest) = names.split_at_checked(agent_len)?;
    let (id, purpose) = rest.split_at_checked(holder_len)?;
    Some(Hold {
        holder: parse_holder(agent, id).ok()?,
        requests,
        mode,
        token,
        acquired_at,
        expires_at,
        claimed,
        unreported_by: None,
        purpose: purpose.into(),
        priority,
        heartbeat_count,
        leave_tombstone: remember,
        upgraded_from: None,
    })
}

pub(super) fn parse_moment(text: &str) -> Option<Moment> {
    text.parse().ok().map(Moment::from_micros)
}

/// The part of a waiter that never changes, as JSON without its braces.
pub(super) fn fixed_waiter_fields(
    acquire: &Acquisition,
    digest: &str,
    agent: Option<&AgentKeys>,
    wait_ms: u64,
) -> String {
    #[derive(Serialize)]
    struct FixedFields<'a> {
        mode: LockMode,
        who: &'a str,
        agent_id: &'a str,
        holder_id: &'a str,
        priority: i32,
        max_wait_seconds: u64,
        request: RequestKey,
        remember: bool,
        purpose: &'a str,
        /// How long the lease is if a promotion may start it.
        #[serde(skip_serializing_if = "Option::is_none")]
        lease_ms: Option<u64>,
        /// The keys of the agent's indexes, for the call that promotes it.
        #[serde(skip_serializing_if = "Option::is_none")]
        held_index: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        wait_index: Option<&'a str>,
    }
    let fields = FixedFields {
        mode: acquire.mode,
        who: digest,
        agent_id: acquire.holder.agent_id(),
        holder_id: acquire.holder.holder_id(),
        priority: acquire.priority,
        max_wait_seconds: wait_ms.div_ceil(1000),
        request: acquire.request,
        remember: acquire.leave_tombstone,
        purpose: &acquire.purpose,
        lease_ms: acquire.claimed.then_some(acquire.ttl_ms),
        held_index: agent.map(|agent| agent.held_locks.as_str()),
        wait_index: agent.map(|agent| agent.awaited_locks.as_str()),
    };
    // Strings and numbers only, so serialization cannot fail.
    let text = serde_json::to_string(&fields).unwrap_or_default();
    text.trim_start_matches('{').strip_suffix('}').unwrap_or_default().to_owned()
}

/// Parses a member of a queue.
pub(super) fn parse_waiter(member: &str, score: f64) -> Result<Waiter, CorruptValue> {
    #[derive(Deserialize)]
    struct Member {
        mode: LockMode,
        agent_id: String,
        holder_id: String,
        priority: i32,
        request: RequestKey,
        remember: bool,
        purpose: SharedStr,
        requested_at: jiff::Timestamp,
        deadline: String,
        served_by: Option<SharedStr>,
        lease_ms: Option<u64>,
        #[serde(default)]
        upgrade: bool,
    }
    let corrupt = || CorruptValue::new("a waiter", member);
    let parsed: Member = serde_json::from_str(member).map_err(|_| corrupt())?;
    let score = if parsed.upgrade { score + UPGRADE_OFFSET } else { score };
    Ok(Waiter {
        holder: parse_holder(&parsed.agent_id, &parsed.holder_id)?,
        request: parsed.request,
        mode: parsed.mode,
        score: QueueScore::from_millis(score),
        is_upgrade: parsed.upgrade,
        priority: parsed.priority,
        purpose: parsed.purpose,
        requested_at: parsed.requested_at.into(),
        deadline: parse_moment(&parsed.deadline).ok_or_else(corrupt)?,
        served_by: parsed.served_by,
        lease_ms: parsed.lease_ms,
        leave_tombstone: parsed.remember,
    })
}

/// Subtracted from the score of an upgrading holder, so that it goes ahead of all other waiters. 2^41, which is exact in a
/// double.
const UPGRADE_OFFSET: f64 = 2_199_023_255_552.0;

/// A reason as text, followed by the cycle if it is a deadlock.
pub(super) fn format_end(end: &EndReason) -> String {
    match end {
        EndReason::Deadlock(cycle) => {
            let cycle = serde_json::to_string(cycle.as_ref()).unwrap_or_default();
            format!("{} {cycle}", end.as_str())
        }
        _ => end.as_str().to_owned(),
    }
}

pub(super) fn parse_end(text: &str) -> Result<EndReason, CorruptValue> {
    if let Some(cycle) = text.strip_prefix("deadlock ") {
        let cycle: Cycle =
            serde_json::from_str(cycle).map_err(|_| CorruptValue::new("the cycle of a deadlock", cycle))?;
        return Ok(EndReason::Deadlock(Arc::new(cycle)));
    }
    EndReason::parse(text).ok_or_else(|| CorruptValue::new("the reason of an end", text))
}
