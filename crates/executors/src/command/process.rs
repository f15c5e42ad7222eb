//! One process with all that it starts: run without a shell, listened to until its end, and ended as a group.
//!
//! When this returns, nothing of its process group is left. What wants to outlive its command takes a session of its own. Whatever
//! is written is read and passed on, so that nobody waits for room in a pipe, and nothing piles up here.

use std::io;
use std::os::fd::AsFd as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long pipes are read that others hold open after the process has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// How long the end is waited for after what cannot be ignored: what does not end then hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);
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
}

/// What is run, and with which environment besides the usual.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) argv: &'a [String],
    pub(super) environment: Vec<(&'static str, String)>,
    /// Between the request to end and the end.
    pub(super) grace: Duration,
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
    let mut child = start.spawn().map_err(RunError::NotStarted)?;
    let group = Group::of(&child)?;
    let (mut out, mut err) = (Pipe::new(child.stdout.take()), Pipe::new(child.stderr.take()));
    let mut ended = group.end()?;
    let mut at = At::Running;
    let mut halted = None;
    tokio::pin!(halt, lost);
    loop {
        if matches!(at, At::Ended { .. }) && out.is_at_end() && err.is_at_end() {
            break;
        }
        tokio::select! {
            () = &mut lost, if matches!(at, At::Running | At::Asked { .. }) => {
                group.signal(Signal::KILL);
                if halted.is_none() {
                    halted = Some((&mut halt).await);
                }
                at = At::Killed { until: Instant::now() + KILLED };
            }
            why = &mut halt, if matches!(at, At::Running) => {
                halted = Some(why);
                group.signal(Signal::TERM);
                at = At::Asked { until: Instant::now() + start.grace };
            }
            () = at.passed() => match at {
                At::Asked { .. } => {
                    group.signal(Signal::KILL);
                    at = At::Killed { until: Instant::now() + KILLED };
                }
                _ => break,
            },
            is_over = &mut ended, if !matches!(at, At::Ended { .. }) => {
                is_over.map_err(io::Error::other)??;
                // The grace is for all of the group.
                let drained = Instant::now() + DRAIN;
                let until = if let At::Asked { until } = at { until.max(drained) } else { drained };
                at = At::Ended { until };
            }
            () = out.read(), if !out.is_at_end() => out.pass(|bytes| hear(Stream::Out, bytes)),
            () = err.read(), if !err.is_at_end() => err.pass(|bytes| hear(Stream::Err, bytes)),
        }
    }
    let left_some = matches!(at, At::Ended { .. }) && !(out.is_at_end() && err.is_at_end());
    out.rest(|bytes| hear(Stream::Out, bytes));
    err.rest(|bytes| hear(Stream::Err, bytes));
    // Before the process is collected its number belongs to nobody else, and so does the group's.
    drop(group);
    let status = if matches!(at, At::Ended { .. }) { Some(child.wait().await?) } else { None };
    Ok(Ended { status, halted, left_some })
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

impl Start<'_> {
    fn spawn(&self) -> io::Result<Child> {
        let (program, arguments) =
            self.argv.split_first().ok_or_else(|| io::Error::other("there is no program to run"))?;
        Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }
}

/// A process group, which ends with this: also when nobody waits for it any more.
struct Group(Pid);

impl Group {
    fn of(child: &Child) -> io::Result<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        id.map(Self).ok_or_else(|| io::Error::other("the process has no number"))
    }

    /// Waits for the end of the first of it, which is not collected by that: a thread that waits is what there is for this
    /// without unsafe code. It ends with the process, and that with this group.
    fn end(&self) -> io::Result<JoinHandle<io::Result<()>>> {
        let process = pidfd_open(self.0, PidfdFlags::empty())?;
        Ok(spawn_blocking(move || {
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::PidFd(process.as_fd()), how).map(drop).map_err(io::Error::from)
        }))
    }

    fn signal(&self, signal: Signal) {
        // There may be nobody left in it.
        let _ = kill_process_group(self.0, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
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
