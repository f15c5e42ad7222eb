//! Files below one root that an operator allows: previewed as diffs, changed all or none, and restored by a rollback.
//!
//! Nothing outside the root is ever read or written, whatever symbolic links exist. The fence is an exclusive lock on the root
//! (flock on the directory itself), which recovery takes as well. A worker that was suspended before it took the lock could
//! continue after its attempt was recovered. Therefore each attempt is registered by a file in the directory `.ade` of the root
//! before its rollback data is stored. An attempt changes nothing unless it is registered, and recovery unregisters it. Before the
//! first change it is marked as in progress. A worker that holds the lock and finds another attempt in progress knows that its
//! worker is lost, and waits for its recovery instead of building on incomplete changes. The directory is removed with the last
//! attempt.
//!
//! A task may name a command template that verifies the files at the end, still under the lock. If that command fails, all files
//! are restored at once.

mod change_set;
mod parameters;
mod preview;
mod snapshot;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{Digest, Preview};
use tokio::task::spawn_blocking;

use crate::parameters::invalid_parameters;
use crate::{
    AttemptOutcome, BoxFuture, CommandExecutor, Executor, Failure, Fencing, Parameters, Run, SideEffects,
    StopReason, StopSignal,
};
use change_set::ChangeSet;
use parameters::{ATTEMPTS_DIR, FileSpec, VerifySpec};
use snapshot::Snapshot;
use tree::{FlockKind, Tree};

const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Shorter, because the whole preview has little time.
const PREVIEW_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Shorter, because recovery is repeated anyway.
const RECOVERY_LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// flock has no asynchronous notification.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a root of files: it must be an absolute path without control characters, \".\", \"..\" or a slash at the end"
)]
pub struct InvalidRoot(String);

type Hook = Arc<dyn Fn(usize) + Send + Sync>;
/// The command that verifies the changes of a task.
type Verifier<'a> = (VerifySpec, &'a Arc<CommandExecutor>);

/// Changes files below one root.
#[derive(Clone)]
pub struct FilesExecutor {
    root: String,
    verifiers: BTreeMap<String, Arc<CommandExecutor>>,
    recovery_lock_timeout: Duration,
    /// Tests set this to interrupt an attempt before a step; it gets the number of the step.
    step_hook: Option<Hook>,
}

impl fmt::Debug for FilesExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("root", &self.root).finish_non_exhaustive()
    }
}

impl FilesExecutor {
    /// Tasks must name the root exactly like this. It may be created later. It must not be a symbolic link.
    pub fn new(root: impl Into<String>) -> Result<Self, InvalidRoot> {
        let root = root.into();
        let is_valid = root.strip_prefix('/').is_some_and(|rest| {
            !rest.chars().any(char::is_control)
                && rest.split('/').all(|name| !name.is_empty() && name != "." && name != "..")
        });
        if !is_valid {
            return Err(InvalidRoot(root));
        }
        let recovery_lock_timeout = RECOVERY_LOCK_TIMEOUT;
        Ok(Self { root, verifiers: BTreeMap::new(), recovery_lock_timeout, step_hook: None })
    }

    /// Sets the command templates that tasks may name to verify their changes.
    #[must_use]
    pub fn with_verifiers(mut self, verifiers: BTreeMap<String, Arc<CommandExecutor>>) -> Self {
        self.verifiers = verifiers;
        self
    }

    #[must_use]
    pub fn work_queue(&self) -> String {
        format!("files:{}", self.root)
    }

    /// Locks the root. With `task`, also waits until no attempt of another task is in progress; the empty task owns no attempt.
    async fn lock(
        &self,
        mode: FlockKind,
        timeout: Duration,
        task: Option<&str>,
        stop: Option<&StopSignal>,
    ) -> Result<Tree, Failure> {
        let bounded = async {
            let mut blocker = None;
            let poll = async {
                loop {
                    let (root, task) = (self.root.clone(), task.map(str::to_owned));
                    let locked = blocking(SideEffects::None, move || {
                        let Some(tree) = Tree::try_lock(&root, mode)? else { return Ok(Err(None)) };
                        let Some(task) = task else { return Ok(Ok(tree)) };
                        let is_own = |key: &str| AttemptKey::attempt_of(&task, key).is_some();
                        Ok(tree.find_in_progress(is_own)?.map_or(Ok(tree), |blocker| Err(Some(blocker))))
                    });
                    match locked.await? {
                        Ok(tree) => return Ok(tree),
                        Err(found) => blocker = found,
                    }
                    tokio::time::sleep(LOCK_POLL_INTERVAL).await;
                }
            };
            if let Ok(result) = tokio::time::timeout(timeout, poll).await {
                return result;
            }
            let (root, seconds) = (&self.root, timeout.as_secs_f32());
            Err(Failure::retryable(match blocker {
                None => format!("{root:?} was locked by others for {seconds} s; try again later"),
                Some(blocker) => format!(
                    "a lost worker left incomplete changes in {root:?}; wait until a worker with this root has recovered \
                     its task, or, if that task has ended, remove {ATTEMPTS_DIR}/{blocker} there"
                ),
            }))
        };
        match stop {
            None => bounded.await,
            Some(stop) => {
                let stopped = |reason| Err(Failure::stopped(reason, SideEffects::None));
                stop.run_until_stopped(bounded).await.unwrap_or_else(stopped)
            }
        }
    }

    /// Locks the root exclusively for an attempt.
    async fn lock_for(&self, run: &Run) -> Result<Tree, Failure> {
        let key = AttemptKey::of(run);
        self.lock(FlockKind::Exclusive, LOCK_TIMEOUT, Some(&key.task), Some(&run.stop)).await
    }

    fn parse(
        &self,
        parameters: &Parameters,
    ) -> Result<(Vec<FileSpec>, Option<Verifier<'_>>), Vec<InvalidField>> {
        match (parameters::parse(&self.root, parameters), self.verifier(parameters)) {
            (Ok(specs), Ok(verifier)) => Ok((specs, verifier)),
            (specs, verifier) => Err(specs.err().into_iter().chain(verifier.err()).flatten().collect()),
        }
    }

    fn verifier(&self, parameters: &Parameters) -> Result<Option<Verifier<'_>>, Vec<InvalidField>> {
        let Some(spec) = parameters::verify_spec(parameters)? else { return Ok(None) };
        let Some(command) = self.verifiers.get(&spec.template) else {
            let known: Vec<&str> = self.verifiers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let detail = format!("must be a command template that the operator allows: {known}");
            return Err(vec![InvalidField::at("verify.template", detail)]);
        };
        let in_verify = |violation: InvalidField| violation.within("verify");
        command
            .check_verification(spec.arguments.as_ref())
            .map_err(|violations| violations.into_iter().map(in_verify).collect::<Vec<_>>())?;
        Ok(Some((spec, command)))
    }

    /// Parses parameters that were valid when the task was proposed.
    fn parse_again(&self, parameters: &Parameters) -> Result<(Vec<FileSpec>, Option<Verifier<'_>>), Failure> {
        self.parse(parameters).map_err(invalid_parameters)
    }

    fn steps(&self) -> Steps {
        Steps { hook: self.step_hook.clone(), count: 0.into() }
    }
}

impl Executor for FilesExecutor {
    fn validate(&self, parameters: &Parameters) -> Result<(), Vec<InvalidField>> {
        self.parse(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> BoxFuture<'a, Result<Preview, Failure>> {
        Box::pin(async {
            let (specs, verifier) = self.parse_again(parameters)?;
            let notes = verifier.map(|(spec, _)| format!("verified by the template {}", spec.template));
            let notes = notes.into_iter().collect();
            let tree = self.lock(FlockKind::Shared, PREVIEW_LOCK_TIMEOUT, Some(""), None).await?;
            blocking(SideEffects::None, move || Ok(preview::preview(&tree, &specs, notes))).await
        })
    }

    fn prepare_rollback<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async {
            let ((specs, _), key) = (self.parse_again(&run.parameters)?, AttemptKey::of(run));
            let approved = run.approved_fingerprint.clone();
            let tree = self.lock_for(run).await?;
            blocking(SideEffects::None, move || {
                let snapshot = Snapshot::take(&tree, &specs).map_err(Failure::retryable)?;
                // The files may have changed between the worker's last preview and this lock.
                let current = preview::fingerprint(&snapshot.entries).map(|current| current.to_string());
                if approved.is_some() && approved != current {
                    return Err(Failure::retryable(
                        "the files have changed since the approval of this task; nothing was changed",
                    ));
                }
                let bytes = snapshot.to_bytes().map_err(|error| Failure::permanent(error.to_string()))?;
                // Earlier attempts of this task have ended, some of them without unregistering. Later ones are kept: this worker
                // may have been suspended, and must not interfere with its successor.
                let is_earlier = |other: &str| {
                    AttemptKey::attempt_of(&key.task, other).is_some_and(|attempt| attempt < key.attempt)
                };
                tree.register(&key.to_string(), is_earlier)?;
                Ok(bytes)
            })
            .await
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, rollback_data: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async {
            let prepare = async {
                let parsed = (self.parse_again(&run.parameters)?, read_snapshot(rollback_data).await?);
                Ok::<_, Failure>((parsed, self.lock_for(run).await?))
            };
            let (((specs, verifier), snapshot), tree) = match prepare.await {
                Ok(prepared) => prepared,
                Err(failure) => {
                    // After a lost lease the next owner of the attempt decides.
                    if run.stop.reason() != Some(StopReason::LeaseLost) {
                        self.clean_up(&run.task_id, run.attempt).await;
                    }
                    return Err(failure);
                }
            };
            let changes = ChangeSet::new(tree, run, snapshot, self.steps());
            let has_verifier = verifier.is_some();
            // If this future is dropped, the blocking task completes by itself, under its lock.
            let (changes, result) = blocking(SideEffects::Remaining, move || {
                let result = changes.apply(&specs);
                if result.is_err() || !has_verifier {
                    changes.finish();
                }
                Ok((changes, result))
            })
            .await?;
            result?;
            let Some((spec, command)) = verifier else { return Ok(()) };
            // If the worker dies here, recovery finds that everything was applied.
            let verified = command.verify(spec.arguments.as_ref(), run).await;
            let failed = verified.err().map(|failure| {
                let message = format!("verification by the template {:?} failed: {failure}", spec.template);
                Failure { message, side_effects: SideEffects::None, is_retryable: false, ..failure }
            });
            blocking(SideEffects::Remaining, move || {
                let result = failed.map_or(Ok(()), |failure| Err(changes.revert_after(failure)));
                changes.finish();
                result
            })
            .await
        })
    }

    fn roll_back<'a>(&'a self, run: &'a Run, rollback_data: &'a [u8]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async {
            let snapshot = read_snapshot(rollback_data).await.map_err(Failure::not_rolled_back)?;
            let tree = self.lock(FlockKind::Exclusive, LOCK_TIMEOUT, None, Some(&run.stop)).await;
            let tree = tree.map_err(Failure::not_rolled_back)?;
            let changes = ChangeSet::new(tree, run, snapshot, self.steps());
            blocking(SideEffects::Remaining, move || changes.roll_back()).await
        })
    }

    fn resolve_outcome<'a>(
        &'a self,
        run: &'a Run,
        rollback_data: &'a [u8],
    ) -> BoxFuture<'a, Result<AttemptOutcome, Failure>> {
        Box::pin(async {
            let snapshot = read_snapshot(rollback_data).await?;
            let timeout = self.recovery_lock_timeout;
            let tree = self.lock(FlockKind::Exclusive, timeout, None, Some(&run.stop)).await?;
            let changes = ChangeSet::new(tree, run, snapshot, self.steps());
            blocking(SideEffects::Unknown, move || changes.resolve_outcome()).await
        })
    }

    fn clean_up<'a>(&'a self, task_id: &'a str, attempt: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (root, key) = (self.root.clone(), AttemptKey::new(task_id, attempt));
            // At once and without the lock, because others may wait for this while they hold it.
            let unregistered = blocking(SideEffects::None, move || {
                Ok(Tree::unregister_without_lock(&root, &key.to_string())?)
            });
            if let Err(error) = unregistered.await {
                tracing::warn!(task_id, attempt, root = self.root, %error, "cannot unregister attempt at files");
            }
            // Removing the empty directory takes the lock; nothing depends on when this happens.
            let files = self.clone();
            tokio::spawn(async move {
                if let Ok(tree) = files.lock(FlockKind::Exclusive, LOCK_TIMEOUT, None, None).await {
                    let _ = blocking(SideEffects::None, move || Ok(tree.remove_dir(ATTEMPTS_DIR)?)).await;
                }
            });
        })
    }

    fn fencing(&self) -> Fencing {
        Fencing::Fenced
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        true
    }
}

async fn read_snapshot(rollback_data: &[u8]) -> Result<Snapshot, Failure> {
    let bytes = rollback_data.to_vec();
    let read = move || Snapshot::from_bytes(&bytes).map_err(|error| Failure::permanent(error.to_string()));
    blocking(SideEffects::None, read).await
}

/// Runs `work` on a thread that may block. `side_effects` are reported if it panics.
async fn blocking<T: Send + 'static>(
    side_effects: SideEffects,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let result = spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(Failure::with_side_effects(side_effects, format!("aborted: {error}"))))
}

/// An attempt, as a part of file names.
#[derive(Debug, Clone)]
struct AttemptKey {
    task: String,
    attempt: u64,
}

impl AttemptKey {
    fn of(run: &Run) -> Self {
        Self::new(&run.task_id, run.attempt)
    }

    /// A task id that is not a plain file name is replaced by its digest.
    fn new(task_id: &str, attempt: u64) -> Self {
        let is_plain = (1..=64).contains(&task_id.len())
            && task_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let task =
            if is_plain { task_id.to_owned() } else { Digest::of_bytes(task_id.as_bytes()).to_string() };
        Self { task, attempt }
    }

    /// The number of the attempt, if `key` belongs to this task.
    fn attempt_of(task: &str, key: &str) -> Option<u64> {
        let (key_task, attempt) = key.rsplit_once('-')?;
        attempt.parse().ok().filter(|_| key_task == task)
    }
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task, self.attempt)
    }
}

/// Calls the hook of a test before each step.
struct Steps {
    hook: Option<Hook>,
    count: std::cell::Cell<usize>,
}

impl Steps {
    fn next(&self) {
        if let Some(hook) = &self.hook {
            hook(self.count.replace(self.count.get() + 1));
        }
    }
}
