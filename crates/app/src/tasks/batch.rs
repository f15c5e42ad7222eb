//! Batches of decisions: all of them are committed, or none.

use std::collections::BTreeMap;

use ade_domain::permission::ActorRole;
use ade_domain::task::TaskCommand;
use ade_store::database::{Commit, StoredTask};

use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{ApprovalView, Caller, Error, ObjectKind, Outcome, Result};

use super::commands::{approval_not_found, decision};
use super::{DecisionInput, TaskService};

/// Approval requests in one batch.
pub const MAX_BATCH_SIZE: usize = 500;

/// The same decision about many approval requests.
#[derive(Debug, Clone)]
pub struct DecisionBatch {
    pub approval_ids: Vec<String>,
    pub decision: DecisionInput,
    /// Ignores freshness warnings, for administrators; never the checks of digest, state and authorship. There are no such
    /// warnings yet.
    pub skip_validation: bool,
    /// Whether the approved tasks are applied before all others.
    pub apply_immediately: bool,
}

impl TaskService {
    /// Records all decisions in one transaction; if one is refused, nothing is changed. `If-Match` is ignored: a batch has no
    /// single revision.
    pub async fn decide_batch(&self, batch: &DecisionBatch, caller: &Caller) -> Result<Vec<StoredTask>> {
        caller.require_scopes_for(TaskCommand::Approve)?;
        if !self.settings().await?.batch_approvals {
            return Err(Error::Disabled("batch_approvals"));
        }
        if batch.skip_validation && !caller.actor().roles.contains(&ActorRole::Admin) {
            return Err(Error::forbidden("only an administrator can use skip_validation"));
        }
        if !(1..=MAX_BATCH_SIZE).contains(&batch.approval_ids.len()) {
            let detail = format!("must have between 1 and {MAX_BATCH_SIZE} entries");
            return Err(Error::invalid("approval_ids", detail));
        }
        retry_on_conflict(async || {
            let (tasks, commit) = self.decide_all(batch, caller).await?;
            Ok(self.commit(commit).await?.then_some(tasks))
        })
        .await
    }

    async fn decide_all(&self, batch: &DecisionBatch, caller: &Caller) -> Result<(Vec<StoredTask>, Commit)> {
        let (actor, now) = (caller.actor(), self.context.now());
        // Several requests may belong to one task: they are decided one after the other.
        let mut tasks: BTreeMap<String, (u64, StoredTask)> = BTreeMap::new();
        let mut refused = Vec::new();
        for approval_id in &batch.approval_ids {
            let decided = async {
                let task_id = self.task_id_of(approval_id).await?;
                if !tasks.contains_key(&task_id) {
                    let task = self.visible_task(&task_id, Some(caller)).await.map_err(approval_not_found)?;
                    tasks.insert(task_id.clone(), (task.revision, task));
                }
                match tasks.get_mut(&task_id) {
                    Some((_, task)) => {
                        Ok(task.decide(&decision(approval_id, &batch.decision), &actor, now)?)
                    }
                    None => Err(Error::NotFound(ObjectKind::Approval)),
                }
            };
            match decided.await {
                Ok(()) => {}
                Err(error @ Error::Database(_)) => return Err(error),
                Err(error) => refused.push((approval_id.clone(), error)),
            }
        }
        if !refused.is_empty() {
            return Err(Error::Batch(refused));
        }
        let (mut changed, mut commit) = (Vec::with_capacity(tasks.len()), Commit::default());
        for (revision, mut task) in tasks.into_values() {
            if batch.apply_immediately {
                task.apply_immediately();
            }
            self.add_task(&mut commit, Some(revision), &mut task, Some(caller), now).await?;
            changed.push(task);
        }
        let decided = || ApprovalView::find_all(&changed, &batch.approval_ids);
        commit.response = stored_response(caller, |_| Outcome::Batch(decided()))?;
        Ok((changed, commit))
    }
}
