//! People as configurations and rights name them: one user, everybody with a role, or everybody in a team.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::people::{User, UserId};

/// Of one name, in bytes.
pub(crate) const MAX_NAME_LEN: usize = 256;

/// `user:ID`, `role:NAME` or `team:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PeopleSelector {
    User(UserId),
    Role(String),
    Team(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be user:ID, role:NAME or team:NAME, with a name of 1 to 256 bytes")]
pub struct InvalidSelector;

impl fmt::Display for PeopleSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(id) => write!(f, "user:{id}"),
            Self::Role(name) => write!(f, "role:{name}"),
            Self::Team(name) => write!(f, "team:{name}"),
        }
    }
}

impl FromStr for PeopleSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let (kind, name) = text.split_once(':').ok_or(InvalidSelector)?;
        if !is_name(name) {
            return Err(InvalidSelector);
        }
        match kind {
            "user" => Ok(Self::User(UserId::new(name))),
            "role" => Ok(Self::Role(name.to_owned())),
            "team" => Ok(Self::Team(name.to_owned())),
            _ => Err(InvalidSelector),
        }
    }
}

impl TryFrom<String> for PeopleSelector {
    type Error = InvalidSelector;

    fn try_from(text: String) -> Result<Self, InvalidSelector> {
        text.parse()
    }
}

impl From<PeopleSelector> for String {
    fn from(selector: PeopleSelector) -> Self {
        selector.to_string()
    }
}

impl PeopleSelector {
    pub fn covers(&self, user: &User) -> bool {
        match self {
            Self::User(id) => *id == user.user_id,
            Self::Role(role) => user.has_role(role),
            Self::Team(team) => user.team.as_ref() == Some(team),
        }
    }
}

pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len()) && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_spelling() {
        for text in ["user:ann", "role:author", "team:a:b"] {
            assert_eq!(
                text.parse::<PeopleSelector>().map(|selector| selector.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in ["ann", "group:x", "user:", ":x", "", "role:a\nb"] {
            assert_eq!(text.parse::<PeopleSelector>(), Err(InvalidSelector), "{text}");
        }
    }
}
