//! `ade worker`: a process that applies approved tasks, next to servers on the same Redis and PostgreSQL.

use std::path::PathBuf;

use ade_config::Config;
use ade_server::{WorkerProcess, start_logging};
use clap::Args as ClapArgs;

use super::config::{self, ConfigFile};
use super::serve::{shutdown_signal, start_failure};
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, Result};
use crate::output;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Folder for the files of this worker [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Redis of the servers. A URL with a password belongs in ADE_SERVER_REDIS
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL of the servers. A URL with a password belongs in ADE_SERVER_POSTGRES
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Number of tasks to apply at the same time
    #[arg(long, value_name = "NUMBER")]
    slots: Option<u32>,
    /// Also apply tasks that require a worker with this label
    #[arg(long)]
    label: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    let flags = [
        ("server.data", "data", args.data.as_ref().map(|data| data.to_string_lossy().into_owned())),
        ("server.redis", "redis", args.redis.clone()),
        ("server.postgres", "postgres", args.postgres.clone()),
        ("worker.slots", "slots", args.slots.map(|slots| slots.to_string())),
        ("worker.label", "label", args.label.clone()),
    ];
    let config = config::load(&args.file, flags)?;
    if config.worker_slots == 0 {
        return Err(Failure::invalid("worker.slots is 0, so this worker would apply nothing")
            .hint("remove worker.slots from the configuration, or set --slots"));
    }
    start_logging(&config.log_format, &config.log_level).map_err(Failure::invalid)?;
    block_on_all_cores(work(&config))
}

async fn work(config: &Config) -> Result {
    let worker = WorkerProcess::start(config).await.map_err(|error| start_failure(&error))?;
    let shutdown = shutdown_signal()?;
    output::line(format_args!("working as {}", worker.name()))?;
    let faults = config.executors.files.unusable_roots();
    let describe = |work_queue: &String| {
        let root = work_queue.split_once("files:").map(|(_, root)| root);
        let fault = root.and_then(|root| faults.iter().find(|fault| fault.name == root));
        let path = fault.map(|fault| format!("{} {}", fault.path.display(), fault.problem));
        path.map_or_else(|| work_queue.clone(), |problem| format!("{work_queue} ({problem})"))
    };
    let work_queues: Vec<String> = worker.work_queues().iter().map(describe).collect();
    output::note(&format!("applies tasks for: {}", work_queues.join(", ")));
    worker.run(shutdown).await;
    Ok(())
}
