//! `ade audit`: search, export and verify the audit log.
//!
//! A log that was truncated, or rewritten from some entry on, is consistent in itself: only a checkpoint that was stored
//! elsewhere reveals it. Its signature is checked here, so that the server is not trusted with that.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use ade_app::audit::Checkpoint;
use ade_client::wire::{AuditEntry, AuditStatus, AuditVerification, InvalidAuditEntry};
use ade_client::{AuditExport, Client};
use ade_domain::text::counted;
use clap::{Args as ClapArgs, Subcommand};
use tempfile::NamedTempFile;

use crate::failure::{Failure, Result};
use crate::output::list::{ListArgs, present};
use crate::output::{self, OutputFormat, Table, VisibleText, safe, time};

/// The latest checkpoints of a file that are compared one by one.
const MAX_CHECKPOINTS: usize = 2_000;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List audit entries
    Ls {
        #[command(flatten)]
        filters: Filters,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Export the audit log as NDJSON or CSV
    Export(ExportArgs),
    /// Check that no entry was changed, removed or reordered
    Verify(VerifyArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    filters: Filters,
    /// One JSON object per line, or comma-separated values
    #[arg(long, value_parser = ["ndjson", "csv"], default_value = "ndjson")]
    format: String,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct VerifyArgs {
    /// A file of checkpoints that was stored elsewhere (a copy of audit-checkpoints.ndjson of the server): the log must contain
    /// all of them
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Public key that must have signed the checkpoints, in hexadecimal digits [default: the key that they name]
    #[arg(long, value_name = "KEY", requires = "checkpoint")]
    key: Option<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Filters {
    /// Only entries about this task
    #[arg(long)]
    task: Option<String>,
    /// Only entries of this user or agent
    #[arg(long)]
    actor: Option<String>,
    /// Only entries of this kind, such as task.submit
    #[arg(long)]
    action: Option<String>,
    /// Only entries about this object that belongs to no task: a user, a policy, a lock
    #[arg(long)]
    object: Option<String>,
    /// Only entries since then: a time, a date, or a duration ago such as 24h
    #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
    from: Option<String>,
    /// Only entries before then: a time, a date, or a duration ago
    #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
    to: Option<String>,
}

impl Filters {
    fn query(&self) -> Vec<(&'static str, &str)> {
        let Self { task, actor, action, object, from, to } = self;
        let filters = [("task", task), ("actor", actor), ("action", action), ("object", object)];
        present(&[&filters[..], &[("from", from), ("to", to)]].concat())
    }
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    match command {
        Command::Ls { filters, list } => {
            let fetch = async |query: &[(&str, &str)]| client.audit(query).await;
            list.show(&filters.query(), fetch, table).await
        }
        Command::Export(args) => export(client, &args).await,
        Command::Verify(args) => verify(client, &args).await,
    }
}

pub(super) fn table(entries: &[AuditEntry]) -> Table<'_, AuditEntry> {
    output::list(entries, "no audit entries found")
        .column("#", |entry| entry.number.map_or_else(|| "-".to_owned(), |number| number.to_string()))
        .column("TIME", |entry| time::timestamp(entry.at))
        .column("ACTOR", actor)
        .column("ACTION", |entry| safe(&entry.action))
        .column("OBJECT", |entry| format!("{} {}", safe(&entry.object_type), safe(&entry.object_id)))
        .column("FROM → TO", |entry| match (entry.from, entry.to) {
            (Some(from), Some(to)) if from != to => format!("{from} → {to}"),
            (_, Some(state)) | (Some(state), None) => state.to_string(),
            (None, None) => String::new(),
        })
        .column("REASON", |entry| {
            let reason = [entry.ticket.as_deref(), entry.reason.as_deref()];
            safe(&reason.into_iter().flatten().collect::<Vec<_>>().join(": "))
        })
}

fn actor(entry: &AuditEntry) -> String {
    match (&entry.who.user_id, &entry.who.agent_id) {
        (Some(user), Some(agent)) => format!("{} for {}", safe(agent), safe(user.as_str())),
        (Some(user), None) => safe(user.as_str()),
        (None, Some(agent)) => safe(agent),
        (None, None) => match (&entry.who.trigger, &entry.who.token_id) {
            (Some(trigger), _) => format!("ade ({})", safe(trigger)),
            (None, Some(token)) => format!("token {}", safe(token)),
            (None, None) => "anonymous".to_owned(),
        },
    }
}

/// Writes the log to standard output or to a file. The file is replaced only once the export is complete.
async fn export(client: &Client, args: &ExportArgs) -> Result {
    let mut export = client.export_audit(&args.format, &args.filters.query()).await?;
    let Some(file) = &args.output else {
        if io::stdout().is_terminal() {
            copy(&mut export, &mut VisibleText::new(io::stdout().lock())).await?;
        } else {
            copy(&mut export, &mut io::stdout().lock()).await?;
        }
        return Ok(());
    };
    let unwritable = |error: io::Error| Failure::cannot(format_args!("write {}", file.display()), error);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temporary = NamedTempFile::new_in(folder).map_err(unwritable)?;
    let bytes = copy(&mut export, temporary.as_file_mut()).await?;
    temporary.as_file().sync_all().map_err(unwritable)?;
    temporary.persist(file).map_err(|error| unwritable(error.error))?;
    output::note(&format!("wrote {bytes} bytes to {}", file.display()));
    Ok(())
}

async fn copy(export: &mut AuditExport, to: &mut impl Write) -> Result<u64> {
    let mut bytes = 0;
    while let Some(chunk) = export.next_chunk().await? {
        to.write_all(&chunk)?;
        bytes += chunk.len() as u64;
    }
    to.flush()?;
    Ok(bytes)
}

async fn verify(client: &Client, args: &VerifyArgs) -> Result {
    let checkpoints = match &args.checkpoint {
        Some(file) => read_checkpoints(file, args.key.as_deref())?,
        None => Vec::new(),
    };
    let latest = checkpoints.iter().max_by_key(|checkpoint| checkpoint.head.number);
    let hash = latest.map(|checkpoint| checkpoint.head.entry_hash.to_string());
    let trusted = latest.map(|checkpoint| checkpoint.head.number).zip(hash.as_deref());
    // The first contradicted checkpoint is a better hint than the end of the log.
    let verdict = match find_contradiction(client, &checkpoints).await? {
        Some(verdict) => verdict,
        None => client.verify_audit(trusted).await?,
    };
    if args.format.json {
        output::json(&verdict)?;
    } else if verdict.status != AuditStatus::Invalid {
        output::line(intact(&verdict))?;
        if let Some(Checkpoint { head, at, public_key, .. }) = latest {
            let entry = format!("it contains the checkpoint at entry {}", head.number);
            output::line(format_args!("{entry}, signed by {public_key} at {at}"))?;
        }
    }
    judge(&verdict)
}

/// Reads the checkpoints of a file. All of them must be signed by the same key.
fn read_checkpoints(file: &Path, key: Option<&str>) -> Result<Vec<Checkpoint>> {
    let name = file.display();
    let text =
        fs::read_to_string(file).map_err(|error| Failure::invalid(format!("cannot read {name}: {error}")))?;
    let mut checkpoints: Vec<Checkpoint> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let invalid = |why: &str| Failure::invalid(format!("{name}, line {}: {why}", index + 1));
        let checkpoint: Checkpoint =
            serde_json::from_str(line).map_err(|_| invalid("not a checkpoint of an audit log"))?;
        if !checkpoint.is_signed() {
            return Err(invalid("the signature of the checkpoint does not match the key that it names"));
        }
        let expected = key.or(checkpoints.first().map(|first| first.public_key.as_str()));
        if expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(&checkpoint.public_key)) {
            return Err(invalid("the checkpoint is signed by another key"));
        }
        checkpoints.push(checkpoint);
    }
    if checkpoints.is_empty() {
        return Err(Failure::invalid(format!("{name} contains no checkpoint")));
    }
    Ok(checkpoints)
}

/// Finds the first checkpoint whose entry has another hash now. The log is valid up to the last entry that an earlier
/// checkpoint confirms. Entries missing at the end are left to the server, which reads the whole log.
async fn find_contradiction(
    client: &Client,
    checkpoints: &[Checkpoint],
) -> Result<Option<AuditVerification>> {
    let mut valid_up_to = 0;
    for checkpoint in checkpoints.iter().rev().take(MAX_CHECKPOINTS).rev() {
        let number = checkpoint.head.number;
        let cursor = number.saturating_sub(1).to_string();
        let page = client.audit(&[("cursor", cursor.as_str()), ("limit", "1")]).await?;
        let hash = Some(checkpoint.head.entry_hash.to_string());
        match page.items.first().filter(|entry| entry.number == Some(number)) {
            Some(entry) if entry.entry_hash != hash => {
                let at = checkpoint.at;
                let reason = format!("differs from the entry that was signed at {at}: the log was rewritten");
                let (entries, first_bad) = (valid_up_to, Some(InvalidAuditEntry { number, reason }));
                return Ok(Some(AuditVerification {
                    valid: false,
                    status: AuditStatus::Invalid,
                    entries,
                    head: None,
                    checkpoint: None,
                    quarantined: 0,
                    first_bad,
                }));
            }
            Some(_) => valid_up_to = number,
            None => {}
        }
    }
    Ok(None)
}

fn intact(verdict: &AuditVerification) -> String {
    let head = verdict.head.as_deref().map(|head| format!("; the last one has the hash {}", safe(head)));
    let entries = counted(verdict.entries, "entry", "entries");
    let mut text = format!("the audit log is intact: {entries}{}", head.unwrap_or_default());
    if let Some(signed) = verdict.checkpoint {
        let order = if signed < verdict.entries {
            " the next checkpoint proves the order of later ones;"
        } else {
            ""
        };
        text += &format!(
            "\nsigned up to entry {signed} of {};{order} whether entries are missing at the end shows only a checkpoint kept elsewhere \
             (--checkpoint)",
            verdict.entries
        );
    }
    if verdict.quarantined > 0 {
        let rows = verdict.quarantined;
        text += &format!("\nrows that ade did not write, and that are not part of it: {rows}");
    }
    text
}

fn judge(verdict: &AuditVerification) -> Result {
    match verdict.status {
        AuditStatus::Valid => return Ok(()),
        AuditStatus::Unverified => {
            let message =
                "the audit log is unverified: without a checkpoint, entries may be missing at its end";
            let hint = "wait for the first checkpoint of the server, or give a saved one with --checkpoint";
            return Err(Failure::negative(message.to_owned()).hint(hint));
        }
        AuditStatus::Invalid => {}
    }
    let message = match &verdict.first_bad {
        Some(bad) => format!("the audit log was tampered with: entry {}: {}", bad.number, bad.reason),
        None => "the audit log was tampered with".to_owned(),
    };
    let hint = match verdict.entries {
        0 => "no entry can be trusted; compare the log with a backup".to_owned(),
        valid => format!("it is intact up to entry {valid}; compare the rest with a backup"),
    };
    Err(Failure::negative(message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_log_is_a_negative_result_that_names_the_entry() {
        let valid = AuditVerification {
            valid: true,
            status: AuditStatus::Valid,
            entries: 7,
            head: Some("abc".to_owned()),
            checkpoint: Some(5),
            quarantined: 0,
            first_bad: None,
        };
        assert!(judge(&valid).is_ok());
        let intact_up_to = |checkpoint| intact(&AuditVerification { checkpoint, ..valid.clone() });
        let whole = "the audit log is intact: 7 entries; the last one has the hash abc";
        assert_eq!(intact_up_to(None), whole);
        let end =
            "whether entries are missing at the end shows only a checkpoint kept elsewhere (--checkpoint)";
        assert_eq!(intact_up_to(Some(7)), format!("{whole}\nsigned up to entry 7 of 7; {end}"));
        let order = "the next checkpoint proves the order of later ones";
        assert_eq!(intact_up_to(Some(5)), format!("{whole}\nsigned up to entry 5 of 7; {order}; {end}"));
        let bad = Some(InvalidAuditEntry { number: 8, reason: "its hash does not match".to_owned() });
        let unverified = AuditVerification { valid: false, status: AuditStatus::Unverified, ..valid.clone() };
        let failure = judge(&unverified).expect_err("unverified");
        assert!(failure.message().contains("unverified"), "{}", failure.message());
        let invalid =
            AuditVerification { valid: false, status: AuditStatus::Invalid, first_bad: bad, ..valid };
        let failure = judge(&invalid).expect_err("broken");
        assert_eq!(failure.kind, crate::failure::FailureKind::Negative);
        assert_eq!(failure.message(), "the audit log was tampered with: entry 8: its hash does not match");
    }
}
