//! `ade worker`: a process that carries out what is approved, beside servers on the same Redis and PostgreSQL.

use std::path::{Path, PathBuf};

use ade_server::{Config, WorkerProcess, start_logging, unusable_roots};
use clap::Args as ClapArgs;

use crate::config::{self, ConfigFile};
use crate::failure::{Failure, Kind};
use crate::output;
use crate::serve::{not_started, told_to_end};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Folder for this worker's own files [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// The Redis of the servers; with a password better in ADE_SERVER_REDIS
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The PostgreSQL of the servers; with a password better in ADE_SERVER_POSTGRES
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Tasks at once
    #[arg(long, value_name = "NUMBER")]
    slots: Option<u32>,
    /// Besides everybody's tasks, those that name a worker with this label
    #[arg(long)]
    label: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut flags = Vec::new();
    flags.extend(args.data.as_ref().map(|data| ("server.data", "data", data.to_string_lossy().into_owned())));
    flags.extend(args.redis.clone().map(|redis| ("server.redis", "redis", redis)));
    flags.extend(args.postgres.clone().map(|url| ("server.postgres", "postgres", url)));
    flags.extend(args.slots.map(|slots| ("worker.slots", "slots", slots.to_string())));
    flags.extend(args.label.clone().map(|label| ("worker.label", "label", label)));
    let config = config::load(&args.file, flags)?;
    if config.worker_slots == 0 {
        return Err(Failure::new(Kind::Input, "a worker without slots carries nothing out")
            .hint("leave worker.slots out, or give a number with --slots"));
    }
    start_logging(&config.log_format, &config.log_level).map_err(|error| Failure::new(Kind::Input, error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Kind::Unavailable, format!("cannot start: {error}")))?;
    runtime.block_on(work(&config))
}

async fn work(config: &Config) -> Result<(), Failure> {
    let worker = WorkerProcess::start(config).await.map_err(|error| not_started(&error))?;
    let end = told_to_end()?;
    output::line(&format!("working as {}", worker.name()))?;
    let faults = unusable_roots(config);
    let told = |place: &String| {
        let root = place.split_once("files:").map(|(_, root)| Path::new(root));
        let fault = root.and_then(|root| faults.iter().find(|(faulty, _)| *faulty == root));
        fault.map_or_else(|| place.clone(), |(_, why)| format!("{place} (which {why})"))
    };
    output::note(&format!(
        "it carries out: {}",
        worker.places().iter().map(told).collect::<Vec<_>>().join(", ")
    ));
    worker.run(end).await;
    Ok(())
}
