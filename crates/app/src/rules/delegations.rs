//! Delegations: created by their owners, or by administrators for others.
//!
//! A delegate decides in place of the owner. Creating a delegation therefore needs the scope to decide, and agents cannot.

use ade_domain::Moment;
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::people::UserId;
use ade_domain::permission::{ActorRole, Scope};
use ade_domain::task::Refusal;
use ade_store::database::{DocumentKind, Versioned};

use super::{RuleService, check_revision, require_valid};
use crate::accounts::require_admin;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, ObjectKind, Outcome, new_id};

/// Entries of each list in the conditions.
const MAX_CONDITIONS: usize = 200;

/// A missing field keeps its value, or has its default in a new delegation. `Some(None)` clears a field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
        to.owner_id = self.owner_id.clone().unwrap_or_else(|| to.owner_id.clone());
        to.delegate_to = self.delegate_to.clone().unwrap_or_else(|| to.delegate_to.clone());
        to.kind = self.kind.unwrap_or(to.kind);
        to.conditions = self.conditions.clone().unwrap_or_else(|| to.conditions.clone());
        to.cascade = self.cascade.unwrap_or(to.cascade);
        to.active = self.active.unwrap_or(to.active);
        to.valid_from = self.valid_from.unwrap_or(to.valid_from);
        to.valid_until = self.valid_until.unwrap_or(to.valid_until);
    }
}

/// Owner and delegate can see a delegation.
fn can_see(caller: &Caller, delegation: &Delegation) -> bool {
    let is_party = |user: &UserId| delegation.owner_id == *user || delegation.delegate_to == *user;
    caller.can_see_all() || caller.user.as_ref().is_some_and(|user| is_party(&user.user_id))
}

/// Only the owner and administrators can change a delegation. Roles permit, scopes limit.
fn require_may_write(caller: &Caller, owner: &UserId) -> Result<(), Error> {
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
    /// The delegations that the caller can see, oldest first.
    pub async fn delegations(&self, caller: &Caller) -> Result<Vec<Versioned<Delegation>>, Error> {
        caller.require_scope(Scope::Read)?;
        let mut delegations = self.database.documents().await?;
        delegations.retain(|delegation| can_see(caller, &delegation.value));
        Ok(delegations)
    }

    pub async fn delegation(&self, id: &str, caller: &Caller) -> Result<Versioned<Delegation>, Error> {
        caller.require_scope(Scope::Read)?;
        let found = self.database.document(id).await?;
        let visible = found.filter(|found: &Versioned<Delegation>| can_see(caller, &found.value));
        visible.ok_or(Error::NotFound(ObjectKind::Document(DocumentKind::Delegation)))
    }

    /// Creates a delegation for the caller, or by an administrator for another user.
    pub async fn create_delegation(
        &self,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<Versioned<Delegation>, Error> {
        let own = caller.user.as_ref().map(|user| user.user_id.clone());
        let owner_id = change.owner_id.clone().or(own);
        let owner_id = owner_id.ok_or_else(|| Error::invalid("owner_id", "is required"))?;
        let delegate_to = change.delegate_to.clone();
        let delegate_to = delegate_to.ok_or_else(|| Error::invalid("delegate_to", "is required"))?;
        require_may_write(caller, &owner_id)?;
        let mut delegation = Delegation {
            delegation_id: new_id(),
            owner_id,
            delegate_to,
            kind: DelegationKind::default(),
            conditions: DelegationConditions::default(),
            cascade: true,
            active: true,
            valid_from: None,
            valid_until: None,
        };
        change.apply(&mut delegation);
        self.validate(&delegation).await?;
        let after = Versioned { id: delegation.delegation_id.clone(), revision: 1, value: delegation };
        let created =
            self.commit("delegation.create", None, Some(&after), Vec::new(), Outcome::Delegation, caller);
        created.await?.ok_or(Error::Conflict)
    }

    /// Changes a delegation. Only an administrator can change its owner.
    pub async fn update_delegation(
        &self,
        id: &str,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<Versioned<Delegation>, Error> {
        retry_on_conflict(async || {
            let before = self.delegation(id, caller).await?;
            let mut delegation = before.value.clone();
            require_may_write(caller, &delegation.owner_id)?;
            check_revision(&before, caller)?;
            if change.owner_id.as_ref().is_some_and(|owner| *owner != delegation.owner_id) {
                require_admin(caller)?;
            }
            change.apply(&mut delegation);
            self.validate(&delegation).await?;
            let (before, after) = (Some(&before), Some(&before.next(delegation)));
            self.commit("delegation.update", before, after, Vec::new(), Outcome::Delegation, caller).await
        })
        .await
    }

    pub async fn delete_delegation(&self, id: &str, caller: &Caller) -> Result<(), Error> {
        retry_on_conflict(async || {
            let before = self.delegation(id, caller).await?;
            require_may_write(caller, &before.value.owner_id)?;
            check_revision(&before, caller)?;
            let (before, action) = (Some(&before), "delegation.delete");
            let deleted = self.commit(action, before, None, Vec::new(), Outcome::Delegation, caller).await?;
            Ok(deleted.map(drop))
        })
        .await
    }

    async fn validate(&self, delegation: &Delegation) -> Result<(), Error> {
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
        if self.database.user(&delegation.owner_id).await?.is_none() {
            fault("owner_id", format!("user {} does not exist", delegation.owner_id));
        }
        match self.database.user(&delegation.delegate_to).await? {
            None => fault("delegate_to", format!("user {} does not exist", delegation.delegate_to)),
            // An inactive delegation may name a user who left; otherwise it could not be deactivated.
            Some(found) if !found.user.active && delegation.active => {
                fault("delegate_to", format!("user {} is not active", delegation.delegate_to));
            }
            Some(_) => {}
        }
        require_valid(faults)
    }
}
