//! Batches of decisions: all of them are committed, or none.

use std::collections::BTreeMap;

use ade_domain::approval::DecisionKind;
use ade_domain::permission::ActorRole;
use ade_domain::task::{Answer, Decision, Digest, TaskCommand, TaskState};
use ade_store::database::{Commit, StoredTask};

use crate::idempotency::stored_response;
use crate::retry::retry_on_conflict;
use crate::{ApprovalView, Caller, Error, ObjectKind, Outcome, Result};

use super::TaskService;
use super::commands::approval_not_found;

/// Approval requests in one batch.
pub const MAX_BATCH_SIZE: usize = 500;

/// One approval request of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItem {
    pub approval_id: String,
    /// The digest that the reviewer has seen. An approval needs both unless the risk of the task is low.
    pub digest: Option<Digest>,
    /// The digest of the scope that the reviewer has seen.
    pub scope_digest: Option<Digest>,
}

/// The same decision about many approval requests.
#[derive(Debug, Clone)]
pub struct DecisionBatch {
    pub items: Vec<BatchItem>,
    pub action: DecisionKind,
    pub reason: Option<String>,
    /// Ignores freshness warnings, for administrators; never the checks of digest, state and authorship. There are no such
    /// warnings yet.
    pub skip_validation: bool,
    /// Whether the tasks that it approves are applied before all others. Needs what a forced apply needs.
    pub apply_immediately: bool,
}

impl DecisionBatch {
    pub fn approval_ids(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|item| item.approval_id.as_str())
    }
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
        if batch.apply_immediately {
            caller.require_scopes_for(TaskCommand::ForceApply)?;
            if !caller.is_admin() {
                return Err(Error::forbidden("only an administrator can use apply_immediately"));
            }
            if batch.reason.as_deref().is_none_or(|reason| reason.trim().is_empty()) {
                return Err(Error::invalid("reason", "is required for apply_immediately"));
            }
        }
        if !(1..=MAX_BATCH_SIZE).contains(&batch.items.len()) {
            let detail = format!("must have between 1 and {MAX_BATCH_SIZE} entries");
            return Err(Error::invalid("items", detail));
        }
        retry_on_conflict(async || {
            let (tasks, commit) = self.decide_all(batch, caller).await?;
            Ok(self.commit(commit).await?.then_some(tasks))
        })
        .await
    }

    async fn decide_all(&self, batch: &DecisionBatch, caller: &Caller) -> Result<(Vec<StoredTask>, Commit)> {
        let (actor, rules, now) = (caller.actor(), self.rules().await?, self.context.now());
        // Several requests may belong to one task: they are decided one after the other.
        let mut tasks: BTreeMap<String, (u64, StoredTask)> = BTreeMap::new();
        let mut refused = Vec::new();
        for BatchItem { approval_id, digest, scope_digest } in &batch.items {
            let (reason, digest, scope_digest) = (batch.reason.clone(), *digest, *scope_digest);
            let answer = &Answer { reason, digest, scope_digest, ..Answer::default() };
            let decision = Decision { approval_id, kind: batch.action, answer, is_batch: true };
            let decided = async {
                let task_id = self.task_id_of(approval_id).await?;
                if !tasks.contains_key(&task_id) {
                    let task = self.visible_task(&task_id, Some(caller)).await.map_err(approval_not_found)?;
                    tasks.insert(task_id.clone(), (task.revision, task));
                }
                match tasks.get_mut(&task_id) {
                    Some((_, task)) => Ok(task.decide(&decision, &actor, &rules.people, now)?),
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
            if batch.apply_immediately && task.state == TaskState::Approved {
                task.force_apply(batch.reason.as_deref(), &actor, &rules.people, now)?;
            }
            self.add_task(&mut commit, Some(revision), &mut task, caller, now).await?;
            changed.push(task);
        }
        let decided = || ApprovalView::find_all(&changed, batch.approval_ids());
        commit.response = stored_response(caller, |_| Outcome::Batch(decided()))?;
        Ok((changed, commit))
    }
}
