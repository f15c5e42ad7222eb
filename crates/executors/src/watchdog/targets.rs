//! The processes that a watched command consists of, and how signals reach them.
//!
//! They are found in three ways. The process group contains what did not leave it. A variable of the environment, which processes
//! inherit, marks those in groups of their own, as timeout(1) creates them, however deep a script starts them. The pid reaches a
//! command that has removed the variable, or has created its own session. Other processes with their own session are left alone:
//! they are meant to outlive the command.

use std::fs::{File, read_dir, read_to_string};
use std::io::Read as _;
use std::os::fd::OwnedFd;

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

/// The command itself. Its pidfd detects that it has exited, after which its pid may be reused.
#[derive(Debug)]
struct WatchedCommand {
    pid: Pid,
    fd: OwnedFd,
}

impl WatchedCommand {
    fn is_alive(&self) -> bool {
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&no_wait)) == Ok(0)
    }
}

/// The processes of one command.
#[derive(Debug)]
pub(super) struct Targets {
    group: Pid,
    marker: String,
    command: Option<WatchedCommand>,
}

impl Targets {
    /// The number of a group is reused one day, but not at the same time.
    pub(super) fn new(group: Pid, started_at: SharedTime) -> Self {
        Self { group, marker: format!("{}-{started_at}", group.as_raw_nonzero()), command: None }
    }

    pub(super) const fn group(&self) -> Pid {
        self.group
    }

    /// The value of the variable [`MARKER`].
    pub(super) fn marker(&self) -> &str {
        &self.marker
    }

    /// Has no effect if the command has already exited.
    pub(super) fn set_command(&mut self, pid: Pid) {
        self.command = pidfd_open(pid, PidfdFlags::empty()).ok().map(|fd| WatchedCommand { pid, fd });
    }

    /// Signals all of them.
    pub(super) fn send(&self, signal: Signal) {
        if let Some(command) = self.command.as_ref().filter(|command| command.is_alive()) {
            signal_outside_group(command.pid, self.group, signal);
        }
        self.signal_marked(signal);
        // At the end, because the watchdog is in this group.
        signal_group(self.group, signal);
    }

    /// Signals marked processes outside of the group. New processes have higher numbers than those that start them, and are found
    /// later in the directory. Sessions do not matter while the pid of the command is unknown: it may have created one.
    fn signal_marked(&self, signal: Signal) {
        // Without /proc only the other two ways are left.
        let Ok(processes) = read_dir("/proc") else { return };
        let own_session = group_and_session(getpid()).map(|(_, session)| session);
        for entry in processes.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            // Opened before the environment is read, so that it cannot be that of another process.
            if let Some(pid) = pid.filter(|pid| *pid != getpid())
                && let Ok(fd) = pidfd_open(pid, PidfdFlags::empty())
                && self.is_marked(pid)
                && let Some((group, session)) = group_and_session(pid)
                && group != self.group.as_raw_nonzero().get()
                && (self.command.is_none() || Some(session) == own_session)
            {
                // An error means that it has exited meanwhile.
                let _ = pidfd_send_signal(fd, signal);
            }
        }
    }

    fn is_marked(&self, pid: Pid) -> bool {
        let mut environment = Vec::new();
        // The environment of another user's process, which cannot be signalled either, is not readable.
        let read = File::open(format!("/proc/{}/environ", pid.as_raw_nonzero()))
            .and_then(|file| file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment));
        let mark = format!("{MARKER}={}", self.marker);
        read.is_ok() && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    }
}

/// From /proc, because [`getpgid`] must not be called for processes whose group has no number here, such as those of the kernel.
fn group_and_session(pid: Pid) -> Option<(RawPid, RawPid)> {
    let stat = read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, in parentheses, may contain anything. The state and the parent follow it.
    let mut numbers = stat.rsplit(')').next()?.split_whitespace().skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
