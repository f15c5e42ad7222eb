//! One command to one lock as the arguments and the reply of one script.

use std::borrow::Cow;

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, EndReason, FencingToken, Hold, Holder, LockCommand, LockMode, LockName, LockOutcome,
    LockRefusal, RequestKey,
};
use redis::Value;

use super::encoding::{self, CorruptValue};
use super::reply::{array, moment, number, text};
use crate::coordination::LockEventKind;

/// The arguments of a command, in the order of `scripts/state.lua`.
pub(super) fn arguments<'a>(
    name: &'a LockName,
    channel: &'a str,
    command: &'a LockCommand,
) -> Vec<Cow<'a, str>> {
    let holder = command.holder();
    let mut args: Vec<Cow<'a, str>> = Vec::with_capacity(18);
    args.push(code(command).into());
    args.push(name.as_str().into());
    args.push(holder.map(encoding::holder_digest).unwrap_or_default().into());
    args.push(holder.map_or("", |holder| holder.agent_id()).into());
    args.push(holder.map_or("", encoding::explicit_holder_id).into());
    args.push(channel.into());
    match command {
        LockCommand::Acquire(acquire) => {
            let wait = acquire.wait.as_ref();
            args.extend([
                acquire.request.to_string().into(),
                if acquire.mode == LockMode::Shared { "s" } else { "x" }.into(),
                acquire.ttl_ms.to_string().into(),
                flag(acquire.claimed),
                flag(acquire.leave_tombstone),
                acquire.priority.to_string().into(),
                (&*acquire.purpose).into(),
                wait.map_or_else(String::new, |wait| wait.timeout_ms.to_string()).into(),
                wait.and_then(|wait| wait.served_by.as_deref()).unwrap_or_default().into(),
                wait.map_or_else(String::new, |wait| encoding::fixed_waiter_fields(acquire, wait.timeout_ms))
                    .into(),
            ]);
        }
        LockCommand::Claim { request, ttl_ms: ms, .. }
        | LockCommand::ExtendUnclaimed { request, ttl_ms: ms, .. } => {
            args.extend([request.to_string().into(), ms.to_string().into()]);
        }
        LockCommand::Extend { token, ttl_ms: ms, .. } => {
            args.extend([token.to_string().into(), ms.to_string().into()]);
        }
        LockCommand::Release { token, .. }
        | LockCommand::Downgrade { token, .. }
        | LockCommand::Verify { token } => {
            args.push(token.to_string().into());
        }
        LockCommand::Query { request, .. } => args.push(request.to_string().into()),
        LockCommand::Cancel { request, reason: why, include_claimed: begun, .. } => {
            args.extend([request.to_string().into(), encoding::format_end(why).into(), flag(*begun)]);
        }
        LockCommand::Disconnect { request, server, include_claimed: begun, .. } => {
            let why = EndReason::Disconnected.as_str();
            args.extend([request.to_string().into(), why.into(), flag(*begun), (&**server).into()]);
        }
        LockCommand::Abort { expected_request: waits_by, cycle, .. } => {
            let why = EndReason::Deadlock(cycle.clone());
            let waits_by = waits_by.map_or_else(String::new, |request| request.to_string());
            args.extend([waits_by.into(), encoding::format_end(&why).into()]);
        }
        LockCommand::ServerHeartbeat { server } => args.push((&**server).into()),
        LockCommand::Break | LockCommand::Tick | LockCommand::Sweep => {}
    }
    args
}

const fn flag(is_set: bool) -> Cow<'static, str> {
    Cow::Borrowed(if is_set { "1" } else { "0" })
}

/// The name of a command in `scripts/commands.lua`.
const fn code(command: &LockCommand) -> &'static str {
    match command {
        LockCommand::Acquire(_) => "acquire",
        LockCommand::Claim { .. } => "claim",
        LockCommand::ExtendUnclaimed { .. } => "extend_unclaimed",
        LockCommand::Extend { .. } => "extend",
        LockCommand::Release { .. } => "release",
        LockCommand::Downgrade { .. } => "downgrade",
        LockCommand::Verify { .. } => "verify",
        LockCommand::Query { .. } => "query",
        LockCommand::Cancel { .. } => "cancel",
        LockCommand::Disconnect { .. } => "disconnect",
        LockCommand::Break => "break",
        LockCommand::Abort { .. } => "abort",
        LockCommand::ServerHeartbeat { .. } => "server_heartbeat",
        LockCommand::Tick => "tick",
        LockCommand::Sweep => "sweep",
    }
}

/// A change that one command made, as far as indexes, waiters and events depend on it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReportedChange {
    Granted {
        holder: Holder,
        token: FencingToken,
        requests: Vec<RequestKey>,
        /// No other holder of the same agent waits for this lock.
        last_wait: bool,
    },
    HoldEnded {
        holder: Holder,
        token: FencingToken,
        reason: &'static str,
        /// No other holder of the same agent has this lock.
        last_hold: bool,
    },
    Queued {
        holder: Holder,
    },
    /// The lease of a grant started.
    Claimed {
        holder: Holder,
    },
    /// A pending upgrade lost its shared hold and became an ordinary wait.
    UpgradeLost {
        holder: Holder,
    },
    WaitEnded {
        holder: Holder,
        request: RequestKey,
        reason: &'static str,
        last_wait: bool,
    },
    QueueFull,
}

impl ReportedChange {
    /// Whether the holder got the lock or a place in the queue by this change.
    pub(super) fn is_entry_of(&self, entering: &Holder) -> bool {
        matches!(self, Self::Queued { holder } | Self::Granted { holder, .. } if holder == entering)
    }

    pub(super) fn event(&self) -> Option<LockEventKind> {
        Some(match self {
            Self::Granted { holder, token, .. } => LockEventKind::Acquired(holder.clone(), *token),
            Self::HoldEnded { holder, token, reason, .. } => {
                LockEventKind::Released(holder.clone(), *token, reason)
            }
            Self::Queued { holder } => LockEventKind::Queued(holder.clone()),
            Self::WaitEnded { holder, reason, .. } => LockEventKind::WaitEnded(holder.clone(), reason),
            Self::QueueFull => LockEventKind::QueueFull,
            Self::UpgradeLost { .. } | Self::Claimed { .. } => return None,
        })
    }
}

/// The reply to a lock command.
#[derive(Debug)]
pub(super) struct CommandReply {
    pub(super) now: Moment,
    pub(super) outcome: LockOutcome,
    pub(super) changes: Vec<ReportedChange>,
    /// For a sweep: when to visit the lock again, in Unix seconds; `None` if it is idle.
    pub(super) next_due: Option<String>,
    /// Zero in replies of the fast path, which only serves locks without waiters.
    pub(super) queue_length: usize,
}

impl CommandReply {
    pub(super) fn parse(value: &Value) -> Result<Self, CorruptValue> {
        let [now, outcome, changes, next_due, rest @ ..] = array(value)? else {
            return Err(CorruptValue::new("a reply to a lock command", format!("{value:?}")));
        };
        let changes = array(changes)?.iter().map(parse_change).collect::<Result<_, _>>()?;
        let next_due = Some(text(next_due)?.to_owned()).filter(|due| !due.is_empty());
        let queue_length = rest.first().map_or(Ok(0), number)?;
        let outcome = parse_outcome(array(outcome)?)?;
        Ok(Self { now: moment(now)?, outcome, changes, next_due, queue_length })
    }
}

fn parse_outcome(parts: &[Value]) -> Result<LockOutcome, CorruptValue> {
    let corrupt = || CorruptValue::new("the outcome of a lock command", format!("{parts:?}"));
    let [code, rest @ ..] = parts else { return Err(corrupt()) };
    let grant = |value: &Value| Ok::<_, CorruptValue>(encoding::parse_hold(text(value)?)?.grant());
    let held_by = |values: &[Value]| {
        let mut holds =
            values.iter().map(|value| encoding::parse_hold(text(value)?)).collect::<Result<Vec<_>, _>>()?;
        holds.sort_by(|a, b| a.holder.cmp(&b.holder));
        Ok::<_, CorruptValue>(holds.iter().map(Hold::view).collect::<Vec<_>>())
    };
    let refused = |refusal| LockOutcome::Status(AcquireStatus::Refused(refusal));
    Ok(match (text(code)?, rest) {
        ("held", [hold]) => LockOutcome::Status(AcquireStatus::Held(grant(hold)?)),
        ("ended", [end]) => LockOutcome::Status(AcquireStatus::Ended(encoding::parse_end(text(end)?)?)),
        ("waiting", [position, deadline]) => LockOutcome::Status(AcquireStatus::Waiting {
            position: number(position)?,
            deadline: moment(deadline)?,
        }),
        ("refused", [queue_length, holders @ ..]) => {
            refused(LockRefusal::Held { holders: held_by(holders)?, queue_length: number(queue_length)? })
        }
        ("queue_full", [queue_length]) => {
            refused(LockRefusal::QueueFull { queue_length: number(queue_length)? })
        }
        ("circuit_open", [retry_at]) => refused(LockRefusal::CircuitOpen { retry_at: moment(retry_at)? }),
        ("updated", [hold]) => LockOutcome::Updated(grant(hold)?),
        ("valid", [hold]) => LockOutcome::Valid(encoding::parse_hold(text(hold)?)?.view()),
        ("broken", holders) => LockOutcome::Broken(held_by(holders)?),
        ("not_found", []) => LockOutcome::NotFound,
        ("done", []) => LockOutcome::Done,
        _ => return Err(corrupt()),
    })
}

fn parse_change(value: &Value) -> Result<ReportedChange, CorruptValue> {
    let corrupt = || CorruptValue::new("a change of a lock", format!("{value:?}"));
    let [code, rest @ ..] = array(value)? else { return Err(corrupt()) };
    let holder = |agent: &Value, id: &Value| encoding::parse_holder(text(agent)?, text(id)?);
    let token = |value: &Value| text(value)?.parse().map(FencingToken::from_number).map_err(|_| corrupt());
    let request = |text: &str| text.parse::<RequestKey>().map_err(|_| corrupt());
    let reason = |value: &Value| {
        let word = text(value)?;
        if word == "deadlock" {
            return Ok("deadlock");
        }
        encoding::parse_end(word).map(|end| end.as_str())
    };
    Ok(match (text(code)?, rest) {
        ("granted", [agent, id, last_wait, fencing_token, requests]) => ReportedChange::Granted {
            holder: holder(agent, id)?,
            last_wait: number(last_wait)? == 1,
            token: token(fencing_token)?,
            requests: text(requests)?.split(',').map(request).collect::<Result<_, _>>()?,
        },
        ("hold_ended", [agent, id, last_hold, fencing_token, end]) => ReportedChange::HoldEnded {
            holder: holder(agent, id)?,
            last_hold: number(last_hold)? == 1,
            token: token(fencing_token)?,
            reason: reason(end)?,
        },
        ("wait_ended", [agent, id, last_wait, key, end]) => ReportedChange::WaitEnded {
            holder: holder(agent, id)?,
            last_wait: number(last_wait)? == 1,
            request: request(text(key)?)?,
            reason: reason(end)?,
        },
        ("queued", [agent, id]) => ReportedChange::Queued { holder: holder(agent, id)? },
        ("claimed", [agent, id]) => ReportedChange::Claimed { holder: holder(agent, id)? },
        ("upgrade_lost", [agent, id]) => ReportedChange::UpgradeLost { holder: holder(agent, id)? },
        ("queue_full", []) => ReportedChange::QueueFull,
        _ => return Err(corrupt()),
    })
}
