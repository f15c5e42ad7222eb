//! Who may have lost credentials or rights, as far as this process knows: for what it remembers of callers while the database is
//! unavailable. In doubt somebody has lost them. It is never asked while the database answers.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ade_domain::people::UserId;

use super::{Database, Write};

/// Above that all callers count as revoked.
const MAX_REVOCATIONS: usize = 10_000;

/// A loss of credentials or rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revocation {
    /// The user with all tokens and agents.
    User(UserId),
    Token(String),
    /// An agent was removed, or changed. Its sponsor, if it is still the same, loses nothing by a change.
    Agent {
        agent_id: String,
        kept_for: Option<UserId>,
    },
}

/// Somebody whose rights are remembered.
#[derive(Debug, Clone, Copy)]
pub struct RememberedRights<'a> {
    pub user: Option<&'a UserId>,
    pub agent: Option<&'a str>,
    pub token: Option<&'a str>,
}

#[derive(Debug, Default)]
pub(super) struct Revocations(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How many there were.
    count: u64,
    users: HashMap<UserId, u64>,
    tokens: HashMap<String, u64>,
    agents: HashMap<String, AgentRevocation>,
    /// All callers from before that are revoked.
    all_before: u64,
}

/// The revocations of one agent. A later one for fewer people must not lift an earlier one for more.
#[derive(Debug, Default)]
struct AgentRevocation {
    /// The last one.
    at: u64,
    /// For whom that changes nothing.
    kept_for: Option<UserId>,
    /// The last one that counts for them too.
    for_all_at: u64,
}

impl AgentRevocation {
    fn push(&mut self, at: u64, kept_for: Option<UserId>) {
        if self.kept_for != kept_for {
            self.for_all_at = self.at;
        }
        (self.at, self.kept_for) = (at, kept_for);
    }

    fn is_revoked(&self, user: Option<&UserId>, since: u64) -> bool {
        let is_kept = self.kept_for.is_some() && self.kept_for.as_ref() == user;
        since < if is_kept { self.for_all_at } else { self.at }
    }
}

impl State {
    fn push(&mut self, revocation: Revocation) {
        self.count += 1;
        match revocation {
            Revocation::User(user) => drop(self.users.insert(user, self.count)),
            Revocation::Token(token) => drop(self.tokens.insert(token, self.count)),
            Revocation::Agent { agent_id, kept_for } => {
                self.agents.entry(agent_id).or_default().push(self.count, kept_for);
            }
        }
        if self.users.len() + self.tokens.len() + self.agents.len() > MAX_REVOCATIONS {
            *self = Self { count: self.count, all_before: self.count, ..Self::default() };
        }
    }

    fn is_revoked(&self, rights: RememberedRights<'_>, since: u64) -> bool {
        let is_later = |at: Option<&u64>| at.is_some_and(|at| *at > since);
        let agent = rights.agent.and_then(|agent| self.agents.get(agent));
        self.all_before > since
            || is_later(rights.user.and_then(|user| self.users.get(user)))
            || is_later(rights.token.and_then(|token| self.tokens.get(token)))
            || agent.is_some_and(|agent| agent.is_revoked(rights.user, since))
    }
}

impl Write {
    /// Who may lose credentials or rights by it.
    pub(super) fn revocation(&self) -> Option<Revocation> {
        match self {
            // Which of the roles it had before is not known here.
            Self::User { user, expected: Some(_) } => Some(Revocation::User(user.user.user_id.clone())),
            Self::Agent { agent, expected: Some(_) } => {
                let (agent_id, kept_for) = (agent.agent_id.clone(), agent.sponsor_id.clone());
                Some(Revocation::Agent { agent_id, kept_for })
            }
            Self::Token(token) if token.revoked_at.is_some() => {
                Some(Revocation::Token(token.token_id.clone()))
            }
            Self::RevokeTokens { user_id, .. } => Some(Revocation::User(user_id.clone())),
            Self::DeleteAgent { agent_id, .. } => {
                Some(Revocation::Agent { agent_id: agent_id.clone(), kept_for: None })
            }
            _ => None,
        }
    }
}

impl Database {
    /// Notes a revocation. Those that are committed through this handle or its clones are noted already.
    pub fn note_revocation(&self, revocation: Revocation) {
        self.revocations.0.lock().unwrap_or_else(PoisonError::into_inner).push(revocation);
    }

    /// How many revocations were noted. Take it before rights are read that are to be remembered.
    #[must_use]
    pub fn revocations(&self) -> u64 {
        self.revocations.0.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Whether rights that were read when `since` revocations were noted may have been taken away.
    #[must_use]
    pub fn is_revoked(&self, rights: RememberedRights<'_>, since: u64) -> bool {
        self.revocations.0.lock().unwrap_or_else(PoisonError::into_inner).is_revoked(rights, since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revokes_those_who_are_concerned_and_in_doubt_everybody() {
        let (ann, ben) = (UserId::new("ann"), UserId::new("ben"));
        let rights = |user, agent, token| RememberedRights { user: Some(user), agent, token };
        let agent = |kept_for: Option<&UserId>| Revocation::Agent {
            agent_id: "a".to_owned(),
            kept_for: kept_for.cloned(),
        };
        let revoked = |revocation: Revocation| {
            let mut state = State::default();
            state.push(revocation);
            let is_revoked = |rights| {
                assert!(!state.is_revoked(rights, 1), "read afterwards");
                state.is_revoked(rights, 0)
            };
            [
                rights(&ann, None, Some("t")),
                rights(&ann, Some("a"), Some("u")),
                rights(&ben, Some("a"), Some("v")),
                rights(&ben, Some("b"), None),
            ]
            .map(is_revoked)
        };
        assert_eq!(revoked(Revocation::User(ann.clone())), [true, true, false, false]);
        assert_eq!(revoked(Revocation::Token("t".to_owned())), [true, false, false, false]);
        assert_eq!(revoked(agent(None)), [false, true, true, false]);
        assert_eq!(revoked(agent(Some(&ann))), [false, false, true, false], "not for its sponsor");
        // Deleted, then created and changed by the same sponsor: what was deleted stays revoked.
        let mut state = State::default();
        [None, Some(&ann), Some(&ann)].into_iter().for_each(|kept_for| state.push(agent(kept_for)));
        assert!(state.is_revoked(rights(&ann, Some("a"), Some("t")), 0), "a token of the deleted agent");
        assert!(!state.is_revoked(rights(&ann, Some("a"), Some("u")), 1), "a token of the new agent");
        assert!(state.is_revoked(rights(&ben, Some("a"), Some("v")), 1), "of somebody else");
        // It went to somebody else and back.
        let mut state = State::default();
        [Some(&ann), Some(&ben), Some(&ann)].into_iter().for_each(|kept_for| state.push(agent(kept_for)));
        assert!(state.is_revoked(rights(&ann, Some("a"), Some("t")), 1));
        assert!(!state.is_revoked(rights(&ann, Some("a"), Some("t")), 2));
        let mut state = State::default();
        for number in 0..=MAX_REVOCATIONS {
            state.push(Revocation::Token(number.to_string()));
        }
        assert!(state.is_revoked(rights(&ann, None, Some("t")), 5), "too many to remember");
        assert!(!state.is_revoked(rights(&ann, None, Some("t")), state.count));
    }
}
