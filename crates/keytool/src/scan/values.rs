//! Reads memory usage and parts of values, each up to a limit.
//!
//! Invariant: the elements of a collection are read only after MEMORY USAGE showed that the whole key is small, because no
//! command limits the size of an element.

use ade_catalog::model::ValueType;
use redis::{Pipeline, Value, pipe};
use tokio::time::Instant;

use super::{Denied, Pacer};
use crate::server::{Node, ServerError};

/// Largest collection of which elements are read.
const MAX_COLLECTION_BYTES: u64 = 64 * 1024;
/// Elements that are read of a collection.
const MAX_ELEMENTS: usize = 64;
/// Bytes of values that one pipeline may return.
const MAX_REPLY_BYTES: usize = 4 * 1024 * 1024;

/// What to read of a key.
#[derive(Debug)]
pub(crate) struct ReadRequest<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: Option<ValueType>,
    pub(crate) with_memory: bool,
    /// Read at most so many bytes of a string; zero: do not read the value.
    pub(crate) max_bytes: usize,
}

/// What was read of a key.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) memory: Option<u64>,
    pub(crate) value: Option<ReadValue>,
}

/// A part of a value.
#[derive(Debug)]
pub(crate) enum ReadValue {
    /// Without the rest, if it is longer than the limit.
    Text { bytes: Vec<u8>, is_truncated: bool },
    /// Some fields of a hash or of stream entries.
    Fields(Vec<(Vec<u8>, Vec<u8>)>),
    /// Some members of a list, set or sorted set.
    Members(Vec<Vec<u8>>),
}

/// Reads memory usage and strings. Returns a content for every request.
pub(crate) async fn memory_and_strings(
    node: &Node,
    requests: &[ReadRequest<'_>],
    denied: &mut Denied,
    pacer: &mut Pacer,
) -> Result<Vec<Content>, ServerError> {
    let mut contents = Vec::with_capacity(requests.len());
    let mut rest = requests;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|request| {
            bytes += request.max_bytes;
            bytes <= MAX_REPLY_BYTES
        });
        let (chunk, later) = rest.split_at_checked(fits.count().max(1)).unwrap_or((rest, &[]));
        rest = later;
        let has_memory = !denied.is_pointless("MEMORY USAGE");
        let has_text = !denied.is_pointless("GETRANGE");
        let is_text = |request: &ReadRequest<'_>| {
            has_text && request.kind == Some(ValueType::String) && request.max_bytes > 0
        };
        let mut commands = pipe();
        for request in chunk {
            if has_memory && request.with_memory {
                commands.cmd("MEMORY").arg("USAGE").arg(request.name);
            }
            if is_text(request) {
                commands.cmd("GETRANGE").arg(request.name).arg(0).arg(request.max_bytes);
            }
        }
        let mut replies = send(node, &commands, pacer).await?.into_iter();
        for request in chunk {
            let mut content = Content::default();
            if has_memory && request.with_memory {
                match replies.next() {
                    Some(Value::Int(bytes)) => content.memory = u64::try_from(bytes).ok(),
                    Some(other) => drop(denied.count("MEMORY USAGE", &other)),
                    None => {}
                }
            }
            if is_text(request) {
                match replies.next() {
                    Some(Value::BulkString(mut bytes)) => {
                        let is_truncated = bytes.len() > request.max_bytes;
                        bytes.truncate(request.max_bytes);
                        content.value = Some(ReadValue::Text { bytes, is_truncated });
                    }
                    Some(other) => drop(denied.count("GETRANGE", &other)),
                    None => {}
                }
            }
            contents.push(content);
        }
    }
    Ok(contents)
}

/// Reads elements of small collections into `contents`. Keys whose memory usage is unknown are left out.
pub(crate) async fn read_elements(
    node: &Node,
    requests: &[ReadRequest<'_>],
    contents: &mut [Content],
    denied: &mut Denied,
    pacer: &mut Pacer,
) -> Result<(), ServerError> {
    let mut wanted: Vec<(&ReadRequest<'_>, ValueType, &mut Content)> = requests
        .iter()
        .zip(contents.iter_mut())
        .filter_map(|(request, content)| {
            let kind = request.kind.filter(|kind| *kind != ValueType::String && request.max_bytes > 0)?;
            let is_small = content.memory.is_some_and(|bytes| bytes <= MAX_COLLECTION_BYTES);
            (is_small && !denied.is_pointless(command_of(kind))).then_some((request, kind, content))
        })
        .collect();
    for chunk in wanted.chunks_mut(MAX_REPLY_BYTES / 65_536) {
        let mut commands = pipe();
        for (request, kind, _) in chunk.iter() {
            read_command(&mut commands, *kind, request.name);
        }
        let replies = send(node, &commands, pacer).await?;
        for ((_, kind, content), reply) in chunk.iter_mut().zip(replies) {
            if !denied.count(command_of(*kind), &reply) {
                content.value = elements(*kind, reply);
            }
        }
    }
    Ok(())
}

async fn send(node: &Node, commands: &Pipeline, pacer: &mut Pacer) -> Result<Vec<Value>, ServerError> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let started = Instant::now();
    let replies = node.replies(commands).await?;
    pacer.pause(commands.len(), started.elapsed()).await;
    Ok(replies)
}

fn command_of(kind: ValueType) -> &'static str {
    match kind {
        ValueType::String => "GETRANGE",
        ValueType::Hash => "HSCAN",
        ValueType::List => "LRANGE",
        ValueType::Set => "SSCAN",
        ValueType::Zset => "ZSCAN",
        ValueType::Stream => "XREVRANGE",
    }
}

fn read_command(commands: &mut Pipeline, kind: ValueType, name: &[u8]) {
    let command = commands.cmd(command_of(kind)).arg(name);
    match kind {
        ValueType::List | ValueType::String => command.arg(0).arg(MAX_ELEMENTS - 1),
        ValueType::Hash | ValueType::Set | ValueType::Zset => command.arg(0).arg("COUNT").arg(MAX_ELEMENTS),
        ValueType::Stream => command.arg("+").arg("-").arg("COUNT").arg(MAX_ELEMENTS / 4),
    };
}

fn elements(kind: ValueType, reply: Value) -> Option<ReadValue> {
    let parsed = match kind {
        ValueType::String => return None,
        ValueType::List => redis::from_redis_value(reply).map(ReadValue::Members),
        ValueType::Hash => redis::from_redis_value::<(u64, Vec<(Vec<u8>, Vec<u8>)>)>(reply)
            .map(|(_, all)| ReadValue::Fields(all)),
        ValueType::Set => {
            redis::from_redis_value::<(u64, Vec<Vec<u8>>)>(reply).map(|(_, all)| ReadValue::Members(all))
        }
        ValueType::Zset => redis::from_redis_value::<(u64, Vec<(Vec<u8>, Vec<u8>)>)>(reply)
            .map(|(_, all)| ReadValue::Members(all.into_iter().map(|(member, _)| member).collect())),
        ValueType::Stream => redis::from_redis_value::<Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>>(reply)
            .map(|entries| ReadValue::Fields(entries.into_iter().flat_map(|(_, fields)| fields).collect())),
    };
    parsed.ok()
}
