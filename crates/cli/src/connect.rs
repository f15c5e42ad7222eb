//! How commands find their server and their token.

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};

use ade_client::wire::{CycleEdge, FieldError};
use ade_client::{Client, Error};
use clap::Args as ClapArgs;

use crate::config::{self, ConfigFile};
use crate::failure::{Failure, Kind};
use crate::login::credentials::Credentials;
use crate::times;

/// Which server to ask, and with which token.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Address of the server [default: http://127.0.0.1:8300, or the port that ade.toml says]
    #[arg(long, value_name = "URL", env = "ADE_SERVER", hide_env_values = true, global = true)]
    server: Option<String>,
    /// Token to act with [default: the one ade login keeps for this server, else admin-token in the data folder of a
    /// server here]
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// Configuration file of the server, for its port and its token [default: ade.toml in this folder, if it is there]
    #[arg(long, value_name = "FILE", env = "ADE_CONFIG", hide_env_values = true, global = true)]
    config: Option<PathBuf>,
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let url = self.url()?;
        let token = match given(&self.token) {
            Some(token) => token,
            None => self.kept(&url)?,
        };
        Client::new(&url, &token).map_err(Failure::from)
    }

    /// Which server.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        let url = match given(&self.server) {
            Some(url) => url,
            // Whoever wrote a file into this folder must not get a token sent to an address of theirs.
            None => format!("http://127.0.0.1:{}", self.configured()?.listen.port()),
        };
        if url.contains("://") {
            return Ok(url);
        }
        let failure = Failure::new(Kind::Input, format!("{url} is not the address of a server"));
        Err(failure.hint(format!("write it as http://{url}")))
    }

    /// The token that is kept for this server, by whoever signed in or by the server itself.
    fn kept(&self, url: &str) -> Result<String, Failure> {
        let kept = Credentials::usual().map(|credentials| credentials.get(url)).transpose()?.flatten();
        match kept {
            Some(credential) if credential.expires_at.0 <= times::now() => {
                let told = format!("your sign-in at {url} as {} has expired", credential.user_id);
                Err(Failure::new(Kind::Input, told).hint("ade login signs in again; ade logout forgets it"))
            }
            Some(credential) => Ok(credential.token),
            None => {
                let config = self.configured()?;
                // The bootstrap token of a server here is for a server here.
                let here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
                    url.trim_end_matches('/') == format!("http://{host}:{}", config.listen.port())
                });
                if !here {
                    return Err(Failure::new(Kind::Input, format!("a token for {url} is needed"))
                        .hint("ade login signs in there; or set ADE_TOKEN, or give --token"));
                }
                own_token(&config.data.join("admin-token"))
            }
        }
    }

    fn configured(&self) -> Result<ade_server::Config, Failure> {
        config::load(&ConfigFile::at(self.config.clone()), Vec::new())
    }
}

fn given(value: &Option<String>) -> Option<String> {
    value.clone().filter(|value| !value.is_empty())
}

/// The token of a server whose data folder is here.
fn own_token(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map(|token| token.trim().to_owned()).map_err(|_| {
        Failure::new(Kind::Input, "a token is needed")
            .hint(format!("sign in with ade login, set ADE_TOKEN, or run this where {} is", file.display()))
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
                    "UNAUTHENTICATED" => failure.hint(
                        "ade login signs in; the token of a local server is in its data folder: admin-token",
                    ),
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
                    "DIGEST_MISMATCH" => failure
                        .hint("it was changed since you looked at it; ade task show shows it as it is now"),
                    "FORBIDDEN" if problem.detail.contains("decide") => {
                        failure.hint("ade login --decide makes a token that may, for some hours")
                    }
                    "BATCH_REFUSED" => {
                        let items: Vec<Refused> = problem.fact("items").unwrap_or_default();
                        let each =
                            |item: &Refused| format!("{}: {} ({})", item.approval_id, item.detail, item.code);
                        failure.hint(items.iter().map(each).collect::<Vec<_>>().join("; "))
                    }
                    // One fault is the message itself.
                    _ => match problem.fact::<Vec<FieldError>>("errors").filter(|errors| errors.len() > 1) {
                        Some(errors) => failure.hint(told(&errors)),
                        None => failure,
                    },
                }
            }
        }
    }
}

/// What a batch was refused for.
#[derive(serde::Deserialize)]
struct Refused {
    approval_id: String,
    code: String,
    detail: String,
}

/// What is wrong with which part.
fn told(errors: &[FieldError]) -> String {
    let one = |error: &FieldError| format!("{} {}", error.pointer, error.detail).trim().to_owned();
    errors.iter().map(one).collect::<Vec<_>>().join("; ")
}
