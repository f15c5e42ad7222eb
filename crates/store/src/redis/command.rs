//! One command to one lock as the arguments and the reply of one script.

use std::borrow::Cow;

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, EndReason, FencingToken, Hold, Holder, LockCommand, LockMode, LockName, LockOutcome,
    LockRefusal, RequestKey,
};
use redis::Value;

use super::encoding::{self, CorruptValue};
use super::query::UnixMicros;
use crate::coordination::{LockEventKind, Result};

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
        LockCommand::Claim { request, ttl_ms, .. } | LockCommand::ExtendUnclaimed { request, ttl_ms, .. } => {
            args.extend([request.to_string().into(), ttl_ms.to_string().into()]);
        }
        LockCommand::Extend { token, ttl_ms, .. } => {
            args.extend([token.to_string().into(), ttl_ms.to_string().into()]);
        }
        LockCommand::Release { token, .. }
        | LockCommand::Downgrade { token, .. }
        | LockCommand::Verify { token } => args.push(token.to_string().into()),
        LockCommand::Query { request, .. } => args.push(request.to_string().into()),
        LockCommand::Cancel { request, reason, include_claimed, .. } => {
            let reason = encoding::format_end(reason).into();
            args.extend([request.to_string().into(), reason, flag(*include_claimed)]);
        }
        LockCommand::Disconnect { request, server, include_claimed, .. } => {
            let reason = EndReason::Disconnected.as_str().into();
            args.extend([request.to_string().into(), reason, flag(*include_claimed), (&**server).into()]);
        }
        LockCommand::Abort { expected_request, cycle, .. } => {
            let request = expected_request.map_or_else(String::new, |request| request.to_string());
            args.extend([request.into(), encoding::format_end(&EndReason::Deadlock(cycle.clone())).into()]);
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
pub(super) struct ReportedChange {
    pub(super) holder: Holder,
    pub(super) kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChangeKind {
    /// `last_wait`: no other holder of the same agent waits for this lock.
    Granted {
        token: FencingToken,
        requests: Vec<RequestKey>,
        last_wait: bool,
    },
    /// `last_hold`: no other holder of the same agent has this lock.
    HoldEnded {
        token: FencingToken,
        reason: &'static str,
        last_hold: bool,
    },
    Queued,
    /// The lease of a grant started.
    Claimed,
    /// A pending upgrade lost its shared hold and became an ordinary wait.
    UpgradeLost,
    WaitEnded {
        request: RequestKey,
        reason: &'static str,
        last_wait: bool,
    },
    /// The request was refused because the queue is full.
    QueueFull,
}

impl ReportedChange {
    pub(super) fn event(&self) -> Option<LockEventKind> {
        let holder = self.holder.clone();
        Some(match self.kind {
            ChangeKind::Granted { token, .. } => LockEventKind::Acquired(holder, token),
            ChangeKind::HoldEnded { token, reason, .. } => LockEventKind::Released(holder, token, reason),
            ChangeKind::Queued => LockEventKind::Queued(holder),
            ChangeKind::WaitEnded { reason, .. } => LockEventKind::WaitEnded(holder, reason),
            ChangeKind::QueueFull => LockEventKind::QueueFull,
            ChangeKind::UpgradeLost | ChangeKind::Claimed => return None,
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
    pub(super) fn parse(value: Value) -> Result<Self> {
        type Reply = (UnixMicros, Vec<String>, Vec<Vec<String>>, String, usize);
        let (UnixMicros(now), outcome, changes, next_due, queue_length): Reply =
            redis::from_redis_value(value)?;
        let outcome = parse_outcome(&words(&outcome))?;
        let changes = changes.iter().map(|change| parse_change(&words(change))).collect::<Result<_, _>>()?;
        let next_due = Some(next_due).filter(|due| !due.is_empty());
        Ok(Self { now, outcome, changes, next_due, queue_length })
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.outcome, LockOutcome::Status(AcquireStatus::Waiting { .. }))
    }

    /// Whether the command changed something of this holder in one of these ways.
    pub(super) fn has_change_of(&self, holder: &Holder, is_meant: impl Fn(&ChangeKind) -> bool) -> bool {
        self.changes.iter().any(|change| change.holder == *holder && is_meant(&change.kind))
    }
}

fn words(parts: &[String]) -> Vec<&str> {
    parts.iter().map(String::as_str).collect()
}

fn parse_outcome(words: &[&str]) -> Result<LockOutcome, CorruptValue> {
    let corrupt = || CorruptValue::new("the outcome of a lock command", format!("{words:?}"));
    let count = |text: &str| text.parse::<usize>().map_err(|_| corrupt());
    let moment = |text: &str| encoding::parse_moment(text).ok_or_else(corrupt);
    let grant = |hold: &str| Ok::<_, CorruptValue>(encoding::parse_hold(hold)?.grant());
    let held_by = |holds: &[&str]| {
        let mut holds = holds.iter().map(|hold| encoding::parse_hold(hold)).collect::<Result<Vec<_>, _>>()?;
        holds.sort_by(|a, b| a.holder.cmp(&b.holder));
        Ok::<_, CorruptValue>(holds.iter().map(Hold::view).collect::<Vec<_>>())
    };
    let status = match words {
        ["held", hold] => AcquireStatus::Held(grant(hold)?),
        ["ended", end] => AcquireStatus::Ended(encoding::parse_end(end)?),
        ["waiting", position, deadline] => {
            AcquireStatus::Waiting { position: count(position)?, deadline: moment(deadline)? }
        }
        ["refused", queue_length, holders @ ..] => {
            let (holders, queue_length) = (held_by(holders)?, count(queue_length)?);
            AcquireStatus::Refused(LockRefusal::Held { holders, queue_length })
        }
        ["queue_full", queue_length] => {
            AcquireStatus::Refused(LockRefusal::QueueFull { queue_length: count(queue_length)? })
        }
        ["circuit_open", retry_at] => {
            AcquireStatus::Refused(LockRefusal::CircuitOpen { retry_at: moment(retry_at)? })
        }
        ["updated", hold] => return Ok(LockOutcome::Updated(grant(hold)?)),
        ["valid", hold] => return Ok(LockOutcome::Valid(encoding::parse_hold(hold)?.view())),
        ["broken", holders @ ..] => return Ok(LockOutcome::Broken(held_by(holders)?)),
        ["not_found"] => return Ok(LockOutcome::NotFound),
        ["done"] => return Ok(LockOutcome::Done),
        _ => return Err(corrupt()),
    };
    Ok(LockOutcome::Status(status))
}

fn parse_change(words: &[&str]) -> Result<ReportedChange, CorruptValue> {
    let corrupt = || CorruptValue::new("a change of a lock", format!("{words:?}"));
    let [kind, agent, holder_id, rest @ ..] = words else { return Err(corrupt()) };
    let token = |text: &str| text.parse().map(FencingToken::from_number).map_err(|_| corrupt());
    let request = |text: &str| text.parse::<RequestKey>().map_err(|_| corrupt());
    let reason = |text: &str| match text {
        "deadlock" => Ok("deadlock"),
        end => encoding::parse_end(end).map(|end| end.as_str()),
    };
    let kind = match (*kind, rest) {
        ("granted", [last_wait, fencing_token, requests]) => ChangeKind::Granted {
            last_wait: *last_wait == "1",
            token: token(fencing_token)?,
            requests: requests.split(',').map(request).collect::<Result<_, _>>()?,
        },
        ("hold_ended", [last_hold, fencing_token, end]) => ChangeKind::HoldEnded {
            last_hold: *last_hold == "1",
            token: token(fencing_token)?,
            reason: reason(end)?,
        },
        ("wait_ended", [last_wait, key, end]) => ChangeKind::WaitEnded {
            last_wait: *last_wait == "1",
            request: request(key)?,
            reason: reason(end)?,
        },
        ("queued", []) => ChangeKind::Queued,
        ("claimed", []) => ChangeKind::Claimed,
        ("upgrade_lost", []) => ChangeKind::UpgradeLost,
        ("queue_full", []) => ChangeKind::QueueFull,
        _ => return Err(corrupt()),
    };
    Ok(ReportedChange { holder: encoding::parse_holder(agent, holder_id)?, kind })
}
