//! Users who leave: their approval requests are reassigned in the same transaction, also while they decide, and none is left behind.

use std::time::Duration;

use ade_app::tasks::{MAX_REASSIGNED_TASKS, TaskService};
use ade_app::{Error, rules::DelegationChange};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::default_policy;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, User, UserId};
use ade_domain::task::Refusal;
use ade_domain::task::TaskState;
use ade_store::DatabaseError;
use ade_store::database::{Commit, StoredTask, Write};

use crate::fixture::{Fixture, approval_of, approve, caller, on_both_databases, submitted};

on_both_databases!(
    reassigns_requests_of_a_leaver,
    delegate_takes_over_before_administrators,
    existing_reviewer_counts_for_both_roles,
    decision_racing_offboarding_counts_or_is_reassigned,
    reassigns_the_rest_in_the_background,
    approval_expires_without_remaining_reviewers,
);

/// Deactivates a user as the account service does, with retries after conflicts.
async fn deactivate(fixture: &Fixture, service: &TaskService, name: &str) {
    loop {
        let mut user = fixture.database.user(&UserId::new(name)).await.expect("read").expect("exists");
        let expected = Some(user.revision);
        user.revision += 1;
        user.user = User { active: false, ..user.user };
        let mut commit = Commit::default();
        let after = user.user.clone();
        commit.writes.push(Write::User { user: Box::new(user), expected });
        service.reassign_approvals_of(&mut commit, &after).await.expect("read");
        match fixture.database.commit(commit).await {
            Ok(()) => return,
            Err(DatabaseError::Conflict { .. }) => {}
            Err(error) => unreachable!("{error}"),
        }
    }
}

async fn approval_expires_without_remaining_reviewers(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let service = fixture.service();
    let task = submitted(&service, "one").await;
    let rob = caller("rob", &[REVIEWER]);
    service.decide(approval_of(&task, "rob"), &approve(&task), &rob).await.expect("approved");
    deactivate(&fixture, &service, "rob").await;
    fixture.clock.advance(Duration::from_secs(8 * 86_400));
    assert_eq!(service.process_timeouts().await, Ok(1));
    let now = fixture.task(&task.task_id).await;
    assert_eq!((now.state, open(&now)), (TaskState::Reviewing, Vec::new()), "no longer approved");
    let why = "policy default cannot be satisfied at present: 1 approver required, 0 available";
    assert_eq!(now.skipped.last().map(String::as_str), Some(why));
    assert_eq!(service.process_timeouts().await, Ok(0), "once");
}

fn open(task: &StoredTask) -> Vec<&str> {
    let approvals = task.approvals.iter();
    approvals.filter(|approval| approval.is_open()).map(|approval| approval.reviewer_id.as_str()).collect()
}

async fn reassigns_requests_of_a_leaver(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    // Being an administrator, bob would be the first candidate to take over.
    fixture.add_user("bob", &[REVIEWER, ADMIN]).await;
    fixture.add_user("max", &[ADMIN]).await;
    let service = fixture.service();
    let tasks = [submitted(&service, "one").await, submitted(&service, "two").await];
    deactivate(&fixture, &service, "bob").await;
    for task in &tasks {
        let now = fixture.task(&task.task_id).await;
        assert_eq!(open(&now), ["max"]);
        let old = now.approvals.first().expect("first approval");
        assert_eq!((old.status, &old.delegated_to), (ApprovalStatus::Delegated, &Some(UserId::new("max"))));
        let actions = fixture.audit_actions(Some(&task.task_id)).await;
        assert_eq!(actions.last().map(String::as_str), Some("approval.reassign"));
        let max = caller("max", &[ADMIN]);
        let now = service.decide(approval_of(&now, "max"), &approve(&now), &max).await.expect("decided");
        assert_eq!(now.state, TaskState::Approved);
    }
    assert_eq!(service.process_timeouts().await, Ok(0), "no request is left behind");
}

async fn delegate_takes_over_before_administrators(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("bob", &[REVIEWER]).await;
    fixture.add_user("max", &[ADMIN]).await;
    fixture.add_user("sue", &[ADMIN]).await;
    let service = fixture.service();
    let task = submitted(&service, "one").await;
    let change = DelegationChange { delegate_to: Some(UserId::new("sue")), ..DelegationChange::default() };
    let bob = caller("bob", &[REVIEWER]);
    fixture.rules().create_delegation(&change, &bob).await.expect("delegated");
    deactivate(&fixture, &service, "bob").await;
    assert_eq!(open(&fixture.task(&task.task_id).await), ["sue"]);
}

async fn existing_reviewer_counts_for_both_roles(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("bob", &["dba"]).await;
    fixture.add_user("max", &[ADMIN, "ops"]).await;
    let mut both = default_policy();
    both.name = "both".to_owned();
    both.required_roles = vec!["dba".to_owned(), "ops".to_owned()];
    fixture.add_policy(both).await;
    let service = fixture.service();
    let task = submitted(&service, "one").await;
    assert_eq!(open(&task), ["bob", "max"]);
    deactivate(&fixture, &service, "bob").await;
    let now = fixture.task(&task.task_id).await;
    assert_eq!(open(&now), ["max"]);
    let now = service
        .decide(approval_of(&now, "max"), &approve(&now), &caller("max", &[ADMIN]))
        .await
        .expect("decided");
    assert_eq!(now.state, TaskState::Approved, "the decision counts for both roles");
    assert_eq!(service.process_timeouts().await, Ok(0));
}

async fn decision_racing_offboarding_counts_or_is_reassigned(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("max", &[ADMIN]).await;
    let (service, other) = (fixture.service(), fixture.other_process().await);
    let mut own = default_policy();
    (own.name, own.required_roles) = ("own".to_owned(), vec!["dba".to_owned()]);
    fixture.add_policy(own).await;
    for round in 0..10 {
        let name = format!("bob{round}");
        fixture.add_user(&name, &["dba", REVIEWER]).await;
        let task = submitted(&service, &name).await;
        let bob = caller(&name, &[REVIEWER]);
        let response = approve(&task);
        let deciding = other.decide(approval_of(&task, &name), &response, &bob);
        let (decided, ()) = tokio::join!(deciding, deactivate(&fixture, &service, &name));
        let now = fixture.task(&task.task_id).await;
        match decided {
            Ok(_) => assert_eq!((now.state, open(&now)), (TaskState::Approved, Vec::new())),
            Err(Error::Refused(
                Refusal::ApprovalClosed { status: ApprovalStatus::Delegated } | Refusal::RoleLost { .. },
            )) => {
                assert_eq!((now.state, open(&now)), (TaskState::Reviewing, vec!["max"]));
            }
            Err(error) => unreachable!("{error}"),
        }
    }
    assert_eq!(service.process_timeouts().await, Ok(0));
}

async fn reassigns_the_rest_in_the_background(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("bob", &[REVIEWER]).await;
    fixture.add_user("max", &[ADMIN]).await;
    let (service, many) = (fixture.service(), MAX_REASSIGNED_TASKS + 3);
    let tasks = fixture.store_copies(&submitted(&service, "one").await, many).await;
    deactivate(&fixture, &service, "bob").await;
    let left = async || {
        let mut left = 0;
        for id in &tasks {
            left += usize::from(open(&fixture.task(id).await) == ["bob"]);
        }
        left
    };
    assert_eq!(left().await, 3);
    // Three processes at once: each remaining request is reassigned once.
    let others = [fixture.other_process().await, fixture.other_process().await];
    let done =
        tokio::join!(service.process_timeouts(), others[0].process_timeouts(), others[1].process_timeouts());
    assert!(done.0.is_ok() && done.1.is_ok() && done.2.is_ok(), "{done:?}");
    assert_eq!(left().await, 0);
    let actions = fixture.audit_actions(None).await;
    assert_eq!(actions.iter().filter(|action| *action == "approval.reassign").count(), many);
}
