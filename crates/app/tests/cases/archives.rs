//! Archives as use cases, with several processes on one record and one folder of blobs: what ended long ago leaves once, comes back
//! as it was, and whoever dies at whatever point leaves nothing lost, nothing twice, and nothing over for ever.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ade_app::jobs::Archives;
use ade_app::{Caller, Error};
use ade_domain::approval::quorum::Status;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{Execution, ExecutionResult, Phase, State};
use ade_domain::{Clock, Moment};
use ade_store::database::{ArchiveKind, Commit, Leaving, LeftOut, StoredTask, TaskFilter, Write};
use ade_store::{Blobs, Database, DatabaseError};
use ade_testkit::folder::everything;
use tempfile::TempDir;

use crate::office::{Office, caller, no, on_both, request_to, submitted};

on_both!(
    reviewers_see_what_they_decided_until_it_is_archived_itself,
    what_comes_back_stays_for_a_month_and_leaves_again,
    of_several_processes_each_task_leaves_once_and_comes_back_once,
    whoever_dies_in_between_leaves_nothing_lost_and_nothing_over,
    what_a_task_said_goes_into_the_archive_and_what_would_undo_it_goes,
    nothing_leaves_for_a_folder_that_is_not_there,
    a_task_that_cannot_leave_keeps_no_other,
    what_does_not_fit_into_one_archive_goes_into_the_next,
);

const DAY: Duration = Duration::from_secs(86_400);
/// In seconds.
const LONG_AGO: u64 = 1_577_880_000;

/// An office with blobs.
struct House {
    office: Office,
    folder: TempDir,
}

impl House {
    async fn of(office: Office) -> Self {
        // Long ago: files that are being written now are young whatever happens here.
        office.clock.set(Moment::from_micros(LONG_AGO * 1_000_000).timestamp());
        office.hire("ann", &[AUTHOR]).await;
        office.hire("rob", &[REVIEWER]).await;
        Self { office, folder: tempfile::tempdir().expect("a folder") }
    }

    fn now(&self) -> Moment {
        Clock::now(&self.office.clock)
    }

    fn blobs(&self) -> Blobs {
        Blobs::in_folder(self.folder.path()).expect("opens")
    }

    /// One more process.
    async fn archives(&self) -> Archives {
        let record = match &self.office.url {
            Some(url) => Database::on_postgres(url).await.expect("opens"),
            None => self.office.record.clone(),
        };
        Archives { record, blobs: self.blobs(), clock: Arc::new(self.office.clock.clone()) }
    }

    /// A task that Rob rejected.
    async fn rejected(&self) -> StoredTask {
        let desk = self.office.desk();
        let task = submitted(&desk, "one").await;
        desk.respond(request_to(&task, "rob"), &no(), &rob()).await.expect("rejected")
    }

    /// The same, as if it had been carried out, failed, and said a lot.
    async fn failed(&self) -> StoredTask {
        let task_id = self.rejected().await.task.task_id;
        let mut task = self.office.task(&task_id).await;
        let (expected, at) = (Some(task.revision), self.now());
        task.revision += 1;
        task.state = State::Failed;
        task.since.insert(State::Failed, at);
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
            error: None,
            code: None,
            effects_of: None,
            stash_key: Some(format!("stash/{task_id}/2")),
            rolled_back: None,
            retry_count: 0,
            stop: None,
            undo: None,
        });
        for (key, bytes) in [("output", 2), ("output", 1), ("stash", 1), ("stash", 2)] {
            let key = format!("{key}/{task_id}/{bytes}");
            self.blobs().put(&key, "a".repeat(100_000).as_bytes()).expect("kept");
        }
        let write = Write::Task { task: Box::new(task.clone()), expected, at };
        self.office.record.commit(Commit { writes: vec![write], ..Commit::default() }).await.expect("failed");
        task
    }

    async fn is_there(&self, task: &StoredTask) -> bool {
        self.office.record.task(&task.task_id).await.expect("read").is_some()
    }

    fn kept(&self) -> BTreeSet<String> {
        let files = everything(self.folder.path()).into_iter().filter(|(_, (_, content))| content.is_some());
        files.map(|(name, _)| name).collect()
    }
}

fn rob() -> Caller {
    caller("rob", &[REVIEWER])
}

fn admin() -> Caller {
    caller("eve", &[ADMIN])
}

async fn list(archives: &Archives) -> Vec<(ArchiveKind, u64, String)> {
    let all = archives.list(None, 100, &admin()).await.expect("listed");
    all.into_iter().map(|one| (one.kind, one.items, one.archive_id)).collect()
}

async fn reviewers_see_what_they_decided_until_it_is_archived_itself(office: Office) {
    let house = House::of(office).await;
    let (task, archives) = (house.rejected().await, house.archives().await);
    let (task_id, desk) = (task.task_id.as_str(), house.office.desk());
    house.office.clock.advance(29 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    house.office.clock.advance(2 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert_eq!(archives.archive_old().await, Ok(0), "once");
    let seen = desk.task(task_id, &rob()).await.expect("he was asked");
    assert_eq!(seen.approvals, []);
    assert_eq!(seen.progress(), task.progress());
    assert_eq!(seen.progress()[0].status, Status::Unsatisfied, "he had said no");
    let listed = desk.tasks(TaskFilter::default(), None, 10, &rob()).await.expect("listed");
    assert_eq!(listed, [seen]);
    let other = desk.task(task_id, &caller("sue", &[REVIEWER])).await;
    assert_eq!(other.map(|_| ()), Err(Error::NotFound("task")));
    // Whoever wants it made again is still told by the same rules, and what is remembered stays.
    desk.resubmit(task_id, &caller("ann", &[AUTHOR])).await.expect("made again");
    assert!(desk.task(task_id, &rob()).await.is_ok());
    house.office.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert!(!house.is_there(&task).await);
    // Both come back, whichever comes first: only a task that is there has requests.
    let all = list(&archives).await;
    let [(ArchiveKind::Tasks, 1, tasks), (ArchiveKind::Approvals, 1, requests)] = all.as_slice() else {
        unreachable!("{all:?}")
    };
    let early = archives.restore(requests, &admin()).await.expect("asked");
    assert_eq!((early.items, early.left_out), (0, LeftOut { outdated: 0, away: 1 }));
    assert_eq!(archives.restore(tasks, &admin()).await.expect("there").items, 1);
    assert!(desk.task(task_id, &rob()).await.is_ok(), "he was asked");
    let back = archives.restore(requests, &admin()).await.expect("there");
    assert_eq!((back.items, back.left_out), (1, LeftOut::default()));
    let seen = desk.task(task_id, &rob()).await.expect("there");
    assert_eq!(seen.approvals, task.approvals);
    let told = house.office.told(None).await;
    assert_eq!(told.iter().filter(|action| *action == "archive.restore").count(), 3);
    assert_eq!(
        archives.restore(tasks, &rob()).await.map(|_| ()).map_err(|error| is_refused(&error)),
        Err(true)
    );
}

fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Forbidden(_) | Error::Refused(_))
}

async fn what_comes_back_stays_for_a_month_and_leaves_again(office: Office) {
    let house = House::of(office).await;
    let (task, archives) = (house.rejected().await, house.archives().await);
    house.office.clock.advance(100 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1), "all of it at once, if nobody was there for so long");
    let (_, _, first) = list(&archives).await.remove(0);
    assert_eq!(archives.restore(&first, &admin()).await.expect("there").items, 1);
    house.office.clock.advance(29 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    assert_eq!(house.office.task(&task.task_id).await.approvals, task.approvals);
    // Somebody makes another one of it: what is in the first archive is not what it is any more.
    let desk = house.office.desk();
    desk.resubmit(&task.task_id, &caller("ann", &[AUTHOR])).await.expect("made again");
    let now = house.office.task(&task.task_id).await;
    house.office.clock.advance(2 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    let (_, _, second) = list(&archives).await.remove(0);
    let old = archives.restore(&first, &admin()).await.expect("there");
    assert_eq!((old.items, old.left_out), (0, LeftOut { outdated: 1, away: 0 }));
    assert!(!house.is_there(&task).await, "nothing old is revived");
    assert_eq!(archives.restore(&second, &admin()).await.expect("there").items, 1);
    assert_eq!(house.office.task(&task.task_id).await, now);
}

async fn of_several_processes_each_task_leaves_once_and_comes_back_once(office: Office) {
    let house = House::of(office).await;
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(house.rejected().await);
    }
    let counted = house.office.record.counts().await.expect("counted");
    for (days, kind) in [(31, ArchiveKind::Approvals), (60, ArchiveKind::Tasks)] {
        house.office.clock.advance(days * DAY);
        let mut processes = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let archives = house.archives().await;
            processes.spawn(async move { archives.archive_old().await.expect("archived") });
        }
        assert_eq!(processes.join_all().await.iter().sum::<u64>(), 12);
        let of_kind = list(&house.archives().await).await.into_iter().filter(|(of, ..)| *of == kind);
        assert_eq!(of_kind.map(|(_, many, _)| many).sum::<u64>(), 12);
        assert_eq!(house.office.record.counts().await.expect("counted").tasks, counted.tasks);
    }
    let all = list(&house.archives().await).await;
    for kind in [ArchiveKind::Tasks, ArchiveKind::Approvals] {
        let mut restored = 0;
        for (_, _, archive_id) in all.iter().filter(|(of, ..)| *of == kind) {
            let (one, two) = (house.archives().await, house.archives().await);
            let (admin, other) = (admin(), admin());
            let (one, two) = tokio::join!(one.restore(archive_id, &admin), two.restore(archive_id, &other));
            restored += one.expect("restored").items + two.expect("restored").items;
        }
        assert_eq!(restored, 12, "{kind:?}: nothing twice");
    }
    for task in tasks {
        assert_eq!(house.office.task(&task.task_id).await, task);
    }
    assert_eq!(house.office.record.counts().await, Ok(counted));
}

/// What a process does up to the point at which it dies, by the calls that it makes.
async fn whoever_dies_in_between_leaves_nothing_lost_and_nothing_over(office: Office) {
    let house = House::of(office).await;
    let (task, archives) = (house.failed().await, house.archives().await);
    let (record, task_id) = (&house.office.record, task.task_id.as_str());
    house.office.clock.advance(91 * DAY);
    let now = house.now();
    // After the copy is written, before anything is deleted.
    let key = "archive/tasks/2027-02-14/dead.ndjson.gz";
    record.announce_blob(key, now).await.expect("announced");
    archives.blobs.put(key, b"a copy").expect("kept");
    assert!(house.is_there(&task).await, "nothing is lost");
    assert_eq!(archives.archive_old().await, Ok(1));
    let all = list(&archives).await;
    assert_eq!(all.len(), 1, "a copy that nothing left for is no archive");
    assert!(!house.is_there(&task).await, "nothing is there twice");
    assert!(house.kept().iter().any(|name| name.starts_with("stash/")), "not at once");
    // After everything is deleted, before what is not needed any more is removed; and then while it is being removed.
    house.office.clock.advance(3 * DAY);
    let before = house.now();
    let doomed = record.doomed_blobs(before, 100).await.expect("asked");
    assert_eq!(doomed.len(), 3, "the copy, the stash and the output: {doomed:?}");
    archives.blobs.remove_within(&doomed[0]).expect("removed");
    assert_eq!(archives.archive_old().await, Ok(0));
    let kept = house.kept();
    let is_over =
        |name: &String| name.starts_with("stash/") || name.starts_with("output/") || name.contains("dead");
    assert!(!kept.iter().any(is_over), "{kept:?}");
    assert!(record.doomed_blobs(before, 100).await.expect("asked").is_empty());
    assert_eq!(archives.restore(&all[0].2, &admin()).await.expect("there").items, 1, "and it comes back");
    // Whoever stood still between the copy and the rest for so long that the copy is doomed deletes nothing.
    house.office.clock.advance(31 * DAY);
    let late = archives.list(None, 1, &admin()).await.expect("listed").remove(0);
    let late = ade_store::database::Archive { key: "archive/tasks/late.gz".to_owned(), ..late };
    record.announce_blob(&late.key, house.now()).await.expect("announced");
    let item = record.archived(ArchiveKind::Tasks, task_id).await.expect("read").expect("there");
    house.office.clock.advance(3 * DAY);
    let ends = record.doomed_blobs(house.now(), 100).await.expect("asked");
    assert_eq!(ends.first(), Some(&late.key));
    let leaving = vec![Leaving::of(ArchiveKind::Tasks, &late.archive_id, &item)];
    let refused = record.take_out(late, leaving).await;
    assert!(matches!(refused, Err(DatabaseError::Conflict { .. })), "{refused:?}");
    assert!(house.is_there(&task).await);
}

async fn what_a_task_said_goes_into_the_archive_and_what_would_undo_it_goes(office: Office) {
    let house = House::of(office).await;
    let (task, archives) = (house.failed().await, house.archives().await);
    let task_id = task.task_id.as_str();
    let old = archives.blobs.unfinished("output-of-a-crash");
    std::fs::write(&old, "half").expect("written");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(LONG_AGO);
    std::fs::File::open(&old).and_then(|file| file.set_modified(long_ago)).expect("aged");
    house.office.clock.advance(31 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    assert!(!old.exists(), "what a crash left is gone");
    assert!(archives.blobs.get(&format!("stash/{task_id}/2"), 1_000_000).is_ok(), "it may be wanted back");
    house.office.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(1));
    house.office.clock.advance(3 * DAY);
    assert_eq!(archives.archive_old().await, Ok(0));
    let key = format!("archive/output/{task_id}/2.gz");
    let packed = archives.blobs.get(&key, 1_000_000).expect("kept");
    assert!(packed.len() < 10_000, "compressed");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed.as_slice()), &mut said)
        .expect("whole");
    assert_eq!(said, "a".repeat(100_000));
    for gone in ["stash", "output"] {
        assert_eq!(archives.blobs.list(gone).expect("read"), [], "{gone}");
    }
    let (_, _, archive_id) = list(&archives).await.remove(0);
    assert_eq!(archives.restore(&archive_id, &admin()).await.expect("there").items, 1);
    let back = house.office.task(task_id).await.task.execution.expect("carried out");
    assert_eq!((back.output_key, back.stash_key), (Some(key), None), "nothing of it can be undone any more");
}

async fn nothing_leaves_for_a_folder_that_is_not_there(office: Office) {
    let house = House::of(office).await;
    let (task, archives) = (house.rejected().await, house.archives().await);
    house.office.clock.advance(91 * DAY);
    // As if it were not mounted any more: an empty folder is in its place.
    let away: &Path = &house.folder.path().with_extension("away");
    std::fs::rename(house.folder.path(), away).expect("moved");
    std::fs::create_dir_all(house.folder.path().join(".unfinished")).expect("made");
    let refused = archives.archive_old().await.expect_err("nowhere to go");
    assert!(refused.to_string().contains("mount it again"), "{refused}");
    assert!(house.is_there(&task).await && list(&archives).await.is_empty());
    std::fs::remove_dir_all(house.folder.path()).expect("removed");
    std::fs::rename(away, house.folder.path()).expect("moved back");
    assert_eq!(archives.archive_old().await, Ok(1));
}

async fn a_task_that_cannot_leave_keeps_no_other(office: Office) {
    let house = House::of(office).await;
    let (stuck, archives) = (house.failed().await, house.archives().await);
    let other = house.rejected().await;
    // A folder is no output.
    let output = house.folder.path().join(format!("output/{}/2", stuck.task_id));
    std::fs::remove_file(&output).and_then(|()| std::fs::create_dir(&output)).expect("made");
    house.office.clock.advance(91 * DAY);
    let failed = archives.archive_old().await.expect_err("one of them");
    assert!(failed.to_string().contains("what a task said cannot be kept"), "{failed}");
    assert!(house.is_there(&stuck).await && !house.is_there(&other).await);
    std::fs::remove_dir(&output).expect("removed");
    assert_eq!(archives.archive_old().await, Ok(1), "what is gone keeps nothing");
}

async fn what_does_not_fit_into_one_archive_goes_into_the_next(office: Office) {
    let house = House::of(office).await;
    let (first, archives) = (house.rejected().await, house.archives().await);
    let at = house.now();
    let copy = |_| {
        let mut task = first.clone();
        task.task_id = uuid::Uuid::now_v7().to_string();
        task.approvals = Vec::new();
        Write::Task { task: Box::new(task), expected: None, at }
    };
    let writes = (0..449).map(copy).collect();
    house.office.record.commit(Commit { writes, ..Commit::default() }).await.expect("made");
    assert_eq!(archives.is_behind().await, Ok(false), "none is old");
    house.office.clock.advance(31 * DAY);
    assert_eq!(archives.is_behind().await, Ok(true), "the next round is due at once");
    assert_eq!(archives.archive_old().await, Ok(450));
    assert_eq!(archives.is_behind().await, Ok(false));
    house.office.clock.advance(60 * DAY);
    assert_eq!(archives.archive_old().await, Ok(450));
    let all: Vec<(ArchiveKind, u64)> =
        list(&archives).await.iter().map(|(kind, many, _)| (*kind, *many)).collect();
    let of = |kind| [(kind, 50), (kind, 200), (kind, 200)];
    assert_eq!(all, [of(ArchiveKind::Tasks), of(ArchiveKind::Approvals)].concat());
    assert_eq!(house.office.record.counts().await.expect("counted").archived, 450);
}
