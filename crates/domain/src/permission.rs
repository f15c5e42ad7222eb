//! Permissions: one matrix of roles that every command checks, and the scopes that limit a token.
//!
//! That authors do not decide on their own tasks is not a permission: `task` enforces it with the author set, whatever the
//! matrix says.

use serde::{Deserialize, Serialize};

use crate::people::User;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Permission {
    CreateTask,
    Submit,
    /// Approve, reject or request changes.
    Decide,
    /// Apply an approved task before all others.
    ForceApply,
    Cancel,
    /// Approve a task against its policies.
    Override,
    ViewAudit,
}

impl Permission {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The roles of the permission matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ActorRole {
    Author,
    Reviewer,
    Admin,
    /// The service itself.
    System,
}

pub const ACTOR_ROLES: [ActorRole; 4] =
    [ActorRole::Author, ActorRole::Reviewer, ActorRole::Admin, ActorRole::System];

/// For each permission, the roles that grant it.
pub const PERMISSION_MATRIX: [(Permission, &[ActorRole]); 7] = [
    (Permission::CreateTask, &[ActorRole::Author, ActorRole::Admin]),
    (Permission::Submit, &[ActorRole::Author, ActorRole::Admin]),
    (Permission::Decide, &[ActorRole::Reviewer, ActorRole::Admin]),
    (Permission::ForceApply, &[ActorRole::Admin]),
    (Permission::Cancel, &[ActorRole::Author, ActorRole::Admin, ActorRole::System]),
    (Permission::Override, &[ActorRole::Admin]),
    (Permission::ViewAudit, &[ActorRole::Author, ActorRole::Reviewer, ActorRole::Admin, ActorRole::System]),
];

/// Whether one of the roles grants a permission.
pub fn is_permitted(roles: &[ActorRole], permission: Permission) -> bool {
    PERMISSION_MATRIX
        .iter()
        .any(|(row, granting)| *row == permission && roles.iter().any(|role| granting.contains(role)))
}

/// The matrix roles of a user; none once the user is inactive.
pub fn actor_roles(user: &User) -> Vec<ActorRole> {
    let has_role = |role: &ActorRole| user.active && user.has_role(role.into());
    ACTOR_ROLES.into_iter().filter(has_role).collect()
}

/// What a token can be used for. Roles permit, scopes limit: a request needs both.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Scope {
    /// Read everything that the roles permit.
    Read,
    /// Create and submit tasks.
    Propose,
    /// Use locks and agents.
    Lock,
    /// Decide on tasks. Granted only on explicit request, for a few hours.
    Decide,
    /// All other administrative commands.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 5] = [Self::Read, Self::Propose, Self::Lock, Self::Decide, Self::Admin];

    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::people::ADMIN;

    /// As specified, in the order author, reviewer, administrator, system.
    const EXPECTED: [(Permission, [bool; 4]); 7] = [
        (Permission::CreateTask, [true, false, true, false]),
        (Permission::Submit, [true, false, true, false]),
        (Permission::Decide, [false, true, true, false]),
        (Permission::ForceApply, [false, false, true, false]),
        (Permission::Cancel, [true, false, true, true]),
        (Permission::Override, [false, false, true, false]),
        (Permission::ViewAudit, [true, true, true, true]),
    ];

    #[test]
    fn matrix_matches_the_specification() {
        for (permission, row) in EXPECTED {
            for (role, expected) in ACTOR_ROLES.into_iter().zip(row) {
                assert_eq!(is_permitted(&[role], permission), expected, "{role:?} {permission:?}");
            }
        }
        assert!(!is_permitted(&[], Permission::ViewAudit));
    }

    #[test]
    fn inactive_user_has_no_roles() {
        let mut user = User {
            user_id: crate::people::UserId::new("ann"),
            name: "Ann".to_owned(),
            roles: [ADMIN.to_owned(), "dba".to_owned()].into(),
            manager_id: None,
            team: None,
            email: None,
            active: true,
            history: crate::independence::AccountHistory::default(),
        };
        assert_eq!(actor_roles(&user), [ActorRole::Admin]);
        user.active = false;
        assert_eq!(actor_roles(&user), []);
    }
}
