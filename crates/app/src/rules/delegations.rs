//! Delegations, as their owners make them, or administrators for others.
//!
//! Who stands in for somebody decides in its place: making one for oneself takes a token that may decide, and no agent makes one.

use ade_domain::Moment;
use ade_domain::approval::delegation::{Conditions, Delegation, Kind};
use ade_domain::people::UserId;
use ade_domain::permission::{ActorRole, Scope};
use ade_domain::task::Refusal;
use ade_store::database::{DocumentKind, StoredDocument};
use serde_json::json;
use uuid::Uuid;

use super::{Change, MOST_ATTEMPTS, RuleService, seen, valid};
use crate::accounts::require_admin;
use crate::{Caller, Error};

/// Entries of each list of conditions.
const MOST_ENTRIES: usize = 200;

/// What somebody wants a delegation to be; what is not said stays as it is, or has its default in a new one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DelegationChange {
    /// Whose requests; the caller's, if nothing is said.
    pub owner_id: Option<UserId>,
    /// Go to whom, or follow whom; needed for a new one.
    pub delegate_to: Option<UserId>,
    /// Which of both.
    pub kind: Option<Kind>,
    /// For which tasks.
    pub conditions: Option<Conditions>,
    /// Whether the delegate's own delegations count as well; they do, if nothing is said.
    pub cascade: Option<bool>,
    /// Whether it is in force at all; it is, if nothing is said.
    pub active: Option<bool>,
    /// From when on; `Some(None)` takes it away.
    pub valid_from: Option<Option<Moment>>,
    /// Until before when; `Some(None)` takes it away.
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

/// Whether the caller may look at one: its owner, and whom it leads to.
fn sees(caller: &Caller, delegation: &Delegation) -> bool {
    let concerns = |user: &UserId| delegation.owner_id == *user || delegation.delegate_to == *user;
    caller.sees_all() || caller.user.as_ref().is_some_and(|user| concerns(&user.user_id))
}

/// Refuses whoever is neither the owner nor an administrator. Roles permit, scopes limit.
fn may_write(caller: &Caller, owner: &UserId) -> Result<(), Error> {
    let own = caller.user.as_ref().is_some_and(|user| user.user_id == *owner && user.active);
    if own && caller.agent_id.is_none() {
        return caller.require(Scope::Decide);
    }
    if !caller.actor().parts.contains(&ActorRole::Admin) {
        return Err(Refusal::Forbidden.into());
    }
    caller.require(Scope::Admin)
}

fn thing(revision: u64, delegation: &Delegation) -> StoredDocument {
    let id = delegation.delegation_id.clone();
    StoredDocument { kind: DocumentKind::Delegation, id, revision, body: json!(delegation) }
}

impl RuleService {
    /// The delegations that the caller may look at, in the order in which they were made. [`Thing::read`] gives a
    /// [`Delegation`].
    pub async fn delegations(&self, caller: &Caller) -> Result<Vec<StoredDocument>, Error> {
        caller.require(Scope::Read)?;
        let mut seen = Vec::new();
        for thing in self.record.things(DocumentKind::Delegation).await? {
            if sees(caller, &thing.read()?) {
                seen.push(thing);
            }
        }
        Ok(seen)
    }

    /// One delegation.
    pub async fn delegation(&self, id: &str, caller: &Caller) -> Result<StoredDocument, Error> {
        caller.require(Scope::Read)?;
        let found = self.one(DocumentKind::Delegation, id).await?;
        if sees(caller, &found.read()?) { Ok(found) } else { Err(Error::NotFound("delegation")) }
    }

    /// A new delegation: for the caller, or by an administrator for somebody else.
    pub async fn create_delegation(
        &self,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        let own = caller.user.as_ref().map(|user| user.user_id.clone());
        let owner_id = change.owner_id.clone().or(own);
        let owner_id = owner_id.ok_or_else(|| Error::invalid("/owner_id", "must be given"))?;
        let delegate_to = change.delegate_to.clone();
        let delegate_to = delegate_to.ok_or_else(|| Error::invalid("/delegate_to", "must be given"))?;
        may_write(caller, &owner_id)?;
        let mut delegation = Delegation {
            delegation_id: Uuid::now_v7().to_string(),
            owner_id,
            delegate_to,
            kind: Kind::default(),
            conditions: Conditions::default(),
            cascade: true,
            active: true,
            valid_from: None,
            valid_until: None,
        };
        change.apply(&mut delegation);
        self.check(&delegation).await?;
        let after = thing(1, &delegation);
        let change =
            Change { action: "delegation.create", before: None, after: Some(&after), besides: Vec::new() };
        self.commit(change, caller).await?.ok_or(Error::Overtaken)
    }

    /// Changes a delegation. Only an administrator gives it to another owner.
    pub async fn update_delegation(
        &self,
        id: &str,
        change: &DelegationChange,
        caller: &Caller,
    ) -> Result<StoredDocument, Error> {
        for _ in 0..MOST_ATTEMPTS {
            let before = self.delegation(id, caller).await?;
            let mut delegation: Delegation = before.read()?;
            may_write(caller, &delegation.owner_id)?;
            seen(&before, caller)?;
            if change.owner_id.as_ref().is_some_and(|owner| *owner != delegation.owner_id) {
                require_admin(caller)?;
            }
            change.apply(&mut delegation);
            self.check(&delegation).await?;
            let after = thing(before.revision + 1, &delegation);
            let (action, besides) = ("delegation.update", Vec::new());
            let change = Change { action, before: Some(&before), after: Some(&after), besides };
            if let Some(thing) = self.commit(change, caller).await? {
                return Ok(thing);
            }
        }
        Err(Error::Overtaken)
    }

    /// Deletes a delegation.
    pub async fn delete_delegation(&self, id: &str, caller: &Caller) -> Result<(), Error> {
        for _ in 0..MOST_ATTEMPTS {
            let before = self.delegation(id, caller).await?;
            may_write(caller, &before.read::<Delegation>()?.owner_id)?;
            seen(&before, caller)?;
            let besides = Vec::new();
            let change = Change { action: "delegation.delete", before: Some(&before), after: None, besides };
            if self.commit(change, caller).await?.is_some() {
                return Ok(());
            }
        }
        Err(Error::Overtaken)
    }

    async fn check(&self, delegation: &Delegation) -> Result<(), Error> {
        let mut faults = delegation.faults();
        let mut fault = |pointer: &str, detail: String| {
            faults.push(ade_domain::Invalid::at(pointer, detail));
        };
        let Conditions { task_types, resource_patterns, .. } = &delegation.conditions;
        let lists = [
            ("/conditions/task_types", task_types.len()),
            ("/conditions/resource_patterns", resource_patterns.len()),
        ];
        for (pointer, count) in lists.into_iter().filter(|(_, count)| *count > MOST_ENTRIES) {
            fault(pointer, format!("must have at most {MOST_ENTRIES} entries, not {count}"));
        }
        if self.record.user(&delegation.owner_id).await?.is_none() {
            fault("/owner_id", format!("there is no user {}", delegation.owner_id));
        }
        match self.record.user(&delegation.delegate_to).await? {
            None => fault("/delegate_to", format!("there is no user {}", delegation.delegate_to)),
            // What is switched off may lead to somebody who left: else it could not be switched off.
            Some(found) if !found.user.active && delegation.active => {
                fault("/delegate_to", format!("{} is not active", delegation.delegate_to));
            }
            Some(_) => {}
        }
        valid(faults)
    }
}
