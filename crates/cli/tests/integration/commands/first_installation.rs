//! A fresh installation by the README, with the command line only: one administrator invites an author and a reviewer, a change is
//! proposed, approved and applied; a second administrator makes overrides possible. Then the operator's own commands.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ade_client::wire::UserPatch;
use ade_testkit::AdeServer;
use ade_testkit::wait::until;
use serde_json::{Value, json};

const ADE: &str = env!("CARGO_BIN_EXE_ade");
const TIMEOUT: Duration = Duration::from_secs(60);
const CONFIG: &str = "[security]\nbootstrap_decides = false\n";

/// A person at a machine of their own.
struct Person {
    home: tempfile::TempDir,
    url: String,
    password: String,
}

impl Person {
    fn new(ade: &AdeServer, password: &str) -> Self {
        Self { home: tempfile::tempdir().expect("a folder"), url: ade.url(), password: password.to_owned() }
    }

    fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(ADE);
        command.args(arguments).env_clear().env("NO_COLOR", "1").env("ADE_SERVER", &self.url);
        command.env("XDG_CONFIG_HOME", self.home.path().join("config")).current_dir(self.home.path());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("runs");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("writable");
        child.wait_with_output().expect("ends")
    }

    /// Runs a command that must succeed, with the password on standard input; returns standard output.
    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments, &format!("{}\n", self.password));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ade {}: {stderr}", arguments.join(" "));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    /// Runs a command that must fail; returns standard error.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments, &format!("{}\n", self.password));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "ade {}: {stderr}", arguments.join(" "));
        stderr
    }

    fn stored_credentials(&self) -> String {
        std::fs::read_to_string(self.home.path().join("config/ade/credentials.toml")).expect("signed in")
    }
}

/// Invites somebody, who joins and signs in.
fn join(ade: &AdeServer, admin: &Person, user: &str, role: &str) -> Person {
    let code = admin.ok(&["user", "invite", user, "--role", role]);
    let person = Person::new(ade, &format!("the password of {user}"));
    person.ok(&["join", &code, "--password-stdin"]);
    person.ok(&["login", user, "--password-stdin"]);
    let again = person.fails(&["join", &code, "--password-stdin"], 1);
    assert!(again.contains("was used already"), "{again}");
    person
}

fn propose(ann: &Person, content: &str) -> String {
    let task = json!({
        "type": "configuration", "description": "Listen somewhere else", "executor": "files",
        "parameters": { "root": "site", "files": [{ "path": "app.conf", "content": content }] },
    });
    std::fs::write(ann.home.path().join("task.json"), task.to_string()).expect("written");
    ann.json(&["task", "propose", "-f", "task.json"])["task_id"].as_str().expect("an id").to_owned()
}

async fn wait_until_completed(person: &Person, task: &str) {
    let observe = || async {
        let shown = person.json(&["task", "show", task]);
        if shown["task"]["state"] == "COMPLETED" { Ok(()) } else { Err(shown["task"]["state"].to_string()) }
    };
    until("the task is applied", TIMEOUT, observe).await.expect("in time");
}

#[tokio::test]
async fn one_administrator_invites_the_others_and_nobody_approves_alone() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::write(root.path().join("app.conf"), "listen 80\n").expect("written");
    let config = format!("{CONFIG}\n[executors.files.roots.site]\npath = {:?}\n", root.path());
    let ade = AdeServer::start_with(ADE, &config).expect("starts");
    let line = ade.process().log_lines_with("the user admin was created with the password").remove(0);
    let password = line.split("with the password ").nth(1).and_then(|rest| rest.split(',').next());
    let admin = Person::new(&ade, password.expect("printed"));
    admin.ok(&["login", "admin", "--admin", "--password-stdin"]);
    let ann = join(&ade, &admin, "ann", "author");
    let rob = join(&ade, &admin, "rob", "reviewer");

    let task = propose(&ann, "listen 8080\n");
    let requests = rob.json(&["approval", "ls"]);
    let request = requests[0]["approval_id"].as_str().expect("a request").to_owned();
    // What is stored on disk does not decide: that needs the password.
    assert!(!rob.stored_credentials().contains("decide"));
    let refused = rob.run(&["approval", "approve", &request, "--password-stdin"], "wrong password\n");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("password is wrong"), "{refused:?}");
    rob.ok(&["approval", "approve", &request, "--password-stdin"]);
    wait_until_completed(&ann, &task).await;
    assert_eq!(std::fs::read_to_string(root.path().join("app.conf")).expect("readable"), "listen 8080\n");

    // A second administrator, and an override.
    let eve = join(&ade, &admin, "eve", "admin");
    let task = propose(&ann, "listen 9090\n");
    admin.ok(&["task", "override", &task, "--reason", "fire", "--ticket", "INC-1", "--password-stdin"]);
    assert!(admin.fails(&["task", "confirm", &task, "--password-stdin"], 1).contains("two independent"));
    eve.ok(&["task", "confirm", &task, "--password-stdin"]);
    wait_until_completed(&ann, &task).await;
    assert_eq!(std::fs::read_to_string(root.path().join("app.conf")).expect("readable"), "listen 9090\n");

    // From now on new reviewers need a confirmation before they and their inviter count as two.
    let pia = join(&ade, &admin, "pia", "reviewer");
    assert!(admin.fails(&["user", "confirm", "pia", "--password-stdin"], 1).contains("not independent"));
    assert!(pia.ok(&["user", "show", "pia"]).contains("invited by admin"));
    assert!(eve.ok(&["user", "confirm", "pia", "--password-stdin"]).contains("independent"));

    // A temporary password: signing in asks for an own one.
    admin.ok(&["user", "passwd", "pia", "--password-stdin"]);
    let input = format!("{}\nan own password of pia\n", admin.password);
    let login = pia.run(&["login", "pia", "--password-stdin"], &input);
    assert!(login.status.success(), "{}", String::from_utf8_lossy(&login.stderr));
    let change =
        pia.run(&["user", "passwd", "--password-stdin"], "an own password of pia\nanother one of pia\n");
    assert!(change.status.success(), "{}", String::from_utf8_lossy(&change.stderr));

    // The operator: a new token, no token, and a way back when no administrator is left.
    let data = ade.data();
    let data = data.to_str().expect("text");
    let operator = |arguments: &[&str]| admin.run(&[&["admin"], arguments, &["--data", data]].concat(), "");
    let refused = operator(&["recover", "boss"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("stop it"), "the server runs");
    let leave = UserPatch { active: Some(false), ..UserPatch::default() };
    ade.client().expect("a client").update_user("eve", None, &leave).await.expect("deactivated");
    ade.stop().expect("stops");
    let refused = operator(&["recover", "boss"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("admin is an active administrator"),
        "{refused:?}"
    );
    ade.start_again().expect("starts");
    ade.client().expect("a client").update_user("admin", None, &leave).await.expect("deactivated");
    ade.stop().expect("stops");
    let recovered = operator(&["recover", "boss"]);
    assert!(recovered.status.success(), "{}", String::from_utf8_lossy(&recovered.stderr));
    let code = String::from_utf8(recovered.stdout).expect("text").trim().to_owned();
    ade.start_again().expect("starts");
    let boss = Person::new(&ade, "the password of boss");
    boss.ok(&["join", &code, "--password-stdin"]);
    boss.ok(&["login", "boss", "--admin", "--password-stdin"]);
    assert!(boss.ok(&["whoami"]).contains("admin"));
    assert!(operator(&["rotate-token"]).status.success() && operator(&["disable-token"]).status.success());
}
