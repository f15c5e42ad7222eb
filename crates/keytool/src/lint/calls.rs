//! Recognises calls of Redis clients among all calls of a file, and brings them into the form of Redis commands.

use tree_sitter::Node;

use super::commands::{is_command, is_generic};
use super::model::{Arg, Call, Piece, TextExpr};
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

/// The name of a file with the language of a text that is itself source code: a Lua script for Redis, or a command line.
pub(super) fn embedded_language(text: &TextExpr) -> Option<&'static str> {
    let is_lua =
        text.as_literal().is_some_and(|text| text.contains("redis.call") || text.contains("redis.pcall"));
    let is_shell = || ["redis-cli ", "valkey-cli "].iter().any(|program| text.head().starts_with(program));
    if is_lua { Some("script.lua") } else { is_shell().then_some("command.sh") }
}

/// The Redis commands that a call sends.
pub(super) fn redis_calls(
    front_end: &dyn FrontEnd,
    cx: &Context<'_>,
    node: Node<'_>,
    call: MethodCall<'_, '_>,
) -> Vec<Call> {
    let name = plain(call.name);
    let Some(receiver) = call.receiver else { return Vec::new() };
    let certainty = || is_client(front_end, cx, receiver, 0);
    // A chain of calls begins far above its last one, whose arguments are beside its name.
    let place = node.child_by_field_name("arguments").unwrap_or(node);
    let at = |(command, args): (String, Vec<Arg>), group: Option<usize>| Call {
        command,
        args,
        position: place.start_byte(),
        line: place.start_position().row + 1,
        group,
    };
    if RAW.contains(&name.as_str()) {
        let raw = raw_command(call.args).filter(|_| certainty() >= Certainty::Likely);
        return raw.map(|raw| at(raw, group_of(front_end, cx, receiver))).into_iter().collect();
    }
    if PIPELINES.contains(&name.as_str()) {
        // Lists of commands, as ioredis takes them.
        let [Arg::List(commands)] = call.args.as_slice() else { return Vec::new() };
        let commands = commands.iter().filter_map(|command| raw_command(vec![command.clone()]));
        let found: Vec<Call> = commands.map(|raw| at(raw, Some(node.start_byte()))).collect();
        return if certainty() >= Certainty::Likely { found } else { Vec::new() };
    }
    let Some((command, args)) = command_of(&name, call.args) else { return Vec::new() };
    let is_complete = !args.is_empty() && (command != "SET" || args.len() > 1);
    let needed = if is_generic(&command) { needed_certainty(&args) } else { Certainty::Possible };
    if is_complete && certainty() >= needed {
        vec![at((command, args), group_of(front_end, cx, receiver))]
    } else {
        Vec::new()
    }
}

/// What a method with a common name needs: other types have it too, above all clients of HTTP and maps.
fn needed_certainty(args: &[Arg]) -> Certainty {
    let key = match args.first() {
        Some(Arg::List(items)) => items.first(),
        first => first,
    };
    match key.and_then(Arg::as_text) {
        Some(key)
            if key.pieces.iter().any(|piece| matches!(piece, Piece::Literal(text) if text.contains(':'))) =>
        {
            let is_address = key.head().starts_with('/') || key.head().contains("://");
            if is_address { Certainty::Sure } else { Certainty::Likely }
        }
        _ => Certainty::Sure,
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

/// How likely an expression is a client, connection or pipeline of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Certainty {
    No,
    /// The file uses Redis, and nothing else is known.
    Possible,
    /// It has a name that such variables often have.
    Likely,
    Sure,
}

fn is_client(front_end: &dyn FrontEnd, cx: &Context<'_>, receiver: Node<'_>, depth: usize) -> Certainty {
    if depth > MAX_DEPTH {
        return Certainty::No;
    }
    let in_file = |certainty| if cx.mentions_redis { certainty } else { Certainty::No };
    if let Some(inner) = front_end.unwrap(receiver) {
        return is_client(front_end, cx, inner, depth + 1);
    }
    if let Some((object, name)) = front_end.callee(cx, receiver) {
        let name = plain(name);
        return match object {
            _ if names_redis(&name) => Certainty::Sure,
            Some(object) if is_step(&name) => is_client(front_end, cx, object, depth + 1),
            None if PIPELINES.contains(&name.as_str()) => in_file(Certainty::Sure),
            None if is_client_word(&name) => in_file(Certainty::Likely),
            _ => Certainty::No,
        };
    }
    let (object, name) = match front_end.member(cx, receiver) {
        Some((object, field)) => (Some(object), field),
        None => (None, cx.text_of(receiver)),
    };
    let lower = name.to_ascii_lowercase();
    let is_name = lower.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '$');
    if !is_name || NOT_CLIENTS.iter().any(|word| lower.contains(word)) {
        return Certainty::No;
    }
    if names_redis(&lower) {
        return Certainty::Sure;
    }
    let is_likely = CLIENT_NAMES.contains(&lower.as_str()) || is_client_word(&lower);
    let by_name = in_file(if is_likely { Certainty::Likely } else { Certainty::Possible });
    let binding = if object.is_none() { cx.resolve(name, receiver.start_byte()) } else { None };
    let Some(binding) = binding else { return by_name };
    let origin = plain(binding.origin);
    if !matches!(binding.value, Arg::Other(_)) {
        Certainty::No
    } else if names_redis(&origin) {
        Certainty::Sure
    } else if makes_client(&origin) {
        in_file(Certainty::Sure)
    } else if OTHER_CLIENTS.iter().any(|word| origin.contains(word)) {
        Certainty::No
    } else {
        by_name
    }
}

/// Whether an expression makes a pipeline, or a connection as only clients of Redis do.
fn makes_client(origin: &str) -> bool {
    ["getconnection", "getmultiplexed", "connectionmanager", "pipeliner"]
        .iter()
        .any(|word| origin.contains(word))
        || PIPELINES.iter().any(|name| origin.contains(&format!("{name}(")))
}

/// A name in lower case without underscores.
fn plain(name: &str) -> String {
    name.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase()
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
            if PIPELINES.contains(&plain(name).as_str()) {
                return Some(node.start_byte());
            }
            node = object?;
        } else {
            break;
        }
    }
    let binding = cx.resolve(cx.text_of(node), node.start_byte())?;
    let origin = plain(binding.origin);
    let starts = |name: &&str| origin.contains(&format!("{name}("));
    (PIPELINES.iter().any(starts) || origin.contains("pipeliner")).then_some(binding.start)
}
