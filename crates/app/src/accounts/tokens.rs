//! Tokens of users and agents: create, list, revoke. Roles permit, scopes limit, and every token expires.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::{StoredToken, Write};
use serde_json::json;

use super::sessions::DECIDE_TTL_MS;
use super::{AccountService, hash_secret, random_secrets};
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::{Caller, Error, ObjectKind, Outcome, Result, new_id};

const MAX_NAME_LEN: usize = 128;
const DEFAULT_TTL_MS: u64 = 30 * 86_400_000;
const MAX_TTL_MS: u64 = 365 * 86_400_000;
/// Valid tokens of one owner.
const MAX_TOKENS: usize = 1_000;

#[derive(Debug, Clone, Default)]
pub struct TokenDraft {
    pub name: String,
    pub scopes: Option<BTreeSet<Scope>>,
    pub ttl_seconds: Option<u64>,
}

/// A new token with its secret, which is shown now and never again.
pub struct NewToken {
    pub token: StoredToken,
    pub secret: String,
}

/// Hides the secret.
impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("token", &self.token.token_id).finish_non_exhaustive()
    }
}

/// Fails unless the caller is the owner of the tokens, or an administrator.
fn require_owner(caller: &Caller, user_id: &str) -> Result<()> {
    if caller.is_user(user_id) { Ok(()) } else { caller.require_admin() }
}

fn is_valid(token: &StoredToken, now: Moment) -> bool {
    token.revoked_at.is_none() && token.expires_at > now
}

impl AccountService {
    /// Creates a token of a user: by the user, or by an administrator. A token that decides can only be created by its user in a
    /// session: an administrator who could create it for others could decide in their names. The bootstrap token can only with
    /// `security.bootstrap_decides`.
    pub async fn create_token(&self, user_id: &str, draft: &TokenDraft, caller: &Caller) -> Result<NewToken> {
        require_owner(caller, user_id)?;
        let user = self.load_user(user_id).await?;
        if !user.user.active {
            return Err(Error::Forbidden(format!("{user_id} is not active and cannot have a token")));
        }
        let default = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        let scopes = draft.scopes.clone().unwrap_or(default);
        // Not with a token: it could renew itself beyond its own expiry.
        let by_password = caller.is_user(user_id) && caller.audit_actor.session_id.is_some();
        let is_operator = caller.user.is_none();
        for (scope, by_operator) in [(Scope::Decide, self.bootstrap_decides), (Scope::Admin, true)] {
            if scopes.contains(&scope) && !by_password && !(is_operator && by_operator) {
                return Err(Error::Forbidden(format!(
                    "a token with the scope {} can only be created by its owner, signed in with a password",
                    scope.as_str()
                )));
            }
        }
        self.issue_token(UserId::new(user_id), None, scopes, draft, caller).await
    }

    /// Creates a token of an agent, which can only propose, lock and read for its sponsor.
    pub async fn create_agent_token(
        &self,
        agent_id: &str,
        sponsor: &UserId,
        draft: &TokenDraft,
        caller: &Caller,
    ) -> Result<NewToken> {
        let allowed = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        let scopes = draft.scopes.clone().unwrap_or_else(|| allowed.clone());
        if !scopes.is_subset(&allowed) {
            return Err(Error::invalid("scopes", "can only be read, propose and lock for an agent"));
        }
        self.issue_token(sponsor.clone(), Some(agent_id.to_owned()), scopes, draft, caller).await
    }

    async fn issue_token(
        &self,
        user_id: UserId,
        agent_id: Option<String>,
        scopes: BTreeSet<Scope>,
        draft: &TokenDraft,
        caller: &Caller,
    ) -> Result<NewToken> {
        let is_valid_name = !draft.name.trim().is_empty()
            && draft.name.len() <= MAX_NAME_LEN
            && !draft.name.chars().any(char::is_control);
        if !is_valid_name {
            let detail = format!("must be 1 to {MAX_NAME_LEN} bytes without control characters");
            return Err(Error::invalid("name", detail));
        }
        if scopes.is_empty() {
            return Err(Error::invalid("scopes", "must have at least one scope"));
        }
        // A caller with a token cannot grant scopes that the token lacks.
        let is_missing = |scope: &&Scope| caller.user.is_some() && !caller.scopes.contains(scope);
        if let Some(missing) = scopes.iter().find(is_missing) {
            return caller.require_scope(*missing).and(Err(Error::Scope(*missing)));
        }
        let max_ms = if scopes.contains(&Scope::Decide) { DECIDE_TTL_MS } else { MAX_TTL_MS };
        let ttl_ms = draft.ttl_seconds.map_or(DEFAULT_TTL_MS.min(max_ms), |ttl| ttl.saturating_mul(1_000));
        if ttl_ms == 0 || ttl_ms > max_ms {
            return Err(Error::invalid("ttl_seconds", format!("must be between 1 and {}", max_ms / 1_000)));
        }
        let now = self.context.now();
        // A token that is created with a token expires with it at the latest, and one that decides when its session would have to
        // give the password again.
        let decides_until = caller.decides_until.filter(|_| scopes.contains(&Scope::Decide));
        let ends = [caller.token_expires_at, decides_until].into_iter().flatten();
        let expires_at = ends.fold(now.plus_ms(ttl_ms), Moment::min);
        let existing = match &agent_id {
            Some(agent) => self.context.database.agent_tokens(agent).await?,
            None => self.context.database.user_tokens(&user_id).await?,
        };
        if existing.iter().filter(|token| is_valid(token, now)).count() >= MAX_TOKENS {
            return Err(Error::Forbidden(format!(
                "there are already {MAX_TOKENS} valid tokens; revoke some first"
            )));
        }
        let secret = random_secrets::new("ade_")?;
        let token = StoredToken {
            token_id: new_id(),
            token_hash: hash_secret(&secret),
            user_id: Some(user_id),
            agent_id,
            name: draft.name.clone(),
            scopes,
            // The creator of the caller's token is also the creator of this one.
            created_by: caller.credentials_creator(),
            created_at: now,
            password_at: caller.password_at,
            expires_at,
            revoked_at: None,
        };
        let mut action = AuditedAction::new("token.create", &token.token_id);
        action.details.insert("of".to_owned(), json!(token.user_id));
        action.details.insert("agent_id".to_owned(), json!(token.agent_id));
        action.details.insert("scopes".to_owned(), json!(token.scopes));
        let mut commit = action.commit(vec![Write::Token(token.clone())], caller, now);
        let stored = || Outcome::Token(StoredToken { token_hash: String::new(), ..token.clone() });
        commit.response = stored_response(caller, |_| stored())?;
        self.context.database.commit(commit).await?;
        Ok(NewToken { token, secret })
    }

    /// The valid tokens of a user, without those of agents: for the user or an administrator.
    pub async fn tokens(&self, user_id: &str, caller: &Caller) -> Result<Vec<StoredToken>> {
        caller.require_scope(Scope::Read)?;
        require_owner(caller, user_id)?;
        self.load_user(user_id).await?;
        let now = self.context.now();
        let mut tokens = self.context.database.user_tokens(&UserId::new(user_id)).await?;
        tokens.retain(|token| is_valid(token, now) && token.agent_id.is_none());
        Ok(tokens)
    }

    /// The valid tokens of an agent: for its sponsor or an administrator, as `AgentService::require_sponsor` has checked.
    pub async fn agent_tokens(&self, agent_id: &str, caller: &Caller) -> Result<Vec<StoredToken>> {
        caller.require_scope(Scope::Read)?;
        let now = self.context.now();
        let mut tokens = self.context.database.agent_tokens(agent_id).await?;
        tokens.retain(|token| is_valid(token, now));
        Ok(tokens)
    }

    /// Revokes a token immediately. Revoking it again changes nothing.
    pub async fn revoke_token(&self, user_id: &str, token_id: &str, caller: &Caller) -> Result<()> {
        require_owner(caller, user_id)?;
        let tokens = self.context.database.user_tokens(&UserId::new(user_id)).await?;
        let found = tokens.into_iter().find(|token| token.token_id == token_id);
        let mut token = found.ok_or(Error::NotFound(ObjectKind::Token))?;
        // A token revokes itself and those of agents; a weak one must not end the others.
        let is_own = caller.audit_actor.token_id.as_deref() == Some(token_id);
        if caller.session_hash.is_none() && !is_own {
            caller.require_scope(if token.agent_id.is_some() { Scope::Lock } else { Scope::Admin })?;
        }
        if token.revoked_at.is_some() {
            return Ok(());
        }
        let now = self.context.now();
        token.revoked_at = Some(now);
        let action = AuditedAction::new("token.revoke", token_id);
        let commit = action.commit(vec![Write::Token(token)], caller, now);
        Ok(self.context.database.commit(commit).await?)
    }
}
