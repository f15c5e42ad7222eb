//! Settings and feature flags. One that was never set has its default and revision 0.

use ade_store::database::{FeatureFlag, Setting, Versioned};
use serde_json::Value;

use super::{Rule, RuleService};
use crate::shared_settings::{Settings, feature_names, is_about_approvals, setting_names};
use crate::{Caller, Error, Outcome, Result};

impl Rule for Setting {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Setting(document)
    }

    fn defaults() -> Vec<Versioned<Self>> {
        let default = |name| default(name, Self(Settings::default_value(name)?));
        setting_names().filter_map(default).collect()
    }

    fn affects_approval(name: &str, _: Option<&Self>, _: Option<&Self>) -> bool {
        is_about_approvals(name)
    }
}

impl Rule for FeatureFlag {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Feature(document)
    }

    fn defaults() -> Vec<Versioned<Self>> {
        let default = |name| default(name, Self(Settings::default_flag(name)?));
        feature_names().filter_map(default).collect()
    }
}

fn default<T>(name: &str, value: T) -> Option<Versioned<T>> {
    Some(Versioned { id: name.to_owned(), revision: 0, value })
}

impl RuleService {
    pub async fn set_setting(&self, name: &str, value: Value, caller: &Caller) -> Result<Versioned<Setting>> {
        caller.require_admin()?;
        // An unknown name is not found, rather than invalid.
        if setting_names().any(|setting| setting == name) {
            Settings::load(&self.context.database).await?.check(name, &value).map_err(Error::Invalid)?;
        }
        self.set_named("config.set", name, Setting(value), caller).await
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

    async fn set_named<T: Rule>(
        &self,
        action: &str,
        name: &str,
        value: T,
        caller: &Caller,
    ) -> Result<Versioned<T>> {
        let set = async || Ok((self.expected(name, caller).await?, Some(value.clone())));
        self.change(action, caller, set).await
    }
}
