//! CPU time and memory of processes of this machine, from /proc. The kernel counts CPU time in ticks of 10 ms; it rounds only what it
//! shows, so errors do not add up from one reading to the next.

use std::fs;

use crate::error::{BenchError, ErrorKind};

/// The fields of /proc/PID/stat that are needed here.
#[derive(Debug, Clone, Copy)]
struct Stat {
    parent: u32,
    /// Of all threads, including those that have ended.
    own_seconds: f64,
    /// Of children that have ended.
    ended_children_seconds: f64,
}

fn read(pid: u32, file: &str) -> Result<String, BenchError> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| unreadable(pid, &error.to_string()))
}

fn unreadable(pid: u32, reason: &str) -> BenchError {
    let message = format!("cannot read the resource usage of process {pid}: {reason}");
    BenchError::new(ErrorKind::Unavailable, message)
}

impl Stat {
    fn of(pid: u32) -> Result<Self, BenchError> {
        let stat = read(pid, "stat")?;
        Self::parse(&stat).ok_or_else(|| unreadable(pid, "unknown format"))
    }

    /// The program name, in parentheses, may have spaces. The parent is field 4; user and system time of the process and of its
    /// ended children are fields 14 to 17.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ').skip(1);
        let parent = fields.next()?.parse().ok()?;
        let ticks: Vec<f64> = fields.skip(9).take(4).map_while(|field| field.parse().ok()).collect();
        let [user, system, children_user, children_system] = ticks.try_into().ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            parent,
            own_seconds: (user + system) / per_second,
            ended_children_seconds: (children_user + children_system) / per_second,
        })
    }
}

/// CPU time of one process.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    Ok(Stat::of(pid)?.own_seconds)
}

/// CPU time of a process and of all its children, including those that have ended.
pub(crate) fn tree_cpu_seconds(root: u32) -> Result<f64, BenchError> {
    let stat = Stat::of(root)?;
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // A process that ends meanwhile has no file any more.
    let children = pids.filter_map(|pid| Stat::of(pid).ok()).filter(|stat| stat.parent == root);
    Ok(stat.own_seconds + stat.ended_children_seconds + children.map(|stat| stat.own_seconds).sum::<f64>())
}

/// Resident memory of one process.
pub(crate) fn resident_bytes(pid: u32) -> Result<f64, BenchError> {
    let statm = read(pid, "statm")?;
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<f64>().ok());
    let pages = pages.ok_or_else(|| unreadable(pid, "unknown format"))?;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let page_size = rustix::param::page_size() as f64;
    Ok(pages * page_size)
}

/// The parent of a process, if both run a program of this name.
pub(crate) fn parent_of_same_program(pid: u32, program: &str) -> Option<u32> {
    let runs_program = |pid| read(pid, "comm").is_ok_and(|comm| comm.trim_end() == program);
    let parent = Stat::of(pid).ok()?.parent;
    (runs_program(pid) && runs_program(parent)).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn counts_children_that_run_and_that_have_ended() {
        let own = std::process::id();
        let before = tree_cpu_seconds(own).expect("readable");
        // The kernel ends it after one second of CPU time.
        let mut burner =
            Command::new("sh").args(["-c", "ulimit -t 1; while :; do :; done"]).spawn().expect("starts");
        let pid = burner.id();
        while cpu_seconds(pid).expect("not waited for yet") < 0.5 {
            std::thread::yield_now();
        }
        assert!(tree_cpu_seconds(own).expect("readable") - before >= 0.5, "while it runs");
        assert!(!burner.wait().expect("ends").success());
        assert!(tree_cpu_seconds(own).expect("readable") - before >= 0.9, "after its end");
    }

    #[test]
    fn reads_stat_of_a_program_with_spaces_and_parentheses() {
        let text = "7 (a ) b) S 3 7 7 0 -1 4194304 1 2 3 4 100 50 30 20 20 0 1 0 5 6 7";
        let stat = Stat::parse(text).expect("valid");
        assert_eq!((stat.parent, stat.own_seconds, stat.ended_children_seconds), (3, 1.5, 0.5));
        assert!(Stat::parse("7 (a) S 3 7 7").is_none());
    }

    #[test]
    fn memory_of_this_process_is_known_and_of_a_missing_one_is_an_error() {
        assert!(resident_bytes(std::process::id()).expect("readable") > 1_000_000.0);
        assert!(resident_bytes(u32::MAX).is_err() && cpu_seconds(u32::MAX).is_err());
    }
}
