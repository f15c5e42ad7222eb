//! The processes that a watched command consists of, and how signals reach them.
//!
//! They are found in three ways. The process group contains what did not leave it. The pid reaches the command itself, with the
//! group that it leads. A variable of the environment, which processes inherit, marks those in groups of their own, as timeout(1)
//! creates them, however deep a script starts them. Sessions of their own are for processes that are meant to outlive the command;
//! only that of the command itself is part of it.

use std::collections::BTreeSet;
use std::fs::{File, read_dir, read_to_string};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, RawPid, Signal, getpgid, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal,
};

use super::protocol::SharedTime;

/// The variable that marks the processes of a command.
pub(super) const MARKER: &str = "ADE_WATCHDOG";
/// Longest environment that is searched for the variable. Linux has a lower limit unless the stack is larger than usual.
const MAX_ENVIRONMENT_BYTES: u64 = 4 * 1_048_576;
/// Bounds the search for processes that start others faster than they are found.
const MAX_PASSES: usize = 100;

pub(super) fn signal_group(group: Pid, signal: Signal) {
    // An error means that the group has already exited.
    let _ = kill_process_group(group, signal);
}

/// Signals a command that has left `group`, with all of its own group if it leads one. The command must not have been reaped, so
/// that its pid is still its own.
pub(crate) fn signal_outside_group(command: Pid, group: Pid, signal: Signal) {
    match getpgid(Some(command)) {
        Ok(own_group) if own_group == command => signal_group(own_group, signal),
        // An error means that it has exited meanwhile.
        Ok(own_group) if own_group != group => drop(kill_process(command, signal)),
        _ => {}
    }
}

/// The command itself.
#[derive(Debug)]
struct WatchedCommand {
    pid: Pid,
    /// Detects that it has exited, after which its pid may be reused. None if it had exited before.
    fd: Option<OwnedFd>,
}

impl WatchedCommand {
    fn is_alive(&self) -> bool {
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_running = |fd| poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&no_wait)) == Ok(0);
        self.fd.as_ref().is_some_and(is_running)
    }
}

/// The processes of one command.
#[derive(Debug)]
pub(super) struct Targets {
    group: Pid,
    marker: String,
    command: OnceLock<WatchedCommand>,
}

impl Targets {
    /// The number of a group is reused one day, but not at the same time.
    pub(super) fn new(group: Pid, started_at: SharedTime) -> Self {
        Self { group, marker: format!("{}-{started_at}", group.as_raw_nonzero()), command: OnceLock::new() }
    }

    pub(super) const fn group(&self) -> Pid {
        self.group
    }

    /// The value of the variable [`MARKER`]. A command of a command belongs to both.
    #[expect(clippy::disallowed_methods, reason = "the marks of this process are inherited, not configured")]
    pub(super) fn marker(&self) -> String {
        let outer = std::env::var(MARKER).into_iter();
        outer.chain([self.marker.clone()]).collect::<Vec<_>>().join(",")
    }

    /// There is one command.
    pub(super) fn set_command(&self, pid: Pid) {
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok();
        self.command.get_or_init(|| WatchedCommand { pid, fd });
    }

    fn running_command(&self) -> Option<Pid> {
        self.command.get().filter(|command| command.is_alive()).map(|command| command.pid)
    }

    /// Signals the group, and the command if it has left it.
    pub(super) fn signal_known(&self, signal: Signal) {
        if let Some(command) = self.running_command() {
            signal_outside_group(command, self.group, signal);
        }
        signal_group(self.group, signal);
    }

    /// Signals the marked processes that [`Self::signal_known`] does not reach.
    pub(super) fn signal_others(&self, signal: Signal) {
        let known = [Some(self.group), self.running_command()];
        let known = known.map(|group| group.map(|group| group.as_raw_nonzero().get()));
        for process in self.marked() {
            if !known.contains(&Some(process.group)) {
                process.signal(signal);
            }
        }
    }

    /// Kills the marked processes, also those of the group, but not this process. A process that was killed starts no other any
    /// more, so that nothing is left once a search finds only such ones.
    pub(super) fn kill_marked(&self) {
        let mut killed = BTreeSet::new();
        for _ in 0..MAX_PASSES {
            let mut has_found = false;
            for process in self.marked() {
                process.signal(Signal::KILL);
                has_found |= killed.insert(process.pid);
            }
            if !has_found {
                return;
            }
        }
    }

    fn marked(&self) -> impl Iterator<Item = Marked> {
        let own_session = Marked::group_and_session(getpid()).map(|(_, session)| session);
        // Without /proc only the other two ways are left.
        let entries = read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries
            .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
            .filter_map(Pid::from_raw)
            .filter(|pid| *pid != getpid());
        pids.filter_map(move |pid| {
            // Opened before the environment is read, so that it cannot be that of another process.
            let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            let (group, session) =
                Some(pid).filter(|pid| self.is_marked(*pid)).and_then(Marked::group_and_session)?;
            // While the pid of the command is unknown, any session may be its own.
            let is_part = Some(session) == own_session
                || self.command.get().is_none_or(|command| command.pid.as_raw_nonzero().get() == session);
            is_part.then_some(Marked { pid: pid.as_raw_nonzero().get(), fd, group })
        })
    }

    fn is_marked(&self, pid: Pid) -> bool {
        let mut environment = Vec::new();
        // The environment of another user's process, which cannot be signalled either, is not readable.
        let read = File::open(format!("/proc/{}/environ", pid.as_raw_nonzero()))
            .and_then(|file| file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment));
        let is_own = |variable: &[u8]| {
            let marks = variable.strip_prefix(MARKER.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            marks.is_some_and(|marks| {
                marks.split(|byte| *byte == b',').any(|mark| mark == self.marker.as_bytes())
            })
        };
        read.is_ok() && environment.split(|byte| *byte == 0).any(is_own)
    }
}

/// A process with the mark.
struct Marked {
    pid: RawPid,
    fd: OwnedFd,
    group: RawPid,
}

impl Marked {
    fn signal(&self, signal: Signal) {
        // An error means that it has exited meanwhile.
        let _ = pidfd_send_signal(&self.fd, signal);
    }

    /// From /proc, because [`getpgid`] must not be called for processes whose group has no number here, such as those of the kernel.
    fn group_and_session(pid: Pid) -> Option<(RawPid, RawPid)> {
        let stat = read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // The name, in parentheses, may contain anything. The state and the parent follow it.
        let mut numbers = stat.rsplit(')').next()?.split_whitespace().skip(2).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}
