//! Redis commands: which of their arguments are keys, channels or patterns of keys, and which keep a TTL.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::model::{Arg, Call, TextExpr};

/// Where the keys of a command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    First,
    Second,
    /// The first two.
    Two,
    All,
    /// All but the last, which is a timeout.
    AllButLast,
    /// The first, third and so on.
    Alternating,
    FromSecond,
    /// As many as the argument at this index says.
    Counted(usize),
    /// The first, and as many as the second says.
    TargetAndCounted,
    AfterStreams,
    AfterMatch,
    None,
}

/// Every command with keys. Commands with other meanings in other libraries are in [`is_generic`] too.
const COMMANDS: &[(Keys, &str)] = &[
    (
        Keys::First,
        "APPEND BITCOUNT BITFIELD BITFIELD_RO BITPOS DECR DECRBY DUMP EXPIRE EXPIREAT EXPIRETIME GEOADD GEODIST GEOHASH \
         GEOPOS GEORADIUS GEORADIUSBYMEMBER GEOSEARCH GET GETBIT GETDEL GETEX GETRANGE GETSET HDEL HEXISTS HEXPIRE \
         HEXPIREAT HGET HGETALL HGETDEL HGETEX HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HPERSIST HPEXPIRE HPTTL \
         HRANDFIELD HSCAN HSET HSETEX HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT LINDEX LINSERT LLEN LPOP LPOS LPUSH \
         LPUSHX LRANGE LREM LSET LTRIM MOVE PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PSETEX PTTL PUBLISH RESTORE \
         RPOP RPUSH RPUSHX SADD SCARD SET SETBIT SETEX SETNX SETRANGE SISMEMBER SMEMBERS SMISMEMBER SORT SORT_RO SPOP \
         SPUBLISH SRANDMEMBER SREM SSCAN STRLEN SUBSTR TTL TYPE XACK XADD XAUTOCLAIM XCLAIM XDEL XLEN XPENDING XRANGE \
         XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZINCRBY ZLEXCOUNT ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE \
         ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX \
         ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE KEYS",
    ),
    (Keys::Second, "OBJECT XGROUP XINFO MEMORY"),
    (
        Keys::Two,
        "BLMOVE BRPOPLPUSH COPY GEOSEARCHSTORE LCS LMOVE RENAME RENAMENX RPOPLPUSH SMOVE ZRANGESTORE",
    ),
    (
        Keys::All,
        "DEL EXISTS MGET PFCOUNT PFMERGE PSUBSCRIBE SDIFF SDIFFSTORE SINTER SINTERSTORE SSUBSCRIBE SUBSCRIBE SUNION \
         SUNIONSTORE TOUCH UNLINK WATCH",
    ),
    (Keys::AllButLast, "BLPOP BRPOP BZPOPMAX BZPOPMIN"),
    (Keys::Alternating, "MSET MSETNX"),
    (Keys::FromSecond, "BITOP"),
    (Keys::Counted(0), "LMPOP SINTERCARD ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION"),
    (Keys::Counted(1), "BLMPOP BZMPOP EVAL EVALSHA EVALSHA_RO EVAL_RO FCALL FCALL_RO"),
    (Keys::TargetAndCounted, "ZDIFFSTORE ZINTERSTORE ZUNIONSTORE"),
    (Keys::AfterStreams, "XREAD XREADGROUP"),
    (Keys::AfterMatch, "SCAN"),
    (Keys::None, "MULTI EXEC DISCARD PING FLUSHALL FLUSHDB SELECT"),
];

/// Commands whose names are methods of many other types.
const GENERIC: &str = "APPEND COPY DEL DUMP EVAL EXISTS EXPIRE GET INCR DECR KEYS LCS MOVE OBJECT PERSIST PUBLISH RENAME \
     RESTORE SCAN SET SORT SUBSCRIBE SUBSTR TOUCH TYPE UNLINK WATCH MEMORY PING EXEC MULTI SELECT TTL DISCARD GETSET";

fn keys_of_command(command: &str) -> Option<Keys> {
    static BY_NAME: LazyLock<HashMap<&str, Keys>> = LazyLock::new(|| {
        let names = |(keys, names): &(Keys, &'static str)| {
            names.split_ascii_whitespace().map(|name| (name, *keys)).collect()
        };
        COMMANDS.iter().flat_map::<Vec<_>, _>(names).collect()
    });
    BY_NAME.get(command).copied()
}

pub(super) fn is_command(command: &str) -> bool {
    keys_of_command(command).is_some()
}

/// Whether methods with this name say nothing about Redis.
pub(super) fn is_generic(command: &str) -> bool {
    GENERIC.split_ascii_whitespace().any(|name| name == command)
}

/// Whether all keys of the call must be in one slot. Subscriptions have channels.
pub(super) fn is_bound_to_a_slot(command: &str) -> bool {
    !matches!(command, "SUBSCRIBE" | "PSUBSCRIBE" | "PUBLISH" | "KEYS" | "SCAN" | "MEMORY" | "OBJECT")
}

/// The keys, channels and patterns among the arguments.
pub(super) fn keys(call: &Call) -> Vec<&TextExpr> {
    let flat = || flatten(&call.args);
    let found: Vec<Option<&TextExpr>> = match keys_of_command(&call.command) {
        None | Some(Keys::None) => Vec::new(),
        Some(Keys::First) => flat().into_iter().take(1).collect(),
        Some(Keys::Second) => flat().into_iter().skip(1).take(1).collect(),
        Some(Keys::Two) => flat().into_iter().take(2).collect(),
        Some(Keys::All) => flat(),
        Some(Keys::AllButLast) => match call.args.split_last() {
            Some((Arg::Text(last), keys)) if !is_number(last) && !keys.is_empty() => {
                flatten(keys).into_iter().chain([Some(last)]).collect()
            }
            Some((Arg::List(_) | Arg::Text(_), [])) => flat(),
            Some((_, keys)) => flatten(keys),
            None => Vec::new(),
        },
        Some(Keys::FromSecond) => flat().into_iter().skip(1).collect(),
        Some(Keys::Alternating) => pairs(&call.args),
        Some(Keys::Counted(index)) => counted(&call.args, index),
        Some(Keys::TargetAndCounted) => {
            let target = call.args.first().map(Arg::as_text);
            target.into_iter().chain(counted(&call.args, 1)).collect()
        }
        Some(Keys::AfterStreams) => streams(&call.args),
        Some(Keys::AfterMatch) => after_match(&call.args),
    };
    found.into_iter().flatten().collect()
}

/// Arguments with the elements of lists in their place. Those that are no text are `None`.
fn flatten(args: &[Arg]) -> Vec<Option<&TextExpr>> {
    args.iter().flat_map(flatten_one).collect()
}

fn flatten_one(arg: &Arg) -> Vec<Option<&TextExpr>> {
    match arg {
        Arg::List(items) => flatten(items),
        Arg::Named(_, value) => match &**value {
            Arg::List(items) => flatten(items),
            other => vec![other.as_text()],
        },
        other => vec![other.as_text()],
    }
}

fn is_number(text: &TextExpr) -> bool {
    text.as_literal().is_some_and(|text| text.parse::<f64>().is_ok())
}

fn pairs(args: &[Arg]) -> Vec<Option<&TextExpr>> {
    match args {
        [Arg::Map(entries)] => entries.iter().map(|(key, _)| Some(key)).collect(),
        [Arg::List(items)] if items.iter().all(|item| matches!(item, Arg::List(_))) => {
            items.iter().map(|item| flatten_one(item).into_iter().next().flatten()).collect()
        }
        args => flatten(args).into_iter().step_by(2).collect(),
    }
}

/// The keys after their number, or in a list in its place, or in a map under `keys`.
fn counted(args: &[Arg], index: usize) -> Vec<Option<&TextExpr>> {
    match args.get(index) {
        Some(Arg::List(items)) => flatten(items),
        Some(Arg::Map(entries)) => {
            let keys = entries.iter().find(|(name, _)| name.as_literal() == Some("keys"));
            keys.map_or_else(Vec::new, |(_, value)| flatten_one(value))
        }
        Some(number) => {
            let count = number.as_word().and_then(|word| word.parse().ok()).unwrap_or(0);
            flatten(args.get(index + 1..).unwrap_or_default()).into_iter().take(count).collect()
        }
        None => Vec::new(),
    }
}

fn streams(args: &[Arg]) -> Vec<Option<&TextExpr>> {
    for arg in args {
        match arg {
            Arg::Map(entries) => return entries.iter().map(|(key, _)| Some(key)).collect(),
            Arg::Named(name, value) if name == "streams" => return streams(std::slice::from_ref(value)),
            _ => {}
        }
    }
    let is_streams = |arg: &Arg| arg.as_word().is_some_and(|word| word.eq_ignore_ascii_case("STREAMS"));
    if let Some(start) = args.iter().position(is_streams) {
        let keys_and_ids = flatten(args.get(start + 1..).unwrap_or_default());
        let count = keys_and_ids.len() / 2;
        return keys_and_ids.into_iter().take(count).collect();
    }
    // Typed clients take lists of keys and of ids.
    args.iter().find(|arg| matches!(arg, Arg::List(_))).map_or_else(Vec::new, flatten_one)
}

fn after_match(args: &[Arg]) -> Vec<Option<&TextExpr>> {
    let named = args.iter().find_map(|arg| match arg {
        Arg::Named(name, value) if name == "match" => value.as_text(),
        Arg::Map(entries) => {
            let is_match =
                |name: &TextExpr| name.as_literal().is_some_and(|name| name.eq_ignore_ascii_case("MATCH"));
            entries.iter().find(|(name, _)| is_match(name)).and_then(|(_, value)| value.as_text())
        }
        _ => None,
    });
    let is_match = |arg: &Arg| arg.as_word().is_some_and(|word| word.eq_ignore_ascii_case("MATCH"));
    let after = args.iter().position(is_match).and_then(|index| args.get(index + 1)).and_then(Arg::as_text);
    vec![named.or(after)]
}

/// The keys whose TTL the call removes.
pub(super) fn overwritten(call: &Call) -> Vec<&TextExpr> {
    match call.command.as_str() {
        "GETSET" | "MSET" => keys(call),
        "SET" if call.args.len() >= 2 && !sets_ttl(call.args.get(2..).unwrap_or_default()) => keys(call),
        _ => Vec::new(),
    }
}

/// Whether the options of a `SET` set or keep a TTL. What cannot be read is assumed to.
fn sets_ttl(options: &[Arg]) -> bool {
    let is_ttl = |name: &str| {
        let name = name.to_ascii_lowercase().replace('_', "");
        matches!(
            name.as_str(),
            "ex" | "px"
                | "exat"
                | "pxat"
                | "keepttl"
                | "expiration"
                | "ttl"
                | "timeout"
                | "expire"
                | "expiry"
        )
    };
    let is_off = |value: &Arg| match value {
        Arg::Other(source) => {
            matches!(source.as_str(), "None" | "False" | "false" | "null" | "undefined" | "nil")
        }
        _ => false,
    };
    options.iter().any(|option| match option {
        Arg::Text(text) => text.as_literal().is_none_or(is_ttl),
        Arg::Number(number) => number != "0",
        Arg::Named(name, value) => is_ttl(name) && !is_off(value),
        Arg::Map(entries) => {
            entries.iter().any(|(name, value)| name.as_literal().is_none_or(is_ttl) && !is_off(value))
        }
        Arg::List(_) => true,
        Arg::Other(source) => {
            !is_off(option)
                && !matches!(source.as_str(), "true" | "True")
                && !source.ends_with("NX")
                && !source.ends_with("XX")
        }
    })
}
