//! Starts `ade serve` as users do: from the binary, with a configuration file and environment variables. Port and data folder
//! stay the same when the server is killed and started again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ade_client::Client;
use ade_domain::Keys;
use rustix::process::Signal;

use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::ports::Port;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Bootstrap token of every server started here.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap-token-of-the-administrator";

/// Secret of all servers and workers on PostgreSQL that are started here.
pub const SECRET: &str = "secret-of-the-test-installation-0001";

/// The keys of [`SECRET`].
#[must_use]
#[expect(clippy::expect_used, reason = "helpers of tests fail like tests")]
pub fn test_keys() -> Keys {
    Keys::derive(SECRET, "").expect("long enough")
}

#[derive(Debug, Clone)]
pub struct ServerBuilder {
    binary: String,
    config: String,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    open_files: Option<u32>,
}

impl ServerBuilder {
    /// `binary` is the path of `ade`: in tests of its crate, `env!("CARGO_BIN_EXE_ade")`.
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

    /// Sets the content of the configuration file.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.config);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an argument of `ade serve`.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets the soft limit of open files; the hard limit stays.
    #[must_use]
    pub fn open_files(mut self, soft: u32) -> Self {
        self.open_files = Some(soft);
        self
    }

    /// Starts the server and waits until it listens.
    pub fn start(self) -> Result<AdeServer, StartError> {
        let port = Port::claim()?;
        let ulimit = self.open_files.map(|soft| format!("ulimit -Sn {soft} && ")).unwrap_or_default();
        // SIGXFSZ is ignored, so that a file size limit gives an I/O error as a full disk does.
        let script = format!("trap '' XFSZ; {ulimit}exec \"$@\"");
        let mut argv: Vec<String> = ["sh", "-c", &script, "sh"].map(str::to_owned).into();
        argv.extend(["env".to_owned(), format!("ADE_ADMIN_TOKEN={BOOTSTRAP_TOKEN}")]);
        let is_distributed = self.arguments.iter().any(|argument| argument == "--postgres");
        argv.extend(is_distributed.then(|| format!("ADE_SECRET={SECRET}")));
        argv.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        let address = format!("127.0.0.1:{}", port.number());
        argv.extend([&self.binary, "serve", "--listen", &address, "--data", "data"].map(str::to_owned));
        argv.extend(self.arguments);
        let process = GuardedProcess::start(ProcessSpec {
            name: format!("ade serve on port {}", port.number()),
            // The server finds it in its working directory.
            files: vec![("ade.toml", with_deciding_tokens(self.config))],
            preparation: String::new(),
            argv,
            stop_signal: "KILL",
            owner: None,
        })?;
        let ade = AdeServer { process, port };
        ade.wait_ready(0)?;
        Ok(ade)
    }

    /// Starts `count` servers that share the blob folder of the first.
    pub fn start_many(self, count: usize) -> Result<Vec<AdeServer>, StartError> {
        let mut servers: Vec<AdeServer> = Vec::new();
        for _ in 0..count {
            let setup = match servers.first() {
                Some(first) => self.clone().env("ADE_SERVER_BLOBS", &first.blobs().to_string_lossy()),
                None => self.clone(),
            };
            servers.push(setup.start()?);
        }
        Ok(servers)
    }
}

/// Tests decide as many users, without signing in as each. A configuration with its own section `security` stays as it is.
fn with_deciding_tokens(config: String) -> String {
    if config.contains("[security]") {
        config
    } else {
        format!("{config}\n[security]\nbootstrap_decides = true\n")
    }
}

/// A running `ade serve`. Dropping it kills the server.
#[derive(Debug)]
pub struct AdeServer {
    process: GuardedProcess,
    port: Port,
}

impl AdeServer {
    pub fn start(binary: &str) -> Result<Self, StartError> {
        ServerBuilder::new(binary).start()
    }

    /// `config` is the content of the configuration file.
    pub fn start_with(binary: &str, config: &str) -> Result<Self, StartError> {
        ServerBuilder::new(binary).config(config).start()
    }

    /// The base URL, such as `http://127.0.0.1:20000`; the same after a restart.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// A client with the bootstrap token.
    pub fn client(&self) -> Result<Client, ade_client::Error> {
        Client::new(&self.url(), BOOTSTRAP_TOKEN)
    }

    /// The process, for signals and its log.
    #[must_use]
    pub fn process(&self) -> &GuardedProcess {
        &self.process
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// The blob folder, unless the configuration names another.
    #[must_use]
    pub fn blobs(&self) -> PathBuf {
        self.data().join("blobs")
    }

    /// The working directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.process.folder()
    }

    /// Kills the server with SIGKILL and waits for its exit.
    pub fn kill(&self) -> Result<(), StartError> {
        self.process.kill()
    }

    /// Stops the server with SIGTERM and waits for its exit.
    pub fn stop(&self) -> Result<(), StartError> {
        self.process.signal(Signal::TERM)?;
        self.process.wait_for_exit()
    }

    /// Starts the server again on the same port and data folder, and waits until it listens.
    pub fn start_again(&self) -> Result<(), StartError> {
        let position = self.process.log_position();
        self.process.spawn()?;
        self.wait_ready(position)
    }

    /// Kills the server with SIGKILL and starts it again.
    pub fn kill_and_restart(&self) -> Result<(), StartError> {
        self.kill()?;
        self.start_again()
    }

    fn wait_ready(&self, position: usize) -> Result<(), StartError> {
        self.process.wait_for_log_line_after(position, "listening on http://", START_TIMEOUT)
    }
}
