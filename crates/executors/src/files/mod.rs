//! Files below one root that an operator allows: previewed as diffs, changed all or none, and changed back.
//!
//! Nothing outside the root is ever read or written, whatever links there are. The fence is an exclusive lock on the root
//! (flock on the folder itself), which is also taken to find out what a worker left. A worker that was stopped before it took
//! the lock, and goes on after it was given up, is shut out by a note: each attempt is noted in the folder `.ade` of the root
//! when its stash is made, changes nothing unless its note is there, and loses it when it is settled. A note is marked before the
//! first change: whoever gets the lock and finds a marked note knows that its worker is gone, and waits until that is settled, so
//! that nothing is built on half a set. After every attempt that has ended, the folder is gone.
//!
//! A task may name a command template that decides in the end, still under the lock, whether the files stay: if it does not end
//! well, all of them are changed back at once.

mod change;
mod parameters;
mod preview;
mod stash;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ade_domain::Invalid;
use ade_domain::task::{Digest, Preview};
use tokio::task::spawn_blocking;

use crate::{
    Changed, Command, Executor, Failure, Fence, Halt, Halted, Parameters, Run, Settled, Work, halt_failure,
    unfit,
};
use change::Change;
use parameters::{NOTES, Verify, Wanted, parse};
use stash::Stash;
use tree::{Lock, Tree, TreeError};

/// How long others at the same root are waited for, before anything is changed.
const WAIT: Duration = Duration::from_secs(30);
/// The same before a preview, which has little time as a whole.
const WAIT_TO_LOOK: Duration = Duration::from_secs(10);
/// The same before settling, which is tried again anyway.
const WAIT_TO_SETTLE: Duration = Duration::from_secs(3);
/// A lock on a folder tells nobody when it is free.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// A root that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a root of files: it must be an absolute path without control characters, \".\" or \"..\", and not end with a slash"
)]
pub struct BadRoot(String);

type Hook = Arc<dyn Fn(usize) + Send + Sync>;

/// Changes files below one root.
#[derive(Clone)]
pub struct Files {
    root: String,
    verifiers: BTreeMap<String, Arc<Command>>,
    wait_to_settle: Duration,
    pause: Option<Hook>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Files {
    /// Below this root, which tasks name exactly like this. It may come to be later; it must not be a symbolic link.
    pub fn new(root: impl Into<String>) -> Result<Self, BadRoot> {
        let root = root.into();
        let plain = root.strip_prefix('/').is_some_and(|rest| {
            !rest.chars().any(char::is_control)
                && rest.split('/').all(|name| !name.is_empty() && name != "." && name != "..")
        });
        if !plain {
            return Err(BadRoot(root));
        }
        Ok(Self { root, verifiers: BTreeMap::new(), wait_to_settle: WAIT_TO_SETTLE, pause: None })
    }

    /// With the command templates, by their names, that tasks may choose to verify what was changed.
    #[must_use]
    pub fn with_verifiers(mut self, verifiers: BTreeMap<String, Arc<Command>>) -> Self {
        self.verifiers = verifiers;
        self
    }

    /// Where its tasks are carried out.
    #[must_use]
    pub fn place(&self) -> String {
        format!("files:{}", self.root)
    }

    /// For tests: called before each step, with its number.
    #[doc(hidden)]
    #[must_use]
    pub fn with_pause(mut self, pause: Arc<dyn Fn(usize) + Send + Sync>) -> Self {
        self.pause = Some(pause);
        self
    }

    /// For tests: how long settling waits for the lock.
    #[doc(hidden)]
    #[must_use]
    pub const fn with_wait_to_settle(mut self, wait: Duration) -> Self {
        self.wait_to_settle = wait;
        self
    }

    /// The tree, once nobody else is at it.
    async fn lock(&self, lock: Lock, wait: Duration, halted: Option<&Halted>) -> Result<Tree, Failure> {
        self.lock_unless(lock, wait, halted, |_| Ok(None)).await
    }

    /// The same, once nothing is left that has to be settled first; what the task itself left is not in its way.
    async fn lock_settled(
        &self,
        lock: Lock,
        wait: Duration,
        task: Option<&str>,
        halted: Option<&Halted>,
    ) -> Result<Tree, Failure> {
        let task = task.unwrap_or_default().to_owned();
        self.lock_unless(lock, wait, halted, move |tree| {
            tree.under_way(NOTES, |noted| Key::attempt_at(&task, noted).is_some())
        })
        .await
    }

    async fn lock_unless<F>(
        &self,
        lock: Lock,
        wait: Duration,
        halted: Option<&Halted>,
        in_the_way: F,
    ) -> Result<Tree, Failure>
    where
        F: Fn(&Tree) -> Result<Option<String>, TreeError> + Clone + Send + 'static,
    {
        let found = std::sync::Mutex::new(None);
        let ask = async {
            loop {
                let (root, in_the_way) = (self.root.clone(), in_the_way.clone());
                let asked = blocking(Changed::Nothing, move || {
                    let Some(tree) = Tree::try_lock(&root, lock)? else { return Ok(Err(None)) };
                    Ok(in_the_way(&tree)?.map_or(Ok(tree), |noted| Err(Some(noted))))
                });
                match asked.await? {
                    Ok(tree) => return Ok(tree),
                    Err(noted) => *found.lock().unwrap_or_else(PoisonError::into_inner) = noted,
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        };
        let bounded = async {
            tokio::time::timeout(wait, ask).await.unwrap_or_else(|_| {
                let (root, seconds) = (&self.root, wait.as_secs_f32());
                let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(Failure::not_now(found.map_or_else(
                    || format!("others were at {root:?} for {seconds} s; try again later"),
                    |noted| {
                        format!(
                            "a worker that is gone left changes in {root:?} that are not settled; they will be by a worker \
                             with this root, unless its task is over: then remove {NOTES}/{noted} there"
                        )
                    },
                )))
            })
        };
        match halted {
            None => bounded.await,
            Some(halted) => halted.or(bounded).await.unwrap_or_else(|halt| Err(halt_failure(halt))),
        }
    }

    fn fits(&self, parameters: &Parameters) -> Result<(Vec<Wanted>, Option<Verifier<'_>>), Vec<Invalid>> {
        match (parse(&self.root, parameters), self.verifier(parameters)) {
            (Ok(wanted), Ok(verifier)) => Ok((wanted, verifier)),
            (wanted, verifier) => {
                let (files, verify) = (wanted.err(), verifier.err());
                Err(files.into_iter().chain(verify).flatten().collect())
            }
        }
    }

    /// What decides in the end, with arguments that it can be run with.
    fn verifier(&self, parameters: &Parameters) -> Result<Option<Verifier<'_>>, Vec<Invalid>> {
        let Some(Verify { template, arguments }) = parameters::verify(parameters)? else { return Ok(None) };
        let Some(command) = self.verifiers.get(&template) else {
            let known: Vec<&str> = self.verifiers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let why = format!("must be one of the command templates that an operator allows: {known}");
            return Err(vec![Invalid::at("/verify/template", why)]);
        };
        let below = |fault: Invalid| Invalid::at(format!("/verify{}", fault.pointer), fault.detail);
        let faults = |faults: Vec<Invalid>| faults.into_iter().map(below).collect::<Vec<_>>();
        command.check_to_verify(arguments.as_ref()).map_err(faults)?;
        Ok(Some(Verifier { template, arguments, command }))
    }

    fn wanted(&self, parameters: &Parameters) -> Result<(Vec<Wanted>, Option<Verifier<'_>>), Failure> {
        self.fits(parameters).map_err(|faults| unfit(&faults))
    }

    fn pause(&self) -> Pause {
        Pause { hook: self.pause.clone(), steps: 0.into() }
    }
}

impl Executor for Files {
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>> {
        self.fits(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> Work<'a, Result<Preview, Failure>> {
        Box::pin(async {
            let (wanted, verifier) = self.wanted(parameters)?;
            let notes = verifier.map(|by| format!("verified by the template {}", by.template));
            let notes = notes.into_iter().collect();
            let tree = self.lock_settled(Lock::Shared, WAIT_TO_LOOK, None, None).await?;
            blocking(Changed::Nothing, move || Ok(preview::preview(&tree, &wanted, notes))).await
        })
    }

    fn stash<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async {
            let ((wanted, _), key) = (self.wanted(&run.parameters)?, Key::of(run));
            let approved = run.approved.clone();
            let tree = self.lock_settled(Lock::Exclusive, WAIT, Some(&key.task), Some(&run.halted)).await?;
            blocking(Changed::Nothing, move || {
                let stash = Stash::make(&tree, &wanted).map_err(Failure::not_now)?;
                // Between the worker's last look and this lock somebody else may have been at the files.
                let now = preview::fingerprint(&stash.entries).map(|now| now.to_string());
                if approved.is_some() && approved != now {
                    return Err(Failure::not_now(
                        "the files are not as they were when this was approved; nothing was changed",
                    ));
                }
                let bytes = stash.to_bytes().map_err(|error| Failure::refused(error.to_string()))?;
                // Earlier attempts at the same task are over; some had no chance to strike themselves out. Later ones are not:
                // whoever was stopped for long is in nobody's way when it goes on.
                let earlier =
                    |other: &str| Key::attempt_at(&key.task, other).is_some_and(|one| one < key.attempt);
                tree.note(NOTES, &key.to_string(), earlier)?;
                Ok(bytes)
            })
            .await
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async {
            let key = Key::of(run);
            let ready = async {
                let fit = (self.wanted(&run.parameters)?, read(stash).await?);
                let tree = self.lock_settled(Lock::Exclusive, WAIT, Some(&key.task), Some(&run.halted));
                Ok::<_, Failure>((fit, tree.await?))
            };
            let (((wanted, verifier), stash), tree) = match ready.await {
                Ok(ready) => ready,
                Err(failure) => {
                    // Nothing comes of it; where it is not this one's any more, whoever took over decides.
                    if run.halted.now() != Some(Halt::Lost) {
                        self.forget(&run.task_id, run.attempt).await;
                    }
                    return Err(failure);
                }
            };
            let change = Change::new(tree, key, stash, run.halted.clone(), self.pause());
            let goes_on = verifier.is_some();
            // Whoever does not wait for this any more does not end it: it ends by itself, under its lock.
            let (change, done) = blocking(Changed::Something, move || {
                let done = change.apply(&wanted);
                if done.is_err() || !goes_on {
                    change.end();
                }
                Ok((change, done))
            })
            .await?;
            done?;
            let Some(verifier) = verifier else { return Ok(()) };
            // A worker that is gone in here is as one that is gone before it could say that it is done.
            let verified = verifier.command.verify(verifier.arguments.as_ref(), run).await;
            let failed = verified.err().map(|failure| {
                let message = format!("the template {:?} did not verify it: {failure}", verifier.template);
                Failure { message, changed: Changed::Nothing, again: false, ..failure }
            });
            blocking(Changed::Something, move || {
                let done = failed.map_or(Ok(()), |failure| Err(change.undo(failure)));
                change.end();
                done
            })
            .await
        })
    }

    fn roll_back<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async {
            let stays = |failure| Failure { changed: Changed::Something, ..failure };
            let stash = read(stash).await.map_err(stays)?;
            let tree = self.lock(Lock::Exclusive, WAIT, Some(&run.halted)).await.map_err(stays)?;
            let change = Change::new(tree, Key::of(run), stash, run.halted.clone(), self.pause());
            blocking(Changed::Something, move || change.roll_back()).await
        })
    }

    fn settle<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<Settled, Failure>> {
        Box::pin(async {
            let stash = read(stash).await?;
            let tree = self.lock(Lock::Exclusive, self.wait_to_settle, Some(&run.halted)).await?;
            let change = Change::new(tree, Key::of(run), stash, run.halted.clone(), self.pause());
            blocking(Changed::Unknown, move || change.settle()).await
        })
    }

    fn forget<'a>(&'a self, task_id: &'a str, attempt: u64) -> Work<'a, ()> {
        Box::pin(async move {
            let (root, key) = (self.root.clone(), Key::new(task_id, attempt));
            // At once, whoever is at the root: somebody who waits for nothing else must not wait for it.
            let struck =
                blocking(Changed::Nothing, move || Ok(Tree::strike_at(&root, NOTES, &key.to_string())?));
            if let Err(error) = struck.await {
                tracing::warn!(task_id, attempt, root = self.root, %error, "the note of an attempt is left over");
            }
            // The folder goes with its last note, which takes the lock; nothing depends on when.
            let files = self.clone();
            tokio::spawn(async move {
                if let Ok(tree) = files.lock(Lock::Exclusive, WAIT, None).await {
                    let _ = blocking(Changed::Nothing, move || Ok(tree.remove_folder(NOTES)?)).await;
                }
            });
        })
    }

    fn fence(&self) -> Fence {
        Fence::Fenced
    }

    fn can_roll_back(&self, _: &Parameters) -> bool {
        true
    }
}

/// What decides in the end whether files stay.
struct Verifier<'a> {
    template: String,
    arguments: Option<serde_json::Value>,
    command: &'a Arc<Command>,
}

async fn read(stash: &[u8]) -> Result<Stash, Failure> {
    let bytes = stash.to_vec();
    let read = move || Stash::from_bytes(&bytes).map_err(|error| Failure::refused(error.to_string()));
    blocking(Changed::Nothing, read).await
}

/// On a thread that may block. If it ends in the middle, this is what it has changed.
async fn blocking<T: Send + 'static>(
    changed: Changed,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let ended = spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(Failure::after(changed, format!("it ended in the middle: {error}"))))
}

/// What an attempt is called in names of files.
#[derive(Debug, Clone)]
struct Key {
    task: String,
    attempt: u64,
}

impl Key {
    fn of(run: &Run) -> Self {
        Self::new(&run.task_id, run.attempt)
    }

    fn new(task_id: &str, attempt: u64) -> Self {
        let plain = |id: &str| {
            (1..=64).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let task = if plain(task_id) {
            task_id.to_owned()
        } else {
            Digest::of_bytes(task_id.as_bytes()).to_string()
        };
        Self { task, attempt }
    }

    /// Which attempt a key is, if it is one at this task.
    fn attempt_at(task: &str, key: &str) -> Option<u64> {
        let (of, attempt) = key.rsplit_once('-')?;
        attempt.parse().ok().filter(|_| of == task)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.task, self.attempt)
    }
}

/// Where tests stop.
struct Pause {
    hook: Option<Hook>,
    steps: std::cell::Cell<usize>,
}

impl Pause {
    fn step(&self) {
        if let Some(hook) = &self.hook {
            hook(self.steps.replace(self.steps.get() + 1));
        }
    }
}
