//! The resource registry: criticality and dependents of the resources that match a pattern. The pattern is the key.

use ade_domain::glob::Pattern;
use ade_domain::risk::RegisteredPattern;
use ade_store::database::Versioned;
use serde::Deserialize;

use super::{Rule, RuleService, describe_existing};
use crate::error::require_valid;
use crate::{Caller, Error, Outcome, Result, set};

impl Rule for RegisteredPattern {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Resource(document)
    }
}

/// A missing field keeps its value.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ResourceChange {
    /// Required for a new entry; it cannot be changed.
    pub pattern: Option<Pattern>,
    /// From 0 to 100; required for a new entry.
    pub criticality: Option<u8>,
    /// As `type:id`.
    pub dependents: Option<Vec<String>>,
}

impl RuleService {
    pub async fn create_resource(
        &self,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<Versioned<RegisteredPattern>> {
        caller.require_admin()?;
        let pattern = change.pattern.clone().unwrap_or_else(|| Pattern::new(""));
        let criticality = change.criticality.ok_or_else(|| Error::invalid("criticality", "is required"))?;
        let dependents = change.dependents.clone().unwrap_or_default();
        let registered = RegisteredPattern { pattern, criticality, dependents };
        require_valid(registered.validate())?;
        let id = registered.pattern.to_string();
        let created = self.create("resource.create", id.clone(), registered, caller).await;
        created.map_err(|error| describe_existing(error, format!("resource {id}")))
    }

    pub async fn update_resource(
        &self,
        pattern: &str,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<Versioned<RegisteredPattern>> {
        caller.require_admin()?;
        if change.pattern.as_ref().is_some_and(|other| other.as_str() != pattern) {
            return Err(Error::invalid(
                "pattern",
                "cannot be changed; register the new pattern and delete this one",
            ));
        }
        self.change("resource.update", caller, async || {
            let before = self.expected::<RegisteredPattern>(pattern, caller).await?;
            let mut registered = before.value.clone();
            set(&mut registered.criticality, &change.criticality);
            set(&mut registered.dependents, &change.dependents);
            require_valid(registered.validate())?;
            Ok((before, Some(registered)))
        })
        .await
    }

    /// Makes a confirmed change.
    pub(crate) async fn make_resource_change(
        &self,
        action: &str,
        pattern: &str,
        after: Option<RegisteredPattern>,
        caller: &Caller,
    ) -> Result<()> {
        require_valid(after.iter().flat_map(RegisteredPattern::validate).collect())?;
        self.make(action, pattern, after, caller).await
    }

    pub async fn delete_resource(&self, pattern: &str, caller: &Caller) -> Result<()> {
        caller.require_admin()?;
        let delete = async || Ok((self.expected::<RegisteredPattern>(pattern, caller).await?, None));
        self.change("resource.delete", caller, delete).await.map(drop)
    }
}
