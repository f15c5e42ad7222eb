//! Simulations: what submitting a task would do, now or at another time, with hypothetical policies. They use the functions of
//! real submissions and change nothing.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::assignment::{Assignment, QuorumUnreachable};
use ade_domain::approval::policy::Policy;
use ade_domain::approval::quorum::Requirement;
use ade_domain::people::{AuthorSet, UserId};
use ade_domain::permission::Scope;
use ade_domain::risk::Risk;
use ade_domain::task::{LockPreview, Task, TaskScope, TaskState};
use ade_store::database::{StoredTask, TaskFilter};

use crate::{Caller, Result};

use super::commands::validated_digest;
use super::{TaskDraft, TaskService};

/// Past tasks that a replay considers.
const MAX_REPLAYED: usize = 10_000;
const PAGE_SIZE: u32 = 200;

/// A hypothetical submission.
#[derive(Debug, Clone)]
pub struct SimulationInput {
    pub draft: TaskDraft,
    /// The author, the author set and the agents of an existing task; `None` for a task of the caller.
    pub authors: Option<(UserId, AuthorSet, BTreeSet<String>)>,
    /// The time of the submission; `None` is now.
    pub at: Option<Moment>,
    /// Hypothetical policies; each replaces the one with its name.
    pub policies: Vec<Policy>,
}

impl SimulationInput {
    #[must_use]
    pub const fn new(draft: TaskDraft, at: Option<Moment>, policies: Vec<Policy>) -> Self {
        Self { draft, authors: None, at, policies }
    }

    /// The submission of an existing task as it is now.
    #[must_use]
    pub fn of(task: &StoredTask, at: Option<Moment>, policies: Vec<Policy>) -> Self {
        let authors = Some((task.author_id.clone(), task.author_set.clone(), task.by_agent.clone()));
        Self { authors, ..Self::new(TaskDraft::of(task), at, policies) }
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    pub risk: Risk,
    pub assignment: Result<Assignment, QuorumUnreachable>,
    /// The minimum number of approvals.
    pub required_count: u32,
    /// The locks that it would take, as they are now.
    pub locks: Vec<LockPreview>,
    /// What it could touch.
    pub scope: TaskScope,
}

/// A past task for which a policy would have required other approvals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayDifference {
    pub task_id: String,
    /// The approvals required without the policy, in words.
    pub before: String,
    /// The approvals required with the policy, in words.
    pub after: String,
}

/// Past tasks under a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// How many submitted tasks were considered.
    pub replayed: u64,
    /// The newest first.
    pub differences: Vec<ReplayDifference>,
}

impl TaskService {
    pub async fn simulate(&self, input: &SimulationInput, caller: &Caller) -> Result<Simulation> {
        caller.require_scope(Scope::Read)?;
        let TaskDraft { config, mut metadata, preview } = input.draft.clone();
        let digest = validated_digest(&config)?;
        let now = input.at.unwrap_or_else(|| self.context.now());
        let planner = self.review_planner(&config).await?.with_policies(&input.policies);
        let (author, authors, by_agent) = match input.authors.clone() {
            Some(of_task) => of_task,
            // The bootstrap token is not a person.
            None => {
                let author = caller.actor().user.unwrap_or_else(|| UserId::new("nobody"));
                metadata.lineage = self.resolve_lineage(&metadata.lineage, caller).await?;
                (author, self.authors(&metadata.lineage, caller).await?, BTreeSet::new())
            }
        };
        let scope = planner.scope(&config)?;
        let locks = self.lock_preview(&config, &scope, None).await;
        let draft = Task::draft("simulated", config, digest, author, authors, now);
        let mut task = Task { preview, metadata, by_agent, ..draft };
        task.set_scope(scope);
        task.record_agent(&caller.actor());
        // The caller chooses the policies, and many patterns take a while to match.
        let plan = move || {
            let risk = planner.risk(&task);
            let assignment = planner.assign(&task, risk.score, now);
            (risk, assignment, task.scope)
        };
        let (risk, assignment, scope) =
            tokio::task::spawn_blocking(plan).await.map_err(crate::Error::system)?;
        let required_count = assignment.as_ref().map_or(0, |assignment| assignment.required_count);
        Ok(Simulation { risk, assignment, required_count, locks, scope })
    }

    /// The past tasks for which a policy would have required other approvals. Each is assigned as it was submitted and at that
    /// time, but by today's users and rules: once without the policy, and once with it.
    pub async fn replay(&self, policy: &Policy, caller: &Caller) -> Result<Replay> {
        caller.require_scope(Scope::Read)?;
        let (mut differences, mut before) = (Vec::new(), None::<String>);
        let (mut read, mut replayed) = (0, 0);
        let mut planners = BTreeMap::new();
        loop {
            let page =
                self.context.database.tasks(&TaskFilter::default(), before.as_deref(), PAGE_SIZE).await?;
            for task in &page {
                let Some(at) = task.entered_at.get(&TaskState::Submitted).copied() else { continue };
                replayed += 1;
                // What a planner is loaded for.
                let key = (task.config.task_type.clone(), task.config.work_queue());
                if !planners.contains_key(&key) {
                    let without = self.review_planner(&task.config).await?;
                    let with = without.with_policies(std::slice::from_ref(policy));
                    planners.insert(key.clone(), (without, with));
                }
                let Some((without, with)) = planners.get(&key) else { continue };
                let [was, would_be] =
                    [without, with].map(|planner| describe(&planner.assign(task, task.risk_score(), at)));
                if was != would_be {
                    let task_id = task.task_id.clone();
                    differences.push(ReplayDifference { task_id, before: was, after: would_be });
                }
            }
            read += page.len();
            before = page.last().map(|task| task.task_id.clone());
            if page.len() < PAGE_SIZE as usize || read >= MAX_REPLAYED {
                return Ok(Replay { replayed, differences });
            }
        }
    }
}

/// The approvals required, without the reasons.
fn describe(assignment: &Result<Assignment, QuorumUnreachable>) -> String {
    match assignment {
        Err(unreachable) => unreachable.to_string(),
        Ok(Assignment { auto_approved: Some(_), .. }) => "no approval required".to_owned(),
        Ok(assignment) => {
            let requirement = |requirement: &Requirement| {
                let people: Vec<&str> = requirement.reviewers.keys().map(|who| who.as_str()).collect();
                format!("{} of {} for {}", requirement.min_approvers, people.join(", "), requirement.policy)
            };
            assignment.requirements.iter().map(requirement).collect::<Vec<_>>().join("; ")
        }
    }
}
