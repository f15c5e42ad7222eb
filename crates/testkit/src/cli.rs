//! Runs `ade` commands against a server as a user, with a clean environment and without colours. A command that is not
//! awaited is killed when its handle is dropped.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::AdeServer;
use crate::deployment::TestUser;

/// Far longer than any command takes, also on a busy machine.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Cli {
    binary: String,
    server: String,
    token: String,
}

#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// None if the command was killed.
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    stderr: watch::Receiver<String>,
    reader: JoinHandle<()>,
    /// What is left of standard output, once lines of it were read.
    stdout: Option<Lines<BufReader<ChildStdout>>>,
}

impl Cli {
    #[must_use]
    pub fn new(binary: &str, ade: &AdeServer, user: &TestUser) -> Self {
        Self { binary: binary.to_owned(), server: ade.url(), token: user.token.clone() }
    }

    #[must_use]
    pub fn spawn(&self, arguments: &[&str]) -> RunningCommand {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env_clear().env("NO_COLOR", "1").current_dir("/");
        command.env("ADE_SERVER", &self.server).env("ADE_TOKEN", &self.token);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (sender, err) = watch::channel(String::new());
        let reader = tokio::spawn(async move {
            while let Some(line) = lines.next_line().await.expect("text") {
                sender.send_modify(|text| *text += &(line + "\n"));
            }
        });
        RunningCommand { child, stderr: err, reader, stdout: None }
    }

    pub async fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.spawn(arguments).wait().await
    }

    /// Runs a command that must succeed; returns its standard output.
    pub async fn run_ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.exit_code, Some(0), "ade {}: {}", arguments.join(" "), output.stderr);
        output.stdout
    }

    /// Runs a command that must succeed with `--json`.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run_ok(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).expect("JSON")
    }
}

impl RunningCommand {
    /// Waits until standard error contains the text.
    pub async fn wait_for_stderr(&mut self, text: &str) {
        let found = timeout(OUTPUT_TIMEOUT, self.stderr.wait_for(|all| all.contains(text))).await;
        let found = found.map(|found| found.is_ok());
        assert_eq!(found, Ok(true), "{text:?} not found in {}", *self.stderr.borrow());
    }

    /// Waits for the next line of standard output, which the final output then lacks.
    pub async fn next_stdout_line(&mut self) -> String {
        let child = &mut self.child;
        let lines =
            self.stdout.get_or_insert_with(|| BufReader::new(child.stdout.take().expect("piped")).lines());
        let line = timeout(OUTPUT_TIMEOUT, lines.next_line()).await.expect("a line in time");
        line.expect("text").expect("another line")
    }

    pub async fn wait(self) -> CommandOutput {
        let output = self.child.wait_with_output().await.expect("an exit status");
        self.reader.await.expect("no panic");
        let out = String::from_utf8(output.stdout).expect("text");
        CommandOutput { exit_code: output.status.code(), stdout: out, stderr: self.stderr.borrow().clone() }
    }
}
