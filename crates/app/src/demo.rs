//! A small organisation to look around in: authors, reviewers with managers, administrators, agents, policies, delegations, and
//! tasks on their way. Everything is done by the same use cases that its people would use, and stands in the audit log.

use std::collections::BTreeSet;

use ade_domain::agent::Profile;
use ade_domain::approval::DecisionKind;
use ade_domain::approval::delegation::Conditions;
use ade_domain::approval::policy::{AutoApprove, Priority};
use ade_domain::approval::window::{Weekday, Window};
use ade_domain::audit::AuditActor;
use ade_domain::glob::Pattern;
use ade_domain::people::UserId;
use ade_domain::permission::Scope;
use ade_domain::task::{ChangeKind, PreviewChange, Resource, ResourceMode, RollbackStrategy};
use ade_store::database::StoredTask;
use serde_json::{Map, Value, json};

use crate::accounts::{UserChange, UserDraft};
use crate::agents::{AgentError, AgentService};
use crate::proposal::{Proposal, SaidPreview};
use crate::rules::{DelegationChange, PolicyChange, ResourceChange, RuleService};
use crate::tasks::{Response, TaskAction};
use crate::{AccountService, Caller, Error, TaskService};

/// Everybody's password: a demo is served on a loopback address alone.
pub const PASSWORD: &str = "demo-demo";

/// The command of a demo that looks at files after they were changed.
pub const CHECK: &str = "check-config";

/// Id, name, roles, manager, team.
type Person = (&'static str, &'static str, &'static [&'static str], Option<&'static str>, &'static str);

/// Managers come before those whom they manage.
const PEOPLE: [Person; 9] = [
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

/// The rooms that a demo is made with.
#[derive(Debug, Clone)]
pub struct Demo<'a> {
    /// People.
    pub accounts: &'a AccountService,
    /// Agents.
    pub agents: &'a AgentService,
    /// Policies, delegations, the registry.
    pub rules: &'a RuleService,
    /// Tasks.
    pub reviews: &'a TaskService,
    /// The folder whose files tasks change.
    pub playground: Option<String>,
}

fn who(user: Option<&str>) -> AuditActor {
    AuditActor { user_id: user.map(UserId::new), service: Some("demo".to_owned()), ..AuditActor::default() }
}

fn resource(of: &str, id: &str) -> Resource {
    Resource { resource_type: of.to_owned(), id: id.to_owned(), mode: ResourceMode::Exclusive }
}

fn change(kind: ChangeKind, what: &str, diff: &str) -> PreviewChange {
    PreviewChange {
        kind,
        what: what.to_owned(),
        before: None,
        after: None,
        diff: Some(diff.to_owned()).filter(|diff| !diff.is_empty()),
    }
}

fn parameters(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(parameters) => Some(parameters),
        _ => None,
    }
}

impl Demo<'_> {
    /// Makes all of it.
    pub async fn fill(&self) -> Result<(), Error> {
        let admin = AccountService::bootstrap(who(None));
        for (id, name, roles, manager, team) in PEOPLE {
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
        self.register().await?;
        self.say_the_rules().await?;
        self.propose().await
    }

    /// Somebody, as if it were signed in.
    async fn signed_in(&self, id: &str) -> Result<Caller, Error> {
        let user = self.accounts.user(id, &AccountService::bootstrap(who(None))).await?.user;
        let scopes: BTreeSet<Scope> = Scope::ALL.into_iter().collect();
        Ok(Caller {
            user: Some(user),
            agent_id: None,
            scopes,
            token_made_by: None,
            who: who(Some(id)),
            if_match: None,
            ends_at: None,
            keep: None,
        })
    }

    /// An agent, by the token that its sponsor made.
    async fn agent(&self, sponsor: &str, id: &str) -> Result<Caller, Error> {
        let mut caller = self.signed_in(sponsor).await?;
        caller.agent_id = Some(id.to_owned());
        caller.token_made_by = Some(UserId::new(sponsor));
        caller.scopes = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
        caller.who.agent_id = Some(id.to_owned());
        Ok(caller)
    }

    async fn register(&self) -> Result<(), Error> {
        let all = [
            ("ann", "schema-migrator", "Schema migrator", "plans and writes database migrations"),
            ("dave", "release-bot", "Release bot", "rolls out services"),
        ];
        for (sponsor, id, name, does) in all {
            let profile =
                Profile { name: name.to_owned(), capabilities: vec![does.to_owned()], ..Profile::default() };
            let caller = self.signed_in(sponsor).await?;
            match self.agents.register(id, profile, None, None, &caller).await {
                Ok(_) => {}
                Err(AgentError::Refused(error)) => return Err(error),
                Err(error) => tracing::warn!(%error, "an agent of the demo is not there"),
            }
        }
        Ok(())
    }

    async fn say_the_rules(&self) -> Result<(), Error> {
        let erin = self.signed_in("erin").await?;
        let patterns = |all: &[&str]| Some(all.iter().map(|one| Pattern::new(*one)).collect());
        let words = |all: &[&str]| Some(all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
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
                window: Some(Some(Window {
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
        // Alice hands dangerous infrastructure to Bob, who hands production to Carol: for both at once only Carol is asked.
        for (owner, to, conditions) in [
            (
                "alice",
                "bob",
                Conditions {
                    task_types: vec!["infrastructure".to_owned()],
                    risk_above: Some(50),
                    ..Conditions::default()
                },
            ),
            (
                "bob",
                "carol",
                Conditions { resource_patterns: vec![Pattern::new("prod-*")], ..Conditions::default() },
            ),
        ] {
            let change = DelegationChange {
                delegate_to: Some(UserId::new(to)),
                conditions: Some(conditions),
                cascade: Some(true),
                ..DelegationChange::default()
            };
            self.rules.create_delegation(&change, &self.signed_in(owner).await?).await?;
        }
        Ok(())
    }

    async fn propose(&self) -> Result<(), Error> {
        let (ann, dave) = (self.signed_in("ann").await?, self.signed_in("dave").await?);
        let migrator = self.agent("ann", "schema-migrator").await?;
        // Under review, by an agent: two people must agree, one of them a database administrator.
        self.submitted(migration(), &migrator).await?;
        // Under review: the chain of delegations leads to Carol alone.
        self.submitted(load_balancer(), &ann).await?;
        // Under review, and Dave wants something changed.
        let task = self.submitted(cleanup(), &ann).await?;
        self.answer(&task, "dave", DecisionKind::RequestChanges, "keep the sessions of the last hour")
            .await?;
        // Approved, and waits to be applied.
        let task = self.submitted(rollout("checkout", "2.14.0"), &dave).await?;
        self.answer(&task, "mia", DecisionKind::Approve, "seen in staging").await?;
        // Approved by itself: nobody needs to be asked.
        self.submitted(documentation(), &ann).await?;
        let task = self.submitted(rollout("billing", "5.0.0"), &dave).await?;
        self.answer(&task, "bob", DecisionKind::Reject, "a major version needs an announcement first")
            .await?;
        let task = self.submitted(rollout("search", "1.8.2"), &dave).await?;
        let deed = TaskAction::Cancel { reason: Some("superseded by 1.8.3".to_owned()) };
        self.reviews.act(&task.task_id, &deed, &dave).await?;
        self.reviews.propose(rollout("search", "1.8.3"), &dave).await?;
        match &self.playground {
            Some(root) => self.play(root, &ann).await,
            None => Ok(()),
        }
    }

    /// Tasks that a worker carries out: one that is done, one that is changed back, one that waits for a reviewer.
    async fn play(&self, root: &str, ann: &Caller) -> Result<(), Error> {
        let handbook = "Refunds are booked within a day.\n";
        let of = |kind: &str, description: &str, file: &str, content: &str| Proposal {
            task_type: Some(kind.to_owned()),
            description: Some(description.to_owned()),
            executor: Some("files".to_owned()),
            parameters: parameters(json!({
                "root": root, "files": [{ "path": file, "content": content }],
                "verify": { "template": CHECK, "arguments": {} },
            })),
            ..Proposal::default()
        };
        let on = |of: &str, id: &str, proposal: Proposal| Proposal {
            resources: Some(vec![resource(of, id)]),
            ..proposal
        };
        let written =
            of("docs", "Put the page about refunds into the handbook", "handbook/refunds.md", handbook);
        self.submitted(on("docs", "handbook", written), ann).await?;
        let broken = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers many\n";
        let broken = of("docs", "Say in the configuration that there are many workers", "app.conf", broken);
        self.submitted(on("docs", "app.conf", broken), ann).await?;
        let more = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers 4\n";
        let more = of("config", "Give the app two more workers", "app.conf", more);
        self.submitted(on("service", "app", more), ann).await.map(drop)
    }

    async fn submitted(&self, proposal: Proposal, caller: &Caller) -> Result<StoredTask, Error> {
        let task = self.reviews.propose(proposal, caller).await?;
        self.reviews.submit(&task.task_id, caller).await
    }

    async fn answer(
        &self,
        task: &StoredTask,
        by: &str,
        action: DecisionKind,
        reason: &str,
    ) -> Result<(), Error> {
        let own = |one: &&ade_domain::approval::Approval| one.reviewer_id.as_str() == by;
        let Some(approval) = task.approvals.iter().find(own) else {
            return Err(Error::NotFound("approval"));
        };
        let response = Response { action, reason: Some(reason.to_owned()), digest: Some(task.digest) };
        let caller = self.signed_in(by).await?;
        self.reviews.respond(&approval.approval_id, &response, &caller).await.map(drop)
    }
}

fn migration() -> Proposal {
    let diff = "+ALTER TABLE orders ADD COLUMN refunded_at timestamptz;\n\
                +CREATE INDEX CONCURRENTLY orders_refunded ON orders (refunded_at);\n";
    Proposal {
        task_type: Some("migration".to_owned()),
        description: Some("Add refunded_at to orders, with an index".to_owned()),
        parameters: parameters(json!({ "database": "prod-orders", "statements": 2 })),
        resources: Some(vec![resource("database", "prod-orders")]),
        ticket_ref: Some(Some("PAY-481".to_owned())),
        tags: Some(vec!["payments".to_owned(), "schema".to_owned()]),
        preview: Some(SaidPreview {
            changes: vec![change(ChangeKind::Update, "table orders", diff)],
            warnings: vec!["the index takes about four minutes to build".to_owned()],
            errors: Vec::new(),
        }),
        ..Proposal::default()
    }
}

fn load_balancer() -> Proposal {
    Proposal {
        task_type: Some("infrastructure".to_owned()),
        description: Some("Drain the old load balancer and send its traffic to the new one".to_owned()),
        parameters: parameters(json!({ "from": "lb-1", "to": "lb-2", "percent_per_minute": 10 })),
        resources: Some(vec![resource("service", "prod-lb")]),
        rollback_strategy: Some(RollbackStrategy::Manual),
        tags: Some(vec!["network".to_owned()]),
        ..Proposal::default()
    }
}

fn cleanup() -> Proposal {
    let sweep = |table: &str| change(ChangeKind::Delete, &format!("rows of {table} older than a day"), "");
    Proposal {
        task_type: Some("cleanup".to_owned()),
        description: Some("Delete stale sessions and carts in staging".to_owned()),
        parameters: parameters(json!({ "older_than_hours": 24 })),
        resources: Some(vec![resource("database", "staging-web")]),
        preview: Some(SaidPreview {
            changes: vec![sweep("sessions"), sweep("carts")],
            ..SaidPreview::default()
        }),
        ..Proposal::default()
    }
}

fn rollout(service: &str, version: &str) -> Proposal {
    let diff = format!("-image: {service}:previous\n+image: {service}:{version}\n");
    Proposal {
        task_type: Some("rollout".to_owned()),
        description: Some(format!("Roll out {service} {version}")),
        parameters: parameters(json!({ "service": service, "version": version })),
        resources: Some(vec![resource("service", service)]),
        tags: Some(vec!["release".to_owned()]),
        preview: Some(SaidPreview {
            changes: vec![change(ChangeKind::Update, &format!("deployment {service}"), &diff)],
            ..SaidPreview::default()
        }),
        ..Proposal::default()
    }
}

fn documentation() -> Proposal {
    Proposal {
        task_type: Some("docs".to_owned()),
        description: Some("Say in the handbook how refunds are booked".to_owned()),
        resources: Some(vec![resource("docs", "handbook")]),
        preview: Some(SaidPreview {
            changes: vec![change(
                ChangeKind::Update,
                "handbook/refunds.md",
                "+Refunds are booked within a day.\n",
            )],
            ..SaidPreview::default()
        }),
        ..Proposal::default()
    }
}
