//! Creating, changing and deactivating users. A user who leaves is signed out, and the open approval requests are reassigned
//! in the same transaction.

use std::collections::BTreeSet;

use ade_domain::people::{ADMIN, AUTHOR, User, UserId};
use ade_domain::{InvalidField, Moment};
use ade_store::DatabaseError;
use ade_store::database::{Commit, Password, StoredUser, Write};
use serde_json::{Map, Value, json};

use super::{AccountService, random_secrets, require_admin};
use crate::audit::AuditedAction;
use crate::retry::{MAX_ATTEMPTS, retry_on_conflict};
use crate::{Caller, Error, Outcome};

pub(super) const MAX_ID_LEN: usize = 128;
const MAX_TEXT_LEN: usize = 256;
const MAX_ROLES: usize = 50;
/// How long the setter of a user's password still counts as an author of the user's tasks, after the user has changed it.
const PASSWORD_WATCH_MS: u64 = 7 * 86_400_000;
/// Characters of the first administrator's password: 96 bits.
const FIRST_PASSWORD_LEN: usize = 24;

#[derive(Debug, Clone, Default)]
pub struct UserDraft {
    pub user_id: String,
    pub change: UserChange,
}

/// A change of a user; `None` leaves a field as it is.
#[derive(Clone, Default)]
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
        let Self { name, roles, manager_id, team, active, password } = self;
        let password = password.as_ref().map(|_| "***");
        f.debug_struct("UserChange")
            .field("name", name)
            .field("roles", roles)
            .field("manager_id", manager_id)
            .field("team", team)
            .field("active", active)
            .field("password", &password)
            .finish()
    }
}

impl UserChange {
    fn is_password_only(&self) -> bool {
        let Self { name, roles, manager_id, team, active, password } = self;
        password.is_some()
            && name.is_none()
            && roles.is_none()
            && manager_id.is_none()
            && team.is_none()
            && active.is_none()
    }

    fn apply(&self, user: &mut User) {
        let id = |id: &String| UserId::new(id.clone());
        if let Some(name) = &self.name {
            user.name.clone_from(name);
        }
        if let Some(roles) = &self.roles {
            user.roles.clone_from(roles);
        }
        if let Some(manager) = &self.manager_id {
            user.manager_id = manager.as_ref().map(id);
        }
        if let Some(team) = &self.team {
            user.team.clone_from(team);
        }
        user.active = self.active.unwrap_or(user.active);
    }

    /// The details of the audit entry: never the password.
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
    let set_by =
        caller.token_created_by.clone().or_else(|| caller.user.as_ref().map(|user| user.user_id.clone()));
    Password { hash, set_by, set_by_until: None }
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
    pub async fn create_user(&self, draft: UserDraft, caller: &Caller) -> Result<StoredUser, Error> {
        require_admin(caller)?;
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
        let password = match change.password.clone() {
            Some(password) => Some(password_set_by(self.passwords.hash(password).await?, caller)),
            None => None,
        };
        let now = self.clock.now();
        let stored = StoredUser { user, revision: 1, password };
        let mut commit = Commit::default();
        commit.writes.push(Write::User { user: Box::new(stored.clone()), expected: None });
        let action = AuditedAction {
            revision: Some(1),
            details: change.details(),
            ..AuditedAction::new("user.create", stored.user.user_id.as_str())
        };
        action.add_to(&mut commit, Some(caller), now);
        if let Some(request) = &caller.idempotent_request {
            request.add_to(&mut commit, Outcome::User(&stored), now);
        }
        match self.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => {
                Err(Error::Exists(format!("user {}", stored.user.user_id)))
            }
            committed => Ok(committed.map(|()| stored)?),
        }
    }

    /// Creates the first administrator and returns the password, which is shown now and never again; `None` if there are
    /// users already.
    pub async fn create_first_admin(&self) -> Result<Option<String>, Error> {
        if !self.database.users(None, 1).await?.is_empty() {
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
        let mut commit = Commit::default();
        let user = Box::new(StoredUser { user, revision: 1, password: stored });
        commit.writes.push(Write::User { user, expected: None });
        let action = AuditedAction { revision: Some(1), ..AuditedAction::new("user.create", "admin") };
        action.add_to(&mut commit, None, self.clock.now());
        match self.database.commit(commit).await {
            Ok(()) => Ok(Some(password)),
            // Another server was first.
            Err(DatabaseError::AlreadyExists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn validate(&self, user: &User) -> Result<(), Error> {
        let mut faults = faults(user);
        if faults.is_empty()
            && let Some(manager) = &user.manager_id
            && self.database.user(manager).await?.is_none()
        {
            faults.push(InvalidField::at("manager_id", format!("user {manager} does not exist")));
        }
        if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
    }

    /// Changes a user. Users can change their own password in a session; everything else needs an administrator.
    pub async fn update_user(
        &self,
        id: &str,
        change: &UserChange,
        caller: &Caller,
    ) -> Result<StoredUser, Error> {
        let is_self = caller.agent_id.is_none()
            && caller.audit_actor.session_id.is_some()
            && caller.user.as_ref().is_some_and(|user| user.user_id.as_str() == id);
        if !(is_self && change.is_password_only()) {
            require_admin(caller)?;
        }
        let hash = match change.password.clone() {
            Some(password) => Some(self.passwords.hash(password).await?),
            None => None,
        };
        let attempt = async |reassign: bool| {
            let before = self.load_user(id).await?;
            if caller.if_match.is_some_and(|revision| revision != before.revision) {
                return Err(Error::Stale { now: before.revision });
            }
            let mut after = before.clone();
            change.apply(&mut after.user);
            self.validate(&after.user).await?;
            after.revision += 1;
            let now = self.clock.now();
            if let Some(hash) = hash.clone() {
                after.password = Some(if is_self {
                    password_set_by_owner(hash, before.password.as_ref(), now)
                } else {
                    password_set_by(hash, caller)
                });
            }
            let mut commit = self.user_commit(&before, &after, hash.is_some(), reassign, now).await?;
            let action = AuditedAction {
                revision: Some(after.revision),
                details: change.details(),
                ..AuditedAction::new("user.update", after.user.user_id.as_str())
            };
            action.add_to(&mut commit, Some(caller), now);
            let is_committed = self.tasks.commit(commit).await?;
            if is_committed && before.user.active && !after.user.active {
                self.tasks.subscriptions().schedule_reassignment(&after.user.user_id);
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

    /// The writes of a user's change and of its consequences.
    async fn user_commit(
        &self,
        before: &StoredUser,
        after: &StoredUser,
        has_new_password: bool,
        reassign: bool,
        now: Moment,
    ) -> Result<Commit, Error> {
        let mut commit = Commit::default();
        commit.writes.push(Write::User { user: Box::new(after.clone()), expected: Some(before.revision) });
        let leaves = before.user.active && !after.user.active;
        let user_id = after.user.user_id.clone();
        if leaves || has_new_password {
            commit.writes.push(Write::DeleteSessions { session_hash: None, user_id: user_id.to_string() });
        }
        if leaves {
            commit.writes.push(Write::RevokeTokens { user_id: user_id.clone(), at: now });
            if reassign {
                self.tasks.reassign_approvals_of(&mut commit, &user_id).await?;
            }
        }
        Ok(commit)
    }
}
