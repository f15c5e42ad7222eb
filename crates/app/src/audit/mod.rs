//! Read access to the audit log and to statistics, and its verification.
//!
//! Everybody who can see a task can see its entries. Administrators and auditors see all entries; everybody sees their own.

mod checkpoint_file;
mod checkpoints;
mod mismatch;

use ade_domain::Moment;
use ade_domain::audit::{AuditBody, ChainHead};
use ade_domain::lock::HoldView;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::{AuditFilter, AuditRow, DailyStats, DatabaseCounts, UserStats};
use serde_json::{Map, Value, json};

use crate::alerts::LogCheck;
use crate::events::AuditedAction;
use crate::{Caller, Context, Error, ObjectKind, Result, TaskService};

pub use checkpoint_file::CheckpointFile;
pub(crate) use mismatch::report_check;

pub use checkpoints::{AuditLogError, Checkpoint, Signer, VerifiedLog, verify, verify_against};

const OVERVIEW_DAYS: u32 = 30;
const DAY_MICROS: u64 = 86_400_000_000;

/// Counts of the whole system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    pub counts: DatabaseCounts,
    /// The number of the last audit entry.
    pub audit_entries: u64,
    /// Complete days, the newest first.
    pub days: Vec<DailyStats>,
    /// Until now.
    pub today: DailyStats,
}

#[derive(Debug, Clone)]
pub struct AuditService {
    context: Context,
    tasks: TaskService,
    checkpoint_file: CheckpointFile,
}

impl AuditService {
    /// `tasks` decides which tasks a caller can see.
    #[must_use]
    pub const fn new(context: Context, tasks: TaskService, checkpoint_file: CheckpointFile) -> Self {
        Self { context, tasks, checkpoint_file }
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

    /// Entries of a task that have no number yet: those of the last moments. Read them before the numbered ones, so that none is
    /// missing in both.
    pub async fn unnumbered_entries(
        &self,
        task_id: &str,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<AuditBody>> {
        let mut filter = AuditFilter { task: Some(task_id.to_owned()), ..AuditFilter::default() };
        self.restrict_to_visible(&mut filter, caller).await?;
        Ok(self.context.database.unnumbered_task_entries(task_id, limit).await?)
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
        if caller.agent_id.is_some() {
            let detail = "an agent sees the entries of tasks that it sees; filter by one of them";
            return Err(Error::forbidden(detail));
        }
        let own = caller.user_id().map(ToString::to_string);
        if filter.actor.is_some() && filter.actor != own {
            let detail = "only administrators and auditors can list the entries of others; filter by a task that you can see";
            return Err(Error::forbidden(detail));
        }
        filter.actor = own;
        Ok(())
    }

    /// Verifies the whole log, and that it contains the checkpoints of all servers, and the trusted head if one is given. Also returns
    /// how many rows are quarantined. A log that is not intact is an alert, until it is verified again.
    pub async fn verify(
        &self,
        trusted: Option<ChainHead>,
        caller: &Caller,
    ) -> Result<(VerifiedLog, u64), AuditLogError> {
        let refused = |error: Error| AuditLogError::Refused(Box::new(error));
        caller.require_scope(Scope::Read).map_err(refused)?;
        if !caller.can_see_all() {
            let detail = "only administrators and auditors can verify the audit log";
            return Err(refused(Error::forbidden(detail)));
        }
        let quarantined = self.context.database.quarantined_entries().await?;
        let verified = self.verify_log(trusted).await;
        // A wrong head of the caller says nothing about the log.
        let is_ambiguous = verified.is_err() && trusted.is_some();
        let own = if is_ambiguous { Some(self.verify_log(None).await) } else { None };
        let is_intact = match own.as_ref().unwrap_or(&verified) {
            // Without a checkpoint nobody can tell.
            Ok(VerifiedLog { checkpoint: None, .. }) => None,
            Ok(_) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        if let Some(result) = is_intact {
            report_check(&self.context, LogCheck::Full, result).await;
        }
        Ok((verified?, quarantined))
    }

    async fn verify_log(&self, trusted: Option<ChainHead>) -> Result<VerifiedLog, AuditLogError> {
        let database = &self.context.database;
        let signer = Signer::new(database.keys())?;
        let local = self.checkpoint_file.last(&signer)?;
        verify(database, &signer, local.as_slice(), trusted).await
    }

    /// Audits that an administrator breaks a lock, and who holds it and loses it. Call it before the lock is broken: the attempt must
    /// be on record even if breaking fails.
    pub async fn audit_lock_break(
        &self,
        lock: &str,
        holders: &[HoldView],
        reason: &str,
        now: Moment,
        caller: &Caller,
    ) -> Result<()> {
        caller.require_admin()?;
        let holder = |by: &HoldView| {
            json!({
                "agent_id": by.holder.agent_id(),
                "holder_id": by.holder.holder_id(),
                "purpose": &*by.purpose,
                "fencing_token": by.grant.token.number(),
            })
        };
        let lost_by: Vec<Value> = holders.iter().map(holder).collect();
        let details = Map::from_iter([("lost_by".to_owned(), Value::from(lost_by))]);
        let reason = Some(reason);
        let action = AuditedAction { reason, details, ..AuditedAction::new("lock.break", lock) };
        Ok(self.context.database.commit(action.commit(Vec::new(), caller, now)).await?)
    }

    /// Counts of all objects, and the statistics of the last 30 days and of today.
    pub async fn overview(&self, caller: &Caller) -> Result<Overview> {
        caller.require_scope(Scope::Read)?;
        let (database, today) = (&self.context.database, midnight(self.context.now()));
        let (counts, head, days, closed) = tokio::try_join!(
            database.counts(),
            database.audit_head(),
            database.daily_stats(OVERVIEW_DAYS),
            database.closed_tasks(today, Moment::from_micros(today.micros() + DAY_MICROS))
        )?;
        let day = today.timestamp().strftime("%Y-%m-%d").to_string();
        let today = DailyStats { day, backlog: Some(counts.pending_approvals), ..closed };
        Ok(Overview { counts, audit_entries: head.number, days, today })
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
        Ok(self.context.database.user_stats(&id, midnight(self.context.now())).await?)
    }
}

/// The last midnight in UTC.
const fn midnight(now: Moment) -> Moment {
    Moment::from_micros(now.micros() - now.micros() % DAY_MICROS)
}
