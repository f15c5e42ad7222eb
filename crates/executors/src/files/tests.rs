//! Files are changed all or none, wherever an attempt is interrupted. Nothing outside the root and no change of others is touched.

mod expired_lease;
mod hidden_content;
mod verification;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ade_domain::task::{ChangeKind, PreviewStatus};
use ade_testkit::effort;
use proptest::prelude::*;
use rustix::fs::flock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::{RunOutput, Secrets, StopReason, StopSender, StopSignal};

/// A root in a temporary directory that also contains files outside the root.
struct TestRoot {
    outer: TempDir,
    files: FilesExecutor,
}

impl TestRoot {
    fn new() -> Self {
        let outer = tempfile::tempdir().expect("a directory");
        fs::create_dir(outer.path().join("root")).expect("created");
        fs::write(outer.path().join("outside"), "outside").expect("written");
        let root = outer.path().join("root");
        let files = FilesExecutor::new(
            "site",
            root.to_str().expect("text"),
            BTreeMap::new(),
            KeyedHash::for_tests("key"),
        )
        .expect("a root");
        Self { outer, files }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.outer.path().join("root").join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>, mode: u32) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("created");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    }

    /// The registered attempts. Their directory may exist for a moment after the last one.
    fn attempts(&self) -> Vec<std::ffi::OsString> {
        let attempts = fs::read_dir(self.path(ATTEMPTS_DIR)).into_iter().flatten();
        attempts.map(|attempt| attempt.expect("read").file_name()).collect()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).expect("exists")
    }

    fn run(&self, files: impl Into<Value>) -> (StopSender, Run) {
        let parameters = json!({ "root": "site", "files": files.into() });
        let parameters = parameters.as_object().expect("an object").clone();
        let (stop_sender, stop) = StopSignal::new();
        let output = RunOutput::new(Secrets::default(), None);
        let (task_id, attempt, tokens) = ("0192-task".to_owned(), 3, Vec::new());
        (
            stop_sender,
            Run {
                task_id,
                attempt,
                parameters,
                approved_fingerprint: None,
                fencing_tokens: tokens,
                output,
                stop,
            },
        )
    }

    /// All files and directories in and around the root, with permissions and content.
    fn contents(&self) -> BTreeMap<String, (u32, Option<Vec<u8>>)> {
        let mut found = BTreeMap::new();
        let mut pending = vec![self.outer.path().to_owned()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(&dir).expect("read") {
                let entry = entry.expect("read");
                let metadata = entry.metadata().expect("exists");
                let content = metadata.is_file().then(|| fs::read(entry.path()).expect("read"));
                if metadata.is_dir() {
                    pending.push(entry.path());
                }
                let path = entry.path().strip_prefix(self.outer.path()).expect("below").display().to_string();
                found.insert(path, (metadata.permissions().mode(), content));
            }
        }
        found
    }

    /// The hook gets the number of the step.
    fn with_hook(&self, hook: impl Fn(usize) + Send + Sync + 'static) -> FilesExecutor {
        let steps = AtomicUsize::new(0);
        let step_hook: StepHook = Arc::new(move || hook(steps.fetch_add(1, Ordering::Relaxed)));
        FilesExecutor { step_hook: Some(step_hook), ..self.files.clone() }
    }

    /// An executor that ends before this step as if it were killed: nothing is restored, and its lock is released.
    fn killed_before(&self, killed_step: usize) -> FilesExecutor {
        self.with_hook(move |step| {
            if step == killed_step {
                std::panic::resume_unwind(Box::new("killed"));
            }
        })
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("built").block_on(work)
}

#[tokio::test]
async fn previews_applies_and_rolls_back() {
    let root = TestRoot::new();
    root.write("old.txt", "one\ntwo\nthree\n", 0o640);
    root.write("bin", b"\xff\xfe", 0o600);
    root.write("gone.txt", "bye\n", 0o600);
    root.write("same.txt", "same", 0o644);
    root.write("mode.sh", "run", 0o644);
    let before = root.contents();
    let (_stop, run) = root.run(json!([
        { "path": "old.txt", "content": "one\n2\nthree\n" },
        { "path": "bin", "content": "text" },
        { "path": "gone.txt", "delete": true },
        { "path": "same.txt", "content": "same" },
        { "path": "mode.sh", "content": "run", "mode": "0755" },
        { "path": "new/deep/x.txt", "content": "x\n", "mode": "0600" },
    ]));
    let files = &root.files;
    files.validate(&run.parameters).expect("valid");
    let preview = files.preview(&run.parameters).await.expect("previewed");
    assert_eq!((preview.status, preview.errors.len()), (PreviewStatus::Ready, 0));
    let kinds: Vec<_> = preview.changes.iter().map(|change| (change.what.as_str(), change.kind)).collect();
    let expected = [
        ("old.txt", ChangeKind::Update),
        ("bin", ChangeKind::Update),
        ("gone.txt", ChangeKind::Delete),
        ("mode.sh", ChangeKind::Update),
        ("new/deep/x.txt", ChangeKind::Create),
    ];
    assert_eq!(kinds, expected);
    let changes = &preview.changes;
    assert_eq!(
        changes[0].diff.as_deref(),
        Some("--- a/old.txt\n+++ b/old.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n")
    );
    assert_eq!(changes[0].before, Some(format!("{} 0640", Digest::of_bytes(b"one\ntwo\nthree\n"))));
    assert_eq!(changes[0].after, Some(format!("{} 0640", Digest::of_bytes(b"one\n2\nthree\n"))));
    assert_eq!(changes[1].diff, None, "binary content has no diff");
    assert_eq!(changes[2].after, None);
    assert_eq!(changes[3].diff.as_deref(), Some("old mode 0644\nnew mode 0755\n"));
    assert_eq!(root.contents(), before, "a preview changes nothing");

    let rollback_data = files.prepare_rollback(&run).await.expect("prepared");
    files.apply(&run, &rollback_data).await.expect("applied");
    assert_eq!(root.read("old.txt"), "one\n2\nthree\n");
    assert_eq!(root.read("new/deep/x.txt"), "x\n");
    assert!(!root.path("gone.txt").exists());
    let contents = root.contents();
    let mode = |path: &str| contents[path].0 & 0o7777;
    assert_eq!(
        (mode("root/mode.sh"), mode("root/new/deep/x.txt"), mode("root/old.txt")),
        (0o755, 0o600, 0o640)
    );
    assert!(!contents.keys().any(|path| path.contains(".ade")), "nothing is left over: {contents:?}");
    assert_eq!(files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::Applied));
    files.clean_up(&run.task_id, run.attempt).await;
    let again = files.preview(&run.parameters).await.expect("previewed");
    assert_eq!(again.errors, ["cannot delete \"gone.txt\": it does not exist"]);
    assert_ne!(again.fingerprint, preview.fingerprint);

    files.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!(root.contents(), before);
    files.roll_back(&run, &rollback_data).await.expect("repeatable");
    assert_eq!(root.contents(), before);
    assert_eq!(files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::NotApplied));
}

/// A file of the property tests.
#[derive(Debug, Clone)]
struct FileCase {
    path: &'static str,
    before: Option<(Vec<u8>, u32)>,
    content: Option<String>,
    mode: Option<u32>,
}

fn file_cases() -> impl Strategy<Value = Vec<FileCase>> {
    let paths = ["a", "b", "d/a", "d/b", "d/e/a", "f/g/h", "f/i"];
    let mode = || prop_oneof![Just(0o644), Just(0o600), Just(0o755), Just(0o444)];
    let content = || prop_oneof![Just(String::new()), "[a-c]{1,3}", Just("same".to_owned())];
    let before = prop::option::of((content().prop_map(String::into_bytes), mode()));
    let case = (before, prop::option::weighted(0.7, content()), prop::option::of(mode()));
    let cases = prop::collection::vec(prop::option::weighted(0.6, case), paths.len());
    cases.prop_filter_map("at least one", move |cases| {
        let files = paths.into_iter().zip(cases).filter_map(|(path, case)| {
            let (before, content, mode) = case?;
            let content = if before.is_none() { Some(content.unwrap_or_default()) } else { content };
            Some(FileCase { path, before, mode: mode.filter(|_| content.is_some()), content })
        });
        Some(files.collect::<Vec<_>>()).filter(|files| !files.is_empty())
    })
}

fn set_up(files: &[FileCase]) -> (TestRoot, StopSender, Run) {
    let root = TestRoot::new();
    for file in files {
        if let Some((content, mode)) = &file.before {
            root.write(file.path, content, *mode);
        }
    }
    let specs = files.iter().map(|file| match (&file.content, file.mode) {
        (None, _) => json!({ "path": file.path, "delete": true }),
        (Some(content), None) => json!({ "path": file.path, "content": content }),
        (Some(content), Some(mode)) => {
            json!({ "path": file.path, "content": content, "mode": format!("{mode:04o}") })
        }
    });
    let (stop, run) = root.run(specs.collect::<Vec<_>>());
    (root, stop, run)
}

proptest! {
    #![proptest_config(effort::property(8))]

    /// Kills the attempt before each step, and the rollback as well. The outcome is resolved, and all bytes are restored.
    #[test]
    fn restores_everything_after_kill(files in file_cases(), rollback_step in 0usize..12) {
        let (root, _stop, run) = set_up(&files);
        let before = root.contents();
        for step in 0.. {
            let rollback_data = block_on(root.files.prepare_rollback(&run)).expect("prepared");
            let killed = block_on(root.killed_before(step).apply(&run, &rollback_data));
            if let Err(failure) = &killed {
                prop_assert_eq!(failure.side_effects, SideEffects::Remaining);
            }
            let after = root.contents();
            let outcome = block_on(root.files.resolve_outcome(&run, &rollback_data)).expect("resolved");
            match outcome {
                AttemptOutcome::NotApplied => prop_assert_eq!(&root.contents(), &before),
                AttemptOutcome::Applied => for file in &files {
                    let now = fs::read(root.path(file.path)).ok();
                    prop_assert_eq!(now, file.content.clone().map(String::into_bytes));
                },
                AttemptOutcome::PartiallyApplied => prop_assert!(killed.is_err()),
            }
            let blocked = block_on(root.files.apply(&run, &rollback_data)).expect_err("the attempt has ended");
            prop_assert_eq!(blocked.side_effects, SideEffects::None);
            // The rollback is killed and repeated.
            let _ = block_on(root.killed_before(rollback_step).roll_back(&run, &rollback_data));
            block_on(root.files.roll_back(&run, &rollback_data)).expect("rolled back");
            prop_assert_eq!(root.contents(), before.clone(), "killed before step {} with {:?}", step, after);
            if killed.is_ok() {
                break;
            }
        }
    }

    /// Stops the attempt before each step. It restores by itself what it has changed.
    #[test]
    fn restores_everything_when_stopped(files in file_cases()) {
        let (root, _stop, run) = set_up(&files);
        let before = root.contents();
        let mut has_changed = false;
        for step in 0.. {
            let (sender, stop) = StopSignal::new();
            let run = Run { stop, ..run.clone() };
            let rollback_data = block_on(root.files.prepare_rollback(&run)).expect("prepared");
            let stopping = root.with_hook(move |current| {
                if current == step {
                    sender.send_replace(Some(StopReason::Stopped));
                }
            });
            match block_on(stopping.apply(&run, &rollback_data)) {
                Ok(()) => break,
                Err(failure) => {
                    prop_assert_eq!(failure.stop_reason, Some(StopReason::Stopped));
                    // From the first changed file on, something was rolled back.
                    has_changed |= failure.side_effects == SideEffects::RolledBack;
                    prop_assert_eq!(failure.side_effects, if has_changed { SideEffects::RolledBack } else { SideEffects::None });
                    prop_assert_eq!(root.contents(), before.clone());
                }
            }
        }
        for file in &files {
            prop_assert_eq!(fs::read(root.path(file.path)).ok(), file.content.clone().map(String::into_bytes));
        }
    }
}

#[tokio::test]
async fn rejects_symbolic_links() {
    let root = TestRoot::new();
    let outside = root.outer.path().join("outside");
    fs::create_dir(root.outer.path().join("other")).expect("created");
    symlink(&outside, root.path("link")).expect("linked");
    symlink("missing", root.path("dangling")).expect("linked");
    symlink(root.outer.path().join("other"), root.path("dir")).expect("linked");
    symlink("..", root.path("up")).expect("linked");
    let before = root.contents();
    for (path, is_link) in
        [("link", true), ("dangling", true), ("dir/x", true), ("up/outside", true), ("up/root/y", true)]
    {
        let (_stop, run) = root.run(json!([{ "path": path, "content": "changed" }]));
        let preview = root.files.preview(&run.parameters).await.expect("previewed");
        assert!(preview.changes.is_empty() && preview.errors.len() == 1, "{path}: {preview:?}");
        assert_eq!(preview.errors[0].contains("symbolic link"), is_link, "{preview:?}");
        let failure = root.files.prepare_rollback(&run).await.expect_err("refused");
        assert_eq!(failure.side_effects, SideEffects::None);
        assert_eq!(root.contents(), before, "{path}");
    }
    let linked = root.outer.path().join("linked-root");
    symlink(root.path(""), &linked).expect("linked");
    let files = FilesExecutor::new(
        "site",
        linked.to_str().expect("text"),
        BTreeMap::new(),
        KeyedHash::for_tests("key"),
    )
    .expect("a path");
    let parameters = json!({ "root": "site", "files": [{ "path": "a", "content": "" }] });
    let failure = files.preview(parameters.as_object().expect("an object")).await.expect_err("refused");
    assert!(failure.message.contains("symbolic link") && !failure.is_retryable, "{failure}");
}

/// A directory is replaced by a link after it was checked, before each step.
#[test]
fn does_not_follow_directory_replaced_by_link() {
    for swap_step in 0..3 {
        let root = TestRoot::new();
        root.write("d/a", "a", 0o644);
        root.write("d/b", "b", 0o644);
        let other = root.outer.path().join("other");
        fs::create_dir(&other).expect("created");
        fs::write(other.join("a"), "not ours").expect("written");
        let (_stop, run) =
            root.run(json!([{ "path": "d/a", "content": "A" }, { "path": "d/b", "content": "B" }]));
        let rollback_data = block_on(root.files.prepare_rollback(&run)).expect("prepared");
        let (dir, aside, link) = (root.path("d"), root.path("aside"), other.clone());
        let swapping = root.with_hook(move |step| {
            if step == swap_step {
                fs::rename(&dir, &aside).expect("moved");
                symlink(&link, &dir).expect("linked");
            }
        });
        let failure = block_on(swapping.apply(&run, &rollback_data)).expect_err("refused");
        assert_eq!(failure.side_effects, SideEffects::Remaining, "it could not restore: {failure}");
        assert_eq!(fs::read_dir(&other).expect("read").count(), 1, "nothing was created there");
        assert_eq!(fs::read_to_string(other.join("a")).expect("exists"), "not ours");
        // Once the directory is back, the rollback succeeds.
        fs::remove_file(root.path("d")).expect("removed");
        fs::rename(root.path("aside"), root.path("d")).expect("moved");
        block_on(root.files.roll_back(&run, &rollback_data)).expect("rolled back");
        assert_eq!((root.read("d/a"), root.read("d/b")), ("a".to_owned(), "b".to_owned()));
        assert_eq!(fs::read_dir(root.path("d")).expect("read").count(), 2);
    }
}

#[tokio::test]
async fn rejects_special_and_large_files() {
    let root = TestRoot::new();
    fs::create_dir(root.path("dir")).expect("created");
    rustix::fs::mknodat(rustix::fs::CWD, root.path("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("created");
    fs::File::create(root.path("huge")).and_then(|file| file.set_len(8 * 1_048_576 + 1)).expect("created");
    root.write("file", "", 0o644);
    let files = json!([
        { "path": "dir", "content": "" },
        { "path": "pipe", "delete": true },
        { "path": "huge", "content": "" },
        { "path": "file/below", "content": "" },
        { "path": "fine", "content": "" },
    ]);
    let (_stop, run) = root.run(files);
    let preview = root.files.preview(&run.parameters).await.expect("previewed");
    let expected = ["not a regular file", "not a regular file", "more than 8388608 bytes", "not a directory"];
    assert_eq!(preview.errors.len(), expected.len());
    assert!(
        preview.errors.iter().zip(expected).all(|(error, part)| error.contains(part)),
        "{:?}",
        preview.errors
    );
    assert_eq!(preview.changes.len(), 1);
    assert_eq!(root.files.prepare_rollback(&run).await.expect_err("refused").side_effects, SideEffects::None);
    for number in 0..5 {
        let file = fs::File::create(root.path(&format!("big{number}"))).expect("created");
        file.set_len(8 * 1_048_576).expect("created");
    }
    let many: Vec<Value> =
        (0..5).map(|number| json!({ "path": format!("big{number}"), "delete": true })).collect();
    let (_stop, run) = root.run(many);
    let failure = root.files.prepare_rollback(&run).await.expect_err("refused");
    assert!(failure.message.contains("together; split the task"), "{failure}");
}

#[tokio::test]
async fn rejects_files_modified_since_snapshot() {
    let root = TestRoot::new();
    root.write("a", "a", 0o644);
    let files = &root.files;
    for modify in [
        |root: &TestRoot| root.write("a", "other", 0o644),
        |root: &TestRoot| root.write("a", "a", 0o600),
        |root: &TestRoot| root.write("new/b", "other", 0o644),
        |root: &TestRoot| fs::remove_file(root.path("a")).expect("removed"),
    ] {
        root.write("a", "a", 0o644);
        let _ = fs::remove_dir_all(root.path("new"));
        let (_stop, run) =
            root.run(json!([{ "path": "a", "content": "A" }, { "path": "new/b", "content": "B" }]));
        let rollback_data = files.prepare_rollback(&run).await.expect("prepared");
        modify(&root);
        let before = root.contents();
        let failure = files.apply(&run, &rollback_data).await.expect_err("refused");
        assert!(failure.is_retryable && failure.side_effects == SideEffects::None, "{failure:?}");
        assert!(failure.message.contains("modified since the preview"), "{failure}");
        let expected = before.into_iter().filter(|(path, _)| !path.contains(".ade"));
        assert_eq!(root.contents(), expected.collect());
    }
}

#[tokio::test]
async fn rollback_keeps_modifications_of_others() {
    let root = TestRoot::new();
    root.write("a", "a", 0o644);
    root.write("b", "b", 0o644);
    let (_stop, run) = root.run(json!([
        { "path": "a", "content": "A" }, { "path": "b", "delete": true }, { "path": "new/c", "content": "C" },
    ]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    root.files.apply(&run, &rollback_data).await.expect("applied");
    root.write("b", "somebody else", 0o644);
    let before = root.contents();
    let failure = root.files.roll_back(&run, &rollback_data).await.expect_err("refused");
    assert!(failure.message.contains("\"b\"") && !failure.message.contains("\"a\""), "{failure}");
    assert_eq!((failure.side_effects, root.contents()), (SideEffects::Remaining, before));
    assert_eq!(root.files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::PartiallyApplied));
    // A file of others in a created directory is kept, and the directory with it.
    fs::remove_file(root.path("b")).expect("removed");
    root.write("new/other", "other", 0o644);
    root.files.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!(
        (root.read("a"), root.read("b"), root.read("new/other")),
        ("a".into(), "b".into(), "other".into())
    );
    assert!(!root.path("new/c").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_lock_excludes_other_attempts() {
    let root = TestRoot::new();
    root.write("a", "a", 0o644);
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }, { "path": "b", "content": "B" }]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let (reached, mut is_reached) = watch::channel(false);
    let (resume, resumed) = std::sync::mpsc::channel::<()>();
    let resumed = std::sync::Mutex::new(resumed);
    let slow = root.with_hook(move |step| {
        if step == 3 {
            reached.send_replace(true);
            let _ = resumed.lock().expect("not poisoned").recv();
        }
    });
    let first = {
        let (run, rollback_data) = (run.clone(), rollback_data.clone());
        tokio::spawn(async move { slow.apply(&run, &rollback_data).await })
    };
    is_reached.wait_for(|reached| *reached).await.expect("reached");
    let impatient = FilesExecutor { recovery_lock_timeout: Duration::from_millis(50), ..root.files.clone() };
    let failure = impatient.resolve_outcome(&run, &rollback_data).await.expect_err("locked");
    assert!(failure.is_retryable && failure.side_effects == SideEffects::None, "{failure}");
    // A wait for the lock ends when the run is stopped.
    let (sender, stop) = StopSignal::new();
    let other = Run { attempt: 4, stop, ..run.clone() };
    let files = root.files.clone();
    let (result, _) = tokio::join!(files.prepare_rollback(&other), async {
        sender.send_replace(Some(StopReason::TimedOut))
    });
    assert_eq!(result.expect_err("stopped").stop_reason, Some(StopReason::TimedOut));
    resume.send(()).expect("received");
    first.await.expect("joined").expect("applied");
    assert_eq!(root.files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::Applied));
}

#[tokio::test]
async fn root_lock_is_visible_to_other_processes() {
    let root = TestRoot::new();
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let root_dir = fs::File::open(root.path("")).expect("opened");
    flock(&root_dir, FlockOperation::LockExclusive).expect("locked");
    let impatient = FilesExecutor { recovery_lock_timeout: Duration::from_millis(1), ..root.files.clone() };
    assert!(impatient.resolve_outcome(&run, &rollback_data).await.expect_err("locked").is_retryable);
    flock(&root_dir, FlockOperation::Unlock).expect("unlocked");
    assert_eq!(root.files.resolve_outcome(&run, &rollback_data).await, Ok(AttemptOutcome::NotApplied));
}

#[tokio::test]
async fn unregisters_earlier_attempts_of_same_task() {
    let root = TestRoot::new();
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }]));
    for (task_id, attempt) in [("t", 1), ("t-1", 7), ("t", 2), ("../t", 1)] {
        let run = Run { task_id: task_id.to_owned(), attempt, ..run.clone() };
        root.files.prepare_rollback(&run).await.expect("prepared");
    }
    let hashed = format!("{}-1", Digest::of_bytes(b"../t"));
    let mut expected = vec![hashed.as_str(), "t-1-7", "t-2"];
    expected.sort_unstable();
    let mut attempts = root.attempts();
    attempts.sort();
    assert_eq!(attempts, expected);
}

#[tokio::test]
async fn reports_failed_immediate_rollback() {
    let root = TestRoot::new();
    root.write("a", "a", 0o644);
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }, { "path": "b", "content": "B" }]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    let steps = Arc::new(AtomicUsize::new(0));
    let (conflicting_file, count) = (root.path("b"), Arc::clone(&steps));
    // Somebody else creates the new file after all checks.
    let interfering = root.with_hook(move |step| {
        count.store(step, Ordering::SeqCst);
        if step == 3 {
            fs::write(&conflicting_file, "somebody else").expect("written");
        }
    });
    let failure = interfering.apply(&run, &rollback_data).await.expect_err("refused");
    assert_eq!((root.read("b").as_str(), steps.load(Ordering::SeqCst) >= 3), ("somebody else", true));
    assert!(
        failure.message.contains("the immediate rollback failed") && failure.message.contains("\"b\""),
        "{failure}"
    );
    assert_eq!(failure.side_effects, SideEffects::Remaining);
    fs::remove_file(root.path("b")).expect("removed");
    root.files.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!(root.read("a"), "a");
}

#[test]
fn rejects_invalid_roots_and_corrupt_rollback_data() {
    for root in ["", "srv", "/", "/srv/", "/srv//a", "/srv/../a", "/srv/.", "/a\nb"] {
        assert_eq!(
            FilesExecutor::new("site", root, BTreeMap::new(), KeyedHash::for_tests("key")).err(),
            Some(InvalidRoot(root.to_owned()))
        );
    }
    assert_eq!(
        FilesExecutor::new("site", "/srv/www", BTreeMap::new(), KeyedHash::for_tests("key"))
            .expect("valid")
            .work_queue(),
        "files:site"
    );
    let root = TestRoot::new();
    root.write("a", "some\ncontent", 0o644);
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }]));
    let rollback_data = block_on(root.files.prepare_rollback(&run)).expect("prepared");
    for invalid in
        [&b""[..], b"{}", &rollback_data[..rollback_data.len() - 1], &[&rollback_data[..], b"x"].concat()]
    {
        let failure = block_on(root.files.roll_back(&run, invalid)).expect_err("refused");
        assert!(failure.message.contains("cannot read the rollback data"), "{failure}");
    }
    let mut corrupt = rollback_data;
    *corrupt.last_mut().expect("not empty") ^= 1;
    let failure = block_on(root.files.resolve_outcome(&run, &corrupt)).expect_err("refused");
    assert!(failure.message.contains("it is corrupt"), "{failure}");
    assert!(Path::new(&root.path("a")).exists());
}

#[tokio::test]
async fn other_tasks_wait_for_recovery_of_lost_attempt() {
    let root = TestRoot::new();
    root.write("a", "old a", 0o644);
    root.write("b", "old b", 0o644);
    let (_stop, run) =
        root.run(json!([{ "path": "a", "content": "new a" }, { "path": "b", "content": "new b" }]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    // Both temporary files are written, and one is renamed.
    let failure = root.killed_before(3).apply(&run, &rollback_data).await.expect_err("killed");
    assert_eq!(
        (failure.side_effects, root.read("a"), root.read("b")),
        (SideEffects::Remaining, "new a".into(), "old b".into())
    );
    let (_stop, other) = root.run(json!([{ "path": "b", "content": "of another task" }]));
    let other = Run { task_id: "another".to_owned(), attempt: 1, ..other };
    let timeout = Duration::from_millis(200);
    let is_blocked = async || {
        let prepared = tokio::time::timeout(timeout, root.files.prepare_rollback(&other)).await;
        let previewed = tokio::time::timeout(timeout, root.files.preview(&other.parameters)).await;
        prepared.is_err() && previewed.is_err()
    };
    assert!(is_blocked().await, "an attempt is in progress");
    assert_eq!(
        root.files.resolve_outcome(&run, &rollback_data).await.expect("resolved"),
        AttemptOutcome::PartiallyApplied
    );
    root.files.apply(&run, &rollback_data).await.expect_err("blocked by the recovery");
    assert!(is_blocked().await, "not rolled back yet");
    root.files.roll_back(&run, &rollback_data).await.expect("rolled back");
    assert_eq!((root.read("a"), root.read("b")), ("old a".into(), "old b".into()));
    let other_data = root.files.prepare_rollback(&other).await.expect("not blocked");
    root.files.apply(&other, &other_data).await.expect("applied");
    assert!(!root.path(ATTEMPTS_DIR).exists());
}

#[tokio::test]
async fn resumed_attempt_keeps_registration_of_successor() {
    let root = TestRoot::new();
    root.write("a", "old", 0o644);
    let (_stop, early) = root.run(json!([{ "path": "a", "content": "new" }]));
    let late = Run { attempt: early.attempt + 2, ..early.clone() };
    let rollback_data = root.files.prepare_rollback(&late).await.expect("prepared");
    root.files.prepare_rollback(&early).await.expect("prepared");
    root.files.clean_up(&early.task_id, early.attempt).await;
    root.files.apply(&late, &rollback_data).await.expect("still registered");
    assert!(root.attempts().is_empty() && root.read("a") == "new");
    // An applied attempt that is not rolled back blocks nobody after its cleanup.
    let (_stop, next) = root.run(json!([{ "path": "a", "content": "newer" }]));
    assert_eq!(
        root.files.resolve_outcome(&late, &rollback_data).await.expect("resolved"),
        AttemptOutcome::Applied
    );
    root.files.clean_up(&late.task_id, late.attempt).await;
    let next = Run { task_id: "next".to_owned(), ..next };
    let rollback_data = root.files.prepare_rollback(&next).await.expect("not blocked");
    root.files.clean_up(&next.task_id, next.attempt).await;
    let failure = root.files.apply(&next, &rollback_data).await.expect_err("unregistered");
    assert_eq!(failure.side_effects, SideEffects::None);
    assert!(root.attempts().is_empty() && root.read("a") == "new");
}
