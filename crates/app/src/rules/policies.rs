//! Policies: each has an active version, a draft, or both.
//!
//! Names are unique among active versions and drafts. A name is reserved by a document of its own, so that the database
//! decides between concurrent requests for it.

use std::collections::BTreeSet;

use ade_domain::approval::policy::{AutoApprove, Policy, PolicyVersions, Priority, default_policy};
use ade_domain::approval::window::TimeWindow;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{Versioned, Write};

use super::{RuleService, check_revision, require_valid};
use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::tasks::ReplayDifference;
use crate::{Caller, Error, Outcome, TaskService, new_id};

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

    fn apply_to_versions(&self, versions: &PolicyVersions) -> PolicyVersions {
        let mut policy = versions.latest().clone();
        self.apply(&mut policy);
        match (self.active, versions.active()) {
            (None, Some(active)) => {
                let draft = Some(policy).filter(|policy| policy != active).map(Box::new);
                PolicyVersions::Active { active: active.clone(), draft }
            }
            (is_active, _) => PolicyVersions::new(policy, is_active == Some(true)),
        }
    }
}

fn versions(policy: &PolicyVersions) -> impl Iterator<Item = &Policy> {
    policy.active().into_iter().chain(policy.draft())
}

fn names(policy: &PolicyVersions) -> BTreeSet<&str> {
    versions(policy).map(|policy| policy.name.as_str()).collect()
}

/// The writes that reserve new names and release unused ones.
fn reservations(before: &BTreeSet<&str>, after: &BTreeSet<&str>, id: &str) -> Vec<Write> {
    let released = before.difference(after).map(|name| Write::release_policy_name(name));
    let reserved = after.difference(before).map(|name| Write::reserve_policy_name(name, id));
    released.chain(reserved).collect()
}

/// Hypothetical policies of a simulation.
pub fn hypothetical_policies(changes: &[PolicyChange]) -> Result<Vec<Policy>, Error> {
    let mut policies = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        let mut policy = default_policy();
        policy.name.clear();
        change.apply(&mut policy);
        let faults = policy.validate().into_iter();
        require_valid(faults.map(|fault| fault.within(format!("policies.{number}"))).collect())?;
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
        tasks.replay(self.policy(id, caller).await?.value.latest(), caller).await
    }

    /// All policies, oldest first.
    pub async fn policies(&self, caller: &Caller) -> Result<Vec<Versioned<PolicyVersions>>, Error> {
        caller.require_scope(Scope::Read)?;
        Ok(self.database.documents().await?)
    }

    pub async fn policy(&self, id: &str, caller: &Caller) -> Result<Versioned<PolicyVersions>, Error> {
        caller.require_scope(Scope::Read)?;
        self.document(id).await
    }

    /// Creates a policy: a draft, unless `change.active` is true.
    pub async fn create_policy(
        &self,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<Versioned<PolicyVersions>, Error> {
        require_admin(caller)?;
        let mut policy = Policy { name: String::new(), ..default_policy() };
        change.apply(&mut policy);
        require_valid(policy.validate())?;
        let value = PolicyVersions::new(policy, change.active == Some(true));
        let after = Versioned { id: new_id(), revision: 1, value };
        self.commit_policy("policy.create", None, &after, caller).await?.ok_or(Error::Conflict)
    }

    /// Changes the draft of a policy; `change.active` activates or deactivates it.
    pub async fn update_policy(
        &self,
        id: &str,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<Versioned<PolicyVersions>, Error> {
        self.change_policy(id, "policy.update", caller, |policy| change.apply_to_versions(policy)).await
    }

    /// Activates the draft. Without a draft nothing changes.
    pub async fn activate_policy(
        &self,
        id: &str,
        caller: &Caller,
    ) -> Result<Versioned<PolicyVersions>, Error> {
        let activate = |policy: &PolicyVersions| PolicyVersions::new(policy.latest().clone(), true);
        self.change_policy(id, "policy.activate", caller, activate).await
    }

    /// Deletes a policy with its draft.
    pub async fn delete_policy(&self, id: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.policy(id, caller).await?;
            check_revision(&before, caller)?;
            let released = reservations(&names(&before.value), &BTreeSet::new(), id);
            let deleted =
                self.commit("policy.delete", Some(&before), None, released, Outcome::Policy, caller).await?;
            Ok(deleted.map(drop))
        })
        .await
    }

    async fn change_policy(
        &self,
        id: &str,
        action: &'static str,
        caller: &Caller,
        decide: impl Fn(&PolicyVersions) -> PolicyVersions,
    ) -> Result<Versioned<PolicyVersions>, Error> {
        require_admin(caller)?;
        retry_on_conflict(async || {
            let before = self.policy(id, caller).await?;
            check_revision(&before, caller)?;
            let after = before.next(decide(&before.value));
            require_valid(versions(&after.value).flat_map(Policy::validate).collect())?;
            self.commit_policy(action, Some(&before), &after, caller).await
        })
        .await
    }

    /// Reports a duplicate name as such.
    async fn commit_policy(
        &self,
        action: &'static str,
        before: Option<&Versioned<PolicyVersions>>,
        after: &Versioned<PolicyVersions>,
        caller: &Caller,
    ) -> Result<Option<Versioned<PolicyVersions>>, Error> {
        let was = before.map(|before| names(&before.value)).unwrap_or_default();
        let reserved = reservations(&was, &names(&after.value), &after.id);
        match self.commit(action, before, Some(after), reserved, Outcome::Policy, caller).await {
            Err(Error::Database(DatabaseError::AlreadyExists { what })) => {
                for name in names(&after.value) {
                    if self.database.policy_by_name(name).await?.is_some_and(|owner| owner != after.id) {
                        return Err(Error::Exists(format!("a policy with the name {name}")));
                    }
                }
                Err(Error::Database(DatabaseError::AlreadyExists { what }))
            }
            other => other,
        }
    }
}
