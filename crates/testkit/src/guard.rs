//! Runs a server process that cannot outlive its owner.
//!
//! A small shell script, the guardian (`guardian.sh`), runs between the test and the server in a process group of its own. It
//! reads a pipe whose write end only this process has. When that end closes, by drop, exit, panic, abort or SIGKILL, the
//! guardian stops the server and removes its folder. Tests signal the server through a pidfd, and the guardian, its parent,
//! by process id before it reaps: so no signal can hit a reused process id.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::StartError;
use crate::process::wait_on_pidfd;

/// Log lines kept in memory: enough that a waiting test misses none.
const MAX_LOG_LINES: usize = 10_000;
/// Log lines shown in an error message.
const ERROR_LOG_LINES: usize = 40;

#[derive(Debug, Default)]
struct Log {
    lines: VecDeque<String>,
    /// All lines so far, including those that were dropped.
    count: usize,
    exited_pids: Vec<i32>,
}

#[derive(Debug, Default)]
struct SharedLog {
    log: Mutex<Log>,
    changed: Condvar,
}

impl SharedLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct ProcessSpec {
    /// Shown in error messages.
    pub name: String,
    /// Files to write into the folder: name and content.
    pub files: Vec<(&'static str, String)>,
    /// Shell script that runs in the folder before the first start; may be empty.
    pub preparation: String,
    /// Program and arguments. The folder is the working directory.
    pub argv: Vec<String>,
    /// Name of the signal that stops the server immediately, without `SIG`.
    pub stop_signal: &'static str,
    /// User id and group id that own the folder.
    pub owner: Option<(u32, u32)>,
}

/// A server that stops when this value is dropped or its process dies.
#[derive(Debug)]
pub struct GuardedProcess {
    name: String,
    folder: PathBuf,
    guardian: Child,
    control: Mutex<Control>,
    log: Arc<SharedLog>,
}

/// The pipes to the guardian.
#[derive(Debug)]
struct Control {
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// Process id and pidfd of the server, until it is reaped.
    server: Option<(i32, Arc<OwnedFd>)>,
}

impl Control {
    fn send(&mut self, command: &str) -> std::io::Result<String> {
        let commands = self.commands.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(commands, "{command}")?;
        self.read_reply()
    }

    fn read_reply(&mut self) -> std::io::Result<String> {
        let mut reply = String::new();
        match self.replies.read_line(&mut reply)? {
            0 => Err(std::io::Error::other("the guardian has exited")),
            _ => Ok(reply.trim().to_owned()),
        }
    }
}

impl GuardedProcess {
    /// Starts the guardian and the server.
    pub fn start(spec: ProcessSpec) -> Result<Self, StartError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("guardian.sh")).arg("ade-guardian").arg(std::env::temp_dir());
        command.arg(spec.stop_signal).arg(&spec.preparation).args(&spec.argv).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guardian = command.spawn().map_err(StartError::system("start the guardian"))?;
        let missing =
            || StartError::system("open the pipes of the guardian")(std::io::ErrorKind::BrokenPipe.into());
        let commands = guardian.stdin.take().ok_or_else(missing)?;
        let replies = BufReader::new(guardian.stdout.take().ok_or_else(missing)?);
        let stderr = BufReader::new(guardian.stderr.take().ok_or_else(missing)?);
        let log = Arc::new(SharedLog::default());
        let shared = Arc::clone(&log);
        thread::spawn(move || read_log(stderr, &shared));
        let mut control = Control { commands: Some(commands), replies, server: None };
        let folder = control
            .read_reply()
            .map(PathBuf::from)
            .map_err(StartError::system("create a temporary folder"))?;
        let guarded = Self { name: spec.name, folder, guardian, control: Mutex::new(control), log };
        guarded
            .write_files(&spec.files, spec.owner)
            .map_err(StartError::system("write to a temporary folder"))?;
        if !spec.preparation.is_empty() {
            guarded.prepare()?;
        }
        guarded.spawn()?;
        Ok(guarded)
    }

    fn write_files(&self, files: &[(&str, String)], owner: Option<(u32, u32)>) -> std::io::Result<()> {
        for (name, content) in files {
            fs::write(self.folder.join(name), content)?;
        }
        owner.map_or(Ok(()), |(user, group)| chown(&self.folder, Some(user), Some(group)))
    }

    /// Process id of the server; 0 once it is reaped.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.control().server.as_ref().map_or(0, |(pid, _)| *pid)
    }

    #[must_use]
    pub fn guardian_pid(&self) -> u32 {
        self.guardian.id()
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of log lines so far: a position for [`Self::wait_for_log_line_after`].
    #[must_use]
    pub fn log_position(&self) -> usize {
        self.log.lock().count
    }

    /// Log lines that contain `text`, as far as they are still in memory.
    #[must_use]
    pub fn log_lines_with(&self, text: &str) -> Vec<String> {
        self.log.lock().lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// Waits for `times` log lines that contain `text`, from the beginning.
    pub fn wait_for_log_lines(&self, text: &str, times: usize, timeout: Duration) -> Result<(), StartError> {
        self.wait_for_log(0, text, times, timeout)
    }

    /// Waits for a log line that contains `text` and comes after `position`.
    pub fn wait_for_log_line_after(
        &self,
        position: usize,
        text: &str,
        timeout: Duration,
    ) -> Result<(), StartError> {
        self.wait_for_log(position, text, 1, timeout)
    }

    fn wait_for_log(
        &self,
        position: usize,
        text: &str,
        times: usize,
        timeout: Duration,
    ) -> Result<(), StartError> {
        let enough = |log: &Log| {
            let dropped = log.count - log.lines.len();
            let new_lines = log.lines.iter().skip(position.saturating_sub(dropped));
            new_lines.filter(|line| line.contains(text)).count() >= times
        };
        let server = self.pid();
        if self.wait_until(timeout, |log| enough(log) || log.exited_pids.contains(&server))
            && enough(&self.log.lock())
        {
            return Ok(());
        }
        let mut what = "did not get ready in time";
        if self.log.lock().exited_pids.contains(&server) {
            what = "exited";
            // Its last log lines may still be in the pipe. The note of the guardian comes after them.
            let note = self.reap()?;
            self.wait_until(timeout, |log| log.lines.iter().any(|line| line.starts_with(&note)));
        }
        Err(StartError::NotReady { server: self.name.clone(), what, log: self.last_lines() })
    }

    fn last_lines(&self) -> String {
        let log = self.log.lock();
        let last = log.lines.iter().skip(log.lines.len().saturating_sub(ERROR_LOG_LINES));
        last.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Returns whether the condition became true in time.
    fn wait_until(&self, timeout: Duration, condition: impl Fn(&Log) -> bool) -> bool {
        let result = self.log.changed.wait_timeout_while(self.log.lock(), timeout, |log| !condition(log));
        !result.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub fn signal(&self, signal: Signal) -> Result<(), StartError> {
        let process = self.control().server.as_ref().map(|(_, process)| Arc::clone(process));
        process
            .ok_or(std::io::ErrorKind::NotFound.into())
            .and_then(|process| Ok(pidfd_send_signal(process, signal)?))
            .map_err(StartError::system(format!("signal {}", self.name)))
    }

    /// Kills the server, waits for its exit and starts it again in the same folder.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        self.kill()?;
        self.spawn()
    }

    /// Kills the server and waits for its exit; [`Self::spawn`] starts it again.
    pub fn kill(&self) -> Result<(), StartError> {
        self.signal(Signal::KILL)?;
        self.reap().map(drop)
    }

    /// Waits until a server that got a stop signal has exited; [`Self::spawn`] starts it again.
    pub fn wait_for_exit(&self) -> Result<(), StartError> {
        self.reap().map(drop)
    }

    fn prepare(&self) -> Result<(), StartError> {
        let failed = || StartError::system(format!("prepare {}", self.name));
        let status = self.control().send("prepare").map_err(failed())?;
        if status == "0" {
            return Ok(());
        }
        let log = self.last_lines();
        Err(failed()(std::io::Error::other(format!("exit status {status}:\n{log}"))))
    }

    /// Starts the server, which must not be running.
    pub fn spawn(&self) -> Result<(), StartError> {
        let failed = || StartError::system(format!("start {}", self.name));
        let mut control = self.control();
        if control.server.is_some() {
            return Err(failed()(std::io::Error::other("it is already running")));
        }
        let (pid, process) = control
            .send("start")
            .and_then(|reply| {
                let invalid = || std::io::Error::other(format!("invalid reply of the guardian: {reply:?}"));
                let pid: i32 = reply.parse().map_err(|_| invalid())?;
                Ok((pid, Arc::new(pidfd_open(Pid::from_raw(pid).ok_or_else(invalid)?, PidfdFlags::empty())?)))
            })
            .map_err(failed())?;
        control.server = Some((pid, Arc::clone(&process)));
        let log = Arc::clone(&self.log);
        thread::spawn(move || {
            // After an error, waiting tests fail too early, with the log.
            let _ = wait_on_pidfd(&process, None);
            log.lock().exited_pids.push(pid);
            log.changed.notify_all();
        });
        Ok(())
    }

    /// Waits for the exit of the server. Returns the start of the line that the guardian logs about it.
    fn reap(&self) -> Result<String, StartError> {
        let mut control = self.control();
        let Some((pid, _)) = control.server.take() else { return Ok(String::new()) };
        control.send("reap").map_err(StartError::system(format!("wait for the exit of {}", self.name)))?;
        Ok(format!("process {pid} exited"))
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GuardedProcess {
    fn drop(&mut self) {
        drop(self.control().commands.take());
        // The guardian exits after the server has exited and the folder is removed.
        let _ = self.guardian.wait();
    }
}

fn read_log(stderr: impl BufRead, shared: &SharedLog) {
    for line in stderr.split(b'\n').map_while(Result::ok) {
        let mut log = shared.lock();
        log.lines.push_back(String::from_utf8_lossy(&line).into_owned());
        log.count += 1;
        if log.lines.len() > MAX_LOG_LINES {
            log.lines.pop_front();
        }
        drop(log);
        shared.changed.notify_all();
    }
}
