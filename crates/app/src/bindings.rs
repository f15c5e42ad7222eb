//! Bindings: what operators allow tasks to work on. Each process publishes those of its configuration, so that every server derives
//! the same scope, wherever a task is applied.

use std::time::Duration;

use ade_domain::permission::Scope;
use ade_domain::task::{PublishedBinding, PublishedBindings};
use tokio::time::{MissedTickBehavior, interval};

use crate::{Caller, Context, Error, Result};

/// How long a name stays reserved after its process has died.
const PUBLICATION_TTL_MS: u64 = 60_000;
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);

/// The bindings of one process.
#[derive(Debug, Clone)]
pub struct BindingPublisher {
    pub context: Context,
    /// Unique.
    pub process: String,
    pub bindings: PublishedBindings,
}

/// A binding with the processes that serve it.
#[derive(Debug, Clone)]
pub struct ServedBinding {
    /// As `files:handbook@eu`.
    pub name: String,
    pub published: PublishedBinding,
    pub processes: Vec<String>,
}

impl BindingPublisher {
    /// Publishes all bindings. Fails if another process uses a name for something else. `is_only_process` means that nobody else can
    /// be using the database.
    pub async fn start(self, is_only_process: bool) -> Result<Self> {
        if is_only_process {
            self.context.database.withdraw_all_bindings().await?;
        }
        match self.publish().await? {
            None => Ok(self),
            Some(name) => Err(Error::BindingConflict(name.to_owned())),
        }
    }

    /// Returns the first name that another process uses for something else.
    async fn publish(&self) -> Result<Option<&str>> {
        let now = self.context.now();
        let until = now.plus_ms(PUBLICATION_TTL_MS);
        self.context.database.forget_ended_processes(now).await?;
        let mut conflict = None;
        for (name, published) in &self.bindings {
            if !self.context.database.publish_binding(name, published, &self.process, now, until).await? {
                conflict = conflict.or(Some(name.as_str()));
            }
        }
        Ok(conflict)
    }

    /// Keeps the names reserved. Never ends.
    pub async fn keep_published(self) {
        let mut tick = interval(RENEWAL_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.publish().await {
                Ok(None) => {}
                Ok(Some(name)) => {
                    tracing::error!(
                        name,
                        "another process uses this name for something else; its tasks are not applied here"
                    );
                }
                Err(error) => tracing::warn!(%error, "cannot renew the published executors"),
            }
        }
    }

    pub async fn withdraw(&self) {
        if let Err(error) = self.context.database.withdraw_bindings(&self.process).await {
            tracing::warn!(%error, "cannot withdraw the published executors; their names stay reserved for a minute");
        }
    }
}

/// Every known binding, by name.
pub async fn served_bindings(context: &Context, caller: &Caller) -> Result<Vec<ServedBinding>> {
    caller.require_scope(Scope::Read)?;
    let (documents, processes) = tokio::try_join!(
        context.database.documents::<PublishedBinding>(),
        context.database.binding_processes(context.now()),
    )?;
    let served = documents.into_iter().map(|document| {
        let of_binding = processes.iter().filter(|(binding, _)| *binding == document.id);
        let processes = of_binding.map(|(_, process)| process.clone()).collect();
        ServedBinding { name: document.id, published: document.value, processes }
    });
    Ok(served.collect())
}
