//! Requests with conditions: on a revision that was seen, and answers that are kept with what they tell of.

use ade_app::Error;
use ade_app::tasks::{Batch, TaskAction};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::task::State;
use ade_store::database::StoredTask;
use serde_json::{Value, json};

use crate::office::{Office, caller, draft, having_seen, keeping, on_both, request_to, submitted, yes};

on_both!(
    whoever_saw_another_revision_is_told_which_there_is,
    of_two_who_saw_the_same_revision_one_changes_it,
    what_was_answered_is_kept_with_what_it_tells_of,
    an_answer_is_kept_once_however_often_it_is_asked_for_at_the_same_time,
);

async fn kept(office: &Office, key: &str) -> Option<Value> {
    office.record.answer("test", key).await.expect("read").map(|answer| answer.body)
}

async fn whoever_saw_another_revision_is_told_which_there_is(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    let (desk, ann, rob) = (office.desk(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let task = desk.create(draft("one"), &ann).await.expect("made");
    let id = &task.task_id;
    let same = |task: &StoredTask| Ok((task.config.clone(), task.metadata.clone(), task.preview.clone()));
    let late = having_seen(&ann, 7);
    let now = 1;
    assert_eq!(desk.submit(id, &late).await, Err(Error::Stale { now }));
    assert_eq!(desk.modify(id, same, &late).await, Err(Error::Stale { now }));
    assert_eq!(desk.delete(id, &late).await, Err(Error::Stale { now }));
    assert_eq!(desk.comment(id, "hm", &late).await, Err(Error::Stale { now }));
    let cancel = TaskAction::Cancel { reason: None };
    assert_eq!(desk.act(id, &cancel, &late).await, Err(Error::Stale { now }));
    let task = desk.submit(id, &having_seen(&ann, 1)).await.expect("the one that there is");
    // A request has a revision of its own.
    let request = request_to(&task, "rob");
    assert_eq!(desk.respond(request, &yes(), &having_seen(&rob, 7)).await, Err(Error::Stale { now: 1 }));
    let to = UserId::new("sue");
    assert_eq!(desk.delegate(request, &to, &having_seen(&rob, 7)).await, Err(Error::Stale { now: 1 }));
    let task = desk.respond(request, &yes(), &having_seen(&rob, 1)).await.expect("the one that there is");
    assert_eq!(task.state, State::Approved);
}

async fn of_two_who_saw_the_same_revision_one_changes_it(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (desk, other) = (office.desk(), office.another_desk().await);
    let ann = having_seen(&caller("ann", &[AUTHOR]), 1);
    for round in 0..10 {
        let task = desk.create(draft(&round.to_string()), &caller("ann", &[AUTHOR])).await.expect("made");
        let id = &task.task_id;
        let change =
            |task: &StoredTask| Ok((task.config.clone(), task.metadata.clone(), task.preview.clone()));
        let (one, two) = tokio::join!(desk.modify(id, change, &ann), other.modify(id, change, &ann));
        let [done, stale] = if one.is_ok() { [one, two] } else { [two, one] };
        assert_eq!(done.expect("one of them").revision, 2);
        assert_eq!(stale, Err(Error::Stale { now: 2 }));
        let after = having_seen(&ann, 2);
        let (one, two) = tokio::join!(desk.delete(id, &after), other.submit(id, &after));
        match (one, two) {
            (Ok(()), Err(Error::NotFound("task"))) => {}
            (Err(Error::Stale { now }), Ok(task)) => assert_eq!(task.revision, now),
            other => unreachable!("{other:?}"),
        }
    }
}

async fn what_was_answered_is_kept_with_what_it_tells_of(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    let (desk, ann, rob) = (office.desk(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let task = desk.create(draft("one"), &keeping(&ann, "create")).await.expect("made");
    let id = task.task_id.as_str();
    assert_eq!(kept(&office, "create").await, Some(json!({ "task": id, "revision": 1 })));
    let refused =
        desk.act(id, &TaskAction::ConfirmOverride, &keeping(&caller("max", &[ADMIN]), "refused")).await;
    assert!(refused.is_err());
    assert_eq!(kept(&office, "refused").await, None, "what was refused is not kept");
    let task = desk.submit(id, &keeping(&ann, "submit")).await.expect("submitted");
    let revision = task.revision;
    assert_eq!(kept(&office, "submit").await, Some(json!({ "task": id, "revision": revision })));
    let comment = desk.comment(id, "hm", &keeping(&rob, "comment")).await.expect("said");
    assert_eq!(kept(&office, "comment").await, Some(json!({ "comment": comment.comment_id })));
    let request = request_to(&task, "rob").to_owned();
    desk.respond(&request, &yes(), &keeping(&rob, "approve")).await.expect("approved");
    let expected = json!({ "approval": request, "state": "APPROVED" });
    assert_eq!(kept(&office, "approve").await, Some(expected));
    let cancel = TaskAction::Cancel { reason: None };
    let task = desk.act(id, &cancel, &keeping(&ann, "cancel")).await.expect("cancelled");
    let revision = task.revision;
    assert_eq!(kept(&office, "cancel").await, Some(json!({ "task": id, "revision": revision })));
    let task = submitted(&desk, "two").await;
    let approval_ids = vec![request_to(&task, "rob").to_owned()];
    let batch = Batch { approval_ids, response: yes(), skip_validation: false, apply_immediately: false };
    desk.respond_to_all(&batch, &keeping(&rob, "batch")).await.expect("approved");
    assert_eq!(kept(&office, "batch").await, Some(json!({ "answered": 1, "tasks": 1 })));
    let gone = desk.create(draft("three"), &ann).await.expect("made");
    desk.delete(&gone.task_id, &keeping(&ann, "delete")).await.expect("deleted");
    assert!(kept(&office, "delete").await.is_some());
    // Where nothing changes, the answer is kept as well.
    let (rules, max) = (office.rules(), caller("max", &[ADMIN]));
    rules.switch("batch_approvals", true, &keeping(&max, "switch")).await.expect("as it was");
    assert_eq!(kept(&office, "switch").await, Some(json!({ "thing": "batch_approvals", "revision": 0 })));
}

async fn an_answer_is_kept_once_however_often_it_is_asked_for_at_the_same_time(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    let mut racers = Vec::new();
    for _ in 0..8 {
        let desk = office.another_desk().await;
        racers.push(tokio::spawn(async move {
            desk.create(draft("once"), &keeping(&caller("ann", &[AUTHOR]), "key")).await
        }));
    }
    let mut made = Vec::new();
    for racer in racers {
        made.extend(racer.await.expect("no panic").ok());
    }
    assert_eq!(made.len(), 1, "the others come too late, and look what was answered");
    let told = office.told(None).await;
    assert_eq!(told, ["task.create"]);
    let id = made.first().map(|task| task.task_id.clone());
    assert_eq!(kept(&office, "key").await, Some(json!({ "task": id, "revision": 1 })));
}
