//! People are made, changed and let go. Whoever leaves is signed out, and in the same transaction others are asked in its
//! place.

use std::collections::BTreeSet;

use ade_domain::people::{ADMIN, AUTHOR, User, UserId};
use ade_domain::{Invalid, Moment};
use ade_store::DatabaseError;
use ade_store::database::{Commit, Password, StoredUser, Write};
use serde_json::{Map, Value, json};

use super::{AccountService, require_admin, secrets};
use crate::acts::Act;
use crate::{Caller, Error, Outcome};

/// How often a change is repeated that somebody else overtook.
const MOST_ATTEMPTS: usize = 10;
/// Bytes of an id.
pub(super) const LONGEST_ID: usize = 128;
const LONGEST_TEXT: usize = 256;
const MOST_ROLES: usize = 50;
/// So long whoever set somebody's password counts as behind it, after it was changed.
const WATCHED_MS: u64 = 7 * 86_400_000;
/// Characters of the first administrator's password: 96 bits.
const ONE_TIME: usize = 24;

/// A person to be made.
#[derive(Debug, Clone, Default)]
pub struct UserDraft {
    /// What it is known by.
    pub user_id: String,
    /// What is said about it.
    pub change: UserChange,
}

/// What changes about a person; what is not given stays.
#[derive(Clone, Default)]
pub struct UserChange {
    /// A name for people.
    pub name: Option<String>,
    /// All of its roles.
    pub roles: Option<BTreeSet<String>>,
    /// To whom its requests go when nobody else is left.
    pub manager_id: Option<Option<String>>,
    /// Whom it works with.
    pub team: Option<Option<String>>,
    /// Whether it still works here.
    pub active: Option<bool>,
    /// What it signs in with.
    pub password: Option<String>,
}

/// Without the password.
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
    /// Whether only the password changes.
    fn is_password_alone(&self) -> bool {
        let Self { name, roles, manager_id, team, active, password } = self;
        password.is_some()
            && name.is_none()
            && roles.is_none()
            && manager_id.is_none()
            && team.is_none()
            && active.is_none()
    }

    /// What it makes of somebody.
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

    /// What the audit log says about it: never the password.
    fn details(&self) -> Map<String, Value> {
        let all = [
            ("name", self.name.as_ref().map(|name| json!(name))),
            ("roles", self.roles.as_ref().map(|roles| json!(roles))),
            ("manager_id", self.manager_id.as_ref().map(|manager| json!(manager))),
            ("team", self.team.as_ref().map(|team| json!(team))),
            ("active", self.active.map(|active| json!(active))),
            ("password", self.password.as_ref().map(|_| json!("changed"))),
        ];
        all.into_iter().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value))).collect()
    }
}

fn faults(user: &User) -> Vec<Invalid> {
    let mut faults = Vec::new();
    let mut check = |holds: bool, pointer: &str, detail: String| {
        if !holds {
            faults.push(Invalid::at(pointer, detail));
        }
    };
    let plain = |text: &str, longest: usize| {
        !text.trim().is_empty() && text.len() <= longest && !text.chars().any(char::is_control)
    };
    let is_id = |id: &str| {
        (1..=LONGEST_ID).contains(&id.len())
            && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c))
            && id != "me"
    };
    let what = format!("must be 1 to {LONGEST_ID} letters, digits, '.', '_', '-' or '@', and not me");
    check(is_id(user.user_id.as_str()), "/user_id", what);
    let text = || format!("must be 1 to {LONGEST_TEXT} bytes without control characters");
    check(plain(&user.name, LONGEST_TEXT), "/name", text());
    let roles = user.roles.iter().all(|role| plain(role, LONGEST_ID)) && user.roles.len() <= MOST_ROLES;
    check(roles, "/roles", format!("may be at most {MOST_ROLES}, each of 1 to {LONGEST_ID} bytes"));
    check(user.team.as_deref().is_none_or(|team| plain(team, LONGEST_TEXT)), "/team", text());
    let own = user.manager_id.as_ref() == Some(&user.user_id);
    check(!own, "/manager_id", "must be somebody else".to_owned());
    faults
}

/// A password that somebody else set: who it was counts as long as the password is there.
fn set_by(hash: String, caller: &Caller) -> Password {
    let set_by =
        caller.token_made_by.clone().or_else(|| caller.user.as_ref().map(|user| user.user_id.clone()));
    Password { hash, set_by, watched_until: None }
}

/// A password that its owner set. Whoever set the one before may have done this as well: it counts for a while.
fn set_oneself(hash: String, before: Option<&Password>, now: Moment) -> Password {
    let watched = before.filter(|before| before.watched_until.is_none_or(|until| until > now));
    let set_by = watched.and_then(|before| before.set_by.clone());
    let until = watched.and_then(|before| before.watched_until);
    let watched_until = set_by.as_ref().map(|_| until.unwrap_or_else(|| now.plus_ms(WATCHED_MS)));
    Password { hash, set_by, watched_until }
}

impl AccountService {
    /// A new person.
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
        self.check(&user).await?;
        let password = match change.password.clone() {
            Some(password) => Some(set_by(self.passwords.hash(password).await?, caller)),
            None => None,
        };
        let now = self.clock.now();
        let stored = StoredUser { user, revision: 1, password };
        let mut commit = Commit::default();
        commit.writes.push(Write::User { user: Box::new(stored.clone()), expected: None });
        let (object_id, details) = (stored.user.user_id.as_str(), change.details());
        Act { action: "user.create", object_id, revision: Some(1), details, ..Act::default() }.add(
            &mut commit,
            Some(caller),
            now,
        );
        if let Some(keep) = &caller.keep {
            keep.add(&mut commit, Outcome::User(&stored), now);
        }
        match self.record.commit(commit).await {
            Err(DatabaseError::Exists { .. }) => Err(Error::Exists(format!("user {}", stored.user.user_id))),
            done => Ok(done.map(|()| stored)?),
        }
    }

    /// The first administrator, with a password that is told now and never again; nobody, if there are people already.
    pub async fn first_admin(&self) -> Result<Option<String>, Error> {
        if !self.record.users(None, 1).await?.is_empty() {
            return Ok(None);
        }
        let password = secrets::new("")?.chars().take(ONE_TIME).collect::<String>();
        let hash = self.passwords.hash(password.clone()).await?;
        let stored = Some(Password { hash, set_by: None, watched_until: None });
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
        Act { action: "user.create", object_id: "admin", revision: Some(1), ..Act::default() }.add(
            &mut commit,
            None,
            self.clock.now(),
        );
        match self.record.commit(commit).await {
            Ok(()) => Ok(Some(password)),
            // Another server was first.
            Err(DatabaseError::Exists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn check(&self, user: &User) -> Result<(), Error> {
        let mut faults = faults(user);
        if faults.is_empty()
            && let Some(manager) = &user.manager_id
            && self.record.user(manager).await?.is_none()
        {
            faults.push(Invalid::at("/manager_id", "is not known"));
        }
        if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
    }

    /// Changes somebody. People change their own password, when they are signed in; everything else is an administrator's.
    pub async fn change_user(
        &self,
        id: &str,
        change: &UserChange,
        caller: &Caller,
    ) -> Result<StoredUser, Error> {
        let own = caller.agent_id.is_none()
            && caller.who.session_id.is_some()
            && caller.user.as_ref().is_some_and(|user| user.user_id.as_str() == id);
        if !(own && change.is_password_alone()) {
            require_admin(caller)?;
        }
        let hash = match change.password.clone() {
            Some(password) => Some(self.passwords.hash(password).await?),
            None => None,
        };
        for attempt in 0..MOST_ATTEMPTS {
            let before = self.known(id).await?;
            if caller.if_match.is_some_and(|seen| seen != before.revision) {
                return Err(Error::Stale { now: before.revision });
            }
            let mut after = before.clone();
            change.apply(&mut after.user);
            self.check(&after.user).await?;
            after.revision += 1;
            let now = self.clock.now();
            if let Some(hash) = hash.clone() {
                after.password = Some(if own {
                    set_oneself(hash, before.password.as_ref(), now)
                } else {
                    set_by(hash, caller)
                });
            }
            // Where its tasks keep changing, whoever leaves does so at once, and its requests move on as soon as they can.
            let together = attempt < MOST_ATTEMPTS / 2;
            let mut commit = self.changed(&before, &after, hash.is_some(), together, now).await?;
            let (object_id, revision) = (after.user.user_id.as_str(), Some(after.revision));
            Act { action: "user.update", object_id, revision, details: change.details(), ..Act::default() }
                .add(&mut commit, Some(caller), now);
            if self.reviews.commit(commit).await? {
                if before.user.active && !after.user.active {
                    self.reviews.call_for_leavers(&after.user.user_id);
                }
                return Ok(after);
            }
        }
        Err(Error::Overtaken)
    }

    /// Everything that follows from a change of somebody.
    async fn changed(
        &self,
        before: &StoredUser,
        after: &StoredUser,
        new_password: bool,
        together: bool,
        now: Moment,
    ) -> Result<Commit, Error> {
        let mut commit = Commit::default();
        commit.writes.push(Write::User { user: Box::new(after.clone()), expected: Some(before.revision) });
        let leaves = before.user.active && !after.user.active;
        let user_id = after.user.user_id.clone();
        if leaves || new_password {
            commit.writes.push(Write::EndSessions { session_hash: None, user_id: user_id.to_string() });
        }
        if leaves {
            commit.writes.push(Write::EndTokens { user_id: user_id.clone(), at: now });
            if together {
                self.reviews.leave(&mut commit, &user_id).await?;
            }
        }
        Ok(commit)
    }
}
