//! Finds the server and the token of a command, and turns errors of the server into failures with hints.
//!
//! A stored token is sent only to the address it was created for, and the bootstrap token only to the address that its server wrote
//! next to it: no file in the current folder decides where a token goes.

mod local_server;

use std::path::PathBuf;

use ade_client::wire::{CycleEdge, FieldError, Problem};
use ade_client::{Client, Error};
use ade_config::Config;
use clap::{Args as ClapArgs, Subcommand};
use tokio::runtime::Builder;

use crate::commands::config::{self, ConfigFile};
use crate::commands::login::credentials::Credentials;
use crate::commands::login::deciding::PasswordSource;
use crate::failure::{Failure, FailureKind, Result};
use crate::output::time;
use local_server::LocalServer;

/// A group of subcommands that call a server.
#[derive(Debug, ClapArgs)]
pub(crate) struct RemoteCommand<C: Subcommand> {
    #[command(subcommand)]
    command: C,
    #[command(flatten)]
    connection: Connection,
}

impl<C: Subcommand> RemoteCommand<C> {
    pub(crate) fn run<T>(self, run: impl AsyncFnOnce(&Client, C) -> Result<T>) -> Result<T> {
        self.connection.run(self.command, run)
    }
}

/// A group of subcommands that call a server, some of which decide.
#[derive(Debug, ClapArgs)]
pub(crate) struct DecidingCommand<C: Subcommand> {
    #[command(subcommand)]
    command: C,
    #[command(flatten)]
    password: PasswordSource,
    #[command(flatten)]
    connection: Connection,
}

impl<C: Subcommand> DecidingCommand<C> {
    pub(crate) fn run(self, run: impl AsyncFnOnce(&Client, (C, PasswordSource)) -> Result) -> Result {
        self.connection.run((self.command, self.password), run)
    }
}

/// A single command that calls a server.
#[derive(Debug, ClapArgs)]
pub(crate) struct Remote<A: ClapArgs> {
    #[command(flatten)]
    args: A,
    #[command(flatten)]
    connection: Connection,
}

impl<A: ClapArgs> Remote<A> {
    pub(crate) fn run(self, run: impl AsyncFnOnce(&Client, A) -> Result) -> Result {
        self.connection.run(self.args, run)
    }
}

#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Server")]
pub(crate) struct Connection {
    /// Address of the server [default: the one that a local server wrote into its data folder, else http://127.0.0.1 with the
    /// port in ade.toml or 8300]
    #[arg(long, value_name = "URL", env = "ADE_SERVER", hide_env_values = true, global = true)]
    server: Option<String>,
    /// Token to authenticate with [default: the one that ade login stored for this server, else admin-token in the data
    /// folder of a local server]
    #[arg(long, env = "ADE_TOKEN", hide_env_values = true, global = true)]
    token: Option<String>,
    /// Configuration file of a local server, for its port and token [default: ade.toml in the current folder, if it exists]
    #[arg(long, value_name = "FILE", env = "ADE_CONFIG", hide_env_values = true, global = true)]
    config: Option<PathBuf>,
    /// Data folder of a local server, for its address and token. Needed if the folder belongs to another user [default: the one in
    /// ade.toml, or ./ade-data]
    #[arg(long, value_name = "FOLDER", global = true)]
    data: Option<PathBuf>,
}

impl Connection {
    fn run<A, T>(&self, args: A, run: impl AsyncFnOnce(&Client, A) -> Result<T>) -> Result<T> {
        let url = self.url()?;
        let token = match non_empty(&self.token) {
            Some(token) => token,
            None => self.stored_token(&url)?,
        };
        let client = Client::new(&url, &token)?;
        block_on(run(&client, args))
    }

    /// Whether a token was passed, which takes precedence over the one that `ade login` stored.
    pub(crate) fn has_token(&self) -> bool {
        non_empty(&self.token).is_some()
    }

    pub(crate) fn url(&self) -> Result<String> {
        let url = match non_empty(&self.server) {
            Some(url) => url,
            None => match self.local_server()?.address()? {
                Some(url) => url,
                // Only the port comes from the file, and no token belongs to this address unless ade login stored one.
                None => format!("http://127.0.0.1:{}", self.local_config()?.listen.port()),
            },
        };
        if url.contains("://") {
            return Ok(url);
        }
        Err(Failure::invalid(format!("{url} is not the URL of a server")).hint(format!("write http://{url}")))
    }

    /// The token stored by `ade login`, else the bootstrap token of a local server.
    fn stored_token(&self, url: &str) -> Result<String> {
        let stored = Credentials::default_location().map(|credentials| credentials.get(url)).transpose()?;
        if let Some(credential) = stored.flatten() {
            if credential.expires_at.0 > time::now() {
                return Ok(credential.token);
            }
            let user = credential.user_id;
            return Err(Failure::invalid(format!("your sign-in at {url} as {user} has expired"))
                .hint("sign in again with ade login, or remove the sign-in with ade logout"));
        }
        self.local_server()?.token(url)
    }

    fn local_server(&self) -> Result<LocalServer> {
        Ok(match &self.data {
            Some(folder) => LocalServer::named(folder.clone()),
            None => LocalServer::found(self.local_config()?.data),
        })
    }

    fn local_config(&self) -> Result<Config> {
        config::load(&ConfigFile { config: self.config.clone() }, [])
    }
}

fn non_empty(value: &Option<String>) -> Option<String> {
    value.clone().filter(|value| !value.is_empty())
}

/// Runs a command that talks to a server.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    run_on(&mut Builder::new_current_thread(), work)
}

/// Runs a server or a worker, on all cores.
pub(crate) fn block_on_all_cores(work: impl Future<Output = Result>) -> Result {
    run_on(&mut Builder::new_multi_thread(), work)
}

fn run_on<T>(builder: &mut Builder, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::cannot("start the runtime", error))?.block_on(work)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match &error {
            Error::Unreachable { .. } => Self::unavailable(message)
                .hint("start a server with ade serve, or name another one with --server"),
            Error::UnexpectedResponse { .. } => {
                Self::unavailable(message).hint("check that --server is the address of an ADE server")
            }
            Error::Problem(problem) => {
                let kind = match problem.status {
                    202 => FailureKind::Waits,
                    401 | 400 | 413 | 422 => FailureKind::InvalidInput,
                    500..=599 => FailureKind::Unavailable,
                    _ => FailureKind::Negative,
                };
                Self::new(kind, message).hints(problem_hint(problem))
            }
        }
    }
}

fn problem_hint(problem: &Problem) -> Option<String> {
    let hint = match problem.code.as_str() {
        "UNAUTHENTICATED" => {
            "sign in with ade login; the token of a local server is in its data folder, in the file admin-token"
        }
        "UNAVAILABLE" => "see with ade doctor what is unavailable, and try again",
        "PASSWORD_CHANGE_REQUIRED" => "run ade login and choose your own password",
        "LOCK_HELD" => "wait for the lock with --wait SECONDS; see its holder with ade lock show",
        "FRICTION_REQUIRED" => {
            let needs: Vec<String> = problem.extension("needs").unwrap_or_default();
            let flags: Vec<&str> = needs.iter().map(|need| flag(need)).collect();
            return Some(format!(
                "review the task again with ade task show, and add {}",
                flags.join(" and ")
            ));
        }
        "REAUTHENTICATE" => {
            "do not use a token that decides (ADE_TOKEN): sign in with ade login, and the command asks for the password"
        }
        "DIGEST_MISMATCH" => "the task has changed since you reviewed it; review it again with ade task show",
        "DEADLOCK_DETECTED" => {
            let cycle: Vec<CycleEdge> = problem.extension("cycle").unwrap_or_default();
            let wait = |edge: &CycleEdge| format!("{} waited for {}", edge.agent_id, edge.waits_for);
            return Some(format!("try again; the cycle was: {}", joined(&cycle, wait)));
        }
        "BATCH_REFUSED" => {
            let items: Vec<RefusedItem> = problem.extension("items").unwrap_or_default();
            return Some(joined(&items, |item| {
                format!("{}: {} ({})", item.approval_id, item.detail, item.code)
            }));
        }
        _ => {
            // A single field error is the message itself.
            let errors = problem.extension("errors").filter(|errors: &Vec<FieldError>| errors.len() > 1)?;
            let text = |error: &FieldError| format!("{} {}", error.pointer, error.detail).trim().to_owned();
            return Some(joined(&errors, text));
        }
    };
    Some(hint.to_owned())
}

#[derive(serde::Deserialize)]
struct RefusedItem {
    approval_id: String,
    code: String,
    detail: String,
}

/// The flag for a part of an approval.
fn flag(need: &str) -> &str {
    match need {
        "digest" => "--digest DIGEST",
        "scope_digest" => "--scope-digest DIGEST",
        "reason" => "--reason TEXT",
        "confirm" => "--confirm ID",
        other => other,
    }
}

fn joined<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join("; ")
}
