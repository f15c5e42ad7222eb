//! The rules that all tasks share (users, policies, delegations, the resource registry, settings), cached per process.
//!
//! A cached snapshot is only used for the rules version that it was read under.

use std::sync::Arc;

use ade_domain::approval::assignment::RuleChange;
use ade_domain::approval::delegation::Delegation;
use ade_domain::approval::policy::{DEFAULT_POLICY_NAME, Policy, PolicyVersions, default_policy};
use ade_domain::people::People;
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::{PublishedBinding, PublishedBindings};
use ade_store::database::RulesVersion;
use ade_store::{Database, DatabaseError};
use tokio::sync::Mutex;

use crate::shared_settings::Settings;

#[derive(Debug, Clone)]
pub(super) struct RulesSnapshot {
    pub(super) people: People,
    pub(super) policies: Vec<Policy>,
    pub(super) default_policy: Policy,
    pub(super) delegations: Vec<Delegation>,
    pub(super) registry: Vec<RegisteredPattern>,
    pub(super) settings: Settings,
    /// What operators allow tasks to work on.
    pub(super) bindings: PublishedBindings,
    /// Recent changes of the rules.
    pub(super) changes: Vec<RuleChange>,
}

/// The last snapshot, with the version that the database had before it was read. Callers bring the current version, so that
/// changes by any process are read again.
#[derive(Debug, Default)]
pub(super) struct RulesCache(Mutex<Option<(RulesVersion, Arc<RulesSnapshot>)>>);

impl RulesCache {
    /// The snapshot of this version, or a newer one.
    pub(super) async fn at(
        &self,
        database: &Database,
        version: &RulesVersion,
    ) -> Result<Arc<RulesSnapshot>, DatabaseError> {
        // Locked while it is read: concurrent callers wait for the result instead of reading the same.
        let mut cached = self.0.lock().await;
        if let Some((cached_version, rules)) = &*cached
            && cached_version == version
        {
            return Ok(rules.clone());
        }
        // Read before the rules: any change from here on gives the database another version.
        let current = database.rules_version().await?;
        if let Some((cached_version, rules)) = &*cached
            && *cached_version == current
        {
            return Ok(rules.clone());
        }
        let rules = Arc::new(RulesSnapshot::load(database).await?);
        *cached = Some((current, rules.clone()));
        Ok(rules)
    }

    pub(super) async fn current(&self, database: &Database) -> Result<Arc<RulesSnapshot>, DatabaseError> {
        self.at(database, &database.rules_version().await?).await
    }
}

impl RulesSnapshot {
    async fn load(database: &Database) -> Result<Self, DatabaseError> {
        let (people, policies, delegations, registry, settings, bindings, changes) = tokio::try_join!(
            database.people(),
            database.documents::<PolicyVersions>(),
            database.documents(),
            database.documents(),
            Settings::load(database),
            database.documents::<PublishedBinding>(),
            database.documents::<RuleChange>(),
        )?;
        let active = policies.iter().filter_map(|policy| policy.value.active().cloned());
        let (default, policies): (Vec<Policy>, Vec<Policy>) =
            active.partition(|policy| policy.name == DEFAULT_POLICY_NAME);
        Ok(Self {
            people,
            policies,
            default_policy: default.into_iter().next().unwrap_or_else(default_policy),
            delegations: delegations.into_iter().map(|delegation| delegation.value).collect(),
            registry: registry.into_iter().map(|entry| entry.value).collect(),
            settings,
            bindings: bindings.into_iter().map(|binding| (binding.id, binding.value)).collect(),
            changes: changes.into_iter().map(|change| change.value).collect(),
        })
    }
}
