//! Settings and feature flags. One that was never set has its default and revision 0.

use ade_domain::permission::Scope;
use ade_store::database::{FeatureFlag, Setting, Versioned};
use serde_json::Value;

use super::{Rule, RuleService};
use crate::shared_settings::{Settings, check, feature_names, setting_names};
use crate::{Caller, Error, ObjectKind, Outcome, Result};

/// A setting or feature flag.
trait NamedValue: Rule {
    /// `None` if the name is unknown.
    fn default_of(name: &str) -> Option<Self>;
}

impl Rule for Setting {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Setting(document)
    }
}

impl NamedValue for Setting {
    fn default_of(name: &str) -> Option<Self> {
        Settings::default_value(name).map(Self)
    }
}

impl Rule for FeatureFlag {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Feature(document)
    }
}

impl NamedValue for FeatureFlag {
    fn default_of(name: &str) -> Option<Self> {
        Settings::default_flag(name).map(Self)
    }
}

fn default_of<T: NamedValue>(name: &str) -> Result<Versioned<T>> {
    let value = T::default_of(name).ok_or(Error::NotFound(ObjectKind::Document(T::KIND)))?;
    Ok(Versioned { id: name.to_owned(), revision: 0, value })
}

impl RuleService {
    pub async fn settings(&self, caller: &Caller) -> Result<Vec<Versioned<Setting>>> {
        self.all_named(setting_names(), caller).await
    }

    pub async fn setting(&self, name: &str, caller: &Caller) -> Result<Versioned<Setting>> {
        caller.require_scope(Scope::Read)?;
        self.named(name).await
    }

    pub async fn set_setting(&self, name: &str, value: Value, caller: &Caller) -> Result<Versioned<Setting>> {
        caller.require_admin()?;
        default_of::<Setting>(name)?;
        check(name, &value).map_err(Error::Invalid)?;
        self.set_named("config.set", name, Setting(value), caller).await
    }

    pub async fn features(&self, caller: &Caller) -> Result<Vec<Versioned<FeatureFlag>>> {
        self.all_named(feature_names(), caller).await
    }

    pub async fn feature(&self, name: &str, caller: &Caller) -> Result<Versioned<FeatureFlag>> {
        caller.require_scope(Scope::Read)?;
        self.named(name).await
    }

    pub async fn set_feature(
        &self,
        name: &str,
        enabled: bool,
        caller: &Caller,
    ) -> Result<Versioned<FeatureFlag>> {
        caller.require_admin()?;
        self.set_named("feature.set", name, FeatureFlag(enabled), caller).await
    }

    async fn all_named<T: NamedValue>(
        &self,
        names: impl Iterator<Item = &'static str>,
        caller: &Caller,
    ) -> Result<Vec<Versioned<T>>> {
        caller.require_scope(Scope::Read)?;
        let stored = self.context.database.documents().await?;
        let find = |name: &str| stored.iter().find(|document| document.id == name).cloned();
        names.map(|name| find(name).map_or_else(|| default_of(name), Ok)).collect()
    }

    async fn named<T: NamedValue>(&self, name: &str) -> Result<Versioned<T>> {
        let default = default_of(name)?;
        Ok(self.context.database.document(name).await?.unwrap_or(default))
    }

    async fn set_named<T: NamedValue>(
        &self,
        action: &str,
        name: &str,
        value: T,
        caller: &Caller,
    ) -> Result<Versioned<T>> {
        self.change(action, caller, async || {
            let before = self.named::<T>(name).await?;
            caller.check_revision(before.revision)?;
            Ok((before, Some(value.clone())))
        })
        .await
    }
}
