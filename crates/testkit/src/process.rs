//! Other processes: finds installed programs, waits for exits.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::StartError;

/// Waits until a process, which need not be a child, has exited. Returns false if it still runs after `timeout`.
pub fn wait_for_exit(pid: i32, timeout: Option<Duration>) -> std::io::Result<bool> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(true) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => Ok(true),
        process => wait_on_pidfd(&process?, timeout),
    }
}

pub(crate) fn wait_on_pidfd(process: &OwnedFd, timeout: Option<Duration>) -> std::io::Result<bool> {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

pub(crate) fn program(name: &str, package: &'static str, folders: &[PathBuf]) -> Result<String, StartError> {
    #[expect(clippy::disallowed_methods, reason = "installed programs are found by PATH")]
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(folders.iter().cloned())
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .map(|found| found.to_string_lossy().into_owned())
        .ok_or_else(|| StartError::Missing { program: name.to_owned(), package })
}
