//! Tokens: made for people and for agents, listed, revoked. Roles permit, scopes limit, and time ends every one of them.

use std::collections::BTreeSet;

use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::{Commit, StoredToken, Write};
use serde_json::json;

use super::{AccountService, hash, require_admin, secrets};
use crate::acts::{Act, new_id};
use crate::{Caller, Error, Outcome};

const LONGEST_NAME: usize = 128;
const USUALLY_MS: u64 = 30 * 86_400_000;
const LONGEST_MS: u64 = 365 * 86_400_000;
/// What decides is given for a day's work.
const DECIDE_MS: u64 = 8 * 3_600_000;
/// Tokens of one owner that are in force.
const MOST_TOKENS: usize = 1_000;

/// A token to be made.
#[derive(Debug, Clone, Default)]
pub struct TokenDraft {
    /// A name for people.
    pub name: String,
    /// What it is good for.
    pub scopes: Option<BTreeSet<Scope>>,
    /// How long.
    pub ttl_seconds: Option<u64>,
}

/// A token that was made just now.
pub struct MadeToken {
    /// As it is stored.
    pub token: StoredToken,
    /// The token itself: told now and never again.
    pub secret: String,
}

/// Without the token itself.
impl std::fmt::Debug for MadeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeToken").field("token", &self.token.token_id).finish_non_exhaustive()
    }
}

impl Caller {
    fn is(&self, user: &UserId) -> bool {
        self.agent_id.is_none() && self.user.as_ref().is_some_and(|own| own.user_id == *user)
    }

    const fn is_bootstrap(&self) -> bool {
        self.user.is_none()
    }
}

impl AccountService {
    /// A token for a person: for oneself, or by an administrator. What decides is given to whoever is signed in, for itself
    /// alone, or by the bootstrap token: an administrator who could make it for others could decide in their names.
    pub async fn create_token(
        &self,
        of: &str,
        draft: &TokenDraft,
        caller: &Caller,
    ) -> Result<MadeToken, Error> {
        let owner = UserId::new(of);
        if !caller.is(&owner) {
            require_admin(caller)?;
        }
        let user = self.known(of).await?;
        if !user.user.active {
            return Err(Error::Forbidden(format!("{of} is not active, and cannot have a token")));
        }
        let usual = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        let scopes = draft.scopes.clone().unwrap_or(usual);
        // Not by a token: else it would go on for longer than it was given for.
        let by_password = caller.is_bootstrap() || (caller.is(&owner) && caller.who.session_id.is_some());
        if scopes.contains(&Scope::Decide) && !by_password {
            let detail = "a token that decides is made by whoever it is for, signed in with a password: ade login --decide";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        if scopes.contains(&Scope::Admin) && !by_password {
            let detail = "a token that administers is made by whoever it is for, signed in with a password: ade login --admin";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        self.make(Some(owner), None, scopes, draft, caller).await
    }

    /// A token for an agent: it proposes, locks and reads for its sponsor, and nothing else.
    pub async fn create_agent_token(
        &self,
        agent_id: &str,
        sponsor: &UserId,
        draft: &TokenDraft,
        caller: &Caller,
    ) -> Result<MadeToken, Error> {
        let most = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        let scopes = draft.scopes.clone().unwrap_or_else(|| most.clone());
        if !scopes.is_subset(&most) {
            return Err(Error::invalid("/scopes", "may be read, propose and lock for an agent"));
        }
        self.make(Some(sponsor.clone()), Some(agent_id.to_owned()), scopes, draft, caller).await
    }

    async fn make(
        &self,
        user_id: Option<UserId>,
        agent_id: Option<String>,
        scopes: BTreeSet<Scope>,
        draft: &TokenDraft,
        caller: &Caller,
    ) -> Result<MadeToken, Error> {
        let fits = !draft.name.trim().is_empty()
            && draft.name.len() <= LONGEST_NAME
            && !draft.name.chars().any(char::is_control);
        if !fits {
            return Err(Error::invalid("/name", format!("must be 1 to {LONGEST_NAME} bytes")));
        }
        if scopes.is_empty() {
            return Err(Error::invalid("/scopes", "must name at least one"));
        }
        // Whoever acts with a token cannot give more than that has.
        if let Some(more) =
            scopes.iter().find(|scope| !caller.is_bootstrap() && !caller.scopes.contains(scope))
        {
            return Err(Error::Scope(*more));
        }
        let longest = if scopes.contains(&Scope::Decide) { DECIDE_MS } else { LONGEST_MS };
        let ttl_ms = draft.ttl_seconds.map_or(USUALLY_MS.min(longest), |ttl| ttl.saturating_mul(1_000));
        if ttl_ms == 0 || ttl_ms > longest {
            return Err(Error::invalid("/ttl_seconds", format!("must be between 1 and {}", longest / 1_000)));
        }
        let now = self.clock.now();
        let owned = match (&agent_id, &user_id) {
            (Some(agent), _) => self.record.tokens_of_agent(agent).await?,
            (None, Some(user)) => self.record.tokens_of(user).await?,
            (None, None) => Vec::new(),
        };
        let in_force = |token: &&StoredToken| token.revoked_at.is_none() && token.expires_at > now;
        if owned.iter().filter(in_force).count() >= MOST_TOKENS {
            return Err(Error::Forbidden(format!(
                "{MOST_TOKENS} tokens are in force already; revoke some first"
            )));
        }
        let secret = secrets::new("ade_")?;
        let token = StoredToken {
            token_id: new_id(),
            token_hash: hash(&secret),
            user_id,
            agent_id,
            name: draft.name.clone(),
            scopes,
            // Whoever made what this is made with is behind this as well.
            made_by: caller
                .token_made_by
                .clone()
                .or_else(|| caller.user.as_ref().map(|user| user.user_id.clone())),
            created_at: now,
            // What is made with a token ends with it.
            expires_at: caller.ends_at.map_or(now.plus_ms(ttl_ms), |ends| ends.min(now.plus_ms(ttl_ms))),
            revoked_at: None,
        };
        let mut commit = Commit::default();
        commit.writes.push(Write::Token(token.clone()));
        let mut act = Act { action: "token.create", object_id: &token.token_id, ..Act::default() };
        act.details.insert("of".to_owned(), json!(token.user_id));
        act.details.insert("agent_id".to_owned(), json!(token.agent_id));
        act.details.insert("scopes".to_owned(), json!(token.scopes));
        act.add(&mut commit, Some(caller), now);
        if let Some(keep) = &caller.keep {
            keep.add(&mut commit, Outcome::Token(&token), now);
        }
        self.record.commit(commit).await?;
        Ok(MadeToken { token, secret })
    }

    /// The tokens of somebody that are in force, for itself or for an administrator.
    pub async fn tokens(&self, of: &str, caller: &Caller) -> Result<Vec<StoredToken>, Error> {
        caller.require(Scope::Read)?;
        let owner = UserId::new(of);
        if !caller.is(&owner) {
            require_admin(caller)?;
        }
        self.known(of).await?;
        let now = self.clock.now();
        let mut tokens = self.record.tokens_of(&owner).await?;
        tokens
            .retain(|token| token.revoked_at.is_none() && token.expires_at > now && token.agent_id.is_none());
        Ok(tokens)
    }

    /// Revokes a token, at once and for good. Revoking it again changes nothing.
    pub async fn revoke_token(&self, of: &str, token_id: &str, caller: &Caller) -> Result<(), Error> {
        let owner = UserId::new(of);
        if !caller.is(&owner) {
            require_admin(caller)?;
        }
        let tokens = self.record.tokens_of(&owner).await?;
        let found = tokens.into_iter().find(|token| token.token_id == token_id);
        let mut token = found.ok_or(Error::NotFound("token"))?;
        if token.revoked_at.is_some() {
            return Ok(());
        }
        let now = self.clock.now();
        token.revoked_at = Some(now);
        let mut commit = Commit::default();
        commit.writes.push(Write::Token(token));
        Act { action: "token.revoke", object_id: token_id, ..Act::default() }.add(
            &mut commit,
            Some(caller),
            now,
        );
        Ok(self.record.commit(commit).await?)
    }
}
