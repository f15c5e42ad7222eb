//! One process with all that it starts: run without a shell, listened to until its end, and ended as a group.
//!
//! When this returns, or whoever asked for it is gone, nothing of its process group is left: a watchdog sees to that. What wants
//! to outlive its command takes a session of its own. Whatever is written is read and passed on, so that nobody waits for room
//! in a pipe, and nothing piles up here.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::watchdog::{Program, Terms, Watchdog};

/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long pipes are read that others hold open after the process has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// How long the end is waited for after what cannot be ignored: what does not end then hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);
/// The most that a watchdog is early.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);
/// A line is passed on whole up to this length, so that nothing of the other stream gets between.
const LONGEST_LINE: usize = 8_192;

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// Why nothing is known of a process.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("it cannot be started: {0}")]
    NotStarted(io::Error),
    #[error("its watchdog cannot be started: {0}")]
    NotWatched(io::Error),
    #[error("it was started and then lost: {0}")]
    Lost(#[from] io::Error),
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct Ended<H> {
    /// Nothing: it did not end even when it was killed.
    pub(super) status: Option<ExitStatus>,
    /// It was told to end, and why.
    pub(super) halted: Option<H>,
    /// Others held its pipes open after its end.
    pub(super) left_some: bool,
    /// It ended when its watchdog did not let it go on any more.
    pub(super) out_of_time: bool,
}

/// What is run, and with which environment besides the usual.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) argv: &'a [String],
    pub(super) environment: Vec<(&'static str, String)>,
    /// Between the request to end and the end.
    pub(super) grace: Duration,
    /// What ends it if we cannot.
    pub(super) watchdog: &'a Program,
    /// Until when it may go on without us, which may be put off; nothing: as long as we live.
    pub(super) good_until: Option<watch::Receiver<Instant>>,
}

/// Runs it until its end, or until `halt` says why it is to end. Once it is `lost`, which `halt` says as well, it is killed at
/// once: somebody else may be at the same.
///
/// # Errors
/// It could not be started, or not be followed.
pub(super) async fn run<H>(
    start: Start<'_>,
    halt: impl Future<Output = H>,
    lost: impl Future<Output = ()>,
    mut hear: impl FnMut(Stream, &[u8]),
) -> Result<Ended<H>, RunError> {
    let Start { grace, mut good_until, .. } = start;
    let mut group =
        Group::new(start.watchdog, grace, good_until.as_mut()).await.map_err(RunError::NotWatched)?;
    let mut child = spawn(start.argv, start.environment, &group).map_err(RunError::NotStarted)?;
    let (mut out, mut err) = (Pipe::new(child.stdout.take()), Pipe::new(child.stderr.take()));
    let (mut at, mut halted, mut status, mut out_of_time) = (At::Running, None, None, false);
    tokio::pin!(halt, lost);
    loop {
        if matches!(at, At::Ended { .. }) && out.is_at_end() && err.is_at_end() {
            break;
        }
        tokio::select! {
            () = &mut lost, if matches!(at, At::Running | At::Asked { .. }) => {
                group.signal(&child, Signal::KILL);
                if halted.is_none() {
                    halted = Some((&mut halt).await);
                }
                at = At::Killed { until: Instant::now() + KILLED };
            }
            why = &mut halt, if matches!(at, At::Running) => {
                halted = Some(why);
                group.signal(&child, Signal::TERM);
                at = At::Asked { until: Instant::now() + grace };
            }
            () = at.passed() => match at {
                At::Asked { .. } => {
                    group.signal(&child, Signal::KILL);
                    at = At::Killed { until: Instant::now() + KILLED };
                }
                _ => break,
            },
            ended = child.wait(), if !matches!(at, At::Ended { .. }) => {
                status = Some(ended?);
                out_of_time = group.trusted_until.is_some_and(|until| until <= Instant::now());
                // The grace is for all of the group.
                let drained = Instant::now() + DRAIN;
                let until = if let At::Asked { until } = at { until.max(drained) } else { drained };
                at = At::Ended { until };
            }
            left = renewed(good_until.as_mut()) => group.trust_on(left).await,
            () = out.read(), if !out.is_at_end() => out.pass(|bytes| hear(Stream::Out, bytes)),
            () = err.read(), if !err.is_at_end() => err.pass(|bytes| hear(Stream::Err, bytes)),
        }
    }
    let left_some = matches!(at, At::Ended { .. }) && !(out.is_at_end() && err.is_at_end());
    out.rest(|bytes| hear(Stream::Out, bytes));
    err.rest(|bytes| hear(Stream::Err, bytes));
    Ok(Ended { status, halted, left_some, out_of_time })
}

/// How far it has come.
#[derive(Debug, Clone, Copy)]
enum At {
    Running,
    Asked { until: Instant },
    Killed { until: Instant },
    Ended { until: Instant },
}

impl At {
    /// Waits until the time for this has passed.
    async fn passed(self) {
        match self {
            Self::Running => std::future::pending().await,
            Self::Asked { until } | Self::Killed { until } | Self::Ended { until } => {
                tokio::time::sleep_until(until).await;
            }
        }
    }
}

/// Waits until it may go on for longer, and says for how long from now.
async fn renewed(good_until: Option<&mut watch::Receiver<Instant>>) -> Duration {
    if let Some(good_until) = good_until
        && good_until.changed().await.is_ok()
    {
        return left(good_until);
    }
    std::future::pending().await
}

/// For how long the watchdog lets it go on: a little less than it may, because being woken and killing take time.
fn left(good_until: &mut watch::Receiver<Instant>) -> Duration {
    let left = good_until.borrow_and_update().saturating_duration_since(Instant::now());
    left.saturating_sub((left / 10).min(LONGEST_MARGIN))
}

fn spawn(argv: &[String], environment: Vec<(&'static str, String)>, group: &Group) -> io::Result<Child> {
    let (program, arguments) =
        argv.split_first().ok_or_else(|| io::Error::other("there is no program to run"))?;
    Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8")
        .envs(environment)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(Pid::as_raw(Some(group.watchdog.group())))
        .kill_on_drop(true)
        .spawn()
}

/// A process group, which ends with this: also when nobody waits for it any more.
struct Group {
    watchdog: Watchdog,
    /// Until when the watchdog lets it go on without another word.
    trusted_until: Option<Instant>,
}

impl Group {
    async fn new(
        program: &Program,
        grace: Duration,
        good_until: Option<&mut watch::Receiver<Instant>>,
    ) -> io::Result<Self> {
        let trust = good_until.map(left);
        let trusted_until = trust.map(|left| Instant::now() + left);
        let terms = Terms { grace, trust, within_trust: true, terminal_to: None };
        Ok(Self { watchdog: Watchdog::start(program, terms).await?, trusted_until })
    }

    async fn trust_on(&mut self, left: Duration) {
        self.trusted_until = Some(Instant::now() + left);
        self.watchdog.trust_on(left).await;
    }

    /// To all of it, and to its first also if that has left it.
    fn signal(&self, first: &Child, signal: Signal) {
        self.watchdog.pass_on(signal);
        let first = first.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(first) = first.filter(|first| getpgid(Some(*first)) != Ok(self.watchdog.group())) {
            // It may have ended meanwhile; its number is its own until it is waited for.
            let _ = kill_process(first, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The watchdog goes with it, and is collected later.
        self.watchdog.pass_on(Signal::KILL);
    }
}

/// One stream, passed on by whole lines.
struct Pipe<R> {
    from: Option<R>,
    waiting: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Pipe<R> {
    const fn new(from: Option<R>) -> Self {
        Self { from, waiting: Vec::new() }
    }

    const fn is_at_end(&self) -> bool {
        self.from.is_none()
    }

    /// Reads some more. What is read is there also if this is given up.
    async fn read(&mut self) {
        if let Some(from) = &mut self.from {
            let room = LONGEST_LINE.saturating_mul(2).saturating_sub(self.waiting.len()).max(1) as u64;
            let read = from.take(room).read_buf(&mut self.waiting).await;
            // A pipe that cannot be read has nothing more to say.
            if read.unwrap_or(0) == 0 {
                self.from = None;
            }
        }
    }

    fn pass(&mut self, mut hear: impl FnMut(&[u8])) {
        let line = self.waiting.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
        let long = (self.waiting.len() >= LONGEST_LINE).then_some(self.waiting.len());
        if let Some(end) = line.or(long) {
            hear(self.waiting.get(..end).unwrap_or_default());
            self.waiting.drain(..end);
        }
    }

    fn rest(&mut self, mut hear: impl FnMut(&[u8])) {
        if !self.waiting.is_empty() {
            hear(&std::mem::take(&mut self.waiting));
        }
    }
}
