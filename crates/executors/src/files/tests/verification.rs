//! Only approved changes are applied, and changes that fail their verification are restored byte for byte.

use super::*;
use crate::command::tests::watchdog;
use crate::{CommandLimits, CommandTemplate};

/// Templates: `check` searches a word in a file, `fail` prints and fails, `wait` never exits, `missing` is no program.
fn verifiers() -> BTreeMap<String, Arc<CommandExecutor>> {
    let limits = CommandLimits { grace: Duration::from_millis(100), ..CommandLimits::default() };
    let templates: [(&str, &[&str]); 4] = [
        ("check", &["grep", "-q", "--", "{word}", "{file}"]),
        ("fail", &["sh", "-c", "echo stdout; echo line one >&2; echo line two >&2; exit 3"]),
        ("wait", &["sh", "-c", "echo started; exec sleep 1000"]),
        ("missing", &["/nowhere/to/be/found"]),
    ];
    let command = |(name, argv): (&str, &[&str])| {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let template = CommandTemplate {
            argv,
            rollback_argv: Some(vec!["true".into(), "{other}".into()]),
            preview_argv: None,
        };
        (
            name.to_owned(),
            Arc::new(CommandExecutor::new(name, &template, limits, watchdog()).expect("a template")),
        )
    };
    templates.into_iter().map(command).collect()
}

fn root_with_verifiers() -> TestRoot {
    let mut root = TestRoot::new();
    root.files.verifiers = verifiers();
    root.write("a.conf", "old\n", 0o640);
    root.write("gone", "bye", 0o600);
    root
}

/// A run that updates one file, deletes one, and creates one in a new directory, with a verification.
fn verified_run(root: &TestRoot, verify: Value) -> (watch::Sender<Option<StopReason>>, Run) {
    let (stop, mut run) = root.run(json!([
        { "path": "a.conf", "content": "new\n", "mode": "0644" },
        { "path": "gone", "delete": true },
        { "path": "deep/er/b.conf", "content": "b" },
    ]));
    run.parameters.insert("verify".to_owned(), verify);
    (stop, run)
}

/// The paths of all violations.
fn violations(root: &TestRoot, verify: Value) -> Vec<String> {
    let (_stop, run) = verified_run(root, verify);
    let violations = root.files.validate(&run.parameters).err().unwrap_or_default();
    violations.into_iter().map(|violation| violation.path.to_string()).collect()
}

#[tokio::test]
async fn accepts_only_allowed_templates_and_arguments() {
    let root = root_with_verifiers();
    assert_eq!(
        violations(&root, json!({ "template": "check", "arguments": { "word": "a", "file": "b" } })),
        [""; 0]
    );
    assert_eq!(violations(&root, json!({ "template": "fail" })), [""; 0]);
    assert_eq!(violations(&root, json!({ "template": "sh" })), ["verify.template"]);
    assert_eq!(violations(&root, json!({ "template": "fail", "argv": ["sh"] })), ["verify.argv"]);
    assert_eq!(violations(&root, json!({ "template": "fail", "worker": "eu" })), ["verify.worker"]);
    assert_eq!(violations(&root, json!({ "template": "fail", "arguments": [] })), ["verify.arguments"]);
    // Arguments that only the rollback command needs are not accepted.
    let given = json!({ "word": "-f", "other": 1, "file": {} });
    let mut found = violations(&root, json!({ "template": "check", "arguments": given }));
    found.sort();
    assert_eq!(found, ["verify.arguments.file", "verify.arguments.other", "verify.arguments.word"]);
    let (_stop, run) = verified_run(&root, json!({ "template": "fail" }));
    let without_verifiers = FilesExecutor { verifiers: BTreeMap::new(), ..root.files.clone() };
    assert_eq!(without_verifiers.validate(&run.parameters).expect_err("none allowed").len(), 1);
    let failure = without_verifiers.prepare_rollback(&run).await.expect_err("none allowed");
    assert!(failure.message.contains("verify.template"), "{failure}");
}

#[tokio::test]
async fn fingerprint_does_not_cover_verification() {
    let root = root_with_verifiers();
    let (_stop, with) = verified_run(&root, json!({ "template": "fail" }));
    let mut without = with.parameters.clone();
    without.remove("verify");
    let with = root.files.preview(&with.parameters).await.expect("previewed");
    let without = root.files.preview(&without).await.expect("previewed");
    assert_eq!((with.fingerprint, &with.changes), (without.fingerprint, &without.changes));
}

#[tokio::test]
async fn keeps_verified_changes() {
    let root = root_with_verifiers();
    let file = root.path("a.conf").display().to_string();
    let verify = json!({ "template": "check", "arguments": { "word": "new", "file": file } });
    let (_stop, run) = verified_run(&root, verify);
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    root.files.apply(&run, &rollback_data).await.expect("applied and verified");
    assert_eq!(root.read("a.conf"), "new\n");
    assert!(!root.path(".ade").exists() && !root.path("gone").exists());
}

#[tokio::test]
async fn restores_files_when_verification_fails() {
    for (template, message) in [
        ("fail", "the command failed (exit status: 3): line one\nline two"),
        ("missing", "cannot run \"/nowhere/to/be/found\""),
    ] {
        let root = root_with_verifiers();
        let before = root.contents();
        let (_stop, run) = verified_run(&root, json!({ "template": template }));
        let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
        let failure = root.files.apply(&run, &rollback_data).await.expect_err("not verified");
        assert_eq!(
            (failure.side_effects, failure.is_retryable, failure.stop_reason),
            (SideEffects::RolledBack, false, None)
        );
        assert!(failure.message.contains(message), "{failure}");
        assert!(failure.message.ends_with("; everything was rolled back"), "{failure}");
        assert_eq!(root.contents(), before);
        let output = run.output.finish().expect("no file").0;
        assert_eq!(output.contains("stdout\n"), template == "fail", "{output}");
        assert_eq!(root.files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::NotApplied));
    }
}

#[tokio::test]
async fn reports_no_rollback_if_nothing_was_changed() {
    let root = root_with_verifiers();
    let (_stop, mut run) = root.run(json!([{ "path": "a.conf", "content": "old\n" }]));
    run.parameters.insert("verify".to_owned(), json!({ "template": "fail" }));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let failure = root.files.apply(&run, &rollback_data).await.expect_err("not verified");
    assert_eq!((failure.side_effects, failure.is_retryable), (SideEffects::None, false));
}

#[tokio::test]
async fn restores_files_when_stopped_during_verification() {
    let root = root_with_verifiers();
    let before = root.contents();
    let (stop, run) = verified_run(&root, json!({ "template": "wait" }));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let output = run.output.clone();
    let started = async {
        while !output.take_unread().contains("started") {
            tokio::task::yield_now().await;
        }
        assert_eq!(root.read("a.conf"), "new\n", "all files are changed before the verification");
        let impatient =
            FilesExecutor { recovery_lock_timeout: Duration::from_millis(1), ..root.files.clone() };
        assert!(impatient.resolve_outcome(&run, &rollback_data).await.expect_err("locked").is_retryable);
        stop.send_replace(Some(StopReason::TimedOut));
    };
    let (result, ()) = tokio::join!(root.files.apply(&run, &rollback_data), started);
    let failure = result.expect_err("stopped");
    assert_eq!(
        (failure.side_effects, failure.stop_reason),
        (SideEffects::RolledBack, Some(StopReason::TimedOut))
    );
    assert_eq!(root.contents(), before);
}

#[tokio::test]
async fn worker_lost_during_verification_has_applied_everything() {
    let root = root_with_verifiers();
    let before = root.contents();
    let (_stop, run) = verified_run(&root, json!({ "template": "wait" }));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let output = run.output.clone();
    let started = async {
        while !output.take_unread().contains("started") {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = root.files.apply(&run, &rollback_data) => unreachable!("the verification never ends"),
        () = started => {}
    }
    assert_eq!(root.files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::Applied));
    root.files.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!(root.contents(), before);
}

#[tokio::test]
async fn rejects_files_that_differ_from_approved_preview() {
    let root = root_with_verifiers();
    let (_stop, run) = verified_run(&root, json!({ "template": "fail" }));
    let approved = root.files.preview(&run.parameters).await.expect("previewed").fingerprint;
    let run = Run { approved_fingerprint: approved.map(|fingerprint| fingerprint.to_string()), ..run };
    root.files.prepare_rollback(&run).await.expect("as approved");
    for (path, content, mode) in
        [("a.conf", "other\n", 0o640), ("a.conf", "old\n", 0o600), ("gone", "", 0o600)]
    {
        root.write(path, content, mode);
        let before = root.contents();
        let failure = root.files.prepare_rollback(&run).await.expect_err("not as approved");
        assert_eq!((failure.is_retryable, failure.side_effects), (true, SideEffects::None), "{failure}");
        assert!(failure.message.contains("since the approval"), "{failure}");
        assert_eq!(root.contents(), before, "not even registered");
        root.write("a.conf", "old\n", 0o640);
    }
    root.write("gone", "bye", 0o600);
    root.files.prepare_rollback(&run).await.expect("as approved again");
}
