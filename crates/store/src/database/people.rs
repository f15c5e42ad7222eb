//! People, their sessions and tokens. Passwords, sessions and tokens are stored as hashes alone.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::people::{People, User, UserId};
use ade_domain::permission::Scope;
use serde::{Deserialize, Serialize};

use super::sql::{Arg, Row, json};
use super::together::Statement;
use super::{Database, DatabaseError};

/// A person as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUser {
    /// The person.
    pub user: User,
    /// Grows with every change.
    pub revision: u64,
    /// How it signs in; nobody does without one.
    pub password: Option<Password>,
}

/// How somebody signs in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Password {
    /// How it is recognised.
    pub hash: String,
    /// Who set it, if somebody else did: whoever knows it may be that one.
    pub set_by: Option<UserId>,
    /// Until when that counts; as long as it is there, if nothing is said.
    pub watched_until: Option<Moment>,
}

/// Without the hash.
impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Password").field("set_by", &self.set_by).finish_non_exhaustive()
    }
}

/// Somebody who signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// How it is recognised.
    pub session_hash: String,
    /// What others know it by, as in the audit log.
    pub session_id: String,
    /// How it is recognised that a request comes from its own page.
    pub csrf_hash: String,
    /// Who.
    pub user_id: UserId,
    /// When.
    pub created_at: Moment,
    /// When it was last used.
    pub last_active: Moment,
    /// Until when.
    pub expires_at: Moment,
    /// From where.
    pub ip: Option<String>,
    /// With what.
    pub user_agent: Option<String>,
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    /// What it is known by.
    pub token_id: String,
    /// How it is recognised.
    pub token_hash: String,
    /// Whose; nobody for the bootstrap token.
    pub user_id: Option<UserId>,
    /// Of which agent, if of one.
    pub agent_id: Option<String>,
    /// A name for people.
    pub name: String,
    /// What it is good for.
    pub scopes: BTreeSet<Scope>,
    /// Who made it.
    pub made_by: Option<UserId>,
    /// When.
    pub created_at: Moment,
    /// Until when.
    pub expires_at: Moment,
    /// Since when not any more.
    pub revoked_at: Option<Moment>,
}

const USER: &str = "SELECT body::text, revision, password FROM users";
const TOKEN: &str = "SELECT body::text, micros(revoked_at) FROM tokens";

/// From its three columns, the first of which is `at`.
fn user_from(row: &Row, at: usize) -> Result<StoredUser, DatabaseError> {
    let password = row.maybe_text(at + 2)?.map(|_| row.json(at + 2)).transpose()?;
    Ok(StoredUser { user: row.json(at)?, revision: row.number(at + 1)?, password })
}

fn user(row: &Row) -> Result<StoredUser, DatabaseError> {
    user_from(row, 0)
}

fn token(row: &Row) -> Result<StoredToken, DatabaseError> {
    Ok(StoredToken { revoked_at: row.maybe_moment(1)?, ..row.json(0)? })
}

fn session(row: &Row) -> Result<Session, DatabaseError> {
    Ok(Session { last_active: row.moment(1)?, expires_at: row.moment(2)?, ..row.json(0)? })
}

fn json_text(password: &Password) -> Result<String, DatabaseError> {
    serde_json::to_string(password).map_err(|error| DatabaseError::Foreign(error.to_string()))
}

pub(super) fn put_user(user: &StoredUser, expected: Option<u64>) -> Result<Statement, DatabaseError> {
    let mut args: Vec<Arg> = vec![
        user.user.user_id.as_str().into(),
        u64::from(user.user.active).into(),
        user.revision.into(),
        user.password.as_ref().map(json_text).transpose()?.into(),
        json(&user.user)?,
    ];
    Ok(match expected {
        None => {
            let sql = "INSERT INTO users (user_id, active, revision, password, body) \
                       VALUES ($1, $2, $3, $4, $5::jsonb)";
            Statement::new(sql, args)
        }
        Some(expected) => {
            args.push(expected.into());
            let sql = "UPDATE users SET active = $2, revision = $3, password = $4, body = $5::jsonb \
                       WHERE user_id = $1 AND revision = $6";
            Statement::new(sql, args).meets(format!("user {}", user.user.user_id))
        }
    })
}

pub(super) fn put_session(session: &Session) -> Result<Statement, DatabaseError> {
    let args = [
        session.session_hash.as_str().into(),
        session.user_id.as_str().into(),
        session.last_active.into(),
        session.expires_at.into(),
        json(session)?,
    ];
    let sql = "INSERT INTO sessions (session_hash, user_id, last_active, expires_at, body) \
               VALUES ($1, $2, moment($3), moment($4), $5::jsonb)";
    Ok(Statement::new(sql, args))
}

/// A session that has ended stays so, and of two that were used at once the later one counts: neither is a conflict.
pub(super) fn touch_session(hash: &str, last_active: Moment, expires_at: Moment) -> Statement {
    let args = [hash.into(), last_active.into(), expires_at.into()];
    let sql = "UPDATE sessions SET last_active = moment($2), expires_at = moment($3) \
               WHERE session_hash = $1 AND last_active <= moment($2)";
    Statement::new(sql, args)
}

pub(super) fn end_sessions(session_hash: Option<&str>, user_id: &str) -> Statement {
    let mut args: Vec<Arg> = vec![user_id.into()];
    let mut sql = "DELETE FROM sessions WHERE user_id = $1".to_owned();
    if let Some(hash) = session_hash {
        sql.push_str(" AND session_hash = $2");
        args.push(hash.into());
    }
    Statement::new(sql, args)
}

/// What was revoked once stays so.
pub(super) fn put_token(token: &StoredToken) -> Result<Statement, DatabaseError> {
    let args = [
        token.token_id.as_str().into(),
        token.token_hash.as_str().into(),
        token.user_id.as_ref().map(ToString::to_string).into(),
        token.agent_id.clone().into(),
        token.expires_at.into(),
        token.revoked_at.into(),
        json(token)?,
    ];
    let sql = "INSERT INTO tokens (token_id, token_hash, user_id, agent_id, expires_at, revoked_at, body) \
               VALUES ($1::uuid, $2, $3, $4, moment($5), moment($6), $7::jsonb) \
               ON CONFLICT (token_id) DO UPDATE SET body = excluded.body, expires_at = excluded.expires_at, \
               revoked_at = coalesce(tokens.revoked_at, excluded.revoked_at)";
    Ok(Statement::new(sql, args))
}

pub(super) fn end_tokens(user_id: &UserId, at: Moment) -> Statement {
    let args = [user_id.as_str().into(), at.into()];
    let sql = "UPDATE tokens SET revoked_at = moment($2) WHERE user_id = $1 AND revoked_at IS NULL";
    Statement::new(sql, args)
}

impl Database {
    /// Everybody.
    pub async fn people(&self) -> Result<People, DatabaseError> {
        self.read(async |link| {
            let rows = link.rows("SELECT body::text FROM users", &[]).await?;
            rows.iter().map(|row| row.json::<User>(0)).collect()
        })
        .await
    }

    /// Somebody.
    pub async fn user(&self, id: &UserId) -> Result<Option<StoredUser>, DatabaseError> {
        let args = [id.as_str().into()];
        self.read(async |link| {
            let rows = link.rows(&format!("{USER} WHERE user_id = $1"), &args).await?;
            rows.first().map(user).transpose()
        })
        .await
    }

    /// People by id, from the first one after `after`.
    pub async fn users(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredUser>, DatabaseError> {
        let args = [after.unwrap_or_default().into()];
        let sql = format!("{USER} WHERE user_id > $1 ORDER BY user_id LIMIT {limit}");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(user).collect()).await
    }

    /// A session by its hash.
    pub async fn session(&self, hash: &str) -> Result<Option<Session>, DatabaseError> {
        let args = [hash.into()];
        let sql = "SELECT body::text, micros(last_active), micros(expires_at) FROM sessions WHERE session_hash = $1";
        self.read(async |link| link.rows(sql, &args).await?.first().map(session).transpose()).await
    }

    /// A session by its hash, and who signed in, as both were at one moment. It may have ended: compare `expires_at`.
    pub async fn authority_of_session(
        &self,
        hash: &str,
    ) -> Result<Option<(Session, StoredUser)>, DatabaseError> {
        let args = [hash.into()];
        let sql = "SELECT s.body::text, micros(s.last_active), micros(s.expires_at), \
                   u.body::text, u.revision, u.password \
                   FROM sessions s JOIN users u ON u.user_id = s.user_id WHERE s.session_hash = $1";
        self.read(async |link| {
            let rows = link.rows(sql, &args).await?;
            rows.first().map(|row| Ok((session(row)?, user_from(row, 3)?))).transpose()
        })
        .await
    }

    /// A token by its hash.
    pub async fn token(&self, hash: &str) -> Result<Option<StoredToken>, DatabaseError> {
        let args = [hash.into()];
        let sql = format!("{TOKEN} WHERE token_hash = $1");
        self.read(async |link| link.rows(&sql, &args).await?.first().map(token).transpose()).await
    }

    /// A token by its hash, and whose it is, as both were at one moment. It may have ended or been revoked.
    pub async fn authority_of_token(
        &self,
        hash: &str,
    ) -> Result<Option<(StoredToken, Option<StoredUser>)>, DatabaseError> {
        let args = [hash.into()];
        let sql = "SELECT t.body::text, micros(t.revoked_at), u.body::text, u.revision, u.password \
                   FROM tokens t LEFT JOIN users u ON u.user_id = t.user_id WHERE t.token_hash = $1";
        self.read(async |link| {
            let rows = link.rows(sql, &args).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let whose = row.maybe_text(2)?.map(|_| user_from(row, 2)).transpose()?;
            Ok(Some((token(row)?, whose)))
        })
        .await
    }

    /// The tokens of somebody, in the order in which they were made.
    pub async fn tokens_of(&self, user: &UserId) -> Result<Vec<StoredToken>, DatabaseError> {
        let args = [user.as_str().into()];
        let sql = format!("{TOKEN} WHERE user_id = $1 ORDER BY token_id");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(token).collect()).await
    }

    /// The tokens of an agent, in the order in which they were made.
    pub async fn tokens_of_agent(&self, agent_id: &str) -> Result<Vec<StoredToken>, DatabaseError> {
        let args = [agent_id.into()];
        let sql = format!("{TOKEN} WHERE agent_id = $1 ORDER BY token_id");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(token).collect()).await
    }
}
