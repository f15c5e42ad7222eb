//! The tasks of a crash test round, and the checks that the outside world matches their final state byte for byte.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use ade_testkit::SeededRng;
use ade_testkit::deployment::text_field;
use serde_json::{Value, json};

use super::fixture::{AGENT, Fixture};

/// Size of a file set whose change takes long enough to be interrupted. Each file has a folder of its own, and deep paths
/// are slow because they are resolved name by name.
const LARGE_SET_FILES: usize = 120;
const LARGE_SET_DEPTH: usize = 60;

pub(crate) struct TestTask {
    pub(crate) id: String,
    pub(crate) kind: TaskKind,
    /// All locks that the task needs.
    pub(crate) locks: Vec<String>,
}

pub(crate) enum TaskKind {
    Files(FileSet),
    Command {
        /// Appended to the run log.
        line: String,
    },
    Noop,
    /// Claimed by an external agent, which completes it or disappears.
    Agent {
        disappears: bool,
    },
}

/// Files with their content before and after the task; `None`: the file does not exist.
#[derive(Clone)]
pub(crate) struct FileSet {
    files: Vec<(PathBuf, Option<String>, Option<String>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSetState {
    Unchanged,
    Changed,
    Partial,
}

impl FileSet {
    /// Fails if a file has neither its old nor its new content.
    pub(crate) fn state(&self) -> Result<FileSetState, String> {
        let (mut old, mut new) = (true, true);
        for (path, before, after) in &self.files {
            let now = fs::read_to_string(path).ok();
            if now != *before && now != *after {
                return Err(format!("{} is {now:?}, neither {before:?} nor {after:?}", path.display()));
            }
            old &= now == *before;
            new &= now == *after;
        }
        Ok(if old {
            FileSetState::Unchanged
        } else if new {
            FileSetState::Changed
        } else {
            FileSetState::Partial
        })
    }

    /// Returns a check whether the first (or the last) file has been replaced since this call.
    pub(crate) fn watch(&self, last: bool) -> impl Fn() -> bool + Send + use<> {
        let found = if last { self.files.last() } else { self.files.first() };
        let path = found.map(|(path, ..)| path.clone()).expect("a file");
        // A replaced file has another inode.
        let inode = move || fs::metadata(&path).map(|metadata| metadata.ino()).ok();
        let before = inode();
        move || inode() != before
    }

    /// A set that changes only the last file of this one, to other content.
    pub(crate) fn only_last(&self, content: &str) -> Self {
        let last = self
            .files
            .last()
            .map(|(path, before, _)| (path.clone(), before.clone(), Some(content.to_owned())));
        Self { files: last.into_iter().collect() }
    }

    pub(crate) fn without_last(&self) -> Self {
        let mut files = self.files.clone();
        files.pop();
        Self { files }
    }

    fn parameters(&self, fixture: &Fixture) -> Value {
        let file = |(path, _, after): &(PathBuf, Option<String>, Option<String>)| {
            let path = path.strip_prefix(&fixture.root).expect("below the root");
            match after {
                Some(content) => json!({ "path": path, "content": content }),
                None => json!({ "path": path, "delete": true }),
            }
        };
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({ "root": "site", "files": files })
    }

    /// Writes the files with their old content.
    fn create(self) -> Self {
        for (path, before, _) in &self.files {
            if let Some(content) = before {
                fs::create_dir_all(path.parent().expect("below the root")).expect("created");
                fs::write(path, content).expect("written");
            }
        }
        self
    }
}

/// Two to five files that are changed, created or deleted.
pub(crate) fn small_set(fixture: &Fixture, name: &str, rng: &mut SeededRng) -> FileSet {
    let count = 2 + rng.below(4);
    let file = |number: u64| {
        let path = fixture.root.join(name).join(format!("{}/{number}.txt", number % 2));
        let (old, new) = (format!("before {name} {number}\n"), format!("after {name} {number}\n"));
        match (number, rng.below(4)) {
            (0, _) => (path, Some(old), Some(new)),
            (_, 0) => (path, None, Some(new)),
            (_, 1) => (path, Some(old), None),
            _ => (path, Some(old), Some(new)),
        }
    };
    FileSet { files: (0..count).map(file).collect() }.create()
}

/// Many files, so that the test can interrupt the change.
pub(crate) fn large_set(fixture: &Fixture, name: &str) -> FileSet {
    let folder = fixture.root.join(name).join(vec!["d"; LARGE_SET_DEPTH].join("/"));
    let file = |number: usize| {
        let path = folder.join(format!("{number}/file.txt"));
        (path, Some(format!("before {name} {number}\n")), Some(format!("after {name} {number}\n")))
    };
    FileSet { files: (0..LARGE_SET_FILES).map(file).collect() }.create()
}

/// A file with a number that every task increments by one. A task applies to one value only, because its preview pins the
/// old content.
pub(crate) fn counter_set(fixture: &Fixture, from: u64) -> FileSet {
    let path = fixture.root.join("counter.txt");
    let before = (from > 0).then(|| format!("{from}\n"));
    FileSet { files: vec![(path, before, Some(format!("{}\n", from + 1)))] }
}

fn exclusive_resource(name: &str) -> Value {
    json!({ "type": "folder", "id": name, "mode": "exclusive" })
}

impl TestTask {
    pub(crate) fn resource_lock(resource: &str) -> String {
        format!("resource:folder:{resource}")
    }

    pub(crate) async fn files(fixture: &Fixture, set: FileSet, resource: &str) -> Self {
        let task = json!({
            "executor": "files", "parameters": set.parameters(fixture), "resources": [exclusive_resource(resource)],
        });
        Self::submit(fixture, task, TaskKind::Files(set), &[resource]).await
    }

    pub(crate) async fn command(fixture: &Fixture, resource: &str) -> Self {
        // The line identifies the task in the run log; its id is not known yet.
        let line = uuid::Uuid::new_v4().to_string();
        let parameters = json!({ "template": "append", "arguments": { "line": line } });
        let task = json!({ "executor": "command", "parameters": parameters, "resources": [exclusive_resource(resource)] });
        Self::submit(fixture, task, TaskKind::Command { line }, &[resource]).await
    }

    pub(crate) async fn noop(fixture: &Fixture) -> Self {
        Self::submit(fixture, json!({}), TaskKind::Noop, &[]).await
    }

    pub(crate) async fn agent(fixture: &Fixture, disappears: bool) -> Self {
        let task = json!({ "executor": "agent", "parameters": { "agent": AGENT } });
        Self::submit(fixture, task, TaskKind::Agent { disappears }, &[]).await
    }

    async fn submit(fixture: &Fixture, task: Value, kind: TaskKind, resources: &[&str]) -> Self {
        let id = fixture.submit(task).await;
        let mut locks = vec![format!("task:{id}")];
        locks.extend(resources.iter().map(|resource| Self::resource_lock(resource)));
        Self { id, kind, locks }
    }

    /// How often the command ran; 0 for other kinds of tasks.
    pub(crate) fn run_count(&self, fixture: &Fixture) -> usize {
        let TaskKind::Command { line } = &self.kind else { return 0 };
        let log = fs::read_to_string(&fixture.run_log).expect("readable");
        log.lines().filter(|found| found == line).count()
    }

    pub(crate) fn file_set(&self) -> Option<&FileSet> {
        if let TaskKind::Files(set) = &self.kind { Some(set) } else { None }
    }

    pub(crate) fn is_finished(task: &Value) -> bool {
        matches!(text_field(task, "state").as_str(), "COMPLETED" | "FAILED")
    }

    /// Checks that the state of the task matches its effect.
    pub(crate) fn check(&self, fixture: &Fixture, task: &Value) -> Result<(), String> {
        let (is_completed, execution) = (text_field(task, "state") == "COMPLETED", task.get("execution"));
        let code = execution.map(|execution| text_field(execution, "code")).unwrap_or_default();
        match &self.kind {
            TaskKind::Files(set) => match (set.state()?, is_completed) {
                (FileSetState::Changed, true) | (FileSetState::Unchanged, false) => Ok(()),
                (state, _) => Err(format!("the file set is {state:?}: {task}")),
            },
            TaskKind::Command { .. } => match (self.run_count(fixture), is_completed) {
                (1, true) | (0 | 1, false) if is_completed || code == "OUTCOME_UNKNOWN" => Ok(()),
                (0, false) => Ok(()),
                (runs, _) => Err(format!("the command ran {runs} times: {task}")),
            },
            TaskKind::Noop => Ok(()),
            TaskKind::Agent { disappears } => match (disappears, is_completed, code.as_str()) {
                (false, true, _) | (_, false, "OUTCOME_UNKNOWN") => Ok(()),
                // Redis lost the locks before the agent reported success.
                (false, false, "LOCKS_LOST") => Ok(()),
                _ => {
                    let agent = if *disappears { "disappeared" } else { "completed the task" };
                    Err(format!("the agent {agent}: {task}"))
                }
            },
        }
    }
}
