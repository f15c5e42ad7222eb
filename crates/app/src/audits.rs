//! Looking at what was recorded: entries, the verdict about all of them, and numbers about how everything stands.
//!
//! Whoever sees a task sees its entries; administrators and auditors see all; everybody sees what it did itself.

use ade_domain::Moment;
use ade_domain::audit::Head;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::Database;
use ade_store::database::{AuditFilter, Commit, Counts, Day, Numbered, UserStats};

use crate::accounts::require_admin;
use crate::acts::Act;
use crate::ledger::{self, LedgerError};
use crate::{Caller, Error, TaskService};

/// Days that the overview tells of.
const SHOWN_DAYS: u32 = 30;

/// The use cases; clones are the same ones.
#[derive(Debug, Clone)]
pub struct AuditService {
    record: Database,
    reviews: TaskService,
}

impl AuditService {
    /// On a record; what tasks may be seen is decided by `reviews`.
    #[must_use]
    pub fn new(record: Database, reviews: TaskService) -> Self {
        Self { record, reviews }
    }

    /// Entries in order, from the first one after a number.
    pub async fn entries(
        &self,
        mut filter: AuditFilter,
        after: u64,
        limit: u32,
        caller: &Caller,
    ) -> Result<Vec<Numbered>, Error> {
        self.narrow(&mut filter, caller).await?;
        Ok(self.record.audit(&filter, after, limit).await?)
    }

    /// To what the caller may see. A task that was deleted is seen by whoever sees everything.
    async fn narrow(&self, filter: &mut AuditFilter, caller: &Caller) -> Result<(), Error> {
        caller.require(Scope::Read)?;
        if filter.task.as_ref().is_some_and(|task| uuid::Uuid::parse_str(task).is_err()) {
            return Err(Error::NotFound("task"));
        }
        if caller.sees_all() {
            return Ok(());
        }
        if let Some(task) = &filter.task {
            self.reviews.task(task, caller).await?;
            return Ok(());
        }
        let own = caller.user.as_ref().map(|user| user.user_id.to_string());
        if filter.actor.is_some() && filter.actor != own {
            let detail = "name a task that you see; all entries are for administrators and auditors";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        filter.actor = own;
        Ok(())
    }

    /// Walks along the whole log, past a checkpoint if one is given.
    pub async fn verify(&self, checkpoint: Option<Head>, caller: &Caller) -> Result<Head, LedgerError> {
        let refused = |error: Error| LedgerError::Refused(Box::new(error));
        caller.require(Scope::Read).map_err(refused)?;
        if !caller.sees_all() {
            let detail = "only administrators and auditors verify the whole log".to_owned();
            return Err(refused(Error::Forbidden(detail)));
        }
        ledger::walk(&self.record, checkpoint).await
    }

    /// An administrator is about to take a lock from its holders: said before it is done.
    pub async fn breaks(&self, lock: &str, reason: &str, now: Moment, caller: &Caller) -> Result<(), Error> {
        require_admin(caller)?;
        let mut commit = Commit::default();
        let act = Act { action: "lock.break", object_id: lock, reason: Some(reason), ..Act::default() };
        act.add(&mut commit, Some(caller), now);
        Ok(self.record.commit(commit).await?)
    }

    /// How everything stands: what there is, how many entries are numbered, and how tasks ended on the last days.
    pub async fn overview(&self, caller: &Caller) -> Result<(Counts, u64, Vec<Day>), Error> {
        caller.require(Scope::Read)?;
        let record = &self.record;
        let (counts, head, days) =
            tokio::try_join!(record.counts(), record.audit_head(), record.days(SHOWN_DAYS))?;
        Ok((counts, head.number, days))
    }

    /// How somebody works: for itself, its manager, administrators and auditors.
    pub async fn of_user(&self, id: &str, caller: &Caller) -> Result<UserStats, Error> {
        caller.require(Scope::Read)?;
        let id = UserId::new(id);
        let user = self.record.user(&id).await?.ok_or(Error::NotFound("user"))?;
        let own = caller.user.as_ref().map(|user| &user.user_id);
        let close = own.is_some_and(|own| *own == id || user.user.manager_id.as_ref() == Some(own));
        if !close && !caller.sees_all() {
            let detail = "statistics are for oneself, one's manager, administrators and auditors";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        Ok(self.record.user_stats(&id).await?)
    }
}
