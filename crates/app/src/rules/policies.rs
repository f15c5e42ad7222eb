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
use ade_store::database::{Versioned, Write};
use serde::Deserialize;

use super::{Rule, RuleService, describe_existing};
use crate::error::require_valid;
use crate::tasks::Replay;
use crate::{Caller, Error, Outcome, Result, TaskService, new_id, set};

type StoredPolicy = Versioned<PolicyVersions>;

/// A missing field keeps its value, or has its default in a new policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct PolicyChange {
    pub name: Option<String>,
    pub task_types: Option<Vec<String>>,
    pub executors: Option<Vec<String>>,
    pub targets: Option<Vec<String>>,
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

impl PolicyChange {
    fn apply(&self, policy: &mut Policy) {
        set(&mut policy.name, &self.name);
        set(&mut policy.task_types, &self.task_types);
        set(&mut policy.executors, &self.executors);
        set(&mut policy.targets, &self.targets);
        set(&mut policy.resource_patterns, &self.resource_patterns);
        set(&mut policy.min_approvers, &self.min_approvers);
        set(&mut policy.required_roles, &self.required_roles);
        set(&mut policy.reviewers, &self.reviewers);
        set(&mut policy.risk_threshold, &self.risk_threshold);
        set(&mut policy.auto_approve_if, &self.auto_approve_if);
        set(&mut policy.escalation_role, &self.escalation_role);
        set(&mut policy.reject_threshold, &self.reject_threshold);
        set(&mut policy.priority, &self.priority);
        set(&mut policy.window, &self.window);
    }

    /// Only a name can exist already: ids are new.
    fn describe_existing(&self, error: Error) -> Error {
        let Some(name) = &self.name else { return error };
        describe_existing(error, format!("a policy with the name {name}"))
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

impl Rule for PolicyVersions {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Policy(document)
    }

    /// A draft decides about nothing.
    fn affects_approval(_: &str, before: Option<&Self>, after: Option<&Self>) -> bool {
        before.and_then(Self::active) != after.and_then(Self::active)
    }

    /// Somebody else may activate the draft.
    fn keeps_makers_from_approval(_: &str, _: Option<&Self>, _: Option<&Self>) -> bool {
        true
    }

    /// Reserves new names and releases unused ones.
    fn extra_writes(id: &str, before: Option<&Self>, after: Option<&Self>) -> Vec<Write> {
        let [before, after] = [before, after].map(|policy| policy.map(names).unwrap_or_default());
        let released = before.difference(&after).map(|name| Write::release_policy_name(name));
        let reserved = after.difference(&before).map(|name| Write::reserve_policy_name(name, id));
        released.chain(reserved).collect()
    }
}

/// Anybody may simulate, and each pattern is compared with everything that a task can touch.
const MAX_HYPOTHETICAL_PATTERNS: usize = 500;

/// Hypothetical policies of a simulation.
pub fn hypothetical_policies(changes: &[PolicyChange]) -> Result<Vec<Policy>> {
    let mut policies = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        let mut policy = default_policy();
        policy.name.clear();
        change.apply(&mut policy);
        let faults = policy.validate().into_iter();
        require_valid(faults.map(|fault| fault.within(format!("policies.{number}"))).collect())?;
        policies.push(policy);
    }
    let count: usize = policies.iter().flat_map(Policy::patterns).map(|(_, patterns)| patterns.len()).sum();
    if count > MAX_HYPOTHETICAL_PATTERNS {
        let detail = format!("must have at most {MAX_HYPOTHETICAL_PATTERNS} patterns together, not {count}");
        return Err(Error::invalid("policies", detail));
    }
    Ok(policies)
}

impl RuleService {
    /// The past tasks for which the latest version of a policy would have required other approvals: for administrators and
    /// auditors, who can see all tasks.
    pub async fn replay(&self, id: &str, tasks: &TaskService, caller: &Caller) -> Result<Replay> {
        if !caller.can_see_all() {
            return Err(Error::forbidden("only administrators and auditors can replay past tasks"));
        }
        tasks.replay(self.get::<PolicyVersions>(id, caller).await?.value.latest(), caller).await
    }

    /// Creates a policy: a draft, unless `change.active` is true.
    pub async fn create_policy(&self, change: &PolicyChange, caller: &Caller) -> Result<StoredPolicy> {
        caller.require_admin()?;
        let mut policy = Policy { name: String::new(), ..default_policy() };
        change.apply(&mut policy);
        require_valid(policy.validate())?;
        let value = PolicyVersions::new(policy, change.active == Some(true));
        let created = self.create("policy.create", new_id(), value, caller).await;
        created.map_err(|error| change.describe_existing(error))
    }

    /// Changes the draft of a policy; `change.active` activates or deactivates it.
    pub async fn update_policy(
        &self,
        id: &str,
        change: &PolicyChange,
        caller: &Caller,
    ) -> Result<StoredPolicy> {
        let changed =
            self.change_policy(id, "policy.update", caller, |policy| change.apply_to_versions(policy));
        changed.await.map_err(|error| change.describe_existing(error))
    }

    /// Activates the draft. Without a draft nothing changes.
    pub async fn activate_policy(&self, id: &str, caller: &Caller) -> Result<StoredPolicy> {
        let activate = |policy: &PolicyVersions| PolicyVersions::new(policy.latest().clone(), true);
        self.change_policy(id, "policy.activate", caller, activate).await
    }

    /// Deletes a policy with its draft.
    pub async fn delete_policy(&self, id: &str, caller: &Caller) -> Result<()> {
        caller.require_admin()?;
        caller.require_scope(Scope::Read)?;
        let delete = async || Ok((self.expected::<PolicyVersions>(id, caller).await?, None));
        self.change("policy.delete", caller, delete).await.map(drop)
    }

    /// Makes a confirmed change.
    pub(crate) async fn make_policy_change(
        &self,
        action: &str,
        id: &str,
        after: Option<PolicyVersions>,
        caller: &Caller,
    ) -> Result<()> {
        require_valid(after.iter().flat_map(versions).flat_map(Policy::validate).collect())?;
        self.make(action, id, after, caller).await
    }

    async fn change_policy(
        &self,
        id: &str,
        action: &str,
        caller: &Caller,
        decide: impl Fn(&PolicyVersions) -> PolicyVersions,
    ) -> Result<StoredPolicy> {
        caller.require_admin()?;
        caller.require_scope(Scope::Read)?;
        self.change(action, caller, async || {
            let before = self.expected(id, caller).await?;
            let after = decide(&before.value);
            require_valid(versions(&after).flat_map(Policy::validate).collect())?;
            Ok((before, Some(after)))
        })
        .await
    }
}
