//! Wire types of users, sessions and tokens.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Time, nullable};

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Unique id.
    pub user_id: String,
    /// Display name.
    pub name: String,
    /// `author`, `reviewer`, `admin`, `auditor`, and any other role that policies require.
    pub roles: BTreeSet<String>,
    /// Manager, to whom approval requests escalate.
    pub manager_id: Option<String>,
    /// Team.
    pub team: Option<String>,
    /// Where notifications go; shown to the user and to administrators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Whether the user may act. Users who leave are deactivated, not deleted; invited users are inactive until they join.
    pub active: bool,
    /// Who created, invited or reset the account, or granted it the right to decide.
    #[serde(default)]
    pub acts: Vec<AccountAct>,
    /// Incremented with every change.
    pub revision: u64,
}

/// What an administrator did to an account. The two people are not independent for seven days, nor ever in an override.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountAct {
    /// `created`, `invited`, `reset`, `granted_admin`, `granted_reviewer`, `granted_policy_role` or `linked_identity`.
    pub kind: String,
    /// The administrator.
    pub by: String,
    /// Time of the act.
    pub at: Time,
    /// Until when the two people are not independent in the votes on a task; null if the act does not count.
    #[serde(default)]
    pub counts_until: Option<Time>,
    /// Does not count: an invitation by the only administrator there had ever been.
    pub exempt: bool,
    /// When an independent administrator, or the operator, confirmed that another person uses the account.
    pub lifted_at: Option<Time>,
    /// Who confirmed it; null for the operator.
    pub lifted_by: Option<String>,
}

/// Invites a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InvitationRequest {
    /// Unique id: 1 to 128 letters, digits, `.`, `_`, `-` or `@`.
    #[schema(pattern = "^[A-Za-z0-9._@-]{1,128}$")]
    pub user_id: String,
    /// Display name; the id by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// Roles, at most 50; `author` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, max_items = 50)]
    pub roles: Option<BTreeSet<String>>,
    /// Manager, to whom approval requests escalate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager_id: Option<String>,
    /// Team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub team: Option<String>,
}

/// An invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    /// The invited user, who is active once the invitation is used.
    pub user: User,
    /// The code, which can be used once; returned only when the invitation is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// End of validity.
    pub expires_at: Time,
}

/// A code with which you link your account of Slack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlackCode {
    /// The code, which can be used once and is returned only now: enter `link CODE` after the command of the Slack app.
    pub code: String,
    /// End of validity.
    pub expires_at: Time,
}

/// Uses an invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The code of the invitation.
    pub code: String,
    /// Your own password, 8 to 1,024 bytes.
    #[schema(min_length = 8, max_length = 1_024)]
    pub password: String,
}

/// Gives the password again in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReauthenticateRequest {
    /// Your password.
    pub password: String,
}

/// Creates a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    /// Unique id: 1 to 128 letters, digits, `.`, `_`, `-` or `@`.
    #[schema(pattern = "^[A-Za-z0-9._@-]{1,128}$")]
    pub user_id: String,
    /// Display name; the id by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// Roles, at most 50; `author` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, max_items = 50)]
    pub roles: Option<BTreeSet<String>>,
    /// Manager, to whom approval requests escalate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager_id: Option<String>,
    /// Team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub team: Option<String>,
    /// Address for notifications by e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 254)]
    pub email: Option<String>,
    /// Whether the user may act; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Temporary password, 8 to 1,024 bytes: it only leads to setting an own one. Without one the user cannot sign in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 8, max_length = 1_024)]
    pub password: Option<String>,
}

/// Updates a user. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub name: Option<String>,
    /// All roles; they replace the current ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, max_items = 50)]
    pub roles: Option<BTreeSet<String>>,
    /// Manager; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub manager_id: Option<Option<String>>,
    /// Team; null for none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub team: Option<Option<String>>,
    /// Address for notifications by e-mail; null for none. Users set their own in a session.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, max_length = 254)]
    pub email: Option<Option<String>>,
    /// Whether the user may act. A deactivated user is signed out, and other reviewers are asked instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// New password. Other sessions end, and tokens that decide or administer are revoked. One that an administrator sets is
    /// temporary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 8, max_length = 1_024)]
    pub password: Option<String>,
    /// Present password; required for a new password of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_password: Option<String>,
    /// With a new password: also revoke the tokens that neither decide nor administer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_tokens: Option<bool>,
}

/// Signs a user in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    /// User id.
    pub user_id: String,
    /// Password.
    pub password: String,
}

/// The caller: a user, an agent, or the bootstrap token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// The user; null for the bootstrap token.
    pub user: Option<User>,
    /// The agent, if the caller is one. `user` is then its sponsor.
    pub agent_id: Option<String>,
    /// Scopes of the token or session.
    pub scopes: BTreeSet<Scope>,
    /// End of the session.
    pub expires_at: Option<Time>,
    /// Until when the session decides. After that, give the password again: `POST /sessions/reauthenticate`.
    #[serde(default)]
    pub decides_until: Option<Time>,
    /// Whether somebody else set the password: the session can only be used to set your own.
    #[serde(default)]
    pub password_change_required: bool,
    /// Token to send as `X-CSRF-Token` with the session cookie in requests that change something. Returned only at
    /// sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf_token: Option<String>,
}

/// What a token can be used for. Roles permit, scopes limit: a request needs both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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
    /// All scopes.
    pub const ALL: [Self; 5] = [Self::Read, Self::Propose, Self::Lock, Self::Decide, Self::Admin];
}

/// Creates a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Display name, 1 to 128 bytes.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// Scopes; `read`, `propose` and `lock` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Scope>>, min_items = 1)]
    pub scopes: Option<BTreeSet<Scope>>,
    /// Validity in seconds: 30 days by default, at most a year. With the scope `decide`: 8 hours by default and at
    /// most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub ttl_seconds: Option<u64>,
}

/// A token of a user or agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Unique id.
    pub token_id: String,
    /// The secret; returned only when the token is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Display name.
    pub name: String,
    /// Scopes.
    pub scopes: BTreeSet<Scope>,
    /// End of validity.
    pub expires_at: Time,
    /// Time of revocation.
    pub revoked_at: Option<Time>,
    /// User who created it; null for the bootstrap token.
    pub created_by: Option<String>,
    /// Time of creation.
    pub created_at: Time,
}
