//! `ade serve`: runs the server in the foreground until it receives SIGINT or SIGTERM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ade_config::Config;
use ade_server::{Server, StartError, start_logging};
use clap::Args as ClapArgs;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::config::{self, ConfigFile};
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, Result};
use crate::output;
use crate::signals::Signals;

/// Commands that run in the parent folder find the token in it.
const DEFAULT_DATA: &str = "./ade-data";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:8300]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Folder for all persistent data [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Redis for locks that several servers share: redis://, redis+sentinel:// or redis+cluster://. A URL with a password
    /// belongs in ADE_SERVER_REDIS [default: locks in this process]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL for tasks, users and the audit log that several servers share: postgres://; requires --redis. A URL with a
    /// password belongs in ADE_SERVER_POSTGRES [default: SQLite in the data folder]
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Start with a demo organisation, on a loopback address and in an empty data folder
    #[arg(long)]
    demo: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    if args.redis.as_deref() == Some("") {
        return Err(Failure::invalid("--redis is empty, so locks would not be shared")
            .hint("give the URL of a Redis, or leave the option out to keep locks in this process"));
    }
    let flags = [
        ("server.listen", "listen", args.listen.clone()),
        ("server.data", "data", args.data.as_ref().map(|data| data.to_string_lossy().into_owned())),
        ("server.redis", "redis", args.redis.clone()),
        ("server.postgres", "postgres", args.postgres.clone()),
    ];
    let mut config = config::load(&args.file, flags)?;
    config.demo = args.demo;
    start_logging(&config.log_format, &config.log_level).map_err(Failure::invalid)?;
    raise_file_limit();
    block_on_all_cores(serve(&config))
}

async fn serve(config: &Config) -> Result {
    let admin_token = config::admin_token();
    let server =
        Server::start(config, admin_token.as_deref()).await.map_err(|error| start_failure(&error))?;
    let shutdown = shutdown_signal()?;
    let address = server.address();
    if let Some(path) = server.new_token_path() {
        let usage = if config.redis.is_some() {
            "each server has its own, unless ADE_ADMIN_TOKEN sets a common one"
        } else if config.data == Path::new(DEFAULT_DATA) {
            "commands that you run in this folder use it"
        } else {
            "commands use it with --data and this folder"
        };
        output::note(&format!("the admin token is in {}; {usage}", path.display()));
    }
    if config.demo {
        print_demo_notes(config, address);
        if let Some(path) = server.demo_path() {
            output::note(&format!(
                "open http://{address}{path} in a browser: it signs you in as the reviewer carol"
            ));
        }
    }
    if let Some(password) = server.first_password() {
        output::note(&format!(
            "the user admin was created with the password {password}, which is shown only once; change it with ade user passwd"
        ));
    }
    output::line(format_args!("listening on http://{address}"))?;
    output::note(&format!(
        "the dashboard is at http://{address}, the API documentation at http://{address}/docs"
    ));
    server.run(shutdown).await;
    Ok(())
}

fn print_demo_notes(config: &Config, address: SocketAddr) {
    let server = if address.port() == 8300 { String::new() } else { format!(" --server http://{address}") };
    output::note(&format!(
        "demo users: ann and dave are authors; alice, bob, carol, dave and mia are reviewers; erin and frank are admins; \
         grace is an auditor; the password of all of them is {}",
        ade_server::DEMO_PASSWORD
    ));
    output::note(&format!(
        "to review a task: ade login carol{server}, then ade approval ls{server}; deciding asks for the password"
    ));
    output::note(&format!("to start over: stop the server and remove {}", config.data.display()));
}

/// Raises the soft limit of open files to the hard limit, because every waiting caller is an open file.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        output::note(&format!("cannot raise the limit of open files ({:?}): {error}", limit.current));
    }
}

/// Resolves on SIGINT or SIGTERM. The signals are handled from the call on.
pub(super) fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM])?;
    Ok(async move {
        signals.next().await;
    })
}

pub(super) fn start_failure(error: &StartError) -> Failure {
    let hint = match error {
        StartError::Listen { .. } => "choose another address with --listen; port 0 picks a free one",
        StartError::Redis(_) => {
            "check --redis and that Redis is running; ade config shows where the setting comes from"
        }
        StartError::Database(_) => {
            "check the data folder, or --postgres and that PostgreSQL is running; ade config shows where the settings come from"
        }
        StartError::WorkerNeedsSharedStores => "set them with --redis and --postgres, or in ade.toml",
        StartError::NoProjections => "set them with --redis and --postgres, or in ade.toml",
        StartError::Rebuild(_) => {
            "check that Redis and PostgreSQL are running, and repeat it: nothing is lost"
        }
        StartError::Executors(_) => "correct the section executors of the configuration file",
        StartError::Webhooks(_) | StartError::Mail(_) => {
            "correct the section webhooks of the configuration file"
        }
        StartError::SecretRequired => {
            "create one with: openssl rand -hex 32, and set it as ADE_SECRET for every server and worker"
        }
        StartError::SecretMismatch { .. } => {
            "start it with the ADE_SECRET (or the file secret in the data folder) of the others; to replace the secret, also give the \
             old one as ADE_SECRET_PREVIOUS (or in the file secret.previous)"
        }
        StartError::PreviousSecretMissing { .. } => {
            "give that secret as ADE_SECRET_PREVIOUS (or in the file secret.previous); if the secret was never replaced, somebody wrote \
             that entry into the database"
        }
        StartError::Blobs(_) => "choose another folder with server.blobs in ade.toml",
        StartError::BlobFolderMismatch { first, .. } => &format!(
            "set server.blobs of every server and worker, as ADE_SERVER_BLOBS={first} or to the path where that folder is mounted \
             here; docs/apply.md explains how to move it"
        ),
        StartError::EmbeddedStore(_)
        | StartError::Folder(_)
        | StartError::BootstrapToken(_)
        | StartError::AddressFile(_)
        | StartError::FirstAdmin(_)
        | StartError::Recovery(_)
        | StartError::Demo(_)
        | StartError::DemoNotAllowed(_)
        | StartError::Bindings(_)
        | StartError::Secret(_)
        | StartError::Ledger(_) => return Failure::unavailable(error.to_string()),
    };
    Failure::unavailable(error.to_string()).hint(hint)
}
