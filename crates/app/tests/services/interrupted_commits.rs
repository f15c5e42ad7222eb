//! A process that is killed at any step of a commit leaves all of it or nothing, and an audit log that is valid and goes on.

use std::fs;
use std::path::Path;

use ade_domain::audit::AuditBody;
use ade_domain::people::{AUTHOR, REVIEWER};
use ade_domain::task::TaskState;
use ade_store::Database;
use ade_store::database::{Commit, StoredTask, Write};
use ade_testkit::{PostgresProxy, test_keys};
use sqlx::{Connection, SqliteConnection};
use uuid::Uuid;

use crate::fixture::{Fixture, caller, draft};

const DATABASE: &str = "ade.sqlite3";
const WRITE_AHEAD_LOG: &str = "ade.sqlite3-wal";
const PAGE_BYTES: usize = 4_096;
/// A page in the write-ahead log, after its header.
const FRAME_BYTES: usize = 24 + PAGE_BYTES;
const WAL_HEADER_BYTES: usize = 32;

impl Fixture {
    async fn with_people(self) -> Self {
        self.add_user("ann", &[AUTHOR]).await;
        self.add_user("rob", &[REVIEWER]).await;
        self
    }

    async fn created(&self) -> StoredTask {
        self.service().create(draft("one"), &caller("ann", &[AUTHOR])).await.expect("created")
    }

    /// Whether the task was submitted. Fails if only a part of the commit is there, or if the log is not valid.
    async fn is_submitted(&self, task_id: &str) -> bool {
        let (state, actions) = (self.task(task_id).await.state, self.audit_actions(Some(task_id)).await);
        let submissions = actions.iter().filter(|action| *action == "task.submit").count();
        let is_submitted = state != TaskState::Draft;
        assert_eq!(
            (submissions, actions.len() > 1),
            (usize::from(is_submitted), is_submitted),
            "{actions:?}"
        );
        is_submitted
    }

    /// Submits a task that may be submitted already.
    async fn submit(&self, task_id: &str) {
        if !self.is_submitted(task_id).await {
            self.service().submit(task_id, &caller("ann", &[AUTHOR])).await.expect("submitted");
            assert!(self.is_submitted(task_id).await);
        }
    }
}

/// Database and write-ahead log, as a killed process leaves them.
#[derive(Clone)]
struct Files {
    database: Vec<u8>,
    log: Vec<u8>,
}

impl Files {
    fn read(folder: &Path) -> Self {
        let read = |name: &str| fs::read(folder.join(name)).expect("read");
        Self { database: read(DATABASE), log: read(WRITE_AHEAD_LOG) }
    }

    /// Starts a process with these files.
    async fn open(&self) -> Fixture {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join(DATABASE), &self.database).expect("written");
        fs::write(folder.path().join(WRITE_AHEAD_LOG), &self.log).expect("written");
        let database = Database::open_sqlite(folder.path(), test_keys()).await.expect("opens");
        Fixture::with(database, None, folder)
    }

    /// The database after the whole log was copied into it.
    async fn checkpointed(&self) -> Vec<u8> {
        let fixture = self.open().await;
        let file = fixture.folder.path().join(DATABASE);
        let url = format!("sqlite://{}", file.display());
        let mut connection = SqliteConnection::connect(&url).await.expect("opens");
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await.expect("copied");
        fs::read(file).expect("read")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_commit_is_whole_after_a_kill_at_each_write() {
    let fixture = Fixture::on_sqlite().await.with_people().await;
    let task_id = fixture.created().await.task_id.clone();
    let before = Files::read(fixture.folder.path());
    fixture.submit(&task_id).await;
    let after = Files::read(fixture.folder.path());
    assert_eq!(before.database.len(), after.database.len(), "no checkpoint meanwhile");
    assert!(after.log.starts_with(&before.log), "the commit appends to the log");
    assert_eq!((before.log.len() - WAL_HEADER_BYTES) % FRAME_BYTES, 0);
    let frames: Vec<usize> = (before.log.len()..after.log.len()).step_by(FRAME_BYTES).collect();
    assert!(frames.len() > 5, "{frames:?}");
    // Between two writes, and within one.
    let ends = frames.iter().flat_map(|start| [0, FRAME_BYTES / 2].map(|part| start + part));
    for end in ends.chain([after.log.len()]) {
        let log = after.log[..end].to_vec();
        let restarted = Files { log, ..after.clone() }.open().await;
        assert_eq!(restarted.is_submitted(&task_id).await, end == after.log.len(), "{end} bytes");
        restarted.submit(&task_id).await;
    }
    eprintln!("{} pages, {} kills", frames.len(), frames.len() * 2 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_log_is_whole_after_a_kill_at_each_write_of_a_checkpoint() {
    let fixture = Fixture::on_sqlite().await.with_people().await;
    let task_id = fixture.created().await.task_id.clone();
    fixture.submit(&task_id).await;
    let files = Files::read(fixture.folder.path());
    let copied = files.checkpointed().await;
    let is_changed = |number: &usize| {
        let page = number * PAGE_BYTES..(number + 1) * PAGE_BYTES;
        files.database.get(page.clone()) != copied.get(page)
    };
    let changed: Vec<usize> = (0..copied.len() / PAGE_BYTES).filter(is_changed).collect();
    assert!(changed.len() > 5, "{changed:?}");
    let mut database = files.database.clone();
    for number in changed {
        // Between two writes, and within one.
        for bytes in [PAGE_BYTES / 2, PAGE_BYTES] {
            let (start, end) = (number * PAGE_BYTES, number * PAGE_BYTES + bytes);
            database.resize(database.len().max(end), 0);
            database[start..end].copy_from_slice(&copied[start..end]);
            let restarted = Files { database: database.clone(), ..files.clone() }.open().await;
            assert!(restarted.is_submitted(&task_id).await, "page {number}");
            restarted.created().await;
            restarted.entries().await;
        }
    }
    assert_eq!(database, copied);
}

/// A fixture, and the same database through a proxy.
async fn through_proxy() -> (Fixture, PostgresProxy, Database) {
    let fixture = Fixture::on_postgres().await.with_people().await;
    let proxy = PostgresProxy::start(fixture.url.as_deref().expect("a URL")).await;
    let database = Database::open_postgres(proxy.url(), test_keys()).await.expect("opens");
    (fixture, proxy, database)
}

/// A task with approval requests, and the entries about it, under new ids.
fn copy_of(task: &StoredTask, entries: &[AuditBody]) -> (String, Commit) {
    let task_id = Uuid::now_v7().to_string();
    let mut copy = task.task.clone();
    copy.task_id.clone_from(&task_id);
    for approval in &mut copy.approvals {
        approval.approval_id = Uuid::now_v7().to_string();
        approval.task_id.clone_from(&task_id);
    }
    let entries = entries.iter().cloned().map(|entry| AuditBody {
        entry_id: Uuid::now_v7().to_string(),
        task_id: Some(task_id.clone()),
        ..entry
    });
    let audit: Vec<AuditBody> = entries.collect();
    let at = audit[0].at;
    let writes = vec![Write::Task { task: Box::new(copy.into()), expected: None, at }];
    (task_id, Commit { writes, audit, ..Commit::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_commit_is_whole_after_a_kill_at_each_message() {
    let (fixture, proxy, database) = through_proxy().await;
    let task_id = fixture.created().await.task_id.clone();
    fixture.submit(&task_id).await;
    let (task, entries) = (fixture.task(&task_id).await, fixture.entries().await);
    let (mut messages, mut stored_count) = (0, 0);
    loop {
        // Connects again after the previous kill.
        database.task(&task_id).await.expect("read");
        let (task_id, commit) = copy_of(&task, &entries);
        proxy.disconnect_after(messages);
        let outcome = database.commit(commit).await;
        let was_killed = proxy.take_disconnected();
        let is_stored = fixture.database.task(&task_id).await.expect("read").is_some();
        let expected = if is_stored { entries.len() } else { 0 };
        assert_eq!(fixture.audit_actions(Some(&task_id)).await.len(), expected, "{messages} messages");
        assert!(is_stored || outcome.is_err(), "{messages} messages");
        stored_count += usize::from(is_stored);
        if !was_killed {
            assert_eq!(outcome, Ok(()));
            break;
        }
        messages += 1;
    }
    assert!(messages > 4 && stored_count > 1, "{messages} messages, {stored_count} times stored");
    eprintln!("{messages} kills: {} with the commit", stored_count - 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_numbering_is_whole_after_a_kill_at_each_message() {
    let (fixture, proxy, database) = through_proxy().await;
    let number = async || database.number_entries(fixture.clock.now().into(), 100).await;
    let mut messages = 0;
    loop {
        number().await.expect("connects again after the previous kill");
        fixture.created().await;
        proxy.disconnect_after(messages);
        let outcome = number().await;
        let was_killed = proxy.take_disconnected();
        let count = fixture.entries().await.len();
        assert_eq!(count, messages + 1, "each entry has one number");
        if !was_killed {
            assert!(outcome.is_ok_and(|numbered| numbered.numbered == 1));
            break;
        }
        messages += 1;
    }
    assert!(messages > 3, "{messages} messages");
    eprintln!("{messages} kills");
}
