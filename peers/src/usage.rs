//! Processor time of processes, from /proc: exact to the nanosecond, not to the tick.
//!
//! Invariant: only what the kernel counts for the server itself and its children is charged to it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::failure::Failure;

/// The server and its children.
pub(crate) fn tree(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let numbers = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    found.extend(numbers.filter(|pid| parent(*pid) == Some(root)));
    found
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may have blanks; state and parent follow it.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// What a tree of processes has used so far, all threads of all of them.
pub(crate) fn cpu(root: i32) -> Result<Duration, Failure> {
    let mut total_ns = 0;
    for pid in tree(root) {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        total_ns += threads.filter_map(|thread| on_processor_ns(&thread.ok()?.path())).sum::<u64>();
    }
    if total_ns == 0 {
        return Err(Failure::new("cannot see what the server uses: the kernel has no /proc/*/schedstat"));
    }
    Ok(Duration::from_nanos(total_ns))
}

fn on_processor_ns(thread: &Path) -> Option<u64> {
    fs::read_to_string(thread.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
}
