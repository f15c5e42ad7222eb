//! Who may do what: the one table that every path asks, and nothing beside it.
//!
//! Roles permit, scopes of a token limit. That nobody decides about its own task is no matter of permission: `review` refuses
//! it by the author set, whatever the table says.

use serde::{Deserialize, Serialize};

use crate::people::{ADMIN, AUTHOR, REVIEWER, SYSTEM, User};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// Make a task.
    CreateTask,
    /// Want it decided.
    Submit,
    /// Approve, reject, request changes.
    Decide,
    /// Put it before all others.
    ForceApply,
    /// Give it up.
    Cancel,
    /// Pass its policies by.
    Override,
    /// Read what was recorded.
    ViewAudit,
}

/// In which part somebody acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActorRole {
    /// As author.
    Author,
    /// As reviewer.
    Reviewer,
    /// As administrator.
    Admin,
    /// As the service itself.
    System,
}

/// Every part.
pub const ACTOR_ROLES: [ActorRole; 4] =
    [ActorRole::Author, ActorRole::Reviewer, ActorRole::Admin, ActorRole::System];

/// The matrix: for each act, the parts that may.
pub const MATRIX: [(Permission, &[ActorRole]); 7] = [
    (Permission::CreateTask, &[ActorRole::Author, ActorRole::Admin]),
    (Permission::Submit, &[ActorRole::Author, ActorRole::Admin]),
    (Permission::Decide, &[ActorRole::Reviewer, ActorRole::Admin]),
    (Permission::ForceApply, &[ActorRole::Admin]),
    (Permission::Cancel, &[ActorRole::Author, ActorRole::Admin, ActorRole::System]),
    (Permission::Override, &[ActorRole::Admin]),
    (Permission::ViewAudit, &[ActorRole::Author, ActorRole::Reviewer, ActorRole::Admin, ActorRole::System]),
];

/// Whether one of the parts may.
#[must_use]
pub fn is_permitted(parts: &[ActorRole], act: Permission) -> bool {
    MATRIX.iter().any(|(of, permitted)| *of == act && parts.iter().any(|part| permitted.contains(part)))
}

/// The parts that somebody has by its roles.
#[must_use]
pub fn actor_roles(user: &User) -> Vec<ActorRole> {
    let role = |part| match part {
        ActorRole::Author => AUTHOR,
        ActorRole::Reviewer => REVIEWER,
        ActorRole::Admin => ADMIN,
        ActorRole::System => SYSTEM,
    };
    if user.active {
        ACTOR_ROLES.into_iter().filter(|part| user.has(role(*part))).collect()
    } else {
        Vec::new()
    }
}

/// What a token is good for. Roles permit, scopes limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Looking.
    Read,
    /// Making and submitting tasks.
    Propose,
    /// Locks and agents.
    Lock,
    /// Deciding: given only when asked for, and for a few hours.
    Decide,
    /// Everything that administrators do besides.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Read, Self::Propose, Self::Lock, Self::Decide, Self::Admin];

    /// As it is written everywhere.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Propose => "propose",
            Self::Lock => "lock",
            Self::Decide => "decide",
            Self::Admin => "admin",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the document draws it: author, reviewer, administrator, system.
    const DRAWN: [(Permission, [bool; 4]); 7] = [
        (Permission::CreateTask, [true, false, true, false]),
        (Permission::Submit, [true, false, true, false]),
        (Permission::Decide, [false, true, true, false]),
        (Permission::ForceApply, [false, false, true, false]),
        (Permission::Cancel, [true, false, true, true]),
        (Permission::Override, [false, false, true, false]),
        (Permission::ViewAudit, [true, true, true, true]),
    ];

    #[test]
    fn every_cell_is_as_drawn() {
        for (act, row) in DRAWN {
            for (part, yes) in ACTOR_ROLES.into_iter().zip(row) {
                assert_eq!(is_permitted(&[part], act), yes, "{part:?} {act:?}");
            }
        }
        assert!(!is_permitted(&[], Permission::ViewAudit));
    }

    #[test]
    fn who_left_has_no_part() {
        let mut user = User {
            user_id: crate::people::UserId::new("ann"),
            name: "Ann".to_owned(),
            roles: [ADMIN.to_owned(), "dba".to_owned()].into(),
            manager_id: None,
            team: None,
            active: true,
        };
        assert_eq!(actor_roles(&user), [ActorRole::Admin]);
        user.active = false;
        assert_eq!(actor_roles(&user), []);
    }
}
