//! People, sessions and tokens on the wire.

use std::collections::BTreeSet;

use ade_domain::permission::Scope;
use serde::{Deserialize, Serialize};

use super::{Time, given};

/// A person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct User {
    /// What it is known by.
    pub user_id: String,
    /// A name for people.
    pub name: String,
    /// `author`, `reviewer`, `admin`, and any others that policies ask for.
    pub roles: BTreeSet<String>,
    /// To whom its requests go when nobody else is left.
    pub manager_id: Option<String>,
    /// Whom it works with.
    pub team: Option<String>,
    /// Whether it still works here.
    pub active: bool,
    /// Grows with every change.
    pub revision: u64,
}

/// A person to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    /// What it is known by: 1 to 128 letters, digits, `.`, `_`, `-` or `@`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9._@-]{1,128}$"))]
    pub user_id: String,
    /// A name for people; the id, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub name: Option<String>,
    /// At most 50; `author`, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>, max_items = 50))]
    pub roles: Option<BTreeSet<String>>,
    /// To whom its requests go when nobody else is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manager_id: Option<String>,
    /// Whom it works with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub team: Option<String>,
    /// Whether it works here; it does, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// What it signs in with: 8 to 1,024 bytes. Without one it cannot sign in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 8, max_length = 1_024))]
    pub password: Option<String>,
}

/// What changes about a person.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UserPatch {
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 256))]
    pub name: Option<String>,
    /// All of its roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<String>>, max_items = 50))]
    pub roles: Option<BTreeSet<String>>,
    /// To whom its requests go when nobody else is left; null for nobody.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub manager_id: Option<Option<String>>,
    /// Whom it works with; null for nobody.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 256))]
    pub team: Option<Option<String>>,
    /// Whether it still works here. Whoever leaves is signed out, and others are asked in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// What it signs in with from now on; it is signed out everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 8, max_length = 1_024))]
    pub password: Option<String>,
}

/// Somebody signs in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// Who.
    pub user_id: String,
    /// Its password.
    pub password: String,
}

/// Who acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The person; null for the bootstrap token, which is nobody.
    pub user: Option<User>,
    /// The agent, if it is one.
    pub agent_id: Option<String>,
    /// What may be done.
    pub scopes: BTreeSet<Scope>,
    /// Until when.
    pub expires_at: Option<Time>,
    /// What every request that changes something carries as `X-CSRF-Token` beside the cookie; told at sign-in alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf_token: Option<String>,
}

/// A token to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// A name for people: 1 to 128 bytes.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub name: String,
    /// What it is good for; `read`, `propose` and `lock`, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Scope>>, min_items = 1))]
    pub scopes: Option<BTreeSet<Scope>>,
    /// How long: at most a year, with `decide` at most 8 hours; 30 days, with `decide` 8 hours, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 31_536_000))]
    pub ttl_seconds: Option<u64>,
}

/// A token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// What it is known by.
    pub token_id: String,
    /// The token itself: told once, when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A name for people.
    pub name: String,
    /// What it is good for.
    pub scopes: BTreeSet<Scope>,
    /// Until when.
    pub expires_at: Time,
    /// Since when not any more.
    pub revoked_at: Option<Time>,
    /// Who made it; null for the bootstrap token.
    pub made_by: Option<String>,
    /// When.
    pub created_at: Time,
}
