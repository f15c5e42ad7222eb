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
mod visibility;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::InvalidField;
use ade_domain::task::{Digest, Preview};
use async_trait::async_trait;
use rustix::fs::FlockOperation;
use tokio::task::spawn_blocking;

use crate::{
    AttemptOutcome, CommandExecutor, Executor, Failure, Fencing, Parameters, Result, Run, SideEffects,
    StopReason, Validated,
};
use change_set::ChangeSet;
use parameters::{ATTEMPTS_DIR, FileSpec};
pub(crate) use parameters::{changed_paths, verify_spec};
use preview::Presentation;
use snapshot::Snapshot;
use tree::Tree;
pub use visibility::{KeyedHash, Visibility};

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

/// Tests set this to interrupt an attempt before a step.
type StepHook = Arc<dyn Fn() + Send + Sync>;

/// The command that verifies the changes of a task.
struct Verifier<'a> {
    template: String,
    argv: Vec<String>,
    command: &'a CommandExecutor,
}

/// Changes files below one root.
#[derive(Clone)]
pub struct FilesExecutor {
    /// The name that tasks use.
    name: String,
    root: String,
    verifiers: BTreeMap<String, Arc<CommandExecutor>>,
    visibility: Visibility,
    keyed_hash: KeyedHash,
    recovery_lock_timeout: Duration,
    step_hook: Option<StepHook>,
}

impl fmt::Debug for FilesExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("root", &self.root).finish_non_exhaustive()
    }
}

impl FilesExecutor {
    /// `root` is the path behind the name. It may be created later. It must not be a symbolic link. `verifiers` are the command
    /// templates that tasks may name to verify their changes. `keyed_hash` is for hidden files.
    pub fn new(
        name: impl Into<String>,
        root: impl Into<String>,
        verifiers: BTreeMap<String, Arc<CommandExecutor>>,
        keyed_hash: KeyedHash,
    ) -> Result<Self, InvalidRoot> {
        let root = root.into();
        let is_valid = root.strip_prefix('/').is_some_and(|rest| {
            !rest.chars().any(char::is_control)
                && rest.split('/').all(|name| !name.is_empty() && name != "." && name != "..")
        });
        if !is_valid {
            return Err(InvalidRoot(root));
        }
        Ok(Self {
            name: name.into(),
            root,
            verifiers,
            visibility: Visibility::default(),
            keyed_hash,
            recovery_lock_timeout: RECOVERY_LOCK_TIMEOUT,
            step_hook: None,
        })
    }

    /// Sets which existing files previews show.
    #[must_use]
    pub fn with_visibility(self, visibility: Visibility) -> Self {
        Self { visibility, ..self }
    }

    fn presentation(&self) -> Presentation {
        let Self { root, visibility, keyed_hash, .. } = self.clone();
        Presentation { root, visibility, keyed_hash }
    }

    #[must_use]
    pub fn work_queue(&self) -> String {
        format!("files:{}", self.name)
    }

    /// Locks the root. With a task id, also waits until no attempt of another task is in progress; the empty id owns no attempt.
    async fn lock(
        &self,
        operation: FlockOperation,
        timeout: Duration,
        task_id: Option<&str>,
    ) -> Result<Tree> {
        let mut blocker = None;
        let poll = async {
            loop {
                let (root, task) = (self.root.clone(), task_id.map(task_key));
                let locked = blocking(SideEffects::None, move || {
                    let Some(tree) = Tree::try_lock(&root, operation)? else { return Ok(Err(None)) };
                    let Some(task) = task else { return Ok(Ok(tree)) };
                    let is_own = |key: &str| attempt_of(&task, key).is_some();
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
    }

    /// Locks the root exclusively, unless the run must stop.
    async fn lock_for(&self, run: &Run, timeout: Duration, task: Option<&str>) -> Result<Tree> {
        let locking = self.lock(FlockOperation::NonBlockingLockExclusive, timeout, task);
        run.stop.run_until_stopped(SideEffects::None, locking).await?
    }

    fn parse(&self, parameters: &Parameters) -> Validated<(Vec<FileSpec>, Option<Verifier<'_>>)> {
        match (parameters::parse(&self.name, parameters), self.verifier(parameters)) {
            (Ok(specs), Ok(verifier)) => Ok((specs, verifier)),
            (specs, verifier) => Err(specs.err().into_iter().chain(verifier.err()).flatten().collect()),
        }
    }

    fn verifier(&self, parameters: &Parameters) -> Validated<Option<Verifier<'_>>> {
        let Some((template, arguments)) = verify_spec(parameters)? else { return Ok(None) };
        let Some(command) = self.verifiers.get(template) else {
            let known: Vec<&str> = self.verifiers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let detail = format!("must be a command template that the operator allows: {known}");
            return Err(vec![InvalidField::at("verify.template", detail)]);
        };
        let within_verify = |violations: Vec<InvalidField>| {
            violations.into_iter().map(|violation| violation.within("verify")).collect::<Vec<_>>()
        };
        let argv = command.verification(arguments).map_err(within_verify)?;
        Ok(Some(Verifier { template: template.to_owned(), argv, command }))
    }

    fn change_set(&self, tree: Tree, run: &Run, snapshot: Snapshot) -> ChangeSet {
        ChangeSet::new(tree, run, snapshot, self.step_hook.clone())
    }
}

#[async_trait]
impl Executor for FilesExecutor {
    fn validate(&self, parameters: &Parameters) -> Validated<()> {
        self.parse(parameters).map(drop)
    }

    async fn preview(&self, parameters: &Parameters) -> Result<Preview> {
        let (specs, _) = self.parse(parameters)?;
        let tree = self.lock(FlockOperation::NonBlockingLockShared, PREVIEW_LOCK_TIMEOUT, Some("")).await?;
        let presentation = self.presentation();
        blocking(SideEffects::None, move || Ok(preview::preview(&tree, &specs, &presentation))).await
    }

    async fn prepare_rollback(&self, run: &Run) -> Result<Vec<u8>> {
        let (specs, _) = self.parse(&run.parameters)?;
        let (task, attempt, approved) =
            (task_key(&run.task_id), run.attempt, run.approved_fingerprint.clone());
        let tree = self.lock_for(run, LOCK_TIMEOUT, Some(&run.task_id)).await?;
        let presentation = self.presentation();
        blocking(SideEffects::None, move || {
            let snapshot =
                Snapshot::take(&tree, &specs).map_err(|failure| Failure::retryable(failure.message))?;
            // The files may have changed between the worker's last preview and this lock.
            let current = presentation.fingerprint(&snapshot.entries).map(|current| current.to_string());
            if approved.is_some() && approved != current {
                let message = "the files have changed since the approval of this task; nothing was changed";
                return Err(Failure::retryable(message));
            }
            let bytes = snapshot.to_bytes()?;
            // Earlier attempts of this task have ended, some of them without unregistering. Later ones are kept: this worker
            // may have been suspended, and must not interfere with its successor.
            let is_earlier = |other: &str| attempt_of(&task, other).is_some_and(|other| other < attempt);
            tree.register(&format!("{task}-{attempt}"), is_earlier)?;
            Ok(bytes)
        })
        .await
    }

    async fn apply(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        let preparing = async {
            let parsed = (self.parse(&run.parameters)?, read_snapshot(rollback_data).await?);
            let tree = self.lock_for(run, LOCK_TIMEOUT, Some(&run.task_id)).await?;
            Ok::<_, Failure>((parsed, tree))
        };
        let prepared = preparing.await;
        // After a lost lease the next owner of the attempt decides.
        if prepared.is_err() && run.stop.reason() != Some(StopReason::LeaseLost) {
            self.clean_up(&run.task_id, run.attempt).await;
        }
        let (((specs, verifier), snapshot), tree) = prepared?;
        let changes = self.change_set(tree, run, snapshot);
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
        let Some(Verifier { template, argv, command }) = verifier else { return Ok(()) };
        // If the worker dies here, recovery finds that everything was applied.
        let verified = command.run_command(&argv, run).await;
        let failed = verified.err().map(|failure| {
            let message = format!("verification by the template {template:?} failed: {failure}");
            Failure { message, side_effects: SideEffects::None, is_retryable: false, ..failure }
        });
        blocking(SideEffects::Remaining, move || {
            let result = failed.map_or(Ok(()), |failure| Err(changes.revert_after(failure)));
            changes.finish();
            result
        })
        .await
    }

    async fn roll_back(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        let snapshot = read_snapshot(rollback_data).await.map_err(Failure::not_rolled_back)?;
        let tree = self.lock_for(run, LOCK_TIMEOUT, None).await.map_err(Failure::not_rolled_back)?;
        let changes = self.change_set(tree, run, snapshot);
        blocking(SideEffects::Remaining, move || changes.roll_back()).await
    }

    async fn resolve_outcome(&self, run: &Run, rollback_data: &[u8]) -> Result<AttemptOutcome> {
        let snapshot = read_snapshot(rollback_data).await?;
        let tree = self.lock_for(run, self.recovery_lock_timeout, None).await?;
        let changes = self.change_set(tree, run, snapshot);
        blocking(SideEffects::Unknown, move || changes.resolve_outcome()).await
    }

    async fn clean_up(&self, task_id: &str, attempt: u64) {
        let (root, key) = (self.root.clone(), attempt_key(task_id, attempt));
        // At once and without the lock, because others may wait for this while they hold it.
        let unregistered =
            blocking(SideEffects::None, move || Ok(Tree::unregister_without_lock(&root, &key.to_string())?));
        if let Err(error) = unregistered.await {
            tracing::warn!(task_id, attempt, root = self.root, %error, "cannot unregister attempt at files");
        }
        // Removing the empty directory takes the lock; nothing depends on when this happens.
        let files = self.clone();
        tokio::spawn(async move {
            if let Ok(tree) = files.lock(FlockOperation::NonBlockingLockExclusive, LOCK_TIMEOUT, None).await {
                let _ = blocking(SideEffects::None, move || Ok(tree.remove_dir(ATTEMPTS_DIR)?)).await;
            }
        });
    }

    fn fencing(&self) -> Fencing {
        Fencing::Fenced
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        true
    }
}

async fn read_snapshot(rollback_data: &[u8]) -> Result<Snapshot> {
    let bytes = rollback_data.to_vec();
    blocking(SideEffects::None, move || Snapshot::from_bytes(&bytes)).await
}

/// Runs `work` on a thread that may block. `side_effects` are reported if it panics.
async fn blocking<T: Send + 'static>(
    side_effects: SideEffects,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let result = spawn_blocking(work).await;
    result.unwrap_or_else(|error| Err(Failure::with_side_effects(side_effects, format!("aborted: {error}"))))
}

/// A task as a part of file names. An id that is not a plain file name is replaced by its digest.
fn task_key(task_id: &str) -> String {
    let is_plain = (1..=64).contains(&task_id.len())
        && task_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_plain { task_id.to_owned() } else { Digest::of_bytes(task_id.as_bytes()).to_string() }
}

/// An attempt as a part of file names.
fn attempt_key(task_id: &str, attempt: u64) -> String {
    format!("{}-{attempt}", task_key(task_id))
}

/// The number of the attempt, if `key` belongs to this task.
fn attempt_of(task_key: &str, key: &str) -> Option<u64> {
    let (key_task, attempt) = key.rsplit_once('-')?;
    attempt.parse().ok().filter(|_| key_task == task_key)
}
