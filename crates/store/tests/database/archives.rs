//! What leaves the record and comes back: nothing is lost, nothing is there twice, nothing older replaces what is newer, and what
//! people see and count is the same whether requests are here or in an archive.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::quorum::{Requirement, Status};
use ade_domain::task::{Asked, Execution, ExecutionResult, Phase, State};
use ade_store::Database;
use ade_store::database::{
    Archive, ArchiveKind, Archived, BlobStore, Comment, DatabaseError, Leaving, LeftOut, StoredTask,
    TaskFilter, Write,
};

use crate::opened::{Opened, at, id, on_both, person, write};
use crate::reviews::{approval, put, task};

on_both!(
    what_people_see_is_the_same_when_requests_are_archived,
    a_task_comes_back_with_everything_from_both_archives,
    what_was_brought_back_stays_for_a_while,
    an_older_archive_never_revives_what_was_archived_again,
    what_changed_since_it_was_copied_stays,
    what_somebody_is_at_or_is_to_undo_stays,
    lists_go_on_behind_the_last_page,
    of_many_who_archive_the_same_each_task_leaves_once,
    a_blob_whose_archive_never_came_is_removed_and_not_used_any_more,
    the_first_folder_is_the_folder_of_blobs,
);

use ArchiveKind::{Approvals, Tasks};

const DAY: u64 = 86_400;

/// A task that Rob approved and that was done, so many seconds after the beginning.
fn done(second: u64) -> StoredTask {
    let mut task = task("ann", "schema", "orders", "urgent");
    let review = &mut task.task;
    review.state = State::Completed;
    review.since.insert(State::Completed, at(second));
    review.author_set.add(person("ann"), "is its author");
    let reviewers = ["rob", "sue"].map(|who| (person(who), BTreeSet::new()));
    review.requirements = vec![Requirement {
        policy: "default".to_owned(),
        min_approvers: 1,
        required_roles: BTreeSet::new(),
        reject_threshold: 1,
        escalation_role: None,
        reviewers: reviewers.into(),
        overridden: None,
    }];
    let (mut rob, mut sue) = (approval(review, "rob", 500), approval(review, "sue", 900));
    rob.status = ApprovalStatus::Approved;
    (rob.reviewed_by, rob.responded_at) = (Some(person("rob")), Some(at(2)));
    (sue.status, sue.escalation_level) = (ApprovalStatus::Closed, 1);
    review.approvals = vec![rob, sue];
    task
}

fn carried_out(task: &mut StoredTask) {
    task.execution = Some(Execution {
        attempt: 1,
        worker: "w".to_owned(),
        phase: Phase::Ended,
        lease_until: at(1),
        started_at: at(1),
        completed_at: Some(at(2)),
        result: Some(ExecutionResult::Failure),
        reported: None,
        grants: Vec::new(),
        output: None,
        output_key: None,
        error: None,
        code: None,
        effects_of: None,
        stash_key: Some(format!("stash/{}/1", task.task_id)),
        rolled_back: None,
        retry_count: 0,
        stop: None,
        undo: None,
    });
}

fn archive(kind: ArchiveKind, second: u64) -> Archive {
    let archive_id = id();
    Archive {
        key: format!("archive/{}/{archive_id}.ndjson.gz", kind.word()),
        archive_id,
        kind,
        items: 0,
        bytes: 1,
        created_at: at(second),
        from: at(0),
        to: at(0),
        restored_at: None,
    }
}

async fn ids(record: &Database, kind: ArchiveKind, second: u64) -> Vec<String> {
    let some = record.to_be_archived(kind, at(second), at(second), None, 100).await.expect("asked");
    some.into_iter().map(|(_, id)| id).collect()
}

async fn copied(record: &Database, kind: ArchiveKind, task_id: &str) -> Archived {
    record.archived(kind, task_id).await.expect("read").expect("there")
}

/// Everything that is old enough leaves for one archive: it, and its lines, as they are read back.
async fn archived(record: &Database, kind: ArchiveKind, second: u64) -> (Archive, Vec<Archived>) {
    let archive = archive(kind, second);
    record.announce_blob(&archive.key, archive.created_at).await.expect("announced");
    let (mut items, mut leaving) = (Vec::new(), Vec::new());
    for task_id in ids(record, kind, second).await {
        let item = copied(record, kind, &task_id).await;
        leaving.push(Leaving::of(kind, &archive.archive_id, &item));
        let line = serde_json::to_string(&item).expect("JSON");
        items.push(serde_json::from_str(&line).expect("as it was written"));
    }
    let many = record.take_out(archive.clone(), leaving).await.expect("taken out");
    assert_eq!(many, items.len() as u64);
    (archive, items)
}

async fn listed(record: &Database, who: &str) -> Vec<StoredTask> {
    let filter = TaskFilter { visible_to: Some(person(who)), ..TaskFilter::default() };
    record.tasks(&filter, None, 10).await.expect("listed")
}

async fn there(record: &Database, task: &StoredTask) -> StoredTask {
    record.task(&task.task_id).await.expect("read").expect("there")
}

/// What is counted, which stays the same wherever it is.
async fn numbers(
    record: &Database,
) -> (BTreeMap<State, u64>, BTreeMap<State, u64>, BTreeMap<ApprovalStatus, u64>) {
    let counts = record.counts().await.expect("counted");
    let ann = record.user_stats(&person("ann")).await.expect("counted");
    let rob = record.user_stats(&person("rob")).await.expect("counted");
    (counts.tasks, ann.tasks, rob.requests)
}

async fn what_people_see_is_the_same_when_requests_are_archived(opened: Opened) {
    let record = &opened.record;
    let task = done(0);
    write(record, vec![put(&task, None)]).await.expect("new");
    let (before, mut late) = (numbers(record).await, there(record, &task).await);
    let (archive, items) = archived(record, Approvals, DAY).await;
    assert!(ids(record, Approvals, DAY).await.is_empty(), "they have left");
    let seen = there(&opened.again().await, &task).await;
    assert_eq!(seen.approvals, []);
    assert_eq!(seen.progress(), task.progress());
    assert_eq!(seen.progress()[0].status, Status::Satisfied);
    assert!(seen.was_asked(&person("rob")) && !seen.was_asked(&person("eve")));
    let made = (seen.requests_made(), seen.requests_answered(), seen.requests_escalated());
    assert_eq!(made, (2, 1, 1));
    assert_eq!(seen.remembered.as_ref().map(|one| &one.archive_id), Some(&archive.archive_id));
    for who in ["rob", "sue", "ann"] {
        assert_eq!(listed(record, who).await.first(), Some(&seen), "{who}");
    }
    assert_eq!(numbers(record).await, before);
    // Whoever had read it before changes it now: what is remembered stays.
    late.revision = 2;
    write(record, vec![put(&late, Some(1))]).await.expect("guarded by its revision");
    assert_eq!(there(record, &task).await.remembered, seen.remembered);
    assert_eq!(listed(record, "sue").await.len(), 1);
    let many = record.bring_back(archive.clone(), items.clone(), at(40 * DAY)).await;
    assert_eq!(many, Ok(1));
    let back = there(record, &task).await;
    assert_eq!((&back.approvals, &back.remembered), (&task.approvals, &None));
    assert_eq!(numbers(record).await, before);
    assert_eq!(record.bring_back(archive, items, at(40 * DAY)).await, Ok(0), "again, it is nothing");
    assert_eq!(numbers(record).await, before);
}

async fn a_task_comes_back_with_everything_from_both_archives(opened: Opened) {
    let record = &opened.record;
    let mut task = done(0);
    carried_out(&mut task);
    let task_id = task.task_id.clone();
    let comment = Comment {
        comment_id: id(),
        task_id: task_id.clone(),
        author_id: person("rob"),
        text: "why?".to_owned(),
        created_at: at(1),
    };
    write(record, vec![put(&task, None), Write::Comment(comment.clone())]).await.expect("new");
    let before = numbers(record).await;
    let (requests, lines_of_requests) = archived(record, Approvals, 30 * DAY).await;
    let (tasks, lines_of_tasks) = archived(record, Tasks, 90 * DAY).await;
    assert_eq!(record.task(&task_id).await, Ok(None));
    assert_eq!(
        (numbers(record).await, record.counts().await.expect("counted").archived),
        (before.clone(), 1)
    );
    let kinds: Vec<(ArchiveKind, u64)> =
        record.archives(None, 9).await.expect("listed").iter().map(|one| (one.kind, one.items)).collect();
    assert_eq!(kinds, [(Tasks, 1), (Approvals, 1)], "the newest first");
    // The requests alone have nothing to come back to, and whoever tries is told.
    assert_eq!(record.bring_back(requests.clone(), lines_of_requests.clone(), at(0)).await, Ok(0));
    let ids = [task_id.clone()];
    assert_eq!(record.left_out(&requests, &ids).await, Ok(LeftOut { outdated: 0, away: 1 }));
    assert_eq!(record.bring_back(tasks.clone(), lines_of_tasks, at(0)).await, Ok(1));
    assert_eq!(record.left_out(&tasks, &ids).await, Ok(LeftOut::default()));
    let back = there(record, &task).await;
    assert_eq!(back.progress(), task.progress());
    for who in ["rob", "sue", "ann"] {
        assert_eq!(listed(record, who).await.len(), 1, "{who} sees it as before");
    }
    assert_eq!(record.comments(&task_id).await, Ok(vec![comment]));
    assert_eq!(numbers(record).await, before);
    assert_eq!(record.bring_back(requests.clone(), lines_of_requests, at(0)).await, Ok(1));
    assert_eq!(record.left_out(&requests, &ids).await, Ok(LeftOut::default()));
    assert_eq!(there(record, &task).await, task, "as it was");
    assert_eq!(
        (numbers(record).await, record.counts().await.expect("counted").archived),
        (before.clone(), 0)
    );
    // Once more, now in one archive.
    let (tasks, lines) = archived(record, Tasks, 90 * DAY).await;
    assert_eq!(numbers(record).await, before);
    assert_eq!(record.bring_back(tasks, lines, at(0)).await, Ok(1));
    assert_eq!((there(record, &task).await, numbers(record).await), (task, before));
}

async fn what_was_brought_back_stays_for_a_while(opened: Opened) {
    let record = &opened.record;
    let task = done(0);
    write(record, vec![put(&task, None)]).await.expect("new");
    for kind in [Approvals, Tasks] {
        let (archive, items) = archived(record, kind, 100 * DAY).await;
        assert_eq!(record.bring_back(archive.clone(), items.clone(), at(130 * DAY)).await, Ok(1));
        for second in [100 * DAY, 130 * DAY - 1] {
            assert!(
                ids(record, Approvals, second).await.is_empty()
                    && ids(record, Tasks, second).await.is_empty()
            );
        }
        assert_eq!(ids(record, kind, 131 * DAY).await.len(), 1);
        // Whoever wants it again has it for longer.
        assert_eq!(record.bring_back(archive, items, at(140 * DAY)).await, Ok(0));
        assert!(ids(record, kind, 131 * DAY).await.is_empty());
        let stays = "UPDATE tasks SET keep_until = NULL";
        opened.sql(stays).await;
    }
}

async fn an_older_archive_never_revives_what_was_archived_again(opened: Opened) {
    let record = &opened.record;
    let (mut task, other) = (done(0), done(0));
    write(record, vec![put(&task, None), put(&other, None)]).await.expect("new");
    let (first, old) = archived(record, Tasks, 90 * DAY).await;
    assert_eq!(record.bring_back(first.clone(), old.clone(), at(0)).await, Ok(2));
    task.revision = 5;
    write(record, vec![put(&task, Some(1))]).await.expect("changed");
    let (second, new) = archived(record, Tasks, 90 * DAY).await;
    let ids = [task.task_id.clone(), other.task_id.clone()];
    assert_eq!(record.bring_back(first.clone(), old.clone(), at(0)).await, Ok(0));
    assert_eq!(record.left_out(&first, &ids).await, Ok(LeftOut { outdated: 2, away: 0 }));
    assert_eq!(record.task(&task.task_id).await, Ok(None));
    assert_eq!(record.bring_back(second, new, at(0)).await, Ok(2));
    assert_eq!(there(record, &task).await, task);
    assert_eq!(record.bring_back(first, old, at(0)).await, Ok(0), "nor while it is there");
    assert_eq!(there(record, &task).await.revision, 5);
}

async fn what_changed_since_it_was_copied_stays(opened: Opened) {
    let record = &opened.record;
    let mut task = done(0);
    write(record, vec![put(&task, None)]).await.expect("new");
    let task_id = task.task_id.clone();
    let tasks = archive(Tasks, 0);
    record.announce_blob(&tasks.key, at(0)).await.expect("announced");
    let item = copied(record, Tasks, &task_id).await;
    let leaving = || vec![Leaving::of(Tasks, &tasks.archive_id, &item)];
    // Its requests leave: the copy has them, and they would be there twice.
    let (requests, lines) = archived(record, Approvals, DAY).await;
    assert_eq!(record.take_out(tasks.clone(), leaving()).await, Ok(0));
    assert_eq!(record.bring_back(requests, lines, at(0)).await, Ok(1));
    task.revision = 2;
    write(record, vec![put(&task, Some(1))]).await.expect("changed");
    assert_eq!(record.take_out(tasks.clone(), leaving()).await, Ok(0));
    assert_eq!(there(record, &task).await, task);
    let kinds: Vec<ArchiveKind> =
        record.archives(None, 9).await.expect("listed").iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [Approvals], "an archive that nothing left for is none");
    assert_eq!(record.counts().await.expect("counted").archived, 0);
}

async fn what_somebody_is_at_or_is_to_undo_stays(opened: Opened) {
    let record = &opened.record;
    let (mut at_it, mut wanted) = (done(0), done(0));
    for task in [&mut at_it, &mut wanted] {
        carried_out(task);
        task.state = State::Failed;
        task.since.insert(State::Failed, at(0));
    }
    let asked = Asked { by: person("eve"), reason: "enough".to_owned(), at: at(3) };
    wanted.execution.as_mut().expect("carried out").undo = Some(asked);
    let execution = at_it.execution.as_mut().expect("carried out");
    (execution.phase, execution.lease_until) = (Phase::RollingBack, at(200 * DAY));
    write(record, vec![put(&at_it, None), put(&wanted, None)]).await.expect("new");
    let leaving = |item: &Archived| vec![Leaving::of(Tasks, &id(), item)];
    for task in [&at_it, &wanted] {
        assert!(
            ids(record, Tasks, 100 * DAY).await.is_empty()
                && ids(record, Approvals, 100 * DAY).await.is_empty()
        );
        // Nor if it came to that after it was copied.
        let item = copied(record, Tasks, &task.task_id).await;
        assert_eq!(record.take_out(archive(Tasks, 0), leaving(&item)).await, Ok(0));
    }
}

async fn lists_go_on_behind_the_last_page(opened: Opened) {
    let record = &opened.record;
    let all: Vec<StoredTask> = [5, 5, 5, 1, 9].map(done).into();
    write(record, all.iter().map(|task| put(task, None)).collect()).await.expect("new");
    for kind in [Tasks, Approvals] {
        let (mut found, mut last) = (Vec::new(), None);
        loop {
            let page = record.to_be_archived(kind, at(9), at(9), last.as_ref(), 2).await.expect("asked");
            found.extend(page.iter().cloned());
            if page.len() < 2 {
                break;
            }
            last = page.into_iter().next_back();
        }
        let seconds: Vec<Moment> = found.iter().map(|(at, _)| *at).collect();
        assert_eq!(seconds, [at(1), at(5), at(5), at(5)], "the oldest first, and not what is too young");
        assert_eq!(found.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), 4);
    }
}

async fn of_many_who_archive_the_same_each_task_leaves_once(opened: Opened) {
    let all: Vec<StoredTask> = (0..10).map(done).collect();
    write(&opened.record, all.iter().map(|task| put(task, None)).collect()).await.expect("new");
    let before = numbers(&opened.record).await;
    let mut archivers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let record = opened.again().await;
        archivers.spawn(async move {
            let archive = archive(Tasks, 0);
            record.announce_blob(&archive.key, at(0)).await.expect("announced");
            let mut leaving = Vec::new();
            for task_id in ids(&record, Tasks, DAY).await {
                let Some(item) = record.archived(Tasks, &task_id).await.expect("read") else { continue };
                leaving.push(Leaving::of(Tasks, &archive.archive_id, &item));
            }
            record.take_out(archive, leaving).await.expect("taken out")
        });
    }
    let many: u64 = archivers.join_all().await.iter().sum();
    assert_eq!(many, 10);
    let archives = opened.record.archives(None, 9).await.expect("listed");
    assert_eq!(archives.iter().map(|one| one.items).sum::<u64>(), 10);
    assert_eq!(numbers(&opened.record).await, before);
}

async fn a_blob_whose_archive_never_came_is_removed_and_not_used_any_more(opened: Opened) {
    let record = &opened.record;
    let mut task = done(0);
    carried_out(&mut task);
    write(record, vec![put(&task, None)]).await.expect("new");
    let late = archive(Tasks, 0);
    record.announce_blob(&late.key, at(0)).await.expect("announced");
    assert_eq!(record.doomed_blobs(at(0), 9).await, Ok(vec![late.key.clone()]));
    // Whoever stood still for so long must not delete what is nowhere else.
    let item = copied(record, Tasks, &task.task_id).await;
    let refused = record.take_out(late.clone(), vec![Leaving::of(Tasks, &late.archive_id, &item)]).await;
    assert!(matches!(refused, Err(DatabaseError::Conflict { .. })), "{refused:?}");
    assert_eq!(there(record, &task).await, task);
    record.blobs_removed(vec![late.key.clone()]).await.expect("removed");
    let (_, _) = archived(record, Tasks, 100 * DAY).await;
    assert_eq!(record.doomed_blobs(at(99 * DAY), 9).await, Ok(Vec::new()), "not at once");
    let within = |kind: &str| format!("{kind}/{}", task.task_id);
    let deleting = record.doomed_blobs(at(100 * DAY), 9).await.expect("asked");
    assert_eq!(deleting, [within("output"), within("stash")], "the archive itself is needed");
    record.blobs_removed(deleting).await.expect("removed");
    assert_eq!(record.doomed_blobs(at(999 * DAY), 9).await, Ok(Vec::new()));
}

async fn the_first_folder_is_the_folder_of_blobs(opened: Opened) {
    let store = |name: &str| BlobStore { store_id: name.to_owned(), folder: format!("/srv/{name}") };
    let mut openers = tokio::task::JoinSet::new();
    for number in 0..4 {
        let record = opened.again().await;
        openers.spawn(async move { record.blob_store(store(&format!("s{number}"))).await.expect("named") });
    }
    let all = openers.join_all().await;
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
    assert_eq!(opened.record.blob_store(store("late")).await, Ok(all[0].clone()));
}
