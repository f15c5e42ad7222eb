//! A command gets its words and tokens and nothing else, its output is read to the end, and it leaves no process behind.

mod watchdog;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ade_domain::task::{ChangeKind, PreviewStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::*;
use crate::{Fencing, MAX_PREVIEW_CHANGES, RunOutput, Secrets, StopReason, StopSender, StopSignal};

pub(super) fn short_limits() -> CommandLimits {
    let (grace, preview_timeout) = (Duration::from_millis(100), Duration::from_secs(10));
    CommandLimits { grace, preview_timeout, ..CommandLimits::default() }
}

/// The example program `watchdog`, which cargo builds with the tests.
pub(crate) fn watchdog() -> WatchdogProgram {
    WatchdogProgram::at(example("watchdog"))
}

fn example(name: &str) -> PathBuf {
    let test_exe = std::env::current_exe().expect("a program");
    let path = test_exe.parent().and_then(Path::parent).expect("a directory").join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build -p ade-executors --example {name}", path.display());
    path
}

pub(super) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn command(argv: &[&str]) -> CommandExecutor {
    build(CommandTemplate { argv: owned(argv), ..CommandTemplate::default() })
}

fn with_rollback(argv: &[&str], rollback: &[&str]) -> CommandExecutor {
    build(CommandTemplate { argv: owned(argv), rollback_argv: Some(owned(rollback)), preview_argv: None })
}

fn with_preview(preview: &[&str]) -> CommandExecutor {
    build(CommandTemplate { argv: owned(&["true"]), preview_argv: Some(owned(preview)), rollback_argv: None })
}

#[expect(clippy::needless_pass_by_value, reason = "shorter for the callers")]
fn build(template: CommandTemplate) -> CommandExecutor {
    let command = CommandExecutor::new("t", &template, short_limits(), watchdog()).expect("a template");
    command.with_limited_program(LimitedProgram::at(example("limited")))
}

/// Applies a command, and stops it once it has written a pid.
pub(super) async fn stop_once_started(
    command: &CommandExecutor,
    fifo: &PidFifo,
    reason: StopReason,
) -> (Failure, ProcessHandle, Run) {
    let (stop, run) = run_without_arguments();
    let (result, process) = tokio::join!(command.apply(&run, b""), async {
        let process = fifo.read_pid().await;
        stop.send_replace(Some(reason));
        process
    });
    (result.expect_err("stopped"), process, run)
}

fn run(arguments: &Value, secrets: Secrets) -> (StopSender, Run) {
    let parameters =
        json!({ "template": "t", "arguments": arguments }).as_object().expect("an object").clone();
    let (stop_sender, stop) = StopSignal::new();
    let output = RunOutput::new(secrets, None);
    let tokens = vec![("resource:a:b".to_owned(), 41), ("resource:c:d".to_owned(), 7)];
    let task_id = "task".to_owned();
    let run = Run {
        task_id,
        attempt: 3,
        parameters,
        approved_fingerprint: None,
        fencing_tokens: tokens,
        output,
        stop,
    };
    (stop_sender, run)
}

pub(super) fn run_without_arguments() -> (StopSender, Run) {
    run(&json!({}), Secrets::default())
}

fn output_of(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

/// A FIFO into which a process writes its pid, so that the test knows that it runs.
pub(super) struct PidFifo {
    _dir: TempDir,
    fifo: PathBuf,
}

impl PidFifo {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("created");
        Self { _dir: dir, fifo }
    }

    pub(super) fn path(&self) -> &str {
        self.fifo.to_str().expect("text")
    }

    pub(super) async fn read_pid(&self) -> ProcessHandle {
        let fifo = self.fifo.clone();
        let text = spawn_blocking(move || std::fs::read_to_string(fifo).expect("read")).await.expect("read");
        let pid = Pid::from_raw(text.trim().parse().expect("a number")).expect("a pid");
        ProcessHandle { pid, fd: pidfd_open(pid, PidfdFlags::empty()).ok() }
    }
}

pub(super) struct ProcessHandle {
    pub(super) pid: Pid,
    /// None if it has already exited.
    fd: Option<OwnedFd>,
}

impl ProcessHandle {
    pub(super) async fn assert_exits(self) {
        let Some(fd) = self.fd else { return };
        let exited = spawn_blocking(move || {
            let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))
        });
        assert_eq!(exited.await.expect("polled"), Ok(1), "it still runs");
    }
}

#[tokio::test]
async fn passes_words_unchanged() {
    let command = command(&["printf", "<%s>", "{a}", "x={b}=y", "{{a}}", "{c}"]);
    let odd = "two words; $(touch /tmp/x) `y` \"quoted\" 'too' *\nnext\\n {b}";
    let (_stop, run) = run(&json!({ "a": odd, "b": "-1", "c": 2.5 }), Secrets::default());
    command.validate(&run.parameters).expect("valid");
    command.apply(&run, &command.prepare_rollback(&run).await.expect("collected")).await.expect("applied");
    assert_eq!(output_of(&run), format!("<{odd}><x=-1=y><{{a}}><2.5>"));
}

#[tokio::test]
async fn hides_own_environment_from_command() {
    assert!(std::env::vars().count() > 4, "there are variables to hide");
    let (_stop, run) = run_without_arguments();
    command(&["env"]).apply(&run, b"").await.expect("applied");
    let text = output_of(&run);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    // The value of each command is another one.
    let mark = lines.extract_if(.., |line| line.starts_with("ADE_WATCHDOG="));
    assert_eq!(mark.count(), 1);
    let expected = [
        "ADE_ATTEMPT=3",
        "ADE_FENCING_TOKEN=41",
        "ADE_FENCING_TOKENS=[{\"lock\":\"resource:a:b\",\"token\":41},{\"lock\":\"resource:c:d\",\"token\":7}]",
        "ADE_TASK_ID=task",
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ];
    assert_eq!(lines, expected);
    let (_stop, run) = run_without_arguments();
    command(&["sh", "-c", "pwd; wc -c"]).apply(&run, b"").await.expect("applied");
    assert_eq!(output_of(&run), "/\n0\n");
}

#[tokio::test]
async fn reports_cause_and_effects_of_failure() {
    let failing = &["sh", "-c", "echo fine; echo one >&2; echo two >&2; exit 3"];
    for command in [command(failing), with_rollback(failing, &["true"])] {
        let (_stop, run) = run_without_arguments();
        let failure = command.apply(&run, b"").await.expect_err("failed");
        assert_eq!(
            (failure.side_effects, failure.is_retryable, failure.stop_reason),
            (SideEffects::Remaining, false, None)
        );
        assert_eq!(failure.message, "the command failed (exit status: 3): one\ntwo");
        assert_eq!(output_of(&run).len(), "fine\none\ntwo\n".len());
    }
    let killed = &["sh", "-c", "kill -9 $$"];
    for (command, side_effects) in
        [(command(killed), SideEffects::Unknown), (with_rollback(killed, &["true"]), SideEffects::Remaining)]
    {
        assert_eq!(
            command.apply(&run_without_arguments().1, b"").await.expect_err("failed").side_effects,
            side_effects
        );
    }
    let failure =
        command(&["/nowhere/at/all"]).apply(&run_without_arguments().1, b"").await.expect_err("failed");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "{failure}");
    let (stop, run) = run_without_arguments();
    stop.send_replace(Some(StopReason::Stopped));
    let failure = command(&["true"]).apply(&run, b"").await.expect_err("stopped before");
    assert_eq!((failure.side_effects, failure.stop_reason), (SideEffects::None, Some(StopReason::Stopped)));
}

#[test]
fn quotes_only_complete_lines() {
    let mut tail = OutputTail::default();
    (0..MAX_QUOTED_BYTES).for_each(|number| tail.push(format!("line {number}\n").as_bytes()));
    let message = tail.append_to("it failed");
    assert!(message.starts_with("it failed: line 2038\n") && message.ends_with("line 2047"), "{message}");
    let mut tail = OutputTail::default();
    tail.push(&[b'x'; 2 * MAX_QUOTED_BYTES]);
    assert_eq!(tail.append_to("it failed"), "it failed");
}

#[tokio::test]
async fn redacts_secrets_in_output() {
    let secrets = Secrets::new(["hunter2".to_owned()]);
    let (_stop, run) = run(&json!({}), secrets);
    command(&["sh", "-c", "printf 'hun'; printf 'err\n' >&2; printf 'ter2\n'"])
        .apply(&run, b"")
        .await
        .expect("applied");
    let output = output_of(&run);
    assert!(output.contains("***\n") && !output.contains("hun") && output.contains("err\n"), "{output}");
}

#[tokio::test]
async fn kills_group_that_ignores_sigterm() {
    let fifo = PidFifo::new();
    // The child ignores SIGTERM as well.
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; wait; wait", fifo.path());
    let command = command(&["sh", "-c", &script]);
    let (failure, child, _) = stop_once_started(&command, &fifo, StopReason::TimedOut).await;
    assert_eq!(
        (failure.side_effects, failure.stop_reason),
        (SideEffects::Unknown, Some(StopReason::TimedOut))
    );
    child.assert_exits().await;
}

#[tokio::test]
async fn grants_grace_after_sigterm() {
    let fifo = PidFifo::new();
    let script = format!(
        "exec 2> /dev/null; trap 'echo cleanup; exit 0' TERM; echo $$ > {}; while :; do sleep 0.01; done",
        fifo.path()
    );
    let command = CommandExecutor { limits: CommandLimits::default(), ..command(&["sh", "-c", &script]) };
    let (failure, _, run) = stop_once_started(&command, &fifo, StopReason::Stopped).await;
    // It exited with 0, but because of SIGTERM, so that it may not have completed.
    assert_eq!(failure.stop_reason, Some(StopReason::Stopped));
    assert_eq!(output_of(&run), "cleanup\n");
}

/// Another worker may already apply the same task, so there is no SIGTERM, and a grace that has begun ends.
#[tokio::test]
async fn kills_at_once_when_lease_is_lost() {
    for terminated_before in [false, true] {
        let fifo = PidFifo::new();
        let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.01; done", fifo.path());
        let limits = CommandLimits { grace: Duration::from_secs(3_600), ..short_limits() };
        let command = CommandExecutor { limits, ..command(&["sh", "-c", &script]) };
        let (stop, run) = run_without_arguments();
        let (result, child) = tokio::join!(command.apply(&run, b""), async {
            let child = fifo.read_pid().await;
            if terminated_before {
                stop.send_replace(Some(StopReason::Stopped));
                tokio::task::yield_now().await;
            }
            stop.send_replace(Some(StopReason::LeaseLost));
            child
        });
        let failure = result.expect_err("stopped");
        assert_eq!(failure.side_effects, SideEffects::Unknown, "{failure}");
        child.assert_exits().await;
    }
}

/// A process that was suspended for longer than its lease notices this itself.
#[tokio::test]
async fn starts_nothing_after_lease_expiry() {
    let (_stop, run) = run_without_arguments();
    let (_renew, valid_until) = watch::channel(Instant::now());
    let (_sender, stop) = StopSignal::bound_to_lease(valid_until);
    let run = Run { stop, ..run };
    let failure = command(&["true"]).apply(&run, b"").await.expect_err("too late");
    assert_eq!(
        (failure.side_effects, failure.stop_reason),
        (SideEffects::None, Some(StopReason::LeaseLost)),
        "{failure}"
    );
}

#[tokio::test]
async fn reads_long_and_endless_output() {
    let (_stop, long) = run_without_arguments();
    command(&["head", "-c", "20000000", "/dev/zero"]).apply(&long, b"").await.expect("applied");
    assert_eq!(long.output.finish().expect("no file").1, 20_000_000);

    let fifo = PidFifo::new();
    let script = format!("yes & echo $! > {}; wait", fifo.path());
    let command = command(&["sh", "-c", &script]);
    let (failure, child, _) = stop_once_started(&command, &fifo, StopReason::TimedOut).await;
    assert_eq!(failure.stop_reason, Some(StopReason::TimedOut));
    child.assert_exits().await;
}

#[tokio::test]
async fn kills_processes_that_command_left_behind() {
    for (background, is_reported) in
        [("sleep 1000", true), ("yes", true), ("sleep 1000 > /dev/null 2>&1", false)]
    {
        let fifo = PidFifo::new();
        let command = command(&["sh", "-c", &format!("{background} & echo $! > {}; echo done", fifo.path())]);
        let (_stop, run) = run_without_arguments();
        let (result, child) = tokio::join!(command.apply(&run, b""), fifo.read_pid());
        result.expect("applied");
        child.assert_exits().await;
        let output = run.output.take_unread();
        assert_eq!(output.contains("were killed"), is_reported, "{background}");
        assert!(output.contains("done\n") || background == "yes");
    }
}

#[tokio::test]
async fn kills_group_when_future_is_dropped() {
    let fifo = PidFifo::new();
    let command = command(&["sh", "-c", &format!("sleep 1000 & echo $! > {}; wait", fifo.path())]);
    let (_stop, run) = run_without_arguments();
    let child = tokio::select! {
        result = command.apply(&run, b"") => panic!("{result:?}"),
        child = fifo.read_pid() => child,
    };
    child.assert_exits().await;
}

#[tokio::test]
async fn rolls_back_if_template_has_rollback() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("it's here");
    let command = with_rollback(&["touch", "{file}"], &["rm", "{file}"]);
    let (_stop, run) = run(&json!({ "file": file.to_str() }), Secrets::default());
    assert!(command.can_roll_back(&run.parameters));
    let rollback_data = command.prepare_rollback(&run).await.expect("collected");
    assert!(!rollback_data.is_empty());
    command.apply(&run, &rollback_data).await.expect("applied");
    assert!(Path::new(&file).exists());
    command.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert!(!Path::new(&file).exists());
    let failure = command.roll_back(&run, &rollback_data).await.expect_err("the file is missing");
    assert!(
        failure.side_effects == SideEffects::Remaining && failure.message.contains("exit status: 1"),
        "{failure}"
    );
    let other = json!({ "version": 1, "template": "other", "arguments": {} }).to_string();
    for invalid in [&b""[..], other.as_bytes()] {
        assert_eq!(
            command.roll_back(&run, invalid).await.expect_err("refused").side_effects,
            SideEffects::Remaining
        );
    }

    let irreversible = tests::command(&["true"]);
    let (_stop, run) = run_without_arguments();
    assert!(!irreversible.can_roll_back(&run.parameters));
    assert_eq!(irreversible.prepare_rollback(&run).await, Ok(Vec::new()));
    assert!(irreversible.roll_back(&run, b"").await.is_err());
    assert!(irreversible.resolve_outcome(&run, b"").await.is_err());
    assert_eq!(irreversible.fencing(), Fencing::Unfenced);
}

#[tokio::test]
async fn builds_preview_from_command_output() {
    let (_stop, run) = run_without_arguments();
    let none = command(&["true"]).preview(&run.parameters).await.expect("none");
    assert_eq!(none.status, PreviewStatus::None);

    let text =
        with_preview(&["printf", "two lines\nof text\n"]).preview(&run.parameters).await.expect("previewed");
    let digest = ade_domain::task::Digest::of_bytes(b"two lines\nof text\n").to_string();
    let change = &text.changes[0];
    assert_eq!((change.kind, change.what.as_str()), (ChangeKind::Update, "command:t"));
    assert_eq!(
        (change.after.as_ref(), change.diff.as_deref()),
        (Some(&digest), Some("two lines\nof text\n"))
    );

    let json = |diff: &str| {
        json!({ "changes": [{ "kind": "delete", "what": "table", "diff": diff }], "warnings": ["big"] })
            .to_string()
    };
    let first = with_preview(&["echo", &json("-1").replace('{', "{{").replace('}', "}}")]);
    let first = first.preview(&run.parameters).await.expect("previewed");
    assert_eq!(
        (first.changes[0].kind, first.warnings.as_slice()),
        (ChangeKind::Delete, &["big".to_owned()][..])
    );
    let other = with_preview(&["echo", &json("-2").replace('{', "{{").replace('}', "}}")]);
    let other = other.preview(&run.parameters).await.expect("previewed");
    assert_ne!(first.fingerprint, other.fingerprint, "the diff is covered");

    let long = with_preview(&["head", "-c", "100000", "/dev/zero"])
        .preview(&run.parameters)
        .await
        .expect("previewed");
    let shown = long.changes[0].diff.as_deref().unwrap_or_default();
    assert!(shown.ends_with("(the preview is too long: 34464 bytes omitted)\n"));
    let longer = with_preview(&["head", "-c", "100001", "/dev/zero"])
        .preview(&run.parameters)
        .await
        .expect("previewed");
    assert_ne!(long.fingerprint, longer.fingerprint, "omitted output is covered");
}

#[tokio::test]
async fn reports_why_preview_failed() {
    let (_stop, run) = run_without_arguments();
    let failed = with_preview(&["sh", "-c", "echo why >&2; exit 1"])
        .preview(&run.parameters)
        .await
        .expect_err("failed");
    assert_eq!(
        (failed.message.as_str(), failed.is_retryable),
        ("the preview command failed (exit status: 1): why", true)
    );
    let limits = CommandLimits { preview_timeout: Duration::from_millis(300), ..short_limits() };
    let slow = CommandExecutor { limits, ..with_preview(&["sh", "-c", "echo waits >&2; sleep 1000"]) };
    let failed = slow.preview(&run.parameters).await.expect_err("too slow");
    assert!(
        failed.message.starts_with("the preview exceeded its timeout of 0.3 s") && failed.is_retryable,
        "{failed}"
    );
    let invalid = r#"{{"changes": [{{"kind": "explode", "what": "x"}}]}}"#;
    let failed = with_preview(&["echo", invalid]).preview(&run.parameters).await.expect_err("unreadable");
    assert!(failed.message.contains("cannot read the changes") && !failed.is_retryable, "{failed}");
    let mut output = PreviewOutput::default();
    let change = json!({ "kind": "create", "what": "x" });
    output.push(json!({ "changes": vec![change; MAX_PREVIEW_CHANGES + 1] }).to_string().as_bytes());
    assert!(output.into_preview("t").expect_err("too many").contains("more than 1000"));
}

#[test]
fn reports_every_violation() {
    let parameters = json!({ "template": "u", "x": 1, "arguments": [] });
    let result = command(&["true"]).validate(parameters.as_object().expect("an object"));
    let paths: Vec<_> =
        result.expect_err("invalid").into_iter().map(|invalid| invalid.path.to_string()).collect();
    assert_eq!(paths, ["x", "template", "arguments"]);
}

#[test]
fn rejects_template_without_program() {
    let template = CommandTemplate { argv: owned(&["run"]), preview_argv: Some(vec![]), rollback_argv: None };
    let error =
        CommandExecutor::new("t", &template, short_limits(), watchdog()).expect_err("no program").to_string();
    let expected =
        "preview_argv of the command template \"t\" must begin with a program name without placeholders";
    assert_eq!(error, expected);
    assert_eq!(command(&["true"]).work_queue(), "command:t");
}

#[tokio::test]
async fn preview_is_limited_by_the_operating_system() {
    let (_stop, run) = run_without_arguments();
    let preview_limits =
        ProcessLimits { memory_bytes: 64 * MIB, cpu_seconds: 1, file_bytes: MIB, open_files: 32 };
    let limits = CommandLimits { preview_limits, ..short_limits() };
    let preview = async |script: &str| {
        CommandExecutor { limits, ..with_preview(&["sh", "-c", script]) }.preview(&run.parameters).await
    };
    let shown = preview("ulimit -v; ulimit -t; ulimit -f; ulimit -n; ulimit -c").await.expect("previewed");
    // In KiB and in blocks of 512 bytes.
    assert_eq!(shown.changes[0].diff.as_deref(), Some("65536\n1\n2048\n32\n0\n"));
    let failed = preview("while :; do :; done").await.expect_err("too much CPU time");
    assert!(failed.message.contains("it may use 64 MiB of memory and 1 s of CPU time"), "{failed}");
    let failed = preview("head -c 500000000 /dev/zero | tail -n 1").await.expect_err("too much memory");
    assert!(failed.message.contains("memory exhausted"), "{failed}");
    // Applying has no such limits.
    let apply = command(&["sh", "-c", "test $(ulimit -n) -gt 32"]);
    apply.apply(&run, b"").await.expect("applied");
    let missing = with_preview(&["/nowhere/program"]).preview(&run.parameters).await.expect_err("missing");
    assert!(missing.message.contains("/nowhere/program"), "{missing}");
}
