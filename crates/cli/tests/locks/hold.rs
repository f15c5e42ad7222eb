//! `ade lock hold` as processes: it waits its turn, passes on how its command ended, and never leaves it running without
//! the lock, however it ends itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::server::{PATIENCE, Running, Server, folder};
use ade_client::wire::Lock;
use ade_testkit::wait::eventually;
use ade_testkit::wait_for_exit;
use rustix::process::Signal;
use tokio::time::Instant;

const LOCK: &str = "resource:db:prod";

/// A command that says its process id and then waits until it is killed; a child of it does the same.
const STUBBORN: &str =
    "trap '' TERM INT HUP; sleep 1000 & echo child=$!; echo self=$$; wait; wait; wait; wait";

fn hold<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec!["lock", "hold", LOCK];
    all.extend(options);
    all.push("--");
    all.extend(command);
    all
}

fn free(server: &Server) -> bool {
    let shown = server.ade(&["lock", "show", LOCK, "--json"]).output().expect("runs");
    let lock: Lock = serde_json::from_slice(&shown.stdout).expect("JSON");
    lock.holders.is_empty()
}

/// Waits for a line such as `self=123`.
fn number(running: &mut Running, of: &str) -> i32 {
    let line = running.out.wait_for(&format!("{of}="));
    line.trim().rsplit('=').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn is_over(pid: i32) -> bool {
    wait_for_exit(pid, Some(PATIENCE)).expect("observed")
}

#[test]
fn the_end_of_the_command_is_the_end_of_hold() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    for (script, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let (code, error) = server.run(&hold(&[], &["sh", "-c", script])).code_and_error();
        assert_eq!((code, error.as_str()), (expected, ""), "{script}");
        assert!(free(&server), "{script}");
    }
    let mut one = server.run(&hold(&[], &["sh", "-c", "echo $ADE_FENCING_TOKENS"]));
    let token: u64 = one.out.wait_for("").parse().expect("a token");
    assert!(token > 0);
    let (code, error) = server.run(&hold(&[], &["/no/such/program", "x"])).code_and_error();
    assert_eq!(code, 2);
    assert!(error.contains("cannot run /no/such/program") && error.contains("hint:"), "{error}");
    assert!(free(&server), "nothing ran, so nothing is held");
}

#[test]
fn the_second_waits_and_says_for_whom() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let options = ["--agent", "ann", "--purpose", "migrate \u{1b}[31mred\u{7}"];
    let mut first = server.run(&hold(&options, &["sh", "-c", "echo self=$$; exec sleep 1000"]));
    let first_command = number(&mut first, "self");
    let mut second = server.run(&hold(&["--agent", "ben"], &["echo", "second"]));
    let said = second.err.wait_for("waiting:");
    assert!(said.contains("resource:db:prod is held by ann"), "{said}");
    assert!(
        said.contains("migrate \\u{1b}[31mred\\u{7}") && said.contains("position 1 in the queue"),
        "{said:?}"
    );
    assert!(!said.chars().any(char::is_control), "{said:?}");
    let mut third = server.run(&hold(&["--agent", "cem", "--quiet"], &["echo", "third"]));
    let mut fourth = server.run(&hold(&["--agent", "dee"], &["echo", "fourth"]));
    let said = fourth.err.wait_for("waiting:");
    assert!(said.contains("in the queue"), "{said}");
    let (code, error) =
        server.run(&hold(&["--agent", "eve", "--wait", "0.3"], &["echo", "never"])).code_and_error();
    assert_eq!(code, 1);
    assert!(error.contains("was not granted within the wait time") && error.contains("LOCK_HELD"), "{error}");
    assert!(error.contains("hint:"), "{error}");
    assert!(first.child.try_wait().expect("observed").is_none());
    let ended = Command::new("kill").args(["-KILL", &first_command.to_string()]).status().expect("runs");
    assert!(ended.success());
    assert_eq!(first.end().code(), Some(137));
    second.out.wait_for("second");
    third.out.wait_for("third");
    fourth.out.wait_for("fourth");
    assert_eq!(second.end().code(), Some(0));
    assert_eq!(fourth.end().code(), Some(0));
    let (code, error) = third.code_and_error();
    assert_eq!((code, error.as_str()), (0, ""), "--quiet");
}

#[test]
fn shared_holds_run_together_and_an_exclusive_one_waits_for_both() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let script = ["sh", "-c", "echo self=$$; sleep 1000"];
    let mut ann = server.run(&hold(&["--shared", "--agent", "ann"], &script));
    let mut ben = server.run(&hold(&["--shared", "--agent", "ben"], &script));
    number(&mut ann, "self");
    number(&mut ben, "self");
    let mut cem = server.run(&hold(&["--agent", "cem"], &["echo", "alone"]));
    assert!(cem.err.wait_for("waiting:").contains("and 1 more"));
    ann.send(Signal::TERM);
    assert_eq!(ann.end().code(), Some(143));
    ben.send(Signal::INT);
    // A shell that was waiting for a command ends by the same signal.
    assert_eq!(ben.end().code(), Some(130));
    cem.out.wait_for("alone");
}

#[test]
fn sigterm_is_passed_on_and_the_lock_is_given_up() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let script = "trap 'kill -9 $!; echo cleaning; exit 9' TERM; sleep 1000 & echo self=$$; wait";
    let mut one = server.run(&hold(&[], &["sh", "-c", script]));
    number(&mut one, "self");
    // If this stopped it, nobody would renew the lock, and the next signal would not be heard.
    one.send(Signal::TSTP);
    one.send(Signal::TERM);
    one.out.wait_for("cleaning");
    assert_eq!(one.end().code(), Some(9));
    assert!(free(&server));
}

#[test]
fn a_broken_lock_stops_the_command_and_all_it_started() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let mut one = server.run(&hold(&["--ttl", "3", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, own) = (number(&mut one, "child"), number(&mut one, "self"));
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "the test says so"]).output().expect("runs");
    let said = String::from_utf8_lossy(&broken.stdout).into_owned();
    assert!(said.starts_with("resource:db:prod was taken from tester@"), "{said}");
    let (code, error) = one.code_and_error();
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("the lock was lost, so sh was stopped") && error.contains("hint:"), "{error}");
    assert!(is_over(own) && is_over(child), "the whole group is gone");
    let (code, _) = server.run(&hold(&["--wait", "0"], &["true"])).code_and_error();
    assert_eq!(code, 0, "the next one gets it");
}

#[test]
fn a_server_that_stays_away_ends_the_command_before_its_lease_does() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let mut one = server.run(&hold(&["--ttl", "1.5", "--grace", "0.1"], &["sh", "-c", STUBBORN]));
    let (child, own) = (number(&mut one, "child"), number(&mut one, "self"));
    server.kill();
    let (code, error) = one.code_and_error();
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("could not be reached before the lease expired"), "{error}");
    assert!(is_over(own) && is_over(child));
}

#[test]
fn a_hold_that_stands_still_takes_its_command_along_before_the_lease_ends() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let mut one = server.run(&hold(&["--ttl", "3", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, own) = (number(&mut one, "child"), number(&mut one, "self"));
    one.send(Signal::STOP);
    let mut next = server.run(&hold(&[], &["echo", "next"]));
    next.out.wait_for("next");
    for pid in [own, child] {
        let gone = wait_for_exit(pid, Some(Duration::ZERO)).expect("observed");
        assert!(gone, "nobody works beside the next holder");
    }
    one.send(Signal::CONT);
    let (code, error) = one.code_and_error();
    assert_eq!(code, 6, "{error}");
}

#[test]
fn a_killed_hold_takes_its_command_along_and_the_next_one_goes_on() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let ttl = Duration::from_secs(2);
    let mut first = server.run(&hold(&["--ttl", "2", "--grace", "0.2"], &["sh", "-c", STUBBORN]));
    let (child, own) = (number(&mut first, "child"), number(&mut first, "self"));
    let mut second = server.run(&hold(&["--agent", "ben"], &["echo", "second"]));
    second.err.wait_for("waiting:");
    let killed = Instant::now();
    first.send(Signal::KILL);
    assert!(is_over(own) && is_over(child), "the watchdog stops what ignores SIGTERM");
    let stopped_after = killed.elapsed();
    second.out.wait_for("second");
    let went_on_after = killed.elapsed();
    eprintln!(
        "killed: the command ended after {stopped_after:?}, the next one began after {went_on_after:?}"
    );
    assert!(stopped_after < ttl, "before anybody else may have the lock: {stopped_after:?}");
    assert!(went_on_after < ttl + Duration::from_millis(1_500), "{went_on_after:?}");
    assert_eq!(second.end().code(), Some(0));
}

#[test]
fn a_killed_watchdog_is_no_harm_as_long_as_hold_lives() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let mut one = server.run(&hold(&["--ttl", "3", "--grace", "0.1"], &["sh", "-c", STUBBORN]));
    let (child, own) = (number(&mut one, "child"), number(&mut one, "self"));
    let group = group_of(own);
    let killed = Command::new("kill").args(["-KILL", &group.to_string()]).status().expect("runs");
    assert!(killed.success(), "the watchdog leads the group");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success());
    assert_eq!(one.code_and_error().0, 6);
    assert!(is_over(own) && is_over(child));
}

#[test]
fn at_a_terminal_the_command_reads_from_it_and_gets_its_ctrl_c() {
    let (folder, data) = folder();
    let server = Server::start(&data);
    let ade = env!("CARGO_BIN_EXE_ade");
    // An interactive shell would give every job a group in the foreground; script(1) gives its one command the terminal.
    let read = format!(
        "{ade} lock hold {LOCK} -- sh -c 'echo ready; read line; echo got=$line'; echo code=$?; read more; echo more=$more"
    );
    let mut terminal = at_terminal(&server, folder.path(), &read);
    terminal.out.wait_for("ready");
    type_in(&mut terminal, "words\n");
    terminal.out.wait_for("got=words");
    terminal.out.wait_for("code=0");
    type_in(&mut terminal, "again\n");
    terminal.out.wait_for("more=again");
    assert!(terminal.end().success());
    let interrupted = format!(
        "trap : INT; {ade} lock hold {LOCK} -- sh -c 'trap \"echo caught; exit 4\" INT; echo ready; read line'; echo code=$?"
    );
    let mut terminal = at_terminal(&server, folder.path(), &interrupted);
    terminal.out.wait_for("ready");
    type_in(&mut terminal, "\u{1a}");
    type_in(&mut terminal, "\u{3}");
    terminal.out.wait_for("caught");
    terminal.out.wait_for("code=4");
    assert!(terminal.end().success());
    assert!(free(&server));
    // Also when the lock is lost, the terminal comes back to whoever had it.
    let lost = format!(
        "{ade} lock hold {LOCK} --grace 0.1 -- sh -c 'echo ready; read line'; echo code=$?; read more; echo more=$more"
    );
    let mut terminal = at_terminal(&server, folder.path(), &lost);
    terminal.out.wait_for("ready");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success(), "{broken:?}");
    terminal.out.wait_for("code=6");
    type_in(&mut terminal, "again\n");
    terminal.out.wait_for("more=again");
    assert!(terminal.end().success());
}

/// A group of its own does not lead out of reach.
#[test]
fn a_command_below_timeout_ends_with_hold() {
    let (_folder, data) = folder();
    let server = Server::start(&data);
    let below = ["timeout", "1000", "sh", "-c", "echo self=$$; exec sleep 1000"];
    let mut one = server.run(&hold(&["--ttl", "3", "--grace", "0.1"], &below));
    let own = number(&mut one, "self");
    one.child.kill().expect("killed");
    assert!(is_over(own), "hold was killed");
    let mut one = server.run(&hold(&["--ttl", "3", "--grace", "0.1"], &below));
    let own = number(&mut one, "self");
    let broken = server.ade(&["lock", "break", LOCK, "--reason", "test"]).output().expect("runs");
    assert!(broken.status.success(), "{broken:?}");
    assert_eq!(one.code_and_error().0, 6);
    assert!(is_over(own), "the lock was lost");
}

fn at_terminal(server: &Server, folder: &Path, script: &str) -> Running {
    let mut command = server.ade(&[]);
    let environment: Vec<_> =
        command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
    command = Command::new("script");
    command.args(["--quiet", "--return", "--command", script]).arg(folder.join("typescript"));
    command.envs(environment).env("SHELL", "/bin/sh").stdin(std::process::Stdio::piped());
    Running::start(&mut command)
}

fn type_in(terminal: &mut Running, keys: &str) {
    use std::io::Write;
    let input = terminal.child.stdin.as_mut().expect("piped");
    input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("typed");
}

fn group_of(pid: i32) -> i32 {
    let stat = eventually("the process is there", PATIENCE, || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())
    });
    let stat = stat.expect("readable");
    let after_name = stat.rsplit(')').next().expect("a name in parentheses");
    after_name.split_whitespace().nth(2).and_then(|group| group.parse().ok()).expect("a number")
}

#[test]
fn the_watchdog_is_not_for_use_by_hand() {
    let output = Command::new(env!("CARGO_BIN_EXE_ade")).arg("watchdog").output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let help = Command::new(env!("CARGO_BIN_EXE_ade")).arg("--help").output().expect("runs");
    assert!(!String::from_utf8_lossy(&help.stdout).contains("watchdog"));
}
