//! Writes the projections in Redis again, beside the servers that run.

use std::sync::Arc;

use ade_app::{EventTail, RebuildProgress, Relay};
use ade_config::Config;
use ade_store::SystemClock;
use uuid::Uuid;

use super::error::StartError;
use super::storage::{open_database, open_keys, open_projections};

/// Writes everything again from the database, and reports how far it is.
pub async fn rebuild_projections(
    config: &Config,
    report: impl FnMut(RebuildProgress) + Send,
) -> Result<RebuildProgress, StartError> {
    let projections = open_projections(config).await?.ok_or(StartError::NoProjections)?;
    let relay = Relay {
        database: open_database(config, &open_keys(config)?).await?,
        clock: Arc::new(SystemClock::start()),
        tail: EventTail::default(),
        projections,
        name: format!("rebuild-{}", Uuid::new_v4().simple()),
    };
    Ok(relay.rebuild(report).await?)
}
