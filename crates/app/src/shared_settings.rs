//! Settings and feature flags, which are changed while servers run. Each decision reads them from the database, so that a
//! change applies on every server from the next request on.
//!
//! The names are a closed list. Lock limits are not among them: they are part of each server's configuration. A setting that
//! was never set has its default and revision 0.

use ade_domain::InvalidField;
use ade_domain::permission::Scope;
use ade_domain::risk::RiskThresholds;
use ade_store::database::{Document, DocumentKind, FeatureFlag, Setting, Versioned};
use ade_store::{Database, DatabaseError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::rules::{RuleService, check_revision};
use crate::{Caller, Error, ObjectKind, Outcome};

const THRESHOLDS: &str = "risk:thresholds";
const YEAR_SECONDS: u64 = 365 * 86_400;

/// All settings and feature flags. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `approval:default_timeout`: how long reviewers have before a request escalates.
    pub approval_default_timeout: u64,
    /// `approval:max_timeout`: the upper bound of the default timeout.
    pub approval_max_timeout: u64,
    /// `approval:validity`: how long an approval is valid.
    pub approval_validity: u64,
    /// `approval:backlog_threshold`: more pending requests than this are a backlog.
    pub approval_backlog_threshold: u64,
    /// `task:default_timeout`: how long a task without a timeout of its own may run.
    pub task_default_timeout: u64,
    /// `risk:thresholds`: the lowest scores of the risk levels medium, high and critical.
    pub thresholds: RiskThresholds,
    /// Flag: in a backlog, tasks of level LOW are approved automatically if their policies allow it.
    pub auto_approve_low_risk: bool,
    /// Flag: approval requests can be decided in batches.
    pub batch_approvals: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            approval_default_timeout: 48 * 3_600,
            approval_max_timeout: 7 * 86_400,
            approval_validity: 7 * 86_400,
            approval_backlog_threshold: 1_000,
            task_default_timeout: 300,
            thresholds: RiskThresholds::default(),
            auto_approve_low_risk: false,
            batch_approvals: true,
        }
    }
}

/// A numeric setting.
struct Number {
    name: &'static str,
    min: u64,
    max: u64,
    field: fn(&mut Settings) -> &mut u64,
}

const NUMBERS: [Number; 5] = [
    Number {
        name: "approval:backlog_threshold",
        min: 0,
        max: 1_000_000_000,
        field: |settings| &mut settings.approval_backlog_threshold,
    },
    Number {
        name: "approval:default_timeout",
        min: 1,
        max: YEAR_SECONDS,
        field: |settings| &mut settings.approval_default_timeout,
    },
    Number {
        name: "approval:max_timeout",
        min: 1,
        max: YEAR_SECONDS,
        field: |settings| &mut settings.approval_max_timeout,
    },
    Number {
        name: "approval:validity",
        min: 1,
        max: YEAR_SECONDS,
        field: |settings| &mut settings.approval_validity,
    },
    Number {
        name: "task:default_timeout",
        min: 1,
        max: 86_400,
        field: |settings| &mut settings.task_default_timeout,
    },
];

/// The name of a flag, and its field.
type Flag = (&'static str, fn(&mut Settings) -> &mut bool);

const FLAGS: [Flag; 2] = [
    ("auto_approve_low_risk", |settings| &mut settings.auto_approve_low_risk),
    ("batch_approvals", |settings| &mut settings.batch_approvals),
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
        "approval:default_timeout" => "seconds that reviewers have before a request escalates",
        "approval:max_timeout" => "upper bound of approval:default_timeout, in seconds",
        "approval:validity" => "seconds that an approval is valid",
        "approval:backlog_threshold" => "more pending approval requests than this are a backlog",
        "task:default_timeout" => "seconds that a task without a timeout of its own may run",
        THRESHOLDS => "lowest scores of the risk levels medium, high and critical",
        "auto_approve_low_risk" => {
            "in a backlog, approve tasks of level LOW automatically if their policies allow it"
        }
        "batch_approvals" => "approval requests can be decided in batches",
        _ => "",
    }
}

pub fn setting_names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|number| number.name).chain([THRESHOLDS])
}

pub fn feature_names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, _)| *name)
}

/// Checks the value of a setting.
pub fn check(name: &str, value: &Value) -> Result<(), Vec<InvalidField>> {
    Settings::default().set(name, value).map_err(|fault| vec![fault])
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
        let Some(number) = NUMBERS.iter().find(|number| number.name == name) else {
            let names: Vec<&str> = setting_names().collect();
            return Err(InvalidField::at("name", format!("must be one of {}", names.join(", "))));
        };
        let in_range = value.as_u64().filter(|value| (number.min..=number.max).contains(value));
        *(number.field)(self) = in_range.ok_or_else(|| {
            let detail = format!("must be a whole number between {} and {}", number.min, number.max);
            InvalidField::at("value", detail)
        })?;
        Ok(())
    }

    fn value(&mut self, name: &str) -> Option<Value> {
        if name == THRESHOLDS {
            let RiskThresholds { medium, high, critical } = self.thresholds;
            return serde_json::to_value(ThresholdsJson { medium, high, critical }).ok();
        }
        NUMBERS.iter().find(|number| number.name == name).map(|number| Value::from(*(number.field)(self)))
    }

    /// How long reviewers have before a request escalates.
    #[must_use]
    pub fn due_after_ms(&self) -> u64 {
        self.approval_default_timeout.min(self.approval_max_timeout).saturating_mul(1_000)
    }

    /// How long an approval is valid.
    #[must_use]
    pub const fn valid_for_ms(&self) -> u64 {
        self.approval_validity.saturating_mul(1_000)
    }
}

/// A setting or feature flag.
trait NamedValue: Document + Clone + PartialEq {
    /// `None` if the name is unknown.
    fn default_of(name: &str) -> Option<Self>;
}

impl NamedValue for Setting {
    fn default_of(name: &str) -> Option<Self> {
        Settings::default().value(name).map(Self)
    }
}

impl NamedValue for FeatureFlag {
    fn default_of(name: &str) -> Option<Self> {
        let (_, field) = FLAGS.iter().find(|(flag, _)| *flag == name)?;
        Some(Self(*field(&mut Settings::default())))
    }
}

fn default_of<T: NamedValue>(name: &str) -> Option<Versioned<T>> {
    Some(Versioned { id: name.to_owned(), revision: 0, value: T::default_of(name)? })
}

impl RuleService {
    /// All settings; one that was never set has its default and revision 0.
    pub async fn settings(&self, caller: &Caller) -> Result<Vec<Versioned<Setting>>, Error> {
        self.all(setting_names(), caller).await
    }

    pub async fn setting(&self, name: &str, caller: &Caller) -> Result<Versioned<Setting>, Error> {
        caller.require_scope(Scope::Read)?;
        self.current(name).await
    }

    pub async fn set_setting(
        &self,
        name: &str,
        value: Value,
        caller: &Caller,
    ) -> Result<Versioned<Setting>, Error> {
        require_admin(caller)?;
        if setting_names().all(|setting| setting != name) {
            return Err(Error::NotFound(ObjectKind::Document(DocumentKind::Setting)));
        }
        check(name, &value).map_err(Error::Invalid)?;
        retry_on_conflict(async || {
            let before = self.current(name).await?;
            check_revision(&before, caller)?;
            let after = Some(&before.next(Setting(value.clone())));
            self.commit("config.set", Some(&before), after, Vec::new(), Outcome::Setting, caller).await
        })
        .await
    }

    /// All feature flags; one that was never set has its default and revision 0.
    pub async fn features(&self, caller: &Caller) -> Result<Vec<Versioned<FeatureFlag>>, Error> {
        self.all(feature_names(), caller).await
    }

    pub async fn feature(&self, name: &str, caller: &Caller) -> Result<Versioned<FeatureFlag>, Error> {
        caller.require_scope(Scope::Read)?;
        self.current(name).await
    }

    pub async fn set_feature(
        &self,
        name: &str,
        enabled: bool,
        caller: &Caller,
    ) -> Result<Versioned<FeatureFlag>, Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.current(name).await?;
            check_revision(&before, caller)?;
            let after = Some(&before.next(FeatureFlag(enabled)));
            self.commit("feature.set", Some(&before), after, Vec::new(), Outcome::Feature, caller).await
        })
        .await
    }

    async fn all<T: NamedValue>(
        &self,
        names: impl Iterator<Item = &'static str>,
        caller: &Caller,
    ) -> Result<Vec<Versioned<T>>, Error> {
        caller.require_scope(Scope::Read)?;
        let stored = self.database.documents().await?;
        let find = |name: &str| stored.iter().find(|document| document.id == name).cloned();
        Ok(names.filter_map(|name| find(name).or_else(|| default_of(name))).collect())
    }

    async fn current<T: NamedValue>(&self, name: &str) -> Result<Versioned<T>, Error> {
        let default = default_of(name).ok_or(Error::NotFound(ObjectKind::Document(T::KIND)))?;
        Ok(self.database.document(name).await?.unwrap_or(default))
    }
}
