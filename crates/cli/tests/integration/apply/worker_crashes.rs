//! Workers are killed or suspended, or lose Redis, at every step of a task: nothing is applied twice, nothing is lost, no
//! file set is left partly changed, and the recorded state is true.

mod crash_points;
mod fixture;
mod test_tasks;

use std::collections::BTreeMap;
use std::time::Duration;

use ade_testkit::deployment::text_field;
use ade_testkit::wait::until;
use ade_testkit::{SeededRng, effort};
use crash_points::{
    CRASH_POINTS, CrashPoint, FaultedTask, background_tasks, competing_set, release_root_and_poll,
    rollback_data,
};
use fixture::{Fixture, LEASE, TIMEOUT, attempt, list_tree};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_tasks::{FileSetState, TaskKind, TestTask, large_set};
use tokio::time::Instant;

/// Maximum time from the expiry of lease and locks to the end of recovery.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// The process is killed (SIGKILL) and restarted.
    Kill,
    /// The process is suspended until another one has taken over, and resumed (SIGSTOP, SIGCONT).
    Suspend,
    /// Redis loses all data.
    FlushRedis,
}

#[tokio::test(flavor = "multi_thread")]
async fn recovers_from_crashes_embedded() {
    let fixture = Fixture::embedded().await;
    CrashCampaign::new("embedded", fixture, &[Fault::Kill]).run(effort::rounds(4, 100)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recovers_from_faults_distributed() {
    let fixture = Fixture::distributed().await;
    let campaign =
        CrashCampaign::new("distributed", fixture, &[Fault::Kill, Fault::Suspend, Fault::FlushRedis]);
    campaign.run(effort::rounds(4, 100)).await;
}

/// A worker that is suspended before it changes anything, and resumed after another one took over, is fenced off.
#[tokio::test(flavor = "multi_thread")]
async fn resumed_worker_changes_nothing_after_takeover() {
    let fixture = Fixture::distributed().await;
    let mut rng = SeededRng::new(effort::seed(), 0);
    for point in [CrashPoint::Prepared, CrashPoint::RollbackDataSaved] {
        let name = format!("{point:?}").to_lowercase();
        let faulted = point.inject(&fixture, &name, &name, &mut rng, |worker| fixture.suspend(worker)).await;
        drop(faulted.root_guard);
        let id = &faulted.task.id;
        let finished =
            fixture.office.wait_for_task("another worker finishes it", id, TestTask::is_finished).await;
        let set = faulted.task.file_set().expect("files");
        let is_completed = text_field(&finished, "state") == "COMPLETED";
        let state = set.state().expect("old or new content");
        assert_eq!(is_completed, point == CrashPoint::Prepared, "{finished}");
        let expected = if is_completed { FileSetState::Changed } else { FileSetState::Unchanged };
        assert_eq!(state, expected, "{finished}");
        // The resumed worker must not even write identical content.
        let (is_first_replaced, is_last_replaced) = (set.watch(false), set.watch(true));
        let resumed = fixture.worker_process(&faulted.worker);
        resumed.signal(Signal::CONT).expect("resumed");
        // A graceful shutdown finishes all work of the process first.
        resumed.signal(Signal::TERM).expect("sent");
        resumed.wait_for_exit().expect("exits");
        assert!(!is_first_replaced() && !is_last_replaced(), "{point:?}: the resumed worker changed a file");
        assert_eq!(set.state().expect("old or new content"), state);
        assert_eq!(
            fixture.office.task_request(id).await,
            finished,
            "the report of the resumed worker is ignored"
        );
        check_no_temporary_files(&fixture, &name).await;
        fixture.restart_killed();
    }
    lost_agent_is_detected_without_workers(&fixture).await;
}

/// Servers without worker slots detect a lost agent as well.
async fn lost_agent_is_detected_without_workers(fixture: &Fixture) {
    let task = TestTask::agent(fixture, true).await;
    let claim = fixture.agent.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await.expect_status(200);
    assert_eq!(claim["task"]["task_id"], task.id.as_str());
    for worker in &fixture.workers {
        worker.process().kill().expect("killed");
    }
    let deadline = Instant::now() + LEASE;
    let failed = fixture.office.wait_for_task("the task fails", &task.id, TestTask::is_finished).await;
    let took = Instant::now().saturating_duration_since(deadline);
    assert!(took <= RECOVERY_TIMEOUT, "detected only {took:.1?} after lease and locks expired");
    assert_eq!(text_field(&failed["execution"], "code"), "OUTCOME_UNKNOWN", "{failed}");
    // Late reports of the agent are rejected.
    let body = json!({ "attempt": claim["attempt"], "result": "success" });
    let path = |action: &str| format!("/tasks/{}/{action}", task.id);
    let _ = fixture.agent.post(&path("complete"), &body).await.expect_problem(409, "NOT_PRESENT");
    let heartbeat = json!({ "attempt": claim["attempt"] });
    let _ = fixture.agent.post(&path("heartbeat"), &heartbeat).await.expect_problem(409, "NOT_PRESENT");
}

/// Another task waits for the same resource and changes one of the same files: it does not start before the partial change is
/// rolled back, because the rollback would be impossible afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn next_task_waits_for_rollback_of_partial_change() {
    let fixture = Fixture::embedded().await;
    let (task, _, root_guard) = rollback_data(&fixture, large_set(&fixture, "partial"), "partial").await;
    let set = task.file_set().expect("files");
    let next = set.only_last("by another task\n");
    let other = TestTask::files(&fixture, next, "partial").await;
    fixture.waiting_worker(&TestTask::resource_lock("partial"), &other.id).await;
    release_root_and_poll(set.watch(false), root_guard, || {
        fixture.worker_process("").kill().expect("killed");
    });
    assert_eq!(set.state().expect("old or new content"), FileSetState::Partial, "killed half-way");
    fixture.restart_killed();
    let failed =
        fixture.office.wait_for_task("the task is rolled back", &task.id, TestTask::is_finished).await;
    assert_eq!(failed["execution"]["rolled_back"], true, "{failed}");
    let completed =
        fixture.office.wait_for_task("the other task finishes", &other.id, TestTask::is_finished).await;
    assert_eq!(text_field(&completed, "state"), "COMPLETED", "{completed}");
    other.check(&fixture, &completed).expect("the file of the other task is changed");
    let rest = set.without_last().state().expect("old or new content");
    assert_eq!(rest, FileSetState::Unchanged, "the other files are rolled back");
    graceful_shutdown_finishes_running_commands(&fixture).await;
}

/// With more tasks than slots, running ones finish before the shutdown and the others run after the restart.
async fn graceful_shutdown_finishes_running_commands(fixture: &Fixture) {
    let mut tasks = Vec::new();
    for number in 0..20 {
        tasks.push(TestTask::command(fixture, &format!("command-{number}")).await);
    }
    let observe = || async {
        let started = tasks.iter().filter(|task| task.run_count(fixture) > 0).count();
        if started > 4 { Ok(()) } else { Err(format!("{started} commands started")) }
    };
    until("some commands run", TIMEOUT, observe)
        .await
        .unwrap_or_else(|error| fixture.fail(&error.to_string()));
    fixture.servers[0].stop().expect("shuts down");
    fixture.restart_killed();
    for task in &tasks {
        let finished =
            fixture.office.wait_for_task("the task finishes", &task.id, TestTask::is_finished).await;
        assert_eq!(
            (text_field(&finished, "state").as_str(), task.run_count(fixture)),
            ("COMPLETED", 1),
            "{finished}"
        );
    }
}

/// No temporary files of ADE stay in the root. Their folder is removed by the next worker that locks the root.
async fn check_no_temporary_files(fixture: &Fixture, what: &str) {
    let is_temporary = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".ade");
    let observe = || async {
        let found = list_tree(&fixture.root).into_iter();
        let found: Vec<_> = found.filter(|path| path.file_name().is_some_and(is_temporary)).collect();
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    };
    let removed = until(&format!("{what}: no temporary files"), RECOVERY_TIMEOUT, observe).await;
    removed.unwrap_or_else(|error| fixture.fail(&error.to_string()));
}

struct CrashCampaign {
    name: &'static str,
    fixture: Fixture,
    faults: &'static [Fault],
    /// How often each crash point was tried, and how often the outcome proves that it was hit.
    hits: BTreeMap<(CrashPoint, Fault), (u32, u32)>,
    outcomes: BTreeMap<String, u32>,
    slowest_recovery: (Duration, String),
    /// Expected value of the counter file.
    counter: u64,
}

impl CrashCampaign {
    fn new(name: &'static str, fixture: Fixture, faults: &'static [Fault]) -> Self {
        Self {
            name,
            fixture,
            faults,
            hits: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            slowest_recovery: (Duration::ZERO, String::new()),
            counter: 0,
        }
    }

    async fn run(mut self, rounds: u64) {
        let (seed, started) = (effort::seed(), Instant::now());
        let mut rng = SeededRng::new(seed, rounds);
        // All combinations of crash points and faults in turn; the seed selects the first one.
        let first = rng.below(CRASH_POINTS.len() as u64 * self.faults.len() as u64);
        for round in 0..rounds {
            let number = first + round;
            let index = |number: u64, len: usize| usize::try_from(number % len as u64).expect("few");
            let point = CRASH_POINTS[index(number, CRASH_POINTS.len())];
            let fault = self.faults[index(number / CRASH_POINTS.len() as u64 + number, self.faults.len())];
            let mut rng = SeededRng::new(seed, round);
            let round_started = Instant::now();
            self.run_round(&format!("round-{round}"), point, fault, &mut rng).await;
            eprintln!("{} round {round}: {fault:?} at {point:?}, {:.1?}", self.name, round_started.elapsed());
        }
        let verified = self.fixture.office.api.verify_audit().await;
        assert_eq!(verified["valid"], true, "{verified}");
        self.run_audit_verify();
        let (took, when) = &self.slowest_recovery;
        eprintln!(
            "{}: {rounds} rounds in {:.0?} (seed {seed}); crash points (tried, proven hits): {:?}; \
             outcomes: {:?}; slowest recovery {took:.1?} after lease and locks expired, {when}",
            self.name,
            started.elapsed(),
            self.hits,
            self.outcomes,
        );
        if rounds >= 100 {
            for point in CRASH_POINTS {
                let hits =
                    self.hits.iter().filter(|((hit, _), _)| *hit == point).map(|(_, (_, proven))| proven);
                assert!(hits.sum::<u32>() > 0, "{point:?} was never hit");
            }
        }
    }

    async fn run_round(&mut self, name: &str, point: CrashPoint, fault: Fault, rng: &mut SeededRng) {
        let what = format!("{name}: {fault:?} at {point:?}");
        let resource = format!("{name}-shared");
        let disappears = rng.below(2) == 0;
        let background = background_tasks(&self.fixture, name, self.counter, rng);
        let (mut tasks, agent_task) = tokio::join!(background, TestTask::agent(&self.fixture, disappears));
        let agent_attempt = self.claim(&agent_task).await;
        let fixture = &self.fixture;
        let inject = |worker: &str| match fault {
            Fault::Kill => fixture.worker_process(worker).kill().expect("killed"),
            Fault::Suspend => fixture.suspend(worker),
            Fault::FlushRedis => {
                fixture.redis.as_ref().expect("Redis").query::<()>(&["FLUSHALL"]).expect("flushed");
            }
        };
        let faulted = point.inject(fixture, name, &resource, rng, inject).await;
        // A killed or suspended worker changes nothing any more.
        let left_as = match fault {
            Fault::FlushRedis => None,
            _ => {
                let set = faulted.task.file_set();
                set.map(|set| set.state().unwrap_or_else(|error| fixture.fail(&error)))
            }
        };
        let mut deadline = self.end_fault(&what, fault, &faulted).await;
        let FaultedTask { task, attempt, blocking_lock, root_guard, competing_task, .. } = faulted;
        if let Some(lock) = blocking_lock {
            lock.release().await;
            deadline = deadline.max(Instant::now());
        }
        if root_guard.is_some() && point == CrashPoint::RollbackDataSaved {
            // Recovery inspects the files once the root is free.
            deadline = deadline.max(Instant::now());
        }
        drop(root_guard);
        self.complete_agent_task(&agent_task, agent_attempt).await;
        self.check_recovered(&what, &task, attempt, deadline, fault).await;
        let competing_task = match competing_task {
            Some(task) => task,
            None => {
                let set = competing_set(&self.fixture, name, rng);
                TestTask::files(&self.fixture, set, &resource).await
            }
        };
        let faulted_index = tasks.len();
        tasks.extend([task, agent_task, competing_task]);
        let finished = self.wait_until_finished(&what, &tasks).await;
        self.counter += u64::from(text_field(&finished[faulted_index - 1], "state") == "COMPLETED");
        self.check_outcome(&what, point, fault, left_as, &finished[faulted_index]);
        self.check_clean(&what, &tasks).await;
    }

    /// The agent claims its task; returns the attempt.
    async fn claim(&self, task: &TestTask) -> u64 {
        let observe = || async {
            let response = self.fixture.agent.post("/tasks/claim", &json!({ "wait_seconds": 5.0 })).await;
            if response.status == 200 { Ok(response.json()) } else { Err(response.text()) }
        };
        let claim = until("the agent claims its task", TIMEOUT, observe).await;
        let claim = claim.unwrap_or_else(|error| self.fixture.fail(&error.to_string()));
        assert_eq!(claim["task"]["task_id"], task.id.as_str());
        attempt(&claim)
    }

    /// The agent reports success, unless it disappears.
    async fn complete_agent_task(&self, task: &TestTask, attempt: u64) {
        if matches!(task.kind, TaskKind::Agent { disappears: false }) {
            let body = json!({ "attempt": attempt, "result": "success" });
            let response = self.fixture.agent.post(&format!("/tasks/{}/complete", task.id), &body).await;
            // The report may be too late.
            assert!(response.status == 200 || response.code() == "NOT_PRESENT", "{}", response.text());
        }
    }

    /// Restarts or resumes the faulted process. Returns the time from which recovery is measured: when lease and locks have
    /// expired and nothing blocks it.
    async fn end_fault(&self, what: &str, fault: Fault, faulted: &FaultedTask) -> Instant {
        let fixture = &self.fixture;
        match fault {
            Fault::Kill => fixture.restart_killed(),
            Fault::Suspend if faulted.attempt > 0 => {
                let is_taken_over = |now: &Value| attempt(now) > faulted.attempt;
                let wait = format!("{what}: another worker takes over");
                fixture.wait_for_execution(&wait, &faulted.task.id, is_taken_over).await;
            }
            Fault::Suspend | Fault::FlushRedis => {}
        }
        let mut deadline = faulted.faulted_at + LEASE;
        if fault == Fault::Kill && fixture.redis.is_none() {
            deadline = deadline.max(Instant::now());
        }
        if fault == Fault::Suspend {
            fixture.worker_process(&faulted.worker).signal(Signal::CONT).expect("resumed");
            // A suspended process keeps the files locked that recovery needs.
            deadline = deadline.max(Instant::now());
        }
        deadline
    }

    /// The attempt is recovered in time and does not hold its locks any more.
    async fn check_recovered(
        &mut self,
        what: &str,
        task: &TestTask,
        faulted_attempt: u64,
        deadline: Instant,
        fault: Fault,
    ) {
        let fixture = &self.fixture;
        let holder = format!("{}:{faulted_attempt}", task.id);
        let observe = || async {
            let now = fixture.office.task_request(&task.id).await;
            let execution = now.get("execution").cloned().unwrap_or_default();
            let is_recovered = TestTask::is_finished(&now)
                || attempt(&execution) > faulted_attempt
                // After a flush the worker may have continued and ended the attempt.
                || (fault == Fault::FlushRedis && text_field(&execution, "phase") == "ENDED");
            for lock in &task.locks {
                if fixture.holders(lock).await?.contains(&holder) && !TestTask::is_finished(&now) {
                    return Err(format!("{lock} is held by {holder}"));
                }
            }
            if is_recovered { Ok(()) } else { Err(now.to_string()) }
        };
        let recovered = until(&format!("{what}: the task is recovered"), TIMEOUT, observe).await;
        recovered.unwrap_or_else(|error| fixture.fail(&error.to_string()));
        let took = Instant::now().saturating_duration_since(deadline);
        if took > RECOVERY_TIMEOUT {
            fixture.fail(&format!("{what}: recovered only {took:.1?} after lease and locks expired"));
        }
        self.slowest_recovery = self.slowest_recovery.clone().max((took, what.to_owned()));
    }

    /// Waits until all tasks are finished; attempts only increase meanwhile.
    async fn wait_until_finished(&self, what: &str, tasks: &[TestTask]) -> Vec<Value> {
        let mut finished = Vec::new();
        for task in tasks {
            let highest = std::cell::Cell::new(0);
            let highest = &highest;
            let observe = || async move {
                let now = self.fixture.office.task_request(&task.id).await;
                let current = attempt(&now["execution"]);
                assert!(current >= highest.replace(current), "{what}: the attempt decreased: {now}");
                if TestTask::is_finished(&now) { Ok(now) } else { Err(now.to_string()) }
            };
            let now = until(&format!("{what}: the task finishes"), TIMEOUT, observe).await;
            finished.push(now.unwrap_or_else(|error| self.fixture.fail(&error.to_string())));
        }
        for (task, now) in tasks.iter().zip(&finished) {
            if let Err(mismatch) = task.check(&self.fixture, now) {
                self.fixture.fail(&format!("{what}: {mismatch}"));
            }
        }
        finished
    }

    /// Records whether the crash point was provably hit, and checks the outcome of a kill against the state of the files.
    fn check_outcome(
        &mut self,
        what: &str,
        point: CrashPoint,
        fault: Fault,
        left_as: Option<FileSetState>,
        task: &Value,
    ) {
        let (is_completed, execution) = (text_field(task, "state") == "COMPLETED", &task["execution"]);
        let is_proven = match point {
            CrashPoint::WaitingForLocks | CrashPoint::Prepared | CrashPoint::RollbackDataSaved => {
                left_as.is_none_or(|state| state == FileSetState::Unchanged)
            }
            CrashPoint::PartlyChanged => left_as == Some(FileSetState::Partial),
            CrashPoint::Changed => left_as == Some(FileSetState::Changed) && !is_completed,
            CrashPoint::CommandRunning => !is_completed,
        };
        if fault == Fault::Kill {
            let state = left_as.unwrap_or(FileSetState::Unchanged);
            match point {
                // Nothing was changed, so another attempt applies the task.
                CrashPoint::WaitingForLocks | CrashPoint::Prepared => assert!(is_completed, "{what}: {task}"),
                CrashPoint::RollbackDataSaved => {
                    assert_eq!(text_field(execution, "code"), "WORKER_LOST", "{what}: {task}");
                }
                CrashPoint::PartlyChanged | CrashPoint::Changed if !is_completed => {
                    let needs_rollback = state != FileSetState::Unchanged;
                    assert_eq!(execution["rolled_back"] == true, needs_rollback, "{what}, {state:?}: {task}");
                }
                CrashPoint::PartlyChanged | CrashPoint::Changed => {
                    assert_eq!(state, FileSetState::Changed, "{what}: {task}");
                }
                CrashPoint::CommandRunning => {
                    assert!(is_completed || text_field(execution, "code") == "OUTCOME_UNKNOWN", "{task}");
                }
            }
        }
        let (tried, proven) = self.hits.entry((point, fault)).or_default();
        *tried += 1;
        *proven += u32::from(is_proven);
    }

    /// No temporary files are left and all locks are free.
    async fn check_clean(&mut self, what: &str, tasks: &[TestTask]) {
        check_no_temporary_files(&self.fixture, what).await;
        for lock in tasks.iter().flat_map(|task| &task.locks) {
            let expected = format!("{what}: {lock} is free");
            let free = until(&expected, LEASE + RECOVERY_TIMEOUT, || async {
                let holders = self.fixture.holders(lock).await?;
                if holders.is_empty() { Ok(()) } else { Err(format!("{holders:?}")) }
            });
            free.await.unwrap_or_else(|error| self.fixture.fail(&error.to_string()));
        }
        for task in tasks {
            let now = self.fixture.office.task_request(&task.id).await;
            let outcome = format!("{} {}", text_field(&now, "state"), text_field(&now["execution"], "code"));
            *self.outcomes.entry(outcome.trim().to_owned()).or_default() += 1;
        }
    }

    /// Runs `ade audit verify` as a user would.
    fn run_audit_verify(&self) {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ade"));
        let url = self.fixture.servers[0].url();
        command
            .args(["audit", "verify"])
            .env("ADE_SERVER", url)
            .env("ADE_TOKEN", ade_testkit::server::BOOTSTRAP_TOKEN);
        let verified = command.output().expect("runs");
        assert!(verified.status.success(), "{verified:?}");
    }
}
