//! Policies and automatic approval judge what a task can touch, not what its author says about it.

use ade_domain::InvalidField;
use ade_domain::approval::assignment::{Assignment, RuleChange};
use ade_domain::approval::policy::{AutoApprove, Policy};
use ade_domain::glob::Pattern;
use ade_domain::lock::LockMode;
use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::{Answer, Digest, Preview, Refusal, Resource, ScopePart, Task, TaskScope, TaskState};

use super::fixture::{Fixture, config, full_answer, id, policy, user};

fn fixture() -> Fixture {
    let mut fixture = Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER], None),
        user("eve", &[REVIEWER], None),
    ]);
    fixture.criticality = 5;
    fixture
}

/// A page of the handbook, which the operator binds to `docs:handbook`.
fn handbook() -> TaskScope {
    let resource =
        Resource { resource_type: "docs".to_owned(), id: "handbook".to_owned(), mode: LockMode::Exclusive };
    TaskScope(vec![ScopePart {
        binding: "files:handbook".to_owned(),
        targets: vec!["files:handbook/guide.md".to_owned()],
        resources: vec![resource],
        criticality: Some(5),
        lock: Some(LockMode::Exclusive),
        fingerprint: Some(Digest::of_bytes(b"/srv/handbook")),
    }])
}

fn task(fixture: &Fixture, executor: &str, resources: &[&str], scope: TaskScope) -> Task {
    let mut config = config("docs", resources);
    config.executor = executor.to_owned();
    let mut task = fixture.draft("ann", config);
    task.set_scope(scope);
    task
}

fn docs_policy() -> Policy {
    Policy {
        executors: vec!["files".to_owned()],
        targets: vec!["files:handbook/*".to_owned()],
        resource_patterns: vec![Pattern::new("docs:*")],
        auto_approve_if: Some(AutoApprove { risk_below: Some(60), ..AutoApprove::default() }),
        ..policy("docs", 1, &[])
    }
}

fn assigned(fixture: &Fixture, task: &Task) -> Assignment {
    fixture.assignment(task, &task.config).expect("enough reviewers")
}

fn policies_of(assignment: &Assignment) -> Vec<&str> {
    assignment.requirements.iter().map(|requirement| requirement.policy.as_str()).collect()
}

#[test]
fn declared_type_alone_does_not_choose_reviewers() {
    let mut fixture = fixture();
    let by_type = Policy {
        task_types: vec!["docs".to_owned()],
        reviewers: vec![id("eve")],
        ..policy("friendly", 1, &[])
    };
    let by_target = Policy { targets: vec!["files:hand*".to_owned()], ..by_type.clone() };
    let by_bound_resource = Policy { resource_patterns: vec![Pattern::new("docs:hand*")], ..by_type.clone() };
    let by_other_resource = Policy { resource_patterns: vec![Pattern::new("wiki:*")], ..by_type.clone() };
    let of_files = task(&fixture, "files", &["wiki:main"], handbook());
    for (policy, expected) in [
        (by_type.clone(), &["friendly", "default"][..]),
        (by_other_resource, &["friendly", "default"]),
        (by_target, &["friendly"]),
        (by_bound_resource, &["friendly"]),
    ] {
        fixture.policies = vec![policy];
        assert_eq!(policies_of(&assigned(&fixture, &of_files)), expected, "{:?}", fixture.policies);
    }
    // Agents decide themselves what they touch: nothing else is known about their tasks.
    fixture.policies = vec![by_type];
    let of_agent = task(&fixture, "agent", &[], TaskScope::default());
    assert_eq!(policies_of(&assigned(&fixture, &of_agent)), ["friendly"]);
}

#[test]
fn patterns_match_every_spelling() {
    let mut fixture = fixture();
    fixture.policies =
        vec![Policy { resource_patterns: vec![Pattern::new("database:prod-*")], ..policy("prod", 1, &[]) }];
    for resource in ["database:prod-x", "database:PROD-x", "Database:prod-x", "database:\u{ff50}rod-x"] {
        let task = task(&fixture, "agent", &[resource], TaskScope::default());
        let expected = if resource.is_ascii() { "prod" } else { "default" };
        assert_eq!(policies_of(&assigned(&fixture, &task)), [expected], "{resource}");
    }
    let invalid = |resource: &str| config("x", &[resource]).validate();
    assert!(invalid("database:PROD-x").is_empty());
    let spelling = invalid("Database:prod-x");
    assert_eq!(spelling.first().map(|field| field.path.to_string()).as_deref(), Some("resources.0.type"));
    assert!(spelling[0].detail.ends_with("write database"), "{spelling:?}");
    for reserved in ["files:x", "sql:x", "Agent:x", "tool:x", "capability:x", "http:x", "command:x"] {
        assert_eq!(invalid(reserved).len(), 1, "{reserved}");
    }
}

#[test]
fn automatic_approval_is_a_statement_about_effects() {
    let mut fixture = fixture();
    fixture.policies = vec![docs_policy()];
    let page = task(&fixture, "files", &[], handbook());
    assert!(assigned(&fixture, &page).auto_approved.is_some());
    let why_not = |fixture: &Fixture, task: &Task| assigned(fixture, task).not_automatic.join("; ");

    let mut elsewhere = handbook();
    elsewhere.0.push(ScopePart {
        binding: "files:etc".to_owned(),
        targets: vec!["files:etc/app.conf".to_owned()],
        resources: Vec::new(),
        ..elsewhere.0[0].clone()
    });
    let elsewhere = task(&fixture, "files", &[], elsewhere);
    assert!(why_not(&fixture, &elsewhere).contains("files:etc/app.conf"));
    let declared = task(&fixture, "files", &["database:prod"], handbook());
    assert!(why_not(&fixture, &declared).contains("do not match database:prod"));

    for preview in [
        Preview::none(),
        Preview::pending(),
        Preview::failed("no"),
        Preview { unverifiable: true, ..Preview::ready() },
        Preview { errors: vec!["no".to_owned()], ..Preview::ready() },
    ] {
        let fixture = Fixture { preview, ..fixture.clone() };
        assert_eq!(assigned(&fixture, &page).auto_approved, None, "{:?}", fixture.preview);
    }
    for executor in ["http", "agent", "gate"] {
        let mut fixture = fixture.clone();
        fixture.policies[0].executors.clear();
        let task = task(&fixture, executor, &[], handbook());
        assert!(why_not(&fixture, &task).contains("never approved automatically"), "{executor}");
    }
    let stale = Fixture { requires_human: true, ..fixture.clone() };
    assert_eq!(assigned(&stale, &page).auto_approved, None);

    // A policy that names nothing says nothing about effects, whatever its other conditions.
    let mut silent = fixture;
    (silent.policies[0].targets, silent.policies[0].resource_patterns) = (Vec::new(), Vec::new());
    let noop = task(&silent, "noop", &[], TaskScope::default());
    silent.policies[0].executors.clear();
    assert!(why_not(&silent, &noop).contains("says nothing about effects"));
}

#[test]
fn agents_and_authors_of_rules_do_not_approve_themselves() {
    let mut fixture = fixture();
    fixture.policies = vec![docs_policy()];
    let page = task(&fixture, "files", &[], handbook());
    fixture.by_agent = true;
    assert_eq!(assigned(&fixture, &page).auto_approved, None);
    fixture.policies[0].auto_approve_if =
        Some(AutoApprove { risk_below: Some(60), agents: true, ..AutoApprove::default() });
    assert!(assigned(&fixture, &page).auto_approved.is_some());
    let change = |by: &str, days_ago: u64| RuleChange {
        what: "policy.activate docs".to_owned(),
        by: id(by),
        at: ade_domain::Moment::from_micros(fixture.now.micros() - days_ago * 86_400_000_000),
    };
    for (changes, passes) in [
        (vec![change("rob", 0)], true),
        (vec![change("ann", 7)], true),
        (vec![change("ann", 6)], false),
        (vec![change("ann", 6), change("rob", 0)], false),
    ] {
        let fixture = Fixture { rule_changes: changes, ..fixture.clone() };
        let assignment = assigned(&fixture, &page);
        assert_eq!(assignment.auto_approved.is_some(), passes, "{:?}", fixture.rule_changes);
    }
}

#[test]
fn changed_scope_restarts_the_review() {
    let mut fixture = fixture();
    let mut task = task(&fixture, "files", &[], handbook());
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let approval_id = task.approvals[0].approval_id.clone();
    let mut moved = handbook();
    moved.0[0].fingerprint = Some(Digest::of_bytes(b"/etc"));
    let answer = full_answer(&task);
    let other = Answer { scope_digest: moved.digest(&task.config), ..answer.clone() };
    let decision = |answer| ade_domain::task::Decision {
        approval_id: &approval_id,
        kind: ade_domain::approval::DecisionKind::Approve,
        answer,
        is_batch: false,
    };
    let reviewer = task.approvals[0].reviewer_id.to_string();
    let seen = decision(&other);
    let refused = task.clone().decide(&seen, &fixture.actor(&reviewer), &fixture.people(), fixture.now);
    assert!(matches!(refused, Err(Refusal::ScopeMismatch)), "{refused:?}");
    task.decide(&decision(&answer), &fixture.actor(&reviewer), &fixture.people(), fixture.now)
        .expect("asked");
    assert_eq!(task.state, TaskState::Approved);
    let config = task.config.clone();
    let mut stale = task.clone();
    stale.set_scope(moved);
    let plan_for = stale.clone();
    fixture.with_plan(&plan_for, &config, |plan, now| stale.go_stale_in_scope(plan, now)).expect("approved");
    assert_eq!(stale.state, TaskState::Reviewing);
    assert!(stale.reopened.as_ref().is_some_and(|reopened| reopened.reason.starts_with("STALE_SCOPE")));
    assert_ne!(stale.scope_digest, answer.scope_digest);
    assert!(stale.progress().iter().all(|progress| progress.approved_by.is_empty()));
}

/// Matching takes time that grows with the patterns, and anybody may simulate policies.
#[test]
fn rejects_long_patterns() {
    let long = "*a".repeat(129);
    let patterns = vec![Pattern::new("docs:*"), Pattern::new(long.clone())];
    let conditions = AutoApprove { resources_in_scope: patterns.clone(), ..AutoApprove::default() };
    let policy = Policy {
        executors: vec![long.clone()],
        targets: vec![long.clone()],
        resource_patterns: patterns,
        auto_approve_if: Some(conditions),
        ..policy("long", 1, &[])
    };
    let paths =
        |errors: Vec<InvalidField>| errors.iter().map(|error| error.path.to_string()).collect::<Vec<_>>();
    assert_eq!(
        paths(policy.validate()),
        ["executors.0", "targets.0", "resource_patterns.1", "auto_approve_if.resources_in_scope.1"]
    );
    let registered =
        RegisteredPattern { pattern: Pattern::new(long), criticality: 1, dependents: Vec::new() };
    assert_eq!(paths(registered.validate()), ["pattern"]);
}
