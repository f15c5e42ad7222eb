//! People, their roles, and the author set of a task: those who can never decide on it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::independence::{AccountHistory, Dependence, Period};
use crate::task::Lineage;

/// Role: may propose tasks.
pub const AUTHOR: &str = "author";
/// Role: may be asked to review tasks.
pub const REVIEWER: &str = "reviewer";
/// Role: has the permissions of an administrator.
pub const ADMIN: &str = "admin";
/// Role: the service itself.
pub const SYSTEM: &str = "system";
/// Role: may read every task and the whole audit log.
pub const AUDITOR: &str = "auditor";
/// Role: is notified of escalations.
pub const ON_CALL: &str = "on-call";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserId(String);

impl UserId {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for UserId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub user_id: UserId,
    pub name: String,
    /// The roles of the permission matrix, and any others that policies require.
    pub roles: BTreeSet<String>,
    /// Receives this person's unanswered approval requests.
    pub manager_id: Option<UserId>,
    pub team: Option<String>,
    /// Where notifications go; see [`email`](crate::email). Only the person and administrators see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// False once the person has left, and until an invited person has joined.
    pub active: bool,
    /// Who created, invited or reset the account, or granted it the right to decide.
    pub history: AccountHistory,
}

impl User {
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.contains(role)
    }

    /// Whether a role of its own lets the user decide on tasks of others.
    pub fn is_reviewer(&self) -> bool {
        self.active && (self.has_role(REVIEWER) || self.has_role(ADMIN))
    }
}

/// The sponsor of each agent, by agent id.
pub type Sponsors = BTreeMap<String, UserId>;

/// All users, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct People(BTreeMap<UserId, User>);

impl People {
    pub fn get(&self, id: &UserId) -> Option<&User> {
        self.0.get(id)
    }

    pub fn active(&self, id: &UserId) -> Option<&User> {
        self.get(id).filter(|user| user.active)
    }

    /// All users, ordered by id.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.0.values()
    }

    /// The same people after a change of one of them.
    #[must_use]
    pub fn with(&self, user: User) -> Self {
        let mut people = self.clone();
        people.0.insert(user.user_id.clone(), user);
        people
    }

    /// Active users with a role, ordered by id.
    /// The active administrators.
    pub fn administrators(&self) -> Vec<UserId> {
        self.with_role(ADMIN).map(|user| user.user_id.clone()).collect()
    }

    pub fn with_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a User> {
        self.0.values().filter(move |user| user.active && user.has_role(role))
    }
}

impl FromIterator<User> for People {
    fn from_iter<I: IntoIterator<Item = User>>(users: I) -> Self {
        Self(users.into_iter().map(|user| (user.user_id.clone(), user)).collect())
    }
}

/// The people who can never decide on a task, by any path, each with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AuthorSet(BTreeMap<UserId, AuthorReason>);

/// Why somebody belongs to the author set of a task. The text completes a sentence that begins with the person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorReason {
    /// The person who proposed it.
    Author,
    /// An agent proposed or changed the task on this person's behalf.
    SponsorsAgent,
    /// The task was proposed or changed with a token or password that this person issued.
    TokenIssuer,
    /// The lineage names this person as sponsor, or names an agent whose sponsor this person is. The only reason that ends:
    /// a draft may name another lineage.
    Lineage { agent: Option<String> },
    /// The person changed it.
    Editor,
    /// The person submitted it for somebody else.
    Submitter,
    /// An author of the task that this one was resubmitted from.
    PredecessorAuthor { task_id: String },
}

impl std::fmt::Display for AuthorReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Author => f.write_str("is its author"),
            Self::SponsorsAgent => f.write_str("sponsors the agent that proposed it"),
            Self::TokenIssuer => f.write_str("issued the token that it was proposed with"),
            Self::Lineage { agent: None } => f.write_str("is the sponsor in its lineage"),
            Self::Lineage { agent: Some(agent) } => write!(f, "sponsors agent {agent} in its lineage"),
            Self::Editor => f.write_str("changed it"),
            Self::Submitter => f.write_str("submitted it"),
            Self::PredecessorAuthor { task_id } => {
                write!(f, "is an author of task {task_id}, which it was resubmitted from")
            }
        }
    }
}

impl AuthorSet {
    /// Adds somebody. A reason that is known already stays, so that naming an author in the lineage as well does not make the
    /// membership end with that lineage.
    pub fn add(&mut self, user: UserId, reason: AuthorReason) {
        self.0.entry(user).or_insert(reason);
    }

    /// Adds the sponsor that a lineage names and the sponsors of its agents, as the registry knows them: leaving the sponsor
    /// out of a lineage does not make its agents independent.
    pub fn add_lineage(&mut self, lineage: &Lineage, sponsors: &Sponsors) {
        if let Some(sponsor) = &lineage.sponsor_id {
            self.add(sponsor.clone(), AuthorReason::Lineage { agent: None });
        }
        for agent in lineage.agents() {
            if let Some(sponsor) = sponsors.get(agent) {
                self.add(sponsor.clone(), AuthorReason::Lineage { agent: Some(agent.to_owned()) });
            }
        }
    }

    /// Adds everybody of another set. A reason that does not end replaces one from the lineage.
    pub fn merge(&mut self, other: Self) {
        for (user, reason) in other.0 {
            if self.0.get(&user).is_none_or(AuthorReason::is_from_lineage) {
                self.0.insert(user, reason);
            }
        }
    }

    /// Removes those who belong to it by the lineage alone.
    pub fn remove_lineage(&mut self) {
        self.0.retain(|_, reason| !reason.is_from_lineage());
    }

    pub fn reason(&self, user: &UserId) -> Option<&AuthorReason> {
        self.0.get(user)
    }

    /// Whether somebody wrote some of the task, rather than only submitted it or issued a token.
    pub fn may_edit(&self, user: &UserId) -> bool {
        self.reason(user)
            .is_some_and(|reason| !matches!(reason, AuthorReason::Submitter | AuthorReason::TokenIssuer))
    }

    pub fn contains(&self, user: &UserId) -> bool {
        self.0.contains_key(user)
    }

    /// Why somebody is not independent of one of the authors; none if independent of all.
    pub fn dependence(
        &self,
        user: &UserId,
        people: &People,
        period: Period,
        now: Moment,
    ) -> Option<Dependence> {
        self.iter().find_map(|author| people.dependence(user, author, period, now))
    }

    pub fn iter(&self) -> impl Iterator<Item = &UserId> {
        self.0.keys()
    }
}

impl AuthorReason {
    const fn is_from_lineage(&self) -> bool {
        matches!(self, Self::Lineage { .. })
    }
}
