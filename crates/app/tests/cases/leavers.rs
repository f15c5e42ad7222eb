//! People who leave: what they were asked moves in the same transaction, also while they answer, and nothing is left behind.

use std::time::Duration;

use ade_app::tasks::{MOST_MOVED, TaskService};
use ade_app::{Error, rules::DelegationChange};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::default_policy;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, User, UserId};
use ade_domain::task::Refusal;
use ade_domain::task::State;
use ade_store::DatabaseError;
use ade_store::database::{Commit, StoredTask, Write};

use crate::office::{Office, caller, on_both, request_to, submitted, yes};

on_both!(
    what_a_leaver_was_asked_moves_with_it,
    whoever_stands_in_comes_before_administrators,
    who_is_asked_already_answers_for_both,
    a_leaver_who_answers_meanwhile_has_answered,
    what_is_too_much_for_one_transaction_is_worked_off,
    an_approval_ends_also_when_nobody_is_left_to_ask,
);

/// Deactivates somebody as the use case of users does: again and again, until nobody was faster.
async fn deactivate(office: &Office, desk: &TaskService, name: &str) {
    loop {
        let mut user = office.record.user(&UserId::new(name)).await.expect("read").expect("there");
        let expected = Some(user.revision);
        user.revision += 1;
        user.user = User { active: false, ..user.user };
        let mut commit = Commit::default();
        commit.writes.push(Write::User { user: Box::new(user), expected });
        desk.leave(&mut commit, &UserId::new(name)).await.expect("looked");
        match office.record.commit(commit).await {
            Ok(()) => return,
            Err(DatabaseError::Conflict { .. }) => {}
            Err(error) => unreachable!("{error}"),
        }
    }
}

async fn an_approval_ends_also_when_nobody_is_left_to_ask(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let desk = office.desk();
    let task = submitted(&desk, "one").await;
    let rob = caller("rob", &[REVIEWER]);
    desk.respond(request_to(&task, "rob"), &yes(), &rob).await.expect("approved");
    deactivate(&office, &desk, "rob").await;
    office.clock.advance(Duration::from_secs(8 * 86_400));
    assert_eq!(desk.work_off().await, Ok(1));
    let now = office.task(&task.task_id).await;
    assert_eq!((now.state, open(&now)), (State::Reviewing, Vec::new()), "approved no more");
    let why = "policy default cannot be satisfied at present: 1 approvers required, 0 available";
    assert_eq!(now.passed_by.last().map(String::as_str), Some(why));
    assert_eq!(desk.work_off().await, Ok(0), "once");
}

fn open(task: &StoredTask) -> Vec<&str> {
    let approvals = task.approvals.iter();
    approvals.filter(|one| one.is_open()).map(|one| one.reviewer_id.as_str()).collect()
}

async fn what_a_leaver_was_asked_moves_with_it(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    // As an administrator it would be the first to take over from itself.
    office.hire("bob", &[REVIEWER, ADMIN]).await;
    office.hire("max", &[ADMIN]).await;
    let desk = office.desk();
    let tasks = [submitted(&desk, "one").await, submitted(&desk, "two").await];
    deactivate(&office, &desk, "bob").await;
    for task in &tasks {
        let now = office.task(&task.task_id).await;
        assert_eq!(open(&now), ["max"]);
        let old = now.approvals.first().expect("the first");
        assert_eq!((old.status, &old.delegated_to), (ApprovalStatus::Delegated, &Some(UserId::new("max"))));
        let told = office.told(Some(&task.task_id)).await;
        assert_eq!(told.last().map(String::as_str), Some("approval.reassign"));
        let max = caller("max", &[ADMIN]);
        let now = desk.respond(request_to(&now, "max"), &yes(), &max).await.expect("counts");
        assert_eq!(now.state, State::Approved);
    }
    assert_eq!(desk.work_off().await, Ok(0), "nothing is left behind");
}

async fn whoever_stands_in_comes_before_administrators(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("bob", &[REVIEWER]).await;
    office.hire("max", &[ADMIN]).await;
    office.hire("sue", &["dba"]).await;
    let desk = office.desk();
    let task = submitted(&desk, "one").await;
    let change = DelegationChange { delegate_to: Some(UserId::new("sue")), ..DelegationChange::default() };
    let bob = caller("bob", &[REVIEWER]);
    office.rules().create_delegation(&change, &bob).await.expect("delegated");
    deactivate(&office, &desk, "bob").await;
    assert_eq!(open(&office.task(&task.task_id).await), ["sue"]);
}

async fn who_is_asked_already_answers_for_both(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("bob", &["dba"]).await;
    office.hire("max", &[ADMIN, "ops"]).await;
    let mut both = default_policy();
    both.name = "both".to_owned();
    both.required_roles = vec!["dba".to_owned(), "ops".to_owned()];
    office.rule(both).await;
    let desk = office.desk();
    let task = submitted(&desk, "one").await;
    assert_eq!(open(&task), ["bob", "max"]);
    deactivate(&office, &desk, "bob").await;
    let now = office.task(&task.task_id).await;
    assert_eq!(open(&now), ["max"]);
    let now = desk.respond(request_to(&now, "max"), &yes(), &caller("max", &[ADMIN])).await.expect("counts");
    assert_eq!(now.state, State::Approved, "for both roles");
    assert_eq!(desk.work_off().await, Ok(0));
}

async fn a_leaver_who_answers_meanwhile_has_answered(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("max", &[ADMIN]).await;
    let (desk, other) = (office.desk(), office.another_desk().await);
    let mut own = default_policy();
    (own.name, own.required_roles) = ("own".to_owned(), vec!["dba".to_owned()]);
    office.rule(own).await;
    for round in 0..10 {
        let name = format!("bob{round}");
        office.hire(&name, &["dba", REVIEWER]).await;
        let task = submitted(&desk, &name).await;
        let bob = caller(&name, &[REVIEWER]);
        let said = yes();
        let answer = other.respond(request_to(&task, &name), &said, &bob);
        let (answered, ()) = tokio::join!(answer, deactivate(&office, &desk, &name));
        let now = office.task(&task.task_id).await;
        match answered {
            Ok(_) => assert_eq!((now.state, open(&now)), (State::Approved, Vec::new())),
            Err(Error::Refused(Refusal::NotAnswerable { status: ApprovalStatus::Delegated })) => {
                assert_eq!((now.state, open(&now)), (State::Reviewing, vec!["max"]));
            }
            Err(error) => unreachable!("{error}"),
        }
    }
    assert_eq!(desk.work_off().await, Ok(0));
}

async fn what_is_too_much_for_one_transaction_is_worked_off(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("bob", &[REVIEWER]).await;
    office.hire("max", &[ADMIN]).await;
    let (desk, many) = (office.desk(), MOST_MOVED + 3);
    let mut tasks = Vec::new();
    for number in 0..many {
        tasks.push(submitted(&desk, &number.to_string()).await.task.task_id);
    }
    deactivate(&office, &desk, "bob").await;
    let left = async || {
        let mut left = 0;
        for id in &tasks {
            left += usize::from(open(&office.task(id).await) == ["bob"]);
        }
        left
    };
    assert_eq!(left().await, 3);
    // By three processes at once: each of the rest moves once.
    let others = [office.another_desk().await, office.another_desk().await];
    let done = tokio::join!(desk.work_off(), others[0].work_off(), others[1].work_off());
    assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok(), "{done:?}");
    assert_eq!(left().await, 0);
    let told = office.told(None).await;
    assert_eq!(told.iter().filter(|action| *action == "approval.reassign").count(), many);
}
