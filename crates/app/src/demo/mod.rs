//! A demo organisation: users, agents, policies, delegations, and tasks in all states. It is created through the services that its
//! users would use, so that everything is in the audit log.

mod proposals;

use std::collections::BTreeSet;

use ade_domain::agent::AgentProfile;
use ade_domain::approval::delegation::DelegationConditions;
use ade_domain::approval::policy::{AutoApprove, Priority};
use ade_domain::approval::window::{TimeWindow, Weekday};
use ade_domain::approval::{Approval, DecisionKind};
use ade_domain::audit::AuditActor;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_store::database::StoredTask;
use serde_json::json;

use crate::accounts::{UserChange, UserDraft};
use crate::agents::AgentService;
use crate::rules::{DelegationChange, PolicyChange, ResourceChange, RuleService};
use crate::tasks::{DecisionInput, Proposal, TaskAction};
use crate::{AccountService, Caller, Error, ObjectKind, Result, TaskService};
use proposals::{cleanup, documentation, load_balancer, migration, parameters, resource, rollout};

/// The password of all demo users. A demo is only served on a loopback address.
pub const PASSWORD: &str = "demo-demo";

/// The name of the command template that checks files after a change.
pub const CHECK_TEMPLATE: &str = "check-config";

/// Id, name, roles, manager, team.
type DemoUser = (&'static str, &'static str, &'static [&'static str], Option<&'static str>, &'static str);

/// Managers come before the users whom they manage.
const USERS: [DemoUser; 9] = [
    ("erin", "Erin Admin", &["admin", "on-call"], None, "operations"),
    ("frank", "Frank Admin", &["admin"], None, "operations"),
    ("mia", "Mia Manager", &["reviewer", "manager"], None, "platform"),
    ("ann", "Ann Author", &["author"], Some("mia"), "platform"),
    ("dave", "Dave Developer", &["author", "reviewer"], Some("mia"), "payments"),
    ("alice", "Alice Architect", &["reviewer"], Some("mia"), "infrastructure"),
    ("bob", "Bob Builder", &["reviewer"], Some("mia"), "infrastructure"),
    ("carol", "Carol Custodian", &["reviewer", "dba"], Some("mia"), "databases"),
    ("grace", "Grace Auditor", &["auditor"], None, "compliance"),
];

#[derive(Debug, Clone)]
pub struct Demo<'a> {
    pub accounts: &'a AccountService,
    pub agents: &'a AgentService,
    pub rules: &'a RuleService,
    pub tasks: &'a TaskService,
    /// The folder whose files the demo tasks change; without it, they are left out.
    pub playground: Option<String>,
}

fn actor(user: Option<&str>) -> AuditActor {
    AuditActor { user_id: user.map(UserId::new), service: Some("demo".to_owned()), ..AuditActor::default() }
}

impl Demo<'_> {
    pub async fn create(&self) -> Result<()> {
        let admin = AccountService::bootstrap_caller(actor(None));
        for (id, name, roles, manager, team) in USERS {
            let change = UserChange {
                name: Some(name.to_owned()),
                roles: Some(roles.iter().map(|role| (*role).to_owned()).collect()),
                manager_id: manager.map(|manager| Some(manager.to_owned())),
                team: Some(Some(team.to_owned())),
                active: None,
                password: Some(PASSWORD.to_owned()),
            };
            self.accounts.create_user(UserDraft { user_id: id.to_owned(), change }, &admin).await?;
        }
        self.register_agents().await?;
        self.create_rules().await?;
        self.create_tasks().await
    }

    /// The caller of a signed-in user.
    async fn user(&self, id: &str) -> Result<Caller> {
        let user = self.accounts.user(id, &AccountService::bootstrap_caller(actor(None))).await?.user;
        Ok(Caller::new(Some(user), Scope::ALL.into_iter().collect(), actor(Some(id))))
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

    async fn register_agents(&self) -> Result<()> {
        let agents = [
            ("ann", "schema-migrator", "Schema migrator", "plans and writes database migrations"),
            ("dave", "release-bot", "Release bot", "rolls out services"),
        ];
        for (sponsor, id, name, capability) in agents {
            let profile = AgentProfile {
                name: name.to_owned(),
                capabilities: vec![capability.to_owned()],
                ..AgentProfile::default()
            };
            let caller = self.user(sponsor).await?;
            match self.agents.register(id, profile, None, None, &caller).await {
                Err(error @ Error::Coordination(_)) => {
                    tracing::warn!(%error, "cannot register an agent of the demo");
                }
                registered => drop(registered?),
            }
        }
        Ok(())
    }

    async fn create_rules(&self) -> Result<()> {
        let erin = self.user("erin").await?;
        let patterns = |texts: &[&str]| Some(texts.iter().map(|text| Pattern::new(*text)).collect());
        let words = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let named = |name: &str| PolicyChange {
            name: Some(name.to_owned()),
            active: Some(true),
            ..PolicyChange::default()
        };
        let policies = [
            PolicyChange {
                resource_patterns: patterns(&["database:prod-*"]),
                min_approvers: Some(2),
                required_roles: words(&["dba", "reviewer"]),
                priority: Some(Priority::High),
                ..named("production databases")
            },
            PolicyChange {
                task_types: words(&["infrastructure"]),
                reviewers: Some(vec![UserId::new("alice")]),
                escalation_role: Some(Some("on-call".to_owned())),
                ..named("infrastructure")
            },
            PolicyChange {
                task_types: words(&["docs"]),
                auto_approve_if: Some(Some(AutoApprove { risk_below: Some(25), ..AutoApprove::default() })),
                ..named("documentation")
            },
            PolicyChange {
                min_approvers: Some(3),
                window: Some(Some(TimeWindow {
                    weekdays: BTreeSet::from([Weekday::Sat, Weekday::Sun]),
                    hours: (0, 24),
                    time_zone: "Europe/Berlin".to_owned(),
                })),
                active: None,
                ..named("quiet weekends")
            },
        ];
        for policy in &policies {
            self.rules.create_policy(policy, &erin).await?;
        }
        for (pattern, criticality, dependents) in [
            ("database:prod-*", 90, &["service:checkout", "service:billing"][..]),
            ("service:*", 60, &["page:status"]),
            ("docs:*", 5, &[]),
        ] {
            let change = ResourceChange {
                pattern: Some(Pattern::new(pattern)),
                criticality: Some(criticality),
                dependents: words(dependents),
            };
            self.rules.create_resource(&change, &erin).await?;
        }
        // Alice delegates risky infrastructure to Bob, who delegates production to Carol: if both apply, only Carol is asked.
        for (owner, to, conditions) in [
            (
                "alice",
                "bob",
                DelegationConditions {
                    task_types: vec!["infrastructure".to_owned()],
                    risk_above: Some(50),
                    ..DelegationConditions::default()
                },
            ),
            (
                "bob",
                "carol",
                DelegationConditions {
                    resource_patterns: vec![Pattern::new("prod-*")],
                    ..DelegationConditions::default()
                },
            ),
        ] {
            let change = DelegationChange {
                delegate_to: Some(UserId::new(to)),
                conditions: Some(conditions),
                cascade: Some(true),
                ..DelegationChange::default()
            };
            self.rules.create_delegation(&change, &self.user(owner).await?).await?;
        }
        Ok(())
    }

    async fn create_tasks(&self) -> Result<()> {
        let (ann, dave) = (self.user("ann").await?, self.user("dave").await?);
        let migrator = self.agent("ann", "schema-migrator").await?;
        // In review, proposed by an agent: needs two approvals, one of them by a database administrator.
        self.submitted(migration(), &migrator).await?;
        // In review: the delegation chain leads to Carol only.
        self.submitted(load_balancer(), &ann).await?;
        // In review: Dave requests changes.
        let task = self.submitted(cleanup(), &ann).await?;
        self.decide(&task, "dave", DecisionKind::RequestChanges, "keep the sessions of the last hour")
            .await?;
        // Approved, not applied yet.
        let task = self.submitted(rollout("checkout", "2.14.0"), &dave).await?;
        self.decide(&task, "mia", DecisionKind::Approve, "seen in staging").await?;
        // Approved automatically.
        self.submitted(documentation(), &ann).await?;
        let task = self.submitted(rollout("billing", "5.0.0"), &dave).await?;
        self.decide(&task, "bob", DecisionKind::Reject, "a major version needs an announcement first")
            .await?;
        let task = self.submitted(rollout("search", "1.8.2"), &dave).await?;
        let cancel = TaskAction::Cancel { reason: Some("superseded by 1.8.3".to_owned()) };
        self.tasks.perform(&task.task_id, &cancel, &dave).await?;
        self.tasks.propose(rollout("search", "1.8.3"), &dave).await?;
        match &self.playground {
            Some(root) => self.create_file_tasks(root, &ann).await,
            None => Ok(()),
        }
    }

    /// Tasks for a worker: one succeeds, one fails and is rolled back, one waits for a reviewer.
    async fn create_file_tasks(&self, root: &str, ann: &Caller) -> Result<()> {
        let handbook = "Refunds are booked within a day.\n";
        let file_task = |kind: &str, description: &str, file: &str, content: &str| Proposal {
            task_type: Some(kind.to_owned()),
            description: Some(description.to_owned()),
            executor: Some("files".to_owned()),
            parameters: parameters(json!({
                "root": root, "files": [{ "path": file, "content": content }],
                "verify": { "template": CHECK_TEMPLATE, "arguments": {} },
            })),
            ..Proposal::default()
        };
        let on = |resource_type: &str, id: &str, proposal: Proposal| Proposal {
            resources: Some(vec![resource(resource_type, id)]),
            ..proposal
        };
        let written =
            file_task("docs", "Add the page about refunds to the handbook", "handbook/refunds.md", handbook);
        self.submitted(on("docs", "handbook", written), ann).await?;
        let broken = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers many\n";
        let broken = file_task("docs", "Set the number of workers to many", "app.conf", broken);
        self.submitted(on("docs", "app.conf", broken), ann).await?;
        let more = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers 4\n";
        let more = file_task("config", "Give the app two more workers", "app.conf", more);
        self.submitted(on("service", "app", more), ann).await.map(drop)
    }

    async fn submitted(&self, proposal: Proposal, caller: &Caller) -> Result<StoredTask> {
        let task = self.tasks.propose(proposal, caller).await?;
        self.tasks.submit(&task.task_id, caller).await
    }

    async fn decide(&self, task: &StoredTask, by: &str, action: DecisionKind, reason: &str) -> Result<()> {
        let is_own = |approval: &&Approval| approval.reviewer_id.as_str() == by;
        let Some(approval) = task.approvals.iter().find(is_own) else {
            return Err(Error::NotFound(ObjectKind::Approval));
        };
        let response = DecisionInput { action, reason: Some(reason.to_owned()), digest: Some(task.digest) };
        let caller = self.user(by).await?;
        self.tasks.decide(&approval.approval_id, &response, &caller).await.map(drop)
    }
}
