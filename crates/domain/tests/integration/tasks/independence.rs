//! Independence: which acts make two accounts dependent, until when, and what that means for the votes on a task.

use crate::tasks::fixture::{Fixture, config, id, policy, user};
use ade_domain::Moment;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::audit::Trigger;
use ade_domain::independence::{AccountAct, AccountActKind, Lift, Period};
use ade_domain::people::{ADMIN, AUTHOR, People, REVIEWER, User};
use ade_domain::task::{Refusal, TaskState};

pub(super) const ALL_ROLES: [&str; 3] = [AUTHOR, REVIEWER, ADMIN];
pub(super) const START: Moment = Moment::from_micros(1_794_744_000_000_000);

fn record(user: &mut User, kind: AccountActKind, by: &str, at: Moment) {
    user.history.record(AccountAct { kind, by: id(by), at, exempt: false, lifted: None });
}

fn people(acts: &[(&str, AccountActKind, &str, Moment)]) -> People {
    let mut users: Vec<User> =
        ["ann", "eve", "max", "pam", "rob"].iter().map(|name| user(name, &ALL_ROLES, None)).collect();
    for (by, kind, of, at) in acts {
        let of = users.iter_mut().find(|user| user.user_id == id(of)).expect("a user");
        record(of, *kind, by, *at);
    }
    users.into_iter().collect()
}

pub(super) fn is_dependent(people: &People, one: &str, other: &str, period: Period, now: Moment) -> bool {
    let found = people.dependence(&id(one), &id(other), period, now).is_some();
    assert_eq!(found, people.dependence(&id(other), &id(one), period, now).is_some(), "symmetric");
    let (one, other) = (id(one), id(other));
    let controllers = people.controllers([&one, &other], period, now);
    assert_eq!(found, !controllers.are_independent(&one, &other), "both computations agree");
    found
}

#[test]
fn acts_make_dependent_directly_in_common_and_through_others_until_they_end() {
    use AccountActKind::{Created, Invited, Reset};
    let day = |day: u64| START.plus_ms(day * 86_400_000);
    let people = people(&[
        ("max", Invited, "eve", day(0)),
        ("max", Reset, "rob", day(2)),
        ("eve", Created, "pam", day(3)),
    ]);
    let now = day(4);
    for (one, other) in
        [("max", "eve"), ("max", "rob"), ("eve", "rob"), ("eve", "pam"), ("max", "pam"), ("rob", "pam")]
    {
        assert!(is_dependent(&people, one, other, Period::Window, now), "{one} {other}");
    }
    for other in ["eve", "max", "pam", "rob"] {
        assert!(!is_dependent(&people, "ann", other, Period::Ever, now), "{other}");
    }
    // The oldest act on the way ends it, unless there is another way.
    let until = |one: &str, other: &str| {
        people.dependence(&id(one), &id(other), Period::Window, now).and_then(|found| found.until)
    };
    assert_eq!(until("eve", "rob"), Some(day(7)));
    assert_eq!(until("max", "rob"), Some(day(9)));
    assert_eq!(until("eve", "pam"), Some(day(10)));
    assert!(is_dependent(&people, "eve", "max", Period::Window, Moment::from_micros(day(7).micros() - 1)));
    assert!(!is_dependent(&people, "eve", "max", Period::Window, day(7)));
    assert!(is_dependent(&people, "eve", "max", Period::Ever, day(1_000)));
    let found = people.dependence(&id("eve"), &id("rob"), Period::Window, now).expect("dependent");
    assert_eq!(
        found.to_string(),
        "eve is not independent of rob: max invited eve, max reset the password of rob. This ends at \
         2026-11-22T12:00:00.000000Z, or earlier when an independent administrator, or the operator, runs ade user confirm eve \
         and ade user confirm rob."
    );
}

#[test]
fn lifted_and_exempt_acts_do_not_count_and_repeated_ones_do_again() {
    let mut eve = user("eve", &ALL_ROLES, None);
    record(&mut eve, AccountActKind::Invited, "max", START);
    let lift = Lift { by: Some(id("rob")), at: START };
    assert!(eve.history.lift(&lift) && !eve.history.lift(&lift));
    let with = |eve: &User| people(&[]).with(eve.clone());
    assert!(!is_dependent(&with(&eve), "eve", "max", Period::Ever, START));
    let exempt = AccountAct { exempt: true, lifted: None, ..eve.history.acts[0].clone() };
    eve.history.record(exempt);
    assert!(!is_dependent(&with(&eve), "eve", "max", Period::Ever, START));
    for _ in 0..100 {
        record(&mut eve, AccountActKind::Invited, "max", START);
    }
    assert!(is_dependent(&with(&eve), "eve", "max", Period::Window, START));
    assert_eq!(eve.history.acts.len(), 2, "bounded");
    assert_eq!(with(&eve).authorize_confirmation(&id("rob"), &id("eve"), START), Ok(()));
    assert!(with(&eve).authorize_confirmation(&id("max"), &id("eve"), START).is_err());
}

#[test]
fn dependence_after_a_vote_makes_it_lapse() {
    let users = ["max", "pam", "rob", "sue"].map(|name| user(name, &[REVIEWER], None));
    let mut fixture = Fixture { now: START, ..Fixture::new(users.into()) };
    fixture.users.push(user("ann", &[AUTHOR], None));
    fixture.policies = vec![policy("three", 3, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("asked");
    fixture.decide(&mut task, "sue", DecisionKind::Approve, "sue").expect("asked");
    // Between the votes, rob resets the password of sue.
    let sue = fixture.users.iter_mut().find(|user| user.user_id == id("sue")).expect("a user");
    record(sue, AccountActKind::Reset, "rob", START);
    fixture.decide(&mut task, "max", DecisionKind::Approve, "max").expect("asked");
    assert_eq!(task.state, TaskState::Reviewing, "rob and sue count once");
    let of_sue = task.approvals.iter().find(|approval| approval.reviewer_id == id("sue")).expect("asked");
    assert_eq!(of_sue.status, ApprovalStatus::Pending);
    let lapse = task.transitions.iter().find(|transition| transition.action == "approval.lapse");
    let trigger = lapse.and_then(|lapse| lapse.trigger.clone());
    assert_eq!(trigger, Some(Trigger::Command("approval.approve".to_owned())), "not an act of max");
    fixture.decide(&mut task, "pam", DecisionKind::Approve, "pam").expect("asked");
    assert_eq!(task.state, TaskState::Approved);
}

#[test]
fn submission_finds_independent_approvers_or_says_why_not() {
    let count = 40;
    let name = |n: usize| format!("r{n:02}");
    let mut users: Vec<User> = (0..count).map(|n| user(&name(n), &[REVIEWER], None)).collect();
    users.extend([user("ann", &[AUTHOR], None), user("max", &[ADMIN], None)]);
    for user in users.iter_mut().take(count - 1) {
        record(user, AccountActKind::Invited, "max", START);
    }
    let mut fixture = Fixture { now: START, ..Fixture::new(users) };
    fixture.policies = vec![policy("two", 2, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("the last one and any other");
    assert_eq!((task.required_count, task.approvals.len()), (2, count));
    fixture.policies = vec![policy("three", 3, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    let Err(Refusal::QuorumUnreachable(refused)) = fixture.submit(&mut task, "ann") else {
        unreachable!("max may use all but one of them")
    };
    assert_eq!(refused.policy, "three");
    assert!(
        refused.reason.contains("r00 is not independent of r01: max invited r00, max invited r01"),
        "{refused}"
    );
    assert!(refused.reason.contains("ade user confirm"), "{refused}");
    // Groups that depend on each other: too many sets to search, so it is refused.
    for (n, user) in fixture.users.iter_mut().take(count).enumerate() {
        user.history.acts.clear();
        record(user, AccountActKind::Invited, &format!("admin{}", n % 8), START);
    }
    fixture.policies = vec![policy("nine", 9, &[])];
    let mut task = fixture.draft("ann", config("schema", &[]));
    let Err(Refusal::QuorumUnreachable(refused)) = fixture.submit(&mut task, "ann") else {
        unreachable!("there are eight groups")
    };
    assert!(refused.reason.contains("too many reviewers depend on each other"), "{refused}");
    // Reviewers who depend on the author are not asked, and the refusal names them.
    let mut fixture = Fixture::new(vec![user("ann", &[AUTHOR], None), user("rob", &[REVIEWER], None)]);
    record(&mut fixture.users[1], AccountActKind::GrantedReviewer, "ann", fixture.now);
    let mut task = fixture.draft("ann", config("schema", &[]));
    let Err(Refusal::QuorumUnreachable(refused)) = fixture.submit(&mut task, "ann") else {
        unreachable!("nobody is left")
    };
    assert!(
        refused.reason.contains("rob is not independent of ann: ann granted rob the role reviewer"),
        "{refused}"
    );
}
