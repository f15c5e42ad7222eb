//! Independence: whether two accounts can be two parties of one decision. Somebody who created, invited or reset an account, or
//! granted it the right to decide, may act through it.
//!
//! Each account keeps all such acts. They also count through other accounts: creating an administrator who creates a reviewer is
//! the same as creating the reviewer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Moment;
use crate::people::{ADMIN, People, REVIEWER, User, UserId};

/// How long an act makes two accounts dependent in the votes on a task.
pub const INDEPENDENCE_WINDOW_MS: u64 = 7 * 86_400_000;

/// What one person did to the account of another.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AccountActKind {
    Created,
    Invited,
    /// Set its password, or made a new invitation for it.
    Reset,
    GrantedAdmin,
    GrantedReviewer,
    /// Any other role for which a policy asks, or which it trusts.
    GrantedPolicyRole,
    /// Set the signing secret through which the account was linked with one of another service.
    LinkedIdentity,
}

impl AccountActKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountAct {
    pub kind: AccountActKind,
    pub by: UserId,
    pub at: Moment,
    /// Does not count: an invitation by the only administrator there had ever been.
    pub exempt: bool,
    /// Set once an independent administrator or the operator confirmed that another person uses the account.
    pub lifted: Option<Lift>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lift {
    /// None for the operator.
    pub by: Option<UserId>,
    pub at: Moment,
}

/// Who could act through an account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountHistory {
    /// In order. Acts of the operator are not among them.
    pub acts: Vec<AccountAct>,
    /// Whether the user has ever been an administrator.
    pub was_admin: bool,
}

impl AccountHistory {
    /// Adds an act. The same act of the same person replaces the earlier one, which keeps the list bounded and never makes
    /// anybody more independent.
    pub fn record(&mut self, act: AccountAct) {
        let is_same = |old: &AccountAct| (old.kind, &old.by, old.exempt) == (act.kind, &act.by, act.exempt);
        self.acts.retain(|old| !is_same(old));
        self.acts.push(act);
    }

    /// Lifts all acts that count. Returns whether there was one.
    pub fn lift(&mut self, lift: &Lift) -> bool {
        let mut is_lifted = false;
        for act in self.acts.iter_mut().filter(|act| !act.exempt && act.lifted.is_none()) {
            act.lifted = Some(lift.clone());
            is_lifted = true;
        }
        is_lifted
    }
}

/// Which acts count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Those of the last seven days: for votes, and between authors and those who decide.
    Window,
    /// All: for both sides of an override.
    Ever,
}

impl AccountAct {
    fn counts(&self, period: Period, now: Moment) -> bool {
        let is_recent = period == Period::Ever || now < self.ends_at();
        is_recent && !self.exempt && self.lifted.is_none()
    }

    fn ends_at(&self) -> Moment {
        self.at.plus_ms(INDEPENDENCE_WINDOW_MS)
    }
}

/// An act, and the account that it was done to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountLink {
    pub by: UserId,
    pub kind: AccountActKind,
    pub of: UserId,
    pub at: Moment,
}

impl fmt::Display for AccountLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, of, .. } = self;
        match self.kind {
            AccountActKind::Created => write!(f, "{by} created the account of {of}"),
            AccountActKind::Invited => write!(f, "{by} invited {of}"),
            AccountActKind::Reset => write!(f, "{by} reset the password of {of}"),
            AccountActKind::GrantedAdmin => write!(f, "{by} granted {of} the role {ADMIN}"),
            AccountActKind::GrantedReviewer => write!(f, "{by} granted {of} the role {REVIEWER}"),
            AccountActKind::GrantedPolicyRole => write!(f, "{by} granted {of} a role of a policy"),
            AccountActKind::LinkedIdentity => write!(f, "{by} set the secret of the chat that {of} linked"),
        }
    }
}

/// Why two people are not independent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependence {
    pub user: UserId,
    /// The person whom `user` is not independent of.
    pub with: UserId,
    /// The acts through which one person may use both accounts.
    pub links: Vec<AccountLink>,
    /// When they become independent by themselves; none for never.
    pub until: Option<Moment>,
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, with, links, until } = self;
        let acts: Vec<String> = links.iter().map(ToString::to_string).collect();
        write!(f, "{user} is not independent of {with}: {}. ", acts.join(", "))?;
        if let Some(until) = until {
            write!(f, "This ends at {until}, or earlier when ")?;
        } else {
            f.write_str("This ends when ")?;
        }
        let accounts: BTreeSet<&str> = links.iter().map(|link| link.of.as_str()).collect();
        let commands: Vec<String> = accounts.iter().map(|of| format!("ade user confirm {of}")).collect();
        write!(f, "an independent administrator, or the operator, runs {}.", commands.join(" and "))
    }
}

/// The accounts through which each reviewer may be controlled, for checks of many pairs.
#[derive(Debug, Clone, Default)]
pub struct Controllers<'a>(BTreeMap<&'a UserId, BTreeSet<&'a UserId>>);

impl Controllers<'_> {
    pub fn are_independent(&self, one: &UserId, other: &UserId) -> bool {
        match (self.0.get(one), self.0.get(other)) {
            (None, None) => one != other,
            (Some(of_one), None) => !of_one.contains(other),
            (None, Some(of_other)) => !of_other.contains(one),
            (Some(of_one), Some(of_other)) => of_one.is_disjoint(of_other),
        }
    }
}

/// Everybody who may act through an account, with the act that leads one step closer to the account; none for its owner.
type Reach<'a> = BTreeMap<&'a UserId, Option<(&'a UserId, &'a AccountAct)>>;

impl People {
    fn reach<'a>(&'a self, user: &'a UserId, period: Period, now: Moment) -> Reach<'a> {
        let mut reach = Reach::from([(user, None)]);
        let mut open = VecDeque::from([user]);
        while let Some(of) = open.pop_front() {
            let acts = self.get(of).into_iter().flat_map(|found| &found.history.acts);
            for act in acts.filter(|act| act.counts(period, now)) {
                if !reach.contains_key(&act.by) {
                    reach.insert(&act.by, Some((of, act)));
                    open.push_back(&act.by);
                }
            }
        }
        reach
    }

    /// Who may act through each of these accounts.
    pub fn controllers<'a>(
        &'a self,
        users: impl IntoIterator<Item = &'a UserId>,
        period: Period,
        now: Moment,
    ) -> Controllers<'a> {
        let reaches = users.into_iter().map(|user| (user, self.reach(user, period, now)));
        let several = reaches.filter(|(_, reach)| reach.len() > 1);
        Controllers(several.map(|(user, reach)| (user, reach.into_keys().collect())).collect())
    }

    /// Why two accounts are not independent; none if they are. An account is not compared with itself.
    pub fn dependence(
        &self,
        user: &UserId,
        with: &UserId,
        period: Period,
        now: Moment,
    ) -> Option<Dependence> {
        let links = self.links(user, with, period, now)?;
        let (mut until, mut ends_at) = (None, links.iter().map(|link| link.at).min());
        while let (Period::Window, Some(at)) = (period, ends_at) {
            // Without the oldest act, others may still connect them.
            let later = at.plus_ms(INDEPENDENCE_WINDOW_MS);
            until = Some(later);
            ends_at = self
                .links(user, with, period, later)
                .and_then(|links| links.iter().map(|link| link.at).min());
        }
        Some(Dependence { user: user.clone(), with: with.clone(), links, until })
    }

    /// The acts that connect two accounts through one person.
    fn links(&self, user: &UserId, with: &UserId, period: Period, now: Moment) -> Option<Vec<AccountLink>> {
        if user == with {
            return None;
        }
        let [of_user, of_with] = [user, with].map(|of| self.reach(of, period, now));
        let common = of_user.keys().find(|controller| of_with.contains_key(**controller))?;
        let mut links = Vec::new();
        for reach in [&of_user, &of_with] {
            let mut present = *common;
            while let Some(Some((of, act))) = reach.get(present) {
                let link = AccountLink { by: act.by.clone(), kind: act.kind, of: (*of).clone(), at: act.at };
                if !links.contains(&link) {
                    links.push(link);
                }
                present = *of;
            }
        }
        Some(links)
    }

    /// Whether nobody else has ever been an administrator.
    pub fn is_only_admin_ever(&self, user: &UserId) -> bool {
        self.iter().all(|other| other.user_id == *user || !other.history.was_admin)
    }

    /// Whether an administrator may confirm that another person uses an account. All acts ever count, because confirming also
    /// makes overrides possible.
    pub fn authorize_confirmation(&self, by: &UserId, of: &UserId, now: Moment) -> Result<(), Dependence> {
        self.dependence(by, of, Period::Ever, now).map_or(Ok(()), Err)
    }
}

/// The grants of the right to decide that a change of roles contains. `policy_roles` are those that active policies name.
pub fn granted_roles(before: &User, after: &User, policy_roles: &BTreeSet<String>) -> Vec<AccountActKind> {
    let granted = after.roles.difference(&before.roles);
    let kinds = granted.filter_map(|role| match role.as_str() {
        ADMIN => Some(AccountActKind::GrantedAdmin),
        REVIEWER => Some(AccountActKind::GrantedReviewer),
        role => policy_roles.contains(role).then_some(AccountActKind::GrantedPolicyRole),
    });
    kinds.collect::<BTreeSet<_>>().into_iter().collect()
}
