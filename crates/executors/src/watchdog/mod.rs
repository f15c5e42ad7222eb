//! A process that watches over a command: it must not go on when whoever started it is killed, stands still, or has lost what
//! the command runs under.
//!
//! It is this program again, as a hidden subcommand, and is ready before the command starts. It leads a process group
//! that the command joins before its first instruction: so it knows whom to end without being told, and nobody else can
//! get the number of that group while it lives. Its standard input is a pipe whose other end only its [`Watchdog`] has.
//! What comes through it says for how long the command may go on, or that it has ended. Its end, or silence for too long, says
//! that whoever is at the other end was killed or stands still: then the group is asked to end and, after the grace,
//! killed, with the watchdog in it.
//!
//! What leaves the group by itself (setsid, the jobs of an interactive shell) is out of reach.

mod work;

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

pub use work::run;

/// How the hidden subcommand is called.
pub const NAME: &str = "watchdog";
/// What is running now, also if its file was replaced meanwhile.
const OWN: &str = "/proc/self/exe";
/// The command has ended; what it left running may go on.
const DONE: u8 = b'd';
/// The command may go on for longer.
const TRUSTED: u8 = b't';

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

/// What a watchdog is told in the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Between asking the group to end and killing it.
    pub grace: Duration,
    /// For how long the command may go on without another word; nothing: for as long as we live.
    pub trust: Option<Duration>,
    /// Whether the grace ends with the trust: nothing of the command may be left after that.
    pub within_trust: bool,
    /// The process group that gets the terminal back.
    pub terminal_to: Option<Pid>,
}

impl Terms {
    const LENGTH: usize = 13;

    fn encoded(self) -> Vec<u8> {
        let terminal = Pid::as_raw(self.terminal_to);
        let mut bytes = Vec::with_capacity(Self::LENGTH);
        bytes.extend(millis(Some(self.grace)));
        bytes.extend(millis(self.trust));
        bytes.push(u8::from(self.within_trust));
        bytes.extend(terminal.to_le_bytes());
        bytes
    }

    fn decoded(bytes: [u8; Self::LENGTH]) -> Self {
        let [g0, g1, g2, g3, t0, t1, t2, t3, within, p0, p1, p2, p3] = bytes;
        Self {
            grace: duration([g0, g1, g2, g3]).unwrap_or_default(),
            trust: duration([t0, t1, t2, t3]),
            within_trust: within != 0,
            terminal_to: Pid::from_raw(i32::from_le_bytes([p0, p1, p2, p3])),
        }
    }
}

/// Milliseconds; the most there are for what does not end.
fn millis(time: Option<Duration>) -> [u8; 4] {
    time.and_then(|time| u32::try_from(time.as_millis()).ok()).unwrap_or(u32::MAX).to_le_bytes()
}

fn duration(millis: [u8; 4]) -> Option<Duration> {
    let millis = u32::from_le_bytes(millis);
    (millis != u32::MAX).then(|| Duration::from_millis(millis.into()))
}

fn send(group: Pid, signal: Signal) {
    // The group may be gone already, which is what was wanted.
    let _ = kill_process_group(group, signal);
}

/// A watchdog, as whoever started it sees it. Without a last word from us its group is ended.
#[derive(Debug)]
pub struct Watchdog {
    process: Child,
    group: Pid,
}

impl Watchdog {
    /// Starts one, and waits until it is ready. From then on its group is the place for the command.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(program: &Program, terms: Terms) -> io::Result<Self> {
        let process = Command::new(&program.path)
            .args(program.subcommand)
            .arg0("ade")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let number = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let group = number.ok_or_else(|| io::Error::other("the watchdog has no number"))?;
        let mut watchdog = Self { group, process };
        watchdog.tell(&terms.encoded()).await?;
        if let Some(mut ready) = watchdog.process.stdout.take() {
            ready.read_exact(&mut [0]).await?;
        }
        Ok(watchdog)
    }

    /// The group that the command has to join.
    #[must_use]
    pub const fn group(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the command and all that it started.
    pub fn pass_on(&self, signal: Signal) {
        send(self.group, signal);
    }

    /// The command may go on for so long. If the watchdog is gone, this is not the place to notice.
    pub async fn trust_on(&mut self, left: Duration) {
        let order: Vec<u8> = [TRUSTED].into_iter().chain(millis(Some(left))).collect();
        let _ = self.tell(&order).await;
    }

    /// The command has ended, or has never begun; what it left running may go on.
    pub async fn dismiss(mut self) {
        // If it was killed, there is nobody to be told.
        let _ = self.tell(&[DONE]).await;
        let _ = self.process.wait().await;
    }

    /// Kills what is left of the group, and the watchdog with it. Until it is waited for, its number, and so the group's, is
    /// its own.
    pub async fn kill(mut self) {
        send(self.group, Signal::KILL);
        let _ = self.process.wait().await;
    }

    async fn tell(&mut self, what: &[u8]) -> io::Result<()> {
        let pipe = self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        pipe.write_all(what).await?;
        pipe.flush().await
    }
}
