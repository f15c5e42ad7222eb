//! One command to one lock as one script: its text with the rules in force, its arguments, and what it answers.

use std::borrow::Cow;
use std::fmt::Write;

use ade_domain::Moment;
use ade_domain::agent::MAX_QUEUED_TASKS;
use ade_domain::lock::{
    End, Hold, Holder, LONGER_MS, LockCommand, LockLimits, LockName, LockRefusal, MAX_REQUESTS, Mode,
    Outcome, RequestKey, SHOWN_HOLDERS, Standing, Token,
};
use redis::Value;

use super::encoding::{self, Foreign};
use crate::coordination::{LockEventKind, MOST_AT_ONCE, MOST_SCHEDULED, MOST_WAITING};

const STATE: &str = include_str!("scripts/state.lua");
const DUE: &str = include_str!("scripts/due.lua");
const QUICK: &str = include_str!("scripts/quick.lua");
const COMMANDS: &str = include_str!("scripts/commands.lua");
const REST: &str = include_str!("scripts/rest.lua");
const JOBS: &str = include_str!("scripts/jobs.lua");

/// A queue lives at least so long after somebody joined it.
pub(super) const QUEUE_MS: u64 = 300_000;
/// The key of a lock outlives its lease by this: the sweep, not Redis, ends a lease.
const BACKSTOP_MS: u64 = 5_000;
/// How long the last token of a lock is kept.
const FENCE_MS: u64 = 86_400_000;
/// How often the life of what is kept is prolonged.
const RENEW_FENCE_MS: u64 = 3_600_000;
/// A lock that somebody waits for is looked at so often, due or not.
const VISIT_MS: u64 = 2_000;
/// Sharers that are looked through to see whether an agent is still among them.
const SEEN_SHARERS: usize = 64;
/// Sharers that the field `holders` lists.
const LISTED_HOLDERS: usize = 100;

/// The library with the machine of one lock, under these rules, and the rest.
pub(super) fn library(rules: &LockLimits) -> String {
    let index_ms = index_ms(rules);
    let constants: [(&str, u64); 24] = [
        ("QUEUE_MS", QUEUE_MS),
        ("BACKSTOP_MS", BACKSTOP_MS),
        ("FENCE_MS", FENCE_MS),
        ("RENEW_FENCE_MS", RENEW_FENCE_MS),
        ("VISIT_MS", VISIT_MS.min(rules.server_silence_ms)),
        ("INDEX_MS", index_ms),
        ("SEEN_SHARERS", SEEN_SHARERS as u64),
        ("LISTED_HOLDERS", LISTED_HOLDERS as u64),
        ("MAX_REQUESTS", MAX_REQUESTS as u64),
        ("SHOWN_HOLDERS", SHOWN_HOLDERS as u64),
        ("LONGER_MS", LONGER_MS),
        ("REPEAT_MS", rules.repeat_ms),
        ("MAX_REPEATS", rules.max_repeats as u64),
        ("BATCH", rules.batch as u64),
        ("MAX_QUEUE", rules.max_queue as u64),
        ("MAX_HOLDERS", rules.max_holders as u64),
        ("SILENCE_MS", rules.server_silence_ms),
        ("SERVED_CLAIM_MS", rules.served_claim_ms),
        ("TICKET_CLAIM_MS", rules.ticket_claim_ms),
        ("CROWDED_AFTER", rules.crowded_after.into()),
        ("MAX_QUEUED_TASKS", MAX_QUEUED_TASKS as u64),
        ("MOST_WAITING", MOST_WAITING as u64),
        ("MOST_SCHEDULED", MOST_SCHEDULED as u64),
        ("MOST_AT_ONCE", MOST_AT_ONCE as u64),
    ];
    let windows = [("CROWDED_WITHIN_MS", rules.crowded_within_ms), ("CROWDED_FOR_MS", rules.crowded_for_ms)];
    let mut text = String::new();
    for (name, value) in constants.into_iter().chain(windows) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "local {name} = {value}");
    }
    text + STATE + DUE + QUICK + COMMANDS + REST + JOBS
}

/// How long the entries of an index live without a sign of life: as long as the longest lease, and the backstop.
pub(super) const fn index_ms(rules: &LockLimits) -> u64 {
    rules.max_ttl_ms + BACKSTOP_MS
}

/// The arguments of a command.
pub(super) fn arguments<'a>(
    name: &'a LockName,
    channel: &'a str,
    command: &'a LockCommand,
) -> Vec<Cow<'a, str>> {
    let holder = command.holder();
    let mut args: Vec<Cow<'a, str>> = Vec::with_capacity(18);
    args.push(word(command).into());
    args.push(name.as_str().into());
    args.push(holder.map(encoding::who).unwrap_or_default().into());
    args.push(holder.map_or("", |holder| holder.agent_id()).into());
    args.push(holder.map_or("", encoding::holder_id).into());
    args.push(channel.into());
    match command {
        LockCommand::Acquire(wish) => {
            let wait = wish.wait.as_ref();
            args.extend([
                wish.request.to_string().into(),
                if wish.mode == Mode::Shared { "s" } else { "x" }.into(),
                wish.ttl_ms.to_string().into(),
                flag(wish.claimed),
                flag(wish.remember),
                wish.priority.to_string().into(),
                (&*wish.purpose).into(),
                wait.map_or_else(String::new, |wait| wait.ms.to_string()).into(),
                wait.and_then(|wait| wait.served_by.as_deref()).unwrap_or_default().into(),
                wait.map_or_else(String::new, |wait| encoding::card(wish, wait.ms)).into(),
            ]);
        }
        LockCommand::Claim { request, ttl_ms: ms, .. } | LockCommand::Keep { request, ms, .. } => {
            args.extend([request.to_string().into(), ms.to_string().into()]);
        }
        LockCommand::Extend { token, ms, .. } => {
            args.extend([token.to_string().into(), ms.to_string().into()])
        }
        LockCommand::Release { token, .. }
        | LockCommand::Downgrade { token, .. }
        | LockCommand::Verify { token } => {
            args.push(token.to_string().into());
        }
        LockCommand::Inquire { request, .. } => args.push(request.to_string().into()),
        LockCommand::Cancel { request, why, begun, .. } => {
            args.extend([request.to_string().into(), encoding::write_end(why).into(), flag(*begun)]);
        }
        LockCommand::HangUp { request, server, begun, .. } => {
            args.extend([request.to_string().into(), "hung_up".into(), flag(*begun), (&**server).into()]);
        }
        LockCommand::Abort { waits_by, cycle, .. } => {
            let why = End::Deadlock(cycle.clone());
            let waits_by = waits_by.map_or_else(String::new, |request| request.to_string());
            args.extend([waits_by.into(), encoding::write_end(&why).into()]);
        }
        LockCommand::Mark { server } => args.push((&**server).into()),
        LockCommand::Break | LockCommand::Tick | LockCommand::Sweep => {}
    }
    args
}

const fn flag(yes: bool) -> Cow<'static, str> {
    Cow::Borrowed(if yes { "1" } else { "0" })
}

const fn word(command: &LockCommand) -> &'static str {
    match command {
        LockCommand::Acquire(_) => "acquire",
        LockCommand::Claim { .. } => "claim",
        LockCommand::Keep { .. } => "keep",
        LockCommand::Extend { .. } => "extend",
        LockCommand::Release { .. } => "release",
        LockCommand::Downgrade { .. } => "downgrade",
        LockCommand::Verify { .. } => "verify",
        LockCommand::Inquire { .. } => "inquire",
        LockCommand::Cancel { .. } => "cancel",
        LockCommand::HangUp { .. } => "hang_up",
        LockCommand::Break => "break",
        LockCommand::Abort { .. } => "abort",
        LockCommand::Mark { .. } => "mark",
        LockCommand::Tick => "tick",
        LockCommand::Sweep => "sweep",
    }
}

/// What one step changed, as far as others must know.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Changed {
    Granted {
        holder: Holder,
        token: Token,
        requests: Vec<RequestKey>,
        last_wait: bool,
    },
    Freed {
        holder: Holder,
        token: Token,
        why: &'static str,
        last_hold: bool,
    },
    Queued {
        holder: Holder,
    },
    /// The lease of a grant has begun.
    Claimed {
        holder: Holder,
    },
    /// It lost the place of an upgrade, and waits like others.
    Back {
        holder: Holder,
    },
    Left {
        holder: Holder,
        request: RequestKey,
        why: &'static str,
        last_wait: bool,
    },
    Full,
}

impl Changed {
    /// Whether somebody stands in the queue or holds the lock who did not before.
    pub(super) fn begins_for(&self, who: &Holder) -> bool {
        matches!(self, Self::Queued { holder } | Self::Granted { holder, .. } if holder == who)
    }

    pub(super) fn event(&self) -> Option<LockEventKind> {
        Some(match self {
            Self::Granted { holder, token, .. } => LockEventKind::Acquired(holder.clone(), *token),
            Self::Freed { holder, token, why, .. } => LockEventKind::Freed(holder.clone(), *token, why),
            Self::Queued { holder } => LockEventKind::Queued(holder.clone()),
            Self::Left { holder, why, .. } => LockEventKind::Left(holder.clone(), why),
            Self::Full => LockEventKind::QueueFull,
            Self::Back { .. } | Self::Claimed { .. } => return None,
        })
    }
}

/// What a step answers.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) now: Moment,
    pub(super) outcome: Outcome,
    pub(super) changed: Vec<Changed>,
    /// To a sweep: when to come back, in seconds; nothing if the lock is idle.
    pub(super) due: Option<String>,
    /// How many wait; the quick steps are for locks that nobody waits for.
    pub(super) queued: usize,
}

impl Said {
    pub(super) fn read(value: &Value) -> Result<Self, Foreign> {
        let parts = list(value)?;
        let [now, outcome, changed, due, rest @ ..] = parts else {
            return Err(Foreign::new("an answer", format!("{value:?}")));
        };
        let changed = list(changed)?.iter().map(read_change).collect::<Result<_, _>>()?;
        let due = Some(text(due)?.to_owned()).filter(|due| !due.is_empty());
        let queued = rest.first().map_or(Ok(0), number)?;
        Ok(Self { now: moment(now)?, outcome: read_outcome(list(outcome)?)?, changed, due, queued })
    }
}

fn read_outcome(parts: &[Value]) -> Result<Outcome, Foreign> {
    let foreign = || Foreign::new("an outcome", format!("{parts:?}"));
    let [word, rest @ ..] = parts else { return Err(foreign()) };
    let grant = |value: &Value| Ok::<_, Foreign>(encoding::hold(text(value)?)?.grant());
    let held_by = |values: &[Value]| {
        let mut holds =
            values.iter().map(|value| encoding::hold(text(value)?)).collect::<Result<Vec<_>, _>>()?;
        holds.sort_by(|a, b| a.holder.cmp(&b.holder));
        Ok::<_, Foreign>(holds.iter().map(Hold::held_by).collect::<Vec<_>>())
    };
    let refused = |refusal| Outcome::Standing(Standing::Refused(refusal));
    Ok(match (text(word)?, rest) {
        ("held", [hold]) => Outcome::Standing(Standing::Held(grant(hold)?)),
        ("over", [end]) => Outcome::Standing(Standing::Over(encoding::end(text(end)?)?)),
        ("waiting", [position, deadline]) => {
            Outcome::Standing(Standing::Waiting { position: number(position)?, deadline: moment(deadline)? })
        }
        ("refused", [queue_length, holders @ ..]) => {
            refused(LockRefusal::Held { holders: held_by(holders)?, queue_length: number(queue_length)? })
        }
        ("full", [queue_length]) => refused(LockRefusal::QueueFull { queue_length: number(queue_length)? }),
        ("contention", [at]) => refused(LockRefusal::Contention { retry_at: moment(at)? }),
        ("kept", [hold]) => Outcome::Kept(grant(hold)?),
        ("valid", [hold]) => Outcome::Valid(encoding::hold(text(hold)?)?.held_by()),
        ("broken", holders) => Outcome::Broken(held_by(holders)?),
        ("lost", []) => Outcome::Lost,
        ("done", []) => Outcome::Done,
        _ => return Err(foreign()),
    })
}

fn read_change(value: &Value) -> Result<Changed, Foreign> {
    let foreign = || Foreign::new("a change", format!("{value:?}"));
    let [word, rest @ ..] = list(value)? else { return Err(foreign()) };
    let holder = |agent: &Value, id: &Value| encoding::holder(text(agent)?, text(id)?);
    let token = |value: &Value| text(value)?.parse().map(Token::shown).map_err(|_| foreign());
    let key = |text: &str| text.parse::<RequestKey>().map_err(|_| foreign());
    let why = |value: &Value| {
        let word = text(value)?;
        if word == "deadlock" {
            return Ok("deadlock");
        }
        encoding::end(word).map(|end| end.word())
    };
    Ok(match (text(word)?, rest) {
        ("granted", [agent, id, last, of, requests]) => Changed::Granted {
            holder: holder(agent, id)?,
            last_wait: number(last)? == 1,
            token: token(of)?,
            requests: text(requests)?.split(',').map(key).collect::<Result<_, _>>()?,
        },
        ("freed", [agent, id, last, of, end]) => Changed::Freed {
            holder: holder(agent, id)?,
            last_hold: number(last)? == 1,
            token: token(of)?,
            why: why(end)?,
        },
        ("left", [agent, id, last, request, end]) => Changed::Left {
            holder: holder(agent, id)?,
            last_wait: number(last)? == 1,
            request: key(text(request)?)?,
            why: why(end)?,
        },
        ("queued", [agent, id]) => Changed::Queued { holder: holder(agent, id)? },
        ("claimed", [agent, id]) => Changed::Claimed { holder: holder(agent, id)? },
        ("back", [agent, id]) => Changed::Back { holder: holder(agent, id)? },
        ("full", []) => Changed::Full,
        _ => return Err(foreign()),
    })
}

/// An answer in the one form that scripts answer in too: lists of texts and numbers, pairs one after the other.
pub(super) fn plain(value: Value) -> Value {
    match value {
        Value::Set(parts) => Value::Array(parts),
        Value::Map(pairs) => Value::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        Value::Double(number) => Value::BulkString(number.to_string().into_bytes()),
        Value::Array(parts) => Value::Array(
            parts
                .into_iter()
                .flat_map(|part| match plain(part) {
                    Value::Array(pair) => pair,
                    other => vec![other],
                })
                .collect(),
        ),
        other => other,
    }
}

pub(super) fn list(value: &Value) -> Result<&[Value], Foreign> {
    match value {
        Value::Array(parts) => Ok(parts),
        other => Err(Foreign::new("no list", format!("{other:?}"))),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, Foreign> {
    let bytes = match value {
        Value::BulkString(bytes) => bytes.as_slice(),
        Value::SimpleString(text) => text.as_bytes(),
        other => return Err(Foreign::new("no text", format!("{other:?}"))),
    };
    std::str::from_utf8(bytes).map_err(|_| Foreign::new("no text", format!("{bytes:?}")))
}

pub(super) fn number(value: &Value) -> Result<usize, Foreign> {
    match value {
        Value::Int(number) => {
            usize::try_from(*number).map_err(|_| Foreign::new("no count", number.to_string()))
        }
        other => text(other)?.parse().map_err(|_| Foreign::new("no count", format!("{other:?}"))),
    }
}

pub(super) fn moment(value: &Value) -> Result<Moment, Foreign> {
    encoding::moment(text(value)?).ok_or_else(|| Foreign::new("no time", format!("{value:?}")))
}
