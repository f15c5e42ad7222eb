//! `ade serve`: the server in the foreground.

use std::path::{Path, PathBuf};

use ade_server::{Config, Server, StartError, start_logging};
use clap::Args as ClapArgs;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::{self, ConfigFile};
use crate::failure::{Failure, Kind};
use crate::output;

/// Where commands look for a token by themselves.
const DEFAULT_DATA: &str = "./ade-data";

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:8300]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Folder for everything that must survive a restart [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Redis for locks that several servers share: redis://, redis+sentinel:// or redis+cluster://; with a password better
    /// in ADE_SERVER_REDIS [default: locks in this process]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL for tasks, people and the audit log that several servers share: postgres://; needs --redis; with a
    /// password better in ADE_SERVER_POSTGRES [default: in the data folder]
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// With a small organisation to look around in, on a loopback address and in a data folder of its own
    #[arg(long)]
    demo: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut flags = Vec::new();
    flags.extend(args.listen.clone().map(|listen| ("server.listen", "listen", listen)));
    flags.extend(args.data.as_ref().map(|data| ("server.data", "data", data.to_string_lossy().into_owned())));
    if args.redis.as_deref() == Some("") {
        let message = "--redis is empty: locks would not be shared";
        return Err(Failure::new(Kind::Input, message)
            .hint("name a Redis, or leave the option out to keep locks in this process"));
    }
    flags.extend(args.redis.clone().map(|redis| ("server.redis", "redis", redis)));
    flags.extend(args.postgres.clone().map(|url| ("server.postgres", "postgres", url)));
    let mut config = config::load(&args.file, flags)?;
    config.demo = args.demo;
    start_logging(&config.log_format, &config.log_level).map_err(|error| Failure::new(Kind::Input, error))?;
    allow_many_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Kind::Unavailable, format!("cannot start: {error}")))?;
    runtime.block_on(serve(&config))
}

async fn serve(config: &Config) -> Result<(), Failure> {
    let admin_token = config::admin_token();
    let server = Server::start(config, admin_token.as_deref()).await.map_err(|error| not_started(&error))?;
    let end = told_to_end()?;
    if let Some(path) = server.new_token() {
        let how = if config.redis.is_some() {
            "every server has its own unless ADE_ADMIN_TOKEN gives all of them the same"
        } else if config.data == Path::new(DEFAULT_DATA) {
            "commands run in this folder find it"
        } else {
            "give it to commands in ADE_TOKEN"
        };
        output::note(&format!("the administrator's token is in {}; {how}", path.display()));
    }
    if config.demo {
        greet(config, server.address());
    }
    if let Some(password) = server.first_password() {
        output::note(&format!(
            "the user admin signs in with the password {password}; it is told this once: ade user passwd changes it"
        ));
    }
    output::line(&format!("listening on http://{}", server.address()))?;
    output::note(&format!(
        "the API is described at http://{}/docs; ade lock --help says what to try",
        server.address()
    ));
    server.run(end).await;
    Ok(())
}

/// What to try first in a demo.
fn greet(config: &Config, address: std::net::SocketAddr) {
    let server = if address.port() == 8300 { String::new() } else { format!(" --server http://{address}") };
    output::note(&format!(
        "this is a demo: ann and dave propose, alice, bob, carol, dave and mia review, erin and frank administer, grace \
         audits; the password of each is {}",
        ade_server::DEMO_PASSWORD
    ));
    output::note(&format!(
        "to review something: ade login carol --decide{server}, then ade approval ls{server}"
    ));
    output::note(&format!("to begin anew: stop it and remove {}", config.data.display()));
}

/// Every waiting caller is an open file: as many as the system allows, not as many as it gives by default.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        output::note(&format!("the limit of open files stays at {:?}: {error}", limit.current));
    }
}

/// Until somebody wants this process to end.
pub(crate) fn told_to_end() -> Result<impl Future<Output = ()>, Failure> {
    let (mut interrupt, mut terminate) =
        (listen_to(SignalKind::interrupt())?, listen_to(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn listen_to(kind: SignalKind) -> Result<tokio::signal::unix::Signal, Failure> {
    signal(kind)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("cannot listen to signals: {error}")))
}

pub(crate) fn not_started(error: &StartError) -> Failure {
    let failure = Failure::new(Kind::Unavailable, error.to_string());
    match error {
        StartError::Listen { .. } => {
            failure.hint("choose another address with --listen; port 0 picks a free one")
        }
        StartError::Redis(_) => {
            failure.hint("check --redis, and that the server runs; ade config shows where it comes from")
        }
        StartError::Record(_) => {
            failure.hint("check the data folder, or --postgres and that its server runs; ade config shows where they come from")
        }
        StartError::NoWorker => failure.hint("name them with --redis and --postgres, or in ade.toml"),
        StartError::Executor(_) => failure.hint("mend it in the configuration file under executors"),
        StartError::Blobs(_) => failure.hint("choose another folder with server.blobs in ade.toml"),
        StartError::OtherBlobs { first, .. } => failure.hint(format!(
            "set server.blobs for every server and worker, as ADE_SERVER_BLOBS={first} or to where that folder is mounted here; \
             docs/apply.md says how to move it"
        )),
        StartError::Store(_)
        | StartError::Folder(_)
        | StartError::Token(_)
        | StartError::FirstAdmin(_)
        | StartError::Demo(_)
        | StartError::NoDemo(_)
        | StartError::Ledger(_) => failure,
    }
}
