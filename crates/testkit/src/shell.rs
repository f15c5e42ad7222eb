//! Commands of `ade` as people type them at a server: with its address and a token of their own, without colours, and without
//! anything of whoever runs the tests. A command that is not waited for ends with what began it.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::process::Stdio;

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::Ade;
use crate::people::Person;

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
pub struct Running(Child);

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
        Running(command.spawn().expect("the binary runs"))
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
    /// Waits for its end.
    pub async fn ends(self) -> Said {
        let output = self.0.wait_with_output().await.expect("it ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
