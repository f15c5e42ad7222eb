//! Archiving and restoring: nothing is lost or duplicated, nothing older replaces a newer version, and what users see and count is the
//! same whether approvals are archived or not.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::quorum::{Requirement, RequirementStatus};
use ade_domain::people::AuthorReason;
use ade_domain::task::{AdminRequest, Digest, Execution, ExecutionResult, Phase, TaskState};
use ade_store::Database;
use ade_store::database::{
    Archive, ArchiveKind, ArchivedTask, BlobStoreLocation, Comment, Commit, DatabaseError, SkippedTasks,
    StoredTask, TaskFilter, TaskRemoval, Write,
};

use crate::database::fixture::{TestDatabase, at, id, on_both_databases, person, write};
use crate::database::tasks::{approval, put, task};

on_both_databases!(
    archiving_approvals_changes_nothing_visible,
    restores_tasks_and_approvals_completely,
    restored_tasks_are_kept_for_a_while,
    older_archive_does_not_restore_a_newer_task,
    keeps_tasks_that_changed_after_the_copy,
    keeps_tasks_with_work_or_a_running_attempt,
    pages_through_archivable_tasks,
    concurrent_archivers_remove_each_task_once,
    orphaned_blob_is_removed_and_not_used_again,
    first_blob_store_wins,
);

use ArchiveKind::{Approvals, Tasks};

const DAY: u64 = 86_400;

/// A task that Rob approved and that was completed at `second`.
fn completed(second: u64) -> StoredTask {
    let mut task = task("ann", "schema", "orders", "urgent");
    let inner = &mut task.task;
    inner.state = TaskState::Completed;
    inner.entered_at.insert(TaskState::Completed, at(second));
    inner.author_set.add(person("ann"), AuthorReason::Author);
    let reviewers = ["rob", "sue"].map(|user| (person(user), BTreeSet::new()));
    inner.requirements = vec![Requirement {
        policy: "default".to_owned(),
        min_approvers: 1,
        required_roles: BTreeSet::new(),
        reject_threshold: 1,
        escalation_role: None,
        reviewers: reviewers.into(),
        admitted: BTreeMap::new(),
        overridden: None,
    }];
    let (mut rob, mut sue) = (approval(inner, "rob", 500), approval(inner, "sue", 900));
    rob.status = ApprovalStatus::Approved;
    (rob.reviewed_by, rob.responded_at) = (Some(person("rob")), Some(at(2)));
    (sue.status, sue.escalation_level) = (ApprovalStatus::Closed, 1);
    inner.approvals = vec![rob, sue];
    task
}

fn add_failed_execution(task: &mut StoredTask) {
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
        error_details: None,
        error: None,
        code: None,
        effects_attempt: None,
        rollback_data_key: Some(format!("rollback_data/{}/1", task.task_id)),
        rolled_back: None,
        retry_count: 0,
        stop: None,
        rollback: None,
    });
}

fn archive(kind: ArchiveKind, second: u64) -> Archive {
    let archive_id = id();
    Archive {
        key: format!("archive/{}/{archive_id}.ndjson.gz", kind.as_str()),
        archive_id,
        kind,
        items: 0,
        bytes: 1,
        digest: Digest::of_bytes(b"blob"),
        mac: String::new(),
        created_at: at(second),
        from: at(0),
        to: at(0),
        restored_at: None,
    }
}

async fn archivable(database: &Database, kind: ArchiveKind, second: u64) -> Vec<String> {
    let page = database.archivable_tasks(kind, at(second), at(second), None, 100).await.expect("succeeds");
    page.into_iter().map(|(_, id)| id).collect()
}

async fn copy(database: &Database, kind: ArchiveKind, task_id: &str) -> ArchivedTask {
    database.load_for_archive(kind, task_id).await.expect("read").expect("exists")
}

/// Archives everything that is old enough. Returns the archive and its lines, parsed again.
async fn archive_all(database: &Database, kind: ArchiveKind, second: u64) -> (Archive, Vec<ArchivedTask>) {
    let archive = archive(kind, second);
    database.announce_blob(&archive.key, archive.created_at).await.expect("announced");
    let (mut items, mut removals) = (Vec::new(), Vec::new());
    for task_id in archivable(database, kind, second).await {
        let item = copy(database, kind, &task_id).await;
        removals.push(TaskRemoval::new(kind, &archive.archive_id, &item));
        let line = serde_json::to_string(&item).expect("serialised");
        items.push(serde_json::from_str(&line).expect("valid JSON"));
    }
    let removed =
        database.remove_archived(archive.clone(), removals, Commit::default()).await.expect("removed");
    assert_eq!(removed, items.len() as u64);
    (archive, items)
}

async fn visible_to(database: &Database, user: &str) -> Vec<StoredTask> {
    let filter = TaskFilter { visible_to: Some(person(user)), ..TaskFilter::default() };
    database.tasks(&filter, None, 10).await.expect("listed")
}

async fn load(database: &Database, task: &StoredTask) -> StoredTask {
    database.task(&task.task_id).await.expect("read").expect("exists")
}

/// All counts, which must not depend on what is archived.
async fn counts(
    database: &Database,
) -> (BTreeMap<TaskState, u64>, BTreeMap<TaskState, u64>, BTreeMap<ApprovalStatus, u64>) {
    let total = database.counts().await.expect("counted");
    let ann = database.user_stats(&person("ann"), at(0)).await.expect("counted");
    let rob = database.user_stats(&person("rob"), at(0)).await.expect("counted");
    (total.tasks, ann.tasks, rob.approvals)
}

async fn archiving_approvals_changes_nothing_visible(fixture: TestDatabase) {
    let database = &fixture.database;
    let task = completed(0);
    write(database, vec![put(&task, None)]).await.expect("inserted");
    let (before, mut late) = (counts(database).await, load(database, &task).await);
    let (archive, items) = archive_all(database, Approvals, DAY).await;
    assert!(archivable(database, Approvals, DAY).await.is_empty(), "they are archived");
    let seen = load(&fixture.reopen().await, &task).await;
    assert_eq!(seen.approvals, []);
    assert_eq!(seen.progress(), task.progress());
    assert_eq!(seen.progress()[0].status, RequirementStatus::Satisfied);
    assert!(seen.was_reviewer(&person("rob")) && !seen.was_reviewer(&person("eve")));
    let approvals = (seen.approvals_requested(), seen.approvals_decided(), seen.approvals_escalated());
    assert_eq!(approvals, (2, 1, 1));
    assert_eq!(
        seen.archived_approvals.as_ref().map(|summary| &summary.archive_id),
        Some(&archive.archive_id)
    );
    for user in ["rob", "sue", "ann"] {
        assert_eq!(visible_to(database, user).await.first(), Some(&seen), "{user}");
    }
    assert_eq!(counts(database).await, before);
    // A commit of a version that was loaded before does not change the summary.
    late.revision = 2;
    write(database, vec![put(&late, Some(1))]).await.expect("same revision");
    assert_eq!(load(database, &task).await.archived_approvals, seen.archived_approvals);
    assert_eq!(visible_to(database, "sue").await.len(), 1);
    let restored = database.restore_archive(archive.clone(), items.clone(), at(40 * DAY)).await;
    assert_eq!(restored, Ok(1));
    let restored = load(database, &task).await;
    assert_eq!((&restored.approvals, &restored.archived_approvals), (&task.approvals, &None));
    assert_eq!(counts(database).await, before);
    assert_eq!(database.restore_archive(archive, items, at(40 * DAY)).await, Ok(0), "nothing is missing");
    assert_eq!(counts(database).await, before);
}

async fn restores_tasks_and_approvals_completely(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = completed(0);
    add_failed_execution(&mut task);
    let task_id = task.task_id.clone();
    let comment = Comment {
        comment_id: id(),
        task_id: task_id.clone(),
        author_id: person("rob"),
        agent_id: Some("bot".to_owned()),
        text: "why?".to_owned(),
        created_at: at(1),
    };
    write(database, vec![put(&task, None), Write::Comment(comment.clone())]).await.expect("inserted");
    let before = counts(database).await;
    let (approvals, approval_lines) = archive_all(database, Approvals, 30 * DAY).await;
    let (tasks, task_lines) = archive_all(database, Tasks, 90 * DAY).await;
    assert_eq!(database.task(&task_id).await, Ok(None));
    assert_eq!(
        (counts(database).await, database.counts().await.expect("counted").archived),
        (before.clone(), 1)
    );
    let kinds: Vec<(ArchiveKind, u64)> = database
        .archives(None, 9)
        .await
        .expect("listed")
        .iter()
        .map(|archive| (archive.kind, archive.items))
        .collect();
    assert_eq!(kinds, [(Tasks, 1), (Approvals, 1)], "the newest first");
    // Approvals cannot be restored before their task, and this is reported.
    assert_eq!(database.restore_archive(approvals.clone(), approval_lines.clone(), at(0)).await, Ok(0));
    let ids = [task_id.clone()];
    assert_eq!(
        database.skipped_on_restore(&approvals, &ids).await,
        Ok(SkippedTasks { outdated: 0, still_archived: 1 })
    );
    assert_eq!(database.restore_archive(tasks.clone(), task_lines, at(0)).await, Ok(1));
    assert_eq!(database.skipped_on_restore(&tasks, &ids).await, Ok(SkippedTasks::default()));
    let restored = load(database, &task).await;
    assert_eq!(restored.progress(), task.progress());
    for user in ["rob", "sue", "ann"] {
        assert_eq!(visible_to(database, user).await.len(), 1, "{user} sees it as before");
    }
    assert_eq!(database.comments(&task_id).await, Ok(vec![comment]));
    assert_eq!(counts(database).await, before);
    assert_eq!(database.restore_archive(approvals.clone(), approval_lines, at(0)).await, Ok(1));
    assert_eq!(database.skipped_on_restore(&approvals, &ids).await, Ok(SkippedTasks::default()));
    let mut history = task.clone();
    history.restored = true;
    assert_eq!(load(database, &task).await, history);
    assert_eq!(
        (counts(database).await, database.counts().await.expect("counted").archived),
        (before.clone(), 0)
    );
    // Again, now in one archive.
    let (tasks, lines) = archive_all(database, Tasks, 90 * DAY).await;
    assert_eq!(counts(database).await, before);
    assert_eq!(database.restore_archive(tasks, lines, at(0)).await, Ok(1));
    assert_eq!((load(database, &task).await, counts(database).await), (history, before));
}

async fn restored_tasks_are_kept_for_a_while(fixture: TestDatabase) {
    let database = &fixture.database;
    let task = completed(0);
    write(database, vec![put(&task, None)]).await.expect("inserted");
    for kind in [Approvals, Tasks] {
        let (archive, items) = archive_all(database, kind, 100 * DAY).await;
        assert_eq!(database.restore_archive(archive.clone(), items.clone(), at(130 * DAY)).await, Ok(1));
        for second in [100 * DAY, 130 * DAY - 1] {
            assert!(
                archivable(database, Approvals, second).await.is_empty()
                    && archivable(database, Tasks, second).await.is_empty()
            );
        }
        assert_eq!(archivable(database, kind, 131 * DAY).await.len(), 1);
        // Restoring again extends the time.
        assert_eq!(database.restore_archive(archive, items, at(140 * DAY)).await, Ok(0));
        assert!(archivable(database, kind, 131 * DAY).await.is_empty());
        fixture.sql("UPDATE tasks SET keep_until = NULL").await;
    }
}

async fn older_archive_does_not_restore_a_newer_task(fixture: TestDatabase) {
    let database = &fixture.database;
    let (mut task, other) = (completed(0), completed(0));
    write(database, vec![put(&task, None), put(&other, None)]).await.expect("inserted");
    let (first, old) = archive_all(database, Tasks, 90 * DAY).await;
    assert_eq!(database.restore_archive(first.clone(), old.clone(), at(0)).await, Ok(2));
    task.revision = 5;
    write(database, vec![put(&task, Some(1))]).await.expect("changed");
    let (second, new) = archive_all(database, Tasks, 90 * DAY).await;
    let ids = [task.task_id.clone(), other.task_id.clone()];
    assert_eq!(database.restore_archive(first.clone(), old.clone(), at(0)).await, Ok(0));
    assert_eq!(
        database.skipped_on_restore(&first, &ids).await,
        Ok(SkippedTasks { outdated: 2, still_archived: 0 })
    );
    assert_eq!(database.task(&task.task_id).await, Ok(None));
    assert_eq!(database.restore_archive(second, new, at(0)).await, Ok(2));
    let mut restored = task.clone();
    restored.restored = true;
    assert_eq!(load(database, &task).await, restored);
    assert_eq!(database.restore_archive(first, old, at(0)).await, Ok(0), "also while the task exists");
    assert_eq!(load(database, &task).await.revision, 5);
}

async fn keeps_tasks_that_changed_after_the_copy(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = completed(0);
    write(database, vec![put(&task, None)]).await.expect("inserted");
    let task_id = task.task_id.clone();
    let tasks = archive(Tasks, 0);
    database.announce_blob(&tasks.key, at(0)).await.expect("announced");
    let item = copy(database, Tasks, &task_id).await;
    let removal = || vec![TaskRemoval::new(Tasks, &tasks.archive_id, &item)];
    // Its approvals are archived meanwhile: removing the task would archive them twice.
    let (approvals, lines) = archive_all(database, Approvals, DAY).await;
    assert_eq!(database.remove_archived(tasks.clone(), removal(), Commit::default()).await, Ok(0));
    assert_eq!(database.restore_archive(approvals, lines, at(0)).await, Ok(1));
    task.revision = 2;
    write(database, vec![put(&task, Some(1))]).await.expect("changed");
    assert_eq!(database.remove_archived(tasks.clone(), removal(), Commit::default()).await, Ok(0));
    assert_eq!(load(database, &task).await, task);
    let kinds: Vec<ArchiveKind> =
        database.archives(None, 9).await.expect("listed").iter().map(|archive| archive.kind).collect();
    assert_eq!(kinds, [Approvals], "an archive without removed tasks is not stored");
    assert_eq!(database.counts().await.expect("counted").archived, 0);
}

async fn keeps_tasks_with_work_or_a_running_attempt(fixture: TestDatabase) {
    let database = &fixture.database;
    let (mut running, mut rollback) = (completed(0), completed(0));
    for task in [&mut running, &mut rollback] {
        add_failed_execution(task);
        task.state = TaskState::Failed;
        task.entered_at.insert(TaskState::Failed, at(0));
    }
    let request = AdminRequest { by: person("eve"), reason: "wrong target".to_owned(), at: at(3) };
    rollback.execution.as_mut().expect("has an execution").rollback = Some(request);
    let execution = running.execution.as_mut().expect("has an execution");
    (execution.phase, execution.lease_until) = (Phase::RollingBack, at(200 * DAY));
    write(database, vec![put(&running, None), put(&rollback, None)]).await.expect("inserted");
    let removal = |item: &ArchivedTask| vec![TaskRemoval::new(Tasks, &id(), item)];
    for task in [&running, &rollback] {
        assert!(
            archivable(database, Tasks, 100 * DAY).await.is_empty()
                && archivable(database, Approvals, 100 * DAY).await.is_empty()
        );
        // Also if that happened after the copy.
        let item = copy(database, Tasks, &task.task_id).await;
        assert_eq!(
            database.remove_archived(archive(Tasks, 0), removal(&item), Commit::default()).await,
            Ok(0)
        );
    }
}

async fn pages_through_archivable_tasks(fixture: TestDatabase) {
    let database = &fixture.database;
    let all: Vec<StoredTask> = [5, 5, 5, 1, 9].map(completed).into();
    write(database, all.iter().map(|task| put(task, None)).collect()).await.expect("inserted");
    for kind in [Tasks, Approvals] {
        let (mut found, mut last) = (Vec::new(), None);
        loop {
            let page =
                database.archivable_tasks(kind, at(9), at(9), last.as_ref(), 2).await.expect("succeeds");
            found.extend(page.iter().cloned());
            if page.len() < 2 {
                break;
            }
            last = page.into_iter().next_back();
        }
        let seconds: Vec<Moment> = found.iter().map(|(at, _)| *at).collect();
        assert_eq!(seconds, [at(1), at(5), at(5), at(5)], "the oldest first, and none that is too young");
        assert_eq!(found.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), 4);
    }
}

async fn concurrent_archivers_remove_each_task_once(fixture: TestDatabase) {
    let all: Vec<StoredTask> = (0..10).map(completed).collect();
    write(&fixture.database, all.iter().map(|task| put(task, None)).collect()).await.expect("inserted");
    let before = counts(&fixture.database).await;
    let mut archivers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let database = fixture.reopen().await;
        archivers.spawn(async move {
            let archive = archive(Tasks, 0);
            database.announce_blob(&archive.key, at(0)).await.expect("announced");
            let mut removals = Vec::new();
            for task_id in archivable(&database, Tasks, DAY).await {
                let Some(item) = database.load_for_archive(Tasks, &task_id).await.expect("read") else {
                    continue;
                };
                removals.push(TaskRemoval::new(Tasks, &archive.archive_id, &item));
            }
            database.remove_archived(archive, removals, Commit::default()).await.expect("removed")
        });
    }
    let removed: u64 = archivers.join_all().await.iter().sum();
    assert_eq!(removed, 10);
    let archives = fixture.database.archives(None, 9).await.expect("listed");
    assert_eq!(archives.iter().map(|archive| archive.items).sum::<u64>(), 10);
    assert_eq!(counts(&fixture.database).await, before);
}

async fn orphaned_blob_is_removed_and_not_used_again(fixture: TestDatabase) {
    let database = &fixture.database;
    let mut task = completed(0);
    add_failed_execution(&mut task);
    write(database, vec![put(&task, None)]).await.expect("inserted");
    let late = archive(Tasks, 0);
    database.announce_blob(&late.key, at(0)).await.expect("announced");
    assert_eq!(database.take_orphaned_blobs(at(0), 9).await, Ok(vec![late.key.clone()]));
    // A process that was suspended for so long must not remove the task: the blob is about to be removed.
    let item = copy(database, Tasks, &task.task_id).await;
    let refused = database
        .remove_archived(
            late.clone(),
            vec![TaskRemoval::new(Tasks, &late.archive_id, &item)],
            Commit::default(),
        )
        .await;
    assert!(matches!(refused, Err(DatabaseError::Conflict { .. })), "{refused:?}");
    assert_eq!(load(database, &task).await, task);
    database.confirm_blobs_removed(vec![late.key.clone()]).await.expect("removed");
    let (_, _) = archive_all(database, Tasks, 100 * DAY).await;
    assert_eq!(
        database.take_orphaned_blobs(at(99 * DAY), 9).await,
        Ok(Vec::new()),
        "only after the grace period"
    );
    let prefix = |kind: &str| format!("{kind}/{}", task.task_id);
    let deleting = database.take_orphaned_blobs(at(100 * DAY), 9).await.expect("succeeds");
    assert_eq!(deleting, [prefix("output"), prefix("rollback_data")], "the blob of the archive is in use");
    database.confirm_blobs_removed(deleting).await.expect("removed");
    assert_eq!(database.take_orphaned_blobs(at(999 * DAY), 9).await, Ok(Vec::new()));
}

async fn first_blob_store_wins(fixture: TestDatabase) {
    let store = |name: &str| BlobStoreLocation { store_id: name.to_owned(), folder: format!("/srv/{name}") };
    let mut openers = tokio::task::JoinSet::new();
    for number in 0..4 {
        let database = fixture.reopen().await;
        openers.spawn(async move {
            database.register_blob_store(store(&format!("s{number}"))).await.expect("registered")
        });
    }
    let stores = openers.join_all().await;
    assert!(stores.iter().all(|store| *store == stores[0]), "{stores:?}");
    assert_eq!(fixture.database.register_blob_store(store("late")).await, Ok(stores[0].clone()));
}
