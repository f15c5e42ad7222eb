//! Settings and flags: what is changed while servers run. Each decision is made by them as they are in the record, so that a
//! change counts on every server at the next request.
//!
//! The names are a closed list; what locks go by is not among it, because every server has that in its own configuration.
//! What nobody has set has its default, and revision 0.

use ade_domain::Invalid;
use ade_domain::permission::Scope;
use ade_domain::risk::Thresholds;
use ade_store::database::{DocumentKind, StoredDocument};
use ade_store::{Database, DatabaseError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounts::require_admin;
use crate::rules::{Change, MOST_ATTEMPTS, RuleService, seen};
use crate::{Caller, Error};

/// From where on a risk is medium, high and critical.
const THRESHOLDS: &str = "risk:thresholds";
const YEAR: u64 = 365 * 86_400;

/// All settings and flags, with defaults for those that nobody has set. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `approval:default_timeout`: how long people have before somebody else is asked.
    pub approval_default_timeout: u64,
    /// `approval:max_timeout`: how long people have at most, whatever the default says.
    pub approval_max_timeout: u64,
    /// `approval:validity`: how long an approval is good for.
    pub approval_validity: u64,
    /// `approval:backlog_threshold`: with more requests than this waiting, there is a backlog.
    pub approval_backlog_threshold: u64,
    /// `task:default_timeout`: how long carrying a task out may take that does not say.
    pub task_default_timeout: u64,
    /// `risk:thresholds`: what the words for risks mean.
    pub thresholds: Thresholds,
    /// Flag: in a backlog, tasks of level LOW pass whose policies allow it.
    pub auto_approve_low_risk: bool,
    /// Flag: many requests may be answered at once.
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
            thresholds: Thresholds::default(),
            auto_approve_low_risk: false,
            batch_approvals: true,
        }
    }
}

/// A setting that is a number.
struct Number {
    name: &'static str,
    least: u64,
    most: u64,
    of: fn(&mut Settings) -> &mut u64,
}

const NUMBERS: [Number; 5] = [
    Number {
        name: "approval:backlog_threshold",
        least: 0,
        most: 1_000_000_000,
        of: |all| &mut all.approval_backlog_threshold,
    },
    Number {
        name: "approval:default_timeout",
        least: 1,
        most: YEAR,
        of: |all| &mut all.approval_default_timeout,
    },
    Number { name: "approval:max_timeout", least: 1, most: YEAR, of: |all| &mut all.approval_max_timeout },
    Number { name: "approval:validity", least: 1, most: YEAR, of: |all| &mut all.approval_validity },
    Number { name: "task:default_timeout", least: 1, most: 86_400, of: |all| &mut all.task_default_timeout },
];

/// A flag, and where it stands.
type Flag = (&'static str, fn(&mut Settings) -> &mut bool);

const FLAGS: [Flag; 2] = [
    ("auto_approve_low_risk", |all| &mut all.auto_approve_low_risk),
    ("batch_approvals", |all| &mut all.batch_approvals),
];

/// Thresholds as they are written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    medium: u8,
    high: u8,
    critical: u8,
}

/// What a setting or a flag does.
#[must_use]
pub fn about(name: &str) -> &'static str {
    match name {
        "approval:default_timeout" => "seconds that people have before somebody else is asked",
        "approval:max_timeout" => "seconds that people have at most, whatever the default says",
        "approval:validity" => "seconds that an approval is good for",
        "approval:backlog_threshold" => "with more requests than this waiting there is a backlog",
        "task:default_timeout" => "seconds that carrying a task out may take that does not say",
        THRESHOLDS => "from which risk on a task is medium, high and critical",
        "auto_approve_low_risk" => "in a backlog, tasks of level LOW pass whose policies allow it",
        "batch_approvals" => "many requests may be answered at once",
        _ => "",
    }
}

/// Every name of a setting.
pub fn names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|number| number.name).chain([THRESHOLDS])
}

/// Every name of a flag.
pub fn flags() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, _)| *name)
}

/// Whether a setting may have a value.
pub fn check(name: &str, value: &Value) -> Result<(), Vec<Invalid>> {
    Settings::default().put(name, value).map_err(|fault| vec![fault])
}

impl Settings {
    /// As they are in the record.
    pub async fn load(record: &Database) -> Result<Self, DatabaseError> {
        let mut settings = Self::default();
        for thing in record.settings().await? {
            let foreign =
                |why: &str| DatabaseError::Foreign(format!("{} {}: {why}", thing.kind.word(), thing.id));
            match thing.kind {
                DocumentKind::Setting if names().any(|name| name == thing.id) => {
                    settings.put(&thing.id, &thing.body).map_err(|fault| foreign(&fault.detail))?;
                }
                DocumentKind::Feature => {
                    if let Some((_, of)) = FLAGS.iter().find(|(name, _)| *name == thing.id) {
                        *of(&mut settings) = thing.body.as_bool().ok_or_else(|| foreign("is no flag"))?;
                    }
                }
                // Of a later version, which knows more.
                _ => {}
            }
        }
        Ok(settings)
    }

    fn put(&mut self, name: &str, value: &Value) -> Result<(), Invalid> {
        if name == THRESHOLDS {
            let wrong = || {
                let detail = "must be {medium, high, critical}, each from 1 to 100 and each higher than the one before";
                Invalid::at("/value", detail)
            };
            let Written { medium, high, critical } =
                serde_json::from_value(value.clone()).map_err(|_| wrong())?;
            // A list of three would be read as well.
            if !value.is_object() || medium == 0 || medium >= high || high >= critical || critical > 100 {
                return Err(wrong());
            }
            self.thresholds = Thresholds { medium, high, critical };
            return Ok(());
        }
        let Some(known) = NUMBERS.iter().find(|known| known.name == name) else {
            let known: Vec<&str> = names().collect();
            return Err(Invalid::at("/name", format!("must be one of {}", known.join(", "))));
        };
        let fits = value.as_u64().filter(|number| (known.least..=known.most).contains(number));
        *(known.of)(self) = fits.ok_or_else(|| {
            Invalid::at(
                "/value",
                format!("must be a whole number between {} and {}", known.least, known.most),
            )
        })?;
        Ok(())
    }

    /// What a setting says.
    fn value(&mut self, name: &str) -> Option<Value> {
        if name == THRESHOLDS {
            let Thresholds { medium, high, critical } = self.thresholds;
            return serde_json::to_value(Written { medium, high, critical }).ok();
        }
        NUMBERS.iter().find(|known| known.name == name).map(|known| Value::from(*(known.of)(self)))
    }

    /// How long people have before somebody else is asked.
    #[must_use]
    pub fn due_after_ms(&self) -> u64 {
        self.approval_default_timeout.min(self.approval_max_timeout).saturating_mul(1_000)
    }

    /// How long an approval is good for.
    #[must_use]
    pub const fn valid_for_ms(&self) -> u64 {
        self.approval_validity.saturating_mul(1_000)
    }
}

/// What counts where nobody has set anything.
fn default_of(kind: DocumentKind, name: &str) -> Option<StoredDocument> {
    let mut defaults = Settings::default();
    let body = match kind {
        DocumentKind::Setting => defaults.value(name)?,
        DocumentKind::Feature => {
            let (_, of) = FLAGS.iter().find(|(known, _)| *known == name)?;
            Value::Bool(*of(&mut defaults))
        }
        _ => return None,
    };
    Some(StoredDocument { kind, id: name.to_owned(), revision: 0, body })
}

impl RuleService {
    /// Every setting, those that nobody has set with their defaults and revision 0.
    pub async fn settings(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        self.all(DocumentKind::Setting, names(), caller).await
    }

    /// One setting.
    pub async fn setting(&self, name: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require(Scope::Read)?;
        self.current(DocumentKind::Setting, name).await
    }

    /// Sets a setting.
    pub async fn set(&self, name: &str, value: Value, caller: &Caller) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        if names().all(|known| known != name) {
            return Err(Error::NotFound("setting"));
        }
        check(name, &value).map_err(Error::Invalid)?;
        self.overwrite(DocumentKind::Setting, name, value, "config.set", caller).await
    }

    /// Every flag, those that nobody has switched with their defaults and revision 0.
    pub async fn features(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        self.all(DocumentKind::Feature, flags(), caller).await
    }

    /// One flag.
    pub async fn feature(&self, name: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require(Scope::Read)?;
        self.current(DocumentKind::Feature, name).await
    }

    /// Switches a flag on or off.
    pub async fn switch(&self, name: &str, enabled: bool, caller: &Caller) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        self.overwrite(DocumentKind::Feature, name, Value::Bool(enabled), "feature.set", caller).await
    }

    async fn all(
        &self,
        kind: DocumentKind,
        names: impl Iterator<Item = &'static str>,
        caller: &Caller,
    ) -> Result<Vec<StoredDocument>, Error> {
        caller.require(Scope::Read)?;
        let stored = self.record.settings().await?;
        let current = |name: &str| {
            let found = stored.iter().find(|thing| thing.kind == kind && thing.id == name).cloned();
            found.or_else(|| default_of(kind, name))
        };
        Ok(names.filter_map(current).collect())
    }

    async fn current(&self, kind: DocumentKind, name: &str) -> Result<StoredDocument, Error> {
        let default = default_of(kind, name).ok_or(Error::NotFound(kind.word()))?;
        Ok(self.record.thing(kind, name).await?.unwrap_or(default))
    }

    async fn overwrite(
        &self,
        kind: DocumentKind,
        name: &str,
        body: Value,
        action: &'static str,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        for _ in 0..MOST_ATTEMPTS {
            let before = self.current(kind, name).await?;
            seen(&before, caller)?;
            let after =
                StoredDocument { revision: before.revision + 1, body: body.clone(), ..before.clone() };
            let change = Change { action, before: Some(&before), after: Some(&after), besides: Vec::new() };
            if let Some(now) = self.commit(change, caller).await? {
                return Ok(now);
            }
        }
        Err(Error::Overtaken)
    }
}
