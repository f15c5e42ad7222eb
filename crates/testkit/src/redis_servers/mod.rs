//! Redis servers for one test: standalone, with Sentinel, or as a cluster.

mod cluster;
mod sentinel;

use std::time::Duration;

pub use cluster::RedisCluster;
pub use sentinel::RedisSentinel;

use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::ports::Port;
use crate::process::program;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Redis server: standalone, or a node of a Sentinel setup or cluster.
#[derive(Debug)]
pub struct Redis {
    process: GuardedProcess,
    port: Port,
    _bus_port: Option<Port>,
}

impl Redis {
    /// Starts an empty standalone server without persistence and waits until it is ready.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&[])
    }

    /// Starts a server with more configuration, as on the command line: `["--appendonly", "yes"]`.
    pub fn start_with(arguments: &[&str]) -> Result<Self, StartError> {
        Self::launch("Redis", arguments, None)
    }

    fn launch(name: &str, arguments: &[&str], bus_port: Option<Port>) -> Result<Self, StartError> {
        let port = Port::claim()?;
        let number = port.number().to_string();
        let fixed =
            ["--bind", "127.0.0.1", "--port", &number, "--save", "", "--daemonize", "no", "--dir", "."];
        // A primary would otherwise wait 5 s for more replicas before it serves the first.
        let no_delay = ["--repl-diskless-sync-delay", "0"];
        let config = config_file(fixed.iter().chain(&no_delay).chain(arguments));
        let process = GuardedProcess::start(ProcessSpec {
            name: format!("{name} on port {number}"),
            // Sentinels rewrite the file: after a failover a node restarts in its new role.
            files: vec![("redis.conf", config)],
            preparation: String::new(),
            argv: vec![program("redis-server", "redis-server", &[])?, "redis.conf".to_owned()],
            stop_signal: "KILL",
            owner: None,
        })?;
        let redis = Self { process, port, _bus_port: bus_port };
        redis.wait_ready(0)?;
        Ok(redis)
    }

    fn wait_ready(&self, position: usize) -> Result<(), StartError> {
        self.process.wait_for_log_line_after(position, "Ready to accept connections", START_TIMEOUT)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Connects to this server only, without following a failover.
    pub fn connect(&self) -> Result<redis::Connection, StartError> {
        let client = redis::Client::open(self.url()).map_err(StartError::redis("parse a URL"))?;
        client.get_connection().map_err(StartError::redis(format!("connect to {}", self.url())))
    }

    #[must_use]
    pub fn process(&self) -> &GuardedProcess {
        &self.process
    }

    /// Kills the server with SIGKILL and starts it again on the same port and folder. Without persistence it is empty then.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        let position = self.process.log_position();
        self.process.kill_and_restart()?;
        self.wait_ready(position)
    }

    /// Kills the server with SIGKILL; [`Self::start_again`] starts it again.
    pub fn kill(&self) -> Result<(), StartError> {
        self.process.kill()
    }

    /// Starts the killed server on the same port and folder, and waits until it is ready.
    pub fn start_again(&self) -> Result<(), StartError> {
        let position = self.process.log_position();
        self.process.spawn()?;
        self.wait_ready(position)
    }

    /// Runs one command on this server.
    pub fn query<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> Result<T, StartError> {
        let mut command = redis::Cmd::new();
        command.arg(arguments);
        let doing = format!("run {} on port {}", arguments.join(" "), self.port());
        command.query(&mut self.connect()?).map_err(StartError::redis(doing))
    }
}

/// Command-line arguments in the syntax of a configuration file.
fn config_file<'a>(arguments: impl Iterator<Item = &'a &'a str>) -> String {
    let mut text = String::new();
    for argument in arguments {
        match argument.strip_prefix("--") {
            Some(name) => text.push_str(&format!("\n{name}")),
            None => text.push_str(&format!(" \"{argument}\"")),
        }
    }
    text + "\n"
}
