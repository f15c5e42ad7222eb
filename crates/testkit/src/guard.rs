//! A server process that cannot outlive its owner.
//!
//! Between the test and the server stands a small shell, the guardian (`guardian.sh`), in a process group of its own. It
//! holds the reading end of a pipe whose writing end only this process has. When that end closes, by drop, exit, panic,
//! abort or SIGKILL, the guardian stops the server and removes its folder. A process id is never signalled after it was
//! reaped, because only the guardian reaps.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// Lines of a server's log that are kept: enough that none is lost before a waiting test has seen it.
const KEPT_LINES: usize = 10_000;
/// Lines of it that an error message shows.
const SHOWN_LINES: usize = 40;

/// Why a server could not be started or reached.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program is not installed.
    #[error("{program} is not installed: run `make deps`, or install {package} with your package manager")]
    Missing {
        /// What was looked for.
        program: String,
        /// Debian's package.
        package: &'static str,
    },
    /// Something of the operating system failed.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The server ended or did not get ready.
    #[error("{server} {what}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: String,
        /// What happened instead.
        what: &'static str,
        /// Last lines of its log.
        log: String,
    },
    /// A running server refused a command.
    #[error("{doing}: {source}")]
    Redis {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: redis::RedisError,
    },
    /// A running server never reached the wanted state.
    #[error("waited too long until {what}; last seen: {seen}")]
    TimedOut {
        /// The wanted state.
        what: String,
        /// The last observation.
        seen: String,
    },
}

impl StartError {
    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::System { doing, source }
    }

    pub(crate) fn redis(doing: impl Into<String>) -> impl FnOnce(redis::RedisError) -> Self {
        let doing = doing.into();
        move |source| Self::Redis { doing, source }
    }
}

/// What a server has said, and whether it still lives.
#[derive(Debug, Default)]
struct Heard {
    lines: VecDeque<String>,
    /// Lines heard in all, including those no longer kept.
    count: usize,
    /// Process ids whose end was seen.
    ended: Vec<i32>,
}

#[derive(Debug, Default)]
struct Ear {
    heard: Mutex<Heard>,
    news: Condvar,
}

impl Ear {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a server is run.
#[derive(Debug)]
pub struct Spec {
    /// For error messages.
    pub name: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its own folder, removed at the end.
    pub folder: TempDir,
    /// Name of the signal that stops it at once, without the `SIG`.
    pub stop_signal: &'static str,
    /// User and group to run as.
    pub run_as: Option<(u32, u32)>,
}

/// A server under guard.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    folder: PathBuf,
    guardian: Child,
    desk: Mutex<Desk>,
    ear: Arc<Ear>,
}

/// What is spoken with the guardian.
#[derive(Debug)]
struct Desk {
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The server, until it was reaped.
    server: Option<i32>,
}

impl Desk {
    fn order(&mut self, order: &str) -> std::io::Result<String> {
        let orders = self.orders.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(orders, "{order}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.trim().to_owned())
    }
}

impl Guarded {
    /// Starts the guardian and the server.
    pub fn start(spec: Spec) -> Result<Self, StartError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("guardian.sh")).arg("ade-guardian");
        command.arg(spec.folder.path()).arg(spec.stop_signal).args(&spec.argv);
        command.current_dir(spec.folder.path()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some((user, group)) = spec.run_as {
            command.uid(user).gid(group);
        }
        let mut guardian = command.spawn().map_err(StartError::system("start a guardian"))?;
        // From here on the guardian removes the folder.
        let folder = spec.folder.keep();
        let missing = || StartError::system("take a guardian's pipes")(std::io::ErrorKind::BrokenPipe.into());
        let orders = guardian.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(guardian.stdout.take().ok_or_else(missing)?);
        let log = BufReader::new(guardian.stderr.take().ok_or_else(missing)?);
        let ear = Arc::new(Ear::default());
        let listener = Arc::clone(&ear);
        thread::spawn(move || listen(log, &listener));
        let guarded = Self {
            name: spec.name,
            folder,
            guardian,
            desk: Mutex::new(Desk { orders: Some(orders), answers, server: None }),
            ear,
        };
        guarded.begin()?;
        Ok(guarded)
    }

    /// Process id of the server; 0 once it was killed.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.desk().server.unwrap_or(0)
    }

    /// Process id of its guardian.
    #[must_use]
    pub fn guardian_pid(&self) -> u32 {
        self.guardian.id()
    }

    /// The server's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Number of log lines so far: a mark for [`Self::wait_for_line_after`].
    #[must_use]
    pub fn mark(&self) -> usize {
        self.ear.lock().count
    }

    /// Waits for `times` log lines that contain `text`, from the beginning.
    pub fn wait_for_lines(&self, text: &str, times: usize, timeout: Duration) -> Result<(), StartError> {
        self.wait(0, text, times, timeout)
    }

    /// Waits for a log line that contains `text` and was written after `mark`.
    pub fn wait_for_line_after(&self, mark: usize, text: &str, timeout: Duration) -> Result<(), StartError> {
        self.wait(mark, text, 1, timeout)
    }

    fn wait(&self, mark: usize, text: &str, times: usize, timeout: Duration) -> Result<(), StartError> {
        let enough = |heard: &Heard| {
            let forgotten = heard.count - heard.lines.len();
            let fresh = heard.lines.iter().skip(mark.saturating_sub(forgotten));
            fresh.filter(|line| line.contains(text)).count() >= times
        };
        let server = self.pid();
        if self.listen_until(timeout, |heard| enough(heard) || heard.ended.contains(&server))
            && enough(&self.ear.lock())
        {
            return Ok(());
        }
        let mut what = "did not get ready in time";
        if self.ear.lock().ended.contains(&server) {
            what = "ended";
            // Its last words may still be on their way; the guardian's note comes after them.
            let note = self.reap()?;
            self.listen_until(timeout, |heard| heard.lines.iter().any(|line| line.starts_with(&note)));
        }
        let heard = self.ear.lock();
        let last = heard.lines.iter().skip(heard.lines.len().saturating_sub(SHOWN_LINES));
        let log = last.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n");
        Err(StartError::NotReady { server: self.name.clone(), what, log })
    }

    /// Whether `satisfied` came true in time.
    fn listen_until(&self, timeout: Duration, satisfied: impl Fn(&Heard) -> bool) -> bool {
        let news = self.ear.news.wait_timeout_while(self.ear.lock(), timeout, |heard| !satisfied(heard));
        !news.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) -> Result<(), StartError> {
        // The desk stays locked meanwhile, so that the server cannot be reaped and its id given away.
        let desk = self.desk();
        let pid = desk.server.and_then(Pid::from_raw).ok_or(std::io::ErrorKind::NotFound.into());
        pid.and_then(|pid| Ok(kill_process(pid, signal)?))
            .map_err(StartError::system(format!("signal {}", self.name)))
    }

    /// Kills the server, waits for its end and starts it again, in the same folder.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        self.kill()?;
        self.begin()
    }

    /// Kills the server and waits for its end; [`Self::begin`] starts it again.
    pub fn kill(&self) -> Result<(), StartError> {
        self.signal(Signal::KILL)?;
        self.reap().map(drop)
    }

    /// Starts a server that was killed.
    pub fn begin(&self) -> Result<(), StartError> {
        let mut desk = self.desk();
        let pid: i32 = desk
            .order("start")
            .and_then(|answer| {
                answer.parse().map_err(|_| std::io::Error::other(format!("odd answer {answer:?}")))
            })
            .map_err(StartError::system(format!("start {}", self.name)))?;
        desk.server = Some(pid);
        let ear = Arc::clone(&self.ear);
        thread::spawn(move || {
            // The guardian reaps only when told, so the id cannot have been given to another process.
            let _ = wait_for_exit(pid, None);
            ear.lock().ended.push(pid);
            ear.news.notify_all();
        });
        Ok(())
    }

    /// Waits for the server's end; returns how the guardian's note of it begins.
    fn reap(&self) -> Result<String, StartError> {
        let mut desk = self.desk();
        let note = format!("process {} ended", desk.server.unwrap_or(0));
        if desk.server.take().is_some() {
            desk.order("reap").map_err(StartError::system(format!("wait for the end of {}", self.name)))?;
        }
        Ok(note)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.desk().orders.take());
        // The guardian ends when the server has ended and the folder is gone.
        let _ = self.guardian.wait();
    }
}

fn listen(log: impl BufRead, ear: &Ear) {
    for line in log.split(b'\n').map_while(Result::ok) {
        let mut heard = ear.lock();
        heard.lines.push_back(String::from_utf8_lossy(&line).into_owned());
        heard.count += 1;
        if heard.lines.len() > KEPT_LINES {
            heard.lines.pop_front();
        }
        drop(heard);
        ear.news.notify_all();
    }
}

/// Waits until a process, of whatever parent, has ended. Returns false if it still lives after `timeout`.
pub fn wait_for_exit(pid: i32, timeout: Option<Duration>) -> std::io::Result<bool> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(true) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(true),
        other => other?,
    };
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

/// A new folder for a server, owned by the user it runs as.
pub(crate) fn new_folder(run_as: Option<(u32, u32)>) -> Result<TempDir, StartError> {
    let failed = || StartError::system("make a temporary folder");
    let folder = tempfile::Builder::new().prefix("ade-test-").tempdir().map_err(failed())?;
    if let Some((user, group)) = run_as {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).map_err(failed())?;
    }
    Ok(folder)
}

/// The full path of an installed program.
pub(crate) fn program(name: &str, package: &'static str, folders: &[PathBuf]) -> Result<String, StartError> {
    #[expect(clippy::disallowed_methods, reason = "the test kit is an edge: it looks for installed programs")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(folders.iter().cloned())
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .map(|found| found.to_string_lossy().into_owned())
        .ok_or_else(|| StartError::Missing { program: name.to_owned(), package })
}
