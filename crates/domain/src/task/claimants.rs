//! The agents that may claim a task, as policies see them: a policy that names one of them applies to the task as well.
//!
//! They only ever add policies. They are neither targets nor locks of the task, and say nothing about what a policy covers. Who may
//! claim a task can change after its approval, so the agent that claims it is judged once more.

use super::{AgentWork, Refusal, Result, ReviewSubject, Task};
use crate::Moment;
use crate::approval::policy::Policy;
use crate::glob;

/// The type of the targets that agents are.
const AGENT_TARGET: &str = "agent:";

/// The agents that may claim a task because of their capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PossibleClaimants {
    /// As targets, such as `agent:prod-1`.
    Known(Vec<String>),
    /// Not read, or too many to read: any agent may be among them.
    Unknown,
}

impl Default for PossibleClaimants {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

impl PossibleClaimants {
    pub fn of<'a>(agents: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Known(agents.into_iter().map(agent_target).collect())
    }

    /// Why one of these patterns names an agent that may claim the task; none if no pattern does.
    pub fn matched_by(&self, patterns: &[String]) -> Option<String> {
        match self {
            Self::Known(targets) => {
                let found = targets.iter().find(|target| glob::matches_any(patterns, target))?;
                Some(format!("it names {found}, which may claim the task"))
            }
            Self::Unknown => {
                let pattern = patterns.iter().find(|pattern| glob::may_begin_with(pattern, AGENT_TARGET))?;
                Some(format!("{pattern} may name one of the many agents that may claim the task"))
            }
        }
    }
}

fn agent_target(agent_id: &str) -> String {
    format!("{AGENT_TARGET}{agent_id}")
}

/// Whether a policy has a pattern for this agent, and so may apply to what it claims.
pub fn names_agent(policy: &Policy, agent_id: &str) -> bool {
    glob::matches_any(&policy.targets, &agent_target(agent_id))
}

impl Task {
    /// Checks that the task was reviewed under every policy that applies because this agent claims it: the agent may have got the
    /// capability, or the policy may have been made, after the review. A policy for certain times applies if it does now, or did
    /// when reviewers were asked, so that waiting does not avoid it.
    pub fn require_review_for(&self, agent_id: &str, policies: &[Policy], now: Moment) -> Result {
        // What names its agent was reviewed for it.
        let Some(AgentWork::Capability(_)) = self.config.agent_work() else { return Ok(()) };
        let subject =
            ReviewSubject::new(&self.config, &self.scope).with_claimants(PossibleClaimants::of([agent_id]));
        let applies = |policy: &Policy| {
            let mut times = [Some(now), self.assessed_at].into_iter().flatten();
            times.any(|at| policy.mismatch(&subject, self.risk_score(), at).is_none())
        };
        let was_asked = |policy: &Policy| self.requirements.iter().any(|one| one.policy == policy.name);
        let missing = policies.iter().find(|policy| {
            subject.claimant_match(&policy.targets).is_some() && !was_asked(policy) && applies(policy)
        });
        missing.map_or(Ok(()), |policy| {
            let (agent, policy) = (agent_id.to_owned(), policy.name.clone());
            Err(Refusal::ReviewRequired { agent, policy })
        })
    }
}
