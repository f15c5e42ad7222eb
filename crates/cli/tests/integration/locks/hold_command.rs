//! `ade lock hold` as a process: it waits for the lock, passes on the exit status of its command, and never leaves the
//! command running without the lock, even if it is killed itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::locks::server::{Process, Server, TIMEOUT, data_folder};
use ade_client::wire::Lock;
use ade_testkit::wait::eventually;
use ade_testkit::wait_for_exit;
use rustix::process::Signal;
use tokio::time::Instant;

const LOCK: &str = "resource:db:prod";

/// Ignores signals and waits until it is killed, together with a child process. Prints both process ids.
const STUBBORN: &str =
    "trap '' TERM INT HUP; sleep 1000 & echo child=$!; echo self=$$; wait; wait; wait; wait";

fn hold_arguments<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["lock", "hold", LOCK];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    arguments
}

fn is_free(server: &Server) -> bool {
    let shown = server.ade(&["lock", "show", LOCK, "--json"]).output().expect("runs");
    let lock: Lock = serde_json::from_slice(&shown.stdout).expect("JSON");
    lock.holders.is_empty()
}

/// Waits for a line such as `self=123`.
fn printed_pid(process: &mut Process, name: &str) -> i32 {
    let line = process.out.wait_for(&format!("{name}="));
    line.trim().rsplit('=').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn exits(pid: i32) -> bool {
    wait_for_exit(pid, Some(TIMEOUT)).expect("observed")
}

#[test]
fn passes_on_exit_status_and_releases_lock() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let (code, error) = server.run(&hold_arguments(&[], &["sh", "-c", script])).code_and_error();
        assert_eq!((code, error.as_str()), (expected, ""), "{script}");
        assert!(is_free(&server), "{script}");
    }
    let mut holder = server.run(&hold_arguments(&[], &["sh", "-c", "echo $ADE_FENCING_TOKENS"]));
    let token: u64 = holder.out.wait_for("").parse().expect("a token");
    assert!(token > 0);
    let (code, error) = server.run(&hold_arguments(&[], &["/no/such/program", "x"])).code_and_error();
    assert_eq!(code, 2);
    assert!(error.contains("cannot run /no/such/program") && error.contains("hint:"), "{error}");
    assert!(is_free(&server), "the lock is released if the command cannot start");
}

#[test]
fn waiter_shows_holder_and_waits_its_turn() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let options = ["--agent", "ann", "--purpose", "migrate \u{1b}[31mred\u{7}"];
    let mut first = server.run(&hold_arguments(&options, &["sh", "-c", "echo self=$$; exec sleep 1000"]));
    let first_command = printed_pid(&mut first, "self");
    let mut second = server.run(&hold_arguments(&["--agent", "ben"], &["echo", "second"]));
    let said = second.err.wait_for("waiting:");
    assert!(said.contains("resource:db:prod is held by ann"), "{said}");
    assert!(
        said.contains("migrate \\u{1b}[31mred\\u{7}") && said.contains("position 1 in the queue"),
        "{said:?}"
    );
    assert!(!said.chars().any(char::is_control), "{said:?}");
    let mut third = server.run(&hold_arguments(&["--agent", "cem", "--quiet"], &["echo", "third"]));
    let mut fourth = server.run(&hold_arguments(&["--agent", "dee"], &["echo", "fourth"]));
    let said = fourth.err.wait_for("waiting:");
    assert!(said.contains("in the queue"), "{said}");
    let (code, error) = server
        .run(&hold_arguments(&["--agent", "eve", "--wait", "0.3"], &["echo", "never"]))
        .code_and_error();
    assert_eq!(code, 1);
    assert!(error.contains("was not granted within the wait time") && error.contains("LOCK_HELD"), "{error}");
    assert!(error.contains("hint:"), "{error}");
    assert!(first.child.try_wait().expect("observed").is_none());
    let ended = Command::new("kill").args(["-KILL", &first_command.to_string()]).status().expect("runs");
    assert!(ended.success());
    assert_eq!(first.wait().code(), Some(137));
    second.out.wait_for("second");
    third.out.wait_for("third");
    fourth.out.wait_for("fourth");
    assert_eq!(second.wait().code(), Some(0));
    assert_eq!(fourth.wait().code(), Some(0));
    let (code, error) = third.code_and_error();
    assert_eq!((code, error.as_str()), (0, ""), "--quiet");
}

#[test]
fn exclusive_hold_waits_for_all_shared_holds() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let script = ["sh", "-c", "echo self=$$; sleep 1000"];
    let mut ann = server.run(&hold_arguments(&["--shared", "--agent", "ann"], &script));
    let mut ben = server.run(&hold_arguments(&["--shared", "--agent", "ben"], &script));
    printed_pid(&mut ann, "self");
    printed_pid(&mut ben, "self");
    let mut cem = server.run(&hold_arguments(&["--agent", "cem"], &["echo", "alone"]));
    assert!(cem.err.wait_for("waiting:").contains("and 1 more"));
    ann.send(Signal::TERM);
    assert_eq!(ann.wait().code(), Some(143));
    ben.send(Signal::INT);
    // A shell that waits for a child is killed by the same signal.
    assert_eq!(ben.wait().code(), Some(130));
    cem.out.wait_for("alone");
}

#[test]
fn forwards_sigterm_and_releases_lock() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let script = "trap 'kill -9 $!; echo cleaning; exit 9' TERM; sleep 1000 & echo self=$$; wait";
    let mut holder = server.run(&hold_arguments(&[], &["sh", "-c", script]));
    printed_pid(&mut holder, "self");
    // SIGTSTP must not suspend it: nothing would renew the lease or handle the next signal.
    holder.send(Signal::TSTP);
    holder.send(Signal::TERM);
    holder.out.wait_for("cleaning");
    assert_eq!(holder.wait().code(), Some(9));
    assert!(is_free(&server));
}

#[test]
fn broken_lock_kills_whole_process_group() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let mut holder = server.run(&hold_arguments(&["--ttl", "3", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, command_pid) = (printed_pid(&mut holder, "child"), printed_pid(&mut holder, "self"));
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "the test says so"]).output().expect("runs");
    let said = String::from_utf8_lossy(&broken.stdout).into_owned();
    assert!(said.starts_with("resource:db:prod was taken from admin/"), "{said}");
    let (code, error) = holder.code_and_error();
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("the lock was lost, so sh was stopped") && error.contains("hint:"), "{error}");
    assert!(exits(command_pid) && exits(child), "the whole process group exits");
    let (code, _) = server.run(&hold_arguments(&["--wait", "0"], &["true"])).code_and_error();
    assert_eq!(code, 0, "the next holder gets the lock");
}

#[test]
fn unreachable_server_stops_command_before_lease_expires() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let mut holder =
        server.run(&hold_arguments(&["--ttl", "1.5", "--grace", "0.1"], &["sh", "-c", STUBBORN]));
    let (child, command_pid) = (printed_pid(&mut holder, "child"), printed_pid(&mut holder, "self"));
    server.kill();
    let (code, error) = holder.code_and_error();
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("could not be reached before the lease expired"), "{error}");
    assert!(exits(command_pid) && exits(child));
}

#[test]
fn suspended_hold_stops_command_before_lease_expires() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let mut holder = server.run(&hold_arguments(&["--ttl", "3", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, command_pid) = (printed_pid(&mut holder, "child"), printed_pid(&mut holder, "self"));
    holder.send(Signal::STOP);
    let mut next = server.run(&hold_arguments(&[], &["echo", "next"]));
    next.out.wait_for("next");
    for pid in [command_pid, child] {
        let exited = wait_for_exit(pid, Some(Duration::ZERO)).expect("observed");
        assert!(exited, "process {pid} runs beside the next holder");
    }
    holder.send(Signal::CONT);
    let (code, error) = holder.code_and_error();
    assert_eq!(code, 6, "{error}");
}

#[test]
fn killed_hold_stops_command_and_next_waiter_proceeds() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let ttl = Duration::from_secs(2);
    let mut first = server.run(&hold_arguments(&["--ttl", "2", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, command_pid) = (printed_pid(&mut first, "child"), printed_pid(&mut first, "self"));
    let mut second = server.run(&hold_arguments(&["--agent", "ben"], &["echo", "second"]));
    second.err.wait_for("waiting:");
    let killed = Instant::now();
    first.send(Signal::KILL);
    assert!(exits(command_pid) && exits(child), "the watchdog kills processes that ignore SIGTERM");
    let stopped_after = killed.elapsed();
    second.out.wait_for("second");
    let granted_after = killed.elapsed();
    eprintln!(
        "after SIGKILL: command stopped after {stopped_after:?}, next waiter granted after {granted_after:?}"
    );
    assert!(stopped_after < ttl, "stopped before the lease expires: {stopped_after:?}");
    assert!(granted_after < ttl + Duration::from_millis(1_500), "{granted_after:?}");
    assert_eq!(second.wait().code(), Some(0));
}

#[test]
fn hold_stops_command_without_its_watchdog() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let mut holder = server.run(&hold_arguments(&["--ttl", "3", "--grace", "0.1"], &["sh", "-c", STUBBORN]));
    let (child, command_pid) = (printed_pid(&mut holder, "child"), printed_pid(&mut holder, "self"));
    let group = process_group(command_pid);
    let killed = Command::new("kill").args(["-KILL", &group.to_string()]).status().expect("runs");
    assert!(killed.success(), "the watchdog is the process group leader");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success());
    assert_eq!(holder.code_and_error().0, 6);
    assert!(exits(command_pid) && exits(child));
}

#[test]
fn command_at_terminal_gets_input_and_ctrl_c() {
    let (folder, data) = data_folder();
    let server = Server::start(&data);
    let ade = env!("CARGO_BIN_EXE_ade");
    // script(1) gives its single command the terminal; an interactive shell would put every job into its own group.
    let read = format!(
        "{ade} lock hold {LOCK} -- sh -c 'echo ready; read line; echo got=$line'; echo code=$?; read more; echo more=$more"
    );
    let mut terminal = run_at_terminal(&server, folder.path(), &read);
    terminal.out.wait_for("ready");
    type_in(&mut terminal, "words\n");
    terminal.out.wait_for("got=words");
    terminal.out.wait_for("code=0");
    type_in(&mut terminal, "again\n");
    terminal.out.wait_for("more=again");
    assert!(terminal.wait().success());
    let interrupted = format!(
        "trap : INT; {ade} lock hold {LOCK} -- sh -c 'trap \"echo caught; exit 4\" INT; echo ready; read line'; echo code=$?"
    );
    let mut terminal = run_at_terminal(&server, folder.path(), &interrupted);
    terminal.out.wait_for("ready");
    type_in(&mut terminal, "\u{1a}");
    type_in(&mut terminal, "\u{3}");
    terminal.out.wait_for("caught");
    terminal.out.wait_for("code=4");
    assert!(terminal.wait().success());
    assert!(is_free(&server));
    // The terminal is returned to the shell also when the lock is lost.
    let lost = format!(
        "{ade} lock hold {LOCK} --grace 0.1 -- sh -c 'echo ready; read line'; echo code=$?; read more; echo more=$more"
    );
    let mut terminal = run_at_terminal(&server, folder.path(), &lost);
    terminal.out.wait_for("ready");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success(), "{broken:?}");
    terminal.out.wait_for("code=6");
    type_in(&mut terminal, "again\n");
    terminal.out.wait_for("more=again");
    assert!(terminal.wait().success());
}

/// timeout(1) creates a process group of its own; the command is still found.
#[test]
fn stops_command_in_nested_process_group() {
    let (_folder, data) = data_folder();
    let server = Server::start(&data);
    let command = ["timeout", "1000", "sh", "-c", "echo self=$$; exec sleep 1000"];
    let mut holder = server.run(&hold_arguments(&["--ttl", "3", "--grace", "0.1"], &command));
    let command_pid = printed_pid(&mut holder, "self");
    holder.child.kill().expect("killed");
    assert!(exits(command_pid), "exits after hold is killed");
    let mut holder = server.run(&hold_arguments(&["--ttl", "3", "--grace", "0.1"], &command));
    let command_pid = printed_pid(&mut holder, "self");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success(), "{broken:?}");
    assert_eq!(holder.code_and_error().0, 6);
    assert!(exits(command_pid), "exits after the lock is lost");
}

fn run_at_terminal(server: &Server, folder: &Path, script: &str) -> Process {
    let mut command = server.ade(&[]);
    let environment: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command = Command::new("script");
    command.args(["--quiet", "--return", "--command", script]).arg(folder.join("typescript"));
    command.envs(environment).env("SHELL", "/bin/sh").stdin(std::process::Stdio::piped());
    Process::start(&mut command)
}

fn type_in(terminal: &mut Process, keys: &str) {
    use std::io::Write;
    let input = terminal.child.stdin.as_mut().expect("piped");
    input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("typed");
}

fn process_group(pid: i32) -> i32 {
    let stat = eventually("the process exists", TIMEOUT, || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())
    });
    let stat = stat.expect("readable");
    let after_name = stat.rsplit(')').next().expect("a name in parentheses");
    after_name.split_whitespace().nth(2).and_then(|group| group.parse().ok()).expect("a number")
}

#[test]
fn watchdog_command_is_internal_and_hidden() {
    let output = Command::new(env!("CARGO_BIN_EXE_ade")).arg("watchdog").output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let help = Command::new(env!("CARGO_BIN_EXE_ade")).arg("--help").output().expect("runs");
    assert!(!String::from_utf8_lossy(&help.stdout).contains("watchdog"));
}
