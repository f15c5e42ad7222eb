//! Requests of people who leave: they move in the transaction in which somebody leaves, so that nobody is waited for who will
//! not answer. What is too much for one transaction, or was asked meanwhile, is worked off as due.

use std::collections::BTreeSet;

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::delegation::{Delegation, Ways, resolve};
use ade_domain::people::{People, UserId};
use ade_domain::task::Task;
use ade_store::Database;
use ade_store::database::{ApprovalFilter, Commit, DocumentKind};

use super::{About, TaskService, new_id};
use crate::Error;

/// Tasks whose requests move in one transaction.
pub const MOST_MOVED: usize = 500;

/// Who could take over.
pub(super) struct Others {
    people: People,
    delegations: Vec<Delegation>,
}

impl Others {
    pub(super) async fn load(record: &Database) -> Result<Self, Error> {
        let (people, things) = tokio::try_join!(record.people(), record.things(DocumentKind::Delegation))?;
        let delegations = things.iter().map(|thing| thing.read()).collect::<Result<_, _>>()?;
        Ok(Self { people, delegations })
    }

    /// Moves what somebody was asked to whoever stands in for it, else to its manager, else to administrators.
    pub(super) fn replace(&self, leaver: &UserId, review: &mut Task, now: Moment) -> Result<(), Error> {
        let (people, delegations, risk) = (&self.people, self.delegations.as_slice(), review.risk_score());
        let stands_in =
            resolve(leaver, &Ways { people, delegations, config: &review.config, risk, now }).reviewer;
        let (stands_in, mut ids) = (Some(&stands_in).filter(|who| *who != leaver), new_id);
        Ok(review.replace(leaver, stands_in, people, &mut ids, now)?)
    }
}

impl TaskService {
    /// Adds to a commit what becomes of the open requests of somebody who leaves with it, for at most [`MOST_MOVED`] tasks.
    /// Each is guarded by the revision that was seen: on a conflict, begin again with a new commit.
    pub async fn leave(&self, commit: &mut Commit, leaver: &UserId) -> Result<(), Error> {
        let mut task_ids = BTreeSet::new();
        for status in [ApprovalStatus::Pending, ApprovalStatus::ChangesRequested] {
            let limit = u32::try_from(MOST_MOVED - task_ids.len()).unwrap_or(0);
            let filter = ApprovalFilter { reviewer: Some(leaver.clone()), status: Some(status), after: None };
            let open = self.record.approvals(&filter, limit).await?;
            task_ids.extend(open.into_iter().map(|approval| approval.task_id));
        }
        if task_ids.is_empty() {
            return Ok(());
        }
        let others = Others::load(&self.record).await?;
        for task_id in task_ids {
            let mut task = self.load(About::due(&task_id)).await?;
            let (seen, now) = (task.revision, self.clock.now());
            others.replace(leaver, &mut task.task, now)?;
            if !task.transitions.is_empty() {
                self.add(commit, Some(seen), &mut task, None, now).await?;
            }
        }
        Ok(())
    }
}
