//! The agents that may claim a task, as policies and risk see them: a policy that names one of them applies to the task as well, and
//! so does an entry of the registry.
//!
//! They only ever add policies and raise the risk. They are neither targets nor locks of the task, and say nothing about what a policy
//! covers. Who may claim a task can change after its approval, so the agent that claims it is judged once more.

use super::scope::AGENT_PREFIX;
use super::{AgentWork, Refusal, Result, ReviewSubject, Task};
use crate::Moment;
use crate::approval::policy::Policy;
use crate::glob;
use crate::risk::{RegisteredPattern, RegisteredResource};

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
                let pattern = patterns.iter().find(|pattern| glob::may_begin_with(pattern, AGENT_PREFIX))?;
                Some(format!("{pattern} may name one of the many agents that may claim the task"))
            }
        }
    }

    /// The entries of the registry for agents that may claim the task. An agent without an entry says nothing about the risk.
    pub fn registered(&self, registry: &[RegisteredPattern]) -> Vec<RegisteredResource> {
        let names = |entry: &RegisteredPattern| match self {
            Self::Known(targets) => targets
                .iter()
                .find(|target| {
                    target.split_once(':').is_some_and(|(kind, id)| entry.pattern.matches(kind, id))
                })
                .cloned(),
            Self::Unknown => {
                let pattern = entry.pattern.as_str();
                // Without a type, it is about the names of anything.
                let may_match = !pattern.contains(':') || glob::may_begin_with(pattern, AGENT_PREFIX);
                may_match.then(|| format!("{pattern}, which may name an agent that claims the task,"))
            }
        };
        let registered = registry.iter().filter_map(|entry| {
            let (resource, criticality) = (names(entry)?, Some(entry.criticality));
            Some(RegisteredResource { resource, criticality, dependents: Vec::new() })
        });
        registered.collect()
    }
}

fn agent_target(agent_id: &str) -> String {
    format!("{AGENT_PREFIX}{agent_id}")
}

/// Whether a policy has a pattern for this agent, and so may apply to what it claims.
pub fn names_agent(policy: &Policy, agent_id: &str) -> bool {
    glob::matches_any(&policy.targets, &agent_target(agent_id))
}

impl Task {
    /// Checks that the task was reviewed under every policy that applies because this agent claims it, which makes its risk `risk`: the
    /// agent may have got the capability, or the policy may have been made, after the review. A policy for certain times applies if it
    /// does now, or did when reviewers were asked, so that waiting does not avoid it.
    pub fn require_review_for(&self, agent_id: &str, risk: u8, policies: &[Policy], now: Moment) -> Result {
        // What names its agent was reviewed for it.
        let Some(AgentWork::Capability(_)) = self.config.agent_work() else { return Ok(()) };
        let subject =
            ReviewSubject::new(&self.config, &self.scope).with_claimants(PossibleClaimants::of([agent_id]));
        let applies = |policy: &Policy| {
            let mut times = [Some(now), self.assessed_at].into_iter().flatten();
            times.any(|at| policy.mismatch(&subject, risk, at).is_none())
        };
        let was_asked = |policy: &Policy| self.requirements.iter().any(|one| one.policy == policy.name);
        let is_for_agent = |policy: &Policy| {
            subject.claimant_match(&policy.targets).is_some() || policy.risk_threshold > self.risk_score()
        };
        let missing =
            policies.iter().find(|policy| is_for_agent(policy) && !was_asked(policy) && applies(policy));
        missing.map_or(Ok(()), |policy| {
            let (agent, policy) = (agent_id.to_owned(), policy.name.clone());
            Err(Refusal::ReviewRequired { agent, policy })
        })
    }
}
