//! Recovery by the operator, on the data folder or database itself: an invitation for an administrator when none is left.

use ade_app::accounts::NewInvitation;
use ade_config::Config;
use ade_domain::Clock;
use ade_store::{DataFolder, SystemClock};

use super::error::StartError;
use super::storage::{open_database, open_keys};

/// Invites an administrator, and returns the code. Fails if an active administrator is left, or if a server uses the data
/// folder.
pub async fn recover_admin(config: &Config, user_id: &str) -> Result<NewInvitation, StartError> {
    let _folder = match &config.postgres {
        Some(_) => None,
        None => Some(DataFolder::lock(&config.data)?),
    };
    let database = open_database(config, &open_keys(config)?).await?;
    let now = SystemClock::start().now();
    ade_app::accounts::recover_admin(&database, user_id, now).await.map_err(StartError::Recovery)
}
