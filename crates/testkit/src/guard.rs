//! A server process that cannot outlive its owner.
//!
//! Between the test and the server stands a small shell, the guardian (`guardian.sh`), in a process group of its own. It
//! holds the reading end of a pipe whose writing end only this process has. When that end closes, by drop, exit, panic,
//! abort or SIGKILL, the guardian stops the server and removes its folder. Tests signal the server through a
//! descriptor of the very process; the guardian, its parent, by its number, which is its own until the guardian reaps.

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
use crate::process::wait_for_end;

/// Lines of a server's log that are kept: enough that none is lost before a waiting test has seen it.
const KEPT_LINES: usize = 10_000;
/// Lines of it that an error message shows.
const SHOWN_LINES: usize = 40;

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
    /// Files to be written into its folder, by name.
    pub files: Vec<(&'static str, String)>,
    /// What has to be done in the folder before the first start, as a shell script; may be empty.
    pub preparation: String,
    /// Program and arguments, run in its folder.
    pub argv: Vec<String>,
    /// Name of the signal that stops it at once, without the `SIG`.
    pub stop_signal: &'static str,
    /// User and group that own the folder.
    pub owner: Option<(u32, u32)>,
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
    /// The server's process id and a descriptor of it, until it was reaped.
    server: Option<(i32, Arc<OwnedFd>)>,
}

impl Desk {
    fn order(&mut self, order: &str) -> std::io::Result<String> {
        let orders = self.orders.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(orders, "{order}")?;
        self.answer()
    }

    fn answer(&mut self) -> std::io::Result<String> {
        let mut answer = String::new();
        match self.answers.read_line(&mut answer)? {
            0 => Err(std::io::Error::other("the guardian is gone")),
            _ => Ok(answer.trim().to_owned()),
        }
    }
}

impl Guarded {
    /// Starts the guardian and the server.
    pub fn start(spec: Spec) -> Result<Self, StartError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(include_str!("guardian.sh")).arg("ade-guardian").arg(std::env::temp_dir());
        command.arg(spec.stop_signal).arg(&spec.preparation).args(&spec.argv).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guardian = command.spawn().map_err(StartError::system("start a guardian"))?;
        let missing = || StartError::system("take a guardian's pipes")(std::io::ErrorKind::BrokenPipe.into());
        let orders = guardian.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(guardian.stdout.take().ok_or_else(missing)?);
        let log = BufReader::new(guardian.stderr.take().ok_or_else(missing)?);
        let ear = Arc::new(Ear::default());
        let listener = Arc::clone(&ear);
        thread::spawn(move || listen(log, &listener));
        let mut desk = Desk { orders: Some(orders), answers, server: None };
        let folder =
            desk.answer().map(PathBuf::from).map_err(StartError::system("make a temporary folder"))?;
        let guarded = Self { name: spec.name, folder, guardian, desk: Mutex::new(desk), ear };
        guarded.furnish(&spec.files, spec.owner).map_err(StartError::system("furnish a temporary folder"))?;
        if !spec.preparation.is_empty() {
            guarded.prepare()?;
        }
        guarded.begin()?;
        Ok(guarded)
    }

    fn furnish(&self, files: &[(&str, String)], owner: Option<(u32, u32)>) -> std::io::Result<()> {
        for (name, content) in files {
            fs::write(self.folder.join(name), content)?;
        }
        owner.map_or(Ok(()), |(user, group)| chown(&self.folder, Some(user), Some(group)))
    }

    /// Process id of the server; 0 once it was killed.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.desk().server.as_ref().map_or(0, |(pid, _)| *pid)
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

    /// Log lines so far that contain `text`, as far as they are kept.
    #[must_use]
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.ear.lock().lines.iter().filter(|line| line.contains(text)).cloned().collect()
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
        Err(StartError::NotReady { server: self.name.clone(), what, log: self.last_lines() })
    }

    fn last_lines(&self) -> String {
        let heard = self.ear.lock();
        let last = heard.lines.iter().skip(heard.lines.len().saturating_sub(SHOWN_LINES));
        last.map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
    }

    /// Whether `satisfied` came true in time.
    fn listen_until(&self, timeout: Duration, satisfied: impl Fn(&Heard) -> bool) -> bool {
        let news = self.ear.news.wait_timeout_while(self.ear.lock(), timeout, |heard| !satisfied(heard));
        !news.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) -> Result<(), StartError> {
        let process = self.desk().server.as_ref().map(|(_, process)| Arc::clone(process));
        process
            .ok_or(std::io::ErrorKind::NotFound.into())
            .and_then(|process| Ok(pidfd_send_signal(process, signal)?))
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

    /// Waits for the end of a server that was told to end; [`Self::begin`] starts it again.
    pub fn wait_for_end(&self) -> Result<(), StartError> {
        self.reap().map(drop)
    }

    fn prepare(&self) -> Result<(), StartError> {
        let failed = || StartError::system(format!("prepare {}", self.name));
        let status = self.desk().order("prepare").map_err(failed())?;
        if status == "0" {
            return Ok(());
        }
        let log = self.last_lines();
        Err(failed()(std::io::Error::other(format!("it ended with status {status}:\n{log}"))))
    }

    /// Starts a server that was killed.
    pub fn begin(&self) -> Result<(), StartError> {
        let failed = || StartError::system(format!("start {}", self.name));
        let mut desk = self.desk();
        if desk.server.is_some() {
            return Err(failed()(std::io::Error::other("it runs already")));
        }
        let (pid, process) = desk
            .order("start")
            .and_then(|answer| {
                let odd = || std::io::Error::other(format!("odd answer {answer:?}"));
                let pid: i32 = answer.parse().map_err(|_| odd())?;
                Ok((pid, Arc::new(pidfd_open(Pid::from_raw(pid).ok_or_else(odd)?, PidfdFlags::empty())?)))
            })
            .map_err(failed())?;
        desk.server = Some((pid, Arc::clone(&process)));
        let ear = Arc::clone(&self.ear);
        thread::spawn(move || {
            // An error would only mean that nobody is told early.
            let _ = wait_for_end(&process, None);
            ear.lock().ended.push(pid);
            ear.news.notify_all();
        });
        Ok(())
    }

    /// Waits for the server's end; returns how the guardian's note of it begins.
    fn reap(&self) -> Result<String, StartError> {
        let mut desk = self.desk();
        let Some((pid, _)) = desk.server.take() else { return Ok(String::new()) };
        desk.order("reap").map_err(StartError::system(format!("wait for the end of {}", self.name)))?;
        Ok(format!("process {pid} ended"))
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
