//! Conditional requests with `If-Match`, and stored responses of idempotent requests.

use ade_app::tasks::{TaskAction, TaskDraft};
use ade_app::{ApprovalView, Caller, Error, ObjectKind, Outcome, TaskView};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::task::TaskState;
use ade_store::database::StoredTask;

use crate::fixture::{
    Fixture, approval_of, approve, approve_all, caller, confirm_override, draft, on_both_databases,
    submitted, with_if_match, with_key,
};

on_both_databases!(
    rejects_stale_revision_with_the_current_one,
    only_one_of_two_concurrent_changes_succeeds,
    stores_response_with_its_changes,
    stores_one_response_for_concurrent_requests_with_one_key,
);

async fn stored_outcome(fixture: &Fixture, key: &str) -> Option<Outcome> {
    let stored = fixture.database.stored_response("test", key).await.expect("read")?;
    Some(serde_json::from_value(stored.outcome).expect("an outcome"))
}

/// The outcome that a task has for a caller at the time of its request.
fn task_outcome(task: &StoredTask, caller: &Caller) -> Option<Outcome> {
    let at = caller.idempotent_request.as_ref().expect("a key").received_at;
    let mut view = TaskView::new(task, caller, at);
    // Stored separately.
    (view.task.approvals, view.task.transitions) = (Vec::new(), Vec::new());
    Some(Outcome::Task(view))
}

async fn rejects_stale_revision_with_the_current_one(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    let (service, ann, rob) = (fixture.service(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let task = service.create(draft("one"), &ann).await.expect("created");
    let id = &task.task_id;
    let same = |task: &StoredTask| Ok(TaskDraft::of(task));
    let late = with_if_match(&ann, 7);
    let now = 1;
    assert_eq!(service.submit(id, &late).await, Err(Error::Stale { now }));
    assert_eq!(service.modify(id, same, &late).await, Err(Error::Stale { now }));
    assert_eq!(service.delete(id, &late).await, Err(Error::Stale { now }));
    assert_eq!(service.comment(id, "hm", &late).await, Err(Error::Stale { now }));
    let cancel = TaskAction::Cancel { reason: None };
    assert_eq!(service.perform(id, &cancel, &late).await, Err(Error::Stale { now }));
    let task = service.submit(id, &with_if_match(&ann, 1)).await.expect("current revision");
    // An approval request has a revision of its own.
    let request = approval_of(&task, "rob");
    assert_eq!(
        service.decide(request, &approve(&task), &with_if_match(&rob, 7)).await,
        Err(Error::Stale { now: 1 })
    );
    let to = UserId::new("sue");
    assert_eq!(service.delegate(request, &to, &with_if_match(&rob, 7)).await, Err(Error::Stale { now: 1 }));
    let task =
        service.decide(request, &approve(&task), &with_if_match(&rob, 1)).await.expect("current revision");
    assert_eq!(task.state, TaskState::Approved);
}

async fn only_one_of_two_concurrent_changes_succeeds(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, other) = (fixture.service(), fixture.other_process().await);
    let ann = with_if_match(&caller("ann", &[AUTHOR]), 1);
    for round in 0..10 {
        let task =
            service.create(draft(&round.to_string()), &caller("ann", &[AUTHOR])).await.expect("created");
        let id = &task.task_id;
        let change = |task: &StoredTask| Ok(TaskDraft::of(task));
        let (one, two) = tokio::join!(service.modify(id, change, &ann), other.modify(id, change, &ann));
        let [done, stale] = if one.is_ok() { [one, two] } else { [two, one] };
        assert_eq!(done.expect("one succeeds").revision, 2);
        assert_eq!(stale, Err(Error::Stale { now: 2 }));
        let after = with_if_match(&ann, 2);
        let (one, two) = tokio::join!(service.delete(id, &after), other.submit(id, &after));
        match (one, two) {
            (Ok(()), Err(Error::NotFound(ObjectKind::Task))) => {}
            (Err(Error::Stale { now }), Ok(task)) => assert_eq!(task.revision, now),
            other => unreachable!("{other:?}"),
        }
    }
}

async fn stores_response_with_its_changes(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    let (service, ann, rob) = (fixture.service(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let (create, submit, cancel) =
        (with_key(&ann, "create"), with_key(&ann, "submit"), with_key(&ann, "cancel"));
    let task = service.create(draft("one"), &create).await.expect("created");
    let id = task.task_id.as_str();
    assert_eq!(stored_outcome(&fixture, "create").await, task_outcome(&task, &create));
    let refused =
        service.perform(id, &confirm_override(&task), &with_key(&caller("max", &[ADMIN]), "refused")).await;
    assert!(refused.is_err());
    assert_eq!(stored_outcome(&fixture, "refused").await, None, "a refused request has no stored response");
    let task = service.submit(id, &submit).await.expect("submitted");
    assert_eq!(stored_outcome(&fixture, "submit").await, task_outcome(&task, &submit));
    let comment = service.comment(id, "hm", &with_key(&rob, "comment")).await.expect("commented");
    assert_eq!(stored_outcome(&fixture, "comment").await, Some(Outcome::Comment(comment)));
    let request = approval_of(&task, "rob").to_owned();
    let task = service.decide(&request, &approve(&task), &with_key(&rob, "approve")).await.expect("approved");
    let approval = ApprovalView::find(&task, &request);
    assert_eq!(approval.as_ref().map(|approval| approval.task_state), Some(TaskState::Approved));
    assert_eq!(stored_outcome(&fixture, "approve").await, Some(Outcome::Approval(approval)));
    let action = TaskAction::Cancel { reason: None };
    let task = service.perform(id, &action, &cancel).await.expect("cancelled");
    assert_eq!(stored_outcome(&fixture, "cancel").await, task_outcome(&task, &cancel));
    let task = submitted(&service, "two").await;
    let batch = approve_all([&task], "rob");
    let tasks = service.decide_batch(&batch, &with_key(&rob, "batch")).await.expect("approved");
    let decided = ApprovalView::find_all(&tasks, batch.approval_ids());
    assert_eq!(decided.len(), 1);
    assert_eq!(stored_outcome(&fixture, "batch").await, Some(Outcome::Batch(decided)));
    let gone = service.create(draft("three"), &ann).await.expect("created");
    service.delete(&gone.task_id, &with_key(&ann, "delete")).await.expect("deleted");
    assert!(stored_outcome(&fixture, "delete").await.is_some());
    // A request that changes nothing has a stored response as well.
    let (rules, max) = (fixture.rules(), caller("max", &[ADMIN]));
    let flag =
        rules.set_feature("batch_approvals", true, &with_key(&max, "switch")).await.expect("unchanged");
    assert_eq!(flag.revision, 0);
    assert_eq!(stored_outcome(&fixture, "switch").await, Some(Outcome::Feature(flag)));
}

async fn stores_one_response_for_concurrent_requests_with_one_key(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    let mut racers = Vec::new();
    for _ in 0..8 {
        let service = fixture.other_process().await;
        racers.push(tokio::spawn(async move {
            service.create(draft("once"), &with_key(&caller("ann", &[AUTHOR]), "key")).await
        }));
    }
    let mut created = Vec::new();
    for racer in racers {
        created.extend(racer.await.expect("no panic").ok());
    }
    assert_eq!(created.len(), 1, "the others conflict with the stored response");
    let actions = fixture.audit_actions(None).await;
    assert_eq!(actions, ["task.create"]);
    let created = created.first().expect("one task");
    let by = with_key(&caller("ann", &[AUTHOR]), "key");
    assert_eq!(stored_outcome(&fixture, "key").await, task_outcome(created, &by));
}
