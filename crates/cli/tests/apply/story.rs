//! From a proposal to its effect through the commands of the binary: two files are changed once somebody agreed, all of it is
//! told; and what is not verified is changed back byte for byte. Embedded, and with a worker of its own on Redis and PostgreSQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_domain::people::{AUTHOR, REVIEWER};
use ade_testkit::folder::{everything, write};
use ade_testkit::people::text;
use ade_testkit::wait::until;
use ade_testkit::{House, Office, Person, Shell};
use rustix::fs::{CWD, FileType, mknodat};
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const DONE: [&str; 9] = [
    "task.create",
    "task.submit",
    "task.assign",
    "approval.request",
    "approval.approve",
    "task.approve",
    "task.begin_apply",
    "task.started",
    "task.complete",
];

/// A root with a file that is in use, and what a worker may do there.
struct Site {
    around: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { around: tempfile::tempdir().expect("a folder") };
        write(&site.at("web.conf"), "user www\nlisten 80\n", 0o640);
        write(&site.at("motd"), "welcome\n", 0o644);
        site
    }

    fn root(&self) -> PathBuf {
        self.around.path().join("root")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn config(&self) -> String {
        format!(
            r#"
[executors.files]
roots = ["{}"]

[executors.command.templates.check]
argv = ["sh", "-c", 'echo checking; if grep -q broken "$1"; then echo "a line is broken" >&2; exit 4; fi', "sh", "{{file}}"]
"#,
            self.root().display()
        )
    }

    /// What somebody proposes, in a file.
    fn proposal(&self, name: &str, files: &str) -> String {
        let (root, path) = (self.root(), self.around.path().join(name));
        let (root, file) = (root.display(), self.at("web.conf"));
        let file = file.display();
        let yaml = format!(
            "type: configuration
description: Listen somewhere else
executor: files
resources: [{{ type: service, id: web }}]
parameters:
  root: {root}
  files:
{files}
  verify: {{ template: check, arguments: {{ file: {file} }} }}
"
        );
        std::fs::write(&path, yaml).expect("written");
        path.display().to_string()
    }
}

struct Cast {
    office: Office,
    author: Person,
    pat: Shell,
    rex: Shell,
}

impl Cast {
    async fn of(house: &House) -> Self {
        let office = house.office().await;
        let author = office.person("pat", &[AUTHOR]).await;
        let reviewer = office.person("rex", &[REVIEWER]).await;
        let shell = |who: &Person| Shell::of(ADE, house.ade(), who);
        Self { pat: shell(&author), rex: shell(&reviewer), author, office }
    }

    /// What waits for the reviewer: the request, and its task.
    async fn asked(&self) -> (String, String) {
        let look = || async {
            let waiting = self.rex.json(&["approval", "ls"]).await;
            match waiting.as_array().map(Vec::as_slice) {
                Some([one]) => Ok((text(one, "approval_id"), text(one, "task_id"))),
                other => Err(format!("{other:?}")),
            }
        };
        until("the reviewer is asked", LONG, look).await.expect("asked")
    }

    /// What the audit log says was done about a task, in order; entries get their numbers a moment later.
    async fn told(&self, task: &str, last: &str) -> Vec<String> {
        let look = || async {
            let mut entries = self.pat.json(&["task", "audit", task]).await;
            let all = entries.as_array_mut().expect("a list");
            all.sort_by_key(|entry| entry["number"].as_u64());
            let actions: Vec<String> = all.iter().map(|entry| text(entry, "action")).collect();
            if actions.iter().any(|action| action == last) { Ok(actions) } else { Err(actions.join(", ")) }
        };
        let told = until("all of it has its number", LONG, look).await.expect("it has");
        // Where a worker finds out what would change, it says when it has.
        told.into_iter().filter(|action| action != "task.previewed").collect()
    }
}

async fn story(cast: &Cast, site: &Site) {
    a_change_is_agreed_on_and_made(cast, site).await;
    a_change_that_is_not_verified_is_undone(cast, site).await;
}

async fn a_change_is_agreed_on_and_made(cast: &Cast, site: &Site) {
    let before = everything(&site.root());
    let proposal = site.proposal(
        "first.yaml",
        "  - { path: web.conf, content: \"user www\\nlisten 8080\\n\" }\n  - { path: new/hello, content: \"hello\\n\", mode: \"0600\" }",
    );
    let waiting = cast.pat.begin(&["task", "propose", "-f", &proposal, "--wait"]);
    let (request, task) = cast.asked().await;
    let page = cast.rex.says(&["task", "show", &task]).await;
    for line in ["-listen 80", "+listen 8080", "+hello", "verified by the template check"] {
        assert!(page.contains(line), "{line} is missing in {page}");
    }
    assert_eq!(everything(&site.root()), before, "what is only proposed changes nothing");
    cast.rex.says(&["approval", "approve", &request, "--reason", "looks right"]).await;
    let ended = waiting.ends().await;
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    assert!(ended.out.contains(&format!("{task} is COMPLETED")), "{}", ended.out);
    let mut after = before;
    after.insert("web.conf".to_owned(), (0o100_640, Some(b"user www\nlisten 8080\n".to_vec())));
    after.insert("new".to_owned(), (0o40_755, None));
    after.insert("new/hello".to_owned(), (0o100_600, Some(b"hello\n".to_vec())));
    assert_eq!(everything(&site.root()), after, "exactly what was approved");
    assert!(cast.pat.says(&["task", "logs", &task]).await.contains("checking"));
    assert_eq!(cast.told(&task, "task.complete").await, DONE);
    let shown = cast.pat.json(&["task", "show", &task]).await["task"].clone();
    let execution = &shown["execution"];
    assert_eq!((&execution["result"], &execution["rolled_back"]), (&json!("success"), &Value::Null));
    assert_eq!(execution["output"], "checking\n");
}

async fn a_change_that_is_not_verified_is_undone(cast: &Cast, site: &Site) {
    let before = everything(&site.root());
    let proposal = site.proposal(
        "second.yaml",
        "  - { path: web.conf, content: \"broken\\n\", mode: \"0777\" }\n  - { path: motd, delete: true }\n  - { path: deep/er/new, content: x }",
    );
    let waiting = cast.pat.begin(&["task", "propose", "-f", &proposal, "--wait"]);
    let (request, task) = cast.asked().await;
    cast.rex.says(&["approval", "approve", &request]).await;
    let ended = waiting.ends().await;
    assert_eq!(ended.code, Some(4), "{} {}", ended.out, ended.err);
    for words in ["is FAILED", "exit status: 4", "a line is broken", "everything was rolled back"] {
        assert!(ended.err.contains(words), "{words} is missing in {}", ended.err);
    }
    // Content, permissions, names: also nothing of the worker's own is left.
    assert_eq!(everything(&site.root()), before);
    let shown = cast.pat.json(&["task", "show", &task]).await["task"].clone();
    assert_eq!((&shown["state"], &shown["execution"]["rolled_back"]), (&json!("FAILED"), &json!(true)));
    assert_eq!(shown["execution"]["retry_count"], 0);
    let page = cast.pat.says(&["task", "show", &task]).await;
    assert!(page.contains("all changes are undone"), "{page}");
    let told = cast.told(&task, "task.fail").await;
    assert_eq!(told[..8], DONE[..8]);
    assert_eq!(told[8..], ["task.fail"]);
    // What holds for one attempt holds for the next.
    let lock = cast.office.admin.get("/locks/resource:service:web").await.expect(200);
    assert_eq!(lock["holders"], json!([]), "its locks are free");
}

#[tokio::test]
async fn embedded() {
    let site = Site::new();
    let house = House::working(ADE, &site.config());
    story(&Cast::of(&house).await, &site).await;
}

/// The server knows nothing about the root; a worker does, and is asked what would change.
#[tokio::test]
async fn with_a_worker_of_its_own() {
    let site = Site::new();
    let house = House::distributed(ADE, 1);
    let cast = Cast::of(&house).await;
    let parameters = json!({ "root": site.root(), "files": [{ "path": "motd", "content": "hi\n" }] });
    let draft = cast.author.draft(json!({ "executor": "files", "parameters": parameters })).await;
    assert_eq!(cast.office.task(&draft).await["preview"]["status"], "pending");
    let worker = house.worker(ADE, &site.config());
    let ready = |task: &Value| task["preview"]["status"] == "ready";
    let task = cast.office.wait_for("a worker looks", &draft, ready).await;
    assert_eq!(task["preview"]["changes"][0]["what"], "motd");
    assert!(text(&task["preview"]["changes"][0], "diff").contains("+hi"));
    story(&cast, &site).await;
    worker.stop().expect("ends by itself when it is asked to");
    assert_eq!(leftovers(&house.ade().blobs()), 0, "what was unfinished is gone");
}

/// Killed when all files are in place and nothing has decided yet: whoever comes next changes everything back.
#[tokio::test]
async fn with_a_worker_that_is_killed_while_it_verifies() {
    let site = Site::new();
    let before = everything(&site.root());
    let pipe = site.around.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).expect("made");
    let hang = "[executors.command.templates.hang]\nargv = [\"sh\", \"-c\", 'echo running; exec cat -- \"$1\"', \"sh\", \"{pipe}\"]\n";
    let config = format!("[worker]\nlease_seconds = 10\n{}\n{hang}", site.config());
    let house = House::distributed(ADE, 1);
    let cast = Cast::of(&house).await;
    let worker = house.worker(ADE, &config);
    let files =
        json!([{ "path": "web.conf", "content": "listen 8080\n" }, { "path": "motd", "delete": true }]);
    let verify = json!({ "template": "hang", "arguments": { "pipe": pipe } });
    let parameters = json!({ "root": site.root(), "files": files, "verify": verify });
    let id = cast.author.submitted(json!({ "executor": "files", "parameters": parameters })).await;
    let (request, _) = cast.asked().await;
    cast.rex.says(&["approval", "approve", &request]).await;
    let look = || async {
        let said = cast.pat.says(&["task", "logs", &id]).await;
        if said.contains("running") { Ok(()) } else { Err(said) }
    };
    until("it is verified", LONG, look).await.expect("it is");
    worker.kill().expect("killed");
    assert!(!site.at("motd").exists(), "everything was in place");
    worker.start_again().expect("starts");
    let failed = cast.office.wait_for("it is settled", &id, |task| task["state"] == "FAILED").await;
    let execution = &failed["execution"];
    assert_eq!((&execution["code"], &execution["rolled_back"]), (&json!("WORKER_LOST"), &json!(true)));
    assert_eq!(everything(&site.root()), before);
}

/// Output that was never finished.
fn leftovers(blobs: &Path) -> usize {
    everything(blobs).keys().filter(|name| name.contains("output-")).count()
}
