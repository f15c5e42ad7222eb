//! Approval requests in a backlog, of people who leave, and by delegation; author sets of edited and resubmitted tasks.

use crate::tasks::fixture::{Fixture, config, delegation, id, open_reviewers, policy, user};
use ade_domain::Moment;
use ade_domain::approval::delegation::{DelegationConditions, DelegationKind};
use ade_domain::approval::policy::Priority;
use ade_domain::approval::quorum::RequirementStatus;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::TaskState;
use ade_domain::task::{Refusal, Task};

fn small_fixture() -> Fixture {
    Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER, "dba"], Some("eve")),
        user("eve", &[REVIEWER, ADMIN], None),
    ])
}

#[test]
fn priority_rises_once_for_each_quarter_of_the_time() {
    let mut fixture = small_fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let approval_id = task.approvals[0].approval_id.clone();
    // The request is due after a second.
    let at = |ms: u64| fixture.now.plus_ms(ms);
    let mut raises = Vec::new();
    for (ms, priority) in [
        (249, Priority::Normal),
        (250, Priority::High),
        (499, Priority::High),
        (500, Priority::Urgent),
        (900, Priority::Urgent),
    ] {
        let revision = task.revision;
        let is_due = task.approvals[0].raises_at().is_some_and(|due| due <= at(ms));
        let is_raised = task.raise_priority(&approval_id, at(ms)).expect("known");
        assert_eq!((is_raised, is_due), (task.revision > revision, is_raised), "{ms}");
        raises.push(is_raised);
        assert!(!task.raise_priority(&approval_id, at(ms)).expect("known"), "once");
        let approval = &task.approvals[0];
        assert_eq!(
            (approval.priority, approval.score),
            (priority, priority.score(task.risk_score())),
            "{ms}"
        );
    }
    assert_eq!(raises, [false, true, false, true, false]);
    // A late call takes all steps at once. Decided requests are not raised.
    let other = task.approvals[1].approval_id.clone();
    assert!(task.raise_priority(&other, at(500)).expect("known"));
    assert_eq!(task.approvals[1].priority, Priority::Urgent);
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("approved");
    for approval_id in [approval_id, other] {
        assert!(!task.raise_priority(&approval_id, at(1_000)).expect("known"));
    }
    assert_eq!(task.raise_priority("x", Moment::default()), Err(Refusal::UnknownApproval));
}

#[test]
fn existing_request_covers_a_leaver_if_nobody_else_can() {
    let mut fixture = small_fixture();
    fixture.policies = vec![policy("some", 1, &["dba"]), policy("any", 1, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    assert_eq!(open_reviewers(&task), ["eve", "rob"]);
    fixture.users[1].active = false;
    let people = fixture.people();
    let mut ids = || "moved".to_owned();
    task.reassign_unqualified(&id("rob"), None, &people, &mut ids, fixture.now).expect("never refused");
    assert_eq!(open_reviewers(&task), ["eve"]);
    let eve = task.approvals.iter().find(|approval| approval.reviewer_id == id("eve")).expect("asked");
    assert!(eve.on_behalf_of.contains(&id("rob")));
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "eve").expect("approved");
    assert_eq!(task.state, TaskState::Approved, "also for the role of rob");
}

#[test]
fn request_stays_if_nobody_can_take_over() {
    let mut fixture = small_fixture();
    fixture.users[2].roles = [REVIEWER.to_owned()].into();
    fixture.users[1].manager_id = None;
    fixture.policies = vec![policy("both", 2, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let before = task.clone();
    fixture.users[1].active = false;
    let people = fixture.people();
    let mut ids = || "moved".to_owned();
    task.reassign_unqualified(&id("rob"), None, &people, &mut ids, fixture.now).expect("never refused");
    assert_eq!(task, before);
}

#[test]
fn only_authors_resubmit_a_rejected_task() {
    let mut fixture = small_fixture();
    fixture.users.push(user("bea", &[AUTHOR, ADMIN], None));
    let mut task = fixture.draft("ann", config("schema", &[]));
    let now = fixture.now;
    let early = task.clone().resubmit(&fixture.actor("ann"), now);
    assert!(matches!(early, Err(Refusal::InvalidTransition(_))));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::Reject, "rob").expect("rejected");
    assert_eq!(task.resubmit(&fixture.actor("bea"), now), Err(Refusal::Forbidden));
    assert_eq!(task.resubmit(&fixture.actor("rob"), now), Err(Refusal::Forbidden));
    let revision = task.revision;
    assert_eq!(task.resubmit(&fixture.actor("ann"), now), Ok(id("ann")));
    assert_eq!((task.state, task.revision), (TaskState::Rejected, revision + 1));
    assert!(task.approvals.iter().all(|approval| approval.status != ApprovalStatus::Pending));
}

#[test]
fn delegated_change_request_blocks_until_the_delegate_decides() {
    let mut fixture = small_fixture();
    fixture.users.push(user("zoe", &[REVIEWER], None));
    fixture.users.push(user("kim", &[ADMIN], None));
    fixture.users.push(user("lou", &["dba"], None));
    fixture.policies = vec![policy("one", 1, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::RequestChanges, "rob").expect("asked");
    let robs = task.approvals.iter().find(|approval| approval.reviewer_id == id("rob")).expect("asked");
    let (robs, people) = (robs.approval_id.clone(), fixture.people());
    let to_author =
        task.clone().delegate(&robs, &id("lou"), &people, "l".to_owned(), &fixture.actor("rob"), fixture.now);
    assert!(
        matches!(to_author, Err(Refusal::InvalidReviewer { .. })),
        "a delegate is a reviewer: {to_author:?}"
    );
    task.delegate(&robs, &id("kim"), &people, "k".to_owned(), &fixture.actor("rob"), fixture.now)
        .expect("kim can take over");
    fixture.decide(&mut task, "zoe", DecisionKind::Approve, "zoe").expect("asked");
    assert_eq!(task.state, TaskState::Reviewing, "the request for changes still blocks");
    fixture.decide(&mut task, "kim", DecisionKind::Approve, "kim").expect("asked");
    assert_eq!(task.state, TaskState::Approved);
}

#[test]
fn follower_approves_only_while_its_leader_personally_approves() {
    let mut fixture = small_fixture();
    fixture.users.push(user("max", &[ADMIN], None));
    fixture.users.push(user("zoe", &[REVIEWER], None));
    let mut follow = delegation("rob", "eve", DelegationConditions::default());
    follow.kind = DelegationKind::Follow;
    fixture.delegations = vec![follow];
    fixture.policies = vec![policy("two", 2, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "eve").expect("asked");
    // An administrator decides on behalf of eve: her own decision no longer counts, and rob no longer follows it.
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "max").expect("an administrator");
    let status = |task: &Task, user: &str| {
        task.approvals
            .iter()
            .find(|approval| approval.reviewer_id == id(user))
            .map(|approval| approval.status)
    };
    assert_eq!((task.state, status(&task, "rob")), (TaskState::Reviewing, Some(ApprovalStatus::Pending)));
    // The decision of an administrator on behalf of rob is not withdrawn by eve.
    fixture.decide(&mut task, "rob", DecisionKind::RequestChanges, "max").expect("an administrator");
    fixture.decide(&mut task, "eve", DecisionKind::RequestChanges, "eve").expect("asked");
    assert_eq!(status(&task, "rob"), Some(ApprovalStatus::ChangesRequested));
}

#[test]
fn lost_role_moves_requests_and_lapses_decisions() {
    let mut fixture = small_fixture();
    fixture.users.push(user("zoe", &[REVIEWER, "dba"], None));
    fixture.users.push(user("max", &[ADMIN], None));
    fixture.policies = vec![policy("three", 3, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("asked");
    fixture.decide(&mut task, "eve", DecisionKind::Approve, "max").expect("an administrator");
    // Rob is no reviewer and max no administrator any more. Without a reassignment, their decisions are not counted either.
    fixture.users[1].roles = [AUTHOR.to_owned()].into();
    fixture.users[4].roles.clear();
    let mut counted = task.clone();
    fixture.decide(&mut counted, "zoe", DecisionKind::Approve, "zoe").expect("asked");
    assert_eq!(counted.state, TaskState::Reviewing);
    assert_eq!(counted.progress()[0].approved_by, [id("zoe")]);
    assert_eq!(
        fixture.decide(&mut counted, "rob", DecisionKind::Approve, "rob"),
        Err(Refusal::RoleLost { user: id("rob") })
    );
    let mut ids = || "moved".to_owned();
    fixture.users[2].roles.insert(REVIEWER.to_owned());
    fixture.users.push(user("pam", &[ADMIN], None));
    task.reassign_unqualified(&id("rob"), None, &fixture.people(), &mut ids, fixture.now)
        .expect("never refused");
    let status = |user: &str| {
        let found = task.approvals.iter().find(|approval| approval.reviewer_id == id(user)).expect("asked");
        (found.status, found.delegated_to.clone())
    };
    assert_eq!(status("rob"), (ApprovalStatus::Delegated, Some(id("pam"))));
    assert_eq!(status("eve"), (ApprovalStatus::Pending, None), "max decided for her");
    assert_eq!(status("pam"), (ApprovalStatus::Pending, None));
    assert_eq!(task.progress()[0].needed, 3);
}

#[test]
fn taking_a_role_away_does_not_lift_a_request_for_changes() {
    let mut fixture = small_fixture();
    fixture.users.push(user("zoe", &[REVIEWER], None));
    fixture.users.push(user("kim", &[ADMIN], None));
    fixture.policies = vec![policy("one", 1, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::RequestChanges, "rob").expect("asked");
    fixture.decide(&mut task, "zoe", DecisionKind::Approve, "zoe").expect("asked");
    fixture.users[1].roles = [AUTHOR.to_owned()].into();
    let mut ids = || "moved".to_owned();
    task.reassign_unqualified(&id("rob"), None, &fixture.people(), &mut ids, fixture.now)
        .expect("never refused");
    assert_eq!(task.state, TaskState::Reviewing);
    assert_eq!(task.progress()[0].status, RequirementStatus::Unsatisfied, "{:?}", task.progress());
    fixture.decide(&mut task, "kim", DecisionKind::Approve, "kim").expect("asked instead");
    assert_eq!(task.state, TaskState::Approved);
}
