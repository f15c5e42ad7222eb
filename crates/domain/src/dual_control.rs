//! Dual control: a change of who decides, or by which rules, waits until a second administrator confirms it.
//!
//! Nobody confirms a change of their own, or one that an account of theirs may have proposed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Moment;
use crate::independence::{AccountActKind, Dependence, Period, granted_roles};
use crate::people::{ADMIN, People, User, UserId};

/// How long a change waits.
const CHANGE_TTL_MS: u64 = 72 * 3_600_000;

/// A change that waits for a second administrator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProposedChange {
    /// As the audit log will name it: `policy.update`.
    pub action: String,
    pub object_type: String,
    pub object_id: String,
    /// The revision that it changes; none for a new object, and for users and agents, who change otherwise too: they are compared
    /// when it is made.
    pub revision: Option<u64>,
    /// What changes, as the audit log will show it.
    pub details: Map<String, Value>,
    /// What is done once it is confirmed. Never shown: it may contain the hash of a password.
    pub request: Value,
    /// None for the operator.
    pub proposed_by: Option<UserId>,
    pub proposed_at: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmationRefusal {
    #[error("you proposed this change; another administrator has to confirm it")]
    Proposer,
    #[error("who proposed this change is no administrator any more; reject it")]
    ProposerLeft,
    #[error("this change is about your own account; another administrator has to decide about it")]
    Subject,
    #[error("two administrators are active: one of them has to confirm this change, not the bootstrap token")]
    Operator,
    #[error("{0}")]
    NotIndependent(Box<Dependence>),
}

impl ProposedChange {
    pub fn expires_at(&self) -> Moment {
        self.proposed_at.plus_ms(CHANGE_TTL_MS)
    }

    fn is_about(&self, user: &UserId) -> bool {
        self.object_type == "user" && self.object_id == user.as_str()
    }

    /// Whether an administrator, or the operator, may confirm it.
    pub fn authorize_confirmation(
        &self,
        by: Option<&UserId>,
        people: &People,
        now: Moment,
    ) -> Result<(), ConfirmationRefusal> {
        let is_admin = |user: &UserId| people.active(user).is_some_and(|user| user.has_role(ADMIN));
        if self.proposed_by.as_ref().is_some_and(|user| !is_admin(user)) {
            return Err(ConfirmationRefusal::ProposerLeft);
        }
        let Some(by) = by else {
            let is_bound = people.needs_second_admin(None);
            return if is_bound { Err(ConfirmationRefusal::Operator) } else { Ok(()) };
        };
        if self.proposed_by.as_ref() == Some(by) {
            return Err(ConfirmationRefusal::Proposer);
        }
        if self.is_about(by) {
            return Err(ConfirmationRefusal::Subject);
        }
        let dependence =
            self.proposed_by.as_ref().and_then(|other| people.dependence(by, other, Period::Window, now));
        dependence.map_or(Ok(()), |why| Err(ConfirmationRefusal::NotIndependent(Box::new(why))))
    }

    /// Whether an administrator, or the operator, may reject it. Its proposer may withdraw it.
    pub fn authorize_rejection(&self, by: Option<&UserId>) -> Result<(), ConfirmationRefusal> {
        let is_other = |by: &&UserId| self.proposed_by.as_ref() != Some(*by);
        match by.filter(is_other) {
            Some(by) if self.is_about(by) => Err(ConfirmationRefusal::Subject),
            _ => Ok(()),
        }
    }
}

impl People {
    /// Whether a change by this administrator waits; none is the operator, who acts alone while two administrators are missing,
    /// so that an installation can be set up and repaired.
    pub fn needs_second_admin(&self, by: Option<&UserId>) -> bool {
        by.is_some() || self.with_role(ADMIN).nth(1).is_some()
    }
}

/// Whether a change of an account grants or takes the right to decide, or hands an administrator's account over.
pub fn changes_who_decides(
    before: &User,
    after: &User,
    acts: &[AccountActKind],
    policy_roles: &BTreeSet<String>,
) -> bool {
    // An inactive account has no roles that count.
    let active = |user: &User| User {
        roles: if user.active { user.roles.clone() } else { Default::default() },
        ..user.clone()
    };
    let (active_before, active_after) = (active(before), active(after));
    let grants = [(before, after), (&active_before, &active_after)]
        .into_iter()
        .any(|(before, after)| !granted_roles(before, after, policy_roles).is_empty());
    let demotes = active_before.has_role(ADMIN) && !active_after.has_role(ADMIN);
    let takes_over = before.has_role(ADMIN) && acts.contains(&AccountActKind::Reset);
    grants || demotes || takes_over
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::independence::{AccountAct, AccountHistory};
    use crate::people::{AUTHOR, REVIEWER};

    fn user(id: &str, roles: &[&str], active: bool) -> User {
        User {
            user_id: UserId::new(id),
            name: id.to_owned(),
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            manager_id: None,
            team: None,
            email: None,
            active,
            history: AccountHistory::default(),
        }
    }

    fn change(proposed_by: Option<&str>, subject: &str) -> ProposedChange {
        ProposedChange {
            action: "user.update".to_owned(),
            object_type: "user".to_owned(),
            object_id: subject.to_owned(),
            revision: Some(1),
            details: Map::new(),
            request: Value::Null,
            proposed_by: proposed_by.map(UserId::new),
            proposed_at: Moment::default(),
        }
    }

    /// Every pair of roles and activity, against the rule written out.
    #[test]
    fn changes_of_decision_makers_wait() {
        let all_roles: [&[&str]; 4] = [&[], &[AUTHOR], &[REVIEWER], &[ADMIN]];
        let states = all_roles.iter().flat_map(|roles| [(*roles, false), (*roles, true)]);
        let states: Vec<(&[&str], bool)> = states.collect();
        for (roles_before, active_before) in &states {
            for (roles_after, active_after) in &states {
                for acts in [&[][..], &[AccountActKind::Reset][..]] {
                    let (before, after) =
                        (user("eve", roles_before, *active_before), user("eve", roles_after, *active_after));
                    let decides = |roles: &[&str]| roles.contains(&REVIEWER) || roles.contains(&ADMIN);
                    let new_role = decides(roles_after) && roles_after != roles_before;
                    let returns = decides(roles_after) && *active_after && !active_before;
                    let was_admin = roles_before.contains(&ADMIN);
                    let leaves =
                        was_admin && *active_before && !(roles_after.contains(&ADMIN) && *active_after);
                    let expected = new_role || returns || leaves || (was_admin && !acts.is_empty());
                    let waits = changes_who_decides(&before, &after, acts, &BTreeSet::new());
                    assert_eq!(waits, expected, "{before:?} -> {after:?} {acts:?}");
                }
            }
        }
    }

    #[test]
    fn second_administrator_is_another_independent_person() {
        let now = Moment::default();
        let by_ann = |kind| AccountAct { kind, by: UserId::new("ann"), at: now, exempt: false, lifted: None };
        let mut made_by_ann = user("made", &[ADMIN], true);
        made_by_ann.history.record(by_ann(AccountActKind::GrantedAdmin));
        let people: People =
            [user("ann", &[ADMIN], true), user("bob", &[ADMIN], true), made_by_ann].into_iter().collect();
        let confirm = |proposed_by: Option<&str>, subject: &str, by: Option<&str>| {
            change(proposed_by, subject).authorize_confirmation(by.map(UserId::new).as_ref(), &people, now)
        };
        assert_eq!(confirm(Some("ann"), "rita", Some("bob")), Ok(()));
        assert_eq!(confirm(None, "rita", Some("ann")), Ok(()));
        assert_eq!(confirm(Some("ann"), "rita", Some("ann")), Err(ConfirmationRefusal::Proposer));
        assert_eq!(confirm(Some("ann"), "bob", Some("bob")), Err(ConfirmationRefusal::Subject));
        assert_eq!(confirm(Some("ann"), "rita", None), Err(ConfirmationRefusal::Operator));
        assert_eq!(confirm(Some("gone"), "rita", Some("bob")), Err(ConfirmationRefusal::ProposerLeft));
        let trusted = BTreeSet::from(["dba".to_owned()]);
        let (before, after) = (user("dan", &[AUTHOR], true), user("dan", &[AUTHOR, "dba"], true));
        assert!(changes_who_decides(&before, &after, &[], &trusted));
        assert!(!changes_who_decides(&before, &after, &[], &BTreeSet::new()));
        let dependent = confirm(Some("ann"), "rita", Some("made"));
        assert!(matches!(dependent, Err(ConfirmationRefusal::NotIndependent(_))), "{dependent:?}");

        let one: People = [user("ann", &[ADMIN], true), user("bob", &[ADMIN], false)].into_iter().collect();
        let ann = UserId::new("ann");
        assert!(one.needs_second_admin(Some(&ann)) && !one.needs_second_admin(None));
        assert_eq!(change(Some("ann"), "rita").authorize_confirmation(None, &one, now), Ok(()));
    }

    #[test]
    fn nobody_rejects_a_change_of_the_own_account_but_its_proposer() {
        let reject = |proposed_by, subject, by: Option<&str>| {
            change(proposed_by, subject).authorize_rejection(by.map(UserId::new).as_ref())
        };
        assert_eq!(reject(Some("ann"), "bob", Some("bob")), Err(ConfirmationRefusal::Subject));
        assert_eq!(reject(Some("bob"), "bob", Some("bob")), Ok(()));
        assert_eq!(reject(Some("ann"), "bob", Some("eve")), Ok(()));
        assert_eq!(reject(Some("ann"), "bob", None), Ok(()));
    }
}
