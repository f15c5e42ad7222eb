//! A process that watches a command. It kills the command when the process that started it dies, is suspended, or loses the
//! locks under which the command runs.
//!
//! The watchdog is this program again, as a hidden subcommand, and is ready before the command starts. It leads a process group
//! that the command joins before its first instruction, marked by a variable that it passes on to whatever it starts. So the
//! watchdog knows which processes to kill without further messages (`targets`), and the id of the group cannot be reused while
//! it lives. Its stdin is a pipe whose other end only its [`Watchdog`] has. Messages through this pipe extend the deadline of the
//! command or report that it has exited. If the pipe closes or the deadline passes, the command gets SIGTERM and, after the
//! grace, SIGKILL, and the watchdog with it.

mod process;
mod protocol;
mod targets;

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::write;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, timeout};

pub use process::run;
pub use protocol::WatchdogConfig;
use protocol::{Message, READY, SharedTime};
pub(crate) use targets::signal_outside_group;
use targets::{MARKER, Targets};

/// The name of the hidden subcommand.
pub const SUBCOMMAND: &str = "watchdog";
/// The running executable, even if its file was replaced meanwhile.
const CURRENT_EXE: &str = "/proc/self/exe";
/// How long to wait for the watchdog itself, which may be suspended.
const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it may search for what it kills.
const KILL_TIMEOUT: Duration = Duration::from_secs(4);

/// The program that contains the watchdog.
#[derive(Debug, Clone)]
pub struct WatchdogProgram {
    path: PathBuf,
    subcommand: Option<&'static str>,
}

impl WatchdogProgram {
    /// The current program, which must call [`run`] for its subcommand [`SUBCOMMAND`].
    #[must_use]
    pub fn current_exe() -> Self {
        Self { path: CURRENT_EXE.into(), subcommand: Some(SUBCOMMAND) }
    }

    /// Another program, which must do nothing but call [`run`].
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), subcommand: None }
    }
}

/// The pid of a process that was not reaped yet.
pub(crate) fn pid_of(process: &Child) -> Option<Pid> {
    process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// A handle to a watchdog process. Unless it is [dismissed](Self::dismiss), the watchdog kills the command when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
    targets: Targets,
    /// After the ready message nothing comes through its stdout but the end, when the watchdog exits.
    stdout: Option<ChildStdout>,
}

impl Watchdog {
    /// Starts a watchdog and waits until it is ready. The command must then be [prepared](Self::prepare) and started.
    pub async fn start(program: &WatchdogProgram, config: WatchdogConfig) -> io::Result<Self> {
        let mut process = Command::new(&program.path)
            .args(program.subcommand)
            .arg0("ade")
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let group = pid_of(&process).ok_or_else(|| io::Error::other("the watchdog has no pid"))?;
        let stdout = process.stdout.take();
        let started_at = SharedTime::now();
        let mut watchdog = Self { targets: Targets::new(group, started_at), process, stdout };
        watchdog.send(Message::start(config, started_at)).await?;
        let mut received = [0; READY.len()];
        if let Some(stdout) = &mut watchdog.stdout {
            stdout.read_exact(&mut received).await?;
        }
        if received == READY {
            Ok(watchdog)
        } else {
            Err(io::Error::other("the program that was started is not a watchdog"))
        }
    }

    /// The process group of the command.
    #[must_use]
    pub const fn group(&self) -> Pid {
        self.targets.group()
    }

    /// Lets a command start where the watchdog finds it.
    pub fn prepare(&self, command: &mut Command) {
        command.process_group(Pid::as_raw(Some(self.group()))).env(MARKER, self.targets.marker());
    }

    /// Tells the watchdog which process is the command. [`Self::wait_exit`] detects errors.
    pub async fn watch(&mut self, command: &Child) {
        let Some(pid) = pid_of(command) else { return };
        self.targets.set_command(pid);
        let _ = self.send(Message::Watch(pid.as_raw_nonzero().get())).await;
    }

    /// Waits until the watchdog has exited unexpectedly. Cancel safe.
    pub async fn wait_exit(&mut self) {
        if let Some(stdout) = &mut self.stdout {
            // An error counts as the end.
            while stdout.read(&mut [0]).await.is_ok_and(|read| read > 0) {}
            self.stdout = None;
        }
    }

    /// Signals all processes of the command. [`Self::wait_exit`] detects errors.
    pub async fn send_signal(&mut self, signal: Signal) {
        self.targets.signal_known(signal);
        let _ = self.send(Message::Signal(signal.as_raw())).await;
    }

    /// Lets the command run until `deadline`. [`Self::wait_exit`] detects errors.
    pub async fn extend_deadline(&mut self, deadline: Instant) {
        let _ = self.send(Message::ExtendDeadline(deadline.into())).await;
    }

    /// Ends the watchdog after the command has exited or could not be started. Other processes of the group keep running.
    pub async fn dismiss(mut self) {
        // An error means that the watchdog was killed.
        let _ = self.send(Message::Done).await;
        if timeout(WATCHDOG_TIMEOUT, self.process.wait()).await.is_err() {
            // Kills only the watchdog, not its group.
            let _ = self.process.kill().await;
        }
    }

    /// Kills the command. The watchdog returns the terminal before, finds what has left the group, and ends with it.
    pub async fn kill(&mut self) {
        self.start_kill();
        let _ = timeout(KILL_TIMEOUT, self.wait_exit()).await;
        if self.process.id().is_some() {
            // The id of the group cannot be reused until the watchdog is reaped.
            self.targets.signal_known(Signal::KILL);
            let _ = self.process.wait().await;
        }
    }

    /// Lets the watchdog kill the command. If it cannot be told, it sees the end of the pipe later.
    pub(crate) fn start_kill(&self) {
        if let (Some(stdin), Ok(bytes)) = (&self.process.stdin, serde_json::to_vec(&Message::Kill)) {
            let _ = write(stdin, &bytes);
        }
    }

    async fn send(&mut self, message: Message) -> io::Result<()> {
        let bytes = serde_json::to_vec(&message)?;
        let stdin = self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // A suspended watchdog reads nothing.
        timeout(WATCHDOG_TIMEOUT, async {
            stdin.write_all(&bytes).await?;
            stdin.flush().await
        })
        .await?
    }
}
