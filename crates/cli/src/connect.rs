//! How commands find their server and their token.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};

use ade_client::wire::CycleEdge;
use ade_client::{Client, Error};
use clap::Args as ClapArgs;

use crate::config::{self, ConfigFile};
use crate::failure::{Failure, Kind};

/// Which server to ask, and with which token.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Address of the server [default: http://127.0.0.1:8300, or the port that ade.toml says]
    #[arg(long, value_name = "URL", env = "ADE_SERVER", hide_env_values = true, global = true)]
    server: Option<String>,
    /// Token to act with [default: admin-token in the data folder of a server here]
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// Configuration file of the server, for its port and its token [default: ade.toml in this folder, if it is there]
    #[arg(long, value_name = "FILE", env = "ADE_CONFIG", hide_env_values = true, global = true)]
    config: Option<PathBuf>,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let (url, token) = match (given(&self.server), given(&self.token)) {
            (Some(url), Some(token)) => (url, token),
            (url, token) => {
                let config = config::load(&ConfigFile::at(self.config.clone()), Vec::new())?;
                let token = token.map_or_else(|| own_token(&config.data.join("admin-token")), Ok)?;
                // Whoever wrote a file into this folder must not get a token sent to an address of theirs.
                (url.unwrap_or_else(|| format!("http://127.0.0.1:{}", config.listen.port())), token)
            }
        };
        if !url.contains("://") {
            let failure = Failure::new(Kind::Input, format!("{url} is not the address of a server"));
            return Err(failure.hint(format!("write it as http://{url}")));
        }
        Client::new(&url, &token).map_err(Failure::from)
    }
}

/// The token of a server whose data folder is here.
fn own_token(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map(|token| token.trim().to_owned()).map_err(|_| {
        Failure::new(Kind::Input, "a token is needed")
            .hint(format!("set ADE_TOKEN, give --token, or run this where {} is", file.display()))
    })
}

/// Runs a command that talks to a server.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Kind::Unavailable, format!("cannot start: {error}")))?;
    runtime.block_on(work)
}

/// What the server said, for people.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match &error {
            Error::Unreachable { .. } => Self::new(Kind::Unavailable, message)
                .hint("is it running? ade serve starts one; --server names another"),
            Error::Foreign { .. } => {
                Self::new(Kind::Unavailable, message).hint("--server must be the address of an ADE")
            }
            Error::Problem(problem) => {
                let kind = match problem.status {
                    401 | 400 | 413 | 422 => Kind::Input,
                    500..=599 => Kind::Unavailable,
                    _ => Kind::No,
                };
                let failure = Self::new(kind, message);
                match problem.code.as_str() {
                    "UNAUTHENTICATED" => {
                        failure.hint("the token of a local server is in its data folder: admin-token")
                    }
                    "LOCK_HELD" => {
                        failure.hint("wait for it with --wait SECONDS; ade lock show tells who holds it")
                    }
                    "DEADLOCK_DETECTED" => {
                        let cycle: Vec<CycleEdge> = problem.fact("cycle").unwrap_or_default();
                        let wait =
                            |edge: &CycleEdge| format!("{} waited for {}", edge.agent_id, edge.waits_for);
                        let waits: Vec<String> = cycle.iter().map(wait).collect();
                        failure.hint(format!("{}; try again", waits.join(", ")))
                    }
                    _ => failure,
                }
            }
        }
    }
}
