//! Independence: examples, and all short sequences of account changes. However somebody gets hold of two accounts, they never
//! supply two parties of a decision.

use std::collections::HashSet;

use crate::tasks::fixture::{Fixture, config, id, policy, user};
use ade_domain::Moment;
use ade_domain::approval::{ApprovalStatus, DecisionKind};
use ade_domain::audit::Trigger;
use ade_domain::independence::{AccountAct, AccountActKind, INDEPENDENCE_WINDOW_MS, Lift, Period};
use ade_domain::people::{ADMIN, AUTHOR, People, REVIEWER, User};
use ade_domain::task::{Refusal, Task, TaskState};

const ALL_ROLES: [&str; 3] = [AUTHOR, REVIEWER, ADMIN];
const START: Moment = Moment::from_micros(1_794_744_000_000_000);

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

fn is_dependent(people: &People, one: &str, other: &str, period: Period, now: Moment) -> bool {
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
         2026-11-22T12:00:00.000000Z, or earlier when an independent administrator runs ade user confirm eve and ade user \
         confirm rob."
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

/// Accounts, and the person who uses each.
#[derive(Clone)]
struct World {
    users: Vec<User>,
    used_by: Vec<usize>,
    next_person: usize,
}

const NAMES: [&str; 5] = ["p", "q", "x", "y", "z"];

impl World {
    fn people(&self) -> People {
        self.users.iter().cloned().collect()
    }

    fn key(&self) -> String {
        format!("{:?} {:?}", self.used_by, self.users.iter().map(|user| &user.history).collect::<Vec<_>>())
    }

    fn create(&self, by: usize, user_of: usize) -> Self {
        let mut next = self.clone();
        let mut account = user(NAMES[self.users.len()], &ALL_ROLES, None);
        record(&mut account, AccountActKind::Created, NAMES[by], START);
        next.users.push(account);
        next.used_by.push(user_of);
        next.next_person = next.next_person.max(user_of + 1);
        next
    }

    /// Everything that users of the accounts can do next. Administrators other than the attacker confirm only what is true.
    fn successors(&self, max_accounts: usize) -> Vec<Self> {
        let mut successors = Vec::new();
        let people = self.people();
        for (by, person) in self.used_by.iter().copied().enumerate() {
            if self.users.len() < max_accounts {
                successors.extend([self.create(by, person), self.create(by, self.next_person)]);
            }
            for of in (0..self.users.len()).filter(|of| *of != by) {
                let mut reset = self.clone();
                record(&mut reset.users[of], AccountActKind::Reset, NAMES[by], START);
                reset.used_by[of] = person;
                successors.push(reset);
                let is_allowed = people.authorize_confirmation(&id(NAMES[by]), &id(NAMES[of]), START).is_ok();
                let owner = self.used_by[of];
                assert!(!is_allowed || owner != person, "confirms itself: {}", self.key());
                let is_true = self.used_by.iter().filter(|user| **user == owner).count() == 1;
                if is_allowed && is_true {
                    let mut confirmed = self.clone();
                    confirmed.users[of].history.lift(&Lift { by: Some(id(NAMES[by])), at: START });
                    successors.push(confirmed);
                }
            }
        }
        successors
    }

    /// The pairs of accounts that one person uses.
    fn same_person(&self) -> Vec<(&'static str, &'static str)> {
        let all = (0..self.users.len()).flat_map(|one| (0..self.users.len()).map(move |other| (one, other)));
        let same = all.filter(|(one, other)| one != other && self.used_by[*one] == self.used_by[*other]);
        same.map(|(one, other)| (NAMES[one], NAMES[other])).collect()
    }
}

/// Every pair of accounts that one person uses is refused as two parties of a decision.
fn assert_no_two_parties(world: &World) {
    for (one, other) in world.same_person() {
        let mut users = world.users.clone();
        users.extend([user("ann", &[AUTHOR], None), user("rob", &[REVIEWER], None)]);
        let fixture = Fixture { now: START, ..Fixture::new(users) };
        let submitted = |author: &str, count: u32, reviewers: &[&str]| -> Result<Task, Refusal> {
            let mut fixture = fixture.clone();
            let mut required = policy("some", count, &[]);
            required.reviewers = reviewers.iter().map(|name| id(name)).collect();
            fixture.policies = vec![required];
            let mut task = fixture.draft(author, config("schema", &[]));
            fixture.submit(&mut task, author).map(|()| task)
        };
        let is_unreachable =
            |outcome: Result<Task, Refusal>| matches!(outcome, Err(Refusal::QuorumUnreachable(_)));
        let is_dependent = |outcome: Result<(), Refusal>| matches!(outcome, Err(Refusal::NotIndependent(_)));
        // Author and approver.
        assert!(is_unreachable(submitted(one, 1, &[other])), "{}", world.key());
        let mut task = submitted(one, 1, &["rob"]).expect("rob can decide");
        assert!(is_dependent(fixture.decide(&mut task, "rob", DecisionKind::Approve, other)));
        assert!(
            task.delegate("a1", &id(other), &fixture.people(), "d".to_owned(), &fixture.actor("rob"), START)
                .is_err()
        );
        // Two approvers.
        assert!(is_unreachable(submitted("ann", 2, &[one, other])), "{}", world.key());
        let mut task = submitted("ann", 2, &[one, other, "rob"]).expect("rob and one of them can decide");
        fixture.decide(&mut task, one, DecisionKind::Approve, one).expect("asked");
        assert!(is_dependent(fixture.decide(&mut task, other, DecisionKind::Approve, other)));
        assert!(is_dependent(fixture.decide(&mut task, "rob", DecisionKind::Approve, other)));
        fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("independent");
        assert_eq!(task.state, TaskState::Approved);
        // Both sides of an override, also long after the acts.
        let later = START.plus_ms(10 * INDEPENDENCE_WINDOW_MS);
        for now in [START, later] {
            let people = fixture.people();
            let mut task = submitted("ann", 1, &["rob"]).expect("rob can decide");
            task.request_override(Some("r"), Some("t"), &fixture.actor(one), &people, now)
                .expect("an administrator");
            assert!(is_dependent(task.confirm_override(None, &fixture.actor(other), &people, now)));
        }
        let mut own = submitted(one, 1, &["rob"]).expect("rob can decide");
        let people = fixture.people();
        assert!(is_dependent(own.request_override(
            Some("r"),
            Some("t"),
            &fixture.actor(other),
            &people,
            later
        )));
    }
}

/// Searches all sequences of account changes from two administrators whom two people use.
fn search(depth: usize, max_accounts: usize, mut check: impl FnMut(&World)) -> usize {
    let users = NAMES.iter().take(2).map(|name| user(name, &ALL_ROLES, None)).collect();
    let mut level = vec![World { users, used_by: vec![0, 1], next_person: 2 }];
    let mut seen: HashSet<String> = level.iter().map(World::key).collect();
    for _ in 0..depth {
        let mut next = Vec::new();
        for world in level.iter().flat_map(|world| world.successors(max_accounts)) {
            if seen.insert(world.key()) {
                check(&world);
                next.push(world);
            }
        }
        level = next;
    }
    seen.len()
}

#[test]
fn no_sequence_of_account_changes_lets_one_person_be_two_parties() {
    let states = search(4, 5, |world| {
        let people = world.people();
        for (one, other) in world.same_person() {
            for period in [Period::Window, Period::Ever] {
                assert!(is_dependent(&people, one, other, period, START), "{one} {other}: {}", world.key());
            }
        }
    });
    let tasks = search(3, 4, assert_no_two_parties);
    println!("{states} states searched, {tasks} with tasks");
    assert!(states > 5_000 && tasks > 300, "{states} {tasks}");
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
