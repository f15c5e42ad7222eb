//! Reads all keys of Redis and checks each against the catalog: declared, with the declared type, fields and TTL. Records
//! which declarations were seen.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ade_catalog::find::MatchedLayout;
use ade_catalog::model::{Catalog, EntryKind, Field, FieldType, Format, KeyShape};
use ade_catalog::ttl::TtlRule;
use ade_testkit::wait::eventually;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::redis::servers::{RedisBackend, TIMEOUT};

/// Reads type, TTL and content of a key atomically.
const READ_KEY: &str = "
local kind, all = redis.call('TYPE', KEYS[1]).ok, {}
if kind == 'hash' then all = redis.call('HGETALL', KEYS[1])
elseif kind == 'zset' then all = redis.call('ZRANGE', KEYS[1], 0, -1)
elseif kind == 'set' then all = redis.call('SMEMBERS', KEYS[1])
elseif kind == 'string' then all = { redis.call('GET', KEYS[1]) } end
return { kind, redis.call('PTTL', KEYS[1]), all }";

/// Entries and fields that only a cluster has, and those that only the others have.
const ONLY_ON_A_CLUSTER: [&str; 2] = ["lock.task_fence token", "lock.resource_fence token"];
const NOT_ON_A_CLUSTER: [&str; 1] = ["lock.token"];

/// Catalog entries that were seen, with the declared names of the fields that were seen.
pub(crate) type Coverage = BTreeMap<String, BTreeSet<String>>;

pub(crate) struct KeyInspector {
    connections: Vec<redis::Connection>,
    is_cluster: bool,
    pub(crate) coverage: Coverage,
}

pub(crate) fn catalog() -> &'static Catalog {
    ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade").expect("the catalog of ADE")
}

impl KeyInspector {
    pub(crate) fn connect(redis: &RedisBackend) -> Self {
        let connections = redis.primaries().iter().map(|redis| redis.connect().expect("connects")).collect();
        Self { connections, is_cluster: redis.is_cluster(), coverage: Coverage::new() }
    }

    /// Checks every key and returns the names of the catalog entries found.
    pub(crate) fn check_all(&mut self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut slots: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for connection in &mut self.connections {
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).expect("keys");
            for key in keys {
                let (kind, ttl, content): (String, i64, Vec<String>) =
                    redis::cmd("EVAL").arg(READ_KEY).arg(1).arg(&key).query(connection).expect("key read");
                if kind == "none" {
                    continue;
                }
                let entry = check_key(&key, &kind, ttl, &content, self.is_cluster, &mut self.coverage);
                if self.is_cluster && (entry.starts_with("lock.task") || entry.starts_with("lock.resource")) {
                    let tag = key.split(['{', '}']).nth(1).expect("a hash tag").to_owned();
                    let slot =
                        redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key).query(connection).expect("a slot");
                    slots.entry(tag).or_default().insert(slot);
                }
                found.insert(entry);
            }
        }
        assert!(slots.values().all(|slots| slots.len() == 1), "all keys of a lock share one slot: {slots:?}");
        found
    }

    pub(crate) fn wait_for_entry(&mut self, entry: &str) {
        let observe = || if self.check_all().contains(entry) { Ok(()) } else { Err("not found".to_owned()) };
        eventually(&format!("{entry} exists"), TIMEOUT, observe).expect("in time");
    }

    /// Declared lock and agent entries and fields that were never seen.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for entry in &catalog().entries {
            let EntryKind::Key(shape) = &entry.kind else { continue };
            let is_covered = entry.name.starts_with("lock.") || entry.name.starts_with("agent.");
            if !is_covered && entry.name != "ratelimit.lock_acquire" {
                continue;
            }
            match self.coverage.get(&entry.name) {
                None => missing.push(entry.name.clone()),
                Some(seen) => {
                    let unseen = shape.fields.iter().filter(|field| !seen.contains(&field.name));
                    missing.extend(unseen.map(|field| format!("{} {}", entry.name, field.name)));
                }
            }
        }
        let unused: &[&str] = if self.is_cluster { &NOT_ON_A_CLUSTER } else { &ONLY_ON_A_CLUSTER };
        let is_unused = |name: &String| unused.contains(&name.as_str());
        assert_eq!(missing.iter().filter(|name| is_unused(name)).count(), unused.len(), "{unused:?}");
        missing.retain(|name| !is_unused(name));
        missing
    }
}

/// Checks a key against its catalog entry and returns the name of the entry.
fn check_key(
    key: &str,
    kind: &str,
    ttl: i64,
    content: &[String],
    is_cluster: bool,
    coverage: &mut Coverage,
) -> String {
    let found = catalog().find(key).unwrap_or_else(|| panic!("{key} is in no catalog"));
    assert!(found.is_canonical(), "{key} is not spelled as its builder does");
    let expected = if is_cluster { MatchedLayout::Cluster } else { MatchedLayout::Plain };
    assert!([MatchedLayout::Both, expected].contains(&found.layout), "{key}: {:?}", found.layout);
    let EntryKind::Key(shape) = &found.entry.kind else { panic!("{key} is not a key") };
    assert_eq!(kind, shape.value_type.as_str(), "{key}");
    check_ttl(key, ttl, &shape.ttl.rule);
    let names = coverage.entry(found.entry.name.clone()).or_default();
    if kind == "hash" {
        for [field, value] in content.as_chunks::<2>().0 {
            let declared = find_declaration(shape, field)
                .unwrap_or_else(|| panic!("{key}: field {field} is not declared"));
            assert!(is_valid(value, declared.field_type), "{key} {field}: {value}");
            names.insert(declared.name.clone());
        }
    } else if shape.format == Format::Json {
        for text in content {
            let json: Json =
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{key}: {error} in {text}"));
            if kind == "zset" {
                let queue_fields: &[&str] =
                    &["agent_id", "mode", "priority", "requested_at", "max_wait_seconds"];
                let documented = if found.entry.owner == "jobs" { &["type", "target"] } else { queue_fields };
                assert!(documented.iter().all(|name| json.get(name).is_some()), "{key}: {text}");
            }
        }
    }
    found.entry.name.clone()
}

fn check_ttl(key: &str, ttl: i64, rule: &TtlRule) {
    let max = match rule.resolved() {
        TtlRule::None => return assert_eq!(ttl, -1, "{key} must not expire"),
        TtlRule::Exact(span) => Some(span),
        TtlRule::Range { max, .. } => max.as_ref(),
        TtlRule::Default { ttl, at_most } | TtlRule::Renewable { ttl, at_most } => {
            at_most.as_ref().or(Some(ttl))
        }
        TtlRule::Given { .. } => return assert!(ttl >= 0, "{key} must expire"),
        TtlRule::Like { .. } => None,
    };
    let max = max.map_or(Duration::from_secs(86_400 * 365), |span| span.duration);
    assert!(ttl >= 0 && Duration::from_millis(ttl.unsigned_abs()) <= max, "{key}: {ttl} ms, but {rule}");
}

/// The declaration of a field: exact, or by pattern, such as `h:DIGEST` for all fields that begin with `h:`.
fn find_declaration<'a>(shape: &'a KeyShape, field: &str) -> Option<&'a Field> {
    let exact = shape.fields.iter().find(|declared| declared.name == field);
    let matches = |declared: &&Field| {
        let fixed = declared.name.trim_end_matches(|c: char| c.is_ascii_uppercase());
        match declared.name.strip_prefix(fixed) {
            Some("") | None => false,
            Some("KEY") => field.starts_with("ade:lock:"),
            Some("DIGEST" | "REQUEST") if fixed.is_empty() => {
                field.len() == 32 && field.bytes().all(|byte| byte.is_ascii_hexdigit())
            }
            Some(_) => !fixed.is_empty() && field.len() > fixed.len() && field.starts_with(fixed),
        }
    };
    exact.or_else(|| shape.fields.iter().find(matches))
}

fn is_valid(value: &str, kind: FieldType) -> bool {
    match kind {
        FieldType::String => true,
        FieldType::Integer => value.parse::<i64>().is_ok(),
        FieldType::Float => value.parse::<f64>().is_ok(),
        FieldType::Boolean => ["true", "false"].contains(&value),
        FieldType::Timestamp => value.parse::<Timestamp>().is_ok(),
        FieldType::Json => serde_json::from_str::<Json>(value).is_ok(),
    }
}

/// A `redis-cli` process that is subscribed to one channel. It is killed on drop.
pub(crate) struct ChannelSubscriber {
    process: Child,
    messages: Arc<Mutex<Vec<String>>>,
}

impl ChannelSubscriber {
    /// On a cluster it connects to the node that owns the channel.
    pub(crate) fn subscribe(redis: &RedisBackend, channel: &str) -> Self {
        let node = if redis.is_cluster() {
            let is_owner = |node: &&ade_testkit::Redis| {
                let mut connection = node.connect().expect("connects");
                redis::cmd("SPUBLISH").arg(channel).arg("hello").query::<i64>(&mut connection).is_ok()
            };
            redis.primaries().iter().find(is_owner).expect("an owner")
        } else {
            redis.primaries().first().expect("a primary")
        };
        let subscribe = if redis.is_cluster() { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut command = Command::new("redis-cli");
        command
            .args(["-p", &node.port().to_string(), subscribe, channel])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("redis-cli is installed");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&messages);
        thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| received.lock().expect("not poisoned").push(line));
        });
        let subscriber = Self { process, messages };
        // The confirmation of the subscription ends with the number of channels.
        subscriber.wait_for_message("1");
        subscriber
    }

    pub(crate) fn wait_for_message(&self, message: &str) {
        let observe = || {
            let messages = self.messages.lock().expect("not poisoned");
            if messages.iter().any(|line| line == message) { Ok(()) } else { Err(format!("{messages:?}")) }
        };
        eventually(&format!("message {message:?}"), TIMEOUT, observe).expect("in time");
    }
}

impl Drop for ChannelSubscriber {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
