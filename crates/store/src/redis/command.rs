//! One command to one lock as the arguments and the reply of one step.

use std::borrow::Cow;

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, EndReason, FencingToken, Grant, Hold, Holder, LockCommand, LockMode, LockOutcome,
    LockRefusal, RequestKey, UnreportedLease,
};
use redis::Value;

use super::encoding::{self, CorruptValue};
use super::keys::AgentKeys;
use super::steps::{Arguments, StepReply};
use crate::coordination::{LockEventKind, Result};

/// The arguments of a command, in the order of `scripts/state.lua`. `agent` are the keys of its holder's agent.
pub(super) fn arguments(channel: &str, agent: Option<&AgentKeys>, command: &LockCommand) -> Arguments {
    let mut args = Arguments::default();
    let (agent_id, holder_id) =
        command.holder().map_or(("", ""), |holder| (holder.agent_id(), encoding::explicit_holder_id(holder)));
    let digest = match (agent, command.holder()) {
        (Some(agent), _) if holder_id.is_empty() => Cow::Borrowed(agent.digest.as_str()),
        (_, holder) => Cow::Owned(holder.map(encoding::holder_digest).unwrap_or_default()),
    };
    args.push_text(code(command))
        .push_text(&digest)
        .push_text(agent_id)
        .push_text(holder_id)
        .push_text(channel);
    match command {
        LockCommand::Acquire(acquire) => {
            args.push(acquire.request)
                .push_text(if acquire.mode == LockMode::Shared { "s" } else { "x" })
                .push(acquire.ttl_ms)
                .push_text(flag(acquire.claimed))
                .push_text(flag(acquire.leave_tombstone))
                .push(acquire.priority)
                .push_text(&acquire.purpose);
            if let Some(wait) = &acquire.wait {
                args.push(wait.timeout_ms)
                    .push_text(wait.served_by.as_deref().unwrap_or_default())
                    .push_text(&encoding::fixed_waiter_fields(acquire, &digest, agent, wait.timeout_ms));
            }
        }
        LockCommand::Claim { request, ttl_ms, .. } | LockCommand::ExtendUnclaimed { request, ttl_ms, .. } => {
            args.push(request).push(ttl_ms);
        }
        LockCommand::Extend { token, ttl_ms, .. } => {
            args.push(token).push(ttl_ms);
        }
        LockCommand::Release { token, server, .. } => {
            args.push(token).push_text(server.as_deref().unwrap_or_default());
        }
        LockCommand::ReturnUnreported { lease: UnreportedLease::WithToken(token), .. } => {
            args.push(token).push_text("");
        }
        LockCommand::ReturnUnreported { lease: UnreportedLease::StartedBy(server, request), .. } => {
            args.push(request).push_text(server);
        }
        LockCommand::Downgrade { token, .. } | LockCommand::Verify { token } => {
            args.push(token);
        }
        LockCommand::Query { request, .. } => {
            args.push(request);
        }
        LockCommand::Cancel { request, reason, include_claimed, .. } => {
            args.push(request).push_text(&encoding::format_end(reason)).push_text(flag(*include_claimed));
        }
        LockCommand::Disconnect { request, server, include_claimed, .. } => {
            let reason = EndReason::Disconnected.as_str();
            args.push(request).push_text(reason).push_text(flag(*include_claimed)).push_text(server);
        }
        LockCommand::Abort { expected_request, cycle, .. } => {
            let request = expected_request.map_or_else(String::new, |request| request.to_string());
            let reason = encoding::format_end(&EndReason::Deadlock(cycle.clone()));
            args.push_text(&request).push_text(&reason);
        }
        LockCommand::ServerHeartbeat { server } => {
            args.push_text(server);
        }
        LockCommand::Break | LockCommand::Tick | LockCommand::Sweep => {}
    }
    args
}

const fn flag(is_set: bool) -> &'static str {
    if is_set { "1" } else { "0" }
}

/// The name of a command in `scripts/commands.lua`.
const fn code(command: &LockCommand) -> &'static str {
    match command {
        LockCommand::Acquire(_) => "acquire",
        LockCommand::Claim { .. } => "claim",
        LockCommand::ExtendUnclaimed { .. } => "extend_unclaimed",
        LockCommand::Extend { .. } => "extend",
        LockCommand::Release { .. } => "release",
        LockCommand::ReturnUnreported { .. } => "return_unreported",
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
        grant: Grant,
        /// The holder waited.
        is_promotion: bool,
        /// The lease started with a promotion by this command, and the caller must be told.
        is_unreported: bool,
        requests: Vec<RequestKey>,
        last_wait: bool,
    },
    /// `last_hold`: no other holder of the same agent has this lock.
    HoldEnded {
        token: FencingToken,
        reason: &'static str,
        last_hold: bool,
    },
    /// `is_alone`: the agent held nothing and waited for nothing else.
    Queued {
        is_alone: bool,
    },
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
            ChangeKind::Granted { ref grant, is_promotion: true, .. } => {
                LockEventKind::Promoted(holder, grant.token)
            }
            ChangeKind::Granted { ref grant, .. } => LockEventKind::Acquired(holder, grant.token),
            ChangeKind::HoldEnded { token, reason, .. } => LockEventKind::Released(holder, token, reason),
            ChangeKind::Queued { .. } => LockEventKind::Queued(holder),
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
    /// For a sweep.
    pub(super) queue_length: usize,
}

impl CommandReply {
    /// A reply is an outcome followed by changes: of the `caller` as text, of others with their names.
    pub(super) fn parse((now, value): StepReply, caller: Option<&Holder>) -> Result<Self> {
        let corrupt = |value: &Value| CorruptValue::new("the reply to a lock command", format!("{value:?}"));
        let Value::Array(parts) = &value else { return Err(corrupt(&value).into()) };
        let (mut words, mut changes) = (Vec::with_capacity(parts.len()), Vec::new());
        for part in parts {
            if let Value::Array(of_other) = part {
                let [text, agent, holder_id] = of_other.as_slice() else { return Err(corrupt(part).into()) };
                let holder = encoding::parse_holder(&word(agent)?, &word(holder_id)?)?;
                changes.push(ReportedChange { holder, kind: parse_change(&word(text)?)? });
                continue;
            }
            let text = word(part)?;
            if let Some(own) = text.strip_prefix('+') {
                let holder = caller.ok_or_else(|| corrupt(part))?.clone();
                changes.push(ReportedChange { holder, kind: parse_change(own)? });
            } else {
                words.push(text);
            }
        }
        let words: Vec<&str> = words.iter().map(|word| &**word).collect();
        let mut reply = Self { now, outcome: LockOutcome::Done, changes, next_due: None, queue_length: 0 };
        if let ["swept", next_due, queue_length] = words.as_slice() {
            reply.next_due = Some((*next_due).to_owned()).filter(|due| !due.is_empty());
            reply.queue_length = queue_length.parse().map_err(|_| corrupt(&value))?;
        } else {
            reply.outcome = parse_outcome(&words)?;
        }
        Ok(reply)
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.outcome, LockOutcome::Status(AcquireStatus::Waiting { .. }))
    }

    /// Whether the command changed something of this holder in one of these ways.
    pub(super) fn has_change_of(&self, holder: &Holder, is_meant: impl Fn(&ChangeKind) -> bool) -> bool {
        self.changes.iter().any(|change| change.holder == *holder && is_meant(&change.kind))
    }
}

fn word(part: &Value) -> Result<Cow<'_, str>, CorruptValue> {
    let corrupt = || CorruptValue::new("text", format!("{part:?}"));
    match part {
        Value::BulkString(bytes) => Ok(Cow::Borrowed(str::from_utf8(bytes).map_err(|_| corrupt())?)),
        Value::SimpleString(text) => Ok(Cow::Borrowed(text)),
        Value::Int(number) => Ok(Cow::Owned(number.to_string())),
        _ => Err(corrupt()),
    }
}

fn parse_outcome(words: &[&str]) -> Result<LockOutcome, CorruptValue> {
    let corrupt = || CorruptValue::new("the outcome of a lock command", format!("{words:?}"));
    let count = |text: &str| text.parse::<usize>().map_err(|_| corrupt());
    let moment = |text: &str| encoding::parse_moment(text).ok_or_else(corrupt);
    let grant = encoding::parse_grant;
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

fn parse_change(text: &str) -> Result<ChangeKind, CorruptValue> {
    let corrupt = || CorruptValue::new("a change of a lock", text);
    let token = |text: &str| text.parse().map(FencingToken::from_number).map_err(|_| corrupt());
    let request = |text: &str| text.parse::<RequestKey>().map_err(|_| corrupt());
    let reason = |text: &str| match text {
        "deadlock" => Ok("deadlock"),
        end => encoding::parse_end(end).map(|end| end.as_str()),
    };
    let mut words = text.split(' ');
    let mut next = || words.next().ok_or_else(corrupt);
    let (kind, is_last) = (next()?, next()? == "1");
    Ok(match kind {
        "granted" | "promoted" => {
            let (numbers, requests) = text.rsplit_once(' ').ok_or_else(corrupt)?;
            let numbers = numbers.splitn(3, ' ').nth(2).ok_or_else(corrupt)?;
            ChangeKind::Granted {
                last_wait: is_last,
                grant: encoding::parse_grant(numbers)?,
                is_promotion: kind == "promoted",
                is_unreported: encoding::is_unreported(numbers),
                requests: requests.split(',').map(request).collect::<Result<_, _>>()?,
            }
        }
        "hold_ended" => {
            ChangeKind::HoldEnded { last_hold: is_last, token: token(next()?)?, reason: reason(next()?)? }
        }
        "wait_ended" => {
            ChangeKind::WaitEnded { last_wait: is_last, request: request(next()?)?, reason: reason(next()?)? }
        }
        "queued" => ChangeKind::Queued { is_alone: is_last },
        "claimed" => ChangeKind::Claimed,
        "upgrade_lost" => ChangeKind::UpgradeLost,
        "queue_full" => ChangeKind::QueueFull,
        _ => return Err(corrupt()),
    })
}
