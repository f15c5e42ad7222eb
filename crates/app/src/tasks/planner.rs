//! Plans the approvals of a task: its risk, its reviewers, and whether it is approved without any. It combines the rules with
//! the history of the task type, and leaves all decisions to `domain`.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::assignment::{
    Assignment, AssignmentInput, QuorumUnreachable, assign, assign_best_effort,
};
use ade_domain::approval::policy::{DEFAULT_POLICY_NAME, Policy};
use ade_domain::capability::Claimant;
use ade_domain::risk::{
    self, FailureHistory, MAX_HISTORY, RegisteredPattern, RegisteredResource, Risk, assess,
};
use ade_domain::task::{
    AgentWork, Config, PossibleClaimants, Resource, ReviewPlan, ReviewSubject, Task, TaskScope,
};
use ade_executors::derive_scope;
use ade_store::database::{CapableAgent, CapableAgents};
use ade_store::{Database, DatabaseError};

use super::TaskService;
use super::rules_cache::{RulesCache, RulesSnapshot};
use crate::shared_settings::Settings;
use crate::{Caller, Error, Result};

/// Agents with one capability that are read for a review. With more of them, every policy that may name an agent applies.
const MAX_CAPABLE_AGENTS: u32 = 1_000;

#[derive(Debug, Clone)]
pub(super) struct ApprovalPlanner {
    rules: Arc<RulesSnapshot>,
    history: FailureHistory,
    /// The agents with the capability that a task asks for; `None` if they were not read.
    agents: Option<Arc<CapableAgents>>,
}

impl TaskService {
    /// A planner that does not know which agents may claim a task.
    pub(super) async fn planner(&self, task_type: &str) -> Result<ApprovalPlanner> {
        Ok(ApprovalPlanner::load(&self.context.database, &self.rules, task_type).await?)
    }

    /// A planner for the risk and the review of a config.
    pub(super) async fn review_planner(&self, config: &Config) -> Result<ApprovalPlanner> {
        let planner = self.planner(&config.task_type).await?;
        Ok(planner.with_agents_for(&self.context.database, config).await?)
    }
}

impl ApprovalPlanner {
    pub(super) async fn load(
        database: &Database,
        cache: &RulesCache,
        task_type: &str,
    ) -> Result<Self, DatabaseError> {
        let (version, history) = database.task_history(task_type, MAX_HISTORY).await?;
        let rules = cache.at(database, &version).await?;
        Ok(Self { rules, history, agents: None })
    }

    /// The same planner, with the agents that may claim tasks of this config: policies that name them apply.
    pub(super) async fn with_agents_for(
        self,
        database: &Database,
        config: &Config,
    ) -> Result<Self, DatabaseError> {
        let Some(AgentWork::Capability(capability)) = config.agent_work() else { return Ok(self) };
        let agents = database.agents_with_capability(capability, MAX_CAPABLE_AGENTS).await?;
        Ok(Self { agents: Some(Arc::new(agents)), ..self })
    }

    /// The agents that may claim a task, by the rule of claims. Unless all are known, any agent may be among them, so that a task
    /// is rather reviewed too strictly.
    fn claimants(&self, task: &Task) -> PossibleClaimants {
        let Some(work @ AgentWork::Capability(capability)) = task.config.agent_work() else {
            return PossibleClaimants::default();
        };
        let known = self.agents.as_ref().filter(|found| found.is_complete && found.capability == capability);
        let Some(known) = known else { return PossibleClaimants::Unknown };
        // Nobody claims tasks of an author who does not exist.
        let Some(author) = self.rules.people.get(&task.author_id) else {
            return PossibleClaimants::default();
        };
        let may_claim = |agent: &&CapableAgent| {
            let sponsor = agent.sponsor_id.as_ref().and_then(|sponsor| self.rules.people.get(sponsor));
            let claimant = Claimant::Agent { agent_id: &agent.agent_id, sponsor, rights: &agent.rights };
            claimant.may_claim(work, author)
        };
        let agents = known.agents.iter().filter(may_claim);
        PossibleClaimants::of(agents.map(|agent| agent.agent_id.as_str()))
    }

    fn subject<'a>(&self, task: &'a Task) -> ReviewSubject<'a> {
        ReviewSubject::new(&task.config, &task.scope).with_claimants(self.claimants(task))
    }

    /// What a config can touch.
    pub(super) fn scope(&self, config: &Config) -> Result<TaskScope> {
        derive_scope(config, &self.rules.bindings).map_err(Error::Invalid)
    }

    /// The same, if the caller may propose tasks there.
    pub(super) fn scope_for(&self, config: &Config, caller: &Caller) -> Result<TaskScope> {
        let scope = self.scope(config)?;
        for part in &scope.0 {
            let Some(published) = self.rules.bindings.get(&part.binding) else { continue };
            let authors = &published.binding.authors;
            let includes = |user| authors.iter().any(|one| one.includes(user, caller.agent_id.as_deref()));
            if !authors.is_empty() && !caller.user.as_ref().is_some_and(includes) {
                let authors: Vec<String> = authors.iter().map(ToString::to_string).collect();
                return Err(Error::forbidden(format!(
                    "{} is for {} only; ask the operator, who lists them in its configuration",
                    part.binding,
                    authors.join(", ")
                )));
            }
        }
        Ok(scope)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.rules.settings
    }

    /// The same planner with hypothetical policies, each in place of the one with its name.
    pub(super) fn with_policies(&self, policies: &[Policy]) -> Self {
        let mut rules = RulesSnapshot::clone(&self.rules);
        for policy in policies {
            if policy.name == DEFAULT_POLICY_NAME {
                rules.default_policy = policy.clone();
                continue;
            }
            rules.policies.retain(|other| other.name != policy.name);
            rules.policies.push(policy.clone());
        }
        Self { rules: Arc::new(rules), ..self.clone() }
    }

    /// The highest criticality of all matching patterns, and the dependents of all of them. What the operator's file says about
    /// the criticality of a binding counts where the registry says nothing.
    fn registered(&self, item_type: &str, id: &str, bound: Option<u8>) -> RegisteredResource {
        let matching = || {
            let matches = |entry: &&RegisteredPattern| entry.pattern.matches(item_type, id);
            self.rules.registry.iter().filter(matches)
        };
        RegisteredResource {
            resource: format!("{item_type}:{id}"),
            criticality: matching().map(|entry| entry.criticality).max().or(bound),
            dependents: matching().flat_map(|entry| entry.dependents.clone()).collect(),
        }
    }

    pub(super) fn risk(&self, task: &Task) -> Risk {
        self.risk_with(task, &self.claimants(task))
    }

    /// The risk of a task that was assessed before, if this agent claims it: higher if the registry says so about the agent.
    pub(super) fn risk_for_claim(&self, task: &Task, agent_id: &str) -> u8 {
        let score = |claimants: PossibleClaimants| self.risk_with(task, &claimants).score;
        let (with, without) = (score(PossibleClaimants::of([agent_id])), score(PossibleClaimants::default()));
        if with > without { with.max(task.risk_score()) } else { task.risk_score() }
    }

    fn risk_with(&self, task: &Task, claimants: &PossibleClaimants) -> Risk {
        let Task { config, scope, .. } = task;
        let of_resource = |resource: &Resource| {
            self.registered(&resource.resource_type, &resource.id, scope.bound_criticality(resource))
        };
        let targets = scope.0.iter().flat_map(|part| {
            let names = part.targets.iter().filter_map(|target| target.split_once(':'));
            names.map(|(target_type, id)| self.registered(target_type, id, part.criticality))
        });
        let effective = scope.effective_resources(config);
        let facts = risk::RiskInputs {
            scope: effective
                .iter()
                .map(of_resource)
                .chain(targets)
                .chain(claimants.registered(&self.rules.registry))
                .collect(),
            resources: scope.locked_resources(config).iter().map(of_resource).collect(),
            changes: task.preview.change_counts(),
            history: self.history,
        };
        assess(&facts, self.rules.settings.thresholds)
    }

    pub(super) fn assign(&self, task: &Task, risk: u8, now: Moment) -> Result<Assignment, QuorumUnreachable> {
        let subject = self.subject(task);
        assign(&self.assignment_input(task, &subject, risk, now))
    }

    fn assignment_input<'a>(
        &'a self,
        task: &'a Task,
        subject: &'a ReviewSubject<'a>,
        risk: u8,
        now: Moment,
    ) -> AssignmentInput<'a> {
        AssignmentInput {
            subject,
            preview: &task.preview,
            risk,
            author_set: &task.author_set,
            people: &self.rules.people,
            policies: &self.rules.policies,
            default_policy: &self.rules.default_policy,
            delegations: &self.rules.delegations,
            by_agent: task.is_by_agent(),
            rule_changes: &self.rules.changes,
            requires_human: false,
            now,
        }
    }

    /// Assesses the risk of a draft, and whether it would be approved without a reviewer.
    pub(super) fn assess(&self, task: &mut Task, now: Moment) {
        let risk = self.risk(task);
        let assignment = self.assign(task, risk.score, now);
        let auto_approvable = assignment.is_ok_and(|assignment| assignment.auto_approved.is_some());
        task.assess(risk, auto_approvable, now);
    }

    /// The plan for a task that goes back into review, even if the quorum is unreachable: it must not stay approved.
    ///
    /// Pass `needs_reviewer` if the preview changed between approval and apply: an automatic approval would repeat forever.
    pub(super) fn plan_best_effort<'a>(
        &self,
        task: &Task,
        needs_reviewer: bool,
        ids: &'a mut dyn FnMut() -> String,
        now: Moment,
    ) -> ReviewPlan<'a> {
        let plan = self.plan(task, ids, now);
        let subject = self.subject(task);
        let mut input = self.assignment_input(task, &subject, plan.risk.score, now);
        input.requires_human = needs_reviewer;
        ReviewPlan { assignment: Ok(assign_best_effort(&input)), ..plan }
    }

    pub(super) fn plan<'a>(
        &self,
        task: &Task,
        ids: &'a mut dyn FnMut() -> String,
        now: Moment,
    ) -> ReviewPlan<'a> {
        let risk = self.risk(task);
        let assignment = self.assign(task, risk.score, now);
        let fingerprint = task.preview.fingerprint.map(|fingerprint| fingerprint.to_string());
        let due_after_ms = self.rules.settings.due_after_ms();
        ReviewPlan { scope: task.scope.clone(), risk, fingerprint, assignment, due_after_ms, ids }
    }
}
