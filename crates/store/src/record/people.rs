//! People, their sessions and tokens. Passwords, sessions and tokens are stored as hashes alone.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::people::{People, User, UserId};
use ade_domain::permission::Scope;
use serde::{Deserialize, Serialize};

use super::{Record, RecordError};

/// A person as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredUser {
    /// The person.
    pub user: User,
    /// Grows with every change.
    pub revision: u64,
    /// How its password is recognised; nobody signs in without one.
    pub password_hash: Option<String>,
}

/// Somebody who signed in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// How it is recognised.
    pub session_hash: String,
    /// Who.
    pub user_id: UserId,
    /// When.
    pub created_at: Moment,
    /// Until when.
    pub expires_at: Moment,
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

const USER: &str = "SELECT body::text, revision, password_hash FROM users";

fn user(row: &super::sql::Row) -> Result<StoredUser, RecordError> {
    let password_hash = row.maybe_text(2)?.map(str::to_owned);
    Ok(StoredUser { user: row.json(0)?, revision: row.number(1)?, password_hash })
}

impl Record {
    /// Everybody.
    ///
    /// # Errors
    /// The record is away.
    pub async fn people(&self) -> Result<People, RecordError> {
        self.read(async |link| {
            let rows = link.rows("SELECT body::text FROM users", &[]).await?;
            rows.iter().map(|row| row.json::<User>(0)).collect()
        })
        .await
    }

    /// Somebody.
    ///
    /// # Errors
    /// The record is away.
    pub async fn user(&self, id: &UserId) -> Result<Option<StoredUser>, RecordError> {
        let args = [id.as_str().into()];
        self.read(async |link| {
            let rows = link.rows(&format!("{USER} WHERE user_id = $1"), &args).await?;
            rows.first().map(user).transpose()
        })
        .await
    }

    /// People by id, from the first one after `after`.
    ///
    /// # Errors
    /// The record is away.
    pub async fn users(&self, after: Option<&str>, limit: u32) -> Result<Vec<StoredUser>, RecordError> {
        let args = [after.unwrap_or_default().into()];
        let sql = format!("{USER} WHERE user_id > $1 ORDER BY user_id LIMIT {limit}");
        self.read(async |link| link.rows(&sql, &args).await?.iter().map(user).collect()).await
    }

    /// A session by its hash.
    ///
    /// # Errors
    /// The record is away.
    pub async fn session(&self, hash: &str) -> Result<Option<Session>, RecordError> {
        let args = [hash.into()];
        self.read(async |link| {
            let rows = link.rows("SELECT body::text FROM sessions WHERE session_hash = $1", &args).await?;
            rows.first().map(|row| row.json(0)).transpose()
        })
        .await
    }

    /// A token by its hash.
    ///
    /// # Errors
    /// The record is away.
    pub async fn token(&self, hash: &str) -> Result<Option<StoredToken>, RecordError> {
        let args = [hash.into()];
        self.read(async |link| {
            let rows = link.rows("SELECT body::text FROM tokens WHERE token_hash = $1", &args).await?;
            rows.first().map(|row| row.json(0)).transpose()
        })
        .await
    }

    /// The tokens of somebody, in the order in which they were made.
    ///
    /// # Errors
    /// The record is away.
    pub async fn tokens_of(&self, user: &UserId) -> Result<Vec<StoredToken>, RecordError> {
        let args = [user.as_str().into()];
        self.read(async |link| {
            let sql = "SELECT body::text FROM tokens WHERE user_id = $1 ORDER BY token_id";
            link.rows(sql, &args).await?.iter().map(|row| row.json(0)).collect()
        })
        .await
    }
}
