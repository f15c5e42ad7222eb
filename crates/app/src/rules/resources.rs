//! The registry of resources: how critical what matches a pattern is, and what depends on it. The pattern is the key.

use ade_domain::Invalid;
use ade_domain::glob::Pattern;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{DocumentKind, StoredDocument};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Change, MOST_ATTEMPTS, RuleService, seen, valid};
use crate::accounts::require_admin;
use crate::{Caller, Error};

/// What may depend on one pattern.
const MOST_DEPENDENTS: usize = 1_000;
/// Bytes of a pattern, and of what depends on it.
const LONGEST: usize = 512;

/// How critical what matches a pattern is, and what depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredPattern {
    /// What it is about.
    pub pattern: Pattern,
    /// From 0 to 100.
    pub criticality: u8,
    /// What depends on it, as `type:id`.
    #[serde(default)]
    pub dependents: Vec<String>,
}

/// What somebody wants the registry to say; what is not said stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceChange {
    /// What it is about: needed for a new one, and never changed.
    pub pattern: Option<Pattern>,
    /// From 0 to 100; needed for a new one.
    pub criticality: Option<u8>,
    /// What depends on it, as `type:id`.
    pub dependents: Option<Vec<String>>,
}

impl RegisteredPattern {
    /// Everything about it that cannot be.
    #[must_use]
    pub fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, pointer: &str, detail: String| {
            if !holds {
                faults.push(Invalid::at(pointer, detail));
            }
        };
        let fits =
            |text: &str| !text.is_empty() && text.len() <= LONGEST && !text.chars().any(char::is_control);
        let detail = format!("must be 1 to {LONGEST} bytes without control characters");
        check(fits(self.pattern.as_str()), "/pattern", detail);
        check(self.criticality <= 100, "/criticality", "must be between 0 and 100".to_owned());
        let detail = format!("must have at most {MOST_DEPENDENTS} entries");
        check(self.dependents.len() <= MOST_DEPENDENTS, "/dependents", detail);
        for (number, name) in self.dependents.iter().take(MOST_DEPENDENTS).enumerate() {
            let is_name = name.split_once(':').is_some_and(|(of, id)| !of.is_empty() && !id.is_empty());
            let detail = format!("must be type:id, at most {LONGEST} bytes without control characters");
            check(is_name && fits(name), &format!("/dependents/{number}"), detail);
        }
        faults
    }
}

impl RuleService {
    /// Everything that is registered, by pattern. [`Thing::read`] gives a [`RegisteredPattern`].
    pub async fn resources(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        caller.require(Scope::Read)?;
        Ok(self.record.things(DocumentKind::Resource).await?)
    }

    /// What is registered under a pattern.
    pub async fn resource(&self, pattern: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require(Scope::Read)?;
        self.one(DocumentKind::Resource, pattern).await
    }

    /// Registers a pattern.
    pub async fn create_resource(
        &self,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        let pattern = change.pattern.clone().unwrap_or_else(|| Pattern::new(""));
        let criticality =
            change.criticality.ok_or_else(|| Error::invalid("/criticality", "must be given"))?;
        let dependents = change.dependents.clone().unwrap_or_default();
        let registered = RegisteredPattern { pattern, criticality, dependents };
        valid(registered.faults())?;
        let id = registered.pattern.to_string();
        let after = StoredDocument {
            kind: DocumentKind::Resource,
            id: id.clone(),
            revision: 1,
            body: json!(registered),
        };
        let change =
            Change { action: "resource.create", before: None, after: Some(&after), besides: Vec::new() };
        match self.commit(change, caller).await {
            Err(Error::Record(DatabaseError::Exists { .. }))
                if self.record.thing(DocumentKind::Resource, &id).await?.is_some() =>
            {
                Err(Error::Exists(format!("the resource {id}")))
            }
            done => done?.ok_or(Error::Overtaken),
        }
    }

    /// Changes what is registered under a pattern.
    pub async fn update_resource(
        &self,
        pattern: &str,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        if change.pattern.as_ref().is_some_and(|wanted| wanted.as_str() != pattern) {
            return Err(Error::invalid(
                "/pattern",
                "cannot be changed; register the other one, and delete this",
            ));
        }
        for _ in 0..MOST_ATTEMPTS {
            let before = self.one(DocumentKind::Resource, pattern).await?;
            seen(&before, caller)?;
            let mut registered: RegisteredPattern = before.read()?;
            registered.criticality = change.criticality.unwrap_or(registered.criticality);
            registered.dependents = change.dependents.clone().unwrap_or(registered.dependents);
            valid(registered.faults())?;
            let after =
                StoredDocument { revision: before.revision + 1, body: json!(registered), ..before.clone() };
            let besides = Vec::new();
            let change =
                Change { action: "resource.update", before: Some(&before), after: Some(&after), besides };
            if let Some(thing) = self.commit(change, caller).await? {
                return Ok(thing);
            }
        }
        Err(Error::Overtaken)
    }

    /// Deletes what is registered under a pattern.
    pub async fn delete_resource(&self, pattern: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        for _ in 0..MOST_ATTEMPTS {
            let before = self.one(DocumentKind::Resource, pattern).await?;
            seen(&before, caller)?;
            let besides = Vec::new();
            let change = Change { action: "resource.delete", before: Some(&before), after: None, besides };
            if self.commit(change, caller).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Overtaken)
    }
}
