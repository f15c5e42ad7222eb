//! Commands are killed when their lease ends, even if they leave the process group, the worker is suspended, or the watchdog dies.

use std::os::unix::process::ExitStatusExt as _;

use rustix::process::{Signal, getpgid, kill_process};

use super::*;
use crate::watchdog::{Watchdog, WatchdogConfig};

/// A script that writes its pid and then runs for a long time.
fn long_script(fifo: &PidFifo) -> String {
    format!("echo $$ > {}; exec sleep 1000", fifo.path())
}

fn spec(
    argv: &[String],
    program: &WatchdogProgram,
    valid_until: Instant,
) -> (watch::Sender<Instant>, ProcessSpec<'static>) {
    let (renew, valid_until) = watch::channel(valid_until);
    let (argv, watchdog) = (argv.to_vec().leak(), Box::leak(Box::new(program.clone())));
    let grace = short_limits().grace;
    (renew, ProcessSpec { argv, environment: Vec::new(), grace, watchdog, valid_until: Some(valid_until) })
}

#[tokio::test]
async fn kills_command_that_leaves_process_group() {
    for wrapper in [["setsid", "sh"].as_slice(), &["timeout", "1000", "sh"]] {
        let fifo = PidFifo::new();
        let script = long_script(&fifo);
        let command = command(&[wrapper, &["-c", &script]].concat());
        for reason in [StopReason::Stopped, StopReason::LeaseLost] {
            let (failure, process, _) = stop_once_started(&command, &fifo, reason).await;
            assert_eq!(failure.stop_reason, Some(reason), "{wrapper:?}");
            process.assert_exits().await;
        }
        // It is killed when the future is dropped, too.
        let (_stop, run) = run_without_arguments();
        let process = tokio::select! {
            result = command.apply(&run, b"") => panic!("{result:?}"),
            process = fifo.read_pid() => process,
        };
        process.assert_exits().await;
    }
}

/// A script may run each step with a timeout, in a session that the command itself created, or with a watchdog of its own.
#[tokio::test]
async fn kills_process_groups_that_scripts_create() {
    let inner_mark = "export ADE_WATCHDOG=$ADE_WATCHDOG,7-7; ";
    for (wrapper, before) in [(["sh"].as_slice(), ""), (&["setsid", "sh"], ""), (&["sh"], inner_mark)] {
        let fifo = PidFifo::new();
        let script = format!("{before}timeout 1000 sh -c '{}'; exit 0", long_script(&fifo));
        let command = command(&[wrapper, &["-c", &script]].concat());
        let (_, process, _) = stop_once_started(&command, &fifo, StopReason::Stopped).await;
        process.assert_exits().await;
    }
}

/// It starts a step whenever one ends, and so also when the step is killed before it.
#[tokio::test]
async fn kills_script_that_goes_on() {
    for _ in 0..5 {
        let (fifo, steps) = (PidFifo::new(), PidFifo::new());
        let loops = "trap '' TERM; while :; do timeout 1000 sleep 1000; done";
        let script = format!("exec 9>{}; echo $$ > {}; {loops}", steps.path(), fifo.path());
        let command = command(&["sh", "-c", &script]);
        // The end comes when the last process that has it open ends.
        let path = steps.path().to_owned();
        let steps_end = spawn_blocking(move || std::fs::read(path));
        stop_once_started(&command, &fifo, StopReason::Stopped).await;
        tokio::time::timeout(Duration::from_secs(20), steps_end)
            .await
            .expect("nothing is left")
            .expect("read")
            .expect("read");
    }
}

#[tokio::test]
async fn leaves_sessions_that_commands_create() {
    let fifo = PidFifo::new();
    let command = command(&["sh", "-c", &format!("setsid sh -c '{}' & wait", long_script(&fifo))]);
    let (_, process, _) = stop_once_started(&command, &fifo, StopReason::Stopped).await;
    kill_process(process.pid, Signal::KILL).expect("it still runs");
    process.assert_exits().await;
}

/// As if this process were killed after it has started the command, and before it could tell the watchdog.
#[tokio::test]
async fn watchdog_finds_command_without_its_pid() {
    for wrapper in [["setsid", "sh"].as_slice(), &["timeout", "1000", "sh"]] {
        let fifo = PidFifo::new();
        let script = long_script(&fifo);
        let grace = short_limits().grace;
        let config =
            WatchdogConfig { grace, deadline: None, grace_within_deadline: true, return_terminal_to: None };
        let watchdog = Watchdog::start(&watchdog(), config).await.expect("started");
        let (program, arguments) = wrapper.split_first().expect("a program");
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).args(["-c", &script]);
        watchdog.prepare(&mut command);
        let mut command = command.spawn().expect("started");
        let process = fifo.read_pid().await;
        drop(watchdog);
        process.assert_exits().await;
        command.wait().await.expect("reaped");
    }
}

/// Nothing in this process stops the command, as if it were suspended.
#[tokio::test]
async fn watchdog_kills_command_after_deadline() {
    let (_renew, spec) =
        spec(&owned(&["sleep", "1000"]), &watchdog(), Instant::now() + Duration::from_secs(1));
    let exit = process::run(spec, std::future::pending(), std::future::pending(), |_, _| {});
    let exit = exit.await.expect("started");
    let signal = exit.status.and_then(|status| status.signal());
    assert!(signal.is_some() && exit.deadline_passed, "{exit:?}");
}

#[tokio::test]
async fn renewal_extends_deadline() {
    let fifo = PidFifo::new();
    let script = format!("echo $$ > {}; exec sleep 4", fifo.path());
    let (renew, spec) =
        spec(&owned(&["sh", "-c", &script]), &watchdog(), Instant::now() + Duration::from_secs(3));
    let running = process::run(spec, std::future::pending(), std::future::pending(), |_, _| {});
    let (exit, _) = tokio::join!(running, async {
        fifo.read_pid().await;
        renew.send_replace(Instant::now() + Duration::from_secs(60));
    });
    let exit = exit.expect("started");
    assert!(exit.status.is_some_and(|status| status.success()) && !exit.deadline_passed, "{exit:?}");
}

#[tokio::test]
async fn runs_nothing_without_watchdog() {
    let (_stop, run) = run_without_arguments();
    for path in ["/nowhere/to/be/found", "/bin/true", "/bin/cat"] {
        let command =
            CommandExecutor { watchdog: WatchdogProgram::at(path), ..command(&["touch", "/nowhere/at/all"]) };
        let failure = command.apply(&run, b"").await.expect_err("not started");
        assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, true), "{failure}");
        assert!(failure.message.contains("cannot start the watchdog of the command"), "{failure}");
    }
    // A command is killed if its watchdog dies.
    let fifo = PidFifo::new();
    let command = command(&["sh", "-c", &long_script(&fifo)]);
    let (result, process) = tokio::join!(command.apply(&run, b""), async {
        let process = fifo.read_pid().await;
        let leader = getpgid(Some(process.pid)).expect("it runs");
        kill_process(leader, Signal::KILL).expect("killed");
        process
    });
    let failure = result.expect_err("killed");
    assert_eq!((failure.side_effects, failure.stop_reason), (SideEffects::Unknown, None), "{failure}");
    assert!(failure.message.contains("the watchdog of the command was killed"), "{failure}");
    process.assert_exits().await;
}
