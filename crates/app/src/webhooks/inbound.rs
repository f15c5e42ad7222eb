//! Inbound hooks: administrators register them, and a sender with the secret of one proposes tasks through it, within its template.
//!
//! A message is accepted once: its id is stored in the transaction that creates the task. The owner is the author; the administrator who
//! made the secret counts as an author too, and neither can decide about the task. If the owner, or who got the secret, is deactivated,
//! nothing is accepted: somebody who left must not propose.

use std::collections::BTreeSet;

use ade_domain::InvalidField;
use ade_domain::audit::AuditActor;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::Digest;
use ade_domain::webhook::PreviousSecret;
use ade_domain::webhook::inbound::{InboundHook, MAX_INBOUND_HOOKS, TaskTemplate};
use ade_domain::webhook::signature::{ROTATION_OVERLAP_MS, SignedMessage, SigningSecret};
use ade_store::DatabaseError;
use ade_store::database::{Document, StoredTask, Versioned};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::commit::commit_of;
use super::require_may_see;
use super::sealed::{new_secret, seal, signing_secrets};
use crate::error::{HookSuspension, require_valid};
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::tasks::Proposal;
use crate::{
    Caller, Context, Error, IdempotentRequest, InboundHookView, ObjectKind, Outcome, Result, TaskService,
    new_id, set,
};

type StoredHook = Versioned<InboundHook>;

#[derive(Debug, Clone)]
pub struct InboundHookService {
    pub context: Context,
    pub tasks: TaskService,
}

/// What administrators set. A missing field keeps its value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboundHookChange {
    pub name: Option<String>,
    /// Cannot be changed later.
    pub owner: Option<UserId>,
    pub active: Option<bool>,
    pub submit: Option<bool>,
    pub template: Option<TaskTemplate>,
}

/// A hook with a secret that was just made, which is shown this once.
#[derive(Debug)]
pub struct InboundHookWithSecret {
    pub view: InboundHookView,
    pub secret: SigningSecret,
}

/// A message whose signature is valid.
#[derive(Debug)]
pub struct VerifiedMessage {
    hook: StoredHook,
    message_id: String,
    body: Vec<u8>,
}

impl VerifiedMessage {
    #[must_use]
    pub fn hook_id(&self) -> &str {
        &self.hook.id
    }
}

/// What a message created.
#[derive(Debug)]
pub struct HookedProposal {
    pub task: StoredTask,
    /// Why the task could not be submitted; it is a draft then.
    pub submit_error: Option<String>,
}

/// The body of a message, as the Standard Webhooks specification recommends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageBody {
    #[serde(rename = "type", default)]
    _type: Option<String>,
    #[serde(default, rename = "timestamp")]
    _timestamp: Option<String>,
    #[serde(default)]
    data: Map<String, Value>,
}

fn view(stored: &StoredHook) -> InboundHookView {
    let hook = stored.value.clone();
    InboundHookView {
        hook_id: stored.id.clone(),
        revision: stored.revision,
        name: hook.name,
        owner: hook.owner,
        created_by: hook.created_by,
        created_at: hook.created_at,
        active: hook.active,
        submit: hook.submit,
        template: hook.template,
        previous_secret_until: hook.previous_secret.map(|previous| previous.valid_until),
    }
}

fn audited(hook: &InboundHook) -> Value {
    let InboundHook { name, owner, active, submit, template, .. } = hook;
    json!({ "name": name, "owner": owner, "active": active, "submit": submit, "template": template })
}

fn not_found() -> Error {
    Error::NotFound(ObjectKind::Document(InboundHook::KIND))
}

/// The same for an unknown hook and for a wrong signature: nobody finds out which hooks exist.
fn unauthenticated() -> Error {
    Error::Unauthenticated(
        "no active hook with this id accepts the message: check the id of the hook, its secret, and that webhook-timestamp \
         is at most 5 minutes old"
            .to_owned(),
    )
}

/// The people behind a change of a hook: the caller, and who made the caller's credentials.
fn makers(caller: &Caller) -> BTreeSet<UserId> {
    caller.credentials_creator().into_iter().chain(caller.user_id().cloned()).collect()
}

impl InboundHookService {
    /// All hooks, oldest first: for administrators and auditors.
    pub async fn list(&self, caller: &Caller) -> Result<Vec<Versioned<InboundHookView>>> {
        require_may_see(caller)?;
        let hooks: Vec<StoredHook> = self.context.database.documents().await?;
        let listed = |stored: &StoredHook| Versioned {
            id: stored.id.clone(),
            revision: stored.revision,
            value: view(stored),
        };
        Ok(hooks.iter().map(listed).collect())
    }

    pub async fn get(&self, id: &str, caller: &Caller) -> Result<InboundHookView> {
        require_may_see(caller)?;
        Ok(view(&self.load(id).await?))
    }

    async fn load(&self, id: &str) -> Result<StoredHook> {
        self.context.database.document(id).await?.ok_or(not_found())
    }

    pub async fn create(&self, change: &InboundHookChange, caller: &Caller) -> Result<InboundHookWithSecret> {
        caller.require_admin()?;
        let (Some(name), Some(owner), Some(template)) = (&change.name, &change.owner, &change.template)
        else {
            let fields = [
                ("name", change.name.is_none()),
                ("owner_id", change.owner.is_none()),
                ("template", change.template.is_none()),
            ];
            let missing = fields.into_iter().filter(|(_, is_missing)| *is_missing);
            let missing = missing.map(|(path, _)| InvalidField::at(path, "is required"));
            return Err(Error::Invalid(missing.collect()));
        };
        let existing = self.context.database.documents::<InboundHook>().await?;
        if existing.len() >= MAX_INBOUND_HOOKS {
            let detail = format!("there are already {MAX_INBOUND_HOOKS} inbound hooks; delete some first");
            return Err(Error::Forbidden(detail));
        }
        let known = self.context.database.user(owner).await?;
        if !known.is_some_and(|stored| stored.user.active) {
            return Err(Error::invalid("owner_id", "must be the id of an active user"));
        }
        let (id, secret) = (new_id(), new_secret()?);
        let hook = InboundHook {
            name: name.clone(),
            owner: owner.clone(),
            created_by: caller.credentials_creator(),
            makers: makers(caller),
            created_at: self.context.now(),
            active: change.active.unwrap_or(true),
            submit: change.submit.unwrap_or(true),
            template: template.clone(),
            secret: seal(self.context.database.keys(), &id, "secret", secret.reveal())?,
            holders: Some(makers(caller)),
            previous_secret: None,
            previous_holders: None,
        };
        require_valid(hook.validate())?;
        let after = Versioned { id, revision: 1, value: hook };
        let view = self.commit("hook.create", None, Some(&after), caller).await?.ok_or(Error::Conflict)?;
        Ok(InboundHookWithSecret { view, secret })
    }

    pub async fn update(
        &self,
        id: &str,
        change: &InboundHookChange,
        caller: &Caller,
    ) -> Result<InboundHookView> {
        caller.require_admin()?;
        self.change("hook.update", id, caller, |hook| {
            if change.owner.as_ref().is_some_and(|owner| *owner != hook.owner) {
                return Err(Error::invalid("owner_id", "cannot be changed; register another hook"));
            }
            hook.makers.extend(makers(caller));
            set(&mut hook.name, &change.name);
            set(&mut hook.active, &change.active);
            set(&mut hook.submit, &change.submit);
            set(&mut hook.template, &change.template);
            require_valid(hook.validate())
        })
        .await
    }

    /// Replaces the secret. The previous one is accepted for a day, so that the sender can change over.
    pub async fn rotate(&self, id: &str, caller: &Caller) -> Result<InboundHookWithSecret> {
        caller.require_admin()?;
        let (secret, now) = (new_secret()?, self.context.now());
        let rotated = self.change("hook.rotate", id, caller, |hook| {
            let sealed = seal(self.context.database.keys(), id, "secret", secret.reveal())?;
            let valid_until = now.plus_ms(ROTATION_OVERLAP_MS);
            let present = std::mem::replace(&mut hook.secret, sealed);
            hook.previous_secret = Some(PreviousSecret { secret: present, valid_until });
            hook.previous_holders = hook.holders.replace(makers(caller));
            // Who makes a secret can propose with it, for as long as it is accepted.
            hook.makers.extend(makers(caller));
            Ok(())
        });
        Ok(InboundHookWithSecret { view: rotated.await?, secret })
    }

    pub async fn delete(&self, id: &str, caller: &Caller) -> Result<()> {
        caller.require_admin()?;
        retry_on_conflict(async || {
            let before = self.load(id).await?;
            caller.check_revision(before.revision)?;
            Ok(self.commit("hook.delete", Some(&before), None, caller).await?.map(drop))
        })
        .await
    }

    async fn change(
        &self,
        action: &str,
        id: &str,
        caller: &Caller,
        decide: impl Fn(&mut InboundHook) -> Result<()>,
    ) -> Result<InboundHookView> {
        retry_on_conflict(async || {
            let before = self.load(id).await?;
            caller.check_revision(before.revision)?;
            let mut hook = before.value.clone();
            decide(&mut hook)?;
            let after = before.next(hook);
            self.commit(action, Some(&before), Some(&after), caller).await
        })
        .await
    }

    /// Commits a change of a hook: created if there is no `before`, deleted if there is no `after`. `None` after a conflict.
    async fn commit(
        &self,
        action: &str,
        before: Option<&StoredHook>,
        after: Option<&StoredHook>,
        caller: &Caller,
    ) -> Result<Option<InboundHookView>> {
        let Some(stored) = after.or(before) else { return Ok(None) };
        let by = (caller, self.context.now());
        let Some(mut commit) = commit_of(action, before, after, audited, by) else { return Ok(None) };
        let view = view(stored);
        commit.response = stored_response(caller, |_| Outcome::InboundHook(Box::new(view.clone())))?;
        Ok(self.context.commit(commit).await?.then_some(view))
    }

    /// Verifies that a message comes from somebody who has the secret of an active hook.
    pub async fn verify(&self, hook_id: &str, message: SignedMessage<'_>) -> Result<VerifiedMessage> {
        let hook: Option<StoredHook> = self.context.database.document(hook_id).await?;
        let hook = hook.filter(|stored| stored.value.active).ok_or_else(unauthenticated)?;
        let now = self.context.now();
        let (sealed, holders): (Vec<_>, Vec<_>) = hook.value.accepted_secrets(now).unzip();
        let secrets = signing_secrets(self.context.database.keys(), hook_id, sealed).map_err(|error| {
            tracing::error!(hook_id, %error, "cannot decrypt the secret of an inbound hook");
            Error::system(format!("the secret of the hook cannot be decrypted: {error}"))
        })?;
        let is_signer = |secret: &SigningSecret| message.verify(std::slice::from_ref(secret), now).is_ok();
        let signer = secrets.iter().zip(holders).find(|(secret, _)| is_signer(secret));
        let (_, holders) = signer.ok_or_else(unauthenticated)?;
        let suspended = |user_id| HookSuspension::SecretHolder { hook_id: hook_id.to_owned(), user_id };
        self.require_active(holders, suspended).await?;
        self.require_active([&hook.value.owner], HookSuspension::Owner).await?;
        let (message_id, body) = (message.id.to_owned(), message.body.to_vec());
        Ok(VerifiedMessage { hook, message_id, body })
    }

    async fn require_active(
        &self,
        users: impl IntoIterator<Item = &UserId>,
        suspended: impl Fn(UserId) -> HookSuspension,
    ) -> Result<()> {
        for id in users {
            let found = self.context.database.user(id).await?;
            if !found.is_some_and(|found| found.user.active) {
                return Err(Error::HookSuspended(suspended(id.clone())));
            }
        }
        Ok(())
    }

    /// Proposes the task of a message, and submits it if the hook says so. A message counts once.
    pub async fn propose(&self, message: VerifiedMessage, origin: AuditActor) -> Result<HookedProposal> {
        let VerifiedMessage { hook: Versioned { id, value: hook, .. }, message_id, body } = message;
        let owner = format!("hook:{id}");
        let replayed = || Error::Replayed { message_id: message_id.clone() };
        if self.context.database.stored_response(&owner, &message_id).await?.is_some() {
            return Err(replayed());
        }
        let parsed: MessageBody = serde_json::from_slice(&body).map_err(|error| {
            let detail = format!("must be JSON like {{\"type\": \"…\", \"data\": {{…}}}}: {error}");
            Error::invalid("", detail)
        })?;
        let filled = hook.template.fill(&parsed.data).map_err(Error::Invalid)?;
        let user = self.context.database.user(&hook.owner).await?.filter(|stored| stored.user.active);
        let suspended = || Error::HookSuspended(HookSuspension::Owner(hook.owner.clone()));
        let user = user.ok_or_else(suspended)?;
        let audit_actor = AuditActor {
            user_id: Some(hook.owner.clone()),
            // The credential that was used, as a token would be.
            token_id: Some(owner.clone()),
            ..origin
        };
        let scopes = BTreeSet::from([Scope::Read, Scope::Propose]);
        let mut caller = Caller::new(Some(user.user), scopes, audit_actor);
        caller.token_created_by.clone_from(&hook.created_by);
        caller.further_authors.clone_from(&hook.makers);
        let request = IdempotentRequest {
            owner,
            key: message_id.clone(),
            request_digest: Digest::of_bytes(&body).to_string(),
            received_at: self.context.now(),
        };
        let first = Caller { idempotent_request: Some(request), ..caller.clone() };
        let task = match self.tasks.propose(proposal(filled, &id), &first).await {
            Err(Error::Database(DatabaseError::DuplicateIdempotencyKey)) => return Err(replayed()),
            proposed => proposed?,
        };
        if !hook.submit {
            return Ok(HookedProposal { task, submit_error: None });
        }
        match self.tasks.submit(&task.task_id, &caller).await {
            Ok(task) => Ok(HookedProposal { task, submit_error: None }),
            // The task exists, and its author can submit it later.
            Err(error) => Ok(HookedProposal { task, submit_error: Some(error.to_string()) }),
        }
    }
}

/// The proposal of a filled template, marked with its hook.
fn proposal(template: TaskTemplate, hook_id: &str) -> Proposal {
    let mut tags = template.tags;
    tags.push(format!("hook:{hook_id}"));
    Proposal {
        task_type: Some(template.task_type),
        description: Some(template.description),
        executor: template.executor,
        parameters: Some(template.parameters),
        resources: Some(template.resources),
        rollback_strategy: template.rollback_strategy,
        timeout_seconds: template.timeout_seconds,
        priority: template.priority,
        team: template.team.map(Some),
        tags: Some(tags),
        ..Proposal::default()
    }
}
