//! Delegations: created by their owners, or by administrators for others.
//!
//! A delegate decides in place of the owner. Creating a delegation therefore needs the scope to decide, and agents cannot.

use ade_domain::Moment;
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::people::UserId;
use ade_domain::permission::{ActorRole, Scope};
use ade_domain::task::Refusal;
use ade_store::database::Versioned;
use serde::Deserialize;

use super::{Rule, RuleService};
use crate::error::require_valid;
use crate::{Caller, Error, Outcome, Result, new_id, set};

/// Entries of each list in the conditions.
const MAX_CONDITIONS: usize = 200;

/// A missing field keeps its value, or has its default in a new delegation. `Some(None)` clears a field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct DelegationChange {
    /// The caller, if missing in a new delegation.
    pub owner_id: Option<UserId>,
    /// Required for a new delegation.
    pub delegate_to: Option<UserId>,
    pub kind: Option<DelegationKind>,
    pub conditions: Option<DelegationConditions>,
    /// Whether the delegate's own delegations are followed; true by default.
    pub cascade: Option<bool>,
    pub active: Option<bool>,
    /// Inclusive.
    pub valid_from: Option<Option<Moment>>,
    /// Exclusive.
    pub valid_until: Option<Option<Moment>>,
}

impl DelegationChange {
    fn apply(&self, to: &mut Delegation) {
        set(&mut to.owner_id, &self.owner_id);
        set(&mut to.delegate_to, &self.delegate_to);
        set(&mut to.kind, &self.kind);
        set(&mut to.conditions, &self.conditions);
        set(&mut to.cascade, &self.cascade);
        set(&mut to.active, &self.active);
        set(&mut to.valid_from, &self.valid_from);
        set(&mut to.valid_until, &self.valid_until);
    }
}

impl Rule for Delegation {
    fn outcome(document: Versioned<Self>) -> Outcome {
        Outcome::Delegation(document)
    }

    /// It changes who decides, not whether somebody does.
    fn affects_approval(_: &str, _: Option<&Self>, _: Option<&Self>) -> bool {
        false
    }

    /// Owner and delegate can see it.
    fn is_visible(&self, caller: &Caller) -> bool {
        let is_party = |user: &UserId| self.owner_id == *user || self.delegate_to == *user;
        caller.can_see_all() || caller.user_id().is_some_and(is_party)
    }
}

/// Only the owner and administrators can change a delegation. Roles permit, scopes limit.
fn require_may_write(caller: &Caller, owner: &UserId) -> Result<()> {
    let is_owner = caller.user.as_ref().is_some_and(|user| user.user_id == *owner && user.active);
    if is_owner && caller.agent_id.is_none() {
        return caller.require_scope(Scope::Decide);
    }
    if !caller.actor().roles.contains(&ActorRole::Admin) {
        return Err(Refusal::Forbidden.into());
    }
    caller.require_scope(Scope::Admin)
}

impl RuleService {
    /// Creates a delegation for the caller, or by an administrator for another user.
    pub async fn create_delegation(
        &self,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<Versioned<Delegation>> {
        let required =
            |id: Option<&UserId>, path| id.cloned().ok_or_else(|| Error::invalid(path, "is required"));
        let owner_id = required(change.owner_id.as_ref().or(caller.user_id()), "owner_id")?;
        let delegate_to = required(change.delegate_to.as_ref(), "delegate_to")?;
        require_may_write(caller, &owner_id)?;
        let mut delegation = Delegation {
            delegation_id: new_id(),
            owner_id,
            delegate_to,
            kind: DelegationKind::default(),
            conditions: DelegationConditions::default(),
            cascade: true,
            active: true,
            created_at: self.context.now(),
            valid_from: None,
            valid_until: None,
        };
        change.apply(&mut delegation);
        self.validate(&delegation).await?;
        self.create("delegation.create", delegation.delegation_id.clone(), delegation, caller).await
    }

    /// A delegation that the caller may change, if its revision is the one that the caller expects.
    async fn own_delegation(&self, id: &str, caller: &Caller) -> Result<Versioned<Delegation>> {
        let delegation = self.get::<Delegation>(id, caller).await?;
        require_may_write(caller, &delegation.value.owner_id)?;
        caller.check_revision(delegation.revision)?;
        Ok(delegation)
    }

    /// Changes a delegation. Only an administrator can change its owner.
    pub async fn update_delegation(
        &self,
        id: &str,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<Versioned<Delegation>> {
        self.change("delegation.update", caller, async || {
            let before = self.own_delegation(id, caller).await?;
            let mut delegation = before.value.clone();
            change.apply(&mut delegation);
            if delegation.owner_id != before.value.owner_id {
                caller.require_admin()?;
            }
            self.validate(&delegation).await?;
            Ok((before, Some(delegation)))
        })
        .await
    }

    pub async fn delete_delegation(&self, id: &str, caller: &Caller) -> Result<()> {
        let delete = async || Ok((self.own_delegation(id, caller).await?, None));
        self.change("delegation.delete", caller, delete).await.map(drop)
    }

    async fn validate(&self, delegation: &Delegation) -> Result<()> {
        let mut faults = delegation.validate();
        let mut fault = |path: &str, detail: String| {
            faults.push(ade_domain::InvalidField::at(path, detail));
        };
        let DelegationConditions { task_types, resource_patterns, .. } = &delegation.conditions;
        let lists = [
            ("conditions.task_types", task_types.len()),
            ("conditions.resource_patterns", resource_patterns.len()),
        ];
        for (path, count) in lists.into_iter().filter(|(_, count)| *count > MAX_CONDITIONS) {
            fault(path, format!("must have at most {MAX_CONDITIONS} entries, not {count}"));
        }
        if self.context.database.user(&delegation.owner_id).await?.is_none() {
            fault("owner_id", format!("user {} does not exist", delegation.owner_id));
        }
        match self.context.database.user(&delegation.delegate_to).await? {
            None => fault("delegate_to", format!("user {} does not exist", delegation.delegate_to)),
            // An inactive delegation may name a user who left; otherwise it could not be deactivated.
            Some(found) if !found.user.active && delegation.active => {
                fault("delegate_to", format!("user {} is not active", delegation.delegate_to));
            }
            Some(found)
                if delegation.active
                    && delegation.kind == DelegationKind::Delegate
                    && !found.user.is_reviewer() =>
            {
                let detail =
                    format!("user {} has neither the role reviewer nor admin", delegation.delegate_to);
                fault("delegate_to", detail);
            }
            Some(_) => {}
        }
        require_valid(faults)
    }
}
