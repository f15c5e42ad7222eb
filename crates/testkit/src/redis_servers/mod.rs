//! Redis of one's own: standalone, behind Sentinel, or as a cluster.

mod cluster;
mod sentinel;

use std::time::Duration;

pub use cluster::RedisCluster;
pub use sentinel::RedisSentinel;

use crate::error::StartError;
use crate::guard::{Guarded, Spec};
use crate::ports::Port;
use crate::process::program;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Redis server: standalone, or one node of something larger.
#[derive(Debug)]
pub struct Redis {
    process: Guarded,
    port: Port,
    _bus_port: Option<Port>,
}

impl Redis {
    /// Starts an empty standalone server without persistence and waits until it answers.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&[])
    }

    /// The same with more configuration, as on the command line: `["--appendonly", "yes"]`.
    pub fn start_with(arguments: &[&str]) -> Result<Self, StartError> {
        Self::launch("Redis", arguments, None)
    }

    fn launch(name: &str, arguments: &[&str], bus_port: Option<Port>) -> Result<Self, StartError> {
        let port = Port::claim()?;
        let number = port.number().to_string();
        let fixed =
            ["--bind", "127.0.0.1", "--port", &number, "--save", "", "--daemonize", "no", "--dir", "."];
        // A primary would otherwise wait 5 s for more replicas before it serves the first.
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let config = in_a_file(fixed.iter().chain(&at_once).chain(arguments));
        let process = Guarded::start(Spec {
            name: format!("{name} on port {number}"),
            // In a file, which sentinels rewrite: who became a replica or a primary comes back as one.
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

    fn wait_ready(&self, mark: usize) -> Result<(), StartError> {
        self.process.wait_for_line_after(mark, "Ready to accept connections", START_TIMEOUT)
    }

    /// Port on the loopback interface.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://…`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// A plain connection to this very server.
    pub fn connect(&self) -> Result<redis::Connection, StartError> {
        let client = redis::Client::open(self.url()).map_err(StartError::redis("read a URL"))?;
        client.get_connection().map_err(StartError::redis(format!("connect to {}", self.url())))
    }

    /// Its process, for signals.
    #[must_use]
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// Kills it (SIGKILL) and starts it again on the same port and folder: without persistence it comes back empty.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        let mark = self.process.mark();
        self.process.kill_and_restart()?;
        self.wait_ready(mark)
    }

    /// Kills it (SIGKILL), until [`Self::start_again`] or for good.
    pub fn kill(&self) -> Result<(), StartError> {
        self.process.kill()
    }

    /// Starts it again after a kill, on the same port and folder, and waits until it answers.
    pub fn start_again(&self) -> Result<(), StartError> {
        let mark = self.process.mark();
        self.process.begin()?;
        self.wait_ready(mark)
    }

    /// Says one command to this very server.
    pub fn tell<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, StartError> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        let doing = || format!("{} on port {}", words.join(" "), self.port());
        command.query(&mut self.connect()?).map_err(StartError::redis(doing()))
    }
}

/// Configuration as on the command line, as a file has it.
fn in_a_file<'a>(arguments: impl Iterator<Item = &'a &'a str>) -> String {
    let mut text = String::new();
    for argument in arguments {
        match argument.strip_prefix("--") {
            Some(name) => text.push_str(&format!("\n{name}")),
            None => text.push_str(&format!(" \"{argument}\"")),
        }
    }
    text + "\n"
}
