//! Starts `ade worker` as users do, with a configuration file, in a folder that stays the same when the worker is killed and
//! started again. The worker never outlives its test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::server::SECRET;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const READY: &str = "working as ";

/// A running `ade worker`. Dropping it kills the worker.
#[derive(Debug)]
pub struct WorkerProcess {
    process: GuardedProcess,
}

impl WorkerProcess {
    /// Starts a worker on the Redis and PostgreSQL of servers and waits until it is ready. `config` is the content of its
    /// configuration file.
    pub fn start(binary: &str, config: &str, redis: &str, postgres: &str) -> Result<Self, StartError> {
        let secret = format!("ADE_SECRET={SECRET}");
        let argv =
            ["env", &secret, binary, "worker", "--data", "data", "--redis", redis, "--postgres", postgres];
        let process = GuardedProcess::start(ProcessSpec {
            name: "ade worker".to_owned(),
            // The worker finds it in its working directory.
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

    /// The name of the running worker, from its log.
    #[must_use]
    pub fn name(&self) -> String {
        let lines = self.process.log_lines_with(READY);
        let name = lines.last().and_then(|line| line.split(READY).nth(1));
        name.unwrap_or_default().trim().to_owned()
    }

    /// The process, for signals and its log.
    #[must_use]
    pub fn process(&self) -> &GuardedProcess {
        &self.process
    }

    /// The working directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Kills the worker with SIGKILL and waits for its exit.
    pub fn kill(&self) -> Result<(), StartError> {
        self.process.kill()
    }

    /// Stops the worker with SIGTERM and waits for its exit.
    pub fn stop(&self) -> Result<(), StartError> {
        self.process.signal(Signal::TERM)?;
        self.process.wait_for_exit()
    }

    /// Starts the worker again in the same folder and waits until it is ready. It gets a new name.
    pub fn start_again(&self) -> Result<(), StartError> {
        let position = self.process.log_position();
        self.process.spawn()?;
        self.wait_ready(position)
    }

    fn wait_ready(&self, position: usize) -> Result<(), StartError> {
        self.process.wait_for_log_line_after(position, READY, START_TIMEOUT)
    }
}
