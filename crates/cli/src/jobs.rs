//! `ade jobs` and `ade archive`: work that repeats, and what it took out of the record.

use ade_client::wire::Job;
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::Cell;

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::Shape;
use crate::output::{self, Tone, safe, table};
use crate::times;

#[derive(Debug, ClapArgs)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ArchiveArgs {
    #[command(subcommand)]
    command: ArchiveCommand,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum ArchiveCommand {
    /// What was archived, the newest first
    Ls(Shape),
    /// Bring back what is in an archive and not in the record any more
    Restore(RestoreArgs),
}

#[derive(Debug, ClapArgs)]
struct RestoreArgs {
    /// The archive
    #[arg(value_name = "ARCHIVE")]
    archive_id: String,
    #[command(flatten)]
    shape: Shape,
}

pub(crate) fn jobs(args: &JobArgs) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        let page = client.jobs().await?;
        if args.shape.json {
            return output::json(&page);
        }
        let now = times::now();
        let mut table = table(&["JOB", "STATUS", "LAST", "DONE", "RUNS", "DUE", "WHAT IT DOES"]);
        for job in &page.items {
            let last = job.ended_at.map(|at| format!("{} ago", times::since(at, now))).unwrap_or_default();
            let due = job.due_at.map(|at| times::until(at, now)).unwrap_or_default();
            table.add_row(vec![
                Cell::new(&job.name),
                tone(job).cell(&job.status),
                Cell::new(last),
                Cell::new(job.done),
                Cell::new(job.runs),
                Cell::new(due),
                Cell::new(&job.about),
            ]);
        }
        output::line(&table.to_string())?;
        for job in page.items.iter().filter(|job| job.error.is_some()) {
            let error = job.error.as_deref().map(safe).unwrap_or_default();
            output::line(&format!("{} failed {} times in a row: {error}", job.name, job.failures))?;
        }
        Ok(())
    })
}

fn tone(job: &Job) -> Tone {
    match job.status.as_str() {
        "ok" => Tone::Good,
        "failing" => Tone::Bad,
        "running" => Tone::Open,
        _ => Tone::Dim,
    }
}

pub(crate) fn archive(args: ArchiveArgs) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            ArchiveCommand::Ls(shape) => {
                let all =
                    crate::lists::all(async |query: &[(&str, &str)]| client.archives(query).await).await?;
                if shape.json {
                    return output::json(&all);
                }
                let now = times::now();
                let mut table = table(&["ARCHIVE", "OF", "TASKS", "BYTES", "MADE", "KEPT AS"]);
                for one in &all {
                    table.add_row(vec![
                        Cell::new(&one.archive_id),
                        Cell::new(&one.kind),
                        Cell::new(one.items),
                        Cell::new(one.bytes),
                        Cell::new(format!("{} ago", times::since(one.created_at, now))),
                        Cell::new(&one.key),
                    ]);
                }
                output::line(&table.to_string())
            }
            ArchiveCommand::Restore(args) => {
                let restored = client.restore(&args.archive_id).await?;
                if args.shape.json {
                    return output::json(&restored);
                }
                let many = restored.restored;
                output::line(&format!("{many} of {} tasks are back", restored.archive.items))?;
                if restored.outdated > 0 {
                    let many = restored.outdated;
                    output::note(&format!(
                        "{many} were archived once more since: restore a newer archive for them"
                    ));
                }
                if restored.away > 0 {
                    let many = restored.away;
                    output::note(&format!(
                        "{many} are archived themselves: restore the archive of tasks that has them, then this one again"
                    ));
                }
                Ok(())
            }
        }
    })
}
