//! Recognises calls of Redis clients among all calls of a file, and brings them into the form of Redis commands.

use tree_sitter::Node;

use super::commands::{is_command, is_generic};
use super::model::{Arg, Call, TextExpr};
use super::syntax::{Context, FrontEnd, MAX_DEPTH, MethodCall, names_redis};

/// Methods that take a command as their arguments.
const RAW: &[&str] =
    &["call", "sendcommand", "executecommand", "execute", "do", "send", "rawcommand", "customcommand"];

/// Methods and functions that start a pipeline or a transaction.
const PIPELINES: &[&str] = &[
    "pipeline",
    "pipelined",
    "pipe",
    "atomicpipe",
    "multi",
    "txpipeline",
    "txpipelined",
    "transaction",
    "batch",
];

/// Methods whose commands have a subcommand before the key.
const WITH_SUBCOMMAND: &[&str] = &["XGROUP", "XINFO", "OBJECT", "MEMORY"];

/// Names that variables with a client often have.
const CLIENT_NAMES: &[&str] = &[
    "client",
    "conn",
    "con",
    "connection",
    "r",
    "rc",
    "c",
    "pipe",
    "pipeline",
    "p",
    "tx",
    "multi",
    "db",
    "kv",
    "cache",
    "store",
    "red",
    "cluster",
    "pubsub",
    "publisher",
    "subscriber",
    "pub",
    "sub",
    "batch",
];

/// Words of names whose values are about Redis but no client.
const NOT_CLIENTS: &[&str] = &[
    "config", "cfg", "options", "opts", "settings", "params", "args", "url", "info", "env", "map", "stats",
    "result", "reply", "response", "headers", "dict", "nodes", "version",
];

/// Words in the value of a variable that is a client of something else.
const OTHER_CLIENTS: &[&str] = &[
    "sql", "postgres", "http", "mongo", "map", "dict", "json", "reqwest", "hyper", "file", "vec", "btree",
    "s3", "grpc", "kafka", "axios", "fetch", "object",
];

/// Functions whose texts look like keys and are none: names of events in a browser, and keys of its storage.
pub(super) const NOT_FOR_KEYS: &[&str] = &[
    "addEventListener",
    "removeEventListener",
    "CustomEvent",
    "Event",
    "dispatchEvent",
    "getItem",
    "setItem",
    "removeItem",
    "querySelector",
    "querySelectorAll",
    "closest",
    "matches",
];

/// Whether a text is a Lua script for Redis.
pub(super) fn is_script(text: &str) -> bool {
    ["redis.call", "redis.pcall"].iter().any(|call| text.contains(call))
}

/// The Redis commands that a call sends.
pub(super) fn redis_calls(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    node: Node<'_>,
    call: MethodCall<'_, '_>,
) -> Vec<Call> {
    let name: String = call.name.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase();
    let Some(receiver) = call.receiver else { return Vec::new() };
    let is_client = |is_generic| is_client(front_end, cx, receiver, is_generic, 0);
    let group = group_of(front_end, cx, receiver);
    // A chain of calls begins far above its last one, whose arguments are beside its name.
    let place = node.child_by_field_name("arguments").unwrap_or(node);
    let at = |command: &str, args: Vec<Arg>, group: Option<usize>| Call {
        command: command.to_owned(),
        args,
        position: place.start_byte(),
        line: place.start_position().row + 1,
        group,
    };
    if RAW.contains(&name.as_str()) {
        let raw = raw_command(call.args).filter(|_| is_client(true));
        return raw.map(|(command, args)| at(&command, args, group)).into_iter().collect();
    }
    if PIPELINES.contains(&name.as_str()) {
        // Lists of commands, as ioredis takes them.
        let [Arg::List(commands)] = call.args.as_slice() else { return Vec::new() };
        let commands = commands.iter().filter_map(|command| raw_command(vec![command.clone()]));
        let found: Vec<Call> =
            commands.map(|(command, args)| at(&command, args, Some(node.start_byte()))).collect();
        return if is_client(true) { found } else { Vec::new() };
    }
    let Some((command, args)) = command_of(&name, call.args) else { return Vec::new() };
    let is_complete = !args.is_empty() && (command != "SET" || args.len() > 1);
    // Clients of HTTP have methods of the same names.
    let is_path = args
        .first()
        .and_then(Arg::as_text)
        .is_some_and(|text| text.head().starts_with('/') || text.head().contains("://"));
    if is_complete && !(is_path && is_generic(&command)) && is_client(is_generic(&command)) {
        vec![at(&command, args, group)]
    } else {
        Vec::new()
    }
}

/// A command whose name is the first argument, or the first element of a list.
fn raw_command(args: Vec<Arg>) -> Option<(String, Vec<Arg>)> {
    let mut args = args.into_iter();
    let (name, rest) = match args.next()? {
        Arg::List(items) => {
            let mut items = items.into_iter();
            (items.next()?, items.collect())
        }
        name => {
            (name, args.flat_map(|arg| if let Arg::List(items) = arg { items } else { vec![arg] }).collect())
        }
    };
    let command = name.as_word()?.to_ascii_uppercase();
    is_command(&command).then_some((command, rest))
}

/// The command that a method is named after, with its arguments in the order of the command.
fn command_of(method: &str, mut args: Vec<Arg>) -> Option<(String, Vec<Arg>)> {
    let command = match method {
        "delete" => "DEL",
        "setoptions" => "SET",
        "setmultiple" => "MSET",
        "hsetmultiple" | "hmset" => "HSET",
        "zaddmultiple" => "ZADD",
        "xaddmap" | "xaddmaxlen" | "xaddoptions" => "XADD",
        "xreadoptions" => "XREAD",
        "scaniter" | "scanmatch" | "scaniterator" | "scanstream" => {
            // The pattern comes first unless it has a name.
            if matches!(args.first(), Some(Arg::Text(_))) {
                args.insert(0, Arg::Text(TextExpr::literal("MATCH", 0, 0)));
            }
            "SCAN"
        }
        "scan" => {
            // Go passes cursor, pattern and count.
            if let [_, Arg::Text(pattern), ..] = args.as_slice()
                && !pattern.as_literal().is_some_and(|word| word.eq_ignore_ascii_case("MATCH"))
            {
                args.insert(1, Arg::Text(TextExpr::literal("MATCH", 0, 0)));
            }
            "SCAN"
        }
        _ => {
            let command = method.to_ascii_uppercase();
            if let Some(family) = WITH_SUBCOMMAND.iter().find(|family| command.starts_with(**family)) {
                // `xgroup_create(key, …)` has the subcommand in its name.
                if command.len() > family.len() {
                    args.insert(0, Arg::Other(String::new()));
                }
                return Some(((*family).to_owned(), args));
            }
            return is_command(&command).then_some((command, args));
        }
    };
    Some((command.to_owned(), args))
}

/// Whether an expression is a client, connection or pipeline of Redis. `must_be_sure` if the method has a common name.
fn is_client(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    receiver: Node<'_>,
    must_be_sure: bool,
    depth: usize,
) -> bool {
    if depth > MAX_DEPTH {
        return false;
    }
    let deeper = |node| is_client(front_end, cx, node, must_be_sure, depth + 1);
    if let Some(inner) = front_end.unwrap(receiver) {
        return deeper(inner);
    }
    if let Some((object, name)) = front_end.callee(cx, receiver) {
        let name = name.to_ascii_lowercase();
        let plain: String = name.chars().filter(|c| *c != '_').collect();
        let is_pipeline = PIPELINES.contains(&plain.as_str());
        return match object {
            _ if names_redis(&name) => true,
            Some(object) => is_step(&plain) && deeper(object),
            None => cx.mentions_redis && is_pipeline,
        };
    }
    let (object, name) = match front_end.member(cx, receiver) {
        Some((object, field)) => (Some(object), field),
        None => (None, cx.text_of(receiver)),
    };
    if !name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$') {
        return false;
    }
    let lower = name.to_ascii_lowercase();
    if NOT_CLIENTS.iter().any(|word| lower.contains(word)) {
        return false;
    }
    if names_redis(&lower) {
        return true;
    }
    let is_plausible = cx.mentions_redis
        && (!must_be_sure || CLIENT_NAMES.contains(&lower.as_str()) || is_client_word(&lower));
    if object.is_some() {
        return is_plausible;
    }
    let Some(binding) = cx.resolve(name, receiver.start_byte()) else { return is_plausible };
    let origin = binding.origin.to_ascii_lowercase();
    if !matches!(binding.value, Arg::Other(_)) {
        return false;
    }
    let is_other = || OTHER_CLIENTS.iter().any(|word| origin.contains(word));
    names_redis(&origin) || (is_plausible && !is_other())
}

fn is_client_word(name: &str) -> bool {
    ["client", "conn", "pipeline"].iter().any(|word| name.ends_with(word))
}

/// Methods between a client and its command: commands of a pipeline before this one, and what makes a client.
fn is_step(name: &str) -> bool {
    let makes_client = [
        "client", "conn", "get", "clone", "lock", "borrow", "unwrap", "expect", "acquire", "arg", "ignore",
        "atomic",
    ];
    PIPELINES.contains(&name)
        || RAW.contains(&name)
        || name == "cmd"
        || makes_client.iter().any(|word| name.contains(word))
        || command_of(name, Vec::new()).is_some()
}

/// The pipeline or transaction that a command is added to: where it starts in the source.
pub(super) fn group_of(front_end: &dyn FrontEnd, cx: &Context<'_>, receiver: Node<'_>) -> Option<usize> {
    let mut node = receiver;
    for _ in 0..MAX_DEPTH {
        if let Some(inner) = front_end.unwrap(node) {
            node = inner;
        } else if let Some((object, name)) = front_end.callee(cx, node) {
            let plain: String = name.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase();
            if PIPELINES.contains(&plain.as_str()) {
                return Some(node.start_byte());
            }
            node = object?;
        } else {
            break;
        }
    }
    let binding = cx.resolve(cx.text_of(node), node.start_byte())?;
    let origin: String =
        binding.origin.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase();
    let starts = |name: &&str| origin.contains(&format!("{name}("));
    (PIPELINES.iter().any(starts) || origin.contains("pipeliner")).then_some(binding.start)
}
