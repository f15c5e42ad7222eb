//! The resource registry: criticality and dependents of the resources that match a pattern. The pattern is the key.

use ade_domain::InvalidField;
use ade_domain::glob::Pattern;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{DocumentKind, StoredDocument};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{DocumentChange, RuleService, check_revision, require_valid};
use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error};

const MAX_DEPENDENTS: usize = 1_000;
/// Of a pattern, and of each dependent.
const MAX_NAME_LEN: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredPattern {
    pub pattern: Pattern,
    /// From 0 to 100.
    pub criticality: u8,
    /// As `type:id`.
    #[serde(default)]
    pub dependents: Vec<String>,
}

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

impl RegisteredPattern {
    fn faults(&self) -> Vec<InvalidField> {
        let mut faults = Vec::new();
        let mut check = |is_valid: bool, pointer: &str, detail: String| {
            if !is_valid {
                faults.push(InvalidField::at(pointer, detail));
            }
        };
        let is_text = |text: &str| {
            !text.is_empty() && text.len() <= MAX_NAME_LEN && !text.chars().any(char::is_control)
        };
        let detail = format!("must be 1 to {MAX_NAME_LEN} bytes without control characters");
        check(is_text(self.pattern.as_str()), "/pattern", detail);
        check(self.criticality <= 100, "/criticality", "must be between 0 and 100".to_owned());
        let detail = format!("must have at most {MAX_DEPENDENTS} entries");
        check(self.dependents.len() <= MAX_DEPENDENTS, "/dependents", detail);
        for (number, name) in self.dependents.iter().take(MAX_DEPENDENTS).enumerate() {
            let is_name = name.split_once(':').is_some_and(|(of, id)| !of.is_empty() && !id.is_empty());
            let detail = format!("must be type:id, at most {MAX_NAME_LEN} bytes without control characters");
            check(is_name && is_text(name), &format!("/dependents/{number}"), detail);
        }
        faults
    }
}

impl RuleService {
    /// All entries by pattern.
    pub async fn resources(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        caller.require_scope(Scope::Read)?;
        Ok(self.database.documents(DocumentKind::Resource).await?)
    }

    pub async fn resource(&self, pattern: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require_scope(Scope::Read)?;
        self.document(DocumentKind::Resource, pattern).await
    }

    pub async fn create_resource(
        &self,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        let pattern = change.pattern.clone().unwrap_or_else(|| Pattern::new(""));
        let criticality = change.criticality.ok_or_else(|| Error::invalid("/criticality", "is required"))?;
        let dependents = change.dependents.clone().unwrap_or_default();
        let registered = RegisteredPattern { pattern, criticality, dependents };
        require_valid(registered.faults())?;
        let id = registered.pattern.to_string();
        let after = StoredDocument {
            kind: DocumentKind::Resource,
            id: id.clone(),
            revision: 1,
            body: json!(registered),
        };
        let (action, extra_writes) = ("resource.create", Vec::new());
        let change = DocumentChange { action, before: None, after: Some(&after), extra_writes };
        match self.commit(change, caller).await {
            Err(Error::Database(DatabaseError::AlreadyExists { .. }))
                if self.database.document(DocumentKind::Resource, &id).await?.is_some() =>
            {
                Err(Error::Exists(format!("resource {id}")))
            }
            committed => committed?.ok_or(Error::Conflict),
        }
    }

    pub async fn update_resource(
        &self,
        pattern: &str,
        change: &ResourceChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        if change.pattern.as_ref().is_some_and(|other| other.as_str() != pattern) {
            return Err(Error::invalid(
                "/pattern",
                "cannot be changed; register the new pattern and delete this one",
            ));
        }
        retry_on_conflict(async || {
            let before = self.document(DocumentKind::Resource, pattern).await?;
            check_revision(&before, caller)?;
            let mut registered: RegisteredPattern = before.parse()?;
            registered.criticality = change.criticality.unwrap_or(registered.criticality);
            registered.dependents = change.dependents.clone().unwrap_or(registered.dependents);
            require_valid(registered.faults())?;
            let after =
                StoredDocument { revision: before.revision + 1, body: json!(registered), ..before.clone() };
            let (action, extra_writes) = ("resource.update", Vec::new());
            let change = DocumentChange { action, before: Some(&before), after: Some(&after), extra_writes };
            self.commit(change, caller).await
        })
        .await
    }

    pub async fn delete_resource(&self, pattern: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.document(DocumentKind::Resource, pattern).await?;
            check_revision(&before, caller)?;
            let (action, extra_writes) = ("resource.delete", Vec::new());
            let change = DocumentChange { action, before: Some(&before), after: None, extra_writes };
            Ok(self.commit(change, caller).await?.map(drop))
        })
        .await
    }
}
