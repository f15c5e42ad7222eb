//! Users, their sessions and tokens. Passwords, sessions and tokens are stored as hashes only.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::people::{People, User, UserId};
use ade_domain::permission::Scope;
use serde::{Deserialize, Serialize};

use super::batch::{Statement, TableRow};
use super::sql::{Arg, Row, json, optional_json, uuid};
use super::{Database, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUser {
    pub user: User,
    /// Grows with every change.
    pub revision: u64,
    /// `None` for a user who cannot sign in with a password.
    pub password: Option<Password>,
    /// A code with which the user can set the first password.
    pub invitation: Option<Invitation>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Password {
    pub hash: String,
    /// Somebody else set it: it only leads to setting an own one.
    pub is_temporary: bool,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    pub code_hash: String,
    pub expires_at: Moment,
}

/// Leaves the hash out.
impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Invitation").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Leaves the hash out.
impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Password").field("is_temporary", &self.is_temporary).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Hash of the secret in the cookie.
    pub session_hash: String,
    /// Identifies the session in the audit log.
    pub session_id: String,
    pub user_id: UserId,
    pub created_at: Moment,
    pub last_active: Moment,
    pub expires_at: Moment,
    /// When the password was last given.
    pub password_at: Moment,
    pub ip: Option<String>,
    pub user_agent: Option<String>,
}

/// A device on which a user signed in before. It keeps a secret, of which only the hash is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDevice {
    pub device_hash: String,
    pub user_id: UserId,
    pub last_used_at: Moment,
}

/// Devices of one user that are remembered.
const MAX_DEVICES: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    pub token_id: String,
    pub token_hash: String,
    /// `None` for the bootstrap token.
    pub user_id: Option<UserId>,
    /// The agent that the token is for, if it is for one.
    pub agent_id: Option<String>,
    /// A display name.
    pub name: String,
    pub scopes: BTreeSet<Scope>,
    pub created_by: Option<UserId>,
    pub created_at: Moment,
    /// When the password was given in the session in which it was made, or in which the token was made that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_at: Option<Moment>,
    pub expires_at: Moment,
    pub revoked_at: Option<Moment>,
}

const SELECT_USER: &str = "SELECT body, revision, password, invitation FROM users";
const SELECT_TOKEN: &str = "SELECT body, micros(revoked_at) FROM tokens";

/// A user from the four columns that begin at `at`.
fn user_at(row: &Row, at: usize) -> Result<StoredUser> {
    let (password, invitation) = (row.json(at + 2)?, row.json(at + 3)?);
    Ok(StoredUser { user: row.json(at)?, revision: row.get(at + 1)?, password, invitation })
}

fn user(row: &Row) -> Result<StoredUser> {
    user_at(row, 0)
}

fn token(row: &Row) -> Result<StoredToken> {
    Ok(StoredToken { revoked_at: row.get(1)?, ..row.json(0)? })
}

pub(super) fn session(row: &Row) -> Result<Session> {
    Ok(Session {
        last_active: row.get(1)?,
        expires_at: row.get(2)?,
        password_at: row.get(3)?,
        ..row.json(0)?
    })
}

pub(super) fn put_user(user: &StoredUser, expected: Option<u64>) -> Result<Statement> {
    let StoredUser { user, revision, password, invitation } = user;
    let columns = [
        ("user_id", user.user_id.as_str().into()),
        ("active", user.active.into()),
        ("revision", (*revision).into()),
        ("password", optional_json(password.as_ref())?),
        ("invitation", optional_json(invitation.as_ref())?),
        ("body", json(user)?),
    ];
    Ok(TableRow::new("users", columns).put(1, expected, format!("user {}", user.user_id)))
}

pub(super) fn insert_session(session: &Session) -> Result<Statement> {
    let columns = [
        ("session_hash", session.session_hash.as_str().into()),
        ("user_id", session.user_id.as_str().into()),
        ("last_active", session.last_active.into()),
        ("expires_at", session.expires_at.into()),
        ("password_at", session.password_at.into()),
        ("body", json(session)?),
    ];
    Ok(TableRow::new("sessions", columns).insert(""))
}

/// A session that was deleted stays deleted, and of two concurrent uses the later one counts: neither is a conflict.
pub(super) fn touch_session(hash: &str, last_active: Moment, expires_at: Moment) -> Statement {
    let args = [hash.into(), last_active.into(), expires_at.into()];
    let sql = "UPDATE sessions SET last_active = $2, expires_at = $3 \
               WHERE session_hash = $1 AND last_active <= $2";
    Statement::new(sql, args)
}

pub(super) fn reauthenticate_session(hash: &str, password_at: Moment) -> Statement {
    let sql = "UPDATE sessions SET password_at = $2 WHERE session_hash = $1 AND password_at <= $2";
    Statement::new(sql, [hash.into(), password_at.into()])
}

pub(super) fn delete_other_sessions(user_id: &str, kept_hash: &str) -> Statement {
    let sql = "DELETE FROM sessions WHERE user_id = $1 AND session_hash <> $2";
    Statement::new(sql, [user_id.into(), kept_hash.into()])
}

pub(super) fn delete_sessions(session_hash: Option<String>, user_id: &str) -> Statement {
    let sql = "DELETE FROM sessions WHERE user_id = $1 AND ($2 IS NULL OR session_hash = $2)";
    Statement::new(sql, [user_id.into(), Arg::Text(session_hash)])
}

pub(super) fn put_device(device: &KnownDevice) -> [Statement; 2] {
    let columns = [
        ("user_id", device.user_id.as_str().into()),
        ("device_hash", device.device_hash.as_str().into()),
        ("last_used_at", device.last_used_at.into()),
    ];
    let update = " ON CONFLICT (user_id, device_hash) DO UPDATE SET last_used_at = excluded.last_used_at";
    let excess = format!(
        "DELETE FROM known_devices WHERE user_id = $1 AND device_hash IN (SELECT device_hash FROM known_devices \
         WHERE user_id = $1 ORDER BY last_used_at DESC, device_hash LIMIT 1000 OFFSET {MAX_DEVICES})"
    );
    let put = TableRow::new("known_devices", columns).insert(update);
    [put, Statement::new(excess, [device.user_id.as_str().into()])]
}

/// A revoked token stays revoked.
pub(super) fn put_token(token: &StoredToken) -> Result<Statement> {
    let columns = [
        ("token_id", uuid(&token.token_id)),
        ("token_hash", token.token_hash.as_str().into()),
        ("user_id", Arg::Text(token.user_id.as_ref().map(ToString::to_string))),
        ("agent_id", Arg::Text(token.agent_id.clone())),
        ("expires_at", token.expires_at.into()),
        ("revoked_at", Arg::Time(token.revoked_at)),
        ("body", json(token)?),
    ];
    let update = " ON CONFLICT (token_id) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at, \
                  revoked_at = coalesce(tokens.revoked_at, excluded.revoked_at)";
    Ok(TableRow::new("tokens", columns).insert(update))
}

pub(super) fn revoke_tokens(user_id: &UserId, at: Moment) -> Statement {
    let args = [user_id.as_str().into(), at.into()];
    let sql = "UPDATE tokens SET revoked_at = $2 WHERE user_id = $1 AND revoked_at IS NULL";
    Statement::new(sql, args)
}

impl Database {
    pub async fn people(&self) -> Result<People> {
        self.fetch_all("SELECT body FROM users", &[], Row::body::<User>).await
    }

    pub async fn user(&self, id: &UserId) -> Result<Option<StoredUser>> {
        let sql = format!("{SELECT_USER} WHERE user_id = $1");
        self.fetch_first(&sql, &[id.as_str().into()], user).await
    }

    /// Users by id, after the id `after`.
    pub async fn users(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredUser>> {
        let sql = format!("{SELECT_USER} WHERE user_id > $1 ORDER BY user_id");
        self.fetch_page(&sql, &[after.unwrap_or_default().into()], limit, user).await
    }

    /// A session and its user, from the same snapshot. It may have expired: compare `expires_at`.
    pub async fn session_with_user(&self, hash: &str) -> Result<Option<(Session, StoredUser)>> {
        let sql = "SELECT s.body, micros(s.last_active), micros(s.expires_at), micros(s.password_at), \
                   u.body, u.revision, u.password, u.invitation \
                   FROM sessions s JOIN users u ON u.user_id = s.user_id WHERE s.session_hash = $1";
        self.fetch_first(sql, &[hash.into()], |row| Ok((session(row)?, user_at(row, 4)?))).await
    }

    /// A device on which this user signed in before.
    pub async fn known_device(&self, device_hash: &str, user_id: &str) -> Result<Option<KnownDevice>> {
        let sql = "SELECT device_hash, user_id, micros(last_used_at) FROM known_devices \
                   WHERE user_id = $1 AND device_hash = $2";
        let device = |row: &Row| {
            let user_id = UserId::new(row.get::<String>(1)?);
            Ok(KnownDevice { device_hash: row.get(0)?, user_id, last_used_at: row.get(2)? })
        };
        self.fetch_first(sql, &[user_id.into(), device_hash.into()], device).await
    }

    /// A token and its user, from the same snapshot. It may have expired or been revoked.
    pub async fn token_with_user(&self, hash: &str) -> Result<Option<(StoredToken, Option<StoredUser>)>> {
        let sql = "SELECT t.body, micros(t.revoked_at), u.body, u.revision, u.password, \
                   u.invitation FROM tokens t LEFT JOIN users u ON u.user_id = t.user_id WHERE t.token_hash = $1";
        let with_user = |row: &Row| {
            let user = row.get::<Option<String>>(2)?.map(|_| user_at(row, 2)).transpose()?;
            Ok((token(row)?, user))
        };
        self.fetch_first(sql, &[hash.into()], with_user).await
    }

    /// The tokens of a user, the oldest first.
    pub async fn user_tokens(&self, user: &UserId) -> Result<Vec<StoredToken>> {
        let sql = format!("{SELECT_TOKEN} WHERE user_id = $1 ORDER BY token_id");
        self.fetch_all(&sql, &[user.as_str().into()], token).await
    }

    /// The tokens of an agent, the oldest first.
    pub async fn agent_tokens(&self, agent_id: &str) -> Result<Vec<StoredToken>> {
        let sql = format!("{SELECT_TOKEN} WHERE agent_id = $1 ORDER BY token_id");
        self.fetch_all(&sql, &[agent_id.into()], token).await
    }
}
