//! Policies that name an agent apply to what the agent may claim: at review, and once more when it claims.

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::approval::assignment::Assignment;
use ade_domain::approval::policy::{AutoApprove, Policy};
use ade_domain::glob::Pattern;
use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::{PossibleClaimants, Refusal, ScopePart, Task, TaskScope, TaskState};
use serde_json::json;

use super::fixture::{Fixture, config, id, open_reviewers, policy, user};

fn fixture(policies: Vec<Policy>) -> Fixture {
    let users = vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER], None),
        user("pia", &[REVIEWER], None),
        user("tom", &[REVIEWER], None),
    ];
    Fixture { policies, ..Fixture::new(users) }
}

/// A task for any agent with the capability `deploy`, or for the agent that is named.
fn work(fixture: &Fixture, agent: Option<&str>) -> Task {
    let mut config = config("release", &[]);
    config.executor = "agent".to_owned();
    let (parameter, name) = agent.map_or(("capability", "deploy"), |agent| ("agent", agent));
    config.parameters.insert(parameter.to_owned(), json!(name));
    let target = format!("{parameter}:{name}");
    let mut task = fixture.draft("ann", config);
    task.set_scope(TaskScope(vec![ScopePart {
        binding: target.clone(),
        targets: vec![target],
        resources: Vec::new(),
        criticality: None,
        lock: None,
        fingerprint: None,
    }]));
    task
}

fn naming(name: &str, target: &str, reviewer: &str) -> Policy {
    Policy { targets: vec![target.to_owned()], reviewers: vec![id(reviewer)], ..policy(name, 1, &[]) }
}

fn agents(names: &[&str]) -> PossibleClaimants {
    PossibleClaimants::of(names.iter().copied())
}

fn assigned(fixture: &Fixture, task: &Task) -> Assignment {
    fixture.assignment(task, &task.config).expect("enough reviewers")
}

fn policies_of(assignment: &Assignment) -> Vec<&str> {
    assignment.requirements.iter().map(|requirement| requirement.policy.as_str()).collect()
}

#[test]
fn policy_that_names_a_possible_claimant_applies_besides_the_default_policy() {
    let mut fixture = fixture(vec![naming("prod", "agent:prod-*", "pia")]);
    let task = work(&fixture, None);
    for (claimants, expected) in [
        (agents(&[]), &["default"][..]),
        (agents(&["test-1"]), &["default"]),
        (agents(&["test-1", "prod-1"]), &["prod", "default"]),
        (agents(&["PROD-1"]), &["prod", "default"]),
        (PossibleClaimants::Unknown, &["prod", "default"]),
    ] {
        fixture.claimants = claimants;
        let assignment = assigned(&fixture, &task);
        assert_eq!(policies_of(&assignment), expected, "{:?}", fixture.claimants);
    }
    fixture.claimants = agents(&["prod-1"]);
    let why = |fixture: &Fixture| assigned(fixture, &task).considered_policies[0].why.clone();
    assert!(why(&fixture).contains("agent:prod-1"), "{}", why(&fixture));
    // One that names the capability replaces the default policy, as before.
    fixture.policies.push(naming("deploys", "capability:deploy", "tom"));
    assert_eq!(policies_of(&assigned(&fixture, &task)), ["prod", "deploys"]);
    // Its other conditions hold as well.
    fixture.policies[0].task_types = vec!["docs".to_owned()];
    assert_eq!(policies_of(&assigned(&fixture, &task)), ["deploys"]);
    // Nothing that only other targets match.
    fixture.policies = vec![naming("files", "files:*", "pia")];
    fixture.claimants = PossibleClaimants::Unknown;
    assert_eq!(policies_of(&assigned(&fixture, &task)), ["default"]);
}

#[test]
fn possible_claimants_cover_no_target() {
    let mut generous = naming("prod", "agent:prod-*", "pia");
    generous.auto_approve_if = Some(AutoApprove { risk_below: Some(100), ..AutoApprove::default() });
    let mut fixture = fixture(vec![generous]);
    fixture.claimants = agents(&["prod-1"]);
    let mut task = work(&fixture, None);
    // Even for an executor that can be approved automatically.
    task.config.executor = "sql".to_owned();
    let assignment = assigned(&fixture, &task);
    assert_eq!(assignment.auto_approved, None);
    let reasons = assignment.not_automatic.join("; ");
    assert!(reasons.contains("does not name the target capability:deploy"), "{reasons}");
    assert_eq!(policies_of(&assignment), ["prod", "default"]);
}

#[test]
fn claim_needs_the_review_of_policies_that_name_the_agent() {
    let mut fixture = fixture(vec![naming("prod", "agent:prod-*", "pia")]);
    let mut task = work(&fixture, None);
    fixture.submit(&mut task, "ann").expect("submitted");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("approved");
    assert_eq!(task.state, TaskState::Approved);
    let claim = |fixture: &Fixture, task: &Task, agent: &str, at: Moment| {
        task.require_review_for(agent, task.risk_score(), &fixture.policies, at)
    };
    let refused = Err(Refusal::ReviewRequired { agent: "prod-1".to_owned(), policy: "prod".to_owned() });
    assert_eq!(claim(&fixture, &task, "prod-1", fixture.now), refused);
    assert_eq!(claim(&fixture, &task, "test-1", fixture.now), Ok(()));
    // A policy for other tasks, or for riskier ones.
    for other in [
        Policy { task_types: vec!["docs".to_owned()], ..fixture.policies[0].clone() },
        Policy { risk_threshold: 100, ..fixture.policies[0].clone() },
    ] {
        let fixture = Fixture { policies: vec![other], ..fixture.clone() };
        assert_eq!(claim(&fixture, &task, "prod-1", fixture.now), Ok(()));
    }
    // A policy that names the task itself, whichever agent claims it, was judged at review.
    let everything = Fixture { policies: vec![naming("all", "*", "pia")], ..fixture.clone() };
    assert_eq!(claim(&everything, &task, "prod-1", fixture.now), Ok(()));
    // Reviewed again, now that the agent may claim it.
    fixture.claimants = agents(&["prod-1"]);
    let config = task.config.clone();
    fixture.modify(&mut task, &config, "ann").expect("modified");
    assert!(open_reviewers(&task).contains(&"pia"), "{:?}", open_reviewers(&task));
    for reviewer in ["rob", "pia"] {
        fixture.decide(&mut task, reviewer, DecisionKind::Approve, reviewer).expect("approved");
    }
    assert_eq!(task.state, TaskState::Approved);
    assert_eq!(claim(&fixture, &task, "prod-1", fixture.now), Ok(()));
}

#[test]
fn registered_agents_raise_the_risk_of_what_they_may_claim() {
    let entry = |pattern: &str, criticality| RegisteredPattern {
        pattern: Pattern::new(pattern),
        criticality,
        dependents: Vec::new(),
    };
    let registry = [entry("agent:prod-*", 90), entry("database:*", 95), entry("prod-?", 70)];
    let found = |claimants: PossibleClaimants| -> Vec<Option<u8>> {
        claimants.registered(&registry).into_iter().map(|found| found.criticality).collect()
    };
    assert_eq!(found(agents(&["test-1"])), []);
    assert_eq!(found(agents(&["test-1", "PROD-1"])), [Some(90), Some(70)]);
    assert_eq!(found(PossibleClaimants::Unknown), [Some(90), Some(70)]);

    // A policy for riskier tasks is missing if the agent makes this one riskier.
    let mut fixture = fixture(Vec::new());
    let mut task = work(&fixture, None);
    fixture.submit(&mut task, "ann").expect("submitted");
    let risk = task.risk_score();
    let risky = Policy { risk_threshold: risk + 1, ..policy("risky", 1, &[]) };
    let claim = |risk| task.require_review_for("prod-1", risk, std::slice::from_ref(&risky), fixture.now);
    assert_eq!(claim(risk), Ok(()));
    let refused = Refusal::ReviewRequired { agent: "prod-1".to_owned(), policy: "risky".to_owned() };
    assert_eq!(claim(risk + 1), Err(refused));
}

#[test]
fn task_that_names_its_agent_was_reviewed_for_it() {
    let mut fixture = fixture(vec![naming("prod", "agent:prod-*", "pia")]);
    let mut task = work(&fixture, Some("prod-1"));
    fixture.submit(&mut task, "ann").expect("submitted");
    assert_eq!(open_reviewers(&task), ["pia"]);
    assert_eq!(task.require_review_for("prod-1", 100, &fixture.policies, fixture.now), Ok(()));
}

#[test]
fn waiting_does_not_avoid_a_policy_for_certain_times() {
    let mut prod = naming("prod", "agent:prod-*", "pia");
    prod.window = Some(serde_json::from_value(json!({ "hours": [0, 12] })).expect("a window"));
    let mut fixture = fixture(vec![prod]);
    let hours = |hours: u64| Moment::from_micros((1_794_700_800 + hours * 3_600) * 1_000_000);
    for (reviewed, claimed, is_refused) in [(1, 2, true), (1, 20, true), (20, 30, true), (20, 21, false)] {
        fixture.now = hours(reviewed);
        let mut task = work(&fixture, None);
        fixture.submit(&mut task, "ann").expect("submitted");
        let claim = task.require_review_for("prod-1", task.risk_score(), &fixture.policies, hours(claimed));
        assert_eq!(claim.is_err(), is_refused, "reviewed at {reviewed}, claimed at {claimed}");
    }
}
