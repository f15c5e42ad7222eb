//! A demo organisation: users, agents, policies, delegations, and tasks in all states, as in `organisation.json`. It is created
//! through the services that its users would use, so that everything is in the audit log.

use std::collections::BTreeSet;

use ade_domain::agent::AgentProfile;
use ade_domain::approval::{Approval, DecisionKind};
use ade_domain::audit::AuditActor;
use ade_domain::capability::ClaimRightsChange;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::Answer;
use ade_store::database::StoredTask;
use serde::Deserialize;

use crate::accounts::UserDraft;
use crate::agents::{AgentChange, AgentService};
use crate::rules::{DelegationChange, PolicyChange, ResourceChange, RuleService};
use crate::tasks::{DecisionInput, Proposal, TaskAction};
use crate::{AccountService, Caller, Error, ObjectKind, Result, TaskService};

/// The password of all demo users. A demo is only served on a loopback address.
pub const PASSWORD: &str = "demo-demo";
/// Has requests to decide: a newcomer looks at the demo with this user's eyes.
pub const REVIEWER: &str = "carol";

/// The name of the command template that checks files after a change.
pub const CHECK_TEMPLATE: &str = "check-config";

const ORGANISATION: &str = include_str!("organisation.json");

#[derive(Deserialize)]
struct Organisation {
    /// Managers come before the users whom they manage.
    users: Vec<UserDraft>,
    agents: Vec<DemoAgent>,
    policies: Vec<PolicyChange>,
    resources: Vec<ResourceChange>,
    /// Alice delegates risky infrastructure to Bob, who delegates production to Carol: if both apply, only Carol is asked.
    delegations: Vec<DelegationChange>,
    tasks: Vec<DemoTask>,
}

#[derive(Deserialize)]
struct DemoAgent {
    agent_id: String,
    sponsor: String,
    name: String,
    capability: String,
}

#[derive(Deserialize)]
struct DemoTask {
    author: String,
    /// The agent of the author that proposes it.
    agent: Option<String>,
    proposal: Proposal,
    #[serde(default)]
    is_draft: bool,
    then: Option<NextAction>,
}

/// What happens to a task after it is submitted.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum NextAction {
    Decision {
        by: String,
        action: DecisionKind,
        reason: String,
    },
    /// With this reason.
    Cancel(String),
}

#[derive(Debug, Clone)]
pub struct Demo<'a> {
    pub accounts: &'a AccountService,
    pub agents: &'a AgentService,
    pub rules: &'a RuleService,
    pub tasks: &'a TaskService,
}

fn actor(user: Option<&str>) -> AuditActor {
    AuditActor { user_id: user.map(UserId::new), service: Some("demo".to_owned()), ..AuditActor::default() }
}

impl Demo<'_> {
    pub async fn create(&self) -> Result<()> {
        let organisation: Organisation = serde_json::from_str(ORGANISATION).map_err(Error::system)?;
        let admin = AccountService::bootstrap_caller(actor(None));
        for mut user in organisation.users {
            user.change.password = Some(PASSWORD.to_owned());
            self.accounts.create_demo_user(user, &admin).await?;
        }
        for agent in organisation.agents {
            self.register(agent).await?;
        }
        let erin = self.user("erin").await?;
        for policy in &organisation.policies {
            self.rules.create_policy(policy, &erin).await?;
        }
        for resource in &organisation.resources {
            self.rules.create_resource(resource, &erin).await?;
        }
        for delegation in &organisation.delegations {
            let owner = delegation.owner_id.as_ref().map(UserId::as_str).unwrap_or_default();
            self.rules.create_delegation(delegation, &self.user(owner).await?).await?;
        }
        for task in organisation.tasks {
            self.create_task(task).await?;
        }
        Ok(())
    }

    /// The caller of a signed-in user.
    async fn user(&self, id: &str) -> Result<Caller> {
        let user = self.accounts.user(id, &AccountService::bootstrap_caller(actor(None))).await?.user;
        let caller = Caller::new(Some(user), Scope::ALL.into_iter().collect(), actor(Some(id)));
        Ok(Caller { password_at: Some(self.tasks.now()), ..caller })
    }

    /// The caller of an agent with a token that its sponsor created.
    async fn agent(&self, sponsor: &str, id: &str) -> Result<Caller> {
        let mut caller = self.user(sponsor).await?;
        caller.agent_id = Some(id.to_owned());
        caller.token_created_by = Some(UserId::new(sponsor));
        caller.scopes = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        caller.audit_actor.agent_id = Some(id.to_owned());
        Ok(caller)
    }

    async fn register(&self, agent: DemoAgent) -> Result<()> {
        let DemoAgent { agent_id, sponsor, name, capability } = agent;
        let profile = AgentProfile { name, ..AgentProfile::default() };
        let rights =
            ClaimRightsChange { capabilities: Some(vec![capability]), ..ClaimRightsChange::default() };
        let change = AgentChange { profile: Some(profile), rights, ..AgentChange::default() };
        let sponsor = self.user(&sponsor).await?;
        match self.agents.register(&agent_id, change, None, &sponsor).await {
            Err(error @ Error::Coordination(_)) => {
                tracing::warn!(%error, "cannot register an agent of the demo");
                Ok(())
            }
            registered => registered.map(drop),
        }
    }

    async fn create_task(&self, task: DemoTask) -> Result<()> {
        let DemoTask { author, agent, proposal, is_draft, then } = task;
        let caller = match agent {
            Some(agent) => self.agent(&author, &agent).await?,
            None => self.user(&author).await?,
        };
        let task = self.tasks.propose(proposal, &caller).await?;
        if is_draft {
            return Ok(());
        }
        let task = self.tasks.submit(&task.task_id, &caller).await?;
        match then {
            Some(NextAction::Decision { by, action, reason }) => {
                self.decide(&task, &by, action, reason).await
            }
            Some(NextAction::Cancel(reason)) => {
                let cancel = TaskAction::Cancel { reason: Some(reason) };
                self.tasks.perform(&task.task_id, &cancel, &caller).await.map(drop)
            }
            None => Ok(()),
        }
    }

    async fn decide(&self, task: &StoredTask, by: &str, action: DecisionKind, reason: String) -> Result<()> {
        let is_own = |approval: &&Approval| approval.reviewer_id.as_str() == by;
        let approval = task.approvals.iter().find(is_own).ok_or(Error::NotFound(ObjectKind::Approval))?;
        let answer = Answer {
            reason: Some(reason),
            digest: Some(task.digest),
            scope_digest: task.scope_digest,
            confirm: task.confirmations().into_iter().next(),
            revision: None,
        };
        let decision = DecisionInput { action, answer };
        self.tasks.decide(&approval.approval_id, &decision, &self.user(by).await?).await.map(drop)
    }
}
