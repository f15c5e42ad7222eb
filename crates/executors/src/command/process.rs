//! One process with all that it starts: run without a shell, listened to until its end, and ended as a group.
//!
//! When this returns, or whoever asked for it is gone, nothing of its process group is left: a watchdog sees to that. What wants
//! to outlive its command takes a session of its own. Whatever is written is read and passed on, so that nobody waits for room
//! in a pipe, and nothing piles up here.

use std::io;
use std::os::fd::AsFd as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::watchdog::{Program, Terms, Watchdog, number, send_to_leaver};

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
    /// Whether it began at all: it may have been told to end before.
    pub(super) begun: bool,
    /// Others held its pipes open after its end.
    pub(super) left_some: bool,
    /// It ended when its watchdog did not let it go on any more.
    pub(super) out_of_time: bool,
    /// Somebody ended its watchdog, and so it was ended too.
    pub(super) unwatched: bool,
}

impl<H> Ended<H> {
    const fn before(why: H) -> Self {
        Self {
            status: None,
            halted: Some(why),
            begun: false,
            left_some: false,
            out_of_time: false,
            unwatched: false,
        }
    }
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
pub(super) async fn run<H>(
    start: Start<'_>,
    halt: impl Future<Output = H>,
    lost: impl Future<Output = H>,
    mut hear: impl FnMut(Stream, &[u8]),
) -> Result<Ended<H>, RunError> {
    let Start { argv, environment, grace, watchdog, mut good_until } = start;
    tokio::pin!(halt, lost);
    let mut group = tokio::select! {
        biased;
        why = &mut halt => return Ok(Ended::before(why)),
        group = Group::new(watchdog, grace, good_until.as_mut()) => group.map_err(RunError::NotWatched)?,
    };
    tokio::select! {
        biased;
        // That took a while, in which everything may have changed.
        why = &mut halt => return Ok(Ended::before(why)),
        () = std::future::ready(()) => {}
    }
    let (mut out, mut err, mut ended) = group.spawn(argv, environment).await?;
    let (mut at, mut halted) = (At::Running, None);
    let (mut out_of_time, mut unwatched) = (false, false);
    loop {
        if matches!(at, At::Ended { .. }) && out.is_at_end() && err.is_at_end() {
            break;
        }
        let may_go_on = matches!(at, At::Running | At::Asked { .. });
        tokio::select! {
            why = &mut lost, if may_go_on => {
                group.watchdog.pass_on(Signal::KILL);
                halted.get_or_insert(why);
                at = At::Killed { until: Instant::now() + KILLED };
            }
            why = &mut halt, if matches!(at, At::Running) => {
                halted = Some(why);
                group.watchdog.pass_on(Signal::TERM);
                at = At::Asked { until: Instant::now() + grace };
            }
            () = at.passed() => match at {
                At::Asked { .. } => {
                    group.watchdog.pass_on(Signal::KILL);
                    at = At::Killed { until: Instant::now() + KILLED };
                }
                _ => break,
            },
            () = group.watchdog.gone(), if may_go_on => {
                group.watchdog.pass_on(Signal::KILL);
                unwatched = true;
                at = At::Killed { until: Instant::now() + KILLED };
            }
            is_over = &mut ended, if !matches!(at, At::Ended { .. }) => {
                is_over.map_err(io::Error::other)??;
                out_of_time = group.is_out_of_time();
                // The grace is for all of the group.
                let drained = Instant::now() + DRAIN;
                let until = if let At::Asked { until } = at { until.max(drained) } else { drained };
                at = At::Ended { until };
            }
            until = renewed(good_until.as_mut()) => group.trust_until(until).await,
            () = out.read(), if !out.is_at_end() => out.pass(|bytes| hear(Stream::Out, bytes)),
            () = err.read(), if !err.is_at_end() => err.pass(|bytes| hear(Stream::Err, bytes)),
        }
    }
    let has_ended = matches!(at, At::Ended { .. });
    let left_some = has_ended && !(out.is_at_end() && err.is_at_end());
    out.rest(|bytes| hear(Stream::Out, bytes));
    err.rest(|bytes| hear(Stream::Err, bytes));
    let status = group.end(has_ended).await?;
    Ok(Ended { status, halted, begun: true, left_some, out_of_time, unwatched })
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

/// Waits until it may go on for longer, and says until when.
async fn renewed(good_until: Option<&mut watch::Receiver<Instant>>) -> Instant {
    if let Some(good_until) = good_until
        && good_until.changed().await.is_ok()
    {
        return trusted_until(good_until);
    }
    std::future::pending().await
}

/// Until when the watchdog lets it go on: a little less than it may, because being woken and killing take time.
fn trusted_until(good_until: &mut watch::Receiver<Instant>) -> Instant {
    let good_until = *good_until.borrow_and_update();
    let left = good_until.saturating_duration_since(Instant::now());
    good_until.checked_sub((left / 10).min(LONGEST_MARGIN)).unwrap_or(good_until)
}

/// A process group with its watchdog and its command, which end with this: also when nobody waits for them any more.
struct Group {
    watchdog: Watchdog,
    /// Not collected before all of it was ended: until then its number is its own.
    command: Option<Child>,
    /// Until when the watchdog lets it go on without another word.
    trusted_until: Option<Instant>,
    /// That has passed once, whatever came after it.
    was_out_of_time: bool,
}

impl Group {
    async fn new(
        program: &Program,
        grace: Duration,
        good_until: Option<&mut watch::Receiver<Instant>>,
    ) -> io::Result<Self> {
        let trust_until = good_until.map(trusted_until);
        let terms = Terms { grace, trust_until, within_trust: true, terminal_to: None };
        let watchdog = Watchdog::start(program, terms).await?;
        Ok(Self { watchdog, command: None, trusted_until: trust_until, was_out_of_time: false })
    }

    /// Begins the command: what it says on both streams, and its end, which does not collect it.
    async fn spawn(
        &mut self,
        argv: &[String],
        environment: Vec<(&'static str, String)>,
    ) -> Result<(Pipe<ChildStdout>, Pipe<ChildStderr>, JoinHandle<io::Result<()>>), RunError> {
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| RunError::NotStarted(io::Error::other("there is no program to run")))?;
        let command = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8")
            .envs(environment)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(Pid::as_raw(Some(self.watchdog.group())))
            .kill_on_drop(true)
            .spawn();
        let command = self.command.insert(command.map_err(RunError::NotStarted)?);
        let (out, err) = (Pipe::new(command.stdout.take()), Pipe::new(command.stderr.take()));
        let pid = number(command).ok_or_else(|| io::Error::other("the process has no number"))?;
        self.watchdog.watch(command).await;
        // A thread that waits is what there is for this without unsafe code. It ends with the process, and that with this group.
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        let ended = spawn_blocking(move || {
            let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::PidFd(process.as_fd()), how).map(drop).map_err(io::Error::from)
        });
        Ok((out, err, ended))
    }

    async fn trust_until(&mut self, until: Instant) {
        self.was_out_of_time = self.is_out_of_time();
        self.trusted_until = Some(until);
        self.watchdog.trust_until(until).await;
    }

    fn is_out_of_time(&self) -> bool {
        self.was_out_of_time || self.trusted_until.is_some_and(|until| until <= Instant::now())
    }

    /// Kills all that is left, also what the command left behind in a group of its own.
    fn kill(&self) {
        if let Some(command) = self.command.as_ref().and_then(number) {
            send_to_leaver(command, self.watchdog.group(), Signal::KILL);
        }
        self.watchdog.pass_on(Signal::KILL);
    }

    /// Ends what is left, and collects the command, if it has ended.
    async fn end(mut self, has_ended: bool) -> io::Result<Option<ExitStatus>> {
        self.kill();
        self.watchdog.kill().await;
        match self.command.as_mut().filter(|_| has_ended) {
            Some(command) => command.wait().await.map(Some),
            None => Ok(None),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The watchdog goes with it; both are collected later.
        self.kill();
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
