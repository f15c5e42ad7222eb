//! Commands get their words and tokens and nothing else, are heard to their end, and leave no process behind.

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
use crate::{Halt, Halted, MOST_CHANGES, Output, Secrets};

type Stop = watch::Sender<Option<Halt>>;

fn quick() -> CommandLimits {
    CommandLimits { grace: Duration::from_millis(100), preview: Duration::from_secs(10) }
}

/// Built with the tests; they have no `ade` beside them.
pub(crate) fn watchdog() -> Program {
    let own = std::env::current_exe().expect("a program");
    let built = own.parent().and_then(Path::parent).expect("a folder").join("examples/watchdog");
    assert!(
        built.exists(),
        "{} is missing: cargo build -p ade-executors --example watchdog",
        built.display()
    );
    Program::at(built)
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn command(argv: &[&str]) -> Command {
    let template = Template { argv: owned(argv), ..Template::default() };
    Command::new("t", &template, quick(), watchdog()).expect("a template")
}

fn with_way_back(argv: &[&str], back: &[&str]) -> Command {
    let template = Template { argv: owned(argv), rollback_argv: Some(owned(back)), ..Template::default() };
    Command::new("t", &template, quick(), watchdog()).expect("a template")
}

fn previewing(argv: &[&str]) -> Command {
    let template =
        Template { argv: owned(&["true"]), preview_argv: Some(owned(argv)), ..Template::default() };
    Command::new("t", &template, quick(), watchdog()).expect("a template")
}

fn run(arguments: &Value, secrets: Secrets) -> (Stop, Run) {
    let parameters =
        json!({ "template": "t", "arguments": arguments }).as_object().expect("an object").clone();
    let (halt, halted) = Halted::new();
    let output = Output::new(secrets, None);
    let tokens = vec![("resource:a:b".to_owned(), 41), ("resource:c:d".to_owned(), 7)];
    (halt, Run { task_id: "task".to_owned(), attempt: 3, parameters, approved: None, tokens, output, halted })
}

fn plain() -> (Stop, Run) {
    run(&json!({}), Secrets::default())
}

fn said(run: &Run) -> String {
    run.output.finish().expect("no file").0
}

/// A place where a process says its number, which is how a test knows that it has come that far.
struct Meeting {
    _folder: TempDir,
    fifo: PathBuf,
}

impl Meeting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("made");
        Self { _folder: folder, fifo }
    }

    fn path(&self) -> &str {
        self.fifo.to_str().expect("text")
    }

    async fn meet(&self) -> Watched {
        let fifo = self.fifo.clone();
        let number =
            spawn_blocking(move || std::fs::read_to_string(fifo).expect("read")).await.expect("read");
        let pid = Pid::from_raw(number.trim().parse().expect("a number")).expect("a process");
        Watched(pidfd_open(pid, PidfdFlags::empty()).ok())
    }
}

/// A process; nothing if it is gone already.
struct Watched(Option<OwnedFd>);

impl Watched {
    /// Waits until it has ended, which it has been made to.
    async fn ends(self) {
        let Some(process) = self.0 else { return };
        let ended = spawn_blocking(move || {
            let wait = Timespec { tv_sec: 20, tv_nsec: 0 };
            poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&wait))
        });
        assert_eq!(ended.await.expect("asked"), Ok(1), "it still runs");
    }
}

#[tokio::test]
async fn words_arrive_as_they_are() {
    let command = command(&["printf", "<%s>", "{a}", "x={b}=y", "{{a}}", "{c}"]);
    let odd = "two words; $(touch /tmp/x) `y` \"quoted\" 'too' *\nnext\\n {b}";
    let (_halt, run) = run(&json!({ "a": odd, "b": "-1", "c": 2.5 }), Secrets::default());
    command.check(&run.parameters).expect("fits");
    command.apply(&run, &command.stash(&run).await.expect("kept")).await.expect("done");
    assert_eq!(said(&run), format!("<{odd}><x=-1=y><{{a}}><2.5>"));
}

#[tokio::test]
async fn nothing_of_ours_is_in_its_environment() {
    assert!(std::env::vars().count() > 4, "there is something to be hidden");
    let (_halt, run) = plain();
    command(&["env"]).apply(&run, b"").await.expect("done");
    let text = said(&run);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected = [
        "ADE_ATTEMPT=3",
        "ADE_FENCING_TOKEN=41",
        "ADE_FENCING_TOKENS=[{\"lock\":\"resource:a:b\",\"token\":41},{\"lock\":\"resource:c:d\",\"token\":7}]",
        "ADE_TASK_ID=task",
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ];
    assert_eq!(lines, expected);
    let (_halt, run) = plain();
    command(&["sh", "-c", "pwd; wc -c"]).apply(&run, b"").await.expect("done");
    assert_eq!(said(&run), "/\n0\n");
}

#[tokio::test]
async fn failures_say_why_and_what_was_changed() {
    let fails = &["sh", "-c", "echo fine; echo one >&2; echo two >&2; exit 3"];
    for command in [command(fails), with_way_back(fails, &["true"])] {
        let (_halt, run) = plain();
        let failure = command.apply(&run, b"").await.expect_err("failed");
        assert_eq!((failure.changed, failure.again, failure.halted), (Changed::Something, false, None));
        assert_eq!(failure.message, "the command failed (exit status: 3): one\ntwo");
        assert_eq!(said(&run).len(), "fine\none\ntwo\n".len());
    }
    let killed = &["sh", "-c", "kill -9 $$"];
    for (command, changed) in
        [(command(killed), Changed::Unknown), (with_way_back(killed, &["true"]), Changed::Something)]
    {
        assert_eq!(command.apply(&plain().1, b"").await.expect_err("failed").changed, changed);
    }
    let failure = command(&["/nowhere/at/all"]).apply(&plain().1, b"").await.expect_err("failed");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, true), "{failure}");
    let (halt, run) = plain();
    halt.send_replace(Some(Halt::Stopped));
    let failure = command(&["true"]).apply(&run, b"").await.expect_err("halted before");
    assert_eq!((failure.changed, failure.halted), (Changed::Nothing, Some(Halt::Stopped)));
}

#[test]
fn only_whole_lines_are_quoted() {
    let mut end = End::default();
    (0..QUOTED).for_each(|number| end.hear(format!("line {number}\n").as_bytes()));
    let quoted = end.quoted("it failed");
    assert!(quoted.starts_with("it failed: line 2038\n") && quoted.ends_with("line 2047"), "{quoted}");
    let mut end = End::default();
    end.hear(&[b'x'; 2 * QUOTED]);
    assert_eq!(end.quoted("it failed"), "it failed");
}

#[tokio::test]
async fn secrets_are_not_in_what_it_says() {
    let secrets = Secrets::new(["hunter2".to_owned()]);
    let (_halt, run) = run(&json!({}), secrets);
    command(&["sh", "-c", "printf 'hun'; printf 'err\n' >&2; printf 'ter2\n'"])
        .apply(&run, b"")
        .await
        .expect("done");
    let said = said(&run);
    assert!(said.contains("***\n") && !said.contains("hun") && said.contains("err\n"), "{said}");
}

#[tokio::test]
async fn whoever_does_not_want_to_end_is_ended() {
    let meeting = Meeting::new();
    // The one that it starts does not want to either.
    let script = format!("trap '' TERM; sleep 1000 & echo $! > {}; wait; wait", meeting.path());
    let command = command(&["sh", "-c", &script]);
    let (halt, run) = plain();
    let (ended, child) = tokio::join!(command.apply(&run, b""), async {
        let child = meeting.meet().await;
        halt.send_replace(Some(Halt::TimedOut));
        child
    });
    let failure = ended.expect_err("ended");
    assert_eq!((failure.changed, failure.halted), (Changed::Unknown, Some(Halt::TimedOut)));
    child.ends().await;
}

/// Only what it starts can get out of reach, not the command itself.
#[tokio::test]
async fn whoever_takes_a_session_of_its_own_is_ended_as_well() {
    let meeting = Meeting::new();
    let command = command(&["setsid", "sh", "-c", &format!("echo $$ > {}; exec sleep 1000", meeting.path())]);
    for how in [Halt::Stopped, Halt::Lost] {
        let (halt, run) = plain();
        let (ended, itself) = tokio::join!(command.apply(&run, b""), async {
            let itself = meeting.meet().await;
            halt.send_replace(Some(how));
            itself
        });
        assert_eq!(ended.expect_err("ended").halted, Some(how));
        itself.ends().await;
    }
}

#[tokio::test]
async fn whoever_is_asked_to_end_has_time_for_it() {
    let meeting = Meeting::new();
    let script = format!(
        "exec 2> /dev/null; trap 'echo tidy; exit 0' TERM; echo $$ > {}; while :; do sleep 0.01; done",
        meeting.path()
    );
    let template = Template { argv: owned(&["sh", "-c", &script]), ..Template::default() };
    let command = Command::new("t", &template, CommandLimits::default(), watchdog()).expect("a template");
    let (halt, run) = plain();
    let (ended, ()) = tokio::join!(command.apply(&run, b""), async {
        meeting.meet().await;
        halt.send_replace(Some(Halt::Stopped));
    });
    // It ended well, but because it was asked to: nobody knows whether that was all.
    assert_eq!(ended.expect_err("ended").halted, Some(Halt::Stopped));
    assert_eq!(said(&run), "tidy\n");
}

/// Somebody else may be at the same: nobody is asked, and a grace that was given ends.
#[tokio::test]
async fn whoever_lost_its_locks_has_no_time() {
    for asked_before in [false, true] {
        let meeting = Meeting::new();
        let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.01; done", meeting.path());
        let template = Template { argv: owned(&["sh", "-c", &script]), ..Template::default() };
        let limits = CommandLimits { grace: Duration::from_secs(3_600), ..quick() };
        let command = Command::new("t", &template, limits, watchdog()).expect("a template");
        let (halt, run) = plain();
        let (ended, child) = tokio::join!(command.apply(&run, b""), async {
            let child = meeting.meet().await;
            if asked_before {
                halt.send_replace(Some(Halt::Stopped));
                tokio::task::yield_now().await;
            }
            halt.send_replace(Some(Halt::Lost));
            child
        });
        let failure = ended.expect_err("ended");
        assert_eq!(failure.changed, Changed::Unknown, "{failure}");
        child.ends().await;
    }
}

/// Whoever was stopped for longer than its lease finds out before it begins, although nobody could tell it.
/// The watchdog is a little early; what it ended was not the command's own failure.
#[tokio::test]
async fn what_the_watchdog_ends_is_lost() {
    let (_renew, good_until) = watch::channel(tokio::time::Instant::now() + Duration::from_secs(2));
    let (_halt, halted) = Halted::within(good_until);
    let (_, run) = plain();
    let run = Run { halted, ..run };
    let failure = command(&["sleep", "1000"]).apply(&run, b"").await.expect_err("ended");
    assert_eq!((failure.changed, failure.halted), (Changed::Unknown, Some(Halt::Lost)));
}

#[tokio::test]
async fn nothing_is_begun_after_the_lease() {
    let (_halt, run) = plain();
    let (_renew, good_until) = watch::channel(tokio::time::Instant::now());
    let (_give, halted) = Halted::within(good_until);
    let run = Run { halted, ..run };
    let failure = command(&["true"]).apply(&run, b"").await.expect_err("too late");
    assert_eq!((failure.changed, failure.halted), (Changed::Nothing, Some(Halt::Lost)), "{failure}");
}

#[tokio::test]
async fn much_is_heard_to_its_end_and_endless_until_it_is_ended() {
    let (_halt, much) = plain();
    command(&["head", "-c", "20000000", "/dev/zero"]).apply(&much, b"").await.expect("done");
    assert_eq!(much.output.finish().expect("no file").1, 20_000_000);

    let meeting = Meeting::new();
    let script = format!("yes & echo $! > {}; wait", meeting.path());
    let (halt, endless) = plain();
    let command = command(&["sh", "-c", &script]);
    let (ended, child) = tokio::join!(command.apply(&endless, b""), async {
        let child = meeting.meet().await;
        halt.send_replace(Some(Halt::TimedOut));
        child
    });
    assert_eq!(ended.expect_err("ended").halted, Some(Halt::TimedOut));
    child.ends().await;
}

#[tokio::test]
async fn whoever_is_left_behind_is_ended() {
    for (what, says_so) in [("sleep 1000", true), ("yes", true), ("sleep 1000 > /dev/null 2>&1", false)] {
        let meeting = Meeting::new();
        let command = command(&["sh", "-c", &format!("{what} & echo $! > {}; echo done", meeting.path())]);
        let (_halt, run) = plain();
        let (ended, child) = tokio::join!(command.apply(&run, b""), meeting.meet());
        ended.expect("done");
        child.ends().await;
        let new = run.output.take_new();
        assert_eq!(new.contains("were ended"), says_so, "{what}");
        assert!(new.contains("done\n") || what == "yes");
    }
}

#[tokio::test]
async fn whoever_is_not_waited_for_any_more_is_ended() {
    let meeting = Meeting::new();
    let command = command(&["sh", "-c", &format!("sleep 1000 & echo $! > {}; wait", meeting.path())]);
    let (_halt, run) = plain();
    let child = tokio::select! {
        ended = command.apply(&run, b"") => panic!("{ended:?}"),
        child = meeting.meet() => child,
    };
    child.ends().await;
}

#[tokio::test]
async fn there_is_a_way_back_if_the_template_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("it's here");
    let command = with_way_back(&["touch", "{file}"], &["rm", "{file}"]);
    let (_halt, run) = run(&json!({ "file": file.to_str() }), Secrets::default());
    assert!(command.can_roll_back(&run.parameters));
    let stash = command.stash(&run).await.expect("kept");
    assert!(!stash.is_empty());
    command.apply(&run, &stash).await.expect("done");
    assert!(Path::new(&file).exists());
    command.roll_back(&run, &stash).await.expect("undone");
    assert!(!Path::new(&file).exists());
    let failure = command.roll_back(&run, &stash).await.expect_err("it is not there");
    assert!(failure.changed == Changed::Something && failure.message.contains("exit status: 1"), "{failure}");
    let other = json!({ "version": 1, "template": "other", "arguments": {} }).to_string();
    for broken in [&b""[..], other.as_bytes()] {
        assert_eq!(command.roll_back(&run, broken).await.expect_err("refused").changed, Changed::Something);
    }

    let one_way = tests::command(&["true"]);
    let (_halt, run) = plain();
    assert!(!one_way.can_roll_back(&run.parameters));
    assert_eq!(one_way.stash(&run).await, Ok(Vec::new()));
    assert!(one_way.roll_back(&run, b"").await.is_err());
    assert!(one_way.settle(&run, b"").await.is_err());
    assert_eq!(one_way.fence(), Fence::Open);
}

#[tokio::test]
async fn previews_are_what_the_command_says() {
    let (_halt, run) = plain();
    let none = command(&["true"]).preview(&run.parameters).await.expect("none");
    assert_eq!(none.status, PreviewStatus::None);

    let text = previewing(&["printf", "two lines\nof text\n"]).preview(&run.parameters).await.expect("made");
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
    let said = previewing(&["echo", &json("-1").replace('{', "{{").replace('}', "}}")]);
    let said = said.preview(&run.parameters).await.expect("made");
    assert_eq!(
        (said.changes[0].kind, said.warnings.as_slice()),
        (ChangeKind::Delete, &["big".to_owned()][..])
    );
    let other = previewing(&["echo", &json("-2").replace('{', "{{").replace('}', "}}")]);
    let other = other.preview(&run.parameters).await.expect("made");
    assert_ne!(said.fingerprint, other.fingerprint, "another diff is another change");

    let long =
        previewing(&["head", "-c", "100000", "/dev/zero"]).preview(&run.parameters).await.expect("made");
    let shown = long.changes[0].diff.as_deref().unwrap_or_default();
    assert!(shown.ends_with("(the preview is too long: 34464 bytes are left out)\n"));
    let longer =
        previewing(&["head", "-c", "100001", "/dev/zero"]).preview(&run.parameters).await.expect("made");
    assert_ne!(long.fingerprint, longer.fingerprint, "also what is not shown counts");
}

#[tokio::test]
async fn previews_that_cannot_be_had_say_why() {
    let (_halt, run) = plain();
    let failed =
        previewing(&["sh", "-c", "echo why >&2; exit 1"]).preview(&run.parameters).await.expect_err("failed");
    assert_eq!((failed.message.as_str(), failed.again), ("the preview failed (exit status: 1): why", true));
    let template = Template {
        argv: owned(&["true"]),
        preview_argv: Some(owned(&["sh", "-c", "echo waits >&2; sleep 1000"])),
        rollback_argv: None,
    };
    let limits = CommandLimits { preview: Duration::from_millis(300), ..quick() };
    let slow = Command::new("t", &template, limits, watchdog()).expect("a template");
    let failed = slow.preview(&run.parameters).await.expect_err("too slow");
    assert!(failed.message.starts_with("the preview took longer than 0.3 s") && failed.again, "{failed}");
    let broken = r#"{{"changes": [{{"kind": "explode", "what": "x"}}]}}"#;
    let failed = previewing(&["echo", broken]).preview(&run.parameters).await.expect_err("unreadable");
    assert!(failed.message.contains("cannot be read") && !failed.again, "{failed}");
    let mut listener = Listener::default();
    let change = json!({ "kind": "create", "what": "x" });
    listener.hear(json!({ "changes": vec![change; MOST_CHANGES + 1] }).to_string().as_bytes());
    assert!(listener.preview("t").expect_err("too many").contains("more than 1000"));
}

#[test]
fn templates_that_are_none_are_named() {
    let template = Template { argv: owned(&["run"]), preview_argv: Some(vec![]), rollback_argv: None };
    let error = Command::new("t", &template, quick(), watchdog()).expect_err("no program").to_string();
    let expected =
        "preview_argv of the command template \"t\" must begin with a program, which no argument can choose";
    assert_eq!(error, expected);
    assert_eq!(command(&["true"]).place(), "command:t");
}
