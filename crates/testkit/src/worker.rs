//! A worker of ADE's own, as its users start it: `ade worker` beside servers on the same Redis and PostgreSQL. It is killed when
//! it is dropped, and started again under another name: nobody else is ever called as it was.

use std::path::Path;
use std::time::Duration;

use crate::error::StartError;
use crate::guard::{Guarded, Spec};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const READY: &str = "working as ";

/// A running worker.
#[derive(Debug)]
pub struct AdeWorker {
    process: Guarded,
}

impl AdeWorker {
    /// Starts one with a configuration file of this text, and waits until it works.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(binary: &str, config: &str, redis: &str, postgres: &str) -> Result<Self, StartError> {
        let arguments = ["worker", "--data", "data", "--redis", redis, "--postgres", postgres];
        let argv = std::iter::once(binary).chain(arguments).map(str::to_owned).collect();
        let process = Guarded::start(Spec {
            name: "ade worker".to_owned(),
            // Found there, because the worker runs in its folder.
            files: vec![("ade.toml", config.to_owned())],
            preparation: String::new(),
            argv,
            stop_signal: "KILL",
            owner: None,
        })?;
        process.wait_for_lines(READY, 1, START_TIMEOUT)?;
        Ok(Self { process })
    }

    /// What it is called now.
    #[must_use]
    pub fn name(&self) -> String {
        let said = self.process.lines_with(READY);
        let name = said.last().and_then(|line| line.split(READY).nth(1));
        name.unwrap_or_default().trim().to_owned()
    }

    /// The process under guard: its signals and its log.
    #[must_use]
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// The folder in which it runs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Starts it again after its end, and waits until it works.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_again(&self) -> Result<(), StartError> {
        let mark = self.process.mark();
        self.process.begin()?;
        self.process.wait_for_line_after(mark, READY, START_TIMEOUT)
    }
}
