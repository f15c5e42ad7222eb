//! Whose tasks an agent may claim: the capabilities that people granted to it, and the people whose tasks it accepts.
//!
//! A capability from the sponsor counts for tasks of the sponsor and of the sponsor's team. One from an administrator counts
//! also for everybody whom the agent accepts. Agents grant nothing: neither to themselves nor to others.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::people::{User, UserId};
use crate::people_selector::{MAX_NAME_LEN, PeopleSelector, is_name};
use crate::task::AgentWork;
use crate::{InvalidField, Moment, Validator};

/// Capabilities of one agent, and entries of what it accepts.
pub const MAX_GRANTS: usize = 100;

/// For whose tasks a capability counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// Tasks of the sponsor and of the sponsor's team.
    Sponsor,
    /// These, and tasks of everybody whom the agent accepts. Only administrators grant it.
    Accepted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilityGrant {
    pub capability: String,
    /// `None` for the bootstrap token.
    pub granted_by: Option<UserId>,
    pub scope: GrantScope,
    pub granted_at: Moment,
}

/// What an agent may claim. An agent without it, such as one that was registered implicitly, claims what names it only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimRights {
    /// One for each capability, in the order in which they were listed.
    pub grants: Vec<CapabilityGrant>,
    pub accepts: Vec<PeopleSelector>,
}

/// A requested change of [`ClaimRights`]; what is absent stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimRightsChange {
    /// The capabilities that the agent has from now on. Those that it has already keep their grants.
    pub capabilities: Option<Vec<String>>,
    /// The same with scopes; an absent scope is the widest that the caller can grant.
    pub grants: Option<Vec<(String, Option<GrantScope>)>>,
    pub accepts: Option<Vec<PeopleSelector>>,
}

/// Who changes the rights of an agent: its sponsor or an administrator, which the caller must have checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granter {
    /// `None` for the bootstrap token.
    pub user: Option<UserId>,
    pub is_admin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantRefusal {
    #[error(
        "only an administrator can grant the capability {capability} for tasks of others; a sponsor's grant counts for \
         tasks of the sponsor and the sponsor's team"
    )]
    ScopeNeedsAdmin { capability: String },
    #[error(
        "only an administrator can add {accepts} to what the agent accepts; its sponsor can remove entries"
    )]
    AcceptsNeedsAdmin { accepts: PeopleSelector },
}

impl ClaimRightsChange {
    pub const fn is_empty(&self) -> bool {
        self.capabilities.is_none() && self.grants.is_none() && self.accepts.is_none()
    }

    pub fn validate(&self) -> Vec<InvalidField> {
        let mut input = Validator::default();
        let both = self.capabilities.is_some() && self.grants.is_some();
        input.check(!both, "grants", "cannot be given together with capabilities");
        let mut check_names = |field: &str, names: Vec<&String>| {
            let fits = names.len() <= MAX_GRANTS && names.iter().all(|name| is_name(name));
            let rule = format_args!("may have at most {MAX_GRANTS} items, each of 1 to {MAX_NAME_LEN} bytes");
            input.check(fits, field, rule);
            let distinct: BTreeSet<&&String> = names.iter().collect();
            input.check(!fits || distinct.len() == names.len(), field, "must not name a capability twice");
        };
        check_names("capabilities", self.capabilities.iter().flatten().collect());
        check_names("grants", self.grants.iter().flatten().map(|(name, _)| name).collect());
        let accepted = self.accepts.as_ref().map_or(0, Vec::len);
        input.check(
            accepted <= MAX_GRANTS,
            "accepts",
            format_args!("may have at most {MAX_GRANTS} items, not {accepted}"),
        );
        input.errors
    }
}

impl ClaimRights {
    /// The names of the capabilities.
    pub fn capabilities(&self) -> Vec<String> {
        self.grants.iter().map(|grant| grant.capability.clone()).collect()
    }

    /// Whether they let the agent claim tasks of more people than before: what only administrators grant.
    pub fn widens(&self, before: &Self) -> bool {
        let is_new = |grant: &&CapabilityGrant| {
            let is_same =
                |old: &CapabilityGrant| (&old.capability, old.scope) == (&grant.capability, grant.scope);
            grant.scope == GrantScope::Accepted && !before.grants.iter().any(is_same)
        };
        self.grants.iter().any(|grant| is_new(&grant))
            || self.accepts.iter().any(|entry| !before.accepts.contains(entry))
    }

    /// The rights after a change.
    pub fn changed(
        &self,
        change: &ClaimRightsChange,
        by: &Granter,
        now: Moment,
    ) -> Result<Self, GrantRefusal> {
        let wanted: Option<Vec<(String, Option<GrantScope>)>> = match (&change.grants, &change.capabilities) {
            (Some(grants), _) => Some(
                grants
                    .iter()
                    .map(|(name, scope)| (name.clone(), Some(scope.unwrap_or(by.widest()))))
                    .collect(),
            ),
            (None, Some(names)) => Some(names.iter().map(|name| (name.clone(), None)).collect()),
            (None, None) => None,
        };
        let grants = match wanted {
            None => self.grants.clone(),
            Some(wanted) => wanted
                .into_iter()
                .map(|(name, scope)| self.grant(name, scope, by, now))
                .collect::<Result<_, _>>()?,
        };
        let accepts = match &change.accepts {
            None => self.accepts.clone(),
            Some(accepts) => {
                let new = accepts.iter().find(|entry| !self.accepts.contains(entry));
                if let Some(accepts) = new.filter(|_| !by.is_admin).cloned() {
                    return Err(GrantRefusal::AcceptsNeedsAdmin { accepts });
                }
                let mut listed = BTreeSet::new();
                accepts.iter().filter(|entry| listed.insert(*entry)).cloned().collect()
            }
        };
        Ok(Self { grants, accepts })
    }

    /// The present grant of a capability if it has this scope, or a new one. Without a scope, any present grant stays.
    fn grant(
        &self,
        capability: String,
        scope: Option<GrantScope>,
        by: &Granter,
        now: Moment,
    ) -> Result<CapabilityGrant, GrantRefusal> {
        let present = self.grants.iter().find(|grant| grant.capability == capability);
        if let Some(grant) = present.filter(|grant| scope.is_none_or(|scope| scope == grant.scope)) {
            return Ok(grant.clone());
        }
        let scope = scope.unwrap_or(by.widest());
        if scope > by.widest() {
            return Err(GrantRefusal::ScopeNeedsAdmin { capability });
        }
        Ok(CapabilityGrant { capability, granted_by: by.user.clone(), scope, granted_at: now })
    }
}

impl Granter {
    const fn widest(&self) -> GrantScope {
        if self.is_admin { GrantScope::Accepted } else { GrantScope::Sponsor }
    }
}

/// Who wants to claim a task.
#[derive(Debug, Clone, Copy)]
pub enum Claimant<'a> {
    /// A person, or the operator, under a name of their own: that name is reserved, so a task that has it means them.
    Person {
        name: &'a str,
    },
    Agent {
        agent_id: &'a str,
        sponsor: Option<&'a User>,
        rights: &'a ClaimRights,
    },
}

impl Claimant<'_> {
    /// Whether this is work for the claimant, and its author is somebody whom the claimant serves. A name is no proof: anybody
    /// could register an agent under the name of one that was removed.
    pub fn may_claim(&self, work: AgentWork<'_>, author: &User) -> bool {
        match (self, work) {
            (Self::Person { name }, AgentWork::Named(named)) => *name == named,
            (Self::Person { .. }, AgentWork::Capability(_)) => false,
            (Self::Agent { agent_id, .. }, AgentWork::Named(named)) => {
                *agent_id == named && self.serves(author, GrantScope::Accepted)
            }
            (Self::Agent { rights, .. }, AgentWork::Capability(wanted)) => {
                let mut granted = rights.grants.iter().filter(|grant| grant.capability == wanted);
                granted.any(|grant| self.serves(author, grant.scope))
            }
        }
    }

    fn serves(&self, author: &User, scope: GrantScope) -> bool {
        let Self::Agent { sponsor, rights, .. } = self else { return false };
        let is_near = sponsor.filter(|sponsor| sponsor.active).is_some_and(|sponsor| {
            sponsor.user_id == author.user_id || (author.team.is_some() && sponsor.team == author.team)
        });
        is_near || (scope == GrantScope::Accepted && rights.accepts.iter().any(|entry| entry.covers(author)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: &str, team: Option<&str>, role: &str) -> User {
        User {
            user_id: UserId::new(id),
            name: id.to_owned(),
            roles: [role.to_owned()].into(),
            manager_id: None,
            team: team.map(str::to_owned),
            email: None,
            active: true,
            history: crate::independence::AccountHistory::default(),
        }
    }

    fn grant(capability: &str, scope: GrantScope) -> CapabilityGrant {
        CapabilityGrant {
            capability: capability.to_owned(),
            granted_by: None,
            scope,
            granted_at: Moment::default(),
        }
    }

    /// Every combination of sponsor, author, grant and what is accepted, against the rule written out.
    #[test]
    fn claims_follow_grants_teams_and_acceptance() {
        let teams = [None, Some("blue"), Some("red")];
        let all_accepts = ["user:ann", "user:zed", "role:author", "role:dba", "team:blue", "team:green"];
        let scopes = [None, Some(GrantScope::Sponsor), Some(GrantScope::Accepted)];
        let mut claimed = 0;
        for (sponsor_team, author_team) in teams.iter().flat_map(|one| teams.map(|other| (*one, other))) {
            for (author_id, scope) in ["ann", "sam"].iter().flat_map(|id| scopes.map(|scope| (*id, scope))) {
                for bits in 0..64_u32 {
                    let accepts: Vec<&str> =
                        (0..6).filter(|bit| bits & (1 << bit) != 0).map(|bit| all_accepts[bit]).collect();
                    let (sponsor, author) =
                        (user("sam", sponsor_team, "author"), user(author_id, author_team, "author"));
                    let rights = ClaimRights {
                        grants: scope.into_iter().map(|scope| grant("paint", scope)).collect(),
                        accepts: accepts.iter().map(|entry| entry.parse().expect("valid")).collect(),
                    };
                    let claimant =
                        Claimant::Agent { agent_id: "bot", sponsor: Some(&sponsor), rights: &rights };
                    let is_near =
                        author_id == "sam" || (author_team.is_some() && author_team == sponsor_team);
                    let is_accepted = accepts.contains(&"role:author")
                        || (author_id == "ann" && accepts.contains(&"user:ann"))
                        || (author_team == Some("blue") && accepts.contains(&"team:blue"));
                    let expected = match scope {
                        None => false,
                        Some(GrantScope::Sponsor) => is_near,
                        Some(GrantScope::Accepted) => is_near || is_accepted,
                    };
                    assert_eq!(
                        claimant.may_claim(AgentWork::Capability("paint"), &author),
                        expected,
                        "{rights:?} {author:?}"
                    );
                    assert!(!claimant.may_claim(AgentWork::Capability("other"), &author));
                    assert!(!claimant.may_claim(AgentWork::Named("other"), &author));
                    assert_eq!(claimant.may_claim(AgentWork::Named("bot"), &author), is_near || is_accepted);
                    claimed += usize::from(expected);
                }
            }
        }
        assert!(claimed > 100, "{claimed}");
    }

    #[test]
    fn sponsor_who_left_and_missing_sponsor_serve_only_what_is_accepted() {
        let (author, mut sponsor) =
            (user("ann", Some("blue"), "author"), user("sam", Some("blue"), "author"));
        let mut rights =
            ClaimRights { grants: vec![grant("paint", GrantScope::Accepted)], accepts: Vec::new() };
        let may = |sponsor: Option<&User>, rights: &ClaimRights| {
            Claimant::Agent { agent_id: "bot", sponsor, rights }
                .may_claim(AgentWork::Capability("paint"), &author)
        };
        assert!(may(Some(&sponsor), &rights));
        sponsor.active = false;
        assert!(!may(Some(&sponsor), &rights) && !may(None, &rights));
        rights.accepts = vec![PeopleSelector::User(UserId::new("ann"))];
        assert!(may(None, &rights));
        let person = Claimant::Person { name: "bob" };
        assert!(person.may_claim(AgentWork::Named("bob"), &author));
        assert!(!person.may_claim(AgentWork::Capability("bob"), &author));
    }

    #[test]
    fn sponsors_grant_within_their_reach_and_administrators_beyond() {
        let sponsor = Granter { user: Some(UserId::new("sam")), is_admin: false };
        let admin = Granter { user: Some(UserId::new("ada")), is_admin: true };
        let (now, later) = (Moment::from_micros(1), Moment::from_micros(2));
        let names = |names: &[&str]| ClaimRightsChange {
            capabilities: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..ClaimRightsChange::default()
        };
        let scoped = |name: &str, scope| ClaimRightsChange {
            grants: Some(vec![(name.to_owned(), scope)]),
            ..ClaimRightsChange::default()
        };
        let accepting = |entry: &str| ClaimRightsChange {
            accepts: Some(vec![entry.parse().expect("valid")]),
            ..ClaimRightsChange::default()
        };
        let by_sponsor = ClaimRights::default().changed(&names(&["paint"]), &sponsor, now).expect("granted");
        assert_eq!(by_sponsor.grants[0].scope, GrantScope::Sponsor);
        // An administrator who lists a name again does not widen what somebody else granted.
        let both = by_sponsor.changed(&names(&["paint", "sand"]), &admin, later).expect("granted");
        assert_eq!(both.grants[0], by_sponsor.grants[0]);
        assert_eq!(
            (both.grants[1].scope, both.grants[1].granted_by.clone()),
            (GrantScope::Accepted, admin.user.clone())
        );
        let wide = both.changed(&scoped("paint", None), &admin, later).expect("granted");
        assert_eq!((wide.grants.len(), wide.grants[0].scope), (1, GrantScope::Accepted));
        let refused = both.changed(&scoped("paint", Some(GrantScope::Accepted)), &sponsor, later);
        assert_eq!(refused, Err(GrantRefusal::ScopeNeedsAdmin { capability: "paint".to_owned() }));
        // Keeping what an administrator granted, and removing it, is up to the sponsor.
        assert_eq!(wide.changed(&names(&["paint"]), &sponsor, later).as_ref(), Ok(&wide));
        assert_eq!(wide.changed(&names(&[]), &sponsor, later).expect("removed").grants, []);
        let refused = wide.changed(&accepting("role:author"), &sponsor, later);
        assert!(matches!(refused, Err(GrantRefusal::AcceptsNeedsAdmin { .. })));
        let open = wide.changed(&accepting("role:author"), &admin, later).expect("accepted");
        assert_eq!(open.changed(&accepting("role:author"), &sponsor, later).as_ref(), Ok(&open));
        let none = ClaimRightsChange { accepts: Some(Vec::new()), ..ClaimRightsChange::default() };
        assert_eq!(open.changed(&none, &sponsor, later).expect("removed").accepts, []);
    }
}
