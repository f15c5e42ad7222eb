//! The list of all settings. Defaults, ranges, environment variables and the commented default file come from it.

use std::ops::RangeInclusive;

use toml::{Table, Value};

#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    /// As TOML.
    pub(super) default: &'static str,
    /// The allowed values of a number.
    pub(super) range: Option<RangeInclusive<i64>>,
    pub(super) about: &'static str,
}

impl Setting {
    /// The full name, such as `lock.max_queue`.
    pub(super) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    pub(super) fn variable(&self) -> String {
        format!("ADE_{}_{}", self.section, self.name).to_uppercase()
    }

    pub(super) fn default(&self) -> Value {
        parse_toml_value(self.default).unwrap_or_else(|| Value::String(self.default.to_owned()))
    }
}

pub(super) fn parse_toml_value(text: &str) -> Option<Value> {
    let table: Table = format!("v = {text}").parse().ok()?;
    table.get("v").cloned()
}

const fn setting(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    about: &'static str,
) -> Setting {
    Setting { section, name, default, range: None, about }
}

const fn number(
    section: &'static str,
    name: &'static str,
    default: &'static str,
    range: RangeInclusive<i64>,
    about: &'static str,
) -> Setting {
    Setting { section, name, default, range: Some(range), about }
}

const MAX_NUMBER: i64 = 10_000_000;

pub(super) static SETTINGS: &[Setting] = &[
    setting("server", "listen", "\"127.0.0.1:8300\"", "Address to listen on; port 0 picks a free port."),
    setting("server", "data", "\"./ade-data\"", "Data folder: everything that must survive a restart."),
    setting(
        "server",
        "redis",
        "\"\"",
        "Redis for locks shared by several servers: redis://, redis+sentinel:// or redis+cluster://; if empty, locks \
         are kept in this process.",
    ),
    setting(
        "server",
        "postgres",
        "\"\"",
        "PostgreSQL for tasks, users and the audit log of several servers: postgres://; if empty, they are kept in the \
         data folder. Requires redis.",
    ),
    setting(
        "server",
        "blobs",
        "\"\"",
        "Folder for rollback data, long output and archives, shared by all servers and workers on one PostgreSQL; if \
         empty, the folder blobs in the data folder.",
    ),
    setting("server", "hosts", "[]", "Host names that clients may use, besides localhost and IP addresses."),
    number(
        "limit",
        "requests_per_minute",
        "6000",
        1..=MAX_NUMBER,
        "Requests per minute that one user or agent may send to one group of endpoints; lock requests are limited \
         separately.",
    ),
    number(
        "limit",
        "sign_ins_per_minute",
        "10",
        1..=MAX_NUMBER,
        "Sign-in attempts per minute for one user id; five times as many from one address.",
    ),
    number(
        "audit",
        "checkpoint_seconds",
        "300",
        1..=MAX_NUMBER,
        "Interval at which a signed checkpoint of the audit log is written to the data folder.",
    ),
    number(
        "worker",
        "slots",
        "8",
        0..=1_000,
        "Tasks that this process applies at the same time; 0 leaves them to other workers.",
    ),
    number(
        "worker",
        "lease_seconds",
        "30",
        1..=300,
        "Time without a heartbeat after which a worker or agent counts as lost.",
    ),
    setting(
        "worker",
        "label",
        "\"\"",
        "Label of this worker; it also applies the tasks that name this label.",
    ),
    setting("log", "format", "\"text\"", "Format of log lines on standard error: text or json."),
    setting(
        "log",
        "level",
        "\"info\"",
        "Log level: error, warn, info, debug, trace, or filters such as ade_app=debug.",
    ),
    number("lock", "default_ttl_seconds", "30", 1..=MAX_NUMBER, "Default lease of a lock request."),
    number("lock", "max_ttl_seconds", "300", 1..=MAX_NUMBER, "Maximum lease of a lock request."),
    number("lock", "max_queue", "1000", 0..=100_000, "Maximum number of waiters of one lock."),
    number("lock", "default_wait_seconds", "60", 1..=MAX_NUMBER, "Default wait of a queued lock request."),
    number("lock", "max_wait_seconds", "3600", 1..=MAX_NUMBER, "Maximum wait of a lock request."),
    number(
        "lock",
        "acquisitions_per_minute",
        "60000",
        1..=MAX_NUMBER,
        "Lock requests per minute that one agent may send.",
    ),
    number(
        "lock",
        "min_replica_acks",
        "0",
        0..=100,
        "Redis replicas that must confirm a grant before it is returned.",
    ),
    number(
        "lock",
        "max_clock_skew_ms",
        "250",
        0..=60_000,
        "Maximum difference between the clocks of two Redis servers.",
    ),
    setting(
        "feature",
        "deadlock_detection",
        "true",
        "Detect deadlocks, and abort the youngest holder of a cycle.",
    ),
];
