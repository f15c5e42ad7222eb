//! Opens what a process stores: coordination, database and blobs, as configured.

use std::sync::Arc;
use std::time::Duration;

use ade_config::{Config, SECRET_VARIABLE};
use ade_domain::Keys;
use ade_store::database::{BlobStoreLocation, SecretRegistration};
use ade_store::embedded;
use ade_store::redis::projections::RedisProjections;
use ade_store::redis::{self, RedisCoordination};
use ade_store::{
    Blobs, Coordination, DataFolder, Database, EmbeddedCoordination, SecretError, SystemClock,
    open_secret_file,
};

use super::error::StartError;

/// Returns the claim of the data folder unless the coordination holds it itself.
pub(super) async fn open_coordination(
    config: &Config,
) -> Result<(Arc<dyn Coordination>, Option<DataFolder>), StartError> {
    let rules = config.lock_limits.clone();
    let Some(url) = &config.redis else {
        let options = embedded::EmbeddedOptions { limits: rules, ..embedded::EmbeddedOptions::default() };
        let coordination = EmbeddedCoordination::open(&config.data, options, Arc::new(SystemClock::start()))?;
        tracing::info!(data = %config.data.display(), "locks are kept in this process");
        return Ok((Arc::new(coordination), None));
    };
    let folder = DataFolder::lock(&config.data)?;
    let options = redis::RedisOptions {
        limits: rules,
        min_replica_acks: config.min_replica_acks,
        max_clock_skew: Duration::from_millis(config.max_clock_skew_ms),
        ..redis::RedisOptions::default()
    };
    let coordination = RedisCoordination::open(url, options).await.map_err(StartError::Redis)?;
    tracing::info!(redis = %url, "locks are kept in Redis");
    Ok((Arc::new(coordination), Some(folder)))
}

/// Where projections and event streams are: only if the database is shared as well.
pub(super) async fn open_projections(config: &Config) -> Result<Option<RedisProjections>, StartError> {
    match (&config.redis, &config.postgres) {
        (Some(url), Some(_)) => Ok(Some(RedisProjections::open(url).await.map_err(StartError::Redis)?)),
        _ => Ok(None),
    }
}

/// The keys of the secret that the operator provides, or of the secret file in the data folder. All processes on one PostgreSQL need
/// the same secret, so there it must be provided.
pub(super) fn open_keys(config: &Config) -> Result<Keys, StartError> {
    let invalid = |source| SecretError::Invalid { from: SECRET_VARIABLE.to_owned(), source };
    match &config.secret {
        Some(secret) => {
            let previous = config.previous_secrets.as_ref().map(|secrets| secrets.0.as_str());
            Ok(Keys::derive(&secret.0, previous.unwrap_or_default()).map_err(invalid)?)
        }
        None if config.postgres.is_some() => Err(StartError::SecretRequired),
        None => Ok(open_secret_file(&config.data)?),
    }
}

/// Opens the database, unless its other processes have another secret.
pub(super) async fn open_database(config: &Config, keys: &Keys) -> Result<Database, StartError> {
    let database = match &config.postgres {
        Some(url) => Database::open_postgres(url, keys.clone()).await?,
        None => Database::open_sqlite(&config.data, keys.clone()).await?,
    };
    match database.register_secret().await? {
        SecretRegistration::Registered => Ok(database),
        SecretRegistration::Mismatch { registered } => {
            Err(StartError::SecretMismatch { own: keys.id().to_owned(), registered })
        }
        SecretRegistration::MissingPrevious { key_id } => Err(StartError::PreviousSecretMissing { key_id }),
    }
}

/// All processes on one PostgreSQL must share the blob folder: one worker may roll back what another has applied.
pub(super) async fn open_blobs(config: &Config, database: &Database) -> Result<Blobs, StartError> {
    let folder = config.blobs.clone().unwrap_or_else(|| config.data.join("blobs"));
    let blobs = Blobs::open_folder(folder)?;
    if config.postgres.is_some() {
        let (store_id, folder) = (blobs.id().to_owned(), blobs.folder().to_string_lossy().into_owned());
        let first =
            database.register_blob_store(BlobStoreLocation { store_id, folder: folder.clone() }).await?;
        if first.store_id != blobs.id() {
            return Err(StartError::BlobFolderMismatch { folder, first: first.folder });
        }
    }
    Ok(blobs)
}
