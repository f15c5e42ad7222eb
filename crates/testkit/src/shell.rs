//! Commands of `ade` as people type them at a server: with its address and a token of their own, without colours, and without
//! anything of whoever runs the tests. A command that is not waited for ends with what began it.

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

/// Far beyond what anything takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Somebody at a command line.
#[derive(Debug, Clone)]
pub struct Shell {
    binary: String,
    server: String,
    token: String,
}

/// What a command said, and how it ended.
#[derive(Debug, Clone)]
pub struct Said {
    /// Its exit code; nothing if it was killed.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    err: watch::Receiver<String>,
    listening: JoinHandle<()>,
}

impl Shell {
    /// Somebody who calls this server.
    #[must_use]
    pub fn of(binary: &str, ade: &Ade, who: &Person) -> Self {
        Self { binary: binary.to_owned(), server: ade.url(), token: who.token.clone() }
    }

    /// Begins a command.
    #[must_use]
    pub fn begin(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(&self.binary);
        command.args(arguments).env_clear().env("NO_COLOR", "1").current_dir("/");
        command.env("ADE_SERVER", &self.server).env("ADE_TOKEN", &self.token);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let (told, err) = watch::channel(String::new());
        let listening = tokio::spawn(async move {
            while let Some(line) = lines.next_line().await.expect("text") {
                told.send_modify(|all| *all += &(line + "\n"));
            }
        });
        Running { child, err, listening }
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        self.begin(arguments).ends().await
    }

    /// What a command prints that ends well.
    pub async fn says(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments).await;
        assert_eq!(said.code, Some(0), "ade {}: {}", arguments.join(" "), said.err);
        said.out
    }

    /// The same as JSON.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Running {
    /// Waits until it says this on standard error.
    pub async fn tells(&mut self, text: &str) {
        let told = timeout(LONG, self.err.wait_for(|all| all.contains(text))).await;
        let told = told.map(|told| told.is_ok());
        assert_eq!(told, Ok(true), "{text} is missing in {}", *self.err.borrow());
    }

    /// Waits for its end.
    pub async fn ends(self) -> Said {
        let output = self.child.wait_with_output().await.expect("it ends");
        self.listening.await.expect("no panic");
        let out = String::from_utf8(output.stdout).expect("text");
        Said { code: output.status.code(), out, err: self.err.borrow().clone() }
    }
}
