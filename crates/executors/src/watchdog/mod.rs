//! A process that watches over a command: it must not go on when whoever started it is killed, stands still, or has lost what
//! the command runs under.
//!
//! It is this program again, as a hidden subcommand, and is ready before the command starts. It leads a process group
//! that the command joins before its first instruction: so it knows whom to end without being told, and nobody else can
//! get the number of that group while it lives. Its standard input is a pipe whose other end only its [`Watchdog`] has.
//! What comes through it says until when the command may go on, or that it has ended. Its end, or silence for too long, says
//! that whoever is at the other end was killed or stands still: then the group is asked to end and, after the grace,
//! killed, with the watchdog in it.
//!
//! A command that takes a group of its own (timeout(1) does) is ended with that group if the watchdog was told which one it is.
//! What it starts in other groups (setsid, the jobs of an interactive shell) is out of reach.

mod words;
mod work;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpgid, kill_process, kill_process_group, pidfd_open};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, timeout};

pub use words::Terms;
use words::{READY, Word};
pub use work::run;

/// How the hidden subcommand is called.
pub const NAME: &str = "watchdog";
/// What is running now, also if its file was replaced meanwhile.
const OWN: &str = "/proc/self/exe";
/// How long a watchdog is waited for that has nothing left to do: somebody may have stopped it.
const SOON: Duration = Duration::from_secs(1);

/// The program that has the watchdog in it.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    subcommand: Option<&'static str>,
}

impl Program {
    /// This one, which has to call [`run`] for its subcommand [`NAME`].
    #[must_use]
    pub fn own() -> Self {
        Self { path: OWN.into(), subcommand: Some(NAME) }
    }

    /// Another one, which does nothing but to call [`run`].
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), subcommand: None }
    }
}

/// The number of a process, if it is one.
pub(crate) fn number(process: &Child) -> Option<Pid> {
    process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

fn send(group: Pid, signal: Signal) {
    // The group may be gone already, which is what was wanted.
    let _ = kill_process_group(group, signal);
}

/// The command, whose number may become another's once it has ended.
#[derive(Debug)]
struct Watched {
    pid: Pid,
    itself: OwnedFd,
}

impl Watched {
    /// Nothing if it has ended already.
    fn new(pid: Pid) -> Option<Self> {
        pidfd_open(pid, PidfdFlags::empty()).ok().map(|itself| Self { pid, itself })
    }

    /// If it lives, and has left that group.
    fn send(&self, left: Pid, signal: Signal) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.itself, PollFlags::IN)], Some(&now)) == Ok(0) {
            send_to_leaver(self.pid, left, signal);
        }
    }
}

/// To a command that has left its group, with all of its own group if it leads one. Its number must still be its own: nobody has
/// waited for it yet.
pub(crate) fn send_to_leaver(command: Pid, left: Pid, signal: Signal) {
    match getpgid(Some(command)) {
        Ok(group) if group == command => send(group, signal),
        // It may have ended meanwhile.
        Ok(group) if group != left => drop(kill_process(command, signal)),
        _ => {}
    }
}

/// A watchdog, as whoever started it sees it. Without a last word from us its group is ended.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
    group: Pid,
    command: Option<Watched>,
    /// Where it said that it is ready, and where nothing comes any more but the end.
    life: Option<ChildStdout>,
    has_terminal: bool,
}

impl Watchdog {
    /// Starts one, and waits until it is ready. From then on its group is the place for the command.
    pub async fn start(program: &Program, terms: Terms) -> io::Result<Self> {
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
        let group = number(&process).ok_or_else(|| io::Error::other("the watchdog has no number"))?;
        let life = process.stdout.take();
        let has_terminal = terms.terminal_to.is_some();
        let mut watchdog = Self { group, process, command: None, life, has_terminal };
        watchdog.tell(&terms.encoded()).await?;
        let mut said = [0; READY.len()];
        if let Some(life) = &mut watchdog.life {
            life.read_exact(&mut said).await?;
        }
        if said == READY { Ok(watchdog) } else { Err(io::Error::other("it is no watchdog that was started")) }
    }

    /// The group that the command has to join.
    #[must_use]
    pub const fn group(&self) -> Pid {
        self.group
    }

    /// Which process the command is, in case that it leaves the group. If the watchdog is gone, [`Self::gone`] tells.
    pub async fn watch(&mut self, command: &Child) {
        let Some(pid) = number(command) else { return };
        self.command = Watched::new(pid);
        let _ = self.tell(&Word::Watch(pid).encoded()).await;
    }

    /// Waits until the watchdog is gone, which it should not be. Nothing is lost if this is given up.
    pub async fn gone(&mut self) {
        if let Some(life) = &mut self.life {
            // It says nothing any more; an error is an end as well.
            while life.read(&mut [0]).await.is_ok_and(|read| read > 0) {}
            self.life = None;
        }
    }

    /// Sends a signal to the command and all that it started.
    pub fn pass_on(&self, signal: Signal) {
        if let Some(command) = &self.command {
            command.send(self.group, signal);
        }
        send(self.group, signal);
    }

    /// The command may go on until then. If the watchdog is gone, [`Self::gone`] tells.
    pub async fn trust_until(&mut self, until: Instant) {
        let _ = self.tell(&Word::Trusted(until).encoded()).await;
    }

    /// The command has ended, or has never begun; what it left running may go on.
    pub async fn dismiss(mut self) {
        // If it was killed, there is nobody to be told.
        let _ = self.tell(&Word::Done.encoded()).await;
        if timeout(SOON, self.process.wait()).await.is_err() {
            // It alone: the others of its group may go on. How it ended does not matter.
            let _ = self.process.kill().await;
        }
    }

    /// Kills what is left of the group, and the watchdog with it, which gives the terminal back before. Until it is waited for, its
    /// number, and so the group's, is its own.
    pub async fn kill(&mut self) {
        if self.has_terminal && self.tell(&Word::Kill.encoded()).await.is_ok() {
            let _ = timeout(SOON, self.gone()).await;
        }
        self.pass_on(Signal::KILL);
        // How it ended does not matter.
        let _ = self.process.wait().await;
    }

    async fn tell(&mut self, what: &[u8]) -> io::Result<()> {
        let pipe = self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        // Whoever is stopped reads nothing, and is not waited for.
        timeout(SOON, async {
            pipe.write_all(what).await?;
            pipe.flush().await
        })
        .await?
    }
}
