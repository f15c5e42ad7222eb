//! Read access to the audit log and to statistics, and its verification.
//!
//! Everybody who can see a task can see its entries. Administrators and auditors see all entries; everybody sees their own.

mod checkpoints;

use ade_domain::Moment;
use ade_domain::audit::ChainHead;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::{AuditFilter, AuditRow, DailyStats, DatabaseCounts, UserStats};

use crate::events::AuditedAction;
use crate::{Caller, Context, Error, ObjectKind, Result, TaskService};

pub use checkpoints::{AuditLogError, Checkpoint, Signer, verify, verify_against};

const OVERVIEW_DAYS: u32 = 30;

#[derive(Debug, Clone)]
pub struct AuditService {
    context: Context,
    tasks: TaskService,
}

impl AuditService {
    /// `tasks` decides which tasks a caller can see.
    #[must_use]
    pub const fn new(context: Context, tasks: TaskService) -> Self {
        Self { context, tasks }
    }

    /// Entries in order, starting after the number `after`.
    pub async fn entries(
        &self,
        mut filter: AuditFilter,
        after: u64,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<AuditRow>> {
        self.restrict_to_visible(&mut filter, caller).await?;
        Ok(self.context.database.audit_rows(&filter, after, limit).await?)
    }

    /// Entries of a deleted task are visible only to callers who see everything.
    async fn restrict_to_visible(&self, filter: &mut AuditFilter, caller: &Caller) -> Result<()> {
        caller.require_scope(Scope::Read)?;
        if filter.task.as_ref().is_some_and(|task| uuid::Uuid::parse_str(task).is_err()) {
            return Err(Error::NotFound(ObjectKind::Task));
        }
        if caller.can_see_all() {
            return Ok(());
        }
        if let Some(task) = &filter.task {
            self.tasks.task(task, caller).await?;
            return Ok(());
        }
        let own = caller.user_id().map(ToString::to_string);
        if filter.actor.is_some() && filter.actor != own {
            let detail = "only administrators and auditors can list the entries of others; filter by a task that you can see";
            return Err(Error::forbidden(detail));
        }
        filter.actor = own;
        Ok(())
    }

    /// Verifies the whole log, and that it contains the trusted head if one is given.
    pub async fn verify(
        &self,
        trusted: Option<ChainHead>,
        caller: &Caller,
    ) -> Result<ChainHead, AuditLogError> {
        let refused = |error: Error| AuditLogError::Refused(Box::new(error));
        caller.require_scope(Scope::Read).map_err(refused)?;
        if !caller.can_see_all() {
            let detail = "only administrators and auditors can verify the audit log";
            return Err(refused(Error::forbidden(detail)));
        }
        verify_against(&self.context.database, trusted).await
    }

    /// Audits that an administrator breaks a lock. Call it before the lock is broken: the attempt must be on record even if
    /// breaking fails.
    pub async fn audit_lock_break(
        &self,
        lock: &str,
        reason: &str,
        now: Moment,
        caller: &Caller,
    ) -> Result<()> {
        caller.require_admin()?;
        let action = AuditedAction { reason: Some(reason), ..AuditedAction::new("lock.break", lock) };
        Ok(self.context.database.commit(action.commit(Vec::new(), Some(caller), now)).await?)
    }

    /// Counts of all objects, the number of the last audit entry, and the statistics of the last 30 days.
    pub async fn overview(&self, caller: &Caller) -> Result<(DatabaseCounts, u64, Vec<DailyStats>)> {
        caller.require_scope(Scope::Read)?;
        let database = &self.context.database;
        let (counts, head, days) =
            tokio::try_join!(database.counts(), database.audit_head(), database.daily_stats(OVERVIEW_DAYS))?;
        Ok((counts, head.number, days))
    }

    /// Statistics of a user: for the user, the manager, administrators and auditors.
    pub async fn user_stats(&self, id: &str, caller: &Caller) -> Result<UserStats> {
        caller.require_scope(Scope::Read)?;
        let id = UserId::new(id);
        let user = self.context.database.user(&id).await?.ok_or(Error::NotFound(ObjectKind::User))?;
        let is_manager = |own| user.user.manager_id.as_ref() == Some(own);
        let is_self_or_manager = caller.user_id().is_some_and(|own| *own == id || is_manager(own));
        if !is_self_or_manager && !caller.can_see_all() {
            let detail = "only the user, their manager, administrators and auditors can see these statistics";
            return Err(Error::forbidden(detail));
        }
        Ok(self.context.database.user_stats(&id).await?)
    }
}
