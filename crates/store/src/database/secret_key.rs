//! Which secret the processes of this database use, by the id of its key. The secret itself is never stored.

use std::sync::atomic::{AtomicU64, Ordering};

use ade_domain::Keys;

use super::audit_log::Authenticity;
use super::numbering::{follows_authentic_rows, head};
use super::sql::SqlConnection;
use super::{Database, DatabaseError, Result};

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
        let registered = self.read(async |connection| registered(connection).await).await?;
        // Only then: a write waits for numbering, and a process with the registered secret must start even if that is held up.
        if registered.is_none_or(|(key_id, _)| self.keys.previous_ids().any(|previous| previous == key_id)) {
            let sql = "INSERT INTO secret_key (id, key_id) VALUES (1, $1) ON CONFLICT DO NOTHING";
            self.execute_statement(sql, &[own.into()]).await?;
            for previous in self.keys.previous_ids() {
                let sql = "UPDATE secret_key SET key_id = $1, version = version + 1 WHERE key_id = $2";
                self.execute_statement(sql, &[own.into(), previous.into()]).await?;
            }
        }
        if let Some(registered) = self.superseded_by().await? {
            return Ok(SecretRegistration::Mismatch { registered });
        }
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

    /// The key id of the registered secret, if it was replaced while this process ran, or is not that of this process.
    pub async fn superseded_by(&self) -> Result<Option<String>> {
        let Self { keys, secret_version, .. } = self;
        match self.read(async |connection| check_secret(connection, keys, secret_version).await).await {
            Ok(()) => Ok(None),
            Err(DatabaseError::Superseded(registered)) => Ok(Some(registered)),
            Err(error) => Err(error),
        }
    }
}

/// The key id and the version of the registered secret.
async fn registered(connection: &mut SqlConnection<'_>) -> Result<Option<(String, u64)>> {
    let row = connection.query_first("SELECT key_id, version FROM secret_key", &[]).await?;
    row.map(|row| row.pair()).transpose()
}

/// A process whose secret was replaced leaves the numbering to the others until it is restarted. If its secret is registered again, it
/// still lacks the one that was used meanwhile, and would quarantine what that wrote. `seen` is the version that this process has seen
/// first; 0 before that, and none that exists once its secret was replaced.
pub(super) async fn check_secret(
    connection: &mut SqlConnection<'_>,
    keys: &Keys,
    seen: &AtomicU64,
) -> Result<()> {
    let Some((key_id, version)) = registered(connection).await? else { return Ok(()) };
    let first = seen.compare_exchange(0, version, Ordering::Relaxed, Ordering::Relaxed).err();
    if key_id == keys.id() && first.is_none_or(|first| first == version) {
        return Ok(());
    }
    seen.store(u64::MAX, Ordering::Relaxed);
    Err(DatabaseError::Superseded(key_id))
}
