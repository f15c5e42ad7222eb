//! `ade jobs` and `ade archive`: background jobs, and the archives that one of them writes.

use ade_client::Client;
use ade_client::wire::{Archive, Job, Page, RestoreResult};
use ade_domain::text::counted;
use clap::Subcommand;

use crate::failure::Result;
use crate::output::list::fetch_all;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, time};

#[derive(Debug, Subcommand)]
pub(crate) enum ArchiveCommand {
    /// List archives, newest first
    Ls(OutputFormat),
    /// Restore the contents of an archive that are no longer in the database
    Restore {
        /// Id of the archive
        archive: String,
        #[command(flatten)]
        format: OutputFormat,
    },
}

pub(crate) async fn jobs(client: &Client, format: OutputFormat) -> Result {
    format.print(&client.jobs().await?, job_list)
}

fn job_list(page: &Page<Job>) -> String {
    let now = time::now();
    let table = output::table(&page.items)
        .column("JOB", |job| &job.name)
        .column("STATUS", |job| status_tone(job).cell(&job.status))
        .column("LAST RUN", |job| job.ended_at.map(|at| time::ago(at, now)).unwrap_or_default())
        .column("DONE", |job| job.processed)
        .column("RUNS", |job| job.runs)
        .column("NEXT RUN IN", |job| job.due_at.map(|at| time::until(at, now)).unwrap_or_default())
        .column("DESCRIPTION", |job| &job.description);
    let mut lines = vec![table.to_string()];
    for job in page.items.iter().filter(|job| job.error.is_some()) {
        let error = safe_or_empty(&job.error);
        let times = counted(job.failures, "time", "times");
        lines.push(format!("{} failed {times} in a row: {error}", job.name));
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

pub(crate) async fn archive(client: &Client, command: ArchiveCommand) -> Result {
    let (archive, format) = match command {
        ArchiveCommand::Ls(format) => {
            let archives = fetch_all(async |query| client.archives(query).await).await?;
            return format.print(&archives, |archives| archive_table(archives).to_string());
        }
        ArchiveCommand::Restore { archive, format } => (archive, format),
    };
    let result = client.restore_archive(&archive).await?;
    format.print(&result, |RestoreResult { restored, archive, .. }| {
        format!("restored {restored} of {} tasks", archive.items)
    })?;
    let RestoreResult { outdated, still_archived, .. } = result;
    if outdated > 0 && !format.json {
        output::note(&format!("skipped {outdated}, archived again later: restore a newer archive for them"));
    }
    if still_archived > 0 && !format.json {
        output::note(&format!(
            "skipped {still_archived}, whose tasks are archived: restore the archive of the tasks first, then this one again"
        ));
    }
    Ok(())
}

fn archive_table(archives: &[Archive]) -> Table<'_, Archive> {
    let now = time::now();
    output::table(archives)
        .column("ARCHIVE", |archive| safe(&archive.archive_id))
        .column("CONTENT", |archive| safe(&archive.kind))
        .column("TASKS", |archive| archive.items)
        .column("BYTES", |archive| archive.bytes)
        .column("CREATED", |archive| time::ago(archive.created_at, now))
        .column("BLOB", |archive| safe(&archive.key))
}
