//! A fixture for task tests: people with roles and managers, policies, delegations, and commands on tasks.

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::approval::assignment::{Assignment, AssignmentInput, QuorumUnreachable, RuleChange, assign};
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::approval::policy::{Policy, default_policy};
use ade_domain::independence::AccountHistory;
use ade_domain::lock::LockMode;
use ade_domain::people::{AuthorSet, People, User, UserId};
use ade_domain::permission::actor_roles;
use ade_domain::risk::{RegisteredResource, RiskInputs, RiskThresholds, assess};
use ade_domain::task::{
    Actor, Answer, Config, Decision, PossibleClaimants, Preview, Refusal, Resource, ReviewPlan,
    ReviewSubject, RollbackStrategy, Task,
};

pub(crate) fn id(text: &str) -> UserId {
    UserId::new(text)
}

pub(crate) fn user(name: &str, roles: &[&str], manager: Option<&str>) -> User {
    User {
        user_id: id(name),
        name: name.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        manager_id: manager.map(id),
        team: None,
        email: None,
        active: true,
        history: AccountHistory::default(),
    }
}

pub(crate) fn delegation(owner: &str, to: &str, conditions: DelegationConditions) -> Delegation {
    Delegation {
        delegation_id: format!("{owner}-{to}"),
        owner_id: id(owner),
        delegate_to: id(to),
        kind: DelegationKind::Delegate,
        conditions,
        cascade: true,
        active: true,
        created_at: Moment::default(),
        valid_from: None,
        valid_until: None,
    }
}

pub(crate) fn policy(name: &str, min_approvers: u32, roles: &[&str]) -> Policy {
    let required_roles = roles.iter().map(|role| (*role).to_owned()).collect();
    Policy { name: name.to_owned(), min_approvers, required_roles, ..default_policy() }
}

pub(crate) fn config(task_type: &str, resources: &[&str]) -> Config {
    let resource = |name: &&str| {
        let (resource_type, id) = name.split_once(':').expect("type:id");
        Resource { resource_type: resource_type.to_owned(), id: id.to_owned(), mode: LockMode::Exclusive }
    };
    Config {
        task_type: task_type.to_owned(),
        version: "1".to_owned(),
        description: "a change".to_owned(),
        executor: "noop".to_owned(),
        parameters: serde_json::Map::new(),
        resources: resources.iter().map(resource).collect(),
        rollback_strategy: RollbackStrategy::Automatic,
        timeout_seconds: 60,
        priority: 50,
    }
}

/// Everything that commands on a task depend on, besides the task.
#[derive(Debug, Clone)]
pub(crate) struct Fixture {
    pub(crate) users: Vec<User>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) delegations: Vec<Delegation>,
    /// The criticality of every resource in the registry.
    pub(crate) criticality: u8,
    pub(crate) preview: Preview,
    pub(crate) by_agent: bool,
    pub(crate) rule_changes: Vec<RuleChange>,
    pub(crate) requires_human: bool,
    /// The agents that may claim every task.
    pub(crate) claimants: PossibleClaimants,
    pub(crate) now: Moment,
    pub(crate) ids: u64,
}

impl Fixture {
    pub(crate) fn new(users: Vec<User>) -> Self {
        let now = Moment::from_micros(1_794_744_000_000_000);
        Self {
            users,
            policies: Vec::new(),
            delegations: Vec::new(),
            criticality: 50,
            preview: Preview::ready(),
            by_agent: false,
            rule_changes: Vec::new(),
            requires_human: false,
            claimants: PossibleClaimants::default(),
            now,
            ids: 0,
        }
    }

    pub(crate) fn people(&self) -> People {
        self.users.iter().cloned().collect()
    }

    pub(crate) fn actor(&self, name: &str) -> Actor {
        let people = self.people();
        let user = people.get(&id(name)).expect("a user of the fixture");
        Actor {
            user: Some(id(name)),
            roles: actor_roles(user),
            token_issuer: None,
            agent_id: None,
            has_admin_scope: true,
            password_at: Some(self.now),
        }
    }

    pub(crate) fn draft(&self, author: &str, config: Config) -> Task {
        let digest = config.digest().expect("plain");
        Task::draft("task", config, digest, id(author), AuthorSet::default(), self.now)
    }

    pub(crate) fn assignment(&self, task: &Task, config: &Config) -> Result<Assignment, QuorumUnreachable> {
        let (people, default_policy) = (self.people(), default_policy());
        assign(&AssignmentInput {
            subject: &ReviewSubject::new(config, &task.scope).with_claimants(self.claimants.clone()),
            preview: &self.preview,
            risk: self.risk(config).score,
            author_set: &task.author_set,
            people: &people,
            policies: &self.policies,
            default_policy: &default_policy,
            delegations: &self.delegations,
            by_agent: self.by_agent,
            rule_changes: &self.rule_changes,
            requires_human: self.requires_human,
            now: self.now,
        })
    }

    pub(crate) fn risk(&self, config: &Config) -> ade_domain::risk::Risk {
        let registered = |resource: &Resource| RegisteredResource {
            resource: resource.name(),
            criticality: Some(self.criticality),
            dependents: Vec::new(),
        };
        let facts = RiskInputs {
            scope: config.resources.iter().map(registered).collect(),
            resources: config.resources.iter().map(registered).collect(),
            ..RiskInputs::default()
        };
        assess(&facts, RiskThresholds::default())
    }

    /// Runs a command with the plan for a config.
    pub(crate) fn with_plan<T>(
        &mut self,
        task: &Task,
        config: &Config,
        command: impl FnOnce(ReviewPlan<'_>, Moment) -> T,
    ) -> T {
        let (risk, assignment, now) = (self.risk(config), self.assignment(task, config), self.now);
        let ids = &mut self.ids;
        let mut next = || {
            *ids += 1;
            format!("a{ids}")
        };
        let (scope, due_after_ms) = (task.scope.clone(), 1_000);
        let plan = ReviewPlan { scope, risk, fingerprint: None, assignment, due_after_ms, ids: &mut next };
        command(plan, now)
    }

    pub(crate) fn submit(&mut self, task: &mut Task, by: &str) -> Result<(), Refusal> {
        let (actor, config) = (self.actor(by), task.config.clone());
        let mut changed = task.clone();
        changed.prepare_submission(&actor)?;
        let prepared = changed.clone();
        let outcome = self.with_plan(&prepared, &config, |plan, now| changed.submit(plan, &actor, now));
        outcome.map(|()| *task = changed)
    }

    pub(crate) fn modify(&mut self, task: &mut Task, config: &Config, by: &str) -> Result<(), Refusal> {
        let (actor, digest) = (self.actor(by), config.digest().expect("plain"));
        let mut changed = task.clone();
        let outcome = self
            .with_plan(task, config, |plan, now| changed.modify(config.clone(), digest, plan, &actor, now));
        outcome.map(|()| *task = changed)
    }

    pub(crate) fn decide(
        &self,
        task: &mut Task,
        reviewer: &str,
        action: DecisionKind,
        by: &str,
    ) -> Result<(), Refusal> {
        let approval = task.approvals.iter().rev().find(|approval| approval.reviewer_id == id(reviewer));
        let approval_id =
            approval.map(|approval| approval.approval_id.clone()).ok_or(Refusal::UnknownApproval)?;
        let answer = full_answer(task);
        let decision = Decision { approval_id: &approval_id, kind: action, answer: &answer, is_batch: false };
        let mut changed = task.clone();
        changed.decide(&decision, &self.actor(by), &self.people(), self.now).map(|()| *task = changed)
    }
}

/// Everything that an approval may have to carry.
pub(crate) fn full_answer(task: &Task) -> Answer {
    Answer {
        reason: Some("because".to_owned()),
        digest: Some(task.digest),
        scope_digest: task.scope_digest,
        confirm: task.confirmations().first().cloned(),
        revision: Some(1),
    }
}

/// The reviewers whose requests can still be decided.
pub(crate) fn open_reviewers(task: &Task) -> Vec<&str> {
    task.approvals
        .iter()
        .filter(|approval| approval.is_decidable())
        .map(|approval| approval.reviewer_id.as_str())
        .collect()
}
