//! A server of ADE's own, as its users start it: from the binary, with a configuration file and variables, on a port and
//! a data folder that stay the same when it is killed and started again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_client::Client;
use rustix::process::Signal;

use crate::error::StartError;
use crate::guard::{Guarded, Spec};
use crate::ports::Port;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The administrator's token of every server that is started here.
pub const TOKEN: &str = "the-token-of-the-administrator";

/// How a server is to be started.
#[derive(Debug, Clone)]
pub struct Setup {
    binary: String,
    config: String,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    open_files: Option<u32>,
}

impl Setup {
    /// The binary `ade`: in tests of its own crate, `env!("CARGO_BIN_EXE_ade")`.
    #[must_use]
    pub fn new(binary: &str) -> Self {
        Self {
            binary: binary.to_owned(),
            config: String::new(),
            variables: Vec::new(),
            arguments: Vec::new(),
            open_files: None,
        }
    }

    /// The text of its configuration file.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.config);
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// One more argument of `ade serve`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// The soft limit of open files that it is started with; the hard one stays.
    #[must_use]
    pub fn open_files(mut self, soft: u32) -> Self {
        self.open_files = Some(soft);
        self
    }

    /// Starts it and waits until it listens.
    pub fn start(self) -> Result<Ade, StartError> {
        let port = Port::claim()?;
        let limited =
            |soft: u32| ["sh", "-c", &format!("ulimit -Sn {soft} && exec \"$@\""), "sh"].map(str::to_owned);
        let mut argv: Vec<String> = self.open_files.map(limited).into_iter().flatten().collect();
        argv.extend(["env".to_owned(), format!("ADE_ADMIN_TOKEN={TOKEN}")]);
        argv.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        let address = format!("127.0.0.1:{}", port.number());
        argv.extend([&self.binary, "serve", "--listen", &address, "--data", "data"].map(str::to_owned));
        argv.extend(self.arguments);
        let process = Guarded::start(Spec {
            name: format!("ade serve on port {}", port.number()),
            // Found there, because the server runs in its folder.
            files: vec![("ade.toml", self.config)],
            preparation: String::new(),
            argv,
            stop_signal: "KILL",
            owner: None,
        })?;
        let ade = Ade { process, port };
        ade.wait_ready(0)?;
        Ok(ade)
    }
}

impl Setup {
    /// Starts so many on one PostgreSQL: all of them with the blobs of the first.
    pub fn start_many(self, many: usize) -> Result<Vec<Ade>, StartError> {
        let mut servers: Vec<Ade> = Vec::new();
        for _ in 0..many {
            let setup = match servers.first() {
                Some(first) => self.clone().variable("ADE_SERVER_BLOBS", &first.blobs().to_string_lossy()),
                None => self.clone(),
            };
            servers.push(setup.start()?);
        }
        Ok(servers)
    }
}

/// A running server of ADE's own. It is killed when this is dropped.
#[derive(Debug)]
pub struct Ade {
    process: Guarded,
    port: Port,
}

impl Ade {
    /// Starts a server with the defaults.
    pub fn start(binary: &str) -> Result<Self, StartError> {
        Setup::new(binary).start()
    }

    /// Starts a server with a configuration file of this text.
    pub fn start_with(binary: &str, config: &str) -> Result<Self, StartError> {
        Setup::new(binary).config(config).start()
    }

    /// Its address, such as `http://127.0.0.1:20000`; the same after a restart.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// A client that acts as the administrator.
    pub fn client(&self) -> Result<Client, ade_client::Error> {
        Client::new(&self.url(), TOKEN)
    }

    /// The process under guard: its signals and its log.
    #[must_use]
    pub fn process(&self) -> &Guarded {
        &self.process
    }

    /// The folder with everything that must survive a restart.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// The folder of its blobs, unless another one was named.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.data().join("blobs")
    }

    /// The folder in which it runs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
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

    /// Starts it again after its end, on the same port and data folder, and waits until it listens.
    pub fn start_again(&self) -> Result<(), StartError> {
        let mark = self.process.mark();
        self.process.begin()?;
        self.wait_ready(mark)
    }

    /// Kills it with SIGKILL and starts it again.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        self.kill()?;
        self.start_again()
    }

    fn wait_ready(&self, mark: usize) -> Result<(), StartError> {
        self.process.wait_for_line_after(mark, "listening on http://", START_TIMEOUT)
    }
}
