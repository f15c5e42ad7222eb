//! Plans the approvals of a task: its risk, its reviewers, and whether it is approved without any. It combines the rules with
//! the history of the task type, and leaves all decisions to `domain`.

use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::approval::assignment::{
    Assignment, AssignmentInput, QuorumUnreachable, assign, assign_best_effort,
};
use ade_domain::approval::policy::{DEFAULT_POLICY_NAME, Policy};
use ade_domain::risk::{
    self, FailureHistory, MAX_HISTORY, RegisteredPattern, RegisteredResource, Risk, RiskLevel, assess, level,
};
use ade_domain::task::{Resource, ReviewPlan, Task};
use ade_store::{Database, DatabaseError};

use super::rules_cache::{RulesCache, RulesSnapshot};
use crate::shared_settings::Settings;

#[derive(Debug, Clone)]
pub(super) struct ApprovalPlanner {
    rules: Arc<RulesSnapshot>,
    history: FailureHistory,
    /// There is a backlog of approval requests, and the settings let low-risk tasks pass in a backlog.
    auto_approve_low_risk: bool,
}

impl ApprovalPlanner {
    pub(super) async fn load(
        database: &Database,
        cache: &RulesCache,
        task_type: &str,
    ) -> Result<Self, DatabaseError> {
        let (version, history) = database.task_history(task_type, MAX_HISTORY).await?;
        let rules = cache.at(database, &version).await?;
        let settings = &rules.settings;
        let auto_approve_low_risk = settings.auto_approve_low_risk
            && database.has_more_pending_than(settings.approval_backlog_threshold).await?;
        Ok(Self { rules, history, auto_approve_low_risk })
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

    /// The highest criticality of all matching patterns, and the dependents of all of them.
    fn registered(&self, resource: &Resource) -> RegisteredResource {
        let matching = || {
            let matches =
                |entry: &&RegisteredPattern| entry.pattern.matches(&resource.resource_type, &resource.id);
            self.rules.registry.iter().filter(matches)
        };
        RegisteredResource {
            resource: resource.name(),
            criticality: matching().map(|entry| entry.criticality).max(),
            dependents: matching().flat_map(|entry| entry.dependents.clone()).collect(),
        }
    }

    pub(super) fn risk(&self, task: &Task) -> Risk {
        let facts = risk::RiskInputs {
            resources: task.config.resources.iter().map(|resource| self.registered(resource)).collect(),
            changes: task.preview.change_counts(),
            history: self.history,
        };
        assess(&facts, self.rules.settings.thresholds)
    }

    pub(super) fn assign(&self, task: &Task, risk: u8, now: Moment) -> Result<Assignment, QuorumUnreachable> {
        assign(&self.assignment_input(task, risk, now))
    }

    fn assignment_input<'a>(&'a self, task: &'a Task, risk: u8, now: Moment) -> AssignmentInput<'a> {
        AssignmentInput {
            config: &task.config,
            risk,
            // The roles of a sponsor do not extend to its agents.
            author: self.rules.people.get(&task.author_id).filter(|_| !task.proposed_by_agent),
            author_set: &task.author_set,
            people: &self.rules.people,
            policies: &self.rules.policies,
            default_policy: &self.rules.default_policy,
            delegations: &self.rules.delegations,
            requires_human: task.preview.has_errors(),
            auto_approve_low_risk: self.auto_approve_low_risk
                && level(risk, self.rules.settings.thresholds) == RiskLevel::Low,
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
        let mut input = self.assignment_input(task, plan.risk.score, now);
        input.requires_human |= needs_reviewer;
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
        ReviewPlan { risk, fingerprint, assignment, due_after_ms: self.rules.settings.due_after_ms(), ids }
    }
}
