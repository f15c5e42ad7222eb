//! Commands end with what they run under: whoever leaves the group, whoever stands still, and whatever becomes of the watchdog.

use std::os::unix::process::ExitStatusExt as _;

use rustix::process::{Signal, getpgid, kill_process};

use super::tests::{Meeting, command, owned, plain, quick, watchdog};
use super::*;

/// Says its number, and goes on for long.
fn long(meeting: &Meeting) -> String {
    format!("echo $$ > {}; exec sleep 1000", meeting.path())
}

fn start(
    argv: &[String],
    program: &Program,
    good_until: Instant,
) -> (watch::Sender<Instant>, Start<'static>) {
    let (renew, good_until) = watch::channel(good_until);
    let (argv, watchdog) = (argv.to_vec().leak(), Box::leak(Box::new(program.clone())));
    let grace = quick().grace;
    (renew, Start { argv, environment: Vec::new(), grace, watchdog, good_until: Some(good_until) })
}

#[tokio::test]
async fn whoever_takes_a_group_of_its_own_is_ended_as_well() {
    for leaver in [["setsid", "sh"].as_slice(), &["timeout", "1000", "sh"]] {
        let meeting = Meeting::new();
        let script = long(&meeting);
        let command = command(&[leaver, &["-c", &script]].concat());
        for how in [Halt::Stopped, Halt::Lost] {
            let (halt, run) = plain();
            let (ended, itself) = tokio::join!(command.apply(&run, b""), async {
                let itself = meeting.meet().await;
                halt.send_replace(Some(how));
                itself
            });
            assert_eq!(ended.expect_err("ended").halted, Some(how), "{leaver:?}");
            itself.ends().await;
        }
        // Nobody waits for it any more.
        let (_halt, run) = plain();
        let itself = tokio::select! {
            ended = command.apply(&run, b"") => panic!("{ended:?}"),
            itself = meeting.meet() => itself,
        };
        itself.ends().await;
    }
}

/// As if we stood still: nothing here ends it.
#[tokio::test]
async fn the_watchdog_ends_what_is_out_of_time() {
    let (_renew, start) =
        start(&owned(&["sleep", "1000"]), &watchdog(), Instant::now() + Duration::from_secs(1));
    let ended = process::run(start, std::future::pending::<()>(), std::future::pending(), |_, _| {});
    let ended = ended.await.expect("followed");
    let ended_by = ended.status.and_then(|status| status.signal());
    assert!(ended_by.is_some() && ended.out_of_time, "{ended:?}");
}

#[tokio::test]
async fn whoever_is_renewed_goes_on() {
    let meeting = Meeting::new();
    let script = format!("echo $$ > {}; exec sleep 4", meeting.path());
    let (renew, start) =
        start(&owned(&["sh", "-c", &script]), &watchdog(), Instant::now() + Duration::from_secs(3));
    let running = process::run(start, std::future::pending::<()>(), std::future::pending(), |_, _| {});
    let (ended, _) = tokio::join!(running, async {
        meeting.meet().await;
        renew.send_replace(Instant::now() + Duration::from_secs(60));
    });
    let ended = ended.expect("followed");
    assert!(ended.status.is_some_and(|status| status.success()) && !ended.out_of_time, "{ended:?}");
}

#[tokio::test]
async fn nothing_runs_without_a_watchdog() {
    let template = Template { argv: owned(&["touch", "/nowhere/at/all"]), ..Template::default() };
    let (_halt, run) = plain();
    for none in ["/nowhere/to/be/found", "/bin/true", "/bin/cat"] {
        let command = Command::new("t", &template, quick(), Program::at(none)).expect("a template");
        let failure = command.apply(&run, b"").await.expect_err("not run");
        assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "{failure}");
        assert!(failure.message.contains("its watchdog cannot be started"), "{failure}");
    }
    // And it ends with its watchdog.
    let meeting = Meeting::new();
    let command = command(&["sh", "-c", &long(&meeting)]);
    let (ended, itself) = tokio::join!(command.apply(&run, b""), async {
        let itself = meeting.meet().await;
        let leader = getpgid(Some(itself.pid)).expect("it runs");
        kill_process(leader, Signal::KILL).expect("killed");
        itself
    });
    let failure = ended.expect_err("ended");
    assert_eq!((failure.changed, failure.halted), (Changed::Unknown, None), "{failure}");
    assert!(failure.message.contains("ended the watchdog"), "{failure}");
    itself.ends().await;
}
