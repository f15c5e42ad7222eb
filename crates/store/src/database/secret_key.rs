//! Which secret the processes of this database use, by the id of its key. The secret itself is never stored.

use ade_domain::Keys;

use super::audit_log::Authenticity;
use super::numbering::{follows_authentic_rows, head};
use super::{Database, DatabaseError, Result};

const SELECT: &str = "SELECT key_id FROM secret_key";

/// Whether a process has the secret of the other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretRegistration {
    Registered,
    /// The processes of this database use another secret, with this key id.
    Mismatch {
        registered: String,
    },
    /// The audit log ends with an entry of a previous secret, with this key id, that the process does not have.
    MissingPrevious {
        key_id: String,
    },
}

impl Database {
    /// The keys that audit entries are written and verified with.
    #[must_use]
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Registers the secret of this process, unless the database has another one already. The current secret replaces one that this
    /// process knows as a previous one. Previous ones are needed while the audit log ends with what they wrote.
    pub async fn register_secret(&self) -> Result<SecretRegistration> {
        let own = self.keys.id();
        let sql = "INSERT INTO secret_key (id, key_id) VALUES (1, $1) ON CONFLICT DO NOTHING";
        self.execute_statement(sql, &[own.into()]).await?;
        for previous in self.keys.previous_ids() {
            let sql = "UPDATE secret_key SET key_id = $1 WHERE key_id = $2";
            self.execute_statement(sql, &[own.into(), previous.into()]).await?;
        }
        let registered: Option<String> = self.fetch_first(SELECT, &[], |row| row.get(0)).await?;
        match registered {
            Some(registered) if registered == own => {
                let missing = self.read(async |connection| {
                    let Some(row) = head(connection).await? else { return Ok(None) };
                    let Authenticity::UnknownKey(key_id) = Authenticity::of(&row.evidence, &self.keys) else {
                        return Ok(None);
                    };
                    let is_forged = follows_authentic_rows(connection, row.head.number, &self.keys).await?;
                    Ok(Some(key_id).filter(|_| !is_forged))
                });
                Ok(match missing.await? {
                    Some(key_id) => SecretRegistration::MissingPrevious { key_id },
                    None => SecretRegistration::Registered,
                })
            }
            Some(registered) => Ok(SecretRegistration::Mismatch { registered }),
            None => Err(DatabaseError::Corrupt("the table secret_key is empty".to_owned())),
        }
    }

    /// The key id of the secret that the other processes have by now, if it is not that of this one.
    pub async fn superseded_by(&self) -> Result<Option<String>> {
        let registered: Option<String> = self.fetch_first(SELECT, &[], |row| row.get(0)).await?;
        Ok(registered.filter(|registered| registered != self.keys.id()))
    }
}
