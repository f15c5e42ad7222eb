//! Policies: each has an active version, a draft, or both.
//!
//! Names are unique among active versions and drafts. A name is reserved by a document of its own, so that the database
//! decides between concurrent requests for it.

use std::collections::BTreeSet;

use ade_domain::approval::policy::{AutoApprove, Policy, Priority, default_policy};
use ade_domain::approval::window::TimeWindow;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{DocumentKind, StoredDocument, Write};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{DocumentChange, RuleService, check_revision, require_valid};
use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::tasks::ReplayDifference;
use crate::{Caller, Error, TaskService, new_id};

/// At least one of both is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPolicy {
    pub active: Option<Policy>,
    pub draft: Option<Policy>,
}

/// A missing field keeps its value, or has its default in a new policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyChange {
    pub name: Option<String>,
    pub task_types: Option<Vec<String>>,
    pub resource_patterns: Option<Vec<Pattern>>,
    pub min_approvers: Option<u32>,
    pub required_roles: Option<Vec<String>>,
    pub reviewers: Option<Vec<UserId>>,
    pub risk_threshold: Option<u8>,
    /// `Some(None)` clears it; the same below.
    pub auto_approve_if: Option<Option<AutoApprove>>,
    pub escalation_role: Option<Option<String>>,
    pub reject_threshold: Option<u32>,
    pub priority: Option<Priority>,
    pub window: Option<Option<TimeWindow>>,
    /// True activates the policy immediately, false deactivates it; otherwise only the draft changes.
    pub active: Option<bool>,
}

fn set<T: Clone>(field: &mut T, value: Option<&T>) {
    if let Some(value) = value {
        *field = value.clone();
    }
}

impl PolicyChange {
    fn apply(&self, policy: &mut Policy) {
        set(&mut policy.name, self.name.as_ref());
        set(&mut policy.task_types, self.task_types.as_ref());
        set(&mut policy.resource_patterns, self.resource_patterns.as_ref());
        set(&mut policy.min_approvers, self.min_approvers.as_ref());
        set(&mut policy.required_roles, self.required_roles.as_ref());
        set(&mut policy.reviewers, self.reviewers.as_ref());
        set(&mut policy.risk_threshold, self.risk_threshold.as_ref());
        set(&mut policy.auto_approve_if, self.auto_approve_if.as_ref());
        set(&mut policy.escalation_role, self.escalation_role.as_ref());
        set(&mut policy.reject_threshold, self.reject_threshold.as_ref());
        set(&mut policy.priority, self.priority.as_ref());
        set(&mut policy.window, self.window.as_ref());
    }
}

impl StoredPolicy {
    /// The draft if there is one, else the active version.
    fn latest(&self) -> Policy {
        self.draft.clone().or_else(|| self.active.clone()).unwrap_or_else(default_policy)
    }

    fn changed(&self, change: &PolicyChange) -> Self {
        let mut policy = self.latest();
        change.apply(&mut policy);
        match change.active {
            Some(true) => Self { active: Some(policy), draft: None },
            Some(false) => Self { active: None, draft: Some(policy) },
            None => {
                let draft = Some(policy).filter(|policy| self.active.as_ref() != Some(policy));
                Self { active: self.active.clone(), draft }
            }
        }
    }

    fn names(&self) -> BTreeSet<&str> {
        self.active.iter().chain(&self.draft).map(|policy| policy.name.as_str()).collect()
    }
}

/// Prefix of the ids of name reservations.
const RESERVATION: &str = "name:";

/// Whether a document is a policy, and not the reservation of a name.
pub(crate) fn is_policy(document: &StoredDocument) -> bool {
    !document.id.starts_with(RESERVATION)
}

/// The writes that reserve new names and release unused ones.
fn reservations(before: &BTreeSet<&str>, after: &BTreeSet<&str>, id: &str) -> Vec<Write> {
    let kind = DocumentKind::Policy;
    let released = before.difference(after).map(|name| Write::DeleteDocument {
        kind,
        id: format!("{RESERVATION}{name}"),
        expected: 1,
    });
    let reserved = after.difference(before).map(|name| {
        let body = json!({ "policy_id": id });
        Write::Document {
            document: StoredDocument { kind, id: format!("{RESERVATION}{name}"), revision: 1, body },
            expected: None,
        }
    });
    released.chain(reserved).collect()
}

fn document(id: &str, revision: u64, policy: &StoredPolicy) -> StoredDocument {
    StoredDocument { kind: DocumentKind::Policy, id: id.to_owned(), revision, body: json!(policy) }
}

/// Hypothetical policies of a simulation.
pub fn hypothetical_policies(changes: &[PolicyChange]) -> Result<Vec<Policy>, Error> {
    let mut policies = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        let mut policy = default_policy();
        policy.name.clear();
        change.apply(&mut policy);
        let mut faults = policy.validate();
        if !faults.is_empty() {
            faults.iter_mut().for_each(|fault| fault.path = format!("/policies/{number}{}", fault.path));
            return Err(Error::Invalid(faults));
        }
        policies.push(policy);
    }
    Ok(policies)
}

impl RuleService {
    /// The past tasks for which the latest version of a policy would have required other approvals: for administrators and
    /// auditors, who can see all tasks.
    pub async fn replay(
        &self,
        id: &str,
        tasks: &TaskService,
        caller: &Caller,
    ) -> Result<Vec<ReplayDifference>, Error> {
        if !caller.can_see_all() {
            let detail = "only administrators and auditors can replay past tasks";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        let stored: StoredPolicy = self.policy(id, caller).await?.parse()?;
        tasks.replay(&stored.latest(), caller).await
    }

    /// All policies, oldest first.
    pub async fn policies(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        caller.require_scope(Scope::Read)?;
        Ok(self.database.documents(DocumentKind::Policy).await?.into_iter().filter(is_policy).collect())
    }

    pub async fn policy(&self, id: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require_scope(Scope::Read)?;
        let found = self.document(DocumentKind::Policy, id).await?;
        if is_policy(&found) { Ok(found) } else { Err(Error::NotFound("policy")) }
    }

    /// Creates a policy: a draft, unless `change.active` is true.
    pub async fn create_policy(
        &self,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        let mut policy = Policy { name: String::new(), ..default_policy() };
        change.apply(&mut policy);
        require_valid(policy.validate())?;
        let policy = match change.active {
            Some(true) => StoredPolicy { active: Some(policy), draft: None },
            _ => StoredPolicy { active: None, draft: Some(policy) },
        };
        let id = new_id();
        let after = document(&id, 1, &policy);
        let extra_writes = reservations(&BTreeSet::new(), &policy.names(), &id);
        let action = "policy.create";
        let change = DocumentChange { action, before: None, after: Some(&after), extra_writes };
        self.commit_policy(change, &policy, caller).await?.ok_or(Error::Conflict)
    }

    /// Changes the draft of a policy; `change.active` activates or deactivates it.
    pub async fn update_policy(
        &self,
        id: &str,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        self.change_policy(id, "policy.update", caller, |policy| policy.changed(change)).await
    }

    /// Activates the draft. Without a draft nothing changes.
    pub async fn activate_policy(&self, id: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        let activate = |policy: &StoredPolicy| StoredPolicy { active: Some(policy.latest()), draft: None };
        self.change_policy(id, "policy.activate", caller, activate).await
    }

    /// Deletes a policy with its draft.
    pub async fn delete_policy(&self, id: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.policy(id, caller).await?;
            check_revision(&before, caller)?;
            let policy: StoredPolicy = before.parse()?;
            let extra_writes = reservations(&policy.names(), &BTreeSet::new(), id);
            let action = "policy.delete";
            let change = DocumentChange { action, before: Some(&before), after: None, extra_writes };
            Ok(self.commit(change, caller).await?.map(drop))
        })
        .await
    }

    async fn change_policy(
        &self,
        id: &str,
        action: &'static str,
        caller: &Caller,
        decide: impl Fn(&StoredPolicy) -> StoredPolicy,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.policy(id, caller).await?;
            check_revision(&before, caller)?;
            let was: StoredPolicy = before.parse()?;
            let now = decide(&was);
            require_valid(now.active.iter().chain(&now.draft).flat_map(Policy::validate).collect())?;
            let extra_writes = reservations(&was.names(), &now.names(), id);
            let after = document(id, before.revision + 1, &now);
            let change = DocumentChange { action, before: Some(&before), after: Some(&after), extra_writes };
            self.commit_policy(change, &now, caller).await
        })
        .await
    }

    /// Reports a duplicate name as such.
    async fn commit_policy(
        &self,
        change: DocumentChange<'_>,
        policy: &StoredPolicy,
        caller: &Caller,
    ) -> Result<Option<StoredDocument>, Error> {
        let own_id = change.after.map(|document| document.id.clone()).unwrap_or_default();
        match self.commit(change, caller).await {
            Err(Error::Database(DatabaseError::AlreadyExists { what })) => {
                for name in policy.names() {
                    let reserved =
                        self.database.document(DocumentKind::Policy, &format!("{RESERVATION}{name}")).await?;
                    if reserved.is_some_and(|reserved| reserved.body != json!({ "policy_id": own_id })) {
                        return Err(Error::Exists(format!("a policy with the name {name}")));
                    }
                }
                Err(Error::Database(DatabaseError::AlreadyExists { what }))
            }
            other => other,
        }
    }
}
