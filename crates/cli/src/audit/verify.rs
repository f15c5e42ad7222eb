//! `ade audit verify`: whether the log is as it was written. The answer no names the first entry that is not.

use ade_client::Client;
use ade_client::wire::AuditVerdict;
use clap::Args as ClapArgs;

use crate::failure::{Failure, Kind};
use crate::lists::Shape;
use crate::output::{self, safe};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    shape: Shape,
}

pub(super) async fn run(client: &Client, args: &Args) -> Result<(), Failure> {
    let verdict = client.verify_audit().await?;
    if args.shape.json {
        output::json(&verdict)?;
    } else if verdict.valid {
        output::line(&whole(&verdict))?;
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
