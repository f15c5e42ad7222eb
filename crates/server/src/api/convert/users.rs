//! Conversions of users and tokens.

use ade_app::Caller;
use ade_app::accounts::{TokenDraft, UserChange};
use ade_client::wire;
use ade_domain::independence::{AccountAct, INDEPENDENCE_WINDOW_MS};
use ade_domain::permission::Scope;
use ade_store::database::{StoredToken, StoredUser};

use super::{Convert, convert_enums, convert_structs};

convert_enums! {
    Scope = wire::Scope { Read, Propose, Lock, Decide, Admin }
}

convert_structs! {
    wire::UserPatch => UserChange { name, roles, manager_id, team, email, active, password, current_password, revoke_tokens };
    wire::TokenRequest => TokenDraft { name, scopes, ttl_seconds };
}

/// As others see the user.
pub(crate) fn user_for(stored: &StoredUser, caller: &Caller) -> wire::User {
    let is_visible = caller.may_see_email_of(&stored.user.user_id);
    let user = user(stored);
    wire::User { email: user.email.filter(|_| is_visible), ..user }
}

/// As the user and administrators see it.
pub(crate) fn user(stored: &StoredUser) -> wire::User {
    let user = &stored.user;
    wire::User {
        user_id: user.user_id.to_string(),
        name: user.name.clone(),
        roles: user.roles.clone(),
        manager_id: user.manager_id.clone().convert(),
        team: user.team.clone(),
        email: user.email.clone(),
        active: user.active,
        acts: user.history.acts.iter().map(account_act).collect(),
        revision: stored.revision,
    }
}

fn account_act(act: &AccountAct) -> wire::AccountAct {
    let counts = !act.exempt && act.lifted.is_none();
    wire::AccountAct {
        kind: act.kind.as_str().to_owned(),
        by: act.by.to_string(),
        at: act.at.convert(),
        counts_until: counts.then(|| act.at.plus_ms(INDEPENDENCE_WINDOW_MS).convert()),
        exempt: act.exempt,
        lifted_at: act.lifted.as_ref().map(|lift| lift.at.convert()),
        lifted_by: act.lifted.as_ref().and_then(|lift| lift.by.as_ref()).map(ToString::to_string),
    }
}

/// The secret is known only when the token is created.
pub(crate) fn token(stored: &StoredToken, secret: Option<String>) -> wire::Token {
    wire::Token {
        token_id: stored.token_id.clone(),
        token: secret,
        name: stored.name.clone(),
        scopes: stored.scopes.clone().convert(),
        expires_at: stored.expires_at.convert(),
        revoked_at: stored.revoked_at.convert(),
        created_by: stored.created_by.clone().convert(),
        created_at: stored.created_at.convert(),
    }
}
