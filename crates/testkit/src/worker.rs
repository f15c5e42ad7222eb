//! A worker of ADE's own beside servers, as its users start it: `ade worker` with a configuration file, in a folder that stays
//! the same when it is killed and started again. It is killed when its owner is gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::StartError;
use crate::guard::{Guarded, Spec};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const READY: &str = "working as ";

/// A running worker. It is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    process: Guarded,
}

impl Worker {
    /// Starts one with a configuration file of this text, on the Redis and the PostgreSQL of servers, and waits until it works.
    pub fn start(binary: &str, config: &str, redis: &str, postgres: &str) -> Result<Self, StartError> {
        let argv = [binary, "worker", "--data", "data", "--redis", redis, "--postgres", postgres];
        let process = Guarded::start(Spec {
            name: "ade worker".to_owned(),
            // Found there, because the worker runs in its folder.
            files: vec![("ade.toml", config.to_owned())],
            preparation: String::new(),
            argv: argv.map(str::to_owned).into(),
            stop_signal: "KILL",
            owner: None,
        })?;
        let worker = Self { process };
        worker.wait_ready(0)?;
        Ok(worker)
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

    /// The folder of what it keeps.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&self) -> Result<(), StartError> {
        self.process.kill()
    }

    /// Asks it to stop with SIGTERM and waits for its end.
    pub fn stop(&self) -> Result<(), StartError> {
        self.process.signal(Signal::TERM)?;
        self.process.wait_for_end()
    }

    /// Starts it again after its end, in the same folder, and waits until it works. It has a new name.
    pub fn start_again(&self) -> Result<(), StartError> {
        let mark = self.process.mark();
        self.process.begin()?;
        self.wait_ready(mark)
    }

    fn wait_ready(&self, mark: usize) -> Result<(), StartError> {
        self.process.wait_for_line_after(mark, READY, START_TIMEOUT)
    }
}
