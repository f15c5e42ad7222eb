//! Invitations: a code that an administrator passes on, with which a new user sets a password. It is stored as a hash, used once,
//! and expires. Until then the account is not active, so that nobody waits for its decisions.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::independence::{AccountActKind, AccountHistory};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, User, UserId};
use ade_store::database::{Invitation, Password, StoredUser, Write};
use ade_store::{Database, DatabaseError};
use serde_json::json;
use subtle::ConstantTimeEq;

use super::acts::record_acts;
use super::user_change::{UserChange, faults};
use super::{AccountService, hash_secret, random_secrets};
use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{Caller, Error, Outcome, Result};

const INVITATION_TTL_MS: u64 = 72 * 3_600_000;
/// Separates the user id from the secret. No user id contains it.
const SEPARATOR: char = ':';

/// A user to be invited.
#[derive(Debug, Clone, Default)]
pub struct InvitationDraft {
    pub user_id: String,
    pub name: Option<String>,
    pub roles: Option<BTreeSet<String>>,
    pub manager_id: Option<String>,
    pub team: Option<String>,
}

/// An invitation with its code, which is shown now and never again.
pub struct NewInvitation {
    pub user: StoredUser,
    pub code: String,
    pub expires_at: Moment,
}

/// Hides the code.
impl std::fmt::Debug for NewInvitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewInvitation").field("user", &self.user.user.user_id).finish_non_exhaustive()
    }
}

/// A new code of a user, and what is stored of it.
fn new_code(user_id: &UserId, now: Moment) -> Result<(String, Invitation)> {
    let secret = random_secrets::new("adei_")?;
    let invitation =
        Invitation { code_hash: hash_secret(&secret), expires_at: now.plus_ms(INVITATION_TTL_MS) };
    Ok((format!("{user_id}{SEPARATOR}{secret}"), invitation))
}

/// A user who has not joined yet.
fn invited_user(user_id: &str) -> User {
    User {
        user_id: UserId::new(user_id),
        name: user_id.to_owned(),
        roles: BTreeSet::from([AUTHOR.to_owned()]),
        manager_id: None,
        team: None,
        email: None,
        active: false,
        history: AccountHistory::default(),
    }
}

impl AccountService {
    /// Invites a new user, or somebody again who has not joined yet: the new code replaces the earlier one.
    pub async fn invite(&self, draft: &InvitationDraft, caller: &Caller) -> Result<NewInvitation> {
        caller.require_admin()?;
        let change = UserChange {
            name: draft.name.clone(),
            roles: draft.roles.clone(),
            manager_id: draft.manager_id.clone().map(Some),
            team: draft.team.clone().map(Some),
            ..UserChange::default()
        };
        retry_on_conflict(async || {
            let before = self.context.database.user(&UserId::new(&draft.user_id)).await?;
            if before.as_ref().is_some_and(|found| found.user.active || found.password.is_some()) {
                return Err(Error::Exists(format!("user {}", draft.user_id)));
            }
            let expected = before.as_ref().map(|found| found.revision);
            let mut user = before.map_or_else(|| invited_user(&draft.user_id), |found| found.user);
            if expected.is_none() {
                self.refuse_agent_name(&draft.user_id).await?;
            }
            self.refuse_takeover(&user, caller).await?;
            let uninvited = user.clone();
            change.apply(&mut user);
            self.validate(&user).await?;
            self.refuse_new_decision_maker(&uninvited, &user, caller).await?;
            let (people, now) = (self.context.database.people().await?, self.context.now());
            record_acts(&mut user, [AccountActKind::Invited], &people, caller, now);
            let (code, invitation) = new_code(&user.user_id, now)?;
            let expires_at = invitation.expires_at;
            let revision = expected.unwrap_or(0) + 1;
            let stored = StoredUser { user, revision, password: None, invitation: Some(invitation) };
            let action = AuditedAction {
                revision: Some(revision),
                details: change.details(),
                notify: people.administrators(),
                ..AuditedAction::new("user.invite", &draft.user_id)
            };
            let write = Write::User { user: Box::new(stored.clone()), expected };
            let mut commit = action.commit(vec![write], caller, now);
            let outcome =
                |_| Outcome::Invitation { user: stored.user.clone(), revision: stored.revision, expires_at };
            commit.response = stored_response(caller, outcome)?;
            match self.context.commit(commit).await {
                Err(Error::Database(DatabaseError::AlreadyExists { .. })) => Ok(None),
                committed => Ok(committed?.then_some(NewInvitation { user: stored, code, expires_at })),
            }
        })
        .await
    }

    /// With dual control, a new code for an account that will decide is a reset: only who invited it renews the invitation alone.
    async fn refuse_takeover(&self, user: &User, caller: &Caller) -> Result<()> {
        let decides = user.has_role(ADMIN) || user.has_role(REVIEWER);
        let mut invited_by = user.history.acts.iter().rev().filter(|act| act.kind == AccountActKind::Invited);
        let is_own = invited_by.next().is_some_and(|act| Some(&act.by) == caller.user_id());
        if decides && !is_own && self.context.needs_second_admin(caller).await? {
            let detail = format!(
                "{} has a role that decides: only who invited it can renew the invitation",
                user.user_id
            );
            return Err(Error::Forbidden(detail));
        }
        Ok(())
    }

    /// Uses an invitation: sets the password of the user, who is active from now on.
    pub async fn accept_invitation(
        &self,
        code: &str,
        password: String,
        actor: AuditActor,
    ) -> Result<StoredUser> {
        let (user_id, secret) = code.trim().rsplit_once(SEPARATOR).ok_or(Error::InvalidInvitation)?;
        self.find_invited(user_id, secret).await?;
        let hash = self.passwords.hash(password).await?;
        retry_on_conflict(async || {
            let before = self.find_invited(user_id, secret).await?;
            let mut after = before.clone();
            after.revision += 1;
            after.user.active = true;
            after.invitation = None;
            after.password = Some(Password { hash: hash.clone(), is_temporary: false });
            let people = self.context.database.people().await?;
            let action = AuditedAction {
                revision: Some(after.revision),
                notify: people.administrators(),
                ..AuditedAction::new("user.join", user_id)
            };
            let actor = AuditActor { user_id: Some(after.user.user_id.clone()), ..actor.clone() };
            let write = Write::User { user: Box::new(after.clone()), expected: Some(before.revision) };
            let commit = action.commit_as(actor, vec![write], self.context.now());
            Ok(self.context.commit(commit).await?.then_some(after))
        })
        .await
    }

    /// The user of an invitation that is still valid.
    async fn find_invited(&self, user_id: &str, secret: &str) -> Result<StoredUser> {
        let found = self.context.database.user(&UserId::new(user_id)).await?;
        let found = found.ok_or(Error::InvalidInvitation)?;
        let is_valid = found.invitation.as_ref().is_some_and(|invitation| {
            let matches: bool = hash_secret(secret).as_bytes().ct_eq(invitation.code_hash.as_bytes()).into();
            matches && self.context.now() < invitation.expires_at
        });
        if is_valid { Ok(found) } else { Err(Error::InvalidInvitation) }
    }
}

/// Invites an administrator if no active one is left. Only the operator can do this, on the database itself.
pub async fn recover_admin(database: &Database, user_id: &str, now: Moment) -> Result<NewInvitation> {
    let people = database.people().await?;
    if let Some(admin) = people.with_role(ADMIN).next() {
        return Err(Error::Forbidden(format!(
            "{} is an active administrator; ask {} for an invitation",
            admin.user_id, admin.name
        )));
    }
    let before = database.user(&UserId::new(user_id)).await?;
    let expected = before.as_ref().map(|found| found.revision);
    let mut user = before.map_or_else(|| invited_user(user_id), |found| found.user);
    user.roles.insert(ADMIN.to_owned());
    user.history.was_admin = true;
    user.active = false;
    require_valid(faults(&user))?;
    let (code, invitation) = new_code(&user.user_id, now)?;
    let expires_at = invitation.expires_at;
    let revision = expected.unwrap_or(0) + 1;
    let stored = StoredUser { user, revision, password: None, invitation: Some(invitation) };
    let mut action = AuditedAction::new("user.recover", user_id).with_revision(revision);
    action.details.insert("roles".to_owned(), json!(stored.user.roles));
    let actor = AuditActor { service: Some("ade admin recover".to_owned()), ..AuditActor::default() };
    let write = Write::User { user: Box::new(stored.clone()), expected };
    // What the account had before must not administer.
    let sessions = Write::DeleteSessions { session_hash: None, user_id: user_id.to_owned() };
    let tokens = Write::RevokeTokens { user_id: UserId::new(user_id), at: now };
    database.commit(action.commit_as(actor, vec![write, sessions, tokens], now)).await?;
    Ok(NewInvitation { user: stored, code, expires_at })
}
