//! Looks at Redis from outside and holds every key against the catalog: it has an entry, and the type, the fields and the
//! lifetime that the entry says. Remembers what it has seen.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ade_catalog::find::Spelling;
use ade_catalog::model::{Catalog, EntryKind, Field, FieldType, Format, KeyShape};
use ade_catalog::ttl::TtlRule;
use ade_testkit::wait::eventually;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::fleet::{LONG, Store};

/// One key at one moment: its type, the time it has left, and all of it.
const LOOK: &str = "
local kind, all = redis.call('TYPE', KEYS[1]).ok, {}
if kind == 'hash' then all = redis.call('HGETALL', KEYS[1])
elseif kind == 'zset' then all = redis.call('ZRANGE', KEYS[1], 0, -1)
elseif kind == 'set' then all = redis.call('SMEMBERS', KEYS[1])
elseif kind == 'string' then all = { redis.call('GET', KEYS[1]) } end
return { kind, redis.call('PTTL', KEYS[1]), all }";

/// What was seen of each entry: the declared names of its fields, if it has any.
pub(crate) type Seen = BTreeMap<String, BTreeSet<String>>;

pub(crate) struct Observer {
    links: Vec<redis::Connection>,
    is_cluster: bool,
    pub(crate) seen: Seen,
}

pub(crate) fn catalog() -> &'static Catalog {
    ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "ade").expect("our catalog")
}

impl Observer {
    pub(crate) fn of(store: &Store) -> Self {
        let links = store.primaries().iter().map(|redis| redis.connect().expect("connects")).collect();
        Self { links, is_cluster: store.is_cluster(), seen: Seen::new() }
    }

    /// Looks at every key there is; the entries that were found.
    pub(crate) fn look(&mut self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut slots: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for link in &mut self.links {
            let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(link).expect("keys");
            for key in keys {
                let (kind, ttl, all): (String, i64, Vec<String>) =
                    redis::cmd("EVAL").arg(LOOK).arg(1).arg(&key).query(link).expect("looked at");
                if kind == "none" {
                    continue;
                }
                let entry = check(&key, &kind, ttl, &all, self.is_cluster, &mut self.seen);
                if self.is_cluster && (entry.starts_with("lock.task") || entry.starts_with("lock.resource")) {
                    let tag = key.split(['{', '}']).nth(1).expect("a hash tag").to_owned();
                    let slot = redis::cmd("CLUSTER").arg("KEYSLOT").arg(&key).query(link).expect("a slot");
                    slots.entry(tag).or_default().insert(slot);
                }
                found.insert(entry);
            }
        }
        assert!(slots.values().all(|slots| slots.len() == 1), "one lock, one slot: {slots:?}");
        found
    }

    /// Looks until an entry is seen.
    pub(crate) fn sees(&mut self, entry: &str) {
        let look = || if self.look().contains(entry) { Ok(()) } else { Err("not yet".to_owned()) };
        eventually(&format!("{entry} is seen"), LONG, look).expect("in time");
    }

    /// What the catalog declares of locks and was never seen.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for entry in &catalog().entries {
            let EntryKind::Key(shape) = &entry.kind else { continue };
            let ours = entry.name.starts_with("lock.") || entry.name.starts_with("agent.");
            if !ours && entry.name != "ratelimit.lock_acquire" {
                continue;
            }
            match self.seen.get(&entry.name) {
                None => missing.push(entry.name.clone()),
                Some(seen) => {
                    let unseen = shape.fields.iter().filter(|field| !seen.contains(&field.name));
                    missing.extend(unseen.map(|field| format!("{} {}", entry.name, field.name)));
                }
            }
        }
        missing
    }
}

/// Holds a key against its entry; the entry's name.
fn check(key: &str, kind: &str, ttl: i64, all: &[String], is_cluster: bool, seen: &mut Seen) -> String {
    let found = catalog().find(key).unwrap_or_else(|| panic!("{key} is in no catalog"));
    assert!(found.is_canonical(), "{key} is not spelled as a builder does");
    let expected = if is_cluster { Spelling::Cluster } else { Spelling::Plain };
    assert!([Spelling::Both, expected].contains(&found.spelling), "{key}: {:?}", found.spelling);
    let EntryKind::Key(shape) = &found.entry.kind else { panic!("{key} is not a key") };
    assert_eq!(kind, shape.value_type.as_str(), "{key}");
    check_ttl(key, ttl, &shape.ttl.rule);
    let names = seen.entry(found.entry.name.clone()).or_default();
    if kind == "hash" {
        for [field, value] in all.as_chunks::<2>().0 {
            let declared = declared(shape, field).unwrap_or_else(|| panic!("{key} has a field {field}"));
            assert!(reads_as(value, declared.field_type), "{key} {field}: {value}");
            names.insert(declared.name.clone());
        }
    } else if shape.format == Format::Json {
        for text in all {
            let json: Json =
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{key}: {error} in {text}"));
            if kind == "zset" {
                let of_queue: &[&str] = &["agent_id", "mode", "priority", "requested_at", "max_wait_seconds"];
                let documented = if found.entry.owner == "jobs" { &["type", "target"] } else { of_queue };
                assert!(documented.iter().all(|name| json.get(name).is_some()), "{key}: {text}");
            }
        }
    }
    found.entry.name.clone()
}

fn check_ttl(key: &str, ttl: i64, rule: &TtlRule) {
    let most = match rule.resolved() {
        TtlRule::None => return assert_eq!(ttl, -1, "{key} must not expire"),
        TtlRule::Exact(span) => Some(span),
        TtlRule::Range { max, .. } => max.as_ref(),
        TtlRule::Default { ttl, at_most } | TtlRule::Renewable { ttl, at_most } => {
            at_most.as_ref().or(Some(ttl))
        }
        TtlRule::Like { .. } | TtlRule::Given { .. } => None,
    };
    let most = most.map_or(Duration::from_secs(86_400 * 365), |span| span.duration);
    assert!(ttl >= 0 && Duration::from_millis(ttl.unsigned_abs()) <= most, "{key}: {ttl} ms, but {rule}");
}

/// The declaration that a field falls under: `h:DIGEST` stands for all that begin with `h:`.
fn declared<'a>(shape: &'a KeyShape, field: &str) -> Option<&'a Field> {
    let exact = shape.fields.iter().find(|declared| declared.name == field);
    let fits = |declared: &&Field| {
        let fixed = declared.name.trim_end_matches(|sign: char| sign.is_ascii_uppercase());
        match declared.name.strip_prefix(fixed) {
            Some("") | None => false,
            Some("KEY") => field.starts_with("ade:lock:"),
            Some("DIGEST" | "REQUEST") if fixed.is_empty() => {
                field.len() == 32 && field.bytes().all(|byte| byte.is_ascii_hexdigit())
            }
            Some(_) => !fixed.is_empty() && field.len() > fixed.len() && field.starts_with(fixed),
        }
    };
    exact.or_else(|| shape.fields.iter().find(fits))
}

fn reads_as(value: &str, kind: FieldType) -> bool {
    match kind {
        FieldType::String => true,
        FieldType::Integer => value.parse::<i64>().is_ok(),
        FieldType::Float => value.parse::<f64>().is_ok(),
        FieldType::Boolean => ["true", "false"].contains(&value),
        FieldType::Timestamp => value.parse::<Timestamp>().is_ok(),
        FieldType::Json => serde_json::from_str::<Json>(value).is_ok(),
    }
}

/// `redis-cli` that listens to a channel, and ends with this.
pub(crate) struct Listener {
    program: Child,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Listener {
    /// Listens to one channel; on a cluster at whoever owns it.
    pub(crate) fn of(store: &Store, channel: &str) -> Self {
        let at = if store.is_cluster() {
            let owner = |redis: &&ade_testkit::Redis| {
                let mut link = redis.connect().expect("connects");
                redis::cmd("SPUBLISH").arg(channel).arg("hello").query::<i64>(&mut link).is_ok()
            };
            store.primaries().iter().find(owner).expect("an owner")
        } else {
            store.primaries().first().expect("one")
        };
        let verb = if store.is_cluster() { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let mut command = Command::new("redis-cli");
        command
            .args(["-p", &at.port().to_string(), verb, channel])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut program = command.spawn().expect("redis-cli is installed");
        let lines = BufReader::new(program.stdout.take().expect("piped")).lines();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| ear.lock().expect("whole").push(line));
        });
        let listener = Self { program, heard };
        // The answer to the subscription ends with the number of channels.
        listener.hears("1");
        listener
    }

    /// Waits until a message was heard.
    pub(crate) fn hears(&self, message: &str) {
        let look = || {
            let heard = self.heard.lock().expect("whole");
            if heard.iter().any(|line| line == message) { Ok(()) } else { Err(format!("{heard:?}")) }
        };
        eventually(&format!("{message:?} is heard"), LONG, look).expect("in time");
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
