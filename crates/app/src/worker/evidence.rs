//! Evidence: before a worker applies or rolls back a task, or an agent gets it, the audit log must prove that this is what was approved.
//!
//! Somebody who can write to the database, but does not have the secret, can change rows and cannot write audit entries.

use ade_domain::audit::{AuditBody, Principal};
use ade_domain::task::UnprovenApproval;
use ade_store::database::StoredTask;

use crate::{Context, Result, TaskService};

/// What the audit log says about a stored task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Evidence {
    Proven,
    Unproven(UnprovenApproval),
    /// This process cannot tell: the others have a newer secret, or have changed the task since it was read.
    Unknown,
}

/// Verifies a task against its authentic audit entries, by the rules of `verify`.
pub(super) async fn verify_evidence(
    context: &Context,
    task: &StoredTask,
    verify: impl FnOnce(&StoredTask, &[AuditBody]) -> Result<(), UnprovenApproval>,
) -> Result<Evidence> {
    let entries = context.database.task_entries(&task.task_id).await?;
    // Entries that revoke the approval may have the new secret. That was registered before they were written, so it is read after them.
    if context.database.superseded_by().await?.is_some() {
        tracing::error!(
            task_id = task.task_id,
            "cannot verify the approval of a task: the secret was replaced; restart this process with the new one"
        );
        return Ok(Evidence::Unknown);
    }
    let Err(reason) = verify(task, &entries) else { return Ok(Evidence::Proven) };
    let stored = context.database.task(&task.task_id).await?;
    if stored.is_none_or(|stored| stored.revision != task.revision) {
        return Ok(Evidence::Unknown);
    }
    context.alerts.add_unproven();
    tracing::error!(
        task_id = task.task_id,
        %reason,
        "the audit log does not prove that this task was approved as it is stored; it is not executed"
    );
    Ok(Evidence::Unproven(reason))
}

/// Verifies that a task may be applied as it is stored. If it may not, it fails with a code that says so.
pub(super) async fn may_apply(
    context: &Context,
    tasks: &TaskService,
    task: &StoredTask,
    worker: &str,
    by: &Principal,
) -> Result<bool> {
    match verify_evidence(context, task, |task, entries| task.verify_approval(entries)).await? {
        Evidence::Proven => Ok(true),
        Evidence::Unknown => Ok(false),
        Evidence::Unproven(reason) => {
            tasks.fail_unproven(&task.task_id, task.revision, worker, &reason, by).await?;
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ade_domain::people::{AuthorSet, UserId};
    use ade_domain::task::{Config, RollbackStrategy, Task};
    use ade_domain::{Keys, Moment};
    use ade_store::database::{Commit, SecretRegistration, Write};
    use ade_store::embedded::EmbeddedOptions;
    use ade_store::{Blobs, Database, EmbeddedCoordination};
    use ade_testkit::server::SECRET;
    use ade_testkit::{ManualClock, test_keys};
    use tempfile::TempDir;

    use super::*;
    use crate::{Alerts, EventTail};

    fn draft(now: Moment) -> StoredTask {
        let config = Config {
            task_type: "schema".to_owned(),
            version: "1".to_owned(),
            description: String::new(),
            executor: "noop".to_owned(),
            parameters: serde_json::Map::new(),
            resources: Vec::new(),
            rollback_strategy: RollbackStrategy::Manual,
            timeout_seconds: 60,
            priority: 0,
        };
        let (id, digest) = (uuid::Uuid::now_v7().to_string(), config.digest().expect("canonical"));
        Task::draft(id, config, digest, UserId::new("ann"), AuthorSet::default(), now).into()
    }

    async fn context(folder: &TempDir) -> Context {
        let clock = ManualClock::new(Moment::from_micros(1_000_000).timestamp());
        let (locks, options) = (folder.path().join("locks"), EmbeddedOptions::default());
        let locks = EmbeddedCoordination::open(&locks, options, Arc::new(clock.clone())).expect("opens");
        let database = Database::open_sqlite(folder.path(), test_keys()).await.expect("opens");
        assert_eq!(database.register_secret().await, Ok(SecretRegistration::Registered));
        Context {
            database,
            coordination: Arc::new(locks),
            blobs: Blobs::open_folder(folder.path().join("blobs")).expect("opens"),
            clock: Arc::new(clock),
            instance: "test".into(),
            alerts: Alerts::default(),
            tail: EventTail::default(),
            dual_control: false,
        }
    }

    #[tokio::test]
    async fn a_task_that_changed_since_it_was_read_is_no_alarm() {
        let folder = tempfile::tempdir().expect("folder");
        let context = context(&folder).await;
        let read = draft(context.now());
        let store = async |task: &StoredTask, expected| {
            let write = Write::Task { task: Box::new(task.clone()), expected, at: context.now() };
            context
                .database
                .commit(Commit { writes: vec![write], ..Commit::default() })
                .await
                .expect("stored");
        };
        let verify = async || {
            let verify = |task: &StoredTask, entries: &[AuditBody]| task.verify_current(entries);
            let evidence = verify_evidence(&context, &read, verify).await.expect("verified");
            (evidence, context.alerts.counts().unproven_approvals)
        };
        store(&read, None).await;
        assert!(matches!(verify().await, (Evidence::Unproven(_), 1)), "nobody wrote its entry");
        let mut changed = read.clone();
        changed.revision += 1;
        store(&changed, Some(read.revision)).await;
        assert_eq!(verify().await, (Evidence::Unknown, 1));
    }

    #[tokio::test]
    async fn a_process_whose_secret_was_replaced_proves_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let context = context(&folder).await;
        let task = draft(context.now());
        let verify = async || verify_evidence(&context, &task, |_, _| Ok(())).await.expect("verified");
        assert_eq!(verify().await, Evidence::Proven);
        let register = async |keys| {
            let database = Database::open_sqlite(folder.path(), keys).await.expect("opens");
            assert_eq!(database.register_secret().await, Ok(SecretRegistration::Registered));
        };
        let new = Keys::derive(&"n".repeat(32), SECRET).expect("long enough");
        let restored = Keys::derive(SECRET, &"n".repeat(32)).expect("long enough");
        register(new).await;
        assert_eq!(verify().await, Evidence::Unknown);
        register(restored).await;
        assert_eq!(verify().await, Evidence::Unknown, "it lacks what was written meanwhile");
    }
}
