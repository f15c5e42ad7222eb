//! Settings and feature flags, which are changed while servers run. Each decision reads them from the database, so that a
//! change applies on every server from the next request on; those of locks apply within a second.
//!
//! The names are a closed list. A setting that was never set has its default and revision 0.

use ade_domain::InvalidField;
use ade_domain::lock::{LockLimits, MAX_TTL_MS};
use ade_domain::risk::RiskThresholds;
use ade_store::database::{FeatureFlag, Setting, Versioned};
use ade_store::{Database, DatabaseError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const THRESHOLDS: &str = "risk:thresholds";
pub(crate) const TOKEN_RATE_LIMIT: &str = "ratelimit:token";
const YEAR_SECONDS: u64 = 365 * 86_400;
/// A hold is time to revoke an approval, not a schedule.
const MAX_HOLD_SECONDS: u64 = 3_600;
const MAX_TTL_SECONDS: u64 = MAX_TTL_MS / 1_000;

/// All settings and feature flags. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `approval:apply_hold`: how long tasks of level HIGH and CRITICAL wait between their approval and their application.
    pub approval_apply_hold: u64,
    /// `approval:default_timeout`: how long reviewers have before a request escalates.
    pub approval_default_timeout: u64,
    /// `approval:max_timeout`: the upper bound of the default timeout.
    pub approval_max_timeout: u64,
    /// `approval:validity`: how long an approval is valid.
    pub approval_validity: u64,
    /// `approval:backlog_threshold`: more pending requests than this are a backlog.
    pub approval_backlog_threshold: u64,
    /// `lock:default_ttl`: the lease of a lock request that asks for none.
    pub lock_default_ttl: u64,
    /// `lock:max_ttl`: the longest lease.
    pub lock_max_ttl: u64,
    /// `lock:heartbeat_interval`: how often holders of locks are asked to send a heartbeat.
    pub lock_heartbeat_interval: u64,
    /// `ratelimit:token`: requests per minute of the tokens of one user or agent, for one group of endpoints; 0 without a limit.
    pub token_requests_per_minute: u64,
    /// `task:default_timeout`: how long a task without a timeout of its own may run.
    pub task_default_timeout: u64,
    /// `risk:thresholds`: the lowest scores of the risk levels medium, high and critical.
    pub thresholds: RiskThresholds,
    /// Flag: in a backlog, tasks of level LOW are approved automatically if their policies allow it.
    pub auto_approve_low_risk: bool,
    /// Flag: approval requests can be decided in batches.
    pub batch_approvals: bool,
    /// Flag: deadlocks are detected, and the youngest holder of a cycle is aborted.
    pub deadlock_detection: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            approval_apply_hold: 10,
            approval_default_timeout: 48 * 3_600,
            approval_max_timeout: 7 * 86_400,
            approval_validity: 7 * 86_400,
            approval_backlog_threshold: 1_000,
            lock_default_ttl: 30,
            lock_max_ttl: 300,
            lock_heartbeat_interval: 10,
            token_requests_per_minute: 60_000,
            task_default_timeout: 300,
            thresholds: RiskThresholds::default(),
            auto_approve_low_risk: false,
            batch_approvals: true,
            deadlock_detection: true,
        }
    }
}

/// A numeric setting: name, minimum, maximum, field.
type Number = (&'static str, u64, u64, fn(&mut Settings) -> &mut u64);

const NUMBERS: [Number; 10] = [
    ("approval:apply_hold", 0, MAX_HOLD_SECONDS, |settings| &mut settings.approval_apply_hold),
    ("approval:backlog_threshold", 0, 1_000_000_000, |settings| &mut settings.approval_backlog_threshold),
    ("approval:default_timeout", 1, YEAR_SECONDS, |settings| &mut settings.approval_default_timeout),
    ("approval:max_timeout", 1, YEAR_SECONDS, |settings| &mut settings.approval_max_timeout),
    ("approval:validity", 1, YEAR_SECONDS, |settings| &mut settings.approval_validity),
    ("lock:default_ttl", 1, MAX_TTL_SECONDS, |settings| &mut settings.lock_default_ttl),
    ("lock:heartbeat_interval", 1, MAX_TTL_SECONDS, |settings| &mut settings.lock_heartbeat_interval),
    ("lock:max_ttl", 1, MAX_TTL_SECONDS, |settings| &mut settings.lock_max_ttl),
    (TOKEN_RATE_LIMIT, 0, 10_000_000, |settings| &mut settings.token_requests_per_minute),
    ("task:default_timeout", 1, 86_400, |settings| &mut settings.task_default_timeout),
];

/// Pairs of numeric settings of which the first must not exceed the second.
const ORDERED: [(&str, &str); 3] = [
    ("approval:default_timeout", "approval:max_timeout"),
    ("lock:default_ttl", "lock:max_ttl"),
    ("lock:heartbeat_interval", "lock:default_ttl"),
];

/// The name of a flag, and its field.
type Flag = (&'static str, fn(&mut Settings) -> &mut bool);

const FLAGS: [Flag; 3] = [
    ("auto_approve_low_risk", |settings| &mut settings.auto_approve_low_risk),
    ("batch_approvals", |settings| &mut settings.batch_approvals),
    ("deadlock_detection", |settings| &mut settings.deadlock_detection),
];

/// The JSON form of [`Thresholds`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThresholdsJson {
    medium: u8,
    high: u8,
    critical: u8,
}

/// The description of a setting or feature flag.
#[must_use]
pub fn description(name: &str) -> &'static str {
    match name {
        "approval:apply_hold" => {
            "seconds that tasks of level HIGH and CRITICAL wait between their approval and their application"
        }
        "approval:default_timeout" => "seconds that reviewers have before a request escalates",
        "approval:max_timeout" => "upper bound of approval:default_timeout, in seconds",
        "approval:validity" => "seconds that an approval is valid",
        "approval:backlog_threshold" => "more pending approval requests than this are a backlog",
        "lock:default_ttl" => "default lease of a lock in seconds",
        "lock:heartbeat_interval" => "seconds between the heartbeats of a holder of locks",
        "lock:max_ttl" => "maximum lease of a lock in seconds",
        TOKEN_RATE_LIMIT => {
            "requests per minute of the tokens of one user or agent, for one group of endpoints; 0 without a limit"
        }
        "task:default_timeout" => "seconds that a task without a timeout of its own may run",
        THRESHOLDS => "lowest scores of the risk levels medium, high and critical",
        "auto_approve_low_risk" => {
            "in a backlog, approve tasks of level LOW automatically if their policies allow it"
        }
        "batch_approvals" => "approval requests can be decided in batches",
        "deadlock_detection" => "detect deadlocks, and abort the youngest holder of a cycle",
        _ => "",
    }
}

pub fn setting_names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|(name, ..)| *name).chain([THRESHOLDS])
}

/// Whether a setting decides how tasks are reviewed, unlike those of locks, of rate limits, and of running tasks.
pub(crate) fn is_about_approvals(name: &str) -> bool {
    name == THRESHOLDS || name.starts_with("approval:")
}

pub fn feature_names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, _)| *name)
}

impl Settings {
    /// Checks the new value of a setting against these.
    pub fn check(&self, name: &str, value: &Value) -> Result<(), Vec<InvalidField>> {
        let mut changed = self.clone();
        changed.set(name, value).map_err(|fault| vec![fault])?;
        for (lower, upper) in ORDERED.into_iter().filter(|(lower, upper)| [*lower, *upper].contains(&name)) {
            let (Some(less), Some(more)) = (changed.number(lower), changed.number(upper)) else { continue };
            if less > more {
                let detail = if name == lower {
                    format!("must not exceed {upper}, which is {more}; raise that first")
                } else {
                    format!("must not be less than {lower}, which is {less}; lower that first")
                };
                return Err(vec![InvalidField::at("value", detail)]);
            }
        }
        Ok(())
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        let (.., field) = NUMBERS.iter().find(|(number, ..)| *number == name)?;
        Some(*field(self))
    }

    /// These limits with the settings of locks in place of theirs.
    #[must_use]
    pub fn lock_limits(&self, limits: &LockLimits) -> LockLimits {
        let max_ttl_ms = self.lock_max_ttl * 1_000;
        LockLimits {
            default_ttl_ms: (self.lock_default_ttl * 1_000).min(max_ttl_ms),
            max_ttl_ms,
            heartbeat_interval_ms: self.lock_heartbeat_interval * 1_000,
            deadlock_detection: self.deadlock_detection,
            ..limits.clone()
        }
    }
}

impl Settings {
    pub async fn load(database: &Database) -> Result<Self, DatabaseError> {
        let mut settings = Self::default();
        let (stored, flags) = tokio::try_join!(database.documents(), database.documents())?;
        // Others are written by a later version.
        for Versioned { id, value: Setting(value), .. } in stored {
            if setting_names().any(|name| name == id) {
                let corrupt =
                    |fault: InvalidField| DatabaseError::Corrupt(format!("setting {id}: {}", fault.detail));
                settings.set(&id, &value).map_err(corrupt)?;
            }
        }
        for Versioned { id, value: FeatureFlag(is_enabled), .. } in flags {
            if let Some((_, field)) = FLAGS.iter().find(|(name, _)| *name == id) {
                *field(&mut settings) = is_enabled;
            }
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), InvalidField> {
        if name == THRESHOLDS {
            let invalid = || {
                let detail =
                    "must be {medium, high, critical}, each from 1 to 100 and higher than the previous one";
                InvalidField::at("value", detail)
            };
            let ThresholdsJson { medium, high, critical } =
                serde_json::from_value(value.clone()).map_err(|_| invalid())?;
            // Serde would also accept an array.
            if !value.is_object() || medium == 0 || medium >= high || high >= critical || critical > 100 {
                return Err(invalid());
            }
            self.thresholds = RiskThresholds { medium, high, critical };
            return Ok(());
        }
        let Some((_, min, max, field)) = NUMBERS.iter().find(|(number, ..)| *number == name) else {
            let names: Vec<&str> = setting_names().collect();
            return Err(InvalidField::at("name", format!("must be one of {}", names.join(", "))));
        };
        let in_range = value.as_u64().filter(|value| (min..=max).contains(&value));
        let invalid = || InvalidField::at("value", format!("must be a whole number between {min} and {max}"));
        *field(self) = in_range.ok_or_else(invalid)?;
        Ok(())
    }

    /// The default of a setting; `None` if there is no such setting.
    pub(crate) fn default_value(name: &str) -> Option<Value> {
        let mut settings = Self::default();
        if name == THRESHOLDS {
            let RiskThresholds { medium, high, critical } = settings.thresholds;
            return serde_json::to_value(ThresholdsJson { medium, high, critical }).ok();
        }
        let (.., field) = NUMBERS.iter().find(|(number, ..)| *number == name)?;
        Some(Value::from(*field(&mut settings)))
    }

    /// The default of a feature flag; `None` if there is no such flag.
    pub(crate) fn default_flag(name: &str) -> Option<bool> {
        let (_, field) = FLAGS.iter().find(|(flag, _)| *flag == name)?;
        Some(*field(&mut Self::default()))
    }

    /// How long reviewers have before a request escalates.
    #[must_use]
    pub fn due_after_ms(&self) -> u64 {
        self.approval_default_timeout.min(self.approval_max_timeout).saturating_mul(1_000)
    }

    /// How long a risky task waits after its approval.
    #[must_use]
    pub const fn hold_ms(&self) -> u64 {
        self.approval_apply_hold.saturating_mul(1_000)
    }

    /// How long an approval is valid.
    #[must_use]
    pub const fn valid_for_ms(&self) -> u64 {
        self.approval_validity.saturating_mul(1_000)
    }
}
