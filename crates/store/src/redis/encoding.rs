//! How holds, waiters and ends stand in Redis, and how they are read back. The scripts write the same forms.
//!
//! What cannot be read is an error that names it, never a guess: somebody else wrote into our keys.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::{
    Acquire, Cycle, End, Hold, Holder, Mode, RequestKey, Score, Text, Token, Waiter, digest,
};
use serde::{Deserialize, Serialize};

/// Something in our keys that we did not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("redis holds {what} that ade did not write: {text}; look at it with ade keys explain, and remove it")]
pub(super) struct Foreign {
    what: &'static str,
    text: String,
}

impl Foreign {
    pub(super) fn new(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, text: text.into() }
    }
}

/// What a holder is known by in the fields of a lock.
pub(super) fn who(holder: &Holder) -> String {
    format!("{:032x}", digest(&[holder.agent_id(), holder.holder_id()]))
}

/// The holder's id where it is not the agent's; empty otherwise.
pub(super) fn holder_id(holder: &Holder) -> &str {
    if holder.holder_id() == holder.agent_id() { "" } else { holder.holder_id() }
}

pub(super) fn holder(agent: &str, id: &str) -> Result<Holder, Foreign> {
    let id = Some(id).filter(|id| !id.is_empty());
    Holder::new(agent, id).map_err(|error| Foreign::new("a holder", error.to_string()))
}

/// A hold as the scripts write it: numbers, then agent, holder and purpose, told apart by their lengths.
pub(super) fn hold(text: &str) -> Result<Hold, Foreign> {
    read_hold(text).ok_or_else(|| Foreign::new("a grant", text))
}

fn read_hold(text: &str) -> Option<Hold> {
    let mut parts = text.splitn(12, ' ');
    let mut next = || parts.next();
    let mode = match next()? {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => return None,
    };
    let token = Token::shown(next()?.parse().ok()?);
    let (acquired_at, expires_at) = (moment(next()?)?, moment(next()?)?);
    let (claimed, remember) = (next()? == "1", next()? == "1");
    let (priority, heartbeat_count) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let requests = next()?.split(',').map(str::parse).collect::<Result<Vec<RequestKey>, _>>().ok()?;
    let (agent_bytes, holder_bytes): (usize, usize) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let names = next()?;
    let (agent, rest) = names.split_at_checked(agent_bytes)?;
    let (id, purpose) = rest.split_at_checked(holder_bytes)?;
    Some(Hold {
        holder: holder(agent, id).ok()?,
        requests,
        mode,
        token,
        acquired_at,
        expires_at,
        claimed,
        purpose: purpose.into(),
        priority,
        heartbeat_count,
        remember,
        before: None,
    })
}

pub(super) fn moment(text: &str) -> Option<Moment> {
    text.parse().ok().map(Moment::from_micros)
}

/// What stays the same of a waiter, as JSON without its braces. Mode and digest come first: the scripts look there.
pub(super) fn card(wish: &Acquire, wait_ms: u64) -> String {
    #[derive(Serialize)]
    struct Card<'a> {
        mode: Mode,
        who: String,
        agent_id: &'a str,
        holder_id: &'a str,
        priority: i32,
        max_wait_seconds: u64,
        request: RequestKey,
        remember: bool,
        purpose: &'a str,
    }
    let card = Card {
        mode: wish.mode,
        who: who(&wish.holder),
        agent_id: wish.holder.agent_id(),
        holder_id: wish.holder.holder_id(),
        priority: wish.priority,
        max_wait_seconds: wait_ms.div_ceil(1000),
        request: wish.request,
        remember: wish.remember,
        purpose: &wish.purpose,
    };
    // Strings and numbers alone: there is nothing in it that JSON could not say.
    let text = serde_json::to_string(&card).unwrap_or_default();
    text.trim_start_matches('{').strip_suffix('}').unwrap_or_default().to_owned()
}

/// A member of a queue, with its score.
pub(super) fn waiter(member: &str, score: f64) -> Result<Waiter, Foreign> {
    #[derive(Deserialize)]
    struct Member {
        mode: Mode,
        agent_id: String,
        holder_id: String,
        priority: i32,
        request: RequestKey,
        remember: bool,
        purpose: Text,
        requested_at: jiff::Timestamp,
        deadline: String,
        served_by: Option<Text>,
        #[serde(default)]
        upgrade: bool,
    }
    let foreign = || Foreign::new("a waiter", member);
    let read: Member = serde_json::from_str(member).map_err(|_| foreign())?;
    let score = if read.upgrade { score + AHEAD } else { score };
    Ok(Waiter {
        holder: holder(&read.agent_id, &read.holder_id)?,
        request: read.request,
        mode: read.mode,
        score: Score::from_millis(score),
        upgrade: read.upgrade,
        priority: read.priority,
        purpose: read.purpose,
        requested_at: read.requested_at.into(),
        deadline: moment(&read.deadline).ok_or_else(foreign)?,
        served_by: read.served_by,
        remember: read.remember,
    })
}

/// By how much the score of an upgrading holder lies below its time: ahead of everybody, and exact.
const AHEAD: f64 = 2_199_023_255_552.0;

/// An end as text: its word, and the cycle of a deadlock.
pub(super) fn write_end(end: &End) -> String {
    match end {
        End::Deadlock(cycle) => {
            let cycle = serde_json::to_string(cycle.as_ref()).unwrap_or_default();
            format!("{} {cycle}", end.word())
        }
        _ => end.word().to_owned(),
    }
}

pub(super) fn end(text: &str) -> Result<End, Foreign> {
    if let Some(cycle) = text.strip_prefix("deadlock ") {
        let cycle: Cycle = serde_json::from_str(cycle).map_err(|_| Foreign::new("a cycle", cycle))?;
        return Ok(End::Deadlock(Arc::new(cycle)));
    }
    End::of_word(text).ok_or_else(|| Foreign::new("an end", text))
}
