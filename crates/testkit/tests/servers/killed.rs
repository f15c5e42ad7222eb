//! A killed test leaves no server and no folder behind. `ade-servers` plays the test: it starts servers of every kind and is
//! then killed with SIGKILL, or ends normally.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ade_testkit::wait::eventually;
use ade_testkit::wait_for_exit;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const EXIT_TIMEOUT: Duration = Duration::from_secs(120);

struct Started {
    owner: Child,
    processes: Vec<(i32, i32, PathBuf)>,
}

fn start(kinds: &[&str]) -> std::io::Result<Started> {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_ade-servers"))
        .args(kinds)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let out = owner.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
    let mut processes = Vec::new();
    for line in BufReader::new(out).lines() {
        let line = line?;
        let mut words = line.split(' ');
        match words.next() {
            Some("process") => {
                let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
                let (server, guardian) = (number(), number());
                processes.push((server, guardian, words.next().map(PathBuf::from).unwrap_or_default()));
            }
            Some("ready") => break,
            _ => {}
        }
    }
    Ok(Started { owner, processes })
}

/// Waits for the exit of the processes, then checks that their folders are removed.
fn assert_all_gone(processes: &[(i32, i32, PathBuf)]) {
    for (server, guardian, folder) in processes {
        assert!(wait_for_exit(*server, Some(EXIT_TIMEOUT)).expect("readable"), "server {server} still runs");
        assert!(
            wait_for_exit(*guardian, Some(EXIT_TIMEOUT)).expect("readable"),
            "guardian {guardian} still runs"
        );
        assert!(!folder.exists(), "{} still exists", folder.display());
    }
}

fn pid(owner: &Child) -> Pid {
    Pid::from_child(owner)
}

#[test]
fn sigkill_of_owner_stops_every_kind_of_server() {
    let mut started = start(&["redis", "sentinel", "cluster", "postgres", "browser"]).expect("starts");
    assert_eq!(started.processes.len(), 1 + 6 + 6 + 1 + 2);
    kill_process(pid(&started.owner), Signal::KILL).expect("killed");
    started.owner.wait().expect("reaped");
    assert_all_gone(&started.processes);
}

#[test]
fn sigkill_of_process_group_stops_servers() {
    let mut started = start(&["redis", "postgres", "browser"]).expect("starts");
    kill_process_group(pid(&started.owner), Signal::KILL).expect("killed");
    started.owner.wait().expect("reaped");
    assert_all_gone(&started.processes);
}

#[test]
fn stopped_servers_are_killed_too() {
    let mut started = start(&["redis", "postgres", "browser"]).expect("starts");
    for (server, ..) in &started.processes {
        kill_process(Pid::from_raw(*server).expect("a process id"), Signal::STOP).expect("stopped");
    }
    kill_process(pid(&started.owner), Signal::KILL).expect("killed");
    started.owner.wait().expect("reaped");
    assert_all_gone(&started.processes);
}

#[test]
fn normal_exit_stops_servers_first() {
    let mut started = start(&["redis", "postgres", "browser"]).expect("starts");
    drop(started.owner.stdin.take());
    assert!(started.owner.wait().expect("reaped").success());
    assert!(started.processes.iter().all(|(.., folder)| !folder.exists()));
    assert_all_gone(&started.processes);
}

/// Processes whose working directory is at or below a folder, or whose arguments contain its path.
fn processes_of(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").expect("readable").filter_map(|process| Some(process.ok()?.path()));
    let path = folder.to_string_lossy();
    let belongs = |process: &PathBuf| {
        fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
            || fs::read(process.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&*path))
    };
    all.filter(belongs).collect()
}

#[test]
fn owner_killed_during_start_leaves_nothing() {
    // Killed at different stages: during preparation, during start, just ready.
    for delay_ms in [0, 20, 60, 120, 200, 300, 450, 600] {
        let home = tempfile::tempdir().expect("created");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("other users may enter");
        let mut owner = Command::new(env!("CARGO_BIN_EXE_ade-servers"))
            .args(["browser", "redis", "postgres"])
            .env("TMPDIR", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        let exited = wait_for_exit(pid(&owner).as_raw_nonzero().get(), Some(Duration::from_millis(delay_ms)));
        assert!(!exited.expect("readable"), "it exited before it was killed");
        kill_process(pid(&owner), Signal::KILL).expect("killed");
        owner.wait().expect("reaped");
        eventually("all processes and folders are gone", EXIT_TIMEOUT, || {
            let folders: Vec<PathBuf> = fs::read_dir(home.path())
                .expect("readable")
                .map(|entry| entry.expect("readable").path())
                .filter(|path| !path.to_string_lossy().contains("ade-test-ports"))
                .collect();
            let processes = processes_of(home.path());
            if folders.is_empty() && processes.is_empty() {
                Ok(())
            } else {
                Err(format!("{folders:?} {processes:?}"))
            }
        })
        .expect("in time");
    }
}
