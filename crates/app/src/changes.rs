//! Changes that wait for a second administrator: listing, confirming and rejecting them. A confirmed change is made by the
//! service that proposed it, if what it changes is still as it was.

use ade_domain::Moment;
use ade_domain::audit::Trigger;
use ade_domain::dual_control::{ConfirmationRefusal, ProposedChange};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_store::DatabaseError;
use ade_store::database::{Document, Versioned, Write};
use serde::de::DeserializeOwned;

use crate::agents::AgentService;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{AccountService, Caller, Context, Error, ObjectKind, Outcome, Result, RuleService};

type StoredChange = Versioned<ProposedChange>;

#[derive(Debug, Clone)]
pub struct ChangeService {
    pub context: Context,
    pub accounts: AccountService,
    pub agents: AgentService,
    pub rules: RuleService,
}

fn refused(refusal: ConfirmationRefusal) -> Error {
    match refusal {
        ConfirmationRefusal::NotIndependent(why) => Refusal::NotIndependent(why).into(),
        other => Error::Forbidden(other.to_string()),
    }
}

fn request<T: DeserializeOwned>(change: &ProposedChange) -> Result<T> {
    let request = serde_json::from_value(change.request.clone());
    Ok(request.map_err(|error| DatabaseError::Corrupt(error.to_string()))?)
}

fn deletion(change: &StoredChange) -> Write {
    Write::DeleteDocument { kind: ProposedChange::KIND, id: change.id.clone(), expected: change.revision }
}

impl ChangeService {
    fn require_may_see(caller: &Caller) -> Result<()> {
        caller.require_scope(Scope::Read)?;
        if caller.can_see_all() {
            return Ok(());
        }
        Err(Error::forbidden("only administrators and auditors see changes that wait"))
    }

    pub async fn get(&self, id: &str, caller: &Caller) -> Result<StoredChange> {
        Self::require_may_see(caller)?;
        self.load(id).await
    }

    /// The changes that wait, oldest first: for administrators and auditors.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<StoredChange>> {
        Self::require_may_see(caller)?;
        let now = self.context.now();
        let mut changes = self.context.database.documents::<ProposedChange>().await?;
        changes.retain(|change| now < change.value.expires_at());
        Ok(changes)
    }

    async fn load(&self, id: &str) -> Result<StoredChange> {
        let found = self.context.database.document::<ProposedChange>(id).await?;
        let found = found.filter(|change| self.context.now() < change.value.expires_at());
        found.ok_or(Error::NotFound(ObjectKind::Document(ProposedChange::KIND)))
    }

    /// An administrator with credentials of their own, or the operator.
    fn require_may_decide(caller: &Caller) -> Result<()> {
        caller.require_admin()?;
        if caller.user.is_some() { caller.require_scope(Scope::Decide) } else { Ok(()) }
    }

    /// Makes a change that another administrator proposed.
    pub async fn confirm(&self, id: &str, caller: &Caller) -> Result<StoredChange> {
        Self::require_may_decide(caller)?;
        let change = self.load(id).await?;
        let people = self.context.database.people().await?;
        let authorized = change.value.authorize_confirmation(caller.user_id(), &people, self.context.now());
        authorized.map_err(refused)?;
        let caller = Caller {
            if_match: change.value.revision,
            confirms: Some(Box::new(change.clone())),
            ..caller.clone()
        };
        match self.make(&change.value, &caller).await {
            Err(Error::Stale { .. }) => Err(Error::ChangeOutdated),
            made => made.map(|()| change),
        }
    }

    async fn make(&self, change: &ProposedChange, caller: &Caller) -> Result<()> {
        let ProposedChange { action, object_type, object_id: id, .. } = change;
        match object_type.as_str() {
            "user" => self.accounts.make_user_change(id, &request(change)?, None, caller).await.map(drop),
            "agent" => self.agents.replace_rights(id, &request(change)?, caller).await,
            "policy" => self.rules.make_policy_change(action, id, request(change)?, caller).await,
            "resource" => self.rules.make_resource_change(action, id, request(change)?, caller).await,
            "setting" => {
                let value: Option<_> = request(change)?;
                self.rules.set_setting(id, value.unwrap_or_default(), caller).await.map(drop)
            }
            "feature" => {
                let enabled: Option<bool> = request(change)?;
                self.rules.set_feature(id, enabled.unwrap_or_default(), caller).await.map(drop)
            }
            other => {
                Err(DatabaseError::Corrupt(format!("a change of the unknown object type {other}")).into())
            }
        }
    }

    /// Rejects a change, or withdraws an own one.
    pub async fn reject(&self, id: &str, reason: Option<&str>, caller: &Caller) -> Result<StoredChange> {
        Self::require_may_decide(caller)?;
        let change = self.load(id).await?;
        change.value.authorize_rejection(caller.user_id()).map_err(refused)?;
        let notify = change.value.proposed_by.iter().cloned().collect();
        let action = AuditedAction { reason, notify, ..AuditedAction::new("change.reject", id) };
        let mut commit = action.commit(vec![deletion(&change)], caller, self.context.now());
        commit.response = stored_response(caller, |_| Outcome::confirmed(&change))?;
        if self.context.commit(commit).await? { Ok(change) } else { Err(Error::Conflict) }
    }
}

/// Deletes the changes that nobody confirmed in time; returns how many.
pub(crate) async fn delete_expired(context: &Context, now: Moment) -> Result<u64> {
    let changes = context.database.documents::<ProposedChange>().await?;
    let mut deleted = 0;
    for change in changes.iter().filter(|change| change.value.expires_at() <= now) {
        let notify = change.value.proposed_by.iter().cloned().collect();
        let action = AuditedAction { notify, ..AuditedAction::new("change.expire", &change.id) };
        let by = context.service("jobs", Trigger::Job("index_repair".to_owned()));
        deleted += u64::from(context.commit(action.commit_as(by, vec![deletion(change)], now)).await?);
    }
    Ok(deleted)
}
