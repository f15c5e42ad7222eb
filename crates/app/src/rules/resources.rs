//! The resource registry: criticality and dependents of the resources that match a pattern. The pattern is the key.

use ade_domain::glob::Pattern;
use ade_domain::permission::Scope;
use ade_domain::risk::RegisteredPattern;
use ade_store::DatabaseError;
use ade_store::database::Versioned;

use super::{RuleService, check_revision, require_valid};
use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome};

/// A missing field keeps its value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceChange {
    /// Required for a new entry; it cannot be changed.
    pub pattern: Option<Pattern>,
    /// From 0 to 100; required for a new entry.
    pub criticality: Option<u8>,
    /// As `type:id`.
    pub dependents: Option<Vec<String>>,
}

impl RuleService {
    /// All entries by pattern.
    pub async fn resources(&self, caller: &Caller) -> Result<Vec<Versioned<RegisteredPattern>>, Error> {
        caller.require_scope(Scope::Read)?;
        Ok(self.database.documents().await?)
    }

    pub async fn resource(
        &self,
        pattern: &str,
        caller: &Caller,
    ) -> Result<Versioned<RegisteredPattern>, Error> {
        caller.require_scope(Scope::Read)?;
        self.document(pattern).await
    }

    pub async fn create_resource(
        &self,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<Versioned<RegisteredPattern>, Error> {
        require_admin(caller)?;
        let pattern = change.pattern.clone().unwrap_or_else(|| Pattern::new(""));
        let criticality = change.criticality.ok_or_else(|| Error::invalid("criticality", "is required"))?;
        let dependents = change.dependents.clone().unwrap_or_default();
        let registered = RegisteredPattern { pattern, criticality, dependents };
        require_valid(registered.validate())?;
        let after = Versioned { id: registered.pattern.to_string(), revision: 1, value: registered };
        let created =
            self.commit("resource.create", None, Some(&after), Vec::new(), Outcome::Resource, caller);
        match created.await {
            Err(Error::Database(DatabaseError::AlreadyExists { .. }))
                if self.database.document::<RegisteredPattern>(&after.id).await?.is_some() =>
            {
                Err(Error::Exists(format!("resource {}", after.id)))
            }
            committed => committed?.ok_or(Error::Conflict),
        }
    }

    pub async fn update_resource(
        &self,
        pattern: &str,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<Versioned<RegisteredPattern>, Error> {
        require_admin(caller)?;
        if change.pattern.as_ref().is_some_and(|other| other.as_str() != pattern) {
            return Err(Error::invalid(
                "pattern",
                "cannot be changed; register the new pattern and delete this one",
            ));
        }
        retry_on_conflict(async || {
            let before = self.document::<RegisteredPattern>(pattern).await?;
            check_revision(&before, caller)?;
            let mut registered = before.value.clone();
            registered.criticality = change.criticality.unwrap_or(registered.criticality);
            registered.dependents = change.dependents.clone().unwrap_or(registered.dependents);
            require_valid(registered.validate())?;
            let (before, after) = (Some(&before), Some(&before.next(registered)));
            self.commit("resource.update", before, after, Vec::new(), Outcome::Resource, caller).await
        })
        .await
    }

    pub async fn delete_resource(&self, pattern: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.document(pattern).await?;
            check_revision(&before, caller)?;
            let (before, action) = (Some(&before), "resource.delete");
            let deleted = self.commit(action, before, None, Vec::new(), Outcome::Resource, caller).await?;
            Ok(deleted.map(drop))
        })
        .await
    }
}
