//! How commands find their server and their token.

use std::fs;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ade_client::{Client, Error};
use clap::Args as ClapArgs;

use crate::config::{self, ConfigFile};
use crate::failure::{Failure, Kind};

/// Which server to ask, and with which token.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Address of the server [default: the one that ade serve would have here, http://127.0.0.1:8300]
    #[arg(long, value_name = "URL", env = "ADE_SERVER", hide_env_values = true, global = true)]
    server: Option<String>,
    /// Token to act with [default: admin-token in the data folder of a server here]
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let config = config::load(&ConfigFile::default(), Vec::new())?;
        let url = given(&self.server).unwrap_or_else(|| local(config.listen));
        if !url.contains("://") {
            let failure = Failure::new(Kind::Input, format!("{url} is not the address of a server"));
            return Err(failure.hint(format!("write it as http://{url}")));
        }
        let file = config.data.join("admin-token");
        let token = match given(&self.token) {
            Some(token) => token,
            None => fs::read_to_string(&file).map(|token| token.trim().to_owned()).map_err(|_| {
                Failure::new(Kind::Input, "a token is needed")
                    .hint(format!("set ADE_TOKEN, give --token, or run this where {} is", file.display()))
            })?,
        };
        Client::new(&url, &token).map_err(Failure::from)
    }
}

/// Where a server that listens on this address is reached from here.
fn local(listen: SocketAddr) -> String {
    let here: IpAddr = if listen.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let ip = if listen.ip().is_unspecified() { here } else { listen.ip() };
    format!("http://{}", SocketAddr::new(ip, listen.port()))
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
