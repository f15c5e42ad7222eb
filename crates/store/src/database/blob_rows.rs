//! What the record knows of blobs: in which folder they are, and which nobody needs any more.
//!
//! That a blob is not needed is committed with what makes it so; whoever removes it says so afterwards. So none is removed that
//! is needed, and none stays because somebody died in between.

use ade_domain::Moment;

use super::sql::Link;
use super::{Database, DatabaseError, Work};

/// The folder that has the blobs of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobStore {
    /// What it calls itself, wherever it is.
    pub store_id: String,
    /// Where the first process found it.
    pub folder: String,
}

/// What changes the rows of blobs.
#[derive(Debug, Clone)]
pub(super) enum BlobStep {
    Found(BlobStore),
    Announced { key: String, at: Moment },
    Doomed { before: Moment },
    Removed(Vec<String>),
}

impl BlobStep {
    pub(super) async fn apply(&self, link: &mut Link<'_>) -> Result<u64, DatabaseError> {
        match self {
            Self::Found(store) => {
                let args = [store.store_id.as_str().into(), store.folder.as_str().into()];
                let sql =
                    "INSERT INTO blob_store (id, store_id, folder) VALUES (1, $1, $2) ON CONFLICT DO NOTHING";
                link.run(sql, &args).await
            }
            Self::Announced { key, at } => unneeded(link, key, *at).await,
            Self::Doomed { before } => {
                let sql = "UPDATE orphaned_blobs SET deleting = 1 WHERE deleting = 0 AND since <= moment($1)";
                link.run(sql, &[(*before).into()]).await
            }
            Self::Removed(all) => {
                let mut many = 0;
                for within in all {
                    let sql = "DELETE FROM orphaned_blobs WHERE key_prefix = $1 AND deleting = 1";
                    many += link.run(sql, &[within.as_str().into()]).await?;
                }
                Ok(many)
            }
        }
    }
}

/// Nobody needs what begins like this.
pub(super) async fn unneeded(link: &mut Link<'_>, within: &str, since: Moment) -> Result<u64, DatabaseError> {
    let sql = "INSERT INTO orphaned_blobs (key_prefix, since) VALUES ($1, moment($2)) ON CONFLICT DO NOTHING";
    link.run(sql, &[within.into(), since.into()]).await
}

/// A blob that was announced is needed from now on; refused, if it is about to be removed.
pub(super) async fn needed(link: &mut Link<'_>, key: &str) -> Result<(), DatabaseError> {
    let sql = "DELETE FROM orphaned_blobs WHERE key_prefix = $1 AND deleting = 0";
    match link.run(sql, &[key.into()]).await? {
        1 => Ok(()),
        _ => Err(DatabaseError::Conflict { what: format!("blob {key}") }),
    }
}

impl Database {
    /// The folder that has the blobs: this one, if nobody named one before.
    pub async fn blob_store(&self, found: BlobStore) -> Result<BlobStore, DatabaseError> {
        self.work(Work::Blobs(BlobStep::Found(found))).await?;
        self.read(async |link| {
            let rows = link.rows("SELECT store_id, folder FROM blob_store", &[]).await?;
            let row = rows
                .first()
                .ok_or_else(|| DatabaseError::Foreign("nothing says where blobs are".to_owned()))?;
            Ok(BlobStore { store_id: row.text(0)?.to_owned(), folder: row.text(1)?.to_owned() })
        })
        .await
    }

    /// A blob will be put that is nothing without what follows: if that does not follow, it is removed by and by.
    pub async fn announce_blob(&self, key: &str, at: Moment) -> Result<(), DatabaseError> {
        self.work(Work::Blobs(BlobStep::Announced { key: key.to_owned(), at })).await.map(drop)
    }

    /// The beginnings of keys whose blobs nobody has needed since a moment, and nobody will: to be removed.
    pub async fn doomed_blobs(&self, before: Moment, limit: u32) -> Result<Vec<String>, DatabaseError> {
        self.work(Work::Blobs(BlobStep::Doomed { before })).await?;
        let sql = format!(
            "SELECT key_prefix FROM orphaned_blobs WHERE deleting = 1 ORDER BY key_prefix LIMIT {limit}"
        );
        self.read(async |link| {
            let rows = link.rows(&sql, &[]).await?;
            rows.iter().map(|row| row.text(0).map(str::to_owned)).collect()
        })
        .await
    }

    /// They are removed.
    pub async fn blobs_removed(&self, all: Vec<String>) -> Result<(), DatabaseError> {
        self.work(Work::Blobs(BlobStep::Removed(all))).await.map(drop)
    }
}
