//! Reviews: who is asked, what their answers add up to, and what is refused. Examples first, then random reviews against the
//! rules that must hold whatever happens.

use std::collections::BTreeSet;

use crate::office::{Office, asked, config, delegation, id, policy, user};
use ade_domain::approval::delegation::{Conditions, Kind};
use ade_domain::approval::policy::AutoApprove;
use ade_domain::approval::quorum::{Status, least};
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{Refusal, Task};
use ade_domain::task::{State, TaskCommand};
use ade_testkit::{Dice, effort};

fn small_office() -> Office {
    Office::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER], Some("eve")),
        user("sue", &[REVIEWER, "dba"], None),
        user("eve", &[REVIEWER, ADMIN], None),
        user("max", &[ADMIN], None),
    ])
}

fn chain() -> Office {
    let mut office = Office::new(vec![
        user("ann", &[AUTHOR], None),
        user("alice", &[REVIEWER], None),
        user("bob", &[], None),
        user("carol", &[], None),
    ]);
    office.criticality = 100;
    let infrastructure = Conditions {
        task_types: vec!["infrastructure".to_owned()],
        risk_above: Some(50),
        ..Conditions::default()
    };
    let prod = Conditions {
        resource_patterns: vec![ade_domain::glob::Pattern::new("prod-*")],
        ..Conditions::default()
    };
    office.delegations = vec![delegation("alice", "bob", infrastructure), delegation("bob", "carol", prod)];
    office
}

fn who_is_asked(office: &mut Office, task_type: &str, resource: &str) -> (Vec<String>, Task) {
    let mut review = office.draft("ann", config(task_type, &[resource]));
    office.submit(&mut review, "ann").expect("somebody can decide");
    (asked(&review).into_iter().map(str::to_owned).collect(), review)
}

#[test]
fn a_chain_of_delegations_leads_to_carol_alone() {
    let (who, review) = who_is_asked(&mut chain(), "infrastructure", "vm:prod-1");
    assert_eq!(who, ["carol"]);
    let approval = &review.approvals[0];
    let steps: Vec<(&str, &str)> =
        approval.delegation_chain.iter().map(|step| (step.from.as_str(), step.to.as_str())).collect();
    assert_eq!(steps, [("alice", "bob"), ("bob", "carol")]);
    assert_eq!(approval.stands_for, BTreeSet::from([id("alice")]));
    assert_eq!(approval.why, ["default asks for reviewer, which alice is; carol stands in"]);
    // Where a condition does not hold, the chain ends before.
    assert_eq!(who_is_asked(&mut chain(), "infrastructure", "vm:test-1").0, ["bob"]);
    assert_eq!(who_is_asked(&mut chain(), "schema", "vm:prod-1").0, ["alice"]);
    let mut calm = chain();
    calm.criticality = 0;
    calm.delegations[0].conditions.risk_above = Some(90);
    assert_eq!(who_is_asked(&mut calm, "infrastructure", "vm:prod-1").0, ["alice"]);
}

#[test]
fn where_a_chain_cannot_go_on_the_last_active_one_is_asked_and_the_answer_says_why() {
    let on = |change: fn(&mut Office)| {
        let mut office = chain();
        change(&mut office);
        let (who, review) = who_is_asked(&mut office, "infrastructure", "vm:prod-1");
        (who.join(" "), review.passed_by.join("; "))
    };
    let in_a_circle =
        on(|office| office.delegations.push(delegation("carol", "alice", Conditions::default())));
    assert_eq!(in_a_circle.0, "carol");
    assert!(in_a_circle.1.contains("from carol to alice leads in a circle"), "{}", in_a_circle.1);
    let inactive = on(|office| office.users[3].active = false);
    assert_eq!(inactive.0, "bob");
    assert!(inactive.1.contains("leads to carol, who is not active"), "{}", inactive.1);
    let without_cascade = on(|office| office.delegations[0].cascade = false);
    assert_eq!(without_cascade.0, "bob");
    let expired = on(|office| office.delegations[1].valid_until = Some(office.now));
    assert_eq!(expired.0, "bob");
    assert!(expired.1.contains("has expired"), "{}", expired.1);
    let to_come = on(|office| office.delegations[1].valid_from = Some(office.now.plus_ms(1)));
    assert_eq!(to_come.0, "bob");
    let switched_off = on(|office| office.delegations[0].active = false);
    assert_eq!(switched_off.0, "alice");
}

#[test]
fn each_policy_is_a_requirement_of_its_own() {
    let mut office = small_office();
    office.policies = vec![policy("two", 2, &[]), policy("databases", 1, &["dba"])];
    let mut review = office.draft("ann", config("schema", &["database:orders"]));
    office.submit(&mut review, "ann").expect("enough people");
    assert_eq!(asked(&review), ["eve", "rob", "sue"]);
    assert_eq!(least(&review.requirements), 2);
    office.answer(&mut review, "rob", DecisionKind::Approve, "rob").expect("asked");
    office.answer(&mut review, "eve", DecisionKind::Approve, "eve").expect("asked");
    let statuses: Vec<Status> = review.progress().iter().map(|progress| progress.status).collect();
    assert_eq!(statuses, [Status::Satisfied, Status::Unsatisfied]);
    assert_eq!(review.progress()[1].why, "1 more must agree, among them dba");
    assert_eq!(review.state, State::Reviewing);
    office.answer(&mut review, "sue", DecisionKind::Approve, "sue").expect("asked");
    assert_eq!(review.state, State::Approved);
}

#[test]
fn nobody_decides_about_its_own_and_too_few_others_are_told_at_submission() {
    let mut office = small_office();
    office.users[0].roles.extend([REVIEWER.to_owned(), ADMIN.to_owned()]);
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    assert_eq!(asked(&review), ["eve", "rob", "sue"]);
    assert!(review.passed_by.iter().any(|why| why == "ann cannot decide about this task: is its author"));
    let own = office
        .answer(&mut review, "rob", DecisionKind::Approve, "ann")
        .expect_err("not even as administrator");
    assert!(matches!(own, Refusal::OwnTask { .. }));
    // Nor by a token that the author made for somebody else.
    let mut actor = office.actor("rob");
    actor.token_made_by = Some(id("ann"));
    let approval_id = review.approvals[1].approval_id.clone();
    let answer = ade_domain::task::Decision {
        approval_id: &approval_id,
        action: DecisionKind::Approve,
        reason: None,
        digest: None,
    };
    assert!(matches!(review.clone().respond(&answer, &actor, office.now), Err(Refusal::OwnTask { .. })));
    for forbidden in [
        review.clone().ask_override(Some("r"), Some("t"), &office.actor("ann"), office.now),
        review.clone().confirm_override(&office.actor("ann"), office.now),
    ] {
        assert!(matches!(forbidden, Err(Refusal::OwnTask { .. })), "{forbidden:?}");
    }
    office.policies = vec![policy("four", 4, &[])];
    let mut review = office.draft("ann", config("schema", &[]));
    let refused = office.submit(&mut review, "ann").expect_err("three can decide");
    assert_eq!(
        refused.to_string(),
        "policy four cannot be satisfied: it needs 4 approvers, and 3 can decide"
    );
    assert_eq!(review.state, State::Draft);
    office.policies = vec![policy("lawyers", 1, &["lawyer"])];
    assert!(matches!(office.submit(&mut review, "ann"), Err(Refusal::NoQuorum(_))));
}

#[test]
fn an_approval_does_not_count_for_what_it_was_not_given_for() {
    let mut office = small_office();
    office.policies = vec![policy("two", 2, &[])];
    let mut review = office.draft("ann", config("schema", &["database:a"]));
    office.submit(&mut review, "ann").expect("enough people");
    office.answer(&mut review, "rob", DecisionKind::Approve, "rob").expect("asked");
    let (old, old_digest) = (review.approvals[1].approval_id.clone(), review.digest);
    office.modify(&mut review, &config("schema", &["database:b"]), "ann").expect("its author");
    assert_eq!(review.state, State::Reviewing);
    assert_eq!(review.approvals.iter().filter(|one| one.status == ApprovalStatus::Invalidated).count(), 3);
    let reopened = review.reopened.as_ref().map(|one| (one.why.as_str(), one.at));
    assert_eq!(reopened, Some(("ann changed it", office.now)));
    let answer = |approval_id, digest| ade_domain::task::Decision {
        approval_id,
        action: DecisionKind::Approve,
        reason: None,
        digest,
    };
    let rob = office.actor("rob");
    let late = review.clone().respond(&answer(&old, Some(old_digest)), &rob, office.now);
    assert_eq!(late, Err(Refusal::DigestMismatch { now: review.digest }));
    let late = review.clone().respond(&answer(&old, None), &rob, office.now);
    assert_eq!(late, Err(Refusal::NotAnswerable { status: ApprovalStatus::Invalidated }));
    office.answer(&mut review, "sue", DecisionKind::Approve, "sue").expect("asked");
    assert_eq!(review.state, State::Reviewing, "the first approval was for something else");
    office.answer(&mut review, "rob", DecisionKind::Approve, "rob").expect("asked again");
    assert_eq!(review.state, State::Approved);
    let late = office.answer(&mut review, "eve", DecisionKind::Reject, "eve").expect_err("too late");
    assert_eq!(late, Refusal::AlreadyDecided { state: State::Approved });
    assert_eq!(review.approvals.iter().filter(|one| one.status == ApprovalStatus::Closed).count(), 1);
}

#[test]
fn whoever_follows_agrees_with_its_manager_but_is_no_second_vote() {
    let mut office = small_office();
    let mut follow = delegation("sue", "eve", Conditions::default());
    follow.kind = Kind::Follow;
    office.delegations = vec![follow];
    office.policies = vec![policy("two", 2, &[]), policy("databases", 1, &["dba", "reviewer"])];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    office.answer(&mut review, "eve", DecisionKind::Approve, "eve").expect("asked");
    let sue = review.approvals.iter().find(|one| one.reviewer_id == id("sue")).expect("asked");
    assert_eq!((sue.status, sue.reviewed_by.as_ref()), (ApprovalStatus::Approved, Some(&id("eve"))));
    assert_eq!(sue.response_reason.as_deref(), Some("follows eve"));
    let progress = review.progress();
    assert_eq!((progress[0].status, progress[0].needed), (Status::Unsatisfied, 1), "one human decided");
    assert_eq!(progress[1].status, Status::Satisfied, "the role is represented");
    // Taken back with the decision that it followed.
    office.answer(&mut review, "eve", DecisionKind::RequestChanges, "eve").expect("asked");
    let sue = review.approvals.iter().find(|one| one.reviewer_id == id("sue")).expect("asked");
    assert_eq!(sue.status, ApprovalStatus::Pending);
}

#[test]
fn nobody_is_needed_only_if_every_policy_says_so() {
    let mut office = small_office();
    office.criticality = 0;
    let calm = AutoApprove { risk_below: Some(60), ..AutoApprove::default() };
    let mut lenient = policy("lenient", 1, &[]);
    lenient.auto_approve_if = Some(calm);
    let mut empty = policy("empty", 1, &[]);
    empty.auto_approve_if = Some(AutoApprove::default());
    let mut submitted = |policies: &[_]| {
        office.policies = policies.to_vec();
        let mut review = office.draft("ann", config("schema", &[]));
        office.submit(&mut review, "ann").expect("somebody can decide");
        review
    };
    let review = submitted(std::slice::from_ref(&lenient));
    assert_eq!(review.state, State::Approved);
    assert_eq!(review.auto_approved.as_deref(), Some("lenient: the risk of 30 is below 60"));
    let states: Vec<(State, State)> =
        review.transitions.iter().map(|record| (record.from, record.to)).collect();
    assert_eq!(states[1..], [(State::Draft, State::Submitted), (State::Submitted, State::Approved)]);
    assert_eq!(submitted(&[lenient, policy("strict", 1, &[])]).state, State::Reviewing);
    assert_eq!(submitted(&[empty]).state, State::Reviewing);
}

#[test]
fn an_override_needs_two_administrators_a_reason_an_incident_and_an_hour() {
    let mut office = small_office();
    office.users.push(user("pam", &[ADMIN], None));
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    let (max, pam, rob) = (office.actor("max"), office.actor("pam"), office.actor("rob"));
    let now = office.now;
    assert_eq!(review.clone().ask_override(Some("r"), Some("t"), &rob, now), Err(Refusal::Forbidden));
    assert_eq!(review.clone().ask_override(None, Some("t"), &max, now), Err(Refusal::ReasonRequired));
    assert_eq!(review.clone().ask_override(Some("r"), Some(" "), &max, now), Err(Refusal::TicketRequired));
    assert_eq!(review.clone().confirm_override(&pam, now), Err(Refusal::NoOverride));
    review.ask_override(Some("r"), Some("t"), &max, now).expect("an administrator");
    assert_eq!(review.clone().confirm_override(&max, now), Err(Refusal::SameAdmin { who: id("max") }));
    assert_eq!(review.clone().confirm_override(&pam, now.plus_ms(3_600_000)), Err(Refusal::NoOverride));
    review.confirm_override(&pam, now.plus_ms(3_599_999)).expect("a second one in time");
    assert_eq!((review.state, review.progress()[0].status), (State::Approved, Status::Overridden));
}

#[test]
fn unanswered_requests_go_to_managers_then_roles_then_administrators_and_each_step_happens_once() {
    let mut office = small_office();
    office.users.push(user("zoe", &["on-call"], None));
    let mut own = policy("own", 1, &[]);
    own.reviewers = vec![id("rob")];
    own.escalation_role = Some("on-call".to_owned());
    office.policies = vec![own];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("rob can decide");
    let people = office.people();
    let mut number = 0;
    let mut escalate = |review: &mut Task, at| {
        let due: Vec<String> = review.approvals.iter().map(|one| one.approval_id.clone()).collect();
        let mut happened = 0;
        for approval_id in due {
            let mut ids = || {
                number += 1;
                format!("e{number}")
            };
            happened += usize::from(review.escalate(&approval_id, &people, &mut ids, at).expect("known"));
        }
        happened
    };
    assert_eq!(escalate(&mut review, office.now.plus_ms(999)), 0, "not due");
    assert_eq!(escalate(&mut review, office.now.plus_ms(1_000)), 1);
    assert_eq!(asked(&review), ["rob", "eve"], "the manager");
    assert_eq!(escalate(&mut review, office.now.plus_ms(1_000)), 0, "once");
    escalate(&mut review, office.now.plus_ms(2_000));
    assert_eq!(
        asked(&review),
        ["rob", "eve", "zoe", "max"],
        "for rob the role of the policy; for eve administrators, as all others are asked already"
    );
    for round in 3..20 {
        escalate(&mut review, office.now.plus_ms(round * 1_000));
    }
    assert_eq!(asked(&review).len(), 4, "and no further");
    // Whoever was asked in the place of others can decide.
    office.answer(&mut review, "eve", DecisionKind::Approve, "zoe").expect_err("another's request");
    office
        .answer(&mut review, "zoe", DecisionKind::Approve, "zoe")
        .expect("whoever is asked acts as reviewer");
    assert_eq!(review.state, State::Approved);
}

#[test]
fn the_requests_of_a_leaver_move_on() {
    let mut office = small_office();
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    office.users[1].active = false;
    let people = office.people();
    let mut ids = || "moved".to_owned();
    review.replace(&id("rob"), None, &people, &mut ids, office.now).expect("never refused");
    // Eve, the manager, is asked already: an administrator takes over.
    assert_eq!(asked(&review), ["eve", "sue", "max"]);
    let rob = review.approvals.iter().find(|one| one.reviewer_id == id("rob")).expect("asked before");
    assert_eq!((rob.status, rob.delegated_to.as_ref()), (ApprovalStatus::Delegated, Some(&id("max"))));
}

/// What must hold whatever happened.
fn check(review: &Task) {
    let known: BTreeSet<&str> = review.approvals.iter().map(|one| one.approval_id.as_str()).collect();
    assert_eq!(known.len(), review.approvals.len(), "every request has an id of its own");
    for approval in &review.approvals {
        assert!(
            !review.author_set.contains(&approval.reviewer_id) || !approval.is_answerable(),
            "{approval:?}"
        );
        if let Some(by) = &approval.reviewed_by {
            let counts = approval.digest == review.digest && approval.status == ApprovalStatus::Approved;
            assert!(!counts || !review.author_set.contains(by), "{by} decided about its own");
        }
        let open = approval.is_open();
        assert!(!open || review.state == State::Reviewing, "{} and still open: {approval:?}", review.state);
        assert!(!open || approval.digest == review.digest, "open for something else: {approval:?}");
    }
    if review.state == State::Approved && review.auto_approved.is_none() {
        for progress in review.progress() {
            assert!(matches!(progress.status, Status::Satisfied | Status::Overridden), "{progress:?}");
        }
    }
}

#[test]
fn whatever_happens_an_approval_is_somebody_elses_and_for_exactly_this() {
    const NAMES: [&str; 5] = ["ann", "rob", "sue", "eve", "max"];
    let (rounds, seed) = (effort::rounds(2_000, 200_000), effort::seed());
    let (mut approved, mut refused) = (0_u64, 0_u64);
    for round in 0..rounds {
        let mut dice = Dice::new(seed, round);
        let mut office = small_office();
        for user in &mut office.users {
            if dice.below(4) == 0 {
                user.roles.insert(REVIEWER.to_owned());
            }
        }
        let count = 1 + u32::try_from(dice.below(2)).expect("small");
        office.policies = vec![policy("some", count, if dice.below(2) == 0 { &["dba"] } else { &[] })];
        let name = |dice: &mut Dice| NAMES[usize::try_from(dice.below(5)).expect("small")];
        if dice.below(3) == 0 {
            let (from, to) = (name(&mut dice), name(&mut dice));
            office.delegations.push(delegation(from, to, Conditions::default()));
        }
        let mut review = office.draft("ann", config("schema", &["database:0"]));
        for step in 0..25 {
            let (who, of) = (name(&mut dice), name(&mut dice));
            let actor = office.actor(who);
            let now = office.now;
            let mut changed = review.clone();
            let deed = dice.below(12);
            let outcome = match deed {
                0 | 1 => office.submit(&mut changed, who),
                2 => office.modify(&mut changed, &config("schema", &[&format!("database:{step}")]), who),
                3..=6 => office.answer(&mut changed, of, DecisionKind::Approve, who),
                7 => office.answer(&mut changed, of, DecisionKind::Reject, who),
                8 => office.answer(&mut changed, of, DecisionKind::RequestChanges, who),
                9 => changed.ask_override(Some("r"), Some("t"), &actor, now),
                10 => changed.confirm_override(&actor, now),
                _ if dice.below(3) == 0 => changed.revoke(Some("r"), &actor, now),
                _ => {
                    let people = office.people();
                    let open = changed.approvals.iter().find(|one| one.is_open());
                    let approval_id = open.map(|one| one.approval_id.clone()).unwrap_or_default();
                    changed.delegate(&approval_id, &id(of), &people, format!("d{step}"), &actor, now)
                }
            };
            let verb = match deed {
                0 | 1 => Some(TaskCommand::Submit),
                2 => Some(TaskCommand::Modify),
                3..=6 => Some(TaskCommand::Approve),
                7 => Some(TaskCommand::Reject),
                9 => Some(TaskCommand::Override),
                10 => Some(TaskCommand::ConfirmOverride),
                _ => None,
            };
            if let Some(verb) = verb {
                let told = review.open_to(&actor, now).contains(&verb);
                // Another's request may be the one that can be answered, and what is said may be too much or too little.
                let maybe = matches!(verb, TaskCommand::Approve | TaskCommand::Reject)
                    || matches!(outcome, Err(Refusal::NoQuorum(_) | Refusal::TooManyRequests { .. }));
                assert!(told == outcome.is_ok() || (told && maybe), "{who} {verb} {outcome:?} {review:?}");
            }
            match outcome {
                Ok(()) => {
                    assert!(changed.revision > review.revision, "nothing changes without a revision");
                    check(&changed);
                    approved +=
                        u64::from(changed.state == State::Approved && review.state != State::Approved);
                    review = changed;
                }
                Err(_) => refused += 1,
            }
        }
    }
    println!("{rounds} reviews from seed {seed}: {approved} approved, {refused} commands refused");
    assert!(approved > rounds / 10, "reviews must end well to mean something: {approved}");
}
