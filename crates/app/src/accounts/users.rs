//! Creating, changing and deactivating users. A user who leaves is signed out, and the open approval requests are reassigned
//! in the same transaction.

use std::collections::BTreeSet;

use ade_domain::people::{ADMIN, AUTHOR, User, UserId};
use ade_domain::{InvalidField, Moment};
use ade_store::DatabaseError;
use ade_store::database::{Commit, Password, StoredUser, Write};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{AccountService, random_secrets};
use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::{MAX_ATTEMPTS, retry_on_conflict};
use crate::{Caller, Error, Outcome, Result, set};

pub(super) const MAX_ID_LEN: usize = 128;
const MAX_TEXT_LEN: usize = 256;
const MAX_ROLES: usize = 50;
/// How long the setter of a user's password still counts as an author of the user's tasks, after the user has changed it.
const PASSWORD_WATCH_MS: u64 = 7 * 86_400_000;
/// Characters of the first administrator's password: 96 bits.
const FIRST_PASSWORD_LEN: usize = 24;

#[derive(Debug, Clone, Default, Deserialize)]
pub struct UserDraft {
    pub user_id: String,
    #[serde(flatten)]
    pub change: UserChange,
}

/// A change of a user; `None` leaves a field as it is.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct UserChange {
    pub name: Option<String>,
    /// Replaces all roles.
    pub roles: Option<BTreeSet<String>>,
    pub manager_id: Option<Option<String>>,
    pub team: Option<Option<String>>,
    pub active: Option<bool>,
    pub password: Option<String>,
}

/// Hides the password.
impl std::fmt::Debug for UserChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.details()).finish()
    }
}

impl UserChange {
    const fn is_password_only(&self) -> bool {
        let others = (&self.name, &self.roles, &self.manager_id, &self.team, &self.active);
        matches!(others, (None, None, None, None, None)) && self.password.is_some()
    }

    fn apply(&self, user: &mut User) {
        set(&mut user.name, &self.name);
        set(&mut user.roles, &self.roles);
        set(&mut user.manager_id, &self.manager_id.as_ref().map(|id| id.as_deref().map(UserId::new)));
        set(&mut user.team, &self.team);
        set(&mut user.active, &self.active);
    }

    /// The new values, for the audit log: never the password.
    fn details(&self) -> Map<String, Value> {
        let fields = [
            ("name", self.name.as_ref().map(|name| json!(name))),
            ("roles", self.roles.as_ref().map(|roles| json!(roles))),
            ("manager_id", self.manager_id.as_ref().map(|manager| json!(manager))),
            ("team", self.team.as_ref().map(|team| json!(team))),
            ("active", self.active.map(|active| json!(active))),
            ("password", self.password.as_ref().map(|_| json!("changed"))),
        ];
        fields.into_iter().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value))).collect()
    }
}

fn faults(user: &User) -> Vec<InvalidField> {
    let mut faults = Vec::new();
    let mut check = |is_valid: bool, path: &str, detail: String| {
        if !is_valid {
            faults.push(InvalidField::at(path, detail));
        }
    };
    let is_text = |text: &str, max: usize| {
        !text.trim().is_empty() && text.len() <= max && !text.chars().any(char::is_control)
    };
    let is_id = |id: &str| {
        (1..=MAX_ID_LEN).contains(&id.len())
            && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c))
            && id != "me"
    };
    let id = format!("must be 1 to {MAX_ID_LEN} letters, digits, '.', '_', '-' or '@', and not me");
    check(is_id(user.user_id.as_str()), "user_id", id);
    let text = || format!("must be 1 to {MAX_TEXT_LEN} bytes without control characters");
    check(is_text(&user.name, MAX_TEXT_LEN), "name", text());
    let roles = user.roles.iter().all(|role| is_text(role, MAX_ID_LEN)) && user.roles.len() <= MAX_ROLES;
    check(roles, "roles", format!("must be at most {MAX_ROLES} roles of 1 to {MAX_ID_LEN} bytes each"));
    check(user.team.as_deref().is_none_or(|team| is_text(team, MAX_TEXT_LEN)), "team", text());
    let is_own_manager = user.manager_id.as_ref() == Some(&user.user_id);
    check(!is_own_manager, "manager_id", "must be another user".to_owned());
    faults
}

/// A password that somebody else set. The setter is known for as long as the password exists.
fn password_set_by(hash: String, caller: &Caller) -> Password {
    Password { hash, set_by: caller.credentials_creator(), set_by_until: None }
}

/// A password that its owner set. The setter of the previous one may have done this as well, and is remembered for
/// a while.
fn password_set_by_owner(hash: String, previous: Option<&Password>, now: Moment) -> Password {
    let watched = previous.filter(|previous| previous.set_by_until.is_none_or(|until| until > now));
    let set_by = watched.and_then(|previous| previous.set_by.clone());
    let until = watched.and_then(|previous| previous.set_by_until);
    let watched_until = set_by.as_ref().map(|_| until.unwrap_or_else(|| now.plus_ms(PASSWORD_WATCH_MS)));
    Password { hash, set_by, set_by_until: watched_until }
}

impl AccountService {
    pub async fn create_user(&self, draft: UserDraft, caller: &Caller) -> Result<StoredUser> {
        caller.require_admin()?;
        let UserDraft { user_id, change } = draft;
        let mut user = User {
            name: user_id.clone(),
            user_id: UserId::new(user_id),
            roles: BTreeSet::from([AUTHOR.to_owned()]),
            manager_id: None,
            team: None,
            active: true,
        };
        change.apply(&mut user);
        self.validate(&user).await?;
        let password = self.hash_new(&change).await?.map(|hash| password_set_by(hash, caller));
        let stored = StoredUser { user, revision: 1, password };
        let action = AuditedAction {
            revision: Some(1),
            details: change.details(),
            ..AuditedAction::new("user.create", stored.user.user_id.as_str())
        };
        let writes = vec![Write::User { user: Box::new(stored.clone()), expected: None }];
        let mut commit = action.commit(writes, Some(caller), self.context.now());
        let outcome = |_| Outcome::User { user: stored.user.clone(), revision: stored.revision };
        commit.response = stored_response(caller, outcome)?;
        match self.context.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => {
                Err(Error::Exists(format!("user {}", stored.user.user_id)))
            }
            committed => Ok(committed.map(|()| stored)?),
        }
    }

    /// Creates the first administrator and returns the password, which is shown now and never again; `None` if there are
    /// users already.
    pub async fn create_first_admin(&self) -> Result<Option<String>> {
        if !self.context.database.users(None, 1).await?.is_empty() {
            return Ok(None);
        }
        let password = random_secrets::new("")?.chars().take(FIRST_PASSWORD_LEN).collect::<String>();
        let hash = self.passwords.hash(password.clone()).await?;
        let stored = Some(Password { hash, set_by: None, set_by_until: None });
        let user = User {
            user_id: UserId::new("admin"),
            name: "Administrator".to_owned(),
            roles: BTreeSet::from([ADMIN.to_owned()]),
            manager_id: None,
            team: None,
            active: true,
        };
        let user = Box::new(StoredUser { user, revision: 1, password: stored });
        let action = AuditedAction::new("user.create", "admin").with_revision(1);
        let commit = action.commit(vec![Write::User { user, expected: None }], None, self.context.now());
        match self.context.database.commit(commit).await {
            Ok(()) => Ok(Some(password)),
            // Another server was first.
            Err(DatabaseError::AlreadyExists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn validate(&self, user: &User) -> Result<()> {
        let mut faults = faults(user);
        if faults.is_empty()
            && let Some(manager) = &user.manager_id
            && self.context.database.user(manager).await?.is_none()
        {
            faults.push(InvalidField::at("manager_id", format!("user {manager} does not exist")));
        }
        require_valid(faults)
    }

    /// The hash of a new password.
    async fn hash_new(&self, change: &UserChange) -> Result<Option<String>> {
        match change.password.clone() {
            Some(password) => self.passwords.hash(password).await.map(Some),
            None => Ok(None),
        }
    }

    /// Changes a user. Users can change their own password in a session; everything else needs an administrator.
    pub async fn update_user(&self, id: &str, change: &UserChange, caller: &Caller) -> Result<StoredUser> {
        let is_self = caller.is_user(id) && caller.audit_actor.session_id.is_some();
        if !(is_self && change.is_password_only()) {
            caller.require_admin()?;
        }
        let hash = self.hash_new(change).await?;
        let attempt = async |reassign: bool| {
            let before = self.load_user(id).await?;
            caller.check_revision(before.revision)?;
            let mut after = before.clone();
            change.apply(&mut after.user);
            self.validate(&after.user).await?;
            after.revision += 1;
            let now = self.context.now();
            if let Some(hash) = hash.clone() {
                after.password = Some(if is_self {
                    password_set_by_owner(hash, before.password.as_ref(), now)
                } else {
                    password_set_by(hash, caller)
                });
            }
            let (user, expected) = (Box::new(after.clone()), Some(before.revision));
            let mut commit = Commit { writes: vec![Write::User { user, expected }], ..Commit::default() };
            let leaves = before.user.active && !after.user.active;
            let user_id = after.user.user_id.clone();
            if leaves || hash.is_some() {
                commit.writes.push(Write::DeleteSessions { session_hash: None, user_id: id.to_owned() });
            }
            if leaves {
                commit.writes.push(Write::RevokeTokens { user_id: user_id.clone(), at: now });
            }
            if leaves && reassign {
                self.tasks.reassign_approvals_of(&mut commit, &user_id).await?;
            }
            let action = AuditedAction {
                revision: Some(after.revision),
                details: change.details(),
                ..AuditedAction::new("user.update", id)
            };
            action.add_to(&mut commit, caller.audit_actor.clone(), now);
            let is_committed = self.tasks.commit(commit).await?;
            if is_committed && leaves {
                self.tasks.subscriptions().schedule_reassignment(&user_id);
            }
            Ok(is_committed.then_some(after))
        };
        let mut attempts = 0;
        retry_on_conflict(|| {
            attempts += 1;
            // If the tasks of a leaver keep changing, the user is deactivated anyway, and the requests are reassigned later.
            attempt(attempts <= MAX_ATTEMPTS / 2)
        })
        .await
    }
}
