//! `ade audit verify`: whether the log is as it was written. The answer no names the first entry that is not.
//!
//! A log that was cut off, or written anew from some entry on, is whole by itself: only a checkpoint that was kept elsewhere
//! tells. Its signature is checked here, so that the server is not asked whom to trust.

use std::fs;
use std::path::{Path, PathBuf};

use ade_app::audit::Checkpoint;
use ade_client::Client;
use ade_client::wire::{AuditVerdict, BadEntry};
use clap::Args as ClapArgs;

use crate::failure::{Failure, Kind};
use crate::lists::Shape;
use crate::output::{self, safe};

/// Checkpoints that are compared one by one: the last ones of a file.
const MOST_CHECKPOINTS: usize = 2_000;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A file of checkpoints that was kept elsewhere, as the server writes audit-checkpoints.ndjson: the log must lead
    /// through all of them
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// The public key that must have signed it, in hexadecimal digits [default: the one that it names]
    #[arg(long, value_name = "KEY", requires = "checkpoint")]
    key: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

/// The checkpoints of a file, in order. All of them must be signed, and by the same key.
fn kept(file: &Path, key: Option<&str>) -> Result<Vec<Checkpoint>, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::new(Kind::Input, format!("cannot read {name}: {error}")))?;
    let mut all: Vec<Checkpoint> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| Failure::new(Kind::Input, format!("{name}, line {}: {why}", number + 1));
        let checkpoint: Checkpoint =
            serde_json::from_str(line).map_err(|_| wrong("this is not a checkpoint of an audit log"))?;
        if !checkpoint.is_signed() {
            return Err(wrong("the checkpoint is not signed by the key that it names"));
        }
        let expected = key.or(all.first().map(|first| first.public_key.as_str()));
        if expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(&checkpoint.public_key)) {
            return Err(wrong("the checkpoint is signed by another key"));
        }
        all.push(checkpoint);
    }
    if all.is_empty() {
        Err(Failure::new(Kind::Input, format!("{name} holds no checkpoint")))
    } else {
        Ok(all)
    }
}

pub(super) async fn run(client: &Client, args: &Args) -> Result<(), Failure> {
    let kept = args.checkpoint.as_deref().map(|file| kept(file, args.key.as_deref())).transpose()?;
    let kept = kept.unwrap_or_default();
    let checkpoint = kept.iter().max_by_key(|checkpoint| checkpoint.head.number);
    let hash = checkpoint.map(|checkpoint| checkpoint.head.entry_hash.to_string());
    let trusted = checkpoint.map(|checkpoint| checkpoint.head.number).zip(hash.as_deref());
    // The first checkpoint that is contradicted says more than where the log ends now.
    let verdict = match contradicted(client, &kept).await? {
        Some((fits, bad)) => AuditVerdict { valid: false, entries: fits, head: None, first_bad: Some(bad) },
        None => client.verify_audit(trusted).await?,
    };
    if args.shape.json {
        output::json(&verdict)?;
    } else if verdict.valid {
        output::line(&whole(&verdict))?;
        if let Some(Checkpoint { head, at, public_key, .. }) = checkpoint {
            output::line(&format!(
                "it leads through entry {}, which {public_key} signed at {at}",
                head.number
            ))?;
        }
    }
    judge(&verdict)
}

/// The first checkpoint whose entry is another one now, and up to where the log still fits those before. What is missing at
/// its end is found by whoever walks along it.
async fn contradicted(client: &Client, kept: &[Checkpoint]) -> Result<Option<(u64, BadEntry)>, Failure> {
    let mut fits = 0;
    for checkpoint in kept.iter().rev().take(MOST_CHECKPOINTS).rev() {
        let before = checkpoint.head.number.saturating_sub(1).to_string();
        let page = client.audit(&[("cursor", before.as_str()), ("limit", "1")]).await?;
        let found = page.items.first().filter(|entry| entry.number == checkpoint.head.number);
        match found {
            Some(entry) if entry.entry_hash != checkpoint.head.entry_hash.to_string() => {
                let why =
                    format!("is not the one that was signed at {}: the log was written anew", checkpoint.at);
                return Ok(Some((fits, BadEntry { number: checkpoint.head.number, why })));
            }
            Some(_) => fits = checkpoint.head.number,
            None => {}
        }
    }
    Ok(None)
}

fn whole(verdict: &AuditVerdict) -> String {
    let head = verdict.head.as_deref().map(|head| format!("; the last has the hash {}", safe(head)));
    format!("the audit log is whole: {} entries{}", verdict.entries, head.unwrap_or_default())
}

fn judge(verdict: &AuditVerdict) -> Result<(), Failure> {
    if verdict.valid {
        return Ok(());
    }
    let what = match &verdict.first_bad {
        Some(bad) => format!("the audit log was tampered with: entry {}: {}", bad.number, bad.why),
        None => "the audit log was tampered with".to_owned(),
    };
    let hint = match verdict.entries {
        0 => "none of it can be trusted by itself; compare with a backup".to_owned(),
        good => format!("it is as it was written up to entry {good}; compare what follows with a backup"),
    };
    Err(Failure::new(Kind::No, what).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_log_is_a_no_that_names_the_entry() {
        let good = AuditVerdict { valid: true, entries: 7, head: Some("abc".to_owned()), first_bad: None };
        assert!(judge(&good).is_ok());
        assert_eq!(whole(&good), "the audit log is whole: 7 entries; the last has the hash abc");
        let bad = Some(BadEntry { number: 8, why: "its hash does not fit".to_owned() });
        let refused = judge(&AuditVerdict { valid: false, first_bad: bad, ..good }).expect_err("broken");
        assert_eq!(refused.kind, Kind::No);
        assert_eq!(refused.message(), "the audit log was tampered with: entry 8: its hash does not fit");
    }
}
