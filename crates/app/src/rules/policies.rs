//! Policies: what is in force, and what is being drafted.
//!
//! No two policies have the same name, drafted or in force. A name is taken by a thing of its own, so that of two who want it
//! at once the record lets one have it.

use std::collections::BTreeSet;

use ade_domain::approval::policy::{AutoApprove, Policy, Priority, default_policy};
use ade_domain::approval::window::Window;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{DocumentKind, StoredDocument, Write};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Change, MOST_ATTEMPTS, RuleService, seen, valid};
use crate::accounts::require_admin;
use crate::tasks::Differs;
use crate::{Caller, Error, TaskService};

/// A policy as it is stored: what is in force, and what is being drafted. There is always one of both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPolicy {
    /// In force, if it is.
    pub active: Option<Policy>,
    /// Being drafted.
    pub draft: Option<Policy>,
}

/// What somebody wants a policy to be; what is not said stays as it is, or has its default in a new one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "as in Policy")]
pub struct PolicyChange {
    pub name: Option<String>,
    pub task_types: Option<Vec<String>>,
    pub resource_patterns: Option<Vec<Pattern>>,
    pub min_approvers: Option<u32>,
    pub required_roles: Option<Vec<String>>,
    pub reviewers: Option<Vec<UserId>>,
    pub risk_threshold: Option<u8>,
    /// `Some(None)` takes it away; the same below.
    pub auto_approve_if: Option<Option<AutoApprove>>,
    pub escalation_role: Option<Option<String>>,
    pub reject_threshold: Option<u32>,
    pub priority: Option<Priority>,
    pub window: Option<Option<Window>>,
    /// Whether it is in force at once; no takes it out of force.
    pub active: Option<bool>,
}

fn put<T: Clone>(field: &mut T, wanted: Option<&T>) {
    if let Some(wanted) = wanted {
        *field = wanted.clone();
    }
}

impl PolicyChange {
    fn apply(&self, policy: &mut Policy) {
        put(&mut policy.name, self.name.as_ref());
        put(&mut policy.task_types, self.task_types.as_ref());
        put(&mut policy.resource_patterns, self.resource_patterns.as_ref());
        put(&mut policy.min_approvers, self.min_approvers.as_ref());
        put(&mut policy.required_roles, self.required_roles.as_ref());
        put(&mut policy.reviewers, self.reviewers.as_ref());
        put(&mut policy.risk_threshold, self.risk_threshold.as_ref());
        put(&mut policy.auto_approve_if, self.auto_approve_if.as_ref());
        put(&mut policy.escalation_role, self.escalation_role.as_ref());
        put(&mut policy.reject_threshold, self.reject_threshold.as_ref());
        put(&mut policy.priority, self.priority.as_ref());
        put(&mut policy.window, self.window.as_ref());
    }
}

impl StoredPolicy {
    /// What is being drafted, else what is in force.
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

/// The thing that takes a name.
const TAKEN: &str = "name:";

/// Whether a thing is a policy, and does not merely take the name of one.
pub(crate) fn is_policy(thing: &StoredDocument) -> bool {
    !thing.id.starts_with(TAKEN)
}

/// Takes names that were free, and frees those that nobody has any more.
fn taking(before: &BTreeSet<&str>, after: &BTreeSet<&str>, id: &str) -> Vec<Write> {
    let kind = DocumentKind::Policy;
    let freed = before.difference(after).map(|name| Write::DeleteThing {
        kind,
        id: format!("{TAKEN}{name}"),
        expected: 1,
    });
    let taken = after.difference(before).map(|name| {
        let body = json!({ "policy_id": id });
        Write::Thing {
            thing: StoredDocument { kind, id: format!("{TAKEN}{name}"), revision: 1, body },
            expected: None,
        }
    });
    freed.chain(taken).collect()
}

fn thing(id: &str, revision: u64, policy: &StoredPolicy) -> StoredDocument {
    StoredDocument { kind: DocumentKind::Policy, id: id.to_owned(), revision, body: json!(policy) }
}

/// Policies as if they were in force.
pub fn imagined(changes: &[PolicyChange]) -> Result<Vec<Policy>, Error> {
    let mut policies = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        let mut policy = default_policy();
        policy.name.clear();
        change.apply(&mut policy);
        let mut faults = policy.faults();
        if !faults.is_empty() {
            faults
                .iter_mut()
                .for_each(|fault| fault.pointer = format!("/policies/{number}{}", fault.pointer));
            return Err(Error::Invalid(faults));
        }
        policies.push(policy);
    }
    Ok(policies)
}

impl RuleService {
    /// The past tasks that would have gone another way with what a policy drafts, or has in force: for administrators and
    /// auditors, who see all of them.
    pub async fn replay(
        &self,
        id: &str,
        reviews: &TaskService,
        caller: &Caller,
    ) -> Result<Vec<Differs>, Error> {
        if !caller.sees_all() {
            let detail = "past tasks are replayed for administrators and auditors, who see all of them";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        let stored: StoredPolicy = self.policy(id, caller).await?.read()?;
        reviews.replay(&stored.latest(), caller).await
    }

    /// Every policy, in the order in which they were made. [`Thing::read`] gives a [`StoredPolicy`].
    pub async fn policies(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        caller.require(Scope::Read)?;
        Ok(self.record.things(DocumentKind::Policy).await?.into_iter().filter(is_policy).collect())
    }

    /// One policy.
    pub async fn policy(&self, id: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require(Scope::Read)?;
        let found = self.one(DocumentKind::Policy, id).await?;
        if is_policy(&found) { Ok(found) } else { Err(Error::NotFound("policy")) }
    }

    /// A new policy: a draft, unless it is to be in force at once.
    pub async fn create_policy(
        &self,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        let mut policy = Policy { name: String::new(), ..default_policy() };
        change.apply(&mut policy);
        valid(policy.faults())?;
        let policy = match change.active {
            Some(true) => StoredPolicy { active: Some(policy), draft: None },
            _ => StoredPolicy { active: None, draft: Some(policy) },
        };
        let id = Uuid::now_v7().to_string();
        let after = thing(&id, 1, &policy);
        let besides = taking(&BTreeSet::new(), &policy.names(), &id);
        let change = Change { action: "policy.create", before: None, after: Some(&after), besides };
        self.commit_policy(change, &policy, caller).await?.ok_or(Error::Overtaken)
    }

    /// Changes the draft of a policy, or what is in force if it is to be so at once; or takes it out of force.
    pub async fn update_policy(
        &self,
        id: &str,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        self.change_policy(id, "policy.update", caller, |policy| policy.changed(change)).await
    }

    /// What is drafted is in force from now on. Where nothing is drafted, nothing changes.
    pub async fn activate_policy(&self, id: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        let activate = |policy: &StoredPolicy| StoredPolicy { active: Some(policy.latest()), draft: None };
        self.change_policy(id, "policy.activate", caller, activate).await
    }

    /// Deletes a policy, drafted and in force.
    pub async fn delete_policy(&self, id: &str, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        for _ in 0..MOST_ATTEMPTS {
            let before = self.policy(id, caller).await?;
            seen(&before, caller)?;
            let policy: StoredPolicy = before.read()?;
            let besides = taking(&policy.names(), &BTreeSet::new(), id);
            let change = Change { action: "policy.delete", before: Some(&before), after: None, besides };
            if self.commit(change, caller).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Overtaken)
    }

    async fn change_policy(
        &self,
        id: &str,
        action: &'static str,
        caller: &Caller,
        decide: impl Fn(&StoredPolicy) -> StoredPolicy,
    ) -> Result<StoredDocument, Error> {
        require_admin(caller)?;
        for _ in 0..MOST_ATTEMPTS {
            let before = self.policy(id, caller).await?;
            seen(&before, caller)?;
            let was: StoredPolicy = before.read()?;
            let now = decide(&was);
            valid(now.active.iter().chain(&now.draft).flat_map(Policy::faults).collect())?;
            let besides = taking(&was.names(), &now.names(), id);
            let after = thing(id, before.revision + 1, &now);
            let change = Change { action, before: Some(&before), after: Some(&after), besides };
            if let Some(thing) = self.commit_policy(change, &now, caller).await? {
                return Ok(thing);
            }
        }
        Err(Error::Overtaken)
    }

    /// Says so where it is the name that somebody else has.
    async fn commit_policy(
        &self,
        change: Change<'_>,
        policy: &StoredPolicy,
        caller: &Caller,
    ) -> Result<Option<StoredDocument>, Error> {
        let own = change.after.map(|thing| thing.id.clone()).unwrap_or_default();
        match self.commit(change, caller).await {
            Err(Error::Record(DatabaseError::Exists { what })) => {
                for name in policy.names() {
                    let taken = self.record.thing(DocumentKind::Policy, &format!("{TAKEN}{name}")).await?;
                    if taken.is_some_and(|taken| taken.body != json!({ "policy_id": own })) {
                        return Err(Error::Exists(format!("a policy with the name {name}")));
                    }
                }
                Err(Error::Record(DatabaseError::Exists { what }))
            }
            other => other,
        }
    }
}
