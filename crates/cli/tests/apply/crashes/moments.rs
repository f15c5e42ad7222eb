//! The moments of a task at which something happens to whoever carries it out. Each is reached for certain or waited for with
//! open eyes; nothing here depends on how long something takes.

use std::fs::File;
use std::thread;
use std::time::Duration;

use ade_testkit::Dice;
use ade_testkit::people::text;
use serde_json::Value;
use tokio::time::Instant;

use super::jobs::{Job, Set, counter, small, wide};
use super::site::{Blocked, PATIENCE, Site, attempt, phase};

/// A moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    /// A worker waits for the locks: it is approved still.
    Waiting,
    /// It holds its locks, and what it will change is not kept yet.
    Prepared,
    /// What it will change is kept, and nothing is changed.
    Started,
    /// Some files are changed.
    Between,
    /// All files are changed, and nobody has said so.
    Changed,
    /// A command has done something and goes on.
    Running,
}

pub(crate) const MOMENTS: [Moment; 6] =
    [Moment::Waiting, Moment::Prepared, Moment::Started, Moment::Between, Moment::Changed, Moment::Running];

/// What was met.
pub(crate) struct Met {
    pub(crate) job: Job,
    /// The attempt that was under way; 0: none yet.
    pub(crate) attempt: u64,
    /// When.
    pub(crate) at: Instant,
    /// Whoever else holds a lock that it needs.
    pub(crate) blocked: Option<Blocked>,
    /// The root is held by the test.
    pub(crate) held: Option<File>,
    /// Who was at it.
    pub(crate) by: String,
    /// Another task that waits for the same resource; nothing: it is to be proposed afterwards.
    pub(crate) beside: Option<Job>,
}

impl Moment {
    /// Proposes a task on a resource, and does something to whoever carries it out at this moment.
    pub(crate) async fn strike(
        self,
        site: &Site,
        name: &str,
        on: &str,
        dice: &mut Dice,
        strike: impl Fn(&str) + Send + Sync,
    ) -> Met {
        // Not before the one that is met has the resource: it would wait for the root, which the test holds.
        let waits = async |set: Set| Some(Job::files(site, set, on).await);
        match self {
            Self::Waiting => {
                let (lock, set) = (Job::lock_of(on), small(site, name, dice));
                let blocked = Some(site.block(&lock).await);
                let job = Job::files(site, set, on).await;
                let by = site.waiter(&lock, &job.id).await;
                strike(&by);
                Met { job, attempt: 0, at: Instant::now(), blocked, held: None, by, beside: None }
            }
            Self::Prepared => {
                let held = Some(site.hold_root());
                let job = Job::files(site, small(site, name, dice), on).await;
                let now = site.execution("it is prepared", &job.id, |now| phase(now) == "PREPARED").await;
                let (by, beside) = (text(&now, "agent_id"), waits(beside(site, name, dice)).await);
                strike(&by);
                Met { job, attempt: attempt(&now), at: Instant::now(), blocked: None, held, by, beside }
            }
            Self::Started => {
                let (job, now, held) = started(site, small(site, name, dice), on).await;
                let (by, beside) = (text(&now, "agent_id"), waits(beside(site, name, dice)).await);
                strike(&by);
                let (attempt, held) = (attempt(&now), Some(held));
                Met { job, attempt, at: Instant::now(), blocked: None, held, by, beside }
            }
            Self::Between | Self::Changed => {
                let (job, now, held) = started(site, wide(site, name), on).await;
                let (by, beside) = (text(&now, "agent_id"), waits(beside(site, name, dice)).await);
                let set = job.set().expect("files");
                let changed = set.watch(self == Self::Changed);
                spin(changed, held, || strike(&by));
                Met { attempt: attempt(&now), at: Instant::now(), blocked: None, held: None, by, beside, job }
            }
            Self::Running => {
                let job = Job::command(site, on).await;
                let ran = || async {
                    if job.written(site) > 0 { Ok(()) } else { Err("nothing is written".to_owned()) }
                };
                let ran = ade_testkit::wait::until("the command runs", PATIENCE, ran).await;
                ran.unwrap_or_else(|error| site.fail(&error.to_string()));
                let now = site.execution("it is begun", &job.id, |now| attempt(now) > 0).await;
                let by = text(&now, "agent_id");
                strike(&by);
                let (attempt, beside) = (attempt(&now), None);
                Met { attempt, at: Instant::now(), blocked: None, held: None, by, beside, job }
            }
        }
    }
}

/// A task whose worker has kept what it will change, has said so, and waits for the root, which the test holds.
pub(crate) async fn started(site: &Site, set: Set, on: &str) -> (Job, Value, File) {
    let held = site.hold_root();
    let job = Job::files(site, set, on).await;
    let now = site.execution("it is prepared", &job.id, |now| phase(now) == "PREPARED").await;
    let note = site.note(&job.id, attempt(&now));
    // The note is made while the worker holds the root: whoever asks then is the next.
    let held = tokio::task::block_in_place(|| {
        drop(held);
        watch("it is kept", || note.exists());
        site.hold_root()
    });
    let started = |now: &Value| matches!(phase(now).as_str(), "STARTED" | "ENDED");
    let now = site.execution("it is started", &job.id, started).await;
    (job, now, held)
}

/// Gives the root back, and does something as soon as something is seen.
pub(crate) fn spin(seen: impl Fn() -> bool, held: File, then: impl Fn()) {
    tokio::task::block_in_place(|| {
        drop(held);
        watch("the files are changed", seen);
        then();
    });
}

/// Looks again and again: what is looked for lasts for milliseconds, and nobody tells of it.
fn watch(what: &str, seen: impl Fn() -> bool) {
    let begun = Instant::now();
    while !seen() {
        assert!(begun.elapsed() < PATIENCE, "waited too long until {what}");
        thread::park_timeout(Duration::from_micros(100));
    }
}

/// The files of the task that waits for the resource of the one that is met.
pub(crate) fn beside(site: &Site, name: &str, dice: &mut Dice) -> Set {
    small(site, &format!("{name}-beside"), dice)
}

/// What else is proposed in a round, all at the same time; the one that counts is the last.
pub(crate) async fn others(site: &Site, name: &str, count: u64, dice: &mut Dice) -> Vec<Job> {
    let mut set = |of: &str| small(site, &format!("{name}-{of}"), dice);
    let (one, two) = (set("one"), set("two"));
    let [own, other, command] = ["one", "two", "command"].map(|of| format!("{name}-{of}"));
    let jobs = tokio::join!(
        Job::files(site, one, &own),
        Job::files(site, two, &other),
        Job::command(site, &command),
        Job::noop(site),
        Job::files(site, counter(site, count), "counter"),
    );
    vec![jobs.0, jobs.1, jobs.2, jobs.3, jobs.4]
}
