//! Independence: all short sequences of account changes. However somebody gets hold of two accounts, they never supply two parties
//! of a decision.
//!
//! Two people are not searched, because they are only detected: the only administrator there has ever been, who invites itself,
//! and somebody who waits until the window has passed.

use std::collections::{BTreeSet, HashSet};

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::independence::{AccountAct, AccountActKind, INDEPENDENCE_WINDOW_MS, Lift, Period};
use ade_domain::people::{ADMIN, AUTHOR, People, REVIEWER, User};
use ade_domain::task::{Refusal, Task, TaskState};

use crate::tasks::fixture::{Fixture, config, full_answer, id, policy, user};
use crate::tasks::independence::{ALL_ROLES, START, is_dependent};

const NAMES: [&str; 5] = ["p", "q", "x", "y", "z"];
/// Each passes once: the acts before it still count, or no longer do.
const WITHIN_MS: u64 = INDEPENDENCE_WINDOW_MS / 2;
const BEYOND_MS: u64 = INDEPENDENCE_WINDOW_MS;

/// What is searched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    All,
    /// Everybody but the first person only confirms.
    OfFirstPerson,
    /// Administrators who make and reset accounts at one moment.
    Takeovers,
}

/// Accounts, and the person who uses each.
#[derive(Clone)]
struct World {
    now: Moment,
    users: Vec<User>,
    used_by: Vec<usize>,
    /// Accounts with the same number got to one person by acts that are in the window.
    recent: Vec<usize>,
    next_number: usize,
}

impl World {
    fn new(administrators: usize) -> Self {
        let mut users: Vec<User> =
            NAMES.iter().take(administrators).map(|name| user(name, &ALL_ROLES, None)).collect();
        users.iter_mut().for_each(|user| user.history.was_admin = true);
        let numbers: Vec<usize> = (0..administrators).collect();
        Self { now: START, users, used_by: numbers.clone(), recent: numbers, next_number: administrators }
    }

    fn people(&self) -> People {
        self.users.iter().cloned().collect()
    }

    fn key(&self) -> String {
        let users: Vec<_> = self.users.iter().map(|user| (&user.roles, &user.history)).collect();
        format!("{} {:?} {:?} {users:?}", self.now, self.used_by, self.recent)
    }

    fn act(&mut self, kind: AccountActKind, by: usize, of: usize, people: &People) {
        let by = id(NAMES[by]);
        let exempt = kind == AccountActKind::Invited && people.is_only_admin_ever(&by);
        self.users[of].history.record(AccountAct { kind, by, at: self.now, exempt, lifted: None });
    }

    /// The person who uses `by` also uses `of` from now on.
    fn take_over(&mut self, by: usize, of: usize) {
        (self.used_by[of], self.recent[of]) = (self.used_by[by], self.recent[by]);
    }

    /// A new account, for the person who makes it or for somebody else.
    fn add(
        &self,
        kind: AccountActKind,
        by: usize,
        roles: &[&str],
        for_itself: bool,
        people: &People,
    ) -> Option<Self> {
        let mut next = self.clone();
        let mut account = user(NAMES[self.users.len()], roles, None);
        account.history.was_admin = account.has_role(ADMIN);
        next.users.push(account);
        let of = self.users.len();
        next.act(kind, by, of, people);
        next.used_by.push(self.next_number);
        next.recent.push(self.next_number);
        next.next_number += 1;
        if for_itself {
            next.take_over(by, of);
        }
        let is_exempt = next.users[of].history.acts.iter().any(|act| act.exempt);
        (!for_itself || !is_exempt).then_some(next)
    }

    fn grant(&self, kind: AccountActKind, role: &str, by: usize, of: usize, people: &People) -> Self {
        let mut next = self.clone();
        next.act(kind, by, of, people);
        let granted = &mut next.users[of];
        granted.roles.insert(role.to_owned());
        granted.history.was_admin |= granted.has_role(ADMIN);
        if self.used_by[by] == self.used_by[of] {
            next.take_over(by, of);
        }
        next
    }

    fn reset(&self, by: usize, of: usize, people: &People) -> Self {
        let mut next = self.clone();
        next.act(AccountActKind::Reset, by, of, people);
        next.take_over(by, of);
        next
    }

    /// Administrators other than the attacker confirm only what is true.
    fn confirm(&self, by: usize, of: usize, people: &People) -> Option<Self> {
        let [by_id, of_id] = [by, of].map(|account| id(NAMES[account]));
        let is_allowed = people.authorize_confirmation(&by_id, &of_id, self.now).is_ok();
        let owner = self.used_by[of];
        assert!(!is_allowed || owner != self.used_by[by], "confirms itself: {}", self.key());
        let is_true = self.used_by.iter().filter(|user| **user == owner).count() == 1;
        let mut next = self.clone();
        let is_lifted = next.users[of].history.lift(&Lift { by: Some(by_id), at: self.now });
        (is_allowed && is_true && is_lifted).then_some(next)
    }

    fn wait(&self, ms: u64) -> Self {
        let mut next = Self { now: self.now.plus_ms(ms), ..self.clone() };
        if ms >= INDEPENDENCE_WINDOW_MS {
            next.recent = (self.next_number..).take(self.users.len()).collect();
            next.next_number += self.users.len();
        }
        next
    }

    /// Everything that users of the accounts can do next.
    fn successors(&self, max_accounts: usize, moves: Moves) -> Vec<Self> {
        use AccountActKind::{Created, GrantedAdmin, GrantedReviewer, Invited};
        let waited = self.now.ms_since(START);
        let mut successors: Vec<Self> = [WITHIN_MS, BEYOND_MS]
            .into_iter()
            .filter(|ms| waited == 0 || waited == WITHIN_MS + BEYOND_MS - ms)
            .filter(|_| moves != Moves::Takeovers)
            .map(|ms| self.wait(ms))
            .collect();
        let people = &self.people();
        let is_only_admin = people.is_only_admin_ever(&id(NAMES[0]));
        for by in (0..self.users.len()).filter(|by| self.users[*by].has_role(ADMIN)) {
            let others = || (0..self.users.len()).filter(move |of| *of != by);
            successors.extend(others().filter_map(|of| self.confirm(by, of, people)));
            if moves == Moves::OfFirstPerson && self.used_by[by] != 0 {
                continue;
            }
            if self.users.len() < max_accounts {
                // The kind makes a difference for the only administrator alone.
                let kinds = if is_only_admin { [Invited, Invited] } else { [Created, Invited] };
                let accounts = kinds.into_iter().zip([&ALL_ROLES[..], &[AUTHOR]]);
                for (kind, roles) in accounts.take(if moves == Moves::Takeovers { 1 } else { 2 }) {
                    successors.extend(
                        [true, false].iter().filter_map(|own| self.add(kind, by, roles, *own, people)),
                    );
                }
            }
            for of in others() {
                successors.push(self.reset(by, of, people));
                for (kind, role) in [(GrantedAdmin, ADMIN), (GrantedReviewer, REVIEWER)] {
                    if !self.users[of].has_role(role) {
                        successors.push(self.grant(kind, role, by, of, people));
                    }
                }
            }
        }
        successors
    }

    /// The pairs of accounts with the same number.
    fn pairs(&self, numbers: &[usize]) -> BTreeSet<(&'static str, &'static str)> {
        let all = (0..numbers.len()).flat_map(|one| (0..numbers.len()).map(move |other| (one, other)));
        let same = all.filter(|(one, other)| one != other && numbers[*one] == numbers[*other]);
        same.map(|(one, other)| (NAMES[one], NAMES[other])).collect()
    }
}

fn assert_dependent(world: &World) {
    let people = world.people();
    for (period, numbers) in [(Period::Window, &world.recent), (Period::Ever, &world.used_by)] {
        for (one, other) in world.pairs(numbers) {
            let found = is_dependent(&people, one, other, period, world.now);
            assert!(found, "{period:?} {one} {other}: {}", world.key());
        }
    }
}

/// Tasks refuse every pair of accounts that one person uses as two parties. With any roles: these do not make independent.
fn assert_tasks_refuse(world: &World) {
    for (one, other) in world.pairs(&world.used_by) {
        let mut users = world.users.clone();
        users.iter_mut().for_each(|user| user.roles = ALL_ROLES.map(str::to_owned).into());
        users.extend([user("ann", &[AUTHOR], None), user("rob", &[REVIEWER], None)]);
        let fixture = Fixture { now: world.now, ..Fixture::new(users) };
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
        // Both sides of an override, also long after the acts.
        let later = world.now.plus_ms(10 * INDEPENDENCE_WINDOW_MS);
        for now in [world.now, later] {
            let people = fixture.people();
            let mut task = submitted("ann", 1, &["rob"]).expect("rob can decide");
            task.request_override(Some("r"), Some("t"), &fixture.actor(one), &people, now)
                .expect("an administrator");
            assert!(is_dependent(task.confirm_override(
                &full_answer(&task),
                &fixture.actor(other),
                &people,
                now
            )));
        }
        let mut own = submitted(one, 1, &["rob"]).expect("rob can decide");
        let people = fixture.people();
        let overridden = own.request_override(Some("r"), Some("t"), &fixture.actor(other), &people, later);
        assert!(is_dependent(overridden));
        if !world.pairs(&world.recent).contains(&(one, other)) {
            continue;
        }
        // Author and approver.
        assert!(is_unreachable(submitted(one, 1, &[other])), "{}", world.key());
        let mut task = submitted(one, 1, &["rob"]).expect("rob can decide");
        assert!(is_dependent(fixture.decide(&mut task, "rob", DecisionKind::Approve, other)));
        assert!(
            task.delegate(
                "a1",
                &id(other),
                &fixture.people(),
                "d".to_owned(),
                &fixture.actor("rob"),
                world.now
            )
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
    }
}

/// Searches all sequences of account changes, from administrators whom different people use.
fn search(
    administrators: usize,
    depth: usize,
    max_accounts: usize,
    moves: Moves,
    check: impl Fn(&World),
) -> usize {
    let mut level = vec![World::new(administrators)];
    let mut seen: HashSet<String> = level.iter().map(World::key).collect();
    for _ in 0..depth {
        let mut next = Vec::new();
        for world in level.iter().flat_map(|world| world.successors(max_accounts, moves)) {
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
    let found = [
        search(1, 3, 4, Moves::All, assert_dependent),
        search(2, 3, 5, Moves::All, assert_dependent),
        search(1, 4, 4, Moves::OfFirstPerson, assert_dependent),
        search(2, 4, 4, Moves::OfFirstPerson, assert_dependent),
        search(2, 4, 5, Moves::Takeovers, assert_dependent),
    ];
    println!("{found:?} states searched");
    assert!(found.iter().sum::<usize>() > 10_000, "{found:?}");
}

#[test]
fn no_sequence_of_account_changes_makes_tasks_count_one_person_twice() {
    let found =
        [1, 2].map(|administrators| search(administrators, 3, 4, Moves::OfFirstPerson, assert_tasks_refuse));
    println!("{found:?} states searched with tasks");
    assert!(found.iter().sum::<usize>() > 400, "{found:?}");
}
