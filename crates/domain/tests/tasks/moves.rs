//! Requests in a backlog, requests of people who leave, and tasks that are made of others.

use crate::office::{Office, asked, config, delegation, id, policy, user};
use ade_domain::Moment;
use ade_domain::approval::delegation::{Conditions, Kind};
use ade_domain::approval::policy::{AutoApprove, Priority};
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::State;
use ade_domain::task::{Refusal, Task};

fn small_office() -> Office {
    Office::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER, "dba"], Some("eve")),
        user("eve", &[REVIEWER, ADMIN], None),
    ])
}

#[test]
fn each_quarter_of_its_time_makes_a_request_more_urgent_once() {
    let mut office = small_office();
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    let approval_id = review.approvals[0].approval_id.clone();
    // It has a second.
    let at = |ms: u64| office.now.plus_ms(ms);
    let mut told = Vec::new();
    for (ms, priority) in [
        (249, Priority::Normal),
        (250, Priority::High),
        (499, Priority::High),
        (500, Priority::Urgent),
        (900, Priority::Urgent),
    ] {
        let revision = review.revision;
        let happened = review.raise(&approval_id, at(ms)).expect("known");
        assert_eq!(happened, review.revision > revision, "{ms}");
        told.push(happened);
        assert!(!review.raise(&approval_id, at(ms)).expect("known"), "once");
        let one = &review.approvals[0];
        assert_eq!((one.priority, one.score), (priority, priority.score(review.risk_score())), "{ms}");
    }
    assert_eq!(told, [false, true, false, true, false]);
    // Whoever comes late takes all steps at once; who was answered takes none.
    let other = review.approvals[1].approval_id.clone();
    assert!(review.raise(&other, at(500)).expect("known"));
    assert_eq!(review.approvals[1].priority, Priority::Urgent);
    office.answer(&mut review, "rob", DecisionKind::Approve, "rob").expect("approved");
    for one in [approval_id, other] {
        assert!(!review.raise(&one, at(1_000)).expect("known"));
    }
    assert_eq!(review.raise("x", Moment::default()), Err(Refusal::UnknownApproval));
}

#[test]
fn who_is_asked_already_counts_for_a_leaver_if_nobody_else_is_left() {
    let mut office = small_office();
    office.policies = vec![policy("some", 1, &["dba"]), policy("any", 1, &[])];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    assert_eq!(asked(&review), ["eve", "rob"]);
    // Rob is still there as far as anybody knows.
    let people = office.people();
    let mut ids = || "moved".to_owned();
    review.replace(&id("rob"), None, &people, &mut ids, office.now).expect("never refused");
    assert_eq!(asked(&review), ["eve"]);
    let eve = review.approvals.iter().find(|one| one.reviewer_id == id("eve")).expect("asked");
    assert!(eve.stands_for.contains(&id("rob")));
    office.answer(&mut review, "eve", DecisionKind::Approve, "eve").expect("approved");
    assert_eq!(review.state, State::Approved, "also for the role that only rob has");
}

#[test]
fn a_request_stays_where_nobody_is_left() {
    let mut office = small_office();
    office.users[2].roles = [REVIEWER.to_owned()].into();
    office.users[1].manager_id = None;
    office.policies = vec![policy("both", 2, &[])];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    let before = review.clone();
    let people = office.people();
    let mut ids = || "moved".to_owned();
    review.replace(&id("rob"), None, &people, &mut ids, office.now).expect("never refused");
    assert_eq!(review, before);
}

#[test]
fn in_a_backlog_the_level_takes_the_place_of_the_risk_and_nothing_else() {
    let mut office = small_office();
    let low = |conditions: AutoApprove| {
        let mut one = policy("some", 1, &[]);
        one.auto_approve_if = Some(conditions);
        one
    };
    let below = AutoApprove { risk_below: Some(1), ..AutoApprove::default() };
    let role = AutoApprove { author_has_role: vec!["dba".to_owned()], ..below.clone() };
    let never = policy("never", 1, &[]);
    for (policies, passes) in [
        (vec![low(below.clone())], true),
        (vec![low(role)], false),
        (vec![low(AutoApprove::default())], false),
        (vec![low(below), never], false),
        (Vec::new(), false),
    ] {
        office.policies = policies;
        let wanted = config("schema", &[]);
        let review = office.draft("ann", wanted.clone());
        for backlog in [false, true] {
            office.low_risk_passes = backlog;
            let assignment = office.assignment(&review, &wanted).expect("enough people");
            assert_eq!(assignment.auto_approved.is_some(), passes && backlog, "{:?}", office.policies);
            office.must_be_seen = true;
            let assignment = office.assignment(&review, &wanted).expect("enough people");
            assert_eq!(assignment.auto_approved, None, "{:?}", office.policies);
            office.must_be_seen = false;
        }
    }
}

#[test]
fn only_its_authors_make_another_of_what_ended_badly() {
    let mut office = small_office();
    office.users.push(user("bea", &[AUTHOR, ADMIN], None));
    let mut review = office.draft("ann", config("schema", &[]));
    let now = office.now;
    let early = review.clone().resubmit(&office.actor("ann"), now);
    assert!(matches!(early, Err(Refusal::InvalidTransition(_))));
    office.submit(&mut review, "ann").expect("enough people");
    office.answer(&mut review, "rob", DecisionKind::Reject, "rob").expect("rejected");
    assert_eq!(review.resubmit(&office.actor("bea"), now), Err(Refusal::Forbidden));
    assert_eq!(review.resubmit(&office.actor("rob"), now), Err(Refusal::Forbidden));
    let revision = review.revision;
    assert_eq!(review.resubmit(&office.actor("ann"), now), Ok(id("ann")));
    assert_eq!((review.state, review.revision), (State::Rejected, revision + 1));
    assert!(review.approvals.iter().all(|one| one.status != ApprovalStatus::Pending));
}

#[test]
fn a_wish_for_changes_that_is_handed_on_is_lifted_by_whoever_has_it_now() {
    let mut office = small_office();
    office.users.push(user("zoe", &[REVIEWER], None));
    office.users.push(user("kim", &[], None));
    office.policies = vec![policy("one", 1, &[])];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    office.answer(&mut review, "rob", DecisionKind::RequestChanges, "rob").expect("asked");
    let robs = review.approvals.iter().find(|one| one.reviewer_id == id("rob")).expect("asked");
    let (robs, people) = (robs.approval_id.clone(), office.people());
    review
        .delegate(&robs, &id("kim"), &people, "k".to_owned(), &office.actor("rob"), office.now)
        .expect("kim can take over");
    office.answer(&mut review, "zoe", DecisionKind::Approve, "zoe").expect("asked");
    assert_eq!(review.state, State::Reviewing, "nobody took it back that changes are wanted");
    office.answer(&mut review, "kim", DecisionKind::Approve, "kim").expect("asked");
    assert_eq!(review.state, State::Approved);
}

#[test]
fn who_follows_agrees_only_as_long_as_its_leader_does_by_itself() {
    let mut office = small_office();
    office.users.push(user("max", &[ADMIN], None));
    office.users.push(user("zoe", &[REVIEWER], None));
    let mut follow = delegation("rob", "eve", Conditions::default());
    follow.kind = Kind::Follow;
    office.delegations = vec![follow];
    office.policies = vec![policy("two", 2, &[])];
    let mut review = office.draft("ann", config("schema", &[]));
    office.submit(&mut review, "ann").expect("enough people");
    office.answer(&mut review, "eve", DecisionKind::Approve, "eve").expect("asked");
    // An administrator answers in the place of eve: what eve said does not count any more, nor who followed it.
    office.answer(&mut review, "eve", DecisionKind::Approve, "max").expect("an administrator");
    let status = |review: &Task, who: &str| {
        review.approvals.iter().find(|one| one.reviewer_id == id(who)).map(|one| one.status)
    };
    assert_eq!((review.state, status(&review, "rob")), (State::Reviewing, Some(ApprovalStatus::Pending)));
    // What an administrator said in the place of rob is not taken back by eve.
    office.answer(&mut review, "rob", DecisionKind::RequestChanges, "max").expect("an administrator");
    office.answer(&mut review, "eve", DecisionKind::RequestChanges, "eve").expect("asked");
    assert_eq!(status(&review, "rob"), Some(ApprovalStatus::ChangesRequested));
}
