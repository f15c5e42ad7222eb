//! Runs `ade` commands against a server as a user, with a clean environment and without colours. A command that is not
//! awaited is killed when its handle is dropped.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::Ade;
use crate::people::Person;

/// Far longer than any command takes, also on a busy machine.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Shell {
    binary: String,
    server: String,
    token: String,
}

#[derive(Debug, Clone)]
pub struct Said {
    /// None if the command was killed.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

#[derive(Debug)]
pub struct Running {
    child: Child,
    err: watch::Receiver<String>,
    reader: JoinHandle<()>,
}

impl Shell {
    #[must_use]
    pub fn of(binary: &str, ade: &Ade, user: &Person) -> Self {
        Self { binary: binary.to_owned(), server: ade.url(), token: user.token.clone() }
    }

    #[must_use]
    pub fn begin(&self, arguments: &[&str]) -> Running {
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
        Running { child, err, reader }
    }

    pub async fn run(&self, arguments: &[&str]) -> Said {
        self.begin(arguments).ends().await
    }

    /// Runs a command that must succeed; returns its standard output.
    pub async fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.code, Some(0), "ade {}: {}", arguments.join(" "), output.err);
        output.out
    }

    /// Runs a command that must succeed with `--json`.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Running {
    /// Waits until standard error contains the text.
    pub async fn tells(&mut self, text: &str) {
        let found = timeout(OUTPUT_TIMEOUT, self.err.wait_for(|all| all.contains(text))).await;
        let found = found.map(|found| found.is_ok());
        assert_eq!(found, Ok(true), "{text:?} not found in {}", *self.err.borrow());
    }

    pub async fn ends(self) -> Said {
        let output = self.child.wait_with_output().await.expect("an exit status");
        self.reader.await.expect("no panic");
        let out = String::from_utf8(output.stdout).expect("text");
        Said { code: output.status.code(), out, err: self.err.borrow().clone() }
    }
}
