//! People: who they are, what they may do by their roles, and who can never decide about a task.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// May propose tasks.
pub const AUTHOR: &str = "author";
/// May be asked to review.
pub const REVIEWER: &str = "reviewer";
/// May do what the matrix gives to administrators.
pub const ADMIN: &str = "admin";
/// The service itself.
pub const SYSTEM: &str = "system";
/// May see every task and the whole audit log.
pub const AUDITOR: &str = "auditor";
/// Is told when something escalates.
pub const ON_CALL: &str = "on-call";

/// What a person is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(transparent)]
pub struct UserId(String);

impl UserId {
    /// The id that is written so.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for UserId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// What it is known by.
    pub user_id: UserId,
    /// A name for people.
    pub name: String,
    /// The four of the matrix, and any others that policies ask for.
    pub roles: BTreeSet<String>,
    /// To whom its requests go when nobody else is left.
    pub manager_id: Option<UserId>,
    /// Whom it works with.
    pub team: Option<String>,
    /// Whether it still works here.
    pub active: bool,
}

impl User {
    /// Whether it has a role.
    #[must_use]
    pub fn has(&self, role: &str) -> bool {
        self.roles.contains(role)
    }
}

/// Everybody, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People(BTreeMap<UserId, User>);

impl People {
    /// Somebody.
    #[must_use]
    pub fn get(&self, id: &UserId) -> Option<&User> {
        self.0.get(id)
    }

    /// Somebody who still works here.
    #[must_use]
    pub fn active(&self, id: &UserId) -> Option<&User> {
        self.get(id).filter(|user| user.active)
    }

    /// Everybody who still works here and has a role, by id.
    pub fn with_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a User> {
        self.0.values().filter(move |user| user.active && user.has(role))
    }
}

impl FromIterator<User> for People {
    fn from_iter<I: IntoIterator<Item = User>>(users: I) -> Self {
        Self(users.into_iter().map(|user| (user.user_id.clone(), user)).collect())
    }
}

/// Who can never decide about a task, on no path: its author, every human in its lineage, whoever made the token that it was
/// proposed with, the owner of the hook that it came through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuthorSet(BTreeMap<UserId, String>);

impl AuthorSet {
    /// One more, and why.
    pub fn add(&mut self, who: UserId, why: impl Into<String>) {
        self.0.entry(who).or_insert_with(|| why.into());
    }

    /// Why somebody belongs to it.
    #[must_use]
    pub fn why(&self, who: &UserId) -> Option<&str> {
        self.0.get(who).map(String::as_str)
    }

    /// Whether somebody belongs to it.
    #[must_use]
    pub fn contains(&self, who: &UserId) -> bool {
        self.0.contains_key(who)
    }

    /// Without those who do not belong to it any more.
    pub fn retain(&mut self, mut belongs: impl FnMut(&UserId, &str) -> bool) {
        self.0.retain(|who, why| belongs(who, why));
    }

    /// Everybody in it.
    pub fn iter(&self) -> impl Iterator<Item = &UserId> {
        self.0.keys()
    }
}
