//! What is proposed in a round, and how the world must be once it has ended: by its state, byte for byte.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use ade_testkit::Dice;
use ade_testkit::people::text;
use serde_json::{Value, json};

use super::site::{BOT, Site};

/// Files of a set that is changed for long enough to be met in the middle, each in a folder of its own, and how deep they lie:
/// names are walked one by one.
const WIDE: usize = 120;
const DEEP: usize = 60;

/// One task.
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    /// Every lock that it needs.
    pub(crate) locks: Vec<String>,
}

/// What it does.
pub(crate) enum Kind {
    Files(Set),
    Command,
    Noop,
    /// An agent asked for it, and ends it or is not heard of any more.
    Agent {
        dies: bool,
    },
}

/// Files before and afterwards; nothing: there is none.
#[derive(Clone)]
pub(crate) struct Set {
    files: Vec<(PathBuf, Option<String>, Option<String>)>,
}

/// How a set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Old,
    New,
    Half,
}

impl Set {
    /// How it is. A file that is neither is told.
    pub(crate) fn look(&self) -> Result<Found, String> {
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
            Found::Old
        } else if new {
            Found::New
        } else {
            Found::Half
        })
    }

    /// Whether the first file, or the last, is another one than it was.
    pub(crate) fn watch(&self, last: bool) -> impl Fn() -> bool + Send + use<> {
        let found = if last { self.files.last() } else { self.files.first() };
        let path = found.map(|(path, ..)| path.clone()).expect("one at least");
        // What is put into its place is another file.
        let number = move || fs::metadata(&path).map(|about| about.ino()).ok();
        let before = number();
        move || number() != before
    }

    /// Another set: the last file of this one, from how it was to something else.
    pub(crate) fn last_as(&self, content: &str) -> Self {
        let last = self
            .files
            .last()
            .map(|(path, before, _)| (path.clone(), before.clone(), Some(content.to_owned())));
        Self { files: last.into_iter().collect() }
    }

    /// The same without its last file.
    pub(crate) fn without_last(&self) -> Self {
        let mut files = self.files.clone();
        files.pop();
        Self { files }
    }

    fn parameters(&self, site: &Site) -> Value {
        let file = |(path, _, after): &(PathBuf, Option<String>, Option<String>)| {
            let path = path.strip_prefix(&site.root).expect("below the root");
            match after {
                Some(content) => json!({ "path": path, "content": content }),
                None => json!({ "path": path, "delete": true }),
            }
        };
        let files: Vec<Value> = self.files.iter().map(file).collect();
        json!({ "root": site.root, "files": files })
    }

    fn furnish(self) -> Self {
        for (path, before, _) in &self.files {
            if let Some(content) = before {
                fs::create_dir_all(path.parent().expect("below the root")).expect("made");
                fs::write(path, content).expect("written");
            }
        }
        self
    }
}

/// Two to five files: some are changed, some are new, one may go.
pub(crate) fn small(site: &Site, name: &str, dice: &mut Dice) -> Set {
    let many = 2 + dice.below(4);
    let file = |number: u64| {
        let path = site.root.join(name).join(format!("{}/{number}.txt", number % 2));
        let (old, new) = (format!("before {name} {number}\n"), format!("after {name} {number}\n"));
        match (number, dice.below(4)) {
            (0, _) => (path, Some(old), Some(new)),
            (_, 0) => (path, None, Some(new)),
            (_, 1) => (path, Some(old), None),
            _ => (path, Some(old), Some(new)),
        }
    };
    Set { files: (0..many).map(file).collect() }.furnish()
}

/// Many files, so that somebody can look while they are changed.
pub(crate) fn wide(site: &Site, name: &str) -> Set {
    let deep = site.root.join(name).join(vec!["d"; DEEP].join("/"));
    let file = |number: usize| {
        let path = deep.join(format!("{number}/file.txt"));
        (path, Some(format!("before {name} {number}\n")), Some(format!("after {name} {number}\n")))
    };
    Set { files: (0..WIDE).map(file).collect() }.furnish()
}

/// One file that counts: each task is good for one step only, because its preview pins where it begins.
pub(crate) fn counter(site: &Site, from: u64) -> Set {
    let path = site.root.join("counter.txt");
    let before = (from > 0).then(|| format!("{from}\n"));
    Set { files: vec![(path, before, Some(format!("{}\n", from + 1)))] }
}

fn resource(name: &str) -> Value {
    json!({ "type": "folder", "id": name, "mode": "exclusive" })
}

impl Job {
    /// The lock of a resource.
    pub(crate) fn lock_of(resource: &str) -> String {
        format!("resource:folder:{resource}")
    }

    pub(crate) async fn files(site: &Site, set: Set, on: &str) -> Self {
        let task = json!({
            "executor": "files", "parameters": set.parameters(site), "resources": [resource(on)],
        });
        Self::of(site, task, Kind::Files(set), &[on]).await
    }

    pub(crate) async fn command(site: &Site, on: &str) -> Self {
        // Its line is how it is found, so it needs a name before it has an id.
        let line = uuid::Uuid::new_v4().to_string();
        let parameters = json!({ "template": "ledger", "arguments": { "line": line } });
        let task = json!({ "executor": "command", "parameters": parameters, "resources": [resource(on)] });
        let mut job = Self::of(site, task, Kind::Command, &[on]).await;
        job.locks.push(line);
        job
    }

    pub(crate) async fn noop(site: &Site) -> Self {
        Self::of(site, json!({}), Kind::Noop, &[]).await
    }

    pub(crate) async fn agent(site: &Site, dies: bool) -> Self {
        let task = json!({ "executor": "agent", "parameters": { "agent": BOT } });
        Self::of(site, task, Kind::Agent { dies }, &[]).await
    }

    async fn of(site: &Site, task: Value, kind: Kind, on: &[&str]) -> Self {
        let id = site.submit(task).await;
        let mut locks = vec![format!("task:{id}")];
        locks.extend(on.iter().map(|on| Self::lock_of(on)));
        Self { id, kind, locks }
    }

    /// The line that a command writes.
    pub(crate) fn line(&self) -> &str {
        self.locks.last().map_or("", String::as_str)
    }

    /// How often it wrote its line.
    pub(crate) fn written(&self, site: &Site) -> usize {
        let ledger = fs::read_to_string(&site.ledger).expect("readable");
        ledger.lines().filter(|line| *line == self.line()).count()
    }

    /// The set of files that it changes.
    pub(crate) fn set(&self) -> Option<&Set> {
        if let Kind::Files(set) = &self.kind { Some(set) } else { None }
    }

    /// Whether it is over for good.
    pub(crate) fn is_over(task: &Value) -> bool {
        matches!(text(task, "state").as_str(), "COMPLETED" | "FAILED")
    }

    /// What is told about it is true.
    pub(crate) fn check(&self, site: &Site, task: &Value) -> Result<(), String> {
        let (done, execution) = (text(task, "state") == "COMPLETED", task.get("execution"));
        let code = execution.map(|execution| text(execution, "code")).unwrap_or_default();
        match &self.kind {
            Kind::Files(set) => match (set.look()?, done) {
                (Found::New, true) | (Found::Old, false) => Ok(()),
                (found, _) => Err(format!("the set is {found:?}: {task}")),
            },
            Kind::Command => match (self.written(site), done) {
                (1, true) | (0 | 1, false) if done || code == "OUTCOME_UNKNOWN" => Ok(()),
                (0, false) => Ok(()),
                (many, _) => Err(format!("it ran {many} times: {task}")),
            },
            Kind::Noop => Ok(()),
            Kind::Agent { dies } => match (dies, done, code.as_str()) {
                (false, true, _) | (_, false, "OUTCOME_UNKNOWN") => Ok(()),
                // Redis has forgotten its locks before it said that it was done.
                (false, false, "LOCKS_LOST") => Ok(()),
                _ => Err(format!("its agent {}: {task}", if *dies { "died" } else { "ended it" })),
            },
        }
    }
}
