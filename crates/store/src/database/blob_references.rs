//! Which folder has the blobs of this database, and which blobs are orphaned: no longer, or not yet, referred to.
//!
//! A blob is marked as orphaned in the transaction that removes the last reference to it, and the mark is deleted after the blob was
//! removed. So a blob in use is never removed, and a crash in between leaves nothing behind.

use ade_domain::Moment;

use super::batch::Statement;
use super::sql::{Row, SqlConnection};
use super::{Database, DatabaseError, Result};

/// The folder that has the blobs of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobStoreLocation {
    /// The id that is stored in the folder itself.
    pub store_id: String,
    /// The path under which the first process found it.
    pub folder: String,
}

/// Marks all blobs with this key prefix as orphaned.
pub(super) fn mark_orphaned(key_prefix: &str, since: Moment) -> Statement {
    let sql = "INSERT INTO orphaned_blobs (key_prefix, since) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    Statement::new(sql, [key_prefix.into(), since.into()])
}

/// Marks an announced blob as in use. Fails with a conflict if it is about to be removed.
pub(super) async fn mark_in_use(connection: &mut SqlConnection<'_>, key: &str) -> Result<()> {
    let sql = "DELETE FROM orphaned_blobs WHERE key_prefix = $1 AND deleting = 0";
    let delete = Statement::new(sql, [key.into()]).or_conflict(format!("blob {key}"));
    connection.execute_each(&[delete]).await.map(drop)
}

impl Database {
    /// Registers a blob store, unless the database has one already. Returns the registered one.
    pub async fn register_blob_store(&self, found: BlobStoreLocation) -> Result<BlobStoreLocation> {
        let sql = "INSERT INTO blob_store (id, store_id, folder) VALUES (1, $1, $2) ON CONFLICT DO NOTHING";
        self.execute_statement(sql, &[found.store_id.into(), found.folder.into()]).await?;
        let sql = "SELECT store_id, folder FROM blob_store";
        let store = |row: &Row| Ok(BlobStoreLocation { store_id: row.get(0)?, folder: row.get(1)? });
        let missing = || DatabaseError::Corrupt("the table blob_store is empty".to_owned());
        self.fetch_first(sql, &[], store).await?.ok_or_else(missing)
    }

    /// Announces a blob before it is written. If no reference to it is committed, it is removed later.
    pub async fn announce_blob(&self, key: &str, at: Moment) -> Result<()> {
        self.execute(vec![mark_orphaned(key, at)]).await.map(drop)
    }

    /// Key prefixes of blobs that are orphaned since before `before`, to be removed. From now on they cannot be used again.
    pub async fn take_orphaned_blobs(&self, before: Moment, limit: u32) -> Result<Vec<String>> {
        let sql = "UPDATE orphaned_blobs SET deleting = 1 WHERE deleting = 0 AND since <= $1";
        self.execute_statement(sql, &[before.into()]).await?;
        let sql = "SELECT key_prefix FROM orphaned_blobs WHERE deleting = 1 ORDER BY key_prefix";
        self.fetch_page(sql, &[], limit, |row| row.get(0)).await
    }

    /// Confirms that the blobs with these key prefixes are removed.
    pub async fn confirm_blobs_removed(&self, all: Vec<String>) -> Result<()> {
        let sql = "DELETE FROM orphaned_blobs WHERE key_prefix = $1 AND deleting = 1";
        let statements: Vec<Statement> =
            all.into_iter().map(|key_prefix| Statement::new(sql, [key_prefix.into()])).collect();
        self.execute(statements).await.map(drop)
    }
}
