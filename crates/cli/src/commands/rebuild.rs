//! `ade rebuild`: writes the projections in Redis again from PostgreSQL, while the servers run.

use std::path::PathBuf;
use std::time::Duration;

use ade_config::Config;
use ade_domain::text::counted;
use ade_server::{RebuildProgress, rebuild_projections};
use clap::Args as ClapArgs;
use indicatif::ProgressBar;

use super::config::{self, ConfigFile};
use super::serve::start_failure;
use crate::connect::block_on_all_cores;
use crate::failure::Result;
use crate::output;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Redis of the servers. A URL with a password belongs in ADE_SERVER_REDIS
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// PostgreSQL of the servers. A URL with a password belongs in ADE_SERVER_POSTGRES
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Folder for the files of this command [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result {
    let flags = [
        ("server.data", "data", args.data.as_ref().map(|data| data.to_string_lossy().into_owned())),
        ("server.redis", "redis", args.redis.clone()),
        ("server.postgres", "postgres", args.postgres.clone()),
    ];
    let config = config::load(&args.file, flags)?;
    block_on_all_cores(rebuild(&config))
}

async fn rebuild(config: &Config) -> Result {
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    let report = |progress: RebuildProgress| {
        bar.set_message(format!("{}, {}", tasks(progress), events(progress)));
    };
    let done = rebuild_projections(config, report).await.map_err(|error| start_failure(&error));
    bar.finish_and_clear();
    let done = done?;
    output::line(format_args!(
        "wrote {} with their approval requests, {} and {}; removed {}",
        tasks(done),
        counted(done.others, "other object", "other objects"),
        events(done),
        counted(
            done.removed,
            "key or member that the database does not have",
            "keys and members that the database does not have"
        ),
    ))
}

fn tasks(progress: RebuildProgress) -> String {
    counted(progress.tasks, "task", "tasks")
}

fn events(progress: RebuildProgress) -> String {
    counted(progress.events, "stream entry", "stream entries")
}
