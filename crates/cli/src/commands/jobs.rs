//! `ade jobs` and `ade archive`: background jobs, and the archives that one of them writes.

use ade_client::Client;
use ade_client::wire::{Archive, Job, Page, RestoreResult};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::output::list::fetch_all;
use crate::output::{self, OutputFormat, Tone, safe, safe_or_empty, table, time};

#[derive(Debug, ClapArgs)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    format: OutputFormat,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ArchiveCommand {
    /// List archives, newest first
    Ls(OutputFormat),
    /// Restore the contents of an archive that are no longer in the database
    Restore(RestoreArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RestoreArgs {
    /// Id of the archive
    #[arg(value_name = "ARCHIVE")]
    archive_id: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) fn jobs(args: &JobArgs) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async { args.format.print(&client.jobs().await?, job_list) })
}

fn job_list(page: &Page<Job>) -> String {
    let now = time::now();
    let mut table = table(&["JOB", "STATUS", "LAST RUN", "DONE", "RUNS", "NEXT RUN IN", "DESCRIPTION"]);
    for job in &page.items {
        table.add_row([
            Cell::new(&job.name),
            status_tone(job).cell(&job.status),
            Cell::new(job.ended_at.map(|at| time::ago(at, now)).unwrap_or_default()),
            Cell::new(job.processed),
            Cell::new(job.runs),
            Cell::new(job.due_at.map(|at| time::until(at, now)).unwrap_or_default()),
            Cell::new(&job.description),
        ]);
    }
    let mut lines = vec![table.to_string()];
    for job in page.items.iter().filter(|job| job.error.is_some()) {
        let error = safe_or_empty(&job.error);
        lines.push(format!("{} failed {} times in a row: {error}", job.name, job.failures));
    }
    lines.join("\n")
}

fn status_tone(job: &Job) -> Tone {
    match job.status.as_str() {
        "ok" => Tone::Good,
        "failing" => Tone::Bad,
        "running" => Tone::Pending,
        _ => Tone::Dim,
    }
}

pub(crate) async fn archive(client: &Client, command: ArchiveCommand) -> Result<(), Failure> {
    match command {
        ArchiveCommand::Ls(format) => {
            let archives = fetch_all(async |query: &[(&str, &str)]| client.archives(query).await).await?;
            format.print(&archives, |archives| archive_table(archives))
        }
        ArchiveCommand::Restore(args) => {
            let restored = client.restore_archive(&args.archive_id).await?;
            args.format.print(&restored, |RestoreResult { restored, archive, .. }| {
                format!("restored {restored} of {} tasks", archive.items)
            })?;
            if restored.outdated > 0 && !args.format.json {
                output::note(&format!(
                    "skipped {}, archived again later: restore a newer archive for them",
                    restored.outdated
                ));
            }
            if restored.still_archived > 0 && !args.format.json {
                output::note(&format!(
                    "skipped {}, whose tasks are archived: restore the archive of the tasks first, then this one again",
                    restored.still_archived
                ));
            }
            Ok(())
        }
    }
}

fn archive_table(archives: &[Archive]) -> Table {
    let now = time::now();
    let mut table = table(&["ARCHIVE", "CONTENT", "TASKS", "BYTES", "CREATED", "BLOB"]);
    for archive in archives {
        table.add_row([
            safe(&archive.archive_id),
            safe(&archive.kind),
            archive.items.to_string(),
            archive.bytes.to_string(),
            time::ago(archive.created_at, now),
            safe(&archive.key),
        ]);
    }
    table
}
