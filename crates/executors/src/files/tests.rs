//! Files are changed all or none, wherever it ends; nothing outside the root is touched, and nothing that is somebody else's.

mod late;
mod verified;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ade_domain::task::{ChangeKind, PreviewStatus};
use proptest::prelude::*;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::{Halt, LONGEST_PREVIEW, Output, Secrets};

/// A root between files that are nobody's business.
struct Place {
    around: TempDir,
    files: Files,
}

impl Place {
    fn new() -> Self {
        let around = tempfile::tempdir().expect("a folder");
        fs::create_dir(around.path().join("root")).expect("made");
        fs::write(around.path().join("outside"), "outside").expect("written");
        let files = Files::new(around.path().join("root").to_str().expect("text")).expect("a root");
        Self { around, files }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.around.path().join("root").join(path)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>, mode: u32) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    }

    /// Every note; the folder may stay for a moment after the last.
    fn noted(&self) -> Vec<std::ffi::OsString> {
        let notes = fs::read_dir(self.at(NOTES)).into_iter().flatten();
        notes.map(|note| note.expect("read").file_name()).collect()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("there")
    }

    fn run(&self, files: impl Into<Value>) -> (watch::Sender<Option<Halt>>, Run) {
        let parameters = json!({ "root": self.files.root, "files": files.into() });
        let parameters = parameters.as_object().expect("an object").clone();
        let (halt, halted) = Halted::new();
        let output = Output::new(Secrets::default(), None);
        let (task_id, attempt, tokens) = ("0192-task".to_owned(), 3, Vec::new());
        (halt, Run { task_id, attempt, parameters, approved: None, tokens, output, halted })
    }

    /// Everything there is, with permissions and content.
    fn all(&self) -> BTreeMap<String, (u32, Option<Vec<u8>>)> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.around.path().to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs::read_dir(&folder).expect("read") {
                let entry = entry.expect("read");
                let about = entry.metadata().expect("there");
                let content = about.is_file().then(|| fs::read(entry.path()).expect("read"));
                if about.is_dir() {
                    open.push(entry.path());
                }
                let path =
                    entry.path().strip_prefix(self.around.path()).expect("below").display().to_string();
                found.insert(path, (about.permissions().mode(), content));
            }
        }
        found
    }

    fn paused(&self, pause: impl Fn(usize) + Send + Sync + 'static) -> Files {
        self.files.clone().with_pause(Arc::new(pause))
    }

    /// One that is gone before this step, as if it was killed: nothing is undone, and its lock is free.
    fn dying(&self, before: usize) -> Files {
        self.paused(move |step| {
            if step == before {
                std::panic::resume_unwind(Box::new("killed"));
            }
        })
    }
}

fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("built").block_on(work)
}

#[tokio::test]
async fn files_are_previewed_changed_and_changed_back() {
    let place = Place::new();
    place.write("old.txt", "one\ntwo\nthree\n", 0o640);
    place.write("bin", b"\xff\xfe", 0o600);
    place.write("gone.txt", "bye\n", 0o600);
    place.write("same.txt", "same", 0o644);
    place.write("mode.sh", "run", 0o644);
    let before = place.all();
    let (_halt, run) = place.run(json!([
        { "path": "old.txt", "content": "one\n2\nthree\n" },
        { "path": "bin", "content": "text" },
        { "path": "gone.txt", "delete": true },
        { "path": "same.txt", "content": "same" },
        { "path": "mode.sh", "content": "run", "mode": "0755" },
        { "path": "new/deep/x.txt", "content": "x\n", "mode": "0600" },
    ]));
    let files = &place.files;
    files.check(&run.parameters).expect("fits");
    let preview = files.preview(&run.parameters).await.expect("made");
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
    assert_eq!(changes[1].diff, None, "what is no text has no diff");
    assert_eq!(changes[2].after, None);
    assert_eq!(changes[3].diff.as_deref(), Some("old mode 0644\nnew mode 0755\n"));
    assert_eq!(place.all(), before, "a preview changes nothing");

    let stash = files.stash(&run).await.expect("kept");
    files.apply(&run, &stash).await.expect("done");
    assert_eq!(place.read("old.txt"), "one\n2\nthree\n");
    assert_eq!(place.read("new/deep/x.txt"), "x\n");
    assert!(!place.at("gone.txt").exists());
    let all = place.all();
    let mode = |path: &str| all[path].0 & 0o7777;
    assert_eq!(
        (mode("root/mode.sh"), mode("root/new/deep/x.txt"), mode("root/old.txt")),
        (0o755, 0o600, 0o640)
    );
    assert!(!all.keys().any(|path| path.contains(".ade")), "nothing is left over: {all:?}");
    assert_eq!(files.settle(&run, &stash).await, Ok(Settled::Everything));
    files.forget(&run.task_id, run.attempt).await;
    let again = files.preview(&run.parameters).await.expect("made");
    assert_eq!(again.errors, ["\"gone.txt\" is to be deleted and is not there"]);
    assert_ne!(again.fingerprint, preview.fingerprint);

    files.roll_back(&run, &stash).await.expect("undone");
    assert_eq!(place.all(), before);
    files.roll_back(&run, &stash).await.expect("once more is the same");
    assert_eq!(place.all(), before);
    assert_eq!(files.settle(&run, &stash).await, Ok(Settled::Nothing));
}

#[derive(Debug, Clone)]
struct OneFile {
    path: &'static str,
    before: Option<(Vec<u8>, u32)>,
    content: Option<String>,
    mode: Option<u32>,
}

fn some_files() -> impl Strategy<Value = Vec<OneFile>> {
    let paths = ["a", "b", "d/a", "d/b", "d/e/a", "f/g/h", "f/i"];
    let mode = || prop_oneof![Just(0o644), Just(0o600), Just(0o755), Just(0o444)];
    let content = || prop_oneof![Just(String::new()), "[a-c]{1,3}", Just("same".to_owned())];
    let before = prop::option::of((content().prop_map(String::into_bytes), mode()));
    let one = (before, prop::option::weighted(0.7, content()), prop::option::of(mode()));
    let each = prop::collection::vec(prop::option::weighted(0.6, one), paths.len());
    each.prop_filter_map("at least one", move |each| {
        let some = paths.into_iter().zip(each).filter_map(|(path, one)| {
            let (before, content, mode) = one?;
            let content = if before.is_none() { Some(content.unwrap_or_default()) } else { content };
            Some(OneFile { path, before, mode: mode.filter(|_| content.is_some()), content })
        });
        Some(some.collect::<Vec<_>>()).filter(|some| !some.is_empty())
    })
}

fn lay_out(set: &[OneFile]) -> (Place, watch::Sender<Option<Halt>>, Run) {
    let place = Place::new();
    for file in set {
        if let Some((content, mode)) = &file.before {
            place.write(file.path, content, *mode);
        }
    }
    let wanted = set.iter().map(|file| match (&file.content, file.mode) {
        (None, _) => json!({ "path": file.path, "delete": true }),
        (Some(content), None) => json!({ "path": file.path, "content": content }),
        (Some(content), Some(mode)) => {
            json!({ "path": file.path, "content": content, "mode": format!("{mode:04o}") })
        }
    });
    let (halt, run) = place.run(wanted.collect::<Vec<_>>());
    (place, halt, run)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    /// Killed before any step, also of going back: what it left is found out, and undone byte for byte.
    #[test]
    fn whoever_is_killed_leaves_nothing(set in some_files(), again in 0usize..12) {
        let (place, _halt, run) = lay_out(&set);
        let before = place.all();
        for step in 0.. {
            let stash = now(place.files.stash(&run)).expect("kept");
            let killed = now(place.dying(step).apply(&run, &stash));
            if let Err(failure) = &killed {
                prop_assert_eq!(failure.changed, Changed::Something);
            }
            let after = place.all();
            let settled = now(place.files.settle(&run, &stash)).expect("settled");
            // Nobody is told that nothing was done, or all of it, unless it is so.
            match settled {
                Settled::Nothing => prop_assert_eq!(&place.all(), &before),
                Settled::Everything => for file in &set {
                    let now = fs::read(place.at(file.path)).ok();
                    prop_assert_eq!(now, file.content.clone().map(String::into_bytes));
                },
                Settled::Part => prop_assert!(killed.is_err()),
            }
            let shut_out = now(place.files.apply(&run, &stash)).expect_err("it is over");
            prop_assert_eq!(shut_out.changed, Changed::Nothing);
            // Going back is killed as well, and begun again.
            let _ = now(place.dying(again).roll_back(&run, &stash));
            now(place.files.roll_back(&run, &stash)).expect("undone");
            prop_assert_eq!(place.all(), before.clone(), "killed before step {} with {:?}", step, after);
            if killed.is_ok() {
                break;
            }
        }
    }

    /// Ended from outside before any step: it changes back by itself what it has done.
    #[test]
    fn whoever_is_halted_changes_nothing(set in some_files()) {
        let (place, _halt, run) = lay_out(&set);
        let before = place.all();
        let mut touched = false;
        for step in 0.. {
            let (halt, halted) = Halted::new();
            let run = Run { halted, ..run.clone() };
            let stash = now(place.files.stash(&run)).expect("kept");
            let halting = place.paused(move |now| {
                if now == step {
                    halt.send_replace(Some(Halt::Stopped));
                }
            });
            match now(halting.apply(&run, &stash)) {
                Ok(()) => break,
                Err(failure) => {
                    prop_assert_eq!(failure.halted, Some(Halt::Stopped));
                    // From the first file that came into its place on, something was undone.
                    touched |= failure.changed == Changed::Undone;
                    prop_assert_eq!(failure.changed, if touched { Changed::Undone } else { Changed::Nothing });
                    prop_assert_eq!(place.all(), before.clone());
                }
            }
        }
        for file in &set {
            prop_assert_eq!(fs::read(place.at(file.path)).ok(), file.content.clone().map(String::into_bytes));
        }
    }
}

#[tokio::test]
async fn links_lead_nowhere() {
    let place = Place::new();
    let outside = place.around.path().join("outside");
    fs::create_dir(place.around.path().join("other")).expect("made");
    symlink(&outside, place.at("link")).expect("linked");
    symlink("missing", place.at("dangling")).expect("linked");
    symlink(place.around.path().join("other"), place.at("folder")).expect("linked");
    symlink("..", place.at("up")).expect("linked");
    let before = place.all();
    for (path, links) in
        [("link", true), ("dangling", true), ("folder/x", true), ("up/outside", true), ("up/root/y", true)]
    {
        let (_halt, run) = place.run(json!([{ "path": path, "content": "changed" }]));
        let preview = place.files.preview(&run.parameters).await.expect("made");
        assert!(preview.changes.is_empty() && preview.errors.len() == 1, "{path}: {preview:?}");
        assert_eq!(preview.errors[0].contains("symbolic link"), links, "{preview:?}");
        let failure = place.files.stash(&run).await.expect_err("refused");
        assert_eq!(failure.changed, Changed::Nothing);
        assert_eq!(place.all(), before, "{path}");
    }
    let linked = place.around.path().join("linked-root");
    symlink(place.at(""), &linked).expect("linked");
    let files = Files::new(linked.to_str().expect("text")).expect("a path");
    let parameters = json!({ "root": files.root, "files": [{ "path": "a", "content": "" }] });
    let failure = files.preview(parameters.as_object().expect("an object")).await.expect_err("refused");
    assert!(failure.message.contains("symbolic link") && !failure.again, "{failure}");
}

/// A folder is exchanged for a link after it was looked at, before each step.
#[test]
fn a_folder_that_becomes_a_link_leads_nowhere() {
    for at in 0..3 {
        let place = Place::new();
        place.write("d/a", "a", 0o644);
        place.write("d/b", "b", 0o644);
        let other = place.around.path().join("other");
        fs::create_dir(&other).expect("made");
        fs::write(other.join("a"), "not ours").expect("written");
        let (_halt, run) =
            place.run(json!([{ "path": "d/a", "content": "A" }, { "path": "d/b", "content": "B" }]));
        let stash = now(place.files.stash(&run)).expect("kept");
        let (folder, aside, link) = (place.at("d"), place.at("aside"), other.clone());
        let swapping = place.paused(move |step| {
            if step == at {
                fs::rename(&folder, &aside).expect("moved");
                symlink(&link, &folder).expect("linked");
            }
        });
        let failure = now(swapping.apply(&run, &stash)).expect_err("refused");
        assert_eq!(failure.changed, Changed::Something, "it says that it could not undo: {failure}");
        assert_eq!(fs::read_dir(&other).expect("read").count(), 1, "nothing came to be there");
        assert_eq!(fs::read_to_string(other.join("a")).expect("there"), "not ours");
        // Put back, it is undone.
        fs::remove_file(place.at("d")).expect("removed");
        fs::rename(place.at("aside"), place.at("d")).expect("moved");
        now(place.files.roll_back(&run, &stash)).expect("undone");
        assert_eq!((place.read("d/a"), place.read("d/b")), ("a".to_owned(), "b".to_owned()));
        assert_eq!(fs::read_dir(place.at("d")).expect("read").count(), 2);
    }
}

#[tokio::test]
async fn only_regular_files_of_some_size_are_changed() {
    let place = Place::new();
    fs::create_dir(place.at("folder")).expect("made");
    rustix::fs::mknodat(rustix::fs::CWD, place.at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("made");
    fs::File::create(place.at("huge")).and_then(|file| file.set_len(8 * 1_048_576 + 1)).expect("made");
    place.write("file", "", 0o644);
    let files = json!([
        { "path": "folder", "content": "" },
        { "path": "pipe", "delete": true },
        { "path": "huge", "content": "" },
        { "path": "file/below", "content": "" },
        { "path": "fine", "content": "" },
    ]);
    let (_halt, run) = place.run(files);
    let preview = place.files.preview(&run.parameters).await.expect("made");
    let said = ["not a regular file", "not a regular file", "more than 8388608 bytes", "not a folder"];
    assert_eq!(preview.errors.len(), said.len());
    assert!(
        preview.errors.iter().zip(said).all(|(error, part)| error.contains(part)),
        "{:?}",
        preview.errors
    );
    assert_eq!(preview.changes.len(), 1);
    assert_eq!(place.files.stash(&run).await.expect_err("refused").changed, Changed::Nothing);
    for number in 0..5 {
        let file = fs::File::create(place.at(&format!("big{number}"))).expect("made");
        file.set_len(8 * 1_048_576).expect("made");
    }
    let many: Vec<Value> =
        (0..5).map(|number| json!({ "path": format!("big{number}"), "delete": true })).collect();
    let (_halt, run) = place.run(many);
    let failure = place.files.stash(&run).await.expect_err("refused");
    assert!(failure.message.contains("together; split the task"), "{failure}");
}

#[tokio::test]
async fn a_long_diff_is_cut_and_the_fingerprint_is_the_same() {
    let place = Place::new();
    place.write("long", "a line of text\n".repeat(50_000), 0o644);
    place.write("next", "text\n", 0o644);
    let (_halt, run) =
        place.run(json!([{ "path": "long", "delete": true }, { "path": "next", "content": "" }]));
    let preview = place.files.preview(&run.parameters).await.expect("made");
    let diffs: Vec<&str> = preview.changes.iter().filter_map(|change| change.diff.as_deref()).collect();
    assert!(diffs[0].len() < LONGEST_PREVIEW + 200 && diffs[0].ends_with("of this diff are left out)\n"));
    assert!(diffs[1].starts_with("(the preview is too long"));
}

#[tokio::test]
async fn what_was_changed_meanwhile_is_not_changed_by_us() {
    let place = Place::new();
    place.write("a", "a", 0o644);
    let files = &place.files;
    for meddle in [
        |place: &Place| place.write("a", "other", 0o644),
        |place: &Place| place.write("a", "a", 0o600),
        |place: &Place| place.write("new/b", "other", 0o644),
        |place: &Place| fs::remove_file(place.at("a")).expect("removed"),
    ] {
        place.write("a", "a", 0o644);
        let _ = fs::remove_dir_all(place.at("new"));
        let (_halt, run) =
            place.run(json!([{ "path": "a", "content": "A" }, { "path": "new/b", "content": "B" }]));
        let stash = files.stash(&run).await.expect("kept");
        meddle(&place);
        let before = place.all();
        let failure = files.apply(&run, &stash).await.expect_err("refused");
        assert!(failure.again && failure.changed == Changed::Nothing, "{failure:?}");
        assert!(failure.message.contains("meanwhile"), "{failure}");
        let besides_notes = before.into_iter().filter(|(path, _)| !path.contains(".ade"));
        assert_eq!(place.all(), besides_notes.collect());
    }
}

#[tokio::test]
async fn what_somebody_else_wrote_is_not_changed_back() {
    let place = Place::new();
    place.write("a", "a", 0o644);
    place.write("b", "b", 0o644);
    let (_halt, run) = place.run(json!([
        { "path": "a", "content": "A" }, { "path": "b", "delete": true }, { "path": "new/c", "content": "C" },
    ]));
    let stash = place.files.stash(&run).await.expect("kept");
    place.files.apply(&run, &stash).await.expect("done");
    place.write("b", "somebody else", 0o644);
    let before = place.all();
    let failure = place.files.roll_back(&run, &stash).await.expect_err("refused");
    assert!(failure.message.contains("\"b\"") && !failure.message.contains("\"a\""), "{failure}");
    assert_eq!((failure.changed, place.all()), (Changed::Something, before));
    assert_eq!(place.files.settle(&run, &stash).await, Ok(Settled::Part));
    // What others put into a folder that we made stays, and the folder with it.
    fs::remove_file(place.at("b")).expect("removed");
    place.write("new/other", "other", 0o644);
    place.files.roll_back(&run, &stash).await.expect("undone");
    assert_eq!(
        (place.read("a"), place.read("b"), place.read("new/other")),
        ("a".into(), "b".into(), "other".into())
    );
    assert!(!place.at("new/c").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time() {
    let place = Place::new();
    place.write("a", "a", 0o644);
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }, { "path": "b", "content": "B" }]));
    let stash = place.files.stash(&run).await.expect("kept");
    let (reached, mut is_reached) = watch::channel(false);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let slow = place.paused(move |step| {
        if step == 3 {
            reached.send_replace(true);
            let _ = gone.lock().expect("whole").recv();
        }
    });
    let first = {
        let (run, stash) = (run.clone(), stash.clone());
        tokio::spawn(async move { slow.apply(&run, &stash).await })
    };
    is_reached.wait_for(|reached| *reached).await.expect("reached");
    let quick = place.files.clone().with_wait_to_settle(Duration::from_millis(50));
    let failure = quick.settle(&run, &stash).await.expect_err("somebody is at it");
    assert!(failure.again && failure.changed == Changed::Nothing, "{failure}");
    // Whoever waits for the lock ends when it is to end.
    let (halt, halted) = Halted::new();
    let other = Run { attempt: 4, halted, ..run.clone() };
    let files = place.files.clone();
    let (waits, is_over) =
        tokio::join!(files.stash(&other), async { halt.send_replace(Some(Halt::TimedOut)) });
    assert_eq!((waits.expect_err("halted").halted, is_over), (Some(Halt::TimedOut), None));
    go.send(()).expect("taken");
    first.await.expect("ended").expect("done");
    assert_eq!(place.files.settle(&run, &stash).await, Ok(Settled::Everything));
}

#[tokio::test]
async fn the_lock_is_one_that_other_processes_see() {
    let place = Place::new();
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }]));
    let stash = place.files.stash(&run).await.expect("kept");
    let root = fs::File::open(place.at("")).expect("opened");
    flock(&root, FlockOperation::LockExclusive).expect("locked");
    let quick = place.files.clone().with_wait_to_settle(Duration::from_millis(1));
    assert!(quick.settle(&run, &stash).await.expect_err("locked").again);
    flock(&root, FlockOperation::Unlock).expect("unlocked");
    assert_eq!(place.files.settle(&run, &stash).await, Ok(Settled::Nothing));
}

#[tokio::test]
async fn notes_of_attempts_that_are_over_do_not_pile_up() {
    let place = Place::new();
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }]));
    let noted = |place: &Place| {
        let mut names: Vec<_> = fs::read_dir(place.at(".ade"))
            .expect("read")
            .map(|name| name.expect("read").file_name())
            .collect();
        names.sort();
        names
    };
    for (task_id, attempt) in [("t", 1), ("t-1", 7), ("t", 2), ("../t", 1)] {
        let run = Run { task_id: task_id.to_owned(), attempt, ..run.clone() };
        place.files.stash(&run).await.expect("kept");
    }
    let hashed = format!("{}-1", Digest::of_bytes(b"../t"));
    let mut expected = vec![hashed.as_str(), "t-1-7", "t-2"];
    expected.sort_unstable();
    assert_eq!(noted(&place), expected);
}

#[tokio::test]
async fn what_cannot_be_written_is_undone() {
    let place = Place::new();
    place.write("a", "a", 0o644);
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }, { "path": "b", "content": "B" }]));
    let stash = place.files.stash(&run).await.expect("kept");
    let steps = Arc::new(AtomicUsize::new(0));
    let (in_the_way, count) = (place.at("b"), Arc::clone(&steps));
    // A file comes to be where a new one is to be put, after everything was looked at.
    let meddling = place.paused(move |step| {
        count.store(step, Ordering::SeqCst);
        if step == 3 {
            fs::write(&in_the_way, "somebody else").expect("written");
        }
    });
    let failure = meddling.apply(&run, &stash).await.expect_err("refused");
    assert_eq!((place.read("b").as_str(), steps.load(Ordering::SeqCst) >= 3), ("somebody else", true));
    assert!(
        failure.message.contains("could not be undone at once") && failure.message.contains("\"b\""),
        "{failure}"
    );
    assert_eq!(failure.changed, Changed::Something);
    fs::remove_file(place.at("b")).expect("removed");
    place.files.roll_back(&run, &stash).await.expect("undone");
    assert_eq!(place.read("a"), "a");
}

#[test]
fn roots_are_plain_and_what_is_kept_is_whole() {
    for root in ["", "srv", "/", "/srv/", "/srv//a", "/srv/../a", "/srv/.", "/a\nb"] {
        assert_eq!(Files::new(root).err(), Some(BadRoot(root.to_owned())));
    }
    assert_eq!(Files::new("/srv/www").expect("plain").place(), "files:/srv/www");
    let place = Place::new();
    place.write("a", "some\ncontent", 0o644);
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }]));
    let stash = now(place.files.stash(&run)).expect("kept");
    for broken in [&b""[..], b"{}", &stash[..stash.len() - 1], &[&stash[..], b"x"].concat()] {
        let failure = now(place.files.roll_back(&run, broken)).expect_err("refused");
        assert!(failure.message.contains("cannot be read"), "{failure}");
    }
    let mut changed = stash;
    *changed.last_mut().expect("not empty") ^= 1;
    assert!(now(place.files.settle(&run, &changed)).expect_err("refused").message.contains("it was changed"));
    assert!(Path::new(&place.at("a")).exists());
}

#[tokio::test]
async fn nothing_is_built_on_what_is_not_settled() {
    let place = Place::new();
    place.write("a", "old a", 0o644);
    place.write("b", "old b", 0o644);
    let (_halt, run) =
        place.run(json!([{ "path": "a", "content": "new a" }, { "path": "b", "content": "new b" }]));
    let stash = place.files.stash(&run).await.expect("kept");
    // Both are written beside their places; one is put into it.
    let failure = place.dying(3).apply(&run, &stash).await.expect_err("gone");
    assert_eq!(
        (failure.changed, place.read("a"), place.read("b")),
        (Changed::Something, "new a".into(), "old b".into())
    );
    let (_halt, other) = place.run(json!([{ "path": "b", "content": "of another" }]));
    let other = Run { task_id: "another".to_owned(), attempt: 1, ..other };
    let soon = Duration::from_millis(200);
    let waits = async || {
        let kept = tokio::time::timeout(soon, place.files.stash(&other)).await;
        let seen = tokio::time::timeout(soon, place.files.preview(&other.parameters)).await;
        kept.is_err() && seen.is_err()
    };
    assert!(waits().await, "somebody was gone in the middle");
    assert_eq!(place.files.settle(&run, &stash).await.expect("settled"), Settled::Part);
    place.files.apply(&run, &stash).await.expect_err("whoever wakes late is shut out");
    assert!(waits().await, "it is not changed back yet");
    place.files.roll_back(&run, &stash).await.expect("changed back");
    assert_eq!((place.read("a"), place.read("b")), ("old a".into(), "old b".into()));
    let kept = place.files.stash(&other).await.expect("nothing is in its way");
    place.files.apply(&other, &kept).await.expect("changed");
    assert!(!place.at(NOTES).exists());
}

#[tokio::test]
async fn whoever_wakes_late_takes_nobody_s_note() {
    let place = Place::new();
    place.write("a", "old", 0o644);
    let (_halt, early) = place.run(json!([{ "path": "a", "content": "new" }]));
    let late = Run { attempt: early.attempt + 2, ..early.clone() };
    let stash = place.files.stash(&late).await.expect("kept");
    place.files.stash(&early).await.expect("kept, for nothing");
    place.files.forget(&early.task_id, early.attempt).await;
    place.files.apply(&late, &stash).await.expect("its note is there");
    assert!(place.noted().is_empty() && place.read("a") == "new");
    // What all of it was done by, and nobody decides to undo, is in nobody's way either.
    let (_halt, next) = place.run(json!([{ "path": "a", "content": "newer" }]));
    assert_eq!(place.files.settle(&late, &stash).await.expect("settled"), Settled::Everything);
    place.files.forget(&late.task_id, late.attempt).await;
    let next = Run { task_id: "next".to_owned(), ..next };
    let stash = place.files.stash(&next).await.expect("nothing is in its way");
    place.files.forget(&next.task_id, next.attempt).await;
    let refused = place.files.apply(&next, &stash).await.expect_err("it was given up");
    assert_eq!(refused.changed, Changed::Nothing);
    assert!(place.noted().is_empty() && place.read("a") == "new");
}
