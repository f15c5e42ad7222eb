//! CPU time of processes from /proc/*/schedstat, which counts nanoseconds instead of ticks.
//!
//! Invariant: only the server process and its children count.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::error::BenchError;

/// A process and its children.
pub(crate) fn process_tree(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    found.extend(pids.filter(|pid| parent(*pid) == Some(root)));
    found
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name, in parentheses, may have spaces. State and parent follow it.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// CPU time of all threads of a process and its children so far.
pub(crate) fn cpu_time(root: i32) -> Result<Duration, BenchError> {
    let mut total_ns = 0;
    for pid in process_tree(root) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        total_ns += threads.filter_map(|thread| thread_cpu_ns(&thread.ok()?.path())).sum::<u64>();
    }
    if total_ns == 0 {
        return Err(BenchError::new(
            "cannot read the CPU time of the server: the kernel has no /proc/*/schedstat",
        ));
    }
    Ok(Duration::from_nanos(total_ns))
}

fn thread_cpu_ns(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}
