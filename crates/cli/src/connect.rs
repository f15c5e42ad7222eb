//! How commands find their server and their token.

use std::fs;
use std::future::Future;
use std::path::PathBuf;

use ade_client::{Client, Error};
use clap::Args as ClapArgs;

use crate::failure::{Failure, Kind};

/// Where the token of a server on this machine is found.
const LOCAL_TOKEN: &str = "ade-data/admin-token";

/// Which server to ask, and with which token.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Address of the server
    #[arg(
        long,
        value_name = "URL",
        env = "ADE_SERVER",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8300",
        global = true
    )]
    server: String,
    /// Token to act with [default: ./ade-data/admin-token, if it is there]
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let token = match &self.token {
            Some(token) => token.clone(),
            None => fs::read_to_string(PathBuf::from(LOCAL_TOKEN))
                .map(|token| token.trim().to_owned())
                .map_err(|_| {
                    Failure::new(Kind::Input, "a token is needed")
                        .hint(format!("set ADE_TOKEN, give --token, or run this where {LOCAL_TOKEN} is"))
                })?,
        };
        Client::new(&self.server, &token).map_err(Failure::from)
    }
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
                    "DEADLOCK_DETECTED" => failure.hint("try again; ade lock graph shows who waits for whom"),
                    _ => failure,
                }
            }
        }
    }
}
