//! Many answers at once: all of them, or none.

use std::collections::BTreeMap;

use ade_domain::permission::ActorRole;
use ade_domain::task::TaskCommand;
use ade_store::database::{Commit, StoredTask};

use crate::{Caller, Error, Outcome};

use super::use_cases::{answer, of_request};
use super::{MOST_ATTEMPTS, Response, TaskService};

/// Answers of one batch.
pub const MOST_AT_ONCE: usize = 500;

/// The same answer to many requests.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Which requests.
    pub approval_ids: Vec<String>,
    /// What to each of them.
    pub response: Response,
    /// Past warnings about freshness, for administrators: never past digest, state or one's own task. There is nothing yet
    /// that warns of it.
    pub skip_validation: bool,
    /// Whether what is approved by it goes before all others.
    pub apply_immediately: bool,
}

impl TaskService {
    /// Answers all, in one transaction. Where one is refused or loses a race, nothing happens to any. Many have no one
    /// revision: `if_match` says nothing here.
    pub async fn respond_to_all(&self, batch: &Batch, caller: &Caller) -> Result<Vec<StoredTask>, Error> {
        caller.require_for(TaskCommand::Approve)?;
        if !self.settings().await?.batch_approvals {
            return Err(Error::Disabled("batch_approvals"));
        }
        if batch.skip_validation && !caller.actor().parts.contains(&ActorRole::Admin) {
            return Err(Error::Forbidden("only an administrator skips the validation of a batch".to_owned()));
        }
        let many = batch.approval_ids.len();
        if many == 0 || many > MOST_AT_ONCE {
            let detail = format!("must name between 1 and {MOST_AT_ONCE} requests");
            return Err(Error::Invalid(vec![ade_domain::Invalid::at("/approval_ids", detail)]));
        }
        for _ in 0..MOST_ATTEMPTS {
            let (tasks, commit) = self.decide_all(batch, caller).await?;
            if self.commit(commit).await? {
                return Ok(tasks);
            }
        }
        Err(Error::Overtaken)
    }

    async fn decide_all(&self, batch: &Batch, caller: &Caller) -> Result<(Vec<StoredTask>, Commit), Error> {
        let (actor, now) = (caller.actor(), self.clock.now());
        // A task may have several of the requests: they are answered one after the other.
        let mut tasks: BTreeMap<String, (u64, StoredTask)> = BTreeMap::new();
        let mut refused = Vec::new();
        for approval_id in &batch.approval_ids {
            let decided = async {
                let task_id = self.task_of(approval_id).await?;
                if !tasks.contains_key(&task_id) {
                    let task = self.visible(&task_id, Some(caller)).await.map_err(of_request)?;
                    tasks.insert(task_id.clone(), (task.revision, task));
                }
                match tasks.get_mut(&task_id) {
                    Some((_, task)) => {
                        Ok(task.respond(&answer(approval_id, &batch.response), &actor, now)?)
                    }
                    None => Err(Error::NotFound("approval")),
                }
            };
            match decided.await {
                Ok(()) => {}
                Err(Error::Record(error)) => return Err(Error::Record(error)),
                Err(error) => refused.push((approval_id.clone(), error)),
            }
        }
        if !refused.is_empty() {
            return Err(Error::Batch(refused));
        }
        let (mut changed, mut commit) = (Vec::with_capacity(tasks.len()), Commit::default());
        for (seen, mut task) in tasks.into_values() {
            if batch.apply_immediately {
                task.apply_first();
            }
            self.add(&mut commit, Some(seen), &mut task, Some(caller), now).await?;
            changed.push(task);
        }
        if let Some(keep) = &caller.keep {
            keep.add(&mut commit, Outcome::Batch(&batch.approval_ids, &changed), now);
        }
        Ok((changed, commit))
    }
}
