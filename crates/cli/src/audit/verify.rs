//! `ade audit verify`: whether the log is as it was written. The answer no names the first entry that is not.
//!
//! A log that was cut off, or written anew from some entry on, is whole by itself: only a checkpoint that was kept elsewhere
//! tells. Its signature is checked here, so that the server is not asked whom to trust.

use std::fs;
use std::path::{Path, PathBuf};

use ade_app::ledger::Checkpoint;
use ade_client::Client;
use ade_client::wire::AuditVerdict;
use clap::Args as ClapArgs;

use crate::failure::{Failure, Kind};
use crate::lists::Shape;
use crate::output::{self, safe};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// A file of checkpoints that was kept elsewhere, as the server writes audit-checkpoints.ndjson: the log must lead
    /// through the last of them
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// The public key that must have signed it, in hexadecimal digits [default: the one that it names]
    #[arg(long, value_name = "KEY", requires = "checkpoint")]
    key: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

/// The last checkpoint of a file. All of them must be signed, and by the same key.
fn last(file: &Path, key: Option<&str>) -> Result<Checkpoint, Failure> {
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::new(Kind::Input, format!("cannot read {name}: {error}")))?;
    let mut last: Option<Checkpoint> = None;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| Failure::new(Kind::Input, format!("{name}, line {}: {why}", number + 1));
        let checkpoint: Checkpoint =
            serde_json::from_str(line).map_err(|_| wrong("this is not a checkpoint of an audit log"))?;
        if !checkpoint.is_signed() {
            return Err(wrong("the checkpoint is not signed by the key that it names"));
        }
        let expected = key.or(last.as_ref().map(|last| last.public_key.as_str()));
        if expected.is_some_and(|expected| !expected.eq_ignore_ascii_case(&checkpoint.public_key)) {
            return Err(wrong("the checkpoint is signed by another key"));
        }
        last = Some(checkpoint);
    }
    last.ok_or_else(|| Failure::new(Kind::Input, format!("{name} holds no checkpoint")))
}

pub(super) async fn run(client: &Client, args: &Args) -> Result<(), Failure> {
    let checkpoint = args.checkpoint.as_deref().map(|file| last(file, args.key.as_deref())).transpose()?;
    let hash = checkpoint.as_ref().map(|checkpoint| checkpoint.head.entry_hash.to_string());
    let trusted = checkpoint.as_ref().map(|checkpoint| checkpoint.head.number).zip(hash.as_deref());
    let verdict = client.verify_audit(trusted).await?;
    if args.shape.json {
        output::json(&verdict)?;
    } else if verdict.valid {
        output::line(&whole(&verdict))?;
        if let Some(Checkpoint { head, at, public_key, .. }) = &checkpoint {
            output::line(&format!(
                "it leads through entry {}, which {public_key} signed at {at}",
                head.number
            ))?;
        }
    }
    judge(&verdict)
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
    let hint =
        format!("the {} entries before it are as they were written; compare with a backup", verdict.entries);
    Err(Failure::new(Kind::No, what).hint(hint))
}

#[cfg(test)]
mod tests {
    use ade_client::wire::BadEntry;

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
