//! Reviews: who is asked, when a task is approved, and which commands are refused. Examples first, then random commands checked
//! against invariants.

use std::collections::BTreeSet;

use crate::tasks::fixture::{Fixture, config, delegation, full_answer, id, open_reviewers, policy, user};
use ade_domain::approval::delegation::{DelegationConditions, DelegationKind};
use ade_domain::approval::policy::{AutoApprove, Policy};
use ade_domain::approval::quorum::RequirementStatus;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::audit::Trigger;
use ade_domain::glob::Pattern;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{Answer, Refusal, Task};
use ade_domain::task::{TaskCommand, TaskState};
use ade_testkit::{SeededRng, effort};

fn small_fixture() -> Fixture {
    Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER], Some("eve")),
        user("sue", &[REVIEWER, "dba"], None),
        user("eve", &[REVIEWER, ADMIN], None),
        user("max", &[ADMIN], None),
    ])
}

fn delegation_chain() -> Fixture {
    let mut fixture = Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("alice", &[REVIEWER], None),
        user("bob", &[ADMIN], None),
        user("carol", &[ADMIN], None),
    ]);
    fixture.criticality = 100;
    let infrastructure = DelegationConditions {
        task_types: vec!["infrastructure".to_owned()],
        risk_above: Some(50),
        ..DelegationConditions::default()
    };
    let prod = DelegationConditions {
        resource_patterns: vec![Pattern::new("prod-*")],
        ..DelegationConditions::default()
    };
    fixture.delegations = vec![delegation("alice", "bob", infrastructure), delegation("bob", "carol", prod)];
    fixture
}

fn reviewers_of(fixture: &mut Fixture, task_type: &str, resource: &str) -> (Vec<String>, Task) {
    let mut task = fixture.draft("ann", config(task_type, &[resource]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    (open_reviewers(&task).into_iter().map(str::to_owned).collect(), task)
}

#[test]
fn delegation_chain_ends_with_its_last_delegate() {
    let (reviewers, task) = reviewers_of(&mut delegation_chain(), "infrastructure", "vm:prod-1");
    assert_eq!(reviewers, ["carol"]);
    let approval = &task.approvals[0];
    let steps: Vec<(&str, &str)> =
        approval.delegation_chain.iter().map(|step| (step.from.as_str(), step.to.as_str())).collect();
    assert_eq!(steps, [("alice", "bob"), ("bob", "carol")]);
    assert_eq!(approval.on_behalf_of, BTreeSet::from([id("alice")]));
    assert_eq!(
        approval.reasons,
        ["policy default requires role reviewer, which alice has; delegated to carol"]
    );
    // The chain ends where a condition does not hold.
    assert_eq!(reviewers_of(&mut delegation_chain(), "infrastructure", "vm:test-1").0, ["bob"]);
    assert_eq!(reviewers_of(&mut delegation_chain(), "schema", "vm:prod-1").0, ["alice"]);
    let mut low_risk = delegation_chain();
    low_risk.criticality = 0;
    low_risk.delegations[0].conditions.risk_above = Some(90);
    assert_eq!(reviewers_of(&mut low_risk, "infrastructure", "vm:prod-1").0, ["alice"]);
}

#[test]
fn broken_chain_ends_with_its_last_active_person_and_says_why() {
    let with = |change: fn(&mut Fixture)| {
        let mut fixture = delegation_chain();
        change(&mut fixture);
        let (reviewers, task) = reviewers_of(&mut fixture, "infrastructure", "vm:prod-1");
        (reviewers.join(" "), task.skipped.join("; "))
    };
    let circular = with(|fixture| {
        fixture.delegations.push(delegation("carol", "alice", DelegationConditions::default()));
    });
    assert_eq!(circular.0, "carol");
    assert!(circular.1.contains("from carol to alice is circular"), "{}", circular.1);
    let inactive = with(|fixture| fixture.users[3].active = false);
    assert_eq!(inactive.0, "bob");
    assert!(inactive.1.contains("carol is not active"), "{}", inactive.1);
    let without_cascade = with(|fixture| fixture.delegations[0].cascade = false);
    assert_eq!(without_cascade.0, "bob");
    let expired = with(|fixture| fixture.delegations[1].valid_until = Some(fixture.now));
    assert_eq!(expired.0, "bob");
    assert!(expired.1.contains("has expired"), "{}", expired.1);
    let not_yet_valid = with(|fixture| fixture.delegations[1].valid_from = Some(fixture.now.plus_ms(1)));
    assert_eq!(not_yet_valid.0, "bob");
    let disabled = with(|fixture| fixture.delegations[0].active = false);
    assert_eq!(disabled.0, "alice");
}

#[test]
fn each_policy_is_a_separate_requirement() {
    let mut fixture = small_fixture();
    fixture.policies = vec![policy("two", 2, &[]), policy("databases", 1, &["dba"])];
    let mut task = fixture.draft("ann", config("schema", &["database:orders"]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    assert_eq!(open_reviewers(&task), ["eve", "rob", "sue"]);
    assert_eq!(task.required_count, 2);
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("asked");
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "eve").expect("asked");
    let statuses: Vec<RequirementStatus> = task.progress().iter().map(|progress| progress.status).collect();
    assert_eq!(statuses, [RequirementStatus::Satisfied, RequirementStatus::Unsatisfied]);
    assert_eq!(task.progress()[1].why, "0 of 1 approved; still to approve: role dba");
    assert_eq!(task.state, TaskState::Reviewing);
    fixture.decide(&mut task, "sue", DecisionKind::Approve, "sue").expect("asked");
    assert_eq!(task.state, TaskState::Approved);
}

#[test]
fn authors_cannot_decide_and_unreachable_quorum_is_refused() {
    let mut fixture = small_fixture();
    fixture.users[0].roles.extend([REVIEWER.to_owned(), ADMIN.to_owned()]);
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    assert_eq!(open_reviewers(&task), ["eve", "rob", "sue"]);
    assert!(task.skipped.iter().any(|text| text == "ann cannot decide on this task: ann is its author"));
    let own = fixture
        .decide(&mut task, "rob", DecisionKind::Approve, "ann")
        .expect_err("not even an administrator");
    assert!(matches!(own, Refusal::OwnTask { .. }));
    let people = fixture.people();
    for forbidden in [
        task.clone().request_override(Some("r"), Some("t"), &fixture.actor("ann"), &people, fixture.now),
        task.clone().confirm_override(&full_answer(&task), &fixture.actor("ann"), &people, fixture.now),
    ] {
        assert!(matches!(forbidden, Err(Refusal::OwnTask { .. })), "{forbidden:?}");
    }
    fixture.policies = vec![policy("four", 4, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    let refused = fixture.submit(&mut task, "ann").expect_err("only three can decide");
    assert_eq!(
        refused.to_string(),
        "policy four cannot be satisfied: 4 approvers required, 3 available. Ask an administrator to add reviewers or \
         to change the policy."
    );
    assert_eq!(task.state, TaskState::Draft);
    fixture.policies = vec![policy("lawyers", 1, &["lawyer"])];
    assert!(matches!(fixture.submit(&mut task, "ann"), Err(Refusal::QuorumUnreachable(_))));
}

#[test]
fn modification_invalidates_earlier_approvals() {
    let mut fixture = small_fixture();
    fixture.policies = vec![policy("two", 2, &[])];
    let mut task = fixture.draft("ann", config("schema", &["database:a"]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("asked");
    let (old, old_digest) = (task.approvals[1].approval_id.clone(), task.digest);
    fixture.modify(&mut task, &config("schema", &["database:b"]), "ann").expect("the author");
    assert_eq!(task.state, TaskState::Reviewing);
    assert_eq!(
        task.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Invalidated).count(),
        3
    );
    let reopened = task.reopened.as_ref().map(|one| (one.reason.as_str(), one.at));
    assert_eq!(reopened, Some(("ann changed the task", fixture.now)));
    let answer = |digest| Answer { digest, ..full_answer(&task) };
    let (seen_before, unnamed) = (answer(Some(old_digest)), answer(None));
    let decision = |approval_id, answer| ade_domain::task::Decision {
        approval_id,
        kind: DecisionKind::Approve,
        answer,
        is_batch: false,
    };
    let rob = fixture.actor("rob");
    let late = task.clone().decide(&decision(&old, &seen_before), &rob, &fixture.people(), fixture.now);
    assert_eq!(late, Err(Refusal::DigestMismatch));
    let late = task.clone().decide(&decision(&old, &unnamed), &rob, &fixture.people(), fixture.now);
    assert_eq!(late, Err(Refusal::ApprovalClosed { status: ApprovalStatus::Invalidated }));
    fixture.decide(&mut task, "sue", DecisionKind::Approve, "sue").expect("asked");
    assert_eq!(task.state, TaskState::Reviewing, "the first approval was for another config");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("asked again");
    assert_eq!(task.state, TaskState::Approved);
    let late = fixture.decide(&mut task, "eve", DecisionKind::Reject, "eve").expect_err("too late");
    assert_eq!(late, Refusal::AlreadyDecided { state: TaskState::Approved });
    let closed: Vec<_> =
        task.approvals.iter().filter(|approval| approval.status == ApprovalStatus::Closed).collect();
    let [of_eve] = closed[..] else { panic!("{closed:?}") };
    let resolved: Vec<_> =
        task.transitions.iter().filter(|transition| transition.action == "approval.resolve").collect();
    let [resolved] = resolved[..] else { panic!("{resolved:?}") };
    assert_eq!(resolved.approval_id.as_ref(), Some(&of_eve.approval_id));
    assert_eq!(resolved.notify, std::slice::from_ref(&of_eve.reviewer_id));
    assert_eq!(resolved.trigger, Some(Trigger::Command("task.approve".to_owned())));
    let last = task.transitions.last().map(|transition| transition.action.as_str());
    assert_eq!(last, Some("approval.resolve"), "after the decision that made it needless");
}

#[test]
fn follower_represents_its_role_but_adds_no_approver() {
    let mut fixture = small_fixture();
    let mut follow = delegation("sue", "eve", DelegationConditions::default());
    follow.kind = DelegationKind::Follow;
    fixture.delegations = vec![follow];
    fixture.policies = vec![policy("two", 2, &[]), policy("databases", 1, &["dba", "reviewer"])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "eve").expect("asked");
    let sue = task.approvals.iter().find(|approval| approval.reviewer_id == id("sue")).expect("asked");
    assert_eq!((sue.status, sue.reviewed_by.as_ref()), (ApprovalStatus::Approved, Some(&id("eve"))));
    assert_eq!(sue.response_reason.as_deref(), Some("follows eve"));
    let progress = task.progress();
    assert_eq!(
        (progress[0].status, progress[0].needed),
        (RequirementStatus::Unsatisfied, 1),
        "one human decided"
    );
    assert_eq!(progress[1].status, RequirementStatus::Satisfied, "the role is represented");
    // Withdrawn with the decision that it followed.
    fixture.decide(&mut task, "eve", DecisionKind::RequestChanges, "eve").expect("asked");
    let sue = task.approvals.iter().find(|approval| approval.reviewer_id == id("sue")).expect("asked");
    assert_eq!(sue.status, ApprovalStatus::Pending);
}

#[test]
fn approves_automatically_only_if_every_policy_does() {
    let mut fixture = small_fixture();
    fixture.criticality = 0;
    let low_risk = AutoApprove { risk_below: Some(60), ..AutoApprove::default() };
    let patterns = vec![Pattern::new("docs:*")];
    let mut lenient = Policy { resource_patterns: patterns.clone(), ..policy("lenient", 1, &[]) };
    lenient.auto_approve_if = Some(low_risk);
    let mut empty = Policy { resource_patterns: patterns, ..policy("empty", 1, &[]) };
    empty.auto_approve_if = Some(AutoApprove::default());
    let mut submitted = |policies: &[_]| {
        fixture.policies = policies.to_vec();
        let mut task = fixture.draft("ann", config("schema", &["docs:wiki"]));
        fixture.submit(&mut task, "ann").expect("enough reviewers");
        task
    };
    let task = submitted(std::slice::from_ref(&lenient));
    assert_eq!(task.state, TaskState::Approved);
    let why = "lenient: it names every target and resource and the risk of 32 is below 60";
    assert_eq!(task.auto_approved.as_deref(), Some(why));
    let states: Vec<(Option<TaskState>, TaskState)> =
        task.transitions.iter().map(|transition| (transition.from, transition.to)).collect();
    assert_eq!(
        states,
        [
            (None, TaskState::Draft),
            (Some(TaskState::Draft), TaskState::Submitted),
            (Some(TaskState::Submitted), TaskState::Approved)
        ]
    );
    assert_eq!(submitted(&[lenient, policy("strict", 1, &[])]).state, TaskState::Reviewing);
    assert_eq!(submitted(&[empty]).state, TaskState::Reviewing);
}

#[test]
fn override_needs_two_administrators_a_reason_and_a_ticket_within_an_hour() {
    let mut fixture = small_fixture();
    fixture.users.push(user("pam", &[ADMIN], None));
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let (max, pam, rob) = (fixture.actor("max"), fixture.actor("pam"), fixture.actor("rob"));
    let (now, people) = (fixture.now, fixture.people());
    let request = |reason, ticket, actor| task.clone().request_override(reason, ticket, actor, &people, now);
    assert_eq!(request(Some("r"), Some("t"), &rob), Err(Refusal::Forbidden));
    assert_eq!(request(None, Some("t"), &max), Err(Refusal::ReasonRequired));
    assert_eq!(request(Some("r"), Some(" "), &max), Err(Refusal::TicketRequired));
    assert_eq!(
        task.clone().confirm_override(&full_answer(&task), &pam, &people, now),
        Err(Refusal::NoOverrideRequest)
    );
    task.request_override(Some("r"), Some("t"), &max, &people, now).expect("an administrator");
    let same = task.clone().confirm_override(&full_answer(&task), &max, &people, now);
    assert_eq!(same, Err(Refusal::SameAdmin { user: id("max") }));
    let late = task.clone().confirm_override(&full_answer(&task), &pam, &people, now.plus_ms(3_600_000));
    assert_eq!(late, Err(Refusal::NoOverrideRequest));
    task.confirm_override(&full_answer(&task), &pam, &people, now.plus_ms(3_599_999))
        .expect("a second administrator in time");
    assert_eq!((task.state, task.progress()[0].status), (TaskState::Approved, RequirementStatus::Overridden));
}

#[test]
fn overdue_requests_escalate_to_manager_then_role_then_administrators() {
    let mut fixture = small_fixture();
    fixture.users.push(user("zoe", &["on-call"], None));
    let mut own = policy("own", 1, &[]);
    own.reviewers = vec![id("rob")];
    own.escalation_role = Some("on-call".to_owned());
    fixture.policies = vec![own];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("rob can decide");
    let people = fixture.people();
    let mut number = 0;
    let mut escalate = |task: &mut Task, at| {
        let due: Vec<String> = task.approvals.iter().map(|approval| approval.approval_id.clone()).collect();
        let mut escalated = 0;
        for approval_id in due {
            let mut ids = || {
                number += 1;
                format!("e{number}")
            };
            escalated += usize::from(task.escalate(&approval_id, &people, &mut ids, at).expect("known"));
        }
        escalated
    };
    assert_eq!(escalate(&mut task, fixture.now.plus_ms(999)), 0, "not due");
    assert_eq!(escalate(&mut task, fixture.now.plus_ms(1_000)), 1);
    assert_eq!(open_reviewers(&task), ["rob", "eve"], "the manager");
    assert_eq!(escalate(&mut task, fixture.now.plus_ms(1_000)), 0, "once");
    escalate(&mut task, fixture.now.plus_ms(2_000));
    assert_eq!(
        open_reviewers(&task),
        ["rob", "eve", "zoe", "max"],
        "for rob the escalation role; for eve the administrators who have no request yet"
    );
    for round in 3..20 {
        escalate(&mut task, fixture.now.plus_ms(round * 1_000));
    }
    assert_eq!(open_reviewers(&task).len(), 4, "no further escalation");
    for approval in &task.approvals {
        assert!(
            approval.escalates_at().is_none() && approval.due_at < fixture.now.plus_ms(19_000),
            "stays overdue"
        );
    }
    // A person who was asked by escalation can decide.
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "zoe").expect_err("another's request");
    fixture.decide(&mut task, "zoe", DecisionKind::Approve, "zoe").expect("asked by escalation");
    assert_eq!(task.state, TaskState::Approved);
}

#[test]
fn requests_of_a_leaver_are_reassigned() {
    let mut fixture = small_fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.users[1].active = false;
    let people = fixture.people();
    let mut ids = || "moved".to_owned();
    task.reassign_unqualified(&id("rob"), None, &people, &mut ids, fixture.now).expect("never refused");
    // Eve, the manager, has a request already: an administrator takes over.
    assert_eq!(open_reviewers(&task), ["eve", "sue", "max"]);
    let rob = task.approvals.iter().find(|approval| approval.reviewer_id == id("rob")).expect("asked before");
    assert_eq!((rob.status, rob.delegated_to.as_ref()), (ApprovalStatus::Delegated, Some(&id("max"))));
}

/// The invariants of a task in review.
fn check(task: &Task) {
    let ids: BTreeSet<&str> = task.approvals.iter().map(|approval| approval.approval_id.as_str()).collect();
    assert_eq!(ids.len(), task.approvals.len(), "request ids are unique");
    for approval in &task.approvals {
        assert!(!task.author_set.contains(&approval.reviewer_id) || !approval.is_decidable(), "{approval:?}");
        if let Some(by) = &approval.reviewed_by {
            let counts = approval.digest == task.digest && approval.status == ApprovalStatus::Approved;
            assert!(!counts || !task.author_set.contains(by), "author {by} decided");
        }
        let open = approval.is_open();
        assert!(
            !open || task.state == TaskState::Reviewing,
            "{} with an open request: {approval:?}",
            task.state
        );
        assert!(!open || approval.digest == task.digest, "open for another config: {approval:?}");
    }
    if task.state == TaskState::Approved && task.auto_approved.is_none() {
        for progress in task.progress() {
            assert!(
                matches!(progress.status, RequirementStatus::Satisfied | RequirementStatus::Overridden),
                "{progress:?}"
            );
        }
    }
}

#[test]
fn approvals_are_independent_and_bound_to_the_digest() {
    const NAMES: [&str; 5] = ["ann", "rob", "sue", "eve", "max"];
    let rounds = effort::rounds(1_000, 200_000);
    let (mut approved, mut refused) = (0_u64, 0_u64);
    for (seed, round) in effort::seeded_rounds(rounds) {
        let mut rng = SeededRng::new(seed, round);
        let mut fixture = small_fixture();
        for user in &mut fixture.users {
            if rng.below(4) == 0 {
                user.roles.insert(REVIEWER.to_owned());
            }
        }
        let count = 1 + u32::try_from(rng.below(2)).expect("small");
        fixture.policies = vec![policy("some", count, if rng.below(2) == 0 { &["dba"] } else { &[] })];
        let name = |rng: &mut SeededRng| NAMES[usize::try_from(rng.below(5)).expect("small")];
        if rng.below(3) == 0 {
            let (from, to) = (name(&mut rng), name(&mut rng));
            fixture.delegations.push(delegation(from, to, DelegationConditions::default()));
        }
        let mut task = fixture.draft("ann", config("schema", &["database:0"]));
        for step in 0..25 {
            let (user, reviewer) = (name(&mut rng), name(&mut rng));
            let actor = fixture.actor(user);
            let now = fixture.now;
            let mut changed = task.clone();
            let choice = rng.below(12);
            let outcome = match choice {
                0 | 1 => fixture.submit(&mut changed, user),
                2 => fixture.modify(&mut changed, &config("schema", &[&format!("database:{step}")]), user),
                3..=6 => fixture.decide(&mut changed, reviewer, DecisionKind::Approve, user),
                7 => fixture.decide(&mut changed, reviewer, DecisionKind::Reject, user),
                8 => fixture.decide(&mut changed, reviewer, DecisionKind::RequestChanges, user),
                9 => changed.request_override(Some("r"), Some("t"), &actor, &fixture.people(), now),
                10 => changed.confirm_override(&full_answer(&changed), &actor, &fixture.people(), now),
                _ if rng.below(3) == 0 => changed.revoke(Some("r"), &actor, now),
                _ => {
                    let people = fixture.people();
                    let open = changed.approvals.iter().find(|approval| approval.is_open());
                    let approval_id = open.map(|approval| approval.approval_id.clone()).unwrap_or_default();
                    changed.delegate(&approval_id, &id(reviewer), &people, format!("d{step}"), &actor, now)
                }
            };
            let command = match choice {
                0 | 1 => Some(TaskCommand::Submit),
                2 => Some(TaskCommand::Modify),
                3..=6 => Some(TaskCommand::Approve),
                7 => Some(TaskCommand::Reject),
                9 => Some(TaskCommand::Override),
                10 => Some(TaskCommand::ConfirmOverride),
                _ => None,
            };
            if let Some(command) = command {
                let is_allowed = task.allowed_commands(&actor, now).contains(&command);
                // Another request may be the one that can be decided, and the arguments may be refused.
                let may_fail = matches!(command, TaskCommand::Approve | TaskCommand::Reject)
                    || matches!(
                        outcome,
                        Err(Refusal::QuorumUnreachable(_) | Refusal::TooManyApprovalRequests { .. })
                    );
                assert!(
                    is_allowed == outcome.is_ok() || (is_allowed && may_fail),
                    "{user} {command} {outcome:?} {task:?}"
                );
            }
            match outcome {
                Ok(()) => {
                    assert!(changed.revision > task.revision, "every change increases the revision");
                    check(&changed);
                    approved +=
                        u64::from(changed.state == TaskState::Approved && task.state != TaskState::Approved);
                    task = changed;
                }
                Err(_) => refused += 1,
            }
        }
    }
    println!("{approved} approved, {refused} commands refused");
    assert!(approved > rounds / 5, "too few tasks were approved: {approved}");
}
