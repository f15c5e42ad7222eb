//! Conversions of users and tokens.

use ade_client::wire;
use ade_store::database::{StoredToken, StoredUser};

pub(crate) fn user(stored: &StoredUser) -> wire::User {
    let user = &stored.user;
    wire::User {
        user_id: user.user_id.to_string(),
        name: user.name.clone(),
        roles: user.roles.clone(),
        manager_id: user.manager_id.as_ref().map(ToString::to_string),
        team: user.team.clone(),
        active: user.active,
        revision: stored.revision,
    }
}

/// The secret is known only when the token is created.
pub(crate) fn token(stored: &StoredToken, secret: Option<String>) -> wire::Token {
    wire::Token {
        token_id: stored.token_id.clone(),
        token: secret,
        name: stored.name.clone(),
        scopes: stored.scopes.clone(),
        expires_at: stored.expires_at.into(),
        revoked_at: stored.revoked_at.map(Into::into),
        made_by: stored.created_by.as_ref().map(ToString::to_string),
        created_at: stored.created_at.into(),
    }
}
