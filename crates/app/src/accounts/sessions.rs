//! Signing in and out, and authentication by session or token.

use std::time::Duration;

use ade_domain::Moment;
use ade_domain::audit::AuditActor;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::DatabaseError;
use ade_store::database::{Commit, Password, Session, StoredToken, StoredUser, Write};
use tokio::time::timeout;

use super::user_change::MAX_ID_LEN;
use super::{AccountService, csrf_token, hash_secret, random_secrets};
use crate::events::AuditedAction;
use crate::{Caller, Error, ObjectKind, Result, new_id};

/// How long a session lasts after its last use.
const SESSION_TTL_MS: u64 = 24 * 3_600_000;
/// How long a session lasts, however much it is used.
const MAX_SESSION_MS: u64 = 7 * 86_400_000;
/// How long a session decides after the password was given.
pub(super) const DECIDE_TTL_MS: u64 = 8 * 3_600_000;
/// How long a caller that was authenticated recently waits for the database.
const RECENT_CALLER_TIMEOUT: Duration = Duration::from_secs(1);
/// A session is renewed at most this often, so that not every request writes.
const RENEWAL_INTERVAL_MS: u64 = 60_000;

/// A new session. Both secrets are shown now and never again.
pub struct NewSession {
    pub user: StoredUser,
    /// The value of the session cookie.
    pub secret: String,
    /// Must be sent with every request that changes something.
    pub csrf_token: String,
    pub expires_at: Moment,
    pub caller: Caller,
}

/// An authenticated session.
#[derive(Debug)]
pub struct SessionUse {
    pub caller: Caller,
    pub session: Session,
    /// Whether this use extended the session.
    pub is_renewed: bool,
}

/// Hides the secrets.
impl std::fmt::Debug for NewSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewSession").field("user", &self.user.user.user_id).finish_non_exhaustive()
    }
}

impl AccountService {
    /// Starts a session. A failure does not reveal whether the user id or the password is wrong.
    pub async fn sign_in(&self, user_id: &str, password: String, actor: AuditActor) -> Result<NewSession> {
        if user_id.len() > MAX_ID_LEN {
            return self.refuse_sign_in(user_id, false, actor);
        }
        let found = self.context.database.user(&UserId::new(user_id)).await?;
        let is_known = found.is_some();
        let active = found.filter(|found| found.user.active);
        let stored = active.as_ref().and_then(|found| found.password.as_ref());
        let matches = self.passwords.verify(password, stored.map(|stored| stored.hash.clone())).await?;
        let Some(user) = active.filter(|_| matches) else {
            return self.refuse_sign_in(user_id, is_known, actor);
        };
        let now = self.context.now();
        let secret = random_secrets::new("ades_")?;
        let (session_id, expires_at) = (new_id(), now.plus_ms(SESSION_TTL_MS));
        let session = Session {
            session_id: session_id.clone(),
            session_hash: hash_secret(&secret),
            user_id: user.user.user_id.clone(),
            created_at: now,
            last_active: now,
            expires_at,
            password_at: now,
            ip: actor.ip.clone(),
            user_agent: actor.user_agent.clone(),
        };
        let actor = AuditActor {
            user_id: Some(user.user.user_id.clone()),
            session_id: Some(session_id.clone()),
            ..actor
        };
        let caller = session_caller(&user, &session, actor.clone(), now);
        let action = AuditedAction::new("session.create", &session_id);
        let commit = action.commit_as(actor, vec![Write::Session(session)], now);
        self.context.database.commit(commit).await?;
        let csrf_token = csrf_token(&secret);
        Ok(NewSession { user, secret, csrf_token, expires_at, caller })
    }

    /// Notes that the password was given again: the session decides for another while.
    pub async fn reauthenticate(
        &self,
        secret: &str,
        password: String,
        caller: &Caller,
    ) -> Result<SessionUse> {
        let (Some(user), Some(session_id)) = (&caller.user, &caller.audit_actor.session_id) else {
            return Err(Error::forbidden("only a session can be reauthenticated; sign in with the password"));
        };
        self.require_password(user.user_id.as_str(), password).await?;
        let (now, session_hash) = (self.context.now(), hash_secret(secret));
        let writes = vec![Write::ReauthenticateSession { session_hash, password_at: now }];
        let action = AuditedAction::new("session.reauthenticate", session_id);
        self.context.database.commit(action.commit(writes, caller, now)).await?;
        self.authenticate_session(secret, caller.audit_actor.clone()).await
    }

    /// The stored password of the user, if this is it.
    pub(super) async fn require_password(&self, user_id: &str, password: String) -> Result<Password> {
        let stored = self.load_user(user_id).await?.password;
        let hash = stored.as_ref().map(|stored| stored.hash.clone());
        let matches = self.passwords.verify(password, hash).await?;
        stored.filter(|_| matches).ok_or(Error::WrongPassword)
    }

    /// Failed attempts for existing users are audited. An unknown user id is not: it may be a password typed into the wrong field.
    fn refuse_sign_in(&self, user_id: &str, is_known: bool, actor: AuditActor) -> Result<NewSession> {
        if is_known {
            let action = AuditedAction::new("session.refuse", user_id);
            let commit = action.commit_as(actor, Vec::new(), self.context.now());
            // In the background: the response time must not reveal whether the user exists.
            let database = self.context.database.clone();
            tokio::spawn(async move {
                if let Err(error) = database.commit(commit).await {
                    tracing::error!(%error, "cannot audit a refused sign-in");
                }
            });
        }
        Err(Error::Unauthenticated(
            "user id or password is wrong; try again, or ask an administrator".to_owned(),
        ))
    }

    /// Authenticates a session, and renews it.
    pub async fn authenticate_session(&self, secret: &str, actor: AuditActor) -> Result<SessionUse> {
        let mut used = self.check_session(secret, actor).await?;
        let (now, session) = (self.context.now(), &mut used.session);
        used.is_renewed = now.ms_since(session.last_active) >= RENEWAL_INTERVAL_MS;
        if used.is_renewed {
            let end = session.created_at.plus_ms(MAX_SESSION_MS);
            (session.last_active, session.expires_at) = (now, now.plus_ms(SESSION_TTL_MS).min(end));
            let touch = Write::TouchSession {
                session_hash: session.session_hash.clone(),
                last_active: session.last_active,
                expires_at: session.expires_at,
            };
            self.context.database.commit(Commit { writes: vec![touch], ..Commit::default() }).await?;
        }
        Ok(used)
    }

    /// Authenticates a session without renewing it: for what stays open, and must not keep its session alive.
    pub async fn check_session(&self, secret: &str, actor: AuditActor) -> Result<SessionUse> {
        let (now, session_hash) = (self.context.now(), hash_secret(secret));
        let expired = || Error::Unauthenticated("the session has expired; sign in again".to_owned());
        let (session, user) =
            self.context.database.session_with_user(&session_hash).await?.ok_or_else(expired)?;
        if session.expires_at <= now || !user.user.active {
            return Err(expired());
        }
        let (user_id, session_id) = (Some(user.user.user_id.clone()), Some(session.session_id.clone()));
        let actor = AuditActor { user_id, session_id, ..actor };
        let caller = session_caller(&user, &session, actor, now);
        Ok(SessionUse { caller, session, is_renewed: false })
    }

    /// The caller of a token. While the database is unavailable, a token that was used recently is still good for locks.
    pub async fn identify_token(&self, secret: &str, actor: AuditActor) -> Result<Caller> {
        let (hash, database) = (hash_secret(secret), &self.context.database);
        // Before the token is read: a revocation meanwhile makes it outdated.
        let revocations = database.revocations();
        let recent = self.recent_callers.get(&hash, actor.clone(), self.context.now(), database);
        let authenticate = self.authenticate_token(secret, actor);
        let authenticated = match &recent {
            // Its locks cannot wait as long as others can.
            Some(_) => timeout(RECENT_CALLER_TIMEOUT, authenticate).await.ok(),
            None => Some(authenticate.await),
        };
        match (authenticated, recent) {
            (Some(Ok((caller, _))), _) => {
                self.recent_callers.remember(&hash, &caller, revocations);
                Ok(caller)
            }
            (None | Some(Err(Error::Database(DatabaseError::Unavailable(_)))), Some(recent)) => Ok(recent),
            (Some(Err(error)), _) => {
                if matches!(error, Error::Unauthenticated(_)) {
                    self.recent_callers.forget(&hash);
                }
                Err(error)
            }
            (None, None) => Err(Error::Database(DatabaseError::Unavailable("no answer in time".to_owned()))),
        }
    }

    /// Authenticates a token.
    pub async fn authenticate_token(&self, secret: &str, actor: AuditActor) -> Result<(Caller, StoredToken)> {
        let invalid = || Error::Unauthenticated("the token is not valid".to_owned());
        let found = self.context.database.token_with_user(&hash_secret(secret)).await?;
        let (token, user) = found.ok_or_else(invalid)?;
        if token.revoked_at.is_some() || token.expires_at <= self.context.now() {
            return Err(Error::Unauthenticated(
                "the token has expired or was revoked; create a new one, or sign in with ade login"
                    .to_owned(),
            ));
        }
        let user = user.filter(|user| user.user.active).ok_or_else(invalid)?.user;
        let actor = AuditActor {
            user_id: Some(user.user_id.clone()),
            agent_id: token.agent_id.clone(),
            token_id: Some(token.token_id.clone()),
            ..actor
        };
        // A token that somebody else made never decides, except by the operator's explicit setting.
        let mut scopes = token.scopes.clone();
        let is_own = token.created_by.as_ref() == Some(&user.user_id);
        let by_operator = token.created_by.is_none() && self.bootstrap_decides;
        if !is_own && !by_operator {
            scopes.remove(&Scope::Decide);
        }
        // The operator, who made the token without any password, has the data folder itself.
        let password_at = if by_operator { Some(self.context.now()) } else { token.password_at };
        let caller = Caller {
            password_at,
            agent_id: token.agent_id.clone(),
            token_created_by: token.created_by.clone(),
            token_expires_at: Some(token.expires_at),
            ..Caller::new(Some(user), scopes, actor)
        };
        Ok((caller, token))
    }

    /// The caller of the bootstrap token: it administers, is not a person, and makes no decisions.
    #[must_use]
    pub fn bootstrap_caller(actor: AuditActor) -> Caller {
        let scopes = Scope::ALL.into_iter().filter(|scope| *scope != Scope::Decide).collect();
        Caller::new(None, scopes, AuditActor { token_id: Some("bootstrap".to_owned()), ..actor })
    }

    pub async fn sign_out(&self, secret: &str, caller: &Caller) -> Result<()> {
        let (Some(user), Some(session)) = (&caller.user, &caller.audit_actor.session_id) else {
            return Err(Error::NotFound(ObjectKind::Session));
        };
        let (session_hash, user_id) = (Some(hash_secret(secret)), user.user_id.to_string());
        let writes = vec![Write::DeleteSessions { session_hash, user_id }];
        let commit = AuditedAction::new("session.end", session).commit(writes, caller, self.context.now());
        Ok(self.context.database.commit(commit).await?)
    }
}

/// The caller of a session: it decides only for a while after the password was given, and with a temporary password it only
/// sets another one.
fn session_caller(user: &StoredUser, session: &Session, actor: AuditActor, now: Moment) -> Caller {
    let password_change_required = user.password.as_ref().is_none_or(|password| password.is_temporary);
    let decides_until = session.password_at.plus_ms(DECIDE_TTL_MS);
    let is_granted = |scope: &Scope| *scope != Scope::Decide || now < decides_until;
    let scopes = Scope::ALL.into_iter().filter(|scope| !password_change_required && is_granted(scope));
    Caller {
        session_hash: Some(session.session_hash.clone()),
        decides_until: Some(decides_until),
        password_at: Some(session.password_at),
        password_change_required,
        ..Caller::new(Some(user.user.clone()), scopes.collect(), actor)
    }
}
