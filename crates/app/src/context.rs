//! What all services share: the stores and the clock.

use std::sync::Arc;

use ade_domain::audit::{Principal, ServiceActor, Trigger};
use ade_domain::{Clock, Moment};
use ade_store::database::Commit;
use ade_store::{Blobs, Coordination, Database, DatabaseError};
use tokio::task::spawn_blocking;

use crate::{Alerts, Error, EventTail, Result};

#[derive(Debug, Clone)]
pub struct Context {
    pub database: Database,
    pub coordination: Arc<dyn Coordination>,
    /// Where archives, rollback data and long output are stored.
    pub blobs: Blobs,
    pub clock: Arc<dyn Clock>,
    /// The name of this process, for audit entries of what it does by itself.
    pub instance: Arc<str>,
    pub alerts: Alerts,
    /// Where readers of events wait for new ones; its loop runs in servers.
    pub tail: EventTail,
    /// Whether changes of who decides, and by which rules, wait for a second administrator.
    pub dual_control: bool,
}

/// Any error of file operations.
type FileError = Box<dyn std::error::Error + Send + Sync>;

impl Context {
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// A part of this process that acts by itself, for audit entries.
    pub(crate) fn service(&self, service: &str, trigger: Trigger) -> Principal {
        let (service, instance) = (service.to_owned(), self.instance.to_string());
        ServiceActor { service, instance, trigger }.into()
    }

    /// Returns false after a conflict.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<bool> {
        match self.database.commit(commit).await {
            Err(DatabaseError::Conflict { .. }) => Ok(false),
            committed => Ok(committed.map(|()| true)?),
        }
    }

    /// Stores a blob, and returns its key.
    pub(crate) async fn put_blob(&self, failure: &str, key: String, bytes: Vec<u8>) -> Result<String> {
        self.with_blobs(failure, move |blobs| Ok(blobs.put(&key, &bytes).map(|()| key)?)).await
    }

    /// Uses the blobs on a blocking thread. `failure` says what could not be done.
    pub(crate) async fn with_blobs<T: Send + 'static>(
        &self,
        failure: &str,
        work: impl FnOnce(&Blobs) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T> {
        let blobs = self.blobs.clone();
        let failed = |error: &dyn std::fmt::Display| Error::Blobs(format!("{failure}: {error}"));
        spawn_blocking(move || work(&blobs))
            .await
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))
    }
}
