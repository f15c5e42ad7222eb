//! What a user is changed to: as it was requested, and as it waits for a second administrator. It changes nothing itself.

use std::collections::BTreeSet;

use ade_domain::email::{MAX_EMAIL_LEN, is_email_address};
use ade_domain::people::{ADMIN, SYSTEM, User, UserId};
use ade_domain::{InvalidField, Moment};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::{Result, set};

pub(super) const MAX_ID_LEN: usize = 128;
const MAX_TEXT_LEN: usize = 256;
const MAX_ROLES: usize = 50;
/// Parts of paths in place of a user id.
const RESERVED_IDS: [&str; 2] = ["me", "invitations"];

#[derive(Debug, Clone, Default, Deserialize)]
pub struct UserDraft {
    pub user_id: String,
    #[serde(flatten)]
    pub change: UserChange,
}

/// A change of a user; `None` leaves a field as it is.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UserChange {
    pub name: Option<String>,
    /// Replaces all roles.
    pub roles: Option<BTreeSet<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub manager_id: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub team: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub email: Option<Option<String>>,
    pub active: Option<bool>,
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// The present password, which a user's own new one needs.
    #[serde(skip_serializing)]
    pub current_password: Option<String>,
    /// With a new password: also revokes the tokens that neither decide nor administer.
    pub revoke_tokens: Option<bool>,
}

/// A present null clears a field; an absent one leaves it as it is.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// Hides the password.
impl std::fmt::Debug for UserChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.details()).finish()
    }
}

impl UserChange {
    pub(super) const fn is_password_only(&self) -> bool {
        self.has_no_rights() && self.email.is_none() && self.password.is_some()
    }

    pub(super) const fn is_email_only(&self) -> bool {
        let passwords = (&self.password, &self.current_password, &self.revoke_tokens);
        self.has_no_rights() && matches!(passwords, (None, None, None)) && self.email.is_some()
    }

    /// Whether nothing changes that only administrators change.
    const fn has_no_rights(&self) -> bool {
        let fields = (&self.name, &self.roles, &self.manager_id, &self.team, &self.active);
        matches!(fields, (None, None, None, None, None))
    }

    pub(super) fn apply(&self, user: &mut User) {
        set(&mut user.name, &self.name);
        set(&mut user.roles, &self.roles);
        set(&mut user.manager_id, &self.manager_id.as_ref().map(|id| id.as_deref().map(UserId::new)));
        set(&mut user.team, &self.team);
        set(&mut user.email, &self.email);
        set(&mut user.active, &self.active);
        user.history.was_admin |= user.has_role(ADMIN);
    }

    /// This change without the fields that the user has already.
    fn differing_from(&self, user: &User) -> Self {
        fn differs<T: PartialEq + Clone>(new: &Option<T>, present: &T) -> Option<T> {
            new.clone().filter(|new| new != present)
        }
        Self {
            name: differs(&self.name, &user.name),
            roles: differs(&self.roles, &user.roles),
            manager_id: differs(&self.manager_id, &user.manager_id.as_ref().map(ToString::to_string)),
            team: differs(&self.team, &user.team),
            email: differs(&self.email, &user.email),
            active: differs(&self.active, &user.active),
            ..self.clone()
        }
    }

    /// What the user has in place of the new values.
    fn replaced_details(&self, user: &User) -> Map<String, Value> {
        let replaced = Self {
            name: self.name.as_ref().map(|_| user.name.clone()),
            roles: self.roles.as_ref().map(|_| user.roles.clone()),
            manager_id: self.manager_id.as_ref().map(|_| user.manager_id.as_ref().map(ToString::to_string)),
            team: self.team.as_ref().map(|_| user.team.clone()),
            active: self.active.map(|_| user.active),
            ..Self::default()
        };
        replaced.details()
    }

    /// The new values, for the audit log: never the password, nor the address, which auditors do not see.
    pub(super) fn details(&self) -> Map<String, Value> {
        let fields = [
            ("name", self.name.as_ref().map(|name| json!(name))),
            ("roles", self.roles.as_ref().map(|roles| json!(roles))),
            ("manager_id", self.manager_id.as_ref().map(|manager| json!(manager))),
            ("team", self.team.as_ref().map(|team| json!(team))),
            (
                "email",
                self.email.as_ref().map(|email| json!(if email.is_some() { "changed" } else { "removed" })),
            ),
            ("active", self.active.map(|active| json!(active))),
            ("password", self.password.as_ref().map(|_| json!("changed"))),
            ("revoke_tokens", self.revoke_tokens.map(|revoke| json!(revoke))),
        ];
        fields.into_iter().filter_map(|(name, value)| value.map(|value| (name.to_owned(), value))).collect()
    }
}

/// A change of a user with its new password, which may wait for a second administrator.
#[derive(Serialize, Deserialize)]
pub(crate) struct UserProposal {
    pub(super) change: UserChange,
    pub(super) password_hash: Option<String>,
    /// Set while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) waits: Option<WaitingChange>,
}

/// What a change keeps of the account while it waits. Whom it concerns must not be able to outdate it by changing something else, so
/// it gives and takes roles and leaves the others as they are by then. But who confirms it decides about the account as it was.
#[derive(Serialize, Deserialize)]
pub(super) struct WaitingChange {
    /// In place of the roles of the change.
    added_roles: BTreeSet<String>,
    removed_roles: BTreeSet<String>,
    was_active: bool,
}

impl UserProposal {
    pub(super) fn details(&self) -> Map<String, Value> {
        let mut details = self.change.details();
        details.extend(self.password_hash.as_ref().map(|_| ("password".to_owned(), json!("changed"))));
        details
    }

    pub(super) fn apply(&self, user: &mut User) {
        if let Some(waits) = &self.waits {
            user.roles =
                user.roles.difference(&waits.removed_roles).chain(&waits.added_roles).cloned().collect();
        }
        self.change.apply(user);
    }

    /// The same change without what changes nothing now, and with what to show about it.
    pub(super) fn waiting(&self, before: &User) -> (Self, Map<String, Value>) {
        let mut waiting = Self {
            change: self.change.differing_from(before),
            password_hash: self.password_hash.clone(),
            waits: None,
        };
        let mut details = waiting.details();
        details.insert("before".to_owned(), waiting.change.replaced_details(before).into());
        let roles = waiting.change.roles.take().unwrap_or_else(|| before.roles.clone());
        waiting.waits = Some(WaitingChange {
            added_roles: roles.difference(&before.roles).cloned().collect(),
            removed_roles: before.roles.difference(&roles).cloned().collect(),
            was_active: before.active,
        });
        (waiting, details)
    }

    /// Whether somebody has done something to the account that who confirms the change may not know of.
    pub(super) fn is_outdated(&self, user: &User, proposed_at: Moment) -> bool {
        user.history.acts.iter().any(|act| act.at >= proposed_at)
            || self.waits.as_ref().is_some_and(|waits| waits.was_active != user.active)
    }
}

pub(super) fn faults(user: &User) -> Vec<InvalidField> {
    let mut faults = Vec::new();
    let mut check = |is_valid: bool, path: &str, detail: String| {
        if !is_valid {
            faults.push(InvalidField::at(path, detail));
        }
    };
    let is_text = |text: &str, max: usize| {
        !text.trim().is_empty() && text.len() <= max && !text.chars().any(char::is_control)
    };
    let is_id = |id: &str| {
        (1..=MAX_ID_LEN).contains(&id.len())
            && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c))
            && !RESERVED_IDS.contains(&id)
    };
    let id =
        format!("must be 1 to {MAX_ID_LEN} letters, digits, '.', '_', '-' or '@', and not me or invitations");
    check(is_id(user.user_id.as_str()), "user_id", id);
    let text = || format!("must be 1 to {MAX_TEXT_LEN} bytes without control characters");
    check(is_text(&user.name, MAX_TEXT_LEN), "name", text());
    let roles = user.roles.iter().all(|role| is_text(role, MAX_ID_LEN)) && user.roles.len() <= MAX_ROLES;
    check(roles, "roles", format!("must be at most {MAX_ROLES} roles of 1 to {MAX_ID_LEN} bytes each"));
    let is_grantable = !user.has_role(SYSTEM);
    check(is_grantable, "roles", format!("must not contain {SYSTEM}, the role of the service itself"));
    check(user.team.as_deref().is_none_or(|team| is_text(team, MAX_TEXT_LEN)), "team", text());
    let is_address = user.email.as_deref().is_none_or(is_email_address);
    check(
        is_address,
        "email",
        format!("must be an address such as ann@example.com of at most {MAX_EMAIL_LEN} ASCII characters"),
    );
    let is_own_manager = user.manager_id.as_ref() == Some(&user.user_id);
    check(!is_own_manager, "manager_id", "must be another user".to_owned());
    faults
}
