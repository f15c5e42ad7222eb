//! The points of an execution at which a fault is injected. Each is forced by the test or detected by polling; none depends
//! on timing assumptions.

use std::fs::File;
use std::thread;
use std::time::Duration;

use ade_testkit::SeededRng;
use ade_testkit::deployment::text_field;
use serde_json::Value;
use tokio::time::Instant;

use super::fixture::{BlockingLock, Fixture, TIMEOUT, attempt, phase};
use super::test_tasks::{FileSet, TestTask, counter_set, large_set, small_set};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashPoint {
    /// A worker waits for the locks; the task is still approved.
    WaitingForLocks,
    /// The worker holds the locks; the originals are not stashed yet.
    Prepared,
    /// The originals are stashed; nothing is changed.
    RollbackDataSaved,
    /// Some files are changed.
    PartlyChanged,
    /// All files are changed; the outcome is not recorded.
    Changed,
    /// A command has had its effect and still runs.
    CommandRunning,
}

pub(crate) const CRASH_POINTS: [CrashPoint; 6] = [
    CrashPoint::WaitingForLocks,
    CrashPoint::Prepared,
    CrashPoint::RollbackDataSaved,
    CrashPoint::PartlyChanged,
    CrashPoint::Changed,
    CrashPoint::CommandRunning,
];

/// A task whose execution was hit by a fault.
pub(crate) struct FaultedTask {
    pub(crate) task: TestTask,
    /// The attempt that was running; 0: none yet.
    pub(crate) attempt: u64,
    pub(crate) faulted_at: Instant,
    /// A lock that the task needs, held by another agent.
    pub(crate) blocking_lock: Option<BlockingLock>,
    /// The test holds the root.
    pub(crate) root_guard: Option<File>,
    /// The name of the worker that ran the task.
    pub(crate) worker: String,
    /// Another task that waits for the same resource; `None`: to be created after recovery.
    pub(crate) competing_task: Option<TestTask>,
}

impl CrashPoint {
    /// Creates a task on a resource and injects the fault into its worker (by name) at this point.
    pub(crate) async fn inject(
        self,
        fixture: &Fixture,
        name: &str,
        resource: &str,
        rng: &mut SeededRng,
        fault: impl Fn(&str) + Send + Sync,
    ) -> FaultedTask {
        // Created only after the first task holds the resource: otherwise it would block on the root, which the test holds.
        let compete = async |set: FileSet| Some(TestTask::files(fixture, set, resource).await);
        match self {
            Self::WaitingForLocks => {
                let (lock, set) = (TestTask::resource_lock(resource), small_set(fixture, name, rng));
                let blocking_lock = Some(fixture.block_lock(&lock).await);
                let task = TestTask::files(fixture, set, resource).await;
                let worker = fixture.waiting_worker(&lock, &task.id).await;
                fault(&worker);
                FaultedTask {
                    task,
                    attempt: 0,
                    faulted_at: Instant::now(),
                    blocking_lock,
                    root_guard: None,
                    worker,
                    competing_task: None,
                }
            }
            Self::Prepared => {
                let root_guard = Some(fixture.lock_root());
                let task = TestTask::files(fixture, small_set(fixture, name, rng), resource).await;
                let is_prepared = |now: &Value| phase(now) == "PREPARED";
                let now = fixture.wait_for_execution("the task is prepared", &task.id, is_prepared).await;
                let competing_task = compete(competing_set(fixture, name, rng)).await;
                let worker = text_field(&now, "agent_id");
                fault(&worker);
                FaultedTask {
                    task,
                    attempt: attempt(&now),
                    faulted_at: Instant::now(),
                    blocking_lock: None,
                    root_guard,
                    worker,
                    competing_task,
                }
            }
            Self::RollbackDataSaved => {
                let (task, now, root_guard) =
                    rollback_data(fixture, small_set(fixture, name, rng), resource).await;
                let competing_task = compete(competing_set(fixture, name, rng)).await;
                let worker = text_field(&now, "agent_id");
                fault(&worker);
                FaultedTask {
                    task,
                    attempt: attempt(&now),
                    faulted_at: Instant::now(),
                    blocking_lock: None,
                    root_guard: Some(root_guard),
                    worker,
                    competing_task,
                }
            }
            Self::PartlyChanged | Self::Changed => {
                let (task, now, root_guard) =
                    rollback_data(fixture, large_set(fixture, name), resource).await;
                let competing_task = compete(competing_set(fixture, name, rng)).await;
                let worker = text_field(&now, "agent_id");
                let is_changed = task.file_set().expect("files").watch(self == Self::Changed);
                release_root_and_poll(is_changed, root_guard, || fault(&worker));
                FaultedTask {
                    task,
                    attempt: attempt(&now),
                    faulted_at: Instant::now(),
                    blocking_lock: None,
                    root_guard: None,
                    worker,
                    competing_task,
                }
            }
            Self::CommandRunning => {
                let task = TestTask::command(fixture, resource).await;
                let observe = || async {
                    if task.run_count(fixture) > 0 {
                        Ok(())
                    } else {
                        Err("no line in the run log".to_owned())
                    }
                };
                let running = ade_testkit::wait::until("the command runs", TIMEOUT, observe).await;
                running.unwrap_or_else(|error| fixture.fail(&error.to_string()));
                let has_attempt = |now: &Value| attempt(now) > 0;
                let now = fixture.wait_for_execution("an attempt is recorded", &task.id, has_attempt).await;
                let worker = text_field(&now, "agent_id");
                fault(&worker);
                FaultedTask {
                    task,
                    attempt: attempt(&now),
                    faulted_at: Instant::now(),
                    blocking_lock: None,
                    root_guard: None,
                    worker,
                    competing_task: None,
                }
            }
        }
    }
}

/// Creates a task whose worker has stashed the originals, has recorded that, and waits for the root, which the test holds.
pub(crate) async fn rollback_data(
    fixture: &Fixture,
    set: FileSet,
    resource: &str,
) -> (TestTask, Value, File) {
    let root_guard = fixture.lock_root();
    let task = TestTask::files(fixture, set, resource).await;
    let is_prepared = |now: &Value| phase(now) == "PREPARED";
    let now = fixture.wait_for_execution("the task is prepared", &task.id, is_prepared).await;
    let note = fixture.rollback_note(&task.id, attempt(&now));
    // The worker creates the note while it holds the root, so the test gets the root next.
    let root_guard = tokio::task::block_in_place(|| {
        drop(root_guard);
        poll("the originals are stashed", || note.exists());
        fixture.lock_root()
    });
    let is_started = |now: &Value| matches!(phase(now).as_str(), "STARTED" | "ENDED");
    let now = fixture.wait_for_execution("the task is started", &task.id, is_started).await;
    (task, now, root_guard)
}

/// Releases the root and calls `action` as soon as `condition` holds.
pub(crate) fn release_root_and_poll(condition: impl Fn() -> bool, root_guard: File, action: impl Fn()) {
    tokio::task::block_in_place(|| {
        drop(root_guard);
        poll("the files are changed", condition);
        action();
    });
}

/// Polls in a tight loop, because the state lasts only milliseconds and is not signalled.
fn poll(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting until {what}");
        thread::park_timeout(Duration::from_micros(100));
    }
}

/// The files of the task that waits for the same resource.
pub(crate) fn competing_set(fixture: &Fixture, name: &str, rng: &mut SeededRng) -> FileSet {
    small_set(fixture, &format!("{name}-competing"), rng)
}

/// Creates the background tasks of a round concurrently. The last one increments the counter.
pub(crate) async fn background_tasks(
    fixture: &Fixture,
    name: &str,
    count: u64,
    rng: &mut SeededRng,
) -> Vec<TestTask> {
    let mut set = |suffix: &str| small_set(fixture, &format!("{name}-{suffix}"), rng);
    let (first_set, second_set) = (set("first"), set("second"));
    let [first, second, command] = ["first", "second", "command"].map(|suffix| format!("{name}-{suffix}"));
    let tasks = tokio::join!(
        TestTask::files(fixture, first_set, &first),
        TestTask::files(fixture, second_set, &second),
        TestTask::command(fixture, &command),
        TestTask::noop(fixture),
        TestTask::files(fixture, counter_set(fixture, count), "counter"),
    );
    vec![tasks.0, tasks.1, tasks.2, tasks.3, tasks.4]
}
