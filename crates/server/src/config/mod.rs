//! Configuration in three layers: a TOML file, overridden by ADE_* variables, overridden by flags.
//!
//! Every setting is listed once, with its default and its explanation; from that list come the typed values, their
//! origins, the commented default file, and the names of the variables. Unknown keys are errors.

mod executors;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use ade_domain::lock::LockLimits;
use ade_store::RedisUrl;
use serde::Deserialize;
use toml::{Table, Value};

pub use executors::{
    CommandPart, Connection, ExecutorSettings, FilesPart, HttpPart, HttpSecret, SqlPart, Template,
};

/// One setting.
#[derive(Debug, Clone, Copy)]
struct Setting {
    section: &'static str,
    name: &'static str,
    /// As TOML.
    default: &'static str,
    about: &'static str,
}

const fn setting(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    about: &'static str,
) -> Setting {
    Setting { section, name, default, about }
}

/// Every setting there is.
const SETTINGS: &[Setting] = &[
    setting("server", "listen", "\"127.0.0.1:8300\"", "Address to listen on; port 0 picks a free one."),
    setting("server", "data", "\"./ade-data\"", "Folder for everything that must survive a restart."),
    setting(
        "server",
        "redis",
        "\"\"",
        "Redis for locks shared by several servers: redis://, redis+sentinel:// or redis+cluster://; empty keeps \
         them in this process.",
    ),
    setting(
        "server",
        "postgres",
        "\"\"",
        "PostgreSQL for tasks, people and the audit log of several servers: postgres://; empty keeps them in the data \
         folder. Needs redis.",
    ),
    setting(
        "server",
        "blobs",
        "\"\"",
        "Folder for stashes, long output and archives, shared by all servers and workers on one PostgreSQL; empty means blobs in the data folder.",
    ),
    setting("server", "hosts", "[]", "Host names that clients may use, besides localhost and IP addresses."),
    setting(
        "limit",
        "requests_per_minute",
        "6000",
        "Requests that one user or agent may send to one kind of endpoint in a minute; locks count by themselves.",
    ),
    setting(
        "limit",
        "sign_ins_per_minute",
        "10",
        "Tries to sign in by one name in a minute; five times as many by one address.",
    ),
    setting(
        "audit",
        "checkpoint_seconds",
        "300",
        "How often a signed checkpoint of the audit log is written to the data folder.",
    ),
    setting(
        "worker",
        "slots",
        "8",
        "Tasks that are carried out here at once; 0 leaves them to other workers.",
    ),
    setting(
        "worker",
        "lease_seconds",
        "30",
        "How long whoever carries a task out counts as alive without being heard of.",
    ),
    setting(
        "worker",
        "label",
        "\"\"",
        "Besides everybody's tasks, those that name a worker with this label.",
    ),
    setting("log", "format", "\"text\"", "How log lines are written to standard error: text or json."),
    setting(
        "log",
        "level",
        "\"info\"",
        "What is logged: error, warn, info, debug, trace, or filters such as ade_app=debug.",
    ),
    setting("lock", "default_ttl_seconds", "30", "Lease of a request that names none."),
    setting("lock", "max_ttl_seconds", "300", "Longest lease that may be asked for."),
    setting("lock", "max_queue", "1000", "Waiters that one lock may have."),
    setting("lock", "default_wait_seconds", "60", "How long a ticket waits if it does not say."),
    setting("lock", "max_wait_seconds", "3600", "Longest wait that may be asked for."),
    setting("lock", "acquisitions_per_minute", "60000", "Acquisitions that one agent may try in a minute."),
    setting(
        "lock",
        "min_replica_acks",
        "0",
        "Replicas of Redis that must confirm a grant before it is answered.",
    ),
    setting("lock", "max_clock_skew_ms", "250", "How far the clocks of two Redis servers may be apart."),
    setting(
        "feature",
        "deadlock_detection",
        "true",
        "Look for holders that wait for each other, and abort the youngest.",
    ),
];

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said otherwise.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A command-line flag.
    Flag(&'static str),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What the layers say. Reading them is the caller's business.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    /// The file and its text.
    pub file: Option<(PathBuf, String)>,
    /// Environment variables; those that do not begin with `ADE_` are not looked at.
    pub variables: Vec<(String, String)>,
    /// Flags by setting, such as `server.listen`.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML.
    #[error("{}: {message}", path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// There is no such setting.
    #[error("unknown setting {name} in {origin}{}", hint(nearest))]
    Unknown {
        /// Its name.
        name: String,
        /// Where it was found.
        origin: Origin,
        /// What may have been meant.
        nearest: Option<String>,
    },
    /// A value cannot be.
    #[error("{name} = {value} (from {origin}): {message}")]
    Value {
        /// The setting.
        name: String,
        /// Its value.
        value: String,
        /// Where it was found.
        origin: Origin,
        /// What is wrong.
        message: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// A setting as it is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// Its name, such as `lock.max_queue`.
    pub name: String,
    /// Its value, as TOML.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What it does.
    pub about: &'static str,
}

/// The configuration in force.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// The data folder.
    pub data: PathBuf,
    /// Where locks are coordinated, if not in this process.
    pub redis: Option<RedisUrl>,
    /// Where the record is, if not in the data folder.
    pub postgres: Option<String>,
    /// Requests that one user may send to one kind of endpoint in a minute.
    pub requests_per_minute: u32,
    /// Tries to sign in by one name in a minute.
    pub sign_ins_per_minute: u32,
    /// How often a checkpoint of the audit log is written.
    pub checkpoint_seconds: u32,
    /// Whether a small organisation is there to look around in.
    pub demo: bool,
    /// Replicas of Redis that must confirm a grant.
    pub min_replica_acks: u32,
    /// How far the clocks of two Redis servers may be apart.
    pub max_clock_skew_ms: u64,
    /// Host names that clients may use.
    pub hosts: Vec<String>,
    /// `text` or `json`.
    pub log_format: String,
    /// What is logged.
    pub log_level: String,
    /// What locks go by.
    pub rules: LockLimits,
    /// Where blobs are, if not in the data folder.
    pub blobs: Option<PathBuf>,
    /// Tasks that are carried out here at once.
    pub worker_slots: usize,
    /// How long whoever carries a task out counts as alive without being heard of.
    pub worker_lease_ms: u64,
    /// Which worker this is, for tasks that name one.
    pub worker_label: Option<String>,
    /// What may be done here.
    pub executors: ExecutorSettings,
    /// Every setting with its origin.
    pub effective: Vec<Effective>,
}

#[derive(Debug, Deserialize)]
struct Typed {
    server: ServerPart,
    limit: LimitPart,
    audit: AuditPart,
    worker: WorkerPart,
    log: LogPart,
    lock: LockPart,
    feature: FeaturePart,
}

#[derive(Debug, Deserialize)]
struct ServerPart {
    listen: SocketAddr,
    data: PathBuf,
    redis: String,
    postgres: String,
    blobs: String,
    hosts: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct LimitPart {
    requests_per_minute: u32,
    sign_ins_per_minute: u32,
}

#[derive(Debug, Deserialize)]
struct AuditPart {
    checkpoint_seconds: u32,
}

#[derive(Debug, Deserialize)]
struct WorkerPart {
    slots: u32,
    lease_seconds: u32,
    label: String,
}

#[derive(Debug, Deserialize)]
struct LogPart {
    format: String,
    level: String,
}

#[derive(Debug, Deserialize)]
struct LockPart {
    default_ttl_seconds: u32,
    max_ttl_seconds: u32,
    max_queue: u32,
    default_wait_seconds: u32,
    max_wait_seconds: u32,
    acquisitions_per_minute: u32,
    min_replica_acks: u32,
    max_clock_skew_ms: u32,
}

#[derive(Debug, Deserialize)]
struct FeaturePart {
    deadlock_detection: bool,
}

type Values = BTreeMap<String, (Value, Origin)>;

impl Config {
    /// Puts the layers together.
    pub fn load(layers: &Layers) -> Result<Self, ConfigError> {
        let mut values = defaults();
        let executors = file(layers, &mut values)?;
        variables(layers, &mut values)?;
        for (name, flag, text) in &layers.flags {
            put(&mut values, name, text, Origin::Flag(flag))?;
        }
        check(&values)?;
        let mut table = Table::new();
        for (name, (value, _)) in &values {
            let (section, key) = name.split_once('.').unwrap_or(("", name));
            let part = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(part) = part {
                part.insert(key.to_owned(), value.clone());
            }
        }
        let Typed { server, limit, audit, worker, log, lock, feature } =
            table.try_into().map_err(|error: toml::de::Error| {
                let (name, origin) = ("configuration".to_owned(), Origin::Default);
                ConfigError::Value { name, value: String::new(), origin, message: error.message().to_owned() }
            })?;
        let rules = LockLimits {
            default_ttl_ms: u64::from(lock.default_ttl_seconds) * 1000,
            max_ttl_ms: u64::from(lock.max_ttl_seconds) * 1000,
            max_queue: lock.max_queue as usize,
            default_wait_ms: u64::from(lock.default_wait_seconds) * 1000,
            max_wait_ms: u64::from(lock.max_wait_seconds) * 1000,
            acquisitions_per_minute: lock.acquisitions_per_minute,
            deadlock_detection: feature.deadlock_detection,
            ..LockLimits::default()
        };
        Ok(Self {
            listen: server.listen,
            data: server.data,
            // Looked at in `check`.
            redis: server.redis.parse().ok(),
            postgres: Some(server.postgres).filter(|url| !url.is_empty()),
            demo: false,
            requests_per_minute: limit.requests_per_minute,
            sign_ins_per_minute: limit.sign_ins_per_minute,
            checkpoint_seconds: audit.checkpoint_seconds,
            min_replica_acks: lock.min_replica_acks,
            max_clock_skew_ms: lock.max_clock_skew_ms.into(),
            hosts: server.hosts,
            log_format: log.format,
            log_level: log.level,
            rules,
            blobs: Some(PathBuf::from(server.blobs)).filter(|path| !path.as_os_str().is_empty()),
            worker_slots: worker.slots as usize,
            worker_lease_ms: u64::from(worker.lease_seconds) * 1000,
            worker_label: Some(worker.label).filter(|label| !label.is_empty()),
            effective: effective(&values, &executors, layers),
            executors,
        })
    }

    /// A commented file with every setting and its default.
    #[must_use]
    pub fn default_file() -> String {
        let mut text =
            "# ADE's configuration: every setting with its default. Variables such as ADE_LOCK_MAX_QUEUE\n\
                        # override this file, flags override both. `ade config` shows what is in force.\n"
                .to_owned();
        let mut section = "";
        for Setting { section: of, name, default, about } in SETTINGS {
            if *of != section {
                section = of;
                text.push_str(&format!("\n[{section}]\n"));
            }
            text.push_str(&format!("# {about}\n#{name} = {default}\n"));
        }
        text.push_str(executors::EXAMPLE);
        text
    }
}

impl Setting {
    fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    fn variable(&self) -> String {
        format!("ADE_{}_{}", self.section, self.name).to_uppercase()
    }

    fn default(&self) -> Value {
        literal(self.default).unwrap_or_else(|| Value::String(self.default.to_owned()))
    }
}

fn literal(text: &str) -> Option<Value> {
    let table: Table = format!("v = {text}").parse().ok()?;
    table.get("v").cloned()
}

fn defaults() -> Values {
    SETTINGS.iter().map(|setting| (setting.path(), (setting.default(), Origin::Default))).collect()
}

fn file(layers: &Layers, values: &mut Values) -> Result<ExecutorSettings, ConfigError> {
    let mut allowed = ExecutorSettings::default();
    let Some((path, text)) = &layers.file else { return Ok(allowed) };
    let syntax = |message: String| ConfigError::Syntax { path: path.clone(), message };
    let place = |error: &toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!(
            "line {}, column {column}: {}",
            before.matches('\n').count() + 1,
            error.message().replace('\n', " ")
        )
    };
    let table: Table = text.parse().map_err(|error| syntax(place(&error)))?;
    for (section, part) in table {
        let Value::Table(part) = part else {
            return Err(unknown(&section, Origin::File(path.clone())));
        };
        if section == "executors" {
            allowed = executors::read(part, &layers.variables).map_err(|message| ConfigError::Value {
                name: "executors".to_owned(),
                value: "…".to_owned(),
                origin: Origin::File(path.clone()),
                message,
            })?;
            continue;
        }
        for (name, value) in part {
            set(values, &format!("{section}.{name}"), value, Origin::File(path.clone()))?;
        }
    }
    Ok(allowed)
}

/// Edits that make another name of a variable a slip of the pen. Whatever is farther from every setting belongs to somebody
/// else: other commands, or an orchestrator that names its variables after services.
const SLIP: usize = 2;

fn variables(layers: &Layers, values: &mut Values) -> Result<(), ConfigError> {
    for (name, text) in layers.variables.iter().filter(|(name, _)| name.starts_with("ADE_")) {
        let origin = Origin::Variable(name.clone());
        match SETTINGS.iter().find(|setting| setting.variable() == *name) {
            Some(setting) => put(values, &setting.path(), text, origin)?,
            None => {
                let slip = |known: &String| strsim::damerau_levenshtein(known, name) <= SLIP;
                if let Some(meant) = SETTINGS.iter().map(Setting::variable).find(slip) {
                    return Err(ConfigError::Unknown { nearest: Some(meant), name: name.clone(), origin });
                }
            }
        }
    }
    Ok(())
}

/// Sets a value that came as text: read like TOML, but a string needs no quotes.
fn put(values: &mut Values, name: &str, text: &str, origin: Origin) -> Result<(), ConfigError> {
    let is_text = matches!(values.get(name), Some((Value::String(_), _)));
    let value =
        if is_text { Value::String(text.to_owned()) } else { literal(text).unwrap_or_else(|| text.into()) };
    set(values, name, value, origin)
}

fn set(values: &mut Values, name: &str, value: Value, origin: Origin) -> Result<(), ConfigError> {
    let Some(entry) = values.get_mut(name) else { return Err(unknown(name, origin)) };
    if entry.0.type_str() != value.type_str() {
        let message = format!("must be {}", entry.0.type_str());
        return Err(ConfigError::Value { name: name.to_owned(), value: value.to_string(), origin, message });
    }
    *entry = (value, origin);
    Ok(())
}

fn unknown(name: &str, origin: Origin) -> ConfigError {
    ConfigError::Unknown {
        nearest: nearest(name, SETTINGS.iter().map(Setting::path)),
        name: name.to_owned(),
        origin,
    }
}

fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let scored = names.map(|known| (strsim::jaro_winkler(name, &known), known));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// What the types alone do not say, with the name of whoever is wrong.
fn check(values: &Values) -> Result<(), ConfigError> {
    let wrong = |name: &str, message: &str| {
        let (value, origin) = values.get(name).cloned().unwrap_or((Value::Boolean(false), Origin::Default));
        Err(ConfigError::Value {
            name: name.to_owned(),
            value: shown(name, &value),
            origin,
            message: message.to_owned(),
        })
    };
    let number = |name: &str| values.get(name).and_then(|(value, _)| value.as_integer()).unwrap_or_default();
    let text =
        |name: &str| values.get(name).and_then(|(value, _)| value.as_str()).unwrap_or_default().to_owned();
    if text("server.listen").parse::<SocketAddr>().is_err() {
        return wrong("server.listen", "must be an address and a port, such as 127.0.0.1:8300");
    }
    let redis = text("server.redis");
    if !redis.is_empty()
        && let Err(error) = redis.parse::<RedisUrl>()
    {
        return wrong("server.redis", &error.to_string());
    }
    let postgres = text("server.postgres");
    if !postgres.is_empty()
        && !["postgres://", "postgresql://"].iter().any(|scheme| postgres.starts_with(scheme))
    {
        return wrong(
            "server.postgres",
            "must be the address of a PostgreSQL, such as postgres://user@host/database",
        );
    }
    if !postgres.is_empty() && redis.is_empty() {
        return wrong(
            "server.postgres",
            "needs server.redis as well: several servers share their locks there",
        );
    }
    if !["text", "json"].contains(&text("log.format").as_str()) {
        return wrong("log.format", "must be text or json");
    }
    let level = text("log.level");
    if !level.contains('=') && !["error", "warn", "info", "debug", "trace"].contains(&level.as_str()) {
        return wrong(
            "log.level",
            "must be error, warn, info, debug or trace, or filters such as ade_app=debug",
        );
    }
    for setting in SETTINGS.iter().filter(|setting| setting.default().is_integer()) {
        let (least, most) = match setting.name {
            "max_queue" => (0, 100_000),
            "slots" => (0, 1_000),
            "lease_seconds" => (1, 300),
            "min_replica_acks" => (0, 100),
            "max_clock_skew_ms" => (0, 60_000),
            _ => (1, 10_000_000),
        };
        if !(least..=most).contains(&number(&setting.path())) {
            return wrong(&setting.path(), &format!("must be between {least} and {most}"));
        }
    }
    for (small, large) in [
        ("lock.default_ttl_seconds", "lock.max_ttl_seconds"),
        ("lock.default_wait_seconds", "lock.max_wait_seconds"),
    ] {
        if number(small) > number(large) {
            return wrong(small, &format!("must not exceed {large}"));
        }
    }
    Ok(())
}

/// A value as people may see it: the password of an address is nobody's business.
fn shown(name: &str, value: &Value) -> String {
    match value.as_str() {
        Some("") => value.to_string(),
        // Who and where, but not the password.
        Some(url) if name == "server.postgres" => {
            let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            let place = place.split_once('?').map_or(place, |(place, _)| place);
            Value::String(format!("{scheme}://{place}")).to_string()
        }
        Some(url) if name == "server.redis" => {
            let redacted = url.parse::<RedisUrl>().map_or_else(|_| "***".to_owned(), |url| url.to_string());
            Value::String(redacted).to_string()
        }
        _ => value.to_string(),
    }
}

fn effective(values: &Values, allowed: &ExecutorSettings, layers: &Layers) -> Vec<Effective> {
    let one = |setting: &Setting| {
        let (value, origin) = values.get(&setting.path())?.clone();
        let (name, about) = (setting.path(), setting.about);
        Some(Effective { value: shown(&name, &value), name, origin, about })
    };
    let origin = || match &layers.file {
        Some((path, _)) if *allowed != ExecutorSettings::default() => Origin::File(path.clone()),
        _ => Origin::Default,
    };
    let about = "What workers may do: only the file says so.";
    let may = executors::shown(allowed).into_iter();
    let may = may.map(|(name, value)| Effective { name, value, origin: origin(), about });
    SETTINGS.iter().filter_map(one).chain(may).collect()
}

#[cfg(test)]
mod tests;
