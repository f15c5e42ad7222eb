//! Archives with several processes on one database and one blob folder: old tasks are archived once and restored unchanged, and a
//! crash at any point loses nothing, duplicates nothing, and leaves nothing behind for ever.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ade_app::jobs::ArchiveService;
use ade_app::{Caller, Context, Error, ObjectKind};
use ade_domain::approval::quorum::RequirementStatus;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{Execution, ExecutionResult, Phase, Refusal, TaskState};
use ade_domain::{Clock, Moment};
use ade_store::database::{ArchiveKind, Commit, SkippedTasks, StoredTask, TaskFilter, TaskRemoval, Write};
use ade_store::{Blobs, DatabaseError};
use ade_testkit::folder_snapshot::snapshot;
use tempfile::TempDir;

use crate::fixture::{Fixture, approval_of, caller, on_both_databases, reject, submitted};

on_both_databases!(
    reviewers_see_tasks_until_the_tasks_are_archived,
    restored_tasks_are_archived_again_after_a_month,
    concurrent_processes_archive_and_restore_each_task_once,
    crash_while_archiving_loses_nothing_and_leaves_nothing,
    archives_output_and_removes_rollback_data,
    archives_nothing_if_the_blob_folder_is_missing,
    unarchivable_task_does_not_block_others,
    splits_large_rounds_into_several_archives,
);

const DAY: Duration = Duration::from_secs(86_400);
/// Seconds since the epoch.
const LONG_AGO: u64 = 1_577_880_000;

/// A fixture with blobs.
struct ArchiveFixture {
    base: Fixture,
    folder: TempDir,
}

impl ArchiveFixture {
    async fn of(base: Fixture) -> Self {
        // The clock of the test is far in the past, so that files that are written now never look old.
        base.clock.set(Moment::from_micros(LONG_AGO * 1_000_000).timestamp());
        base.add_user("ann", &[AUTHOR]).await;
        base.add_user("rob", &[REVIEWER]).await;
        Self { base, folder: tempfile::tempdir().expect("temporary folder") }
    }

    fn now(&self) -> Moment {
        Clock::now(&self.base.clock)
    }

    fn blobs(&self) -> Blobs {
        Blobs::open_folder(self.folder.path()).expect("opens")
    }

    /// The archive service of another process.
    async fn archives(&self) -> ArchiveService {
        ArchiveService { context: Context { blobs: self.blobs(), ..self.base.other_context().await } }
    }

    /// A task that rob rejected.
    async fn rejected(&self) -> StoredTask {
        let service = self.base.service();
        let task = submitted(&service, "one").await;
        service.decide(approval_of(&task, "rob"), &reject(), &rob()).await.expect("rejected")
    }

    /// A task that was executed, failed, and has a long output.
    async fn failed(&self) -> StoredTask {
        let task_id = self.rejected().await.task.task_id;
        let mut task = self.base.task(&task_id).await;
        let (expected, at) = (Some(task.revision), self.now());
        task.revision += 1;
        task.state = TaskState::Failed;
        task.entered_at.insert(TaskState::Failed, at);
        task.execution = Some(Execution {
            attempt: 2,
            worker: "w".to_owned(),
            phase: Phase::Ended,
            lease_until: at,
            started_at: at,
            completed_at: Some(at),
            result: Some(ExecutionResult::Failure),
            reported: None,
            grants: Vec::new(),
            output: Some("a".repeat(10)),
            output_key: Some(format!("output/{task_id}/2")),
            error_details: None,
            error: None,
            code: None,
            effects_attempt: None,
            rollback_data_key: Some(format!("rollback_data/{task_id}/2")),
            rolled_back: None,
            retry_count: 0,
            stop: None,
            rollback: None,
        });
        for (key, bytes) in [("output", 2), ("output", 1), ("rollback_data", 1), ("rollback_data", 2)] {
            let key = format!("{key}/{task_id}/{bytes}");
            self.blobs().put(&key, "a".repeat(100_000).as_bytes()).expect("stored");
        }
        let write = Write::Task { task: Box::new(task.clone()), expected, at };
        self.base.database.commit(Commit { writes: vec![write], ..Commit::default() }).await.expect("failed");
        task
    }

    async fn exists(&self, task: &StoredTask) -> bool {
        self.base.database.task(&task.task_id).await.expect("read").is_some()
    }

    fn files(&self) -> BTreeSet<String> {
        let files = snapshot(self.folder.path()).into_iter().filter(|(_, (_, content))| content.is_some());
        files.map(|(name, _)| name).collect()
    }
}

fn rob() -> Caller {
    caller("rob", &[REVIEWER])
}

fn admin() -> Caller {
    caller("eve", &[ADMIN])
}

async fn list(archives: &ArchiveService) -> Vec<(ArchiveKind, u64, String)> {
    let all = archives.list(None, 100, &admin()).await.expect("listed");
    all.into_iter().map(|archive| (archive.kind, archive.items, archive.archive_id)).collect()
}

async fn reviewers_see_tasks_until_the_tasks_are_archived(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (task, archives) = (fixture.rejected().await, fixture.archives().await);
    let (task_id, service) = (task.task_id.as_str(), fixture.base.service());
    fixture.base.clock.advance(29 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    fixture.base.clock.advance(2 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert_eq!(archives.archive_old().await, Ok(0), "once");
    let seen = service.task(task_id, &rob()).await.expect("visible to the reviewer");
    assert_eq!(seen.approvals, []);
    assert_eq!(seen.progress(), task.progress());
    assert_eq!(seen.progress()[0].status, RequirementStatus::Unsatisfied, "rob rejected it");
    let listed = service.tasks(TaskFilter::default(), None, 10, &rob()).await.expect("listed");
    assert_eq!(listed, [seen]);
    let other = service.task(task_id, &caller("sue", &[REVIEWER])).await;
    assert_eq!(other.map(|_| ()), Err(Error::NotFound(ObjectKind::Task)));
    // Resubmitting keeps what is remembered of the archived approvals.
    service.resubmit(task_id, &caller("ann", &[AUTHOR])).await.expect("resubmitted");
    assert!(service.task(task_id, &rob()).await.is_ok());
    fixture.base.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert!(!fixture.exists(&task).await);
    // Approvals can only be restored after their task.
    let all = list(&archives).await;
    let [(ArchiveKind::Tasks, 1, tasks), (ArchiveKind::Approvals, 1, requests)] = all.as_slice() else {
        unreachable!("{all:?}")
    };
    let early = archives.restore(requests, &admin()).await.expect("requested");
    assert_eq!((early.items, early.left_out), (0, SkippedTasks { outdated: 0, still_archived: 1 }));
    assert_eq!(archives.restore(tasks, &admin()).await.expect("exists").items, 1);
    assert!(service.task(task_id, &rob()).await.is_ok(), "visible to the reviewer");
    let back = archives.restore(requests, &admin()).await.expect("exists");
    assert_eq!((back.items, back.left_out), (1, SkippedTasks::default()));
    let seen = service.task(task_id, &rob()).await.expect("exists");
    assert_eq!(seen.approvals, task.approvals);
    let actions = fixture.base.audit_actions(None).await;
    assert_eq!(actions.iter().filter(|action| *action == "archive.restore").count(), 3);
    assert_eq!(
        archives.restore(tasks, &rob()).await.map(|_| ()).map_err(|error| is_refused(&error)),
        Err(true)
    );
}

fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Forbidden(_) | Error::Refused(_))
}

async fn restored_tasks_are_archived_again_after_a_month(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (task, archives) = (fixture.rejected().await, fixture.archives().await);
    fixture.base.clock.advance(100 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1), "task and approvals at once after a long outage");
    let (_, _, first) = list(&archives).await.remove(0);
    assert_eq!(archives.restore(&first, &admin()).await.expect("exists").items, 1);
    fixture.base.clock.advance(29 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    assert_eq!(fixture.base.task(&task.task_id).await.approvals, task.approvals);
    // A restored task is history, whatever its state allows otherwise.
    let service = fixture.base.service();
    let refused = service.resubmit(&task.task_id, &caller("ann", &[AUTHOR])).await;
    assert!(matches!(refused, Err(Error::Refused(Refusal::RestoredTask))), "{refused:?}");
    let now = fixture.base.task(&task.task_id).await;
    fixture.base.clock.advance(2 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert!(!fixture.exists(&task).await);
    let (_, _, second) = list(&archives).await.remove(0);
    assert_eq!(archives.restore(&second, &admin()).await.expect("exists").items, 1);
    assert_eq!(fixture.base.task(&task.task_id).await, now);
}

async fn concurrent_processes_archive_and_restore_each_task_once(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(fixture.rejected().await);
    }
    let counted = fixture.base.database.counts().await.expect("counted");
    for (days, kind) in [(31, ArchiveKind::Approvals), (60, ArchiveKind::Tasks)] {
        fixture.base.clock.advance(days * DAY);
        let mut processes = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let archives = fixture.archives().await;
            processes.spawn(async move { archives.archive_old().await.expect("archived") });
        }
        assert_eq!(processes.join_all().await.iter().sum::<u64>(), 12);
        let of_kind = list(&fixture.archives().await).await.into_iter().filter(|(of, ..)| *of == kind);
        assert_eq!(of_kind.map(|(_, many, _)| many).sum::<u64>(), 12);
        assert_eq!(fixture.base.database.counts().await.expect("counted").tasks, counted.tasks);
    }
    let all = list(&fixture.archives().await).await;
    for kind in [ArchiveKind::Tasks, ArchiveKind::Approvals] {
        let mut restored = 0;
        for (_, _, archive_id) in all.iter().filter(|(of, ..)| *of == kind) {
            let (one, two) = (fixture.archives().await, fixture.archives().await);
            let (admin, other) = (admin(), admin());
            let (one, two) = tokio::join!(one.restore(archive_id, &admin), two.restore(archive_id, &other));
            restored += one.expect("restored").items + two.expect("restored").items;
        }
        assert_eq!(restored, 12, "{kind:?}: each item once");
    }
    for mut task in tasks {
        task.restored = true;
        assert_eq!(fixture.base.task(&task.task_id).await, task);
    }
    assert_eq!(fixture.base.database.counts().await, Ok(counted));
}

/// Makes the calls that a process makes up to the point at which it crashes.
async fn crash_while_archiving_loses_nothing_and_leaves_nothing(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (task, archives) = (fixture.failed().await, fixture.archives().await);
    let (database, task_id) = (&fixture.base.database, task.task_id.as_str());
    fixture.base.clock.advance(91 * DAY);
    let now = fixture.now();
    // A crash after the archive is written, before anything is deleted.
    let key = "archive/tasks/2027-02-14/dead.ndjson.gz";
    database.announce_blob(key, now).await.expect("announced");
    archives.context.blobs.put(key, b"a copy").expect("stored");
    assert!(fixture.exists(&task).await, "nothing is lost");
    assert_eq!(archives.archive_old().await, Ok(1));
    let all = list(&archives).await;
    assert_eq!(all.len(), 1, "an unused archive file is not listed");
    assert!(!fixture.exists(&task).await, "the task is not in the database any more");
    assert!(
        fixture.files().iter().any(|name| name.starts_with("rollback_data/")),
        "rollback data is kept for a while"
    );
    // A crash before unneeded blobs are removed, and another one while they are removed.
    fixture.base.clock.advance(3 * DAY);
    let before = fixture.now();
    let doomed = database.take_orphaned_blobs(before, 100).await.expect("requested");
    assert_eq!(doomed.len(), 3, "the archive file, the rollback_data and the output: {doomed:?}");
    archives.context.blobs.remove_prefix(&doomed[0]).expect("removed");
    assert_eq!(archives.archive_old().await, Ok(0));
    let files = fixture.files();
    let is_over = |name: &String| {
        name.starts_with("rollback_data/") || name.starts_with("output/") || name.contains("dead")
    };
    assert!(!files.iter().any(is_over), "{files:?}");
    assert!(database.take_orphaned_blobs(before, 100).await.expect("requested").is_empty());
    assert_eq!(
        archives.restore(&all[0].2, &admin()).await.expect("exists").items,
        1,
        "the task can be restored"
    );
    // A process that pauses until its archive file is doomed must not delete anything.
    fixture.base.clock.advance(31 * DAY);
    let late = archives.list(None, 1, &admin()).await.expect("listed").remove(0);
    let late = ade_store::database::Archive { key: "archive/tasks/late.gz".to_owned(), ..late };
    database.announce_blob(&late.key, fixture.now()).await.expect("announced");
    let item = database.load_for_archive(ArchiveKind::Tasks, task_id).await.expect("read").expect("exists");
    fixture.base.clock.advance(3 * DAY);
    let ends = database.take_orphaned_blobs(fixture.now(), 100).await.expect("requested");
    assert_eq!(ends.first(), Some(&late.key));
    let leaving = vec![TaskRemoval::new(ArchiveKind::Tasks, &late.archive_id, &item)];
    let refused = database.remove_archived(late, leaving, Commit::default()).await;
    assert!(matches!(refused, Err(DatabaseError::Conflict { .. })), "{refused:?}");
    assert!(fixture.exists(&task).await);
}

async fn archives_output_and_removes_rollback_data(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (task, archives) = (fixture.failed().await, fixture.archives().await);
    let task_id = task.task_id.as_str();
    let old = archives.context.blobs.temp_path("output-of-a-crash");
    std::fs::write(&old, "half").expect("written");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(LONG_AGO);
    std::fs::File::open(&old).and_then(|file| file.set_modified(long_ago)).expect("modification time set");
    fixture.base.clock.advance(31 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert!(!old.exists(), "leftovers of the crash are removed");
    assert!(
        archives.context.blobs.get(&format!("rollback_data/{task_id}/2"), 1_000_000).is_ok(),
        "it may still be rolled back"
    );
    fixture.base.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    fixture.base.clock.advance(3 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    let key = format!("archive/output/{task_id}/2.gz");
    let packed = archives.context.blobs.get(&key, 1_000_000).expect("stored");
    assert!(packed.len() < 10_000, "compressed");
    let mut output = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed.as_slice()), &mut output)
        .expect("intact");
    assert_eq!(output, "a".repeat(100_000));
    for gone in ["rollback_data", "output"] {
        let files = std::fs::read_dir(archives.context.blobs.folder().join(gone)).map_or(0, Iterator::count);
        assert_eq!(files, 0, "{gone}");
    }
    let (_, _, archive_id) = list(&archives).await.remove(0);
    assert_eq!(archives.restore(&archive_id, &admin()).await.expect("exists").items, 1);
    let back = fixture.base.task(task_id).await.task.execution.expect("executed");
    assert_eq!(
        (back.output_key, back.rollback_data_key),
        (Some(key), None),
        "it can no longer be rolled back"
    );
}

async fn archives_nothing_if_the_blob_folder_is_missing(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (task, archives) = (fixture.rejected().await, fixture.archives().await);
    fixture.base.clock.advance(91 * DAY);
    // As if the volume were no longer mounted: an empty folder is in its place.
    let away: &Path = &fixture.folder.path().with_extension("away");
    std::fs::rename(fixture.folder.path(), away).expect("moved");
    std::fs::create_dir_all(fixture.folder.path().join(".unfinished")).expect("created");
    let refused = archives.archive_old().await.expect_err("blob folder is missing");
    assert!(refused.to_string().contains("mount it again"), "{refused}");
    assert!(fixture.exists(&task).await && list(&archives).await.is_empty());
    std::fs::remove_dir_all(fixture.folder.path()).expect("removed");
    std::fs::rename(away, fixture.folder.path()).expect("moved back");
    assert_eq!(archives.archive_old().await, Ok(1));
}

async fn unarchivable_task_does_not_block_others(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (stuck, archives) = (fixture.failed().await, fixture.archives().await);
    let other = fixture.rejected().await;
    // A folder in place of the output makes the task unarchivable.
    let output = fixture.folder.path().join(format!("output/{}/2", stuck.task_id));
    std::fs::remove_file(&output).and_then(|()| std::fs::create_dir(&output)).expect("created");
    fixture.base.clock.advance(91 * DAY);
    let failed = archives.archive_old().await.expect_err("one succeeds");
    assert!(failed.to_string().contains("cannot archive the output of a task"), "{failed}");
    assert!(fixture.exists(&stuck).await && !fixture.exists(&other).await);
    std::fs::remove_dir(&output).expect("removed");
    assert_eq!(archives.archive_old().await, Ok(1), "a missing output does not block archiving");
}

async fn splits_large_rounds_into_several_archives(base: Fixture) {
    let fixture = ArchiveFixture::of(base).await;
    let (first, archives) = (fixture.rejected().await, fixture.archives().await);
    let at = fixture.now();
    let copy = |_| {
        let mut task = first.clone();
        task.task_id = uuid::Uuid::now_v7().to_string();
        task.approvals = Vec::new();
        Write::Task { task: Box::new(task), expected: None, at }
    };
    let writes = (0..449).map(copy).collect();
    fixture.base.database.commit(Commit { writes, ..Commit::default() }).await.expect("created");
    assert_eq!(archives.is_behind().await, Ok(false), "none is old");
    fixture.base.clock.advance(31 * DAY);
    assert_eq!(archives.is_behind().await, Ok(true), "the next round is due at once");
    assert_eq!(archives.archive_old().await, Ok(450));
    assert_eq!(archives.is_behind().await, Ok(false));
    fixture.base.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(450));
    let all: Vec<(ArchiveKind, u64)> =
        list(&archives).await.iter().map(|(kind, many, _)| (*kind, *many)).collect();
    let sizes = |kind| [(kind, 50), (kind, 200), (kind, 200)];
    assert_eq!(all, [sizes(ArchiveKind::Tasks), sizes(ArchiveKind::Approvals)].concat());
    assert_eq!(fixture.base.database.counts().await.expect("counted").archived, 450);
}
