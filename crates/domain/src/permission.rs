//! Who may do what: the one table that every path asks, and nothing beside it.
//!
//! Roles permit, scopes of a token limit. That nobody decides about its own task is no matter of permission: `review` refuses
//! it by the author set, whatever the table says.

use serde::{Deserialize, Serialize};

use crate::people::{ADMIN, AUTHOR, REVIEWER, SYSTEM, User};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
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
pub enum Part {
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
pub const PARTS: [Part; 4] = [Part::Author, Part::Reviewer, Part::Admin, Part::System];

/// The matrix: for each act, the parts that may.
pub const MATRIX: [(Act, &[Part]); 7] = [
    (Act::CreateTask, &[Part::Author, Part::Admin]),
    (Act::Submit, &[Part::Author, Part::Admin]),
    (Act::Decide, &[Part::Reviewer, Part::Admin]),
    (Act::ForceApply, &[Part::Admin]),
    (Act::Cancel, &[Part::Author, Part::Admin, Part::System]),
    (Act::Override, &[Part::Admin]),
    (Act::ViewAudit, &[Part::Author, Part::Reviewer, Part::Admin, Part::System]),
];

/// Whether one of the parts may.
#[must_use]
pub fn may(parts: &[Part], act: Act) -> bool {
    MATRIX.iter().any(|(of, permitted)| *of == act && parts.iter().any(|part| permitted.contains(part)))
}

/// The parts that somebody has by its roles.
#[must_use]
pub fn parts_of(user: &User) -> Vec<Part> {
    let role = |part| match part {
        Part::Author => AUTHOR,
        Part::Reviewer => REVIEWER,
        Part::Admin => ADMIN,
        Part::System => SYSTEM,
    };
    if user.active { PARTS.into_iter().filter(|part| user.has(role(*part))).collect() } else { Vec::new() }
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
    const DRAWN: [(Act, [bool; 4]); 7] = [
        (Act::CreateTask, [true, false, true, false]),
        (Act::Submit, [true, false, true, false]),
        (Act::Decide, [false, true, true, false]),
        (Act::ForceApply, [false, false, true, false]),
        (Act::Cancel, [true, false, true, true]),
        (Act::Override, [false, false, true, false]),
        (Act::ViewAudit, [true, true, true, true]),
    ];

    #[test]
    fn every_cell_is_as_drawn() {
        for (act, row) in DRAWN {
            for (part, yes) in PARTS.into_iter().zip(row) {
                assert_eq!(may(&[part], act), yes, "{part:?} {act:?}");
            }
        }
        assert!(!may(&[], Act::ViewAudit));
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
        assert_eq!(parts_of(&user), [Part::Admin]);
        user.active = false;
        assert_eq!(parts_of(&user), []);
    }
}
