//! What is stashed is what was approved; what is not verified is changed back byte for byte, and says so.

use super::*;
use crate::command::tests::watchdog;
use crate::{CommandLimits, Template};

/// Templates: `check` looks for a word in a file, `say` speaks and fails, `wait` never ends, `nowhere` is no program.
fn verifiers() -> BTreeMap<String, Arc<Command>> {
    let limits = CommandLimits { grace: Duration::from_millis(100), preview: Duration::from_secs(10) };
    let templates: [(&str, &[&str]); 4] = [
        ("check", &["grep", "-q", "--", "{word}", "{file}"]),
        ("say", &["sh", "-c", "echo heard; echo line one >&2; echo line two >&2; exit 3"]),
        ("wait", &["sh", "-c", "echo here; exec sleep 1000"]),
        ("nowhere", &["/nowhere/to/be/found"]),
    ];
    let make = |(name, argv): (&str, &[&str])| {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let template =
            Template { argv, rollback_argv: Some(vec!["true".into(), "{other}".into()]), preview_argv: None };
        (name.to_owned(), Arc::new(Command::new(name, &template, limits, watchdog()).expect("a template")))
    };
    templates.into_iter().map(make).collect()
}

fn place() -> Place {
    let mut place = Place::new();
    place.files = place.files.clone().with_verifiers(verifiers());
    place.write("a.conf", "old\n", 0o640);
    place.write("gone", "bye", 0o600);
    place
}

/// Changes one, deletes one, makes one in a new folder; with something that decides.
fn change(place: &Place, verify: Value) -> (watch::Sender<Option<Halt>>, Run) {
    let (halt, mut run) = place.run(json!([
        { "path": "a.conf", "content": "new\n", "mode": "0644" },
        { "path": "gone", "delete": true },
        { "path": "deep/er/b.conf", "content": "b" },
    ]));
    run.parameters.insert("verify".to_owned(), verify);
    (halt, run)
}

fn pointers(place: &Place, verify: Value) -> Vec<String> {
    let (_halt, run) = change(place, verify);
    let faults = place.files.check(&run.parameters).err().unwrap_or_default();
    faults.into_iter().map(|fault| fault.pointer).collect()
}

#[tokio::test]
async fn only_templates_of_the_operator_verify_and_only_with_their_arguments() {
    let place = place();
    assert_eq!(
        pointers(&place, json!({ "template": "check", "arguments": { "word": "a", "file": "b" } })),
        [""; 0]
    );
    assert_eq!(pointers(&place, json!({ "template": "say" })), [""; 0]);
    assert_eq!(pointers(&place, json!({ "template": "sh" })), ["/verify/template"]);
    assert_eq!(pointers(&place, json!({ "template": "say", "argv": ["sh"] })), ["/verify/argv"]);
    assert_eq!(pointers(&place, json!({ "template": "say", "worker": "eu" })), ["/verify/worker"]);
    assert_eq!(pointers(&place, json!({ "template": "say", "arguments": [] })), ["/verify/arguments"]);
    // What only its way back needs is not asked for.
    let given = json!({ "word": "-f", "other": 1, "file": {} });
    let mut found = pointers(&place, json!({ "template": "check", "arguments": given }));
    found.sort();
    assert_eq!(found, ["/verify/arguments/file", "/verify/arguments/other", "/verify/arguments/word"]);
    let (_halt, run) = change(&place, json!({ "template": "say" }));
    let bare = Files::new(place.files.root.clone()).expect("a root");
    assert_eq!(bare.check(&run.parameters).expect_err("none allowed").len(), 1);
    assert!(bare.stash(&run).await.expect_err("none allowed").message.contains("/verify/template"));
}

#[tokio::test]
async fn what_verifies_is_said_and_is_no_part_of_the_fingerprint() {
    let place = place();
    let (_halt, with) = change(&place, json!({ "template": "say" }));
    let mut without = with.parameters.clone();
    without.remove("verify");
    let with = place.files.preview(&with.parameters).await.expect("made");
    let without = place.files.preview(&without).await.expect("made");
    assert_eq!(with.warnings, ["verified by the template say"]);
    assert_eq!((with.fingerprint, &with.changes), (without.fingerprint, &without.changes));
}

#[tokio::test]
async fn what_is_verified_stays() {
    let place = place();
    let file = place.at("a.conf").display().to_string();
    let verify = json!({ "template": "check", "arguments": { "word": "new", "file": file } });
    let (_halt, run) = change(&place, verify);
    let stash = place.files.stash(&run).await.expect("kept");
    place.files.apply(&run, &stash).await.expect("done, and seen by what verifies");
    assert_eq!(place.read("a.conf"), "new\n");
    assert!(!place.at(".ade").exists() && !place.at("gone").exists());
}

#[tokio::test]
async fn what_is_not_verified_is_changed_back() {
    for (template, said) in
        [("say", "the command failed (exit status: 3): line one\nline two"), ("nowhere", "was not run")]
    {
        let place = place();
        let before = place.all();
        let (_halt, run) = change(&place, json!({ "template": template }));
        let stash = place.files.stash(&run).await.expect("kept");
        let failure = place.files.apply(&run, &stash).await.expect_err("not verified");
        assert_eq!((failure.changed, failure.again, failure.halted), (Changed::Undone, false, None));
        assert!(failure.message.contains(said), "{failure}");
        assert!(failure.message.ends_with("; everything was changed back"), "{failure}");
        assert_eq!(place.all(), before);
        let heard = run.output.finish().expect("no file").0;
        assert_eq!(heard.contains("heard\n"), template == "say", "{heard}");
        assert_eq!(place.files.settle(&run, &stash).await, Ok(Settled::Nothing));
    }
}

#[tokio::test]
async fn a_set_that_changes_nothing_and_is_not_verified_was_not_undone() {
    let place = place();
    let (_halt, mut run) = place.run(json!([{ "path": "a.conf", "content": "old\n" }]));
    run.parameters.insert("verify".to_owned(), json!({ "template": "say" }));
    let stash = place.files.stash(&run).await.expect("kept");
    let failure = place.files.apply(&run, &stash).await.expect_err("not verified");
    assert_eq!((failure.changed, failure.again), (Changed::Nothing, false));
}

#[tokio::test]
async fn whoever_is_halted_while_it_is_verified_changes_it_back() {
    let place = place();
    let before = place.all();
    let (halt, run) = change(&place, json!({ "template": "wait" }));
    let stash = place.files.stash(&run).await.expect("kept");
    let output = run.output.clone();
    let heard = async {
        while !output.take_new().contains("here") {
            tokio::task::yield_now().await;
        }
        assert_eq!(place.read("a.conf"), "new\n", "all files are in place by then");
        let quick = place.files.clone().with_wait_to_settle(Duration::from_millis(1));
        assert!(quick.settle(&run, &stash).await.expect_err("it is under the lock").again);
        halt.send_replace(Some(Halt::TimedOut));
    };
    let (done, ()) = tokio::join!(place.files.apply(&run, &stash), heard);
    let failure = done.expect_err("halted");
    assert_eq!((failure.changed, failure.halted), (Changed::Undone, Some(Halt::TimedOut)));
    assert_eq!(place.all(), before);
}

#[tokio::test]
async fn whoever_is_gone_while_it_is_verified_has_done_everything() {
    let place = place();
    let before = place.all();
    let (_halt, run) = change(&place, json!({ "template": "wait" }));
    let stash = place.files.stash(&run).await.expect("kept");
    let output = run.output.clone();
    let heard = async {
        while !output.take_new().contains("here") {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = place.files.apply(&run, &stash) => unreachable!("it waits"),
        () = heard => {}
    }
    assert_eq!(place.files.settle(&run, &stash).await, Ok(Settled::Everything));
    place.files.roll_back(&run, &stash).await.expect("undone");
    assert_eq!(place.all(), before);
}

#[tokio::test]
async fn only_what_was_approved_is_stashed() {
    let place = place();
    let (_halt, run) = change(&place, json!({ "template": "say" }));
    let approved = place.files.preview(&run.parameters).await.expect("made").fingerprint;
    let run = Run { approved: approved.map(|fingerprint| fingerprint.to_string()), ..run };
    place.files.stash(&run).await.expect("as it was approved");
    let unapproved = |failure: &Failure| failure.again && failure.changed == Changed::Nothing;
    for (path, content, mode) in
        [("a.conf", "other\n", 0o640), ("a.conf", "old\n", 0o600), ("gone", "", 0o600)]
    {
        place.write(path, content, mode);
        let before = place.all();
        let failure = place.files.stash(&run).await.expect_err("not what was approved");
        assert!(unapproved(&failure), "{failure:?}");
        assert!(failure.message.contains("when this was approved"), "{failure}");
        assert_eq!(place.all(), before, "not even noted");
        place.write("a.conf", "old\n", 0o640);
    }
    place.write("gone", "bye", 0o600);
    place.files.stash(&run).await.expect("as it was approved again");
}
