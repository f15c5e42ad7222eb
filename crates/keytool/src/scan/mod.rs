//! Reads the keys of one server in bounded batches: names, types, lifetimes, and parts of values.
//!
//! Invariants: nothing is written; a batch is as large as its [`Pace`] allows; a value is read up to a limit. A key that SCAN
//! returns twice within a batch counts once.

mod denied;
mod pace;
mod values;

use std::collections::BTreeSet;

use ade_catalog::model::ValueType;
use redis::{Value, pipe};
use tokio::time::Instant;

pub use self::denied::{Denial, Denied};
pub use self::pace::Pace;
pub(crate) use self::pace::Pacer;
pub(crate) use self::values::{Content, ReadRequest, ReadValue, memory_and_strings, read_elements};
use crate::server::{Node, ServerError};

/// A key with what is known about it.
#[derive(Debug, Clone)]
pub(crate) struct ScannedKey {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: KeyKind,
    pub(crate) ttl: KeyTtl,
}

/// What TYPE returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Known(ValueType),
    /// A type of a module.
    Other(String),
    /// TYPE is denied.
    Unknown,
}

/// What PTTL returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyTtl {
    Never,
    /// Milliseconds that are left.
    Left(u64),
    /// PTTL is denied.
    Unknown,
}

/// The keys of one step of SCAN.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) keys: Vec<ScannedKey>,
    /// Keys that expired or were deleted before they were read.
    pub(crate) vanished: u64,
    /// Where the next step begins; zero at the end.
    pub(crate) next: u64,
    pub(crate) denied: Denied,
    /// Commands that were sent.
    pub(crate) commands: usize,
    /// How long the server took.
    pub(crate) busy: std::time::Duration,
}

/// Reads the next batch. `known` tells what needs not be tried.
pub(crate) async fn next_batch(
    mut node: Node,
    cursor: u64,
    count: usize,
    known: Denied,
) -> Result<Batch, ServerError> {
    let started = Instant::now();
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("COUNT").arg(count);
    let (next, names): (u64, Vec<Vec<u8>>) = node.query("SCAN", &command).await?;
    let mut seen = BTreeSet::new();
    let names: Vec<&Vec<u8>> = names.iter().filter(|name| seen.insert(*name)).collect();
    let mut batch = Batch {
        keys: Vec::with_capacity(names.len()),
        vanished: 0,
        next,
        denied: Denied::default(),
        commands: 1,
        busy: std::time::Duration::ZERO,
    };
    let (has_type, has_ttl) = (!known.is_pointless("TYPE"), !known.is_pointless("PTTL"));
    let mut commands = pipe();
    for name in &names {
        if has_type {
            commands.cmd("TYPE").arg(*name);
        }
        if has_ttl {
            commands.cmd("PTTL").arg(*name);
        }
    }
    let replies = if commands.is_empty() { Vec::new() } else { node.replies(&commands).await? };
    batch.commands += commands.len();
    let mut replies = replies.into_iter();
    for name in names {
        let kind = if has_type { replies.next() } else { None };
        let ttl = if has_ttl { replies.next() } else { None };
        let kind = kind.map_or(KeyKind::Unknown, |reply| key_kind(&reply, &mut batch.denied));
        let ttl = ttl.map_or(KeyTtl::Unknown, |reply| key_ttl(&reply, &mut batch.denied));
        match ttl {
            _ if kind == KeyKind::Other("none".to_owned()) => batch.vanished += 1,
            KeyTtl::Left(u64::MAX) => batch.vanished += 1,
            ttl => batch.keys.push(ScannedKey { name: name.clone(), kind, ttl }),
        }
    }
    batch.busy = started.elapsed();
    Ok(batch)
}

fn key_kind(reply: &Value, denied: &mut Denied) -> KeyKind {
    if denied.count("TYPE", reply) {
        return KeyKind::Unknown;
    }
    let name = match reply {
        Value::SimpleString(name) => name.as_str(),
        _ => return KeyKind::Unknown,
    };
    const TYPES: [ValueType; 6] = [
        ValueType::String,
        ValueType::Hash,
        ValueType::List,
        ValueType::Set,
        ValueType::Zset,
        ValueType::Stream,
    ];
    let known = TYPES.into_iter().find(|kind| kind.as_str() == name);
    known.map_or_else(|| KeyKind::Other(name.to_owned()), KeyKind::Known)
}

/// A key that is gone has the most time left, which no key can have.
fn key_ttl(reply: &Value, denied: &mut Denied) -> KeyTtl {
    match reply {
        Value::Int(-1) => KeyTtl::Never,
        Value::Int(ms) => KeyTtl::Left(u64::try_from(*ms).unwrap_or(u64::MAX)),
        other => {
            denied.count("PTTL", other);
            KeyTtl::Unknown
        }
    }
}
