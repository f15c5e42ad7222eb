//! Runs one process without a shell, reads its output until it exits, and kills what it leaves.
//!
//! When [`run`] returns, no process of the command is left, and soon none after its future is dropped; a watchdog ensures this even
//! if this process dies. A process that must outlive its command has to create its own session. All output is read and passed on at once, so that
//! no writer blocks on a full pipe and nothing accumulates here.

use std::io;
use std::os::fd::AsFd as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use crate::watchdog::{Watchdog, WatchdogConfig, WatchdogProgram, pid_of, signal_outside_group};
use crate::{Result, StopReason, elapsed};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long pipes are read that other processes hold open after the command has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for the exit after SIGKILL. A process that takes longer hangs in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_WATCHDOG_MARGIN: Duration = Duration::from_secs(1);
/// Lines up to this length are passed on whole, so that the streams are not mixed within a line.
const MAX_LINE_BYTES: usize = 8_192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("cannot start the command: {0}")]
    Spawn(io::Error),
    #[error("cannot start the watchdog of the command: {0}")]
    Watchdog(io::Error),
    #[error("it was started, but its exit is unknown: {0}")]
    Lost(#[from] io::Error),
}

/// How a process ended.
#[derive(Debug, Default)]
pub(super) struct ProcessExit {
    /// None if it did not exit even after SIGKILL.
    pub(super) status: Option<ExitStatus>,
    pub(super) stop_reason: Option<StopReason>,
    /// False if it was stopped before it was started.
    pub(super) has_started: bool,
    /// Other processes held its pipes open after its exit.
    pub(super) left_processes: bool,
    /// The deadline of its watchdog had passed when it exited.
    pub(super) deadline_passed: bool,
    /// Its watchdog was killed from outside, and therefore so was it.
    pub(super) watchdog_died: bool,
}

/// Variables by name.
pub(super) type Environment = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) struct ProcessSpec<'a> {
    pub(super) argv: &'a [String],
    /// Variables besides PATH and LANG.
    pub(super) environment: Environment,
    /// Between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    pub(super) watchdog: &'a WatchdogProgram,
    /// How long it may run without a renewal. Without this it may run as long as this process lives.
    pub(super) valid_until: Option<watch::Receiver<Instant>>,
}

/// Runs the process until it exits. Once `stop` completes, the group gets SIGTERM and, after the grace, SIGKILL. Once `lease_lost`
/// completes, it gets SIGKILL at once, because another worker may already apply the same task; `stop` must complete then as well.
pub(super) async fn run(
    spec: ProcessSpec<'_>,
    stop: impl Future<Output = StopReason>,
    lease_lost: impl Future<Output = ()>,
    mut on_output: impl FnMut(Stream, &[u8]),
) -> Result<ProcessExit, RunError> {
    let ProcessSpec { argv, environment, grace, watchdog, mut valid_until } = spec;
    tokio::pin!(stop, lease_lost);
    let stopped_before_start = |reason| ProcessExit { stop_reason: Some(reason), ..ProcessExit::default() };
    let mut group = tokio::select! {
        biased;
        reason = &mut stop => return Ok(stopped_before_start(reason)),
        group = ProcessGroup::new(watchdog, grace, valid_until.as_mut()) => group.map_err(RunError::Watchdog)?,
    };
    tokio::select! {
        biased;
        // The stop signal may have arrived while the watchdog was started.
        reason = &mut stop => return Ok(stopped_before_start(reason)),
        () = std::future::ready(()) => {}
    }
    let (mut stdout, mut stderr, mut exited) = group.spawn(argv, environment).await?;
    let (mut phase, mut phase_end) = (Phase::Running, None);
    let mut exit = ProcessExit { has_started: true, ..ProcessExit::default() };
    while phase != Phase::Exited || !stdout.is_at_end() || !stderr.is_at_end() {
        let is_running = matches!(phase, Phase::Running | Phase::Terminating);
        tokio::select! {
            () = &mut lease_lost, if is_running => {
                exit.stop_reason.get_or_insert(StopReason::LeaseLost);
                (phase, phase_end) = group.kill().await;
            }
            reason = &mut stop, if phase == Phase::Running => {
                exit.stop_reason = Some(reason);
                group.watchdog.send_signal(Signal::TERM).await;
                (phase, phase_end) = (Phase::Terminating, Some(Instant::now() + grace));
            }
            () = elapsed(phase_end) => match phase {
                Phase::Terminating => (phase, phase_end) = group.kill().await,
                _ => break,
            },
            () = group.watchdog.wait_exit(), if is_running => {
                exit.watchdog_died = true;
                (phase, phase_end) = group.kill().await;
            }
            result = &mut exited, if phase != Phase::Exited => {
                result.map_err(io::Error::other)??;
                exit.deadline_passed = group.is_past_deadline();
                // The grace is for the whole group.
                let grace_end = phase_end.filter(|_| phase == Phase::Terminating);
                (phase, phase_end) = (Phase::Exited, grace_end.max(Some(Instant::now() + DRAIN_TIMEOUT)));
            }
            deadline = renewed_deadline(valid_until.as_mut()) => group.extend_deadline(deadline).await,
            () = stdout.read(), if !stdout.is_at_end() => stdout.pass_lines(&mut on_output),
            () = stderr.read(), if !stderr.is_at_end() => stderr.pass_lines(&mut on_output),
        }
    }
    let has_exited = phase == Phase::Exited;
    exit.left_processes = has_exited && !(stdout.is_at_end() && stderr.is_at_end());
    stdout.pass_rest(&mut on_output);
    stderr.pass_rest(&mut on_output);
    exit.status = group.end(has_exited).await?;
    Ok(exit)
}

/// Each phase except the first has an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// SIGTERM was sent.
    Terminating,
    /// SIGKILL was sent.
    Killed,
    /// The command has exited; its pipes may still be open.
    Exited,
}

/// Waits for a renewal, and returns the new deadline of the watchdog.
async fn renewed_deadline(valid_until: Option<&mut watch::Receiver<Instant>>) -> Instant {
    if let Some(valid_until) = valid_until
        && valid_until.changed().await.is_ok()
    {
        return watchdog_deadline(valid_until);
    }
    std::future::pending().await
}

/// The deadline of the watchdog is a little before `valid_until`, because waking up and killing take time.
fn watchdog_deadline(valid_until: &mut watch::Receiver<Instant>) -> Instant {
    let valid_until = *valid_until.borrow_and_update();
    let left = valid_until.saturating_duration_since(Instant::now());
    valid_until.checked_sub((left / 10).min(MAX_WATCHDOG_MARGIN)).unwrap_or(valid_until)
}

/// A process group with its watchdog and its command. Both are killed when it is dropped.
struct ProcessGroup {
    watchdog: Watchdog,
    /// Reaped only after the whole group was killed, so that its pid is not reused before.
    command: Option<Child>,
    deadline: Option<Instant>,
    /// A deadline has passed at least once, even if it was extended afterwards.
    was_past_deadline: bool,
}

impl ProcessGroup {
    async fn new(
        program: &WatchdogProgram,
        grace: Duration,
        valid_until: Option<&mut watch::Receiver<Instant>>,
    ) -> io::Result<Self> {
        let deadline = valid_until.map(watchdog_deadline);
        let config =
            WatchdogConfig { grace, deadline, grace_within_deadline: true, return_terminal_to: None };
        let watchdog = Watchdog::start(program, config).await?;
        Ok(Self { watchdog, command: None, deadline, was_past_deadline: false })
    }

    /// Starts the command. Returns its streams and a handle that completes when it exits, without reaping it.
    async fn spawn(
        &mut self,
        argv: &[String],
        environment: Environment,
    ) -> Result<(LinePipe, LinePipe, JoinHandle<io::Result<()>>), RunError> {
        let (program, arguments) =
            argv.split_first().ok_or_else(|| RunError::Spawn(io::Error::other("the command is empty")))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LANG", "C.UTF-8")
            .envs(environment)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        self.watchdog.prepare(&mut command);
        let command = self.command.insert(command.spawn().map_err(RunError::Spawn)?);
        let stdout = LinePipe::new(Stream::Stdout, command.stdout.take());
        let stderr = LinePipe::new(Stream::Stderr, command.stderr.take());
        let pid = pid_of(command).ok_or_else(|| io::Error::other("the process has no pid"))?;
        self.watchdog.watch(command).await;
        // Without unsafe code, waiting without reaping needs a blocked thread. It ends with the process, which ends with this group.
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        let exited = spawn_blocking(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::PidFd(process.as_fd()), options).map(drop).map_err(io::Error::from)
        });
        Ok((stdout, stderr, exited))
    }

    async fn extend_deadline(&mut self, deadline: Instant) {
        self.was_past_deadline = self.is_past_deadline();
        self.deadline = Some(deadline);
        self.watchdog.extend_deadline(deadline).await;
    }

    fn is_past_deadline(&self) -> bool {
        self.was_past_deadline || self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    async fn kill(&mut self) -> (Phase, Option<Instant>) {
        self.watchdog.kill().await;
        self.kill_own_group();
        (Phase::Killed, Some(Instant::now() + KILL_TIMEOUT))
    }

    /// Kills the group that the command leads, if it has left that of its watchdog. It may have exited, but was not reaped.
    fn kill_own_group(&self) {
        if let Some(command) = self.command.as_ref().and_then(pid_of) {
            signal_outside_group(command, self.watchdog.group(), Signal::KILL);
        }
    }

    /// Kills what is left, and reaps the command if it has exited.
    async fn end(mut self, has_exited: bool) -> io::Result<Option<ExitStatus>> {
        self.kill().await;
        match self.command.as_mut().filter(|_| has_exited) {
            Some(command) => command.wait().await.map(Some),
            None => Ok(None),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The runtime reaps both later.
        self.watchdog.start_kill();
        self.kill_own_group();
    }
}

/// One output stream, passed on by complete lines.
struct LinePipe {
    stream: Stream,
    source: Option<Box<dyn AsyncRead + Send + Unpin>>,
    buffer: Vec<u8>,
}

impl LinePipe {
    fn new(stream: Stream, source: Option<impl AsyncRead + Send + Unpin + 'static>) -> Self {
        Self { stream, source: source.map(|source| Box::new(source) as _), buffer: Vec::new() }
    }

    const fn is_at_end(&self) -> bool {
        self.source.is_none()
    }

    /// Reads into the buffer. Cancel safe.
    async fn read(&mut self) {
        if let Some(source) = &mut self.source {
            let limit = MAX_LINE_BYTES.saturating_mul(2).saturating_sub(self.buffer.len()).max(1) as u64;
            let read = source.take(limit).read_buf(&mut self.buffer).await;
            // A read error counts as the end.
            if read.unwrap_or(0) == 0 {
                self.source = None;
            }
        }
    }

    fn pass_lines(&mut self, on_output: &mut impl FnMut(Stream, &[u8])) {
        let lines_end = self.buffer.iter().rposition(|byte| *byte == b'\n').map(|end| end + 1);
        let long_line_end = (self.buffer.len() >= MAX_LINE_BYTES).then_some(self.buffer.len());
        if let Some(end) = lines_end.or(long_line_end) {
            on_output(self.stream, self.buffer.drain(..end).as_slice());
        }
    }

    fn pass_rest(self, on_output: &mut impl FnMut(Stream, &[u8])) {
        if !self.buffer.is_empty() {
            on_output(self.stream, &self.buffer);
        }
    }
}
