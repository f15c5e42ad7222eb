//! Signing in, being recognised, signing out.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::{Commit, Password, Session, StoredToken, StoredUser, Write};

use super::users::LONGEST_ID;
use super::{AccountService, hash, secrets};
use crate::acts::{Act, new_id};
use crate::{Caller, Error};

/// How long a session lasts after its last use.
pub const SESSION_LASTS_MS: u64 = 24 * 3_600_000;
/// How much of that must have passed before it is prolonged: not every request writes.
const PROLONG_AFTER_MS: u64 = 60_000;

/// Somebody who signed in: both secrets are told now and never again.
pub struct SignedIn {
    /// Who.
    pub user: StoredUser,
    /// What the cookie holds.
    pub secret: String,
    /// What every request that changes something carries beside it.
    pub csrf_token: String,
    /// Until when, if it is not used.
    pub expires_at: Moment,
}

/// Without its secrets.
impl std::fmt::Debug for SignedIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignedIn").field("user", &self.user.user.user_id).finish_non_exhaustive()
    }
}

impl AccountService {
    /// Somebody signs in; nobody hears whether it was the name or the password that was wrong.
    pub async fn sign_in(&self, user_id: &str, password: String, who: AuditActor) -> Result<SignedIn, Error> {
        if user_id.len() > LONGEST_ID {
            return self.not_signed_in(user_id, false, who, self.clock.now());
        }
        let found = self.record.user(&UserId::new(user_id)).await?;
        let known = found.as_ref().filter(|found| found.user.active);
        let fits = self
            .passwords
            .fits(
                password,
                known.and_then(|known| known.password.as_ref().map(|password| password.hash.clone())),
            )
            .await?;
        let now = self.clock.now();
        let mut commit = Commit::default();
        let is_known = found.is_some();
        let Some(user) = found.filter(|found| found.user.active && fits) else {
            return self.not_signed_in(user_id, is_known, who, now);
        };
        let (secret, csrf_token) = (secrets::new("ades_")?, secrets::new("")?);
        let (session_id, expires_at) = (new_id(), now.plus_ms(SESSION_LASTS_MS));
        commit.writes.push(Write::Session(Session {
            session_id: session_id.clone(),
            session_hash: hash(&secret),
            csrf_hash: hash(&csrf_token),
            user_id: user.user.user_id.clone(),
            created_at: now,
            last_active: now,
            expires_at,
            ip: who.ip.clone(),
            user_agent: who.user_agent.clone(),
        }));
        let who = AuditActor {
            user_id: Some(user.user.user_id.clone()),
            session_id: Some(session_id.clone()),
            ..who
        };
        Act { action: "session.create", object_id: &session_id, ..Act::default() }.by(&mut commit, who, now);
        self.record.commit(commit).await?;
        Ok(SignedIn { user, secret, csrf_token, expires_at })
    }

    /// Tries at people who are there are recorded. What was typed as a name that nobody has may be a password: it is not.
    fn not_signed_in(
        &self,
        user_id: &str,
        is_known: bool,
        who: AuditActor,
        now: Moment,
    ) -> Result<SignedIn, Error> {
        if is_known {
            let mut commit = Commit::default();
            Act { action: "session.refuse", object_id: user_id, ..Act::default() }.by(&mut commit, who, now);
            // Beside the answer: how long that takes tells nobody who is known.
            let record = self.record.clone();
            tokio::spawn(async move {
                if let Err(error) = record.commit(commit).await {
                    tracing::error!(%error, "a refused sign-in is not in the audit log");
                }
            });
        }
        Err(Error::Unauthenticated(
            "user and password do not fit; try again, or ask an administrator".to_owned(),
        ))
    }

    /// Whose session this is, and the hash of what its requests carry besides; prolonged by being used.
    pub async fn by_session(&self, secret: &str, who: AuditActor) -> Result<(Caller, Session), Error> {
        let (now, session_hash) = (self.clock.now(), hash(secret));
        let over = || Error::Unauthenticated("the session is over; sign in again".to_owned());
        let (mut session, user) = self.record.authority_of_session(&session_hash).await?.ok_or_else(over)?;
        if session.expires_at <= now || !user.user.active {
            return Err(over());
        }
        if now.ms_since(session.last_active) >= PROLONG_AFTER_MS {
            (session.last_active, session.expires_at) = (now, now.plus_ms(SESSION_LASTS_MS));
            let touch = Write::TouchSession {
                session_hash,
                last_active: session.last_active,
                expires_at: session.expires_at,
            };
            self.record.commit(Commit { writes: vec![touch], ..Commit::default() }).await?;
        }
        // Whoever set the password may be the one who signed in.
        let watched = |password: &Password| password.watched_until.is_none_or(|until| until > now);
        let token_made_by = user.password.filter(watched).and_then(|password| password.set_by);
        let user_id = Some(user.user.user_id.clone());
        let who = AuditActor { user_id, session_id: Some(session.session_id.clone()), ..who };
        let scopes = Scope::ALL.into_iter().collect();
        let user = Some(user.user);
        let caller = Caller {
            user,
            agent_id: None,
            scopes,
            token_made_by,
            who,
            if_match: None,
            ends_at: None,
            keep: None,
        };
        Ok((caller, session))
    }

    /// Whose token this is.
    pub async fn by_token(&self, secret: &str, who: AuditActor) -> Result<(Caller, StoredToken), Error> {
        let invalid = || Error::Unauthenticated("the token is not valid".to_owned());
        let found = self.record.authority_of_token(&hash(secret)).await?;
        let (token, user) = found.ok_or_else(invalid)?;
        if token.revoked_at.is_some() || token.expires_at <= self.clock.now() {
            return Err(Error::Unauthenticated(
                "the token has ended; make a new one, or ade login".to_owned(),
            ));
        }
        let user = user.filter(|user| user.user.active).ok_or_else(invalid)?.user;
        let who = AuditActor {
            user_id: Some(user.user_id.clone()),
            agent_id: token.agent_id.clone(),
            token_id: Some(token.token_id.clone()),
            ..who
        };
        let caller = Caller {
            user: Some(user),
            agent_id: token.agent_id.clone(),
            scopes: token.scopes.clone(),
            token_made_by: token.made_by.clone(),
            who,
            if_match: None,
            ends_at: Some(token.expires_at),
            keep: None,
        };
        Ok((caller, token))
    }

    /// The bootstrap token: it administers, counts as nobody, and decides nothing.
    #[must_use]
    pub fn bootstrap(who: AuditActor) -> Caller {
        let scopes: BTreeSet<Scope> =
            Scope::ALL.into_iter().filter(|scope| *scope != Scope::Decide).collect();
        let who = AuditActor { token_id: Some("bootstrap".to_owned()), ..who };
        Caller {
            user: None,
            agent_id: None,
            scopes,
            token_made_by: None,
            who,
            if_match: None,
            ends_at: None,
            keep: None,
        }
    }

    /// Somebody signs out.
    pub async fn sign_out(&self, secret: &str, caller: &Caller) -> Result<(), Error> {
        let (Some(user), Some(session)) = (&caller.user, &caller.who.session_id) else {
            return Err(Error::NotFound("session"));
        };
        let mut commit = Commit::default();
        let (session_hash, user_id) = (Some(hash(secret)), user.user_id.to_string());
        commit.writes.push(Write::EndSessions { session_hash, user_id });
        let act = Act { action: "session.end", object_id: session, ..Act::default() };
        act.add(&mut commit, Some(caller), self.clock.now());
        Ok(self.record.commit(commit).await?)
    }
}
